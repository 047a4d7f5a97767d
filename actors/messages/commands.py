"""The commands of users, operators and running bodies to lifecycle actors.

Rules:
- Each is an input: it begins a turn. A command to one entity travels in a `Command`, with its reply address; a
  `Reply` is answered through an effect, when the turn is durable.
- A command that the entity's state does not allow raises InvalidTransitionError, and changes nothing.
- Every message is a frozen Struct. Messages between entities are in `inputs.py`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...machines.keywords import KeywordsChecked
from ..records.entities import JobRecord, MachineRecord, WorkstreamRecord
from ..records.message import MessageRecord
from ..records.step import StepRecord
from ..records.task import DurableWait, TaskRecord
from ..spec.model import Approval, Worker, Workstream
from ..spec.schema import MOST_VALUES, plain_problem
from ..user_code import called, holds_more, is_a, plain, shown
from .inputs import CallEnded, Message


class Request(msgspec.Struct, frozen=True):
    """The user's key of a command: a command with the same key is the same command (DESIGN section 8, "Idempotency").

    fingerprint: of the operation and its payload. keep: seconds that the key is kept. row: the inbox row of the
    command, 0 for none. sent_at: when it was put there, by its sender's clock; 0 if unknown.
    """

    id: str
    operation: str
    fingerprint: str
    keep: float
    row: int = 0
    sent_at: float = 0.0


class Reply(msgspec.Struct, gc=False, eq=False):
    """The address of a command's answer. `answer` belongs to the runtime; actors only pass the reply on.

    kept: the part of the answer that is stored under the command's key, if it has one.
    """

    answer: Any  # Callable[[value, error], None]; msgspec cannot decode a callable type
    request: Request | None = None
    kept: bytes = b""


class Command(Message, frozen=True):
    """A user's command to one entity. target: the entity's key, or the name of a `MachineActor`."""

    target: int | str
    message: Message
    reply: Reply


class Barrier(Message, frozen=True):
    """Answered when all earlier inputs are durable."""

    reply: Reply


class HandOver(Message, frozen=True):
    """For a draining node: hand over the jobs without running attempts. Answered with their keys when durable."""

    reply: Reply


# -- jobs and their tasks ----------------------------------------------------------------------------------------------


class Submit(Message, frozen=True):
    """Submit a job: its id (given or made), its checked workstream and the encoded form that is journaled.

    parent: the fencing token of the attempt whose body submits it, if any: the job becomes a child of that attempt's
    job. replaced: the ended job of that id that it replaces.
    """

    job_id: str
    caller_id: bool
    workstream: Workstream
    encoded: bytes
    fingerprint: str
    reply: Reply
    by: str | None = None
    parent: int = 0
    replaced: JobRecord | None = None


class NextRun(Message, frozen=True):
    """Run an ended job again: its known records, its unread messages, and the changes (names of tasks).

    again: run this task again, completed or not, and its dependents. from_step: the step from which on its flow runs
    again; it keeps its flow without the steps in `dropped`. skip: skip this task. parent: as in `Submit`, if the body
    of its parent submits it again.
    """

    job: JobRecord
    workstream: Workstream
    encoded: bytes
    stream: WorkstreamRecord | None  # the job's last run, if it ever began
    tasks: tuple[TaskRecord, ...]  # of that run
    reply: Reply
    messages: tuple[MessageRecord, ...] = ()  # unread
    again: str | None = None
    from_step: str | None = None
    dropped: tuple[StepRecord, ...] = ()
    skip: str | None = None
    reason: str | None = None
    by: str | None = None
    parent: int = 0


class Cancel(Message, frozen=True):
    """Cancel a job, a workstream or a task, by force or gracefully. Sent by a user's command, or within a turn.

    `by` is the person who cancels, if known.
    """

    reason: str
    force: bool = False
    by: str | None = None


class SkipTask(Message, frozen=True):
    """Skip a pending task: it does not run, and its dependents go on as if it had completed."""

    reason: str | None = None
    by: str | None = None


class Send(Message, frozen=True):
    """Send a job, or one of its tasks, a message. value: plain JSON data."""

    name: str
    value: Any = None
    by: str | None = None


# -- holds ------------------------------------------------------------------------------------------------------


class Approve(Message, frozen=True):
    """Approve a hold. approval: of a task, the name of an approval that its body asked for.

    teams: the teams of its clauses that `by` belongs to; unchecked: teams whose members could not be read. The runtime
    reads the members before it sends the message (`runtime.command`), since an actor does no I/O.
    """

    by: str
    reason: str | None = None
    approval: str | None = None
    teams: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()


class Reject(Message, frozen=True):
    """Reject a hold. One rejection is enough."""

    by: str
    reason: str | None = None
    approval: str | None = None


# -- commands of operators ---------------------------------------------------------------------------------------------


class CommandWithReason(Message, frozen=True):
    """The base of commands with a reason and their sender's name, if given."""

    reason: str
    by: str | None = None


