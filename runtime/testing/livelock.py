"""Whether a simulation makes progress, or runs in circles.

Rules
-----
- A transition of an entity that is no worker is progress, and so is the start of a body; within one moment, every
  transition is. Restarts of workers alone are no progress, nor are messages, timers and heartbeats alone.
- A wait with a limit of its own is not stopped here: if a test gives `within`, only an endless moment is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import SimulationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...actors.records.transition import Transitioned
    from .world import World

LONGEST_INSTANT = 1_000_000
"""The most steps at one moment; more mean that the simulation runs in circles."""
QUIET_INSTANT = 100_000
"""The most steps at one moment without any transition."""
MOST_MOMENTS = 100_000
"""The most moments without progress before a wait without a limit ends."""
MOST_RESTARTS = 1_000
"""The most transitions of workers alone before such a wait ends."""
LOOK = 1_000  # steps between two checks


class LivelockDetector:
    """Counts the steps since the simulation's last progress."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._steps = 0  # at this moment
        self._quiet_since = 0  # the number of steps at this moment's last transition
        self._tail = 0  # the journal's tail at that step
        self._moments = 0
        self._workers: dict[str, int] = {}  # transitions of workers, by their names

    def began(self) -> None:
        """A body started, or a new wait began."""
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
        """The clock moved on."""
        self._steps = self._quiet_since = 0
        self._moments += 1

    def stepped(self) -> None:
        """A step happened. Raises SimulationError if steps at one moment never end."""
        self._steps += 1
        if self._steps % LOOK:
            return
        if self._world.journal.tail != self._tail:
            self._tail, self._quiet_since = self._world.journal.tail, self._steps
        if self._steps >= LONGEST_INSTANT or self._steps - self._quiet_since >= QUIET_INSTANT:
            raise SimulationError(
                f"after {self._steps:,} steps at one moment there is more to do: it repeats without end{self._busy()}"
            )

    def _busy(self) -> str:
        runtime = self._world.runtime
        names = [] if runtime is None else list(dict.fromkeys(cell.name for cell in runtime.host.dispatcher.ready))
        return f". These have messages to handle: {', '.join(names[:5])}" if names else ""

    @property
    def told(self) -> str | None:
        """Why a wait without a limit should end; None while there is progress."""
        if sum(self._workers.values()) >= MOST_RESTARTS:
            names = ", ".join(map(repr, self._workers))
            return (
                f"nothing happens any more, except that workers are lost and restarted ({names}); let them "
                "`come_back()`, or say how long to wait by within="
            )
        if self._moments >= MOST_MOMENTS:
            return (
                f"at {self._moments:,} moments in a row nothing happened but timers, messages and heartbeats; say how "
                "long to wait by within="
            )
        return None
