"""Very many commands, and applications that handle processes in unusual ways: nothing is left or lost."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.processes import carrying, children, descriptors, threads
from tests.runtime.engines.helpers import open_bench
from tests.waiting import until

from callboard import Runtime, Task, Worker, Workstream
from callboard.runtime.calling import Outcome
from callboard.runtime.engines.command import watcher
from callboard.runtime.engines.contract import Call, CommandCall

LONG = "CALLBOARD_LABORATORY" in os.environ
MANY = 2_000 if LONG else 160
AT_ONCE = 1_000 if LONG else 100
pytestmark = [pytest.mark.anyio, pytest.mark.laboratory]
ASYNCIO = pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": False})], ids=["asyncio"])
UNTIL_GATE = "while [ ! -e gate ]; do sleep 0.05; done"


KINDS: tuple[dict[str, Any], ...] = (
    {"command": ["true"]},
    {"command": ["false"]},
    {"command": "kill -9 $$", "shell": True},
    {"command": "yes | head -c 200000 || true", "shell": True},
    {"command": "sleep 600 & exit 0", "shell": True},  # leaves a process in its group
    {"command": ["no-such-program-anywhere"]},
    {"command": ["sleep", "600"], "timeout": 0.2, "kill_grace": 5},
    {"command": "trap '' TERM; sleep 600 & sleep 600", "shell": True, "timeout": 0.2, "kill_grace": 0.05},
    {"command": "kill -STOP $$", "shell": True, "timeout": 0.2, "kill_grace": 5},
    {"command": "exec >&- 2>&-; exit 0", "shell": True},
)
ENDS = ("completed", "failed", "failed", "completed", "completed", "failed", "failed", "failed", "failed", "completed")


@ASYNCIO
async def test_of_many_short_commands_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.runtime.dispatch.threads.KEPT", 0.01)  # else idle threads wait ten seconds for more
    mark = f"LABORATORY={tmp_path}"
    had = children()
    async with Runtime(outputs=tmp_path, workers=[Worker("commands", engine="command", capacity=16)]) as runtime:
        tasks = [
            Task(f"t{number}", optional=True, env={"LABORATORY": str(tmp_path)}, **KINDS[number % len(KINDS)])
            for number in range(MANY)
        ]
        before, running = descriptors(), threads("callboard")
        outcome = await (await runtime.submit(Workstream("many", tasks=tasks))).wait()
        assert outcome.ok
        assert [str(outcome.tasks[f"t{number}"].state) for number in range(MANY)] == list(ENDS) * (MANY // len(KINDS))
        # 6 more are of the thread of commands: its notifier, its selector, and what it just closed
        await until(lambda: descriptors() <= before + 6 and len(threads("callboard") - running) <= 1)
        await until(lambda: children() <= had and not carrying(mark))
    await until(lambda: threads("callboard") <= running)


@ASYNCIO
async def test_as_many_commands_as_wanted_run_at_once_and_all_are_stopped(tmp_path: Path) -> None:
    had = children()
    async with open_bench("command", tmp_path) as bench:
        for token in range(AT_ONCE):
            bench.start_call(Call(token=token, grace=60, command=CommandCall(argv=["sleep", "600"])))
        with anyio.fail_after(300):
            while len(bench.record.started) < AT_ONCE:
                await anyio.sleep(0.01)
        assert len(children() - had) == AT_ONCE
        for token in range(AT_ONCE):
            bench.engine.stop(token)
        with anyio.fail_after(300):
            while len(bench.record.outcomes) < AT_ONCE:
                await anyio.sleep(0.01)
        assert {one.status for [one] in bench.record.outcomes.values()} == {"cancelled"}
    await until(lambda: children() <= had)


@ASYNCIO
async def test_a_stop_does_not_wait_for_the_starts_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    popen, signal_group = subprocess.Popen, watcher.signal_group
    stopped, begun, begun_at_stop = threading.Event(), list[object](), list[int]()

    def starts(*words: Any, **more: Any) -> Any:
        begun.append(words)
        assert len(begun) == 1 or stopped.wait(600)  # the stop comes while the first of the others is started
        return popen(*words, **more)

    def signals(group: int, number: int) -> None:
        begun_at_stop.append(len(begun))
        signal_group(group, number)

    monkeypatch.setattr(watcher, "signal_group", signals)
    monkeypatch.setattr(subprocess, "Popen", starts)
    async with open_bench("command", tmp_path) as bench:
        bench.start_call(Call(token=0, grace=60, command=CommandCall(argv=["sleep", "600"])))
        await bench.record.until(lambda: 0 in bench.record.started)
        for token in range(1, 201):
            bench.start_call(Call(token=token, command=CommandCall(argv=["sleep", "600"])))
        bench.engine.stop(0)
        stopped.set()
        await bench.record.outcome(0)
        assert begun_at_stop[0] < 50
        for token in range(1, 201):
            bench.engine.stop(token, force=True)


@contextlib.contextmanager
def few_descriptors(more: int) -> Iterator[int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = descriptors() + more
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield limit
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@ASYNCIO
async def test_with_few_descriptors_commands_wait_for_one_another_and_leave_some_for_others(tmp_path: Path) -> None:
    number = 60
    async with open_bench("command", tmp_path) as bench:
        with few_descriptors(80) as limit:
            for token in range(number):
                one = CommandCall(shell=UNTIL_GATE, cwd=str(tmp_path), output_path=tmp_path / f"{token}.out")
                bench.start_call(Call(token=token, command=one))
            bench.start_call(Call(token=number, command=CommandCall(argv=["true"])))
            watcher = bench.engine._watcher  # type: ignore[union-attr]
            assert watcher is not None
            await until(lambda: watcher._held_up is not None and len(bench.record.started) > 5)
            assert len(bench.record.started) < 30
            assert descriptors() <= limit - limit // 5
            bench.engine.stop(number)
            assert "for which it waited: Too many open files" in str((await bench.record.outcome(number)).error)
            (tmp_path / "gate").touch()
            await bench.record.until(lambda: len(bench.record.outcomes) == number + 1)
    assert Counter(one.status for [one] in bench.record.outcomes.values()) == {"ok": number, "cancelled": 1}


@ASYNCIO
@pytest.mark.parametrize("alone", [False, True])
async def test_where_no_process_can_be_had_a_command_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    async with open_bench("command", tmp_path) as bench:
        if alone:
            (tmp_path / "gate").touch()
        bench.start_call(Call(token=1, command=CommandCall(shell=UNTIL_GATE, cwd=str(tmp_path))))
        await bench.record.until(lambda: 1 in (bench.record.outcomes if alone else bench.record.started))
        import subprocess

        real: Any = subprocess.Popen
        tried = threading.Event()

        def scarce(*args: Any, **more: Any) -> Any:
            if not tried.is_set():
                tried.set()
                raise BlockingIOError(11, "Resource temporarily unavailable")
            return real(*args, **more)

        monkeypatch.setattr(subprocess, "Popen", scarce)
        bench.start_call(Call(token=2, command=CommandCall(argv=["true"])))
        await until(tried.is_set)
        (tmp_path / "gate").touch()
        assert (await bench.record.outcome(2)).status == "ok"


def peak() -> int:
    """The largest resident size since it was last reset, in KiB."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1])


