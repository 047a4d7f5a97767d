"""What lifecycle actors are told: inputs from outside, and messages between them inside a turn.

Rules:
- Every message is a frozen Struct. Those without content have one instance, made here.
- An *input* begins a turn (DESIGN section 8). A *message* is sent by an actor in a turn and received in the same turn.
- A `reply` is kept by the runtime; it is answered through an effect, when the turn is durable.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .records import JobRecord, MachineRecord, WorkstreamRecord
from .schema import plain_problem
from .spec import Approval, Worker, Workstream
from .task_record import TaskRecord


class Message(msgspec.Struct, frozen=True, gc=False):
    """The base of all messages."""


# -- inputs ------------------------------------------------------------------------------------------------------------


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
    """Where the answer to a command goes. `answer` is the runtime's; actors only pass the reply on."""

    answer: Any  # Callable[[value, error], None]; a Struct field of a callable type would be decoded by nobody
    request: Request | None = None


class Submit(Message, frozen=True):
    """Take a job: its id (given or made), its checked workstream and the encoded form that is journaled.

    parent: the fencing token of the attempt whose body submits it, if one does: it is a child of that attempt's job.
    """

    job_id: str
    caller_id: bool
    workstream: Workstream
    encoded: bytes
    fingerprint: str
    reply: Reply
    by: str | None = None
    parent: int = 0


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


class SkipTask(Message, frozen=True):
    """To a pending task: do not run; your dependents go on as if you had completed."""

    reason: str | None = None
    by: str | None = None


class Lend(Message, frozen=True):
    """The body under this token waits for a child job: it occupies nothing meanwhile, and its clock stands still."""

    token: int


class Regain(Message, frozen=True):
    """The body under this token goes on: answer when it has its slot again."""

    token: int
    reply: Reply


class Cancel(Message, frozen=True):
    """Cancel a job, a workstream or a task; `force` is the harder stop. Said by a user's command, or within a turn.

    `by` is who says so, if anybody does.
    """

    reason: str
    force: bool = False
    by: str | None = None


class Pause(Message, frozen=True):
    """To a workstream: start nothing more for now. `by` is who says so."""

    reason: str
    by: str | None = None


class Resume(Message, frozen=True):
    """To a workstream that is paused: go on. `by` is who says so."""

    reason: str
    by: str | None = None


class ResetBreaker(Message, frozen=True):
    """An operator's word to a breaker: the tool is healthy. `by` is who says so."""

    reason: str
    by: str | None = None


class TripBreaker(Message, frozen=True):
    """An operator's word to a breaker: keep tasks away, for `cooldown` seconds (None: as long as is usual)."""

    reason: str
    by: str | None = None
    cooldown: float | None = None


class ResetTask(Message, frozen=True):
    """An operator's word to a parked task: you get one more attempt."""

    reason: str
    by: str | None = None


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


class Fire(Message, frozen=True):
    """To a `MachineActor`: take this event. Answered with the transition, or refused with InvalidTransitionError.

    reason and metadata (JSON values) are kept with the transition. facts: those that change along with it, by name.
    request_id: the same again is the same command, and gets the same answer. Guards get it as their payload. Raises
    TypeError and ValueError for what cannot be kept.
    """

    event: str
    reason: str | None = None
    metadata: dict[str, Any] | None = None
    facts: dict[str, Any] | None = None
    request_id: str | None = None

    def __post_init__(self) -> None:
        """Refuse what could not be written later."""
        for name, kinds in _FIRE.items():
            value = getattr(self, name)
            if not isinstance(value, kinds):
                raise TypeError(f"Fire takes {name} as {kinds[0].__name__}, not {value!r:.60}")
        if not self.event:
            raise ValueError("Fire takes the name of an event")
        for name in ("event", "reason", "metadata"):
            if problem := plain_problem(getattr(self, name)):
                raise ValueError(f"Fire cannot take this {name}: {problem}")


_FIRE: dict[str, tuple[type, ...]] = {
    "event": (str,), "reason": (str, type(None)), "metadata": (dict, type(None)), "facts": (dict, type(None)),
    "request_id": (str, type(None)),
}  # fmt: skip


class SpawnMachine(Message, frozen=True):
    """Have an entity of that name, which runs by this kind: a new one with these facts, or the one that there is.

    known: its record, where the journal has one that is not at work. kind: None where it cannot be found, and `missing`
    says why.
    """

    name: str
    kind: Any  # MachineKind | None
    facts: msgspec.Raw | None
    known: MachineRecord | None = None
    missing: str = ""


class Command(Message, frozen=True):
    """A user's command to one entity, with where its answer goes. target: its key, or the name of a `MachineActor`."""

    target: int | str
    message: Message
    reply: Reply


class CallEnded(Message, frozen=True):
    """What an engine was told to run is over.

    status: ok, failed, cancelled, abandoned, lost (its worker died under it), or gone (it never started).
    """

    token: int
    status: str
    value: Any = None
    error_type: str | None = None
    error: str | None = None
    permanent: bool = False
    retry_after: float | None = None
    category: str | None = None
    exit_code: int | None = None
    output_path: str | None = None
    output_size: int | None = None
    duration: float = 0.0
    traceback: str | None = None


class ProcessStarted(Message, frozen=True):
    """A command's process runs: its pid and the kernel's start time of it (clock ticks)."""

    token: int
    pid: int
    started: int


class Beat(Message, frozen=True):
    """A body's heartbeat. `details` are kept for the next attempt, `saved` (a checkpoint) for the next run as well."""

    token: int
    details: msgspec.Raw | None
    saved: msgspec.Raw | None = None


