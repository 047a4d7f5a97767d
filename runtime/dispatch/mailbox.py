"""The mailroom: how messages go into mailboxes, and how the effects of a receive are committed or undone.

This is the part of the dispatcher that cells call (`Host` in actors/users/host.py). The other parts,
runtime/dispatch/receive.py, runtime/dispatch/batches.py and runtime/dispatch/dispatcher.py, handle messages and decide
the order of turns.

Rules
- A message without room, or without a living actor, becomes a dead letter at once. The asker of an ask gets an error
  instead.
- A log keeps the effects of a receive in order: its plain sends, which have happened and can be undone, and its other
  effects (`Staged`), which happen at `commit`. All effects of a coroutine receive are `Staged`.
- `undo` goes through the log backwards. It takes the last message out of a mailbox, and the last cell out of the
  run queue. This is exact, because nothing else runs beside a plain receive.
- The dispatcher, of which this is a part, has fewer than 30 attributes of its own: with more, CPython finds each of
  them slower, and an ask takes a fifth longer. A test counts them.
- The room for a message that is held back is reserved, so that `tell` never returns True for a message that is refused
  later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ...actors.times import LONGEST, wait_of
from ...actors.user_code import said, shown
from ...actors.users.actor import After, Later
from ...actors.users.dead_letters import DeadLetters, Reason
from ...actors.users.errors import ActorStopped
from ...actors.users.ref import BUSY, NOTHING, Cell, Life, Offer, Request, Turn
from .clock import Clock, SystemClock
from .timers import Timers
from .waker import ACTORS, Waker, native_waiter

if TYPE_CHECKING:
    from ...actors.users.host import Waiter
    from .supervision import Supervisor

__all__ = ["Mailroom", "Staged"]


TOLD = 100_000
"""The most messages of other threads that may wait for the loop; further ones are refused."""
REFUSED = 1_000
"""The most refused messages that are kept as dead letters for the loop; further ones are only counted."""


class Staged(Struct, gc=False, eq=False):
    """An effect of a receive that happens when the receive has succeeded."""

    do: Callable[..., object]
    args: tuple[Any, ...]
    undo: Callable[..., object] | None = None


class Outside:
    """Messages from other threads that are in no mailbox yet, refused messages, and the threads' wake-up."""

    def __init__(self) -> None:
        self.told: deque[tuple[Cell, Any]] = deque()
        self.rung = False  # a wake-up from another thread is on its way
        self._refused: list[tuple[str, Any]] = []
        self._more = 0
        self._lock = Lock()

    def refuse(self, name: str, message: Any) -> bool:
        """Note a refused message. Returns whether it is the first since `take_refused`."""
        with self._lock:
            if len(self._refused) < REFUSED:
                self._refused.append((name, message))
            else:
                self._more += 1
            return len(self._refused) == 1 and not self._more

    def take_refused(self) -> tuple[list[tuple[str, Any]], int]:
        """Take the refused messages, each with the name of its actor, and the number of further ones."""
        with self._lock:
            taken = self._refused, self._more
            self._refused, self._more = [], 0
        return taken


