"""Metrics: what they count, and that they cost nothing unread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard import Fire, Machine, MachineActor, Retry, Runtime, State, Task, Transition, VirtualClock, Workstream
from callboard.errors import InvalidTransitionError, RuntimeClosed

pytestmark = pytest.mark.anyio


async def one() -> int:
    return 1


failures: list[int] = []


async def fails_once() -> int:
    if failures:
        return failures.pop()
    failures.append(2)
    raise ConnectionError("not yet")


async def test_everything_is_counted(tmp_path: Path) -> None:
    failures.clear()
    clock = VirtualClock()
    runtime = Runtime(tmp_path / "state.db", clock=clock)
    with pytest.raises(RuntimeClosed):
        runtime.metrics()
    with anyio.fail_after(300):
        async with runtime:
            events = runtime.events(task="again", to_state="retrying")
            tasks = [
                Task("one", run=one, tool="compiler"),
                Task("again", run=fails_once, retry=Retry(max_attempts=2, base_delay=5.0, jitter=0.0)),
            ]
            job = await runtime.submit(Workstream("w", tasks=tasks), id="j")
            await anext(events)
            clock.advance(5.0)
            await job.wait()
            for request in ("r1", "r1"):
                other: Any = await runtime.submit(Workstream("o", tasks=[Task("one", run=one)]), id=request)
                await other.wait()
            with pytest.raises(InvalidTransitionError):
                await job.cancel()
            metrics = runtime.metrics()
    assert metrics.transitions["task", "running", "retrying", "warning"] == 1
    assert metrics.transitions["task", "validating", "completed", "info"] == 3
    running, retrying = metrics.states["task", "running"], metrics.states["task", "retrying"]
    assert (running.entered, running.left, running.timed) == (4, 4, 4)
    assert (running.success_rate, running.next_state) == (0.75, "validating")
    assert (retrying.seconds, retrying.average, retrying.next_state) == (5.0, 5.0, "queued")
    assert sum(retrying.classes) == 1
    assert metrics.states["task", "completed"].success_rate is None
    assert metrics.breakers == {"compiler": "closed"}
    assert metrics.workers["loop", "idle"] == 1
    assert (metrics.slots["loop"], metrics.slots_used["loop"]) == (100, 0)
    assert metrics.commits > 2
    assert metrics.committed >= sum(metrics.transitions.values()) > 20
    assert metrics.slowest_commit <= metrics.commit_seconds
    assert (metrics.inbox, metrics.ready, metrics.backlog, metrics.stale, metrics.timers_fired > 0) == (
        0,
        0,
        0,
        0,
        True,
    )


async def test_what_a_state_does_not_allow_is_counted() -> None:
    started = anyio.Event()

    async def runs() -> None:
        started.set()
        await anyio.sleep_forever()

    async with Runtime() as runtime:
        runtime.task(runs)
        tasks = [Task("quick", run=one), Task("a", run=runs, depends_on=["quick"])]
        job = await runtime.submit(Workstream("w", tasks=tasks), id="j")
        await started.wait()
        with pytest.raises(InvalidTransitionError):
            await job.task("quick").cancel()
        for _ in range(2):
            await job.cancel(request_id="r1")
        metrics = runtime.metrics()
    assert metrics.rejected == {("task", "completed", "cancel_graceful"): 1}
    assert (metrics.requests, metrics.request_hits, metrics.request_hit_rate) == (2, 1, 0.5)


def switch(name: str) -> MachineActor:
    """One of several machines whose states are called alike."""
    states = [State("pending", bounded_by="a test"), State("on", terminal=True)]
    return MachineActor(Machine(name, "pending", states, [Transition("pending", "go", "on")]))


async def test_machines_are_told_apart_though_their_states_are_called_alike() -> None:
    clock = VirtualClock()
    async with Runtime(clock=clock) as runtime:
        fast, slow = runtime.spawn(switch("fast"), name="j"), runtime.spawn(switch("slow"), name="other")
        await runtime._services.host.barrier()
        clock.advance(1.0)
        await fast.ask(Fire("go"))
        await (await runtime.submit(Workstream("w", tasks=[Task("one", run=one)]), id="j")).wait()  # of the same name
        clock.advance(9.0)
        await slow.ask(Fire("go"))
        metrics = runtime.metrics()
    spent = {kind: one.seconds for (kind, state), one in metrics.states.items() if state == "pending" and one.timed}
    assert {kind: spent[kind] for kind in ("machine:fast", "machine:slow")} == {
        "machine:fast": 1.0,
        "machine:slow": 10.0,
    }
    assert spent["job"] == spent["task"] == 0.0
    assert metrics.transitions["machine:fast", "pending", "on", "info"] == 1