@ASYNCIO
async def test_a_huge_output_is_counted_and_not_kept(tmp_path: Path) -> None:
    size = 200_000_000
    async with open_bench("command", tmp_path) as bench:
        bench.start_call(Call(token=1, command=CommandCall(argv=["true"])))
        await bench.record.outcome(1)
        Path("/proc/self/clear_refs").write_text("5")
        before = peak()
        flood = CommandCall(argv=["head", "-c", str(size), "/dev/zero"], output_path=tmp_path / "out")
        bench.start_call(Call(token=2, command=flood))
        with anyio.fail_after(300):
            while 2 not in bench.record.outcomes:
                await anyio.sleep(0.01)
        outcome = await bench.record.outcome(2)
        assert (outcome.status, outcome.output_size) == ("ok", size)
        assert (tmp_path / "out").stat().st_size == 1_048_576
        assert peak() - before < 16_384


@ASYNCIO
async def test_a_command_that_closes_its_output_is_over_when_it_exits(tmp_path: Path) -> None:
    script = f"exec <&- >&- 2>&-; {UNTIL_GATE}; exit 3"
    async with open_bench("command", tmp_path) as bench:
        bench.start_call(Call(token=1, command=CommandCall(shell=script, cwd=str(tmp_path))))
        await bench.record.until(lambda: 1 in bench.record.started)
        child = bench.engine._runs[1].child  # type: ignore[union-attr]
        await until(lambda: child.pipe < 0)
        assert not bench.record.outcomes
        (tmp_path / "gate").touch()
        assert (await bench.record.outcome(1)).exit_code == 3


