"""References: the small record that is an actor's cell, and how messages get into it.

Rules
- A `Cell` is the actor's cell and its reference in one object: code that holds it can send. Users see a `Ref`, which
  has the public methods only; the fields belong to the dispatcher.
- A mailbox has two stages. One message waits in the cell itself (`first`), those after it in a list (`more`). The
  dispatcher takes a whole list at once and hands it out from `hand`, the next message last, 64 to a turn: so a
  message costs a call and an append, and all other costs are paid once per batch.
- `first` is NOTHING exactly while the cell is idle: so the sender of the first message queues the cell, and
  no other sender does. Then `more` and `hand` are empty; and while `hand` is not empty, no message is in `first`.
- A plain `receive` sends into the mailboxes at once, and the dispatcher's log notes each send; if `receive` raises, the
  log is undone backwards. No other code has seen these sends, since nothing else runs meanwhile.
- A coroutine `receive` holds its sends back until it returns, or until it asks or offers: both need an answer
  from outside, so earlier sends go first.
- Control messages (`control`) overtake data, have no bound and are never refused.
- The garbage collector does not track cells (`gc=False`), so a million of them cost it nothing. The price: code that
  ends a cell cuts its links (runtime/dispatch/endings.py), because a cycle of cells is never collected.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic

from msgspec import Struct

from ...machines.keywords import called_as
from ..times import LONGEST, wait_of
from ..user_code import message_of, shown
from .dead_letters import Reason
from .errors import ActorStopped, AskCycle, AskTimeout, MailboxFull

if TYPE_CHECKING:
    import contextvars

    from typing_extensions import TypeVar

    from .actor import Actor, Context
    from .host import ActorHost, Waiter
    from .strategy import Restart, RestartCount, Supervision

    M_contra = TypeVar("M_contra", contravariant=True, default=Any)
    R_co = TypeVar("R_co", covariant=True, default=Any)
else:  # a default is for type checkers only, and `TypeVar` of Python 3.11 has none
    from typing import TypeVar

    M_contra = TypeVar("M_contra", contravariant=True)
    R_co = TypeVar("R_co", covariant=True)

__all__ = [
    "ASK_TIMEOUT",
    "BUSY",
    "NOTHING",
    "SYSTEM",
    "Cell",
    "CellDetails",
    "Ref",
    "Request",
    "Spec",
    "SystemRef",
    "Turn",
]

ASK_TIMEOUT = 30.0
"""Seconds that `ask` waits, unless `timeout` is given."""

_NUMBERS = frozenset({float, int})


class _CellState(Enum):
    """The marks in `first` of a cell without a message there."""

    NOTHING = "nothing"  # idle: no message, not queued
    BUSY = "busy"  # running, suspended or stopped, or queued for messages in the other places


NOTHING = _CellState.NOTHING
BUSY = _CellState.BUSY

SYSTEM: deque[Any] = deque(maxlen=0)
"""The mark in `control` of cells that are parts of the runtime."""


class Spec(Struct, frozen=True, gc=False):
    """How an actor is built and supervised; shared by all actors with the same settings."""

    build: Callable[[], Actor] | None  # None: an instance was given, which cannot be rebuilt
    restart: Restart
    supervision: Supervision
    mailbox: int
    stop_timeout: float  # seconds, for the present message and again for `stopped`
    has_started: bool
    has_stopped: bool


class CellDetails(Struct, gc=False, eq=False):
    """State that only some cells need, created when first needed."""

    suspended: bool = False  # handles nothing: failed, being restarted, or stopping
    queued: bool = False  # the cell was suspended while in the run queue, which still has its entry
    epoch: int = 0  # how often it was rebuilt
    children: dict[int | str, Cell] | None = None  # in order of start
    watchers: dict[Cell, None] | None = None
    watching: dict[Cell, None] | None = None
    offers: deque[PendingOffer] | None = None
    owed: dict[Request, None] | None = None  # asks that will be answered later
    asking: list[Cell] | None = None  # the actors that its receive waits for
    turn: Turn | None = None  # the coroutine receive, while it runs
    context: contextvars.Context | None = None  # each coroutine receive runs in a copy of it
    restarts: RestartCount | None = None
    family_restarts: RestartCount | None = None  # of its children, if they are restarted together
    timer: Any = None  # the time limit of its present step of ending, or the delay before its restart
    ending: Any = None  # how it is ending (the supervision's record)


class Turn(Struct, gc=False, eq=False):
    """One coroutine receive, from its start to its end."""

    cell: Cell
    message: Any
    request: Request | None
    log: list[Any]
    hook: Callable[[Cell, BaseException | None], None] | None = None  # called at its end instead of the mailbox
    running: Any = None  # the runner's handle, for cancelling it
    abandoned: bool = False  # the time limit is over: further effects are dropped


class PendingOffer(Struct, gc=False, eq=False):
    """A message that waits for room."""

    message: Any
    waiter: Waiter
    error: ActorStopped | None = None
    gone: bool = False  # accepted, failed, or its sender was cancelled


class Request(Struct, gc=False, eq=False):
    """A pending ask: the message, and where its answer goes. Only the first answer counts."""

    host: ActorHost
    target: Cell
    message: Any
    waiter: Waiter | None = None  # None until its asker has to wait
    timer: Any = None
    done: bool = False
    value: Any = None
    error: BaseException | None = None
    deferred: bool = False  # the receive will answer later

    def answer(self, value: Any) -> None:
        """Give the answer."""
        if self.done:
            self._late(value)
            return
        self.value = value
        self.close()
        if self.waiter is not None:
            self.waiter.set()

    def fail(self, error: BaseException) -> None:
        """Let the ask raise `error`."""
        if self.done:
            self._late(error)
            return
        self.error = error
        self.close()
        if self.waiter is not None:
            self.waiter.set()

    def close(self) -> None:
        """Take no more answers."""
        self.done = True
        if self.timer is not None:
            self.host.timers.cancel(self.timer)
            self.timer = None
        if self.deferred and (details := self.target.details) is not None and details.owed is not None:
            details.owed.pop(self, None)

    def time_out(self, seconds: float) -> None:
        """Let the ask raise AskTimeout."""
        self.timer = None
        asked = f"asked {self.target.name} {shown(self.message)}"
        failure = self.host.failure_of(self.target, self.host.now() - seconds)
        failed = "" if failure is None else f". It failed meanwhile: {message_of(failure)}"
        error = AskTimeout(f"{asked}: no answer within {seconds} s; it may still come{failed}")
        error.__cause__ = failure
        self.fail(error)

    def _late(self, value: Any) -> None:
        self.host.dead_letters.add(self.target.name, value, Reason.LATE_REPLY)


class Ref(Struct, Generic[M_contra, R_co], gc=False, eq=False):
    """The reference of an actor. Get one from `spawn`; keep it as long as you like.

    For type checkers it is `Ref[M, R]` by the types of what the actor's `receive` takes and returns.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the actor, after those of its parents."""

    @property
    @abstractmethod
    def stopped(self) -> bool:
        """Whether the actor has stopped for good."""

    @abstractmethod
    def tell(self, message: M_contra) -> bool:
        """Send a message. False if it becomes a dead letter: the mailbox is full, or the actor has stopped.

        Never waits. In another thread use `tell_threadsafe`: `tell` does not check the thread, since the check would
        double the cost of each message. There it raises RuntimeError only if it has to wake the event loop; otherwise
        the message may be handled, or lost. With `python -X dev` each such call raises RuntimeError.
        """

    @abstractmethod
    async def offer(self, message: M_contra) -> None:
        """Send a message, and wait for room if the mailbox is full. Offers are accepted in order.

        Raises `ActorStopped` if the actor has stopped or stops while waiting, `MailboxFull` if an actor
        offers to itself without room (it would wait for itself), and RuntimeError in another thread.
        """

    @abstractmethod
    def ask(self, message: M_contra, *, timeout: float | None = ASK_TIMEOUT) -> Coroutine[Any, Any, R_co]:
        """Send a message and wait for its answer: what `receive` returns for it.

        `timeout` is in seconds; None waits as long as the actor lives. Raises `AskTimeout`, `ActorStopped`,
        `MailboxFull`, `AskCycle`, `ReceiveFailed` if the actor raised, and the error of a `Refusal`;
        TypeError and ValueError for an invalid timeout.
        """

    @abstractmethod
    def stop(self) -> None:
        """Stop the actor, its children first: after the present message, before all that wait. Idempotent."""

    @abstractmethod
    def tell_threadsafe(self, message: M_contra) -> bool:
        """`tell` from any thread. False if the actor has stopped, if the runtime is closed, or if too many messages of
        other threads wait for its loop.

        True means that the message is on its way: whether the actor's mailbox has room, or the actor stops before the
        message arrives, cannot be known in another thread. The message is a dead letter then.
        """


