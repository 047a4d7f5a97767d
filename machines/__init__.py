"""State machines as data: the type of a table, the runtime's own tables, and the published ones.

`machine.py` has the type, `rows.py` the parts of a table, `events.py` the names of events, `phases.py` the meanings of
states. The folders have the tables and the functions that work on tables. Nothing here imports another layer. Readers
of logs are imported by name, from `machines.audit`.
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
