"""Checks of a scene's journal, its JSONL log and the log of its bodies; each violation is one line of text.

`GraphRules.after_kill` is called after each kill, `at_end` when a victim has reported its end.

The rules, in the order of the functions:
- The auditor finds nothing in the transitions, and the records agree with them (`callboard check`).
- The JSONL log, once a runtime was left in order, holds each transition of the journal once, in order.
- A body begins at most once per fencing token, only after its claim was committed, and never once a result of its
  task was committed. A later attempt begins only when the one before can write nothing more.
- The counts of failed and lost attempts are those of the attempts; none is above its limit.
- An acknowledged command took effect exactly once; a command in the inbox was answered, at the latest at the next
  start.
- Hooks ran at least once. Nothing remains: no claim, no owed hook, no process.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from tests.processes import carrying

from callboard.actors.records.entities import AttemptRecord, TaskRecord
from callboard.machines import TransitionEvent
from callboard.machines.audit.audit import AuditFinding, Auditor, audit_lines
from callboard.runtime.journal.contract import Stored
from callboard.runtime.journal.jsonl import log_line
from callboard.runtime.journal.location import target_of

from .outside import Command, Operator, commands_of_graphs, log_of, reading
from .scene import FRAGILE_LOSSES, NOTES, journal_of, log_of_transitions

JOBS = ("main", "main/parent/sub", "doomed")
ENDS = {
    "main": {"completed"},
    "main/parent/sub": {"completed"},
    "doomed": {"cancelled", "skipped"},
    "main/fragile": {"completed", "failed"},
    "main/once": {"completed", "failed"},
}
FAILURES = ("failed", "timed_out")
EFFECTS = {  # by command: the event that it must have fired, and the entity
    "cancel-doomed": ("doomed", {"cancel", "cancel_graceful"}),
    "pause": ("main@1", {"pause"}),
    "resume": ("main@1", {"resume"}),
    "approve-1": ("main@1/gate", {"approve"}),
    "approve-2": ("main@1/gate", {"approve"}),
    "sign": ("main@1/asks/sign", {"approve"}),
    "close": ("gauge", {"close"}),
    **{f"note-{note}": ("gauge", {"note"}) for note in range(NOTES)},
}


class GraphRules:
    """The rules of one chain of kills of the workstreams of `scene.py`, with the operator that gives their commands.

    done: nothing is counted.
    """

    def __init__(self, place: Path) -> None:
        self.operator = Operator(place, commands_of_graphs)
        self.done: Counter[str] = Counter()
        self._place = place

    def after_kill(self) -> None:
        """Raise AssertionError if the data of a killed runtime break a rule."""
        with reading(self._place) as reader:
            log = log_of(self._place)
            if reader is None:
                assert not any(line.endswith(" start") for line in log), "a body began, and there is no journal"
                return
            commands = list(self.operator.sent.values())
            found = [*audited(reader), *ran_once(reader, log), *took_effect(reader, commands)]
            assert not found, "\n".join(found)

    def at_end(self) -> None:
        """Raise AssertionError if the data of a finished scene break a rule."""
        place, commands = self._place, list(self.operator.sent.values())
        with reading(place) as reader:
            assert reader is not None
            log = log_of(place)
            found = [
                *audited(reader), *checked(place), *logged(reader, place), *ran_once(reader, log), *ended(reader, log),
                *counted(reader), *took_effect(reader, commands), *nothing_left(reader, place),
                *nothing_after_cancel(log, commands),
            ]  # fmt: skip
            found += [f"{one.row.request_id} was never answered" for one in commands if one.answer is None]
            assert not found, "\n".join(found)


def tasks_of(reader: Stored) -> Iterator[tuple[str, TaskRecord, list[AttemptRecord]]]:
    """All tasks by the name that their bodies use ("JOB/TASK"), with their attempts."""
    for job in JOBS:
        for run in reader.workstreams(job):
            for task in reader.tasks(run.key):
                yield f"{job}/{task.name}", task, reader.attempts(task.id)


def audited(reader: Stored) -> Iterator[str]:
    auditor = Auditor()
    for event in reader.transitions():
        auditor.take(msgspec.convert(log_line(event), TransitionEvent, from_attributes=True))
    yield from map(_text, auditor.finish())


def checked(place: Path) -> Iterator[str]:
    import typer

    from callboard.runtime.cli.check import check

    told = io.StringIO()
    try:
        with contextlib.redirect_stdout(told):
            check(str(target_of(journal_of(place))))
    except typer.Exit:
        yield f"callboard check: {told.getvalue()}"


def logged(reader: Stored, place: Path) -> Iterator[str]:
    if not isinstance(journal_of(place), Path):
        return  # a node's log has the transitions of that node only
    log = log_of_transitions(place)
    with log.open("rb") as file:
        yield from map(_text, audit_lines(file))
    lines = log.read_bytes().splitlines()
    numbers = [msgspec.json.decode(line)["seq"] for line in lines]
    if numbers != [row.seq for row in reader.transitions()]:
        yield "the log does not hold each transition of the journal once, in order"
    if numbers != list(range(1, len(numbers) + 1)):
        yield "the transitions are not numbered without a gap"


def ran_once(reader: Stored, log: list[str]) -> Iterator[str]:
    begun: dict[str, list[int]] = defaultdict(list)
    wrote: dict[str, list[int]] = defaultdict(list)
    for line in log:
        name, token, word = line.rsplit(" ", 2)
        if token != "0":
            wrote[name].append(int(token))
            if word == "start":
                begun[name].append(int(token))
    known = {name: (task, attempts) for name, task, attempts in tasks_of(reader)}
    yield from (f"{name} began, and the journal knows no such task" for name in begun.keys() - known.keys())
    for name, (_, attempts) in known.items():
        ends = {attempt.key: attempt.end for attempt in attempts}
        for token, times in Counter(begun[name]).items():
            if times > 1:
                yield f"{name}: the body of token {token} began {times} times"
            if token not in ends:
                yield f"{name}: the body of token {token} began before its claim was committed"
        succeeded = [token for token, end in ends.items() if end == "succeeded"]
        if len(succeeded) > 1:
            yield f"{name} has {len(succeeded)} results"
        if succeeded and max(ends) > succeeded[0]:
            yield f"{name} was claimed again although its result was committed"
        if wrote[name] != sorted(wrote[name]):
            yield f"{name}: an earlier attempt wrote after a later one had begun: {wrote[name]}"


def ended(reader: Stored, log: list[str]) -> Iterator[str]:
    for job in JOBS:
        record = reader.job(job)
        if record is None or record.state not in ENDS[job]:
            yield f"job {job} is {None if record is None else record.state}"
    for name, task, attempts in tasks_of(reader):
        if task.state not in ENDS.get(name, ENDS[task.job_id]):
            yield f"{name} ended as {task.state}: {task.reason}"
        if task.state == "completed":
            token = next(attempt.key for attempt in attempts if attempt.end == "succeeded")
            if f"{name} {token} end" not in log:
                yield f"{name} is completed, and its body did not end"
    gauge = reader.machine("gauge")
    if gauge is None or gauge.state != "out" or msgspec.json.decode(gauge.facts or b"{}").get("notes") != NOTES:
        yield f"the machine is {gauge}"
    yield from hooks_ran(reader, log)


def hooks_ran(reader: Stored, log: list[str]) -> Iterator[str]:
    wanted = {"main@1/first", "main@1"}
    passed = {(row.entity_id, row.to_state) for row in reader.transitions()}
    wanted |= {name for name in ("doomed@1/body", "doomed@1") if (name, "cancelling") in passed}
    yield from (f"the hook of {name} did not run" for name in wanted if f"{name} 0 hook" not in log)


def counted(reader: Stored) -> Iterator[str]:
    for name, task, attempts in tasks_of(reader):
        ends = [attempt.end for attempt in attempts]
        failed, lost = sum(ends.count(end) for end in FAILURES), ends.count("lost")
        if (task.failed_attempts, task.lost_attempts) != (failed, lost):
            yield f"{name} counts {task.failed_attempts} failed and {task.lost_attempts} lost, and has {ends}"
        if failed > task.max_attempts + task.granted or lost > task.max_losses:
            yield f"{name} has {failed} failed and {lost} lost attempts: too many"
        if [attempt.attempt for attempt in attempts] != list(range(1, len(attempts) + 1)) or None in ends:
            yield f"{name} has attempts that are not numbered, or not ended: {attempts}"
        if name == "main/once" and len(attempts) > 1:
            yield f"{name} was tried {len(attempts)} times"
        if name == "main/fragile" and len(attempts) > FRAGILE_LOSSES:
            yield f"{name} was tried {len(attempts)} times"


def took_effect(reader: Stored, commands: Sequence[Command]) -> Iterator[str]:
    acknowledged: dict[tuple[str, str], set[str]] = defaultdict(set)
    for command in commands:
        if command.answer is None:
            continue
        if command.answer.error is not None:
            yield f"{command.row.request_id} was refused: {command.answer.error}"
        entity, events = EFFECTS[command.row.request_id]
        acknowledged[entity, " ".join(sorted(events))].add(command.row.request_id)
    for (entity, events), names in acknowledged.items():
        fired = sum(row.event in events.split() for row in reader.transitions(entity_id=entity))
        sent = {one.row.request_id for one in commands if EFFECTS[one.row.request_id][0] == entity}
        if not len(names) <= fired <= len(sent):
            yield f"{entity}: acknowledged {sorted(names)}, and {events!r} was fired {fired} times"


def nothing_after_cancel(log: list[str], commands: Sequence[Command]) -> Iterator[str]:
    for command in commands:
        if command.row.request_id == "cancel-doomed" and command.answer is not None:
            late = [line for line in log[command.seen :] if line.startswith("doomed/") and line.endswith(" start")]
            if late:
                yield f"began after the cancel was acknowledged: {late}"


def nothing_left(reader: Stored, place: Path) -> Iterator[str]:
    if reader.outbox():
        yield f"hooks were not run: {reader.outbox()}"
    mark = f"SCENE={place}"
    until = time.monotonic() + 60
    while (left := carrying(mark)) and time.monotonic() < until:
        time.sleep(0.02)  # a worker process ends by itself after its runtime
    if left:
        yield f"processes are left over: {left}"


def _text(finding: AuditFinding) -> str:
    return f"{finding.severity} {finding.kind} {finding.entity_id or ''}: {finding.text}"
