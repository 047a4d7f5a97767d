"""The kernel: runs the lifecycle actors in turns, and nothing else does.

Rules (DESIGN sections 7 and 8)
-----
- A *turn* is one input from outside and every message it causes, first in first out, until none is left. It is
  committed whole: transitions, records and effects. An actor never awaits, never reads a clock, never does I/O.
- What leaves the actors is an *effect* (run this, stop that, answer him). Effects are handed over with the turn and
  released by the runtime when the turn is durable.
- Records are immutable. The first change of an entity in a turn notes the record it had; if anything in the turn
  raises, those are put back and all that is derived from records is rebuilt by `rebuild`, which recovery uses too. The
  input then fails its entity (`TurnFailed`); if that fails as well the entity is left as it is, and said so.
- `fire` is the only way to change a state, and it goes through the entity's machine. On entering another state
  the actor's method `entered_<state>` is called, and there is no other hidden flow.
- A timer carries the epoch of the state that armed it. One that fires in a later state is stale: dropped and counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, cast

import msgspec
from msgspec.structs import replace

from ..machines import InvalidTransitionError, Machine, Transition
from .messages import (
    REBUILT,
    Beat,
    CallEnded,
    Command,
    Continue,
    Message,
    ProcessStarted,
    Reply,
    Submit,
    TimerFired,
    TurnFailed,
)
from .records import AnyRecord, OutboxRow, Record, Transitioned
from .spec import Defaults, Hook, Task

if TYPE_CHECKING:
    from .breaker import BreakerActor
    from .job import JobActor
    from .scheduler import Gate, SchedulerActor
    from .supervisor import SupervisorActor
    from .task import TaskActor
    from .worker import WorkerActor

observe_transition: Callable[[Machine, Transition], None] | None = None
"""Called with each row that an actor takes, where set: how the tests record which rows they took."""


# -- effects: what the runtime does once the turn is durable -----------------------------------------------------------


class Effect(msgspec.Struct, frozen=True, gc=False):
    """The base of all effects."""


class StartCall(Effect, frozen=True):
    """Run something for the entity `key`: its body, condition, or check number `index`."""

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


class RunHook(Effect, frozen=True):
    """Run a row of the outbox."""

    token: int
    row: OutboxRow


class JobOver(Effect, frozen=True):
    """A job is terminal: who waits for it may go on, and its actors may be let go."""

    job: JobActor


class Armed(Protocol):
    """A timer that was armed."""


class Port(Protocol):
    """What the kernel needs from the world; the runtime, a simulator or a test provides it."""

    random: Random

    def now(self) -> float:
        """UTC epoch seconds."""
        ...

    def arm(self, due: float, fire: TimerFired, *, by_utc: bool) -> Armed:
        """Have `fire` come back as an input at `due` (UTC epoch seconds), told by the wall clock or as a span from now."""
        ...

    def disarm(self, timer: Armed) -> None:
        """Forget a timer."""
        ...

    def later(self, message: Message) -> None:
        """Have `message` come back as an input of its own."""
        ...

    def engine_of(self, task: Task) -> str:
        """The name of the engine that runs a task."""
        ...

    def commit(self, turn: Turn) -> None:
        """Take a turn that is over."""
        ...

    def report(self, text: str, error: Exception | None = None) -> None:
        """Say that something is wrong with the runtime itself."""
        ...


class Receiver(Protocol):
    """An actor, as its senders see it."""

    def receive(self, message: Message) -> None:
        """Act on one message."""
        ...


class Turn:
    """What one input caused."""

    __slots__ = (
        "before", "claimed", "created", "effects", "extra", "outbox_done", "over", "queue", "specs", "transitions",
    )  # fmt: skip

    def __init__(self) -> None:
        self.queue: deque[tuple[Receiver, Message]] = deque()
        self.transitions: list[Transitioned] = []
        self.before: dict[Entity[Any], Record] = {}  # entities changed, with the record they had
        self.created: list[Entity[Any]] = []
        self.extra: list[AnyRecord] = []  # attempts and outbox rows
        self.specs: list[tuple[int, bytes]] = []
        self.outbox_done: list[int] = []
        self.claimed: list[int] = []  # tokens of calls begun
        self.over: dict[int, Call] = {}  # calls that have ended
        self.effects: list[Effect] = []

    @property
    def records(self) -> list[AnyRecord]:
        """The records it leaves behind, the last of each entity."""
        changed = [entity.record for entity in self.before]
        changed += [entity.record for entity in self.created if entity not in self.before]
        return changed + self.extra


class Call(msgspec.Struct, gc=False):
    """Something that an engine has been told to run, and whose end will come back under its token."""

    key: int  # of the entity it is for
    kind: str  # body | condition | check | hook
    index: int = 0
    worker: int = 0  # key of the worker whose slot it occupies, if any
    gates: tuple[Gate, ...] = ()  # the limits it counts against
    task_id: str = ""


RecordT = TypeVar("RecordT", bound=Record)


class Entity(Generic[RecordT]):
    """A lifecycle actor: the record of one entity, and what to do about each message.

    Subclasses name their machine, list which method receives which message, and have `entered_<state>` methods.
    """

    __slots__ = ("__weakref__", "kernel", "record", "timer")

    machine: ClassVar[Machine]
    receivers: ClassVar[dict[type[Message], str]]
    _receive: ClassVar[dict[type[Message], Callable[[Any, Any], None]]]
    _entered: ClassVar[dict[str, Callable[[Any], None]]]

    def __init_subclass__(cls) -> None:
        """Find the methods once: a message then costs one look-up."""
        if not hasattr(cls, "machine"):  # a base of several kinds
            return
        cls._receive = {message: getattr(cls, name) for message, name in cls.receivers.items()}
        cls._entered = {
            state: method
            for state in cls.machine.states
            if (method := getattr(cls, f"entered_{state}", None))
        }

    def __init__(self, kernel: Kernel, record: RecordT) -> None:
        self.kernel = kernel
        self.record: RecordT = record
        self.timer: Armed | None = None

    def __repr__(self) -> str:
        return f"<{self.record.kind} {self.record.id} {self.record.state}>"

    def receive(self, message: Message) -> None:
        """Act on one message. Raises KeyError for one that this kind of actor is never sent."""
        self._receive[type(message)](self, message)

    # -- change --------------------------------------------------------------------------------------------------------

    def fire(
        self,
        event: str,
        payload: object = None,
        *,
        reason: str | None = None,
        metadata: dict[str, Any] | None = None,
        **changes: Any,  # fields of the record, each checked by msgspec's replace
    ) -> None:
        """Fire `event` at the machine; with the row it takes go `changes` of the record. Raises InvalidTransitionError."""
        kernel = self.kernel
        before = self.record
        row = self.machine.transition(before.state, event, before, payload)
        if observe_transition is not None:
            observe_transition(self.machine, row)
        turn = kernel.turn
        turn.before.setdefault(self, before)
        seq = before.seq + 1
        moved = row.target != before.state
        now = kernel.at
        if moved:
            self.record = replace(
                before, state=row.target, previous_state=before.state, seq=seq, epoch=seq, updated_at=now,
                reason=reason, **changes,
            )  # fmt: skip
            if self.timer is not None:
                self.disarm()
        else:
            self.record = replace(before, seq=seq, updated_at=now, reason=reason, **changes)
        self.note(before.state, row.target, event, row.severity, reason, metadata)
        if moved and (entered := self._entered.get(row.target)) is not None:
            entered(self)

    def change(self, **changes: Any) -> None:  # fields of the record, checked by msgspec's replace
        """Change facts of the record without a transition."""
        before = self.record
        self.kernel.turn.before.setdefault(self, before)
        self.record = replace(before, **changes)

    def note(
        self,
        source: str | None,
        target: str,
        event: str,
        severity: str,
        reason: str | None,
        metadata: dict[str, Any] | None,
    ) -> None:
        """Write the transition that has just been made into the turn."""
        kernel = self.kernel
        record = self.record
        kernel.seq += 1
        job_id, workstream_id, attempt, worker_id = self.context()
        kernel.turn.transitions.append(
            Transitioned(
                kernel.seq, record.kind, record.id, record.seq, source, target, event, severity, kernel.at, reason,
                job_id, workstream_id, record.run, attempt, worker_id, metadata,
            )
        )  # fmt: skip

    def born(self, metadata: dict[str, Any] | None = None) -> None:
        """Journal the entity's creation, as a transition from nowhere."""
        self.kernel.turn.created.append(self)
        self.kernel.entities[self.record.key] = self
        self.note(None, self.record.state, "create", "info", None, metadata)

    def context(self) -> tuple[str | None, str | None, int | None, str | None]:
        """The ids of its job and workstream, its attempt's number and its worker's id, as far as it has them."""
        return None, None, None, None

    def wants(self, token: int) -> bool:  # noqa: ARG002 - most kinds run nothing
        """Whether what was to start under `token` should still start."""
        return False

    def job_over(self) -> JobActor | None:
        """Its job, if that is over but could not be let go yet."""
        return None

    @property
    def ended(self) -> bool:
        """Whether it is terminal."""
        return self.machine.is_terminal(self.record.state)

    def knows(self, event: str) -> bool:
        """Whether the present state has a row for `event`."""
        return event in self.machine.table[self.record.state]

    # -- time ----------------------------------------------------------------------------------------------------------

    def arm(self, due: float, *, by_utc: bool = False) -> None:
        """Have `TimerFired` come at `due` (UTC epoch seconds), unless the state is left before."""
        if self.timer is not None:
            self.disarm()
        self.timer = self.kernel.port.arm(due, TimerFired(self.record.key, self.record.epoch), by_utc=by_utc)

    def disarm(self) -> None:
        """Forget the timer of the present state."""
        if self.timer is not None:
            self.kernel.port.disarm(self.timer)
            self.timer = None


