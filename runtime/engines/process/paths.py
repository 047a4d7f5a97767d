"""Functions in a worker process, identified by import paths, by which its runtime and a restart find them.

A name or a path is passed on unchanged, and checked in the runtime's process: only that process knows what the
application registered.
"""

from __future__ import annotations

from ...functions.registry import Bodies


class Paths(Bodies):
    """The functions of a worker process."""

    @property
    def finder(self) -> None:
        """None: functions are checked in the runtime's process."""
        return None
