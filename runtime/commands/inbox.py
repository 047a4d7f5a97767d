"""Takes commands out of the inbox and executes them in the runtime.

Rules:
- A command is executed with the present time. A decision keeps the time at which it was made (unless the sender's clock
  is ahead), since the sender was told that the decision will take effect.
- Rows about one target are executed in order, one after another. Rows about other targets go on meanwhile, so that a
  slow function of a user (for example the members of a team) delays only its own target. A task's target is its job.
  Rows with the same `request_id` are in one queue, whatever their target: they are one command, or the later is
  refused.
- Commands of people come before events of machines, which may be very many. Each look takes all commands, but only so
  many events that at most `IN_HAND` are taken, of which `AT_ONCE` are executed at a time. The other events stay in the
  journal until half of those are done.
- Commands that people sent while no runtime ran the journal are executed before anything runs. Events of that time are
  data: they are taken in order after the runtime has opened, while its program runs. `caught_up` waits for them.
- Each row is answered once. The answer of a command that took effect is in the same commit as the effect (the number of
  the row travels with the `request_id`); the answer of a refused command has its own commit.
- Until then a row is unanswered. After a kill the next start takes it again, and its key shows whether the command had
  taken effect.
- Events for a machine that this program does not have wait, unanswered and in order, until the machine is spawned, here
  or after a later start: a program that only resumes a job must not consume the events of another program. They wait in
  the journal, with one notice for each machine. The sender (`client.py`) limits how many rows may wait in the inbox.
- Each of several nodes executes the rows about the entities that it runs. If an entity has moved to another node, its
  row is left to that node: the journal gives the row to the owner of the target.
- No row can end the reader. If the journal cannot be read, the reader looks again after `AGAIN`.
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

from ...actors.messages.errors import MachineNotFound
from ..errors import JournalError, LeaseLost, RuntimeClosed
from ..journal.contract import Entry, InboxAnswer
from .verbs import MovedAway
from .wire_errors import CommandAnswer, answer_to

if TYPE_CHECKING:
    from ...actors.records.entities import RequestRecord
    from ..host import KernelHost
    from ..journal.contract import InboxRow
    from .idempotency import Requests


AGAIN = 1.0
"""Seconds until the next look at an inbox that could not be read."""
IN_HAND = 1_000
"""The most events of machines that are taken out of the inbox and not done yet."""
AT_ONCE = 64
"""The number of events of machines that are executed at a time."""


class _TargetQueue:
    """The waiting rows about one target, and whether each row arrived while no runtime ran the journal."""

    def __init__(self) -> None:
        self.rows: deque[tuple[InboxRow, bool]] = deque()
        self.begun = False  # whether its task has begun: a task that is cancelled before does and reports nothing
        self.busy = False  # whether its first row is being executed
        self.again = False  # the target's machine has been spawned: look again for rows that wait for the machine
        self.requests: Counter[str] = Counter()  # the request_ids of those rows
        self.scope = anyio.CancelScope()
        self.over = anyio.Event()


class _MissingMachine:
    """A machine that this program does not have: why, and the rows that wait for it, oldest first."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.why = ""
        self.told = False


