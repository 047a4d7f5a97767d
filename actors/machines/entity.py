"""The entity that runs by an application's machine, and its creation: a spawned `MachineActor`.

Rules
-----
- `Fire` takes a row of its machine, or is refused and changes nothing. The application gives a meaning to the events.
- Its timers are those of its present state: armed on entry, disarmed on exit. A row that stays in the state keeps
  them, except those whose fact has changed. Due times are absolute, in UTC, and in the record.
- A timed event that its state or its guards refuse gives a notice, and is not retried.
- A function on entry or exit is a row of the outbox, since no live state implies it: it runs at least once.
- An entity whose machine cannot be found keeps its record and its due times. After it is spawned again with the
  machine, it takes events, and fires overdue ones.
- Ended entities stay in memory for a while, so that a late event is refused with their state; then only the journal
  has them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import msgspec
from msgspec.structs import replace

from ...machines import InvalidTransitionError, Transition
from ..kernel import observing
from ..kernel.entity import Entity, Receivers
from ..kernel.transaction import MachineOver
from ..messages.commands import Fire, SpawnMachine
from ..messages.errors import FireFailed, MachineNotFound
from ..messages.inputs import Recover, TimerFired, TurnFailed
from ..messages.notices import Notice, Severity
from ..records.entities import MachineRecord, OutboxRow
from ..records.transition import MachineTransition, Transitioned
from ..spec.model import Hook
from .kind import MachineKind, digest_of, names_moment, names_of, unfit

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from ..kernel.kernel import Kernel

KEPT = 1_000
"""The number of ended entities that stay in memory."""
KINDS_KEPT = 1_000
"""The number of unused kinds whose journal keys stay in memory."""
SOON = 0.001
"""Seconds that a timer may be early."""


class MachineEntity(Entity[MachineRecord]):
    """One entity that runs by an application's machine. kind: None if it cannot be found; `missing` says why."""

    __slots__ = ("_facts", "_facts_of", "kind", "missing")

    def __init__(self, kernel: Kernel, record: MachineRecord, kind: MachineKind | None, missing: str = "") -> None:
        super().__init__(kernel, record)
        self.kind = kind
        self.missing = missing
        self._facts: Any = None
        self._facts_of: msgspec.Raw | None = None

    @property
    def facts(self) -> Any:
        """The facts of the entity; None if it has none, or if its machine cannot be found."""
        raw = self.record.facts
        if raw is not self._facts_of:
            self._facts = None if self.kind is None else self.kind.read(raw)
            self._facts_of = raw
        return self._facts

    def use(self, kind: MachineKind) -> None:
        """Run by this kind from now on."""
        self.kind, self.missing = kind, ""
        self._facts_of = None  # the facts are decoded again, by the kind's Struct

    @property
    def known_events(self) -> Container[str]:
        """The events of its machine."""
        return () if self.kind is None else {str(row.event) for row in self.kind.machine.transitions}

    @property
    def ended(self) -> bool:
        """Whether its state is terminal."""
        return self.record.finished_at is not None

    def answer(self) -> Transitioned:
        """The answer to the event that it has just taken."""
        row = next(row for row in reversed(self.kernel.turn.transitions) if row.entity_id == self.record.id)
        return Transitioned(*msgspec.structs.astuple(row)[: len(Transitioned.__struct_fields__)])  # the journaled part

    # -- events --------------------------------------------------------------------------------------------------------

    def on_fire(self, fire: Fire) -> None:
        """Take an event. Raises InvalidTransitionError, FireFailed, MachineNotFound, and changes nothing then."""
        try:
            self._fire(fire)
        except FireFailed as error:
            if error.by_function:  # the sender of the event may not get the error
                self._tell_failed(fire, error)
            raise

    def _tell_failed(self, fire: Fire, error: FireFailed) -> None:
        """Emit the notice at once, since the turn and its notices are undone."""
        kernel, record = self.kernel, self.record
        text = f"{record.machine} {record.id}: {error}"
        kernel.port.tell_notice(
            Notice(
                event="event_failed", severity="error", text=text, at=kernel.at, kind=record.kind, entity_id=record.id,
                facts={"fired": fire.event, "state": record.state}, error=error,
            )
        )  # fmt: skip

    def _fire(self, fire: Fire) -> None:
        kind, record = self.found(), self.record
        row, facts = kind.judge(record.state, self.facts, record.facts, fire)
        try:
            due = self._due(kind, row, facts)
        except ValueError as error:
            raise FireFailed(f"{kind.machine.name}: {fire.event!r} was not taken: {error}") from None
        self._take(kind, row, facts, due, fire)

    def found(self) -> MachineKind:
        """The kind by which the entity runs. Raises MachineNotFound."""
        if self.kind is None:
            raise MachineNotFound(
                f"{self.record.id}: {self.missing}. No data is lost: spawn it again with the machine."
            )
        return self.kind

    def _due(self, kind: MachineKind, row: Transition, facts: Any) -> dict[str, float]:
        """The due times of a row's target state. Raises ValueError for a fact that is no time."""
        record = self.record
        state = str(row.target)
        due = kind.due(state, facts, self.kernel.at)
        if state != record.state:
            return due
        before = self.facts
        for entry in kind.machine.timed_in[state]:
            event = str(entry.event)
            if getattr(before, entry.after, None) == getattr(facts, entry.after, None):
                due.pop(event, None)
                if event in record.due:
                    due[event] = record.due[event]
        return due

    def _take(self, kind: MachineKind, row: Transition, facts: Any, due: dict[str, float], fire: Fire) -> None:
        kernel, before = self.kernel, self.record
        if observing.observe_transition is not None:
            observing.observe_transition(kind.machine, row)
        kernel.turn.before.setdefault(self, before)
        state, seq, now = str(row.target), before.seq + 1, kernel.at
        moved = state != before.state
        raw = before.facts if facts is self.facts else msgspec.Raw(msgspec.json.encode(facts))
        record = replace(before, seq=seq, updated_at=now, reason=fire.reason, facts=raw)
        if moved:
            ended = kind.machine.states[state].terminal
            record = replace(
                record, state=state, previous_state=before.state, epoch=seq, started_at=before.started_at or now,
                finished_at=(before.finished_at or now) if ended else None,
            )  # fmt: skip
        self.record = record
        kernel.seq += 1
        kernel.turn.transitions.append(
            MachineTransition(
                kernel.seq, record.kind, record.id, seq, before.state, state, str(row.event), row.severity, now,
                fire.reason, run=record.run, metadata=fire.metadata, machine=record.machine,
            )
        )  # fmt: skip
        if moved or due != before.due:
            self.set_due(due)
        if moved:
            self.call("on_exit", before.state, fire)
            self.call("on_enter", state, fire)
            if self.ended:
                kernel.effect(MachineOver(record.id))

    def call(self, when: Literal["on_enter", "on_exit"], state: str, fire: Fire | None) -> None:
        """Run the functions of a state, at least once, when this turn is durable."""
        kernel, record, definition = self.kernel, self.record, self.found().definition
        for name in names_of(definition.on_enter if when == "on_enter" else definition.on_exit, state):
            event = "create" if fire is None else fire.event
            context = {
                "machine": record.machine, "entity_id": record.id, "name": record.name, "seq": record.seq,
                "event": event,
                "from_state": None if fire is None else record.previous_state, "state": record.state,
                "reason": record.reason, "metadata": None if fire is None else fire.metadata, "facts": record.facts,
                "job_id": None,
            }  # fmt: skip
            hook = Hook(run=name)
            row = OutboxRow(
                key=kernel.number(), at=kernel.at, owner=record.id, event=event,
                body=msgspec.Raw(msgspec.json.encode(hook)),
                context=msgspec.Raw(msgspec.json.encode(context)), folder=definition.folder,
                callback=f"{when} {state}",
            )  # fmt: skip
            kernel.run_hook(row)

    # -- time ----------------------------------------------------------------------------------------------------------

    def set_due(self, due: dict[str, float]) -> None:
        """Set when the timed events of the present state fire, and arm the first."""
        self.disarm()
        first = min(due.values(), default=None)
        self.change(due=due, due_at=first)
        if first is not None:
            self.arm(first)

    def arm(self, due: float) -> None:
        """Send `TimerFired` at `due` (UTC epoch seconds), unless the state is left before."""
        self.disarm()
        record = self.record
        first = min(record.due, key=record.due.__getitem__, default="")
        fire = TimerFired(record.key, record.epoch)
        self.timer = self.kernel.port.arm(due, fire, by_utc=True, named=self._is_named(first))

    def _is_named(self, event: str) -> bool:
        """Whether the fact of a timed event is a point in time, and no delay."""
        timed = () if self.kind is None else self.kind.machine.timed_in[self.record.state]
        fact = next((one.after for one in timed if one.event == event), None)
        return fact is not None and names_moment(fact, getattr(self.facts, fact, None))

    def set_back(self, by: float) -> None:
        """The wall clock was set back by `by` seconds: adjust due times, so that delays keep their length."""
        if self.kind is not None and self.record.due:
            due = self.record.due.items()
            self.set_due({event: at if self._is_named(event) else at - by for event, at in due})

    def arm_again(self) -> None:
        """Arm the record's due time, if its machine was found."""
        if self.kind is not None and self.record.due_at is not None:
            self.arm(self.record.due_at)

    def on_timer(self, message: TimerFired) -> None:
        """Fire the first due event. If the state stays, its other timers are armed again."""
        record, kernel = self.record, self.kernel
        if message.epoch != record.epoch or not record.due:
            kernel.stale += 1
            return
        self.disarm()
        event, at = min(record.due.items(), key=lambda item: item[1])
        if at > kernel.at + SOON:
            self.arm(at)
            return
        self.set_due({name: due for name, due in record.due.items() if name != event})
        try:
            fact = next(one.after for one in self.found().machine.timed_in[record.state] if one.event == event)
            self._fire(Fire(event, reason=f"its {fact} was over", metadata={"timed": fact}))
        except (InvalidTransitionError, FireFailed, MachineNotFound) as refusal:
            text = f"{record.machine} {record.id}: its timed event {event!r} was refused: {refusal}"
            broken = isinstance(refusal, FireFailed) and refusal.by_function
            severity: Severity = "error" if broken else "warning"
            if broken:
                kernel.notice_at_once(
                    "timed_event_refused", severity, text, self, refusal, timed=event, state=record.state
                )
            else:
                kernel.notice("timed_event_refused", severity, text, self, timed=event, state=record.state)

    def on_recover(self, _: Recover) -> None:
        """The runtime has restarted: fire overdue events, and note a changed machine."""
        kernel, record = self.kernel, self.record
        if self.kind is None:
            return
        note_kind(self, self.kind)
        if record.due_at is not None and record.due_at <= kernel.at:
            kernel.port.later(TimerFired(record.key, record.epoch))

    def on_turn_failed(self, message: TurnFailed) -> None:
        """Drop the due event of a turn that raised and was undone, so that the event does not fire again."""
        kernel, record = self.kernel, self.record
        self.set_due({name: due for name, due in record.due.items() if due > kernel.at + SOON})
        kernel.notice("turn_failed", "error", f"{record.machine} {record.id}: {message.error}", self)

    receivers: ClassVar[Receivers] = {
        Fire: on_fire, Recover: on_recover, TimerFired: on_timer, TurnFailed: on_turn_failed,
    }  # fmt: skip


