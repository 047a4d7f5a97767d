"""The logs of two nodes, of which one took over the other's jobs: each is correct alone, and both together."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.programs import killed_after

from callboard.machines.audit.audit import audit_lines, audit_logs

SRC = str(Path(__file__).parents[2] / "src")
NODE = textwrap.dedent("""
    import sys, anyio
    from callboard import Fire, MachineActor, Runtime, Task, Worker, Workstream
    from callboard.machines.lifecycles.execution import EXECUTION

    url, node = sys.argv[1:]
    WORKERS = [Worker("commands", engine="command", capacity=4)]
    TASKS = [
        Task("one", command=["true"]),
        Task("two", command=["sleep", "1"], depends_on=["one"]),
        Task("three", command=["true"], depends_on=["two"]),
        Task("four", command=["true"], depends_on=["three", "one"]),
    ]

    async def main():
        if node == "again":
            async with Runtime(url, node="a", lease=1.0, workers=[], jsonl="a.jsonl"):
                return
        async with Runtime(url, node=node, lease=1.0, workers=WORKERS, jsonl=f"{node}.jsonl") as runtime:
            run = runtime.spawn(MachineActor(EXECUTION), name="run-7")
            if node == "a":
                job = await runtime.submit(Workstream("w", tasks=TASKS), id="j")
                await run.ask(Fire("ENQUEUE"))
                async for _ in job.events(task="two", to_state="running", notices=False):
                    break
                await runtime._services.settled(60)
                print("runs", flush=True)
                await anyio.sleep_forever()
            with anyio.fail_after(90):
                await runtime.submit(Workstream("own", tasks=TASKS[:1]), id="own")
                assert (await (await runtime.job("j")).wait()).ok
                await run.ask(Fire("START"))
            await runtime._services.settled(60)

    anyio.run(main)
""")


def test_logs_of_two_nodes_hold_each_by_itself_and_together(postgres: str, tmp_path: Path) -> None:
    (tmp_path / "node.py").write_text(NODE)

    def command(node: str) -> list[str]:
        return [sys.executable, "node.py", postgres, node]

    program = subprocess.Popen(command("a"), cwd=tmp_path, env=_env(), stdout=subprocess.PIPE, text=True)
    with killed_after(program) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "runs\n"
    log = tmp_path / "a.jsonl"  # a line is written after its transition is durable: a kill may come in between
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-5]))
    subprocess.run(command("b"), cwd=tmp_path, env=_env(), check=True, timeout=600)

    def logs_now() -> dict[str, list[bytes]]:
        return {name: (tmp_path / name).read_bytes().splitlines(keepends=True) for name in ("a.jsonl", "b.jsonl")}

    assert {(one.severity, one.kind) for one in audit_logs(logs_now())} == {("warning", "part")}
    subprocess.run(command("again"), cwd=tmp_path, env=_env(), check=True, timeout=600)
    logs = logs_now()
    assert audit_lines(logs["a.jsonl"]) == []
    found = audit_lines(logs["b.jsonl"])
    assert {(one.severity, one.kind) for one in found} == {("warning", "part")}
    about = sorted(one.text.removeprefix("another node ran ").partition(" before,")[0] for one in found)
    assert about == ["job j", "machine run-7", "worker commands@a#1"]
    assert audit_logs(logs) == []
    for count in range(len(logs["a.jsonl"])):
        cut = audit_logs({**logs, "a.jsonl": logs["a.jsonl"][:count]})
        assert {(one.severity, one.kind) for one in cut} <= {("warning", "part")}
    broken = {**logs, "b.jsonl": [line for line in logs["b.jsonl"] if b'"j@1/three"' not in line]}
    assert {one.kind for one in audit_logs(broken) if one.severity == "error"} >= {"gap"}


def _env() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": SRC}


pytest.importorskip("psycopg")
