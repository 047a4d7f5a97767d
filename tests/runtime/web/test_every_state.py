"""Every action in every state, over HTTP: what the machine's table allows is done, and all else is refused.

The real runtime reaches each state, in virtual time. `actions` of a view says the same as a POST does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from typing import Any

import httpx
import pytest
from tests.runtime.web.conftest import client_of

from callboard import Approval, Defaults, MachineActor, Retry, Task, Tool, Worker, Workstream
from callboard.actors.spec.model import Check, Hook
from callboard.machines import BREAKER, JOB, TASK, WORKER, WORKSTREAM, Machine
from callboard.machines.adapt import people
from callboard.machines.lifecycles import LIFECYCLES
from callboard.machines.lifecycles.execution import EXECUTION
from callboard.machines.lifecycles.fleet import JOB as FLEET_JOB
from callboard.machines.lifecycles.fleet import WORKER as FLEET_WORKER
from callboard.runtime.handles.jobs import core_of
from callboard.runtime.web.read.allowed import actions_of
from callboard.runtime.web.write.actions import ACTIONS
from callboard.testing import Fails, Hangs, VirtualRuntime

pytestmark = pytest.mark.anyio
IDS = count(1)
HOLD = Approval()
LONG = Retry(max_attempts=9, base_delay="1h", max_delay="2h")


async def body() -> None:
    """A body that a script replaces."""


def plain() -> None:
    """A body for a thread or a process."""


@pytest.fixture(scope="module")
def anyio_backend() -> Any:
    """The event loop of the board; one for all of these tests."""
    return "asyncio", {"use_uvloop": False}


@pytest.fixture(scope="module")
async def runtime() -> AsyncIterator[VirtualRuntime]:
    """A runtime in virtual time: bodies that hang, fail or are stubborn have these names."""
    workers = (
        Worker("loop", engine="loop", capacity=1_000),
        Worker("narrow", engine="thread", capacity=1, capabilities=["narrow"]),
        Worker("slots", engine="command", capacity=2),
    )
    with pytest.MonkeyPatch.context() as patched:
        # A stubborn body never ends here: the test does not wait for it.
        patched.setattr("callboard.runtime.lifespan.draining.LONGEST_GRACE", 0.2)
        patched.setattr("callboard.runtime.lifespan.closing.CLOSING", 0.2)
        async with VirtualRuntime(workers=workers, functions="succeed") as opened:
            opened.body("hangs*", outcomes=Hangs())
            opened.body("fails*", outcomes=Fails())
            opened.body("stubborn*", outcomes=Hangs(), ignores_stop=True)
            opened.body("*.check", outcomes=Hangs())
            opened.body("*.cancel_hook", outcomes=Hangs())
            yield opened


@pytest.fixture(scope="module")
async def client(runtime: VirtualRuntime) -> AsyncIterator[httpx.AsyncClient]:
    """A client of its board."""
    async with client_of(runtime) as opened:
        yield opened


Handle = Any  # of any kind: what the tests read is the record that all have
Setup = Callable[[VirtualRuntime], Awaitable[Handle]]
CANCELS = "cancel cancel_force"


async def submitted(runtime: VirtualRuntime, *tasks: Task, **more: Any) -> Any:
    job = await runtime.submit(Workstream("w", tasks=list(tasks), **more), id=f"j{next(IDS)}")
    await runtime.settle()
    return job


def in_living(name: str = "t", after: float = 0, **more: Any) -> Setup:
    """A task of a job that does not end, since another task of it is held."""

    async def setup(runtime: VirtualRuntime) -> Handle:
        job = await submitted(
            runtime, Task("gate", run=body, hold=HOLD), Task(name, run=plain if "engine" in more else body, **more)
        )
        await runtime.advance(after)
        return job.task(name)

    return setup


async def skipped(runtime: VirtualRuntime) -> Handle:
    task = await in_living(depends_on=["gate"])(runtime)
    await task.skip()
    return task


async def cancelled(runtime: VirtualRuntime) -> Handle:
    task = await in_living("hangs", optional=True)(runtime)
    await task.cancel()
    await runtime.settle()
    return task


async def cancelling(runtime: VirtualRuntime) -> Handle:
    task = await in_living("hangs", cancel_hooks=[Hook(run=body)])(runtime)
    await task.cancel()
    await runtime.settle()
    return task


async def recovering(runtime: VirtualRuntime) -> Handle:
    (own,) = await runtime.start_worker(Worker(f"w{next(IDS)}", engine="process", capacity=1, capabilities=["own"]))
    task = await in_living("hangs", engine="process", capabilities=["own"], timeout="9h")(runtime)
    runtime._loop_world.frozen.add(own.name)
    await runtime.advance(35)
    return task


async def half_open(runtime: VirtualRuntime) -> Handle:
    for job in [one for one in await living(runtime) if "hog" in [task.name for task in one.tasks()]]:
        await job.cancel(force=True)
    await runtime.settle()
    more = {"engine": "thread", "capabilities": ["narrow"]}
    gate, parks = Task("gate", run=body, hold=HOLD), Task("fails", run=plain, on_exhausted="park", **more)
    job = await submitted(runtime, gate, parks, defaults=Defaults(park_cooldown=2))
    await submitted(runtime, Task("hangs-hog", run=plain, timeout="9h", **more), Task("hog", run=body, hold=HOLD))
    await runtime.advance(3)
    return job.task("fails")


async def living(runtime: VirtualRuntime) -> list[Any]:
    return [
        await runtime.job(f"j{n}") for n in range(1, next(IDS)) if runtime._services.jobs.living(f"j{n}") is not None
    ]


async def at_its_tool(runtime: VirtualRuntime) -> Handle:
    await submitted(runtime, Task("t", run=body, tool="ill"))
    await runtime.breaker("ill").trip(cooldown="9h")
    return await in_living(tool="ill")(runtime)


def in_ended(name: str, **more: Any) -> Setup:
    async def setup(runtime: VirtualRuntime) -> Handle:
        job = await submitted(runtime, Task(name, run=body, **more))
        if not job.ended:
            await job.cancel()
            await runtime.settle()
        assert job.ended
        return job.task(name)

    return setup


TASKS: dict[str, tuple[Setup, str]] = {
    "pending": (in_living(depends_on=["gate"]), f"{CANCELS} skip"),
    "held": (in_living(hold=HOLD), f"approve {CANCELS} reject"),
    "waiting": (in_living(wait="9h"), CANCELS),
    "queued": (in_living(capabilities=["nobody's"]), CANCELS),
    "running": (in_living("hangs"), CANCELS),
    "timed_out": (in_living("stubborn", after=2, timeout=1, kill_grace="1h"), CANCELS),
    "validating": (in_living(checks=[Check(run=body)]), CANCELS),
    "recovering": (recovering, CANCELS),
    "retrying": (in_living("fails", retry=LONG), CANCELS),
    "circuit_open": (in_living("fails", on_exhausted="park"), f"{CANCELS} reset retry"),
    "circuit_open, at its tool": (at_its_tool, CANCELS),
    "half_open": (half_open, CANCELS),
    "cancelling": (cancelling, "cancel_force"),
    "completed": (in_living(), ""),
    "failed": (in_living("fails", optional=True), ""),
    "cancelled": (cancelled, ""),
    "skipped": (skipped, ""),
    "completed, its job too": (in_ended("t"), "retry skip"),
    "failed, its job too": (in_ended("fails"), "retry skip"),
    "cancelled, its job too": (in_ended("hangs"), "retry skip"),
}


# -- jobs: of the workstream's state and the job's ---------------------------------------------------------------------


def job_of(*tasks: Task, **more: Any) -> Setup:
    async def setup(runtime: VirtualRuntime) -> Handle:
        return await submitted(runtime, *tasks, **more)

    return setup


def then(setup: Setup, verb: str, **said: Any) -> Setup:
    async def done(runtime: VirtualRuntime) -> Handle:
        handle = await setup(runtime)
        await getattr(handle, verb)(**said)
        await runtime.settle()
        return handle

    return done


async def without_slots(runtime: VirtualRuntime) -> Handle:
    command = Task("hangs", command=["true"], timeout="9h")
    await submitted(runtime, command, worker_count=2)
    return await submitted(runtime, command, worker_count=2)


T, HANGING = Task("t", run=body), Task("hangs", run=body, timeout="9h")
JOBS: dict[str, tuple[Setup, str]] = {
    "pending": (without_slots, CANCELS),
    "running, ready": (job_of(Task("t", run=body, capabilities=["nobody's"])), f"{CANCELS} pause"),
    "running, held": (job_of(T, hold=HOLD), f"approve {CANCELS} reject skip"),
    "running, waiting": (job_of(T, wait="9h"), f"{CANCELS} skip"),
    "running, executing": (job_of(HANGING), f"{CANCELS} pause"),
    "running, paused": (then(job_of(HANGING), "pause"), f"{CANCELS} resume"),
    "running, validating": (job_of(T, checks=[Check(run=body)]), CANCELS),
    "running, failed": (job_of(Task("fails", run=body), retry=LONG), CANCELS),
    "cancelling, cancelling": (then(job_of(HANGING, cancel_hooks=[Hook(run=body)]), "cancel"), "cancel_force"),
    "completed, completed": (job_of(T), "skip"),
    "failed, failed": (job_of(Task("fails", run=body)), "resume retry skip"),
    "cancelled, cancelled": (then(job_of(HANGING), "cancel"), "resume retry skip"),
}

# -- workers -----------------------------------------------------------------------------------------------------------


def worker(engine: Any = "loop", lifecycle: str | None = None, *, works: bool = False) -> Setup:
    async def setup(runtime: VirtualRuntime) -> Handle:
        name = f"w{next(IDS)}"
        new = Worker(name, engine=engine, capacity=1, capabilities=[name], lifecycle=lifecycle)
        (handle,) = await runtime.start_worker(new)
        if works:
            run = body if engine == "loop" else plain
            await submitted(runtime, Task("hangs", run=run, capabilities=[name], engine=engine, timeout="9h"))
        return handle

    return setup


async def initializing(runtime: VirtualRuntime) -> Handle:
    names = {f"w{n}" for n in range(1_000)}
    runtime._loop_world.down.update(names)
    handle = await worker("process")(runtime)
    runtime._loop_world.down.difference_update(names)
    return handle


async def unresponsive(runtime: VirtualRuntime) -> Handle:
    handle = await worker("process", works=True)(runtime)
    runtime._loop_world.frozen.add(handle.name)
    await runtime.advance(35)
    return handle


def dead(lifecycle: str | None = None) -> Setup:
    async def setup(runtime: VirtualRuntime) -> Handle:
        handle = await worker("loop", lifecycle, works=True)(runtime)
        runtime.worker_died(handle.name, 1, "it is gone")
        await runtime.settle()
        return handle

    return setup


WORKERS: dict[str, tuple[Setup, str]] = {
    "initializing": (initializing, "terminate"),
    "idle": (worker(), "shut_down terminate"),
    "busy": (worker(works=True), "pause shut_down terminate"),
    "paused": (then(worker(works=True), "pause"), "resume shut_down terminate"),
    "draining": (then(worker(works=True), "shut_down"), "terminate"),
    "unresponsive": (unresponsive, "terminate"),
    "shutdown": (then(worker(), "shut_down"), "start"),
    "failed": (dead(), "start"),
    "terminated": (then(worker(), "terminate"), "start"),
    "IDLE": (worker(lifecycle="fleet"), "shut_down start terminate"),
    "RUNNING": (worker(lifecycle="fleet", works=True), "pause shut_down terminate"),
    "RUNNING, without a task": (then(worker(lifecycle="fleet"), "start"), "pause shut_down terminate"),
    "PAUSED": (then(then(worker(lifecycle="fleet"), "start"), "pause"), "resume shut_down terminate"),
    "COMPLETED": (then(then(worker(lifecycle="fleet"), "start"), "shut_down"), "start terminate"),
    "FAILED": (dead("fleet"), "start terminate"),
    "TERMINATED": (then(worker(lifecycle="fleet"), "terminate"), "start"),
}

# -- breakers ----------------------------------------------------------------------------------------------------------


def breaker(*verbs: str, after: float = 0) -> Setup:
    async def setup(runtime: VirtualRuntime) -> Handle:
        tool = f"tool{next(IDS)}"
        await submitted(runtime, Task("t", run=body, tool=tool), tools={tool: Tool()})
        handle = runtime.breaker(tool)
        for verb in verbs:
            await getattr(handle, verb)()
        await runtime.advance(after)
        return handle

    return setup


BREAKERS: dict[str, tuple[Setup, str]] = {
    "closed": (breaker(), "reset trip"),
    "open": (breaker("trip"), "reset trip"),
    "half_open": (breaker("trip", after=61), "reset trip"),
}

# -- what is done to all of them ---------------------------------------------------------------------------------------


def path(handle: Handle) -> str:
    record = handle.record
    match record.kind:
        case "task":
            return f"/api/jobs/{record.job_id}/tasks/{record.name}"
        case "job":
            return f"/api/jobs/{record.id}"
        case kind:
            return f"/api/{kind}s/{record.name}"


def state_of(handle: Handle) -> tuple[str, ...]:
    """The state that a case is called by."""
    record = handle.record
    if record.kind != "job":
        return (record.shown,)
    stream = core_of(handle).stream  # it has a word for its workstream's state, too
    return (record.shown, *([] if stream is None else [stream.state]))


def words_of(kind: str) -> list[tuple[str, str, dict[str, Any]]]:
    """The actions of a kind: their words in `actions`, their words in paths, and their required fields."""
    given = {"job": {"skip": {"task": "t"}}, "machine": {"fire": {"event": ""}}}.get(kind, {})
    words = [(one.word, one.word, given.get(one.word, {})) for one in ACTIONS if one.kind == kind]
    forced = [("cancel_force", "cancel", {"force": True})] if "cancel" in [word for word, _, _ in words] else []
    # A job's skip has a test below; a message goes to a body, whatever the state of its task.
    return [one for one in words if one[0] != "send" and not (kind == "job" and one[0] == "skip")] + forced


MACHINES = {"task": (TASK,), "job": (JOB, WORKSTREAM), "worker": (WORKER, FLEET_WORKER), "breaker": (BREAKER,)}


async def fire_all(
    runtime: VirtualRuntime, client: httpx.AsyncClient, case: str, setup: Setup, expected: list[str]
) -> None:
    handle = await setup(runtime)
    kind = handle.record.kind
    state = state_of(handle)
    assert ", ".join(state).startswith(case.partition(", ")[0] if kind != "job" else case)
    assert actions_of(runtime._services, handle.record) == sorted(expected)
    if kind in {"job", "task"}:
        assert (await client.get(path(handle))).json()["actions"] == sorted(expected)
    for word, action, said in words_of(kind):
        if word not in expected:
            before = handle.record, runtime.journal.tail, runtime.metrics().transitions
            answer = await client.post(f"{path(handle)}/{action}", json=said)
            told = answer.json()
            assert (answer.status_code, told["type"]) == (409, "/problems/invalid-transition"), (word, told)
            assert told["machine"] in {machine.name for machine in MACHINES[kind]}, told
            theirs = people.words_of(LIFECYCLES["fleet"]["worker"], action) if kind == "worker" else {}
            assert told["event"].startswith(action) or told["event"] in {"reset", "cancel_graceful", *theirs}, told
            assert told["commands"] == sorted(expected), (word, told)
            machine = next(one for one in MACHINES[kind] if one.name == told["machine"])
            assert told["allowed"] in ([], sorted(machine.valid_events(told["state"])))
            after = handle.record, runtime.journal.tail, runtime.metrics().transitions
            assert after == before, f"{word} was refused, and something changed"
    for word, action, said in words_of(kind):
        if word in expected:
            fresh = await setup(runtime)
            assert state_of(fresh) == state
            seen = runtime.journal.tail
            answer = await client.post(f"{path(fresh)}/{action}", json=said)
            assert answer.status_code == 200, (word, answer.text)
            assert answer.json()["kind"] in {kind, "job"}  # which it is of, where a next run of it began
            assert runtime.journal.tail > seen
            await runtime.settle()


CASES = [
    pytest.param(case, setup, expected.split(), id=f"{kind}: {case}")
    for kind, cases in (("task", TASKS), ("job", JOBS), ("worker", WORKERS), ("breaker", BREAKERS))
    for case, (setup, expected) in cases.items()
]


@pytest.mark.parametrize(("case", "setup", "expected"), CASES)
async def test_every_action_in_every_state_is_done_or_refused_as_its_machine_has_it(
    runtime: VirtualRuntime, client: httpx.AsyncClient, case: str, setup: Setup, expected: list[str]
) -> None:
    await fire_all(runtime, client, case, setup, expected)


async def test_a_job_skips_while_a_task_of_it_is_pending_and_once_it_has_ended(
    runtime: VirtualRuntime, client: httpx.AsyncClient
) -> None:
    job = await submitted(runtime, HANGING, Task("t", run=body, depends_on=["hangs"]))
    assert actions_of(runtime._services, job.record) == sorted(f"{CANCELS} pause skip".split())
    assert (await client.post(f"{path(job)}/skip", json={"task": "t"})).status_code == 200
    assert actions_of(runtime._services, job.record) == sorted(f"{CANCELS} pause".split())
    response = await client.post(f"{path(job)}/skip", json={"task": "t"})
    assert (response.status_code, "skip" in response.json()["commands"]) == (409, False)
    done = await submitted(runtime, T)
    assert actions_of(runtime._services, done.record) == ["skip"]
    assert (await client.post(f"{path(done)}/skip", json={"task": "t"})).status_code == 200


def test_all_states_are_among_them() -> None:
    def states(machine: Machine) -> set[str]:
        return {str(state) for state in machine.states}

    assert {case.partition(",")[0] for case in TASKS} == states(TASK)
    assert {case.partition(",")[0] for case in JOBS} == states(JOB) - {"submitted"}  # a state only within a turn
    assert {case.partition(", ")[2] for case in JOBS} - {""} == states(WORKSTREAM) - {"planned"}
    assert {case.partition(",")[0] for case in WORKERS} == states(WORKER) | states(FLEET_WORKER)
    assert {case.partition(",")[0] for case in BREAKERS} == states(BREAKER)


@pytest.mark.parametrize("machine", [EXECUTION, FLEET_JOB], ids=lambda machine: machine.name)
async def test_every_event_in_every_state_of_a_machine_is_fired_or_refused(
    runtime: VirtualRuntime, client: httpx.AsyncClient, machine: Machine
) -> None:
    events = sorted({str(row.event) for row in machine.transitions})
    for state, way in ways(machine).items():
        name = await at(runtime, machine, way)
        record = runtime.machine(name).record
        allowed = machine.valid_events(state)
        assert (record.state, actions_of(runtime._services, record)) == (state, ["fire"] if allowed else [])
        tail = runtime.journal.tail
        for event in (*events, "no such event"):
            if event not in allowed:
                answer = await client.post(f"/api/machines/{name}/fire", json={"event": event})
                told = answer.json()
                assert (answer.status_code, told["machine"], told["state"], told["event"], told["allowed"]) == (
                    409, machine.name, state, event, sorted(allowed),
                )  # fmt: skip
        assert (runtime.machine(name).record, runtime.journal.tail) == (record, tail)
        for event in allowed:
            fresh = await at(runtime, machine, way)
            answer = await client.post(
                f"/api/machines/{fresh}/fire", json={"event": event, "metadata": {"n": 1}, "by": "ana"}
            )
            done = answer.json()["transition"]
            assert (answer.status_code, done["from_state"], done["event"]) == (200, state, event)
            assert done["metadata"] == {"n": 1, "by": "ana"}


def ways(machine: Machine) -> dict[str, list[str]]:
    """A way to each state, as events."""
    found: dict[str, list[str]] = {str(machine.initial): []}
    for state in list(found):
        found |= _ways_on(machine, state, found)
    while len(found) < len(machine.states):
        for state in list(found):
            found |= _ways_on(machine, state, found)
    return found


def _ways_on(machine: Machine, state: str, found: dict[str, list[str]]) -> dict[str, list[str]]:
    rows = [row for row in machine.transitions if row.source == state and row.target not in found]
    return {str(row.target): [*found[state], str(row.event)] for row in rows}


async def at(runtime: VirtualRuntime, machine: Machine, way: list[str]) -> str:
    """Spawn a machine, and fire these events at it. Returns its name."""
    ref = runtime.spawn(MachineActor(machine), name=f"m{next(IDS)}")
    for event in way:
        await ref.fire(event)
    await runtime.settle()
    return ref.name
