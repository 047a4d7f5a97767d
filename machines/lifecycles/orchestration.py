"""The `orchestration` lifecycle: tasks that a scheduler assigns to workers, and their workstreams.

Source: document 001, "State Machine Documentation" (DOC-GUIDE-STATE-MACHINE-785).
For: teams that plan work as a graph, validate each task and the whole, and watch their workers.

Rules
-----
- A task is queued only when its dependencies are satisfied; only a running one has a worker. Whether there is
  a retry is decided before `failed` is entered, so `failed` is final.
- A workstream completes only if all its tasks completed. A critical task that fails, fails the workstream.
- A busy worker that misses its health checks is unresponsive until it answers again, or has been silent too long.

What was decided
----------------
- The document counts retries, others count attempts: max_attempts = max_retries + 1.
- The example of `derive_workstream_state` tests whether one task is critical, but means any failed task; here any
  critical task that failed counts.
- Only busy workers become unresponsive, and only idle and busy ones send heartbeats. The runtime's own worker
  does both in every live state; under this lifecycle it is as published.
- A busy worker that is told to shut down does so when its tasks are complete.
- A worker has no event for its death or its end by force. A busy worker becomes unresponsive, an idle one shuts
  down, an unresponsive one expires.
- If an optional task fails, the other tasks still run; the workstream then ends failed, since not all its tasks
  completed. A task that names another lifecycle is not one of these tasks.
- The auditor compares with `derive_workstream_state` whenever a workstream becomes ready, executing, validating or
  completed. A task that an operator skipped, or that was cancelled before it ran, rests where it is, since the document
  has no word for that: the function is called with it and without it. The function does not say when a failed
  workstream has cleaned up.
- The task's timer ends an attempt as `execution_failed`: a timeout has no state of its own.
- The severities are those of the document; a failed final validation is critical, as a failed workstream is.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, Protocol

from ..adapt.lifecycle import Lifecycle, retries
from ..events import Event
from ..machine import Machine
from ..phases import Phase
from ..rows import State, Timed, Transition
from .guards import dependencies_satisfied, retry_count_at_max_retries, retry_count_below_max_retries

T = Transition


class TaskState(StrEnum):
    """The states of a task."""

    PENDING = "pending"
    QUEUED = "queued"
    RUNNING = "running"
    VALIDATING = "validating"
    COMPLETED = "completed"
    FAILED = "failed"
    RETRYING = "retrying"
    CANCELLED = "cancelled"


class TaskEvent(StrEnum):
    """The events of a task."""

    SCHEDULER_ASSIGNED = "scheduler_assigned"
    WORKER_STARTED = "worker_started"
    EXECUTION_COMPLETED = "execution_completed"
    EXECUTION_FAILED = "execution_failed"
    USER_CANCELLED = "user_cancelled"
    RETRY_DELAY_ELAPSED = "retry_delay_elapsed"
    VALIDATION_PASSED = "validation_passed"
    VALIDATION_FAILED = "validation_failed"


class WorkstreamState(StrEnum):
    """The states of a workstream."""

    PLANNED = "planned"
    READY = "ready"
    EXECUTING = "executing"
    VALIDATING = "validating"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class WorkstreamEvent(StrEnum):
    """The events of a workstream."""

    ALL_TASKS_CREATED = "all_tasks_created"
    FIRST_TASK_STARTED = "first_task_started"
    ALL_TASKS_COMPLETED = "all_tasks_completed"
    CRITICAL_TASK_FAILED = "critical_task_failed"
    VALIDATION_PASSED = "validation_passed"
    VALIDATION_FAILED = "validation_failed"
    USER_CANCELLED = "user_cancelled"


class WorkerState(StrEnum):
    """The states of a worker."""

    INITIALIZING = "initializing"
    IDLE = "idle"
    BUSY = "busy"
    UNRESPONSIVE = "unresponsive"
    SHUTDOWN = "shutdown"


class WorkerEvent(StrEnum):
    """The events of a worker."""

    REGISTRATION_COMPLETE = "registration_complete"
    TASK_ASSIGNED = "task_assigned"
    TASK_COMPLETED = "task_completed"
    HEALTH_CHECK_TIMEOUT = "health_check_timeout"
    HEALTH_CHECK_RECOVERED = "health_check_recovered"
    MAX_TIMEOUT_EXCEEDED = "max_timeout_exceeded"
    SHUTDOWN_REQUESTED = "shutdown_requested"


class AssignedFacts(Protocol):
    """The fields that the guard of a busy worker's shutdown reads."""

    @property
    def assigned(self) -> int:
        """The number of tasks that are assigned to it."""
        ...


