"""Whether a runtime may be used, and where: what is open, what it broke by, on which event loop.

Rules
-----
- `Lifespan` says so (`opening.py`); everybody else asks before anything is done.
"""

from __future__ import annotations

from typing import NoReturn

from ..dispatch.waker import Home
from ..handles.outcomes import RuntimeClosed, closed

_USE = "use it inside `async with Runtime(...)`, or between `await runtime.open()` and `await runtime.close()`"


class Standing:
    """Where a runtime stands in its life."""

    home: Home | None = None
    """The event loop that it was opened on."""
    entered = False
    """It was told to open, once."""
    loaded = False
    """Its parts are there."""
    running = False
    """The dispatcher runs, and has recovered."""
    open = False
    """Users' commands are taken."""
    broken: BaseException | None = None
    """What ended inside that nobody told to end."""
    told_to_leave = False
    left = False
    """Nothing runs any more."""

    @property
    def is_open(self) -> bool:
        """Whether it takes anything."""
        return self.open and self.broken is None

    def check_here(self, what: str) -> None:
        """Refuse what is used in another thread, or on another event loop. Raises RuntimeError."""
        if self.home is not None:
            self.home.check(what)

    def check_open_here(self) -> None:
        """Refuse to be used elsewhere, or while the runtime is not open. Raises RuntimeError, RuntimeClosed."""
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
        """Say why it cannot be used. Raises RuntimeClosed."""
        if self.broken is not None:
            raise closed("the runtime has closed", self.broken)
        if self.told_to_leave:
            raise RuntimeClosed(
                "the runtime was left, and is of no more use. Make another Runtime(...), of the same journal if it is "
                "to go on there"
            )
        raise RuntimeClosed(f"the runtime is not open: {_USE}")
