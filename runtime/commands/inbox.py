"""Takes commands out of the inbox and has the runtime do them.

Rules:
- A command is done as of now, but a decision as of when it was made, so far as its sender's clock is not ahead: whoever
  was told that it will take effect was not told so in vain.
- Rows about one target are taken in order, one after another; those about others go on meanwhile, so that a function of
  a user which takes its time (who is in a team?) keeps nobody waiting but whoever asked for it. A task's target is its
  job. Rows of one `request_id` are in one line, whatever they are about: they are one command, or the later is refused.
- What people say comes before events of machines, which may be very many: each look takes all of the first, and so many
  of the second that no more than `IN_HAND` are in hand, `AT_ONCE` of them being done. The rest stays in the journal
  until half of those have been done.
- What people left while nobody ran the journal is done before anything runs. Events that were left are data: they are
  taken once the runtime is open, in their order, while its program runs. `caught_up` waits for them.
- Each is answered once: what took effect in the same commit as the effect (its row's number travels with the
  `request_id`), what was refused by a commit of its own.
- A row is unanswered until then, whatever happens: after a kill it is taken again at the next start, where its key says
  whether it had taken effect.
- What was left for a machine that this program has not got waits, unanswered and in order, until it is spawned, here or
  by a later start: whoever only resumes a job must not use up what was meant for another program. It waits in the
  journal, and is told once for each machine. How much may wait there says who puts it there (`client.py`).
- Of several nodes each does what is about what it runs. A row about what has moved to another one meanwhile is left to
  that: the journal gives it to whoever owns its target.
- Nothing that a row asks can end the taker. Where the journal cannot be read it looks again after `AGAIN`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
from anyio.abc import TaskStatus

from ...actors.machines.kind import MachineNotFound
from ..handles.outcomes import RuntimeClosed
from ..journal.cluster import LeaseLost
from ..journal.contract import Entry, InboxAnswer, JournalError
from .verbs import MovedAway, perform
from .wire_errors import Answered, answer_to

if TYPE_CHECKING:
    from ...actors.records.entities import RequestRecord
    from ..host import Host
    from ..journal.contract import InboxRow
    from ..services import RuntimeServices
    from .idempotency import Requests


AGAIN = 1.0
"""Seconds until the inbox is looked at again that could not be read."""
IN_HAND = 1_000
"""Events of machines that are taken out of the inbox before some of them have been done."""
AT_ONCE = 64
"""Events of machines that are being done at a time."""


class _Line:
    """The rows about one target that wait for their turn, and whether each was left while nobody ran the journal."""

    def __init__(self) -> None:
        self.rows: deque[tuple[InboxRow, bool]] = deque()
        self.begun = False  # its task has: one that is cancelled before does nothing, and tells nobody
        self.busy = False  # with its first
        self.again = False  # its machine has been spawned: what waits for that is looked for again
        self.requests: Counter[str] = Counter()  # of those rows, by their keys
        self.scope = anyio.CancelScope()
        self.over = anyio.Event()


class _Absent:
    """A machine that is not here: the rows that wait for it, oldest first, and why it is not."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.why = ""
        self.told = False


