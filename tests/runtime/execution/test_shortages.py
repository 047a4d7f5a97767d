"""Too few descriptors, processes or threads for a start: it happens later, and counts as no failure."""

from __future__ import annotations

import errno
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.engines import process_bodies as bodies
from tests.waiting import until

from callboard import Check, Condition, HealthChecks, Hook, Notice, Runtime, Task, Worker, Workstream
from callboard.runtime.dispatch.clock import VirtualClock
from callboard.runtime.engines.shortage import NOT_NOW, Pauses, is_shortage

pytestmark = pytest.mark.anyio
WORKERS = (
    Worker("p", engine="process"), Worker("q", engine="process"), Worker("c", engine="command"),
    Worker("t", engine="thread"),
)  # fmt: skip


@pytest.fixture
def anyio_backend() -> str:
    """One event loop: a shortage does not depend on it."""
    return "asyncio"


class Shortage:
    """A resource that is missing until the test provides it, once or from then on."""

    def __init__(self) -> None:
        self.refused = 0
        self.over = False
        self.once = threading.Semaphore(0)

    def of(self, real: Any, error: Exception) -> Any:
        def have(*args: Any, **more: Any) -> Any:
            if self.over or self.once.acquire(blocking=False):
                return real(*args, **more)
            self.refused += 1
            raise error

        return have


def no_descriptors(patch: pytest.MonkeyPatch, short: Shortage) -> None:
    patch.setattr(socket, "socketpair", short.of(socket.socketpair, OSError(errno.EMFILE, "Too many open files")))


def no_processes(patch: pytest.MonkeyPatch, short: Shortage) -> None:
    patch.setattr(subprocess, "Popen", short.of(subprocess.Popen, BlockingIOError(errno.EAGAIN, "none for now")))


def no_memory(patch: pytest.MonkeyPatch, short: Shortage) -> None:
    patch.setattr(subprocess, "Popen", short.of(subprocess.Popen, OSError(errno.ENOMEM, "Cannot allocate memory")))


def no_threads(patch: pytest.MonkeyPatch, short: Shortage) -> None:
    patch.setattr(threading.Thread, "start", short.of(threading.Thread.start, RuntimeError("can't start new thread")))


def no_pipes(patch: pytest.MonkeyPatch, short: Shortage) -> None:
    patch.setattr(os, "pipe", short.of(os.pipe, OSError(errno.ENFILE, "Too many open files in system")))


PROCESS = Task("a", run=bodies.quick, engine="process", timeout=60)
COMMAND = Task("a", command=["true"], timeout=60)
THREAD = Task("a", run=bodies.quick, engine="thread", timeout=60)
SHORT: list[tuple[Callable[[pytest.MonkeyPatch, Shortage], None], Task]] = [
    (no_descriptors, PROCESS), (no_processes, PROCESS), (no_memory, PROCESS), (no_threads, PROCESS),
    (no_pipes, PROCESS), (no_processes, COMMAND), (no_memory, COMMAND), (no_threads, COMMAND), (no_pipes, COMMAND),
    (no_threads, THREAD),
]  # fmt: skip


@pytest.mark.parametrize(("short", "task"), SHORT)
async def test_a_shortage_delays_a_start_and_costs_no_try_and_no_loss(
    monkeypatch: pytest.MonkeyPatch, short: Callable[[pytest.MonkeyPatch, Shortage], None], task: Task
) -> None:
    notices: list[Notice] = []
    clock, shortage = VirtualClock(), Shortage()
    runtime = Runtime(workers=WORKERS, health_checks=HealthChecks(interval="1h", loop_blocked=0), clock=clock)
    runtime.on_trouble = notices.append
    async with runtime:
        with monkeypatch.context() as patch:
            short(patch, shortage)
            job = await runtime.submit(Workstream("w", tasks=[task]))
            await until(lambda: runtime.health.reason is not None)
            assert runtime.health.ok
            assert "nothing more can be started now" in str(runtime.health.reason)
            clock.advance(100)  # longer than its limit
            before = shortage.refused
            await until(lambda: shortage.refused > before)
            shortage.over = True
            clock.advance(10)  # longer than the longest pause between two tries
            record = (await job.wait()).tasks["a"]
        assert (record.state, record.attempt, record.lost_attempts, record.failed_attempts) == ("completed", 1, 0, 0)
        assert runtime.health.reason is None
        assert {worker.record.run for worker in runtime.workers()} == {1}
    assert [notice.event for notice in notices] == ["start_delayed"]


