"""A lifecycle: a machine that the runtime's tasks, workstreams, workers, jobs or breakers can run by.

Rules
-----
- An actor acts by phase, and fires its own events (`Event`). A lifecycle says which published event each of
  them is, in the words of its machine.
- One own event may be several published ones. Which rows tell of what the actor did, and what falls back where
  the lifecycle lacks it, is in `refinement.py`.
- A failure that is not the end is a state of phase `deciding`. Where nothing leads on from it, it was the end.
- Guards read the facts that their document names. `facts` makes them from a record of the runtime's, as it is
  after what happened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

import msgspec

from ..builtin.task import Failure, TaskFacts
from ..events import Event
from ..machine import Machine
from ..phases import Phase

Kind: TypeAlias = Literal["task", "workstream", "worker", "job", "breaker"]


def as_they_are(record: Any, _: object) -> Any:  # whatever the machine's guards read
    """The facts of a machine whose guards read the record itself."""
    return record


class Lifecycle(msgspec.Struct, frozen=True):
    """How entities of one kind run by one machine.

    events: own event -> the published events that it may be, in the order in which they are tried; what is not here is
    found by the phases.
    phases: what a state means to this kind of entity, where that is not the state's own phase (a machine that
    serves several kinds). facts: what the guards read, made of a record and of an event's payload. skips: the
    published event of a skip, by why it is ("dependency", "condition", "operator"), where `events` says several.
    defaults: settings that hold under this lifecycle unless they are said. optional: whether tasks may be optional:
    they are refused, or are allowed and make the workstream end failed where they fail. derive: of a workstream, the
    document's own function of its tasks (each with `state` and `critical`), which gives a state of the machine; the
    auditor compares.

    Raises ValueError for events and states that the machine does not have, TypeError for a text in place of a tuple.
    """

    name: str
    kind: Kind
    machine: Machine
    events: Mapping[str, tuple[str, ...]] = {}
    phases: Mapping[str, Phase] = {}
    facts: Callable[[Any, Any], Any] = as_they_are  # of whatever record and payload there are
    skips: Mapping[str, str] = {}
    defaults: Mapping[str, int | str] = {}
    optional: Literal["allowed", "refused", "fails"] = "allowed"
    derive: Callable[[Sequence[Any]], str] | None = None  # of whatever the function reads of a task

    def __post_init__(self) -> None:
        """Refuse a table that names what the machine does not have."""
        known = {str(row.event) for row in self.machine.transitions}
        for event, several in self.events.items():
            if isinstance(cast("object", several), str):
                raise TypeError(f"lifecycle {self.name!r}: events[{event!s}] is a tuple of events: ({several!r},)")
        faults = [f"no event {event!s}" for events in self.events.values() for event in events if event not in known]
        faults += [f"no event {event!s}" for event in self.skips.values() if event not in known]
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


def retries(record: TaskFacts, payload: object) -> Retries:
    """The `facts` of a lifecycle of tasks. The record is that after the failure: its counts include it."""
    failure = cast("Failure", payload) if hasattr(payload, "lost") else None
    lost = failure is not None and failure.lost
    permanent = failure is not None and failure.permanent and not lost
    repeated = failure is not None and failure.repeated and not lost
    deferred = failure is not None and failure.deferred
    spent = record.lost_attempts if lost else record.failed_attempts
    limit = record.max_losses if lost else record.max_attempts + record.granted
    final = permanent or repeated or (lost and record.on_loss != "rerun")
    made = limit - 1 if final else spent - (failure is not None and not deferred)
    if deferred:  # it is run again whatever the count, and uses up nothing of it
        limit = max(limit, made + 2)
    return Retries(made, limit - 1, permanent, repeated, record.unmet)
