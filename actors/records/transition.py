"""One transition, as it is journaled, logged and emitted, and the format of times."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import msgspec

from ...machines.audit.log import TransitionEvent, event_type
from ..times import tells, untold

if TYPE_CHECKING:
    from ...machines import Severity


class Transitioned(msgspec.Struct, frozen=True, gc=False):
    """One transition as it is journaled, logged and emitted to observers (the event schema of seed 001).

    seq is the transition's number in the journal; entity_seq its number among its entity's; at is UTC epoch seconds.
    """

    seq: int
    kind: str
    entity_id: str
    entity_seq: int
    from_state: str | None
    to_state: str
    event: str
    severity: str
    at: float
    reason: str | None = None
    job_id: str | None = None
    workstream_id: str | None = None
    run: int = 1
    attempt: int | None = None
    worker_id: str | None = None
    metadata: dict[str, Any] | None = None

    @property
    def timestamp(self) -> str:
        """The time as ISO 8601 in UTC with milliseconds and a Z."""
        return iso(self.at)

    @property
    def phase(self) -> str:
        """The phase of the entered state."""
        return self.to_state

    @property
    def from_phase(self) -> str | None:
        """The phase of the left state."""
        return self.from_state


class PublishedTransition(Transitioned, frozen=True, gc=False):
    """A transition in the words of a lifecycle that is not the runtime's own."""

    phases: tuple[str | None, str] = (None, "")  # of the state left, and of the one entered

    @property
    def phase(self) -> str:
        """The phase of the entered state."""
        return self.phases[1]

    @property
    def from_phase(self) -> str | None:
        """The phase of the left state."""
        return self.phases[0]


class MachineTransition(Transitioned, frozen=True, gc=False):
    """A transition of a `MachineActor`. machine: the name of its machine, which its kind does not tell."""

    machine: str = ""


def as_event(row: Transitioned) -> TransitionEvent:
    """The transition as a line of the log, which the auditor reads."""
    return TransitionEvent(
        seq=row.seq, timestamp=row.timestamp, event_type=event_type(row.kind), severity=cast("Severity", row.severity),
        entity_id=row.entity_id, entity_seq=row.entity_seq, from_state=row.from_state, to_state=row.to_state,
        trigger=row.event, reason=row.reason, job_id=row.job_id, workstream_id=row.workstream_id, run=row.run,
        attempt=row.attempt, worker_id=row.worker_id, metadata=row.metadata or {},
    )  # fmt: skip


def iso(at: float) -> str:
    """Write UTC epoch seconds as ISO 8601 with milliseconds and a Z. For a number that is no time, a text says so."""
    if not tells(at):
        return untold(at)
    second, part = divmod(round(at * 1_000_000), 1_000_000)
    return f"{_second(second)}.{part // 1_000:03d}Z"


@lru_cache(maxsize=64)  # transitions come by the thousand in one second
def _second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()[:19]


def ended_with_runtime(event: Transitioned) -> bool:
    """Whether a worker failed because its runtime was killed, found at the next start: no fault of the worker."""
    return event.kind == "worker" and event.reason == "runtime_restarted"


def runs_again_after_kill(event: Transitioned) -> bool:
    """Whether a task runs again because its runtime was killed, found at the next start: it is not the task's fault."""
    return event.kind == "task" and event.reason == "runtime_restarted" and event.to_state == "retrying"
