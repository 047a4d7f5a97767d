"""A server that stops and starts again: waiting callers go on waiting, and miss no event."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from tests.ports import free_port

from callboard import Approval, Task, Transitioned, Workstream
from callboard.client import Client

from .scenarios import one
from .serving import serve

pytestmark = [pytest.mark.anyio, pytest.mark.board]
HELD = Workstream("held", tasks=[Task("first", run=one), Task("a", run=one, depends_on=["first"], hold=Approval())])


@pytest.fixture
def anyio_backend() -> str:
    """One loop is enough: test_stream.py tests on each loop how a stream is opened again."""
    return "trio"


async def test_waiting_and_events_ride_out_a_restart(tmp_path: Path) -> None:
    journal, port = tmp_path / "state.db", free_port()
    seen: list[Transitioned] = []
    waiting = anyio.Event()

    async def read(client: Client) -> None:
        job = await client.job("j")
        async for event in job.events(notices=False):
            assert isinstance(event, Transitioned)
            seen.append(event)
            if event.to_state == "held":
                waiting.set()

    async def wait(client: Client) -> None:
        outcome = await (await client.job("j")).wait()
        assert (outcome.state, dict(outcome.results)) == ("completed", {"first": 1, "a": 1})

    first = serve(journal, port=port)
    opened = await anyio.to_thread.run_sync(first.__enter__)
    async with Client(opened.url) as client, anyio.create_task_group() as group:
        await client.submit(HELD, id="j")
        group.start_soon(wait, client)
        group.start_soon(read, client)
        await waiting.wait()
        await anyio.to_thread.run_sync(first.__exit__, None, None, None)
        with pytest.raises(ConnectionError):
            async with Client(opened.url, patience=0):
                pass
        second = serve(journal, port=port)
        await anyio.to_thread.run_sync(second.__enter__)
        async with Client(opened.url) as other:
            await (await other.job("j")).task("a").approve(by="ana")
    runtime = opened.runtime
    assert not runtime.is_open
    async with Client(opened.url) as client:
        past = [event async for event in (await client.job("j")).events(notices=False)]
    await anyio.to_thread.run_sync(second.__exit__, None, None, None)
    assert [event.seq for event in seen] == [event.seq for event in past if isinstance(event, Transitioned)]
    assert (seen[-1].entity_id, seen[-1].to_state) == ("j", "completed")
