"""Progress and emitted text of bodies in threads, worker processes and on Ray."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runtime.flows import bodies
from tests.runtime.flows.test_processes import EVERYWHERE, WORKERS
from tests.waiting import until

from callboard import Notice, Progress, Runtime, Task, Workstream

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """One loop: a process knows nothing of the runtime's."""
    return "asyncio"


@pytest.fixture(autouse=True)
def _cluster(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("cluster") is not None:
        request.getfixturevalue("ray_here")


@EVERYWHERE
async def test_what_a_body_shows_elsewhere_is_seen_here_whole_and_in_order(engine: str, tmp_path: Path) -> None:
    async with Runtime(workers=[WORKERS[engine]]) as runtime:
        events = runtime.events(event="progress")
        task = Task("t", run=bodies.shows, engine=engine, args={"folder": str(tmp_path)})
        job = await runtime.submit(Workstream("shown", tasks=[task]))
        stream = job.task("t").stream()
        await until(lambda: job.task("t").progress == Progress(999, 1_000, "file 999"))
        (tmp_path / "on").touch()
        assert (await job.wait()).state == "completed"
        emitted = "".join([str(part) async for part in stream])
        events.close()
        rows = [event.facts["done"] async for event in events if isinstance(event, Notice)]
    assert emitted == "".join(f"{number} " for number in range(1_000)) + "from a thread end"
    assert rows[-1] == 1_000
    assert rows == sorted(rows)
