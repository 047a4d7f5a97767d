"""Happenings: what is going to happen in a simulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Happening:
    """Something that is going to happen, unless it is cancelled."""

    __slots__ = ("action", "args", "what")

    def __init__(self, what: str, action: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.what = what
        self.action: Callable[..., object] | None = action
        self.args = args

    def happen(self) -> None:
        """Have it happen now, unless it was cancelled."""
        if self.action is not None:
            self.action(*self.args)

    def cancel(self) -> None:
        """Have it not happen."""
        self.action = None
