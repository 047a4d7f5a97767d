"""The outside of a scene: an operator with commands for the inbox, and the code that starts and kills victims."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
from tests.processes import carrying

from callboard.runtime.commands.client import put
from callboard.runtime.commands.wire_errors import CommandAnswer
from callboard.runtime.errors import JournalError
from callboard.runtime.journal.contract import InboxRow, Stored
from callboard.runtime.journal.location import reader_of
from callboard.runtime.journal.notify import notify

from .scene import NOTES, journal_of
from .zygote import Order

ROOT = Path(__file__).parents[3]
LOOK_EVERY = 0.02
"""Seconds between two checks of a journal that is in use by the operator."""
LOOK_AT_LEAST = 0.3
"""Seconds after which the operator reads a journal file that seems unchanged."""
LOOK_AT_DATABASE = 0.06
"""Seconds after which the operator reads a database again."""
PATIENCE = 60.0
"""Seconds after which a victim counts as hanging."""
Reach = Literal["runtime", "group", "tree"]
"""The processes that are killed: the runtime's only, its process group, or all that it has started."""


def log_of(place: Path) -> list[str]:
    log = place / "log"
    return log.read_text().splitlines() if log.exists() else []


@contextlib.contextmanager
def reading(place: Path) -> Iterator[Stored | None]:
    """The journal of that folder, or None while there is none."""
    try:
        reader = reader_of(journal_of(place))
    except JournalError:
        yield None
        return
    with contextlib.closing(reader):
        yield reader


class Command(msgspec.Struct):
    """A command that was put into the inbox. seen: the length of the log when its answer was read."""

    row: InboxRow
    answer: CommandAnswer | None = None
    seen: int = 0


class Operator:
    """Gives the commands that a scene needs: `due` puts them into the inbox whenever the journal may have changed.

    said: the keys of the commands that were put there, for good.
    """

    def __init__(self, place: Path, due: Callable[[Operator, Stored], object]) -> None:
        self.sent: dict[int, Command] = {}
        self.said: set[str] = set()
        self.place = place
        self._due = due
        self._file = isinstance(journal_of(place), Path)
        self._seen: list[int] = []  # the state of the journal's files at the last reading
        self._next = 0.0

    @property
    def open(self) -> list[Command]:
        """The commands without an answer."""
        return [command for command in self.sent.values() if command.answer is None]

    def answered(self, name: str) -> bool:
        return any(one.row.request_id == name and one.answer for one in self.sent.values())

    def look(self) -> None:
        """Put the due commands into the inbox, and read the answers, if the journal's files have changed.

        (Two writes within one tick of the file system's clock are not told apart: so sometimes it reads in any case.)
        """
        seen: list[int] = []
        for name in ("state.db", "state.db-wal"):
            with contextlib.suppress(FileNotFoundError):
                told = (self.place / name).stat()
                seen += told.st_mtime_ns, told.st_size
        now = time.monotonic()
        if seen == self._seen and now < self._next:
            return
        self._seen, self._next = seen, now + (LOOK_AT_LEAST if self._file else LOOK_AT_DATABASE)
        with reading(self.place) as reader:
            if reader is None:
                return
            for command in self.open:
                text = reader.answer(command.row.row)
                if text is not None:
                    command.answer = msgspec.json.decode(text, type=CommandAnswer)
                    command.seen = len(log_of(self.place))
            self._due(self, reader)

    def once(self, verb: str, kind: str, target: str, key: str, /, *, times: int = 1, **arguments: Any) -> None:
        """Put a command into the inbox `times` times, under one key, unless it was put there before."""
        if key in self.said:
            return
        for _ in range(times):  # the same command twice takes effect once
            row = InboxRow(verb, kind, target, key, arguments, sent_at=time.time())
            journal = journal_of(self.place)
            number = put(journal, row)
            self.sent[number] = Command(msgspec.structs.replace(row, row=number))
            if isinstance(journal, Path):
                notify(journal)
        self.said.add(key)


