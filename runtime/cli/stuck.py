"""`callboard stuck`: entities without recent change, their waits, and commands that help.

Rules:
- Only entities that have not ended, and that wait themselves: an executing workstream waits for its tasks, which are
  shown.
- Everything is read from the records. If no runtime has the journal open, all entities wait for one. A machine waits
  for the program that fires its events: its table says which events those are, and which come at a set time.
- A command is printed with its journal or board, unless that is the default, and never with a password.
- Owed hooks are shown, too: hooks of ended entities, alerts, callbacks of machines.
- The exit code is 0 if nothing is found, 1 otherwise, for use in monitoring.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..journal.location import in_words
from .boards import Place
from .command_errors import FAILED
from .hints import place_option
from .options import JOURNAL, AsJson
from .terminal import echo, echo_json

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

OlderThan = Annotated[
    str, typer.Option("--older-than", metavar="SPAN", help="Time without a change: 90s, 15m, 2h, 1d.")
]

# What a task waits for in each state, and the command that helps. TARGET, TOOL and WORKER stand for names.
_TASK = {
    "held": ("an approval", "callboard approve TARGET"),
    "waiting": ("its time", "callboard cancel TARGET"),
    "queued": ("a free worker", "callboard workers list --all"),
    "running": ("its body", "callboard cancel TARGET"),
    "timed_out": ("the end of its body, which is being stopped", "callboard cancel TARGET --force"),
    "validating": ("its checks", "callboard cancel TARGET"),
    "recovering": ("its worker", "callboard workers list --all"),
    "retrying": ("its next attempt", "callboard cancel TARGET"),
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
    "unresponsive": ("its answer", "callboard workers terminate WORKER"),
}
_BREAKER = {
    "open": ("the end of its cooldown", "callboard breaker reset TOOL"),
    "half_open": ("a task that probes it", "callboard breaker reset TOOL"),
}


def stuck(older_than: OlderThan = "1h", journal: Place = JOURNAL, as_json: AsJson = False) -> None:
    """Show entities that have not changed for long, the reason, and the command that helps."""
    from .reading import owner_of, reading  # noqa: PLC0415
    from .spans import span  # noqa: PLC0415

    now = time.time()
    since = now - span(older_than)
    with reading(journal) as reader:
        found = [one for one in _found(reader) if one["since"] <= since]
    owner = owner_of(journal)
    if owner is None:
        for one in found:
            one["waits_for"] = f"a runtime that opens {in_words(journal)}"
            one["command"] = "" if one["kind"] in _OF_PROGRAMS else "callboard resume"
    for one in found:
        one["command"] += place_option() if one["command"] else ""
    if as_json:
        _json(found)
    else:
        _told(found, now, owner)
    if found:
        raise typer.Exit(FAILED)


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
    runs = "no runtime has it open" if owner is None else f"run by {owner}"
    echo(f"{len(found)} found; {runs}" if found else f"nothing is stuck; {runs}")


def _found(reader: JournalQueries) -> Iterator[dict[str, Any]]:
    from .machines import listed, waiting  # noqa: PLC0415
    from .owed import owed  # noqa: PLC0415
    from .reading import LIVING  # noqa: PLC0415

    breakers = reader.breakers()
    tools = {one.name: one for one in breakers}
    for job in reversed(reader.jobs(states=LIVING, limit=2**31)):
        if job.state in _JOB:
            yield _one(job, job.id, _JOB[job.state])
        last = job.last_of(reader.workstreams(job.id))
        if last is None:
            continue
        if last.state in _WORKSTREAM:
            yield _one(last, job.id, _WORKSTREAM[last.state])
        yield from _tasks(reader, last, job.id, tools)
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
            "waits_for": f"its run, by a program that has `{one.runs}`: {one.words}",
            "command": "", "reason": None,
        }  # fmt: skip


def _machine(reader: JournalQueries, record: MachineRecord) -> str:
    """Describe a machine's wait: events that can be fired, by whom, and timed events."""
    from ..journal.consistency import machine_of  # noqa: PLC0415
    from .words import due as due_at  # noqa: PLC0415

    table = machine_of(reader, record)
    state = None if table is None else table.states.get(record.state)
    if table is None or state is None:
        return "an event"
    events = ", ".join(sorted(table.valid_events(record.state))) or "no event: its state has none"
    waits_for = events if state.bounded_by is None else f"{state.bounded_by}: {events}"
    due = sorted(record.due.items(), key=lambda one: one[1])
    return waits_for + "".join(f"; {event} comes at {due_at(at)}" for event, at in due)