class Taker:
    """The inbox's side of a runtime.

    read: runs a blocking question to the journal. start: runs a coroutine function among the runtime's own tasks.
    left_up_to: the number of the last row that was in the inbox as the journal was opened. Nobody waits for the answers
    to those: a notice tells of what is refused, and what is for a machine that is not here waits for it.
    """

    def __init__(
        self,
        services: RuntimeServices,
        host: Host,
        requests: Requests,
        read: Callable[..., Awaitable[Any]],
        start: Callable[[Callable[[], Any]], object],
        *,
        left_up_to: int,
    ) -> None:
        self._start = start
        self._services = services
        self._host = host
        self._requests = requests
        self._read = read
        self.on_ring: Callable[[], None] = lambda: None  # told of each ring of the bell
        self._taken: set[int] = set()  # rows that are in the inbox still, and have been taken, or are about to be
        self._events: set[int] = set()  # the same of those about machines; those that wait for one, too
        self._in_hand = 0  # of those, in the lines
        self._more = False  # others are still in the inbox
        self._lines: dict[str, _Line] = {}  # what is being done, by what it is about
        self._line_of: dict[str, str] = {}  # the same by the keys of the commands in it
        self._closed = False
        self._waiting: dict[str, _Absent] = {}  # by the names of machines
        self._left: set[int] = set()  # rows that have been tried in vain: nobody waits for their answers any more
        self._failing: set[str] = set()  # the lines whose last try met a journal that cannot be read
        self._unread = False  # the last look failed, or the last try of one of those
        self._left_up_to = left_up_to
        self._events_too = False  # what people left has been done: events are taken from now on
        self._all_left_taken = False  # no event that was left is in the inbox without having been taken
        self._left_in_lines = 0  # rows that were left, and are in the lines
        self._caught_up = anyio.Event()  # what was left has been done, or waits for its machine
        self._doing = anyio.Semaphore(AT_ONCE)
        self._wanted = False  # it is to look again
        self._again: anyio.CancelScope | None = None  # of the task that does
        self._again_begun = False
        self._not_again = anyio.Event()
        self._taking = anyio.Lock()
        self._serving = anyio.CancelScope()
        self._ended = anyio.Event()

    async def serve(self, *, task_status: TaskStatus[None]) -> None:
        """Take what comes, whenever somebody rings, until it is cancelled."""
        bell = self._host.journal.bell()
        try:
            task_status.started()
            with self._serving:
                await self.take()  # events that were left, and what was put there before there was a bell
                while bell is not None:
                    with anyio.move_on_after(AGAIN if self._unread or self._lines or self._more else None):
                        await bell.heard()
                    self.on_ring()
                    await self.take()
        finally:
            if bell is not None:
                bell.close()
            self._ended.set()

    async def close(self) -> None:
        """Take nothing more; returns when the journal is no longer asked, since it is about to be closed."""
        self._closed = True
        self._caught_up.set()
        self._serving.cancel()
        await self._ended.wait()
        if self._again is not None:
            self._again.cancel()
            if self._again_begun:
                await self._not_again.wait()
        lines = [*self._lines.values()]
        for line in lines:
            line.scope.cancel()
        for line in lines:
            if line.begun:
                await line.over.wait()

    async def awaited(self) -> dict[str, float]:
        """Which decisions may be in the inbox: their targets, with the time at which the first about each was made."""
        try:
            rows: list[InboxRow] = await self._read(partial(self._host.journal.inbox, events=False))
        except JournalError:
            return {}  # `take` tells of it
        made: dict[str, float] = {}
        for row in rows:
            if row.verb in {"approve", "reject", "fire"} and row.sent_at:  # whatever its lifecycle calls a decision
                made[row.target] = min(row.sent_at, made.get(row.target, row.sent_at))
        return made

    async def take_left(self) -> None:
        """Have done what people have left in the inbox; returns when all of it has been done, or cannot be."""
        await self.take()
        while self._lines or (self._again is not None and not self._unread):
            for line in [*self._lines.values()]:
                await line.over.wait()
            if self._again is not None and not self._unread:
                await self._not_again.wait()
        self._events_too = True

    async def caught_up(self) -> None:
        """Wait until all that was left in the inbox has been done, or waits for its machine; or it is closed."""
        await self._caught_up.wait()

    async def take(self) -> None:
        """Have done what is in the inbox: events of machines too, once what people have left has been done."""
        try:
            async with self._taking:
                await self._take_people()
                if self._events_too:
                    await self._take_events()
            self._failing.intersection_update(self._lines)
            self._unread = bool(self._failing)
        except RuntimeClosed:
            return  # the next start takes them
        except JournalError as error:
            self._tell_unreadable(error)
            self._look_again()
        self._look_whether_caught_up()

    async def _take_people(self) -> None:
        """Take what is about jobs, tasks, workers and tools: all of it."""
        rows: list[InboxRow] = await self._read(partial(self._host.journal.inbox, events=False))
        self._taken.intersection_update(row.row for row in rows)
        for row in rows:
            if row.row not in self._taken:
                self._taken.add(row.row)
                self._line_up(row)

    async def _take_events(self) -> None:
        """Take what is about machines, as much as there is room for: the oldest."""
        limit = 2 * len(self._events) + IN_HAND
        rows: list[InboxRow] = await self._read(partial(self._host.journal.inbox, events=True, limit=limit))
        whole, seen = len(rows) < limit, {row.row for row in rows}
        self._events = {row for row in self._events if row in seen or (not whole and row > rows[-1].row)}
        self._more = not whole
        self._all_left_taken = whole or rows[-1].row > self._left_up_to
        for row in rows:
            if row.row in self._events:
                continue
            if self._in_hand >= IN_HAND:
                self._more = True
                self._all_left_taken = row.row > self._left_up_to
                break
            self._events.add(row.row)
            if self._waits(row, self._is_unheard(row)):
                continue
            self._in_hand += 1
            self._line_up(row)
        self._look_for_more()

    def _look_for_more(self) -> None:
        if self._more and self._in_hand <= IN_HAND // 2:
            self._look_again()

    def _is_unheard(self, row: InboxRow) -> bool:
        return self._was_left(row) or row.row in self._left

    def _was_left(self, row: InboxRow) -> bool:
        return row.row <= self._left_up_to

    def _look_whether_caught_up(self) -> None:
        if self._all_left_taken and not self._left_in_lines and not self._caught_up.is_set():
            self._caught_up.set()
            for machine in [*self._waiting]:
                self._tell_waiting(machine)

    def _waits(self, row: InboxRow, unheard: bool) -> bool:
        """Whether it waits for a machine that others wait for already: it is not tried then, but put behind them."""
        absent = self._waiting.get(row.target) if unheard and row.kind == "machine" else None
        if absent is not None:
            self._wait_for(row, absent.why)
        return absent is not None

    def _look_again(self) -> None:
        """Look once more, in a task of its own; after a while, where the last look failed."""
        self._wanted = True
        if self._again is None and not self._closed:
            self._again, self._not_again = anyio.CancelScope(), anyio.Event()
            self._again_begun = False
            self._start(partial(self._looking_again, self._again))

    async def _looking_again(self, scope: anyio.CancelScope) -> None:
        self._again_begun = True
        try:
            with scope:
                while self._wanted and not self._closed:
                    if self._unread:
                        await anyio.sleep(AGAIN)
                    self._wanted = False
                    await self.take()
        finally:
            self._again = None
            self._not_again.set()

    def _line_up(self, row: InboxRow) -> None:
        about = self._line_of.get(row.request_id) or _about(row)
        line = self._line(about)
        line.rows.append((row, self._is_unheard(row)))
        line.requests[row.request_id] += 1
        self._left_in_lines += self._was_left(row)
        self._line_of[row.request_id] = about

    def _line(self, about: str) -> _Line:
        """The line of what is about something; it is worked off from now on."""
        line = self._lines.get(about)
        if line is None:
            line = self._lines[about] = _Line()
            self._start(partial(self._work_off, about, line))
        return line

    async def _work_off(self, about: str, line: _Line) -> None:
        line.begun = True
        try:
            with line.scope, suppress(RuntimeClosed):  # the next start takes them
                while line.rows and not self._closed:
                    await self._next(about, line)
        finally:
            del self._lines[about]
            for row, _ in line.rows:
                self._let_go(line, row)
            line.over.set()
            self._end_line(about.removeprefix("machine "), line)

    def _end_line(self, machine: str, line: _Line) -> None:
        if line.again:
            self.spawned(machine)
        elif self._caught_up.is_set():
            self._tell_waiting(machine)
        self._look_whether_caught_up()

    async def _next(self, about: str, line: _Line) -> None:
        row, unheard = line.rows[0]
        line.busy = True
        try:
            if self._waits(row, unheard):
                done = True
            elif row.kind == "machine":
                async with self._doing:
                    done = await self._do(row, unheard)
            else:
                done = await self._do(row, unheard)
        except JournalError as error:
            self._tell_unreadable(error)
            self._failing.add(about)
            self._left.update(row.row for row, unheard in line.rows if unheard)
            self._put_back(line, 0)
            self._all_left_taken = False
            self._look_again()
            return
        finally:
            line.busy = False
        self._failing.discard(about)
        if not done:
            self._put_back(line, 0, 1)
            return
        line.rows.popleft()
        self._let_go(line, row)
        if row.kind == "machine":
            self._in_hand -= 1
            self._look_for_more()
        self._look_whether_caught_up()

    def _let_go(self, line: _Line, row: InboxRow) -> None:
        """It is in a line no more: forget where others of its key would go, unless there are some."""
        self._left_in_lines -= self._was_left(row)
        line.requests[row.request_id] -= 1
        if not line.requests[row.request_id]:
            del line.requests[row.request_id]
            self._line_of.pop(row.request_id, None)

    def _put_back(self, line: _Line, first: int, last: int | None = None) -> None:
        """Leave some of the rows of a line in the inbox, to be found there again."""
        rows = [*line.rows]
        for row, _ in rows[first:last]:
            self._let_go(line, row)
            self._taken.discard(row.row)
            self._events.discard(row.row)
            self._in_hand -= row.kind == "machine"
        del rows[first:last]
        line.rows = deque(rows)

    def _tell_unreadable(self, error: JournalError) -> None:
        if isinstance(error, LeaseLost) and self._host.seat is not None:
            self._host.seat.lost(error)
        elif not self._unread and not self._host.journal.health.lost:
            self._host.notice("inbox_unreadable", "error", f"the inbox cannot be read: {error}", raised=error)
        self._unread = True

    def spawned(self, machine: str) -> None:
        """It may be there now: take what waits for it, and then what has come since."""
        absent, line = self._waiting.pop(machine, None), self._lines.get(f"machine {machine}")
        if absent is None:
            return
        if line is not None:
            line.again = True  # the one that is being done may have been too early
            self._put_back(line, int(line.busy))
        self._events.difference_update(absent.rows)
        self._all_left_taken = False
        self._host.events_left -= len(absent.rows)
        self._look_again()

    def _wait_for(self, row: InboxRow, why: str) -> None:
        absent = self._waiting.setdefault(row.target, _Absent())
        absent.rows.append(row.row)
        absent.why = why
        self._left.add(row.row)
        self._host.events_left += 1

    def _tell_waiting(self, machine: str) -> None:
        absent = self._waiting.get(machine)
        if absent is not None and not absent.told:
            absent.told = True
            several, number = len(absent.rows) != 1, len(absent.rows)
            text = (
                f"{number:,} event{'s' * several} for machine {machine}, left in the inbox while nobody ran it, "
                f"wait{'' if several else 's'} for it: {absent.why}"
            )
            self._host.notice("command_waits", "warning", text, verb="fire", target=machine, waiting=number)

    async def _do(self, row: InboxRow, unheard: bool) -> bool:
        """Do it, and have it answered. False for what is left to another node."""
        self._requests.rows[row.request_id] = row
        try:
            answered = await self._done(row)
        except MachineNotFound as error:
            if unheard:
                self._wait_for(row, str(error))
                return True
            answered = answer_to(error)
        except MovedAway:
            return False
        finally:
            self._requests.rows.pop(row.request_id, None)
        self._left.discard(row.row)
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
            await perform(self._services, row)
        except (RuntimeClosed, JournalError, MachineNotFound, MovedAway):
            raise
        except Exception as error:
            return answer_to(error)
        return await self._seen(row)

    async def _seen(self, row: InboxRow) -> Answered | None:
        """The answer to what has taken effect before, by another row or another way."""
        record: RequestRecord | None = await self._read(self._host.journal.reader.request, row.request_id)
        if record is None:
            return Answered()
        return None if record.row == row.row else msgspec.json.decode(record.answer, type=Answered)


def _about(row: InboxRow) -> str:
    """What a row is about, as far as the order of rows goes: a task is of its job."""
    if row.kind == "task":
        return f"job {row.target.rpartition('/')[0]}"
    return f"{row.kind} {row.target}"
