"""Users' actors: their base class, their context, and their timers.

Rules
- An actor handles one message at a time: `receive(message, ctx)`, a plain function or a coroutine function. Its
  return value is the answer if the message was an ask.
- If `receive` raises, all its effects for that message (sends, spawns, timers, watches, through `ctx` and references)
  are dropped, the message becomes a dead letter, and the actor is rebuilt from its class or factory, with its mailbox.
- `started` runs before the first message, also of a rebuilt actor; `stopped` runs when the actor ends, also before it
  is rebuilt. Both may be coroutine functions, and follow the rules of `receive`.
- A `Context` belongs to one life of one actor. Its methods are for use inside `receive`, `started` and `stopped`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeAlias, TypedDict, TypeVar, Unpack, cast, overload

from msgspec import Struct

from ...machines.keywords import KeywordsChecked
from ..user_code import is_a, shown
from .errors import ActorStopped
from .host import ActorHost
from .ref import ASK_TIMEOUT, Cell, Ref, Request
from .strategy import Restart, Supervision

M = TypeVar("M")
R = TypeVar("R")
Taken_contra = TypeVar("Taken_contra", contravariant=True)
Given_co = TypeVar("Given_co", covariant=True)

__all__ = [
    "DEFAULT_MAILBOX",
    "DEFAULT_STOP_TIMEOUT",
    "Actor",
    "ActorOptions",
    "After",
    "Context",
    "Later",
    "Makes",
    "Receives",
    "Refusal",
    "SpawnOptions",
    "Terminated",
    "epoch_of",
]

DEFAULT_MAILBOX = 10_000
"""The most messages in a mailbox, unless `mailbox` is given."""

DEFAULT_STOP_TIMEOUT = 5.0
"""Seconds that an actor may take to stop, unless `stop_timeout` is given."""


class ActorOptions(TypedDict, total=False):
    """How an actor runs: the options of `Context.spawn`, besides the name."""

    mailbox: int
    restart: Restart | str
    supervision: Supervision | None
    stop_timeout: float


class SpawnOptions(ActorOptions, total=False):
    """The options of `Context.spawn`."""

    name: str | None


class Receives(Protocol[Taken_contra, Given_co]):
    """The type of an actor for type checkers: its messages, and its answers."""

    def receive(self, message: Taken_contra, ctx: Context, /) -> Given_co:
        """`Actor.receive`."""
        ...

    def started(self, ctx: Context, /) -> Any:
        """`Actor.started`."""
        ...

    def stopped(self, ctx: Context, /) -> Any:
        """`Actor.stopped`."""
        ...


Makes: TypeAlias = Callable[[], Receives[M, R]]
"""The maker of an actor: its class, or a function. (In a union with `Receives`, pyright would take a class for one.)"""


class Terminated(Struct, frozen=True, gc=False):
    """Sent to the watchers of an actor after it has ended for good.

    `reason` is `stopped`, `parent_stopped`, `failed` or `abandoned` (it did not end within its limit).
    """

    ref: Ref
    reason: str
    error: BaseException | None = None


class Refusal(Struct, frozen=True, gc=False, metaclass=KeywordsChecked):
    """Return it from `receive` to refuse a message: the ask raises `error`, and the actor goes on as before.

    error: an exception of any class, for example `Refusal(ValueError("no such shelf"))`. Raises TypeError for anything
    else. A refused message that was a tell, not an ask, becomes a dead letter.
    """

    error: Exception

    def __post_init__(self) -> None:
        """Raise TypeError for an `error` that cannot be raised: the asker would get that TypeError instead."""
        if not is_a(self.error, Exception):
            advice = f": write Refusal(ValueError({shown(self.error)}))" if is_a(self.error, str) else ""
            text = f"a Refusal holds an exception, which the ask raises, and not {shown(self.error)}{advice}"
            raise TypeError(text)


class After(Struct, gc=False, eq=False):
    """A timer of an actor, from `ctx.after`."""

    cell: Cell
    epoch: int
    message: Any
    timer: Any

    def cancel(self) -> None:
        """Cancel the timer. After it has fired this does nothing, and its message may still be handled."""
        if not self.cell.stopped:
            host = self.cell.host
            host.check_here()
            host.stage(host.timers.cancel, self.timer)


class Later(Struct, gc=False, eq=False):
    """An answer that is given later, from `ctx.reply_later()`: from a later receive, or from any code on the loop.

    In another thread, or on another event loop, `send` and `fail` raise RuntimeError.
    """

    request: Request | None  # None: the message was a tell, no asker waits

    def send(self, value: Any) -> None:
        """Give the answer. Only the first answer counts; later ones become dead letters."""
        if self.request is not None:
            self.request.host.check_here()
            self.request.host.stage(self.request.answer, value)

    def fail(self, error: Exception) -> None:
        """Let the ask raise `error`."""
        if self.request is not None:
            self.request.host.check_here()
            self.request.host.stage(self.request.fail, error)


class Context(Struct, gc=False, eq=False):
    """An actor's access to the runtime besides sending; the runtime passes it to each method.

    All methods raise RuntimeError outside the event loop's thread: a thread that the actor started uses
    `tell_threadsafe` of a reference.
    """

    _cell: Cell
    _epoch: int

    @property
    def self(self) -> Ref:
        """The actor's own reference."""
        return self._cell

    @property
    def _host(self) -> ActorHost:
        if self._cell.stopped:
            msg = f"{self._cell!r} acted after its end; is a task that it started still running?"
            raise ActorStopped(msg)
        self._cell.host.check_here()
        return self._cell.host

    def ask(self, ref: Ref[M, R], message: M, *, timeout: float | None = ASK_TIMEOUT) -> Coroutine[Any, Any, R]:
        """`ref.ask` from this actor, also from tasks that its receive started. See `Ref.ask`."""
        return cast("Cell", ref).ask_for(self._cell, message, timeout)

    @overload
    def spawn(self, actor: Makes[M, Coroutine[Any, Any, R]], **options: Unpack[SpawnOptions]) -> Ref[M, R]: ...
    @overload
    def spawn(self, actor: Makes[M, R], **options: Unpack[SpawnOptions]) -> Ref[M, R]: ...
    @overload
    def spawn(self, actor: Receives[M, Coroutine[Any, Any, R]], **options: Unpack[SpawnOptions]) -> Ref[M, R]: ...
    @overload
    def spawn(self, actor: Receives[M, R], **options: Unpack[SpawnOptions]) -> Ref[M, R]: ...
    def spawn(
        self,
        actor: Any,
        *,
        name: str | None = None,
        mailbox: int = DEFAULT_MAILBOX,
        restart: Restart | str = Restart.TRANSIENT,
        supervision: Supervision | None = None,
        stop_timeout: float = DEFAULT_STOP_TIMEOUT,
    ) -> Ref:
        """Start a child of this actor, which stops with it.

        actor: a class or a factory (it can be restarted), or an instance (it can only be stopped). name: unique among
        the children of this actor. mailbox: the most messages that may wait for it. restart: when it is restarted after
        it ended by itself. supervision: its strategy for its own children. stop_timeout: how long, in seconds, it may
        take to end its current message, and the same again for `stopped`. Raises NameTaken, ActorStopped once the
        runtime is closed, TypeError if `actor` is not an actor or has methods with a wrong signature
        (`receive(self, message)`), ValueError for invalid options, and the errors of the class or factory.
        """
        return self._host.spawn_child(
            self._cell,
            actor,
            name=name,
            mailbox=mailbox,
            restart=restart,
            supervision=supervision,
            stop_timeout=stop_timeout,
        )

    def watch(self, ref: Ref) -> None:
        """Send a `Terminated` to this actor when `ref` ends; at once if it has ended."""
        host = self._host
        host.stage(host.watch, self._cell, cast("Cell", ref))

    def unwatch(self, ref: Ref) -> None:
        """Stop watching `ref`."""
        host = self._host
        host.stage(host.unwatch, self._cell, cast("Cell", ref))

    def after(self, delay: float, message: Any) -> After:
        """Send `message` to this actor in `delay` seconds. If the actor was rebuilt by then, the timer is stale.

        A negative delay counts as 0. Raises TypeError and ValueError for a delay that is no number of seconds.
        """
        return self._host.after(self._cell, self._epoch, delay, message)

    def reply_later(self) -> Later:
        """Answer this message later: the return value of `receive` is no answer then."""
        return self._host.put_off(self._cell)

    def stop(self) -> None:
        """End this actor after this message. An actor with restart `permanent` is started again."""
        host = self._host
        host.stage(host.leave, self._cell)


def epoch_of(ctx: Context) -> int:
    """How often the actor had been rebuilt when this context was made, for the dispatcher."""
    return ctx._epoch  # pyright: ignore[reportPrivateUsage]


class Actor:
    """The base of users' actors. It has no state of its own, so a subclass may declare `__slots__`."""

    __slots__ = ()

    # Any: messages and answers are of any type, and receive may be a coroutine function.
    def receive(self, message: Any, ctx: Context) -> Any:  # noqa: ARG002 - subclasses override it
        """Handle one message. The return value is the answer to an ask; a `Refusal` refuses the message."""
        kind = type(self).__name__
        raise NotImplementedError(f"{kind} has no receive: write `def receive(self, message, ctx)`, or `async def`")

    def started(self, ctx: Context) -> Any:
        """Called before the first message. May be a coroutine function."""

    def stopped(self, ctx: Context) -> Any:
        """Called after the last message, and before the actor is rebuilt. May be a coroutine function."""
