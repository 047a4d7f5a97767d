"""Cancelling with real engines: bodies and hooks that stop, that do not, and that cannot; pausing; crashes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.processes import runs
from tests.programs import killed_after

from callboard import Hook, Retry, Runtime, Task, TaskContext, VirtualClock, Worker, Workstream
from callboard.errors import InvalidTransitionError

pytestmark = pytest.mark.anyio


class Reports:
    """Records what the bodies and hooks of a test report."""

    def __init__(self) -> None:
        self.began = anyio.Event()
        self.told: list[Any] = []


scenes: list[Reports] = []


@pytest.fixture
def scene() -> Reports:
    scenes.append(Reports())
    return scenes[-1]


async def waits() -> None:
    scenes[-1].began.set()
    await anyio.sleep_forever()


async def swallows() -> str:
    scenes[-1].began.set()
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        pass  # as no body should
    return "I did not stop"


async def raises_while_it_stops() -> None:
    scenes[-1].began.set()
    try:
        await anyio.sleep_forever()
    finally:
        raise OSError("the lock is gone")


def notes(task: TaskContext) -> None:
    scenes[-1].told.append((task.task, task.args))


async def notes_on_the_loop(task: TaskContext) -> None:
    scenes[-1].told.append((task.task, task.args["reason"]))


async def test_hooks_of_a_task_and_of_its_workstream_are_told_what_happened(
    open_runtime: Callable[..., Runtime], scene: Reports, tmp_path: Path
) -> None:
    program = "import os; open('told.json', 'a').write(os.environ['CALLBOARD_EVENT'] + chr(10))"
    command = Hook(command=[sys.executable, "-c", program])
    with anyio.fail_after(300):
        async with open_runtime() as runtime:
            spec = Workstream(
                "w",
                cwd=str(tmp_path),
                tasks=[Task("a", run=waits, cancel_hooks=[Hook(run=notes), command, Hook(run=notes_on_the_loop)])],
                cancel_hooks=[command, Hook(run=notes)],
            )
            job = await runtime.submit(spec, id="j")
            await scene.began.wait()
            await job.cancel("no longer wanted")
            outcome = await job.wait()
    assert (outcome.state, outcome.tasks["a"].state) == ("cancelled", "cancelled")
    told: dict[str, Any] = {"event": "cancel", "state": "cancelling", "job_id": "j"}
    of_task = {**told, "entity_id": "j@1/a", "name": "a", "reason": "workstream cancelled: no longer wanted"}
    of_stream = {**told, "entity_id": "j@1", "name": "w", "reason": "no longer wanted"}
    assert scene.told == [
        ("a", of_task), ("a", "workstream cancelled: no longer wanted"), ("w", of_stream),
    ]  # fmt: skip
    lines = (tmp_path / "told.json").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [of_task, of_stream]


@pytest.mark.parametrize(("body", "error"), [(swallows, None), (raises_while_it_stops, "OSError: the lock is gone")])
async def test_a_body_that_swallows_or_raises_is_cancelled_and_not_tried_again(
    open_runtime: Callable[..., Runtime], scene: Reports, body: Callable[..., Any], error: str | None
) -> None:
    with anyio.fail_after(300):
        async with open_runtime() as runtime:
            job = await runtime.submit(Workstream("w", tasks=[Task("a", run=body)]))
            await scene.began.wait()
            await job.cancel()
            record = (await job.wait()).tasks["a"]
    assert (record.state, record.attempt, record.result) == ("cancelled", 1, None)
    assert error is None or error in str(record.last_error)


WRITES = "import time; print('half of it', end='', flush=True); open('ready', 'w').close(); time.sleep(60)"
IGNORES = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('ready', 'w').close(); time.sleep(60)"
)


async def test_a_hook_that_ignores_sigterm_is_killed_at_the_deadline_and_the_next_never_runs(
    open_runtime: Callable[..., Runtime], scene: Reports, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "ready")
    stubborn = Hook(command=[sys.executable, "-c", IGNORES], timeout=20)
    troubles: list[str] = []
    clock = VirtualClock()
    runtime = open_runtime(clock=clock)
    runtime.on_trouble = lambda notice: troubles.append(notice.text)
    with anyio.fail_after(300):
        async with runtime:
            task = Task("a", run=waits, cancel_hooks=[stubborn, Hook(run=notes)], cancel_timeout=23)
            job = await runtime.submit(Workstream("w", cwd=str(tmp_path), tasks=[task]), id="j")
            await scene.began.wait()
            await job.cancel()
            await anyio.to_thread.run_sync((tmp_path / "ready").read_bytes)  # until it has opened the other end
            clock.advance(20)  # it gets the order to stop, and does not stop
            await anyio.wait_all_tasks_blocked()
            assert await runtime._services.settled(20)
            await anyio.wait_all_tasks_blocked()
            assert job.task("a").record.state == "cancelling"
            clock.advance(3)
            record = (await job.wait()).tasks["a"]
            await runtime.drain(10)
    assert record.state == "cancelled"
    assert "the time for its cancel hooks was over" in str(record.reason)
    assert any("`" + str(Path(sys.executable)) in text and "never ran" in text for text in troubles)
    assert scene.told == []


in_thread, stuck = threading.Event(), threading.Event()


def never_ends() -> None:
    in_thread.set()
    stuck.wait(600)


async def test_a_thread_body_that_never_ends_is_abandoned_and_its_place_is_free(
    open_runtime: Callable[..., Runtime], scene: Reports
) -> None:
    for event in (in_thread, stuck):
        event.clear()
    troubles: list[str] = []
    clock = VirtualClock()
    runtime = open_runtime(clock=clock, workers=[Worker("threads", engine="thread", capacity=1)])
    runtime.on_trouble = lambda notice: troubles.append(notice.text)
    try:
        with anyio.fail_after(300):
            async with runtime:
                task = Task("a", run=never_ends, kill_grace=5, cancel_hooks=[Hook(run=notes)])
                job = await runtime.submit(Workstream("w", tasks=[task]), id="j")
                await anyio.to_thread.run_sync(in_thread.wait)
                await job.cancel()
                clock.advance(6)
                record = (await job.wait()).tasks["a"]
                next_one = await runtime.submit(Workstream("next", tasks=[Task("b", run=plain)]))
                assert (await next_one.wait()).ok
    finally:
        stuck.set()
    assert (record.state, record.reason is not None and "abandoned" in record.reason) == ("cancelled", True)
    assert [name for name, _ in scene.told] == ["a"]
    assert troubles == ["attempt 1 of j@1/a did not stop on threads#1 and was abandoned: its slot is free for others"]


def plain() -> int:
    return 1


async def saves(task: TaskContext) -> None:
    scenes[-1].told.append((task.attempt, task.saved, task.details))
    task.checkpoint({"rows": task.attempt * 10})
    task.heartbeat("counting")
    if task.attempt == 1:
        raise ValueError("once more")
    scenes[-1].began.set()
    try:
        await anyio.sleep_forever()
    finally:
        task.checkpoint({"rows": 25})


def saves_in_a_thread(task: TaskContext) -> None:
    for row in range(100):
        task.checkpoint(row)
        task.heartbeat()
    task.heartbeat("done")
    task.heartbeat()


async def test_the_next_attempt_finds_what_was_saved_and_so_does_who_looks_after_a_cancel(
    open_runtime: Callable[..., Runtime], scene: Reports
) -> None:
    with anyio.fail_after(300):
        async with open_runtime() as runtime:
            again = Retry(max_attempts=2, base_delay=0)
            tasks = [Task("a", run=saves, retry=again), Task("b", run=saves_in_a_thread)]
            job = await runtime.submit(Workstream("w", tasks=tasks))
            events = job.events(notices=False)
            await scene.began.wait()
            async for event in events:
                if event.entity_id.endswith("/b") and event.to_state == "completed":
                    break
            events.close()
            await job.cancel()
            records = (await job.wait()).tasks
    assert scene.told == [(1, None, None), (2, {"rows": 10}, "counting")]
    assert (records["a"].state, records["a"].checkpoint) == ("cancelled", {"rows": 25})
    assert (records["b"].checkpoint, records["b"].details) == (99, "done")


@pytest.mark.parametrize("kept", [True, False])
async def test_the_output_of_a_stopped_command_is_kept_or_not(
    open_runtime: Callable[..., Runtime], tmp_path: Path, kept: bool
) -> None:
    os.mkfifo(tmp_path / "ready")
    with anyio.fail_after(300):
        async with open_runtime(outputs=tmp_path / "outputs") as runtime:
            task = Task("a", command=[sys.executable, "-c", WRITES], cwd=str(tmp_path), save_partial_output=kept)
            job = await runtime.submit(Workstream("w", tasks=[task]), id="j")
            await anyio.to_thread.run_sync((tmp_path / "ready").read_bytes)  # until it has opened the other end
            events = runtime.events(event="partial_output_saved")
            await job.cancel()
            record = (await job.wait()).tasks["a"]
            events.close()
            notices = [notice async for notice in events]
    path = tmp_path / "outputs" / "j" / "1" / "a.1.log"
    assert path.exists() is kept
    assert record.output_path == (str(path) if kept else None)
    assert [notice.facts for notice in notices] == ([{"path": str(path), "size": 10}] if kept else [])


async def test_a_job_is_paused_and_goes_on(open_runtime: Callable[..., Runtime], scene: Reports) -> None:
    with anyio.fail_after(300):
        async with open_runtime() as runtime:
            job = await runtime.submit(
                Workstream("w", tasks=[Task("a", run=waits, optional=True), Task("b", run=plain, after=["a"])])
            )
            await scene.began.wait()
            await job.pause("lunch", by="ana")
            with pytest.raises(InvalidTransitionError):
                await job.pause()
            await job.task("a").cancel()
            assert job.task("b").record.state == "pending"
            await job.resume()
            assert (await job.wait()).ok
            with pytest.raises(InvalidTransitionError):
                await job.resume()


VICTIM = """
import sys
import anyio
from callboard import Hook, Runtime, Task, Workstream