class AskApproval(Message, frozen=True):
    """A running body waits for an approval, by its name."""

    token: int
    name: str
    rule: Approval


class LeaveApproval(Message, frozen=True):
    """A running body waits no longer for an approval."""

    token: int
    name: str


class TimerFired(Message, frozen=True):
    """A timer of an entity is due. `epoch` is that of the state which armed it (0: it outlives states, a deadline).

    Key 0 stands for the scheduler: reservations may be idle.
    """

    key: int
    epoch: int


class Continue(Message, frozen=True):
    """An actor goes on with long work in a new turn, from where it left off."""

    key: int


class Leave(Message, frozen=True):
    """Let the actors of these tasks go, whose run has ended, from number `first` on."""

    tasks: Any  # list[TaskActor]
    first: int = 0


class TurnFailed(Message, frozen=True):
    """A turn raised and was undone; its entity must fail. `token` is the call whose end it was about, if it was."""

    key: int
    error: str
    token: int = 0


class Barrier(Message, frozen=True):
    """Answer when everything before it is durable."""

    reply: Reply


class Drain(Message, frozen=True):
    """Claim nothing more. With `stop`, running bodies are stopped and their tries given back."""

    stop: bool


class Recover(Message, frozen=True):
    """The runtime came back: what ran in the process before is gone. `key` is the job it is said to (0: to all)."""

    key: int = 0


class InboxTaken(Message, frozen=True):
    """What lay in the inbox while nobody ran the journal has been done: what was put off for it is due."""


class Rebuilt(Message, frozen=True):
    """What is derived was made again: go on matching."""


class Registered(Message, frozen=True):
    """A function has become known: tasks that waited for theirs may be able to run now."""


class StartWorkers(Message, frozen=True):
    """Make an incarnation of each of these workers. With a `reply` it is a command, answered with the one worker."""

    workers: tuple[Worker, ...]
    reply: Reply | None = None


class PauseWorker(Message, frozen=True):
    """To a worker: take nothing new, and finish what you run."""

    reason: str
    by: str | None = None


class ResumeWorker(Message, frozen=True):
    """To a worker: take tasks again."""

    reason: str
    by: str | None = None


class ShutDownWorker(Message, frozen=True):
    """To a worker: finish what you run, within `deadline` seconds (None: the setting), and end."""

    reason: str
    by: str | None = None
    deadline: float | None = None


class TerminateWorker(Message, frozen=True):
    """To a worker: end at once; what you run is lost."""

    reason: str
    by: str | None = None


class StopWorkers(Message, frozen=True):
    """Shut all workers down: the runtime closes."""


class WorkerBeat(Message, frozen=True):
    """An incarnation of a worker lives: the answer to `Port.probe`, to a `StartWorker`, or told by itself.

    `tokens` are the attempts that really run there; an engine without processes of its own tells all of its own.
    """

    worker: str
    incarnation: int
    tokens: tuple[int, ...] = ()


class WorkerDied(Message, frozen=True):
    """An incarnation of a worker is gone for good, and nobody asked for it. The attempts that ran there end by
    themselves, each with a `CallEnded` of status "lost" right after this.
    """

    worker: str
    incarnation: int
    reason: str


# -- messages within a turn --------------------------------------------------------------------------------------------


class Queued(Message, frozen=True):
    """To the scheduler: find a worker for this task (by key)."""

    key: int


class Assign(Message, frozen=True):
    """To a worker: take this task (by key); then to the task: you have been taken. `slot` is a `kernel.Call`."""

    key: int
    slot: Any


class Release(Message, frozen=True):
    """To a worker: the attempt of this task no longer occupies you; then to the scheduler: the slot is free."""

    key: int
    slot: Any


class Exhausted(Message, frozen=True):
    """To a worker: a body on you ran out of memory, disk or descriptors."""

    reason: str


class Silent(Message, frozen=True):
    """To a task: the worker of your attempt does not answer."""

    token: int
    reason: str


class Back(Message, frozen=True):
    """To a task: the worker of your attempt answers again, and runs it still."""

    token: int


class Unroutable(Message, frozen=True):
    """To a queued task: no worker could ever run you; or (without a reason) now there is one."""

    reason: str | None


class Skip(Message, frozen=True):
    """To a task: do not run. `standing` says how that counts: good, void or bad."""

    standing: str
    reason: str


class Stop(Message, frozen=True):
    """To a task, or a workstream: what you belong to is being cancelled."""

    reason: str
    force: bool = False


class Child(Message, frozen=True):
    """To a workstream or job: something of yours (by key) has started or ended."""

    key: int


class Started(Child, frozen=True):
    """A task of the workstream started running."""


class Ended(Child, frozen=True):
    """A task of the workstream, or the job's workstream, is terminal."""


class ChildOver(Child, frozen=True):
    """To a job: a child job of yours is terminal."""


class Allocated(Message, frozen=True):
    """To a pending job: you have your slots."""


class Regained(Assign, frozen=True):
    """To a worker, then to its task: the attempt occupies you again, after it had lent its slot."""


class Verdict(Message, frozen=True):
    """To a breaker: how an attempt that began under `generation` ended: "succeed", "fail", or "returned" (neither)."""

    task: int
    generation: int
    event: str


class Ready(Message, frozen=True):
    """To a task: your dependencies are satisfied."""


class Trip(Message, frozen=True):
    """To a queued task: your tool's breaker is open."""


class Permit(Message, frozen=True):
    """To a parked task: you may probe your tool."""


class Reset(Message, frozen=True):
    """To a parked task: your tool is healthy again."""


READY = Ready()
TRIP = Trip()
PERMIT = Permit()
RESET = Reset()
RECOVER = Recover()
REBUILT = Rebuilt()
