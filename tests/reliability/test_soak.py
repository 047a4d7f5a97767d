"""The soak (`soak.py`): a few seconds of it by default, and hours with `CALLBOARD_LABORATORY=hours`."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path

import pytest
from tests.reliability.kills.verdict import checked
from tests.reliability.soak import Echo, Figures, hook, quick, soak, stumbles

from callboard import Approval, Hook, Retry, Runtime, Task, TaskContext, Worker, Workstream
from callboard.errors import InvalidTransitionError
from callboard.machines.audit.audit import audit_lines
from callboard.runtime.journal.sqlite.reader import SqliteReader

pytestmark = [
    pytest.mark.laboratory,
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="what a process holds is read from /proc"),
]
HOURS = float(os.environ.get("CALLBOARD_LABORATORY", "0"))
LEAST = 2_000  # workstreams: half a minute, of which enough samples are taken
MB = 1 << 20
MANY = 40
"""Jobs between two looks at the memory."""


def held(place: Path, figures: Figures) -> None:
    """Check the figures of a soak, and the data that it left."""
    assert list(checked(place)) == []
    with (place / "transitions.jsonl").open("rb") as log:
        assert list(audit_lines(log)) == []
    with closing(SqliteReader(place / "state.db")) as reader:
        left = reader.load()
        assert (left.jobs, left.attempts, left.outbox) == ([], [], [])
    parked = {word: count for word, count in figures.outcomes.items() if word.startswith("parked")}
    assert parked == {"parked, completed": figures.parked // 2, "parked, cancelled": figures.parked // 2}
    assert not {kind for kind in figures.troubles if kind.startswith("archive")}


def test_a_short_soak_leaves_nothing_behind(tmp_path: Path) -> None:
    figures = asyncio.run(soak(tmp_path, workstreams=150, parked=100, rate=200, every=1.0, simple=0.7))
    held(tmp_path, figures)
    assert sum(figures.outcomes.values()) == 250
    assert figures.samples[-1].fds <= figures.samples[0].fds + 20  # of engines that were not used before


async def has_a_child(task: TaskContext) -> int:
    child = await task.submit(Workstream("sub", tasks=[Task("only", run=quick)]), name="sub")
    return int((await child.wait()).ok)


async def one_of_many(runtime: Runtime, number: int) -> None:
    """A job of every kind of task under its own name; it uses no threads but the loop's and the writer's."""
    held = None if number % 2 else Approval()
    tasks = [
        Task("fails", run=stumbles, retry=Retry(max_attempts=2, base_delay=0), tool="press"),
        Task("child", run=has_a_child, depends_on=["fails"]),
        Task("last", run=quick, hold=held, cancel_hooks=[Hook(run=hook)]),
    ]
    spec = Workstream(f"flow-{number}", tasks=tasks, on_completed=[Hook(run=hook)], on_cancelled=[Hook(run=hook)])
    job = await runtime.submit(spec, id=f"j-{number}")
    with suppress(InvalidTransitionError):  # it may have ended by now
        await job.pause(request_id=f"pause-{number}")
        await job.resume(request_id=f"resume-{number}")
    if held is not None:
        await job.cancel(request_id=f"cancel-{number}")
    await job.wait()
    echo = runtime.spawn(Echo, name=f"echo-{number}")
    await echo.ask(number)
    echo.stop()


def test_of_what_has_ended_nothing_is_held_in_memory(tmp_path: Path, no_logs: object) -> None:
    """Not two blocks a job, whatever it did: no entry of a dict, no name, no timer. (pytest keeps log lines.)"""
    blocks: list[int] = []

    async def run() -> None:
        async with Runtime(tmp_path / "state.db", workers=[Worker("loop", engine="loop", capacity=4)]) as runtime:
            for number in range(5 * MANY):
                await one_of_many(runtime, number)
                if number % MANY == MANY - 1:
                    host = runtime._services.host
                    await host.barrier()
                    host.dispatcher.timers._compact()  # it does so by itself, once there are more of them
                    gc.collect()
                    blocks.append(sys.getallocatedblocks())

    asyncio.run(run())
    assert min(after - before for before, after in pairwise(blocks[1:])) < 2 * MANY, blocks


@pytest.mark.skipif(not HOURS, reason="the long mode: CALLBOARD_LABORATORY=hours")
def test_a_long_soak_holds_no_more_at_its_end_than_when_it_was_warm(tmp_path: Path) -> None:
    workstreams = max(int(HOURS * 150_000), LEAST)
    figures = asyncio.run(soak(tmp_path, workstreams=workstreams, parked=min(10_000, workstreams // 5), rate=60))
    held(tmp_path, figures)
    warm, end = figures.samples[len(figures.samples) // 3], figures.samples[-2]
    assert end.rss < warm.rss + 30 * MB
    assert end.objects < warm.objects * 1.1
    assert end.fds < warm.fds + 10
    assert end.threads < warm.threads + 20
    assert end.wal < warm.wal + 8 * MB
