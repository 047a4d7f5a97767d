"""Whether a simulation gets anywhere, or goes round in circles.

Rules
-----
- A transition of what is no worker, and the beginning of a body, is getting somewhere; at one moment, so is every
  transition. Workers that are started again and again are not, nor are messages, timers and heartbeats by themselves.
- Nothing here stops what has a limit of its own: where a test says `within`, only the moment that never ends is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import SimulationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...actors.records.transition import Transitioned
    from .world import World

LONGEST_INSTANT = 1_000_000
"""Steps at one moment after which the simulation is taken to go round in circles, whatever they are."""
QUIET_INSTANT = 100_000
"""Steps at one moment without any transition after which it is."""
MOST_MOMENTS = 100_000
"""Moments in which it gets nowhere after which nobody waits any longer without a limit of their own."""
MOST_RESTARTS = 1_000
"""Transitions of workers, and nothing else, after which nobody does."""
LOOK = 1_000  # steps between two looks


class Circles:
    """What happened since the simulation last got somewhere."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._steps = 0  # at this moment
        self._quiet_since = 0  # the number of steps at the last transition at this moment
        self._tail = 0  # of the journal, then
        self._moments = 0
        self._workers: dict[str, int] = {}  # transitions of workers, by their names

    def began(self) -> None:
        """A body began, or somebody waits anew."""
        self._moments = 0
        self._workers.clear()

    def turned(self, rows: Sequence[Transitioned]) -> None:
        """These transitions were decided."""
        if any(row.kind != "worker" for row in rows):
            self.began()
            return
        for row in rows:
            name = row.entity_id.partition("#")[0]
            self._workers[name] = self._workers.get(name, 0) + 1

    def moved(self) -> None:
        """Time passed."""
        self._steps = self._quiet_since = 0
        self._moments += 1

    def stepped(self) -> None:
        """One thing happened. Raises SimulationError where there is always one more at the same moment."""
        self._steps += 1
        if self._steps % LOOK:
            return
        if self._world.journal.tail != self._tail:
            self._tail, self._quiet_since = self._world.journal.tail, self._steps
        if self._steps >= LONGEST_INSTANT or self._steps - self._quiet_since >= QUIET_INSTANT:
            raise SimulationError(
                f"after {self._steps:,} steps at one moment there is more to do: it goes round in circles{self._busy()}"
            )

    def _busy(self) -> str:
        runtime = self._world.runtime
        names = [] if runtime is None else list(dict.fromkeys(cell.name for cell in runtime.host.dispatcher.ready))
        return f". These have messages to handle: {', '.join(names[:5])}" if names else ""

    @property
    def told(self) -> str | None:
        """Why nobody should wait any longer who has no limit; None while there is hope."""
        if sum(self._workers.values()) >= MOST_RESTARTS:
            names = ", ".join(map(repr, self._workers))
            return (
                f"nothing happens any more but that workers are lost and started again ({names}); have them "
                "`come_back()`, or say how long to wait by within="
            )
        if self._moments >= MOST_MOMENTS:
            return (
                f"at {self._moments:,} moments in a row nothing happened but timers, messages and heartbeats; say how "
                "long to wait by within="
            )
        return None
