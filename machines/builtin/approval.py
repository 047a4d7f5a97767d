"""An approval that a running body asks for: a hold beside the waiting task.

Rules
-----
- Its key is its task and a name. A later attempt that asks under the same name finds the same approval: an approved,
  rejected or expired one stays so.
- Its clauses, its expiry and its guards are those of a held task. It has no wait.
- It is cancelled when its task ends before the decision.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from ..events import Event
from ..machine import Machine
from ..phases import Phase
from ..rows import State, Timed, Transition
from .task import in_time_and_clauses_met, in_time_and_clauses_missing


class ApprovalState(StrEnum):
    """The states of an approval."""

    HELD = "held"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


E = Event
S = ApprovalState
T = Transition

APPROVAL: Final = Machine(
    "approval",
    S.HELD,
    states=(
        State(S.HELD, Phase.HELD),
        State(S.APPROVED, Phase.APPROVED, terminal=True),
        State(S.REJECTED, Phase.REJECTED, terminal=True),
        State(S.EXPIRED, Phase.EXPIRED, terminal=True),
        State(S.CANCELLED, Phase.CANCELLED, terminal=True),
    ),
    transitions=(
        T(S.HELD, E.APPROVE, S.HELD, in_time_and_clauses_missing),
        T(S.HELD, E.APPROVE, S.APPROVED, in_time_and_clauses_met),
        T(S.HELD, E.REJECT, S.REJECTED),
        T(S.HELD, E.EXPIRE, S.EXPIRED, severity="warning"),
        T(S.HELD, E.CANCEL, S.CANCELLED),
    ),
    timed=(Timed(S.HELD, E.EXPIRE, "hold_until"),),
)
