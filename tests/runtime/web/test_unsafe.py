"""The submissions that are refused from callers who may not run programs."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from callboard import Runtime, TaskContext

pytestmark = pytest.mark.anyio


async def greet(task: TaskContext) -> str:
    return f"hello {task.args['who']}"


def spec(**more: Any) -> dict[str, Any]:
    return {"name": "hi", "tasks": [{"name": "greet", "run": "greet", "args": {"who": "ana", "command": "x"}, **more}]}


UNSAFE: dict[str, Any] = {
    "tasks[0].command": spec(run=None, command="touch here"),
    "tasks[0].shell": spec(shell=True),
    "tasks[0].run": spec(run="os:getcwd"),
    "tasks[0].cwd": spec(cwd="/"),
    "tasks[0].env": spec(env={"PATH": "/tmp"}),
    "tasks[0].secrets": spec(secrets=["HOME"]),
    "tasks[0].lifecycle": spec(lifecycle="os:getcwd"),
    "tasks[0].condition.command": spec(condition={"command": ["true"]}),
    "tasks[0].condition.run": spec(condition={"run": "os:getcwd"}),
    "tasks[0].checks[0].imports": spec(checks=[{"imports": "antigravity"}]),
    "tasks[0].checks[0].imports_js": spec(checks=[{"imports_js": "fs"}]),
    "tasks[0].checks[0].file": spec(checks=[{"file": "/etc/passwd"}]),
    "tasks[0].checks[0].changed": spec(checks=[{"changed": "/etc/passwd"}]),
    "tasks[0].checks[0].command": spec(checks=[{"command": "true"}]),
    "tasks[0].cancel_hooks[0].command": spec(cancel_hooks=[{"command": "true"}]),
    "tasks[0].on_failed[0].run": spec(on_failed=[{"run": "os:getcwd"}]),
    "tasks[0].retry.wait": spec(retry={"wait": "os:getcwd"}),
    "tasks[0].hold.clauses[0].members": spec(hold={"clauses": [{"team": "t", "people": 1, "members": "os:getcwd"}]}),
    "folder": {**spec(), "folder": "/tmp"},
    "env": {**spec(), "env": {"A": "b"}},
    "cwd": {**spec(), "cwd": "/"},
    "secrets": {**spec(), "secrets": ["HOME"]},
    "lifecycle": {**spec(), "lifecycle": "os:getcwd"},
    "alerts[0].command": {**spec(), "alerts": [{"command": "true"}]},
    "on_completed[0].command": {**spec(), "on_completed": [{"command": "true"}]},
    "checks[0].run": {**spec(), "checks": [{"run": "os:getcwd"}]},
    "defaults.retry.wait": {**spec(), "defaults": {"retry": {"wait": "os:getcwd"}}},
    "tools.t.retry.wait": {**spec(), "tools": {"t": {"retry": {"wait": "os:getcwd"}}}},
    "tools.t.breaker.lifecycle": {**spec(), "tools": {"t": {"breaker": {"lifecycle": "os:getcwd"}}}},
    "workers": {**spec(), "workers": [{"name": "w", "engine": "loop"}]},
}


async def test_what_would_run_or_reach_anything_else_is_refused(runtime: Runtime, client: httpx.AsyncClient) -> None:
    runtime.task(greet)
    for where, workstream in UNSAFE.items():
        answer = await client.post("/api/jobs", json={"workstream": workstream})
        assert answer.status_code == 422, where
        assert f"workstream.{where}" in [one["where"] for one in answer.json()["findings"]], where
    assert (await client.get("/api/jobs")).json()["items"] == []
    assert (await client.post("/api/jobs", json={"workstream": spec()})).status_code == 201
