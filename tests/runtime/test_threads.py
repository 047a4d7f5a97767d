"""Threads: those of the application are its own, and nothing of a runtime waits for one of them."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import httpx
import pytest
from anyio.to_thread import current_default_thread_limiter

from callboard import Approval, Clause, Runtime, Task, Workstream
from callboard.runtime.threads import Lane, at_once, at_work, in_lane
from callboard.web import board

pytestmark = pytest.mark.anyio

SOURCES = Path(__file__).parents[2] / "runtime"


async def quick() -> int:
    return 1


def in_a_thread() -> str:
    return threading.current_thread().name


def reviewers() -> list[str]:
    return ["ana"]


@contextmanager
def all_threads_busy() -> Iterator[None]:
    """As an application has it whose endpoints block, as many as anyio runs at a time."""
    limiter = current_default_thread_limiter()
    borrowers = [object() for _ in range(int(limiter.available_tokens))]
    for borrower in borrowers:
        limiter.acquire_on_behalf_of_nowait(borrower)
    try:
        yield
    finally:
        for borrower in borrowers:
            limiter.release_on_behalf_of(borrower)


async def test_everything_goes_on_while_the_application_keeps_all_threads_busy(tmp_path: Path) -> None:
    many = Workstream("many", tasks=[Task(f"t{n}", run=quick) for n in range(300)])  # one that is prepared in a thread
    held = Approval(clauses=[Clause(team="release", members=reviewers)])
    with anyio.fail_after(60), all_threads_busy():
        async with Runtime(tmp_path / "state.db", jsonl=tmp_path / "log.jsonl") as runtime:
            job = await runtime.submit(many, id="many")
            assert (await job.wait()).ok
            assert (await runtime.job("many")).ended
            assert len([event async for event in job.events(notices=False, kind="job")]) > 0
            await job.retry("t1")
            body = await runtime.submit(Workstream("one", tasks=[Task("one", run=in_a_thread, hold=held)]), id="one")
            async for _ in body.events(to_state="held"):
                break
            await body.task("one").approve(by="ana")
            assert "callboard" in (await body.wait()).results["one"]
        async with Runtime(tmp_path / "state.db") as runtime:
            assert (await runtime.job("one")).ended


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": False})])
async def test_the_board_answers_while_the_application_keeps_all_threads_busy(tmp_path: Path) -> None:
    with anyio.fail_after(60), all_threads_busy():
        async with Runtime(tmp_path / "state.db") as runtime:
            job = await runtime.submit(Workstream("w", tasks=[Task("a", command=["echo", "hello"])]), id="w")
            await job.wait()
            app = board(runtime)
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                for path in ("", "/graph", "/timeline", "/tasks", "/tasks/a/output", "/transitions"):
                    answer = await client.get(f"/api/jobs/w{path}")
                    assert answer.status_code == 200, answer.text
                assert (await client.get("/api/openapi.json")).status_code == 200
                assert (await client.get("/")).status_code == 200


async def test_what_waits_in_one_lane_holds_up_no_other() -> None:
    release = threading.Event()
    lane, other = Lane(2), Lane(1)
    with anyio.fail_after(25):
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(lane.run, release.wait)
            await anyio.wait_all_tasks_blocked()
            assert at_work() == 5
            assert await other.run(int) == 0
            assert await at_once(int) == 0
            assert await in_lane("work", int) == 0
            release.set()
    assert at_work() == 0


def test_no_other_module_asks_anyio_for_a_thread() -> None:
    own = {SOURCES / "threads.py", SOURCES / "testing" / "loop.py"}  # what simulates an event loop looks at its threads
    asking = re.compile(
        r"to_thread\.|from anyio import to_thread|run_in_executor\(|await open_file\(|anyio\.open_file|anyio\.Path"
    )
    found = [
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if path not in own and asking.search(path.read_text(encoding="utf-8"))
    ]
    assert found == []
