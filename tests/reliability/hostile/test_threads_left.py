"""Async bodies that wait for endless threads: the runtime and the command end, and both name the bodies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.programs import killed_after
from tests.waiting import until, wait_until

from callboard import Actor, Hook, Notice, Retry, Runtime, Task, Workstream
from callboard.runtime.cli import last
from callboard.runtime.cli.command_errors import CommandError
from callboard.runtime.dispatch.abandoned_threads import AbandonedThreads

pytestmark = [pytest.mark.anyio, pytest.mark.laboratory]

BODIES = """
import asyncio, threading
from concurrent.futures import ThreadPoolExecutor
import anyio

def blocks():
    open("began", "w").close()
    threading.Event().wait()

async def of_asyncio():
    await asyncio.to_thread(blocks)

async def of_anyio():
    await anyio.to_thread.run_sync(blocks)

async def of_a_child():
    async with anyio.create_task_group() as group:
        group.start_soon(of_anyio)

async def of_a_task():
    task = asyncio.create_task(swallows())
    open("began", "w").close()
    await task

async def swallows():
    while True:
        try:
            await asyncio.sleep(1000)
        except BaseException:
            pass

def plain():
    ThreadPoolExecutor().submit(blocks).result()

async def of_a_pool():
    await asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor(), blocks)

async def ok():
    return 1
