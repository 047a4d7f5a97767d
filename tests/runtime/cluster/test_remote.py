"""Jobs and machines of another node, by the handles of this one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest

from callboard import Approval, Fire, Machine, MachineActor, State, Task, TaskContext, Transition, Workstream, step
from callboard.actors import supervisor
from callboard.actors.messages.commands import Submit
from callboard.actors.workers.workforce import Workforce
from callboard.errors import (
    DecisionConflict,
    GuardRejected,
    InvalidTransitionError,
    JobExists,
    MachineConflict,
    RequestIdReused,
    RuntimeClosed,
)
from callboard.runtime.errors import JournalError

from .memory import MemoryNode
from .scene import Nodes, quick, waits

pytestmark = pytest.mark.anyio


@pytest.fixture
def scene() -> Nodes:
    return Nodes()


def held() -> Workstream:
    return Workstream(
        "held",
        tasks=[
            Task("x", run=quick, hold=Approval(people=1)),
            Task("y", run=quick, depends_on=["x"]),
        ],
    )


@step
async def picked(job_id: str) -> str:
    return f"picked for {job_id}"


async def picks(task: TaskContext) -> None:
    await picked(task.job_id)
    await waits(task)


async def test_the_steps_of_a_body_elsewhere_are_those_so_far(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        job = await a.submit(Workstream("w", tasks=[Task("x", run=picks)], hold=Approval()), id="j")
        far = await b.job("j")
        assert far.elsewhere
        assert await far.steps("x") == []  # it has not begun
        await job.approve(by="ana")
        await scene.until(lambda: scene.ran.began)
        (kept,) = await far.task("x").steps()
        assert (kept.label, kept.state, kept.result) == ("picked", "completed", "picked for j")
        assert [kept] == await job.steps("x")
        scene.ran.go_on.set()
        await far.wait()
        assert await far.steps("x") == [kept]


async def test_every_verb_takes_effect_where_the_job_runs(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        tasks = [*held().tasks, Task("z", run=waits)]
        job = await a.submit(Workstream("w", tasks=tasks), id="j")
        far = await b.job("j")
        assert far.elsewhere
        await scene.until(lambda: scene.ran.began)
        await far.pause(by="ana")
        with pytest.raises(InvalidTransitionError, match="'pause' is not possible in state 'paused'"):
            await far.pause()
        await far.task("x").approve(by="ana", reason="fine", request_id="k")
        await far.task("x").approve(by="ana", reason="fine", request_id="k")
        assert await far.skip("y") is far
        assert await far.resume() is far
        assert (a.metrics().requests, a.metrics().request_hits) == (2, 1)  # the commands with a caller's key
        scene.ran.go_on.set()
        assert (await far.wait()).results == {"x": "x of j", "z": "z of j"}
        assert (await job.wait()).results == (await far.wait()).results
        assert (job.task("x").record.decisions[0].by, far.ended, far.elsewhere) == ("ana", True, False)


async def raises() -> None:
    raise ValueError("no such crate")


async def test_attempts_and_what_bodies_raised_are_told_of_what_another_node_runs(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        await a.submit(Workstream("w", tasks=[Task("x", run=raises)]), id="j")
        far = await b.job("j")
        outcome = await far.wait()
        assert "no such crate" in outcome.tracebacks["x"]
        (tried,) = await far.task("x").attempts()
        assert (tried.end, "in raises" in (tried.traceback or "")) == ("failed", True)


async def test_refusals_are_those_of_the_node_that_runs_it(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        job = await a.submit(Workstream("w", tasks=[*held().tasks, Task("z", run=waits)]), id="j")
        far = await b.job("j")
        assert [(one.task, one.missing, one.job_id) for one in far.approvals()] == [("x", ["1 person"], "j")]
        assert far.approvals() == job.approvals() == await b._services.jobs.approvals_elsewhere()
        assert (await a._services.jobs.approvals_elsewhere(), b.approvals()) == ([], [])
        await far.task("x").approve(by="ana", request_id="k")
        with pytest.raises(DecisionConflict) as told:
            await far.task("x").approve(by="bob")
        with pytest.raises(DecisionConflict) as at_home:
            await job.task("x").approve(by="bob")
        assert (str(told.value), told.value.decision) == (str(at_home.value), at_home.value.decision)
        with pytest.raises(RequestIdReused):
            await far.cancel(request_id="k")
        with pytest.raises(LookupError, match="has no task 'nope'"):
            far.task("nope")
        with pytest.raises(LookupError, match="has no task 'nope'"):
            await far.skip("nope")
        with pytest.raises(TypeError):
            await far.cancel(force="yes")  # type: ignore[arg-type]
        scene.ran.go_on.set()
        await job.wait()
        await far.wait()
        with pytest.raises(InvalidTransitionError, match="'cancel' is not possible in state 'completed'"):
            await far.cancel()


async def test_its_events_are_all_told_until_its_end(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        job = await a.submit(held(), id="j")
        far = await b.job("j")
        events = far.events(notices=False)
        first = await anext(events)
        await job.task("x").approve(by="ana")
        told = [first, *[event async for event in events]]
        assert told == list(scene.base.node("reader").transitions(job_id="j"))
        assert [event async for event in far.events(notices=False)] == told


@pytest.mark.parametrize("by_a_loop", [False, True])
async def test_looking_at_it_in_another_thread_has_it_read_on_its_own_loop(scene: Nodes, by_a_loop: bool) -> None:
    """A look from another thread starts no task there, which would break the runtime."""
    async with scene.runtime("a") as a, scene.runtime("b") as b:
        job = await a.submit(scene.waiting(), id="j")
        ref = a.spawn(MachineActor(DOOR), name="front")
        await ref.fire("open")
        far, door = await b.job("j"), await b.machine_of("front")
        assert (far.elsewhere, door.elsewhere) == (True, True)

        def look() -> tuple[Any, ...]:
            return far.state, [task.state for task in far.tasks()], far.record.state, far.approvals(), door.state

        async def looked() -> tuple[Any, ...]:
            return look()

        async def seen() -> tuple[Any, ...]:
            return (
                await anyio.to_thread.run_sync(anyio.run, looked) if by_a_loop else await anyio.to_thread.run_sync(look)
            )

        scene.ran.go_on.set()
        await ref.fire("shut")
        await job.wait()
        with anyio.fail_after(300):
            while (told := await seen())[0] != "completed" or told[4] != "shut":
                await anyio.sleep(0.01)  # it reads in threads
                scene.clock.advance(1)
        assert told[1] == ["completed"]
        assert (a.is_open, b.is_open) == (True, True)


async def test_looking_at_it_has_it_read_again(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b:
        job = await a.submit(scene.waiting(), id="j")
        far = await b.job("j")
        await scene.until(lambda: far.tasks() and far.tasks()[0].state == "running")
        assert far.state == "running"
        scene.ran.go_on.set()
        await scene.until(lambda: far.state == "completed")
        assert job.ended


async def test_what_ended_runs_again_on_whichever_node_was_asked(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        job = await a.submit(held(), id="j")
        await job.task("x").approve(by="ana")
        await job.wait()
        again = await (await b.job("j")).retry("y", request_id="k")
        assert not again.elsewhere
        assert (await again.wait()).ok
        assert again.record.runs == 2
        assert await job.retry("y", request_id="k") is not None  # the same command: nothing more is run
        assert scene.ran.began == [("j", 1), ("j", 1), ("j", 1)]
        numbers = [row.seq for row in scene.base.disk.transitions if row.job_id == "j"]
        assert numbers == sorted(numbers)


async def test_of_two_that_run_it_again_at_once_one_is_refused(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        job = await a.submit(scene.waiting(), id="j")
        await job.cancel()
        await job.wait()
        came: list[object] = []

        async def again(runtime: Any) -> None:
            handle = await runtime.job("j")
            try:
                came.append(await handle.retry())
            except InvalidTransitionError as refused:
                came.append(refused)

        async with anyio.create_task_group() as group:
            group.start_soon(again, a)
            group.start_soon(again, b)
        assert sorted(isinstance(one, InvalidTransitionError) for one in came) == [False, True]
        await (await b.job("j")).cancel(force=True)


async def test_the_handle_of_a_run_stays_that_of_that_run(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        job = await a.submit(scene.waiting(), id="j")
        far = await b.job("j")
        await job.cancel()
        await job.wait()
        again = await job.retry()
        assert (await far.wait()).state == "cancelled"
        scene.ran.go_on.set()
        assert (await again.wait()).ok
        assert far.state == "cancelled"


async def test_the_same_id_on_two_nodes_at_once_is_one_job(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        handles: list[Any] = []

        async def submit(runtime: Any) -> None:
            handles.append(await runtime.submit(held(), id="same"))

        async with anyio.create_task_group() as group:
            group.start_soon(submit, a)
            group.start_soon(submit, b)
        assert sorted(handle.elsewhere for handle in handles) == [False, True]
        with pytest.raises(JobExists):
            await b.submit(scene.waiting(), id="same")
        for handle in handles:
            await handle.task("x").approve(by="ana", request_id="k")
            assert (await handle.wait()).ok
        assert scene.ran.began == [("same", 1), ("same", 1)]


# -- ids that were reserved for nothing --------------------------------------------------------------------------------

PATIENCE = 60.0
"""Seconds after which a test counts as hanging."""
MUCH = 1_000_000


def once_reserved(node: MemoryNode, wanted: str, then: Callable[[], object]) -> None:
    """Call a function when that node has reserved this id."""
    cluster = node.cluster
    reserve = cluster.reserve

    def reserving(kind: str, name: str) -> int:
        number = reserve(kind, name)
        if number and name == wanted:
            then()
        return number

    cluster.reserve = reserving  # type: ignore[method-assign]


async def passing(scene: Nodes, seconds: float) -> None:
    """Let so much time pass, after all events that can happen before."""
    until = scene.clock.monotonic() + seconds
    await scene.until(lambda: scene.clock.monotonic() >= until)


def not_taking(node: MemoryNode) -> None:
    """Let a node accept no new work from outside: submissions wait at the gate."""
    node.backlog = MUCH


@pytest.mark.parametrize("request_id", [None, "k"])
async def test_an_id_is_free_where_who_reserved_it_was_cut_before_it_was_submitted(
    scene: Nodes, request_id: str | None
) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        with anyio.fail_after(PATIENCE):
            node = scene.nodes["a"]
            once_reserved(node, "j", partial(not_taking, node))
            async with anyio.create_task_group() as group:
                group.start_soon(partial(a.submit, Nodes.waiting(), id="j", request_id=request_id))
                await scene.until(lambda: scene.base.reserved)
                group.cancel_scope.cancel()
            job = await b.submit(held(), id="j", request_id=request_id)
            assert not job.elsewhere
            node.backlog = 0
            assert (await a.submit(held(), id="j")).elsewhere


async def test_an_id_is_free_where_the_kernel_refused_what_it_was_reserved_for(
    scene: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, broken = supervisor.submit, ["once"]

    def submitting(workforce: Workforce, message: Submit) -> None:
        submit(workforce, message)
        if broken:
            raise ZeroDivisionError(broken.pop())

    monkeypatch.setattr(supervisor, "submit", submitting)
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        with anyio.fail_after(PATIENCE):
            with pytest.raises(ZeroDivisionError):
                await a.submit(Nodes.waiting(), id="j")
            job = await b.submit(held(), id="j")
            assert not job.elsewhere
            assert (await a.submit(held(), id="j")).elsewhere


async def test_what_was_submitted_before_its_caller_was_cut_keeps_its_id(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        with anyio.fail_after(PATIENCE):
            node, given = scene.nodes["a"], list[Any]()

            def unreached() -> None:
                node.cut_off()

            async def submit() -> None:
                given.append(await b.submit(Nodes.waiting(), id="j"))

            once_reserved(node, "j", unreached)  # so it is not durable before its caller is cut
            async with anyio.create_task_group() as group:
                group.start_soon(partial(a.submit, Nodes.waiting(), id="j"))
                await scene.until(lambda: "j" in a._services.host.kernel.jobs)
                group.cancel_scope.cancel()
            async with anyio.create_task_group() as group:
                group.start_soon(submit)
                await passing(scene, 3)
                assert [(key, one.name) for key, one in scene.base.reserved.items()] == [(("job", "j"), "a")]
                assert given == []
                node.cut_off(False)
            assert given[0].elsewhere
            scene.ran.go_on.set()
            assert (await given[0].wait()).ok
            assert scene.ran.began == [("j", 1)]


async def test_the_next_submission_of_an_id_here_waits_until_it_was_given_back(scene: Nodes) -> None:
    """Otherwise it would rely on a reservation that is given back then, and another node could get the same id."""
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        with anyio.fail_after(PATIENCE):
            node, told = scene.nodes["a"], list[str]()
            cluster = node.cluster
            release, reserve = cluster.release, cluster.reserve

            def reserving(kind: str, name: str) -> int:
                told.append("reserve")
                return reserve(kind, name)

            def releasing(kind: str, name: str, reservation: int) -> None:
                told.append("release" if "j" in a._services.submissions._in_flight else "release too late")
                release(kind, name, reservation)

            cluster.reserve, cluster.release = reserving, releasing  # type: ignore[method-assign]
            not_taking(node)
            async with anyio.create_task_group() as group:
                group.start_soon(partial(a.submit, Nodes.waiting(), id="j"))
                await scene.until(lambda: scene.base.reserved)
                group.start_soon(partial(a.submit, held(), id="j"))
                await passing(scene, 1)
                group.cancel_scope.cancel()
            node.backlog = 0
            assert not (await a.submit(held(), id="j")).elsewhere
            assert told == ["reserve", "release", "reserve"]
            assert (await b.submit(held(), id="j")).elsewhere


async def test_an_id_that_cannot_be_given_back_holds_up_nobody_on_its_node(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        with anyio.fail_after(PATIENCE):
            node, tried = scene.nodes["a"], list[str]()

            def unreached(kind: str, name: str, reservation: int) -> None:
                tried.append(name)
                raise JournalError("the database is not reached")

            node.cluster.release = unreached  # type: ignore[method-assign]
            not_taking(node)
            async with anyio.create_task_group() as group:
                group.start_soon(partial(a.submit, Nodes.waiting(), id="j"))
                await scene.until(lambda: scene.base.reserved)
                group.cancel_scope.cancel()
            await scene.until(lambda: tried)
            node.backlog = 0
            assert not (await a.submit(held(), id="j")).elsewhere
            assert (await b.submit(held(), id="j")).elsewhere


async def test_who_closes_meanwhile_is_told(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.ticking():
        await a.submit(held(), id="j")
        async with scene.runtime("b") as b:
            far = await b.job("j")
        with pytest.raises(RuntimeClosed):
            await far.wait()
        with pytest.raises(RuntimeClosed):
            await far.cancel()


# -- machines ----------------------------------------------------------------------------------------------------------


def never(facts: object, payload: object) -> bool:
    return False


DOOR = Machine(
    "door",
    initial="shut",
    states=[State("shut"), State("open"), State("gone", terminal=True)],
    transitions=[
        Transition("shut", "open", "open"), Transition("open", "shut", "shut"), Transition("open", "lose", "gone"),
        Transition("shut", "force", "open", guard=never),
    ],
)  # fmt: skip
OTHER = Machine("window", initial="shut", states=[State("shut")], transitions=[], endless=True)


async def test_a_machine_lives_on_the_node_that_spawned_it_first(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        near = a.spawn(MachineActor(DOOR), name="door")
        assert (await near.ask(Fire("open"))).to_state == "open"
        far = b.machine("door")
        assert (far.elsewhere, far.events) == (True, {"shut", "lose"})
        told = await far.ask(Fire("shut", reason="cold", request_id="k"))
        assert (told.to_state, told.reason, near.state) == ("shut", "cold", "shut")
        assert await far.ask(Fire("shut", reason="cold", request_id="k")) == told
        with pytest.raises(InvalidTransitionError, match="'shut' is not possible in state 'shut'"):
            await far.ask(Fire("shut"))
        with pytest.raises(GuardRejected) as refused:
            await far.ask(Fire("force"))
        assert refused.value.guards
        again = b.spawn(MachineActor(DOOR), name="door")
        assert (await again.ask(Fire("open"))).to_state == "open"
        assert near.state == "open"
        with pytest.raises(MachineConflict):
            b.spawn(MachineActor(OTHER), name="door")


async def test_a_name_spawned_on_two_nodes_at_once_is_one_machine(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        one, two = a.spawn(MachineActor(DOOR), name="door"), b.spawn(MachineActor(DOOR), name="door")
        assert (await one.ask(Fire("open"))).to_state == "open"
        assert (await two.ask(Fire("shut"))).to_state == "shut"
        assert sorted([one.elsewhere, two.elsewhere]) == [False, True]
        assert two.tell(Fire("open"))
        await two.ask(Fire("shut"))
        assert [row.event for row in scene.base.node("r").transitions(entity_id="door")] == [
            "create", "open", "shut", "open", "shut",
        ]  # fmt: skip


# -- children ----------------------------------------------------------------------------------------------------------


async def spawns(task: TaskContext) -> str:
    child = await task.submit(Nodes.waiting(), name="c")
    return (await child.wait()).raise_for_state().results["x"]


async def test_a_child_that_runs_elsewhere_meanwhile_is_joined(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        job = await a.submit(Workstream("w", tasks=[Task("t", run=spawns)]), id="p")
        await scene.until(lambda: scene.ran.began)
        await (await b.job("p/t/c")).cancel(force=True)
        assert (await job.wait()).state == "failed"
        child = await (await b.job("p/t/c")).retry()
        await scene.until(lambda: len(scene.ran.began) == 2)
        again = await job.retry()
        await scene.until(lambda: again.task("t").record.state == "running")
        assert (await a.job("p/t/c")).elsewhere
        scene.ran.go_on.set()
        assert (await again.wait()).results == {"t": "x of p/t/c"}
        assert (await child.wait()).ok
        assert scene.ran.began == [("p/t/c", 1), ("p/t/c", 1)]


async def test_the_id_of_a_child_is_free_where_its_body_ended_before_it_was_submitted(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.ticking():
        with anyio.fail_after(PATIENCE):
            node = scene.nodes["a"]
            once_reserved(node, "p/t/c", partial(not_taking, node))
            await a.submit(Workstream("w", tasks=[Task("t", run=spawns, timeout=10)]), id="p")
            await scene.until(lambda: ("job", "p/t/c") in scene.base.reserved)
            await scene.until(lambda: ("job", "p/t/c") not in scene.base.reserved)
            node.backlog = 0


async def test_events_are_sent_to_what_another_node_runs(scene: Nodes) -> None:
    """By the inbox: judged, answered and refused where it runs, under the same keys as its verbs."""
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        tasks = [*held().tasks, Task("z", run=waits), Task("late", run=quick, depends_on=["z"])]
        job = await a.submit(Workstream("w", tasks=tasks), id="j")
        await scene.until(lambda: scene.ran.began)
        far = await b.job("j")
        assert far.elsewhere
        ref = await b.machine_of("j@1/x")
        assert (ref.name, ref.state, ref.events) == ("j/x", "held", {"approve", "reject", "cancel"})
        with pytest.raises(LookupError):
            b.machine("j/x")  # it is not in memory here
        for event in ("start", "skip"):
            with pytest.raises(InvalidTransitionError) as there:
                await ref.ask(Fire(event, by="ana"))
            with pytest.raises(InvalidTransitionError) as at_home:
                await job.task("x").ref.ask(Fire(event, by="ana"))
            assert (str(there.value), there.value.allowed) == (str(at_home.value), at_home.value.allowed)
        await ref.ask(Fire("approve", by="ana", reason="fine", request_id="k"))
        await ref.ask(Fire("approve", by="ana", reason="fine", request_id="k"))
        await far.task("x").approve(by="ana", reason="fine", request_id="k")  # the same command
        with pytest.raises(RequestIdReused):
            await ref.ask(Fire("reject", by="ana", reason="fine", request_id="k"))
        with pytest.raises(DecisionConflict):
            await ref.ask(Fire("approve", by="bo"))
        await far.ref.ask(Fire("pause", by="ana"))
        assert (await (await b.machine_of("j@1")).ask(Fire("resume", by="ana"))).elsewhere
        skipped = await far.task("late").ref.ask(Fire("skip", by="ana"))  # answered as the verb is, too
        assert (skipped, far.task("late").record.state) == (far, "skipped")
        with pytest.raises(ValueError, match="keeps no metadata"):
            await far.ref.ask(Fire("pause", by="ana", metadata={"n": 1}))
        assert far.ref.tell(Fire("cancel_graceful", by="bo"))
        assert (await far.wait()).state == "cancelled"
        assert job.task("x").record.decisions[0].by == "ana"