class InboxReader:
    """Takes the commands out of the inbox of one runtime.

    read: runs a blocking query of the journal. start: runs a coroutine function among the runtime's own tasks.
    left_up_to: the number of the last row in the inbox when the journal was opened. No sender waits for the answers to
    these rows: a notice reports a refusal, and a row for a machine that is not here waits for the machine.
    """

    def __init__(
        self,
        perform: Callable[[InboxRow], Awaitable[None]],
        host: KernelHost,
        requests: Requests,
        read: Callable[..., Awaitable[Any]],
        start: Callable[[Callable[[], Any]], object],
        *,
        left_up_to: int,
        lost: Callable[[LeaseLost], None] | None,
    ) -> None:
        self._start = start
        self._perform = perform
        self._lost = lost
        self._host = host
        self._requests = requests
        self._read = read
        self.on_notified: Callable[[], None] = lambda: None  # called at each notification
        self._taken: set[int] = set()  # rows that are still in the inbox, and have been taken or are about to be taken
        self._events: set[int] = set()  # the same for rows about machines, also rows that wait for their machine
        self._in_hand = 0  # the number of those in the queues
        self._more = False  # whether further events are in the inbox
        self._queues: dict[str, _TargetQueue] = {}  # the rows that are being executed, by their target
        self._target_of: dict[str, str] = {}  # the targets of the queues, by the request_ids of the commands in them
        self._closed = False
        self._waiting: dict[str, _MissingMachine] = {}  # by the names of machines
        self._left: set[int] = set()  # rows that were tried without success: no sender waits for their answers any more
        self._failing: set[str] = set()  # the queues whose last try met a journal that cannot be read
        self._unread = False  # the last look failed, or the last try of one of those
        self._left_up_to = left_up_to
        self._events_too = False  # the old commands of people are done: events are taken from now on
        self._all_left_taken = False  # whether all old events have been taken
        self._left_in_queues = 0  # the number of old rows in the queues
        self._caught_up = anyio.Event()  # all old rows are done, or wait for their machine
        self._doing = anyio.Semaphore(AT_ONCE)
        self._wanted = False  # whether to look again
        self._again: anyio.CancelScope | None = None  # the scope of the task that reads the inbox again
        self._again_begun = False
        self._not_again = anyio.Event()
        self._taking = anyio.Lock()
        self._serving = anyio.CancelScope()
        self._ended = anyio.Event()

    async def serve(self, *, task_status: TaskStatus[None]) -> None:
        """Take new rows at each notification, until cancelled."""
        notifier = self._host.journal.notifier()
        try:
            task_status.started()
            with self._serving:
                await self.take()  # old events, and rows that arrived before there was a notifier
                while notifier is not None:
                    with anyio.move_on_after(AGAIN if self._unread or self._queues or self._more else None):
                        await notifier.wait()
                    self.on_notified()
                    await self.take()
        finally:
            if notifier is not None:
                notifier.close()
            self._ended.set()

    async def close(self) -> None:
        """Take no more rows. Returns when no query of the journal runs, since the journal closes next."""
        self._closed = True
        self._caught_up.set()
        self._serving.cancel()
        await self._ended.wait()
        if self._again is not None:
            self._again.cancel()
            if self._again_begun:
                await self._not_again.wait()
        queues = [*self._queues.values()]
        for queue in queues:
            queue.scope.cancel()
        for queue in queues:
            if queue.begun:
                await queue.over.wait()

    async def awaited(self) -> dict[str, float]:
        """The targets of the decisions that may be in the inbox, each with the time of its first decision."""
        try:
            rows: list[InboxRow] = await self._read(partial(self._host.journal.inbox, events=False))
        except JournalError:
            return {}  # `take` reports the error
        made: dict[str, float] = {}
        for row in rows:
            if row.verb in {"approve", "reject", "fire"} and row.sent_at:  # whatever its lifecycle calls a decision
                made[row.target] = min(row.sent_at, made.get(row.target, row.sent_at))
        return made

    async def take_left(self) -> None:
        """Execute the old commands of people. Returns when each is done or cannot be done."""
        await self.take()
        while self._queues or (self._again is not None and not self._unread):
            for queue in [*self._queues.values()]:
                await queue.over.wait()
            if self._again is not None and not self._unread:
                await self._not_again.wait()
        self._events_too = True

    async def caught_up(self) -> None:
        """Wait until each old row is done or waits for its machine, or until the reader is closed."""
        await self._caught_up.wait()

    async def take(self) -> None:
        """Execute the rows of the inbox; events of machines only after the old commands of people."""
        try:
            async with self._taking:
                await self._take_people()
                if self._events_too:
                    await self._take_events()
            self._failing.intersection_update(self._queues)
            self._unread = bool(self._failing)
        except RuntimeClosed:
            return  # the next start takes them
        except JournalError as error:
            self._tell_unreadable(error)
            self._look_again()
        self._look_whether_caught_up()

    async def _take_people(self) -> None:
        """Take all rows about jobs, tasks, workers and tools."""
        rows: list[InboxRow] = await self._read(partial(self._host.journal.inbox, events=False))
        self._taken.intersection_update(row.row for row in rows)
        for row in rows:
            if row.row not in self._taken:
                self._taken.add(row.row)
                self._line_up(row)

    async def _take_events(self) -> None:
        """Take the oldest rows about machines, as many as there is room for."""
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
        if self._all_left_taken and not self._left_in_queues and not self._caught_up.is_set():
            self._caught_up.set()
            for machine in [*self._waiting]:
                self._tell_waiting(machine)

    def _waits(self, row: InboxRow, unheard: bool) -> bool:
        """Whether older rows wait for the same machine. The row is then put behind them, and not tried."""
        absent = self._waiting.get(row.target) if unheard and row.kind == "machine" else None
        if absent is not None:
            self._wait_for(row, absent.why)
        return absent is not None

    def _look_again(self) -> None:
        """Look again in a task of its own; if the last look failed, after `AGAIN` seconds."""
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
        about = self._target_of.get(row.request_id) or _about(row)
        queue = self._queue_of(about)
        queue.rows.append((row, self._is_unheard(row)))
        queue.requests[row.request_id] += 1
        self._left_in_queues += self._was_left(row)
        self._target_of[row.request_id] = about

    def _queue_of(self, about: str) -> _TargetQueue:
        """The queue of a target. Its rows are executed from now on."""
        queue = self._queues.get(about)
        if queue is None:
            queue = self._queues[about] = _TargetQueue()
            self._start(partial(self._work_off, about, queue))
        return queue

    async def _work_off(self, about: str, queue: _TargetQueue) -> None:
        queue.begun = True
        try:
            with queue.scope, suppress(RuntimeClosed):  # the next start takes them
                while queue.rows and not self._closed:
                    await self._next(about, queue)
        finally:
            del self._queues[about]
            for row, _ in queue.rows:
                self._dequeue(queue, row)
            queue.over.set()
            self._end_queue(about.removeprefix("machine "), queue)

    def _end_queue(self, machine: str, queue: _TargetQueue) -> None:
        if queue.again:
            self.spawned(machine)
        elif self._caught_up.is_set():
            self._tell_waiting(machine)
        self._look_whether_caught_up()

    async def _next(self, about: str, queue: _TargetQueue) -> None:
        row, unheard = queue.rows[0]
        queue.busy = True
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
            self._left.update(row.row for row, unheard in queue.rows if unheard)
            self._put_back(queue, 0)
            self._all_left_taken = False
            self._look_again()
            return
        finally:
            queue.busy = False
        self._failing.discard(about)
        if not done:
            self._put_back(queue, 0, 1)
            return
        queue.rows.popleft()
        self._dequeue(queue, row)
        if row.kind == "machine":
            self._in_hand -= 1
            self._look_for_more()
        self._look_whether_caught_up()

    def _dequeue(self, queue: _TargetQueue, row: InboxRow) -> None:
        """Remove a row from its queue, and remove the queue of its request_id if no other row has it."""
        self._left_in_queues -= self._was_left(row)
        queue.requests[row.request_id] -= 1
        if not queue.requests[row.request_id]:
            del queue.requests[row.request_id]
            self._target_of.pop(row.request_id, None)

    def _put_back(self, queue: _TargetQueue, first: int, last: int | None = None) -> None:
        """Put some rows of a queue back into the inbox, where a later look finds them again."""
        rows = [*queue.rows]
        for row, _ in rows[first:last]:
            self._dequeue(queue, row)
            self._taken.discard(row.row)
            self._events.discard(row.row)
            self._in_hand -= row.kind == "machine"
        del rows[first:last]
        queue.rows = deque(rows)

    def _tell_unreadable(self, error: JournalError) -> None:
        if isinstance(error, LeaseLost) and self._lost is not None:
            self._lost(error)
        elif not self._unread and not self._host.journal.health.lost:
            self._host.notice("inbox_unreadable", "error", f"the inbox cannot be read: {error}", raised=error)
        self._unread = True

    def spawned(self, machine: str) -> None:
        """A machine may have been spawned: take the rows that wait for it, and then newer rows."""
        absent, queue = self._waiting.pop(machine, None), self._queues.get(f"machine {machine}")
        if absent is None:
            return
        if queue is not None:
            queue.again = True  # the row that is being executed may have been too early
            self._put_back(queue, int(queue.busy))
        self._events.difference_update(absent.rows)
        self._all_left_taken = False
        self._host.events_left -= len(absent.rows)
        self._look_again()

    def _wait_for(self, row: InboxRow, why: str) -> None:
        absent = self._waiting.setdefault(row.target, _MissingMachine())
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
                f"{number:,} event{'s' * several} for machine {machine}, sent while no runtime had it, "
                f"wait{'' if several else 's'} for it: {absent.why}"
            )
            self._host.notice("command_waits", "warning", text, verb="fire", target=machine, waiting=number)

    async def _do(self, row: InboxRow, unheard: bool) -> bool:
        """Execute a row, and answer it. False if the row is left to another node."""
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
                text = f"{row.verb} {row.target}, sent while no runtime was open, was refused: {answered.error}"
                self._host.notice("command_refused", "warning", text, verb=row.verb, target=row.target)
        return True

    async def _done(self, row: InboxRow) -> CommandAnswer | None:
        """Execute a row. Returns the answer, or None if the answer was committed with the effect."""
        try:
            await self._perform(row)
        except (RuntimeClosed, JournalError, MachineNotFound, MovedAway):
            raise
        except Exception as error:
            return answer_to(error)
        return await self._seen(row)

    async def _seen(self, row: InboxRow) -> CommandAnswer | None:
        """The answer to a command that took effect before, by another row or in another way."""
        record: RequestRecord | None = await self._read(self._host.journal.reader.request, row.request_id)
        if record is None:
            return CommandAnswer()
        return None if record.row == row.row else msgspec.json.decode(record.answer, type=CommandAnswer)


def _about(row: InboxRow) -> str:
    """The target of a row, for the order of rows. The target of a task's row is its job."""
    if row.kind == "task":
        return f"job {row.target.rpartition('/')[0]}"
    return f"{row.kind} {row.target}"
