"""Disk faults of the log, of commands' outputs and of the program: none of them stops the work."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from tests.programs import killed_after
from tests.reliability.storage.scene import LIMIT, RESULTS, FaultyRuntime, fill, gates, small_disk

from callboard import HealthChecks, Runtime, Task, Workstream
from callboard.machines.audit.audit import audit_lines
from callboard.runtime.cli.archive import archive
from callboard.runtime.journal.sqlite.reader import SqliteReader

pytestmark = [pytest.mark.anyio, pytest.mark.laboratory]
SOURCE = Path(__file__).parents[3] / "src"


@pytest.fixture
def anyio_backend() -> str:
    """One is enough: all of this happens in other threads."""
    return "asyncio"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "1m", "nr_inodes=64") as folder:
        yield folder


def numbers(log: Path) -> int:
    """How many whole lines a clean log has."""
    with log.open("rb") as lines:
        assert audit_lines(lines) == []
    return log.read_bytes().count(b"\n")


# -- the log of transitions --------------------------------------------------------------------------------------------


async def test_a_log_on_a_full_disk_holds_up_nothing_and_is_filled_in_when_there_is_room(
    tmp_path: Path, disk: Path
) -> None:
    log = disk / "log.jsonl"
    scene = FaultyRuntime(tmp_path / "state.db")
    async with scene.running(jsonl=log) as runtime:
        ballast = fill(disk)
        gates["go on"].set()
        assert (await scene.job.wait()).results == RESULTS
        notices = [notice for notice in scene.told if notice.event == "log_unwritable"]
        assert len(notices) == 1
        assert notices[0].text == (
            f"cannot write the log {log}: No space left on device. The journal has all transitions; the missing lines "
            "are filled in later"
        )
        assert runtime.health.ok
        ballast.unlink()
        again = await runtime.submit(Workstream("again", tasks=[Task("only", command=["true"])]))
        await again.wait()
    assert numbers(log) == len(list(transitions(tmp_path / "state.db")))


async def test_a_log_on_a_full_disk_is_filled_in_by_the_next_start(tmp_path: Path, disk: Path) -> None:
    log, path = disk / "log.jsonl", tmp_path / "state.db"
    scene = FaultyRuntime(path)
    async with scene.running(jsonl=log):
        ballast = fill(disk)
        gates["go on"].set()
        await scene.job.wait()
    assert not log.read_bytes().endswith(b"\n") or numbers(log) < len(transitions(path))
    ballast.unlink()
    async with Runtime(path, jsonl=log):
        pass
    assert numbers(log) == len(transitions(path))


async def test_jobs_that_a_full_disk_keeps_out_of_the_log_are_not_archived_before_it_has_them(
    tmp_path: Path, disk: Path
) -> None:
    log, path = disk / "log.jsonl", tmp_path / "state.db"
    spec = Workstream("w", tasks=[Task("only", command=["true"])], archive=True)
    async with Runtime(path, jsonl=log) as runtime:
        ballast = fill(disk)
        await (await runtime.submit(spec, id="w")).wait()
    last = len(transitions(path))
    assert jobs(path) == ["w"]
    archive(older_than="0s", journal=path)
    assert jobs(path) == ["w"]
    ballast.unlink()
    async with Runtime(path, jsonl=log):
        pass
    assert jobs(path) == []
    assert numbers(log) > last


def jobs(path: Path) -> list[str]:
    with contextlib.closing(SqliteReader(path)) as reader:
        return [job.id for job in reader.jobs()]


@pytest.mark.parametrize("harm", ["torn", "cut", "removed"])
async def test_a_log_that_is_harmed_while_nobody_writes_is_whole_after_the_next_start(
    tmp_path: Path, harm: str
) -> None:
    log, path = tmp_path / "log.jsonl", tmp_path / "state.db"
    scene = FaultyRuntime(path)
    async with scene.running(jsonl=log):
        gates["go on"].set()
        await scene.job.wait()
    whole = log.read_bytes()
    if harm == "torn":
        log.write_bytes(whole[: len(whole) // 2] + bytes(5_000))
    elif harm == "cut":
        log.write_bytes(whole[:-7])
    else:
        log.unlink()
    async with Runtime(path, jsonl=log):
        pass
    assert log.read_bytes().startswith(whole)
    assert numbers(log) == len(transitions(path))


def transitions(path: Path) -> list[object]:
    with contextlib.closing(SqliteReader(path)) as reader:
        return list(reader.transitions())


# -- outputs -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def full(disk: Path) -> list[Path]:
    """Fill the disk, so that there is no room for another file. Returns the file to remove, to make room."""
    ballast: list[Path] = []
    with contextlib.suppress(OSError):
        for number in range(100):
            (disk / str(number)).touch()
            ballast.append(disk / str(number))
    return ballast


async def test_outputs_on_a_full_disk_are_cut_and_their_commands_are_not(tmp_path: Path, disk: Path) -> None:
    talk = "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo the last line"
    task = Task("talks", command=talk, shell=True, max_output=10_000_000)
    async with Runtime(tmp_path / "state.db", outputs=disk) as runtime:
        with anyio.fail_after(LIMIT):
            outcome = await (await runtime.submit(Workstream("w", tasks=[task]), id="w")).wait()
    value = outcome.results["talks"]
    assert outcome.state == "completed"
    assert value["output"].endswith(
        "the last line\n(the rest of the output could not be kept: No space left on device)"
    )
    assert outcome.tasks["talks"].produced.size > 3_000_000


async def test_without_room_for_another_file_a_command_runs_and_its_output_is_not_kept(
    tmp_path: Path, disk: Path, full: list[Path]
) -> None:
    async with Runtime(tmp_path / "state.db", outputs=disk) as runtime:
        with anyio.fail_after(LIMIT):
            task = Task("only", command=["echo", "hello"])
            outcome = await (await runtime.submit(Workstream("w", tasks=[task]), id="w")).wait()
    assert outcome.state == "completed"
    assert outcome.results["only"]["output"] == (
        "hello\n(the rest of the output could not be kept: No space left on device)"
    )
    assert outcome.tasks["only"].produced.path is None


async def test_results_that_cannot_be_written_are_the_disk_s_failure_and_not_the_task_s(
    tmp_path: Path, disk: Path, full: list[Path]
) -> None:
    tasks = [
        Task("first", command=["echo", "one"]),
        Task("second", command="cat $CALLBOARD_RESULTS", shell=True, depends_on=["first"]),
    ]
    checks = HealthChecks(cooldown=0.05)
    async with Runtime(tmp_path / "state.db", outputs=disk, health_checks=checks) as runtime:
        with anyio.fail_after(LIMIT):
            pauses = runtime.events(kind="worker", to_state="paused")
            job = await runtime.submit(Workstream("w", tasks=tasks), id="w")
            pause = await anext(pauses)
            for file in full:
                file.unlink()
            outcome = await job.wait()
    assert "the results of its dependencies cannot be written" in str(pause.reason)
    assert "No space left on device" in str(pause.reason)
    assert outcome.state == "completed"
    assert outcome.tasks["second"].failed_attempts == 0


# -- the program -------------------------------------------------------------------------------------------------------


def callboard(*words: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "from callboard.runtime.cli import main; main()", *words],
        cwd=cwd, env={**os.environ, "PYTHONPATH": str(SOURCE)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def test_the_program_says_that_the_disk_is_full_and_goes_on_when_there_is_room(tmp_path: Path, disk: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (tmp_path / "job.toml").write_text(
        'name = "job"\n[[tasks]]\nname = "waits"\nrun = "waiting:wait"\n'
        '[[tasks]]\nname = "after"\nrun = "waiting:after"\ndepends_on = ["waits"]\n'
    )
    (tmp_path / "waiting.py").write_text(
        f"def wait():\n    print('begun', flush=True)\n    open({str(gate)!r}).read()\n\ndef after():\n    pass\n"
    )
    with killed_after(callboard("run", "job.toml", "--journal", str(disk / "state.db"), cwd=tmp_path)) as program:
        assert program.stdout is not None
        said = read_until(program, "begun")
        ballast = fill(disk)
        with gate.open("w"):
            pass
        said = read_until(program, "it is tried again")
        assert "the journal cannot be written: cannot write" in said
        assert "the disk is full. Nothing is lost; it is tried again" in said
        ballast.unlink()
        said = program.stdout.read()
        assert program.wait(LIMIT) == 0, said
        assert "the journal can be written again" in said


def read_until(program: subprocess.Popen[str], words: str) -> str:
    """The output of a program, up to the line with these words."""
    assert program.stdout is not None
    said = ""
    for line in program.stdout:
        said += line
        if words in line:
            return said
    raise AssertionError(f"it ended, and never said {words!r}: {said}")


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_the_program_refuses_a_journal_on_such_a_disk_in_a_paragraph(tmp_path: Path, disk: Path, how: str) -> None:
    (tmp_path / "job.toml").write_text('name = "job"\n[[tasks]]\nname = "t"\ncommand = ["true"]\n')
    if how == "full":
        fill(disk)
        words = "the disk is full. Make room, then try again."
    else:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        words = "is read-only to this user."
    with killed_after(callboard("run", "job.toml", "--journal", str(disk / "state.db"), cwd=tmp_path)) as program:
        said, _ = program.communicate(timeout=LIMIT)
    assert program.returncode == 2, said
    assert said.startswith("callboard: Cannot ")
    assert said.endswith(f"{words}\n")
    assert said.count("\n") == 1
