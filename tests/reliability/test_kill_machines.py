"""A process with machines is killed with SIGKILL; events that fell due while it was down fire at the next start.

Checked are: such an event fires once, before any event that was sent meanwhile, however often the start itself is
killed; its callback runs; the auditor finds nothing.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.programs import killed_after
from tests.waiting import LONGEST, wait_until

from callboard.runtime.cli import _app
from callboard.runtime.cli.command_errors import run_command
from callboard.runtime.journal.sqlite.reader import SqliteReader

VICTIM = Path(__file__).with_name("machine_victim.py")
SOURCE = Path(__file__).parents[2] / "src"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE)}
HOUR = 3600.0
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is of Unix")


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the victim. None outlives the test."""
    with ExitStack() as stack:

        def started(*words: object) -> subprocess.Popen[bytes]:
            line = [sys.executable, str(VICTIM), str(tmp_path), *map(str, words)]
            return stack.enter_context(killed_after(subprocess.Popen(line, env=ENVIRONMENT)))

        yield started


def kill(victim: subprocess.Popen[bytes]) -> None:
    victim.send_signal(signal.SIGKILL)
    assert victim.wait(600) == -signal.SIGKILL, "it has ended by itself"


def wait_for(folder: Path, line: str, victim: subprocess.Popen[bytes], after: int = 0) -> None:
    def came() -> bool:
        assert victim.poll() is None, "it has ended by itself"
        return line in lines(folder)[after:]

    wait_until(came, f"the line {line!r}")


def lines(folder: Path) -> list[str]:
    log = folder / "log"
    return log.read_text().splitlines() if log.exists() else []


Cli = Callable[..., tuple[int, str]]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line, in this process and in the folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["callboard", *arguments])
        code = run_command(_app)
        return code, "".join(capsys.readouterr())

    return run


def steps(folder: Path) -> list[str]:
    reader = SqliteReader(folder / "state.db")
    try:
        return [row.event for row in reader.transitions(entity_id="run-7")]
    finally:
        reader.close()


def test_what_fell_due_while_the_process_was_dead_fires_at_its_start_and_once(
    tmp_path: Path, cli: Cli, start: Start
) -> None:
    drawn = random.Random(7)
    victim = start(0)
    wait_for(tmp_path, "waits recovering", victim)
    kill(victim)
    assert steps(tmp_path) == ["create", "ENQUEUE", "START", "RECOVER"]
    back = ("fire", "run-7", "START", "--journal", "state.db", "--request-id", "back")
    code, told = cli(*back)
    assert (code, "It will take effect at the next start" in told) == (4, True)
    for _ in range(2):  # its minute is long over; the start is killed wherever it is
        victim = start(HOUR)
        time.sleep(drawn.random() * 0.6)
        kill(victim)
    before = len(lines(tmp_path))
    victim = start(HOUR, "hold")
    wait_for(tmp_path, "waits failed", victim, before)
    wait_for(tmp_path, "over", victim)
    code, told = cli(*back, "--timeout", str(LONGEST))
    assert code == 1, told
    assert "'START' is not possible in state 'failed'" in told  # it came too late
    kill(victim)
    told_before = "over" in lines(tmp_path)[:before]  # one of the killed processes had done it
    assert lines(tmp_path)[before] in ({"open None"} if told_before else {"open failed", "over"})
    assert steps(tmp_path) == ["create", "ENQUEUE", "START", "RECOVER", "FAIL"]
    for command in (("check", "--journal", "state.db"), ("audit", "transitions.jsonl")):
        code, told = cli(*command)
        assert code == 0, told
