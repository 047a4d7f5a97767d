"""A lifecycle: a machine that the runtime's tasks, workstreams, workers, jobs or breakers can run by.

Rules
-----
- An actor acts by phase, and fires its own events (`Event`). A lifecycle says which published event each of
  them is, in the words of its machine.
- One own event may be several published ones: of those listed, the first that the present state knows and
  whose guard passes is fired. Where none is, the lifecycle lacks what was asked for there, and what falls
  back is the actor's to say.
- In a state of phase `deciding` (a failure that is not the end) the actor fires `fail` once more: the
  published events that it stands for are the ways out. If none passes, the entity is settled there.
- Guards read the facts that their document names. `facts` makes them from a record of the runtime's. In a
  `deciding` state the attempt that failed has been counted already; elsewhere it is counted by what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, cast

import msgspec

from .events import Event
from .machine import Machine, Transition
from .phases import Phase
from .task import Failure, TaskFacts

Kind: TypeAlias = Literal["task", "workstream", "worker", "job", "breaker"]


def as_they_are(record: Any, _: object) -> Any:  # whatever the machine's guards read
    """The facts of a machine whose guards read the record itself."""
    return record


class Lifecycle(msgspec.Struct, frozen=True):
    """How entities of one kind run by one machine.

    events: own event -> the published events that it may be, in the order in which they are tried.
    phases: what a state means to this kind of entity, where that is not the state's own phase (a machine that
    serves several kinds). facts: what the guards read, made of a record and of an event's payload. defaults:
    settings that hold under this lifecycle unless they are said. optional: whether tasks may be optional:
    they are refused, or are allowed and make the workstream end failed where they fail.

    Raises ValueError for events and states that the machine does not have.
    """

    name: str
    kind: Kind
    machine: Machine
    events: Mapping[str, tuple[str, ...]]
    phases: Mapping[str, Phase] = {}
    facts: Callable[[Any, Any], Any] = as_they_are  # of whatever record and payload there are
    defaults: Mapping[str, int | str] = {}
    optional: Literal["allowed", "refused", "fails"] = "allowed"

    def __post_init__(self) -> None:
        """Refuse a table that names what the machine does not have."""
        known = {str(row.event) for row in self.machine.transitions}
        faults = [f"no event {event!s}" for events in self.events.values() for event in events if event not in known]
        faults += [f"no own event {event!s}" for event in self.events if event not in set(Event)]
        faults += [f"no state {state!s}" for state in self.phases if state not in self.machine.states]
        if faults:
            raise ValueError(f"lifecycle {self.name!r} of a {self.kind}: {self.machine.name} has {', '.join(faults)}")

    def phase(self, state: str) -> Phase:
        """Return what `state` means to the actor. Raises ValueError for a state without a phase."""
        phase = self.phases.get(state) or self.machine.states[state].phase
        if phase is None:
            raise ValueError(f"{self.machine.name}: the state {state!s} has no phase, so no actor can act in it")
        return Phase(phase)

    def find(self, state: str, event: str, record: object = None, payload: object = None) -> Transition | None:
        """Return the row that an own event takes in `state`; None where the lifecycle has none that passes."""
        rows = self.machine.table[state]
        facts: object = None
        for published in self.events.get(event, ()):
            for row in rows.get(published, ()):
                if row.guard is None:
                    return row
                facts = self.facts(record, payload) if facts is None else facts
                if row.guard(facts, payload):
                    return row
        return None


class Retries(msgspec.Struct, frozen=True):
    """What the published guards read of a task: its dependencies, and how its present failure may go on.

    retry_count: retries that were made before the failure that is being decided about; max_retries: those
    that may be. A failure after which there is none, whatever the count (it is permanent, it came too often,
    a loss that is not run again), is shown as all of them made.
    """

    retry_count: int = 0
    max_retries: int = 0
    permanent: bool = False  # the error says that another attempt is useless
    repeated: bool = False  # the same error came too many times in a row
    unmet: int = 0  # dependencies that are not satisfied yet

    @classmethod
    def of(cls, record: TaskFacts, payload: object, *, counted: bool) -> Retries:
        """Read them from a record. `counted`: the record's counts include the failure that is decided about."""
        failure = cast("Failure", payload) if hasattr(payload, "lost") else None
        lost = failure is not None and failure.lost
        permanent = failure is not None and failure.permanent and not lost
        repeated = failure is not None and failure.repeated and not lost
        spent = record.lost_attempts if lost else record.failed_attempts
        limit = record.max_losses if lost else record.max_attempts + record.granted
        final = permanent or repeated or (lost and record.on_loss != "rerun")
        made = limit - 1 if final else spent - counted
        return cls(made, limit - 1, permanent, repeated, record.unmet)


def retries(machine: Machine) -> Callable[[Any, Any], Retries]:
    """Return the `facts` of a lifecycle of tasks that runs by `machine`."""

    def facts(record: Any, payload: object) -> Retries:  # a TaskFacts with its state
        return Retries.of(record, payload, counted=machine.states[record.state].phase == Phase.DECIDING)

    return facts
