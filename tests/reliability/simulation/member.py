"""One process of a node on the simulated, shared database: a real kernel, host and dispatcher.

Rules
-----
- It is a `World` whose journal is the fleet's server, with its own UTC clock. A frozen member does nothing,
  and sees the present time when it is thawed.
- It treats its lease, the jobs of ended nodes and tools like `runtime/cluster`, but without
  an event loop: at the same times, with the same inputs to the kernel.
- A fenced node ends when it learns this, with all that runs there. It starts again as another process.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from callboard.actors.messages.commands import Approve, Command, NextRun, Reject, Reply, Request, StartWorkers, Submit
from callboard.actors.messages.inputs import RECOVER, Adopt, InboxTaken, Message, NewEpoch
from callboard.actors.records.entities import JobRecord
from callboard.actors.records.loaded import Loaded
from callboard.actors.restore import make_supervisor
from callboard.actors.spec.lifecycles import Lifecycles
from callboard.actors.spec.model import Worker, Workstream
from callboard.actors.workers.tool_limits import NONE_DECLARED
from callboard.runtime.cluster.breakers import BreakerSnapshot, to_hear, to_say
from callboard.runtime.cluster.tools import answer, wanted
from callboard.runtime.dispatch.clock import VirtualClock
from callboard.runtime.dispatch.dispatcher import Dispatcher
from callboard.runtime.errors import JournalError, LeaseLost
from callboard.runtime.functions.registry import Bodies
from callboard.runtime.host import KernelHost
from callboard.runtime.journal.cluster import EPOCH, ToolDemand

from .cluster import MemoryCluster, NodeJournal
from .engines import Hands, Run
from .ledger import Said
from .world import KEEP, World, never

if TYPE_CHECKING:
    from .fleet import Fleet

RENEWALS = 3
SOON = 0.25
TURN = 1.0
"""As in `runtime/cluster`: how often the lease is renewed, and when it is looked again where something is left, or was
taken."""
AGAIN = 0.5
"""Seconds until a batch that could not be written is written again."""


class FleetClock(VirtualClock):
    """The monotonic time of all nodes, with a UTC clock of this node's own."""

    __slots__ = ("_fleet",)

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self._fleet = fleet

    def monotonic(self) -> float:
        """Seconds since the beginning."""
        return self._fleet.now

    def time(self) -> float:
        """The UTC time by this machine's clock."""
        return self._start + self._fleet.now


