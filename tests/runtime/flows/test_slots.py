"""Bodies that give up a wait while others use their slots: the next step of such a body waits for a slot."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from tests.runtime.flows import bodies
from tests.runtime.flows.helpers import Open
from tests.waiting import until

from callboard import JobHandle, Runtime, Task, TaskContext, Worker, Workstream, step
from callboard.testing import Simulation

pytestmark = pytest.mark.anyio
ONE = [Worker("one", engine="loop", capacity=1)]
TURNS = 30


class Scene:
    """Bodies that wait for a message under a cancel scope of the test's, and what they did then."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.scopes: dict[str, anyio.CancelScope] = {}
        self.given_up: list[str] = []
        self.running: list[str] = []
        self.most = 0
        self.may_end = anyio.Event()
        self.kernel = runtime._services.host.kernel

    async def give_up(self, task: TaskContext) -> None:
        """The wait of a body that the test ends."""
        with anyio.CancelScope() as scope:
            self.scopes[task.job_id] = scope
            await task.receive("x")
        self.given_up.append(task.job_id)

    def enter(self, name: str) -> None:
        self.running.append(name)
        self.most = max(self.most, len(self.running))
        assert self.runtime.worker("one").assigned == 1

    async def works(self, name: str) -> str:
        """The function of a step: it ends when the test says so."""
        self.enter(name)
        await self.may_end.wait()
        await turns()  # in which another step would begin that does not wait for the slot
        self.running.remove(name)
        return name

    def works_in_thread(self, name: str) -> str:
        anyio.from_thread.run_sync(self.enter, name)
        anyio.from_thread.run(self.may_end.wait)
        anyio.from_thread.run(turns)
        anyio.from_thread.run_sync(self.running.remove, name)
        return name

    async def begun(self, body: Any, *names: str) -> list[JobHandle]:
        """Submit a job for each name, and wait until all of them wait."""
        self.runtime.task(name=f"body of {names[0]}")(body)
        tasks = [Task("t", run=f"body of {names[0]}")]
        jobs = [await self.runtime.submit(Workstream("flow", tasks=tasks), id=name) for name in names]
        await until(lambda: self.scopes.keys() >= set(names) and self.assigned == 0)
        return jobs

    @property
    def assigned(self) -> int:
        return self.runtime.worker("one").assigned

    def asks(self, job: JobHandle) -> bool:
        """Whether a step of that job's body waits for its slot."""
        return self.runtime._services.caller._flows.lent.asks(job.task("t").record.token)


async def turns() -> None:
    for _ in range(TURNS):
        await anyio.lowlevel.checkpoint()


@contextmanager
def nothing_left(scene: Scene) -> Iterator[None]:
    yield
    flows = scene.runtime._services.caller._flows
    assert (scene.kernel.lent, scene.kernel.slots, flows.lent._requests, flows.lent._asking) == ({}, {}, {}, {})
    assert scene.assigned == 0


@pytest.mark.parametrize("how", ["async", "gathered", "in a thread of the body"])
async def test_bodies_that_give_up_their_waits_run_their_steps_one_after_another(open_runtime: Open, how: str) -> None:
    async with open_runtime(workers=ONE) as runtime:
        scene = Scene(runtime)
        works = step(scene.works)
        plain = step(scene.works_in_thread)

        async def body(task: TaskContext) -> Any:
            await scene.give_up(task)
            if how == "async":
                return await works(task.job_id)
            if how == "gathered":
                return (await task.gather(works.bind(task.job_id)))[0]
            return await anyio.to_thread.run_sync(plain, task.job_id)

        names = [f"job{n}" for n in range(5)]
        with nothing_left(scene):
            jobs = await scene.begun(body, *names)
            for scope in scene.scopes.values():
                scope.cancel()
            await until(lambda: len(scene.given_up) == 5 and scene.running)  # the end of a scope is not delayed
            await until(lambda: sum(scene.asks(job) for job in jobs) == 4)
            assert (len(scene.running), scene.assigned) == (1, 1)
            scene.may_end.set()
            for job, name in zip(jobs, names, strict=True):
                assert (await job.wait()).results == {"t": name}
            assert scene.most == 1


