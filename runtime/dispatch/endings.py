"""Endings: how an actor ends, for good or for a restart. Why it ends: runtime/dispatch/supervision.py.

Rules
- Each actor ends in the same steps: it finishes its present message, then its children end, the last started first,
  then its `stopped` runs. The message and `stopped` may take `stop_timeout` seconds each. A receive that takes longer
  is cancelled, abandoned and reported, and the next step follows without it.
- Each step starts the next one through `soon`, so that a million children, or ten thousand generations, end without
  deep recursion.
- An actor that ends for good has its links cut (`cut`). Its cell stays, as the reference that other code may keep.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from ...actors.user_code import kind_name, message_of, shown
from ...actors.users.actor import Terminated
from ...actors.users.ref import BUSY, NOTHING, Cell, Turn
from .actor_failures import ActorTrouble, Failures
from .mailbox import Mailboxes, details_of
from .stopped_host import StoppedHost

if TYPE_CHECKING:
    from ...actors.users.host import ActorHost
    from .call_queue import CallQueue
    from .cell_host import CellHost
    from .coroutine_receives import CoroutineReceives
    from .receive import Receives

__all__ = ["BUILT", "CHILD", "START", "STOPPED", "Endings", "LifecycleMessage"]

_ENDED: deque[Any] = deque()
"""The control queue of every ended cell: as it is not None, the dispatcher checks the cell before it runs it."""

_Step = tuple[Callable[..., object], tuple[Any, ...]]


class LifecycleMessage:
    """Takes the place of a message when an actor runs without one. where: the words for it in a notice."""

    def __init__(self, name: str, where: str) -> None:
        self._name = name
        self.where = where

    def __repr__(self) -> str:
        return self._name


START = LifecycleMessage("<started>", "in started()")
"""The control message that runs `started`."""
STOPPED = LifecycleMessage("<stopped>", "in stopped()")
BUILT = LifecycleMessage("<built>", "when it was built anew")
CHILD = LifecycleMessage("<child>", "by a child")


class Ending(Struct, gc=False, eq=False):
    """The record of a cell that is ending. then: what is called when it has ended."""

    reason: str
    error: BaseException | None
    final: bool  # False: it will be restarted
    then: list[_Step]


class Endings:
    """The ends of the actors of one dispatcher."""

    def __init__(
        self,
        root: Cell,
        host: CellHost,
        *,
        calls: CallQueue,
        mailboxes: Mailboxes,
        receives: Receives,
        coroutines: CoroutineReceives,
        failures: Failures,
        report: Callable[[ActorTrouble], None],
    ) -> None:
        self._root = root
        self._host = host
        self._now = host.now
        self._soon = calls.soon
        self._mailboxes = mailboxes
        self._receives = receives
        self._coroutines = coroutines
        self._failures = failures
        self._report = report
        self._stopped_host = cast("ActorHost", StoppedHost(host))  # stopped cells use only that part of `ActorHost`

    def suspend(self, cell: Cell) -> None:
        """Let a cell handle no message until `resume`; it keeps its messages."""
        host = self._host
        details = details_of(cell)
        if details.suspended:
            return
        details.suspended = True
        details.queued = cell.first is not NOTHING and cell is not host.current and details.turn is None
        self._mailboxes.put_back(cell)
        cell.first = BUSY
        if cell.control is None:
            cell.control = deque()

    def resume(self, cell: Cell) -> None:
        """Let a suspended cell handle messages again."""
        host = self._host
        details = details_of(cell)
        details.suspended = False
        if details.turn is not None:
            return  # the receive is still running, as of the parent of a failed child that was resumed
        if details.queued:
            details.queued = False
            host.ready.remove(cell)
        self._mailboxes.rest(cell)

    # -- ending ----------------------------------------------------------------------------------------------------

    def stop(self, cell: Cell) -> None:
        """`Ref.stop`, outside of any receive."""
        self.end(cell, "stopped", None)

    def end(
        self, cell: Cell, reason: str, error: BaseException | None, *, final: bool = True, then: _Step | None = None
    ) -> None:
        """Begin to end a cell; `then` is called when it has ended. A cell that is ending already is not ended twice."""
        if cell.spec is None:
            if then is not None:
                self._soon(then[0], *then[1])
            return
        details = details_of(cell)
        ending = details.ending
        if ending is not None:
            if then is not None:
                ending.then.append(then)
            if final and not ending.final:
                ending.final, ending.reason, ending.error = True, reason, error
            return
        if details.timer is not None:  # the actor waited for its restart: the timer stays armed for others
            details.timer = None
        self.suspend(cell)
        details.ending = Ending(reason, error, final, [] if then is None else [then])
        if details.turn is not None:
            self._limit(cell)
        else:
            self._soon(self._end_children, cell)

    def turn_ended(self, cell: Cell) -> None:
        """The present coroutine receive of an ending cell has ended."""
        self._unlimit(cell)
        self._soon(self._end_children, cell)

    def _end_children(self, cell: Cell) -> None:
        details = cell.details
        if details is None:
            return
        if details.children:
            last = next(reversed(details.children.values()))
            self.end(last, "parent_stopped", None, then=(self._end_children, (cell,)))
            return
        actor = cell.actor
        if actor is None or cell.spec is None or not cell.spec.has_stopped:
            self._ended(cell, None)
            return
        self._receives.run_hook(cell, actor.stopped, self._ended)
        if details.turn is not None:
            self._limit(cell)

    def _ended(self, cell: Cell, error: BaseException | None) -> None:
        """`stopped` has ended, or the actor has none."""
        if error is not None:
            self._soon(self.tell_failed, cell.name, STOPPED, error)
        details = cell.details
        if details is None or details.ending is None:
            return
        self._unlimit(cell)
        ending: Ending = details.ending
        details.ending = None
        if ending.final:
            self._finish(cell, ending.reason, ending.error)
        else:
            cell.actor = None
            self._mailboxes.fail_owed(cell, "was built anew")
        for function, args in ending.then:
            self._soon(function, *args)

    def tell_failed(self, name: str, message: object, error: BaseException) -> None:
        """Report that an actor has raised, on a message or on a `LifecycleMessage`."""
        kind = None if isinstance(message, LifecycleMessage) else kind_name(message)
        where = message.where if isinstance(message, LifecycleMessage) else f"on a message of type {kind}"
        text = f"actor {name} failed {where}: {message_of(error)}"
        self._report(ActorTrouble("actor_failed", "error", name, text, kind, error))

    def _limit(self, cell: Cell) -> None:
        host = self._host
        timeout = 0.0 if cell.spec is None else cell.spec.stop_timeout
        details_of(cell).timer = host.timers.arm(self._now() + timeout, self._soon, self._overdue, cell)

    def _unlimit(self, cell: Cell) -> None:
        details = cell.details
        if details is not None and details.timer is not None:
            self._host.timers.cancel(details.timer)
            details.timer = None

    def _overdue(self, cell: Cell) -> None:
        """The receive has taken longer than `stop_timeout`: abandon it, and go on to the next step."""
        details = cell.details
        if details is None or details.turn is None or details.ending is None:
            return
        turn: Turn = details.turn
        details.timer = None
        details.ending.reason = "abandoned"
        self._coroutines.abandon(turn)
        timeout = 0.0 if cell.spec is None else cell.spec.stop_timeout
        text = f"actor {cell.name} was abandoned: {shown(turn.message)} was still running {timeout} s after its stop"
        kind = None if turn.hook is not None else kind_name(turn.message)
        self._report(ActorTrouble("actor_abandoned", "critical", cell.name, text, kind))
        if turn.hook is not None:
            self._ended(cell, None)
        else:
            self._soon(self._end_children, cell)

    def _finish(self, cell: Cell, reason: str, error: BaseException | None) -> None:
        """End an actor for good: its messages, its watchers, its place among its siblings, its links."""
        details, parent = cell.details, cell.parent
        if error is None:
            self._failures.forget(cell)  # the actor failed earlier, and did not stop because of that
        else:
            self._failures.note(cell, error, self._now())
        self._mailboxes.end_mail(cell)
        if parent is not None and parent.details is not None and parent.details.children is not None:
            parent.details.children.pop(cell.key, None)
        watchers = None if details is None else details.watchers
        if details is not None:
            for target in details.watching or ():
                if target.details is not None and target.details.watchers is not None:
                    target.details.watchers.pop(cell, None)
        self.cut(cell)
        for watcher in watchers or ():
            if watcher.details is not None and watcher.details.watching is not None:
                watcher.details.watching.pop(cell, None)
            self._mailboxes.control(watcher, Terminated(cell, reason, error))

    def cut(self, cell: Cell) -> None:
        """Cut all links of an ended cell to other objects."""
        cell.first = BUSY
        cell.control = _ENDED
        cell.host = self._stopped_host
        cell.actor = cell.more = cell.hand = cell.ctx = cell.spec = cell.parent = cell.details = None

    # -- watching --------------------------------------------------------------------------------------------------

    def watch(self, watcher: Cell, target: Cell) -> None:
        """`Context.watch`: send `watcher` a `Terminated` when `target` ends; at once if it has ended."""
        if watcher.spec is None:
            return
        if target.spec is None:
            self._mailboxes.control(watcher, Terminated(target, "stopped"))
            return
        watching, watched = details_of(watcher), details_of(target)
        if watching.watching is None:
            watching.watching = {}
        if watched.watchers is None:
            watched.watchers = {}
        watching.watching[target] = None
        watched.watchers[watcher] = None

    def unwatch(self, watcher: Cell, target: Cell) -> None:
        """`Context.unwatch`."""
        if watcher.details is not None and watcher.details.watching is not None:
            watcher.details.watching.pop(target, None)
        if target.details is not None and target.details.watchers is not None:
            target.details.watchers.pop(watcher, None)

    # -- all of them -----------------------------------------------------------------------------------------------

    def stop_family(self, then: Callable[[], object]) -> None:
        """Stop all actors, the last started first, and then call `then`."""
        self._soon(self._stop_last, then)

    def _stop_last(self, then: Callable[[], object]) -> None:
        children = self._root.details.children if self._root.details is not None else None
        if children:
            last = next(reversed(children.values()))
            self.end(last, "stopped", None, then=(self._stop_last, (then,)))
        else:
            then()

    def close(self) -> None:
        """End all actors at once, without their `stopped`: links are cut, asks and offers in progress fail."""
        cells = [self._root]
        while cells:
            cell = cells.pop()
            details = cell.details
            if details is not None:
                cells.extend((details.children or {}).values())
                if details.turn is not None:
                    self._coroutines.abandon(details.turn)
            self._mailboxes.end_mail(cell)
            self.cut(cell)
        self._failures.clear()
