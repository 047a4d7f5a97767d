"""Commands: processes, groups, output, signals, and leftover processes."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.processes import children, descriptors, runs, threads
from tests.waiting import until, wait_until

from callboard.runtime.calling import Outcome, ProcessInfo
from callboard.runtime.engines import process_watcher
from callboard.runtime.engines.command import shell as shells
from callboard.runtime.engines.command import watcher as watch
from callboard.runtime.engines.command.output import Output
from callboard.runtime.engines.contract import Call, CommandCall
from callboard.runtime.processes import os_processes as processes
from callboard.runtime.processes.os_processes import kill_leftover, start_time

from .helpers import Bench, open_bench

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not hasattr(os, "waitid"), reason="needs waitid"),
]

PYTHON = [sys.executable, "-S", "-c"]


@contextlib.asynccontextmanager
async def commands(folder: Path) -> Any:
    async with open_bench("command", folder) as bench:
        yield bench


def command(*argv: str, **more: Any) -> CommandCall:
    return CommandCall(argv=list(argv), **more)


async def run(bench: Bench, call: CommandCall, token: int = 1, grace: float = 10) -> Outcome:
    bench.start_call(Call(token=token, command=call, grace=grace))
    return await bench.record.outcome(token)


# -- what it runs --


async def test_environment_folder_and_input(tmp_path: Path) -> None:
    script = (
        "import os, sys; told = os.environ; "
        "print(told['CALLBOARD_FENCING_TOKEN'], told['X'], os.getcwd(), repr(sys.stdin.read()))"
    )
    out = tmp_path / "logs" / "out.txt"
    async with commands(tmp_path) as bench:
        outcome = await run(
            bench, command(*PYTHON, script, cwd=str(tmp_path), env={"X": "a b; $c"}, output_path=out), token=41
        )
    assert outcome.output_path == str(out)
    assert out.read_text() == f"41 a b; $c {tmp_path} ''\n"
    assert outcome.output_size == out.stat().st_size
    assert outcome.output_tail == f"41 a b; $c {tmp_path} ''"


async def test_it_hears_signals_that_the_application_blocks(tmp_path: Path) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])
    try:
        async with commands(tmp_path) as bench:
            outcome = await run(bench, command("/bin/grep", "SigBlk", "/proc/self/status"))
            bench.start_call(Call(token=2, command=command("/bin/sh", "-c", "echo on; exec sleep 60"), grace=30))
            await until(lambda: bench.engine.tail(2) == "on")
            bench.engine.stop(2)
            assert (await bench.record.outcome(2)).exit_code == -signal.SIGTERM
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert int(outcome.output_tail.split()[1], 16) == 0


async def test_a_shell_only_when_asked_for(tmp_path: Path) -> None:
    async with commands(tmp_path) as bench:
        plain = await run(bench, command("echo", "$HOME && false"))
        shell = await run(bench, CommandCall(shell='echo "$X" | tr a-z A-Z; exit 3', env={"X": "up"}), token=2)
    assert plain.output_tail == "$HOME && false"
    assert (shell.status, shell.exit_code, shell.output_tail) == ("failed", 3, "UP")


async def test_a_pipeline_fails_with_any_part_of_it(tmp_path: Path) -> None:
    async with commands(tmp_path) as bench:
        hidden = await run(bench, CommandCall(shell=f"false | tee {tmp_path}/x"))
        fine = await run(bench, CommandCall(shell=f"echo fine | tee {tmp_path}/x"), token=2)
        wanted = await run(bench, CommandCall(shell=f"set +o pipefail; false | tee {tmp_path}/x"), token=3)
    assert (hidden.status, hidden.exit_code) == ("failed", 1)
    assert (fine.status, wanted.status) == ("ok", "ok")


async def test_without_bash_a_text_is_run_by_the_plain_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shells, "bash", lambda: None)
    assert [shells.hides_failures(text) for text in ("a | b", "a || b", "a")] == [True, False, False]
    async with commands(tmp_path) as bench:
        outcome = await run(bench, CommandCall(shell="false | true; echo $0"))
    assert (outcome.status, outcome.output_tail) == ("ok", "/bin/sh")


@pytest.mark.parametrize(("expected", "status"), [([0], "failed"), ([3], "ok"), ([0, 3], "ok"), ([], "failed")])
async def test_exit_codes_are_compared(tmp_path: Path, expected: list[int], status: str) -> None:
    async with commands(tmp_path) as bench:
        outcome = await run(bench, CommandCall(shell="echo why; exit 3", expected_exit_codes=expected))
    assert (outcome.status, outcome.exit_code) == (status, 3)
    if outcome.error is not None:
        assert outcome.error.type == "exit_code"
        assert "exited with 3" in outcome.error.message
        assert outcome.error.message.endswith("why")


async def test_death_by_a_signal_is_told(tmp_path: Path) -> None:
    async with commands(tmp_path) as bench:
        outcome = await run(bench, CommandCall(shell="kill -SEGV $$"))
        killed = await run(bench, CommandCall(shell="kill -KILL $$"), token=2)
    assert (outcome.status, outcome.exit_code) == ("failed", -signal.SIGSEGV)
    assert outcome.error is not None
    assert outcome.error.type == "killed_by_signal"
    assert "SIGSEGV" in outcome.error.message
    assert killed.error is not None
    assert "out of memory?" in killed.error.message


# -- what it cannot run --


def write_script(path: Path, text: str, mode: int = 0o755) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


async def test_what_cannot_be_started_says_what_to_do(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    cases: list[tuple[CommandCall, str, str]] = [
        (command("no-such-program-anywhere"), "command_not_found", "on the PATH"),
        (command("./missing"), "command_not_found", "no file './missing'"),
        (command(write_script(tmp_path / "plain", "#!/bin/sh\n", 0o644)), "command_not_executable", "chmod"),
        (command(write_script(tmp_path / "odd", "no first line")), "command_not_executable", "#!/bin/sh"),
        (command(write_script(tmp_path / "lost", "#!/no/such/interp\n")), "command_not_found", "interpreter"),
        (command("true", cwd=str(tmp_path / "nowhere")), "bad_working_directory", "nowhere"),
        (command(str(tmp_path)), "command_not_executable", "is a folder, and no program; name a program"),
        (command(str(loop)), "command_not_found", "leads nowhere"),
        (command("/" + "x" * 5_000), "command_not_found", "leads nowhere"),
        (command("true", cwd=str(loop)), "bad_working_directory", "there is no folder"),
        (command("true", cwd="/" + "x" * 5_000), "bad_working_directory", "there is no folder"),
        (command("echo", "x" * 200_000), "command_too_large", "argument 1 has 200,001 bytes"),
        (CommandCall(shell="true " + "x" * 200_000), "command_too_large", "the line for the shell has"),
        (command("true", env={"ROWS": "x" * 200_000}), "command_too_large", "the variable ROWS has 200,006 bytes"),
        (command("true", *["x" * 100_000] * 100), "command_too_large", "its arguments and its environment have 10,"),
        (command("echo", "a\0b"), "command_not_encodable", "argument 1 holds a NUL byte"),
        (command("echo", "a\ud800b"), "command_not_encodable", "argument 1 holds a lone surrogate"),
        (CommandCall(shell="echo \ud800"), "command_not_encodable", "the line for the shell holds a lone surrogate"),
        (command("true", env={"A": "b\0"}), "command_not_encodable", "the variable A holds a NUL byte"),
        (command("true", env={"A=B": "c"}), "command_not_encodable", "holds a '='"),
        (command("true", cwd="a\0b"), "command_not_encodable", "its folder holds a NUL byte"),
    ]
    async with commands(tmp_path) as bench:
        for token, (call, kind, text) in enumerate(cases, 1):
            outcome = await run(bench, call, token)
            error = outcome.error
            assert error is not None
            assert (outcome.status, error.type, error.permanent) == ("failed", kind, True)
            assert text in error.message
            assert len(error.message) < 1_000
            assert error.category == "permanent"
        assert not bench.record.started


async def test_other_troubles_of_starting_are_failures_too(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    async with commands(tmp_path) as bench:
        unwritable = await run(bench, command("true", output_path=blocker / "out"), token=3)
        assert (await run(bench, command("true"), token=4)).status == "ok"
    assert unwritable.error is not None
    assert unwritable.error.type == "OutputUnwritable"
    assert not unwritable.error.permanent


@pytest.mark.parametrize(
    ("number", "category"),
    [
        (errno.ENOSPC, "resources"), (errno.ETXTBSY, "transient"),
        (errno.EIO, "transient"), (errno.ESTALE, "transient"), (errno.EXDEV, "unknown"),
    ],
)  # fmt: skip
async def test_what_may_pass_by_itself_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, category: str
) -> None:
    def full(*_args: Any, **_more: Any) -> None:
        raise OSError(number, os.strerror(number))

    async with commands(tmp_path) as bench:
        assert (await run(bench, command("true"))).status == "ok"
        monkeypatch.setattr(subprocess, "Popen", full)
        outcome = await run(bench, command("true"), token=2)
    assert outcome.error is not None
    assert (outcome.error.category, outcome.error.permanent) == (category, False)


# -- its output --


async def test_a_flood_of_both_streams_is_capped(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "print('the very first')\n"
        "for n in range(20000):\n"
        "    sys.stdout.write('o' * 99 + '\\n'); sys.stderr.write('e' * 99 + '\\n')\n"
        "sys.stdout.flush(); print('the very last')"
    )
    out = tmp_path / "out"
    async with commands(tmp_path) as bench:
        outcome = await run(bench, command(*PYTHON, script, output_path=out, output_limit=100_000))
    kept = out.read_bytes()
    assert outcome.status == "ok"
    assert outcome.output_size == 4_000_000 + len("the very first\n" + "the very last\n")
    assert len(kept) == 100_000
    assert kept.startswith((b"e", b"the very first"))
    assert kept.endswith(b"the very last\n")
    note = kept[50_000:].split(b"\n")[1]
    left_out = int(note.split()[1])
    assert left_out == outcome.output_size - (100_000 - len(note) - 2)
    assert outcome.output_tail.endswith("the very last")


async def test_a_huge_line_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = "import os, sys\nfor _ in range(320): os.write(1, b'x' * 65536)\nos.write(1, b'\\xff\\xfe end')"
    async with commands(tmp_path) as bench:
        outcome = await run(bench, command(*PYTHON, script, output_path=out))
    assert outcome.status == "ok"
    assert outcome.output_size == 320 * 65_536 + 6
    assert out.stat().st_size == 1_048_576
    assert out.read_bytes().endswith(b"\xff\xfe end")
    assert outcome.output_tail.endswith("\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER} end")
    assert len(outcome.output_tail) <= 4_000


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
async def test_a_full_disk_loses_output_not_the_command(tmp_path: Path) -> None:
    async with commands(tmp_path) as bench:
        outcome = await run(bench, command("echo", "hello", output_path=Path("/dev/full")))
    assert outcome.status == "ok"
    assert outcome.output_size == 6
    assert outcome.output_tail == "hello\n(the rest of the output could not be kept: No space left on device)"


async def test_the_last_line_is_there_while_it_runs(tmp_path: Path) -> None:
    script = "import time; print('one'); print('10%\\r\\x1b[32m50%\\x1b[0m', end='', flush=True); time.sleep(60)"
    async with commands(tmp_path) as bench:
        bench.start_call(Call(token=1, command=command(*PYTHON, script)))
        await until(lambda: bench.engine.tail(1) == "50%")
        bench.engine.stop(1)
        outcome = await bench.record.outcome(1)
        assert bench.engine.tail(1) == ""
    assert outcome.output_tail == "one\n10%\n50%"


async def test_a_busy_loop_does_not_hold_up_a_command(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    script = f"import os; [os.write(1, b'x' * 65536) for _ in range(20)]; open({str(flag)!r}, 'w').close()"
    async with commands(tmp_path) as bench:
        bench.start_call(Call(token=1, command=command(*PYTHON, script)))
        limit = time.monotonic() + 60
        while not flag.exists():
            assert time.monotonic() < limit
        assert (await bench.record.outcome(1)).status == "ok"


# -- its end --


async def test_sigterm_then_sigkill_after_the_grace(tmp_path: Path) -> None:
    script = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(600)"
    )
    async with commands(tmp_path) as bench:
        bench.start_call(Call(token=1, command=command(*PYTHON, script), grace=0.1))
        await until(lambda: bench.engine.tail(1) == "on")
        bench.engine.stop(1)
        outcome = await bench.record.outcome(1)
    assert (outcome.status, outcome.exit_code) == ("cancelled", -signal.SIGKILL)
    assert 0.1 <= outcome.duration < 300


async def test_a_command_that_exits_well_on_sigterm_is_still_cancelled(tmp_path: Path) -> None:
    script = "trap 'echo bye; exit 0' TERM; echo on; while :; do sleep 0.01; done"
    async with commands(tmp_path) as bench:
        bench.start_call(Call(token=1, command=CommandCall(shell=script)))
        await until(lambda: bench.engine.tail(1) == "on")
        bench.engine.stop(1)
        outcome = await bench.record.outcome(1)
    assert (outcome.status, outcome.exit_code) == ("cancelled", 0)
    assert outcome.output_tail.endswith("bye")


async def test_a_stopped_process_hears_its_stop(tmp_path: Path) -> None:
    async with commands(tmp_path) as bench:
        bench.start_call(Call(token=1, command=CommandCall(shell="echo on; kill -STOP $$; sleep 60"), grace=600))
        await until(lambda: bench.engine.tail(1) == "on")
        bench.engine.stop(1)
        assert (await bench.record.outcome(1)).exit_code == -signal.SIGTERM


async def test_it_is_over_when_it_exits_and_its_group_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid_file = tmp_path / "pid"
    script = f"sleep 600 & echo $! > {pid_file}; echo done"
    monkeypatch.setattr(watch, "_UNKILLABLE", 240.0)  # a killed process may take its time to exit
    async with commands(tmp_path) as bench:
        outcome = await run(bench, CommandCall(shell=script))
        assert (outcome.status, outcome.escaped, outcome.output_tail) == ("ok", False, "done")
        assert outcome.duration < 300
        await until(lambda: not runs(int(pid_file.read_text())))


async def test_a_killed_process_that_has_not_exited_yet_has_not_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, looks, exists = tmp_path / "gate", 0, watch._exists

    def looked(group: int) -> bool:
        nonlocal looks
        looks += 1
        if looks == 2:
            gate.touch()
        return exists(group)

    monkeypatch.setattr(watch, "_exists", looked)
    monkeypatch.setattr(watch, "_UNKILLABLE", 240.0)
    monkeypatch.setattr(process_watcher, "signal_group", lambda group, number: None)  # it takes its time to die
    async with commands(tmp_path) as bench:
        slow = f"(until [ -e {gate} ]; do sleep 0.01; done) & echo done"
        outcome = await run(bench, CommandCall(shell=slow))
    assert (outcome.status, outcome.escaped, outcome.output_tail) == ("ok", False, "done")


async def test_a_stop_reaches_the_whole_group(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"sleep 600 & echo $! > {pid_file}; echo on; wait"
    async with commands(tmp_path) as bench:
        bench.start_call(Call(token=1, command=CommandCall(shell=script)))
        await until(lambda: bench.engine.tail(1) == "on")
        bench.engine.stop(1)
        assert (await bench.record.outcome(1)).status == "cancelled"
        await until(lambda: not runs(int(pid_file.read_text())))


async def test_a_descendant_that_left_the_group_is_reported(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = (
        "import os, sys, time\n"
        "if os.fork() == 0:\n"
        f"    os.setsid(); open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(600)\n"
        f"while not os.path.exists({str(pid_file)!r}) or not os.path.getsize({str(pid_file)!r}): time.sleep(0.001)\n"
    )
    async with commands(tmp_path) as bench:
        outcome = await run(bench, command(*PYTHON, script))
    escaped = int(pid_file.read_text())
    try:
        assert (outcome.status, outcome.escaped) == ("ok", True)
        assert runs(escaped)
    finally:
        os.kill(escaped, signal.SIGKILL)


async def test_what_sigkill_does_not_end_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_UNKILLABLE", 0.05)
    monkeypatch.setattr(watch, "signal_group", lambda group, number: None)  # as if it hung in the kernel
    async with commands(tmp_path) as bench:
        bench.start_call(Call(token=1, command=command("sleep", "600")))
        await bench.record.until(lambda: 1 in bench.record.started)
        bench.engine.stop(1, force=True)
        assert (await bench.record.outcome(1)).status == "abandoned"
        assert not bench.engine.stop(1)
        monkeypatch.undo()
        os.killpg(bench.record.started[1].pgid, signal.SIGKILL)
        await until(lambda: bench.engine.late_results == 1)
        assert (await run(bench, command("true"), token=2)).status == "ok"


async def test_trouble_with_one_command_ends_that_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(output: Any, data: bytes) -> None:
        raise MemoryError

    async with commands(tmp_path) as bench:
        bench.start_call(Call(token=1, command=command("sleep", "600")))
        await bench.record.until(lambda: 1 in bench.record.started)
        monkeypatch.setattr(Output, "write", broken)
        outcome = await run(bench, CommandCall(shell="echo hello; sleep 600"), token=2)
        monkeypatch.undo()
        assert outcome.status == "failed"
        assert outcome.error is not None
        assert outcome.error.type == "MemoryError"
        assert not runs(bench.record.started[2].pid)
        bench.engine.stop(1)
        assert (await bench.record.outcome(1)).status == "cancelled"


async def test_nothing_is_left_behind_by_many(tmp_path: Path) -> None:
    running = threads("callboard-commands")
    async with commands(tmp_path) as bench:
        await run(bench, command("true"))
        before, had = descriptors(), children()
        for token in range(2, 62):
            call = command("true") if token % 3 else command("no-such-program-anywhere")
            bench.start_call(Call(token=token, command=call))
        await bench.record.until(lambda: len(bench.record.outcomes) == 61)
        with contextlib.suppress(TimeoutError):
            await until(lambda: descriptors() <= before and children() <= had)
        assert (max(descriptors(), before), children() - had) == (before, set())
    assert sorted(bench.record.started) == [n for n in range(1, 62) if n == 1 or n % 3]
    await until(lambda: threads("callboard-commands") <= running)


# -- the host program's ways --


@pytest.fixture
def _sigchld_ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("_sigchld_ignored")
async def test_a_lost_exit_status_is_told_plainly(tmp_path: Path) -> None:
    async with commands(tmp_path) as bench:
        outcome = await run(bench, command("true"))
        bench.start_call(Call(token=2, command=command("sleep", "600")))
        await bench.record.until(lambda: 2 in bench.record.started)
        bench.engine.stop(2)
        assert (await bench.record.outcome(2)).status == "cancelled"
    assert (outcome.status, outcome.exit_code) == ("failed", None)
    assert outcome.error is not None
    assert outcome.error.type == "exit_status_lost"
    assert "SIGCHLD" in outcome.error.message


async def test_without_pidfds_a_thread_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(pid: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", unknown)
    async with commands(tmp_path) as bench:
        assert (await run(bench, CommandCall(shell="exit 4"))).exit_code == 4
        bench.start_call(Call(token=2, command=command("sleep", "600")))
        await bench.record.until(lambda: 2 in bench.record.started)
        bench.engine.stop(2)
        assert (await bench.record.outcome(2)).exit_code == -signal.SIGTERM


def test_on_a_loop_outside_the_main_thread(tmp_path: Path, anyio_backend: Any) -> None:
    ends: list[Outcome] = []

    async def main() -> None:
        async with commands(tmp_path) as bench:
            ends.append(await run(bench, command("echo", "hello")))

    thread = threading.Thread(
        target=lambda: anyio.run(main, backend=anyio_backend[0], backend_options=anyio_backend[1])
    )
    thread.start()
    thread.join()
    assert [one.output_tail for one in ends] == ["hello"]


# -- what a killed runtime left --


@contextlib.contextmanager
def left_behind(script: str, token: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        ["/bin/sh", "-c", script],
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "CALLBOARD_FENCING_TOKEN": str(token)},
    )
    with process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def until_shown(pid: int) -> None:
    """Wait for a process's environment: it is empty for a moment while the program is being loaded."""
    wait_until(Path(f"/proc/{pid}/environ").read_bytes, "its environment")