class DerivedTask(Protocol):
    """The fields that `derive_workstream_state` reads of a task."""

    @property
    def state(self) -> str:
        """The state of the task, one of TASK."""
        ...

    @property
    def critical(self) -> bool:
        """Whether its failure fails the workstream."""
        ...


def after_task_complete(facts: AssignedFacts, _: object) -> bool:
    """The worker's tasks are complete."""
    return facts.assigned == 0


# -- task ----------------------------------------------------------------------------------------------------

S = TaskState
TE = TaskEvent

TASK: Final = Machine(
    "orchestration.task",
    S.PENDING,
    states=(
        State(S.PENDING, Phase.PENDING, bounded_by="its dependencies"),
        State(S.QUEUED, Phase.QUEUED, bounded_by="a free worker with what it requires"),
        State(S.RUNNING, Phase.RUNNING),
        State(S.VALIDATING, Phase.VALIDATING, bounded_by="the limits of its validation rules"),
        State(S.COMPLETED, Phase.COMPLETED, terminal=True),
        State(S.FAILED, Phase.FAILED, terminal=True),
        State(S.RETRYING, Phase.RETRYING),
        State(S.CANCELLED, Phase.CANCELLED, terminal=True),
    ),
    transitions=(
        T(S.PENDING, TE.SCHEDULER_ASSIGNED, S.QUEUED, dependencies_satisfied),
        T(S.QUEUED, TE.WORKER_STARTED, S.RUNNING),
        T(S.RUNNING, TE.EXECUTION_COMPLETED, S.VALIDATING),
        T(S.RUNNING, TE.EXECUTION_FAILED, S.RETRYING, retry_count_below_max_retries, severity="warning"),
        T(S.RUNNING, TE.EXECUTION_FAILED, S.FAILED, retry_count_at_max_retries, severity="error"),
        T(S.RUNNING, TE.USER_CANCELLED, S.CANCELLED),
        T(S.RETRYING, TE.RETRY_DELAY_ELAPSED, S.QUEUED),
        T(S.VALIDATING, TE.VALIDATION_PASSED, S.COMPLETED),
        T(S.VALIDATING, TE.VALIDATION_FAILED, S.FAILED, severity="error"),
    ),
    timed=(
        Timed(S.RUNNING, TE.EXECUTION_FAILED, "timeout"),
        Timed(S.RETRYING, TE.RETRY_DELAY_ELAPSED, "retry_at"),
    ),
)

# -- workstream ----------------------------------------------------------------------------------------------

W = WorkstreamState
WE = WorkstreamEvent

WORKSTREAM: Final = Machine(
    "orchestration.workstream",
    W.PLANNED,
    states=(
        State(W.PLANNED, Phase.PLANNED, bounded_by="the creation of its tasks"),
        State(W.READY, Phase.READY, bounded_by="its job's slots, and its deadline"),
        State(W.EXECUTING, Phase.EXECUTING, bounded_by="its tasks, and its deadline"),
        State(W.VALIDATING, Phase.VALIDATING, bounded_by="the limits of its final validation"),
        State(W.COMPLETED, Phase.COMPLETED, terminal=True),
        State(W.FAILED, Phase.FAILED, terminal=True),
        State(W.CANCELLED, Phase.CANCELLED, terminal=True),
    ),
    transitions=(
        T(W.PLANNED, WE.ALL_TASKS_CREATED, W.READY),
        T(W.READY, WE.FIRST_TASK_STARTED, W.EXECUTING),
        T(W.EXECUTING, WE.ALL_TASKS_COMPLETED, W.VALIDATING),
        T(W.EXECUTING, WE.CRITICAL_TASK_FAILED, W.FAILED, severity="critical"),
        T(W.VALIDATING, WE.VALIDATION_PASSED, W.COMPLETED),
        T(W.VALIDATING, WE.VALIDATION_FAILED, W.FAILED, severity="critical"),
        T(W.PLANNED, WE.USER_CANCELLED, W.CANCELLED),
        T(W.READY, WE.USER_CANCELLED, W.CANCELLED),
        T(W.EXECUTING, WE.USER_CANCELLED, W.CANCELLED),
    ),
)

# -- worker --------------------------------------------------------------------------------------------------

R = WorkerState
RE = WorkerEvent

