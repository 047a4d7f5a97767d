"""The parts of a turn: its effects, the calls it starts, and the port to the outside.

Rules
-----
- Actors act on the outside only by *effects* (run this, stop that, answer this command). Effects are committed with the
  turn, and the runtime releases them when the turn is durable.
- A call is something that an engine was told to run; a slot is the place that an attempt occupies on a worker. A call
  is over when the engine reports its end, a slot when its task releases it.
- Actors reach the outside only through `Port`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import PurePath
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from ..messages.commands import Reply
from ..messages.inputs import Message, TimerFired
from ..messages.notices import Notice
from ..records.base import Record
from ..records.entities import AnyRecord, ApprovalRecord, OutboxRow
from ..records.step import StepRecord
from ..records.task import EndedRound
from ..records.transition import Transitioned
from ..spec.model import Task, Workstream

if TYPE_CHECKING:
    from .contract import Job
    from .entity import Entity

NO_ENGINE = "none"
"""The engine of a task whose function cannot be found: no worker has this engine, so the task is unroutable."""


def folder_of(stream: Workstream, task: Task | None) -> str:
    """The folder of a command: the task's folder, relative to the workstream's, relative to the present one."""
    return str(PurePath(stream.cwd or ".", (task.cwd if task is not None else None) or "."))


# -- effects: the runtime carries them out once the turn is durable ----------------------------------------------------


class Effect(msgspec.Struct, frozen=True, gc=False):
    """The base of all effects."""


class StartCall(Effect, frozen=True):
    """Run a call of the entity `key`: its body, its condition, its check or cancel hook number `index`, or a step of
    its body.
    """

    token: int
    key: int
    kind: str
    index: int = 0


class StopCall(Effect, frozen=True):
    """Stop the call under `token`: with a grace period, or (`force`) at once."""

    token: int
    force: bool = False


class Answer(Effect, frozen=True):
    """Answer a command, with a value or with an error."""

    reply: Reply
    value: Any = None
    error: Exception | None = None


class Tell(Effect, frozen=True):
    """Emit a notice of something that is no transition."""

    notice: Notice


class RunHook(Effect, frozen=True):
    """Run the hook of a row of the outbox."""

    token: int
    row: OutboxRow


class StartWorker(Effect, frozen=True):
    """Register a new incarnation with its engine, which answers by a `WorkerBeat`. Processes start when needed."""

    engine: str
    worker: str
    incarnation: int


class StopWorker(Effect, frozen=True):
    """Have an incarnation's process end its calls and then exit; it is killed after `deadline` seconds."""

    engine: str
    worker: str
    incarnation: int
    deadline: float


class KillWorker(Effect, frozen=True):
    """Kill an incarnation's process. Attempts that run there end as lost."""

    engine: str
    worker: str
    incarnation: int


class ReleaseResources(Effect, frozen=True):
    """Free memory, descriptors and idle processes: an attempt ran out of resources."""


class ApprovalDecided(Effect, frozen=True):
    """An approval is over: the body that waits for it under `token` may go on."""

    token: int
    name: str
    record: ApprovalRecord


class EntityDropped(Effect, frozen=True):
    """The kernel has dropped a worker that ended long ago, or a breaker that nothing uses. id: of the entity.

    name, engine: of a worker.
    """

    id: str
    name: str = ""
    engine: str = ""


class MachineOver(Effect, frozen=True):
    """A `MachineActor` of that name has ended."""

    name: str


class ArmedTimer(Protocol):
    """An armed timer."""


class Port(Protocol):
    """The services that the kernel needs; the runtime, a simulator or a test provides them."""

    random: Random

    def now(self) -> float:
        """UTC epoch seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds of the monotonic clock, counted from an arbitrary beginning."""
        ...

    def arm(self, due: float, fire: TimerFired, *, by_utc: bool, named: bool = False) -> ArmedTimer:
        """Deliver `fire` as an input at `due` (UTC epoch seconds). The monotonic clock measures the time until then.
        by_utc: deliver it earlier if the wall clock reaches `due` first. named: only the wall clock decides.
        """
        ...

    @property
    def set_back(self) -> float:
        """Total seconds by which the wall clock was set back, as noticed by `now`."""
        ...

    def disarm(self, timer: ArmedTimer) -> None:
        """Cancel a timer."""
        ...

    def later(self, message: Message) -> None:
        """Deliver `message` later as an input of its own."""
        ...

    def placed(self, spec: Workstream) -> Workstream:
        """The specification from the journal, with its functions under the names that are used now."""
        ...

    def located(self, path: str, folder: str) -> str:
        """The present form of a journal's import path that is relative to a file in `folder`."""
        ...

    def travels(self, task: Task) -> bool:
        """Whether another machine can run the task: it runs a command, or a function with an import path."""
        ...

    def missing(self, task: Task) -> str:
        """The reason why a task's function cannot be found, in words."""
        ...

    def engine_of(self, task: Task) -> str:
        """The name of the engine that runs a task; `NO_ENGINE` while its function cannot be found."""
        ...

    def resolve(self, name: str) -> Callable[..., Any]:
        """The function with that import path or registered name. Raises LookupError if there is none."""
        ...

    def find(self, path: str) -> object:
        """The object at an import path. Raises LookupError if there is none."""
        ...

    def commit(self, turn: Transaction) -> None:
        """Commit a finished turn."""
        ...

    def probe(self, engine: str, worker: str, incarnation: int) -> None:
        """Probe a worker; it answers by a `WorkerBeat`. A worker that has ended or is frozen does not answer."""
        ...

    def tell_notice(self, notice: Notice) -> None:
        """Emit a notice at once. Raises nothing."""
        ...


