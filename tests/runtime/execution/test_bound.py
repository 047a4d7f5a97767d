"""The fields of log lines: the names of their own task, and never those of another."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import structlog

from callboard import Check, Condition, Hook, Retry, Runtime, Task, TaskContext, Worker, Workstream

pytestmark = pytest.mark.anyio

log = structlog.get_logger()
seen: list[dict[str, Any]] = []


def catch(_: Any, __: str, event: Any) -> Any:
    seen.append(dict(event))
    raise structlog.DropEvent


@pytest.fixture(autouse=True)
def caught() -> Iterator[None]:
    seen.clear()
    structlog.contextvars.clear_contextvars()
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, catch])
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def say(what: str) -> None:
    """Write a log line, and then leave as much as possible bound."""
    log.info(what, thread=threading.get_ident())
    structlog.contextvars.bind_contextvars(leaked=what, task="another", attempt=99)


async def body() -> None:
    say("body")
    await anyio.lowlevel.checkpoint()
    async with anyio.create_task_group() as group:
        group.start_soon(inner)


async def inner() -> None:
    say("inner")
    await anyio.lowlevel.checkpoint()
    log.info("still")


async def flaky(task: TaskContext) -> None:
    say("flaky")
    if task.attempt == 1:
        raise ValueError("once")


def plain() -> None:
    say("plain")


def ask() -> bool:
    say("asked")
    return True


def check(task: TaskContext) -> None:
    say("checked")


def final() -> None:
    say("final")


async def hook() -> None:
    say("hook")


def fields(line: dict[str, Any]) -> dict[str, Any]:
    return {name: line[name] for name in ("workstream_id", "task", "attempt", "leaked") if name in line}


async def test_lines_carry_the_names_of_what_they_belong_to_and_no_others() -> None:
    def of(stream: str, count: int) -> Workstream:
        parts = {"condition": Condition(run=ask), "checks": [Check(run=check)], "on_completed": [Hook(run=hook)]}
        tasks = [Task(f"a{i}", run=(body, plain)[i % 2], **parts) for i in range(count)]  # type: ignore[arg-type]
        tasks.append(Task("b", run=flaky, retry=Retry(max_attempts=2, base_delay=0.0, jitter=0.0)))
        return Workstream(stream, tasks=tasks, checks=[Check(run=final)], on_completed=[Hook(run=hook)])

    structlog.contextvars.bind_contextvars(request="outer")
    workers = [Worker("loop", engine="loop", capacity=3), Worker("threads", engine="thread", capacity=2)]
    with anyio.fail_after(300):
        async with Runtime(workers=workers) as runtime:
            jobs = [await runtime.submit(of(name, 6), id=name) for name in ("x", "y")]
            for job in jobs:
                assert (await job.wait()).ok
            await runtime.drain(10)
    assert structlog.contextvars.get_contextvars() == {"request": "outer"}
    ours = [line for line in seen if not line["event"].endswith("_state_transition")]
    for name in ("x", "y"):
        mine = [line for line in ours if line.get("workstream_id") == f"{name}@1"]
        kinds: dict[str, list[dict[str, Any]]] = {}
        for line in mine:
            kinds.setdefault(line["event"], []).append(fields(line))
        stream = {"workstream_id": f"{name}@1"}
        each = [{**stream, "task": f"a{i}", "attempt": 1} for i in range(6)]

        def in_order(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return sorted(lines, key=repr)

        assert in_order(kinds["body"]) == in_order(each[::2])
        assert in_order(kinds["plain"]) == in_order(each[1::2])
        assert in_order(kinds["checked"]) == in_order(each)
        assert in_order(kinds["asked"]) == in_order([{**one, "attempt": 0} for one in each])
        assert in_order(kinds["hook"]) == in_order([*each, stream])
        assert kinds["final"] == [stream]
        assert [one["attempt"] for one in kinds["flaky"]] == [1, 2]
        assert all(one["task"] == "b" and "leaked" not in one for one in kinds["flaky"])
        # What a body starts inherits what that body has bound: there, and nowhere else.
        assert {one["leaked"] for one in kinds["inner"]} == {"body"}
    assert all("leaked" not in line for line in seen if line["event"].endswith("_state_transition"))


MODULE = """
import structlog

def said():
    found = structlog.contextvars.get_contextvars()
    structlog.contextvars.bind_contextvars(leaked="said", task="another")
    return found
"""


async def test_a_worker_process_leaks_nothing_from_one_body_to_the_next(tmp_path: Path) -> None:
    (tmp_path / "says_in_a_process.py").write_text(MODULE)
    tasks = [Task(name, run="says_in_a_process:said", engine="process") for name in ("a", "b", "c")]
    workers = [Worker("w", engine="process", capacity=1)]
    with anyio.fail_after(300):
        async with Runtime(workers=workers, outputs=tmp_path / "out") as runtime:
            spec = Workstream("w", folder=str(tmp_path), tasks=tasks)
            outcome = await (await runtime.submit(spec, id="j")).wait()
    assert outcome.results == {name: {"workstream_id": "j@1", "task": name, "attempt": 1} for name in ("a", "b", "c")}
