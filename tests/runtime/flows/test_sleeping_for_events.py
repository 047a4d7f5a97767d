"""Flows that are put to sleep while they wait for a message, a decision or a child job, and woken by it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.runtime.flows.test_sleeping import Thing, asleep, hook, note, ran
from tests.waiting import until

from callboard import Approval, Hook, Runtime, Task, TaskContext, VirtualClock, Worker, Workstream
from callboard.errors import FlowAsleep
from callboard.runtime.flows import sleeping
from callboard.runtime.handles.jobs import JobHandle
from callboard.testing import Simulation, Succeeds

pytestmark = pytest.mark.anyio
Open = Callable[..., Runtime]
HOUR = 3600.0
ONE = [Worker("w", engine="loop", capacity=1)]
BODIES = {"message": 1, "approval": 1, "child": 2}
GOT = {"message": 7, "approval": ["ana"], "child": "made"}
KINDS = sorted(GOT)
things: list[weakref.ref[Thing]] = []


@pytest.fixture(autouse=True)
def _anew() -> None:
    ran.clear()
    things.clear()


async def work(task: TaskContext) -> str:
    """The body of a child job: it works as long as the test wants."""
    await task.receive("finish")
    return "made"


child = Workstream("child", tasks=[Task("c", run=work)])


async def flow(task: TaskContext) -> Any:
    """A body that waits for the event that its arguments name."""
    thing = Thing()
    things.append(weakref.ref(thing))
    ran.append("began")
    await note("first")
    kind = task.args["kind"]
    made = await task.submit(child, name="child") if kind == "child" else None
    try:
        if made is not None:
            got: Any = (await made.wait()).results["c"]
        elif kind == "approval":
            got = [decision.by for decision in await task.approval("sure")]
        else:
            limit = task.args.get("timeout")
            more = {} if limit is None else {"timeout": limit, "default": "nothing came"}
            got = await task.receive("go", **more)
    except anyio.get_cancelled_exc_class():
        ran.append("cancelled")
        raise
    return [await note("second"), got, task.attempt]


async def begin(runtime: Runtime, clock: VirtualClock, kind: str, job_id: str = "j", **options: Any) -> JobHandle:
    """Submit the flow, let it wait for long, and wait until it was dropped."""
    args = {"kind": kind, **options.pop("args", {})}
    job = await runtime.submit(Workstream("flow", tasks=[Task("t", run=flow, args=args, **options)]), id=job_id)
    await rests(runtime, clock, BODIES[kind])
    return job


async def rests(runtime: Runtime, clock: VirtualClock, count: int) -> None:
    """Wait until so many bodies wait, children's too; then let that last until they were dropped."""
    await until(lambda: waiting(runtime) == count)
    assert len(runtime._services.caller._flows.sleeping) == 0
    clock.advance(sleeping.LONG)
    await until(lambda: asleep(runtime) == count)


def waiting(runtime: Runtime) -> int:
    """How many bodies wait, if the worker runs none."""
    return 0 if runtime.worker("w").assigned else len(runtime._services.host.kernel.lent)


async def give(runtime: Runtime, job: JobHandle, kind: str) -> None:
    """Cause the event that the flow waits for."""
    if kind == "child":
        await (await runtime.job(f"{job.id}/t/child")).send("finish")
    elif kind == "approval":
        await job.task("t").approve(by="ana")
    else:
        await job.send("go", 7)


@pytest.mark.parametrize("kind", KINDS)
async def test_its_body_is_not_in_memory_until_what_it_waits_for_is_there(open_runtime: Open, kind: str) -> None:
    clock = VirtualClock()
    async with open_runtime(clock=clock, workers=ONE) as runtime:
        job = await begin(runtime, clock, kind, timeout="1m")
        gc.collect()
        assert [thing() for thing in things] == [None]
        record = job.task("t").record
        assert (record.state, record.attempt, runtime.worker("w").assigned) == ("running", 1, 0)
        clock.advance(24 * HOUR)
        await give(runtime, job, kind)
        outcome = await job.wait()
        assert outcome.results == {"t": ["second", GOT[kind], 1]}
        assert ran == ["began", "first", "began", "second"]
        record = outcome.tasks["t"]
        assert (record.attempt, record.failed_attempts, record.lost_attempts, record.deferrals) == (1, 0, 0, 0)
        assert [(one.attempt, one.end, one.drained_at) for one in await job.attempts("t")] == [(1, "succeeded", None)]
        flows = runtime._services.caller._flows
        assert (len(flows.sleeping), flows.lent.waiting, flows._leaving) == (0, 0, {})
        assert not runtime.approvals()


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancel_is_cleaned_up_as_if_the_body_had_been_there(open_runtime: Open, kind: str, force: bool) -> None:
    clock = VirtualClock()
    async with open_runtime(clock=clock, workers=ONE) as runtime:
        job = await begin(runtime, clock, kind, cancel_hooks=[Hook(run=hook)])
        await job.cancel(force=force)
        assert (await job.wait()).state == "cancelled"
        assert ran == (["began", "first"] if force else ["began", "first", "began", "cancelled", "hook"])
        await until(lambda: not runtime._services.host.kernel.calls)
        await runtime._services.host.barrier()
        assert [(one.attempt, one.end) for one in await job.attempts("t")] == [(1, "cancelled")]
        if kind == "child":
            (made,) = await job.children()
            assert (made.state, made.record.run) == ("cancelled", 1)
        assert (len(runtime._services.caller._flows.sleeping), runtime.approvals()) == (0, [])