# -- creation -----------------------------------------------------------------------------------------------


def spawn(kernel: Kernel, message: SpawnMachine) -> None:
    """Create an entity, or resume the one of that name with this kind. The runtime has checked that they fit."""
    kind, entity = message.kind, cast("MachineEntity | None", kernel.machines.get(message.name))
    ran_by = None if entity is None or entity.kind is None else entity.kind.digest
    if entity is None and message.known is not None:
        entity = take_up(kernel, message.known, kind, message.missing)
        ran_by = None if message.kept is None else digest_of(message.kept)
        kernel.effect(MachineOver(message.name))
    if entity is None:
        _create(kernel, message)
    elif kind is not None and (why := unfit(entity.record, kind)):
        kernel.notice("spawn_refused", "warning", f"it was spawned with another machine: {why}", entity)
    elif kind is not None:
        was_missing = entity.kind is None
        if ran_by == kind.digest:
            entity.use(kind)
        else:
            note_kind(entity, kind)
        if was_missing:
            entity.arm_again()


def take_up(kernel: Kernel, record: MachineRecord, kind: MachineKind | None, missing: str = "") -> MachineEntity:
    """Make the actor of a journaled record. Arms and fires nothing."""
    entity = MachineEntity(kernel, record, kind, missing)
    kernel.entities[record.key] = kernel.machines[record.name] = entity
    return entity


