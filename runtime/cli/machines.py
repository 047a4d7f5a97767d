"""`MachineActor`s on the command line: how their machines are found, and how they are shown."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .terminal import echo, echo_json

A_JOB, A_MACHINE = "job:", "machine:"
"""Prefixes of a name that both a job and a machine may have."""

if TYPE_CHECKING:
    from ...actors.records.entities import MachineRecord
    from ...machines import Machine, TransitionEvent
    from ..journal.contract import InboxRow, JournalQueries


def named(reader: JournalQueries, name: str) -> MachineRecord | None:
    """Find the machine of that name. If a job has the name as its id, the job is meant, and a note names the machine.

    "machine:NAME" always means a machine. Raises CommandError if there is none.
    """
    from .command_errors import CommandError, print_to_stderr  # noqa: PLC0415

    is_job, record = reader.job(name) is not None, reader.machine(name)
    if is_job and record is not None:
        print_to_stderr(f"A machine has the name {name!r:.80}, too: `machine:{name:.80}` shows it.")
    if is_job or record is not None:
        return None if is_job else record
    if not name.startswith(A_MACHINE):
        return None
    record = reader.machine(name.removeprefix(A_MACHINE))
    if record is None:
        raise CommandError(f"There is no machine {name.removeprefix(A_MACHINE)!r:.80} in this journal.")
    return record


def waiting(reader: JournalQueries) -> dict[str, list[InboxRow]]:
    """Return the events that wait in the inbox, by machine name, oldest first."""
    left: dict[str, list[InboxRow]] = {}
    for row in reader.inbox():
        if row.kind == "machine":
            left.setdefault(row.target, []).append(row)
    return left


def listed(rows: Sequence[InboxRow]) -> str:
    """Name the waiting events, for people."""
    names = [str(row.arguments.get("event", "?")) for row in rows]
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


class DeclaredMachines:
    """The machines that are known without a journal: those of files, and Callboard's own."""

    def __init__(self, files: Sequence[Path]) -> None:
        from ..specfiles.machine_file import drawn_machine  # noqa: PLC0415

        self.unknown: Counter[str] = Counter()  # entities without a known machine, by the machine's name
        self._files = {one.name: one for one in map(drawn_machine, files)}

    def machine_of(self, event: TransitionEvent) -> Machine | None:
        """Find the machine of an event's entity."""
        if event.kind != "machine":
            return None
        metadata = event.metadata if event.from_state is None else {}  # later metadata is the application's own
        name = str(metadata.get("machine", "?"))
        found = self._files.get(name) or _ours(metadata.get("path"))
        if found is None:
            self.unknown[name] += 1
        return found


def _ours(path: object) -> Machine | None:
    """Find one of Callboard's machines. An application's is not imported: an import may do anything."""
    from ...machines import Machine  # noqa: PLC0415
    from ..functions.import_paths import BodyNotFound, find  # noqa: PLC0415

    if not (isinstance(path, str) and path.startswith("callboard.machines.")):
        return None
    try:
        found = find(path)
    except BodyNotFound:
        return None
    return found if isinstance(found, Machine) else None


def show(reader: JournalQueries, records: list[MachineRecord]) -> None:
    """Print a table of machines."""
    from . import words  # noqa: PLC0415
    from .status import table  # noqa: PLC0415

    now, left = time.time(), waiting(reader)
    rows = [
        [
            record.name,
            record.machine,
            record.state,
            words.took(now - record.updated_at),
            "" if record.due_at is None else words.due(record.due_at),
            words.one_line("; ".join(filter(None, [_in_inbox(left.get(record.name)), record.reason]))),
        ]
        for record in records
    ]
    table(("name", "machine", "state", "since", "until", "reason"), rows)


def _in_inbox(rows: Sequence[InboxRow] | None) -> str:
    return f"{listed(rows)} in the inbox" if rows else ""


def show_one(reader: JournalQueries, record: MachineRecord, *, as_json: bool) -> None:
    """Print one machine."""
    from . import words  # noqa: PLC0415

    left = waiting(reader).get(record.name, [])
    if as_json:
        echo_json(json_of(record, left))
        return
    echo(f"machine {record.name}: {record.machine}, {record.state}")
    if record.reason:
        echo(words.one_line(record.reason, 500))
    for event, at in sorted(record.due.items(), key=lambda one: one[1]):
        echo(f"{event} at {words.due(at)}")
    if left:
        since = f" since {words.moment(left[0].sent_at)}" if left[0].sent_at else ""
        names = words.one_line(listed(left))
        echo(f"in the inbox{since}, until a program that has the machine opens this journal: {names}")
    if record.facts is not None:
        echo(f"facts: {bytes(record.facts).decode()}")


def json_of(record: MachineRecord, left: Sequence[InboxRow] = ()) -> dict[str, Any]:
    """Describe a machine for JSON."""
    from ...actors.records.transition import iso  # noqa: PLC0415

    times = {name: getattr(record, name) for name in ("created_at", "started_at", "finished_at", "due_at")}
    return {
        "id": record.id,
        "name": record.name,
        "state": record.state,
        "reason": record.reason,
        **{name: None if at is None else iso(at) for name, at in times.items()},
        "kind": "machine",
        "machine": record.machine,
        "due": {event: iso(at) for event, at in record.due.items()},
        "facts": record.facts,
        "inbox": [row.arguments.get("event") for row in left],
    }