class Pause(CommandWithReason, frozen=True):
    """Pause a workstream: it starts no further task."""


class Resume(CommandWithReason, frozen=True):
    """Resume a paused workstream."""


class ResetTask(CommandWithReason, frozen=True):
    """Reset a parked task: it gets one more attempt."""


class ResetBreaker(CommandWithReason, frozen=True):
    """Reset a breaker: the tool is healthy."""


class TripBreaker(CommandWithReason, frozen=True):
    """Trip a breaker: it stops tasks for `cooldown` seconds (None: its setting)."""

    cooldown: float | None = None


# -- requests of running bodies ----------------------------------------------------------------------------------------


class Lend(Message, frozen=True):
    """Release the slot of the body with this token while it waits; its time limit pauses.

    wait: what the body waits for, if it does nothing else: then the end of its process interrupts nothing. The message
    is sent again when this changes.
    """

    token: int
    wait: DurableWait | None = None


class Regain(Message, frozen=True):
    """Take a slot again for the body with this token. Answered when it has one."""

    token: int
    reply: Reply


class KeepStep(Message, frozen=True):
    """A step of a running body has ended, or waits for a time: persist it, and answer with its record.

    step: without the facts of the task, which its actor adds. Its key is 0 if it is new.
    """

    token: int
    step: StepRecord
    reply: Reply


class TakeMessage(Message, frozen=True):
    """A body asks for the oldest unread message of that name, to it or to any task of its job.

    Answered with the record of the step: with the message's value if there is one, which is received then; else `step`
    as it is given. keep: persist the step in this case, too.
    """

    token: int
    name: str
    step: StepRecord
    keep: bool
    reply: Reply


class AwaitMessage(Message, frozen=True):
    """Answered when there may be an unread message of that name for the body. number: identifies this wait."""

    token: int
    name: str
    number: int
    reply: Reply


class LeaveMessages(Message, frozen=True):
    """A body stops waiting for a message. job: the key of its job."""

    job: int
    name: str
    number: int


class UseTool(Message, frozen=True):
    """A step of a running body is about to run, with a unit of a tool. number: of this use, among those of the body.

    Answered with the step's record: if its `tool_use` says that it waits, the step has to, and `got` is answered when
    it has the unit.
    """

    token: int
    number: int
    tool: str
    step: StepRecord
    reply: Reply
    got: Reply


class LeaveTool(Message, frozen=True):
    """A step has stopped using its tool, or waiting for it. ended: how its function ended, as for a body.

    given_up: how its body has given up the wait, as `StepRecord.given_up`. Answered with the step's record.
    """

    token: int
    number: int
    ended: CallEnded
    reply: Reply
    given_up: str | None = None


class RunStep(Message, frozen=True):
    """A step of a running body is about to run on a worker. number: of this run, among those of the body.

    step: its record, which names the engine and the capabilities. moves: it may run on a cluster if no other worker can
    run it. reply: gets the record whenever it changes: the step waits, no worker can run it, or its function runs.
    """

    token: int
    number: int
    step: StepRecord
    moves: bool
    reply: Reply


