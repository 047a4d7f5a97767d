"""The kernel: runs the lifecycle actors in turns, and nothing else does.

Rules (DESIGN sections 7 and 8)
-----
- A *turn* is one input from outside and every message it causes, first in first out, until none is left. It is
  committed whole: transitions, records and effects. An actor never awaits, never reads a clock, never does I/O.
- What leaves the actors is an *effect* (run this, stop that, answer him). Effects are handed over with the turn and
  released by the runtime when the turn is durable.
- Records are immutable. The first change of an entity in a turn notes the record it had; if anything in the turn
  raises, those are put back and all that is derived from records is rebuilt by `rebuild`, which recovery uses too. The
  input then fails its entity (`TurnFailed`). Where it was another task that raised, that one fails and the input is run
  again. If failing fails as well, the entity is left as it is, out of the queue and without timers, and said so.
- `fire` is the only way to change a state, and it goes through the entity's machine. On entering another state
  the actor's method `entered_<state>` is called, and there is no other hidden flow.
- A record's `due_at` is armed as long as it stands there, and leaving the state clears it. A timer carries the epoch of
  the state that armed it: one that fires in a later state is stale, dropped and counted.
- A call is what an engine was told to run; a slot is what an attempt occupies of a worker. A call is over when the
  engine says so, a slot when its task gives it back.
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
    Rebuilt,
    Recover,
    Release,
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
        """Have `fire` come back as an input at `due` (UTC epoch seconds), by the wall clock or as a span from now."""
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

    def resolve(self, name: str) -> Callable[..., Any]:
        """The function of that path or registered name. Raises LookupError if there is none."""
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
        "before", "booked", "created", "effects", "extra", "leftover", "outbox_done", "queue", "specs", "transitions",
    )  # fmt: skip

    def __init__(self) -> None:
        self.queue: deque[tuple[Receiver, Message]] = deque()
        self.transitions: list[Transitioned] = []
        self.before: dict[Entity[Any], Record] = {}  # entities changed, with the record they had
        self.created: list[Entity[Any]] = []
        self.extra: list[AnyRecord] = []  # attempts and outbox rows
        self.specs: list[tuple[int, bytes]] = []
        self.outbox_done: list[int] = []
        self.booked: list[tuple[dict[int, Call], int, Call | None]] = []  # a book changed, where, and what was there
        self.effects: list[Effect] = []
        self.leftover: JobActor | None = None  # a job that is over and may now be let go

    @property
    def records(self) -> list[AnyRecord]:
        """The records it leaves behind, the last of each entity."""
        changed = [entity.record for entity in self.before]
        if self.created:
            changed += [entity.record for entity in self.created if entity not in self.before]
        return changed + self.extra


class Call(msgspec.Struct, gc=False):
    """Something that an engine has been told to run, and whose end will come back under its token.

    That of an attempt is its slot as well: what it occupies of a worker, until the task gives it back.
    """

    key: int  # of the entity it is for
    kind: str  # body | condition | check | hook
    index: int = 0
    worker: int = 0  # key of the worker whose slot it is, if any
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
    by_utc: ClassVar[frozenset[str]] = frozenset()  # states whose due times are told by the wall clock
    _receive: ClassVar[dict[type[Message], Callable[[Any, Any], None]]]
    _entered: ClassVar[dict[str, Callable[[Any], None]]]
    _terminal: ClassVar[frozenset[str]]

    def __init_subclass__(cls) -> None:
        """Find the methods once: a message then costs one look-up."""
        if not hasattr(cls, "machine"):  # a base of several kinds
            return
        cls._receive = {message: getattr(cls, name) for message, name in cls.receivers.items()}
        states = cls.machine.states
        cls._entered = {state: method for state in states if (method := getattr(cls, f"entered_{state}", None))}
        cls._terminal = frozenset(state for state in states if cls.machine.is_terminal(state))

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

    def fire(  # noqa: PLR0917 - keywords that are parameters cost nothing here, and this is the hot path
        self,
        event: str,
        changed: RecordT | None = None,
        payload: object = None,
        reason: str | None = None,
        metadata: dict[str, Any] | None = None,
        due_at: float | None = None,
    ) -> None:
        """Fire `event` at the machine. Raises InvalidTransitionError, and nothing has changed then.

        changed: the record with the facts that change along with the state (the guards see it as it was). due_at: when
        the timed event of the state that is entered fires; not said, it has none (yet).
        """
        kernel, before = self.kernel, self.record
        state = before.state
        for row in self.machine.table[state].get(event, ()):
            if row.guard is None or row.guard(before, payload):
                break
        else:
            row = self.machine.transition(state, event, before, payload)  # which raises, saying why
        if observe_transition is not None:
            observe_transition(self.machine, row)
        turn = kernel.turn
        if self not in turn.before:
            turn.before[self] = before
        target, seq, now = row.target, before.seq + 1, kernel.at
        moved = target != state
        if moved:
            if self.timer is not None:
                self.disarm()
            record = replace(
                changed or before, state=target, previous_state=state, seq=seq, epoch=seq, updated_at=now,
                reason=reason, due_at=due_at,
            )  # fmt: skip
        else:
            record = replace(changed or before, seq=seq, updated_at=now, reason=reason)
        self.record = record
        number = kernel.seq = kernel.seq + 1
        job_id, workstream_id, attempt, worker_id = self.context()
        turn.transitions.append(
            Transitioned(
                number, record.kind, record.id, seq, state, target, event, row.severity, now, reason, job_id,
                workstream_id, record.run, attempt, worker_id, metadata,
            )
        )  # fmt: skip
        if moved:
            if due_at is not None:
                self.arm(due_at)
            entered = self._entered.get(target)
            if entered is not None:
                entered(self)

    def change(self, **changes: Any) -> None:  # fields of the record, checked by msgspec's replace
        """Change facts of the record without a transition."""
        before = self.record
        self.kernel.turn.before.setdefault(self, before)
        self.record = replace(before, **changes)

    def born(self, metadata: dict[str, Any] | None = None) -> None:
        """Journal the entity's creation, as a transition from nowhere."""
        kernel, record = self.kernel, self.record
        kernel.turn.created.append(self)
        kernel.entities[record.key] = self
        kernel.seq += 1
        job_id, workstream_id, attempt, worker_id = self.context()
        kernel.turn.transitions.append(
            Transitioned(
                kernel.seq, record.kind, record.id, record.seq, None, record.state, "create", "info", kernel.at, None,
                job_id, workstream_id, record.run, attempt, worker_id, metadata,
            )
        )  # fmt: skip

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
        return self.record.state in self._terminal

    def knows(self, event: str) -> bool:
        """Whether the present state has a row for `event`."""
        return event in self.machine.table[self.record.state]

    # -- time ----------------------------------------------------------------------------------------------------------

    def wait_until(self, due: float) -> None:
        """Set when the present state's timed event fires (UTC epoch seconds)."""
        self.change(due_at=due)
        self.arm(due)

    def arm(self, due: float) -> None:
        """Have `TimerFired` come at `due` (UTC epoch seconds), unless the state is left before."""
        if self.timer is not None:
            self.disarm()
        record = self.record
        by_utc = record.state in self.by_utc
        self.timer = self.kernel.port.arm(due, TimerFired(record.key, record.epoch), by_utc=by_utc)

    def arm_again(self) -> None:
        """Arm what the record says is due."""
        if self.record.due_at is not None and not self.ended:
            self.arm(self.record.due_at)

    def disarm(self) -> None:
        """Forget the timer of the present state."""
        if self.timer is not None:
            self.kernel.port.disarm(self.timer)
            self.timer = None

    def disarm_all(self) -> None:
        """Forget every timer it has."""
        self.disarm()


