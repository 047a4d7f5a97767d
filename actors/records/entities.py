"""The records of entities: one immutable msgspec Struct per kind.

The common fields and the rules are in `base.py`; a task's record is in `task.py`; the journaled form of each
change is in `transition.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from ..spec.model import Approval
from .base import Cancellation, CheckResult, Decision, MaybeRaw, Record
from .message import MessageRecord
from .step import StepRecord
from .task import AttemptRecord, TaskRecord
from .transition import Transitioned


class JobRecord(Record, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One submission. `fingerprint` binds the caller's id to the specification that was submitted under it.

    A job that is run again is a new incarnation under the same key and id: its `run` is the number of the workstream
    run that it began with, and its `seq` counts from 1 again.
    """

    kind: ClassVar[str] = "job"

    fingerprint: str = ""
    caller_id: bool = False
    by: str | None = None  # the submitter, if given
    description: str | None = None  # the description of the workstream
    workstream: str | None = None  # the id of the present workstream
    error: str | None = None
    runs: int = 1  # the number of its present workstream's run
    first: int = 1  # the number of its first run: above 1 if it replaced another job, which had the earlier runs
    stream: int = 0  # key of its present workstream, assigned before its creation: the specification is stored under it
    deadline_at: float | None = None  # when it is cancelled
    retry_at: float | None = None  # when its failed workstream's next run begins by itself
    worker_count: int = 0  # slots it reserves; 0: none
    routable: bool = True  # whether workers exist that can provide these slots, while it waits for them
    archive: bool = False  # the job is moved out of the journal after it has ended and its runtime was left
    again: str | None = None  # in a further incarnation: the task to run again,
    skip: tuple[str, str] | None = None  # and the task to skip, with the reason
    from_step: str | None = None  # the label of the step from which on the task to run again keeps no steps
    final: bool = False  # a person cancelled it, or it ended in a way that no automatic retry can help
    # of a child job
    parent: int | None = None  # key of the job whose task submitted it
    parent_id: str | None = None
    parent_task: int | None = None  # key of that task
    parent_run: int = 0  # the run that its parent began with: a later run of the parent was requested by a person
    depth: int = 0  # 0 for a job that no task submitted

    def last_of(self, runs: Sequence[WorkstreamRecord]) -> WorkstreamRecord | None:
        """The last run of the job, of all runs under its id; None if it never began one."""
        return runs[-1] if runs and runs[-1].run >= self.first else None