@called_as("ref")
class Cell(Ref[Any, Any], gc=False, eq=False):
    """An actor's cell, which is its reference as well. `Ref` documents its methods."""

    host: ActorHost
    actor: Any  # the user's object; None after its end, and while it waits to be rebuilt
    first: Any
    more: list[Any] | None  # in order of arrival
    control: deque[Any] | None  # None: no control message
    room: int  # the free places of `more` while `first` holds a message; messages in `hand` still count
    ctx: Context | None
    spec: Spec | None
    parent: Cell | None
    key: int | str
    details: CellDetails | None
    hand: list[Any] | None = None  # messages taken out of `more`, the next one last

    @property
    def name(self) -> str:  # noqa: D102 - it is in `Ref`
        names: list[str] = []
        cell: Cell | None = self
        while cell is not None and (cell.parent is not None or not names):  # the root has no parent, and is not named
            names.append(cell.key if isinstance(cell.key, str) else f"actor-{cell.key}")
            cell = cell.parent
        return "/".join(reversed(names))

    @property
    def stopped(self) -> bool:  # noqa: D102 - it is in `Ref`
        return self.spec is None

    def tell(self, message: Any) -> bool:  # noqa: D102 - it is in `Ref`
        more = self.more
        if more is not None and self.host.current is None and len(more) < self.room:
            more.append(message)  # most messages take this path; the code below is for all others
            return True
        host = self.host
        current = host.current
        if current is not None and host.turn is not None:
            return host.hold(self, message)
        if more is not None and len(more) < self.room:
            more.append(message)
        elif self.first is NOTHING:
            if host.parked:
                host.wake()  # first, since that refuses other threads
            self.first = message
            host.ready.append(self)
        elif not host.admit(self, message):
            return False
        if current is not None:
            host.log.append(self)
        return True

    async def offer(self, message: Any) -> None:  # noqa: D102 - it is in `Ref`
        if self.stopped:
            raise _stopped(self, message)
        host = self.host
        host.check_here()
        turn = host.turn
        if turn is not None:
            host.release(turn)
        details = self.details
        if (details is None or not details.offers) and self.has_room():
            host.send_now(self, message)
            return
        if turn is not None and turn.cell is self:
            msg = f"{self.name} offered {shown(message)} to itself: its mailbox of {_size(self)} is full"
            raise MailboxFull(msg)
        offer = PendingOffer(message, host.waiter())
        host.wait_for_room(self, offer)
        try:
            await offer.waiter.wait()
        finally:
            offer.gone = True
            error, offer.error = offer.error, None  # drop the reference: the error's frames hold the offer
        if error is not None:
            raise error

    def ask(self, message: Any, *, timeout: float | None = ASK_TIMEOUT) -> Coroutine[Any, Any, Any]:  # noqa: D102 - it is in `Ref`
        turn = self.host.turn
        return self.ask_for(None if turn is None else turn.cell, message, timeout)

    async def ask_for(self, asker: Cell | None, message: Any, timeout: float | None) -> Any:
        """`ask`, on behalf of an actor whose receive waits for the answer."""
        if self.stopped:
            raise _stopped(self, message)
        if timeout is not None and not (type(timeout) in _NUMBERS and 0 <= timeout <= LONGEST):  # hardly ever
            timeout = wait_of(timeout, "the timeout of an ask")
        host = self.host
        request = Request(host, self, message)
        if asker is not None:
            _note_asking(asker, self, host)
        try:
            if not host.send_now(self, request):
                raise _full(self, message)
            host.lend(request)
            if not request.done:
                if timeout is not None:
                    request.timer = host.timers.arm(host.now() + timeout, request.time_out, timeout)
                request.waiter = waiter = host.waiter()
                await waiter.wait()
        finally:
            if not request.done:
                request.close()
            # Drop the reference: the error's frames hold the request.
            error, request.error = request.error, None
            if asker is not None and asker.details is not None and asker.details.asking:
                asker.details.asking.remove(self)
        if error is not None:
            raise error
        return request.value

    def stop(self) -> None:  # noqa: D102 - it is in `Ref`
        if not self.stopped:
            self.host.stop(self)

    def tell_threadsafe(self, message: Any) -> bool:  # noqa: D102 - it is in `Ref`
        return self.host.tell_threadsafe(self, message)

    def has_room(self) -> bool:
        """Whether a `tell` now would find room."""
        if self.stopped:
            return False
        waiting = 0 if self.more is None else len(self.more)
        begun = self.first is not NOTHING and self.first is not BUSY
        return waiting + begun <= self.room + self.host.handled(self)

    def __repr__(self) -> str:
        return f"<Ref {self.name}{' (stopped)' if self.stopped else ''}>"


