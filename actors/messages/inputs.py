"""The inputs from the runtime and its engines, and the messages between lifecycle actors.

Rules:
- Every message is a frozen Struct. A message without fields has one instance, made here.
- An *input* begins a turn (DESIGN section 8). A *message* is sent by an actor in a turn and received in the same turn.
- Commands of users and operators are in `commands.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec


class Message(msgspec.Struct, frozen=True, gc=False):
    """The base of all messages."""


# -- inputs ------------------------------------------------------------------------------------------------------------


class CallEnded(Message, frozen=True):
    """A call that an engine ran has ended.

    status: ok, again (the body begins anew, with the arguments in `value`), failed, cancelled, abandoned, lost (its
    worker died), gone (it never started), or waits (a hook's function cannot be found: a later start has to run it).
    leaves: for a group of several errors, the type and category of each. cpu_seconds, peak_memory_bytes: the resources
    that a command, or a body in a worker process, used, if known. left_behind: the pids of the processes that it left
    behind.
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
    """A body's heartbeat. `details` are kept for the next attempt, `saved` (a checkpoint) also for the next run."""

    token: int
    details: msgspec.Raw | None
    saved: msgspec.Raw | None = None


class WaitOver(Message, frozen=True):
    """To a task whose attempt waits without a body: what it waits for has come."""


class TimerFired(Message, frozen=True):
    """A timer of an entity is due. `epoch` is that of the state which armed it (0: a deadline, which outlives states).

    Key 0 is the scheduler: a check for idle reservations.
    """

    key: int
    epoch: int


class Continue(Message, frozen=True):
    """An actor continues long work in a new turn."""

    key: int


class Leave(Message, frozen=True):
    """Remove the actors of these tasks, whose run has ended, from number `first` on."""

    tasks: Any  # list[TaskActor]
    first: int = 0


class TurnFailed(Message, frozen=True):
    """A turn raised and was undone; its entity must fail. `token`: the ended call of the turn, if any."""

    key: int
    error: str
    token: int = 0


class Drain(Message, frozen=True):
    """Claim no further task. With `stop`, running bodies are stopped and their tries given back.

    Without `stop`, each running attempt is journaled as drained, so that a later kill is no loss (DESIGN 12.5).
    """

    stop: bool


class Recover(Message, frozen=True):
    """The runtime has restarted: the calls of the earlier process have ended. `key`: the job to recover (0: all)."""

    key: int = 0


class ToolShares(Message, frozen=True):
    """The slots that this node may use of tools whose limits nodes share: slots by tool.

    scarce: the tools for which other nodes wait. asked: the number of the request that this answers, by tool
    (`ToolQuotas.asked`); an answer to an earlier request is ignored. words: the limit of each tool over all nodes, a
    `tool_limits.DeclaredLimit`.
    """

    shares: dict[str, int]
    scarce: frozenset[str] = frozenset()
    asked: dict[str, int] = {}
    words: dict[str, Any] = {}


class Adopt(Recover, frozen=True):
    """This node has taken over the work of another node, and continues it.

    This node's numbers continue from its numbers. `InboxTaken` follows.
    """

    loaded: Any = None


class NewEpoch(Message, frozen=True):
    """New keys, fencing tokens and transition numbers are above these numbers from now on."""

    key: int
    seq: int


class ToolHeard(Message, frozen=True):
    """The agreed state of a tool's breaker over all nodes that share the journal: the breaker here follows it.

    generation: counts the agreed changes; 0: no change yet, but a node uses the tool. tries: the breaker is half open,
    and this node may probe the tool. answers: if this breaker had reported a change, the number of the transition that
    made it.
    """

    tool: str
    state: str
    generation: int
    due_at: float | None = None
    reason: str | None = None
    tries: bool = False
    answers: int = 0


class InboxTaken(Message, frozen=True):
    """The commands that waited in the inbox before the start have been handled: work that waited for them is due."""


class ClockSet(Message, frozen=True):
    """The wall clock was set back. As at the start of any turn, timers are adjusted."""


class Rebuilt(Message, frozen=True):
    """The derived data was rebuilt: continue matching tasks and workers."""


class Registered(Message, frozen=True):
    """A function was registered: tasks that waited for it may run now."""


class StopWorkers(Message, frozen=True):
    """Shut all workers down, since the runtime closes."""


class WorkerBeat(Message, frozen=True):
    """An incarnation of a worker is alive: an answer to `Port.probe` or `StartWorker`, or a heartbeat.

    `tokens` are the attempts that really run there; an engine without processes reports all of its attempts.
    busy: the worker cannot answer, but was observed to work.
    """

    worker: str
    incarnation: int
    tokens: tuple[int, ...] = ()
    busy: bool = False


class WorkerDied(Message, frozen=True):
    """An incarnation of a worker has died unexpectedly.

    Each attempt that ran there ends with its own `CallEnded` of status "lost" right after this.
    """

    worker: str
    incarnation: int
    reason: str


class WorkerUnfit(Message, frozen=True):
    """No node of the cluster can ever host this worker."""

    worker: str
    incarnation: int
    reason: str


class WorkerFits(Message, frozen=True):
    """A node of the cluster can host a worker now that no node could host before."""

    worker: str
    incarnation: int


# -- messages within a turn --------------------------------------------------------------------------------------------


class Queued(Message, frozen=True):
    """To the scheduler: a task (by key) needs a worker."""

    key: int


class Assign(Message, frozen=True):
    """To a task (by key): it has a worker. `slot` is a `transaction.CallOrder`."""

    key: int
    slot: Any


class Release(Message, frozen=True):
    """To a worker, or to the scheduler if the worker has ended: the attempt of this task has left its slot."""

    key: int
    slot: Any


class BodyOver(Message, frozen=True):
    """To the scheduler: the body under this token has ended. Its steps use no tools and run on no workers any more."""

    token: int


class Exhausted(Message, frozen=True):
    """To a worker: one of its bodies ran out of memory, disk or descriptors."""

    reason: str


class WorkerSilent(Message, frozen=True):
    """To a task: the worker of its attempt does not answer."""

    token: int
    reason: str


class WorkerBack(Message, frozen=True):
    """To a task: the worker of its attempt answers again, and still runs the attempt."""

    token: int


class Unroutable(Message, frozen=True):
    """To a queued task: no worker can ever run it; or (without a reason) a worker now can."""

    reason: str | None


class Skip(Message, frozen=True):
    """To a task: it is skipped. `standing`: how the skip counts: good, void or bad."""

    standing: str
    reason: str


class Stop(Message, frozen=True):
    """To a task or a workstream: its parent is being cancelled."""

    reason: str
    force: bool = False


class Child(Message, frozen=True):
    """To a workstream or job: a child (by key) has started or ended."""

    key: int


class Started(Child, frozen=True):
    """A task of the workstream started running."""


class Ended(Child, frozen=True):
    """A task of the workstream, or the job's workstream, is terminal."""


class ChildOver(Child, frozen=True):
    """To a job: one of its child jobs is terminal."""


class Allocated(Message, frozen=True):
    """To a pending job: it has its slots."""


class Regained(Assign, frozen=True):
    """To a worker, then to its task: an attempt that lent its slot has one again."""


class Verdict(Message, frozen=True):
    """To a breaker: how an attempt that began under `generation` ended: "succeed", "fail", or "returned" (neither).

    Or "waits": it has not ended, and gives the permit back.
    """

    task: int
    generation: int
    event: str


class RestTool(Message, frozen=True):
    """To a breaker: the tool asked a body to wait until `until` (UTC epoch seconds). No task starts before."""

    until: float


class Ready(Message, frozen=True):
    """To a task: its dependencies are satisfied."""


class Trip(Message, frozen=True):
    """To a queued task: its tool's breaker is open."""


class Permit(Message, frozen=True):
    """To a parked task: it may probe its tool."""


class Reset(Message, frozen=True):
    """To a parked task: its tool is healthy again."""


READY = Ready()
TRIP = Trip()
PERMIT = Permit()
RESET = Reset()
RECOVER = Recover()
REBUILT, CLOCK_SET = Rebuilt(), ClockSet()
