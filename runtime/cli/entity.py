"""The path of one entity through its machine, as a journal tells it: for `callboard diagram --entity ID`.

Rules
-----
- An entity is found by its id; a job also by the beginning of it, and a task by JOB/TASK. Where a job, a worker and a
  breaker have the same name, the kind before it decides: `worker:build`. So it is with machines.
- Its last run or incarnation is told.
- It is drawn on the machine that it runs by: a published one where its creation says so, else the runtime's own. Where
  that machine is not known here, what is drawn is the path alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...machines import Machine, State, Transition
from ...machines.builtin.table import MACHINES
from ...machines.draw.diagram import Path
from ...machines.lifecycles import LIFECYCLES
from ..journal.consistency import machine_of
from .reading import find_job, find_task, reading
from .trouble import Trouble
from .words import moment

if TYPE_CHECKING:
    from ...actors.records.transition import Transitioned
    from ..journal.contract import Reader
    from ..journal.location import Store


def path_of(journal: Store, name: str) -> tuple[Machine, Path]:
    """The machine of an entity, and its path. Raises Trouble where there is none, JournalError for the journal."""
    with reading(journal) as reader:
        rows = _rows(reader, name)
        machine = _machine(reader, rows)
    times = [moment(row.at) for row in rows]
    one_day = len({time[:10] for time in times}) == 1  # then the day need not be told with each
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
        raise Trouble(f"There are several of the name {name!r}; say which: {which}.")
    rows = [row for row in rows if wanted in {None, row.kind}]
    if not rows:
        raise Trouble(f"There is no {wanted} {name!r:.80} in this journal.")
    return [row for row in rows if row.run == rows[-1].run]


def _found(reader: Reader, name: str) -> str:
    """The id of a job, or of a task of it, of which a part was given. Raises Trouble."""
    job_id, slash, task = name.rpartition("/")
    if not slash:
        return find_job(reader, name).id
    return find_task(reader, find_job(reader, job_id), task).id


def _machine(reader: Reader, rows: Sequence[Transitioned]) -> Machine | None:
    """What the entity runs by; None where that is not known here, or its path is not one of it."""
    first = rows[0]
    if first.kind == "machine":
        record = reader.machine(first.entity_id)
        return None if record is None else machine_of(reader, record)
    lifecycle = (first.metadata or {}).get("lifecycle")
    if lifecycle is None:
        machine = MACHINES.get(first.kind)
    else:
        known = LIFECYCLES.get(lifecycle, {}).get(first.kind)
        machine = None if known is None else known.machine
    if machine is None or any(row.to_state not in machine.states for row in rows):
        return None
    return machine


def _alone(name: str, rows: Sequence[Transitioned]) -> Machine:
    """A machine that knows no more than the path."""
    states = dict.fromkeys(state for row in rows for state in (row.from_state, row.to_state) if state is not None)
    taken = dict.fromkeys((row.from_state, row.event, row.to_state) for row in rows if row.from_state is not None)
    return Machine(
        name, rows[0].to_state,
        states=tuple(State(state, bounded_by="what is not known here") for state in states),
        transitions=tuple(Transition(source, event, target) for source, event, target in taken),
    )  # fmt: skip
