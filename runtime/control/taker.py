"""Takes commands out of the inbox and has the runtime do them.

Rules:
- A command is done as of now, but a decision as of when it was made, so far as its sender's clock is not ahead: whoever
  was told that it will take effect was not told so in vain.
- Rows about one target are taken in order, one after another; those about others go on meanwhile, so that a function of
  a user which takes its time (who is in a team?) keeps nobody waiting but whoever asked for it. A task's target is its
  job. Rows of one `request_id` are in one line, whatever they are about: they are one command, or the later is refused.
- Each is answered once: what took effect in the same commit as the effect (its row's number travels with the
  `request_id`), what was refused by a commit of its own.
- A row is unanswered until then, whatever happens: after a kill it is taken again at the next start, where its key says
  whether it had taken effect.
- What was left for a machine that this program has not got waits, unanswered and in order, until it is spawned, here or
  by a later start: whoever only resumes a job must not use up what was meant for another program.
- Of several nodes each does what is about what it runs. A row about what has moved to another one meanwhile is left to
  that: the journal gives it to whoever owns its target.
- Nothing that a row asks can end the taker. Where the journal cannot be read it looks again after `AGAIN`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
from anyio.abc import TaskStatus

from ...actors.machine_kind import MachineNotFound
from ..journal.cluster import LeaseLost
from ..journal.contract import Entry, InboxAnswer, JournalError
from ..outcomes import RuntimeClosed
from .told import Answered, answer_to
from .verbs import MovedAway, perform

if TYPE_CHECKING:
    from ...actors.records import RequestRecord
    from ..host import Host
    from ..journal.contract import InboxRow
    from ..requests import Requests
    from ..runtime import Runtime


AGAIN = 1.0
"""Seconds until the inbox is looked at again that could not be read."""


class _Line:
    """The rows about one target that wait for their turn, and whether each was left while nobody ran the journal."""

    def __init__(self) -> None:
        self.rows: deque[tuple[InboxRow, bool]] = deque()
        self.failing = False  # its last try met a journal that cannot be read
        self.again = False  # its machine has been spawned: what waits for it is to be done
        self.requests: set[str] = set()
        self.scope = anyio.CancelScope()
        self.over = anyio.Event()


class Taker:
    """The inbox's side of a runtime.

    read: runs a blocking question to the journal. start: runs a coroutine function among the runtime's own tasks.
    """

    def __init__(
        self,
        runtime: Runtime,
        host: Host,
        requests: Requests,
        read: Callable[..., Awaitable[Any]],
        start: Callable[[Callable[[], Any]], object],
    ) -> None:
        self._start = start
        self._runtime = runtime
        self._host = host
        self._requests = requests
        self._read = read
        self.on_ring: Callable[[], None] = lambda: None  # told of each ring of the bell
        self._taken: set[int] = set()  # rows that are in the inbox still, and have been taken, or are about to be
        self._lines: dict[str, _Line] = {}  # what is being done, by what it is about
        self._line_of: dict[str, str] = {}  # the same by the keys of the commands in it
        self._closed = False
        self._waiting: dict[str, list[InboxRow]] = {}  # by the machine that is not there
        self._unread = False  # the last look failed
        self._unheard = False  # so did the first: nobody waits for the answers to what is there
        self._taking = anyio.Lock()
        self._serving = anyio.CancelScope()
        self._ended = anyio.Event()

    async def serve(self, *, task_status: TaskStatus[None]) -> None:
        """Take what comes, whenever somebody rings, until it is cancelled."""
        bell = self._host.journal.bell()
        if bell is None:
            self._ended.set()
            task_status.started()
            return
        try:
            task_status.started()
            with self._serving:
                await self.take()  # what was put there before there was a bell
                while True:
                    with anyio.move_on_after(AGAIN if self._unread or self._lines else None):
                        await bell.heard()
                    self.on_ring()
                    await self.take()
        finally:
            bell.close()
            self._ended.set()

    async def close(self) -> None:
        """Take nothing more; returns when the journal is no longer asked, since it is about to be closed."""
        self._closed = True
        self._serving.cancel()
        await self._ended.wait()
        lines = [*self._lines.values()]
        for line in lines:
            line.scope.cancel()
        for line in lines:
            await line.over.wait()

    async def awaited(self) -> dict[str, float]:
        """Which decisions are in the inbox: their targets, with the time at which the first about each was made."""
        try:
            rows: list[InboxRow] = await self._read(self._host.journal.inbox)
        except JournalError:
            return {}  # `take` tells of it
        made: dict[str, float] = {}
        for row in rows:
            if row.verb in {"approve", "reject"} and row.sent_at:
                made[row.target] = min(row.sent_at, made.get(row.target, row.sent_at))
        return made

    async def take(self, *, unheard: bool = False) -> None:
        """Have done what is in the inbox. unheard: nobody waits for the answers, so a notice tells of refusals, and it
        returns when all has been done, or cannot be.
        """
        unheard = self._unheard = unheard or self._unheard
        try:
            async with self._taking:
                rows: list[InboxRow] = await self._read(self._host.journal.inbox)
                self._taken.intersection_update(row.row for row in rows)
                for row in rows:
                    if row.row not in self._taken:
                        self._line_up(row, unheard)
            self._unread = any(line.failing for line in self._lines.values())  # which goes on trying
            self._unheard = False
        except RuntimeClosed:
            return  # the next start takes them
        except JournalError as error:
            self._tell_unreadable(error)
        if unheard:
            for line in [*self._lines.values()]:
                await line.over.wait()

    def _line_up(self, row: InboxRow, unheard: bool) -> None:
        about = self._line_of.get(row.request_id) or _about(row)
        line = self._line(about)
        line.rows.append((row, unheard))
        line.requests.add(row.request_id)
        self._line_of[row.request_id] = about
        self._taken.add(row.row)

    def _line(self, about: str) -> _Line:
        """The line of what is about something; it is worked off from now on."""
        line = self._lines.get(about)
        if line is None:
            line = self._lines[about] = _Line()
            self._start(partial(self._work_off, about, line))
        return line

    async def _work_off(self, about: str, line: _Line) -> None:
        try:
            with line.scope, suppress(RuntimeClosed):  # the next start takes them
                while (line.rows or line.again) and not self._closed:
                    await self._next(about, line)
        finally:
            del self._lines[about]
            for request_id in line.requests:
                self._line_of.pop(request_id, None)
            line.over.set()

    async def _next(self, about: str, line: _Line) -> None:
        again, line.again = line.again, False
        try:
            await self._do_what_waits(about)
            if line.rows:
                row, unheard = line.rows[0]
                if not await self._do(row, unheard):
                    self._taken.discard(row.row)
                line.rows.popleft()
        except JournalError as error:
            line.again |= again
            line.failing = True
            self._tell_unreadable(error)
            self._unheard |= any(unheard for _, unheard in line.rows)
            self._taken.difference_update(row.row for row, _ in line.rows)  # they are looked for again
            line.rows.clear()
            if line.again:
                await anyio.sleep(AGAIN)
        else:
            line.failing = False

    def _tell_unreadable(self, error: JournalError) -> None:
        if isinstance(error, LeaseLost) and self._host.seat is not None:
            self._host.seat.lost(error)
        elif not self._unread and not self._host.journal.health.lost:
            self._host.notice("inbox_unreadable", "error", f"the inbox cannot be read: {error}", raised=error)
        self._unread = True

    def spawned(self, machine: str) -> None:
        """It may be there now: do what waits for it."""
        if machine in self._waiting:
            self._line(f"machine {machine}").again = True

    async def _do_what_waits(self, about: str) -> None:
        machine = about.removeprefix("machine ")
        rows = deque(self._waiting.pop(machine, ()) if machine != about else ())
        try:
            while rows:
                await self._do(rows[0], unheard=True)
                rows.popleft()
        finally:
            if rows:  # behind those which wait again
                self._waiting.setdefault(machine, []).extend(rows)

    async def _do(self, row: InboxRow, unheard: bool) -> bool:
        """Do it, and have it answered. False for what is left to another node."""
        self._requests.rows[row.request_id] = row
        try:
            answered = await self._done(row)
        except MachineNotFound as error:
            if unheard:
                self._waiting.setdefault(row.target, []).append(row)
                text = f"{row.verb} {row.target}, left in the inbox while nobody ran it, waits for its machine: {error}"
                self._host.notice("command_waits", "warning", text, verb=row.verb, target=row.target)
                return True
            answered = answer_to(error)
        except MovedAway:
            return False
        finally:
            self._requests.rows.pop(row.request_id, None)
        if answered is not None:
            text = msgspec.json.encode(answered).decode()
            journal = self._host.journal
            journal.append(Entry([], [], answers=[InboxAnswer(row.row, text, self._host.now())]))
            journal.flush()
            if unheard and answered.error is not None:
                text = f"{row.verb} {row.target}, left in the inbox while nobody ran it, was refused: {answered.error}"
                self._host.notice("command_refused", "warning", text, verb=row.verb, target=row.target)
        return True

    async def _done(self, row: InboxRow) -> Answered | None:
        """Do it. Returns the answer, None where that has been committed with the effect."""
        try:
            await perform(self._runtime, row)
        except (RuntimeClosed, JournalError, MachineNotFound, MovedAway):
            raise
        except Exception as error:
            return answer_to(error)
        return await self._seen(row)

    async def _seen(self, row: InboxRow) -> Answered | None:
        """The answer to what has taken effect before, by another row or another way."""
        record: RequestRecord | None = await self._read(self._host.journal.request, row.request_id)
        if record is None:
            return Answered()
        return None if record.row == row.row else msgspec.json.decode(record.answer, type=Answered)


def _about(row: InboxRow) -> str:
    """What a row is about, as far as the order of rows goes: a task is of its job."""
    if row.kind == "task":
        return f"job {row.target.rpartition('/')[0]}"
    return f"{row.kind} {row.target}"
