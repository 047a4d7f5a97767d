"""The rules for the flows of the kill sweep, whenever they are killed; each violation is a `Finding`.

The rules
- A step never runs again once the journal keeps its end, failures included; in one run of a body no step runs twice.
- A body sees nothing that is not durable, and every replay sees the same as the run before, decides by a time limit as
  before.
- A message is received once and never lost, those of one name from one sender in the order in which they were sent.
- An approval is asked for once, a child job is submitted once.
- Results and published values are those of an uninterrupted run.
- The auditor and `callboard check` find nothing; nothing is left over.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from callboard.actors.records.step import RECEIVE, StepRecord, published_by
from callboard.actors.records.task import TaskRecord
from callboard.runtime.journal.contract import Stored

from . import flow_scene
from .flow_scene import ENTRIES, LIMITS, PAYMENTS, ROUNDS, engines_of, job_of, published_of, result_of
from .outside import Operator, log_of, reading
from .verdict import audited, checked, logged, nothing_left

REPEATED = "steps repeated after they were kept"
LOST, DOUBLED = "messages lost", "messages received twice"
ASKED_AGAIN = "approvals or children asked for again"
EARLY = "values seen before they were durable"
DIFFERENT = "values that differ from those of an uninterrupted run"
OTHER = "other faults"
KINDS = (REPEATED, LOST, DOUBLED, ASKED_AGAIN, EARLY, DIFFERENT, OTHER)


class Finding(NamedTuple):
    """A violated rule: one of `KINDS`, and what was found."""

    kind: str
    text: str


class RulesBroken(AssertionError):  # noqa: N818 - it says what happened
    """The findings of one chain of kills."""

    def __init__(self, findings: list[Finding]) -> None:
        super().__init__("\n".join(f"{one.kind}: {one.text}" for one in findings))
        self.findings = findings


class FlowRules:
    """The rules of one chain of kills, with the operator that sends payments and approves.

    done: how often each kind of thing was done; steps that a kill interrupted are done again.
    """

    def __init__(self, place: Path, *, processes: bool = False, ray: bool = False) -> None:
        self.operator = Operator(place, self._looked)
        self._findings: list[Finding] = []
        self.done: Counter[str] = Counter()
        self._place = place
        self._orders = [job_of(engine) for engine in engines_of(processes=processes, ray=ray)]
        self._kept: dict[str, int] = {}  # "JOB did WHAT", and the length of the log when it was known to be durable

    def after_kill(self) -> None:
        """Raise RulesBroken if the data of a killed runtime break a rule."""
        self._look_at()
        self._raise()

    def at_end(self) -> None:
        """Raise RulesBroken if the data of flows that have ended break a rule. Counts what was done."""
        self._look_at()
        with reading(self._place) as reader:
            assert reader is not None
            self._note(OTHER, checked(self._place))
            self._note(OTHER, logged(reader, self._place))
            self._note(OTHER, nothing_left(reader, self._place))
            self._messages(reader)
            self._results(reader)
            self._note(ASKED_AGAIN, self._asked(reader))
            self._count(reader)
        self._note(OTHER, self._unheard())
        self._raise()

    def _raise(self) -> None:
        if self._findings:
            raise RulesBroken(self._findings)

    def _look_at(self) -> None:
        seen = log_of(self._place)
        with reading(self._place) as reader:
            if reader is None:
                self._note(OTHER, (line for line in seen if " did " in line))
                return
            self._keep(reader)
            self._note(EARLY, self._early(reader, seen))
            self._note(OTHER, audited(reader))
        log = log_of(self._place)
        self._note(REPEATED, self._repeated(log))
        self._note(REPEATED, self._rounds(log))
        self._note(DIFFERENT, _changed(log))

    # -- from outside --------------------------------------------------------------------------------------------------

    def _looked(self, operator: Operator, reader: Stored) -> None:
        """Send the payments of each order, the second one when the first was received, and approve what is asked."""
        self._keep(reader)
        for job in self._orders:
            task = _task(reader, job)
            if task is None or task.finished_at is not None:
                continue
            received = sum(message.received_at is not None for message in reader.messages(job))
            for number, payment in enumerate(PAYMENTS[: received + 1]):
                key = f"{job}-pays-{number}"
                operator.once("send", "job", job, key, times=2, name="payment", value=payment)
            if reader.approvals(task.workstream):
                operator.once("approve", "task", f"{job}/order", f"{job}-sign", by="ana", approval="sign")

        if _task(reader, "paid") is not None:
            operator.once("send", "job", "paid", "paid-is-paid", times=2, name="payment", value=PAYMENTS[0])

    # -- the rules -----------------------------------------------------------------------------------------------------

    def _note(self, kind: str, texts: Iterator[str]) -> None:
        known = set(self._findings)
        self._findings += [one for text in texts if (one := Finding(kind, text)) not in known]

    def _keep(self, reader: Stored) -> None:
        """Note which steps are durable by now."""
        kept = [
            _line_of(job, row) for job in [*self._jobs(), "books", "rounds", "limits"] for row in _steps(reader, job)
        ]
        length = len(log_of(self._place))
        for line in filter(None, kept):
            self._kept.setdefault(line, length)

    def _jobs(self) -> Iterator[str]:
        for job in self._orders:
            yield job
            yield f"{job}/order/sub"

    def _repeated(self, log: list[str]) -> Iterator[str]:
        running: dict[str, set[str]] = {}
        for number, line in enumerate(log):
            job, word, _ = f"{line} ".split(" ", 2)
            if word == "began":
                running[job] = set()
            elif word == "did":
                if number >= self._kept.get(line, len(log)):
                    yield f"line {number}: {line}, which the journal had kept by line {self._kept[line]}"
                if line in running.setdefault(job, set()):
                    yield f"line {number}: {line}, twice in one run of the body"
                running[job].add(line)

    def _rounds(self, log: list[str]) -> Iterator[str]:
        """Rounds that have begun, and those before them, which are over: their steps are not kept any more."""
        did = [line for line in log if line.startswith("rounds did ")]
        if did != sorted(did):
            yield f"rounds: {did}"

    def _early(self, reader: Stored, log: list[str]) -> Iterator[str]:
        """Values that a body has seen, and the journal does not keep (of `rounds` it keeps the present round only)."""
        for job in [*self._jobs(), "books", "limits"]:
            rows = [row for row in _steps(reader, job) if row.ended_at is not None]
            durable = {row.label for row in rows} | {_line_of(job, row).partition(" did ")[2] for row in rows}
            task = _task(reader, job)
            if task is not None:
                durable |= {"sign" for approval in reader.approvals(task.workstream) if approval.decisions}
            begins = f"{job} saw "
            for line in log:
                if line.startswith(begins) and line.removeprefix(begins).partition(" = ")[0] not in durable:
                    yield line

    def _messages(self, reader: Stored) -> None:
        wanting = {**dict.fromkeys(self._orders, PAYMENTS), "books": self._entries(), "paid": PAYMENTS[:1]}
        for job, values in wanting.items():
            messages = reader.messages(job)
            sent = [_text(message.value) for message in messages]
            wanted = [_text(value) for value in values]
            received = [_text(row.result) for row in _receives(reader, job)]
            self._note(LOST, (f"{job}: {text}" for text in (Counter(wanted) - Counter(received))))
            self._note(DOUBLED, (f"{job}: {text}" for text in (Counter(received) - Counter(wanted))))
            self._note(DOUBLED, (f"{job} was sent {text} again" for text in (Counter(sent) - Counter(wanted))))
            self._note(OTHER, (f"unread: {job}: {one}" for one in messages if one.received_at is None))
            self._note(OTHER, self._out_of_order(job, _receives(reader, job)))

    def _entries(self) -> list[dict[str, Any]]:
        return [{"from": job, "entry": number} for job in self._orders for number in ENTRIES]

    def _out_of_order(self, job: str, rows: list[StepRecord]) -> Iterator[str]:
        values = [row.result for row in sorted(rows, key=lambda row: row.number)]
        for sender in self._orders if job == "books" else [job]:
            ours = [value for value in values if value.get("from", job) == sender]
            if ours != sorted(ours, key=_text):
                yield f"{job} received out of order: {ours}"

    def _results(self, reader: Stored) -> None:
        for job in self._orders:
            task = _task(reader, job)
            found = None if task is None else task.result
            if found != result_of(job):
                self._note(DIFFERENT, iter([f"{job} ended with {found}: {task}"]))
            published = {} if task is None else published_by(reader.publications(task.key))
            values = {name: row.result for name, row in published.items()}
            if values != published_of(job):
                self._note(DIFFERENT, iter([f"{job} has published {values}"]))
        task = _task(reader, "books")
        found = None if task is None else task.result
        if found is None or sorted(map(_text, found)) != sorted(map(_text, self._entries())):
            self._note(DIFFERENT, iter([f"books ended with {found}: {task}"]))
        task = _task(reader, "paid")
        if task is None or task.result != PAYMENTS[0]:
            self._note(LOST, iter([f"paid ended as {task}"]))
        task = _task(reader, "rounds")
        if task is None or (task.result, task.rounds) != (ROUNDS, ROUNDS - 1):
            self._note(DIFFERENT, iter([f"rounds ended as {task}"]))
        task, rows = _task(reader, "limits"), _steps(reader, "limits")
        decided = [row.result for row in rows if row.name.startswith("decided-")]
        if task is None or task.result != decided or len(decided) != LIMITS:
            self._note(DIFFERENT, iter([f"limits ended as {task}, and has decided {decided}"]))
        late = sum(row.given_up is not None for row in rows)
        if late != sum(word.startswith("late") for word in decided):
            self._note(DIFFERENT, iter([f"limits has given up {late} receives, and decided {decided}"]))
        self.done["decisions by a limit that was over"] += late

    def _asked(self, reader: Stored) -> Iterator[str]:
        for job in self._orders:
            task = _task(reader, job)
            asked = [] if task is None else reader.approvals(task.workstream)
            begun = [row for row in reader.transitions(job_id=job) if row.kind == "approval" and row.from_state is None]
            if len(asked) != 1 or len(begun) != 1 or len(asked[0].decisions) != 1:
                yield f"{job}: {asked}, {begun}"
            children = [child.id for child in reader.children(job)]
            if children != [f"{job}/order/sub"] or len(reader.workstreams(children[0])) != 1:
                yield f"{job} has the children {children}"

    def _unheard(self) -> Iterator[str]:
        for command in self.operator.sent.values():
            if command.answer is None:
                yield f"{command.row.request_id} was never answered"
            elif command.answer.error is not None:
                yield f"{command.row.request_id} was refused: {command.answer.error}"

    def _count(self, reader: Stored) -> None:
        for job in [*self._jobs(), "books", "paid", "rounds", "limits"]:
            rows = _steps(reader, job)
            self.done["flows"] += 1
            self.done["steps kept"] += len(rows)
            self.done["messages"] += len(_receives(reader, job))
            self.done["approvals"] += job in self._orders
        log = log_of(self._place)
        did = [line for line in log if " did " in line]
        self.done["bodies begun"] += sum(" began " in line for line in log)
        self.done["functions of steps run"] += len(did)
        self.done["of these again, since a kill had cut them"] += len(did) - len(set(did))


def _task(reader: Stored, job: str) -> TaskRecord | None:
    runs = reader.workstreams(job)
    tasks = reader.tasks(runs[-1].key) if runs else []
    return tasks[0] if tasks else None


def _steps(reader: Stored, job: str) -> list[StepRecord]:
    task = _task(reader, job)
    return [] if task is None else reader.steps(task.key)


def _receives(reader: Stored, job: str) -> list[StepRecord]:
    return [row for row in _steps(reader, job) if row.name.startswith(RECEIVE) and row.message is not None]


def _line_of(job: str, row: StepRecord) -> str:
    """The line that the function of a step has written which has ended; "" for a step of the library."""
    if row.ended_at is None or not row.function.startswith(flow_scene.__name__):
        return ""
    return f"{job} did {row.error or row.result}"


def _changed(log: list[str]) -> Iterator[str]:
    """Values that bodies saw, and that differ from those that they had seen before."""
    first: dict[str, str] = {}
    for line in log:
        if " saw " in line:
            what, _, value = line.partition(" = ")
            if first.setdefault(what, value) != value:
                yield f"{what}: {first[what]}, then {value}"


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