def _create(kernel: Kernel, message: SpawnMachine) -> None:
    kind: MachineKind = message.kind
    machine, name = kind.machine, message.name
    definition = key_of(kernel, kind)
    record = first_record(kind, name, message.facts, kernel.at, key=kernel.number(), definition=definition)
    entity = kernel.machines[name] = MachineEntity(kernel, record, kind)
    path = {} if kind.definition.path is None else {"path": kind.definition.path}
    entity.born({"machine": machine.name, **path}, partial(MachineTransition, machine=machine.name))
    entity.set_due(kind.due(record.state, entity.facts, kernel.at))
    entity.call("on_enter", record.state, None)  # the entry of the initial state counts, too
    if entity.ended:
        kernel.effect(MachineOver(name))


def first_record(
    kind: MachineKind, name: str, facts: msgspec.Raw | None, at: float, *, key: int = 0, definition: int = 0
) -> MachineRecord:
    """The record of a new entity, with `key` 0 if its key is not assigned yet."""
    state = str(kind.machine.initial)
    return MachineRecord(
        key=key, id=name, name=name, state=state, created_at=at, updated_at=at, machine=kind.machine.name,
        definitions=(definition,), facts=facts,
        finished_at=at if kind.machine.is_terminal(state) else None,
    )  # fmt: skip


