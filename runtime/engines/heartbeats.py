"""Passes heartbeats from a body's thread or process to the loop: many in a row become one.

Rules:
- Only the last details and the last checkpoint are passed on, each once.
- `take` is for the thread that receives heartbeats, `pass_on` for the loop: neither waits for the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .context import Checkpoint


class Heartbeats:
    """The heartbeats of one body."""

    __slots__ = ("_details", "_kept", "_on_its_way", "_saved", "_told")

    def __init__(self) -> None:
        self._details: Any = None
        self._saved: Checkpoint | None = None
        self._told: Any = None  # the details that were passed on last
        self._kept: Checkpoint | None = None
        self._on_its_way = False

    def take(self, details: Any) -> bool:
        """Note a heartbeat. True if the loop has to be called to pass it on."""
        if isinstance(details, Checkpoint):
            self._saved = details
        elif details is not None:
            self._details = details
        if self._on_its_way:
            return False
        self._on_its_way = True
        return True

    def pass_on(self, beat: Callable[[Any], None]) -> None:
        """Pass on the latest heartbeat and checkpoint, on the loop."""
        self._on_its_way = False
        saved, details = self._saved, self._details
        if saved is not self._kept:
            self._kept = saved
            beat(saved)
            if details is self._told:
                return
        beat(None if details is self._told else details)
        self._told = details