class Kernel:
    """The lifecycle actors of one runtime, and the turns they are run in. Made by `loading.make_kernel`."""

    def __init__(self, port: Port, defaults: Defaults) -> None:
        self.port = port
        self.defaults = defaults
        self.entities: dict[int, Entity[Any]] = {}
        self.jobs: dict[str, JobActor] = {}
        self.breakers: dict[str, BreakerActor] = {}
        self.workers: dict[int, WorkerActor] = {}
        self.calls: dict[int, Call] = {}  # by token: what engines run
        self.slots: dict[int, Call] = {}  # by token: what attempts occupy of workers
        self.incarnations: dict[str, int] = {}
        self.draining = False
        self.stale = 0
        self.key = 0
        self.seq = 0
        self.at = port.now()
        self.turn = Turn()
        self.blamed: set[int] = set()  # tasks that failed another's turn
        self.stuck: set[int] = set()  # entities that could not even be failed
        self.supervisor: SupervisorActor
        self.scheduler: SchedulerActor

    # -- turns ---------------------------------------------------------------------------------------------------------

    def run(self, message: Message) -> None:
        """Run an input. Never raises for what an actor does wrong: that turn is undone and its entity fails."""
        self._run_turn(message)
        if isinstance(message, Recover) and not message.key:  # a job that cannot be recovered takes no other with it
            for job in list(self.jobs.values()):
                self._run_turn(Recover(job.record.key))

    def _run_turn(self, message: Message) -> None:
        self.at = self.port.now()
        turn = self.turn = Turn()
        seq = self.seq
        actor: Receiver | None = None
        try:
            self._begin(message)
            queue = turn.queue
            while queue:
                actor, told = queue.popleft()
                actor.receive(told)
        except Exception as error:
            self._undo(turn, seq, message, actor, error)
            return
        self.port.commit(turn)
        if turn.leftover is not None:
            self.let_go(turn.leftover)

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
            self.port.report(f"a {type(message).__name__} under fencing token {message.token} is stale: refused")
            return
        if isinstance(message, ProcessStarted) and call.kind != "body":
            return  # only attempts are journaled with their process
        if not isinstance(message, CallEnded):
            if call.kind == "body":  # of conditions, checks and hooks neither is kept
                self.entities[call.key].receive(message)
        elif call.kind == "hook":
            self.supervisor.receive(message)
        else:
            entity = self.entities[call.key]
            entity.receive(message)
            self.turn.leftover = entity.job_over()

    def _command(self, key: int, message: Message, reply: Reply) -> None:
        """Run a user's command; what the state does not allow is a refusal, and changes nothing."""
        entity = self.entities.get(key)
        if entity is None:
            self.effect(Answer(reply, None, LookupError("it has ended, or was never here: look it up in the history")))
            return
        try:
            entity.receive(message)
        except InvalidTransitionError as refusal:
            if self.turn.before or self.turn.queue:  # half of it is done already
                raise
            self.effect(Answer(reply, None, refusal))
        else:
            self.effect(Answer(reply))

    # -- when a turn raises --------------------------------------------------------------------------------------------

    def _undo(self, turn: Turn, seq: int, message: Message, actor: Receiver | None, error: Exception) -> None:
        """Put back what the turn changed, rebuild what is derived, and have somebody answer for it."""
        self._put_back(turn, seq)
        self.port.report(f"a turn of {type(message).__name__} raised {error!r} and was undone", error)
        if isinstance(message, TurnFailed):
            self._give_up(message)
        self.rebuild()
        answers = isinstance(message, Command | Submit)
        if isinstance(message, Command | Submit):
            self.turn = Turn()
            self.effect(Answer(message.reply, None, error))
            self.port.commit(self.turn)
        text = f"{type(error).__name__}: {error}"
        culprit = self._culprit(actor)
        key, token = self._input_of(message)
        if culprit and culprit != key:
            self.blamed.add(culprit)
            self.port.later(TurnFailed(culprit, text))
            if not answers:
                self.port.later(message)
        elif key and not isinstance(message, TurnFailed):
            self.port.later(TurnFailed(key, text, token))
        if not isinstance(message, Rebuilt):
            self.port.later(REBUILT)

    def _put_back(self, turn: Turn, seq: int) -> None:
        self.seq = seq
        for entity, record in turn.before.items():
            entity.record = record
        for entity in turn.created:
            self.forget(entity)
        for book, token, call in reversed(turn.booked):
            if call is None:
                book.pop(token, None)
            else:
                book[token] = call

    def _give_up(self, message: TurnFailed) -> None:
        """Not even failing worked: leave the entity as it is, where it does no harm."""
        self.stuck.add(message.key)
        self.calls.pop(message.token, None)

    def _culprit(self, actor: Receiver | None) -> int:
        """The key of the task that raised, where it was one and has not been blamed before; else 0."""
        record: Record | None = getattr(actor, "record", None)
        if record is None or record.kind != "task" or record.key in self.blamed or record.key in self.stuck:
            return 0
        return record.key if record.key in self.entities else 0

    def _input_of(self, message: Message) -> tuple[int, int]:
        """The key of the entity that an input is for, and the token of the call whose end it is; 0 for none."""
        match message:
            case CallEnded(token=token) if token in self.calls:
                return self.calls[token].key, token
            case TimerFired(key=key) | Continue(key=key) | Recover(key=key) | TurnFailed(key=key):
                return key, 0
            case _:
                return 0, 0

    def rebuild(self) -> None:
        """Make everything that is derived from records again, from the records: after recovery, or an undone turn."""
        self.scheduler.clear()
        entities = list(self.entities.values())
        self.jobs = {entity.record.id: cast("JobActor", entity) for entity in entities if entity.record.kind == "job"}
        self.breakers = {
            entity.record.name: cast("BreakerActor", entity) for entity in entities if entity.record.kind == "breaker"
        }
        self.workers = {
            entity.record.key: cast("WorkerActor", entity)
            for entity in entities
            if entity.record.kind == "worker" and not entity.ended
        }
        asked = {call.key: token for token, call in self.calls.items() if call.kind in {"condition", "check"}}
        for entity in entities:
            entity.disarm_all()
        for worker in self.workers.values():
            worker.used, worker.pools = 0, []
        for breaker in self.breakers.values():
            breaker.clear()
        for job in self.jobs.values():
            job.rebuild(asked)
        for slot in self.slots.values():
            self.scheduler.occupy(cast("TaskActor", self.entities[slot.key]), slot)
        for key in self.stuck:
            self.entities[key].disarm_all()

    # -- calls and slots -----------------------------------------------------------------------------------------------

    def begin_call(self, kind: str, key: int, *, index: int = 0, slot: Call | None = None) -> int:
        """Have an engine run something for the entity `key`. Returns its token; `slot` is what the scheduler lent."""
        token = self.number()
        turn = self.turn
        self.calls[token] = slot or Call(key, kind, index)
        turn.booked.append((self.calls, token, None))
        if slot is not None:
            self.slots[token] = slot
            turn.booked.append((self.slots, token, None))
        turn.effects.append(StartCall(token, key, kind, index))
        return token

    def end_call(self, token: int) -> Call | None:
        """Take a call that is over out of the books."""
        call = self.calls.pop(token, None)
        if call is not None:
            self.turn.booked.append((self.calls, token, call))
        return call

    def stop_call(self, token: int, *, force: bool = False) -> None:
        """Have a call stopped, if it runs."""
        if token in self.calls:
            self.effect(StopCall(token, force))

    def free_slot(self, token: int) -> None:
        """Give back what the attempt under `token` occupies, if it still does."""
        slot = self.slots.pop(token, None)
        if slot is not None:
            self.turn.booked.append((self.slots, token, slot))
            self.send(self.workers.get(slot.worker) or self.scheduler, Release(slot.key, slot))

    def keep_hook(self, entity: Entity[Any], hook: Hook, event: str) -> None:
        """Have a hook of an ended entity run at least once, whatever happens: its row commits with the transition."""
        record = entity.record
        context = {
            "event": event, "entity_id": record.id, "name": record.name, "state": str(record.state),
            "reason": record.reason, "job_id": entity.context()[0],
        }  # fmt: skip
        row = OutboxRow(
            key=self.number(), owner=record.id, event=event, body=msgspec.Raw(msgspec.json.encode(hook)),
            context=msgspec.Raw(msgspec.json.encode(context)),
        )  # fmt: skip
        self.run_hook(row)

    def run_hook(self, row: OutboxRow) -> None:
        """Write a row of the outbox, and have its hook run."""
        self.calls[row.key] = Call(0, "hook")
        self.turn.booked.append((self.calls, row.key, None))
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
            first, last = stream.record.first_task, stream.record.first_task + stream.record.task_count
            if any(first <= call.key < last or call.key == stream.record.key for call in self.calls.values()):
                return
            for task in stream.tasks:
                self.forget(task)
            self.forget(stream)
            self.scheduler.forget(stream.record.key)
        self.forget(job)
        self.jobs.pop(job.record.id, None)

    def forget(self, entity: Entity[Any]) -> None:
        """Let an entity go: it is terminal and durable, or was never committed."""
        entity.disarm_all()
        self.entities.pop(entity.record.key, None)
        self.stuck.discard(entity.record.key)
        self.blamed.discard(entity.record.key)