def _tasks(
    reader: JournalQueries, run: WorkstreamRecord, job_id: str, tools: dict[str, BreakerRecord]
) -> Iterator[dict[str, Any]]:
    from shlex import quote  # noqa: PLC0415

    from .words import ENDED  # noqa: PLC0415

    asks: dict[str, list[str]] = {}  # by the names of tasks: approvals that their bodies wait for
    for asked in reader.approvals(run.key):
        if asked.state == "held":
            name = asked.task_id.rpartition("/")[2]
            command = f"callboard approve TARGET --approval {quote(asked.name)}"
            if asked.left_at is not None:
                yield _one(asked, f"{job_id}/{name}", ("an approval for which its body waits no longer", command))
                continue
            yield _one(asked, f"{job_id}/{name}", ("an approval that its body asks for", command))
            asks.setdefault(name, []).append(asked.name)
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
            what = "a worker that can run it: there is none"
        if task.state == "circuit_open" and task.parked in {"exhausted", "lost"}:
            what, command = (
                f"an operator: it is parked, because its attempts are {task.parked}",
                "callboard retry TARGET",
            )
        if task.state == "running" and (asked_for := asks.get(task.name)):
            what += f", which waits for the approval {', '.join(map(repr, asked_for))}"
            command = f"callboard approve TARGET --approval {quote(asked_for[0])}"
        elif task.state == "running" and task.flow:
            waits, helps = _step_of(reader, task, tools)
            what, command = what + waits, helps or command
        tool = spec().tasks[task.index].tool if "TOOL" in command else None
        if tool is not None:
            breaker = tools.get(tool)
            what += _until(0.0 if breaker is None or breaker.state != "open" else breaker.due_at or 0.0)
        yield _one(task, target, (what, command.replace("TOOL", quote(tool or target))))


def _step_of(reader: JournalQueries, task: TaskRecord, tools: dict[str, BreakerRecord]) -> tuple[str, str]:
    """Name the step of a running body that waits for a time, a message, a tool or a worker, the one that waits longest,
    and the command that helps; empty if none does.
    """
    from shlex import quote  # noqa: PLC0415

    from ...actors.records.step import of_present  # noqa: PLC0415
    from . import words  # noqa: PLC0415

    open_ = [of_present(step, task) for step in reader.steps(task.flow) if step.state == "waiting"]
    waits = [step for step in open_ if step.due_at or step.awaits or step.waits_for_tool or step.waits_for_worker]
    if not waits:
        return "", ""
    step = max(waits, key=lambda step: step.due_at or math.inf)
    if (name := step.waits_for_tool) is not None:
        well = name not in tools or tools[name].state == "closed"
        what = f", which waits in its step {step.label} for {words.tool(name, tools)}"
        return what, "callboard tools" if well else f"callboard breaker reset {quote(name)}"
    if step.waits_for_worker is not None:
        why = "" if step.unroutable is None else f": {step.unroutable}"
        what = f", which waits in its step {step.label} for a worker of {step.waits_for_worker}{why}"
        return what, "callboard workers list --all"
    until = "" if step.due_at is None else _until(step.due_at)
    if step.awaits is None:
        return f", which waits in its step {step.label}{until}", ""
    sends = f"callboard send TARGET {quote(step.awaits)} --data JSON"
    return f", which waits for message {step.awaits!r}{until}", sends


class _Spec:
    """A specification that is read on first use."""

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
    """Return the text for the end of a wait; empty for 0, a wait without an end."""
    from .words import due  # noqa: PLC0415

    return f" (until {due(at)})" if at else ""


def _one(
    record: JobRecord | WorkstreamRecord | TaskRecord | WorkerRecord | BreakerRecord | ApprovalRecord | MachineRecord,
    target: str,
    told: tuple[str, str],
) -> dict[str, Any]:
    from shlex import quote  # noqa: PLC0415

    what, command = told
    if record.due_at is not None and record.kind != "machine":  # a machine's text has all due times
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
"""Kinds that only a program with their machines can continue."""

TABLES: tuple[dict[str, tuple[str, str]], ...] = (_TASK, _WORKSTREAM, _JOB, _WORKER, _BREAKER)
"""All tables, for the test that compares them with the machines and commands."""
