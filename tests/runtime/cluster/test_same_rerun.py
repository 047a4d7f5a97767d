"""The same `retry`, `resume` or `skip` on two nodes under one key: one further run, and one answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from callboard import Runtime, Task, TaskContext, Workstream
from callboard.errors import InvalidTransitionError, JobExists, RequestIdReused
from callboard.runtime.handles import reruns
from callboard.runtime.handles.jobs import JobHandle

from .scene import Nodes, waits

pytestmark = pytest.mark.anyio
Verb = Callable[[JobHandle, "str | None"], Awaitable[JobHandle]]


@pytest.fixture
def scene() -> Nodes:
    return Nodes()


async def fails_first(task: TaskContext) -> str:
    if task.workstream_id.endswith("@1"):
        raise ValueError("not yet")
    return "well"


async def retry(job: JobHandle, key: str | None) -> JobHandle:
    return await job.retry(by="ana", request_id=key)


async def resume(job: JobHandle, key: str | None) -> JobHandle:
    return await job.resume(by="ana", request_id=key)


async def skip(job: JobHandle, key: str | None) -> JobHandle:
    return await job.skip("x", by="ana", request_id=key)


async def replace(job: JobHandle, key: str | None) -> JobHandle:
    tasks = [Task("x", run=fails_first), Task("z", run=waits, depends_on=["x"])]
    other = Workstream("other", tasks=tasks)
    services = job._core.services
    return (await services.submitted(other, "j", "ana", "replace_ended", key)).job


VERBS = pytest.mark.parametrize("verb", [retry, resume, skip, replace])


async def failed(a: Runtime) -> JobHandle:
    """A job whose next run fails no more, and ends when the test lets it."""
    tasks = [Task("x", run=fails_first), Task("z", run=waits, depends_on=["x"])]
    job = await a.submit(Workstream("w", tasks=tasks), id="j")
    await job.wait()
    assert job.state == "failed"
    return job


class Turns:
    """Has the second node take the job at a moment of the first one's command."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.first_has_it, self.first_goes_on = anyio.Event(), anyio.Event()
        self.second_asks, self.second_goes_on = anyio.Event(), anyio.Event()
        self._adopt = reruns.adopt
        monkeypatch.setattr(reruns, "adopt", self.adopt)

    async def adopt(self, node: Any, *args: Any) -> bool:
        if node.name == "a":
            mine = await self._adopt(node, *args)
            self.first_has_it.set()
            await self.first_goes_on.wait()
            return mine
        self.second_asks.set()  # it has looked for the key, and found none
        await self.second_goes_on.wait()
        return await self._adopt(node, *args)


@VERBS
@pytest.mark.parametrize("when", ["taken", "under way", "over"])
async def test_it_is_one_however_far_the_first_one_is(
    scene: Nodes, verb: Verb, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[JobHandle] = []

    async def ask(runtime: Runtime) -> None:
        answers.append(await verb(await runtime.job("j"), "k"))

    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        await failed(a)
        turns = Turns(monkeypatch)
        async with anyio.create_task_group() as group:
            group.start_soon(ask, a)
            await turns.first_has_it.wait()
            group.start_soon(ask, b)
            await turns.second_asks.wait()
            if when == "taken":
                turns.second_goes_on.set()
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
                turns.first_goes_on.set()
            else:
                turns.first_goes_on.set()
                await scene.until(lambda: len(answers) == 1)
                if when == "over":
                    scene.ran.go_on.set()
                    await answers[0].wait()
                turns.second_goes_on.set()
        assert len(answers) == 2
        scene.ran.go_on.set()
        last = await (await b.job("j")).wait()
        assert last.ok
        assert (await a.job("j")).record.runs == 2
        assert [one.id for one in scene.base.disk.journal.workstreams("j")] == ["j@1", "j@2"]
        monkeypatch.undo()
        with pytest.raises(RequestIdReused):
            await (await b.job("j")).retry("x", "another", request_id="k")
        again = await (await a.job("j")).retry("x", request_id="later")  # a later command is not blocked
        await again.wait()
        assert (await b.job("j")).record.runs == 3


async def test_another_command_is_refused_all_the_same(scene: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[BaseException] = []

    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        await failed(a)
        turns = Turns(monkeypatch)

        async def ask(runtime: Runtime, key: str) -> None:
            try:
                await (await runtime.job("j")).retry(request_id=key)
            except InvalidTransitionError as error:
                refused.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(ask, a, "one")
            await turns.first_has_it.wait()
            group.start_soon(ask, b, "two")
            await turns.second_asks.wait()
            turns.second_goes_on.set()
            turns.first_goes_on.set()
        assert "'retry' is not possible in state 'running'" in str(refused[0])
        scene.ran.go_on.set()
        await (await a.job("j")).wait()
        assert (await b.job("j")).record.runs == 2


async def test_of_two_that_replace_it_one_does_and_the_other_is_told_so(
    scene: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    came: list[JobHandle | JobExists] = []

    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        await failed(a)
        turns = Turns(monkeypatch)

        async def ask(runtime: Runtime) -> None:
            try:
                came.append(await runtime.submit(scene.waiting("new"), id="j", existing="replace_ended"))
            except JobExists as error:
                came.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(ask, a)
            await turns.first_has_it.wait()
            group.start_soon(ask, b)
            await turns.second_asks.wait()
            turns.second_goes_on.set()
            turns.first_goes_on.set()
        (job,) = [one for one in came if isinstance(one, JobHandle)]
        assert len(came) == 2
        assert job.record.run == 2
        with pytest.raises(JobExists, match="has not ended"):
            await b.submit(scene.waiting("other"), id="j", existing="replace_ended")
        with pytest.raises(JobExists, match="existing='refuse'"):
            await b.submit(scene.waiting("new"), id="j", existing="refuse")
        far = await b.submit(scene.waiting("new"), id="j")
        assert far.elsewhere
        scene.ran.go_on.set()
        assert (await far.wait()).ok
        monkeypatch.undo()
        mine = await b.submit(scene.waiting("third"), id="j", existing="replace_ended")  # it runs on the asked node
        assert not mine.elsewhere
        assert (await (await a.job("j")).wait()).results == {"third": "third of j"}
        assert [one.id for one in scene.base.disk.journal.workstreams("j")] == ["j@1", "j@2", "j@3"]
        assert (job.state, far.state) == ("completed", "completed")  # those of the run that they were made for


async def test_the_same_request_without_an_id_is_one_job_over_all_nodes(scene: Nodes) -> None:
    found: list[JobHandle] = []

    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():

        async def ask(runtime: Runtime) -> None:
            found.append(await runtime.submit(scene.waiting(), request_id="k"))

        async with anyio.create_task_group() as group:
            group.start_soon(ask, a)
            group.start_soon(ask, b)
        assert found[0].id == found[1].id
        with pytest.raises(RequestIdReused):
            await (await b.job(found[0].id)).cancel(request_id="k")
        scene.ran.go_on.set()
        assert (await found[0].wait()).ok
        assert len(scene.ran.began) == 1
