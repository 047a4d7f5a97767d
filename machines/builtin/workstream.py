"""The life of a workstream: the coordinator of a graph of tasks.

Rules
-----
- A workstream is terminal only when all its tasks are. So a critical failure leads to `cancelling`, where
  running tasks are stopped and clean-up tasks (those whose edges are all `after`) still run; `complete` ends
  it.
- It validates when every task is terminal and no critical one ended badly. A task is critical unless it is
  optional.
- `cause` says why it is being cancelled: with "failure" it ends as failed, with "cancel" as cancelled.
- A pause stops enqueueing and claiming only. A critical failure acts at once, also in `paused`; when all
  tasks are terminal, a paused workstream waits for its resume.
- A deadline runs in every state, fires a graceful cancel with that reason, and is ignored in `cancelling`.
- `cancel_force` in `cancelling` forces the tasks; the workstream ends when they have ended.
- Hold and wait work as those of a task, and lead back to `ready`.

How a task's end counts
-----------------------
- Good: completed, or skipped by an operator.
- Void: skipped by its condition, because a dependency was void, or because an optional dependency was bad.
- Bad: failed, cancelled (also rejected or expired), or skipped because a dependency was bad.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, Protocol

from ..events import Event
from ..machine import Machine
from ..phases import Phase
from ..rows import State, Timed, Transition
from .task import (
    TASK,
    Holdable,
    TaskState,
    in_time_and_clauses_met,
    in_time_and_clauses_met_but_wait_not_over,
    in_time_and_clauses_missing,
)


class WorkstreamState(StrEnum):
    """The states of a workstream."""

    PLANNED = "planned"
    READY = "ready"
    HELD = "held"
    WAITING = "waiting"
    EXECUTING = "executing"
    PAUSED = "paused"
    VALIDATING = "validating"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Standing(StrEnum):
    """How a task's end counts, by the rules above."""

    GOOD = "good"
    VOID = "void"
    BAD = "bad"


class WorkstreamFacts(Holdable, Protocol):
    """The fields that the guards read of a workstream's record, besides its hold and wait."""

    @property
    def cause(self) -> str | None:
        """Why the workstream is being cancelled: "failure" or "cancel"; None while it is not being cancelled."""
        ...

    @property
    def started_at(self) -> float | None:
        """When its first task started (UTC, s); None before."""
        ...


class TaskView(Protocol):
    """The fields that `derive` reads of a task."""

    @property
    def state(self) -> str:
        """The state of the task, one of TASK."""
        ...

    @property
    def optional(self) -> bool:
        """Whether the workstream may complete without it."""
        ...

    @property
    def standing(self) -> str | None:
        """How its end counts, needed of a skipped task only; None if it is not known."""
        ...


# -- guards --------------------------------------------------------------------------------------------------


def cause_was_a_failure(facts: WorkstreamFacts, _: object) -> bool:
    """The workstream is being cancelled because a critical task failed."""
    return facts.cause == "failure"


def nothing_has_started(facts: WorkstreamFacts, _: object) -> bool:
    """No task has started: the workstream was paused while all its tasks waited."""
    return facts.started_at is None


# -- table ---------------------------------------------------------------------------------------------------

E = Event
S = WorkstreamState
T = Transition

