"""The command line under bad conditions: lost terminals, blocked event loops, signals at every moment."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.processes import runs
from tests.waiting import wait_until

from callboard.runtime.journal.sqlite.journal import SqliteJournal

from .conftest import CommandResult
from .test_program import GATED, Program, Terminals, _wait_for

Cli = Callable[..., CommandResult]
pytestmark = pytest.mark.laboratory

BLOCKED = """
name = "blocked"
[[tasks]]
name = "first"
run = "blocked:first"
[[tasks]]
name = "second"
command = "trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done"
shell = true
"""
BLOCKS = """
import pathlib, time
async def first():
    while not pathlib.Path("pid").exists():
        time.sleep(0.01)
    print("blocking now", flush=True)
    while True:
        time.sleep(0.01)
"""


@pytest.fixture
def gated(folder: Path) -> Path:
    (folder / "gated.toml").write_text(GATED)
    return folder


def ends(pid: int) -> bool:
    wait_until(lambda: not runs(pid))
    return True


@pytest.mark.parametrize("plain", [["--plain"], []])
def test_a_terminal_that_is_closed_drains_and_nothing_is_lost(
    cli: Cli, gated: Path, terminal: Terminals, plain: list[str]
) -> None:
    screen = terminal("run", "gated.toml", "--id", "j1", "--drain-deadline", "10m", *plain)
    screen.wait_for("waiting here" if not plain else "first started")
    wait_until(lambda: (gated / "pid").exists() and (gated / "pid").read_text())
    os.close(screen._screen)
    wait_until(lambda: attempts(gated)[-1].get("drained_at"))
    (gated / "gate").touch()
    code = screen._process.wait(600)
    tasks = [json.loads(line) for line in cli("status", "j1", "--json").out.splitlines()[1:]]
    assert (code, [task["state"] for task in tasks]) == (130, ["completed", "queued"])
    assert cli("resume").code == 0
    assert cli("check").code == 0


def test_a_loop_that_does_not_turn_can_be_left_and_no_command_stays(cli: Cli, folder: Path, program: Program) -> None:
    (folder / "blocked.toml").write_text(BLOCKED)
    (folder / "blocked.py").write_text(BLOCKS)
    running = program("run", "blocked.toml", "--id", "j1")
    _wait_for(running, "blocking now")
    pid = int((folder / "pid").read_text())
    for _ in range(3):
        running.send_signal(signal.SIGINT)
        time.sleep(0.01)  # two of the same that come at once are one
    wait_until(lambda: running.poll() is not None or running.send_signal(signal.SIGINT))
    assert running.returncode == 130
    assert ends(pid)
    assert cli("check").code == 0


def test_who_ignores_the_ends_of_children_hands_that_on_to_nobody(gated: Path, program: Program) -> None:
    (gated / "gate").touch()
    running = program("run", "gated.toml", ignoring="CHLD")
    out, err = running.communicate(timeout=600)
    assert (running.returncode, err) == (0, "")
    assert "completed (2 completed)" in out


NAP = """
name = "nap"
[[tasks]]
name = "nap"
command = ["sleep", "600"]
timeout = "20m"
max_losses = 1
"""


def test_a_stop_that_is_cut_short_by_a_kill_is_no_loss(cli: Cli, folder: Path, program: Program) -> None:
    (folder / "nap.toml").write_text(NAP)
    for number in range(1, 4):
        command = ("run", "nap.toml", "--id", "n") if number == 1 else ("resume",)
        running = program(*command, "--plain", "--drain-deadline", "10m")
        _wait_for(running, "nap started")
        running.send_signal(signal.SIGTERM)
        wait_until(lambda: attempts(folder)[-1].get("drained_at"))
        running.kill()
        running.wait()
        assert [attempt.get("end") for attempt in attempts(folder)] == ["returned"] * (number - 1) + [None]
    task = json.loads(cli("status", "n", "--json").out.splitlines()[1])
    assert (task["state"], task["attempt"]) == ("running", 3)
    assert cli("cancel", "n").code == 0
    assert cli("check").code == 0


def attempts(folder: Path) -> list[dict[str, object]]:
    journal = sqlite3.connect(folder / "callboard.db")
    try:
        return [json.loads(row) for (row,) in journal.execute("SELECT record FROM attempt_records ORDER BY key")]
    finally:
        journal.close()


@pytest.mark.parametrize(("said", "deadline"), [(None, 8.0), ("0.2s", 0.2)])
def test_the_drain_deadline_is_said_by_the_environment_or_is_eight_seconds(
    folder: Path, program: Program, monkeypatch: pytest.MonkeyPatch, said: str | None, deadline: float
) -> None:
    if said is not None:
        monkeypatch.setenv("CALLBOARD_DRAIN", said)
    (folder / "nap.toml").write_text(NAP)
    running = program("run", "nap.toml", "--id", "n", "--plain")
    _wait_for(running, "nap started")
    running.send_signal(signal.SIGTERM)
    assert running.stderr is not None
    assert f"running tasks may end within {deadline:g} s" in running.stderr.readline()
    if deadline > 1:
        running.send_signal(signal.SIGTERM)  # the second one does not wait
    running.wait(600)
    assert [attempt.get("end") for attempt in attempts(folder)] == ["returned"]


@pytest.mark.parametrize("command", ["run", "resume", "serve"])
def test_a_drain_deadline_that_is_no_span_is_refused_before_anything_is_opened(
    cli: Cli, folder: Path, command: str
) -> None:
    (folder / "nap.toml").write_text(NAP)
    result = cli(command, *(["nap.toml"] if command == "run" else []), "--drain-deadline", "soon")
    assert result.code == 2
    assert "'soon' is not a duration" in result.err
    assert not (folder / "callboard.db").exists()


MOMENTS = [("", 1), ("job j", 2), ("first started", 1), ("second completed", 1), ("second completed", 2)]
if "CALLBOARD_LABORATORY" in os.environ:
    MOMENTS = [(moment, presses) for moment in sorted({one for one, _ in MOMENTS}) for presses in range(1, 5)] * 5


def test_a_ctrl_c_while_python_ends_does_not_replace_the_exit_code() -> None:
    at_the_end = "import atexit, os, signal, sys; atexit.register(os.kill, os.getpid(), signal.SIGINT)"
    program = f"{at_the_end}; sys.argv = ['callboard', '--version']; from callboard.runtime.cli import main; main()"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_ctrl_c_at_any_moment_ends_it_and_leaves_a_journal_that_goes_on(
    cli: Cli, gated: Path, program: Program
) -> None:
    (gated / "gate").touch()
    for number, (moment, presses) in enumerate(MOMENTS):
        journal = ("--journal", f"{number}.db")
        running = program("run", "gated.toml", "--id", "j1", *journal)
        if moment:
            _wait_for(running, moment)
        for _ in range(presses):
            running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=600)
        if moment:  # before, the interpreter is still starting
            assert "Traceback" not in out + err
            assert "internal error" not in err
            assert running.returncode in (0, 130)
        if Path(f"{number}.db").exists():
            assert cli("resume", *journal).code == 0
            assert cli("check", *journal).code == 0


@pytest.mark.parametrize("command", ["serve", "run"])
def test_a_journal_that_was_not_written_to_the_end_is_told_by_the_exit_code(
    gated: Path, program: Program, command: str
) -> None:
    options = ("serve", "--port", "0", "--run") if command == "serve" else ("run", "--plain")
    again = program(*options, "gated.toml", "--drain-deadline", "0.2s")
    _wait_for(again, "serving" if command == "serve" else "first started")
    for file in gated.glob("callboard.db*"):
        if file.is_file():
            file.unlink()
    again.send_signal(signal.SIGTERM)
    _, err = again.communicate(timeout=600)
    assert again.returncode == 1
    assert "the last changes are not in the journal" in err


def test_a_cancel_that_was_not_written_to_the_end_is_told_by_the_exit_code(
    cli: Cli, gated: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = program("run", "gated.toml", "--id", "j1", "--plain")
    _wait_for(first, "first started")
    first.kill()
    first.wait()
    shut = SqliteJournal.shut
    monkeypatch.setattr(SqliteJournal, "shut", lambda journal, deadline: shut(journal, deadline) and False)
    result = cli("cancel", "j1")
    assert result.code == 1
    assert "the last changes are not in the journal" in result.err
