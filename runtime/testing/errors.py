"""The error of a simulation that cannot go on."""

from __future__ import annotations


class SimulationError(Exception):
    """A simulation was asked for an impossible operation, or the test waits for something that it never has.

    The text says which, and what to do instead.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