def commands_of_graphs(operator: Operator, reader: Stored) -> None:
    """The commands that the workstreams of `scene.py` need, each as soon as the journal's state allows it."""
    if (gauge := reader.machine("gauge")) is not None and gauge.state == "counting":
        for note in range(NOTES):
            operator.once("fire", "machine", "gauge", f"note-{note}", times=2, event="note")
        operator.once("fire", "machine", "gauge", "close", event="close")
    doomed = reader.job("doomed")
    began = any(line.startswith("doomed/body") for line in log_of(operator.place))
    if began and doomed is not None and doomed.state == "running":
        operator.once("cancel", "job", "doomed", "cancel-doomed", reason="not wanted")
    main = reader.workstreams("main")
    if not main:
        return
    states = {task.name: task.state for task in reader.tasks(main[-1].key)}
    if main[-1].state == "executing" and states["first"] == "completed":
        operator.once("pause", "job", "main", "pause")
    if main[-1].state == "paused" and operator.answered("pause"):
        operator.once("resume", "job", "main", "resume")
    if states["gate"] == "held" and operator.answered("resume"):
        operator.once("approve", "task", "main/gate", "approve-1", by="ana")
        operator.once("approve", "task", "main/gate", "approve-2", by="ben")
    if reader.approvals(main[-1].key):
        operator.once("approve", "task", "main/asks", "sign", by="cy", approval="sign")


class Zygote:
    """The process that forks victims. One at a time."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.reliability.kills.zygote"],
            env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
        )  # fmt: skip

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(600)
        self._process.stdout.close()

    def start(self, order: Order) -> int:
        """Start a victim; returns its pid."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        return self._answer()

    def ended(self, within: float) -> int | None:
        """The victim's exit code, None if it has not ended within so many seconds."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], max(within, 0.0))
        return self._answer() if ready else None

    def _answer(self) -> int:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the zygote has died"
        return int(line)


def kill(pid: int, reach: Reach, place: Path) -> None:
    """Kill a victim, and so many of the processes that it has started."""
    with contextlib.suppress(ProcessLookupError):
        if reach == "group":
            with contextlib.suppress(ProcessLookupError):  # a victim that has just been forked has no group yet
                os.killpg(pid, signal.SIGKILL)
                return
        os.kill(pid, signal.SIGKILL)
    if reach == "tree":
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(place / "state.db")) as reading:
            kill_all(f"CALLBOARD_JOURNAL={reading.execute('SELECT id FROM meta').fetchone()[0]}")


def kill_all(mark: str) -> int:
    """Kill all processes that carry that variable of the environment; returns their number."""
    found = carrying(mark)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(found)


class WorkerKill(msgspec.Struct):
    """Kills all processes that a victim has started, and not itself, so many seconds after its start."""

    after: float
    killed: int = 0

    def look(self, folder: str, age: float) -> None:
        """Kill them, if it is time."""
        if not self.killed and age >= self.after:
            self.killed = kill_all(f"SCENE={folder}")


def live(
    zygote: Zygote,
    order: Order,
    *,
    operator: Operator | None = None,
    after: float | None = None,
    reach: Reach = "runtime",
    workers: WorkerKill | None = None,
    ready: Callable[[], bool] = lambda: False,
) -> int:
    """Run one victim until it has ended or killed itself, or kill it `after` so many seconds, or once it is `ready`.

    workers: when its worker processes are killed. Returns its exit code. Raises TimeoutError for one that hangs.
    """
    pid, began, code = zygote.start(order), time.monotonic(), None
    try:
        if operator is None and after is None:
            code = zygote.ended(PATIENCE)
        while code is None and time.monotonic() - began < PATIENCE:
            if operator is not None:
                operator.look()
            if workers is not None:
                workers.look(order.folder, time.monotonic() - began)
            left = LOOK_EVERY if after is None else min(LOOK_EVERY, began + after - time.monotonic())
            code = zygote.ended(left)
            if code is None and (ready() or (after is not None and time.monotonic() >= began + after)):
                kill(pid, reach, Path(order.folder))
                code = zygote.ended(PATIENCE)
                break
    finally:
        if code is None:  # it hangs, or a rule is broken
            kill(pid, "tree", Path(order.folder))
            zygote.ended(PATIENCE)
    if code is None:
        lines = log_of(Path(order.folder))[-20:]
        raise TimeoutError(f"a victim did not end within {PATIENCE} s: {order}. Its last lines: {lines}")
    return code