# msgspec's own setter also checks whether the collector has to track the value. With `gc=False` it
# never has to, and CPython can inline the plain setter (11 ns instead of 37). Both are replaced, since they share one
# slot.
Cell.__setattr__ = object.__setattr__  # type: ignore[method-assign]
Cell.__delattr__ = object.__delattr__  # type: ignore[method-assign]


if sys.flags.dev_mode:  # as asyncio's debug mode does; always checking would make each `tell` slower
    _tell = Cell.tell

    def _tell_here(self: Cell, message: Any) -> bool:
        if self.spec is not None:
            self.host.check_here()
        return _tell(self, message)

    Cell.tell = _tell_here  # type: ignore[method-assign]


class SystemRef(Struct, gc=False, eq=False):
    """The cell of a part of the runtime: two queues without bound, a plain `receive`, no supervision."""

    host: ActorHost
    receive: Callable[[Any], object]
    name: str
    urgent: deque[Any]  # control inputs, handled first
    data: deque[Any]
    control: deque[Any]  # always SYSTEM: the dispatcher reads this field anyway, and recognises a system cell by it
    queued: bool = False  # in the run queue, or running

    def tell(self, message: Any) -> None:
        """Send a message on the data queue."""
        host = self.host
        if host.current is not None:
            host.stage(self.tell, message)
            return
        if not self.queued:
            if host.parked:
                host.wake()  # first, since that refuses other threads
            self.queued = True
            host.ready.append(self)
        self.data.append(message)

    def tell_control(self, message: Any) -> None:
        """Send a message on the control queue: it overtakes all data."""
        host = self.host
        if host.current is not None:
            host.stage(self.tell_control, message)
            return
        if not self.queued:
            if host.parked:
                host.wake()  # first, since that refuses other threads
            self.queued = True
            host.ready.append(self)
        self.urgent.append(message)

    def tell_threadsafe(self, message: Any) -> bool:
        """`tell` from any thread. False if the runtime is closed."""
        return self.host.call_threadsafe(self.tell, message)

    def __repr__(self) -> str:
        return f"<SystemRef {self.name}>"


