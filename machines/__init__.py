"""What may happen: pure, declared state machines, and the runtime's own.

The type of a table (`machine.py`), what its rows are (`rows.py`), their words (`events.py`) and what states have in
common (`phases.py`) are here, tables and what is made of them in the folders. Nothing here imports another layer. What
reads logs is imported by itself, from `machines.audit`.
"""

from .audit.log import CREATE, TransitionEvent, event_type
from .builtin.approval import APPROVAL, ApprovalState
from .builtin.breaker import BREAKER, BreakerState
from .builtin.job import JOB, JobState
from .builtin.task import TASK, TaskState
from .builtin.worker import WORKER, WorkerState
from .builtin.workstream import WORKSTREAM, Standing, WorkstreamState, derive, standing
from .events import Event
from .machine import Finding, GuardRejected, InvalidTransitionError, Machine
from .phases import Phase
from .rows import SEVERITIES, Guard, Severity, State, Timed, Transition

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
