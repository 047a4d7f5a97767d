"""Batches: the order of the cells' turns, and the plain receives of a turn. The speed of actors depends on this file.

Rules
- A cell handles up to 64 messages in its turn; then the next cell has its turn. A cell with remaining mail goes to the
  end of the run queue.
- For each message the loop checks the kind of the message, makes the call, and checks the results of the call: sends,
  an answer of a special kind, a changed context. All other work is done once per batch. A message that needs more than
  this leaves the loop.
- The whole batch is taken out of its cell, and the cell's `room` is smaller by its length until the turn is over. So
  `tell` may find too little room, but never too much; then `has_room` counts exactly, by `handled`.
- If a turn ends early, the unhandled messages of its batch go back to the head of the mailbox (`_settle`).
- Each receive runs in a `Context` equal to the one in which the dispatcher was made: if a receive changes it, the pass
  ends, and the next pass takes a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import length_hint
from typing import Any

from ...actors.user_code import contained
from ...actors.users.ref import BUSY, NOTHING, SYSTEM, Cell, Request, SystemRef
from .call_queue import CallQueue
from .cell_host import CellHost
from .clock import Clock
from .effects import Effects
from .mailbox import Mailboxes
from .receive import NOT_MERE_ANSWERS, Receives
from .system_cells import SystemCells

__all__ = ["BATCH", "Batches"]

BATCH = 64
"""Messages of one actor before the turn of the next one, and messages between two looks at the clock."""

_NO_MORE: Iterator[Any] = iter(())
_KIND_OF: Callable[[object], object] = type


class Batches:
    """Gives the cells of one dispatcher their turns."""

    def __init__(
        self,
        *,
        clock: Clock,
        host: CellHost,
        calls: CallQueue,
        mailboxes: Mailboxes,
        effects: Effects,
        receives: Receives,
        systems: SystemCells,
    ) -> None:
        self.until = 0.0  # clock seconds at which no further message is handled before a look at the timers
        self._clock = clock
        self._host = host
        self._calls = calls
        self._mailboxes = mailboxes
        self._effects = effects
        self._receives = receives
        self._systems = systems
        self._context = receives.base.copy()
        self._batch_of: Cell | None = None  # the cell whose batch is being handled
        self._batch_size = 0
        self._batch_left = _NO_MORE  # the unhandled messages of the batch

    # -- one batch -------------------------------------------------------------------------------------------------

    def _take(self, cell: Cell, limit: int) -> Iterator[Any]:
        """Take the next messages of a cell for its turn, at most `limit`. The caller calls `_settle` afterwards."""
        batch = cell.hand
        if batch is None:
            self._mailboxes.put_back(cell)
            batch, cell.more = cell.more or [], None
            cell.room -= len(batch)
            if len(batch) > limit:
                batch.reverse()
                cell.hand = batch
        elif len(batch) <= limit:
            cell.hand = None
            batch.reverse()
        if cell.hand is not None:
            hand, batch = batch, batch[: -limit - 1 : -1]
            del hand[-limit:]
        self._batch_of, self._batch_size = cell, len(batch)
        self._batch_left = left = iter(batch)
        return left

    def _settle(self, cell: Cell) -> int:
        """End the turn: put the unhandled messages of the batch back. Returns the number of handled messages."""
        handled = self._batch_size
        rest = list(self._batch_left)
        if rest:
            handled -= len(rest)
            rest.reverse()
            if cell.hand is None:
                cell.hand = rest
            else:
                cell.hand.extend(rest)
        cell.room += handled
        self._batch_of, self._batch_left = None, _NO_MORE
        return handled

    def handled(self, cell: Cell) -> int:
        """The number of handled messages of a cell's present batch: their room is free, but not yet added to `room`."""
        return self._batch_size - length_hint(self._batch_left) if cell is self._batch_of else 0

    # -- the run queue ---------------------------------------------------------------------------------------------

    def run(self, limit: int) -> int:
        """Handle up to `limit` messages of ready cells, until `until` at most. Returns the number of messages."""
        host, base, context = self._host, self._receives.base, self._context
        try:
            handled = context.run(self._handle_ready, limit)
        except Exception:
            if self._changed() is not None:
                raise
            handled = limit  # the value of a context variable cannot be compared: count it as changed, and end the pass
        finally:
            host.turn = host.current = None
            self._effects.request = None
            if self._batch_of is not None:  # an error left the loop: put the rest of that batch back
                self._settle(self._batch_of)
        try:  # `_changed` in short
            changed = base != context
        except BaseException as raised:
            contained(raised)
            changed = True
        if changed:
            self._context = base.copy()
        return handled

    def _changed(self) -> bool | None:
        """Whether a receive has changed the context; None if the comparison of its values raises."""
        try:
            return self._receives.base != self._context
        except BaseException as raised:  # raised by the code of a value in the context
            contained(raised)
            return None

    def _handle_ready(self, limit: int) -> int:  # noqa: PLR0912 - one loop, on purpose
        host, effects, receives, calls = self._host, self._effects, self._receives, self._calls.waiting
        ready, log, context, base = host.ready, host.log, self._context, receives.base
        # Local names are faster than global names: this saves some nanoseconds for each check of a type.
        kind_of = _KIND_OF
        ask, busy, idle = Request, BUSY, NOTHING
        mere: object = bool  # an answer of this type needs no action
        left = limit
        look = limit - BATCH  # when so many messages remain of `limit`, read the clock
        while left and ready and not calls and context == base:
            if left <= look:
                if self._clock.monotonic() >= self.until:
                    break
                look = left - BATCH
            cell: Cell = ready.popleft()
            if cell.control is not None:
                if cell.control is SYSTEM:
                    system: Any = cell
                    left -= self._systems.run(system, min(left, BATCH))
                    continue
                if not receives.prepare(cell):
                    left -= 1
                    continue
            message = cell.first
            if message is busy or cell.more is not None:
                left -= self._handle_batch(cell, min(left, BATCH))
                continue
            # The cell has only this message: no batch is made for it.
            left -= 1
            cell.first = busy
            if kind_of(message) is ask:
                receives.run(cell, message.message, message)
                continue
            host.current = cell
            try:
                result = cell.actor.receive(message, cell.ctx)
            except BaseException as error:
                receives.failed(cell, message, None, error)
                continue
            if log:
                if effects.staged:
                    self._let_happen(cell)
                else:
                    log.clear()
            if result is not None and kind_of(result) is not mere:
                if kind_of(result) not in NOT_MERE_ANSWERS:
                    mere = kind_of(result)
                elif receives.took(cell, message, None, result):
                    continue
            if cell.more is None and cell.control is None:
                cell.first = idle
            else:
                self._mailboxes.rest(cell)
        return limit - left

    def _handle_batch(self, cell: Cell, limit: int) -> int:  # noqa: PLR0912 - one loop, on purpose
        """Handle up to `limit` messages of one cell. Returns how many.

        Ends early after an ask, and after a message with other effects than plain sends.
        """
        host, effects, receives = self._host, self._effects, self._receives
        log, context, base = host.log, self._context, receives.base
        actor, ctx = cell.actor, cell.ctx
        messages = self._take(cell, limit)
        host.current = cell
        kind_of = _KIND_OF  # local names, as above
        ask = Request
        mere: object = bool
        message: Any = None
        result: Any = None
        while True:
            try:
                for message in messages:
                    if kind_of(message) is ask:
                        break
                    result = actor.receive(message, ctx)
                    if log:
                        if effects.staged:
                            break
                        log.clear()
                    if result is not None and kind_of(result) is not mere:
                        if kind_of(result) in NOT_MERE_ANSWERS:
                            break
                        mere = kind_of(result)
                    if context != base:
                        break
                else:
                    break
            except BaseException as error:
                handled = self._settle(cell)
                receives.failed(cell, message, None, error)
                return handled
            if kind_of(message) is ask:
                handled = self._settle(cell)
                receives.run(cell, message.message, message)
                return handled
            interrupted = effects.staged and self._let_happen(cell)
            if interrupted or kind_of(result) in NOT_MERE_ANSWERS or self._changed() is not False:
                handled = self._settle(cell)
                if not receives.took(cell, message, None, result):
                    self._mailboxes.rest(cell)
                return handled
        # All were handled: `_settle` in short.
        handled = self._batch_size
        self._batch_of = None
        cell.room += handled
        self._mailboxes.rest(cell)
        return handled

    def _let_happen(self, cell: Cell) -> bool:
        """Commit the staged effects of a plain receive. Returns whether the turn must pause before the next message."""
        host = self._host
        self._effects.commit(host.log)
        host.current = cell
        return bool(self._calls.waiting) or cell.control is not None

    def run_urgent(self, cell: SystemRef) -> None:
        """Handle the urgent messages of a system cell, outside of its turn."""
        self._context.run(self._systems.run_urgent, cell, BATCH)