class Mailroom:
    """The interface of the dispatcher for cells."""

    lives: Supervisor

    def __init__(self, clock: Clock | None, dead_letters: DeadLetters | None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.timers = Timers(on_earliest=self._earlier_timer)
        self.dead_letters = DeadLetters() if dead_letters is None else dead_letters
        self.dead_letters.wire(self.soon)
        self.ready: deque[Any] = deque()  # Cell and SystemRef
        self.log: list[Any] = []
        self.current: Cell | None = None
        self.turn: Turn | None = None
        self.parked = False
        self.closed = False
        self._staged = False  # the log holds more than plain sends
        self._request: Request | None = None  # the request that the present plain receive must answer
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._outside = Outside()
        self._waker: Waker | None = None
        self._until = 0.0  # clock seconds at which no further message is handled before a look at the timers

    # -- waking ----------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """End the dispatcher's sleep."""
        if self._waker is not None:
            self._waker.wake()  # first, since it refuses other threads
        self.parked = False

    def check_here(self) -> None:
        """Refuse other threads and event loops, where no wake-up works. Raises RuntimeError."""
        if self._waker is not None:
            self._waker.home.check(ACTORS)

    def soon(self, function: Callable[..., object], *args: Any) -> None:
        """Call `function(*args)` before the next message of any actor, never inside a receive."""
        if self.parked:
            self.wake()
        self._calls.append((function, args))

    def tell_threadsafe(self, cell: Cell, message: Any) -> bool:
        """`Ref.tell_threadsafe`. If `TOLD` messages wait, the message is refused, and becomes a dead letter later."""
        if self.closed:
            return False
        outside = self._outside
        if len(outside.told) < TOLD:
            outside.told.append((cell, message))
            return self._ring_threadsafe()
        if outside.refuse(cell.name, message):
            self.call_threadsafe(self._tell_refused)
        return False

    def _tell_refused(self) -> None:
        refused, more = self._outside.take_refused()
        for name, message in refused:
            self.dead_letters.add(name, message, Reason.MAILBOX_FULL)
        self.dead_letters.counts[Reason.MAILBOX_FULL] += more

    def call_threadsafe(self, function: Callable[..., object], *args: Any) -> bool:
        """`soon`, from any thread. False if the dispatcher is closed: then it is never called."""
        if self.closed:
            return False
        self._calls.append((function, args))
        return self._ring_threadsafe()

    def _ring_threadsafe(self) -> bool:
        if not self._outside.rung:
            self._outside.rung = True
            waker = self._waker
            if waker is not None:
                return waker.wake_threadsafe()
        return True

    def now(self) -> float:
        """Monotonic seconds."""
        return self.clock.monotonic()

    def failure_of(self, cell: Cell, since: float = 0.0) -> BaseException | None:
        """The last error of an actor, if it is still kept and not older than `since` (monotonic seconds)."""
        return self.lives.failures.of(cell, since)

    def _stopped(self, cell: Cell, text: str) -> ActorStopped:
        """The error for a caller that waits for an actor that has ended or was restarted."""
        failure = self.failure_of(cell)
        error = ActorStopped(text if failure is None else f"{text}. It failed: {said(failure)}")
        error.__cause__ = failure
        return error

    def waiter(self) -> Waiter:
        """A waiter for the present task."""
        return native_waiter() if self._waker is None else self._waker.waiter()

    def _earlier_timer(self) -> None:
        self._until = 0.0
        if self.parked:
            self.wake()

    # -- into the mailbox ------------------------------------------------------------------------------------------

    def admit(self, cell: Cell, message: Any) -> bool:
        """The rare cases of `tell`: the first message behind another one, and messages without room."""
        if cell.spec is None:
            reason = Reason.STOPPED
        elif cell.has_room():
            if cell.more is None:
                cell.more = []
            cell.more.append(message)
            return True
        else:
            reason = Reason.MAILBOX_FULL
        if type(message) is not Request:  # the asker gets an error
            self._drop(cell, message, reason)
        return False

    def _drop(self, cell: Cell, message: Any, reason: Reason) -> None:
        """Record a dead letter for an actor that has ended or has no room."""
        failed = reason is Reason.STOPPED or (cell.life is not None and cell.life.suspended)
        self.dead_letters.add(cell.name, message, reason, self.failure_of(cell) if failed else None)

    def at_once(self, do: Callable[..., object], *args: Any) -> None:
        """Do something now, even while a receive runs, without staging it."""
        turn, current = self.turn, self.current
        self.stand_alone()
        try:
            do(*args)
        finally:
            self.turn, self.current = turn, current

    def send_now(self, cell: Cell, message: Any) -> bool:
        """`tell`, but not held back by the coroutine receive that sends."""
        turn, current = self.turn, self.current
        self.stand_alone()
        try:
            return cell.tell(message)
        finally:
            self.turn, self.current = turn, current

    def control(self, cell: Cell, message: Any) -> None:
        """Put a control message into a cell's lane. Without bound, never refused by a living actor."""
        if cell.spec is None:
            self._bury(cell, message)
            return
        lane = cell.control
        if lane is None:
            lane = cell.control = deque()
        lane.append(message)
        if cell.first is NOTHING:
            cell.first = BUSY
            self.ready.append(cell)
            if self.parked:
                self.wake()

    def wait_for_room(self, cell: Cell, offer: Offer) -> None:
        """Accept `offer` when there is room: the dispatcher checks whenever the cell has handled messages."""
        life = self.life(cell)
        if life.offers is None:
            life.offers = deque()
        life.offers.append(offer)
        if cell.control is None:
            cell.control = deque()

    def rest(self, cell: Cell) -> None:
        """End the turn of a cell: queue the cell if it has more messages, else make it idle."""
        if cell.control is not None:
            self._tend(cell)
        if cell.first is BUSY and not cell.control and cell.hand is None:
            more = cell.more
            if not more:
                cell.more = None
                cell.first = NOTHING
                return
            if len(more) == 1:  # needs no batch
                cell.more = None
                cell.first = more[0]
        self.ready.append(cell)
        if self.parked:
            self.wake()

    def put_back(self, cell: Cell) -> None:
        """Move the message in `first` to the head of the others, so that the cell itself is free for something else."""
        if cell.first is NOTHING or cell.first is BUSY:
            return
        if cell.more is None:
            cell.more = []
        cell.more.insert(0, cell.first)
        cell.first = BUSY

    def _tend(self, cell: Cell) -> None:
        """Accept offers while there is room, and clear the cell's special state when none are left."""
        offers = None if cell.life is None else cell.life.offers
        while offers and (offers[0].gone or cell.has_room()):
            offer = offers.popleft()
            if offer.gone:
                continue
            offer.gone = True
            if cell.more is None:
                cell.more = []
            cell.more.append(offer.message)
            offer.waiter.set()
        if not offers and not cell.control:
            cell.control = None

    def life(self, cell: Cell) -> Life:
        """The cell's second record, made if it has none."""
        if cell.life is None:
            cell.life = Life()
        return cell.life

    def _bury(self, cell: Cell, message: Any) -> None:
        if type(message) is After:
            self.dead_letters.add(cell.name, message.message, Reason.STALE_TIMER, self.failure_of(cell))
        else:
            self._drop(cell, message, Reason.STOPPED)

    def end_mail(self, cell: Cell) -> None:
        """Fail the asks that wait for an ended actor, and make its other messages dead letters."""
        self.put_back(cell)
        for message in (*reversed(cell.hand or ()), *(cell.more or ())):
            if type(message) is Request:
                text = f"asked {cell.name} {shown(message.message)}: it stopped before its turn"
                message.fail(self._stopped(cell, text))
            else:
                self._drop(cell, message, Reason.STOPPED)
        for message in cell.control or ():
            self._bury(cell, message)
        life = cell.life
        if life is None:
            return
        for offer in life.offers or ():
            if not offer.gone:
                offer.gone = True
                text = f"offered {cell.name} {shown(offer.message)}: it stopped while this waited for room"
                offer.error = self._stopped(cell, text)
                offer.waiter.set()
        self.fail_owed(cell, "stopped")

    def fail_owed(self, cell: Cell, what: str) -> None:
        """Fail the postponed answers, which the actor can no longer give."""
        life = cell.life
        while life is not None and life.owed:
            request = next(iter(life.owed))
            del life.owed[request]
            text = f"asked {cell.name} {shown(request.message)}: it {what} with the answer put off"
            request.fail(self._stopped(cell, text))

    # -- what a receive does ---------------------------------------------------------------------------------------

    def stand_alone(self) -> None:
        """Leave the present receive: later effects happen at once, and belong to no receive."""
        self.turn = None
        self.current = None

    def stand_in(self, turn: Turn) -> None:
        """Enter a step of a coroutine receive: later effects belong to this receive."""
        self.turn = turn
        self.current = turn.cell

    def stage(self, do: Callable[..., object], *args: Any) -> None:
        """Do something when the present receive has succeeded, or at once if no receive runs."""
        if self.turn is not None:
            self.turn.log.append(Staged(do, args))
        elif self.current is not None:
            self.log.append(Staged(do, args))
            self._staged = True
        else:
            do(*args)

    def on_undo(self, undo: Callable[..., object], *args: Any) -> None:
        """Call `undo(*args)` if the present receive fails, to undo an effect that has happened at once."""
        if self.turn is not None:
            self.turn.log.append(Staged(_nothing, args, undo))
        elif self.current is not None:
            self.log.append(Staged(_nothing, args, undo))

    def hold(self, cell: Cell, message: Any) -> bool:
        """`tell` of a coroutine receive: reserve the room now, and send the message when the receive has succeeded."""
        turn = self.turn
        if turn is None or turn.abandoned or cell.spec is None or not cell.has_room():
            full = cell.spec is not None and not (turn is not None and turn.abandoned)
            self._drop(cell, message, Reason.MAILBOX_FULL if full else Reason.STOPPED)
            return False
        cell.room -= 1
        turn.log.append(Staged(self._let_go, (cell, message), self._give_room))
        return True

    def _let_go(self, cell: Cell, message: Any) -> None:
        cell.room += 1
        cell.tell(message)

    def _give_room(self, cell: Cell, _: Any) -> None:
        cell.room += 1

    def release(self, turn: Turn) -> None:
        """Commit the effects so far of a coroutine receive."""
        if turn.log and not turn.abandoned:
            before = self.turn, self.current
            self.commit(turn.log)
            self.turn, self.current = before

    def commit(self, log: list[Any]) -> None:
        """Do the staged effects of a successful receive, in order and outside of the receive."""
        self.stand_alone()
        self._staged = False
        for entry in log:
            if type(entry) is Staged:
                entry.do(*entry.args)
        log.clear()

    def undo(self, log: list[Any]) -> None:
        """Undo all effects of a failed receive."""
        for entry in reversed(log):
            if type(entry) is not Staged:
                self._take_back(entry)
            elif entry.undo is not None:
                entry.undo(*entry.args)
        log.clear()
        self._staged = False

    def _take_back(self, cell: Cell) -> None:
        more = cell.more
        if more:
            more.pop()
            if not more:
                cell.more = None
        else:
            cell.first = NOTHING
            self.ready.pop()

    # -- Context ---------------------------------------------------------------------------------------------------

    def after(self, cell: Cell, epoch: int, delay: float, message: Any) -> After:
        """`Context.after`."""
        if not ((type(delay) is float or type(delay) is int) and 0 <= delay <= LONGEST):
            delay = wait_of(delay, "the delay of `after`")
        after = After(cell, epoch, message, None)
        after.timer = self.timers.arm(self.clock.monotonic() + delay, self.control, cell, after)
        self.on_undo(self.timers.cancel, after.timer)
        return after

    def put_off(self, cell: Cell) -> Later:
        """`Context.reply_later`."""
        if self.turn is not None:
            request, self.turn.request = self.turn.request, None
        else:
            request, self._request = self._request, None
        if request is not None:
            life = self.life(cell)
            if life.owed is None:
                life.owed = {}
            life.owed[request] = None
            request.deferred = True
        return Later(request)

    def watch(self, watcher: Cell, target: Cell) -> None:
        """`Context.watch`."""
        self.lives.endings.watch(watcher, target)

    def unwatch(self, watcher: Cell, target: Cell) -> None:
        """`Context.unwatch`."""
        self.lives.endings.unwatch(watcher, target)

    def stop(self, cell: Cell) -> None:
        """`Ref.stop`."""
        self.check_here()
        self.stage(self.soon, self.lives.endings.stop, cell)

    def leave(self, cell: Cell) -> None:
        """`Context.stop`."""
        self.soon(self.lives.leave, cell)


def _nothing(*_: Any) -> None:
    """Do nothing: the effect has happened already."""