async def test_a_worker_process_that_finds_too_little_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poor = tmp_path / "poor-python"
    poor.write_text(
        f"#!/bin/sh\necho x >> {tmp_path}/starts\n"
        f'[ $(wc -l < {tmp_path}/starts) -gt 2 ] || exit {NOT_NOW}\nexec {sys.executable} "$@"\n'
    )
    poor.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(poor))
    async with Runtime(workers=WORKERS) as runtime:
        job = await runtime.submit(Workstream("w", tasks=[PROCESS]))
        record = (await job.wait()).tasks["a"]
        assert (record.state, record.attempt, record.lost_attempts) == ("completed", 1, 0)
        assert runtime.worker("p").record.run == runtime.worker("q").record.run == 1


async def test_conditions_checks_and_hooks_wait_too_and_their_limits_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def runs(name: str) -> dict[str, Any]:
        return {"command": ["sh", "-c", f"echo x >> {tmp_path}/{name}"], "timeout": 60}

    parts = Task(
        "a", command=["true"], condition=Condition(**runs("condition")), checks=[Check(**runs("check"))],
        on_completed=[Hook(**runs("hook"))],
    )  # fmt: skip
    clock, shortage = VirtualClock(), Shortage()
    no_processes(monkeypatch, shortage)
    async with Runtime(workers=WORKERS, clock=clock) as runtime:
        job = await runtime.submit(Workstream("w", tasks=[parts]))
        for _ in ("the condition", "the body", "the check", "the hook"):
            before = shortage.refused
            await until(lambda before=before: shortage.refused > before + 1)
            clock.advance(100)  # longer than their limits
            shortage.once.release()
        assert (await job.wait()).state == "completed"
        await until((tmp_path / "hook").exists)
        shortage.over = True
        assert runtime.failed_hooks == 0
    assert [(tmp_path / name).read_text() for name in ("condition", "check", "hook")] == ["x\n"] * 3


@pytest.mark.parametrize("task", [PROCESS, COMMAND, THREAD], ids=["process", "command", "thread"])
async def test_what_waits_for_its_start_can_be_cancelled_at_once(monkeypatch: pytest.MonkeyPatch, task: Task) -> None:
    async with Runtime(workers=WORKERS) as runtime:
        with monkeypatch.context() as patch:
            no_processes(patch, Shortage())
            if task is THREAD:
                no_threads(patch, Shortage())
            job = await runtime.submit(Workstream("w", tasks=[task]))
            await until(lambda: runtime.health.reason is not None)
            await job.cancel()
            assert (await job.wait()).tasks["a"].state == "cancelled"
        assert runtime.health.reason is None


def test_which_errors_are_a_shortage() -> None:
    assert is_shortage(OSError(errno.EMFILE, ""))
    assert is_shortage(MemoryError())
    assert is_shortage(RuntimeError("can't start new thread"))
    assert not is_shortage(RuntimeError("something else"))
    assert not is_shortage(OSError(errno.ENOSPC, ""))  # waiting frees no disk space


def test_pauses_grow_and_begin_anew() -> None:
    pauses = Pauses()
    assert [pauses.next() for _ in range(8)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5])
    pauses.over()
    assert pauses.next() == pytest.approx(0.1)


@contextmanager
def no_more_files(free: int) -> Generator[None]:
    """All descriptors that this process may have are taken, but for so many."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 60, before[1]))  # noqa: PTH208
    taken: list[int] = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(free):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for one in taken:
            os.close(one)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.parametrize("free", [0, 5])
async def test_a_program_without_descriptors_loses_nothing_with_any_worker(tmp_path: Path, free: int) -> None:
    pool = [Worker(f"p{number}", engine="process") for number in range(3)]
    pool += [Worker("c", engine="command", capacity=3), Worker("t", engine="thread", capacity=3)]
    async with Runtime(tmp_path / "j.db", workers=pool) as runtime:
        with no_more_files(free):
            tasks = [Task(f"p{number}", run=bodies.quick, engine="process") for number in range(3)]
            tasks += [Task(f"c{number}", command=["true"]) for number in range(3)]
            tasks += [Task("reads", command=["sh", "-c", 'test -s "$CALLBOARD_RESULTS"'], depends_on=["t"])]
            tasks += [Task("t", run=bodies.quick, engine="thread", on_completed=[Hook(command=["true"])])]
            job = await runtime.submit(Workstream("w", tasks=tasks))
            await until(lambda: runtime.health.reason is not None)
        outcome = await job.wait()
        assert outcome.state == "completed"
        counts = {(one.attempt, one.lost_attempts, one.failed_attempts) for one in outcome.tasks.values()}
        assert counts == {(1, 0, 0)}
        assert {worker.record.run for worker in runtime.workers()} == {1}
        assert runtime.failed_hooks == 0