WORKER: Final = Machine(
    "orchestration.worker",
    R.INITIALIZING,
    states=(
        State(R.INITIALIZING, Phase.INITIALIZING, bounded_by="its registration, and its supervisor"),
        State(R.IDLE, Phase.IDLE, bounded_by="the next assignment; idling is no fault"),
        State(R.BUSY, Phase.BUSY),
        State(R.UNRESPONSIVE, Phase.UNRESPONSIVE),
        State(R.SHUTDOWN, Phase.SHUTDOWN, terminal=True),
    ),
    transitions=(
        T(R.INITIALIZING, RE.REGISTRATION_COMPLETE, R.IDLE),
        T(R.IDLE, RE.TASK_ASSIGNED, R.BUSY),
        T(R.BUSY, RE.TASK_COMPLETED, R.IDLE),
        T(R.BUSY, RE.HEALTH_CHECK_TIMEOUT, R.UNRESPONSIVE, severity="error"),
        T(R.UNRESPONSIVE, RE.HEALTH_CHECK_RECOVERED, R.IDLE),
        T(R.UNRESPONSIVE, RE.MAX_TIMEOUT_EXCEEDED, R.SHUTDOWN, severity="warning"),
        T(R.IDLE, RE.SHUTDOWN_REQUESTED, R.SHUTDOWN),
        T(R.BUSY, RE.SHUTDOWN_REQUESTED, R.SHUTDOWN, after_task_complete),
    ),
    timed=(
        Timed(R.BUSY, RE.HEALTH_CHECK_TIMEOUT, "health_check_timeout"),
        Timed(R.UNRESPONSIVE, RE.MAX_TIMEOUT_EXCEEDED, "expire_after"),
    ),
)

# -- the document's own function -----------------------------------------------------------------------------


def derive_workstream_state(tasks: Sequence[DerivedTask]) -> WorkstreamState:
    """Return the state that the document derives from a workstream's tasks; `validating` if there are no tasks.

    Raises ValueError for a state that no task has, TypeError for an object that is no task.
    """
    for task in tasks:
        if isinstance(task, str) or not (hasattr(task, "state") and hasattr(task, "critical")):
            raise TypeError(f"a task is an object with its `state` and whether it is `critical`, and not {task!r:.80}")
    states = [task.state for task in tasks]
    if unknown := [state for state in states if state not in TASK.states]:
        raise ValueError(f"no task has the state {unknown[0]!r}; the states of a task are {', '.join(TASK.states)}")
    if S.RUNNING in states:
        return W.EXECUTING
    if all(state == S.COMPLETED for state in states):
        return W.VALIDATING
    if any(task.state == S.FAILED and task.critical for task in tasks):
        return W.FAILED
    if all(state in {S.PENDING, S.QUEUED} for state in states):
        return W.READY
    return W.EXECUTING


# -- how the runtime's actors run by them --------------------------------------------------------------------

E = Event

_GIVEN_UP: Final = (RE.MAX_TIMEOUT_EXCEEDED, RE.HEALTH_CHECK_TIMEOUT, RE.SHUTDOWN_REQUESTED)

LIFECYCLES: Final = (
    Lifecycle(
        "orchestration",
        "task",
        TASK,
        {
            E.ENQUEUE: (TE.SCHEDULER_ASSIGNED,),
            E.START: (TE.WORKER_STARTED,),
            E.SUCCEED: (TE.EXECUTION_COMPLETED,),
            E.FAIL: (TE.EXECUTION_FAILED,),
            E.CANCEL: (TE.USER_CANCELLED,),
            E.REQUEUE: (TE.RETRY_DELAY_ELAPSED,),
            E.VALIDATION_PASSED: (TE.VALIDATION_PASSED,),
            E.VALIDATION_FAILED: (TE.VALIDATION_FAILED,),
        },
        facts=retries,
        optional="fails",
    ),
    Lifecycle(
        "orchestration",
        "workstream",
        WORKSTREAM,
        {
            E.TASKS_CREATED: (WE.ALL_TASKS_CREATED,),
            E.START: (WE.FIRST_TASK_STARTED,),
            E.SUCCEED: (WE.ALL_TASKS_COMPLETED,),
            E.FAIL: (WE.CRITICAL_TASK_FAILED,),
            E.VALIDATION_PASSED: (WE.VALIDATION_PASSED,),
            E.VALIDATION_FAILED: (WE.VALIDATION_FAILED,),
            E.CANCEL: (WE.USER_CANCELLED,),
        },
        optional="fails",
        derive=derive_workstream_state,
    ),
    Lifecycle(
        "orchestration",
        "worker",
        WORKER,
        {
            E.REGISTER: (RE.REGISTRATION_COMPLETE,),
            E.ASSIGN: (RE.TASK_ASSIGNED,),
            E.RELEASE: (RE.TASK_COMPLETED,),
            E.HEALTH_CHECK_TIMEOUT: (RE.HEALTH_CHECK_TIMEOUT,),
            E.RECOVER: (RE.HEALTH_CHECK_RECOVERED,),
            E.EXPIRE: (RE.MAX_TIMEOUT_EXCEEDED,),
            E.SHUT_DOWN: (RE.SHUTDOWN_REQUESTED,),
            E.FAIL: _GIVEN_UP,
            E.TERMINATE: _GIVEN_UP,
        },
    ),
)
