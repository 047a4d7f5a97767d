"""An application with a runtime that stops, forks, runs loops inside bodies, or ends without leaving it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.processes import runs, stopped
from tests.programs import killed_after
from tests.waiting import wait_until

from callboard import Runtime, Task, Workstream

pytestmark = pytest.mark.laboratory
SRC = str(Path(__file__).parents[2] / "src")
LIMIT = 60
LONG = "CALLBOARD_LABORATORY" in os.environ


@contextmanager
def host(folder: Path, code: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    """A separate program, which is ended after the test."""
    (folder / "host.py").write_text(code)
    started = subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", str(folder / "host.py"), *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": SRC},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with killed_after(started):
        yield started


def line_of(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline().strip()


FORKS = """
import asyncio, multiprocessing, os, sys, time
from callboard import Runtime, Task, Workstream

def sleeps():
    time.sleep(600)

def forks():
    if sys.argv[1] == "fork":
        pid = os.fork()
        if pid == 0:
            time.sleep(600)
            os._exit(0)
    else:
        started = multiprocessing.get_context(sys.argv[1]).Process(target=sleeps, daemon=True)
        started.start()
        pid = started.pid
    print(pid, flush=True)
    time.sleep(600)

async def on_the_loop():
    forks()

async def main():
    async with Runtime("state.db") as runtime:
        body = on_the_loop if sys.argv[2] == "loop" else forks
        await (await runtime.submit(Workstream("forks", tasks=[Task("forks", run=body)]))).wait()

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize(("how", "where"), [("fork", "thread"), ("fork", "loop"), ("spawn", "thread")])
def test_a_process_that_a_body_has_forked_keeps_no_journal(tmp_path: Path, how: str, where: str) -> None:
    async def open_it() -> None:
        async with Runtime(tmp_path / "state.db", drain_deadline=0) as runtime:
            assert len(runtime.recovered) == 1

    with host(tmp_path, FORKS, how, where) as started:
        child = int(line_of(started))
        started.kill()
        started.wait()
        try:
            assert runs(child)
            anyio.run(open_it)
        finally:
            os.kill(child, signal.SIGKILL)


async def in_a_loop() -> int:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 0)
    async with Runtime() as runtime:
        job = await runtime.submit(Workstream("inner", tasks=[Task("one", run=one)]))
        return int((await job.wait()).results["one"])


async def one() -> int:
    return 1


def runs_asyncio() -> int:
    return anyio.run(in_a_loop)


def runs_trio() -> int:
    return anyio.run(in_a_loop, backend="trio")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_body_in_a_thread_may_run_any_loop_of_its_own(backend: str) -> None:
    async def main() -> dict[str, Any]:
        async with Runtime() as runtime:
            tasks = [Task(body.__name__, run=body, engine="thread") for body in (runs_asyncio, runs_trio)]
            return dict((await (await runtime.submit(Workstream("nested", tasks=tasks))).wait()).results)

    assert anyio.run(main, backend=backend) == {"runs_asyncio": 1, "runs_trio": 1}


