"""The life of a worker: something that executes attempts, up to its capacity.

Rules
-----
- `idle` runs nothing, `busy` runs at least one attempt. Each further assignment and each release is a row,
  also if the state stays the same. No assignment exceeds the capacity.
- A paused worker finishes its attempts and takes no new ones. An idle worker cannot be paused, unless its lifecycle
  shows it as running between its tasks, too.
- The pause of an operator stays with the worker's name: the next incarnation registers as paused.
- A draining worker finishes its attempts and shuts down; at its drain deadline it is terminated.
- Every live worker sends heartbeats, in every state. A worker that missed too many is `unresponsive`; if it
  comes back, its facts decide which state follows; if not, it expires.
- `fail` (it died) and `terminate` (it was stopped by force) are possible everywhere but in terminal states. A
  new start of the same worker is a new incarnation, not a way out of a terminal state.

Guards read the facts before the assignment or release that is being decided.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Protocol

from ..events import Event
from ..machine import Machine
from ..phases import Phase
from ..rows import State, Timed, Transition


class WorkerState(StrEnum):
    """The states of a worker."""

    INITIALIZING = "initializing"
    IDLE = "idle"
    BUSY = "busy"
    PAUSED = "paused"
    DRAINING = "draining"
    UNRESPONSIVE = "unresponsive"
    SHUTDOWN = "shutdown"
    FAILED = "failed"
    TERMINATED = "terminated"


class WorkerFacts(Protocol):
    """The fields that the guards read of a worker's record."""

    @property
    def assigned(self) -> int:
        """The number of attempts that it runs now."""
        ...

    @property
    def capacity(self) -> int:
        """The number of attempts that it may run at the same time."""
        ...

    @property
    def paused(self) -> bool:
        """Whether the worker is paused, or was paused before it became unresponsive."""
        ...

    @property
    def draining(self) -> bool:
        """Whether the worker was draining before it became unresponsive."""
        ...


# -- guards --------------------------------------------------------------------------------------------------


def capacity_left(facts: WorkerFacts, _: object) -> bool:
    """One more attempt fits."""
    return facts.assigned < facts.capacity


def other_tasks_remain(facts: WorkerFacts, _: object) -> bool:
    """The worker still runs an attempt after this one is released."""
    return facts.assigned > 1


def tasks_remain(facts: WorkerFacts, _: object) -> bool:
    """The worker runs an attempt."""
    return facts.assigned > 0


def was_draining(facts: WorkerFacts, _: object) -> bool:
    """The worker was draining when its heartbeats stopped."""
    return facts.draining


def was_paused(facts: WorkerFacts, _: object) -> bool:
    """The worker was paused when its heartbeats stopped, or the incarnation before it was."""
    return facts.paused


def told_as_running(_: object, pause: object) -> bool:
    """The worker's lifecycle shows it as running, also between its tasks."""
    return getattr(pause, "told_as_running", False) is True


# -- table ---------------------------------------------------------------------------------------------------

E = Event
S = WorkerState
T = Transition

LIVE: Final = (S.INITIALIZING, S.IDLE, S.BUSY, S.PAUSED, S.DRAINING, S.UNRESPONSIVE)
HEARD: Final = (
    S.IDLE,
    S.BUSY,
    S.PAUSED,
    S.DRAINING,
)  # the states in which a worker must answer health checks

WORKER: Final = Machine(
    "worker",
    S.INITIALIZING,
    states=(
        State(S.INITIALIZING, Phase.INITIALIZING),
        State(S.IDLE, Phase.IDLE, bounded_by="the next assignment; idling is no fault"),
        State(S.BUSY, Phase.BUSY, bounded_by="the limits of the attempts it runs"),
        State(S.PAUSED, Phase.PAUSED, bounded_by="an operator"),
        State(S.DRAINING, Phase.DRAINING),
        State(S.UNRESPONSIVE, Phase.UNRESPONSIVE),
        State(S.SHUTDOWN, Phase.SHUTDOWN, terminal=True),
        State(S.FAILED, Phase.FAILED, terminal=True),
        State(S.TERMINATED, Phase.TERMINATED, terminal=True),
    ),
    transitions=(
        T(S.INITIALIZING, E.REGISTER, S.PAUSED, was_paused),
        T(S.INITIALIZING, E.REGISTER, S.IDLE),
        T(S.IDLE, E.ASSIGN, S.BUSY),
        T(S.IDLE, E.PAUSE, S.PAUSED, told_as_running),
        T(S.IDLE, E.SHUT_DOWN, S.SHUTDOWN),
        T(S.BUSY, E.ASSIGN, S.BUSY, capacity_left),
        T(S.BUSY, E.RELEASE, S.BUSY, other_tasks_remain),
        T(S.BUSY, E.RELEASE, S.IDLE),
        T(S.BUSY, E.PAUSE, S.PAUSED),
        T(S.BUSY, E.SHUT_DOWN, S.DRAINING),
        T(S.PAUSED, E.RELEASE, S.PAUSED),
        T(S.PAUSED, E.RESUME, S.BUSY, tasks_remain),
        T(S.PAUSED, E.RESUME, S.IDLE),
        T(S.PAUSED, E.SHUT_DOWN, S.DRAINING, tasks_remain),
        T(S.PAUSED, E.SHUT_DOWN, S.SHUTDOWN),
        T(S.DRAINING, E.RELEASE, S.DRAINING, other_tasks_remain),
        T(S.DRAINING, E.RELEASE, S.SHUTDOWN),
        T(S.DRAINING, E.DRAIN_DEADLINE, S.TERMINATED, severity="warning"),
        *(T(state, E.HEALTH_CHECK_TIMEOUT, S.UNRESPONSIVE, severity="error") for state in HEARD),
        T(S.UNRESPONSIVE, E.RECOVER, S.DRAINING, was_draining),
        T(S.UNRESPONSIVE, E.RECOVER, S.PAUSED, was_paused),
        T(S.UNRESPONSIVE, E.RECOVER, S.BUSY, tasks_remain),
        T(S.UNRESPONSIVE, E.RECOVER, S.IDLE),
        T(S.UNRESPONSIVE, E.EXPIRE, S.SHUTDOWN, severity="warning"),
        *(T(state, E.FAIL, S.FAILED, severity="error") for state in LIVE),
        *(T(state, E.TERMINATE, S.TERMINATED) for state in LIVE),
    ),
    timed=(
        Timed(S.INITIALIZING, E.FAIL, "start_timeout"),
        *(Timed(state, E.HEALTH_CHECK_TIMEOUT, "health_check_timeout") for state in HEARD),
        Timed(S.DRAINING, E.DRAIN_DEADLINE, "drain_deadline"),
        Timed(S.UNRESPONSIVE, E.EXPIRE, "expire_after"),
    ),
)
