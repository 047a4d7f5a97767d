"""`callboard stuck`: what has not changed for long, what it waits for, and the command that frees it.

Rules:
- Only what has not ended, and only what waits itself: a workstream that executes waits for its tasks, which are told.
- What is told is read from the records. Where nobody runs the journal, that is what everything waits for. A machine
  waits for the program that fires its events: which those are, and when which comes by itself, says its table.
- A command is printed with the place that it is for, unless that is the usual one, and without any password.
- What is owed is told, too: hooks of what has ended, alerts, callbacks of machines.
- Exit code 0 where nothing is found, 1 where something is, so that a watch can use it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..journal.location import file_of, in_words
from .boards import Board, Place
from .options import JOURNAL, AsJson
from .terminal import echo, echo_json
from .trouble import FAILED

if TYPE_CHECKING:
    from ...actors.records.entities import (
        ApprovalRecord,
        BreakerRecord,
        JobRecord,
        MachineRecord,
        WorkerRecord,
        WorkstreamRecord,
    )
    from ...actors.records.task import TaskRecord
    from ...actors.spec.model import Workstream
    from ..journal.contract import JournalQueries

OlderThan = Annotated[str, typer.Option("--older-than", metavar="SPAN", help="For how long: 90s, 15m, 2h, 1d.")]

# What a task waits for in each state, and what frees it: TARGET, TOOL and WORKER stand for the names.
_TASK = {
    "held": ("an approval", "callboard approve TARGET"),
    "waiting": ("its time", "callboard cancel TARGET"),
    "queued": ("a free worker", "callboard workers list --all"),
    "running": ("its body", "callboard cancel TARGET"),
    "timed_out": ("the end of its body, which is being stopped", "callboard cancel TARGET --force"),
    "validating": ("its checks", "callboard cancel TARGET"),
    "recovering": ("its worker", "callboard workers list --all"),
    "retrying": ("its next try", "callboard cancel TARGET"),
    "circuit_open": ("its tool", "callboard breaker reset TOOL"),
    "half_open": ("a free worker, to probe its tool", "callboard workers list --all"),
    "cancelling": ("its body or its hooks, which are being ended", "callboard cancel TARGET --force"),
}
_WORKSTREAM = {
    "held": ("an approval", "callboard approve TARGET"),
    "waiting": ("its time", "callboard cancel TARGET"),
    "paused": ("an operator", "callboard resume TARGET"),
    "validating": ("its checks", "callboard cancel TARGET"),
    "cancelling": ("its tasks or its hooks, which are being ended", "callboard cancel TARGET --force"),
}
_JOB = {
    "submitted": ("its checks", "callboard cancel TARGET"),
    "pending": ("the slots that it asks for", "callboard workers list --all"),
}
_WORKER = {
    "initializing": ("its start", "callboard workers terminate WORKER"),
    "paused": ("an operator", "callboard workers resume WORKER"),
    "draining": ("the tasks that it runs", "callboard workers terminate WORKER"),
    "unresponsive": ("an answer of it", "callboard workers terminate WORKER"),
}
_BREAKER = {
    "open": ("the end of its cooldown", "callboard breaker reset TOOL"),
    "half_open": ("a task that probes it", "callboard breaker reset TOOL"),
}


def stuck(older_than: OlderThan = "1h", journal: Place = JOURNAL, as_json: AsJson = False) -> None:
    """Show what has not changed for long, what it waits for, and the command that frees it."""
    from .reading import owner_of, reading  # noqa: PLC0415
    from .spans import span  # noqa: PLC0415

    now = time.time()
    since = now - span(older_than)
    with reading(journal) as reader:
        found = [one for one in _found(reader) if one["since"] <= since]
    owner = owner_of(journal)
    if owner is None:
        for one in found:
            one["waits_for"] = f"somebody to run {in_words(journal)}"
            one["command"] = "" if one["kind"] in _OF_PROGRAMS else "callboard resume"
    for one in found:
        one["command"] += _at(journal) if one["command"] else ""
    if as_json:
        _json(found)
    else:
        _told(found, now, owner)
    if found:
        raise typer.Exit(FAILED)


def _at(place: Place) -> str:
    """What tells a command of the place that was asked; nothing where it is the usual one."""
    from shlex import quote  # noqa: PLC0415

    if isinstance(place, Path) and place == file_of(JOURNAL):
        return ""
    return f" {'--url' if isinstance(place, Board) else '--journal'} {quote(in_words(place))}"


def _json(found: list[dict[str, Any]]) -> None:
    from ...actors.records.transition import iso  # noqa: PLC0415

    for one in found:
        one["since"] = iso(one["since"])
        one["due_at"] = None if one.get("due_at") is None else iso(one["due_at"])
        echo_json(one)


def _told(found: list[dict[str, Any]], now: float, owner: str | None) -> None:
    from . import words  # noqa: PLC0415

    for one in found:
        spent = words.took(now - one["since"])
        echo(f"{one['kind']} {one['target']} {one['state']} for {spent}: waits for {one['waits_for']}")
        if one["reason"]:
            echo(f"    {words.one_line(one['reason'], 160)}")
        if one["command"]:
            echo(f"    {one['command']}")
    runs = "nobody runs it" if owner is None else f"run by {owner}"
    echo(f"{len(found)} found; {runs}" if found else f"nothing is stuck; {runs}")


def _found(reader: JournalQueries) -> Iterator[dict[str, Any]]:
    from .machines import listed, waiting  # noqa: PLC0415
    from .owed import owed  # noqa: PLC0415
    from .reading import LIVING  # noqa: PLC0415

    breakers = reader.breakers()
    open_until = {one.name: one.due_at for one in breakers if one.state == "open" and one.due_at is not None}
    for job in reversed(reader.jobs(states=LIVING, limit=2**31)):
        if job.state in _JOB:
            yield _one(job, job.id, _JOB[job.state])
        last = job.last_of(reader.workstreams(job.id))
        if last is None:
            continue
        if last.state in _WORKSTREAM:
            yield _one(last, job.id, _WORKSTREAM[last.state])
        yield from _tasks(reader, last, job.id, open_until)
    for worker in reader.workers():
        if worker.finished_at is None and worker.state in _WORKER:
            yield _one(worker, worker.name, _WORKER[worker.state])
    for breaker in breakers:
        if breaker.state in _BREAKER:
            yield _one(breaker, breaker.name, _BREAKER[breaker.state])
    machines = reader.machines(living=True)
    left = waiting(reader) if machines else {}
    for machine in machines:
        if (rows := left.get(machine.name)) is not None:
            what = (f"a program that has its machine: {listed(rows)} in the inbox", "callboard status TARGET")
        else:
            what = (_machine(reader, machine), "callboard fire TARGET EVENT")
        yield _one(machine, machine.name, what)
    for one in owed(reader):
        yield {
            "kind": one.kind, "target": one.owner, "state": "owed", "since": one.since or 0.0,
            "waits_for": f"its end, or a program that has `{one.runs}`: {one.words}",
            "command": "", "reason": None,
        }  # fmt: skip


def _machine(reader: JournalQueries, record: MachineRecord) -> str:
    """What a machine waits for: who is to fire which events, and those that come by themselves."""
    from ..journal.consistency import machine_of  # noqa: PLC0415
    from .words import due as due_at  # noqa: PLC0415

    table = machine_of(reader, record)
    known = None if table is None else table.states.get(record.state)
    if table is None or known is None:
        return "an event"
    events = ", ".join(sorted(table.valid_events(record.state))) or "nothing that it knows"
    told = events if known.bounded_by is None else f"{known.bounded_by}: {events}"
    due = sorted(record.due.items(), key=lambda one: one[1])
    return told + "".join(f"; {event} by itself at {due_at(at)}" for event, at in due)


def _tasks(
    reader: JournalQueries, run: WorkstreamRecord, job_id: str, open_until: dict[str, float]
) -> Iterator[dict[str, Any]]:
    from shlex import quote  # noqa: PLC0415

    from .words import ENDED  # noqa: PLC0415

    for asked in reader.approvals(run.key):
        if asked.state == "held":
            name = asked.task_id.rpartition("/")[2]
            command = f"callboard approve TARGET --approval {quote(asked.name)}"
            yield _one(asked, f"{job_id}/{name}", ("an approval that its body asks for", command))
    tasks = reader.tasks(run.key)
    living = {task.name: task for task in tasks if task.state not in ENDED}
    spec = _Spec(reader, run.key)
    for task in tasks:
        if task.state in ENDED:
            continue
        target = f"{job_id}/{task.name}"
        if task.state == "pending":
            yield _one(task, target, _pending(task, spec(), living, run, job_id))
            continue
        what, command = _TASK[task.state]
        if task.state in {"queued", "half_open"} and run.state == "paused":
            what, command = "its workstream, which is paused", f"callboard resume {job_id}"
        elif task.state == "queued" and not task.routable:
            what = "a worker that could run it: there is none"
        if task.state == "circuit_open" and task.parked in {"exhausted", "lost"}:
            what, command = f"an operator: it is parked since its tries are {task.parked}", "callboard retry TARGET"
        tool = spec().tasks[task.index].tool if "TOOL" in command else None
        if tool is not None:
            what += _until(open_until.get(tool, 0.0))
        yield _one(task, target, (what, command.replace("TOOL", quote(tool or target))))


class _Spec:
    """A specification, read when it is asked for."""

    def __init__(self, reader: JournalQueries, key: int) -> None:
        self._reader = reader
        self._key = key
        self._spec: Workstream | None = None

    def __call__(self) -> Workstream:
        import msgspec  # noqa: PLC0415

        from ...actors.spec.model import Workstream  # noqa: PLC0415

        if self._spec is None:
            self._spec = msgspec.json.decode(self._reader.spec(self._key) or b"", type=Workstream)
        return self._spec


def _pending(
    task: TaskRecord, spec: Workstream, living: dict[str, TaskRecord], run: WorkstreamRecord, job_id: str
) -> tuple[str, str]:
    if run.state == "paused":
        return "its workstream, which is paused", f"callboard resume {job_id}"
    asked = spec.tasks[task.index]
    names = [name for name in (*asked.depends_on, *asked.after) if name in living]
    if not names:
        return f"its workstream, which is {run.state}", ""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(f"{job_id}/{name}" for name in names[:5]) + more, ""


def _until(at: float) -> str:
    """What is added to what is waited for that ends by itself; 0: it does not."""
    from .words import due  # noqa: PLC0415

    return f" (until {due(at)})" if at else ""


def _one(
    record: JobRecord | WorkstreamRecord | TaskRecord | WorkerRecord | BreakerRecord | ApprovalRecord | MachineRecord,
    target: str,
    told: tuple[str, str],
) -> dict[str, Any]:
    from shlex import quote  # noqa: PLC0415

    what, command = told
    if record.due_at is not None and record.kind != "machine":  # which has told of all that come
        what += _until(record.due_at)
    for word in ("TARGET", "TOOL", "WORKER"):
        command = command.replace(word, quote(target))
    return {
        "kind": record.kind,
        "target": target,
        "state": str(record.shown),
        "since": record.updated_at,
        "waits_for": what,
        "command": command,
        "reason": record.reason,
        "due_at": record.due_at,
    }


_OF_PROGRAMS = frozenset({"machine", "callback"})
"""What only a program that has their machines goes on with."""

TABLES: tuple[dict[str, tuple[str, str]], ...] = (_TASK, _WORKSTREAM, _JOB, _WORKER, _BREAKER)
"""What the table covers, for the test that holds it against the machines and the commands."""