"""
CLI = """
from callboard.runtime.execution import calls
from callboard.runtime.cli import last, main
calls.CHECK_GRACE = 0.1
last.PATIENCE = 0.3
main()
"""
OTHERS = "a stopped body left a task or a thread that does not end"
LIMITS = 'timeout = "0.3s"\nkill_grace = "0.1s"\nretry = {max_attempts = 1}\n'


def callboard(folder: Path, *words: str) -> subprocess.Popen[str]:
    """The command line, with shorter limits than the real one."""
    (folder / "bodies.py").write_text(BODIES)
    return subprocess.Popen(
        [sys.executable, "-c", CLI, *words, "--journal", "state.db"], cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, told = process.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, told


def state_of(folder: Path) -> str:
    code, out, told = ended(callboard(folder, "status", "--json"))
    assert code in {0, 1}, told
    return str(json.loads(out.splitlines()[0])["state"])


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ('run = "bodies:of_asyncio"\n' + LIMITS, "a thread of the body of w@1/t still runs"),
        ('run = "bodies:of_anyio"\n' + LIMITS, "a thread of the body of w@1/t still runs"),
        ('run = "bodies:of_a_child"\n' + LIMITS, "a thread of the body of w@1/t still runs"),
        ('run = "bodies:of_a_task"\n' + LIMITS, OTHERS),
        ('run = "bodies:of_a_pool"\n' + LIMITS, OTHERS),
        ('run = "bodies:plain"\n' + LIMITS, OTHERS),
        (
            'run = "bodies:ok"\ncondition = {run = "bodies:of_anyio", timeout = "0.3s"}\n',
            "a thread of a condition of w@1/t still runs",
        ),
        (
            'run = "bodies:ok"\nchecks = [{run = "bodies:of_asyncio", timeout = "0.3s"}]\n',
            "a thread of a check of w@1/t still runs",
        ),
    ],
    ids=["asyncio", "anyio", "child", "task", "pool", "plain", "condition", "check"],
)
def test_a_run_ends_without_them(part: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text(f'name = "w"\n[[tasks]]\nname = "t"\n{part}')
    code, out, err = ended(callboard(tmp_path, "run", "w.toml", "--id", "w", "--plain"))
    assert code == 1, err
    assert "job w failed" in out
    assert told in err
    assert "the process ends now" in err
    assert state_of(tmp_path) == "failed"


def test_a_hook_is_left_too(tmp_path: Path) -> None:
    hook = 'on_completed = [{run = "bodies:of_anyio", timeout = "0.3s"}]'
    (tmp_path / "w.toml").write_text(f'name = "w"\n[[tasks]]\nname = "t"\nrun = "bodies:ok"\n{hook}\n')
    code, out, err = ended(callboard(tmp_path, "run", "w.toml", "--id", "w", "--plain"))
    assert (code, "job w completed" in out) == (0, True), err
    assert "a thread of a hook of w@1/t still runs" in err


@pytest.mark.parametrize("body", ["of_asyncio", "of_anyio"])
@pytest.mark.parametrize("command", ["run", "serve"])
def test_a_command_that_is_told_to_stop_ends_without_them(command: str, body: str, tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text(f'name = "w"\n[[tasks]]\nname = "t"\nrun = "bodies:{body}"\nkill_grace = "0.1s"\n')
    words = ["run", "w.toml"] if command == "run" else ["serve", "--run", "w.toml", "--port", "0"]
    with killed_after(callboard(tmp_path, *words, "--drain-deadline", "0.1s", "--jsonl", "log.jsonl")) as process:
        wait_until(lambda: (tmp_path / "began").exists() or process.poll() is not None, "its body")
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGTERM)
        code, out, err = ended(process)
    assert code == (130 if command == "run" else 0), err
    assert ("unfinished" if command == "run" else "stopped: ") in out
    assert "@1/t still runs and cannot be stopped: the process ends now" in err
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert all(json.loads(line) for line in lines)  # written to its end
    assert not list(tmp_path.glob("state.db-wal"))  # it was closed
    check = callboard(tmp_path, "check")
    assert ended(check)[0] == 0


@pytest.mark.parametrize("words", [[], ["--json"]], ids=["plain", "json"])
def test_a_cancel_ends_without_what_a_hook_has_left(words: list[str], tmp_path: Path) -> None:
    async def submit() -> None:
        hook = Hook(run="bodies:of_anyio", timeout=0.3)
        stream = Workstream("w", folder=str(tmp_path), tasks=[Task("t", run="bodies:ok", on_cancelled=[hook])])
        async with Runtime(tmp_path / "state.db", workers=()) as runtime:
            await runtime.submit(stream, id="w")

    (tmp_path / "bodies.py").write_text(BODIES)
    asyncio.run(submit())
    code, out, err = ended(callboard(tmp_path, "cancel", "w", *words))
    assert (code, "cancelled" in out) == (0, True), err
    assert "a thread of a hook of w@1/t still runs and cannot be stopped: the process ends now" in err
    assert state_of(tmp_path) == "cancelled"


def test_a_process_where_nothing_was_stopped_ends_as_any_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exits: list[int] = []
    over = threading.Event()

    def exits_with(code: int) -> None:
        exits.append(code)
        over.set()

    monkeypatch.setattr(os, "_exit", exits_with)
    monkeypatch.setattr(last, "PATIENCE", 0.0)
    threads = threading.active_count()
    left = AbandonedThreads()
    last.begin()
    last.end_soon(left, lambda: 1)
    assert threading.active_count() == threads  # nothing is waited for
    left.stopped = True

    def report() -> int:
        from callboard.runtime.cli.command_errors import print_error

        return print_error(CommandError("what went wrong", 2))

    last.end_soon(left, report)
    assert over.wait(600)
    assert exits == [2]
    assert "what went wrong" in capsys.readouterr().err
    with pytest.raises(SystemExit) as raised:
        last.leave(3)
    assert raised.value.code == 3
    last.end_soon(left, lambda: 1)  # the process belongs to the test run again
    assert threading.active_count() <= threads + 1


class Gate:
    """Threads that end when the test does."""

    def __init__(self) -> None:
        self.began, self.gate = threading.Event(), threading.Event()

    def blocks(self) -> None:
        self.began.set()
        self.gate.wait()

    async def of_anyio(self) -> None:
        await anyio.to_thread.run_sync(self.blocks)

    async def of_asyncio(self) -> None:
        await asyncio.to_thread(self.blocks)

    async def of_own_accord(self) -> None:
        await anyio.to_thread.run_sync(self.blocks, abandon_on_cancel=True)


async def told_of(run: Callable[[Runtime, Gate], Awaitable[object]]) -> list[Notice]:
    """The notices of a runtime that runs this and is left."""
    gate, told = Gate(), list[Notice]()
    runtime = Runtime(drain_deadline=0.1)
    runtime.on_trouble = told.append
    try:
        with anyio.fail_after(300):
            async with runtime:
                await run(runtime, gate)
                await until(gate.began.is_set)
            assert not gate.gate.is_set()
    finally:
        gate.gate.set()
    return [notice for notice in told if notice.event == "threads_left"]


@pytest.mark.parametrize("way", ["of_anyio", "of_asyncio"])
async def test_leaving_tells_whose_threads_the_program_waits_for(way: str, anyio_backend_name: str) -> None:
    if way == "of_asyncio" and anyio_backend_name == "trio":
        pytest.skip("asyncio's own")

    async def run(runtime: Runtime, gate: Gate) -> None:
        limits: dict[str, Any] = {"kill_grace": 0.1, "retry": Retry(max_attempts=1)}
        await runtime.submit(Workstream("w", tasks=[Task("t", run=getattr(gate, way), **limits)]), id="w")

    (notice,) = await told_of(run)
    assert notice.facts == {"left": ["the body of w@1/t"]}
    assert "threads of the body of w@1/t still run" in notice.text


async def test_it_tells_of_an_actor() -> None:
    async def run(runtime: Runtime, gate: Gate) -> None:
        class Slow(Actor):
            async def receive(self, message: Any, ctx: Any) -> None:
                await gate.of_anyio()

        runtime.spawn(Slow, name="slow", stop_timeout=0.1).tell("go")

    (notice,) = await told_of(run)
    assert notice.facts == {"left": ["actor slow"]}


async def test_it_tells_of_none_that_nobody_waits_for(anyio_backend_name: str) -> None:
    async def run(runtime: Runtime, gate: Gate) -> None:
        def plain() -> None:
            gate.blocks()

        await runtime.submit(Workstream("w", tasks=[Task("t", run=plain, kill_grace=0.1)]))
        await until(gate.began.is_set)
        if anyio_backend_name == "trio":
            gate.began.clear()
            await runtime.submit(Workstream("v", tasks=[Task("t", run=gate.of_own_accord, kill_grace=0.1)]))

    assert await told_of(run) == []