async def test_a_body_whose_next_step_is_a_wait_needs_no_slot_and_holds_up_nobody(open_runtime: Open) -> None:
    async with open_runtime(workers=ONE) as runtime:
        scene = Scene(runtime)

        async def waits(task: TaskContext) -> Any:
            await scene.give_up(task)
            got = await task.receive("y")
            await task.send("waits", "z", got)
            return [got, await task.receive("z")]

        async def works(task: TaskContext) -> str:
            await scene.give_up(task)
            return await task.step(scene.works, task.job_id)

        with nothing_left(scene):
            (worker,) = await scene.begun(works, "works")
            (waiter,) = await scene.begun(waits, "waits")
            scene.scopes["works"].cancel()
            await until(lambda: scene.running == ["works"])
            scene.scopes["waits"].cancel()
            with anyio.fail_after(300):
                while "task.receive y" not in {row.label for row in await waiter.steps("t") if row.state == "waiting"}:
                    await anyio.sleep(0.005)
            token = waiter.task("t").record.token
            await until(lambda: scene.kernel.lent[token].reply is None)  # it does not ask for its slot any more
            scene.may_end.set()
            assert (await worker.wait()).results == {"t": "works"}
            assert scene.assigned == 0
            await waiter.send("y", 1)
            assert (await waiter.wait()).results == {"t": [1, 1]}


async def test_a_message_that_is_there_is_received_without_a_slot_and_the_step_after_it_waits(
    open_runtime: Open,
) -> None:
    async with open_runtime(workers=ONE) as runtime:
        scene = Scene(runtime)
        got: list[int] = []

        async def body(task: TaskContext) -> str:
            await scene.give_up(task)
            if task.job_id == "second":
                got.append(await task.receive("y"))
            return await task.step(scene.works, task.job_id)

        first, second = await scene.begun(body, "first", "second")
        await second.send("y", 1)
        scene.scopes["first"].cancel()
        await until(lambda: scene.running == ["first"])
        scene.scopes["second"].cancel()
        await until(lambda: got == [1] and scene.asks(second))
        scene.may_end.set()
        assert [(await job.wait()).state for job in (first, second)] == ["completed"] * 2
        assert scene.most == 1


async def test_a_cancel_ends_a_body_that_waits_for_its_slot_and_lets_it_clean_up(open_runtime: Open) -> None:
    async with open_runtime(workers=ONE) as runtime:
        scene = Scene(runtime)
        cleaned: list[str] = []

        async def clean(name: str) -> None:
            cleaned.append(name)

        async def body(task: TaskContext) -> str:
            await scene.give_up(task)
            try:
                return await task.step(scene.works, task.job_id)
            finally:
                if task.job_id != "stays":
                    with anyio.CancelScope(shield=True):
                        await task.step(clean, task.job_id)

        with nothing_left(scene):
            stays, gone = await scene.begun(body, "stays", "gone")
            scene.scopes["stays"].cancel()
            await until(lambda: scene.running == ["stays"])
            scene.scopes["gone"].cancel()
            await until(lambda: scene.asks(gone))
            await gone.cancel(reason="enough")
            assert (await gone.wait()).state == "cancelled"
            assert (scene.running, cleaned, scene.assigned) == (["stays"], ["gone"], 1)
            scene.may_end.set()
            assert (await stays.wait()).results == {"t": "stays"}
            assert scene.most == 1


async def test_a_step_that_its_body_gives_up_while_it_waits_for_the_slot_does_not_begin(open_runtime: Open) -> None:
    """The slot that the body has asked for is there for its next step."""
    async with open_runtime(workers=ONE) as runtime:
        scene = Scene(runtime)

        async def body(task: TaskContext) -> str:
            await scene.give_up(task)
            if task.job_id == "second":
                with anyio.CancelScope() as scope:
                    scene.scopes["its step"] = scope
                    await task.step(scene.works, "given up")
                scene.given_up.append("its step")
            return await task.step(scene.works, task.job_id)

        with nothing_left(scene):
            first, second = await scene.begun(body, "first", "second")
            scene.scopes["first"].cancel()
            await until(lambda: scene.running == ["first"])
            scene.scopes["second"].cancel()
            await until(lambda: scene.asks(second))
            scene.scopes["its step"].cancel()
            await until(lambda: "its step" in scene.given_up and scene.asks(second))
            scene.may_end.set()
            assert [(await job.wait()).results["t"] for job in (first, second)] == ["first", "second"]
            steps = [(row.label, row.state) for row in await second.steps("t")]
            assert steps == [("task.receive x", "cancelled"), ("works", "cancelled"), ("works#2", "completed")]
            assert scene.most == 1


