"""Whether a journal is consistent: its transitions and records are checked against machines and invariants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from ...actors.machines.kind import Definition, merged
from ...actors.records.step import RECEIVE
from ...actors.records.task import TaskRecord
from ...machines import Machine, TransitionEvent
from ...machines.adapt.lifecycle import Lifecycle
from ...machines.audit.auditor import AuditFinding, Auditor
from .jsonl import log_line

if TYPE_CHECKING:
    from ...actors.records.entities import JobRecord, MachineRecord, WorkstreamRecord
    from ...actors.records.message import MessageRecord
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
    shortened = set[str]()  # ids of jobs that were run again from a step on: they no longer keep some steps
    for event in reader.transitions():
        count += 1
        if event.kind == "job" and "from_step" in (event.metadata or {}):
            shortened.add(event.entity_id)
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
    tasks = {record.key: record for record in records if isinstance(record, TaskRecord)}
    found += _of_steps(reader, steps, tasks)
    found += _of_messages(reader, steps, tasks, shortened)
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

    key: int
    flow: int
    task: int
    task_id: str
    name: str
    label: str
    attempt: int
    message: int | None  # the key of the message that it received


def _steps(reader: Reader) -> Iterator[_Step]:
    """The steps that count, flow by flow."""
    for flow in reader.flows():
        for row in reader.steps(flow):
            message = row.message if row.name.startswith(RECEIVE) else None
            yield _Step(row.key, row.flow, row.task, row.task_id, row.name, row.label, row.attempt, message)


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


def _of_messages(
    reader: Reader, steps: Iterable[_Step], tasks: Mapping[int, TaskRecord], shortened: set[str]
) -> Iterator[AuditFinding]:
    """Compare the messages with the steps that received them. shortened: jobs that lack some of these steps."""
    by_id = {task.id: task for task in tasks.values()}
    anew = {(task.job_id, task.name) for task in tasks.values() if task.rounds}  # they keep their last round's steps
    received: dict[int, _Step] = {}  # by the key of the message
    for step in steps:
        if step.message is not None and (other := received.setdefault(step.message, step)) is not step:
            text = f"step {step.label} received a message that step {other.label} had received"
            yield AuditFinding("error", "message_twice", text, entity_id=step.task_id)
    for job in reader.jobs(limit=2**31):
        messages = reader.messages(job.id)
        newest: dict[tuple[int, str], int] = {}  # by run and name: the key of the newest message that was received
        for one in messages:
            if one.received_at is not None:
                newest[one.first, one.name] = one.key
        for one in messages:
            its, task = received.pop(one.key, None), by_id.get(one.received_by or "")
            if one.received_at is None:
                passed = one.task is None and one.key < newest.get((one.first, one.name), 0)
                found = _of_unread(one, its, passed=passed)
            elif its is not None:
                kept = (its.key, its.name) == (one.step, f"{RECEIVE}{one.name}")
                text = f"was received by another step than {its.label} of {its.task_id}, which has it"
                found = None if kept else ("message_of_other_step", text)
            else:
                dropped = task is None or (job.id, task.name) in anew or job.id in shortened  # possibly
                kept = task is None or dropped or _has_step(reader, task, one)
                found = None if kept else ("message_lost", "was received, and no step has its value")
            if found is not None:
                text = f"message {one.name}, sent at {one.sent_at:.3f}, {found[1]}"
                yield AuditFinding("error", found[0], text, entity_id=job.id)
    for step in received.values():
        if reader.steps(step.flow):  # else its job was moved out meanwhile
            text = f"step {step.label} received a message that does not exist"
            yield AuditFinding("error", "message_missing", text, entity_id=step.task_id)


def _of_unread(message: MessageRecord, step: _Step | None, *, passed: bool) -> tuple[str, str] | None:
    """The fault of an unread message. step: the one that says that it has received it."""
    if step is not None:
        return "message_unread", f"is unread, and step {step.label} of {step.task_id} has received it"
    if passed:
        return "message_passed", f"is unread, and a later {message.name} has been received"
    return None


def _has_step(reader: Reader, task: TaskRecord, message: MessageRecord) -> bool:
    """Whether the step that received a message is kept. (A step that refused its message may have received another.)"""
    name = f"{RECEIVE}{message.name}"
    return any((row.key, row.name) == (message.step, name) for row in reader.steps(task.flow))


def _records(reader: Reader) -> Iterator[JobRecord | WorkstreamRecord | TaskRecord | MachineRecord]:
    yield from reader.machines()
    for job in reader.jobs(limit=2**31):
        yield job
        for run in reader.workstreams(job.id):
            yield run
            yield from reader.tasks(run.key)
