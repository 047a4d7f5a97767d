"""A job id that is submitted again: the job is joined, refused or replaced. Its request key is a key like others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard import MachineActor, Runtime, Task, TaskContext, Tool, Worker, Workstream
from callboard.errors import JobExists, RequestIdReused
from callboard.machines.lifecycles.fleet import JOB as FLEET_JOB
from callboard.runtime.journal.consistency import examine
from callboard.runtime.journal.memory import MemoryJournal
from callboard.runtime.testing.handles import SimulatedJob
from callboard.testing import Fails, Hangs, Simulation, Succeeds

pytestmark = pytest.mark.anyio
LOOP = (Worker("loop", engine="loop", capacity=10),)


@pytest.fixture(
    params=[pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"), pytest.param(("trio", {}), id="trio")]
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Two loops suffice here: what differs between them is the runtime's, and is tested with it on all."""
    return request.param


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def open_runtime(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Runtime]:
    """Opens runtimes on the same journal, as often as a test likes."""
    target: Any = MemoryJournal() if request.param == "memory" else tmp_path / "state.db"
    if request.param == "postgres":
        target = request.getfixturevalue("postgres")

    def make(**options: Any) -> Runtime:
        more: dict[str, Any] = {"workers": LOOP, "drain_deadline": 0, "outputs": tmp_path / "outputs", **options}
        return Runtime(target, **more)

    return make


Opens = Callable[..., Runtime]


async def old() -> str:
    return "old"


async def new() -> str:
    return "new"


async def fails() -> None:
    raise ValueError("no")


async def forever() -> None:
    await anyio.sleep_forever()


def flow(run: Callable[..., Any] = new, *more: Task, **settings: Any) -> Workstream:
    return Workstream("flow", tasks=[Task("a", run=run), *more], **settings)


def consistent(runtime: Runtime) -> None:
    assert examine(runtime.journal.reader).found == []


async def test_an_ended_job_is_replaced_by_another_one_and_its_runs_stay(open_runtime: Opens) -> None:
    async with open_runtime() as runtime:
        first = await runtime.submit(flow(old, Task("b", run=fails, depends_on=["a"])), id="j", by="ana")
        assert (await first.wait()).state == "failed"
        other = Workstream("other", tasks=[Task("c", run=new), Task("a", run=new)])
        job = await runtime.submit(other, id="j", by="bo", existing="replace_ended")
        assert (await job.wait()).results == {"c": "new", "a": "new"}
        assert (job.record.run, job.record.first, job.record.name, job.record.by) == (2, 2, "other", "bo")
        assert first.state == "failed"
        journal = runtime.journal
        assert [(run.id, str(run.state)) for run in journal.reader.workstreams("j")] == [
            ("j@1", "failed"), ("j@2", "completed"),
        ]  # fmt: skip
        assert [task.name for run in journal.reader.workstreams("j") for task in journal.reader.tasks(run.key)] == [
            "a",
            "b",
            "c",
            "a",
        ]
        assert [row.entity_seq for row in journal.reader.transitions(entity_id="j") if row.run == 2] == [1, 2, 3, 4]
        (made,) = [row for row in journal.reader.transitions(entity_id="j") if row.run == 2 and row.event == "create"]
        assert made.metadata == {"replaces_run": 1, "by": "bo"}
        consistent(runtime)
        assert (await (await runtime.submit(other, id="j")).wait()).ok  # from now on this workstream joins the job
        with pytest.raises(JobExists, match="another workstream"):
            await runtime.submit(flow(old), id="j")
    async with open_runtime() as runtime:
        job = await runtime.job("j")
        assert (await job.wait()).results == {"c": "new", "a": "new"}
        again = await job.retry("a")
        assert (await again.wait()).results == {"c": "new", "a": "new"}
        assert (again.record.run, again.record.first) == (3, 2)
        consistent(runtime)


