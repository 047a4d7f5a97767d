"""The status of a runtime: whether it is open or broken, and on which event loop.

Rules
-----
- `Lifespan` (`opening.py`) sets the status. All other parts check it before they act.
"""

from __future__ import annotations

from typing import NoReturn

from .dispatch.waker import OwnLoop
from .errors import RuntimeClosed, closed

_USE = "use it inside `async with Runtime(...)`, or between `await runtime.open()` and `await runtime.close()`"


class RuntimeStatus:
    """The status of one runtime."""

    own_loop: OwnLoop | None = None
    """The event loop that it was opened on."""
    entered = False
    """Whether the opening has begun, once."""
    loaded = False
    """Whether all parts are made."""
    running = False
    """Whether the dispatcher runs and has recovered."""
    open = False
    """Whether users' commands are accepted."""
    broken: BaseException | None = None
    """The error that broke the runtime."""
    told_to_leave = False
    left = False
    """Whether all tasks of the runtime have ended."""

    @property
    def is_open(self) -> bool:
        """Whether the runtime accepts commands."""
        return self.open and self.broken is None

    def check_here(self, what: str) -> None:
        """Refuse a call from another thread or another event loop. Raises RuntimeError."""
        if self.own_loop is not None:
            self.own_loop.check(what)

    def check_open_here(self) -> None:
        """Refuse a call from elsewhere, or while the runtime is not open. Raises RuntimeError, RuntimeClosed."""
        self.check_here("a runtime")
        self.check_open()

    def check_open(self) -> None:
        """Raises RuntimeClosed while the runtime is not open."""
        if self.broken is not None or not self.open:
            self.raise_closed()

    def check_entered(self) -> None:
        """Raises RuntimeClosed before the runtime has its parts."""
        if not self.loaded:
            raise RuntimeClosed(f"the runtime was not entered: {_USE}")

    def raise_closed(self) -> NoReturn:
        """Raise RuntimeClosed with the reason."""
        if self.broken is not None:
            raise closed("the runtime has closed", self.broken)
        if self.told_to_leave:
            raise RuntimeClosed(
                "the runtime was closed, and cannot be used again. Make another Runtime(...), with the same journal to "
                "continue its jobs"
            )
        raise RuntimeClosed(f"the runtime is not open: {_USE}")
