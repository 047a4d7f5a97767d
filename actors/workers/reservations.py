"""Reservations: slots that jobs reserve for themselves (`worker_count`), and the line of waiting jobs.

Rules
-----
- A reservation has `worker_count` slots of each engine that the job's tasks use, on workers that suit them. It is a
  minimum, not a maximum: the job's tasks use the reserved slots first, and then free ones.
- All or none: a job that cannot have all of its slots is pending. First come, first served: free slots are set aside
  for the first job in line, and for no job behind it, until the first has all.
- Only slots of workers that take tasks can become free. If these workers have too few slots for a job (a worker has
  ended, is paused, or does not answer), the job keeps its place, but no slot is set aside for it, and it does not block
  other jobs. If the living workers, and those that will be replaced, have too few slots as well, the job is unroutable,
  as a task can be, until such a worker starts.
- A child first takes idle slots of its parent's reservation, and returns them there. A child whose parent has enough
  idle slots does not wait in the line.
- A waiting job occupies no slot. If nothing of a job has run for a second (all its tasks are held, back off, or wait
  for children), its reservation yields its slots to tasks and jobs that wait, and gets them back, before others, when
  the job runs something again. So jobs cannot block each other in a circle: a job that keeps a slot runs something
  that ends.
- A body that waits for a child has lent its slot; it goes on once its worker has room again, before anything else.
- All of it is derived state: the records contain the wanted slots and the running attempts. After a restart, slots in
  use count for their reservations again.

The scheduler counts all slots of a reservation as occupied, so that no other job gets them; `held` are the idle ones
among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec

from ...machines import JobState
from ...machines.keywords import number_of
from ..kernel.transaction import Answer, CallOrder, LentSlot
from ..messages.inputs import Allocated, Regained, TimerFired, Unroutable
from .queues import Pool
from .slot_requests import SlotRequests

if TYPE_CHECKING:
    from ..kernel.contract import Job
    from ..messages.commands import Reply
    from ..spec.model import Worker
    from ..tasks.task import TaskActor
    from .queues import ConcurrencyGate, TaskQueue
    from .scheduler import SchedulerActor
    from .worker import WorkerActor

YIELDS_AFTER = 1.0
"""Seconds for which nothing of a job has run before others may use its reserved slots."""
HOLDS = frozenset({JobState.RUNNING, JobState.CANCELLING})


class Reservation:
    """The reserved slots of one job."""

    __slots__ = (
        "active", "count", "held", "idle_since", "job", "missing", "over", "owed", "parent", "queues", "wanted",
        "yielded",
    )  # fmt: skip

    def __init__(self, job: Job, wanted: dict[str, frozenset[str]], parent: Reservation | None, at: float) -> None:
        self.job = job
        self.count = job.record.worker_count
        self.wanted = wanted  # by engine: the capabilities that all its tasks of the engine require
        self.parent = parent
        self.held: dict[WorkerActor, int] = {}
        self.missing = dict.fromkeys(wanted, self.count)
        self.owed: dict[str, int] = {}  # by engine: slots that belong to the parent's reservation
        self.active = 0  # attempts of the job and its descendants that occupy a slot
        self.idle_since = at  # since when there are no such attempts
        self.yielded = False
        self.over = False  # the job has ended; attempts that still run release their slots for good
        self.queues: list[TaskQueue] = []  # queues of tasks that may use it

    def hold(self, worker: WorkerActor) -> None:
        """Add an idle slot of a worker."""
        self.held[worker] = self.held.get(worker, 0) + 1

    def let(self, worker: WorkerActor) -> None:
        """Remove an idle slot of a worker."""
        left = self.held[worker] - 1
        if left:
            self.held[worker] = left
        else:
            del self.held[worker]

    def lack(self, engine: str, count: int = 1) -> None:
        """Note that `count` slots of an engine are missing."""
        self.missing[engine] = self.missing.get(engine, 0) + count

    def idle(self, engine: str, capabilities: frozenset[str]) -> WorkerActor | None:
        """A worker with this engine and these capabilities on which the reservation has an idle slot."""
        suits = (w for w in self.held if w.record.engine == engine and capabilities <= w.capabilities)
        return next(suits, None)

    def enough_for(self, other: Reservation) -> bool:
        """Whether its idle slots suffice for all missing slots of another reservation."""
        free: dict[str, int] = {}
        for worker, count in self.held.items():
            engine = worker.record.engine
            if other.wanted.get(engine, frozenset()) <= worker.capabilities:
                free[engine] = free.get(engine, 0) + count
        return all(free.get(engine, 0) >= count for engine, count in other.missing.items())


class SlotShare(msgspec.Struct, frozen=True):
    """The reservations of a slot. counts: those that it counts for. of: the one that it belongs to, if any."""

    counts: tuple[Reservation, ...]
    of: Reservation | None


class Reservations:
    """The part of the scheduler for reserved and lent slots."""

    def __init__(self, scheduler: SchedulerActor) -> None:
        self.scheduler = scheduler
        self.kernel = scheduler.kernel
        self.workforce = scheduler.workforce
        self.clear()

    def clear(self) -> None:
        """Drop all derived state, before it is rebuilt."""
        self.granted: dict[int, Reservation] = {}  # by job
        self.line: dict[int, Reservation] = {}  # by job, in the order in which they came
        self.asked = False  # whether a timer is armed to look for idle reservations
        self.at_work = False
        self.requests = SlotRequests(self.kernel.lent)

    def _changed(self) -> None:
        self.at_work = bool(self.granted or self.line or self.requests)

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def of(self, job: Job | None) -> tuple[Reservation, ...]:
        """The reservations that the tasks of a job may use: its own, then its ancestors'."""
        found: list[Reservation] = []
        while job is not None:
            if (mine := self.granted.get(job.record.key)) is not None:
                found.append(mine)
            job = job.parent
        return tuple(found)

    def beyond(self, job: Job) -> str | None:
        """The reason why a job could never have its slots; else None. Workers without a place in a cluster count."""
        unfit = [worker.spec for worker in self.workforce.named.values() if worker.unfit is not None]
        return self._short(job, unfit)

    def _short(self, job: Job, more: Iterable[Worker] = ()) -> str | None:
        """The slots that a job would lack even if all workers were free; else None.

        All workers: those that live, those that will be replaced, and `more`.
        """
        workforce, count = self.workforce, job.record.worker_count
        specs = [worker.spec for worker in workforce.workers.values() if worker.comes_back]
        specs += [*workforce.health.coming.values(), *more]
        for engine, capabilities in self._wanted(job).items():
            pool = Pool(engine, capabilities)
            there = sum(spec.capacity or 1 for spec in specs if pool.suits_spec(spec))
            if count > there:
                return f"it wants {number_of(count, 'slot')} of the engine {engine!r}, and there are {there}"
        return None

    def _servable(self, mine: Reservation) -> bool:
        """Whether the workers that take tasks now have enough slots, in use or not."""
        pool = self.scheduler.pool
        return all(pool(engine, wanted).limit >= mine.count for engine, wanted in mine.wanted.items())

    def ask(self, job: Job) -> str | None:
        """Reserve the slots of a job. Returns None, or the reason why the job waits: it receives `Allocated` later."""
        mine = self._new(job)
        serves = self._servable(mine)
        if serves and (self._parent_suffices(mine) or not any(map(self._servable, self.line.values()))):
            self._take(mine)
        if not mine.missing:
            self.granted[job.record.key] = mine
            self._changed()
            return None
        self.line[job.record.key] = mine
        self._changed()
        self._tell_short(mine)
        return self.why_it_waits(job)

    def why_it_waits(self, job: Job) -> str | None:
        """The slots that a job in line waits for, in words; None if it is not in line."""
        mine = self.line.get(job.record.key)
        if mine is None:
            return None
        what = " and ".join(f"{number_of(mine.count, 'slot')} of the engine {engine!r}" for engine in mine.wanted)
        place = list(self.line).index(mine.job.record.key)
        return f"waits for {what}" + (f", behind {number_of(place, 'other job')}" if place else "")

    def release(self, job: Job) -> None:
        """Release the slots of a job that ended or never begins; slots in use follow when their attempts end."""
        mine = self.granted.pop(job.record.key, None) or self.line.pop(job.record.key, None)
        if mine is None:
            return
        mine.over = True
        for worker, count in list(mine.held.items()):
            for _ in range(count):
                self._hand_on(mine, worker)
        mine.held = {}
        self._changed()
        self.collect()
        self.scheduler.match_soon()

    def _new(self, job: Job) -> Reservation:
        above = self.of(job.parent)
        return Reservation(job, self._wanted(job), above[0] if above else None, self.kernel.at)

    def _wanted(self, job: Job) -> dict[str, frozenset[str]]:
        """The engines of a job's tasks, each with the capabilities that all tasks of the engine require."""
        wanted: dict[str, frozenset[str]] = {}
        for task in job.spec.tasks:
            engine = self.scheduler.engine_for(task)
            mine = frozenset(task.capabilities)
            wanted[engine] = wanted[engine] & mine if engine in wanted else mine
        return wanted

    def _parent_suffices(self, mine: Reservation) -> bool:
        return mine.parent is not None and mine.parent.enough_for(mine)

    # -- taking free slots ---------------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Distribute free slots: first to lent slots requested back, then to reservations, then to the line."""
        self._take_back()
        for mine in self.granted.values():
            if mine.missing and not mine.yielded:
                self._take(mine)
        behind = False
        for key, mine in list(self.line.items()):
            if not self._servable(mine) and not self._stand_aside(mine):
                continue
            if not behind or self._parent_suffices(mine):
                self._take(mine)
            if mine.missing:
                behind = True
                continue
            self.granted[key] = self.line.pop(key)
            self.kernel.send(mine.job, Allocated())

    def _stand_aside(self, mine: Reservation) -> bool:
        """Set no slots aside for a job that cannot have all now. Returns whether it can with its present engines."""
        self._let_all(mine)
        mine.wanted = self._wanted(mine.job)
        mine.missing = dict.fromkeys(mine.wanted, mine.count)
        return self._servable(mine)

    def _let_all(self, mine: Reservation) -> None:
        """Release the idle slots of a reservation to others."""
        for worker, count in list(mine.held.items()):
            mine.lack(worker.record.engine, count)
            for _ in range(count):
                self._hand_on(mine, worker)
        mine.held = {}

    def _take(self, mine: Reservation) -> None:
        for engine in list(mine.missing):
            while mine.missing.get(engine):
                parent = mine.parent
                worker = None if parent is None else parent.idle(engine, mine.wanted[engine])
                if parent is not None and worker is not None:
                    parent.let(worker)
                    mine.owed[engine] = mine.owed.get(engine, 0) + 1
                else:
                    pool = self.scheduler.pool(engine, mine.wanted[engine])
                    worker = next(iter(pool.free), None)
                    if worker is None:
                        break
                    self.scheduler.room(worker, +1)
                mine.hold(worker)
                mine.missing[engine] -= 1
            if not mine.missing[engine]:
                del mine.missing[engine]

    def _hand_on(self, mine: Reservation, worker: WorkerActor) -> None:
        """Release one slot: to the parent's reservation if it came from there, else to all."""
        parent, engine = mine.parent, worker.record.engine
        if not mine.owed.get(engine) or parent is None or parent.over:
            self.scheduler.room(worker, -1)
            return
        mine.owed[engine] -= 1
        if worker.takes_tasks:
            parent.hold(worker)
            self._wake(parent)
        else:
            self.scheduler.room(worker, -1)
            parent.lack(engine)

    # -- attempts ------------------------------------------------------------------------------------------------------

    def held_for(self, queue: TaskQueue) -> tuple[Reservation, WorkerActor] | None:
        """A reserved slot that the first task of a queue may use: its reservation and its worker."""
        for mine in queue.reserved:
            for worker in mine.held:
                if worker in queue.pool.workers:
                    return mine, worker
        return None

    def use(
        self, slot: CallOrder, counts: tuple[Reservation, ...], taken: tuple[Reservation, WorkerActor] | None
    ) -> None:
        """Count the start of a job's attempt in a reserved or a free slot."""
        slot.share = SlotShare(counts, None if taken is None else taken[0])
        for mine in counts:
            mine.active += 1
            mine.yielded = False
        if taken is None:
            self.scheduler.count(slot, +1)
            return
        taken[0].let(taken[1])
        for gate in slot.gates[1:]:
            gate.used += 1

    def give_back(self, slot: CallOrder, share: SlotShare) -> None:
        """Take back the slot of such an attempt: it is over, or lends its slot."""
        slot.share = None
        for mine in share.counts:
            mine.active -= 1
            mine.idle_since = self.kernel.at
        mine_or_none, worker = share.of, self.workforce.workers.get(slot.worker)
        if mine_or_none is None:
            self.scheduler.count(slot, -1)
            return
        mine = mine_or_none
        for gate in slot.gates[1:]:
            gate.used -= 1
        if worker is None:
            mine.lack(slot.gates[0].engine)  # the first gate is the pool
        elif mine.over:
            self._hand_on(mine, worker)
        elif worker.takes_tasks:
            mine.hold(worker)
            self._wake(mine)
        else:
            self.scheduler.room(worker, -1)
            mine.lack(worker.record.engine)

    def _wake(self, mine: Reservation) -> None:
        """Have the queues that may use a reservation's free slot try again."""
        mine.queues = [queue for queue in mine.queues if queue.reserved]
        for queue in mine.queues:
            self.scheduler.ready_again(queue)

    # -- yielding idle slots -------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Arm the timer for idle reservations to yield, if a task or job waits for slots."""
        if self.asked:
            return
        idle = [mine.idle_since for mine in self.granted.values() if mine.held and not mine.active]
        if idle and (self.line or self.requests or self.scheduler.somebody_waits()):
            self.asked = True
            self.kernel.port.arm(min(idle) + YIELDS_AFTER, TimerFired(0, 0), by_utc=False)

    def yield_idle(self) -> None:
        """Yield the slots of reservations whose jobs have run nothing for `YIELDS_AFTER`."""
        self.asked = False
        latest = self.kernel.at - YIELDS_AFTER
        for mine in self.granted.values():
            if mine.active or mine.idle_since > latest:
                continue
            self._let_all(mine)
            mine.yielded = True
        self.collect()
        self.scheduler.match_soon()

    # -- lending -------------------------------------------------------------------------------------------------------

    def wants_back(self, token: int) -> None:
        """Look for room for an attempt that requests its slot back."""
        self._request(token, self.kernel.lent[token].slot)
        self.at_work = True
        self.collect()
        self._changed()

    def _request(self, token: int, slot: CallOrder) -> None:
        job = cast("TaskActor", self.kernel.entities[slot.key]).stream.job
        self.requests.add(token, slot, self.of(job) if self.granted else ())

    def _take_back(self) -> None:
        """Give slots back to the attempts that requested theirs, as far as there is room."""
        for key in self.requests.workers():
            worker = self.workforce.workers.get(key)
            if worker is None or not worker.takes_tasks:  # no other task gets its place: go on
                self.requests.serve(key, self._let_go_on, _always)
            else:
                self.requests.serve(key, partial(self._give_slot_back, worker), partial(self._may_have_room, worker))

    def _may_have_room(self, worker: WorkerActor) -> bool:
        """Whether an attempt at that worker could get a slot: a free one, or one that its job has reserved."""
        return worker.used < worker.record.capacity or bool(self.granted)

    def _let_go_on(self, token: int, lent: LentSlot) -> bool:
        """Have an attempt go on without a slot."""
        kernel, slot = self.kernel, lent.slot
        kernel.note_lent(token, LentSlot(slot, goes_on=True))
        kernel.send(kernel.entities[slot.key], Regained(slot.key, slot))
        kernel.effect(Answer(cast("Reply", lent.reply)))
        return True

    def _give_slot_back(self, worker: WorkerActor, token: int, lent: LentSlot) -> bool:
        """Have an attempt go on in a slot of its worker, if there is one. Returns whether there is."""
        kernel, slot = self.kernel, lent.slot
        shut = next((gate for gate in slot.gates[1:] if gate.used >= gate.limit), None)
        if shut is not None:
            if self.scheduler.tool_quotas is not None:
                self.scheduler.tool_quotas.shut(shut)
            return False
        counts = self.of(cast("TaskActor", kernel.entities[slot.key]).stream.job) if self.granted else ()
        mine = next((mine for mine in counts if worker in mine.held), None)
        if mine is None and worker.used >= worker.record.capacity:
            return False
        if counts:
            self.use(slot, counts, None if mine is None else (mine, worker))
        else:
            self.scheduler.count(slot, +1)
        kernel.take_back(token, slot)
        kernel.send(worker, Regained(slot.key, slot))
        kernel.effect(Answer(cast("Reply", lent.reply)))
        return True

    def waiting_at(self, gate: ConcurrencyGate) -> Iterator[TaskActor]:
        """The tasks whose attempts wait at `gate` to get their slots back."""
        for slot in self.requests.at(gate):
            yield cast("TaskActor", self.kernel.entities[slot.key])

    # -- workers -------------------------------------------------------------------------------------------------------

    def workers_changed(self) -> None:
        """Distribute slots again, since a worker was enrolled or retired."""
        if self.at_work:
            self.collect()

    def tell_short(self) -> None:
        """Inform the jobs in line whether any workers could provide their slots."""
        for mine in self.line.values():
            self._tell_short(mine)

    def _tell_short(self, mine: Reservation) -> None:
        why = self._short(mine.job)
        if (why is None) != mine.job.record.routable:
            self.kernel.send(mine.job, Unroutable(why))

    def retire(self, worker: WorkerActor) -> None:
        """Note that a worker takes no more tasks: its idle reserved slots are missing now."""
        for mine in (*self.granted.values(), *self.line.values()):
            if count := mine.held.pop(worker, 0):
                mine.lack(worker.record.engine, count)
                self.scheduler.room(worker, -count)

    # -- recovery ------------------------------------------------------------------------------------------------------

    def rebuild(self, jobs: Iterable[Job]) -> None:
        """Derive the reservations of running jobs, without any slots yet, and the requests for lent slots."""
        for job in sorted(jobs, key=lambda job: job.record.key):  # parents first
            if job.record.worker_count and job.record.state in HOLDS:
                self.granted[job.record.key] = self._new(job)
        self.requests = SlotRequests(self.kernel.lent)
        for token, lent in self.kernel.lent.items():
            if lent.reply is not None:
                self._request(token, lent.slot)
        self._changed()

    def occupy(self, slot: CallOrder, job: Job) -> bool:
        """Count the slot of an attempt that runs already. False if no reservation concerns it."""
        counts = self.of(job)
        worker = self.workforce.workers.get(slot.worker)
        if not counts or worker is None:
            return False
        mine = next((mine for mine in counts if mine.missing.get(worker.record.engine)), None)
        self.scheduler.count(slot, +1)
        slot.share = SlotShare(counts, mine)
        for one in counts:
            one.active += 1
        if mine is not None:
            mine.missing[worker.record.engine] -= 1
            if not mine.missing[worker.record.engine]:
                del mine.missing[worker.record.engine]
        return True

    def rebuild_line(self, jobs: Iterable[Job]) -> None:
        """Put the pending jobs in line again, after the reservations of running jobs."""
        for job in sorted(jobs, key=lambda job: job.record.key):
            if job.record.worker_count and job.record.state == JobState.PENDING:
                self.line[job.record.key] = self._new(job)
        self._changed()

    def take_all(self) -> None:
        """Give the running jobs the free slots that their reservations lack."""
        for mine in self.granted.values():
            self._take(mine)


def _always() -> bool:
    return True
