"""A lifecycle: a machine that the runtime's tasks, workstreams, workers, jobs or breakers can run by.

Rules
-----
- An actor acts by phase, and fires its own events (`Event`). A lifecycle maps each own event to published events of its
  machine.
- One own event may map to several published events. `refinement.py` decides which published rows report a row of the
  actor, and what replaces a phase that the lifecycle lacks.
- A failure that is not final is a state of phase `deciding`. If no row leads on from there, the failure was final.
- Guards read the facts that their document names. `facts` makes these facts from a record of the runtime, as the record
  is after the row was taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

import msgspec

from ..builtin.task import Failure, TaskFacts
from ..events import Event
from ..keywords import KeywordsChecked
from ..machine import Machine
from ..phases import Phase

Kind: TypeAlias = Literal["task", "workstream", "worker", "job", "breaker"]


def as_they_are(record: Any, _: object) -> Any:  # the machine's guards define the type
    """The facts of a machine whose guards read the record itself."""
    return record


class Lifecycle(msgspec.Struct, frozen=True, metaclass=KeywordsChecked):
    """How entities of one kind run by one machine.

    events: own event -> the published events that it may be, in the order in which they are tried; other own events are
    matched by their phases. phases: the phase of a state for this kind of entity, where it differs from the state's own
    phase (a machine that serves several kinds). facts: makes what the guards read, from a record and an event's
    payload. skips: the published event of a skip, by its cause ("dependency", "condition", "operator"), where `events`
    has several. defaults: settings that apply under this lifecycle unless the specification sets them. optional:
    whether tasks may be optional: they are refused, or are allowed and make the workstream end failed if they fail.
    derive: for a workstream, the document's own function of its tasks (each with `state` and `critical`), which returns
    a state of the machine; the auditor compares it with the log.

    Raises ValueError for events and states that the machine does not have, TypeError for a text in place of a tuple.
    """

    name: str
    kind: Kind
    machine: Machine
    events: Mapping[str, tuple[str, ...]] = {}
    phases: Mapping[str, Phase] = {}
    facts: Callable[[Any, Any], Any] = as_they_are  # record and payload of this kind
    skips: Mapping[str, str] = {}
    defaults: Mapping[str, int | str] = {}
    optional: Literal["allowed", "refused", "fails"] = "allowed"
    derive: Callable[[Sequence[Any]], str] | None = None  # the function defines what it reads of a task

    def __post_init__(self) -> None:
        """Refuse a table that names events or states which the machine does not have."""
        declared = {str(row.event) for row in self.machine.transitions}
        for event, several in self.events.items():
            if isinstance(cast("object", several), str):
                raise TypeError(f"lifecycle {self.name!r}: events[{event!s}] is a tuple of events: ({several!r},)")
        faults = [f"no event {event!s}" for events in self.events.values() for event in events if event not in declared]
        faults += [f"no event {event!s}" for event in self.skips.values() if event not in declared]
        faults += [f"no own event {event!s}" for event in self.events if event not in set(Event)]
        faults += [f"no state {state!s}" for state in self.phases if state not in self.machine.states]
        if faults:
            raise ValueError(f"lifecycle {self.name!r} of a {self.kind}: {self.machine.name} has {', '.join(faults)}")

    def phase(self, state: str) -> Phase:
        """Return the phase of `state`. Raises ValueError for a state without a phase."""
        phase = self.phases.get(state) or self.machine.states[state].phase
        if phase is None:
            raise ValueError(f"{self.machine.name}: the state {state!s} has no phase, so no actor can act in it")
        return Phase(phase)


class Retries(msgspec.Struct, frozen=True):
    """The fields that the published guards read of a task: its dependencies, and how often it may still retry.

    retry_count: retries made before the failure that is being decided; max_retries: the retries that are allowed. After
    a failure that allows no retry, whatever the count (a permanent error, the same error too often, a loss that is not
    rerun), both are equal.
    """

    retry_count: int = 0
    max_retries: int = 0
    permanent: bool = False  # the error says that a retry is useless
    repeated: bool = False  # the same error came too many times in a row
    unmet: int = 0  # dependencies that are not satisfied yet


def retries(record: TaskFacts, payload: object) -> Retries:
    """The `facts` of a lifecycle of tasks. The counts of `record` include the failure."""
    failure = cast("Failure", payload) if hasattr(payload, "lost") else None
    lost = failure is not None and failure.lost
    permanent = failure is not None and failure.permanent and not lost
    repeated = failure is not None and failure.repeated and not lost
    deferred = failure is not None and failure.deferred
    spent = record.lost_attempts if lost else record.failed_attempts
    limit = record.max_losses if lost else record.max_attempts + record.granted
    final = permanent or repeated or (lost and record.on_loss != "rerun")
    made = limit - 1 if final else spent - (failure is not None and not deferred)
    if deferred:  # a deferral always has another attempt, and uses up no retry
        limit = max(limit, made + 2)
    return Retries(made, limit - 1, permanent, repeated, record.unmet)
