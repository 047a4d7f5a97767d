"""The command line in this process, in a separate process, and on a terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main
from tests.waiting import LONGEST

from callboard.runtime.cli import _app
from callboard.runtime.cli.command_errors import run_command

SRC = str(Path(__file__).parents[3] / "src")
ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""  # pty.fork() is not for processes that have threads, as those of xdist
IGNORING = ["sh", "-c", 'trap "" "$0"; exec "$@"']  # the last argument is the signal's name
PROGRAM = [sys.executable, "-c", "from callboard.runtime.cli import main; main()"]


class CommandResult(NamedTuple):
    """The result of a command: its exit code and output."""

    code: int
    out: str
    err: str

    @property
    def everything(self) -> str:
        return self.out + self.err


@pytest.fixture(autouse=True, scope="session")
def _commands_made_once() -> Iterator[None]:
    """Typer makes its commands anew for each call of the command line: that took most of the time of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new folder, which is the current folder of the command line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.fixture
def cli(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., CommandResult]:
    """Run the command line in this process."""

    def run(*args: str) -> CommandResult:
        monkeypatch.setattr(sys, "argv", ["callboard", *args])
        capsys.readouterr()
        code = run_command(_app)
        told = CommandResult(code, *capsys.readouterr())
        lines = told.everything.splitlines()
        assert not [line for line in lines if line.startswith("Traceback")]  # tracebacks of bodies are indented
        return told

    return run


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": SRC, "PYTHONWARNINGS": "error", "COLUMNS": "120", **more}


@pytest.fixture
def program(folder: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command line in processes of their own, which are ended after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: str, ignoring: str | None = None, **more: Any) -> subprocess.Popen[str]:
        before = [] if ignoring is None else [*IGNORING, ignoring]
        started.append(
            subprocess.Popen(
                [*before, *PROGRAM, *args],
                cwd=folder,
                env=environment(),
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                **more,
            )
        )
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()
        for pipe in (one.stdout, one.stderr):
            assert pipe is not None
            pipe.close()


class Terminal:
    """The command line on a terminal of its own."""

    def __init__(self, *args: str, cwd: Path, program: Sequence[str] = PROGRAM, **more: str) -> None:
        self.out = ""
        self._screen, end = pty.openpty()
        words = [sys.executable, "-ISc", ON_TERMINAL, *program, *args]
        env = environment(**{"TERM": "xterm", "LINES": "30", **more})
        self._process = subprocess.Popen(
            words, cwd=cwd, env=env, stdin=end, stdout=end, stderr=end, start_new_session=True
        )
        os.close(end)

    def wait_for(self, text: str, timeout: float = LONGEST) -> None:
        """Read until the program has written `text`, after the text of the last wait."""
        seen = len(self.out)
        until = time.monotonic() + timeout
        while text not in self.out[seen:]:
            assert time.monotonic() < until, f"{text!r} did not come: {self.out}"
            assert self._read(), f"it ended before {text!r} came: {self.out}"

    def settings(self) -> int:
        """The terminal's settings for typed input: the flags of termios."""
        return int(termios.tcgetattr(self._screen)[3])

    def terminate(self) -> None:
        self._process.terminate()

    def press(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def end(self, timeout: float = LONGEST) -> int:
        """Read to the end. Returns the exit code."""
        until = time.monotonic() + timeout
        while self._read():
            assert time.monotonic() < until, f"it did not end: {self.out}"
        code = self._process.wait()
        self.left = self.settings()
        os.close(self._screen)
        assert "Traceback" not in self.out
        return code

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
            os.close(self._screen)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._screen], [], [], 0.2)
        if not ready:
            return True
        try:
            data = os.read(self._screen, 65536)
        except OSError:
            return False
        self.out += data.decode(errors="replace")
        return bool(data)


@pytest.fixture
def terminal(folder: Path) -> Iterator[Callable[..., Terminal]]:
    """Make terminals that are closed after the test."""
    made: list[Terminal] = []

    def make(*args: str, **more: Any) -> Terminal:
        made.append(Terminal(*args, cwd=folder, **more))
        return made[-1]

    yield make
    for one in made:
        one.kill()
