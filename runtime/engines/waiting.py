"""Waiting for people's approvals in a body: the part that engines need to know.

`runtime/execution/approval_waiters.py` carries the requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ...actors.messages.errors import ApprovalExpired, ApprovalRejected, TaskCancelled
from ...actors.spec.model import Approval
from ...actors.tasks.holds import told_of

if TYPE_CHECKING:
    from ...actors.records.base import Decision
    from ...actors.records.entities import ApprovalRecord
    from .connection import Connection


class Over(Protocol):
    """The object that is set when a wait is over: an event of the loop or of `threading`, or one that wakes a flow."""

    def set(self) -> object:
        """Wake the waiting body."""
        ...


class Waiter:
    """A body that waits for one approval. `record` holds the decision, None until then."""

    __slots__ = ("name", "over", "record", "token")

    def __init__(self, token: int, name: str, over: Over) -> None:
        self.token = token
        self.name = name
        self.over = over
        self.record: ApprovalRecord | None = None

    def result(self) -> tuple[Decision, ...]:
        """The decisions of those who approved. Raises ApprovalRejected, ApprovalExpired, ..."""
        record = self.record
        if record is None or record.state == "cancelled":
            raise TaskCancelled(f"the attempt was stopped while it waited for approval {self.name!r}")
        if record.state == "approved":
            return record.decisions
        last = record.decisions[-1]
        text = f"approval {record.name!r} {told_of(last)}"
        raise ApprovalExpired(text) if last.by is None else ApprovalRejected(text, by=last.by, reason=last.reason)


class ApprovalRequests(Protocol):
    """Receives the approval requests of bodies."""

    async def decision(self, token: int, name: str, rule: Approval, connection: Connection) -> Waiter:
        """Wait for a decision, for an async body. Returns the waiter, which holds it."""
        ...

    def decision_blocking(self, token: int, name: str, rule: Approval, connection: Connection) -> Waiter:
        """`decision` for a body in a thread, the present one. Raises TaskCancelled if its task is cancelled."""
        ...


def rule_of(rule: Approval | None, settings: dict[str, Any]) -> Approval:
    """The rule that a body passed, whole or as settings. Raises TypeError for both."""
    if rule is not None and settings:
        raise TypeError("give an Approval or its settings, not both")
    return rule if rule is not None else Approval(**settings)