async def test_a_drain_ends_a_body_that_waits_for_its_slot_and_it_goes_on_at_the_next_start(tmp_path: Path) -> None:
    ended: list[str] = []

    async def body(scene: Scene, task: TaskContext) -> str:
        if task.attempt == 1:
            await scene.give_up(task)
        else:
            scene.may_end.set()
        ended.append(await task.step(scene.works, task.job_id))
        return await task.step(scene.works, task.job_id)

    names = ["first", "second"]
    async with Runtime(tmp_path / "j.db", workers=ONE, drain_deadline=600) as runtime:
        scene = Scene(runtime)
        first, second = await scene.begun(partial(body, scene), *names)
        scene.scopes["first"].cancel()
        await until(lambda: scene.running == ["first"])
        scene.scopes["second"].cancel()
        await until(lambda: scene.asks(second))
        with anyio.fail_after(300):
            async with anyio.create_task_group() as group:
                group.start_soon(runtime.drain)
                await until(lambda: scene.kernel.drain_began is not None)
                scene.may_end.set()
        assert [job.task("t").record.state for job in (first, second)] == ["queued", "queued"]
        assert (ended, scene.most) == (["first"], 1)
    async with Runtime(tmp_path / "j.db", workers=ONE) as runtime:
        scene = Scene(runtime)
        runtime.task(name="body of first")(partial(body, scene))
        jobs = [await runtime.job(name) for name in names]
        assert [(await job.wait()).results["t"] for job in jobs] == names
        assert [job.task("t").record.lost_attempts for job in jobs] == [0, 0]
        assert (sorted(ended), scene.most) == (["first", "first", "second"], 1)


def test_five_bodies_with_a_time_limit_around_a_wait_use_one_slot_one_after_another_whatever_dies() -> None:
    """Also after a kill, and where the body is put to sleep next, before it has its slot."""
    running: list[str] = []

    @step
    async def works(name: str) -> str:
        running.append(name)
        assert len(running) == 1
        await anyio.sleep(60)
        running.remove(name)
        return name

    async def body(task: TaskContext) -> str:
        with anyio.move_on_after(0.1):
            await task.receive("x")
        if task.task == "sleeps":
            await task.sleep("20m")
        return await works(task.task)

    names = ["a", "b", "c", "d", "sleeps"]
    with Simulation(1, workers=ONE) as sim:
        sim.task(name="body")(body)
        job = sim.submit(Workstream("flow", tasks=[Task(name, run="body") for name in names]), id="j")
        sim.advance("90s")
        flows = sim.runtime._services.caller._flows
        assert (len(running), sim.runtime.worker("one").assigned, len(flows.sleeping)) == (1, 1, 1)
        sim.crash()
        running.clear()
        sim.advance("12m")
        assert (running, sim.runtime.worker("one").assigned) == ([], 0)
        assert job.run().results == {name: name for name in names}
        sim.check()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # a process knows nothing of the runtime's loop
@pytest.mark.parametrize("engine", ["process", pytest.param("ray", marks=pytest.mark.cluster)])
async def test_a_body_in_another_process_waits_alike(
    tmp_path: Path, engine: Literal["process", "ray"], request: pytest.FixtureRequest
) -> None:
    if engine == "ray":
        request.getfixturevalue("ray_here")
    body = bodies.gives_up if engine == "process" else bodies.gives_up_on_loop
    tasks = [Task("t", run=body, engine=engine, args={"folder": str(tmp_path)})]
    file = tmp_path / "ran"

    def ran(what: str) -> list[str]:
        lines = file.read_text().splitlines() if file.exists() else []
        return [line.removeprefix(what) for line in lines if line.startswith(what)]

    async with Runtime(tmp_path / "j.db", workers=[Worker("one", engine=engine, capacity=1)]) as runtime:
        scene = Scene(runtime)
        jobs = [await runtime.submit(Workstream("flow", tasks=tasks), id=name) for name in ("a", "b")]
        await until(lambda: len(ran("waits ")) == 2 and len(scene.kernel.lent) == 2)
        if engine == "process":
            for pid in ran("waits "):
                os.kill(int(pid), signal.SIGUSR1)
        Path(tmp_path, "enough").touch()
        await until(lambda: len(ran("gave up")) == 2 and len(ran("begins ")) == 1)
        await until(lambda: sum(map(scene.asks, jobs)) == 1)
        assert (len(ran("begins ")), scene.assigned) == (1, 1)
        Path(tmp_path, "end").touch()
        for job in jobs:
            await job.send("x", 1)  # for the next receive of the body, not for the one that it gave up
            assert (await job.wait()).results == {"t": [job.id, 1]}
        first, second = ran("begins ")
        worked = [line for line in ran("") if line.startswith(("begins ", "ends "))]
        assert worked == [f"begins {first}", f"ends {first}", f"begins {second}", f"ends {second}"]
        assert (scene.kernel.lent, scene.assigned) == ({}, 0)
