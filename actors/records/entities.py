"""What the runtime knows: one immutable record per entity, as msgspec Structs.

What all of them have is in `base.py`, with the rules; a task's is in `task.py`; what is written of each
change is in `transition.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from ..spec.model import Approval
from .base import Cancellation, CheckResult, Decision, MaybeRaw, Record
from .task import AttemptRecord, TaskRecord
from .transition import Transitioned


class JobRecord(Record, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One submission. `fingerprint` binds the caller's id to what was submitted under it.

    A job that is run again is a new incarnation under the same key and id: its `run` is the number of the workstream
    run that it began with, its `seq` counts from 1 again.
    """

    kind: ClassVar[str] = "job"

    fingerprint: str = ""
    caller_id: bool = False
    by: str | None = None  # who submitted it, where that was said
    description: str | None = None  # what its workstream says that it is for
    workstream: str | None = None  # its present workstream's id
    error: str | None = None
    runs: int = 1  # the number of its present workstream's run
    first: int = 1  # the number of its first run: above 1 where it has replaced another job, which had those before
    stream: int = 0  # key of its present workstream, given before there is one: its specification is kept under it
    deadline_at: float | None = None  # when it is cancelled
    retry_at: float | None = None  # when its failed workstream's next run begins by itself
    worker_count: int = 0  # slots it reserves; 0: none
    routable: bool = True  # whether there are workers that could bring those, while it waits for them
    archive: bool = False  # it is moved out of the journal once it has ended and its runtime is left
    again: str | None = None  # of a further incarnation: the task that it was asked to run anew,
    skip: tuple[str, str] | None = None  # and the one to do without, and why
    final: bool = False  # it was cancelled by a person, or ended in a way that no other try by itself can help
    # of a child
    parent: int | None = None  # key of the job whose task submitted it
    parent_id: str | None = None
    parent_task: int | None = None  # key of that task
    parent_run: int = 0  # the run that its parent began with: another one since then, and a person wanted that
    depth: int = 0  # 0 for a job that no task submitted

    def last_of(self, runs: Sequence[WorkstreamRecord]) -> WorkstreamRecord | None:
        """Its last run, of all that there are under its id; None if it never began one."""
        return runs[-1] if runs and runs[-1].run >= self.first else None