# -- the host's own ways with processes --


@pytest.fixture
def reaper() -> Iterator[None]:
    """A host that reaps every ended process, as old servers do."""

    def reap(*_: object) -> None:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    before = signal.signal(signal.SIGCHLD, reap)
    yield
    signal.signal(signal.SIGCHLD, before)


async def outcomes_of(bench: Any, calls: dict[int, CommandCall]) -> list[Outcome]:
    for token, call in calls.items():
        bench.start_call(Call(token=token, command=call))
    await bench.record.until(lambda: bench.record.outcomes.keys() >= calls.keys())
    return [bench.record.outcomes[token][0] for token in calls]


@pytest.mark.usefixtures("reaper")
@ASYNCIO
async def test_a_host_that_reaps_everything_costs_exit_codes_and_nothing_else(tmp_path: Path) -> None:
    had = children()
    async with open_bench("command", tmp_path) as bench:
        ends = await outcomes_of(bench, {token: CommandCall(argv=["true"]) for token in range(30)})
        for one in ends:
            assert one.status == "ok" or (one.error is not None and one.error.type == "exit_status_lost")
        bench.start_call(Call(token=99, grace=60, command=CommandCall(argv=["sleep", "600"])))
        await bench.record.until(lambda: 99 in bench.record.started)
        bench.engine.stop(99)
        assert (await bench.record.outcome(99)).status == "cancelled"
    await until(lambda: children() <= had)


async def test_the_processes_of_the_host_and_ours_end_beside_each_other(tmp_path: Path) -> None:
    codes: list[int | None] = []

    async def host(code: int) -> None:
        codes.append((await anyio.run_process(["sh", "-c", f"exit {code}"], check=False)).returncode)

    async with open_bench("command", tmp_path) as bench, anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(host, number)
        ends = await outcomes_of(bench, {n: CommandCall(shell=f"exit {n}") for n in range(10)})
        assert [one.exit_code for one in ends] == list(range(10))
    assert sorted(code for code in codes if code is not None) == list(range(10))


@ASYNCIO
async def test_many_that_ignore_sigterm_hold_up_no_leaving_and_their_tries_are_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callboard.runtime.lifespan.closing.CLOSING", 1.0)
    number = 20
    script = "trap '' TERM; touch $NAME; while :; do sleep 1; done"
    tasks = [
        Task(f"t{n}", command=script, shell=True, env={"NAME": str(tmp_path / f"up{n}")}, kill_grace=600)
        for n in range(number)
    ]
    workers = [Worker("commands", engine="command", capacity=number)]
    had = children()
    async with Runtime(tmp_path / "state.db", workers=workers, drain_deadline=0) as runtime:
        await runtime.submit(Workstream("stubborn", tasks=tasks), id="one")
        await until(lambda: all((tmp_path / f"up{n}").exists() for n in range(number)))
    await until(lambda: children() <= had)
    async with Runtime(tmp_path / "state.db", workers=[], drain_deadline=0) as runtime:
        (job,) = runtime.recovered
        counted = {(str(task.state), task.lost_attempts, task.failed_attempts) for task in job.tasks()}
        assert counted == {("queued", 0, 0)}
