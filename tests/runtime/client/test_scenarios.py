"""One program with a runtime of its own and with one in another process: the same outcomes, errors and texts."""

from __future__ import annotations

import runpy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callboard import Approval, Runtime, Task, Workstream
from callboard.client import Client
from callboard.runtime.client import core as module

from .scenarios import DOORS, SCENARIOS, machines_are_told, one
from .serving import Served

pytestmark = pytest.mark.anyio
EXAMPLE = runpy.run_path(str(Path(__file__).resolve().parents[3] / "examples" / "remote.py"))


@pytest.fixture(params=["embedded", "remote"])
async def runtime(request: pytest.FixtureRequest, anyio_backend_name: str) -> AsyncIterator[tuple[Any, Any]]:
    """A runtime, and what spawns a machine where it is."""
    if request.param == "embedded":
        if anyio_backend_name != "asyncio":
            pytest.skip("what is embedded has tests of its own on every event loop")
        async with Runtime(drain_deadline=0) as own:
            yield own, lambda name: own.spawn(DOORS, name=name)
    else:
        served: Served = request.getfixturevalue("served")
        async with Client(served.url) as there:
            yield there, lambda name: served.call(lambda: served.runtime.spawn(DOORS, name=name))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_a_program_is_the_same(runtime: tuple[Any, Any], scenario: Any, request: pytest.FixtureRequest) -> None:
    used, spawn = runtime
    name = "-".join(["s", str(SCENARIOS.index(scenario)), *request.node.callspec.id.split("-")[:2]])
    if scenario is machines_are_told:
        spawn(name)
    await scenario(used, name)


async def test_the_example_is_one_program(runtime: tuple[Any, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert await EXAMPLE["release"](runtime[0]) == "completed"
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:] == ["deploy held", "ana had approved it", "release completed"]


async def test_the_tasks_of_a_large_job_are_asked_for_when_they_are_wanted(
    served: Served, monkeypatch: pytest.MonkeyPatch, anyio_backend_name: str
) -> None:
    monkeypatch.setattr(module, "FEW", 3)
    monkeypatch.setattr(module, "MANY", 2)
    names = ["a", "b", "c", "d", "e"]
    spec = Workstream("large", tasks=[Task(name, run=one) for name in names], hold=Approval())
    async with Client(served.url) as client:
        job = await client.submit(spec, id=f"large-{anyio_backend_name}")
        with pytest.raises(LookupError, match="has many tasks: `await refresh"):
            job.tasks()
        with pytest.raises(LookupError, match="task 'a' of job"):
            _ = job.task("a").record
        await job.task("a").refresh()
        assert (job.task("a").record.name, job.ended) == ("a", False)
        with pytest.raises(LookupError, match="nobody"):
            await job.task("nobody").refresh()
        again = await client.job(job.id)
        await again.refresh()
        assert [task.name for task in again.tasks()] == names
        with pytest.raises(LookupError, match="has no task 'nobody'; it has: a, b"):
            again.task("nobody")
        await job.approve(by="ana")
        assert dict((await job.wait()).results) == dict.fromkeys(names, 1)
        assert ([task.name for task in job.tasks()], job.state) == (names, "completed")
        late = await client.job(job.id)
        assert (late.ended, late.state) == (True, "completed")
        assert (await late.wait()).results.keys() == set(names)