WORKSTREAM: Final = Machine(
    "workstream",
    S.PLANNED,
    states=(
        State(S.PLANNED, Phase.PLANNED, bounded_by="the creation of its tasks, in the same turn"),
        State(S.READY, Phase.READY, bounded_by="its job's slots, and its deadline"),
        State(S.HELD, Phase.HELD),
        State(S.WAITING, Phase.WAITING),
        State(S.EXECUTING, Phase.EXECUTING, bounded_by="its tasks, and its deadline"),
        State(S.PAUSED, Phase.PAUSED, bounded_by="an operator, and its deadline"),
        State(S.VALIDATING, Phase.VALIDATING),
        State(S.CANCELLING, Phase.CANCELLING),
        State(S.COMPLETED, Phase.COMPLETED, terminal=True),
        State(S.FAILED, Phase.FAILED, terminal=True),
        State(S.CANCELLED, Phase.CANCELLED, terminal=True),
    ),
    transitions=(
        T(S.PLANNED, E.TASKS_CREATED, S.READY),
        T(S.PLANNED, E.CANCEL, S.CANCELLED),
        T(S.READY, E.HOLD, S.HELD),
        T(S.READY, E.WAIT, S.WAITING),
        T(S.READY, E.START, S.EXECUTING),
        T(S.READY, E.SUCCEED, S.VALIDATING),
        T(S.READY, E.PAUSE, S.PAUSED),
        T(S.READY, E.FAIL, S.FAILED, severity="critical"),
        T(S.READY, E.CANCEL, S.CANCELLED),
        T(S.HELD, E.APPROVE, S.HELD, in_time_and_clauses_missing),
        T(S.HELD, E.APPROVE, S.WAITING, in_time_and_clauses_met_but_wait_not_over),
        T(S.HELD, E.APPROVE, S.READY, in_time_and_clauses_met),
        T(S.HELD, E.REJECT, S.CANCELLED),
        T(S.HELD, E.EXPIRE, S.CANCELLED, severity="warning"),
        T(S.HELD, E.CANCEL, S.CANCELLED),
        T(S.WAITING, E.TIMER_DONE, S.READY),
        T(S.WAITING, E.CANCEL, S.CANCELLED),
        T(S.EXECUTING, E.SUCCEED, S.VALIDATING),
        T(S.EXECUTING, E.PAUSE, S.PAUSED),
        T(S.EXECUTING, E.FAIL, S.CANCELLING, severity="error"),
        T(S.EXECUTING, E.CANCEL, S.CANCELLING),
        T(S.EXECUTING, E.CANCEL_GRACEFUL, S.CANCELLING),
        T(S.PAUSED, E.FAIL, S.CANCELLING, severity="error"),
        T(S.PAUSED, E.CANCEL, S.CANCELLING),
        T(S.PAUSED, E.CANCEL_GRACEFUL, S.CANCELLING),
        T(S.PAUSED, E.RESUME, S.READY, nothing_has_started),
        T(S.PAUSED, E.RESUME, S.EXECUTING),
        T(S.VALIDATING, E.VALIDATION_PASSED, S.COMPLETED),
        T(S.VALIDATING, E.VALIDATION_FAILED, S.FAILED, severity="critical"),
        T(S.VALIDATING, E.RECOVER, S.VALIDATING),
        T(S.VALIDATING, E.CANCEL, S.CANCELLING),
        T(S.VALIDATING, E.CANCEL_GRACEFUL, S.CANCELLING),
        T(S.CANCELLING, E.COMPLETE, S.FAILED, cause_was_a_failure, severity="critical"),
        T(S.CANCELLING, E.COMPLETE, S.CANCELLED),
        T(S.CANCELLING, E.CANCEL_FORCE, S.CANCELLING),
        T(S.CANCELLING, E.FAIL, S.FAILED, severity="critical"),
    ),
    timed=(
        Timed(S.HELD, E.EXPIRE, "hold_until"),
        Timed(S.WAITING, E.TIMER_DONE, "wait_until"),
        Timed(S.VALIDATING, E.VALIDATION_FAILED, "validation_timeout"),
        Timed(S.CANCELLING, E.CANCEL_FORCE, "cancel_deadline"),
    ),
)


# -- what the tasks allow ------------------------------------------------------------------------------------

# Three sets: the tasks have not begun; the tasks are under way; no task is left to run. The last set includes
# workstreams that have not begun: an empty one, or a further run that carries all tasks over. A workstream begins when
# its first task starts: a queued or parked task may not have started, and a completed one may be carried over.
_BEFORE: Final = frozenset({S.PLANNED, S.READY, S.HELD, S.WAITING, S.PAUSED})
_DURING: Final = frozenset({S.EXECUTING, S.PAUSED, S.CANCELLING})
_AFTER: Final = _BEFORE | {S.VALIDATING, S.CANCELLING, S.COMPLETED, S.FAILED, S.CANCELLED}
_BEGUN: Final = frozenset(
    {
        TaskState.RUNNING,
        TaskState.TIMED_OUT,
        TaskState.VALIDATING,
        TaskState.RECOVERING,
        TaskState.RETRYING,
        TaskState.CANCELLING,
    }
)
_BEFORE_BAD: Final = _BEFORE | {S.CANCELLING}
_DURING_BAD: Final = frozenset({S.CANCELLING})
_AFTER_BAD: Final = frozenset({S.CANCELLING, S.FAILED, S.CANCELLED})


def derive(tasks: Iterable[TaskView]) -> frozenset[WorkstreamState]:
    """Return the states that a workstream at rest (between two turns) may be in, given its tasks.

    If the standing of a skipped task is not known, the result allows every standing.
    """
    live = begun = bad = unsure = False
    for task in tasks:
        if not TASK.is_terminal(task.state):
            live = True
            begun = begun or task.state in _BEGUN
        elif not task.optional:
            counts = standing(task.state, task.standing)
            bad = bad or counts is Standing.BAD
            unsure = unsure or counts is None
    if live:
        if bad:
            return _DURING_BAD if begun else _BEFORE_BAD
        return _DURING if begun else _DURING | _BEFORE
    if bad:
        return _AFTER_BAD
    return _AFTER | _AFTER_BAD if unsure else _AFTER


def standing(state: str, of_skip: str | None = None) -> Standing | None:
    """Return how a task's end counts; None while it has not ended, or if a skipped task's is not known.

    `of_skip` is the standing of a skipped task, which depends on the cause of the skip; for other ends it is
    ignored.
    """
    if state == TaskState.COMPLETED:
        return Standing.GOOD
    if state in {TaskState.FAILED, TaskState.CANCELLED}:
        return Standing.BAD
    if state == TaskState.SKIPPED and of_skip is not None:
        return Standing(of_skip)
    return None
