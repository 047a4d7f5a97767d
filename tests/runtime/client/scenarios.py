"""A program that uses a runtime: each function is one part, and works with a runtime here and in another process.

`said` is used where the one call is plain and the other is awaited: docs/client.md lists these calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import pytest

from callboard import (
    Approval,
    Check,
    Clause,
    Condition,
    Fire,
    Machine,
    MachineActor,
    Progress,
    Retry,
    State,
    Task,
    TaskContext,
    Tool,
    Transition,
    Transitioned,
    Worker,
    Workstream,
    step,
)
from callboard.actors.spec.model import Breaker
from callboard.errors import (
    CircuitOpen,
    DecisionConflict,
    DecisionRefused,
    GuardRejected,
    InvalidTransitionError,
    JobExists,
    JobFailed,
    RequestIdReused,
    SpecificationError,
)


async def said(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


# -- what runs ---------------------------------------------------------------------------------------------------------

TWICE = Retry(max_attempts=2, base_delay=0)
opened: dict[str, bool] = {}  # by job: whether its `gate` is open


async def one() -> int:
    return 1


async def add(task: TaskContext) -> int:
    return sum(task.results.values()) + 1


async def gate(task: TaskContext) -> str:
    if not opened.get(task.job_id):
        raise RuntimeError("shut")
    return "through"


async def forever() -> None:
    await anyio.sleep_forever()


async def parent(task: TaskContext) -> Any:
    child = await task.submit(Workstream("inner", tasks=[Task("in", run=one)]), name="child")
    return (await child.wait()).results["in"]


class Facts(msgspec.Struct):
    ready: bool = False
    patience: float = 3600.0


def is_ready(facts: Facts, _: object) -> bool:
    return facts.ready


DOOR = Machine(
    "door", "shut",
    states=(
        State("shut", bounded_by="whoever opens it"), State("open", bounded_by="whoever shuts it"),
        State("gone", terminal=True),
    ),
    transitions=(
        Transition("shut", "open", "open"), Transition("shut", "lock", "gone", guard=is_ready),
        Transition("open", "shut", "shut"), Transition("open", "remove", "gone"),
    ),
)  # fmt: skip
DOORS = MachineActor(DOOR, facts=Facts())


def graph(name: str = "graph") -> Workstream:
    return Workstream(name, tasks=[Task("a", run=one), Task("b", run=one), Task("sum", run=add, depends_on=["a", "b"])])


async def until(job: Any, task: str, state: str) -> None:
    """Wait until a task of a job is in a state."""
    async for event in job.events(kind="task", task=task, notices=False):
        if event.to_state == state:
            break
    if hasattr(job, "refresh"):
        await job.refresh()


# -- jobs --------------------------------------------------------------------------------------------------------------


async def a_job_is_done(runtime: Any, name: str) -> None:
    job = await runtime.submit(graph(), id=name, by="ana")
    assert (job.id, job.parent, [task.name for task in job.tasks()]) == (name, None, ["a", "b", "sum"])
    outcome = await job.wait()
    assert (outcome.ok, outcome.state, outcome.shown, outcome.error) == (True, "completed", "completed", None)
    assert dict(outcome.results) == {"a": 1, "b": 1, "sum": 3}
    assert (job.state, job.ended, job.record.by, job.record.name) == ("completed", True, "ana", "graph")
    assert [(task.state, task.attempt) for task in job.tasks()] == [("completed", 1)] * 3
    assert job.task("sum").record.result == 3
    again = await runtime.job(name)
    assert (again.state, dict((await again.wait()).results)) == ("completed", dict(outcome.results))
    assert outcome.raise_for_state() is outcome


async def the_same_job_is_submitted_once(runtime: Any, name: str) -> None:
    job = await runtime.submit(graph(), id=name)
    await job.wait()
    same = await runtime.submit(graph(), id=name)
    assert (same.id, same.state) == (name, "completed")
    with pytest.raises(JobExists, match=r"another workstream .*: its name was 'graph' and is 'another' now"):
        await runtime.submit(graph("another"), id=name)


async def an_id_that_exists_is_refused_or_replaced(runtime: Any, name: str) -> None:
    job = await runtime.submit(Workstream("long", tasks=[Task("a", run=forever)]), id=name, existing="refuse")
    await until(job, "a", "running")
    with pytest.raises(JobExists, match=r"already \(running now\).*existing='refuse'"):
        await runtime.submit(graph(), id=name, existing="refuse")
    with pytest.raises(JobExists, match=r"has not ended \(running now\)"):
        await runtime.submit(graph(), id=name, existing="replace_ended")
    await job.cancel()
    assert (await job.wait()).state == "cancelled"
    for _ in range(2):
        other = await runtime.submit(graph(), id=name, existing="replace_ended", request_id=f"{name} once")
        assert (await other.wait()).results == {"a": 1, "b": 1, "sum": 3}
        assert (other.record.runs, other.record.first) == (2, 2)
    with pytest.raises(RequestIdReused):
        await other.retry("a", request_id=f"{name} once")
    with pytest.raises(ValueError, match="existing is one of 'join', 'refuse', 'replace_ended', not 'anew'"):
        await runtime.submit(graph(), id=name, existing="anew")
    with pytest.raises(ValueError, match="give an id"):
        await runtime.submit(graph(), existing="refuse")


async def what_cannot_be_run_is_refused_whole(runtime: Any, name: str) -> None:
    wrong = Workstream(
        "wrong", tasks=[Task("a", run=one, depends_on=["b", "nobody"]), Task("b", run=one, depends_on=["a"])]
    )
    with pytest.raises(SpecificationError) as refused:
        await runtime.submit(wrong, id=name)
    assert len(refused.value.findings) >= 2
    assert "2 things are wrong in workstream 'wrong':" in str(refused.value)
    assert refused.value.findings[0].where == "tasks[0].depends_on[1]"
    with pytest.raises(SpecificationError, match="no_such_function"):
        await runtime.submit(Workstream("lost", tasks=[Task("a", run=f"{__name__}:no_such_function")]))
    with pytest.raises(LookupError, match="there is no job"):
        await runtime.job(name)
    with pytest.raises(ValueError, match="cannot be a job's id"):
        await runtime.submit(graph(), id="a/b")
    with pytest.raises(TypeError, match="submit takes a Workstream"):
        await runtime.submit("graph")


async def a_job_is_cancelled(runtime: Any, name: str) -> None:
    job = await runtime.submit(
        Workstream("long", tasks=[Task("a", run=forever, optional=True), Task("b", run=forever)]), id=name
    )
    await until(job, "a", "running")
    await job.task("a").cancel("not needed", by="ana")
    await until(job, "a", "cancelled")
    assert job.task("a").record.reason == "not needed"
    with pytest.raises(InvalidTransitionError) as refused:
        await job.task("a").cancel()
    error = refused.value
    allowed = frozenset[str]()
    assert (error.machine, error.state, error.event, error.allowed) == ("task", "cancelled", "cancel_graceful", allowed)
    await job.cancel("enough", force=True)
    outcome = await job.wait()
    assert (outcome.state, outcome.ok) == ("cancelled", False)
    with pytest.raises(JobFailed, match="enough"):
        outcome.raise_for_state()
    with pytest.raises(
        InvalidTransitionError, match="'cancel' is not possible in state 'cancelled': nothing leaves it"
    ):
        await job.cancel()
    with pytest.raises(LookupError, match="has no task 'nobody'; it has: a, b"):
        job.task("nobody")


async def a_job_is_paused(runtime: Any, name: str) -> None:
    spec = Workstream("held", tasks=[Task("first", run=one), Task("a", run=one, depends_on=["first"], hold=Approval())])
    job = await runtime.submit(spec, id=name)
    await until(job, "a", "held")
    await job.pause("lunch", by="ana")
    with pytest.raises(InvalidTransitionError, match="'pause' is not possible in state 'paused'") as refused:
        await job.pause()
    assert "resume" in refused.value.allowed
    assert (await job.resume(by="ana")).id == name
    await job.task("a").approve(by="ben")
    assert (await job.wait()).ok


async def what_failed_goes_on_in_a_next_run(runtime: Any, name: str) -> None:
    opened.pop(name, None)
    spec = Workstream("gated", tasks=[Task("a", run=one), Task("gate", run=gate, depends_on=["a"]), Task("c", run=one)])
    job = await runtime.submit(spec, id=name)
    outcome = await job.wait()
    assert (outcome.state, dict(outcome.results)) == ("failed", {"a": 1, "c": 1})
    record = outcome.tasks["gate"]
    assert (record.last_error, record.error_type, record.error_count) == (
        job.task("gate").record.last_error,
        "RuntimeError",
        1,
    )
    assert str(record.last_error).startswith("RuntimeError: shut")
    with pytest.raises(InvalidTransitionError):
        await job.pause()
    opened[name] = True
    again = await job.retry(by="ana")
    assert (await again.wait()).results["gate"] == "through"
    assert (job.state, again.state, again.record.runs) == ("failed", "completed", 2)
    with pytest.raises(InvalidTransitionError):
        await again.retry()
    more = await again.task("c").retry("once more")
    assert (await more.wait()).tasks["c"].attempt == 1


async def what_a_body_raised_is_explained(runtime: Any, name: str) -> None:
    flow = Workstream("w", tasks=[Task("a", run=one), Task("g", run=gate, depends_on=["a"], retry=TWICE)])
    job = await runtime.submit(flow, id=name)
    outcome = await job.wait()
    assert list(outcome.tracebacks) == ["g"]
    with pytest.raises(JobFailed) as failed:
        outcome.raise_for_state()
    (note,) = failed.value.__notes__
    assert note.startswith("task 'g':\nTraceback (most recent call last):\n")
    assert note.endswith("RuntimeError: shut")
    tries = await job.task("g").attempts()
    assert tries == await job.attempts("g")
    assert [(one.attempt, one.end, one.task_id) for one in tries] == [
        (1, "failed", f"{name}@1/g"), (2, "failed", f"{name}@1/g"),
    ]  # fmt: skip
    assert all("in gate" in (one.traceback or "") for one in tries)
    assert [(one.end, one.traceback) for one in await job.attempts("a")] == [("succeeded", None)]
    with pytest.raises(LookupError):
        await job.attempts("nobody")


failed_once: set[str] = set()  # jobs


@step(retry=TWICE)
async def picked(job: str) -> dict[str, str]:
    if job not in failed_once:
        failed_once.add(job)
        raise OSError("nobody there")
    return {"of": job}


@step
async def charged() -> None:
    raise ValueError("no money")


async def an_order(task: TaskContext) -> str:
    await picked(task.job_id)
    try:
        await charged()
    except ValueError:
        await picked(task.job_id)
    return "cancelled"


async def the_steps_of_a_body_are_told(runtime: Any, name: str) -> None:
    flow = Workstream("w", tasks=[Task("a", run=an_order), Task("b", run=one)])
    job = await runtime.submit(flow, id=name)
    await job.wait()
    steps = await job.task("a").steps()
    assert steps == await job.steps("a")
    assert [(one.label, one.state, one.tries, one.result, one.error) for one in steps] == [
        ("picked", "completed", 2, {"of": name}, None), ("charged", "failed", 1, None, "no money"),
        ("picked#2", "completed", 1, {"of": name}, None),
    ]  # fmt: skip
    assert [one.given for one in steps] == [([name], {}), None, ([name], {})]
    assert [(one.task_id, one.attempt, one.worker_id) for one in steps] == [(f"{name}@1/a", 1, "loop#1")] * 3
    assert (steps[1].error_type, steps[1].failed) == ("builtins:ValueError", True)
    assert "in charged" in (steps[1].traceback or "")
    assert all(one.ended_at is not None and one.ended_at >= one.began_at > 0 for one in steps)
    assert await job.steps("b") == []
    with pytest.raises(LookupError):
        await job.steps("nobody")


async def tells(task: TaskContext) -> None:
    task.progress(1, 2, "half")
    task.emit("Hel")
    await task.publish("stage", "half")
    await task.publish("parts", ["Hel", None])
    await task.approval("go", people=1)
    await task.publish("stage", "done")
    task.emit("lo \u263a\n\r\n")


async def what_a_body_publishes_and_emits_is_read(runtime: Any, name: str) -> None:
    job = await runtime.submit(Workstream("w", tasks=[Task("a", run=tells), Task("b", run=one)]), id=name)
    text = job.task("a").stream()
    told = await anext(text)
    assert await job.published() in ({}, {"stage": "half"}, {"stage": "half", "parts": ["Hel", None]})
    while (await job.published()).keys() != {"stage", "parts"}:
        await anyio.sleep(0.01)
    while not await approvals_of(runtime, job):
        await anyio.sleep(0.01)
    assert job.task("a").progress == job.progress("a") == Progress(1, 2, "half")
    await job.task("a").approve(by="ana", approval="go")
    async for part in text:
        told += part
    assert told == "Hello \u263a\n\r\n"
    await job.wait()
    assert job.task("a").progress is None
    assert await job.published() == {"stage": "done", "parts": ["Hel", None]}
    assert await job.task("a").published() == await job.published()
    assert await job.task("b").published() == {}
    assert [part async for part in job.task("a").stream()] == []


async def counts(task: TaskContext) -> None:
    await task.approval("begin", people=1)
    for number in range(4):
        task.progress(number, 3)
    await task.approval("end", people=1)
    raise OSError


async def a_handle_shows_the_progress_of_the_events_that_were_read(runtime: Any, name: str) -> None:
    tasks = [Task("a", run=counts, retry=Retry(max_attempts=1))]
    job = await runtime.submit(Workstream("w", tasks=tasks), id=name)
    events = job.events(task="a")
    while not await approvals_of(runtime, job):
        await anyio.sleep(0.01)
    assert job.task("a").progress is None
    await job.task("a").approve(by="ana", approval="begin")
    async for event in events:
        if event.event == "progress" and event.facts["done"] == 3:
            break
    assert job.task("a").progress == Progress(3, 3)
    while not await approvals_of(runtime, job):
        await anyio.sleep(0.01)
    await job.task("a").approve(by="ana", approval="end")
    async for event in events:
        if event.event == "fail":
            break
    assert job.task("a").progress is None
    assert (await job.wait()).state == "failed"
    with pytest.raises(LookupError, match="has no task 'b'"):
        job.progress("b")


async def approvals_of(runtime: Any, job: Any) -> list[Any]:
    await job.refresh()
    found = job.approvals()
    return await found if hasattr(found, "__await__") else found


async def paid(task: TaskContext) -> list[Any]:
    return [await task.receive("payment"), await task.receive("payment", type=dict[str, int])]


async def a_body_is_sent_messages(runtime: Any, name: str) -> None:
    job = await runtime.submit(Workstream("w", tasks=[Task("a", run=paid), Task("b", run=one)]), id=name)
    for _ in range(2):
        await job.send("payment", request_id=f"{name}-1")
    with pytest.raises(RequestIdReused):
        await job.send("payment", 2, request_id=f"{name}-1")
    with pytest.raises(LookupError):
        await job.send("payment", 2, task="nobody")
    with pytest.raises(ValueError, match="it is empty"):
        await job.send("")
    await job.send("photo", "x" * 1_048_574)  # as JSON it has two quotation marks
    with pytest.raises(ValueError, match="has 1,048,577 bytes as JSON"):
        await job.send("photo", "x" * 1_048_575)
    await until(job, "b", "completed")
    with anyio.fail_after(300):
        while len(unread := await job.messages()) > 1:
            await anyio.sleep(0.005)
    assert [(one.job_id, one.name, one.task, len(one.value), one.state) for one in unread] == [
        (name, "photo", None, 1_048_574, "unread")
    ]
    with pytest.raises(InvalidTransitionError) as refused:
        await job.task("b").send("payment")
    assert (refused.value.machine, refused.value.state, refused.value.event) == ("task", "completed", "send")
    await job.send("payment", {"cents": 1200}, task="a", by="ana")
    assert (await job.wait()).results["a"] == [None, {"cents": 1200}]
    with pytest.raises(InvalidTransitionError):
        await job.send("payment")


def opens_a_door(context: Any = None) -> bool:
    raise OSError("no key") from ValueError("the cause")


async def what_a_condition_and_a_check_raised_is_explained(runtime: Any, name: str) -> None:
    """A condition and a check have no attempt: the transition has the error."""
    checked = Check(run=opens_a_door)
    flows = {
        "condition": Workstream("w", tasks=[Task("a", run=one, condition=Condition(run=opens_a_door))]),
        "check": Workstream("w", tasks=[Task("a", run=one, checks=[checked])]),
        "whole": Workstream("w", tasks=[Task("a", run=one)], checks=[checked]),
    }
    for what, flow in flows.items():
        job = await runtime.submit(flow, id=f"{name}-{what}")
        outcome = await job.wait()
        of = f"workstream '{job.id}@1'" if what == "whole" else "task 'a'"
        (text,) = outcome.tracebacks.values()
        assert "ValueError: the cause" in text
        assert "in opens_a_door" in text
        assert "OSError: no key" in text
        with pytest.raises(JobFailed) as failed:
            outcome.raise_for_state()
        assert failed.value.__notes__ == [f"{of}:\n{text.rstrip()}"]


async def a_task_is_done_without(runtime: Any, name: str) -> None:
    opened.pop(name, None)
    spec = Workstream(
        "gated", tasks=[Task("first", run=one, hold=Approval()), Task("then", run=one, depends_on=["first"])]
    )
    job = await runtime.submit(spec, id=name)
    await until(job, "first", "held")
    with pytest.raises(InvalidTransitionError, match="skipped only while it is pending") as refused:
        await job.skip("first")
    assert refused.value.event == "skip"
    assert (await job.skip("then", "not today", by="ana")) is job
    await job.task("first").approve(by="ben")
    outcome = await job.wait()
    assert {task: str(record.state) for task, record in outcome.tasks.items()} == {
        "first": "completed",
        "then": "skipped",
    }
    with pytest.raises(LookupError, match="no task 'nobody'"):
        await job.skip("nobody")


async def jobs_have_children(runtime: Any, name: str) -> None:
    job = await runtime.submit(Workstream("outer", tasks=[Task("p", run=parent)]), id=name)
    outcome = await job.wait()
    assert outcome.results == {"p": 1}, outcome.error
    (child,) = await job.children()
    assert (child.parent, child.state, (await child.wait()).results["in"]) == (name, "completed", 1)
    assert (await runtime.job(child.id)).record.parent_id == name


async def a_job_runs_by_a_lifecycle(runtime: Any, name: str) -> None:
    job = await runtime.submit(Workstream("w", tasks=[Task("a", run=one)], lifecycle="fleet"), id=name)
    rows = [event async for event in job.events(notices=False)]
    assert (rows[-1].entity_id, rows[-1].to_state) == (name, "COMPLETED")
    outcome = await job.wait()
    assert (outcome.state, outcome.shown, job.record.shown) == ("completed", "COMPLETED", "COMPLETED")
    assert job.record.published.lifecycle == "fleet"


# -- decisions ---------------------------------------------------------------------------------------------------------


async def people_decide(runtime: Any, name: str) -> None:
    rule = Approval(clauses=[Clause(person="ana"), Clause(person="ben")])
    job = await runtime.submit(Workstream("decided", tasks=[Task("a", run=one, hold=rule)]), id=name, by="eve")
    await until(job, "a", "held")
    (pending,) = [one for one in await said(runtime.approvals()) if one.job_id == name]
    assert (pending.kind, pending.task, pending.missing, pending.submitted_by) == ("task", "a", ["ana", "ben"], "eve")
    assert [one.entity_id for one in await said(job.approvals())] == [f"{name}@1/a"]
    task = job.task("a")
    with pytest.raises(DecisionRefused, match="eve submitted it, and self-approval is off") as refused:
        await task.approve(by="eve")
    assert refused.value.why.startswith("eve submitted it")
    await task.approve(by="ana", reason="fine")
    assert [(one.by, one.reason, one.verdict) for one in task.record.decisions] == [("ana", "fine", "approved")]
    with pytest.raises(DecisionConflict) as conflict:
        await task.approve(by="ana")
    assert (conflict.value.decision.by, conflict.value.decision.verdict) == ("ana", "approved")
    assert "was approved by ana (fine). It is held until the others have approved. (decided 20" in str(conflict.value)
    await task.reject(by="ben", reason="no")
    assert (await job.wait()).tasks["a"].state == "cancelled"
    with pytest.raises(DecisionConflict, match="was rejected by ben"):
        await task.approve(by="ben")
    assert await said(job.approvals()) == []


async def a_workstream_is_held(runtime: Any, name: str) -> None:
    job = await runtime.submit(Workstream("all", tasks=[Task("a", run=one)], hold=Approval()), id=name)
    with pytest.raises(InvalidTransitionError):
        await job.pause()
    await job.approve(by="ana")
    assert (await job.wait()).ok


# -- keys --------------------------------------------------------------------------------------------------------------


async def a_command_is_done_once(runtime: Any, name: str) -> None:
    job = await runtime.submit(Workstream("held", tasks=[Task("a", run=one, hold=Approval(people=2))]), id=name)
    await until(job, "a", "held")
    for _ in range(2):
        await job.task("a").approve(by="ana", request_id=f"{name}-1")
    assert len(job.task("a").record.decisions) == 1
    with pytest.raises(RequestIdReused, match="was given to another command before"):
        await job.task("a").approve(by="ben", request_id=f"{name}-1")
    with pytest.raises(ValueError, match="cannot be a request_id"):
        await job.task("a").approve(by="ben", request_id="")
    with pytest.raises(TypeError, match="the reason must be a str"):
        await job.cancel(7)
    with pytest.raises(TypeError, match="force is True or False"):
        await job.cancel(force="yes")
    await job.cancel()
    await job.wait()


# -- workers, breakers, machines ---------------------------------------------------------------------------------------


async def workers_are_told(runtime: Any, name: str) -> None:
    (worker,) = await runtime.start_worker(Worker(name, engine="loop", capacity=2, capabilities=["x"]))
    assert (worker.name, worker.state, worker.engine, worker.capacity, worker.assigned) == (name, "idle", "loop", 2, 0)
    assert (worker.capabilities, worker.missed, worker.last_seen > 0) == (["x"], 0, True)
    assert name in [one.name for one in await said(runtime.workers())]
    same = runtime.worker(name)
    with pytest.raises(GuardRejected, match=f"worker {name}: 'pause' was refused in state 'idle'") as refused:
        await same.pause()
    assert refused.value.guards == ("told as running",)
    await same.shut_down("done", deadline="1s", by="ana")
    with pytest.raises(InvalidTransitionError, match="nothing leaves it"):
        await same.terminate()
    await same.start("back to work", by="ana")
    assert (same.state, same.record.run) == ("idle", 2)
    await same.terminate("enough")
    assert same.state == "terminated"
    with pytest.raises(SpecificationError):
        await runtime.start_worker(Worker("bad", engine="loop", capacity=0))
    with pytest.raises(LookupError, match="no worker 'nobody'"):
        await runtime.worker("nobody").pause()


async def breakers_are_told(runtime: Any, name: str) -> None:
    tool = Tool(breaker=Breaker(failure_threshold=1, cooldown=3600.0))
    spec = Workstream("tools", tasks=[Task("a", run=one, tool=name, hold=Approval())], tools={name: tool})
    job = await runtime.submit(spec, id=name)
    breaker = runtime.breaker(name)
    await breaker.trip(by="ana", cooldown="2h", reason="it hums")
    assert (breaker.tool, breaker.state, breaker.parked, breaker.record.reason) == (name, "open", 0, "it hums")
    assert 7000 < breaker.retry_in <= 7200
    await until(job, "a", "held")
    await job.task("a").approve(by="ana")
    await until(job, "a", "circuit_open")
    with pytest.raises(CircuitOpen, match=f"its tool '{name}' is not healthy") as refused:
        await job.task("a").reset()
    assert (refused.value.tool, refused.value.retry_in > 7000) == (name, True)
    await breaker.reset()
    assert (breaker.state, breaker.retry_in) == ("closed", 0.0)
    assert (await job.wait()).ok
    assert name in [one.tool for one in await said(runtime.breakers())]
    with pytest.raises(LookupError, match="'nothing'"):
        await runtime.breaker("nothing").reset()


async def machines_are_told(runtime: Any, name: str) -> None:
    door = runtime.machine(name)
    done = await door.ask(Fire("open", reason="air", metadata={"n": 1}, request_id=f"{name}-1"))
    assert isinstance(done, Transitioned)
    assert (done.kind, done.entity_id, done.from_state, done.to_state, done.reason) == (
        "machine",
        name,
        "shut",
        "open",
        "air",
    )
    assert (door.state, door.ended, door.record.machine) == ("open", False, "door")
    assert (await door.ask(Fire("open", reason="air", metadata={"n": 1}, request_id=f"{name}-1"))).seq == done.seq
    with pytest.raises(InvalidTransitionError, match=f"door {name}: 'open' is not possible in state 'open'") as refused:
        await door.fire("open")
    assert refused.value.allowed == {"shut", "remove"}
    await door.fire("shut")
    with pytest.raises(GuardRejected) as guarded:
        await door.fire("lock")
    assert guarded.value.guards == ("is ready",)
    assert name in [one.name for one in await said(runtime.machines())]
    with pytest.raises(TypeError, match="takes a Fire"):
        await door.ask("open")
    with pytest.raises(LookupError, match="'nobody'"):
        await runtime.machine("nobody").fire("open")


async def events_are_sent_to_what_runs(runtime: Any, name: str) -> None:
    never = Task("c", run=one, depends_on=["b"])
    spec = Workstream("w", tasks=[Task("a", run=one, hold=Approval()), Task("b", run=forever), never])
    job = await runtime.submit(spec, id=name)
    await until(job, "a", "held")
    await until(job, "b", "running")
    ref = job.task("a").ref
    assert (ref.name, ref.state) == (f"{name}/a", "held")
    with pytest.raises(InvalidTransitionError, match="The runtime fires 'start' itself") as refused:
        await ref.ask(Fire("start", by="ana"))
    assert (refused.value.event, refused.value.allowed) == ("start", {"approve", "reject", "cancel"})
    for _ in "ab":
        assert await ref.ask(Fire("approve", by="ana", reason="fine", request_id=f"{name}-k")) is None
    await job.task("a").approve(by="ana", reason="fine", request_id=f"{name}-k")  # the same command again
    with pytest.raises(DecisionConflict):
        await ref.fire("approve", by="bo")
    with pytest.raises(ValueError, match="keeps no metadata"):
        await ref.ask(Fire("approve", by="bo", metadata={"n": 1}))
    assert await job.ref.ask(Fire("pause", by="ana")) is None
    for _ in "ab":  # answered as the verb: with the handle of the next run, both times
        resumed = await job.ref.ask(Fire("resume", by="ana", request_id=f"{name}-r"))
        assert (type(resumed), resumed.id, resumed.record.run) == (type(job), name, 1)
    skipped = await job.task("c").ref.fire("skip", by="ana")
    assert (type(skipped), skipped.task("c").record.state) == (type(job), "skipped")
    await job.ref.ask(Fire("cancel", by="ana", reason="enough"))
    outcome = await job.wait()
    assert (outcome.state, outcome.tasks["a"].decisions[0].by) == ("cancelled", "ana")
    await runtime.start_worker(Worker(name, engine="loop"))
    await runtime.worker(name).ref.ask(Fire("terminate", by="ana"))
    assert await shown(runtime.worker(name)) == "terminated"


async def shown(worker: Any) -> str:
    """The state of a worker's handle, which is read again if necessary."""
    if hasattr(worker, "refresh"):
        await worker.refresh()
    return str(worker.state)


