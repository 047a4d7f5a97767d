"""What may happen: pure, declared state machines, and the runtime's own five. Imports nothing of the other
layers."""

from .breaker import BREAKER, BreakerState
from .events import Event
from .job import JOB, JobState
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
    "BREAKER",
    "JOB",
    "SEVERITIES",
    "TASK",
    "WORKER",
    "WORKSTREAM",
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
    "WorkerState",
    "WorkstreamState",
    "derive",
    "standing",
]
