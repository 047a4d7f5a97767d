"""Effects of a receive: kept in a log, committed when the receive succeeds, undone when it fails.

Rules
- A log keeps the effects of a receive in order: its plain sends, which have happened and can be undone, and its other
  effects (`StagedEffect`), which happen at `commit`. All effects of a coroutine receive are `StagedEffect`.
- `undo` goes through the log backwards. It takes the last message out of a mailbox, and the last cell out of the
  run queue. This is exact, because nothing else runs beside a plain receive.
- The room for a message that is held back is reserved, so that `tell` never returns True for a message that is refused
  later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from ...actors.times import LONGEST, wait_of
from ...actors.users.actor import After, Later
from ...actors.users.dead_letters import Reason
from ...actors.users.ref import Cell, Request, Turn
from .cell_host import CellHost
from .mailbox import Mailboxes, details_of

__all__ = ["Effects", "StagedEffect"]


class StagedEffect(Struct, gc=False, eq=False):
    """An effect of a receive that happens when the receive has succeeded."""

    do: Callable[..., object]
    args: tuple[Any, ...]
    undo: Callable[..., object] | None = None


class Effects:
    """The effects of the receives of one dispatcher."""

    def __init__(self, host: CellHost, mailboxes: Mailboxes) -> None:
        self.staged = False  # the log of the plain receive that runs holds more than plain sends
        self.request: Request | None = None  # the request that the present plain receive must answer
        self._host = host
        self._mailboxes = mailboxes

    # -- during a receive ------------------------------------------------------------------------------------------

    def stage(self, do: Callable[..., object], *args: Any) -> None:
        """Do something when the present receive has succeeded, or at once if no receive runs."""
        host = self._host
        if host.turn is not None:
            host.turn.log.append(StagedEffect(do, args))
        elif host.current is not None:
            host.log.append(StagedEffect(do, args))
            self.staged = True
        else:
            do(*args)

    def on_undo(self, undo: Callable[..., object], *args: Any) -> None:
        """Call `undo(*args)` if the present receive fails, to undo an effect that has happened at once."""
        host = self._host
        if host.turn is not None:
            host.turn.log.append(StagedEffect(_nothing, args, undo))
        elif host.current is not None:
            host.log.append(StagedEffect(_nothing, args, undo))

    def hold(self, cell: Cell, message: Any) -> bool:
        """`tell` of a coroutine receive: reserve the room now, and send the message when the receive has succeeded."""
        turn = self._host.turn
        if turn is None or turn.abandoned or cell.spec is None or not cell.has_room():
            full = cell.spec is not None and not (turn is not None and turn.abandoned)
            self._mailboxes.drop(cell, message, Reason.MAILBOX_FULL if full else Reason.STOPPED)
            return False
        cell.room -= 1
        turn.log.append(StagedEffect(_send_held, (cell, message), _give_room))
        return True

    def after(self, cell: Cell, epoch: int, delay: float, message: Any) -> After:
        """`Context.after`. The timer is cancelled if the present receive fails."""
        if not ((type(delay) is float or type(delay) is int) and 0 <= delay <= LONGEST):
            delay = wait_of(delay, "the delay of `after`")
        timers = self._host.timers
        after = After(cell, epoch, message, None)
        after.timer = timers.arm(self._host.now() + delay, self._mailboxes.control, cell, after)
        self.on_undo(timers.cancel, after.timer)
        return after

    def put_off(self, cell: Cell) -> Later:
        """`Context.reply_later`."""
        turn = self._host.turn
        if turn is not None:
            request, turn.request = turn.request, None
        else:
            request, self.request = self.request, None
        if request is not None:
            details = details_of(cell)
            if details.owed is None:
                details.owed = {}
            details.owed[request] = None
            request.deferred = True
        return Later(request)

    def release(self, turn: Turn) -> None:
        """Commit the effects so far of a coroutine receive."""
        if turn.log and not turn.abandoned:
            host = self._host
            before = host.turn, host.current
            self.commit(turn.log)
            host.turn, host.current = before

    def release_present(self) -> None:
        """Commit the effects so far of the coroutine receive that runs now, if there is one."""
        turn = self._host.turn
        if turn is not None:
            self.release(turn)

    # -- after a receive -------------------------------------------------------------------------------------------

    def commit(self, log: list[Any]) -> None:
        """Do the staged effects of a successful receive, in order and outside of the receive."""
        host = self._host
        host.turn = host.current = None
        self.staged = False
        for entry in log:
            if type(entry) is StagedEffect:
                entry.do(*entry.args)
        log.clear()

    def undo(self, log: list[Any]) -> None:
        """Undo all effects of a failed receive."""
        for entry in reversed(log):
            if type(entry) is not StagedEffect:
                self._mailboxes.take_back(entry)
            elif entry.undo is not None:
                entry.undo(*entry.args)
        log.clear()
        self.staged = False


def _send_held(cell: Cell, message: Any) -> None:
    cell.room += 1
    cell.tell(message)


def _give_room(cell: Cell, _: Any) -> None:
    cell.room += 1


def _nothing(*_: Any) -> None:
    """Do nothing: the effect has happened already."""
