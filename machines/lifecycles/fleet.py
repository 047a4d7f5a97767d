"""The `fleet` lifecycle: workers that a supervisor starts, pauses and ends, and jobs that run on them.

Source: document 002, "State Machine Design - Week 2 MVP".
For: teams whose interface is HTTP. A request names a pair of states. A refusal names the allowed states, and a
repeated request is safe.

Rules
-----
- A worker that was never started cannot be paused or completed. A worker that has ended is not started again:
  a new one replaces it. The same holds for jobs.
- `terminate` is force. It is possible in every state except TERMINATED, also from COMPLETED and FAILED: the one row
  out of a terminal state, and declared as forced.
- A running worker stays RUNNING between its tasks, until all of them are done. Its supervisor may start a worker
  before there is a task.

What was decided
----------------
- The document's diagram, table and test allow `terminate` from COMPLETED and FAILED, its code does not. It is
  allowed.
- Its diagram draws `complete_tasks` out of PAUSED, its table out of RUNNING. The table is followed.
- SUBMITTED -> CANCELED stands in its code only, SUBMITTED -> FAILED (on a validation error) in its table of
  recoveries only. Both are allowed; the latter is called `validation_error`.
- A timeout cancels a job; a timeout may also retry a task. This is no contradiction.
- The answers in words always name the allowed states, also out of terminal states.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Protocol

from ..adapt.lifecycle import Lifecycle
from ..events import Event
from ..machine import Machine
from ..phases import Phase
from ..rows import State, Transition
from .pairs import Pairs

T = Transition


class WorkerState(StrEnum):
    """The states of a worker."""

    IDLE = "IDLE"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TERMINATED = "TERMINATED"


class WorkerEvent(StrEnum):
    """The events of a worker."""

    START_TASK = "start_task"
    PAUSE = "pause"
    RESUME = "resume"
    COMPLETE_TASKS = "complete_tasks"
    ERROR_UNRECOVERABLE = "error_unrecoverable"
    TERMINATE = "terminate"


class JobState(StrEnum):
    """The states of a job."""

    SUBMITTED = "SUBMITTED"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


class JobEvent(StrEnum):
    """The events of a job."""

    VALIDATE = "validate"
    VALIDATION_ERROR = "validation_error"
    ALLOCATE_RESOURCES = "allocate_resources"
    SUCCESS = "success"
    ERROR = "error"
    CANCEL = "cancel"


class AssignedFacts(Protocol):
    """The fields that the guard of a worker's completion reads."""

    @property
    def assigned(self) -> int:
        """The number of tasks that are assigned to it."""
        ...


def no_pending_tasks(facts: AssignedFacts, _: object) -> bool:
    """All tasks of the worker are done."""
    return facts.assigned == 0


# -- worker --------------------------------------------------------------------------------------------------

R = WorkerState
RE = WorkerEvent

WORKER: Final = Machine(
    "fleet.worker",
    R.IDLE,
    states=(
        State(R.IDLE, Phase.IDLE, bounded_by="its first task; idling is no fault"),
        State(R.RUNNING, Phase.BUSY, bounded_by="its tasks, and its supervisor"),
        State(R.PAUSED, Phase.PAUSED, bounded_by="its supervisor"),
        State(R.COMPLETED, Phase.SHUTDOWN, terminal=True),
        State(R.FAILED, Phase.FAILED, terminal=True),
        State(R.TERMINATED, Phase.TERMINATED, terminal=True),
    ),
    transitions=(
        T(R.IDLE, RE.START_TASK, R.RUNNING),
        T(R.RUNNING, RE.PAUSE, R.PAUSED),
        T(R.PAUSED, RE.RESUME, R.RUNNING),
        T(R.RUNNING, RE.COMPLETE_TASKS, R.COMPLETED, no_pending_tasks),
        T(R.RUNNING, RE.ERROR_UNRECOVERABLE, R.FAILED, severity="error"),
        *(T(state, RE.TERMINATE, R.TERMINATED) for state in (R.IDLE, R.RUNNING, R.PAUSED)),
        *(T(state, RE.TERMINATE, R.TERMINATED, forced=True) for state in (R.COMPLETED, R.FAILED)),
    ),
)

# -- job -----------------------------------------------------------------------------------------------------

J = JobState
JE = JobEvent

JOB: Final = Machine(
    "fleet.job",
    J.SUBMITTED,
    states=(
        State(J.SUBMITTED, Phase.SUBMITTED, bounded_by="its validation"),
        State(J.PENDING, Phase.PENDING, bounded_by="resources, and its timeout, which cancels it"),
        State(J.RUNNING, Phase.RUNNING, bounded_by="its work, and its timeout, which cancels it"),
        State(J.COMPLETED, Phase.COMPLETED, terminal=True),
        State(J.FAILED, Phase.FAILED, terminal=True),
        State(J.CANCELED, Phase.CANCELLED, terminal=True),
    ),
    transitions=(
        T(J.SUBMITTED, JE.VALIDATE, J.PENDING),
        T(J.SUBMITTED, JE.VALIDATION_ERROR, J.FAILED, severity="error"),
        T(J.SUBMITTED, JE.CANCEL, J.CANCELED),
        T(J.PENDING, JE.ALLOCATE_RESOURCES, J.RUNNING),
        T(J.PENDING, JE.CANCEL, J.CANCELED),
        T(J.RUNNING, JE.SUCCESS, J.COMPLETED),
        T(J.RUNNING, JE.ERROR, J.FAILED, severity="error"),
        T(J.RUNNING, JE.CANCEL, J.CANCELED),
    ),
)

# -- how the runtime's actors run by them --------------------------------------------------------------------

E = Event

LIFECYCLES: Final = (
    Lifecycle(
        "fleet",
        "worker",
        WORKER,
        {
            E.START: (RE.START_TASK,),  # the supervisor starts it before there is a task
            E.ASSIGN: (RE.START_TASK,),
            E.PAUSE: (RE.PAUSE,),
            E.RESUME: (RE.RESUME,),
            E.SHUT_DOWN: (RE.COMPLETE_TASKS,),  # when its tasks are done; an idle or paused worker is terminated
            E.FAIL: (RE.ERROR_UNRECOVERABLE, RE.TERMINATE),
            E.DRAIN_DEADLINE: (RE.TERMINATE,),
            E.EXPIRE: (RE.TERMINATE,),
            E.TERMINATE: (RE.TERMINATE,),
        },
    ),
    Lifecycle(
        "fleet",
        "job",
        JOB,
        {
            E.VALIDATE: (JE.VALIDATE,),
            E.REJECT: (JE.VALIDATION_ERROR,),
            E.ALLOCATE: (JE.ALLOCATE_RESOURCES,),
            E.SUCCEED: (JE.SUCCESS,),
            E.FAIL: (JE.ERROR,),
            E.TIME_OUT: (JE.CANCEL,),
            E.CANCEL: (JE.CANCEL,),
        },
    ),
)

# -- the document's own functions ----------------------------------------------------------------------------

WorkerStateMachine: Final = Pairs(WORKER, WorkerState, "Worker")
JobStateMachine: Final = Pairs(JOB, JobState, "Job", instead=" Create a new job instead.")
