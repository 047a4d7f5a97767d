"""The life of a job: one submission, to which an application holds a durable handle.

Rules
-----
- A job validates its specification, reserves worker slots, and runs one workstream; bodies may submit child
  jobs.
- It is terminal only when its workstream and its children are.
- It gets all its slots or none. A job that needs more than any capacity is rejected at validation. A job that waits for
  slots which no worker can provide any more fails after a while, so that `pending` always ends.
- Its deadline cancels it, in every state.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from ..events import Event
from ..machine import Machine
from ..phases import Phase
from ..rows import State, Transition


class JobState(StrEnum):
    """The states of a job."""

    SUBMITTED = "submitted"
    PENDING = "pending"
    RUNNING = "running"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


E = Event
S = JobState
T = Transition

JOB: Final = Machine(
    "job",
    S.SUBMITTED,
    states=(
        State(S.SUBMITTED, Phase.SUBMITTED, bounded_by="its validation, in the same turn"),
        State(
            S.PENDING,
            Phase.PENDING,
            bounded_by="worker slots, failing as unroutable if no worker can provide them, and its deadline",
        ),
        State(S.RUNNING, Phase.RUNNING, bounded_by="its workstream and its children, and its deadline"),
        State(
            S.CANCELLING,
            Phase.CANCELLING,
            bounded_by="the cancel deadline of its workstream and its children",
        ),
        State(S.COMPLETED, Phase.COMPLETED, terminal=True),
        State(S.FAILED, Phase.FAILED, terminal=True),
        State(S.CANCELLED, Phase.CANCELLED, terminal=True),
    ),
    transitions=(
        T(S.SUBMITTED, E.VALIDATE, S.PENDING),
        T(S.SUBMITTED, E.REJECT, S.FAILED, severity="error"),
        T(S.SUBMITTED, E.CANCEL, S.CANCELLED),
        T(S.PENDING, E.ALLOCATE, S.RUNNING),
        T(S.PENDING, E.FAIL, S.FAILED, severity="error"),
        T(S.PENDING, E.CANCEL, S.CANCELLED),
        T(S.RUNNING, E.SUCCEED, S.COMPLETED),
        T(S.RUNNING, E.FAIL, S.FAILED, severity="error"),
        T(S.RUNNING, E.CANCEL, S.CANCELLING),
        T(S.RUNNING, E.CANCEL_GRACEFUL, S.CANCELLING),
        T(S.CANCELLING, E.COMPLETE, S.CANCELLED),
        T(S.CANCELLING, E.FAIL, S.FAILED, severity="error"),
    ),
)