# -- looking -----------------------------------------------------------------------------------------------------------


async def a_job_tells_of_itself(runtime: Any, name: str) -> None:
    job = await runtime.submit(graph(), id=name)
    rows = [event async for event in job.events(notices=False)]
    assert (rows[0].kind, rows[-1].entity_id, rows[-1].to_state) == ("job", name, "completed")
    assert [event.seq for event in rows] == sorted({event.seq for event in rows})
    assert {event.entity_id for event in rows} >= {f"{name}@1", f"{name}@1/a", f"{name}@1/b", f"{name}@1/sum"}
    again = [event async for event in (await runtime.job(name)).events(kind="job", notices=False)]
    assert [event.to_state for event in again] == [event.to_state for event in rows if event.kind == "job"]


async def what_is_done_is_told_to_whoever_listened(runtime: Any, name: str) -> None:
    events = runtime.events(kind="task", to_state=["cancelled", "completed"], notices=False)
    job = await runtime.submit(Workstream("w", tasks=[Task("a", run=one), Task("b", run=forever)]), id=name)
    seen = []
    async for event in events:
        if event.job_id == name:
            seen.append((event.entity_id, event.to_state))
            if len(seen) == 2:
                break
            await job.cancel()
    assert seen == [(f"{name}@1/a", "completed"), (f"{name}@1/b", "cancelled")]
    events.close()
    with pytest.raises(TypeError, match="there is no filter"):
        runtime.events(colour="red")
    with pytest.raises(ValueError, match="is no kind"):
        runtime.events(kind="cat")


