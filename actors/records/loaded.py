"""The records of all living entities, as a journal loads them at a start or a take-over."""

from __future__ import annotations

import msgspec

from ...machines import TaskState
from .entities import (
    ApprovalRecord,
    BreakerRecord,
    JobRecord,
    MachineRecord,
    OutboxRow,
    WorkerRecord,
    WorkstreamRecord,
)
from .message import MessageRecord
from .task import AttemptRecord, TaskRecord

_MAY_ASK = frozenset({TaskState.PENDING, TaskState.VALIDATING, TaskState.CANCELLING})
"""The states in which a condition or a check may run, or is being stopped."""


class Loaded(msgspec.Struct):
    """The records of living entities that were loaded from a journal."""

    jobs: list[JobRecord] = []  # not terminal
    workstreams: list[WorkstreamRecord] = []  # the last run of each of those jobs, if it has begun one
    specs: dict[int, bytes] = {}  # specifications of those jobs, by `JobRecord.stream`; definitions of those machines
    tasks: list[TaskRecord] = []  # all tasks of those workstreams, ended ones too: dependents need their results
    approvals: list[ApprovalRecord] = []  # requested by bodies of those tasks, ended ones too
    messages: list[MessageRecord] = []  # unread ones to those jobs, oldest first
    workers: list[WorkerRecord] = []  # not terminal
    breakers: list[BreakerRecord] = []
    machines: list[MachineRecord] = []  # not terminal
    attempts: list[AttemptRecord] = []  # without an end
    outbox: list[OutboxRow] = []
    last_key: int = 0  # the highest key and fencing token ever given
    last_seq: int = 0  # the highest transition number
    last_command: int = 0  # the number of the newest row of the inbox at the load: later rows came while this node ran
    incarnations: dict[str, int] = {}  # the last incarnation by worker name
    paused: dict[str, str] = {}  # why an operator paused the last incarnation, by worker name
    archiving: bool = False  # whether ended jobs must still be moved to the archive
    awaited: dict[str, float] = {}  # "JOB" or "JOB/TASK" of decisions in the inbox: when the first of them was made

    @property
    def hooks(self) -> set[int]:
        """The tokens of hooks that may have run when the process ended: they run again."""
        cancelling = {
            one.cancel.token for one in self._asked() if one.cancel is not None and one.state == TaskState.CANCELLING
        }
        return cancelling | {row.key for row in self.outbox}

    @property
    def asking(self) -> set[int]:
        """The keys of entities whose condition or check may have run when the process ended: it runs again."""
        return {one.key for one in self._asked() if one.state in _MAY_ASK}

    def _asked(self) -> list[TaskRecord | WorkstreamRecord]:
        return [*self.workstreams, *self.tasks]