class Receiver(Protocol):
    """The part of an actor that senders use."""

    def receive(self, message: Message) -> None:
        """Act on one message."""
        ...


class Transaction:
    """All changes and effects that one input caused."""

    __slots__ = (
        "before", "booked", "created", "effects", "extra", "leftover", "outbox_done", "queue", "rounds", "said_at",
        "specs", "specs_done", "transitions",
    )  # fmt: skip

    def __init__(self) -> None:
        self.queue: deque[tuple[Receiver, Message]] = deque()
        self.transitions: list[Transitioned] = []
        self.before: dict[Entity[Any], Record] = {}  # changed entities, each with its record before the turn
        self.created: list[Entity[Any]] = []
        self.extra: list[AnyRecord] = []  # attempts and outbox rows
        self.specs: list[tuple[int, bytes]] = []
        self.specs_done: list[int] = []  # keys of specifications that no new run will use
        self.outbox_done: list[int] = []
        self.rounds: list[EndedRound] = []
        self.booked: list[tuple[dict[Any, Any], Any, Any]] = []  # table, key, earlier entry or None
        self.effects: list[Effect] = []
        self.leftover: Job | None = None  # a job that is over and whose actors may now be released
        self.said_at: float | None = None  # when the user gave the command, if that was before it arrived here

    @property
    def records(self) -> list[AnyRecord]:
        """The records that the turn commits: the last one of each changed entity, and extra rows."""
        changed: list[AnyRecord] = [entity.record for entity in self.before]
        if self.created:
            changed += [entity.record for entity in self.created if entity not in self.before]
        changed += self.extra
        return changed


class CallOrder(msgspec.Struct, gc=False):
    """One order to an engine to run something. The engine reports its end under the call's token.

    The call of an attempt is its slot as well: it occupies a place on a worker until the task releases it.
    """

    key: int  # of the entity that the call belongs to
    kind: str  # body | condition | check | cancel_hook | hook | step
    index: int = 0  # of a check or cancel hook; of a step: the number of its run, among those of the body
    worker: int = 0  # key of the worker whose slot it occupies, if any
    gates: tuple[Any, ...] = ()  # the limits that it counts against: `ConcurrencyGate`s of `actors/workers/queues.py`
    task_id: str = ""
    share: Any = None  # of reservations: a `SlotShare` of `actors/workers/reservations.py`, or None
    asked: float = 0.0  # when an actor requested it (monotonic)
    heard: float | None = None  # when its engine got it, once it was durable (monotonic)
    excused: float = 0.0  # seconds between `asked` and `heard` that were added to its limit
    told: float | None = None  # when its engine last got an order to stop it (monotonic)
    body: int = 0  # of a step: the token of the body that has called it


class ToolUse(msgspec.Struct, frozen=True, eq=False):
    """The use of a tool by a step of a running body: it holds a unit of the tool, or waits for one.

    key: identifies the use for the breaker. number: of the use, among those of the attempt under `token`. step: the
    step's record, to which `actors/tasks/steps.py` adds the facts of the task. generation: that of the breaker when the
    step got the unit.
    """

    key: int
    token: int
    number: int
    task: int  # key of the task
    tool: str
    step: StepRecord
    reply: Reply  # answered with the step's record when it is known whether the step has to wait
    got: Reply  # answered when a step that had to wait has the unit
    waits: bool = False  # the step got the answer that it has to wait
    held: bool = False
    generation: int = 0


class StepCall(msgspec.Struct, frozen=True, eq=False):
    """A step of a running body that runs on a worker, or waits for one.

    number: of the run, among those of the body under `token`. step: its record, as in `ToolUse`. call: the token of its
    call; 0 while it waits.
    """

    token: int
    number: int
    task: int  # key of the task
    engine: str
    step: StepRecord
    moves: bool  # it may run on a cluster, if no other worker can run it
    reply: Reply  # gets the record whenever it changes
    call: int = 0


class LentSlot(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A slot whose attempt waits. reply: set once the attempt requests the slot back. goes_on: the attempt goes on
    without a slot, since its worker takes no new tasks.
    """

    slot: CallOrder
    reply: Reply | None = None
    goes_on: bool = False
