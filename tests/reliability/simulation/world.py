"""The world of one run: a real kernel, host and dispatcher, with a simulated disk, engines and people.

Rules
-----
- No event loop, no thread, no real clock. One step is one event: an input that the kernel runs, entries
  that become durable, a report of an engine, or a command. A `Random` picks the next of the possible events.
- Time advances when no event is left at the present instant, and sometimes a little before.
- A crash may come between any two steps: entries that are not durable are lost, and all calls end.
- Commands are given as the handles of a runtime give them: under keys, once the gate is open, and again under the same
  key where a crash took the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

import msgspec

from callboard.actors.messages.commands import Command, Lend, NextRun, Regain, Reply, Request, StartWorkers, Submit
from callboard.actors.messages.inputs import RECOVER, Drain, InboxTaken, Message, StopWorkers
from callboard.actors.records.entities import JobRecord, WorkstreamRecord
from callboard.actors.records.task import TaskRecord
from callboard.actors.restore import make_supervisor
from callboard.actors.spec.lifecycles import Lifecycles
from callboard.actors.spec.model import Task, Worker, Workstream
from callboard.runtime.dispatch.clock import VirtualClock
from callboard.runtime.dispatch.dispatcher import Dispatcher
from callboard.runtime.functions.registry import Bodies
from callboard.runtime.host import KernelHost
from callboard.runtime.journal.contract import Entry

from .disk import Disk, SimulatedJournal
from .engines import Hands, Run
from .ledger import Ledger
from .plans import BODIES, Plan

KEEP = 86_400.0
CHILD = Workstream("child", tasks=[Task("only", run=f"{BODIES}:work", engine="loop", timeout=30.0)])
MOST_STEPS = 60_000


class StuckError(AssertionError):
    """The run does not end."""


class World:
    """A runtime in a simulated world. It is used by `driver.py`."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.random = Random(f"{plan.seed}/{plan.kind}/order")
        self.clock = VirtualClock()
        self.disk = Disk()
        self.ledger = Ledger(self)
        self.disk.row_done = self.ledger.row_done
        self.lifecycles = Lifecycles(default=plan.lifecycle)
        self.healing = False
        self.steps = 0
        self.life = 0
        self.made = 0
        self.agenda: list[tuple[float, int, Callable[[], object]]] = []
        self.clients: list[Callable[[], object]] = []  # commands that are given once the gate is open
        self.taken: Counter[str] = Counter()  # moves that had an effect
        self.open()

    # -- lives ---------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Start the runtime from the data on the disk."""
        plan, self.life = self.plan, self.life + 1
        self.dispatcher = Dispatcher(clock=self.clock)
        self.journal = SimulatedJournal(self.disk)
        host = self.host = KernelHost(self.dispatcher, self.journal, Bodies(), Random(f"{plan.seed}/{self.life}"))
        host.notices.on_trouble, host.hub.last_resort = self.ledger.trouble, None
        host.on_job_over = self._job_over
        loaded = self.journal.open(on_durable=host.release, call_threadsafe=never)
        host.hub.told = loaded.last_seq
        supervisor = make_supervisor(
            host, plan.defaults, loaded, tools=plan.tools, alerts=plan.alerts, health=plan.health,
            lifecycles=self.lifecycles,
        )  # fmt: skip
        kernel = self.kernel = host.kernel = supervisor.kernel
        self.workforce = host.workforce = supervisor.workforce
        self.hands = Hands(self)
        host.caller = self.hands  # type: ignore[assignment] # it stands in for it
        self.ledger.opened(loaded)
        host.tell(RECOVER)
        self.journal.append(Entry([], [], pruned_at=host.now()))
        host.tell(InboxTaken())
        host.tell(StartWorkers(plan.workers))
        self.note("opened", life=self.life, jobs=sorted(kernel.jobs))
        for name in [run for run in self.ledger.over if run in kernel.jobs]:
            self.ledger.wrong("alive_again", f"job {name} had ended durably, and was loaded as living")

    def crash(self) -> None:
        """Kill the runtime, and start it again."""
        self.note("crash", lost=len(self.journal.waiting))
        self.ledger.crashed()
        self.take_apart()
        self.open()
        self.ledger.say_again()

    def take_apart(self) -> None:
        """Free the objects of a killed runtime: they reference one another through cells, which no collector tracks."""
        self.dispatcher.close()
        self.agenda.clear()
        self.clients.clear()
        for one in (self.kernel, self.host, self.hands, self.dispatcher):
            vars(one).clear()

    def drain(self) -> None:
        """Close the runtime in order, and start it again."""
        self.note("drain")
        self.host.tell(Drain(stop=False))
        self.settle(self.random.choice((0.0, 2.0, 10.0)))
        self.host.tell(Drain(stop=True))
        self.settle(40.0, until=lambda: not self.kernel.calls)
        if self.journal.sick:
            self.journal.fall_sick(False)
        self.host.tell(StopWorkers())
        self.settle(0.0)
        self.crash()

    # -- steps ---------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds since the beginning, by the monotonic clock."""
        return self.clock.monotonic()

    def after(self, delay: float, what: Callable[[], object]) -> None:
        """Call a function after so many seconds."""
        self.made += 1
        heappush(self.agenda, (self.now + delay, self.made, what))

    def step(self, until: float = float("inf")) -> bool:
        """Execute one event. Returns False if no event is left until `until`."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise StuckError(f"it has taken {self.steps} steps and goes on")
        now, agenda, journal = self.now, self.agenda, self.journal
        could: list[Callable[[], bool]] = [self._turn, self._turn]
        if journal.waiting and not journal.sick:
            could.append(self._commit)
        if agenda and agenda[0][0] <= now:
            could.append(self._tell)
        if self.clients and self.host.takes:
            could.append(self._say)
        first = could[int(self.random.random() * len(could))]
        if first():
            return True
        return any(one() for one in could if one is not first) or self._wait(until)

    def _turn(self) -> bool:
        return self.dispatcher.step()

    def _commit(self) -> bool:
        waiting = len(self.journal.waiting)
        self.journal.commit(waiting if self.random.random() < 0.5 else self.random.randint(1, waiting))
        return True

    def _tell(self) -> bool:
        agenda, now = self.agenda, self.now
        due = [heappop(agenda)]
        while agenda and agenda[0][0] <= now:
            due.append(heappop(agenda))
        chosen = due.pop(int(self.random.random() * len(due)))
        for other in due:
            heappush(agenda, other)
        chosen[2]()
        return True

    def _say(self) -> bool:
        self.clients.pop(0)()
        return True

    def _wait(self, until: float) -> bool:
        due = self.dispatcher.timers.next_due()
        if self.agenda and (due is None or self.agenda[0][0] < due):
            due = self.agenda[0][0]
        if due is None or due > until:
            return False
        self.clock.advance(max(0.0, due - self.now))
        return True

    def settle(self, span: float, until: Callable[[], bool] | None = None) -> None:
        """Execute all events of the next seconds."""
        end = self.now + span
        while not (until is not None and until()) and self.step(end):
            pass
        if self.now < end and not (until is not None and until()):
            self.clock.advance(end - self.now)

    # -- what is told --------------------------------------------------------------------------------------------------

    def note(self, what: str, **facts: Any) -> None:
        """Add a line to the trace."""
        self.ledger.note(what, facts)

    def started(self, run: Run) -> None:
        """Note that something has really started."""
        self.ledger.started(run)

    def ended(self, run: Run, ended: Any) -> None:
        """Note that something has really ended."""
        self.ledger.ended(run, ended)

    def _job_over(self, job: Any) -> None:
        self.ledger.job_over(job.record)

    # -- commands ------------------------------------------------------------------------------------------------------

    def command(self, target: Any, what: str, message: Message) -> None:
        """Send an actor a command, under a key of its own. If kind and id are given, the actor is found by them."""
        kind, name, run = target.record.kind, target.record.id, target.record.run

        def make(reply: Reply) -> Message | None:
            for entity in self.kernel.entities.values():
                record = entity.record
                if record.id == name and record.kind == kind and record.run == run:
                    return Command(record.key, message, reply)
            return None

        self.ledger.command(what, f"{kind} {name}", make)

    def give(self, key: str, make: Callable[[Reply], Message | None]) -> None:
        """Send a command once the gate is open, unless its key shows that it has taken effect before."""

        def say() -> None:
            if key in self.disk.requests:
                self.ledger.answered(key, None, None, known=True)
                return
            request = Request(key, "sim", key, KEEP)
            life = self.life
            reply = Reply(lambda value, error: life == self.life and self.ledger.answered(key, value, error), request)
            message = make(reply)
            if message is None:
                self.ledger.answered(key, None, LookupError("there is no such thing any more"))
            else:
                self.host.tell(message)

        self.clients.append(say)

    def submit(self, job_id: str, spec: Workstream, by: str | None) -> None:
        """Submit a job under its id; a second submission returns the same job."""

        def say() -> None:
            if self.disk.journal.job(job_id) is not None or job_id in self.kernel.jobs:
                self.ledger.accepted(job_id)
                return
            life = self.life
            reply = Reply(lambda _, error: life == self.life and self.ledger.accepted(job_id, error))
            self.host.tell(Submit(job_id, True, spec, msgspec.json.encode(spec), "", reply, by))

        self.clients.append(say)

    def next_run(self, record: JobRecord, reason: str, again: str | None, skip: str | None) -> None:
        """Start the next run of an ended job."""
        job_id = record.id

        def make(reply: Reply) -> Message | None:
            journal = self.disk.journal
            job = journal.job(job_id)
            if job is None or job.finished_at is None or job_id in self.kernel.jobs:
                return None
            runs = journal.workstreams(job_id)
            encoded = journal.spec(job.stream)
            if encoded is None:
                return None
            stream = runs[-1] if runs else None
            tasks = () if stream is None else tuple(journal.tasks(stream.key))
            spec = msgspec.json.decode(encoded, type=Workstream)
            return NextRun(job, spec, encoded, stream, tasks, reply, again=again, skip=skip, reason=reason)

        self.ledger.command("next_run", f"job {job_id}", make)

    def submit_child(self, run: Run) -> None:
        """The body of `run` submits a child job and waits for it, as `TaskContext.submit` does."""
        task: Any = self.kernel.entities[run.key]
        record: TaskRecord = task.record
        child_id = f"{record.job_id}/{record.name}/child"
        known = self.disk.journal.job(child_id)

        def answered(_: Any, error: Exception | None) -> None:
            if error is not None:
                self.after(0.0, lambda: self.hands.end(run))
            else:
                self._wait_for_child(run, child_id)

        reply = Reply(answered)
        if child_id in self.kernel.jobs or (known is not None and known.state == "completed"):
            self._wait_for_child(run, child_id)
        elif known is None:
            encoded = msgspec.json.encode(CHILD)
            self.host.tell(Submit(child_id, True, CHILD, encoded, "", reply, parent=run.token))
        else:
            runs = self.disk.journal.workstreams(child_id)
            stream: WorkstreamRecord | None = runs[-1] if runs else None
            tasks = () if stream is None else tuple(self.disk.journal.tasks(stream.key))
            encoded = msgspec.json.encode(CHILD)
            self.host.tell(NextRun(known, CHILD, encoded, stream, tasks, reply, parent=run.token))

    def _wait_for_child(self, run: Run, child_id: str) -> None:
        if run.token not in self.hands.runs:
            return
        run.lends = True
        self.host.tell(Lend(run.token))
        self._look_for_child(run, child_id)

    def _look_for_child(self, run: Run, child_id: str) -> None:
        if run.token not in self.hands.runs:
            return
        child = self.kernel.jobs.get(child_id)
        if child is not None and not child.over:
            self.after(1.0, lambda: self._look_for_child(run, child_id))
            return

        def regained(_: Any, error: Exception | None) -> None:
            run.lends = False
            self.after(0.0, lambda: self.hands.end(run))

        self.host.tell(Regain(run.token, Reply(regained)))

    def worker_spec(self, name: str) -> Worker:
        """The settings with which a worker was started."""
        return next(one for one in self.plan.workers if one.name == name)

    def heal(self) -> None:
        """Remove all faults for the rest of the run."""
        self.note("healing")
        self.healing = True
        self.journal.fall_sick(False)
        self.hands.heal()


def never(*_: object) -> None:
    """Fail: nothing here may be called from another thread."""