class Kernel:
    """The lifecycle actors of one runtime, and the turns they are run in. Made by `loading.make_kernel`."""

    def __init__(self, port: Port, defaults: Defaults) -> None:
        self.port = port
        self.defaults = defaults
        self.entities: dict[int, Entity[Any]] = {}
        self.jobs: dict[str, JobActor] = {}
        self.breakers: dict[str, BreakerActor] = {}
        self.workers: dict[int, WorkerActor] = {}
        self.calls: dict[int, Call] = {}
        self.incarnations: dict[str, int] = {}
        self.draining = False
        self.stale = 0
        self.key = 0
        self.seq = 0
        self.at = port.now()
        self.turn = Turn()
        self.supervisor: SupervisorActor
        self.scheduler: SchedulerActor

    # -- turns ---------------------------------------------------------------------------------------------------------

    def run(self, message: Message) -> None:
        """Run one turn. Never raises for what an actor does wrong: that turn is undone and its entity fails."""
        self.at = self.port.now()
        turn = self.turn = Turn()
        seq = self.seq
        try:
            self._begin(message)
            queue = turn.queue
            while queue:
                actor, told = queue.popleft()
                actor.receive(told)
        except Exception as error:
            self._undo(turn, seq, message, error)
            return
        self.port.commit(turn)

    def _begin(self, message: Message) -> None:
        """Hand an input to the actor it is for."""
        match message:
            case CallEnded() | Beat() | ProcessStarted():
                self._about_call(message)
            case Command(target=key, message=told, reply=reply):
                self._command(key, told, reply)
            case Continue(key=key):
                if (entity := self.entities.get(key)) is not None:
                    entity.receive(message)
            case _:
                self.supervisor.receive(message)

    def _about_call(self, message: CallEnded | Beat | ProcessStarted) -> None:
        call = self.calls.get(message.token)
        if call is None:
            self.stale += 1
            self.port.report(
                f"a {type(message).__name__} under fencing token {message.token} is stale: refused"
            )
            return
        if isinstance(message, ProcessStarted) and call.kind != "body":
            return  # only attempts are journaled with their process
        if call.kind == "hook":
            self.supervisor.receive(message)
            return
        entity = self.entities[call.key]
        entity.receive(message)
        if isinstance(message, CallEnded) and (job := entity.job_over()) is not None:
            self.let_go(job)

    def _command(self, key: int, message: Message, reply: Reply) -> None:
        """Run a user's command; what the state does not allow is a refusal, and changes nothing."""
        entity = self.entities.get(key)
        if entity is None:
            self.effect(
                Answer(reply, None, LookupError("it has ended, or was never here: look it up in the history"))
            )
            return
        try:
            entity.receive(message)
        except InvalidTransitionError as refusal:
            self.effect(Answer(reply, None, refusal))
        else:
            self.effect(Answer(reply))

    def _undo(self, turn: Turn, seq: int, message: Message, error: Exception) -> None:
        """Put back what the turn changed, and rebuild what is derived."""
        self.seq = seq
        for entity, record in turn.before.items():
            entity.record = record
        for entity in turn.created:
            self.forget(entity)
        for token in turn.claimed:
            self.calls.pop(token, None)
        self.calls |= turn.over
        self.rebuild()
        self.port.later(REBUILT)
        self.port.report(f"a turn of {type(message).__name__} raised {error!r} and was undone", error)
        if isinstance(message, TurnFailed):
            return
        if isinstance(message, Command | Submit):
            self.turn = Turn()
            self.effect(Answer(message.reply, None, error))
            self.port.commit(self.turn)
        text = f"{type(error).__name__}: {error}"
        match message:
            case CallEnded(token=token) if token in self.calls:
                self.port.later(TurnFailed(self.calls[token].key, text, token))
            case TimerFired(key=key) | Continue(key=key):
                self.port.later(TurnFailed(key, text))
            case _:
                pass

    def rebuild(self) -> None:
        """Make everything that is derived from records again, from the records: after recovery, or an undone turn."""
        self.scheduler.clear()
        for entity in self.entities.values():
            entity.disarm()
        for worker in self.workers.values():
            worker.used = 0
        for breaker in self.breakers.values():
            breaker.clear()
        for job in self.jobs.values():
            job.rebuild()
        for call in self.calls.values():
            if call.worker:
                self.scheduler.occupy(cast("TaskActor", self.entities[call.key]), call)

    def begin_call(self, kind: str, key: int, *, index: int = 0, slot: Call | None = None) -> int:
        """Have an engine run something for the entity `key`. Returns its token; `slot` is what the scheduler lent."""
        token = self.number()
        call = slot or Call(key, kind, index)
        self.calls[token] = call
        self.turn.claimed.append(token)
        self.effect(StartCall(token, key, kind, index))
        return token

    def end_call(self, token: int) -> Call | None:
        """Take a call that is over out of the books."""
        call = self.calls.pop(token, None)
        if call is not None:
            self.turn.over[token] = call
        return call

    def stop_call(self, token: int, *, force: bool = False) -> None:
        """Have a call stopped, if it runs."""
        if token in self.calls:
            self.effect(StopCall(token, force))

    def keep_hook(self, entity: Entity[Any], hook: Hook, event: str) -> None:
        """Have a hook of an ended entity run at least once, whatever happens: its row commits with the transition."""
        record = entity.record
        context = {
            "event": event, "entity_id": record.id, "name": record.name, "state": str(record.state), "reason": record.reason,
            "job_id": entity.context()[0],
        }  # fmt: skip
        row = OutboxRow(
            key=self.number(), owner=record.id, event=event, body=msgspec.Raw(msgspec.json.encode(hook)),
            context=msgspec.Raw(msgspec.json.encode(context)),
        )  # fmt: skip
        self.calls[row.key] = Call(0, "hook")
        self.turn.claimed.append(row.key)
        self.turn.extra.append(row)
        self.effect(RunHook(row.key, row))

    # -- what actors use -----------------------------------------------------------------------------------------------

    def send(self, actor: Receiver, message: Message) -> None:
        """Send a message to another actor; it is received later in this turn."""
        self.turn.queue.append((actor, message))

    def effect(self, effect: Effect) -> None:
        """Have the runtime do something once the turn is durable."""
        self.turn.effects.append(effect)

    def number(self) -> int:
        """A new key or fencing token: greater than every one before."""
        self.key += 1
        return self.key

    def numbers(self, count: int) -> int:
        """Reserve `count` keys in a row. Returns the first."""
        first = self.key + 1
        self.key += count
        return first

    def let_go(self, job: JobActor) -> None:
        """Let the actors of a job go that has ended durably, once nothing of it runs."""
        job.over = True
        stream = job.stream
        if stream is not None:
            keys = range(stream.record.first_task, stream.record.first_task + stream.record.task_count)
            if any(call.key in keys for call in self.calls.values()):
                return
            for task in stream.tasks:
                self.forget(task)
            stream.disarm_all()
            self.forget(stream)
            self.scheduler.streams.pop(stream.record.key, None)
        self.forget(job)
        self.jobs.pop(job.record.id, None)

    def forget(self, entity: Entity[Any]) -> None:
        """Let an entity go: it is terminal and durable, or was never committed."""
        entity.disarm()
        self.entities.pop(entity.record.key, None)
