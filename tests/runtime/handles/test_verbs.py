"""The verbs of handles are equal wherever their target runs: here, on another node, behind HTTP, in a simulation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from tests.runtime.client.scenarios import DOORS, forever, gate, one, opened, said
from tests.runtime.client.serving import Served, serve
from tests.runtime.cluster.scene import Nodes

from callboard import Approval, Runtime, Task, TaskContext, Tool, Worker, Workstream, step
from callboard.actors.spec.model import Breaker
from callboard.client import Client
from callboard.errors import CircuitOpen, DecisionConflict, GuardRejected, InvalidTransitionError, RequestIdReused
from callboard.runtime.client.handles import RemoteJob as HttpJob
from callboard.runtime.commands.verbs import VERBS
from callboard.runtime.handles.jobs import JobHandle
from callboard.testing import SimulatedJob, Simulation

pytestmark = pytest.mark.anyio
NAMES = (f"verbs-{number}" for number in count())
HOLD = Approval()
TOOL = Tool(breaker=Breaker(failure_threshold=1, cooldown=3600.0))


called: dict[str, int] = {}
"""By job: how often `count` was called in it."""


async def count_of(job_id: str) -> int:
    called[job_id] = called.get(job_id, 0) + 1
    return called[job_id]


async def counts(task: TaskContext) -> list[int]:
    return [await task.step(step(count_of, name="count"), task.job_id) for _ in range(3)]


class Place:
    """A runtime that gives handles, of entities that run in it or elsewhere.

    home: where jobs run, which may be another runtime. until: waits until a task there is in a state.
    """

    def __init__(self, runtime: Any, home: Any, until: Callable[[str, str, str], Any], job_type: type) -> None:
        self.runtime = runtime
        self.until = until
        self.name = next(NAMES)
        self._home = home
        self._job_type = job_type

    async def job(self, *tasks: Task, **options: Any) -> Any:
        """The handle of a job of these tasks."""
        await said(self._home.submit(Workstream("w", tasks=list(tasks), **options), id=self.name))
        job = await said(self.runtime.job(self.name))
        assert type(job) is self._job_type
        return job

    async def come_to(self, job: Any, task: str, state: str) -> None:
        """Wait until a task of it is in a state."""
        await said(self.until(job.id, task, state))
        if hasattr(job, "refresh"):
            await job.refresh()

    async def machine(self) -> Any:
        """The reference of a machine."""
        spawned = self._home.spawn(DOORS, name=self.name)
        if self.runtime is self._home or not isinstance(self._home, Runtime):
            return self.runtime.machine(self.name)
        await spawned  # it is durable, and the other node finds it
        return await self.runtime.machine_of(self.name)

    async def end_of(self, job: Any) -> Any:
        """The outcome of a job."""
        return job.run() if isinstance(job, SimulatedJob) else await job.wait()


async def told(runtime: Runtime, job_id: str, task: str, state: str) -> None:
    async for event in (await runtime.job(job_id)).events(kind="task", task=task, notices=False):
        if event.to_state == state:
            return


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve() as there:
        yield there


@asynccontextmanager
async def here(_: pytest.FixtureRequest) -> AsyncIterator[Place]:
    async with Runtime(drain_deadline=0) as runtime:
        yield Place(runtime, runtime, lambda *what: told(runtime, *what), JobHandle)


@asynccontextmanager
async def node(_: pytest.FixtureRequest) -> AsyncIterator[Place]:
    scene = Nodes()
    async with scene.runtime("a") as home, scene.runtime("b") as far, scene.ticking():

        async def until(job_id: str, task: str, state: str) -> None:
            job = await home.job(job_id)
            await scene.until(lambda: job.task(task).record.state == state)

        yield Place(far, home, until, JobHandle)


@asynccontextmanager
async def http(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    there: Served = request.getfixturevalue("served")

    class Home:
        submit = staticmethod(lambda spec, *, id: there.call(lambda: there.runtime.submit(spec, id=id)))  # noqa: A006
        spawn = staticmethod(lambda actor, *, name: there.call(lambda: there.runtime.spawn(actor, name=name)))

    async with Client(there.url) as client:
        yield Place(client, Home, lambda *what: told(client, *what), HttpJob)


@asynccontextmanager
async def simulation(_: pytest.FixtureRequest) -> AsyncIterator[Place]:
    with Simulation() as sim:
        yield Place(sim, sim, lambda job, task, state: sim.job(job).task(task).until(state) and None, SimulatedJob)


PLACES = {"here": here, "node": node, "http": http, "simulation": simulation}
EVERYWHERE = pytest.mark.parametrize("place", PLACES, indirect=True)
OF_ONE_NODE = pytest.mark.parametrize("place", ["here", "http", "simulation"], indirect=True)
"""Workers and breakers are those of the node that is asked."""


@pytest.fixture
async def place(request: pytest.FixtureRequest, anyio_backend_name: str) -> AsyncIterator[Place]:
    if request.param == "simulation" and anyio_backend_name == "trio":
        pytest.skip("a simulation runs coroutines on a loop of its own")
    async with PLACES[request.param](request) as at:
        yield at


# -- jobs and tasks ----------------------------------------------------------------------------------------------------


@EVERYWHERE
async def test_cancel(place: Place) -> None:
    job = await place.job(Task("a", run=one, hold=HOLD, optional=True), Task("b", run=one, hold=HOLD))
    await place.come_to(job, "b", "held")
    await said(job.task("a").cancel("not needed", by="ana", force=True))
    assert (job.task("a").state, job.task("a").record.reason) == ("cancelled", "not needed")
    with pytest.raises(InvalidTransitionError, match="'cancel_graceful' is not possible in state 'cancelled'"):
        await said(job.task("a").cancel())
    for _ in "ab":
        await said(job.cancel("enough", by="ana", request_id=place.name))
    outcome = await place.end_of(job)
    assert (outcome.state, outcome.error) == ("cancelled", "enough")
    with pytest.raises(RequestIdReused):
        await said(job.cancel("enough", by="bo", request_id=place.name))
    with pytest.raises(InvalidTransitionError, match="'cancel' is not possible in state 'cancelled'"):
        await said(job.cancel())


@EVERYWHERE
async def test_pause_and_resume(place: Place) -> None:
    job = await place.job(Task("a", run=one, hold=HOLD))
    await place.come_to(job, "a", "held")
    await said(job.pause("lunch", by="ana"))
    with pytest.raises(InvalidTransitionError, match="'pause' is not possible in state 'paused'"):
        await said(job.pause())
    assert await said(job.resume(by="ana")) in {job, None}
    with pytest.raises(InvalidTransitionError):
        await said(job.resume())
    await said(job.task("a").approve(by="ana"))
    assert (await place.end_of(job)).ok


@EVERYWHERE
async def test_retry(place: Place) -> None:
    opened.pop(place.name, None)
    job = await place.job(Task("a", run=one), Task("gate", run=gate, depends_on=["a"]))
    assert (await place.end_of(job)).state == "failed"
    opened[place.name] = True
    again = await said(job.retry(by="ana")) or job
    assert (await place.end_of(again)).results["gate"] == "through"
    with pytest.raises(InvalidTransitionError):
        await said(again.retry())
    with pytest.raises(LookupError, match="no task 'nobody'"):
        await said(again.retry("nobody"))
    more = await said(again.task("a").retry("once more", by="ana")) or again
    assert (await place.end_of(more)).ok
    assert more.record.runs == 3


@EVERYWHERE
async def test_retry_from_a_step(place: Place) -> None:
    job = await place.job(Task("a", run=counts))
    assert (await place.end_of(job)).results["a"] == [1, 2, 3]
    for _ in "ab":
        again = await said(job.retry("a", from_step="count#2", by="ana", request_id=place.name)) or job
        assert (await place.end_of(again)).results["a"] == [1, 4, 5]
        assert again.record.runs == 2
    with pytest.raises(LookupError, match="keeps no step 'cuont#2'; did you mean 'count#2'"):
        await said(again.task("a").retry(from_step="cuont#2"))
    with pytest.raises(ValueError, match="name the task, too"):
        await said(again.retry(from_step="count"))
    more = await said(again.task("a").retry("all of it", from_step="count")) or again
    assert (await place.end_of(more)).results["a"] == [6, 7, 8]


@EVERYWHERE
async def test_skip(place: Place) -> None:
    job = await place.job(Task("a", run=one, hold=HOLD), *(Task(name, run=one, depends_on=["a"]) for name in "bc"))
    await place.come_to(job, "a", "held")
    with pytest.raises(InvalidTransitionError, match="skipped only while it is pending") as refused:
        await said(job.skip("a"))
    assert refused.value.event == "skip"
    with pytest.raises(InvalidTransitionError, match="tried again only where it is parked"):
        await said(job.retry("a"))
    assert await said(job.skip("b", "not today", by="ana")) in {job, None}
    await said(job.task("c").skip())
    await said(job.task("a").approve(by="ana"))
    outcome = await place.end_of(job)
    assert [str(outcome.tasks[name].state) for name in "abc"] == ["completed", "skipped", "skipped"]
    assert outcome.tasks["b"].reason == "not today"


@EVERYWHERE
async def test_approve_and_reject(place: Place) -> None:
    job = await place.job(Task("a", run=one, hold=HOLD), Task("b", run=one, hold=HOLD, optional=True), hold=HOLD)
    await said(job.approve(by="ana", reason="fine"))
    await place.come_to(job, "b", "held")
    await said(job.task("a").approve(by="ana", reason="fine"))
    with pytest.raises(DecisionConflict, match=r"was approved by ana \(fine\)"):
        await said(job.task("a").reject(by="bo"))
    await said(job.task("b").reject(by="bo", reason="no"))
    outcome = await place.end_of(job)
    assert (outcome.state, outcome.tasks["b"].state) == ("completed", "cancelled")
    with pytest.raises(InvalidTransitionError):
        await said(job.reject(by="bo"))


@EVERYWHERE
async def test_reset(place: Place) -> None:
    job = await place.job(Task("a", run=one, hold=HOLD))
    await place.come_to(job, "a", "held")
    with pytest.raises(InvalidTransitionError, match="'reset' is not possible in state 'held'"):
        await said(job.task("a").reset(by="ana"))


@EVERYWHERE
async def test_what_is_said_is_checked(place: Place) -> None:
    job = await place.job(Task("a", run=one, hold=HOLD))
    await place.come_to(job, "a", "held")
    for wrong, why in (
        (lambda: job.cancel(7), "the reason must be a str"),
        (lambda: job.task("a").cancel(force=1), "force is True or False"),
        (lambda: job.pause(by=7), "`by` is the name of the author"),
        (lambda: job.skip(7), "the name of a task"),
        (lambda: job.task("a").approve(by="ana", approval=7), "the name of an approval"),
        (lambda: job.task("a").approve(by=7), "`by` is the name of the author"),
    ):
        with pytest.raises(TypeError, match=why):
            await said(wrong())
    with pytest.raises(ValueError, match="cannot be a request_id"):
        await said(job.cancel(request_id=""))
    assert job.task("a").record.state == "held"


# -- workers, breakers, machines ---------------------------------------------------------------------------------------


@OF_ONE_NODE
async def test_workers(place: Place) -> None:
    runtime = getattr(place.runtime, "runtime", place.runtime)  # of a simulation, which starts no workers by itself
    starting = runtime.start_worker(Worker(place.name, engine="loop", capacity=2, capabilities=["x"]))
    await starting if runtime is place.runtime else place.runtime.do(lambda: starting)
    worker = place.runtime.worker(place.name)
    with pytest.raises(GuardRejected, match=f"worker {place.name}: 'pause' was refused in state 'idle'"):
        await said(worker.pause())
    with pytest.raises(InvalidTransitionError):
        await said(worker.resume(by="ana"))
    await said(worker.shut_down("done", deadline="1s", by="ana"))
    with pytest.raises(InvalidTransitionError, match="nothing leaves it"):
        await said(worker.terminate())
    with pytest.raises(ValueError, match="duration"):
        await said(worker.shut_down(deadline="soon"))
    await said(worker.start("back to work", by="ana"))
    assert (worker.state, worker.record.run) == ("idle", 2)
    await said(worker.terminate("enough"))
    assert worker.state == "terminated"


@OF_ONE_NODE
async def test_breakers(place: Place) -> None:
    job = await place.job(Task("a", run=one, tool=place.name, hold=HOLD), tools={place.name: TOOL})
    breaker = place.runtime.breaker(place.name)
    await said(breaker.trip(by="ana", cooldown="2h", reason="it hums"))
    assert (breaker.state, breaker.record.reason) == ("open", "it hums")
    await place.come_to(job, "a", "held")
    await said(job.task("a").approve(by="ana"))
    await place.come_to(job, "a", "circuit_open")
    with pytest.raises(CircuitOpen, match=f"its tool '{place.name}' is not healthy"):
        await said(job.task("a").reset())
    with pytest.raises(CircuitOpen):
        await said(job.task("a").retry())
    await said(breaker.reset(by="ana"))
    assert breaker.state == "closed"
    assert (await place.end_of(job)).ok


@EVERYWHERE
async def test_machines(place: Place) -> None:
    door = await place.machine()

    async def fire(event: str, **more: Any) -> Any:
        if isinstance(place.runtime, Simulation):
            return place.runtime.do(lambda: door.fire(event, **more))
        return await door.fire(event, **more)

    done = await fire("open", reason="air", metadata={"n": 1}, by="ana", request_id=place.name)
    assert (done.to_state, done.reason, done.metadata) == ("open", "air", {"n": 1, "by": "ana"})
    assert (await fire("open", reason="air", metadata={"n": 1}, by="ana", request_id=place.name)).seq == done.seq
    with pytest.raises(InvalidTransitionError, match=f"door {place.name}: 'open' is not possible in state 'open'"):
        await fire("open")
    with pytest.raises(TypeError, match="takes a Fire"):
        await door.ask("open")
    assert door.ended is False


# -- misspelt ----------------------------------------------------------------------------------------------------------


@EVERYWHERE
async def test_an_option_that_is_misspelt_is_refused(place: Place) -> None:
    job = await place.job(Task("a", run=forever), tools={place.name: TOOL})
    handles = {"job": job, "task": job.task("a")}
    if not getattr(job, "elsewhere", False):
        handles["breaker"] = place.runtime.breaker(place.name)
        handles["worker"] = place.runtime.worker("loop")
    else:
        handles["machine"] = await place.machine()
    for verb in VERBS.values():
        for kind in handles.keys() & verb.messages.keys():
            if hasattr(handles[kind], verb.method):
                with pytest.raises(TypeError, match="'reasn'"):
                    await said(getattr(handles[kind], verb.method)(reasn="none"))
