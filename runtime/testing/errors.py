"""What a simulation says when it cannot go on."""

from __future__ import annotations


class SimulationError(Exception):
    """A simulation was asked for what it cannot do, or what is tested waits for what no simulation has. The text says
    what, and what to do instead.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
