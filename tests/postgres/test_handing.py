"""A draining node hands its jobs over at once: which jobs wait meanwhile, and how long, in real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest
from tests.waiting import until, wait_until

from callboard import Approval, Runtime, Task, TaskContext, Workstream
from callboard.runtime.journal.consistency import examine
from callboard.runtime.journal.postgres.reader import PostgresReader

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]
ON_BOTH = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
ROOT = Path(__file__).parents[2]
PATIENCE = 240.0
LONG = float(os.environ.get("CALLBOARD_LONG_BODY", "0"))
"""Seconds of the longest body, where it is measured how long jobs stand still: 40 for the figure in docs/cluster.md.
If 0, the longest body of a node ends when all jobs have gone that run no body: nothing depends on how fast that is.
"""
STALL = 1.0
"""Seconds that a job may stand still between two bodies while its node leaves, on a machine that does nothing else."""
gates: dict[str, anyio.Event] = {}
ran: Counter[str] = Counter()


class Process:
    def __init__(self, address: str, name: str, folder: Path, steps: int) -> None:
        command = [sys.executable, "-m", "tests.postgres.rolling", address, name, str(folder), str(LONG), str(steps)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def leave(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        assert self.process.wait(PATIENCE) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class Note(NamedTuple):
    what: str
    job: str
    task: str
    process: str
    at: float


def notes(folder: Path) -> list[Note]:
    lines = (folder / "log").read_text().splitlines()
    return [Note(what, job, task, process, float(at)) for what, job, task, process, at in map(str.split, lines)]


def stalls(noted: list[Note], *, moved: bool) -> list[float]:
    """How long jobs stood still between the end of a body and the beginning of the next, longest first: where that was
    in another process, or where it was in the same one.
    """
    found: list[float] = []
    ended: dict[str, Note] = {}
    for note in noted:
        if note.what == "ended":
            ended[note.job] = note
        elif (before := ended.pop(note.job, None)) is not None and (before.process != note.process) is moved:
            found.append(note.at - before.at)
    return sorted(found, reverse=True)


def went(folder: Path, node: int, *, long: bool) -> bool:
    """Whether a body of each short job of that node has begun in a second process. long: and of its long job."""
    ran_in: defaultdict[str, set[str]] = defaultdict(set)
    for note in notes(folder):
        ran_in[note.job].add(note.process)
    return all(len(ran_in[f"old-{node}-{number}"]) == 2 for number in (0, 1, 2, *(("long",) if long else ())))


def test_a_rolling_deployment_stalls_no_job_and_begins_no_body_again(postgres: str, tmp_path: Path) -> None:
    """Jobs go on elsewhere while the longest body of their node still runs, and long before its lease is over."""
    steps = int((3 * LONG + 20) / 0.35) if LONG else 500  # more than are done
    nodes = [Process(postgres, f"old-{n}", tmp_path, steps) for n in range(3)]
    try:
        for node in nodes:
            node.ready()
        for n in range(3):
            nodes.append(Process(postgres, f"new-{n}", tmp_path, 0))
            nodes[-1].ready()
            nodes[n].leave()
            if not LONG:
                wait_until(partial(went, tmp_path, n, long=False), "its jobs did not go on elsewhere", within=PATIENCE)
                (tmp_path / f"old-{n}").touch()
            nodes[n].end()
        for n in range(3):  # a new node takes a job at once, and begins its next body a moment later
            wait_until(partial(went, tmp_path, n, long=True), "its long job did not go on elsewhere", within=PATIENCE)
        noted = notes(tmp_path)
        ran_in = {job: {note.process for note in noted if note.job == job} for job in {note.job for note in noted}}
        assert ran_in.keys() == {f"old-{n}-{what}" for n in range(3) for what in (0, 1, 2, "long")}
        assert {len(processes) for processes in ran_in.values()} == {2}  # each moved once, to a node that stays
        moved, stayed = stalls(noted, moved=True), stalls(noted, moved=False)
        print(f"longest stalls of {len(moved)} moves: {moved[:3]}; within a node, of {len(stayed)}: {stayed[:3]}")
        busy = stayed[len(stayed) // 100]  # the time that the machine sometimes takes for other work
        assert not LONG or moved[0] < STALL + busy, (moved, stayed[:10])
        began = Counter((note.job, note.task) for note in noted if note.what == "began")
        assert set(began.values()) == {1}
    finally:
        for node in nodes:
            node.kill()
    reader = PostgresReader(postgres)
    assert [finding for finding in examine(reader).found if finding.severity == "error"] == []
    owners = set(reader.owners([job.key for job in reader.jobs()]).values())
    assert not any(owner.startswith("old") for owner in owners)
    reader.close()


async def passes(task: TaskContext) -> None:
    ran[f"{task.job_id}/{task.task}"] += 1


async def waits(task: TaskContext) -> None:
    ran[f"{task.job_id}/{task.task}"] += 1
    await gates[task.job_id].wait()


@ON_BOTH
async def test_what_runs_no_body_goes_at_once_and_the_rest_when_its_body_has_ended(postgres: str) -> None:
    ran.clear()
    gates["busy"] = anyio.Event()
    two = [Task("a", run=waits), Task("b", run=passes, depends_on=["a"])]
    held = Workstream("held", tasks=[Task("x", run=passes, hold=Approval())])
    async with Runtime(postgres, node="old") as old, Runtime(postgres, node="new") as new:
        assert new.node == "new"
        busy = await old.submit(Workstream("busy", tasks=two), id="busy")
        idle = await old.submit(held, id="idle")
        await until(lambda: ran["busy/a"])
        async with anyio.create_task_group() as group:
            await group.start(old.drain, 60)
            await until(lambda: [job.id for job in new.recovered] == ["idle"])
            assert old._services.draining
            await idle.task("x").approve(by="ana")  # by the old node's handle, which sends it on
            job = await new.job("idle")
            assert (await job.wait()).state == "completed"
            assert ran["busy/b"] == 0
            gates["busy"].set()
            await until(lambda: len(new.recovered) == 2)
        assert busy.id == "busy"
        outcome = await (await new.job("busy")).wait()
        assert outcome.state == "completed"
        assert ran == {"busy/a": 1, "busy/b": 1, "idle/x": 1}
    reader = PostgresReader(postgres)
    assert [finding for finding in examine(reader).found if finding.severity == "error"] == []
    reader.close()


@ON_BOTH
async def test_where_nobody_else_takes_it_a_job_stays_until_its_node_leaves(postgres: str) -> None:
    ran.clear()
    gates["alone"] = anyio.Event()
    async with Runtime(postgres, node="only") as runtime:
        held = await runtime.submit(Workstream("h", tasks=[Task("x", run=passes, hold=Approval())]), id="held")
        await runtime.drain(0.2)
        assert held.state == "running"
        reader = PostgresReader(postgres)
        assert set(reader.owners([held.record.key]).values()) == {"only"}
        reader.close()
    async with Runtime(postgres, node="next") as after:
        assert [job.id for job in after.recovered] == ["held"]
