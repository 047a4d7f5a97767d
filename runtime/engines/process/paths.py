"""Functions of a worker process, by the names that its runtime and a restart find them by: import paths.

What is a name or a path already is taken as it is, and checked beside the runtime: what the application registered is
known there only.
"""

from __future__ import annotations

from ...functions.registry import Bodies


class Paths(Bodies):
    """The functions of a worker process."""

    @property
    def finder(self) -> None:
        """Nobody: they are checked beside the runtime."""
        return None