async def test_a_job_that_has_not_ended_is_not_replaced_and_says_what_to_do(open_runtime: Opens) -> None:
    async with open_runtime() as runtime:
        job = await runtime.submit(flow(forever), id="j")
        with pytest.raises(JobExists, match=r"'j' that has not ended \(running now\).*, or cancel it") as refused:
            await runtime.submit(flow(), id="j", existing="replace_ended")
        reached = runtime._services.journal.durable_medium  # by the command line
        assert ("(`callboard cancel j`)" in str(refused.value)) is reached
        await job.cancel()
        await job.wait()
        replaced = await runtime.submit(flow(), id="j", existing="replace_ended")
        assert (await replaced.wait()).ok
        replaced = await runtime.submit(flow(), id="j", existing="replace_ended")  # the same one, anew
        assert (await replaced.wait()).ok
        assert replaced.record.run == 3
        consistent(runtime)


async def test_refused_is_whatever_is_there_but_not_the_same_request(open_runtime: Opens) -> None:
    async with open_runtime() as runtime:
        job = await runtime.submit(flow(), id="j", existing="refuse", request_id="k")
        await job.wait()
        for _ in range(2):
            same = await runtime.submit(flow(), id="j", existing="refuse", request_id="k")
            assert (same.id, same.record.run) == ("j", 1)
        for asked in ({}, {"request_id": "another"}):
            with pytest.raises(JobExists, match=r"'j' already \(completed now\).*existing='refuse'"):
                await runtime.submit(flow(), id="j", existing="refuse", **asked)
        assert (await runtime.submit(flow(), id="j")).id == "j"
    async with open_runtime() as runtime:
        assert (await runtime.submit(flow(), id="j", existing="refuse", request_id="k")).id == "j"


async def test_the_same_request_to_replace_is_one_job(open_runtime: Opens) -> None:
    async with open_runtime() as runtime:
        await (await runtime.submit(flow(old), id="j")).wait()
        found: list[Any] = []

        async def submit() -> None:
            found.append(await runtime.submit(flow(), id="j", existing="replace_ended", request_id="k"))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(submit)
        await found[0].wait()
        await submit()
        assert {job.record.run for job in found} == {2}
    async with open_runtime() as runtime:
        same = await runtime.submit(flow(), id="j", existing="replace_ended", request_id="k")
        assert (same.record.run, same.state) == (2, "completed")
        with pytest.raises(RequestIdReused, match="another workstream before: task 'a': run was"):
            await runtime.submit(flow(old), id="j", existing="replace_ended", request_id="k")
        consistent(runtime)


async def test_of_two_that_replace_it_at_once_one_does(open_runtime: Opens) -> None:
    came: list[str] = []
    async with open_runtime() as runtime:
        await (await runtime.submit(flow(old), id="j")).wait()

        async def submit() -> None:
            try:
                await runtime.submit(flow(forever), id="j", existing="replace_ended")
            except JobExists:
                came.append("refused")
            else:
                came.append("made")

        async with anyio.create_task_group() as group:
            group.start_soon(submit)
            group.start_soon(submit)
        assert sorted(came) == ["made", "refused"]
        await (await runtime.job("j")).cancel()
        await (await runtime.job("j")).wait()
        consistent(runtime)


async def test_without_an_id_the_same_request_is_the_same_job(open_runtime: Opens) -> None:
    async with open_runtime() as runtime:
        job = await runtime.submit(flow(), request_id="k")
        await job.wait()
        assert (await runtime.submit(flow(), request_id="k")).id == job.id
        assert (await runtime.submit(flow(), request_id="k2")).id != job.id
        with pytest.raises(RequestIdReused, match="another workstream"):
            await runtime.submit(flow(old), request_id="k")
        with pytest.raises(RequestIdReused, match="submit, to something else or with other arguments"):
            await runtime.submit(flow(), request_id="k", by="bo")


async def test_what_cannot_be_asked_for(open_runtime: Opens) -> None:
    async with open_runtime() as runtime:
        for existing in ("replace", None, 3, ""):
            with pytest.raises(ValueError, match="one of 'join', 'refuse', 'replace_ended', not"):
                await runtime.submit(flow(), id="j", existing=existing)  # type: ignore[arg-type]
        for existing in ("refuse", "replace_ended"):
            with pytest.raises(ValueError, match="give an id"):
                await runtime.submit(flow(), existing=existing, request_id="k")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="cannot be a request_id"):
            await runtime.submit(flow(), request_id="")
        assert runtime.journal.reader.jobs() == []