def note_kind(entity: MachineEntity, kind: MachineKind) -> None:
    """Set an entity's kind, with a notice if the machine has changed."""
    kernel, record = entity.kernel, entity.record
    key = key_of(kernel, kind)
    entity.use(kind)
    if key != record.definitions[-1]:
        entity.change(definitions=(*record.definitions, key))
        text = f"{record.machine} {record.id} runs by the changed machine from now on, in state {record.state}"
        kernel.notice("machine_changed", "info", text, entity)


def key_of(kernel: Kernel, kind: MachineKind) -> int:
    """The key of a kind in the journal. A new kind is stored with this turn."""
    key = kernel.kinds.get(kind.digest)
    if key is None:
        if len(kernel.kinds) >= kernel.kinds_most:
            _forget_kinds(kernel)
        key = kernel.kinds[kind.digest] = kernel.number()
        kernel.turn.booked.append((kernel.kinds, kind.digest, None))
        kernel.turn.specs.append((key, kind.encoded))
    return key


def _forget_kinds(kernel: Kernel) -> None:
    """Remove the keys of kinds that no entity in memory uses: a kind that is used again is stored again."""
    used = {machine.record.definitions[-1] for machine in kernel.machines.values()}
    for digest, key in list(kernel.kinds.items()):
        if key not in used:
            del kernel.kinds[digest]
            kernel.turn.specs_done.append(key)
    kernel.kinds_most = max(KINDS_KEPT, 2 * len(kernel.kinds))


def tell_missing(kernel: Kernel, found: Iterable[MachineEntity]) -> None:
    """Give a notice for each machine that cannot be found."""
    missing: dict[str, list[str]] = {}
    for entity in found:
        if entity.kind is None:
            missing.setdefault(entity.missing, []).append(entity.record.id)
    for why, names in missing.items():
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        text = (
            f"{why}. These entities take no events, and their timers wait, until they are spawned with their machine: "
            f"{shown}"
        )
        kernel.notice("machine_missing", "error", text, names=names[:100])


def retire(kernel: Kernel, name: str) -> None:
    """Remove older ended entities from memory after another one has ended durably."""
    entity = kernel.machines.get(name)
    if entity is None or not entity.ended:
        return
    kernel.retired.pop(name, None)
    kernel.retired[name] = None
    if len(kernel.retired) > KEPT:
        oldest = next(iter(kernel.retired))
        del kernel.retired[oldest]
        gone = kernel.machines.get(oldest)
        if gone is not None and gone.ended:
            kernel.forget(gone)
            del kernel.machines[oldest]
