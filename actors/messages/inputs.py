"""What lifecycle actors are told by the runtime and its engines, and what they tell one another.

Rules:
- Every message is a frozen Struct. Those without content have one instance, made here.
- An *input* begins a turn (DESIGN section 8). A *message* is sent by an actor in a turn and received in the same turn.
- What users and operators say is in `commands.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec


class Message(msgspec.Struct, frozen=True, gc=False):
    """The base of all messages."""


# -- inputs ------------------------------------------------------------------------------------------------------------


class CallEnded(Message, frozen=True):
    """What an engine was told to run is over.

    status: ok, failed, cancelled, abandoned, lost (its worker died under it), gone (it never started), or waits (a
    hook's function is not there: another start has to run it). leaves: of a group of several errors, what each is, and
    its category. cpu_seconds, peak_memory_bytes: what a command, or a body in a worker process, used, where that is
    known. left_behind: the numbers of the processes that it left behind.
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
    kinds: Sequence[str] = ()
    leaves: Sequence[Sequence[str]] = ()
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None
    left_behind: tuple[int, ...] = ()


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


class Drain(Message, frozen=True):
    """Claim nothing more. With `stop`, running bodies are stopped and their tries given back.

    Without it each running attempt is journaled as drained, so that a kill which follows is no loss (DESIGN 12.5).
    """

    stop: bool


class Recover(Message, frozen=True):
    """The runtime came back: what ran in the process before is gone. `key` is the job it is said to (0: to all)."""

    key: int = 0


class ToolShares(Message, frozen=True):
    """What this node may use from now on of these tools, whose limits it shares with others: slots by tool.

    scarce: those of which others wait for slots. asked: which question of each this answers (`Shares.asked`); an answer
    that comes after a later question says nothing any more. words: the limit of each over all nodes, a
    `tool_limits.Word`.
    """

    shares: dict[str, int]
    scarce: frozenset[str] = frozenset()
    asked: dict[str, int] = {}
    words: dict[str, Any] = {}


class Adopt(Recover, frozen=True):
    """This node has taken over what another one ran: go on with that, beside what runs here.

    `loaded` is a `restore.Loaded`; its numbers are those from which this node counts on. `InboxTaken` follows.
    """

    loaded: Any = None


class NewEpoch(Message, frozen=True):
    """All numbers that are given from now on are above these: keys and fencing tokens, and transitions."""

    key: int
    seq: int


class ToolHeard(Message, frozen=True):
    """What all nodes that share the journal have agreed on about a tool: its breaker here follows.

    generation: counts their changes; 0: none yet, but somebody uses the tool. tries: it is half open, and this node may
    try the tool. answers: where this breaker had news to tell, the number of the transition that made them: this is
    what came of them.
    """

    tool: str
    state: str
    generation: int
    due_at: float | None = None
    reason: str | None = None
    tries: bool = False
    answers: int = 0


class InboxTaken(Message, frozen=True):
    """What lay in the inbox while nobody ran the journal has been done: what was put off for it is due."""


class ClockSet(Message, frozen=True):
    """The wall clock was set back: the turn of this, as any other, begins with following it."""


class Rebuilt(Message, frozen=True):
    """What is derived was made again: go on matching."""


class Registered(Message, frozen=True):
    """A function has become known: tasks that waited for theirs may be able to run now."""


class StopWorkers(Message, frozen=True):
    """Shut all workers down: the runtime closes."""


class WorkerBeat(Message, frozen=True):
    """An incarnation of a worker lives: the answer to `Port.probe`, to a `StartWorker`, or told by itself.

    `tokens` are the attempts that really run there; an engine without processes of its own tells all of its own.
    busy: it cannot answer, and others have seen that it works.
    """

    worker: str
    incarnation: int
    tokens: tuple[int, ...] = ()
    busy: bool = False


class WorkerDied(Message, frozen=True):
    """An incarnation of a worker is gone for good, and nobody asked for it. The attempts that ran there end by
    themselves, each with a `CallEnded` of status "lost" right after this.
    """

    worker: str
    incarnation: int
    reason: str


class WorkerUnfit(Message, frozen=True):
    """No node of the cluster that a worker is to be on could ever hold it."""

    worker: str
    incarnation: int
    reason: str


class WorkerFits(Message, frozen=True):
    """A node could now hold a worker whose incarnation none could hold."""

    worker: str
    incarnation: int


# -- messages within a turn --------------------------------------------------------------------------------------------


class Queued(Message, frozen=True):
    """To the scheduler: find a worker for this task (by key)."""

    key: int


class Assign(Message, frozen=True):
    """To a worker: take this task (by key); then to the task: you have been taken. `slot` is a `transaction.Call`."""

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
    """To a breaker: how an attempt that began under `generation` ended: "succeed", "fail", or "returned" (neither).

    Or "waits": it has not ended, and gives the permit back.
    """

    task: int
    generation: int
    event: str


class Rest(Message, frozen=True):
    """To a breaker: a body was told by the tool to come back at `until` (UTC epoch seconds). No task starts before."""

    until: float


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
REBUILT, CLOCK_SET = Rebuilt(), ClockSet()
