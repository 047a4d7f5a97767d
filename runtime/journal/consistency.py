"""Whether a journal is consistent: its transitions and records are checked against machines and invariants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from ...actors.machines.kind import Definition, merged
from ...actors.records.task import TaskRecord
from ...machines import Machine, TransitionEvent
from ...machines.adapt.lifecycle import Lifecycle
from ...machines.audit.auditor import AuditFinding, Auditor
from .jsonl import log_line

if TYPE_CHECKING:
    from ...actors.records.entities import JobRecord, MachineRecord, WorkstreamRecord
    from .contract import JournalQueries, Reader


class Examination(msgspec.Struct):
    """The findings in a journal, with its counts of transitions and records."""

    found: list[AuditFinding]
    transitions: int
    records: int


def examine(reader: Reader, *, lifecycles: Iterable[Lifecycle] = ()) -> Examination:
    """Check a journal's transitions against the machines and the invariants, and its records against both.

    lifecycles: those that its entities may run by, besides the published ones.
    """
    steps = list(_steps(reader))  # before the records, and these before the transitions: a runtime may be writing all
    records = list(_records(reader))
    auditor = Auditor(
        without=reader.archived_numbers(),
        lifecycles=lifecycles,
        machine_of=_MachinesByEntity(reader).machine_of,
    )
    states: dict[tuple[str, str, int, int], str] = {}
    wanted = {(record.kind, record.id, record.run, record.told) for record in records}
    count = 0
    for event in reader.transitions():
        count += 1
        try:
            auditor.take(msgspec.convert(log_line(event), TransitionEvent, from_attributes=True))
        except msgspec.ValidationError as error:
            auditor.find("bad_schema", str(error))
        if (event.kind, event.entity_id, event.run, event.entity_seq) in wanted:
            states[event.kind, event.entity_id, event.run, event.entity_seq] = event.to_state
    found = auditor.finish()
    for record in records:
        last = states.get((record.kind, record.id, record.run, record.told))
        if last is None:
            text = f"the record says {record.told} transitions, and there are fewer"
            found.append(AuditFinding("error", "record_without_transition", text, entity_id=record.id))
        elif last != record.shown:
            text = f"the record says {record.shown}, its last transition {last}"
            found.append(AuditFinding("error", "record_differs", text, entity_id=record.id))
    found += _of_steps(reader, steps, {record.key: record for record in records if isinstance(record, TaskRecord)})
    return Examination(found, count, len(records))


def machine_of(reader: JournalQueries, record: MachineRecord) -> Machine | None:
    """The machine of an entity, from the definition that the journal holds: its guards are never called."""
    kept = [reader.spec(key) for key in record.definitions]
    return merged(msgspec.json.decode(spec, type=Definition) for spec in kept if spec is not None)


class _MachinesByEntity:
    """The machines of a journal's entities. An entity has all machines that it has run by."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._found: dict[tuple[int, ...], Machine | None] = {}

    def machine_of(self, event: TransitionEvent) -> Machine | None:
        """The machine of the entity that an event is about."""
        record = self._reader.machine(event.entity_id) if event.kind == "machine" else None
        if record is None:
            return None
        if record.definitions not in self._found:
            self._found[record.definitions] = machine_of(self._reader, record)
        return self._found[record.definitions]


class _Step(msgspec.Struct, frozen=True):
    """The fields of a step that are compared, without its result: all results together may be gigabytes."""

    flow: int
    task: int
    task_id: str
    label: str
    attempt: int


def _steps(reader: Reader) -> Iterator[_Step]:
    """The steps that count, flow by flow."""
    for flow in reader.flows():
        for row in reader.steps(flow):
            yield _Step(row.flow, row.task, row.task_id, row.label, row.attempt)


def _of_steps(reader: Reader, steps: Iterable[_Step], tasks: Mapping[int, TaskRecord]) -> Iterator[AuditFinding]:
    """Compare the steps with one another, and with their tasks.

    The numbers of a name may have gaps, where a call was interrupted and was not made again.
    """
    seen = set[tuple[int, str]]()
    for step in steps:
        task = tasks.get(step.task)
        if (step.flow, step.label) in seen:
            text = f"step {step.label} is kept twice: it ran again, though it had ended"
            yield AuditFinding("error", "step_twice", text, entity_id=step.task_id)
        seen.add((step.flow, step.label))
        if task is None or step.flow not in tasks:
            if reader.steps(step.flow):  # else its job was moved out meanwhile
                text = f"step {step.label} belongs to a run that does not exist"
                yield AuditFinding("error", "step_without_task", text, entity_id=step.task_id)
        elif task.flow != step.flow or task.id != step.task_id:
            text = f"step {step.label} is kept for {task.id}, which has another flow"
            yield AuditFinding("error", "step_of_other_flow", text, entity_id=step.task_id)
        elif step.attempt > task.attempt:
            text = f"step {step.label} ran in attempt {step.attempt}, and there were {task.attempt}"
            yield AuditFinding("error", "step_of_no_attempt", text, entity_id=step.task_id)


def _records(reader: Reader) -> Iterator[JobRecord | WorkstreamRecord | TaskRecord | MachineRecord]:
    yield from reader.machines()
    for job in reader.jobs(limit=2**31):
        yield job
        for run in reader.workstreams(job.id):
            yield run
            yield from reader.tasks(run.key)