def test_runtimes_in_loops_of_several_threads_do_not_meet(tmp_path: Path) -> None:
    ends: list[int] = []

    def work(number: int, backend: str) -> None:
        async def main() -> None:
            async with Runtime(tmp_path / f"{number}.db") as runtime:
                tasks = [Task("one", run=one), Task("two", command=["true"], depends_on=["one"])]
                for _ in range(10):
                    outcome = await (await runtime.submit(Workstream("stream", tasks=tasks))).wait()
                    ends.append(outcome.results["one"])

        anyio.run(main, backend=backend)

    threads = [threading.Thread(target=work, args=(n, ("asyncio", "trio")[n % 2])) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends == [1] * 40


LEFT_OPEN = """
import asyncio, os, sys, threading
from callboard import Runtime, Task, Workstream

def stubborn():
    threading.Event().wait()

async def endless():
    await asyncio.sleep(600)

async def main():
    runtime = Runtime("state.db" if sys.argv[2] == "file" else None)
    await runtime.__aenter__()
    tasks = [
        Task("command", command="trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done", shell=True, kill_grace=1),
        Task("thread", run=stubborn),
        Task("loop", run=endless),
    ]
    job = await runtime.submit(Workstream("open", tasks=tasks))
    while not (os.path.exists("pid") and open("pid").read()):
        await asyncio.sleep(0.01)
    globals()["kept"] = runtime
    how = sys.argv[1]
    if how == "exit":
        sys.exit(3)
    if how == "raise":
        raise KeyError("the host's own")
    if how == "stop":
        asyncio.get_running_loop().stop()
        await asyncio.sleep(600)
    if how == "close":
        return

loop = asyncio.new_event_loop()
if sys.argv[1] == "close":
    loop.run_until_complete(main())
    loop.close()
    sys.exit(3)
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("how", "code", "journal"),
    [("exit", 3, "file"), ("stop", 1, "memory"), ("close", 3, "file"), ("close", 3, "memory")]
    + ([("raise", 1, "file"), ("raise", 1, "memory"), ("stop", 1, "file")] if LONG else []),
)
def test_a_program_that_ends_with_a_runtime_open_ends_and_leaves_no_command(
    tmp_path: Path, how: str, code: int, journal: str
) -> None:
    with host(tmp_path, LEFT_OPEN, how, journal) as started:
        _, err = started.communicate(timeout=LIMIT)
        assert started.returncode == code
        assert len(err.splitlines()) < 60, err
        pid = int((tmp_path / "pid").read_text())
        wait_until(lambda: not runs(pid))
    if journal == "file":

        async def goes_on() -> None:
            async with Runtime(tmp_path / "state.db", workers=[], drain_deadline=0) as runtime:
                assert [len(job.tasks()) for job in runtime.recovered] == [3]

        anyio.run(goes_on)


STOPPED = """
import sys, time, anyio
from callboard import HealthChecks, Runtime, Task, Workstream

async def on_loop(task):
    while not open("gate").read():
        task.heartbeat("up")
        await anyio.sleep(0.05)

def elsewhere(task):
    while not open("gate").read():
        task.heartbeat("up")
        time.sleep(0.05)

async def hear(events):
    async for event in events:
        print(event.entity_id, event.event, event.reason, flush=True)

async def main():
    runtime = Runtime("state.db", health_checks=HealthChecks(interval=3, misses=2))
    async with anyio.create_task_group() as group, runtime:
        group.start_soon(hear, runtime.events(severity="warning", notices=False))
        tasks = [
            Task("loop", run=on_loop, heartbeat_timeout=12),
            Task("thread", run=elsewhere, engine="thread", heartbeat_timeout=12),
            Task("process", run=elsewhere, engine="process", heartbeat_timeout=120),
        ]
        job = await runtime.submit(Workstream("stopped", tasks=tasks))
        while not all(task.details for task in job.tasks()):
            await anyio.sleep(0.01)
        script = "echo $$ > pid; while [ ! -e ended ]; do sleep 0.05; done"
        command = Task("command", command=script, shell=True, timeout=12)
        quick = await runtime.submit(Workstream("command", tasks=[command]))
        while not (__import__("os").path.exists("pid") and open("pid").read()):
            await anyio.sleep(0.01)
        print("ready", flush=True)
        for one in (job, quick):
            outcome = await one.wait()
            print(outcome.state, flush=True)

if __name__ == "__main__":
    anyio.run(main)
"""


def test_a_program_that_was_stopped_blames_nobody_when_it_goes_on(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    with host(tmp_path, STOPPED) as started:
        assert line_of(started) == "ready"
        started.send_signal(signal.SIGSTOP)
        wait_until(lambda: stopped(started.pid))
        (tmp_path / "ended").touch()
        wait_until(lambda: not runs(int((tmp_path / "pid").read_text())))
        time.sleep(13)  # longer than any limit except that of the process: this test needs real time
        started.send_signal(signal.SIGCONT)
        (tmp_path / "gate").write_text("open")
        out, err = started.communicate(timeout=LIMIT)
        assert (out, err) == ("completed\ncompleted\n", "")
