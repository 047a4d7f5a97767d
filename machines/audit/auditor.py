"""The auditor: takes a log of transitions line by line, and compares it with the machines.

`audit.py` lists the possible findings, and reads the lines.

Rules
-----
- One fault gives one finding, where possible: after a wrong line the auditor goes on from the state that the line
  states.
- Archiving removes whole jobs from a log: their numbers are missing, and are no gap if the archived ranges are known.
  Of workers and breakers, which serve all jobs, archiving removes the older part: they may begin late then.
- For a kind of entity without a machine here, `machine_of` is asked (a `MachineActor` has its own machine). An entity
  with an unknown machine is checked by all rules that need no table.
- If nodes share a journal, each log is that of one node: what another node ran before is in that node's log. A job
  (or a machine, or a worker) that begins in the middle is a part: it is reported once, and its state there is assumed.
  The same holds when an entity returns after lines elsewhere: its numbers may jump then where an epoch begins, and
  nowhere else. Earlier lines of it are not compared any more.
- Where a job goes on in another epoch, earlier lines of it may be missing, and no number shows this: another node ran
  some of it, or the log of a killed node lacks its last lines, until that node has opened the log again. So such a job
  is a part, too, as soon as one of its lines implies others that are missing. In a journal, which has all lines, this
  is an error.
- An entity whose creation names a lifecycle is compared with the table of that lifecycle, and with the invariants by
  the phases of its states. If that lifecycle is not known (reported once), or the creation is missing (the log
  begins later), it is compared with neither. A lifecycle's name is never imported: a log must not run code.
- A log of document 001 has neither numbers nor creations. The auditor adds them, and its entities run by the lifecycle
  of that document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from ..adapt.lifecycle import Lifecycle
from ..adapt.refinement import Refinement
from ..builtin.table import MACHINES
from ..lifecycles import LIFECYCLES
from ..machine import Machine
from .invariants import PROBED, TOGETHER, Broken, Entity, Probes, at_end, at_rest, created, moved
from .log import CREATE, EPOCH, BriefEvent, TransitionEvent

MachineOf: TypeAlias = Callable[[TransitionEvent], Machine | None]

_WARNINGS: Final = frozenset(
    {
        "torn",
        "starts_late",
        "part",
        "time_backwards",
        "wrong_severity",
        "not_derived",
        "unknown_key",
        "unknown_lifecycle",
    }
)
SHARED: Final = frozenset({"worker", "breaker"})
DOCUMENTED: Final = "orchestration"  # the lifecycle of document 001
UNREADABLE: Final = 5  # if so many first lines are no transitions, the file is no log


class AuditFinding(msgspec.Struct, frozen=True):
    """One thing that is wrong with a log. `line` counts from 1, `offset` bytes from the beginning."""

    severity: Literal["warning", "error"]
    kind: str
    text: str
    line: int | None = None
    offset: int | None = None
    seq: int | None = None
    entity_id: str | None = None


class Auditor:
    """Takes a log line by line, and collects findings. Call `finish` once, after the last line."""

    def __init__(
        self,
        machines: Mapping[str, Machine] = MACHINES,
        *,
        without: Iterable[tuple[int, int]] = (),
        lifecycles: Iterable[Lifecycle] = (),
        machine_of: MachineOf | None = None,
        logs: int = 0,
    ) -> None:
        """Make an auditor.

        without: ranges of numbers, first to last, that were archived and are rightly not in the log. lifecycles:
        lifecycles that entities may run by, besides the published ones. machine_of: finds the machine of an entity
        whose kind is not in `machines`, from its first line. logs: the number of node logs that the lines come from; 0:
        the lines come from a journal, in which no line is missing.
        """
        self._logs = logs
        self._machines = machines
        self._machine_of = machine_of
        self._more: dict[tuple[str, str], Lifecycle] = {(more.name, more.kind): more for more in lifecycles}
        self._refined: dict[tuple[str, str], Refinement | None] = {}
        self._unknown: set[str] = set()  # unknown lifecycles that were reported
        self._without = dict(merged(without))
        self.brief = False  # a log of document 001: eight fields, without numbers
        self._sparse = False  # an archive: the numbers of other jobs are missing
        self._entities: dict[tuple[str, str, int], Entity] = {}
        self._probes = Probes()
        self._parents: dict[tuple[str, str], Entity] = {}  # the latest run of each job and workstream
        self._findings: list[AuditFinding] = []
        self._keys: set[str] = set()  # unknown keys that were reported
        self._line: int | None = None
        self._offset: int | None = None
        self._log: str | None = None
        self._seq = 0
        self._timestamp = ""
        self._promised: int | None = None  # the number of lines that an archive states
        self._taken = 0
        self._partial = False  # whether the log began before its first line here
        self._parts: set[str] = set()  # entities that began, or went on, in the log of another node
        self._epochs: dict[str, int] = {}  # of several logs: the last epoch of each job,
        self._moved: set[str] = set()  # and the jobs that have continued in another epoch

    def at(self, line: int, offset: int | None = None, log: str | None = None) -> None:
        """Set the position of the next line. log: the name of its log, of several."""
        self._line = line
        self._offset = offset
        self._log = log

    def find(self, kind: str, text: str, event: TransitionEvent | None = None) -> None:
        """Note a finding about the present line."""
        message = text if event is None else f"{event.kind} {event.entity_id}: {text}"
        self._findings.append(
            AuditFinding(
                severity="warning" if kind in _WARNINGS else "error",
                kind=kind,
                text=message if self._log is None else f"{self._log}: {message}",
                line=self._line,
                offset=self._offset,
                seq=None if event is None or self.brief else event.seq,
                entity_id=None if event is None else event.entity_id,
            )
        )

    def find_key(self, text: str) -> None:
        """Note a key that no transition has, once."""
        if text not in self._keys:
            self._keys.add(text)
            self.find("unknown_key", text)

    def no_log(self) -> AuditFinding:
        """The finding about a file whose first lines are no transitions."""
        first = self._findings[0].text
        text = f"this is no log of transitions: none of its first {UNREADABLE} lines is one (the first: {first})"
        return AuditFinding("error", "no_log", text, line=1, offset=0)

    def begin_archive(self, lines: int) -> None:
        """Begin an archive of that many lines."""
        self._sparse = True
        self._promised = lines

    def begin_brief(self) -> None:
        """Begin a log of document 001."""
        self.brief = True

    def take(self, event: TransitionEvent | BriefEvent) -> None:
        """Take in the next transition."""
        if isinstance(event, BriefEvent):
            before = self._entities.get((event.event_type, event.entity_id, 1))
            event = event.numbered(self._seq + 1, 1 if before is None else before.seq + 1)
        self._taken += 1
        if not self._in_order(event):
            return
        if self._logs and not self._sparse and event.job_id is not None:
            epoch = event.seq // EPOCH
            if self._epochs.setdefault(event.job_id, epoch) != epoch:
                self._epochs[event.job_id] = epoch
                self._moved.add(event.job_id)
        key = (event.event_type, event.entity_id, event.run)
        entity = self._entities.get(key)
        if entity is None or _was_released(entity, event):
            entity = self._entities[key] = self._first(event)
        elif event.from_state is None:
            self.find("created_twice", f"was created again, in {event.to_state}; it is {entity.shown}", event)
            entity.enter(event.to_state, event.metadata)
            entity.seq = event.entity_seq
        else:
            self._next(entity, event)

    def finish(self) -> list[AuditFinding]:
        """Check what only the whole log shows. Returns all findings, in the order of the log."""
        self._line = self._offset = self._log = None
        if self._promised is not None and self._promised != self._taken:
            self.find("gap", f"the archive has {self._taken} transitions, of {self._promised} that were written")
        for entity in self._entities.values():
            self._about(entity, at_end(entity))
            if not self._partial and not self._is_part(entity):
                self._about(entity, at_rest(entity))
        return self._findings

    # -- the order of the log --------------------------------------------------------------------------------

    def _in_order(self, event: TransitionEvent) -> bool:
        """Check number and time. Returns False for a repeated line, which is ignored."""
        expected = self._seq + 1
        while expected in self._without:
            expected = self._without[expected] + 1
        if event.seq <= self._seq:
            self.find("repeat", f"number {event.seq} comes after number {self._seq}", event)
            return False
        if event.seq > EPOCH and event.seq % EPOCH == 1:  # the line before may be another node's, by another clock
            self._timestamp = ""
        elif event.seq > expected and not self._sparse:
            if self._seq // EPOCH != event.seq // EPOCH or self._seq == 0:
                self._partial = True
                self.find("starts_late", f"the log begins with number {event.seq}", event)
            else:
                self.find("gap", f"number {event.seq} comes after number {self._seq}", event)
        self._seq = event.seq
        if event.timestamp < self._timestamp:
            self.find("time_backwards", f"{event.timestamp} comes after {self._timestamp}", event)
        self._timestamp = event.timestamp
        return True

    # -- one entity ------------------------------------------------------------------------------------------

    def _first(self, event: TransitionEvent) -> Entity:
        machine, refined = self._table(event)
        if self._machine_of is not None and event.kind not in self._machines:
            machine = self._machine_of(event)
        entity = Entity(event.kind, event.entity_id, machine, self._parent(event), refined)
        entity.enter(event.from_state or event.to_state)
        entity.seq = event.entity_seq
        entity.brief = self.brief
        if event.kind in {"job", "workstream"}:
            self._parents[event.kind, event.entity_id] = entity
        self._broken(event, created(entity, event))
        self._owner(entity, event)
        entity.epoch = event.seq // EPOCH
        if event.from_state is not None:
            if self.brief:
                self._begins_late(entity, event)
            elif event.seq > EPOCH:
                self._note_part(event)
            elif not self._partial and not self._may_begin_late(event):
                self.find("not_created", f"its first line is {event.from_state} -> {event.to_state}", event)
            entity.seq -= 1
            self._next(entity, event)
            return entity
        if event.trigger != CREATE:
            self.find("unknown_transition", f"was created by {event.trigger!r}, not by {CREATE!r}", event)
        if event.entity_seq != 1:
            self.find("gap", f"its creation has number {event.entity_seq}, not 1", event)
        if machine is not None and event.to_state != machine.initial and not _carried_over(entity, event):
            self.find("wrong_start", f"was created in {event.to_state}, not in {machine.initial!s}", event)
        return entity

    def _begins_late(self, entity: Entity, event: TransitionEvent) -> None:
        """Report an entity whose first line, in a log without creations, cannot be its first transition."""
        if entity.machine is not None and event.from_state != entity.machine.initial:
            text = f"its first line leaves {event.from_state}, not {entity.machine.initial!s}: that is taken as given"
            self.find("starts_late", text, event)

    def _may_begin_late(self, event: TransitionEvent) -> bool:
        """Whether the older part of the entity's history may have been archived alone."""
        return event.kind in SHARED and (self._sparse or bool(self._without))

    def _is_part(self, entity: Entity) -> bool:
        return (entity.job_id or entity.entity_id) in self._parts

    def _note_part(self, event: TransitionEvent | Entity) -> None:
        """Report once that other lines of this entity are in the log of another node."""
        about = event.job_id or event.entity_id
        if about not in self._parts:
            self._parts.add(about)
            kind = event.kind if event.job_id is None else "job"
            text = f"another node ran {kind} {about} before, and that node's log has the earlier lines"
            ways = "Name that log too, to check all lines"
            if self._logs > 1:
                text = f"earlier lines of {kind} {about}, which another node committed, are missing"
                ways = "Name the log of that node too; if it is named, start that node again: it adds the missing lines"
            self.find("part", f"{text}: the check begins here. {ways}")

    def _release(self, job_id: str | None, workstream_id: str | None) -> None:
        """From now on, compare a job's lines with no earlier line."""
        if job_id is not None:
            for key in (("job", job_id), ("workstream", workstream_id or "")):
                parent = self._parents.pop(key, None)
                if parent is not None:
                    parent.release()

    def _come_back(self, entity: Entity, event: TransitionEvent) -> None:
        """Take the state of an entity that went on in another node's log."""
        self._note_part(event)
        was_settled = entity.settled
        entity.enter(event.from_state or event.to_state)
        entity.seq, entity.told = event.entity_seq - 1, False
        self._release(event.job_id, event.workstream_id)
        parent = entity.parent
        if parent is not None and entity.settled != was_settled:
            over = 1 if entity.settled else -1
            parent.live -= over
            parent.ended_children += over

    def _next(self, entity: Entity, event: TransitionEvent) -> None:
        epoch = event.seq // EPOCH
        if epoch != entity.epoch and event.entity_seq > entity.seq + 1:
            self._come_back(entity, event)
        entity.epoch = epoch
        if event.entity_seq != entity.seq + 1:
            kind = "repeat" if event.entity_seq <= entity.seq else "gap"
            text = f"its number {event.entity_seq} comes after its number {entity.seq}"
            self.find(kind, text, event)
        if event.from_state != entity.shown:
            text = f"{event.from_state} -> {event.to_state} does not follow: it is {entity.shown}"
            self.find("does_not_follow", text, event)
        if entity.machine is not None:
            self._row(entity.machine, event)
        if event.job_id != entity.job_id or event.workstream_id != entity.workstream_id:
            text = f"names {_owner(event.job_id, event.workstream_id)}, after its first line named "
            self.find("other_owner", text + _owner(entity.job_id, entity.workstream_id), event)
        was_ended, was_settled, before = entity.ended, entity.settled, entity.state
        entity.enter(event.to_state, event.metadata)
        entity.seq = event.entity_seq
        self._broken(event, moved(entity, event, before, was_ended=was_ended, was_settled=was_settled))
        if event.kind in PROBED and entity.known:
            self._broken(event, self._probes.take(entity, event))

    def _table(self, event: TransitionEvent) -> tuple[Machine | None, Refinement | None]:
        """The machine that an entity runs by, and its refinement of the runtime's own machine, if any."""
        # A machine's metadata belong to the application.
        said = None if event.kind == "machine" else event.metadata.get("lifecycle")
        if self.brief and event.kind in LIFECYCLES[DOCUMENTED]:
            said = DOCUMENTED
        if not isinstance(said, str):
            own = self._machines.get(event.kind)
            if own is None or event.from_state is None:
                return own, None
            knows = own.table.get(event.from_state)  # another lifecycle may have the same states with other events
            foreign = knows is None or (self._partial and event.trigger not in knows)
            return (None if foreign else own), None
        key = said, event.kind
        if key not in self._refined:
            lifecycle = self._more.get(key) or self._more.get((_unplaced(said), event.kind))
            lifecycle = lifecycle or LIFECYCLES.get(said, {}).get(event.kind)
            self._refined[key] = None if lifecycle is None else Refinement(lifecycle)
            if lifecycle is None and said not in self._unknown:
                self._unknown.add(said)
                text = (
                    f"runs by {said!r:.200}, which is not known here, so its lines were compared with no table, and "
                    "with no invariant of states. Name the lifecycle by its import path (`--lifecycle MODULE:NAME`)"
                )
                self.find("unknown_lifecycle", text, event)
        refined = self._refined[key]
        return (None, None) if refined is None else (refined.machine, refined)

    def _row(self, machine: Machine, event: TransitionEvent) -> None:
        source = event.from_state or ""
        rows = [row for row in machine.table.get(source, {}).get(event.trigger, ()) if row.target == event.to_state]
        if rows and rows[0].severity == event.severity and not machine.states[source].terminal:
            return  # nearly every line returns here
        step = f"{source} -> {event.to_state} by {event.trigger!r}"
        if source in machine.states and machine.is_terminal(source) and not any(row.forced for row in rows):
            self.find("after_end", f"{step} leaves a terminal state", event)
        elif not rows:
            self.find("unknown_transition", f"the machine has no row {step}", event)
        elif all(row.severity != event.severity for row in rows):
            text = f"{step} was reported as {event.severity}, not as {rows[0].severity}"
            self.find("wrong_severity", text, event)

    def _owner(self, entity: Entity, event: TransitionEvent) -> None:
        """Compare the names of its job and workstream with its id, which may begin with them ("job@run/task")."""
        own = event.entity_id
        job, workstream = event.job_id, event.workstream_id
        if event.kind == "job":
            agrees = job in {None, own}
        elif event.kind == "workstream":
            agrees = workstream in {None, own} and ("@" not in own or job in {None, own.rpartition("@")[0]})
        elif event.kind == "task":
            agrees = "/" not in own or workstream in {None, own.rpartition("/")[0]}
            agrees = agrees and (entity.parent is None or job in {None, entity.parent.job_id})
        else:
            return
        if not agrees:
            self.find("other_owner", f"names {_owner(job, workstream)}, which is not its own", event)

    def _parent(self, event: TransitionEvent) -> Entity | None:
        if event.kind == "task" and event.workstream_id is not None:
            return self._parents.get(("workstream", event.workstream_id))
        if event.kind == "workstream" and event.job_id is not None:
            return self._parents.get(("job", event.job_id))
        if event.kind == "job" and isinstance(parent := event.metadata.get("parent_id"), str):
            return self._parents.get(("job", parent))
        return None

    def _broken(self, event: TransitionEvent, broken: Iterator[Broken]) -> None:
        for kind, text in broken:
            if kind in TOGETHER and event.job_id in self._moved:
                self._note_part(event)
                self._release(event.job_id, event.workstream_id)
            else:
                self.find(kind, text, event)

    def _about(self, entity: Entity, broken: Iterator[Broken]) -> None:
        for kind, text in broken:
            if kind in TOGETHER and (entity.job_id in self._moved or self._is_part(entity)):
                self._note_part(entity)
                continue
            self.find(kind, f"{entity.kind} {entity.entity_id}: {text}")


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the numbers as ranges from first to last, in order, joined where they touch."""
    kept: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if kept and first <= kept[-1][1] + 1:
            kept[-1] = (kept[-1][0], max(last, kept[-1][1]))
        else:
            kept.append((first, last))
    return kept


def _was_released(entity: Entity, event: TransitionEvent) -> bool:
    """Whether a breaker is created again: of very many breakers, the runtime forgets closed ones that nothing uses."""
    return event.kind == "breaker" and event.trigger == CREATE and entity.shown == event.to_state


def _carried_over(entity: Entity, event: TransitionEvent) -> bool:
    """Whether the entity is a task that had completed in the run before."""
    return event.kind == "task" and event.run > 1 and entity.state == "completed" and "carried_over" in event.metadata


def _owner(job: str | None, workstream: str | None) -> str:
    return f"job {job} and workstream {workstream}"


def _unplaced(name: str) -> str:
    """The name of a lifecycle, without the folder of its module ("module@FOLDER:NAME")."""
    module, _, rest = name.partition("@")
    return f"{module}:{rest.rpartition(':')[2]}" if rest else name