def test_a_leftover_is_killed_only_if_it_is_the_one() -> None:
    with left_behind("sleep 600", 77) as process:
        until_shown(process.pid)
        pid, started = process.pid, start_time(process.pid)
        assert started > 0
        assert not kill_leftover(ProcessInfo(78, pid, pid, started))
        assert not kill_leftover(ProcessInfo(77, pid, pid, started + 1))
        assert process.poll() is None
        assert kill_leftover(ProcessInfo(77, pid, pid, started))
        assert process.wait() == -signal.SIGKILL
        assert not kill_leftover(ProcessInfo(77, pid, pid, started))


def test_a_leftover_group_of_which_one_process_ends_while_it_is_looked_at_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with left_behind("sleep 600 & echo $!; wait", 78) as process:
        assert process.stdout is not None
        passing = int(process.stdout.readline())
        until_shown(passing)
        known_by = ProcessInfo(78, passing, process.pid, start_time(passing))
        monkeypatch.setattr(processes, "start_time", lambda _: 0)  # it was a member a moment ago
        assert kill_leftover(known_by)
        assert process.wait() == -signal.SIGKILL


def test_a_leftover_group_whose_leader_is_gone_is_killed() -> None:
    with left_behind("sleep 600 & echo $!", 79) as process:
        assert process.stdout is not None
        member = int(process.stdout.readline())
        assert process.wait() == 0
        assert runs(member)
        assert not kill_leftover(ProcessInfo(80, process.pid, process.pid, 1))
        assert kill_leftover(ProcessInfo(79, process.pid, process.pid, 1))
        assert not runs(member)


async def test_the_engine_reports_what_recovery_needs(tmp_path: Path) -> None:
    async with commands(tmp_path) as bench:
        bench.start_call(Call(token=5, command=command("sleep", "600")))
        await bench.record.until(lambda: 5 in bench.record.started)
        info = bench.record.started[5]
        assert info == ProcessInfo(5, info.pid, os.getpgid(info.pid), start_time(info.pid))
        until_shown(info.pid)
        assert kill_leftover(info, wait=0)
        outcome = await bench.record.outcome(5)
    assert (outcome.status, outcome.exit_code) == ("failed", -signal.SIGKILL)