# -- the key -----------------------------------------------------------------------------------------------------------

Verb = Callable[[Runtime, str], Awaitable[object]]


async def submits(runtime: Runtime, key: str) -> object:
    return await runtime.submit(flow(), id="made", request_id=key)


async def submits_without_an_id(runtime: Runtime, key: str) -> object:
    return await runtime.submit(flow(), request_id=key)


async def cancels(runtime: Runtime, key: str) -> object:
    return await (await runtime.job("living")).task("b").cancel("x", request_id=key)


async def retries(runtime: Runtime, key: str) -> object:
    return await (await runtime.job("ended")).retry("a", request_id=key)


async def starts_a_worker(runtime: Runtime, key: str) -> object:
    return await runtime.start_worker(Worker("more", engine="loop"), request_id=key)


async def pauses_a_worker(runtime: Runtime, key: str) -> object:
    return await runtime.worker("loop").terminate(request_id=key)


async def trips_a_breaker(runtime: Runtime, key: str) -> object:
    return await runtime.breaker("git").trip(request_id=key)


async def fires(runtime: Runtime, key: str) -> object:
    return await runtime.machine("m").fire("validate", request_id=key)


VERBS = [
    submits, submits_without_an_id, cancels, retries, starts_a_worker, pauses_a_worker, trips_a_breaker, fires,
]  # fmt: skip


@pytest.mark.parametrize("first", VERBS)
async def test_a_key_is_of_one_command_whatever_that_is(open_runtime: Opens, first: Verb) -> None:
    async with open_runtime() as runtime:
        ended = await runtime.submit(flow(), id="ended")
        await ended.wait()
        living = Workstream(
            "living", tasks=[Task("b", command=["true"], optional=True), Task("git", run=forever, tool="git")],
            tools={"git": Tool()},
        )  # fmt: skip
        await runtime.submit(living, id="living")
        await runtime.spawn(MachineActor(FLEET_JOB), name="m")
        await first(runtime, "k")
        before = runtime.journal.reader.request("k")
        assert before is not None
        for other in VERBS:
            if other is not first:
                with pytest.raises(RequestIdReused, match="given to another command before, which took effect"):
                    await other(runtime, "k")
        assert runtime.journal.reader.request("k") == before
        assert runtime.journal.reader.job("made") is None or first is submits


# -- its children ------------------------------------------------------------------------------------------------------


def inner(run: Callable[..., Any]) -> Workstream:
    return Workstream("inner", tasks=[Task("in", run=run)])


async def first_parent(task: TaskContext) -> Any:
    return (await (await task.submit(inner(old), name="child")).wait()).results


async def second_parent(task: TaskContext) -> Any:
    child = await task.submit(inner(new), name="child")
    same = await task.submit(inner(new), name="child")
    assert same.job.record.run == child.job.record.run == 2
    return (await child.wait()).results


async def test_children_of_what_was_replaced_are_none_of_the_new_job(open_runtime: Opens) -> None:
    async with open_runtime() as runtime:
        job = await runtime.submit(flow(first_parent), id="j")
        assert (await job.wait()).results == {"a": {"in": "old"}}
        job = await runtime.submit(flow(second_parent), id="j", existing="replace_ended")
        assert (await job.wait()).results == {"a": {"in": "new"}}
        again = await job.retry("a")  # its own jobs are joined, as always
        assert (await again.wait()).results == {"a": {"in": "new"}}
        assert [run.id for run in runtime.journal.reader.workstreams("j/a/child")] == ["j/a/child@1", "j/a/child@2"]
        consistent(runtime)


# -- kills -------------------------------------------------------------------------------------------------------------


def body() -> None:
    """A body that a script replaces, or that does nothing."""


def three(name: str, **more: Any) -> Workstream:
    return Workstream(name, tasks=[Task(f"{name}{n}", run=body) for n in range(3)], **more)


