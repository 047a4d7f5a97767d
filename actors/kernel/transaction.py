"""What a turn is made of: the effects that leave it, the calls it starts, and the world it is run in.

Rules
-----
- What leaves the actors is an *effect* (run this, stop that, answer him). Effects are handed over with the turn and
  released by the runtime when the turn is durable.
- A call is what an engine was told to run; a slot is what an attempt occupies of a worker. A call is over when the
  engine says so, a slot when its task gives it back.
- `Port` is all that the actors see of the world.
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
from ..records.transition import Transitioned
from ..spec.model import Task, Workstream

if TYPE_CHECKING:
    from ..jobs.job import JobActor
    from ..workers.queues import Gate
    from ..workers.reservations import Lent, Share
    from .entity import Entity

NO_ENGINE = "none"
"""The engine of a task whose function is not there: no worker has it, so the task is unroutable."""


def folder_of(stream: Workstream, task: Task | None) -> str:
    """The folder of a command: the task's own over the workstream's over the present one."""
    return str(PurePath(stream.cwd or ".", (task.cwd if task is not None else None) or "."))


# -- effects: what the runtime does once the turn is durable -----------------------------------------------------------


class Effect(msgspec.Struct, frozen=True, gc=False):
    """The base of all effects."""


class StartCall(Effect, frozen=True):
    """Run something for the entity `key`: its body, condition, or its check or cancel hook number `index`."""

    token: int
    key: int
    kind: str
    index: int = 0


class StopCall(Effect, frozen=True):
    """Stop what runs under `token`, politely or (`force`) at once."""

    token: int
    force: bool = False


class Answer(Effect, frozen=True):
    """Answer a command, with a value or with a refusal."""

    reply: Reply
    value: Any = None
    error: Exception | None = None


class Tell(Effect, frozen=True):
    """Tell of something that no transition tells."""

    notice: Notice


class RunHook(Effect, frozen=True):
    """Run a row of the outbox."""

    token: int
    row: OutboxRow


class StartWorker(Effect, frozen=True):
    """Have an engine know a new incarnation of a worker. The answer is a `WorkerBeat`; a process starts when needed."""

    engine: str
    worker: str
    incarnation: int


class StopWorker(Effect, frozen=True):
    """Have an incarnation's process end what it runs and then itself; it is killed after `deadline` seconds."""

    engine: str
    worker: str
    incarnation: int
    deadline: float


class KillWorker(Effect, frozen=True):
    """Have an incarnation's process killed. What runs there ends as lost."""

    engine: str
    worker: str
    incarnation: int


class ReleaseResources(Effect, frozen=True):
    """Have memory, descriptors and idle processes given back: something ran out of them."""


class Decided(Effect, frozen=True):
    """An approval is over: the body that waits for it under `token` may go on."""

    token: int
    name: str
    record: ApprovalRecord


class JobOver(Effect, frozen=True):
    """A job is terminal: who waits for it may go on, and its actors may be let go."""

    job: JobActor


class TakenOver(Effect, frozen=True):
    """These jobs were another node's, and go on here. seq: no transition of theirs had a higher number before."""

    jobs: list[JobActor]
    seq: int


class LetGo(Effect, frozen=True):
    """A worker that ended long ago, or a breaker that nothing uses, is known here no more. id: which.

    name, engine: of a worker.
    """

    id: str
    name: str = ""
    engine: str = ""


class MachineOver(Effect, frozen=True):
    """A `MachineActor` of that name has ended."""

    name: str


class Armed(Protocol):
    """A timer that was armed."""