def _stopped(cell: Cell, message: Any) -> ActorStopped:
    failure = cell.host.failure_of(cell)
    what = "it has stopped" if failure is None else f"it was stopped by its failure ({message_of(failure)})"
    error = ActorStopped(f"sent {shown(message)} to {cell.name}: {what}; spawn it again, or watch it")
    error.__cause__ = failure
    return error


def _full(cell: Cell, message: Any) -> MailboxFull:
    full = f"its mailbox of {_size(cell)} is full; offer() waits for room"
    return MailboxFull(f"asked {cell.name} {shown(message)}: {full}")


def _size(cell: Cell) -> int:
    return 0 if cell.spec is None else cell.spec.mailbox


def _note_asking(asker: Cell, target: Cell, host: ActorHost) -> None:
    """Note that `asker` waits for `target`; raise AskCycle if `target` waits for `asker`."""
    trail = _trail(target, asker)
    if trail is not None:
        names = " -> ".join(cell.name for cell in (asker, *trail))
        msg = f"{asker.name} asked {target.name}, which waits for it: {names}; use tell for one of them"
        raise AskCycle(msg)
    details = asker.details
    if details is None:
        return
    if details.turn is not None:
        host.release(details.turn)
    if details.asking is None:
        details.asking = []
    details.asking.append(target)


def _trail(start: Cell, goal: Cell) -> list[Cell] | None:
    """The path of waiting actors from `start` to `goal`; None if there is none."""
    trails = [[start]]
    seen = {start}
    while trails:
        trail = trails.pop()
        cell = trail[-1]
        if cell is goal:
            return trail
        if cell.details is not None and cell.details.asking:
            for following in cell.details.asking:
                if following not in seen or following is goal:
                    seen.add(following)
                    trails.append([*trail, following])
    return None
