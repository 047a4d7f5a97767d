"""Jobs, workstreams, tasks, workers and breakers as actors: events that are sent to them as messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard import (
    Approval,
    Breaker,
    Fire,
    JobHandle,
    Machine,
    MachineActor,
    Retry,
    Runtime,
    State,
    Task,
    TaskContext,
    Tool,
    Transition,
    Worker,
    Workstream,
)
from callboard.actors.users.dead_letters import Reason
from callboard.errors import (
    AskTimeout,
    CircuitOpen,
    DecisionConflict,
    GuardRejected,
    InvalidTransitionError,
    RequestIdReused,
    RuntimeClosed,
)
from callboard.machines import Event
from callboard.runtime.handles.references import EntityRef

pytestmark = pytest.mark.anyio
OLD_KEY = "8d0cf6fc1425d6b7ab40bd869ce274c5"
"""The value that binds a key to `Fire("knock", "air", {"n": 1})` at machine "front" in the journals of all versions."""
DOOR = Machine(
    "door", "shut", states=[State("shut", bounded_by="somebody"), State("gone", terminal=True)],
    transitions=[Transition("shut", "remove", "gone"), Transition("shut", "knock", "shut")],
)  # fmt: skip


async def quick() -> int:
    return 1


async def forever() -> None:
    await anyio.sleep_forever()


async def asks(task: TaskContext) -> str:
    return (await task.approval("go", people=1))[0].by or ""


async def breaks() -> None:
    raise RuntimeError("broken")


def release(**more: Any) -> Workstream:
    tasks = [
        Task("build", run=quick),
        Task("deploy", run=quick, depends_on=["build"], hold=Approval(people=1)),
        Task("tell", run=quick, depends_on=["deploy"]),
    ]
    return Workstream("release", tasks=tasks, **more)


@pytest.fixture(params=["memory", "sqlite"])
async def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    where = None if request.param == "memory" else tmp_path / "state.db"
    async with Runtime(where, drain_deadline=0) as opened:
        yield opened


async def until(job: Any, task: str, *states: str) -> None:
    """Wait until the task is in one of those states."""
    events = job.events(notices=False)
    if job.task(task).record.shown not in states:
        async for _ in events:
            if job.task(task).record.shown in states:
                break
    events.close()
    assert job.task(task).record.shown in states


def told(runtime: Runtime, entity_id: str) -> list[str]:
    return [str(row.event) for row in runtime.journal.reader.transitions(entity_id=entity_id)]


async def test_a_task_is_approved_by_a_message(runtime: Runtime) -> None:
    job = await runtime.submit(release(), id="release")
    await until(job, "deploy", "held")
    ref = job.task("deploy").ref
    assert (ref.name, ref.state, ref.ended, ref.facts) == ("release/deploy", "held", False, None)
    assert ref.events == {"approve", "reject", "cancel"}
    assert await ref.ask(Fire("approve", by="ana", reason="fine", request_id="r1")) is None
    assert await ref.ask(Fire("approve", by="ana", reason="fine", request_id="r1")) is None  # the same again
    await job.task("deploy").approve(by="ana", reason="fine", request_id="r1")  # and so is the verb
    with pytest.raises(RequestIdReused):
        await ref.ask(Fire("reject", by="ana", reason="fine", request_id="r1"))
    assert (await job.wait()).ok
    (decision,) = job.task("deploy").record.decisions
    assert (decision.by, decision.reason, told(runtime, "release@1/deploy").count("approve")) == ("ana", "fine", 1)
    with pytest.raises(DecisionConflict):
        await ref.ask(Fire("approve", by="bo"))
    assert await ref.ask(Fire("approve", by="ana", reason="fine", request_id="r1")) is None  # also now


async def test_what_people_may_not_fire_is_refused_with_the_reason(runtime: Runtime) -> None:
    job = await runtime.submit(release(), id="release")
    await until(job, "deploy", "held")
    ref = job.task("deploy").ref
    for event in ("start", "succeed", "fail", "enqueue", "expire", "hold", "validation_passed"):
        with pytest.raises(InvalidTransitionError) as refused:
            await ref.ask(Fire(event))
        assert refused.value.allowed == {"approve", "reject", "cancel"}
        assert str(refused.value) == (
            f"task release@1/deploy: '{event}' is not possible in state 'held'. "
            "Possible there: approve, cancel, reject. "
            f"The runtime fires '{event}' itself, as the work goes. "
            "Events that people may fire at it: approve, reject, skip, reset, cancel, cancel_graceful, cancel_force."
        )
    with pytest.raises(InvalidTransitionError, match=r"task has no event of that name\..*; did you mean 'approve'\?"):
        await ref.ask(Fire("aprove", by="ana"))
    with pytest.raises(InvalidTransitionError, match=r"use the verb retry\(\)"):
        await ref.ask(Fire("retry"))
    with pytest.raises(InvalidTransitionError, match="'skip' is not possible in state 'held'") as refused:
        await ref.ask(Fire("skip"))
    assert refused.value.allowed == {"approve", "reject", "cancel"}
    with pytest.raises(InvalidTransitionError, match="The runtime fires 'validate' itself"):
        await job.ref.ask(Fire("validate"))
    assert job.task("deploy").record.state == "held"
    with pytest.raises(InvalidTransitionError, match="The runtime fires 'time_out' itself"):
        await ref.ask(Fire(Event.TIME_OUT))
    counted = runtime.metrics().rejected
    assert counted["task", "held", "start"] == counted["task", "held", "skip"] == 1
    assert counted["task", "held", "(other)"] == 2  # "aprove", "retry"
    await job.cancel()


async def test_an_event_is_for_the_present_state(runtime: Runtime) -> None:
    """The verbs begin a next run of what has ended; an event does not."""
    job = await runtime.submit(release(), id="release")
    await until(job, "deploy", "held")
    await job.ref.ask(Fire("cancel", by="ana", request_id="c"))
    await job.wait()
    for ref, event in ((job.ref, "resume"), (job.ref, "cancel"), (job.task("deploy").ref, "skip")):
        with pytest.raises(InvalidTransitionError, match=r"in state 'cancelled': nothing leaves it\.") as refused:
            await ref.ask(Fire(event, by="ana"))
        assert (refused.value.event, refused.value.allowed) == (event, set())
    await job.ref.ask(Fire("cancel", by="ana", request_id="c"))  # which has taken effect
    assert (await runtime.job("release")).record.run == 1


async def test_a_job_takes_the_events_of_its_workstream(runtime: Runtime) -> None:
    tasks = [Task("a", run=forever), Task("b", run=quick, depends_on=["a"])]
    job = await runtime.submit(Workstream("w", tasks=tasks), id="w")
    await until(job, "a", "running")
    assert job.ref.events == {"cancel", "cancel_graceful", "pause"}
    assert await job.ref.ask(Fire("pause", by="ana", reason="a while")) is None
    stream = runtime.machine("w@1")
    assert (stream.state, stream.name, repr(stream)) == ("paused", "w@1", "<EntityRef workstream w@1>")
    with pytest.raises(InvalidTransitionError, match="workstream w@1: 'pause' is not possible in state 'paused'"):
        await stream.ask(Fire("pause"))
    assert isinstance(await stream.fire("resume", by="bo"), JobHandle)  # as the verb does
    assert isinstance(await runtime.machine("w@1/b").ask(Fire("skip", by="ana")), JobHandle)
    await stream.ask(Fire("cancel_graceful", reason="enough", by="ana"))
    assert (await job.wait()).state == "cancelled"
    assert told(runtime, "w@1")[-4:] == ["pause", "resume", "cancel_graceful", "complete"]


async def test_what_a_running_body_asks_for_is_approved(runtime: Runtime) -> None:
    job = await runtime.submit(Workstream("w", tasks=[Task("a", run=asks)]), id="w")
    await until(job, "a", "running")
    events = runtime.events(kind="approval", notices=False)
    if not job.approvals():
        await anext(events)
    with pytest.raises(ValueError, match="takes no fact 'deadline'; it takes: approval"):
        await job.task("a").ref.ask(Fire("approve", by="ana", facts={"deadline": 3}))
    with pytest.raises(ValueError, match="keeps no metadata"):
        await job.task("a").ref.ask(Fire("approve", by="ana", metadata={"n": 3}))
    with pytest.raises(TypeError, match=r"a person's decision: name the person, Fire\(\.\.\., by=NAME\)"):
        await job.task("a").ref.ask(Fire("approve"))
    await job.task("a").ref.ask(Fire("approve", by="ana", facts={"approval": "go"}))
    assert (await job.wait()).results == {"a": "ana"}


async def test_a_parked_task_and_its_tools_breaker_take_their_resets() -> None:
    tools = {"kiln": Tool(breaker=Breaker(failure_threshold=1, cooldown="1h"))}
    parks = Task("a", run=breaks, tool="kiln", on_exhausted="park", retry=Retry(max_attempts=1))
    async with Runtime(tools=tools, drain_deadline=0) as runtime:
        job = await runtime.submit(Workstream("w", tasks=[parks]), id="w")
        await until(job, "a", "circuit_open")
        breaker = runtime.machine("kiln")
        assert (breaker.state, breaker.events) == ("open", {"reset", "trip"})
        await breaker.ask(Fire("reset", by="ana", request_id="b"))
        await breaker.ask(Fire("reset", by="ana", request_id="b"))
        assert runtime.breaker("kiln").state == "closed"
        await runtime.breaker("kiln").ref.ask(Fire("trip", by="ana", facts={"cooldown": "2h"}))
        assert 6600 < runtime.breaker("kiln").retry_in <= 7200
        with pytest.raises(InvalidTransitionError, match="The runtime fires 'cool_down' itself"):
            await breaker.ask(Fire("cool_down"))
        await job.task("a").ref.ask(Fire("reset", by="ana"))  # the task was parked for its failures
        with pytest.raises(CircuitOpen, match="its tool 'kiln' is not healthy"):
            await job.task("a").ref.ask(Fire("reset"))
        await job.ref.ask(Fire("cancel"))


async def test_a_worker_takes_its_events() -> None:
    async with Runtime(workers=[Worker("w", engine="loop", capacity=2)], drain_deadline=0) as runtime:
        worker = runtime.machine("w")
        assert (worker.state, runtime.machine("w#1").name, runtime.worker("w").ref.name) == ("idle", "w", "w")
        with pytest.raises(GuardRejected, match="worker w: 'pause' was refused in state 'idle'"):
            await worker.ask(Fire("pause"))  # as the verb is
        with pytest.raises(InvalidTransitionError, match="worker w: 'assign' is not possible in state 'idle'"):
            await worker.ask(Fire("assign"))
        with pytest.raises(InvalidTransitionError, match=r"use the verb start\(\)"):
            await worker.ask(Fire("start"))
        with pytest.raises(LookupError):
            runtime.machine("w#2")
        await worker.ask(Fire("shut_down", by="ana", facts={"deadline": "1s"}))
        assert runtime.worker("w").state == "shutdown"
        with pytest.raises(InvalidTransitionError, match="nothing leaves it"):
            await worker.ask(Fire("terminate"))


async def test_telling_waits_for_nothing_and_keeps_the_order(runtime: Runtime) -> None:
    job = await runtime.submit(Workstream("w", tasks=[Task("a", run=forever)]), id="w")
    await until(job, "a", "running")
    ref = job.ref
    assert all(ref.tell(Fire(event, by="ana")) for event in ("pause", "start", "resume", "cancel"))
    assert (await job.wait()).state == "cancelled"
    (letter,) = runtime.dead_letters.newest()
    assert (letter.recipient, letter.message.event, letter.reason) == ("w", "start", Reason.REFUSED)
    assert "The runtime fires 'start' itself" in str(letter.error)
    assert told(runtime, "w@1")[-4:-1] == ["pause", "resume", "cancel_graceful"]
    with pytest.raises(TypeError, match="a job takes a Fire, not 'pause'"):
        ref.tell("pause")  # type: ignore[arg-type]


async def test_what_waits_at_one_reference_is_bounded(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.runtime.handles.references.WAITING", 3)
    job = await runtime.submit(Workstream("w", tasks=[Task("a", run=forever)]), id="w")
    assert [job.ref.tell(Fire("pause")) for _ in range(4)] == [True] * 4  # each `ref` is a new object
    ref = job.ref
    assert [ref.tell(Fire("approve", by="ana")) for _ in range(5)] == [True, True, True, False, False]
    assert [letter.reason for letter in runtime.dead_letters.newest()][:2] == [Reason.MAILBOX_FULL] * 2
    await job.cancel()
    await job.wait()


async def test_a_closed_runtime_takes_nothing() -> None:
    async with Runtime() as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("a", run=quick)]), id="w")
        await job.wait()
    assert job.ref.tell(Fire("cancel")) is False
    assert [letter.reason for letter in runtime.dead_letters.newest()] == [Reason.STOPPED]
    with pytest.raises((RuntimeClosed, InvalidTransitionError)):
        await job.ref.ask(Fire("cancel"))


async def test_names_mean_what_they_say(runtime: Runtime) -> None:
    job = await runtime.submit(release(), id="release")
    await until(job, "deploy", "held")
    for name in ("release/deploy", "release@1/deploy"):
        assert repr(runtime.machine(name)) == repr(await runtime.machine_of(name)) == "<EntityRef task release/deploy>"
    assert isinstance(runtime.machine("release"), EntityRef)
    runtime.spawn(MachineActor(DOOR), name="release")  # an application's machine comes first
    assert (await runtime.machine("release").ask(Fire("knock", by="ana"))).metadata == {"by": "ana"}
    assert job.ref.state == "running"
    for name in ("release@2", "release@2/deploy"):
        with pytest.raises(LookupError, match="job 'release' is in run 1, and no longer in run 2"):
            runtime.machine(name)
    with pytest.raises(LookupError, match="has no task 'nope'"):
        runtime.machine("release/nope")
    with pytest.raises(LookupError, match="there is no machine 'nobody'"):
        runtime.machine("nobody")
    with pytest.raises(LookupError, match="there is no machine 'nobody'"):
        await runtime.machine_of("nobody")
    with pytest.raises(TypeError, match="the name of a machine is a str, not 3"):
        runtime.machine(3)  # type: ignore[arg-type]
    await job.cancel()
    await job.wait()


async def test_what_has_ended_is_found_in_the_journal(tmp_path: Path) -> None:
    for _ in range(2):
        async with Runtime(tmp_path / "state.db", drain_deadline=0) as runtime:
            if runtime.journal.reader.job("w"):
                ref = await runtime.machine_of("w@1/a")
                assert (ref.name, ref.state, ref.ended) == ("w/a", "completed", True)
                with pytest.raises(InvalidTransitionError, match="in state 'completed': nothing leaves it"):
                    await ref.ask(Fire("cancel"))
                with pytest.raises(InvalidTransitionError, match="in state 'completed': nothing leaves it"):
                    await (await runtime.machine_of("w@1")).ask(Fire("pause"))
            else:
                await (await runtime.submit(Workstream("w", tasks=[Task("a", run=quick)]), id="w")).wait()


async def test_a_child_job_is_named_by_its_path(runtime: Runtime) -> None:
    async def parent(task: TaskContext) -> None:
        child = await task.submit(Workstream("in", tasks=[Task("x", run=forever)]), name="child")
        await child.wait()

    runtime.task(parent)
    events = runtime.events(kind="task", to_state="running", notices=False)
    job = await runtime.submit(Workstream("w", tasks=[Task("a", run=parent)]), id="w")
    assert [(await anext(events)).entity_id for _ in "ax"] == ["w@1/a", "w/a/child@1/x"]
    assert runtime.machine("w/a/child/x").state == runtime.machine("w/a/child@1/x").state == "running"
    assert isinstance(runtime.machine("w/a"), EntityRef)
    await runtime.machine("w/a/child").ask(Fire("cancel"))
    assert not (await job.wait()).ok or job.ended


async def test_an_ask_that_takes_too_long_says_that_it_may_still_come(runtime: Runtime) -> None:
    job = await runtime.submit(release(), id="release")
    await until(job, "deploy", "held")
    with pytest.raises(AskTimeout, match=r"no answer within 0\.0 s; it may still come"):
        await job.task("deploy").ref.ask(Fire("approve", by="ana"), timeout=0)
    with pytest.raises(TypeError):
        await job.ref.ask(Fire("cancel"), timeout="soon")  # type: ignore[arg-type]
    await job.cancel()


# -- by the published lifecycles ---------------------------------------------------------------------------------------


async def fired(runtime: Runtime, ref: Any, event: str, entity_id: str) -> None:
    """Fire an event at an entity that has it, and wait for its transition: a body may have to stop first."""
    before = told(runtime, entity_id).count(event)
    events = runtime.events(entity=entity_id, notices=False)
    await ref.ask(Fire(event, by="ana"))
    with anyio.fail_after(300):
        while told(runtime, entity_id).count(event) == before:
            await anext(events)
    events.close()
    assert told(runtime, entity_id).count(event) == before + 1


async def test_execution_takes_its_words_and_no_other() -> None:
    async with Runtime(drain_deadline=0) as runtime:
        spec = release(lifecycle="execution")
        spec = Workstream("r", tasks=[*spec.tasks, Task("runs", run=forever)], lifecycle="execution")
        job = await runtime.submit(spec, id="r")
        await until(job, "deploy", "held")
        await until(job, "runs", "running")
        deploy, tell, runs = (job.task(name).ref for name in ("deploy", "tell", "runs"))
        assert deploy.events == {"APPROVE", "REJECT", "CANCEL"}
        assert runs.events == {"CANCEL", "CANCEL_GRACEFUL"}
        assert tell.events == {"SKIP", "CANCEL"}
        for event in ("EXPIRE", "ENQUEUE", "START", "TIMER_DONE"):
            with pytest.raises(InvalidTransitionError, match=f"execution r@1/deploy: '{event}' is not possible") as no:
                await deploy.ask(Fire(event))
            assert no.value.allowed == {"APPROVE", "REJECT", "CANCEL"}
        with pytest.raises(InvalidTransitionError, match=r"the verb approve.* did you mean 'APPROVE'"):
            await deploy.ask(Fire("approve", by="ana"))
        with pytest.raises(InvalidTransitionError, match="'CANCEL_GRACEFUL' is not possible in state 'held'"):
            await deploy.ask(Fire("CANCEL_GRACEFUL"))
        await fired(runtime, tell, "SKIP", "r@1/tell")
        await fired(runtime, deploy, "APPROVE", "r@1/deploy")
        await fired(runtime, runs, "CANCEL_GRACEFUL", "r@1/runs")
        await job.wait()


@pytest.mark.parametrize("event", ["CANCEL", "CANCEL_GRACEFUL"])
async def test_executions_of_jobs_are_cancelled_by_their_words(event: str) -> None:
    async with Runtime(drain_deadline=0, lifecycle="execution") as runtime:
        tasks = [Task("a", run=forever, cancel_hooks=[]), Task("b", run=quick, depends_on=["a"])]
        job = await runtime.submit(Workstream("r", tasks=tasks), id="r")
        await until(job, "a", "running")
        assert job.ref.events == {"CANCEL", "CANCEL_GRACEFUL"}
        await job.ref.ask(Fire(event, by="ana"))
        assert (await job.wait()).state == "cancelled"
        assert told(runtime, "r@1/a")[-1 if event == "CANCEL" else -2] == event


async def test_a_rejection_by_execution() -> None:
    async with Runtime(drain_deadline=0) as runtime:
        job = await runtime.submit(release(lifecycle="execution"), id="r")
        await until(job, "deploy", "held")
        await fired(runtime, runtime.machine("r@1/deploy"), "REJECT", "r@1/deploy")
        await job.wait()


async def test_guarded_takes_its_words() -> None:
    tasks = [
        Task("parks", run=breaks, retry=Retry(max_attempts=1)),
        Task("runs", run=forever),
        Task("later", run=quick, depends_on=["runs"]),
        Task("other", run=quick, depends_on=["runs"]),
    ]
    async with Runtime(drain_deadline=0) as runtime:
        job = await runtime.submit(Workstream("g", tasks=tasks, lifecycle="guarded"), id="g")
        await until(job, "parks", "CIRCUIT_OPEN")
        await until(job, "runs", "IN_PROGRESS")
        assert job.task("parks").ref.events == {"manual_reset", "workstream_cancelled"}
        await fired(runtime, job.task("parks").ref, "manual_reset", "g@1/parks")
        await until(job, "parks", "CIRCUIT_OPEN")
        with pytest.raises(InvalidTransitionError, match="The runtime fires 'dependency_failed' itself"):
            await job.task("later").ref.ask(Fire("dependency_failed"))
        await fired(runtime, job.task("later").ref, "optional_step_skipped", "g@1/later")
        await fired(runtime, job.task("other").ref, "user_cancels", "g@1/other")
        await until(job, "runs", "CANCELLED")  # since that one was critical
        await job.wait()


async def test_an_interrupt_by_guarded() -> None:
    async with Runtime(drain_deadline=0) as runtime:
        job = await runtime.submit(Workstream("g", tasks=[Task("runs", run=forever)], lifecycle="guarded"), id="g")
        await until(job, "runs", "IN_PROGRESS")
        await fired(runtime, job.task("runs").ref, "user_interrupt", "g@1/runs")
        await job.wait()


async def test_orchestration_takes_its_words() -> None:
    worker = Worker("w", engine="loop", capacity=2, lifecycle="orchestration")
    tasks = [Task("a", run=forever, optional=True), Task("b", run=forever), Task("c", run=quick, depends_on=["b"])]
    async with Runtime(workers=[worker], drain_deadline=0) as runtime:
        job = await runtime.submit(Workstream("o", tasks=tasks, lifecycle="orchestration"), id="o")
        await until(job, "a", "running")
        await until(job, "b", "running")
        with pytest.raises(InvalidTransitionError, match="'user_cancelled' is not possible in state 'pending'") as no:
            await job.task("c").ref.ask(Fire("user_cancelled"))  # the verb would keep the cancel for later
        assert "People may fire it in: running. Now its work goes on by itself." in str(no.value)
        with pytest.raises(InvalidTransitionError, match=r"use the verb pause\(\)"):
            await job.ref.ask(Fire("pause"))
        await fired(runtime, job.task("a").ref, "user_cancelled", "o@1/a")
        await fired(runtime, runtime.machine("o@1"), "user_cancelled", "o@1")
        await job.wait()
        await fired(runtime, runtime.worker("w").ref, "shutdown_requested", "w#1")


async def test_fleet_takes_its_words() -> None:
    async with Runtime(workers=[Worker("w", engine="loop", lifecycle="fleet")], drain_deadline=0) as runtime:
        ref = runtime.worker("w").ref
        for event in ("pause", "complete_tasks", "resume"):
            with pytest.raises(InvalidTransitionError, match=f"worker w: '{event}' is not possible in state 'IDLE'"):
                await ref.ask(Fire(event))
        for event in ("start_task", "pause", "resume", "complete_tasks", "terminate"):
            await fired(runtime, ref, event, "w#1")
        with pytest.raises(InvalidTransitionError, match="'start_task' is not possible in state 'TERMINATED'"):
            await ref.ask(Fire("start_task"))  # the verb would start another incarnation
    async with Runtime(lifecycle="fleet", drain_deadline=0) as runtime:
        job = await runtime.submit(Workstream("f", tasks=[Task("a", run=forever)]), id="f")
        await until(job, "a", "running")
        await fired(runtime, job.ref, "cancel", "f")
        await job.wait()


async def test_pipeline_takes_its_words() -> None:
    tools = {"kiln": Tool(breaker=Breaker(failure_threshold=1, cooldown="1h"))}
    async with Runtime(tools=tools, lifecycle="pipeline", drain_deadline=0) as runtime:
        tasks = [Task("a", run=forever), Task("b", run=breaks, tool="kiln", retry=Retry(max_attempts=1))]
        job = await runtime.submit(Workstream("p", tasks=[tasks[0]]), id="p")
        await until(job, "a", "S_RUNNING")
        for event in ("cancel", "success", "approve"):
            with pytest.raises(InvalidTransitionError) as no:
                await job.task("a").ref.ask(Fire(event, by="ana"))
            assert no.value.allowed == set()
            assert "nothing leaves it" not in str(no.value)
            assert "Events that people may fire at it: none" in str(no.value)
        await fired(runtime, job.ref, "abandon", "p@1")
        await job.wait()
        other = await runtime.submit(Workstream("q", tasks=[tasks[1]]), id="q")
        await other.wait()
        assert runtime.breaker("kiln").record.shown == "OPEN"
        with pytest.raises(InvalidTransitionError, match=r"use the verb trip\(\)"):
            await runtime.machine("kiln").ask(Fire("trip"))
        await fired(runtime, runtime.machine("kiln"), "reset_circuit", "kiln")


# -- machines of the application's own -----------------------------------------------------------------------------


async def test_a_machine_keeps_who_said_it_and_the_keys_of_older_versions(runtime: Runtime) -> None:
    front = runtime.spawn(MachineActor(DOOR), name="front")
    row = await front.ask(Fire("knock", metadata={"n": 1}, by="ana"))
    assert row.metadata == {"by": "ana", "n": 1}
    assert (await front.fire("knock", by="ana", metadata={"by": "bo"})).metadata == {"by": "bo"}
    assert front.tell(Fire("knock", by="cy"))
    with pytest.raises(ValueError, match="`by` is the name of the author"):
        front.tell(Fire("knock", by="\n"))
    await front.ask(Fire("knock", "air", {"n": 1}, request_id="k"))
    record = await runtime._services.read(runtime.journal.reader.request, "k")
    assert record.fingerprint == OLD_KEY
    assert [(row.metadata or {}).get("by") for row in runtime.journal.reader.transitions(entity_id="front")][3] == "cy"