HOOK = '''
import os, time
with open("ready", "w") as ready:
    print(os.getpid(), file=ready)
if not os.path.exists("again"):
    time.sleep(60)
'''

async def main():
    async with Runtime("state.db") as runtime:
        hook = Hook(command=[sys.executable, "-c", HOOK], timeout="1h")
        task = Task("a", command=["sleep", "60"], cancel_hooks=[hook])
        events = runtime.events(notices=False, kind="task", to_state="running")
        job = await runtime.submit(Workstream("w", tasks=[task]), id="j")
        await anext(events)
        await job.cancel()
        await job.wait()

anyio.run(main)
"""


def killed_while_its_hook_runs() -> int:
    """Run the victim in the present folder, and kill it. Returns the pid of its hook."""
    os.mkfifo("ready")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with killed_after(subprocess.Popen([sys.executable, "-c", VICTIM], env=environment)):
        hook = int(Path("ready").read_text())
    Path("again").touch()
    return hook


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_hook_that_outlived_a_kill_of_the_runtime_is_killed_before_it_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = killed_while_its_hook_runs()
    assert runs(first)
    with anyio.fail_after(300):
        async with Runtime("state.db") as runtime:
            (job,) = runtime.recovered
            second = int(await anyio.to_thread.run_sync(Path("ready").read_text))
            assert not runs(first)
            outcome = await job.wait()
    assert second != first
    assert (outcome.state, outcome.tasks["a"].state) == ("cancelled", "cancelled")