class Member(World):
    """One process of a node."""

    def __init__(self, fleet: Fleet, name: str, place: str, jump: float = 0.0) -> None:
        self.fleet = fleet
        self.plan = fleet.plan
        self.random = fleet.random
        self.ledger = fleet.ledger
        self.taken = fleet.taken
        self.lifecycles = Lifecycles()
        self.healing = fleet.healing
        self.name = name
        self.place = place
        self.steps = 0
        fleet.lives += 1
        self.life = fleet.lives
        self.made = 0
        self.frozen = False
        self.gone = False
        self.submitting: set[str] = set()  # ids of the jobs that were submitted here
        self.has_said = False  # the limits of tools that this process states
        self.agenda = []
        self.clients = []
        self.clock = FleetClock(fleet)
        self.clock.jump_utc(jump)
        self.jump = jump
        self.disk = fleet.server.disk
        self.retried = False
        self.open()

    def open(self) -> None:
        """Start the node. Raises JournalError."""
        fleet, plan = self.fleet, self.plan
        self.cluster = MemoryCluster(fleet.server, self.name, self.place, fleet.lease)
        self.dispatcher = Dispatcher(clock=self.clock)
        self.log = NodeJournal(fleet.server, self.cluster)
        host = self.host = KernelHost(self.dispatcher, self.log, Bodies(), Random(f"{plan.seed}/{self.life}"))
        host.notices.on_trouble, host.hub.last_resort = self.ledger.trouble, None
        host.on_job_over = self._job_over
        loaded = self.log.open(on_durable=host.release, call_threadsafe=never)
        host.hub.told = loaded.last_seq
        supervisor = make_supervisor(
            host, plan.defaults, loaded, tools=fleet.said_by(self.name), health=plan.health, lifecycles=self.lifecycles,
            node=self.name,
        )  # fmt: skip
        self.kernel = host.kernel = supervisor.kernel
        self.workforce = host.workforce = supervisor.workforce
        self.kernel.notify_nodes = self.notified
        self.hands = Hands(self)
        host.caller = self.hands  # type: ignore[assignment] # it stands in for it
        host.tell(RECOVER)
        host.tell(InboxTaken())
        host.tell(StartWorkers(plan.workers))
        self.note("opened", number=self.cluster.session.number, epoch=self.cluster.epoch)
        self.after(0.0, self.look)

    # -- the fleet's --------------------------------------------------------------------------------------------------

    def note(self, what: str, **facts: Any) -> None:
        """Add a line to the trace."""
        self.fleet.note(what, node=self.name, **facts)

    def started(self, run: Run) -> None:
        """Note that something has really started."""
        self.ledger.at(self).started(run)

    def ended(self, run: Run, ended: Any) -> None:
        """Note that something has really ended."""
        self.ledger.at(self).ended(run, ended)
        if self.cluster.session.ended_as:
            self.ledger.unheard.add(run.token)

    def _job_over(self, job: Any) -> None:
        self.ledger.at(self).job_over(job.record)

    # -- steps ---------------------------------------------------------------------------------------------------------

    @property
    def acts(self) -> bool:
        """Whether an event is possible here."""
        return not (self.frozen or self.gone)

    def could(self) -> list[Callable[[], bool]]:
        """The events that are possible here now."""
        could: list[Callable[[], bool]] = [self._turn] if self.dispatcher.has_work else []
        if self.log.waiting and (not self.log.sick or self.retried):
            could.append(self._commit)
        if self.agenda and self.agenda[0][0] <= self.now:
            could.append(self._tell)
        if self.clients and self.host.takes:
            could.append(self._say)
        return could

    def due(self) -> float | None:
        """The time of the next event that comes by itself."""
        dues = [self.dispatcher.timers.next_due(), self.agenda[0][0] if self.agenda else None]
        return min((due for due in dues if due is not None), default=None)

    def _commit(self) -> bool:
        log, self.retried = self.log, False
        waiting = len(log.waiting)
        try:
            written = log.commit(waiting if self.random.random() < 0.5 else self.random.randint(1, waiting))
        except LeaseLost:
            self.end("fenced")
            return True
        if not written:
            self.after(AGAIN, self._retry)
        return True

    def _retry(self) -> None:
        self.retried = True

    def end(self, why: str) -> None:
        """End the process: it was killed or fenced, or it leaves."""
        if self.gone:
            return
        self.note("ends", why=why)
        self.gone = True
        self.cluster.session.dead = True
        self.ledger.at(self).crashed()
        for run in list(self.hands.runs.values()):
            self.ledger.unheard.add(run.token)
        self.dispatcher.close()
        self.agenda.clear()
        self.clients.clear()
        self.fleet.ended(self, why)

    # -- the node's service --------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Renew the lease, and do the work that is due."""
        delay = self.fleet.lease / RENEWALS
        try:
            renewal = self.cluster.renew(max(self.kernel.key, self.kernel.seq))
            self._rise()
            expired = renewal.due_in is not None and renewal.due_in <= 0
            if renewal.orphans or expired:
                delay = SOON
                if not self.kernel.draining and self._take():
                    delay = TURN
            elif renewal.due_in is not None:
                delay = min(delay, renewal.due_in + 0.1)
            self._look_at_tools()
        except LeaseLost:
            self.end("fenced")
            return
        except JournalError:
            delay = AGAIN
        self.after(delay, self.look)

    def _rise(self) -> None:
        first = self.cluster.epoch * EPOCH
        if first > min(self.kernel.key, self.kernel.seq):
            self.host.tell(NewEpoch(first, first))

    def _take(self) -> bool:
        loaded = self.cluster.take()
        if loaded is None:
            return False
        self.note("takes", jobs=[job.id for job in loaded.jobs], workers=[one.id for one in loaded.workers])
        loaded.awaited = self.fleet.awaited()
        loaded = msgspec.json.decode(msgspec.json.encode(loaded), type=Loaded)
        self.host.tell(Adopt(loaded=loaded))
        self.fleet.after(0.0, lambda: self.fleet.hand_out(self, {job.id for job in loaded.jobs}))
        return True

    def notified(self) -> None:
        self.after(0.0, self._look_again)

    def _look_again(self) -> None:
        try:
            self._look_at_tools()
        except LeaseLost:
            self.end("fenced")
        except JournalError:
            self.after(AGAIN, self._look_again)

    def _look_at_tools(self) -> None:
        now = self.host.now()
        rows = {row.tool: row for row in self.cluster.tools()}
        living = {node.name for node in self.cluster.nodes() if node.state in {"living", "silent"}}
        for tool in sorted({*rows, *self.workforce.breakers}):
            actor, row = self.workforce.breakers.get(tool), rows.get(tool)
            seen = None if actor is None else BreakerSnapshot(actor.record, actor.could_try, actor.tries)
            said = None
            if seen is not None:
                said = to_say(seen, row, self.name, now, gone=row is not None and row.home not in living)
            if said is not None:
                row = self.cluster.set_tool(said)
            if (heard := to_hear(seen, tool, row, self.name, said)) is not None:
                self.host.tell(heard)
        self._share()

    def _share(self) -> None:
        shares = self.kernel.scheduler.tool_quotas
        if shares is None:
            return
        words, wants = self.workforce.tool_limits.words, shares.wants()
        said = {tool: ToolDemand(word.limit, 0, said_by=word.by, last=word.last) for tool, word in words.items()}
        asked = said | {tool: wanted(want, words.get(tool, NONE_DECLARED)) for tool, want in wants.items()}
        for tool in asked:
            shares.hold(tool)
        if asked:
            questions = {tool: shares.asked[tool] for tool in asked}
            self.host.later(answer(self.cluster.share(asked), questions))
        if words and not self.has_said:
            self.cluster.renew_words()
            self.has_said = True

    # -- what people say -----------------------------------------------------------------------------------------------

    def command(self, target: Any, what: str, message: Message) -> None:
        """Send a command to that entity, on whatever node it is then."""
        kind, name, run = target.record.kind, target.record.id, target.record.run
        here = self if kind in {"worker", "breaker"} else None

        def make(member: World, reply: Reply) -> Message | None:
            for entity in member.kernel.entities.values():
                record = entity.record
                if record.id == name and record.kind == kind and record.run == run:
                    return Command(record.key, message, reply)
            return None

        told = message if isinstance(message, Approve | Reject) else None
        self.fleet.say(what, f"{kind} {name}", make, job=target.context()[0], only=here, decision=told)

    def give_here(self, said: Said, make: Callable[[World, Reply], Message | None], sent_at: float) -> None:
        """Send a command here once the gate is open, unless its key shows that it has taken effect before."""

        def say() -> None:
            key = said.key
            if key in self.disk.requests:
                self.ledger.answered(key, None, None, known=True)
                return
            request = Request(key, "sim", key, KEEP, sent_at=sent_at)
            reply = Reply(lambda value, error: None if self.gone else self.ledger.answered(key, value, error), request)
            message = make(self, reply)
            if message is None:
                self.ledger.answered(key, None, LookupError("there is no such thing any more"))
            else:
                self.host.tell(message)

        self.clients.append(say)

    def submit(self, job_id: str, spec: Workstream, by: str | None) -> None:
        """Submit a job under its id; a second submission returns the same job."""

        def say() -> None:
            if self.disk.journal.job(job_id) is not None:
                self.ledger.at(self).accepted(job_id)
                return
            number = 0
            with suppress(JournalError):
                number = 0 if job_id in self.submitting else self.cluster.reserve("job", job_id)
            if not number:
                self.after(1.0, lambda: self.submit(job_id, spec, by))
                return

            self.submitting.add(job_id)

            def answered(_: Any, error: Exception | None) -> None:
                if self.gone:
                    return
                if error is not None:
                    with suppress(JournalError):
                        self.cluster.release("job", job_id, number)
                self.ledger.at(self).accepted(job_id, error)

            self.host.tell(Submit(job_id, True, spec, msgspec.json.encode(spec), "", Reply(answered), by))

        self.clients.append(say)

    def worker_spec(self, name: str) -> Worker:
        """The settings with which a worker was started."""
        return super().worker_spec(name.removesuffix(f"@{self.name}"))

    def next_run(self, record: JobRecord, reason: str, again: str | None, skip: str | None) -> None:
        """Start the next run of an ended job here."""
        job_id = record.id

        def make(member: World, reply: Reply) -> Message | None:
            assert isinstance(member, Member)
            journal = self.disk.journal
            job = journal.job(job_id)
            if job is None or job.finished_at is None or not member.adopts(job_id):
                return None
            runs, encoded = journal.workstreams(job_id), journal.spec(job.stream)
            if encoded is None:
                return None
            stream = runs[-1] if runs else None
            tasks = () if stream is None else tuple(journal.tasks(stream.key))
            spec = msgspec.json.decode(encoded, type=Workstream)
            return NextRun(job, spec, encoded, stream, tasks, reply, again=again, skip=skip, reason=reason)

        self.fleet.say("next_run", f"job {job_id}", make, only=self)

    def adopts(self, job_id: str) -> bool:
        """Own an ended job here. Later numbers are above all numbers of the job."""
        try:
            adopted = self.cluster.adopt("job", job_id)
        except JournalError:
            return False
        self.kernel.count_from(self.cluster.epoch * EPOCH, self.cluster.epoch * EPOCH)
        return adopted

    def submit_child(self, run: Run) -> None:
        """The body of `run` submits a child job and waits for it."""
        record = self.kernel.entities[run.key].record
        known = self.disk.journal.job(f"{record.job_id}/{record.name}/child")
        again = known is not None and known.finished_at is not None and known.state != "completed"
        if known is not None and again and not self.adopts(known.id):
            self.after(1.0, lambda: self.submit_child(run) if run.token in self.hands.runs else None)
            return
        super().submit_child(run)
