"""An entity's path through its machine, from a journal: for `callboard diagram --entity ID`.

Rules
-----
- An entity is found by its id; a job also by the beginning of its id, and a task by JOB/TASK. If a job, a worker, a
  breaker or a machine have the same name, a kind before it decides: `worker:build`.
- Only its last run or incarnation is drawn.
- It is drawn on its machine: a published one if its creation says so, otherwise the runtime's own. If that machine is
  not known here, only the path is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...machines import Machine, State, Transition
from ...machines.builtin.table import MACHINES
from ...machines.draw.diagram import Path
from ...machines.lifecycles import LIFECYCLES
from ..journal.consistency import machine_of
from .command_errors import CommandError
from .reading import find_job, find_task, reading
from .words import moment

if TYPE_CHECKING:
    from ...actors.records.transition import Transitioned
    from ..journal.contract import Reader
    from ..journal.location import Store


def path_of(journal: Store, name: str) -> tuple[Machine, Path]:
    """Find the machine of an entity, and its path. Raises CommandError if there is none, JournalError."""
    with reading(journal) as reader:
        rows = _rows(reader, name)
        machine = _machine(reader, rows)
    times = [moment(row.at) for row in rows]
    one_day = len({time[:10] for time in times}) == 1  # then the steps need no date
    steps = [
        (row.from_state, row.event, row.to_state, time[11:] if one_day else time)
        for row, time in zip(rows, times, strict=True)
        if row.from_state is not None
    ]
    path = Path(steps, rows[-1].to_state)
    return (_alone(name, rows) if machine is None else machine), path


def _rows(reader: Reader, name: str) -> list[Transitioned]:
    kind, colon, plain = name.partition(":")
    wanted, name = (kind, plain) if colon and kind not in {"", name} else (None, name)
    rows = list(reader.transitions(entity_id=name))
    if not rows and wanted in {None, "job", "task"}:
        rows = list(reader.transitions(entity_id=_found(reader, name)))
    kinds = list(dict.fromkeys(row.kind for row in rows))
    if wanted is None and len(kinds) > 1:
        which = ", ".join(f"{one}:{name}" for one in kinds)
        raise CommandError(f"Several entities have the name {name!r}. Use one of: {which}.")
    rows = [row for row in rows if wanted in {None, row.kind}]
    if not rows:
        raise CommandError(f"There is no {wanted} {name!r:.80} in this journal.")
    return [row for row in rows if row.run == rows[-1].run]


def _found(reader: Reader, name: str) -> str:
    """Find the id of a job or task from a part of it. Raises CommandError."""
    job_id, slash, task = name.rpartition("/")
    if not slash:
        return find_job(reader, name).id
    return find_task(reader, find_job(reader, job_id), task).id


def _machine(reader: Reader, rows: Sequence[Transitioned]) -> Machine | None:
    """Find the entity's machine; None if it is not known here, or does not have the path's states."""
    first = rows[0]
    if first.kind == "machine":
        record = reader.machine(first.entity_id)
        return None if record is None else machine_of(reader, record)
    lifecycle = (first.metadata or {}).get("lifecycle")
    if lifecycle is None:
        machine = MACHINES.get(first.kind)
    else:
        declared = LIFECYCLES.get(lifecycle, {}).get(first.kind)
        machine = None if declared is None else declared.machine
    if machine is None or any(row.to_state not in machine.states for row in rows):
        return None
    return machine


def _alone(name: str, rows: Sequence[Transitioned]) -> Machine:
    """Make a machine that has only the path."""
    states = dict.fromkeys(state for row in rows for state in (row.from_state, row.to_state) if state is not None)
    taken = dict.fromkeys((row.from_state, row.event, row.to_state) for row in rows if row.from_state is not None)
    return Machine(
        name, rows[0].to_state,
        states=tuple(State(state, bounded_by="what is not known here") for state in states),
        transitions=tuple(Transition(source, event, target) for source, event, target in taken),
    )  # fmt: skip
