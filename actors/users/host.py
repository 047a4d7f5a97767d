"""The operations that a cell needs of its dispatcher: the interface between actors/ and runtime/.

runtime/dispatch/cell_host.py implements this protocol, with functions of the dispatcher's parts. Actors use the
dispatcher through this protocol only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .actor import Actor, After, Later
    from .dead_letters import DeadLetters
    from .ref import Cell, PendingOffer, Request, Turn
    from .strategy import Restart, Supervision

__all__ = ["ActorHost", "TimerHeap", "Waiter"]


class Waiter(Protocol):
    """One task that waits for one event."""

    def wait(self) -> Awaitable[None]:
        """Returns after `set` was called, also if that was earlier."""
        ...

    def set(self) -> None:
        """Let the waiting task go on. A second call does nothing."""
        ...


class TimerHeap(Protocol):
    """The operations of the runtime's timers that actors use."""

    def arm(self, due: float, action: Callable[..., object], *args: Any) -> Any:
        """Call `action(*args)` at `due` (monotonic seconds)."""
        ...

    def cancel(self, timer: Any) -> bool:
        """Disarm the timer."""
        ...


class ActorHost(Protocol):
    """The operations of the dispatcher that a cell uses."""

    ready: deque[Any]
    """The run queue: cells with messages, each once."""
    log: list[Any]
    """The sends and staged effects of the present receive, in order."""
    current: Cell | None
    """The actor whose receive is running now."""
    turn: Turn | None
    """The coroutine receive that is running now."""
    parked: bool
    """Whether the dispatcher sleeps: code that queues a cell must wake it."""
    dead_letters: DeadLetters

    @property
    def timers(self) -> TimerHeap: ...  # noqa: D102
    # The parts of the dispatcher document these methods: runtime/dispatch/cell_host.py names them.
    def wake(self) -> None: ...  # noqa: D102
    def check_here(self) -> None: ...  # noqa: D102
    def now(self) -> float: ...  # noqa: D102
    def waiter(self) -> Waiter: ...  # noqa: D102
    def admit(self, cell: Cell, message: Any, /) -> bool: ...  # noqa: D102
    def handled(self, cell: Cell, /) -> int: ...  # noqa: D102
    def hold(self, cell: Cell, message: Any, /) -> bool: ...  # noqa: D102
    def stage(self, do: Callable[..., object], /, *args: Any) -> None: ...  # noqa: D102
    def release(self, turn: Turn, /) -> None: ...  # noqa: D102
    def send_now(self, cell: Cell, message: Any, /) -> bool: ...  # noqa: D102
    def lend(self, request: Request, /) -> None: ...  # noqa: D102
    def stop(self, cell: Cell, /) -> None: ...  # noqa: D102
    def failure_of(self, cell: Cell, since: float = 0.0, /) -> BaseException | None: ...  # noqa: D102
    def wait_for_room(self, cell: Cell, offer: PendingOffer, /) -> None: ...  # noqa: D102
    def tell_threadsafe(self, cell: Cell, message: Any, /) -> bool: ...  # noqa: D102
    def call_threadsafe(self, function: Callable[..., object], /, *args: Any) -> bool: ...  # noqa: D102
    def spawn_child(  # noqa: D102
        self,
        parent: Cell,
        actor: type[Actor] | Callable[[], Actor] | Actor,
        *,
        name: str | None,
        mailbox: int,
        restart: Restart | str,
        supervision: Supervision | None,
        stop_timeout: float,
    ) -> Cell: ...
    def watch(self, watcher: Cell, target: Cell, /) -> None: ...  # noqa: D102
    def unwatch(self, watcher: Cell, target: Cell, /) -> None: ...  # noqa: D102
    def after(self, cell: Cell, epoch: int, delay: float, message: Any, /) -> After: ...  # noqa: D102
    def put_off(self, cell: Cell, /) -> Later: ...  # noqa: D102
    def leave(self, cell: Cell, /) -> None: ...  # noqa: D102
