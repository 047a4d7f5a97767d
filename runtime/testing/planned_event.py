"""Happenings: planned events of a simulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class PlannedEvent:
    """A planned event, which happens unless it is cancelled."""

    __slots__ = ("action", "args", "what")

    def __init__(self, what: str, action: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.what = what
        self.action: Callable[..., object] | None = action
        self.args = args

    def happen(self) -> None:
        """Run the event now, unless it was cancelled."""
        if self.action is not None:
            self.action(*self.args)

    def cancel(self) -> None:
        """Cancel the event."""
        self.action = None
