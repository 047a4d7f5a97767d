"""References: the one small record that an actor is, and how messages get into it.

Rules
- A `Ref` is the actor's cell and its reference in one: who holds it can send. Its methods are for everybody; its
  fields belong to the dispatcher.
- A mailbox has two stages. One message waits in the cell itself (`first`), those after it in a list (`more`). The
  dispatcher takes a whole list at once and hands it out from `hand`, the next message last, 64 to a turn: so what a
  message costs is a call and an append, and everything else is paid once per batch.
- `first` is NOTHING exactly while the cell is idle: so the one who puts the first message in queues the cell, and
  nobody else. Then there is neither `more` nor `hand`; and while there is a `hand`, no message is in `first`.
- What a plain `receive` sends goes into the mailboxes at once and is noted in the dispatcher's log; if it raises, the
  log is undone backwards. Nobody can have seen any of it: nothing else runs meanwhile.
- What a coroutine `receive` sends is held back until it returns, or until it asks or offers: both need an answer
  from outside, so what was sent before goes first.
- Control messages (`control`) overtake data, have no bound and are never refused.
- Cells are unknown to the garbage collector (`gc=False`), so a million of them cost it nothing. The price: whoever
  ends a cell cuts its links (runtime/dispatch/endings.py), because a cycle of cells is never collected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ..spec.times import LONGEST, wait_of
from ..user_code import said, shown
from .dead_letters import Reason
from .errors import ActorStopped, AskCycle, AskTimeout, MailboxFull

if TYPE_CHECKING:
    from .actor import Actor, Context
    from .host import Host, Waiter
    from .strategy import Restart, RestartCount, Supervision

__all__ = [
    "ASK_TIMEOUT",
    "BUSY",
    "NOTHING",
    "SYSTEM",
    "Life",
    "Ref",
    "Request",
    "Spec",
    "SystemRef",
    "Turn",
]

ASK_TIMEOUT = 30.0
"""Seconds that `ask` waits unless told otherwise."""


class _Mark(Enum):
    """What stands in `first` where there is no message."""

    NOTHING = "nothing"  # idle: no mail, not queued
    BUSY = "busy"  # running, suspended or stopped, or queued for what is in the other places


NOTHING = _Mark.NOTHING
BUSY = _Mark.BUSY

SYSTEM: deque[Any] = deque(maxlen=0)
"""Stands in `control` of cells that are parts of the runtime."""


class Spec(Struct, frozen=True, gc=False):
    """How an actor is built and treated; shared by all that were spawned alike."""

    build: Callable[[], Actor] | None  # None: it was given as an instance and cannot be built anew
    restart: Restart
    supervision: Supervision
    mailbox: int
    stop_timeout: float  # seconds, for the message in hand and again for `stopped`
    has_started: bool
    has_stopped: bool


class Life(Struct, gc=False, eq=False):
    """What only some cells need: made when first needed."""

    suspended: bool = False  # handles nothing: failed, being restarted, or stopping
    queued: bool = False  # it was suspended while in the run queue, and that entry is still there
    epoch: int = 0  # how often it was rebuilt
    children: dict[int | str, Ref] | None = None  # in order of start
    watchers: dict[Ref, None] | None = None
    watching: dict[Ref, None] | None = None
    offers: deque[Offer] | None = None
    owed: dict[Request, None] | None = None  # asks whose answer was put off
    asking: list[Ref] | None = None  # whom its receive waits for
    turn: Turn | None = None  # its coroutine receive, while it runs
    restarts: RestartCount | None = None
    family_restarts: RestartCount | None = None  # of its children, where they are restarted together
    timer: Any = None  # the limit of what it is waiting for while it ends, or the delay before its restart
    ending: Any = None  # how it is ending (the supervision's record)


class Turn(Struct, gc=False, eq=False):
    """One coroutine receive, from its start to its end."""

    cell: Ref
    message: Any
    request: Request | None
    log: list[Any]
    hook: Callable[[Ref, BaseException | None], None] | None = None  # who is told of its end instead of the mailbox
    running: Any = None  # the runner's handle, for cancelling it
    abandoned: bool = False  # its time was over: whatever it still does has no effect


class Offer(Struct, gc=False, eq=False):
    """A message that waits for room."""

    message: Any
    waiter: Waiter
    error: ActorStopped | None = None
    gone: bool = False  # let in, failed, or its sender was cancelled


class Request(Struct, gc=False, eq=False):
    """An ask on its way: the message, and where its answer goes. It is answered once; what comes later is dropped."""

    host: Host
    target: Ref
    message: Any
    waiter: Waiter | None = None  # none until its asker has to wait
    timer: Any = None
    done: bool = False
    value: Any = None
    error: BaseException | None = None
    deferred: bool = False  # its receive put the answer off

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
        if self.deferred and (life := self.target.life) is not None and life.owed is not None:
            life.owed.pop(self, None)

    def time_out(self, seconds: float) -> None:
        """The asker has waited long enough."""
        self.timer = None
        asked = f"asked {self.target.name} {shown(self.message)}"
        failure = self.host.failure_of(self.target, self.host.now() - seconds)
        failed = "" if failure is None else f". It failed meanwhile: {said(failure)}"
        error = AskTimeout(f"{asked}: no answer within {seconds} s; it may still come{failed}")
        error.__cause__ = failure
        self.fail(error)

    def _late(self, value: Any) -> None:
        self.host.dead_letters.add(self.target.name, value, Reason.LATE_REPLY)


class Ref(Struct, gc=False, eq=False):
    """The reference of an actor. Get one from `spawn`; keep it as long as you like."""

    host: Host
    actor: Any  # the user's object; None once stopped, and while it waits to be rebuilt
    first: Any
    more: list[Any] | None  # in order of arrival
    control: deque[Any] | None  # None: nothing special to be done before the next message
    room: int  # how many messages `more` may hold while `first` holds one; less what was taken out of it and waits yet
    ctx: Context | None
    spec: Spec | None
    parent: Ref | None
    key: int | str
    life: Life | None
    hand: list[Any] | None = None  # taken out of `more`, the next one last

    @property
    def name(self) -> str:
        """Its name, after those of its parents."""
        names: list[str] = []
        cell: Ref | None = self
        while cell is not None and (cell.parent is not None or not names):  # the root has no parent, and no say
            names.append(cell.key if isinstance(cell.key, str) else f"actor-{cell.key}")
            cell = cell.parent
        return "/".join(reversed(names))

    @property
    def stopped(self) -> bool:
        """Whether it has ended for good."""
        return self.spec is None

    def tell(self, message: Any) -> bool:
        """Send a message. False if it will not be handled: no room, or stopped; it is then a dead letter.

        Never waits, and never raises, but for RuntimeError in other threads, which have `tell_threadsafe`.
        """
        more = self.more
        if more is not None and self.host.current is None and len(more) < self.room:
            more.append(message)  # the way of most messages; the rest of this is for all others
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

    async def offer(self, message: Any) -> None:
        """Send a message, waiting for room if there is none. Offers are let in by turns.

        Raises `ActorStopped` if the actor has stopped or stops while waiting, `MailboxFull` if an actor
        offers to itself without room (it would wait for itself), and RuntimeError in another thread.
        """
        if self.stopped:
            raise _stopped(self, message)
        host = self.host
        host.check_here()
        turn = host.turn
        if turn is not None:
            host.release(turn)
        life = self.life
        if (life is None or not life.offers) and self.has_room():
            host.send_now(self, message)
            return
        if turn is not None and turn.cell is self:
            msg = f"{self.name} offered {shown(message)} to itself: its mailbox of {_size(self)} is full"
            raise MailboxFull(msg)
        offer = Offer(message, host.waiter())
        host.wait_for_room(self, offer)
        try:
            await offer.waiter.wait()
        finally:
            offer.gone = True
            error, offer.error = offer.error, None  # as `ask_for` says
        if error is not None:
            raise error

    def ask(self, message: Any, *, timeout: float | None = ASK_TIMEOUT) -> Coroutine[Any, Any, Any]:
        """Send a message and wait for its answer: what `receive` returns for it.

        `timeout` is in seconds; None waits as long as the actor lives. Raises `AskTimeout`, `ActorStopped`,
        `MailboxFull`, `AskCycle`, `ReceiveFailed` if the actor raised, and whatever it refused with;
        TypeError and ValueError for what is no timeout.
        """
        turn = self.host.turn
        return self.ask_for(None if turn is None else turn.cell, message, timeout)

    async def ask_for(self, asker: Ref | None, message: Any, timeout: float | None) -> Any:
        """`ask`, on behalf of an actor whose receive waits for the answer."""
        if self.stopped:
            raise _stopped(self, message)
        kind = type(timeout)
        if timeout is not None and not ((kind is float or kind is int) and 0 <= timeout <= LONGEST):  # hardly ever
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
            error, request.error = (
                request.error,
                None,
            )  # whose frames hold the request
            if asker is not None and asker.life is not None and asker.life.asking:
                asker.life.asking.remove(self)
        if error is not None:
            raise error
        return request.value

    def stop(self) -> None:
        """Stop it: after the message in hand, before all that wait; its children first. Once more does nothing."""
        if not self.stopped:
            self.host.stop(self)

    def tell_threadsafe(self, message: Any) -> bool:
        """`tell` from any thread. False if the runtime is closed, or so much of other threads waits for its loop that
        no more is taken; whether the actor had room cannot be known here.
        """
        return self.host.tell_threadsafe(self, message)

    def has_room(self) -> bool:
        """Whether a `tell` now would find room."""
        if self.stopped:
            return False
        waiting = 0 if self.more is None else len(self.more)
        held = self.first is not NOTHING and self.first is not BUSY
        return waiting + held <= self.room + self.host.handled(self)

    def __repr__(self) -> str:
        return f"<Ref {self.name}{' (stopped)' if self.stopped else ''}>"


# msgspec's own setter does one thing more: it looks whether the collector has to know of the value. With `gc=False` it
# never has to, and CPython can then inline the plain setter (11 ns instead of 37). Both, since they share one slot.
Ref.__setattr__ = object.__setattr__  # type: ignore[method-assign]
Ref.__delattr__ = object.__delattr__  # type: ignore[method-assign]


class SystemRef(Struct, gc=False, eq=False):
    """The cell of a part of the runtime: two lanes without bound, a plain `receive`, no supervision."""

    host: Host
    receive: Callable[[Any], object]
    name: str
    urgent: deque[Any]  # control inputs, handled first
    data: deque[Any]
    control: deque[Any]  # always SYSTEM: the dispatcher sees from the field it looks at anyway what this is
    queued: bool = False  # in the run queue, or running

    def tell(self, message: Any) -> None:
        """Send a message on the data lane."""
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
        """Send a message on the control lane: it overtakes all data."""
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


def _stopped(cell: Ref, message: Any) -> ActorStopped:
    failure = cell.host.failure_of(cell)
    what = "it has stopped" if failure is None else f"it was stopped by its failure ({said(failure)})"
    error = ActorStopped(f"sent {shown(message)} to {cell.name}: {what}; spawn it again, or watch it")
    error.__cause__ = failure
    return error


def _full(cell: Ref, message: Any) -> MailboxFull:
    full = f"its mailbox of {_size(cell)} is full; offer() waits for room"
    return MailboxFull(f"asked {cell.name} {shown(message)}: {full}")


def _size(cell: Ref) -> int:
    return 0 if cell.spec is None else cell.spec.mailbox


def _note_asking(asker: Ref, target: Ref, host: Host) -> None:
    """Note that `asker` waits for `target`; raise if `target` waits, through others, for `asker`."""
    trail = _trail(target, asker)
    if trail is not None:
        names = " -> ".join(cell.name for cell in (asker, *trail))
        msg = f"{asker.name} asked {target.name}, which waits for it: {names}; use tell for one of them"
        raise AskCycle(msg)
    life = asker.life
    if life is None:
        return
    if life.turn is not None:
        host.release(life.turn)
    if life.asking is None:
        life.asking = []
    life.asking.append(target)


def _trail(start: Ref, goal: Ref) -> list[Ref] | None:
    """The way from `start` to `goal` along who waits for whom; None if there is none."""
    trails = [[start]]
    seen = {start}
    while trails:
        trail = trails.pop()
        cell = trail[-1]
        if cell is goal:
            return trail
        if cell.life is not None and cell.life.asking:
            for following in cell.life.asking:
                if following not in seen or following is goal:
                    seen.add(following)
                    trails.append([*trail, following])
    return None
