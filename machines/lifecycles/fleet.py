"""The `fleet` lifecycle: workers that a supervisor starts, pauses and ends, and jobs that run on them.

Source: document 002, "State Machine Design - Week 2 MVP".
For: teams whose interface is HTTP: each change is asked for by a pair of states, refused with what is
allowed, and safe to ask for twice.

Rules
-----
- A worker that was never started cannot be paused or completed. One that has ended is not started again:
  there is a new one instead. So with jobs.
- `terminate` is force, and possible wherever the worker is not terminated yet, also where it has ended
  otherwise: the one row out of a terminal state, and declared as forced.
- A running worker stays so between its tasks, until all of them are done. Its supervisor may start one before there is
  a task.

What was decided
----------------
- The document's diagram, table and test allow `terminate` from COMPLETED and FAILED, its code does not. It is
  allowed.
- Its diagram draws `complete_tasks` out of PAUSED, its table out of RUNNING. The table holds.
- SUBMITTED -> CANCELED stands in its code only, SUBMITTED -> FAILED (on a validation error) in its table of
  recoveries only. Both are allowed; the latter is called `validation_error`.
- A job is cancelled on a timeout; that a task may be retried on one is another level, and no contradiction.
- The answers in words name what is allowed in every case, also out of terminal states.
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
    """Where a worker is."""

    IDLE = "IDLE"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TERMINATED = "TERMINATED"


class WorkerEvent(StrEnum):
    """What triggers a worker's transitions."""

    START_TASK = "start_task"
    PAUSE = "pause"
    RESUME = "resume"
    COMPLETE_TASKS = "complete_tasks"
    ERROR_UNRECOVERABLE = "error_unrecoverable"
    TERMINATE = "terminate"


class JobState(StrEnum):
    """Where a job is."""

    SUBMITTED = "SUBMITTED"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


class JobEvent(StrEnum):
    """What triggers a job's transitions."""

    VALIDATE = "validate"
    VALIDATION_ERROR = "validation_error"
    ALLOCATE_RESOURCES = "allocate_resources"
    SUCCESS = "success"
    ERROR = "error"
    CANCEL = "cancel"


class AssignedFacts(Protocol):
    """What the guard of a worker's completion reads."""

    @property
    def assigned(self) -> int:
        """Tasks that it has."""
        ...


def no_pending_tasks(facts: AssignedFacts, _: object) -> bool:
    """Everything that it was given is done."""
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
            E.START: (RE.START_TASK,),  # by its supervisor, before there is a task
            E.ASSIGN: (RE.START_TASK,),
            E.PAUSE: (RE.PAUSE,),
            E.RESUME: (RE.RESUME,),
            E.SHUT_DOWN: (RE.COMPLETE_TASKS,),  # once its tasks are done; one that is idle or paused is terminated
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
