"""The wall clock is set while tasks wait: backward, which makes no wait longer; forward, which counts as passed
time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from callboard import (
    Approval,
    Breaker,
    Defaults,
    Machine,
    MachineActor,
    Retry,
    Runtime,
    State,
    Task,
    Timed,
    Tool,
    Transition,
    Workstream,
)
from callboard.errors import RetryAfter
from callboard.testing import Fails, Hangs, VirtualRuntime

pytestmark = pytest.mark.anyio

SPAN = 100.0
START = 1_700_000_000.0
HOUR = 3600.0


def body() -> int:
    return 1


class Facts(msgspec.Struct):
    lasts: float = SPAN
    rings_at: float | None = None


def rings(facts: Facts) -> MachineActor:
    machine = Machine(
        "bell", "quiet", states=[State("quiet"), State("rung", terminal=True)],
        transitions=[Transition("quiet", "ring", "rung")],
        timed=[Timed("quiet", "ring", "lasts" if facts.rings_at is None else "rings_at")],
    )  # fmt: skip
    return MachineActor(machine, facts)


Over = Callable[[], object]
Begin = Callable[[VirtualRuntime], Awaitable[Over]]


async def submitted(runtime: Runtime, task: Task, **more: Any) -> Any:
    return await runtime.submit(Workstream("w", tasks=[task], **more), id="job")


async def a_backoff(runtime: VirtualRuntime) -> Over:
    runtime.body("t", outcomes=[Fails("no"), Hangs()])
    job = await submitted(runtime, Task("t", run=body, retry=Retry(base_delay=SPAN, max_delay=SPAN, jitter=0)))
    return lambda: job.task("t").record.attempt == 2


async def a_backoff_between_runs(runtime: VirtualRuntime) -> Over:
    runtime.body("t", outcomes=[Fails("no"), Hangs()])
    job = await submitted(runtime, Task("t", run=body), retry=Retry(base_delay=SPAN, max_delay=SPAN, jitter=0))
    return lambda: job.record.runs == 2


async def a_wait(runtime: VirtualRuntime) -> Over:
    job = await submitted(runtime, Task("t", run=body, wait=SPAN))
    return lambda: job.state == "completed"


async def a_wait_of_a_workstream(runtime: VirtualRuntime) -> Over:
    job = await submitted(runtime, Task("t", run=body), wait=SPAN)
    return lambda: job.state == "completed"


async def a_wait_beside_a_hold(runtime: VirtualRuntime) -> Over:
    job = await submitted(runtime, Task("t", run=body, wait=SPAN, hold=Approval(people=1)))
    await runtime.advance(20)
    await job.task("t").approve(by="ana")
    return lambda: job.state == "completed"


async def a_hold(runtime: VirtualRuntime) -> Over:
    job = await submitted(runtime, Task("t", run=body, hold=Approval(people=1, expires=SPAN)))
    return lambda: job.state == "failed"


async def a_deadline(runtime: VirtualRuntime) -> Over:
    runtime.body("t", outcomes=[Hangs()])
    job = await submitted(runtime, Task("t", run=body), deadline=SPAN)
    return lambda: job.state == "cancelled"


async def a_deadline_between_runs(runtime: VirtualRuntime) -> Over:
    runtime.body("t", outcomes=[Fails("no"), Hangs()])
    again = Retry(base_delay=SPAN * 9, max_delay=SPAN * 9, jitter=0)
    job = await submitted(runtime, Task("t", run=body), deadline=SPAN, retry=again)
    return lambda: job.state == "cancelled"


async def a_limit_of_all_attempts(runtime: VirtualRuntime) -> Over:
    runtime.body("t", outcomes=[Fails("no")] * 99)
    again = Retry(max_attempts=99, base_delay=7, max_delay=7, jitter=0)
    job = await submitted(runtime, Task("t", run=body, total_timeout=SPAN, retry=again))
    return lambda: job.state == "failed"


async def a_limit_in_the_queue(runtime: VirtualRuntime) -> Over:
    hogs = [Task(f"hog{n}", command=["x"], timeout=9999, optional=True) for n in range(64)]
    for task in hogs:
        runtime.body(task.name, outcomes=[Hangs()])
    await runtime.submit(Workstream("hogs", tasks=hogs))
    await runtime.settle()
    job = await submitted(runtime, Task("t", command=["x"], queue_timeout=SPAN))
    return lambda: job.state == "failed"


async def a_limit_of_what_nobody_can_run(runtime: VirtualRuntime) -> Over:
    job = await submitted(runtime, Task("t", run=body, capabilities=["gpu"], unroutable_timeout=SPAN))
    return lambda: job.state == "failed"


async def a_cooldown(runtime: VirtualRuntime) -> Over:
    runtime.body("t", outcomes=[Fails("no"), Hangs()])
    tool = Tool(breaker=Breaker(failure_threshold=1, cooldown=SPAN))
    await submitted(runtime, Task("t", run=body, tool="x"), tools={"x": tool})
    await runtime.settle()
    return lambda: runtime.breaker("x").state == "half_open"


async def a_rest_of_a_tool(runtime: VirtualRuntime) -> Over:
    runtime.body("first", outcomes=[Fails(RetryAfter(SPAN)), Hangs()])
    job = await submitted(runtime, Task("first", run=body, tool="x"))
    await runtime.settle()
    await runtime.submit(Workstream("more", tasks=[Task("t", run=body, tool="x")]), id="more")
    return lambda: (job.task("first").record.attempt, runtime.breaker("x").record.not_before) == (2, None)


async def what_is_parked(runtime: VirtualRuntime) -> Over:
    runtime.body("t", outcomes=[Fails("no"), Hangs()])
    parks = Defaults(on_exhausted="park", park_cooldown=SPAN)
    job = await submitted(runtime, Task("t", run=body), defaults=parks)
    return lambda: job.task("t").record.attempt == 2


async def a_delay_of_a_machine(runtime: VirtualRuntime) -> Over:
    bell = runtime.spawn(rings(Facts()), name="bell")
    return lambda: bell.state == "rung"


SPANS = [
    a_backoff, a_backoff_between_runs, a_wait, a_wait_of_a_workstream, a_wait_beside_a_hold, a_hold, a_deadline,
    a_deadline_between_runs, a_limit_of_all_attempts, a_limit_in_the_queue, a_limit_of_what_nobody_can_run, a_cooldown,
    a_rest_of_a_tool, what_is_parked, a_delay_of_a_machine,
]  # fmt: skip


@pytest.mark.parametrize("begin", SPANS)
@pytest.mark.parametrize("jumps", [(), (-HOUR,), (-HOUR, -HOUR), (-7.0, 7.0, -7.0)])
async def test_a_clock_that_is_set_back_lengthens_no_span(begin: Begin, jumps: tuple[float, ...]) -> None:
    async with VirtualRuntime() as runtime:
        began = runtime.clock.monotonic()
        over = await begin(runtime)
        for jump in jumps:
            await runtime.advance(10)
            runtime.jump_utc(jump)
        forward = sum(jump for jump in jumps if jump > 0)
        await runtime.advance(began + SPAN - forward - 1.5 - runtime.clock.monotonic())
        assert not over()
        await runtime.advance(forward + 9)
        assert over()


async def test_time_in_a_state_is_what_really_passed() -> None:
    async with VirtualRuntime() as runtime:
        runtime.body("t", takes=30)
        job = await submitted(runtime, Task("t", run=body))
        await runtime.advance(10)
        runtime.jump_utc(-HOUR)
        await runtime.advance(20)
        assert job.state == "completed"
        spent = runtime.metrics().states
        assert spent["task", "running"].seconds == pytest.approx(30)
        assert all(one.seconds >= 0 for one in spent.values())


@pytest.mark.parametrize("begin", [a_backoff, a_wait, a_hold, a_deadline, a_cooldown, a_delay_of_a_machine])
async def test_one_that_is_set_forward_is_taken_for_time_that_has_passed(begin: Begin) -> None:
    async with VirtualRuntime() as runtime:
        over = await begin(runtime)
        await runtime.settle()
        runtime.jump_utc(HOUR)
        await runtime.advance(61)
        assert over()


async def a_moment_of_a_task(runtime: VirtualRuntime) -> Over:
    job = await submitted(runtime, Task("t", run=body, wait="2023-11-14T22:15:00Z"))
    return lambda: job.state == "completed"


async def a_moment_of_a_machine(runtime: VirtualRuntime) -> Over:
    bell = runtime.spawn(rings(Facts(rings_at=START + SPAN)), name="bell")
    return lambda: bell.state == "rung"


@pytest.mark.parametrize("begin", [a_moment_of_a_task, a_moment_of_a_machine])
async def test_a_moment_that_somebody_named_comes_when_the_wall_clock_says_so(begin: Begin) -> None:
    async with VirtualRuntime(start=START) as runtime:
        over = await begin(runtime)
        await runtime.advance(10)
        runtime.jump_utc(-HOUR)
        await runtime.advance(SPAN + HOUR - 11)
        assert not over()
        await runtime.advance(2)
        assert over()


@pytest.mark.parametrize(
    "begin", [a_backoff, a_wait, a_hold, a_deadline_between_runs, a_cooldown, a_delay_of_a_machine]
)
async def test_what_waits_is_due_as_soon_after_a_restart_too(begin: Begin, tmp_path: Path) -> None:
    async with VirtualRuntime(tmp_path / "j.db", start=START) as runtime:
        await begin(runtime)
        await runtime.advance(10)
        runtime.jump_utc(-HOUR)
        await runtime.advance(60)
        assert [notice.facts["seconds"] for notice in runtime.notices if notice.event == "clock_set_back"] == [HOUR]
        wall = runtime.clock.time()
    async with VirtualRuntime(tmp_path / "j.db", start=wall) as runtime:
        if begin is a_delay_of_a_machine:
            runtime.spawn(rings(Facts()), name="bell")
        await runtime.settle()
        waiting = [entity.record for entity in runtime._services.host.kernel.entities.values() if entity.record.due_at]
        due = [getattr(record, "deadline_at", None) or record.due_at for record in waiting]
        assert due
        assert all(wall < at <= wall + SPAN - 70 + 1 for at in due)