async def test_a_limit_over_all_attempts_ends_it(open_runtime: Open) -> None:
    clock = VirtualClock()
    async with open_runtime(clock=clock, workers=ONE) as runtime:
        job = await begin(runtime, clock, "message", total_timeout="1d")
        clock.advance(24 * HOUR - sleeping.LONG)
        record = (await job.wait()).tasks["t"]
        assert (record.state, record.error_type) == ("failed", "timed_out")
        assert ran == ["began", "first", "began", "cancelled"]


async def test_the_deadline_of_a_receive_wakes_it_once_also_if_the_clock_is_set_back(open_runtime: Open) -> None:
    clock = VirtualClock()
    async with open_runtime(clock=clock, workers=ONE) as runtime:
        job = await begin(runtime, clock, "message", args={"timeout": "3h"})
        clock.jump_utc(-2 * HOUR)
        clock.advance(3 * HOUR - sleeping.LONG)
        with anyio.fail_after(300):
            assert (await job.wait()).results == {"t": ["second", "nothing came", 1]}
        assert ran == ["began", "first", "began", "second"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", ["it lasts long", "the answer"])
async def test_what_comes_in_the_very_turn_in_which_it_falls_asleep(open_runtime: Open, kind: str, first: str) -> None:
    clock = VirtualClock()
    async with open_runtime(clock=clock, workers=ONE) as runtime:
        args = {"kind": kind}
        job = await runtime.submit(Workstream("flow", tasks=[Task("t", run=flow, args=args)]), id="j")
        await until(lambda: waiting(runtime) == BODIES[kind])
        if first == "it lasts long":
            clock.advance(sleeping.LONG)
            await give(runtime, job, kind)
        else:
            async with anyio.create_task_group() as group:
                group.start_soon(give, runtime, job, kind)
                await anyio.lowlevel.checkpoint()
                clock.advance(sleeping.LONG)
        with anyio.fail_after(300):
            assert (await job.wait()).results == {"t": ["second", GOT[kind], 1]}
        assert ran.count("first") == ran.count("second") == 1


async def test_what_comes_while_its_body_is_still_cleaning_up_is_not_missed(open_runtime: Open) -> None:
    clock = VirtualClock()
    clean = anyio.Event()

    async def body(task: TaskContext) -> list[str]:
        ran.append("began")
        await note("first")
        try:
            return [decision.by or "" for decision in await task.approval("sure", Approval(people=2))]
        except BaseException as error:
            assert type(error) is FlowAsleep  # noqa: PT017 - the name is public
            ran.append("cleans up")
            with anyio.CancelScope(shield=True):
                await clean.wait()
            raise

    async with open_runtime(clock=clock, workers=ONE) as runtime:
        runtime.task(name="body")(body)
        job = await runtime.submit(Workstream("flow", tasks=[Task("t", run="body")]))
        await until(lambda: job.approvals() and waiting(runtime))
        clock.advance(sleeping.LONG)
        await until(lambda: "cleans up" in ran)
        await job.task("t").approve(by="ana")
        await job.task("t").approve(by="ben")
        clean.set()
        assert (await job.wait()).results == {"t": ["ana", "ben"]}
        assert ran == ["began", "first", "cleans up", "began"]


@pytest.mark.parametrize("kind", KINDS)
async def test_leaving_does_not_wait_for_it_and_it_goes_on_once_at_the_next_start(tmp_path: Path, kind: str) -> None:
    clock = VirtualClock()
    with anyio.fail_after(300):
        async with Runtime(tmp_path / "state.db", clock=clock, workers=ONE) as runtime:
            job = await begin(runtime, clock, kind)
            if kind == "message":
                await give(runtime, job, kind)  # it may have begun to go on
    async with Runtime(tmp_path / "state.db", clock=clock, workers=ONE) as runtime:
        job = await runtime.job("j")
        if kind != "message":
            assert (ran, runtime._services.host.kernel.calls) == (["began", "first"], {})  # no body runs
            await give(runtime, job, kind)
        outcome = await job.wait()
    assert outcome.results["t"][:2] == ["second", GOT[kind]]
    assert (ran.count("first"), ran.count("second"), outcome.tasks["t"].lost_attempts) == (1, 1, 0)


async def test_each_message_goes_to_one_of_the_flows_that_sleep_for_it(open_runtime: Open) -> None:
    clock = VirtualClock()
    tasks = [Task(f"t{number}", run=flow, args={"kind": "message"}) for number in range(3)]
    async with open_runtime(clock=clock, workers=[Worker("w", engine="loop", capacity=3)]) as runtime:
        job = await runtime.submit(Workstream("flow", tasks=tasks))
        await rests(runtime, clock, 3)
        await job.send("go", 1)
        await until(lambda: sum(job.task(one.name).record.state == "completed" for one in tasks) == 1)
        await until(lambda: asleep(runtime) == 2)
        assert ran.count("began") == 4  # the message has woken one of them only
        left = next(one.name for one in tasks if job.task(one.name).record.state == "running")
        await job.send("go", 3, task=left)
        await job.send("go", 2)
        with anyio.fail_after(300):
            results = (await job.wait()).results
    assert sorted(result[1] for result in results.values()) == [1, 2, 3]


async def test_of_many_that_wait_the_further_ones_are_dropped_when_that_has_lasted_a_little(
    open_runtime: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock()
    monkeypatch.setattr(sleeping, "MOST_AWAKE", 2)
    tasks = [Task(f"t{number}", run=flow, args={"kind": "message"}) for number in range(5)]
    async with open_runtime(clock=clock, workers=[Worker("w", engine="loop", capacity=5)]) as runtime:
        job = await runtime.submit(Workstream("flow", tasks=tasks))
        await until(lambda: waiting(runtime) == 5)
        clock.advance(sleeping.SHORT)
        await until(lambda: asleep(runtime) == 3)
        assert runtime._services.caller._flows.lent.waiting == 2
        for _ in tasks:
            await job.send("go", 7)
        assert (await job.wait()).state == "completed"


async def without_a_step(task: TaskContext) -> None:
    ran.append("began")
    await task.approval("sure")


async def in_a_group(task: TaskContext) -> None:
    ran.append("began")
    await note("first")
    async with anyio.create_task_group() as group:
        group.start_soon(task.receive, "go")
        group.start_soon(task.approval, "sure")


@pytest.mark.parametrize("body", [without_a_step, in_a_group])
async def test_these_bodies_stay_in_memory(open_runtime: Open, body: Any) -> None:
    clock = VirtualClock()
    async with open_runtime(clock=clock, workers=ONE) as runtime:
        job = await runtime.submit(Workstream("flow", tasks=[Task("t", run=body)]))
        await until(lambda: job.approvals() and waiting(runtime))  # it lends its slot all the same
        clock.advance(24 * HOUR)
        await job.send("go")
        await job.task("t").approve(by="ana")
        assert (await job.wait()).state == "completed"
        assert ran.count("began") == 1


# -- crashes at any time -----------------------------------------------------------------------------------------------


async def pack() -> None: ...


async def order(task: TaskContext) -> list[Any]:
    """A body that waits three times, longer than a body stays in memory."""
    await note("first")
    paid = await task.receive("payment")
    await note("paid")
    people = [decision.by for decision in await task.approval("ship")]
    made = await task.submit(Workstream("pack", tasks=[Task("pack", run=pack, timeout="2h")]), name="pack")
    return [paid, people, (await made.wait()).state, await note("last")]


def crashed(after: int) -> int:
    """Run the order, and kill the runtime so many steps of the simulation after each event."""
    ran.clear()
    with Simulation(after, workers=ONE) as sim:
        sim.body("pack", outcomes=[Succeeds(None)], takes="20m")
        job = sim.submit(Workstream("order", tasks=[Task("t", run=order, max_losses=20)]), id="j")
        sim.advance("20m")
        events: list[Callable[[], object]] = [
            lambda: job.send("payment", 12),
            lambda: job.task("t").approve(by="ana"),
            lambda: sim.advance("20m"),
        ]
        for event in events:
            event()
            for _ in range(after):
                sim.step()
            sim.crash()
            sim.advance("19m")
        outcome = job.run()
        sim.check()
        assert outcome.results["t"] == [12, ["ana"], "completed", "last"]
        assert list(dict.fromkeys(ran)) == ["first", "paid", "last"]  # one may have run when the process died
        steps = [step.label for step in job.task("t").steps()]
        assert sorted(steps) == ["note", "note#2", "note#3", "task.receive payment"]
        return sim.world.crashes


def test_a_crash_at_any_time_loses_nothing_and_repeats_nothing() -> None:
    for after in (*range(24), 30, 40):
        assert crashed(after) == 3
