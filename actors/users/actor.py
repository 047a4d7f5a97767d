"""Users' actors: what they derive from, and what they are given.

Rules
- An actor handles one message at a time: `receive(message, ctx)`, a plain function or a coroutine function. What it
  returns is the answer if the message was an ask.
- If `receive` raises, everything it did through `ctx` and references for that message (sends, spawns, timers, watches)
  is dropped whole, the message is a dead letter, and the actor is built anew from its class or factory, with its mail.
- `started` runs before the first message, of a rebuilt actor too; `stopped` runs when the actor ends, also before it is
  rebuilt. Both may be coroutine functions, both have the same rules as `receive`.
- A `Context` belongs to one life of one actor. Its methods are for use inside `receive`, `started` and `stopped`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypedDict

from msgspec import Struct

from ..user_code import is_a, shown
from .errors import ActorStopped
from .host import Host
from .ref import ASK_TIMEOUT, Ref, Request
from .strategy import Restart, Supervision

__all__ = [
    "DEFAULT_MAILBOX",
    "DEFAULT_STOP_TIMEOUT",
    "Actor",
    "After",
    "Context",
    "Later",
    "Refusal",
    "SpawnOptions",
    "Terminated",
]

DEFAULT_MAILBOX = 10_000
"""Messages that may wait for an actor unless `mailbox` says otherwise."""

DEFAULT_STOP_TIMEOUT = 5.0
"""Seconds that an actor may take to stop unless `stop_timeout` says otherwise."""


class SpawnOptions(TypedDict, total=False):
    """What may be said of an actor that is started, beside its name: the arguments of `Context.spawn`."""

    mailbox: int
    restart: Restart | str
    supervision: Supervision | None
    stop_timeout: float


class Terminated(Struct, frozen=True, gc=False):
    """Sent to who watches an actor, once it has ended for good.

    `reason` is `stopped`, `parent_stopped`, `failed` or `abandoned` (it did not end within its limit).
    """

    ref: Ref
    reason: str
    error: BaseException | None = None


class Refusal(Struct, frozen=True, gc=False):
    """Return it from `receive` to refuse a message: the ask raises `error`, and the actor goes on unharmed.

    A refused message that was told, not asked, becomes a dead letter.
    """

    error: Exception

    def __post_init__(self) -> None:
        """Refuse what cannot be raised: who asks would be told of that, and not of the refusal."""
        if not is_a(self.error, Exception):
            raise TypeError(f"a Refusal holds an exception, which the ask raises, and not {shown(self.error)}")


class After(Struct, gc=False, eq=False):
    """A timer of an actor, from `ctx.after`."""

    cell: Ref
    epoch: int
    message: Any
    timer: Any

    def cancel(self) -> None:
        """Call it off. Once it has fired this does nothing, though its message may still wait to be handled."""
        if not self.cell.stopped:
            host = self.cell.host
            host.check_here()
            host.stage(host.timers.cancel, self.timer)


class Later(Struct, gc=False, eq=False):
    """An answer that is given later, from `ctx.reply_later()`; from a later receive, or from anywhere on the loop.

    In another thread, or on another event loop, both ways to give it raise RuntimeError.
    """

    request: Request | None  # None: the message was told, nobody waits

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
    """What an actor can do besides sending: given to each of its methods by the runtime.

    All of it raises RuntimeError in another thread than the event loop's: a thread that it started uses
    `tell_threadsafe` of a reference.
    """

    cell: Ref
    epoch: int

    @property
    def self(self) -> Ref:
        """The actor's own reference."""
        return self.cell

    @property
    def _host(self) -> Host:
        if self.cell.stopped:
            msg = f"{self.cell!r} did something after its end; a task it had started was still running?"
            raise ActorStopped(msg)
        self.cell.host.check_here()
        return self.cell.host

    def ask(self, ref: Ref, message: Any, *, timeout: float | None = ASK_TIMEOUT) -> Coroutine[Any, Any, Any]:
        """`ref.ask`, from this actor, also out of tasks that its receive started. See `Ref.ask`."""
        return ref.ask_for(self.cell, message, timeout)

    def spawn(
        self,
        actor: type[Actor] | Callable[[], Actor] | Actor,
        *,
        name: str | None = None,
        mailbox: int = DEFAULT_MAILBOX,
        restart: Restart | str = Restart.TRANSIENT,
        supervision: Supervision | None = None,
        stop_timeout: float = DEFAULT_STOP_TIMEOUT,
    ) -> Ref:
        """Start a child of this actor, which stops with it. The arguments are those of `Dispatcher.spawn`."""
        return self._host.spawn_child(
            self.cell,
            actor,
            name=name,
            mailbox=mailbox,
            restart=restart,
            supervision=supervision,
            stop_timeout=stop_timeout,
        )

    def watch(self, ref: Ref) -> None:
        """Have a `Terminated` sent to this actor when `ref` ends; at once if it has."""
        host = self._host
        host.stage(host.watch, self.cell, ref)

    def unwatch(self, ref: Ref) -> None:
        """Watch it no longer."""
        host = self._host
        host.stage(host.unwatch, self.cell, ref)

    def after(self, delay: float, message: Any) -> After:
        """Have `message` sent to this actor in `delay` seconds. If it was rebuilt by then, the timer is stale.

        A delay below 0 is over at once. Raises TypeError and ValueError for what is no number of seconds.
        """
        return self._host.after(self.cell, self.epoch, delay, message)

    def reply_later(self) -> Later:
        """Put the answer to this message off: what `receive` returns is no answer then."""
        return self._host.put_off(self.cell)

    def stop(self) -> None:
        """End this actor after this message. One whose restart is `permanent` is started again."""
        host = self._host
        host.stage(host.leave, self.cell)


class Actor:
    """The base of users' actors. It has no state of its own, so a subclass may declare `__slots__`."""

    __slots__ = ()

    # Any: messages and answers are of any type, and receive may be a coroutine function.
    def receive(self, message: Any, ctx: Context) -> Any:  # noqa: ARG002 - it is there to be overridden
        """Handle one message. What it returns is the answer to an ask; a `Refusal` refuses it."""
        kind = type(self).__name__
        raise NotImplementedError(f"{kind} has no receive: write `def receive(self, message, ctx)`, or `async def`")

    def started(self, ctx: Context) -> Any:
        """Before the first message. May be a coroutine function."""

    def stopped(self, ctx: Context) -> Any:
        """After the last message, and before the actor is built anew. May be a coroutine function."""
