"""The entity: the base of every lifecycle actor. It has a record, a machine, and a function for each message.

Rules
-----
- `fire` is the only way to change a state, and it goes through the entity's machine. When an entity enters another
  state, `fire` calls the function that the table `when_entered` names for it. There is no other hidden flow.
- Records are immutable. The first change of an entity in a turn saves its earlier record, so that it can be restored.
- Due times are kept in UTC. If the wall clock is set back, they are set back with it, so that no wait becomes longer,
  here or after a restart.
- While a record has a `due_at`, a timer is armed for it; leaving the state clears both. A timer carries the epoch of
  the state that armed it: a timer that fires in a later state is stale, and is dropped and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from msgspec.structs import force_setattr as put
from msgspec.structs import replace

from ...machines import Machine
from ..messages.inputs import Message, TimerFired
from ..records.base import Record
from ..records.transition import Transitioned
from . import observing
from .publishing import publish, publish_birth, with_untold
from .transaction import ArmedTimer

if TYPE_CHECKING:
    from .contract import Job
    from .kernel import Kernel

WORDS = frozenset({"retry", "skip", "resume", "start"})
"""Commands of users that are no events of a machine, but are refused like events."""

RecordT = TypeVar("RecordT", bound=Record)
Receivers = dict[type[Message], Callable[[Any, Any], None]]
"""The function for each type of message; it gets the actor and the message."""
States = dict[str, Callable[[Any], None]]
"""The function for each state; it gets the actor."""


class EntityOperations(Protocol):
    """The part of an entity that shared parts use, such as checks and holds."""

    kernel: Kernel
    record: Any

    def fire(  # noqa: D102, PLR0917 - as `Entity` has it
        self, event: str, changed: Any = None, payload: object = None, reason: str | None = None,
        metadata: dict[str, Any] | None = None, due_at: float | None = None,
    ) -> None: ...  # fmt: skip

    def change(self, **changes: Any) -> None: ...  # noqa: D102

    def wait_until(self, due: float) -> None: ...  # noqa: D102

    def disarm(self) -> None: ...  # noqa: D102

    def context(self) -> tuple[str | None, str | None, int | None, str | None]: ...  # noqa: D102


class Entity(Generic[RecordT]):
    """A lifecycle actor: the record of one entity, and a function for each message.

    Subclasses name their machine, and have three tables of functions: by message, by state entered, by state due.
    """

    __slots__ = ("kernel", "record", "timer")

    machine: ClassVar[Machine]
    receivers: ClassVar[Receivers]  # called with a message of that type
    when_entered: ClassVar[States] = {}  # called when that state is entered from another one
    when_due: ClassVar[States] = {}  # called when the timer of that state has fired
    by_utc: ClassVar[frozenset[str]] = frozenset()  # states that are due when the wall clock says so, too
    moments: ClassVar[
        tuple[str, ...]
    ] = ()  # the record's fields, beside `due_at`, that hold times from which spans are counted
    _terminal: ClassVar[frozenset[str]]
    _events: ClassVar[frozenset[str]]

    def __init_subclass__(cls) -> None:
        """Check that the tables name only states of the machine. Raises TypeError if one names another state."""
        if not hasattr(cls, "machine"):  # each entity of such a class has a machine of its own
            return
        states = cls.machine.states
        if unknown := {*cls.when_entered, *cls.when_due} - states.keys():
            raise TypeError(f"{cls.__name__} has functions for {sorted(unknown)}: its machine has no such states")
        cls._terminal = frozenset(state for state in states if cls.machine.is_terminal(state))
        cls._events = frozenset(str(row.event) for row in cls.machine.transitions) | WORDS

    def __init__(self, kernel: Kernel, record: RecordT) -> None:
        self.kernel = kernel
        self.record: RecordT = record
        self.timer: ArmedTimer | None = None

    def __repr__(self) -> str:
        return f"<{self.record.kind} {self.record.id} {self.record.state}>"

    def receive(self, message: Message) -> None:
        """Act on one message. Raises KeyError if this kind of actor does not receive messages of its type."""
        self.receivers[type(message)](self, message)

    # -- change --------------------------------------------------------------------------------------------------------

    def wait_failed(self, text: str, error: Exception) -> None:
        """Report that this entity's `Retry(wait=...)` function raised, or returned no number."""
        self.kernel.notice_at_once("wait_failed", "error", text, self, error)

    def fire(  # noqa: PLR0912, PLR0917 - calls and keywords cost something here, and this is the hot path
        self,
        event: str,
        changed: RecordT | None = None,
        payload: object = None,
        reason: str | None = None,
        metadata: dict[str, Any] | None = None,
        due_at: float | None = None,
    ) -> None:
        """Fire `event` at the machine. Raises InvalidTransitionError; then nothing has changed.

        changed: the record with the facts that change together with the state (guards see the record before the
        change). due_at: when the timed event of the entered state fires (UTC epoch seconds); None: it has none (yet).
        """
        kernel, before = self.kernel, self.record
        state = before.state
        for row in self.machine.table[state].get(event, ()):
            if row.guard is None or row.guard(before, payload):
                break
        else:
            row = self.machine.transition(state, event, before, payload)  # raises an error that says why
        if observing.observe_transition is not None:
            observing.observe_transition(self.machine, row)
        turn = kernel.turn
        if self not in turn.before:
            turn.before[self] = before
        target, seq, now = row.target, before.seq + 1, kernel.at
        moved = target != state
        record = replace(before) if changed is None or changed is before else changed
        put(record, "seq", seq)
        put(record, "updated_at", now)
        if record.reason is not reason:
            put(record, "reason", reason)
        if moved:
            if self.timer is not None:
                self.disarm()
            put(record, "state", target)
            put(record, "previous_state", state)
            put(record, "epoch", seq)
            if record.due_at is not due_at:
                put(record, "due_at", due_at)
        self.record = record
        if record.published is None:
            if record.untold:
                metadata = with_untold(metadata, record.untold)
                self.record = record = replace(record, untold=())
            number = kernel.seq = kernel.seq + 1
            job_id, workstream_id, attempt, worker_id = self.context()
            turn.transitions.append(
                Transitioned(
                    number, record.kind, record.id, seq, state, target, event, row.severity, now, reason, job_id,
                    workstream_id, record.run, attempt, worker_id, metadata,
                )
            )  # fmt: skip
        else:
            publish(self, before, row, payload, metadata)
        if moved:
            if due_at is not None:
                self.arm(due_at)
            entered = self.when_entered.get(target)
            if entered is not None:
                entered(self)

    def change(self, **changes: Any) -> None:  # fields of the record, checked by msgspec's replace
        """Change facts of the record without a transition."""
        before = self.record
        self.kernel.turn.before.setdefault(self, before)
        self.record = replace(before, **changes)

    def born(self, metadata: dict[str, Any] | None = None, made: Callable[..., Transitioned] = Transitioned) -> None:
        """Journal the entity's creation, as a transition without a source state. made: builds the transition."""
        kernel, record = self.kernel, self.record
        kernel.turn.created.append(self)
        kernel.entities[record.key] = self
        if record.published is not None:
            publish_birth(self, metadata)
            return
        kernel.seq += 1
        job_id, workstream_id, attempt, worker_id = self.context()
        kernel.turn.transitions.append(
            made(
                kernel.seq, record.kind, record.id, record.seq, None, record.state, "create", "info", kernel.at, None,
                job_id, workstream_id, record.run, attempt, worker_id, metadata,
            )
        )  # fmt: skip

    def context(self) -> tuple[str | None, str | None, int | None, str | None]:
        """The entity's job id, workstream id, attempt number and worker id; None for each that it does not have."""
        return None, None, None, None

    @property
    def within(self) -> Entity[Any] | None:
        """The entity that contains this one: a task's workstream, a workstream's job."""
        return None

    def wants(self, token: int) -> bool:  # noqa: ARG002 - most kinds run nothing
        """Whether the call that was requested under `token` should still start."""
        return False

    def holds(self, token: int) -> bool:  # noqa: ARG002 - only tasks have attempts
        """Whether the attempt under `token` is the present one, and may run."""
        return False

    def answer(self) -> object:
        """The answer to the command that the entity has just received."""
        return None

    def job_over(self) -> Job | None:
        """The entity's job, if it is over but its actors could not be released yet."""
        return None

    @property
    def is_final(self) -> bool:
        """Whether the entity's end is final: False if another run of it follows automatically."""
        return True

    @property
    def ended(self) -> bool:
        """Whether the entity is in a terminal state."""
        return self.record.state in self._terminal

    @property
    def known_events(self) -> Container[str]:
        """The events of the entity's machine."""
        return self._events

    def knows(self, event: str) -> bool:
        """Whether the present state has a row for `event`."""
        return event in self.machine.table[self.record.state]

    # -- time ----------------------------------------------------------------------------------------------------------

    def wait_until(self, due: float) -> None:
        """Set the time at which the present state's timed event fires (UTC epoch seconds)."""
        self.change(due_at=due)
        self.arm(due)

    def arm(self, due: float) -> None:
        """Arm a timer that delivers `TimerFired` at `due` (UTC epoch seconds), unless the state is left before."""
        if self.timer is not None:
            self.disarm()
        record = self.record
        by_utc = record.state in self.by_utc
        named = by_utc and self.waits_for_named
        self.timer = self.kernel.port.arm(due, TimerFired(record.key, record.epoch), by_utc=by_utc, named=named)

    @property
    def waits_for_named(self) -> bool:
        """Whether the entity waits for a given point in time, and not for a duration."""
        return False

    def set_back(self, by: float) -> None:
        """Follow a wall clock that was set back `by` seconds, so that no wait becomes longer."""
        self.earlier(by, () if self.waits_for_named else ("due_at",), self.moments)

    def earlier(self, by: float, *names: tuple[str, ...]) -> None:
        """Set these times of the record back `by` seconds; fields without a time stay as they are."""
        record = self.record
        moved = {name: at - by for each in names for name in each if (at := getattr(record, name)) is not None}
        if moved:
            self.change(**moved)

    def arm_again(self) -> None:
        """Arm a timer for the record's `due_at`, if it has one."""
        if self.record.due_at is not None and not self.ended:
            self.arm(self.record.due_at)

    def disarm(self) -> None:
        """Cancel the timer of the present state."""
        if self.timer is not None:
            self.kernel.port.disarm(self.timer)
            self.timer = None

    def disarm_all(self) -> None:
        """Cancel all timers of this entity."""
        self.disarm()


def timer_fired(entity: Entity[Any], message: TimerFired) -> None:
    """Run the present state's timed event; drop and count the stale timer of a state that was left."""
    if message.epoch == entity.record.epoch:
        entity.when_due[entity.record.state](entity)
    else:
        entity.kernel.stale += 1
