"""One program against a runtime of its own and against one of another process: the same outcomes, errors and texts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from examples import remote

from callboard import Runtime
from callboard.client import Client

from .scenarios import DOORS, SCENARIOS, machines_are_told
from .serving import Served

pytestmark = pytest.mark.anyio


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
    assert await remote.release(runtime[0]) == "completed"
    told = capsys.readouterr().out.splitlines()
    assert told[-3:] == ["deploy held", "ana had approved it", "release completed"]