class WorkstreamRecord(Record, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The coordinator of a graph. `job` is its job's key; `first_task` the first task's key: the others follow."""

    kind: ClassVar[str] = "workstream"

    job: int
    job_id: str
    first_task: int
    task_count: int
    tasks_created: int = 0
    cause: str | None = None  # the cause of its cancel: "failure" | "cancel"
    forced: bool = False  # all tasks are stopped by force, clean-up tasks too
    deadline_at: float | None = None
    hold_until: float | None = None
    wait_until: float | None = None
    decisions: tuple[Decision, ...] = ()  # on its hold
    passed: bool = False  # the workstream's hold and wait are over
    verdict: str | None = None  # the event that ends it after its tasks: "reject" | "expire"; None: its cause decides
    checked: int = 0  # final checks passed so far
    test_results: tuple[CheckResult, ...] = ()  # of the checks that have ended
    cancel: Cancellation | None = None
    error: str | None = None

    @property
    def waits_until(self) -> float | None:
        """When its hold or wait ends, in UTC epoch seconds; None if it does not wait."""
        return self.due_at if self.state in {"held", "waiting"} else None


class WorkerRecord(Record, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One incarnation (`run`) of a worker."""

    kind: ClassVar[str] = "worker"

    engine: str
    capacity: int
    capabilities: list[str] = []
    assigned: int = 0
    paused: bool = False
    pause_reason: str | None = None  # the reason of an operator's pause, which the next incarnation keeps
    draining: bool = False
    missed: int = 0  # unanswered health checks in a row
    drain_until: float | None = None  # of a draining worker: when its attempts are stopped
    resume_at: float | None = None  # when a pause after a resource shortage ends
    recycle_after: int | None = None  # the number of attempts after which its process is replaced
    resources: dict[str, float] = {}  # the resources that its actor on a cluster reserves
    labels: dict[str, str] = {}  # the labels of its node on the cluster
    metadata: dict[str, Any] = {}  # data of the application
    program: int = 0  # identifies the start of a program: the key of the first worker of that start
    retired: bool = False  # an operator ended it: it does not belong to its program any more


class BreakerRecord(Record, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The circuit breaker of a tool. `generation` numbers its open periods."""

    kind: ClassVar[str] = "breaker"

    failures: int = 0
    successes: int = 0
    failure_threshold: int = 5
    success_threshold: int = 1
    cooldown: float = 60.0
    ignore: list[str] = []  # error types and categories that do not count
    said_by: str | None = None  # the source of these settings: a job's id, or RUNTIME; None: the defaults
    max_parallel: int | None = None  # the tool's limit that is set here, or was in force last; None: no limit
    limit_by: str | None = None  # the source of that limit: a job's id, or RUNTIME
    over_all: int | None = None  # the limit in force over all nodes, if it differs from the one that is set here
    over_all_by: str | None = None  # the source of that limit: a job's id, or a node's runtime
    not_before: float | None = None  # no task starts before this time (UTC epoch seconds), at the tool's own request
    generation: int = 0
    probe: int | None = None  # the task that holds the permit, or the use of the tool by a step
    agreed: int | None = 0  # if nodes share tools: the last change that it knows; None: it has a change to report

    @property
    def limit(self) -> tuple[int | None, str | None]:
        """The tool's limit in force, and its source; None and None without a limit."""
        return (self.max_parallel, self.limit_by) if self.over_all is None else (self.over_all, self.over_all_by)


class ApprovalRecord(Record, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An approval that a running body asked for, by its name."""

    kind: ClassVar[str] = "approval"

    task: int  # key
    task_id: str
    workstream: int  # key
    workstream_id: str
    job_id: str
    rule: Approval
    hold_until: float | None = None
    wait_until: float | None = None  # always None: the guards of all holds read this field
    decisions: tuple[Decision, ...] = ()
    rounds: int = 0  # of its task that had ended before
    left_at: float | None = None  # when its body gave up its wait; None: it waits, or the approval has ended


class MachineRecord(Record, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An entity that runs by an application's machine: a `MachineActor`, under its spawn name.

    Its `due_at` is the earliest of `due`.
    """

    kind: ClassVar[str] = "machine"

    machine: str  # the machine's name
    definitions: tuple[int, ...]  # keys of its definitions, stored beside the specifications; the last one is in force
    facts: MaybeRaw = None
    due: dict[str, float] = {}  # when each timed event fires (UTC epoch seconds)


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An effect that no state of a living entity implies: a hook of an ended entity. Kept until it has run."""

    kind: ClassVar[str] = "outbox"

    key: int
    owner: str  # the ended entity's id
    event: str  # on_completed | on_failed | on_cancelled
    body: msgspec.Raw  # the encoded Hook
    context: msgspec.Raw  # the hook's arguments: ids, state, error
    folder: str | None = None  # the folder of its function's module, if not on Python's path
    cwd: str | None = None  # the folder and the variables of its command
    env: dict[str, str] = {}
    secrets: list[str] = []  # their names
    tries: int = 0
    callback: str | None = None  # of a machine: the callback, as "on_enter running"; `owner` is that machine
    at: float | None = None  # when the row was written; None in older rows


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A command that took effect under a user's `request_id`, and its answer. It commits with the effect.

    It is kept until `expires_at`, and as long as `owner` lives.
    """

    kind: ClassVar[str] = "request"

    key: int
    request_id: str
    operation: str
    fingerprint: str  # of the operation and its payload
    at: float
    expires_at: float
    owner: int = 0  # key of the job or worker that the command was about; 0 for an entity that never ends
    row: int = 0  # the inbox row of the command; 0 for none
    spec: int = 0  # of a submitted job: the key of its specification; else 0
    answer: msgspec.Raw  # an `Acknowledged`


class Acknowledged(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a command: its entity, in the state at the end of the turn.

    workstream: the state of its workstream, if the entity is a job. transition: the transition of a `MachineActor`.
    shown: the entity's state in the words of its lifecycle, if that is not the runtime's own.
    """

    kind: str = ""
    id: str = ""
    state: str = ""
    workstream: str = ""
    transition: Transitioned | None = None
    shown: str = ""


AnyRecord = (
    JobRecord
    | WorkstreamRecord
    | TaskRecord
    | ApprovalRecord
    | WorkerRecord
    | BreakerRecord
    | MachineRecord
    | AttemptRecord
    | StepRecord
    | MessageRecord
    | OutboxRow
    | RequestRecord
)