class WorkstreamRecord(Record, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The coordinator of a graph. `job` is its job's key; `first_task` that of its first task: the others follow."""

    kind: ClassVar[str] = "workstream"

    job: int
    job_id: str
    first_task: int
    task_count: int
    tasks_created: int = 0
    cause: str | None = None  # why it is cancelling: "failure" | "cancel"
    forced: bool = False  # its tasks are stopped the harder way, clean-up too
    deadline_at: float | None = None
    hold_until: float | None = None
    wait_until: float | None = None
    decisions: tuple[Decision, ...] = ()  # on its hold
    passed: bool = False  # its hold and its wait are over
    verdict: str | None = None  # what it ends by when its tasks have: "reject" | "expire"; else it is its cause
    checked: int = 0  # final checks passed so far
    test_results: tuple[CheckResult, ...] = ()  # of those that have ended
    cancel: Cancellation | None = None
    error: str | None = None

    @property
    def waits_until(self) -> float | None:
        """Until when it waits for people or for its time, in UTC epoch seconds; None where it does not."""
        return self.due_at if self.state in {"held", "waiting"} else None


class WorkerRecord(Record, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One incarnation (`run`) of a worker."""

    kind: ClassVar[str] = "worker"

    engine: str
    capacity: int
    capabilities: list[str] = []
    assigned: int = 0
    paused: bool = False
    pause_reason: str | None = None  # of an operator's pause, which the next incarnation keeps
    draining: bool = False
    missed: int = 0  # health checks not answered, in a row
    drain_until: float | None = None  # when what runs on a draining one is stopped
    resume_at: float | None = None  # when a pause for want of resources is over
    recycle_after: int | None = None  # attempts that one process of it runs
    resources: dict[str, float] = {}  # what its actor on a cluster reserves
    labels: dict[str, str] = {}  # what its node there is called
    metadata: dict[str, Any] = {}  # what the application wants to find with it
    program: int = 0  # of which start of a program it is: the key of the first worker of that
    retired: bool = False  # an operator ended it: it is none of its program any more


class BreakerRecord(Record, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The circuit breaker of a tool. `generation` numbers its open periods."""

    kind: ClassVar[str] = "breaker"

    failures: int = 0
    successes: int = 0
    failure_threshold: int = 5
    success_threshold: int = 1
    cooldown: float = 60.0
    ignore: list[str] = []  # error types and categories that do not count
    said_by: str | None = None  # whose settings these are: a job's id, or RUNTIME; None: the usual ones
    max_parallel: int | None = None  # the tool's limit that is said here, or held last; None: there is none
    limit_by: str | None = None  # who said that: a job's id, or RUNTIME
    over_all: int | None = None  # the one that holds over all nodes, where that is not the one that is said here
    over_all_by: str | None = None  # who said that: a job's id, or a node's runtime
    not_before: float | None = None  # no task starts before (UTC epoch seconds): the tool itself asked for that
    generation: int = 0
    probe: int | None = None  # the task that holds the permit
    agreed: int | None = 0  # where nodes share tools: which of their changes it knows of; None: it has one to tell

    @property
    def limit(self) -> tuple[int | None, str | None]:
        """The limit of the tool that holds, and who says it; None and None where there is none."""
        return (self.max_parallel, self.limit_by) if self.over_all is None else (self.over_all, self.over_all_by)


class ApprovalRecord(Record, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An approval that a running body asked for, by the name it gave it."""

    kind: ClassVar[str] = "approval"

    task: int  # key
    task_id: str
    workstream: int  # key
    workstream_id: str
    job_id: str
    rule: Approval
    hold_until: float | None = None
    wait_until: float | None = None  # never: it is what the guards of all holds read
    decisions: tuple[Decision, ...] = ()


class MachineRecord(Record, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An entity that runs by a machine of the application's own: a `MachineActor`, under the name it was spawned with.

    Its `due_at` is the earliest of `due`.
    """

    kind: ClassVar[str] = "machine"

    machine: str  # its machine's name
    definitions: tuple[int, ...]  # keys of what it has run by, as it is kept beside the specifications; the last holds
    facts: MaybeRaw = None
    due: dict[str, float] = {}  # when each timed event fires (UTC epoch seconds)


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An effect that no live state implies, kept until it has run: a hook of an ended entity."""

    kind: ClassVar[str] = "outbox"

    key: int
    owner: str  # the ended entity's id
    event: str  # on_completed | on_failed | on_cancelled
    body: msgspec.Raw  # the encoded Hook
    context: msgspec.Raw  # what the hook is told: ids, state, error
    folder: str | None = None  # where its function is found, if not on Python's path
    cwd: str | None = None  # the folder and the variables of its command
    env: dict[str, str] = {}
    secrets: list[str] = []  # their names
    tries: int = 0
    callback: str | None = None  # of a machine: which one, as "on_enter running"; its owner is that machine
    at: float | None = None  # since when it is owed; older rows do not say


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
    owner: int = 0  # key of the job or worker that it was about; 0 for what never ends
    row: int = 0  # of the inbox that it came by; 0 for none
    spec: int = 0  # where a job was submitted, under which key its specification is kept; else 0
    answer: msgspec.Raw  # an `Acknowledged`


class Acknowledged(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a command left behind: the entity it was about, in its state at the end of the turn.

    workstream: the state of its workstream, where it was about a job. transition: what it fired, at a `MachineActor`.
    shown: its state in the words of its lifecycle, where that is not the runtime's own.
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
    | OutboxRow
    | RequestRecord
)
