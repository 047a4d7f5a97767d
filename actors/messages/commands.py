"""What users, operators and running bodies tell lifecycle actors.

Rules:
- Each is an input: it begins a turn. What is said to one entity travels in a `Command`, with where its answer goes; a
  `Reply` is answered through an effect, when the turn is durable.
- One that the entity's state does not allow raises InvalidTransitionError, and changes nothing.
- Every message is a frozen Struct. What entities tell one another is in `inputs.py`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..records.entities import JobRecord, MachineRecord, WorkstreamRecord
from ..records.task import TaskRecord
from ..spec.model import Approval, Worker, Workstream
from ..spec.schema import MOST_VALUES, plain_problem
from ..user_code import called, holds_more, is_a, plain, shown
from .inputs import Message


class Request(msgspec.Struct, frozen=True):
    """The key that a user gave a command: the same again is the same command (DESIGN section 8, "Idempotency").

    fingerprint: of the operation and its payload. keep: seconds that the key is kept. row: of the inbox that the
    command came by, 0 for none. sent_at: when it was put there, by its sender's clock; 0 where that is not known.
    """

    id: str
    operation: str
    fingerprint: str
    keep: float
    row: int = 0
    sent_at: float = 0.0


class Reply(msgspec.Struct, gc=False, eq=False):
    """Where the answer to a command goes. `answer` is the runtime's; actors only pass the reply on.

    kept: what is kept of it under its key, where it has one.
    """

    answer: Any  # Callable[[value, error], None]; a Struct field of a callable type would be decoded by nobody
    request: Request | None = None
    kept: bytes = b""


class Command(Message, frozen=True):
    """A user's command to one entity, with where its answer goes. target: its key, or the name of a `MachineActor`."""

    target: int | str
    message: Message
    reply: Reply


class Barrier(Message, frozen=True):
    """Answer when everything before it is durable."""

    reply: Reply


class HandOver(Message, frozen=True):
    """For a node that drains: forget the jobs of which nothing runs. Answered with their keys, once all is durable."""

    reply: Reply


# -- jobs and their tasks ----------------------------------------------------------------------------------------------


class Submit(Message, frozen=True):
    """Take a job: its id (given or made), its checked workstream and the encoded form that is journaled.

    parent: the fencing token of the attempt whose body submits it, if one does: it is a child of that attempt's job.
    replaced: the ended job of that id whose place it takes.
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
    """Run a job again that has ended: what is known of it, and what is to be different (names of tasks).

    again: run this task anew, completed or not, and what waits for it. skip: do without this one. parent: as in
    `Submit`, where the body of its parent submits it again.
    """

    job: JobRecord
    workstream: Workstream
    encoded: bytes
    stream: WorkstreamRecord | None  # its last run, if it ever began
    tasks: tuple[TaskRecord, ...]  # of that run
    reply: Reply
    again: str | None = None
    skip: str | None = None
    reason: str | None = None
    by: str | None = None
    parent: int = 0


class Cancel(Message, frozen=True):
    """Cancel a job, a workstream or a task; `force` is the harder stop. Said by a user's command, or within a turn.

    `by` is who says so, if anybody does.
    """

    reason: str
    force: bool = False
    by: str | None = None


class SkipTask(Message, frozen=True):
    """To a pending task: do not run; your dependents go on as if you had completed."""

    reason: str | None = None
    by: str | None = None


# -- what is held ------------------------------------------------------------------------------------------------------


class Approve(Message, frozen=True):
    """Approve what is held. approval: of a task, the name of one that its body asked for. teams: those of its clauses
    that `by` belongs to; unchecked: those that could not be asked.

    Which teams somebody is in is asked before the message is given (`runtime.command`): an actor asks nobody.
    """

    by: str
    reason: str | None = None
    approval: str | None = None
    teams: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()


class Reject(Message, frozen=True):
    """Reject what is held. One rejection is enough."""

    by: str
    reason: str | None = None
    approval: str | None = None


# -- what operators say ------------------------------------------------------------------------------------------------


class Word(Message, frozen=True):
    """What somebody says to an entity: why, and who says so, if anybody does."""

    reason: str
    by: str | None = None


class Pause(Word, frozen=True):
    """To a workstream: start nothing more for now."""


class Resume(Word, frozen=True):
    """To a workstream that is paused: go on."""


class ResetTask(Word, frozen=True):
    """An operator's word to a parked task: you get one more attempt."""


