"""An application's view of jobs that its runtime has taken over from another node."""

from __future__ import annotations

from time import monotonic
from typing import Any

import anyio
import pytest
from tests.actors.stage import KernelHarness, flow, hangs
from tests.runtime.cluster.memory import MemoryNode, Shared

from callboard import Runtime, Task
from callboard.errors import RuntimeClosed
from callboard.machines.audit.log import EPOCH

pytestmark = pytest.mark.anyio


def joining() -> MemoryNode:
    """A journal with a membership among nodes."""
    return Shared(monotonic).node("web-2")


def left_by_a_dead_node(*names: str) -> Any:
    """Return the records of a node that died with these jobs, each in the middle of its first task."""
    dead = KernelHarness(node="web-1", epoch=1)
    dead.scripts["a"] = hangs
    for name in names:
        dead.submit(flow(Task("a", run="f"), Task("b", run="f", depends_on=["a"])), name)
    loaded = dead._living(dead.kept)
    loaded.last_key = loaded.last_seq = 3 * EPOCH
    return loaded


async def adopt(runtime: Runtime, loaded: Any) -> None:
    """Have it taken over, in the epoch that it begins."""
    journal: Any = runtime.journal
    journal.cluster.session.epochs.add(loaded.last_seq // EPOCH)
    await runtime._life.wiring.adopt(loaded)


async def test_a_job_that_was_taken_over_is_found_and_ends_here() -> None:
    async with Runtime(joining()) as runtime:
        runtime.task(f)
        await adopt(runtime, left_by_a_dead_node("one", "two"))
        assert sorted(job.id for job in runtime.recovered) == ["one", "two"]
        with anyio.fail_after(300):
            for handle in (*runtime.recovered, await runtime.job("one")):
                outcome = await handle.wait()
                assert (outcome.state, outcome.results) == ("completed", {"a": 7, "b": 7})
        assert next(worker.record.id for worker in runtime.workers()) == "loop@web-2#1"
        assert runtime.worker("loop@web-2").name == "loop"


async def test_what_was_told_of_it_elsewhere_is_the_past_of_its_events() -> None:
    loaded = left_by_a_dead_node("one")
    async with Runtime(joining()) as runtime:
        await adopt(runtime, loaded)
        assert runtime._services.hub.told >= loaded.last_seq


async def test_what_this_program_has_not_waits_until_it_is_there() -> None:
    async with Runtime(joining()) as runtime:
        await adopt(runtime, left_by_a_dead_node("one"))
        (handle,) = runtime.recovered
        assert (handle.state, handle.task("a").record.routable) == ("running", False)
        runtime.task(f)
        with anyio.fail_after(300):
            assert (await handle.wait()).ok


async def test_who_waits_for_one_is_told_when_the_runtime_closes() -> None:
    async with Runtime(joining()) as runtime:
        await adopt(runtime, left_by_a_dead_node("one"))
    with pytest.raises(RuntimeClosed):
        await runtime.recovered[0].wait()


async def f() -> int:
    """A body."""
    return 7