def replaced_until(steps: int, **more: Any) -> tuple[str, bool]:
    """Kill the runtime so many steps after a job began to be replaced; which one is there, and whether it was over."""
    with Simulation(seed=steps) as sim:
        sim.submit(three("old"), id="j", **more).run()
        asked = sim.begin(
            lambda: sim.runtime.submit(three("new", **more), id="j", existing="replace_ended", request_id="k")
        )
        over = False
        for _ in range(steps):
            over = not sim.world.step()
        sim.crash()
        sim.settle()
        job = sim.job("j")
        name, run = job.record.name, job.record.run
        assert (name, run) in {("old", 1), ("new", 2)}
        assert asked.answered is False or name == "new"  # an acknowledged job exists
        assert (sim.world.journal.request("k") is not None) == (name == "new")
        if name == "old":
            assert (job.state, [*job.tasks()]) == ("completed", ["old0", "old1", "old2"])
        same = sim.submit(three("new", **more), id="j", existing="replace_ended", request_id="k")
        outcome = same.run()
        assert (outcome.state, sorted(outcome.tasks)) == ("completed", ["new0", "new1", "new2"])
        assert [run.id for run in sim.world.journal.workstreams("j")] == ["j@1", "j@2"]
        sim.check()
        return name, over


def test_killed_wherever_it_is_the_old_one_is_there_or_the_new_one() -> None:
    found: list[str] = []
    for steps in range(400):
        name, over = replaced_until(steps)
        found.append(name)
        if over:
            break
    assert over, "it never came to its end"
    assert found[0] == "old"
    assert found[-1] == "new"
    assert found == sorted(found, reverse=True)  # once it is there, it stays


def waits_for_slots(sim: Simulation) -> tuple[SimulatedJob, SimulatedJob]:
    """A job that takes all slots, and one that waits for them: it has replaced another one, of which "a" completed."""
    sim.body("b", outcomes=[Fails("no"), Succeeds()])
    sim.body("x", outcomes=[Hangs()])
    sim.submit(Workstream("w", tasks=[Task("a", run=body), Task("b", run=body)]), id="j").run()
    blocks = sim.submit(Workstream("blocks", tasks=[Task("x", run=body)], worker_count=4), id="blocks")
    now = Workstream("w", tasks=[Task("c", run=body), Task("a", run=body)], worker_count=4)
    job = sim.submit(now, id="j", existing="replace_ended")
    assert (job.state, job.record.first, job.tasks()) == ("pending", 2, {})
    return blocks, job


def test_one_that_was_killed_before_it_began_has_nothing_of_what_it_replaced() -> None:
    with Simulation() as sim:
        blocks, job = waits_for_slots(sim)
        sim.crash()
        sim.settle()
        assert (job.state, job.tasks()) == ("pending", {})
        blocks.cancel(force=True)
        assert {task.name: task.attempt for task in job.run().tasks.values()} == {"c": 1, "a": 1}
        sim.check()


def test_one_that_never_began_is_retried_by_its_own_workstream() -> None:
    with Simulation() as sim:
        blocks, job = waits_for_slots(sim)
        job.cancel()
        assert (job.run().state, job.tasks()) == ("cancelled", {})
        blocks.cancel(force=True)
        job.retry()
        assert {task.name: task.attempt for task in job.run().tasks.values()} == {"c": 1, "a": 1}
        assert (job.record.run, job.record.first) == (3, 2)
        sim.check()


def test_a_job_by_another_lifecycle_is_replaced() -> None:
    with Simulation() as sim:
        sim.submit(Workstream("w", tasks=[Task("a", run=body)], lifecycle="fleet"), id="j").run()
        sim.submit(Workstream("w", tasks=[Task("a", run=body)]), id="j", existing="replace_ended").run()
        job = sim.submit(
            Workstream("w", tasks=[Task("a", run=body)], lifecycle="fleet"), id="j", existing="replace_ended"
        )
        assert job.run().shown == "COMPLETED"
        sim.check()
