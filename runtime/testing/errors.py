"""The error of a simulation that cannot go on."""

from __future__ import annotations


class SimulationError(Exception):
    """A simulation cannot do the operation, or cannot have the awaited event.

    The text says which, and what to do instead.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
