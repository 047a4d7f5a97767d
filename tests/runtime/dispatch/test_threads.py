"""Threads: the runtime leaves the application's threads alone, and waits for none of them."""

from __future__ import annotations

import contextvars
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import httpx
import pytest
from anyio.to_thread import current_default_thread_limiter

from callboard import Approval, Clause, Runtime, Task, Workstream
from callboard.runtime.dispatch.threads import ThreadLimit, at_once, at_work, in_thread
from callboard.web import board

pytestmark = pytest.mark.anyio

SOURCES = Path(__file__).parents[3] / "runtime"


async def quick() -> int:
    return 1


def in_a_thread() -> str:
    return threading.current_thread().name


def reviewers() -> list[str]:
    return ["ana"]


@contextmanager
def all_threads_busy() -> Iterator[None]:
    """Keep all threads of anyio busy, as an application with blocking endpoints may."""
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
    with anyio.fail_after(300), all_threads_busy():
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
    with anyio.fail_after(300), all_threads_busy():
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
    lane, other = ThreadLimit(2), ThreadLimit(1)
    with anyio.fail_after(300):
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(lane.run, release.wait)
            await anyio.wait_all_tasks_blocked()
            assert at_work() == 5
            assert await other.run(int) == 0
            assert await at_once(int) == 0
            assert await in_thread("work", int) == 0
            release.set()
    assert at_work() == 0


async def test_what_may_be_left_to_itself_keeps_its_place_and_runs_in_a_daemon_thread() -> None:
    release, began = threading.Event(), threading.Event()
    said = contextvars.ContextVar("said", default="")
    said.set("here")
    lane = ThreadLimit(1)

    def blocks() -> None:
        began.set()
        release.wait()

    def seen() -> tuple[bool, str]:
        return threading.current_thread().daemon, said.get()

    def fails() -> None:
        raise LookupError("as it was raised")

    async def until_begun() -> None:
        while not began.is_set():
            await anyio.sleep(0.001)

    with anyio.fail_after(300):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: lane.run(blocks, abandon=True))
                await until_begun()
                scope.cancel()
        assert at_work() == 0
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: lane.run(seen, abandon=True))
            await anyio.wait_all_tasks_blocked()
            assert at_work() == 1  # it waits for the place of the first one
            release.set()
        assert await lane.run(seen, abandon=True) == (True, "here")
        with pytest.raises(LookupError, match="as it was raised"):
            await lane.run(fails, abandon=True)


ENDS = """
import sys, threading
import anyio
from callboard import Approval, Clause, Runtime, Task, Workstream
from callboard.runtime.handles import approvals

approvals.ASKED = 0.1  # seconds: the real one is ten

def members(team):
    threading.Event().wait()

async def ok():
    return 1

async def main():
    held = Approval(clauses=[Clause(team="o", members=members)])
    async with Runtime(drain_deadline=0.1) as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("t", run=ok, hold=held)]))
        async for _ in job.events(to_state="held"):
            break
        try:
            await job.task("t").approve(by="ana")
        except Exception as error:
            print(type(error).__name__)
        await job.cancel(force=True)

anyio.run(main, backend=sys.argv[1])
print("over")
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_program_ends_whose_team_function_never_does(backend: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(ENDS)
    done = subprocess.run(
        [sys.executable, str(file), backend], capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stdout) == (0, "DecisionRefused\nover\n"), done.stderr[-2_000:]


def test_no_other_module_asks_anyio_for_a_thread() -> None:
    own = {
        SOURCES / "dispatch" / "threads.py",
        SOURCES / "testing" / "loop.py",
        SOURCES / "testing" / "real_threads.py",
    }  # what simulates an event loop or its time looks at its threads
    asking = re.compile(
        r"to_thread\.|from anyio import to_thread|run_in_executor\(|await open_file\(|anyio\.open_file|anyio\.Path"
    )
    found = [
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if path not in own and asking.search(path.read_text(encoding="utf-8"))
    ]
    assert found == []