class StopStep(Message, frozen=True):
    """A step has stopped waiting for its worker, or its function has to stop: then its end is reported."""

    token: int
    number: int


class AskApproval(Message, frozen=True):
    """A running body begins to wait for an approval, by its name."""

    token: int
    name: str
    rule: Approval


class LeaveApproval(Message, frozen=True):
    """A running body stops waiting for an approval."""

    token: int
    name: str


# -- workers -----------------------------------------------------------------------------------------------------------


class StartWorkers(Message, frozen=True):
    """Make an incarnation of each of these workers. With a `reply` it is a command, answered with the one worker.

    reason, by: the reason, and the person who starts them, if given.
    """

    workers: tuple[Worker, ...]
    reply: Reply | None = None
    reason: str | None = None
    by: str | None = None


class BeginWork(CommandWithReason, frozen=True):
    """Show a running worker without a task as working, if its lifecycle has a row for that."""


class PauseWorker(CommandWithReason, frozen=True):
    """Pause a worker: it takes no new attempt, and finishes the present ones."""


class ResumeWorker(CommandWithReason, frozen=True):
    """Resume a worker: it takes tasks again."""


class ShutDownWorker(CommandWithReason, frozen=True):
    """Shut a worker down: it finishes its attempts within `deadline` seconds (None: the setting), and ends."""

    deadline: float | None = None


class TerminateWorker(CommandWithReason, frozen=True):
    """Terminate a worker at once; its attempts are lost."""


# -- machines of the application's own ---------------------------------------------------------------------------------


class SpawnMachine(Message, frozen=True):
    """Create the entity of that name, of this kind, or resume the existing one.

    known: its record, if only the journal has it; kept: the definition of that record. kind: None if it cannot be
    found, and `missing` says why. ref: the reference that shows the entity until the entity exists; it lives at least
    as long as that takes.
    """

    name: str
    kind: Any  # MachineKind | None
    facts: msgspec.Raw | None
    known: MachineRecord | None = None
    missing: str = ""
    ref: object = None
    kept: bytes | None = None


class Fire(Message, frozen=True, metaclass=KeywordsChecked):
    """Fire an event at a `MachineActor`, or at an entity of the runtime.

    A `MachineActor` answers with the transition, another entity as the verb of that event does. A refusal raises
    InvalidTransitionError. reason and metadata (JSON values) are stored with the transition. facts: the facts that
    change with the event, by name. request_id: a command with the same id is the same command, and gets the same
    answer. by: the sender's name, which a machine stores in the metadata. Guards get this message as their payload.
    Raises TypeError and ValueError for values that cannot be stored.
    """

    event: str
    reason: str | None = None
    metadata: dict[str, Any] | None = None
    facts: dict[str, Any] | None = None
    request_id: str | None = None
    by: str | None = None

    def __post_init__(self) -> None:
        """Raise an error for values that cannot be written later."""
        for name, kinds in _FIRE.items():
            value = getattr(self, name)
            if not is_a(value, kinds):
                raise TypeError(f"Fire takes {name} as {kinds[0].__name__}, not {shown(value, 60)}")
            if (text := plain(value)) is not value:
                msgspec.structs.force_setattr(self, name, text)
        if not self.event:
            raise ValueError("Fire takes the name of an event")
        if holds_more(MOST_VALUES, self.facts):
            raise ValueError(f"Fire cannot take these facts: they hold more than {MOST_VALUES:,} values and characters")
        for name in ("event", "reason", "metadata"):
            if problem := plain_problem(getattr(self, name)):
                raise ValueError(f"Fire cannot take this {name}: {problem}")
        if self.metadata:  # a copy, so that later changes cannot make it unwritable
            copy = called(msgspec.json.decode, called(msgspec.json.encode, self.metadata))
            msgspec.structs.force_setattr(self, "metadata", copy)


_FIRE: dict[str, tuple[type, ...]] = {
    "event": (str,), "reason": (str, type(None)), "metadata": (dict, type(None)), "facts": (dict, type(None)),
    "request_id": (str, type(None)), "by": (str, type(None)),
}  # fmt: skip
