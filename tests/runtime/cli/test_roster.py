"""The workers that `resume` and `serve` start: those of the last program, with all later changes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.programs import killed_after
from tests.waiting import until

from callboard import Runtime, Task, Worker, Workstream
from callboard.actors.records.entities import WorkerRecord
from callboard.runtime.cli.roster import last_workers
from callboard.runtime.journal.sqlite.reader import SqliteReader

from ..engines import process_bodies as bodies
from .conftest import CommandResult, environment

Cli = Callable[..., CommandResult]


@pytest.fixture(params=[("asyncio", {"use_uvloop": False}), ("trio", {})], ids=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Two loops are enough: differences between loops are tested elsewhere."""
    return request.param


def names(journal: Path) -> dict[str, str]:
    """Return the workers that the next `resume` would start, with their engines. A program may run the journal."""
    with contextlib.closing(SqliteReader(journal)) as reader:
        return {worker.name: worker.engine for worker in last_workers(reader.workers()) or []}


@pytest.mark.anyio
async def test_every_way_that_a_worker_begins_ends_and_is_made_again(tmp_path: Path) -> None:
    journal = tmp_path / "state.db"
    first = [Worker("loop", engine="loop", capacity=2), Worker("old", engine="thread", capacity=1)]
    async with Runtime(journal, workers=first, drain_deadline=0) as runtime:
        await runtime._services.settled(60)
    assert names(journal) == {"loop": "loop", "old": "thread"}  # closed with its program

    one = [
        Worker("loop", engine="loop", capacity=2),
        Worker("mill", engine="process", capacity=1, capabilities=["grain"]),
        Worker("spare", engine="thread", capacity=1),
    ]
    async with Runtime(journal, workers=one, drain_deadline=0) as runtime:

        async def now(**changed: str | None) -> None:
            await runtime._services.settled(60)
            expected.update({name: engine for name, engine in changed.items() if engine is not None})
            for name in [name for name, engine in changed.items() if engine is None]:
                del expected[name]
            assert names(journal) == expected

        expected: dict[str, str] = {}
        await now(loop="loop", mill="process", spare="thread")  # another program, without `old`

        await until(lambda: runtime.worker("mill").state == "idle")
        job = await runtime.submit(Workstream("w", tasks=[Task("a", command=["sleep", "60"], optional=True)]), id="w")
        await runtime.start_worker(Worker("hand", engine="command", capacity=1))  # made while it runs, as over HTTP
        await now(hand="command")
        await until(lambda: job.task("a").record.state == "running")

        held = Task("a", run=bodies.patient, engine="process", capabilities=["grain"], on_loss="fail")
        ground = await runtime.submit(Workstream("grind", tasks=[held]), id="grind")
        await until(lambda: ground.task("a").record.pid is not None)
        os.kill(ground.task("a").record.pid or 0, signal.SIGKILL)  # its process ends, and a new one is started
        await until(lambda: runtime.worker("mill").record.run == 2)
        await now()

        await runtime.worker("spare").terminate()
        await now(spare=None)
        await runtime._services.former_worker("spare").start()
        await now(spare="thread")
        await runtime.worker("hand").shut_down(deadline=60)  # it drains, and must not be started again
        await now(hand=None)
        await runtime.worker("loop").shut_down()
        await now(loop=None)
        await runtime.start_worker(Worker("loop", engine="loop", capacity=7))
        await now(loop="loop")
        with contextlib.closing(SqliteReader(journal)) as reader:
            (loop,) = [worker for worker in last_workers(reader.workers()) or [] if worker.name == "loop"]
            (mill,) = [worker for worker in last_workers(reader.workers()) or [] if worker.name == "mill"]
        assert (loop.capacity, mill.capabilities) == (7, ["grain"])
        await job.cancel(force=True)
    assert names(journal) == expected  # after an orderly end
    async with Runtime(journal, workers=(), drain_deadline=0):
        pass
    assert names(journal) == expected  # a program without workers, as a tool that only reads, changes nothing


def test_a_worker_made_late_does_not_push_the_others_out_of_the_next_resume(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    (folder / "late_steps.py").write_text("import pathlib\ndef note(task): pathlib.Path(task.task).touch()\n")
    (folder / "program.py").write_text(
        textwrap.dedent("""
        import anyio
        from callboard import Approval, Runtime, Task, Worker, Workstream

        async def main():
            mine = [Worker("first", engine="thread", capacity=1, capabilities=["early"])]
            async with Runtime("callboard.db", workers=mine) as runtime:
                await runtime.start_worker(Worker("late", engine="thread", capacity=1, capabilities=["late"]))
                tasks = [
                    Task("held", command=["true"], hold=Approval()),
                    Task("a", run="late_steps:note", capabilities=["early"], after=["held"]),
                    Task("b", run="late_steps:note", capabilities=["late"], after=["held"]),
                ]
                await runtime.start_worker(Worker("commands", engine="command", capacity=1))
                job = await runtime.submit(Workstream("w", tasks=tasks), id="w")
                await runtime._services.settled(60)
                print("ready", flush=True)
                await anyio.sleep_forever()

        anyio.run(main)
        """)
    )
    program = subprocess.Popen(
        [sys.executable, "program.py"], cwd=folder, env=environment(), text=True, stdout=subprocess.PIPE
    )
    with killed_after(program) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.kill()
    assert cli("approve", "w/held").code == 4
    result = cli("resume")
    assert (result.code, (folder / "a").exists(), (folder / "b").exists()) == (0, True, True), result.everything
    events = [json.loads(line) for line in cli("history", "--json").out.splitlines()]
    started = {event["entity_id"] for event in events if event["event_type"].startswith("worker")}
    assert {"first#2", "late#2", "commands#2"} <= started


def test_records_of_an_older_version_are_read_by_who_lived_or_was_closed_last() -> None:
    def record(name: str, key: int, created: float, ended: float | None = None, why: str | None = None) -> WorkerRecord:
        return WorkerRecord(
            key=key, id=f"{name}#1", name=name, state="shutdown" if ended else "idle", created_at=created,
            updated_at=created, finished_at=ended, reason=why, engine="loop", capacity=1,
        )  # fmt: skip

    def found(*records: WorkerRecord) -> list[str]:
        return [worker.name for worker in last_workers(records) or []]

    closed = "the runtime closed"
    past = [record("yesterday", 1, 10, 20, closed), record("before", 2, 10, 20, closed)]
    assert found(*past, record("a", 3, 30), record("late", 4, 35)) == ["a", "late"]
    assert found(*past, record("a", 3, 30, 40, closed), record("late", 4, 35, 40.1, closed)) == ["a", "late"]
    assert found(*past, record("a", 3, 30, 31, "died"), record("late", 4, 30, 31, "died")) == ["a", "late"]
    assert last_workers([]) is None


def test_where_operators_have_ended_all_they_are_started_as_they_were() -> None:
    gone = WorkerRecord(
        key=3, id="a#1", name="a", state="shutdown", created_at=1, updated_at=1, engine="loop", capacity=3, program=3,
        retired=True,
    )  # fmt: skip
    (worker,) = last_workers([gone]) or []
    assert (worker.name, worker.capacity) == ("a", 3)
    kept = msgspec.structs.replace(gone, key=4, id="b#1", name="b", retired=False)
    assert [worker.name for worker in last_workers([gone, kept]) or []] == ["b"]
