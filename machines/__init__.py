"""What may happen: pure, declared state machines, and the runtime's own.

Imports nothing of the other layers. The auditor is imported by itself, from `machines.audit`.
"""

from .approval import APPROVAL, ApprovalState
from .breaker import BREAKER, BreakerState
from .events import Event
from .job import JOB, JobState
from .log import CREATE, TransitionEvent, event_type
from .machine import (
    SEVERITIES,
    Finding,
    Guard,
    GuardRejected,
    InvalidTransitionError,
    Machine,
    Severity,
    State,
    Timed,
    Transition,
)
from .phases import Phase
from .task import TASK, TaskState
from .worker import WORKER, WorkerState
from .workstream import WORKSTREAM, Standing, WorkstreamState, derive, standing

__all__ = [
    "APPROVAL",
    "BREAKER",
    "CREATE",
    "JOB",
    "SEVERITIES",
    "TASK",
    "WORKER",
    "WORKSTREAM",
    "ApprovalState",
    "BreakerState",
    "Event",
    "Finding",
    "Guard",
    "GuardRejected",
    "InvalidTransitionError",
    "JobState",
    "Machine",
    "Phase",
    "Severity",
    "Standing",
    "State",
    "TaskState",
    "Timed",
    "Transition",
    "TransitionEvent",
    "WorkerState",
    "WorkstreamState",
    "derive",
    "event_type",
    "standing",
]
