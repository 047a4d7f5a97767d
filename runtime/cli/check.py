"""`callboard check`: whether a journal is consistent: its transitions with the machines, its records with both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from .options import JOURNAL, Journal, Lifecycles
from .terminal import echo
from .trouble import FAILED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...actors.records import JobRecord, MachineRecord, WorkstreamRecord
    from ...actors.task_record import TaskRecord
    from ..journal.contract import Reader


def check(journal: Journal = JOURNAL, lifecycle: Lifecycles = None) -> None:
    """Hold a journal's transitions against the machines and the invariants, and its records against both."""
    import msgspec  # noqa: PLC0415

    from ...machines import TransitionEvent  # noqa: PLC0415
    from ...machines.auditor import AuditFinding, Auditor  # noqa: PLC0415
    from ..jsonl import log_line  # noqa: PLC0415
    from .findings import report  # noqa: PLC0415
    from .functions import own_lifecycles  # noqa: PLC0415
    from .machines import Known  # noqa: PLC0415
    from .reading import reading  # noqa: PLC0415

    own = own_lifecycles(lifecycle)
    with reading(journal) as reader:
        records = list(_records(reader))  # before the transitions: a runtime may be adding to both
        known = Known(reader)
        auditor = Auditor(
            without=[numbers for job in reader.archived() for numbers in job.numbers],
            lifecycles=own,
            machine_of=known.machine_of,
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
    echo(f"{journal}: {count:,} transitions, {len(records):,} records: {report(found)}")
    if any(finding.severity == "error" for finding in found):
        raise typer.Exit(FAILED)


def _records(reader: Reader) -> Iterator[JobRecord | WorkstreamRecord | TaskRecord | MachineRecord]:
    yield from reader.machines()
    for job in reader.jobs(limit=2**31):
        yield job
        for run in reader.workstreams(job.id):
            yield run
            yield from reader.tasks(run.key)