class Port(Protocol):
    """What the kernel needs from the world; the runtime, a simulator or a test provides it."""

    random: Random

    def now(self) -> float:
        """UTC epoch seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds of a clock that nobody sets, from any beginning."""
        ...

    def arm(self, due: float, fire: TimerFired, *, by_utc: bool, named: bool = False) -> Armed:
        """Have `fire` come back as an input at `due` (UTC epoch seconds): after so many seconds of a clock that nobody
        sets, or (by_utc) also when the wall clock says so before; named: a moment that the wall clock alone tells.
        """
        ...

    @property
    def set_back(self) -> float:
        """Seconds by which the wall clock was set back in all, as far as `now` has seen."""
        ...

    def disarm(self, timer: Armed) -> None:
        """Forget a timer."""
        ...

    def later(self, message: Message) -> None:
        """Have `message` come back as an input of its own."""
        ...

    def placed(self, spec: Workstream) -> Workstream:
        """A specification of the journal, with its functions named as they are kept now."""
        ...

    def located(self, path: str, folder: str) -> str:
        """An import path of the journal that is said beside a file of that folder, as it is kept now."""
        ...

    def travels(self, task: Task) -> bool:
        """Whether another machine can find what a task runs: a command, or a function that has an import path."""
        ...

    def missing(self, task: Task) -> str:
        """Why a task's function cannot be found, in words."""
        ...

    def engine_of(self, task: Task) -> str:
        """The name of the engine that runs a task; `NO_ENGINE` while its function cannot be found."""
        ...

    def resolve(self, name: str) -> Callable[..., Any]:
        """The function of that path or registered name. Raises LookupError if there is none."""
        ...

    def find(self, path: str) -> object:
        """What stands under an import path. Raises LookupError if there is nothing."""
        ...

    def commit(self, turn: Transaction) -> None:
        """Take a turn that is over."""
        ...

    def probe(self, engine: str, worker: str, incarnation: int) -> None:
        """Ask a worker whether it lives; the answer is a `WorkerBeat`. One that is dead or frozen does not answer."""
        ...

    def tell_notice(self, notice: Notice) -> None:
        """Tell of something at once. Raises nothing."""
        ...


class Receiver(Protocol):
    """An actor, as its senders see it."""

    def receive(self, message: Message) -> None:
        """Act on one message."""
        ...


class Transaction:
    """What one input caused."""

    __slots__ = (
        "before", "booked", "created", "effects", "extra", "leftover", "outbox_done", "queue", "said_at", "specs",
        "specs_done", "transitions",
    )  # fmt: skip

    def __init__(self) -> None:
        self.queue: deque[tuple[Receiver, Message]] = deque()
        self.transitions: list[Transitioned] = []
        self.before: dict[Entity[Any], Record] = {}  # entities changed, with the record they had
        self.created: list[Entity[Any]] = []
        self.extra: list[AnyRecord] = []  # attempts and outbox rows
        self.specs: list[tuple[int, bytes]] = []
        self.specs_done: list[int] = []  # what nothing new will run by
        self.outbox_done: list[int] = []
        self.booked: list[tuple[dict[int, Any], int, Call | Lent | None]] = []  # a book, where, and what was there
        self.effects: list[Effect] = []
        self.leftover: JobActor | None = None  # a job that is over and may now be let go
        self.said_at: float | None = None  # when its command was given, where that was before it came here

    @property
    def records(self) -> list[AnyRecord]:
        """The records it leaves behind, the last of each entity."""
        changed: list[AnyRecord] = [entity.record for entity in self.before]
        if self.created:
            changed += [entity.record for entity in self.created if entity not in self.before]
        changed += self.extra
        return changed


class Call(msgspec.Struct, gc=False):
    """Something that an engine has been told to run, and whose end will come back under its token.

    That of an attempt is its slot as well: what it occupies of a worker, until the task gives it back.
    """

    key: int  # of the entity it is for
    kind: str  # body | condition | check | cancel_hook | hook
    index: int = 0
    worker: int = 0  # key of the worker whose slot it is, if any
    gates: tuple[Gate, ...] = ()  # the limits it counts against
    task_id: str = ""
    share: Share | None = None  # of reservations
    asked: float = 0.0  # when it was asked for (monotonic)
    heard: float | None = None  # when its engine heard of that: once it was durable
    excused: float = 0.0  # seconds of those between, that were added to its limit
    told: bool = False  # its engine was told to stop it