async def it_says_how_it_is(runtime: Any, name: str) -> None:
    health = runtime.health if not callable(runtime.health) else await runtime.health()
    assert (health.ok, health.reason) == (True, None)
    assert await said(runtime.metrics())
    assert await runtime.kept_notices() == await runtime.kept_notices(about="nobody") == []


SCENARIOS: list[Callable[[Any, str], Any]] = [
    a_job_is_done, the_same_job_is_submitted_once, what_cannot_be_run_is_refused_whole, a_job_is_cancelled,
    an_id_that_exists_is_refused_or_replaced,
    a_job_is_paused, what_failed_goes_on_in_a_next_run, what_a_body_raised_is_explained,
    what_a_condition_and_a_check_raised_is_explained, a_task_is_done_without, the_steps_of_a_body_are_told,
    what_a_body_publishes_and_emits_is_read, a_handle_shows_the_progress_of_the_events_that_were_read,
    a_body_is_sent_messages,
    jobs_have_children, a_job_runs_by_a_lifecycle, people_decide, a_workstream_is_held, a_command_is_done_once,
    workers_are_told, breakers_are_told, machines_are_told, events_are_sent_to_what_runs, a_job_tells_of_itself,
    what_is_done_is_told_to_whoever_listened, it_says_how_it_is,
]  # fmt: skip
