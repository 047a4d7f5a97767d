"""Programs of tests that are forks of one process, which has imported the library: a start costs a tenth of a new one.

A fork runs the program as its `__main__`, with its own arguments, folder and output, and ends as any interpreter does.
For tests that kill programs, or start many; not for tests of how a program is started, or of what it imports.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import subprocess
import sys
import time
import types
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Self

_SOURCE = Path(__file__).parents[1] / "src"
PATIENCE = 240.0
"""Seconds that a program may take, by default."""


class Fork:
    """A running program; like `subprocess.Popen`."""

    def __init__(self, forks: Forks, pid: int, out: Path, err: Path) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._forks, self._out, self._err = forks, out, err

    @property
    def stdout(self) -> str:
        """What it has written so far, if the output was kept."""
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        """The same of standard error."""
        return self._err.read_text()

    def poll(self) -> int | None:
        """The exit code (negative: the signal that ended it), or None while it runs."""
        with suppress(TimeoutError):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait until it has ended, for at most so many seconds; after that, a TimeoutError is raised."""
        if self.returncode is None:
            self.returncode = self._forks._answer(timeout)
        return self.returncode

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


_Environment = tuple[tuple[str, str], ...]

_idle: dict[_Environment, subprocess.Popen[bytes]] = {}
"""Processes that fork, by their environment: the next test uses the one of the last test."""


@atexit.register
def _end_idle() -> None:
    while _idle:
        _idle.popitem()[1].communicate()


class Forks:
    """The process that forks: `with Forks(folder) as forks: forks.run(program, ...)`. One program runs at a time.

    folder: where the outputs of programs are kept. more: variables of the environment. Afterwards the process is kept
    for the next `Forks` of the same environment: starting it costs as much as ten forks.
    """

    def __init__(self, folder: Path, **more: str) -> None:
        self._folder = folder
        self._environment = {**os.environ, "PYTHONPATH": str(_SOURCE), **more}
        self._running: Fork | None = None
        self._rest = b""

    def __enter__(self) -> Self:
        # pytest says in one variable which test runs
        self._key = tuple(sorted((*pair,) for pair in self._environment.items() if pair[0] != "PYTEST_CURRENT_TEST"))
        self._process = _idle.pop(self._key, None) or subprocess.Popen(
            [sys.executable, "-P", __file__], env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._running is not None:
            self._running.kill()
            self._running.wait()
        if self._key in _idle or self._process.poll() is not None:
            self._process.communicate()
        else:
            _idle[self._key] = self._process

    def start(
        self,
        program: Path | str,
        *words: object,
        cwd: Path | None = None,
        stdout: Path | str | None = None,
        stderr: Path | str | None = None,
        **variables: str,
    ) -> Fork:
        """Start a program: a file, or the text of one (as of `python -c`), with these arguments.

        stdout, stderr: where its output goes: a file, or "unread", a pipe without a reader. By default it is kept.
        variables: of its environment, beside those of all programs.
        """
        assert self._running is None or self._running.poll() is not None, "another one runs"
        out, err = self._folder / "fork.out", self._folder / "fork.err"
        out.write_bytes(b"")  # it may be read before the program has opened it, as may that of the last program
        of_file = {"file": str(program)} if isinstance(program, Path) else {"text": program}
        order = {
            **of_file, "words": [*map(str, words)], "cwd": str(cwd or Path.cwd()),
            "out": str(stdout or out), "err": str(stderr or err),
            "variables": variables,
        }  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        self._running = Fork(self, self._answer(PATIENCE), out, err)
        return self._running

    def run(self, program: Path | str, *words: object, **more: Any) -> Fork:
        """Start a program (as `start`), and wait until it has ended."""
        fork = self.start(program, *words, **more)
        fork.wait()
        return fork

    def _answer(self, timeout: float) -> int:
        assert self._process.stdout is not None
        until = time.monotonic() + timeout
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError("the program has not ended")
            got = os.read(self._process.stdout.fileno(), 1000)
            assert got, "the process that forks has ended"
            self._rest += got
        line, _, self._rest = self._rest.partition(b"\n")
        return int(line)


# -- the process that forks --------------------------------------------------------------------------------------------


def _become(order: dict[str, Any]) -> types.CodeType:
    """Make this process, a fork, the program. Returns the code to execute."""
    for number, place in enumerate((os.devnull, order["out"], order["err"])):
        if place == "unread":
            reader, handle = os.pipe()
            os.close(reader)
        else:
            flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            handle = os.open(place, flags, 0o644)
        os.dup2(handle, number)
        os.close(handle)
    os.environ.update(order["variables"])
    os.chdir(order["cwd"])
    main = types.ModuleType("__main__")
    name = order.get("file", "-c")
    if "file" in order:
        main.__file__ = name
        sys.path.insert(0, str(Path(name).parent))
    else:
        sys.path.insert(0, "")
    sys.argv = [name, *order["words"]]
    sys.modules["__main__"] = main
    text = Path(name).read_text() if "file" in order else order["text"]
    return compile(text, name if "file" in order else "<string>", "exec")


def _serve() -> types.CodeType | None:
    """Fork a program for each line of the input. In the fork, return its code; after the last line, None."""
    while line := sys.stdin.buffer.readline():
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            return _become(order)
        os.write(1, b"%d\n" % pid)
        _, status = os.waitpid(pid, 0)
        os.write(1, b"%d\n" % os.waitstatus_to_exitcode(status))
    return None


def _import_all() -> None:
    import anyio  # noqa: F401
    from anyio._backends import _asyncio, _trio  # noqa: F401

    from callboard.runtime import runtime  # noqa: F401
    from callboard.runtime.cli import app, reading, words  # noqa: F401
    from callboard.runtime.journal.sqlite import journal, reader  # noqa: F401

    with suppress(ImportError):  # which each command imports, by the newer versions of typer
        import_module("typer._adapters")


if __name__ == "__main__":
    _import_all()
    gc.collect()
    gc.freeze()
    code = _serve()
    if code is not None:  # a fork: it ends as a program does
        exec(code, sys.modules["__main__"].__dict__)
