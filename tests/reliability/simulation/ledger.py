"""The ledger of one run: real events and given promises, and the checks that are made at each event.

| kind of finding | broken invariant |
| --- | --- |
| effect_before_cause | something started, or was reported, before its cause was durable |
| started_after_cancel | a body started that the journal had cancelled, or ended |
| run_twice | a body started although its result is in the journal and no further attempt was granted |
| token_twice | two things started under one token |
| over_limit | more bodies ran at once on a worker, with a tool or in a workstream than its limit allows |
| lost_command | an acknowledged command is not in the journal |
| done_twice | one command took effect twice |
| trouble | the runtime undid a turn, or reported another internal error |
| alive_again | an entity that had ended durably was loaded as living |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from callboard.actors.messages.commands import Reply
from callboard.actors.messages.inputs import CallEnded, Message
from callboard.actors.messages.notices import Notice
from callboard.actors.records.entities import JobRecord
from callboard.actors.records.loaded import Loaded
from callboard.actors.records.task import AttemptRecord, TaskRecord

if TYPE_CHECKING:
    from .engines import Run
    from .world import World

OURS = frozenset({"turn_undone", "internal_error"})
"""Notices that report an internal error of the runtime."""
EXPECTED = frozenset({"hook_failed", "worker_given_up", "journal_unwritable"})
"""Notices that report the faults of a plan."""


@dataclass(slots=True)
class Said:
    """A command: its verb, its target, and its answer."""

    key: str
    what: str
    target: str
    make: Callable[[Reply], Message | None]
    answered: bool = False
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Wrong:
    """A broken invariant."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Ledger:
    """The real events of a run, and the findings."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.findings: list[Wrong] = []
        self.trace: list[tuple[float, int, str, Any]] = []
        self.marks: list[tuple[int, str]] = []  # moves that had an effect, with the number of the last transition then
        self.said: dict[str, Said] = {}
        self.orders: dict[str, bool] = {}  # by job id: whether it was accepted
        self.tokens: set[tuple[int, int]] = set()
        self.bodies: Counter[int] = Counter()  # bodies that really started, by task key
        self.returned: dict[int, CallEnded] = {}  # the real ends of bodies, by token
        self.hooks: Counter[tuple[str, str, int]] = Counter()  # hooks that really ended, by entity, kind and number
        self.rows: set[int] = set()  # rows of the outbox whose hooks really ended
        self.unheard: set[int] = set()  # tokens of bodies whose end was lost in a crash
        self.over: set[str] = set()  # jobs that the runtime reported as ended, and that did not run again
        self.troubles: list[Notice] = []
        self.error: Exception | None = None  # the error that the run itself raised

    def note(self, what: str, facts: Any) -> None:
        """Add a line to the trace."""
        self.trace.append((self.world.now, len(self.world.disk.transitions), what, facts))

    def wrong(self, kind: str, text: str) -> None:
        """Add a finding."""
        self.findings.append(Wrong(kind, text))
        self.note("WRONG", f"{kind}: {text}")

    # -- what the runtime does -----------------------------------------------------------------------------------------

    def opened(self, loaded: Loaded) -> None:
        """Note that the runtime has started."""

    def trouble(self, notice: Notice) -> None:
        """Receive a notice of the runtime about an error."""
        self.troubles.append(notice)
        self.note("trouble", notice.text)
        if notice.event in OURS or (notice.severity == "error" and notice.event not in EXPECTED):
            self.wrong("trouble", f"{notice.event}: {notice.text}")

    def job_over(self, record: JobRecord) -> None:
        """Receive the runtime's report that a job has ended."""
        durable = self.world.disk.records.get(("job", record.key))
        if durable is None or durable.finished_at is None:
            self.wrong("effect_before_cause", f"job {record.id} was told to be over, and the journal does not say so")

    def started(self, run: Run) -> None:
        """Note that something has really started."""
        self.note("start", (run.kind, run.entity, run.token))
        token = run.token, 0 if run.kind == "body" else self.world.life  # the calls before a crash are not reported
        if token in self.tokens:
            self.wrong("token_twice", f"{run.kind} of {run.entity} started under token {run.token}, used before")
        self.tokens.add(token)
        if run.kind == "body":
            self._body(run)
            return
        if run.kind == "hook" and ("outbox", run.token) not in self.world.disk.records:
            self.wrong("effect_before_cause", f"a hook of {run.entity} started that the journal does not have")

    def _body(self, run: Run) -> None:
        records = self.world.disk.records
        self.bodies[run.key] += 1
        task: Any = records.get(("task", run.key))
        claim: Any = records.get(("attempt", run.token))
        if task is None or claim is None:
            self.wrong("effect_before_cause", f"{run.entity} started under token {run.token} without a claim")
        elif task.token != run.token or task.state != "running" or claim.end is not None:
            about = f"the journal has it {task.state} under token {task.token}, the claim ended as {claim.end}"
            self.wrong("started_after_cancel", f"{run.entity} started under token {run.token}; {about}")
        stream: Any = records.get(("workstream", run.stream))
        if stream is not None and stream.cause == "cancel" and stream.state == "cancelling":
            self.wrong("started_after_cancel", f"{run.entity} started, and the journal has {stream.id} cancelled")
        more = task is not None and task.granted  # a further attempt is granted after a result that failed its checks
        for other in self.world.disk.of(AttemptRecord):
            if other.task == run.key and other.end == "succeeded" and not more:
                self.wrong("run_twice", f"{run.entity} started, and attempt {other.attempt} had succeeded")
        self._limits(run)

    def _limits(self, run: Run) -> None:
        world = self.world
        running = [one for one in world.hands.runs.values() if one.kind == "body" and not one.lends]
        worker = world.worker_spec(run.worker.partition("#")[0]) if run.worker else None
        if worker is not None:
            there = sum(one.worker == run.worker for one in running)
            if there > (worker.capacity or 1):
                self.wrong("over_limit", f"{there} bodies run on {run.worker}")
        if run.tool is not None:
            limit = self._strictest(run)
            same = sum(one.tool == run.tool for one in running)
            if limit is not None and same > limit:
                self.wrong("over_limit", f"{same} bodies use tool {run.tool}, of {limit}")
        stream: Any = world.kernel.entities[run.key]
        limit = stream.stream.spec.max_parallel
        mine = sum(one.stream == run.stream for one in running)
        if limit is not None and mine > limit:
            self.wrong("over_limit", f"{mine} bodies run in {stream.stream.record.id}, of {limit}")

    def _strictest(self, run: Run) -> int | None:
        """The strictest limit of its tool: of the runtime, and of workstreams that lived at its claim and live now."""
        kernel, plan = self.world.kernel, self.world.plan
        said = [plan.tools[run.tool or ""]] if run.tool in plan.tools else []
        for order in plan.orders:
            job = kernel.jobs.get(order.job_id)
            if job is not None and run.tool in order.spec.tools and not job.ended:
                record: Any = self.world.disk.records.get(("job", job.record.key))
                if record is not None and record.stream < run.token and record.finished_at is None:
                    said.append(order.spec.tools[run.tool])
        return min((tool.max_parallel for tool in said if tool.max_parallel is not None), default=None)

    def ended(self, run: Run, ended: CallEnded) -> None:
        """Note that something has really ended."""
        self.note("end", (run.kind, run.entity, run.token, ended.status))
        if run.kind == "body":
            self.returned[run.token] = ended
            if run.process is not None:
                self.unheard.add(run.token)  # its process may be given up before its end is reported
            return
        self.hooks[run.entity, run.kind, run.index] += 1
        if run.kind == "hook":
            self.rows.add(run.token)

    def row_done(self, key: int) -> None:
        """Note that a row of the outbox is done, durably."""
        if key not in self.rows:
            self.wrong("hook_missed", f"row {key} of the outbox is done, and its hook has not come to its end")

    def crashed(self) -> None:
        """Note a crash. Results that bodies reported, and that the journal does not have yet, are lost."""
        for token in self.returned:
            claim: Any = self.world.disk.records.get(("attempt", token))
            if claim is None or claim.end is None:
                self.unheard.add(token)

    # -- what people say -----------------------------------------------------------------------------------------------

    def command(self, what: str, target: str, make: Callable[[Reply], Message | None]) -> None:
        """Give a command, under a new key."""
        key = f"c{len(self.said)}"
        self.said[key] = Said(key, what, target, make)
        self.note("command", (key, what, target))
        self.world.give(key, make)

    def answered(self, key: str, value: object, error: Exception | None, *, known: bool = False) -> None:
        """Note the answer to a command."""
        said = self.said[key]
        self.note("answer", (key, "known" if known else repr(error) if error else "done"))
        if said.answered:
            self.wrong("done_twice", f"{said.what} {key} was answered twice")
        said.answered, said.error = True, error
        if error is None and key not in self.world.disk.requests:
            self.wrong("lost_command", f"{said.what} {key} was acknowledged, and the journal does not have it")

    def accepted(self, job_id: str, error: Exception | None = None) -> None:
        """Note that a job was accepted, or refused."""
        self.note("accepted", (job_id, repr(error)))
        if error is not None:
            self.wrong("trouble", f"job {job_id} was refused: {error}")
        elif self.world.disk.journal.job(job_id) is None and job_id not in self.world.kernel.jobs:
            self.wrong("lost_command", f"job {job_id} was accepted, and the journal does not have it")
        self.orders[job_id] = True

    def say_again(self) -> None:
        """After a crash: give the unanswered commands again, under their keys."""
        world = self.world
        for said in self.said.values():
            if not said.answered:
                world.give(said.key, said.make)
        for order in world.plan.orders:
            if self.orders.get(order.job_id) is False:
                world.submit(order.job_id, order.spec, order.by)

    def tasks(self) -> list[TaskRecord]:
        """The tasks in the journal."""
        return self.world.disk.of(TaskRecord)
