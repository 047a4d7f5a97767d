"""Takes commands out of the inbox and has the runtime do them.

Rules:
- A command is done as of now, but a decision as of when it was made, so far as its sender's clock is not ahead: whoever
  was told that it will take effect was not told so in vain.
- Rows are taken in order, one after another. Each is answered once: what took effect in the same commit as the effect
  (its row's number travels with the `request_id`), what was refused by a commit of its own.
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
        self._taken: set[int] = set()  # rows that are in the inbox still, and have been taken
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
                    with anyio.move_on_after(AGAIN if self._unread else None):
                        await bell.heard()
                    self.on_ring()
                    await self.take()
        finally:
            bell.close()
            self._ended.set()

    async def close(self) -> None:
        """Take nothing more; returns when the journal is no longer asked, since it is about to be closed."""
        self._serving.cancel()
        await self._ended.wait()

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
        """Do what is in the inbox, in order. unheard: nobody waits for the answers, so a notice tells of refusals."""
        unheard = self._unheard = unheard or self._unheard
        try:
            async with self._taking:
                rows: list[InboxRow] = await self._read(self._host.journal.inbox)
                self._taken.intersection_update(row.row for row in rows)
                for row in rows:
                    if row.row not in self._taken:
                        await self._do_what_waits(row.target)
                        if await self._do(row, unheard):
                            self._taken.add(row.row)
            self._unread = self._unheard = False
        except RuntimeClosed:
            return  # the next start takes them
        except JournalError as error:
            self._tell_unreadable(error)

    def _tell_unreadable(self, error: JournalError) -> None:
        if isinstance(error, LeaseLost) and self._host.seat is not None:
            self._host.seat.lost(error)
        elif not self._unread and not self._host.journal.health.lost:
            self._host.notice("inbox_unreadable", "error", f"the inbox cannot be read: {error}", raised=error)
        self._unread = True

    def spawned(self, machine: str) -> None:
        """It may be there now: do what waits for it."""
        if machine in self._waiting:
            self._start(partial(self._retake, machine))

    async def _retake(self, machine: str) -> None:
        with suppress(RuntimeClosed):  # the next start takes it
            while machine in self._waiting:
                try:
                    async with self._taking:
                        await self._do_what_waits(machine)
                except JournalError as error:
                    self._tell_unreadable(error)
                    await anyio.sleep(AGAIN)
                else:
                    return

    async def _do_what_waits(self, machine: str) -> None:
        rows = deque(self._waiting.pop(machine, ()))
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