class ResetBreaker(Word, frozen=True):
    """An operator's word to a breaker: the tool is healthy."""


class TripBreaker(Word, frozen=True):
    """An operator's word to a breaker: keep tasks away, for `cooldown` seconds (None: as long as is usual)."""

    cooldown: float | None = None


# -- what running bodies ask -------------------------------------------------------------------------------------------


class Lend(Message, frozen=True):
    """The body under this token waits for a child job: it occupies nothing meanwhile, and its clock stands still."""

    token: int


class Regain(Message, frozen=True):
    """The body under this token goes on: answer when it has its slot again."""

    token: int
    reply: Reply


class AskApproval(Message, frozen=True):
    """A running body waits for an approval, by its name."""

    token: int
    name: str
    rule: Approval


class LeaveApproval(Message, frozen=True):
    """A running body waits no longer for an approval."""

    token: int
    name: str


# -- workers -----------------------------------------------------------------------------------------------------------


class StartWorkers(Message, frozen=True):
    """Make an incarnation of each of these workers. With a `reply` it is a command, answered with the one worker.

    reason, by: why, and who says so, if anybody does.
    """

    workers: tuple[Worker, ...]
    reply: Reply | None = None
    reason: str | None = None
    by: str | None = None


class BeginWork(Word, frozen=True):
    """To a worker that lives: be told as working from now on, where its lifecycle has that for one without a task."""


class PauseWorker(Word, frozen=True):
    """To a worker: take nothing new, and finish what you run."""


class ResumeWorker(Word, frozen=True):
    """To a worker: take tasks again."""


class ShutDownWorker(Word, frozen=True):
    """To a worker: finish what you run, within `deadline` seconds (None: the setting), and end."""

    deadline: float | None = None


class TerminateWorker(Word, frozen=True):
    """To a worker: end at once; what you run is lost."""


# -- machines of the application's own ---------------------------------------------------------------------------------


class SpawnMachine(Message, frozen=True):
    """Have an entity of that name, which runs by this kind: a new one with these facts, or the one that there is.

    known: its record, where the journal has one that is not at work; kept: what that ran by. kind: None where it cannot
    be found, and `missing` says why. ref: what answers for it until it is there, and lives as long as this at least.
    """

    name: str
    kind: Any  # MachineKind | None
    facts: msgspec.Raw | None
    known: MachineRecord | None = None
    missing: str = ""
    ref: object = None
    kept: bytes | None = None


class Fire(Message, frozen=True):
    """Take this event: to a `MachineActor`, answered with the transition; or to a job, workstream, task, worker or
    breaker, answered as the verb that it asks for. Refused with InvalidTransitionError.

    reason and metadata (JSON values) are kept with the transition. facts: those that change along with it, by name.
    request_id: the same again is the same command, and gets the same answer. by: who says so, which a machine keeps in
    the metadata. Guards get it as their payload. Raises TypeError and ValueError for what cannot be kept.
    """

    event: str
    reason: str | None = None
    metadata: dict[str, Any] | None = None
    facts: dict[str, Any] | None = None
    request_id: str | None = None
    by: str | None = None

    def __post_init__(self) -> None:
        """Refuse what could not be written later."""
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
        if self.metadata:  # a copy: what is written later is what was held to be writable now
            copy = called(msgspec.json.decode, called(msgspec.json.encode, self.metadata))
            msgspec.structs.force_setattr(self, "metadata", copy)


_FIRE: dict[str, tuple[type, ...]] = {
    "event": (str,), "reason": (str, type(None)), "metadata": (dict, type(None)), "facts": (dict, type(None)),
    "request_id": (str, type(None)), "by": (str, type(None)),
}  # fmt: skip
