"""Health: rounds of health checks of the workers, and the replacement of dead workers.

A round
-------
1. Every watched worker is probed at the same time (`Port.probe`).
2. `patience` seconds later, workers that have not answered have missed a check; `misses` in a row make a worker
   unresponsive. So a frozen worker is detected within `misses` intervals and `patience`.
3. The next round begins `interval` seconds after the first step.

Rules
-----
- Only a worker with a process of its own is watched, and only after its first task: an idle runtime has no timer here.
  In-process engines are as healthy as the loop.
- Time is monotonic. If a timer of a round fires late, the runtime itself stood still (SIGSTOP, suspend, a blocked
  loop), and answers may be unread: no worker misses a check in that round.
- Any sign of life counts as an answer, whatever caused it.
- A worker that failed or expired is replaced by its next incarnation after a growing delay; after too many failures in
  a row it is given up (`worker_given_up`). The count is reset once an incarnation was up for long enough. A worker that
  an operator stopped is not replaced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ...machines import WorkerState
from ...machines.keywords import number_of
from ..messages.commands import StartWorkers
from ..messages.inputs import TimerFired
from ..spec.lifecycles import OWN
from ..spec.model import EngineName, HealthChecks, Worker
from ..tasks.attempt_clock import PATIENCE
from ..times import seconds
from ..users.strategy import RestartCount

if TYPE_CHECKING:
    from ..kernel.transaction import ArmedTimer
    from ..records.entities import WorkerRecord
    from .worker import WorkerActor
    from .workforce import Workforce

IN_PROCESS = frozenset({"loop", "thread", "command"})
"""Engines whose workers run in this process: they are not probed."""
WATCH = -1
"""The key of timers that belong to the health watch, not to an entity."""
LATE = 0.25
"""Seconds by which a timer may be late without effect; half of the patience, if that is more."""


class HealthWatch:
    """The watched workers, those that have not answered, and those to be started again. Nothing is persisted."""

    def __init__(self, workforce: Workforce, settings: HealthChecks) -> None:
        self.workforce = workforce
        self.kernel = workforce.kernel
        self.settings = settings
        self.interval = seconds(settings.interval)
        self.patience = patience(settings)
        self.grace = self.interval + self.patience  # a full round
        self.expire = seconds(settings.expire)
        self.start_timeout = seconds(settings.start_timeout)
        self.drain_deadline = seconds(settings.drain_deadline)
        self.cooldown = seconds(settings.cooldown)
        self.coming: dict[str, Worker] = {}  # workers whose next incarnation starts after a delay, by name
        self._late = max(LATE, self.patience / 2)
        self._watched: dict[WorkerActor, None] = {}
        self._silent: set[WorkerActor] = set()  # probed in this round, and not answered yet
        self.asked_at = 0.0  # monotonic, when this round began
        self._judging = False  # the timer is for the answers, not for the next round
        self._excused = False  # the runtime stood still: no worker misses a check in this round
        self._due = 0.0  # monotonic, of the timer
        self._timer: ArmedTimer | None = None
        self._counts: dict[str, RestartCount] = {}

    # -- rounds --------------------------------------------------------------------------------------------------------

    def watch(self, worker: WorkerActor) -> None:
        """Watch a worker from the next round on."""
        self._watched[worker] = None
        if self._timer is None:
            self.asked_at = self.kernel.port.monotonic()
            self._next_round()

    def unwatch(self, worker: WorkerActor) -> None:
        """Stop watching a worker that has ended."""
        self._watched.pop(worker, None)
        self.heard(worker)
        if not self._watched:
            self._disarm()

    def heard(self, worker: WorkerActor) -> None:
        """Note a worker's sign of life. The round is over if it was the last one to answer."""
        if worker in self._silent:
            self._silent.discard(worker)
            if not self._silent and self._judging:
                self._next_round()

    def due(self, key: int) -> None:
        """Receive a timer: of a round (key 0), or of the replacement of the worker with this key."""
        if key:
            self._restart_due(key)
        else:
            self._round_due()

    def _round_due(self) -> None:
        """Begin a round, or count the missed checks of the present one."""
        self._timer = None
        if self.stood_still(self.kernel.port.monotonic() - self._due):
            self._excused = True
        if not self._judging:
            self._ask()
            return
        missing, excused = self._silent, self._excused
        self._silent, self._excused = set(), False
        self._next_round()
        if not excused:
            for worker in sorted(missing, key=lambda one: one.record.key):
                worker.missed()

    def stood_still(self, late: float) -> bool:
        """Whether a timer that fires `late` seconds late shows that the runtime itself stood still."""
        return late > self._late

    def _ask(self) -> None:
        port = self.kernel.port
        self.asked_at = port.monotonic()
        self._judging = True
        self._silent = set(self._watched)
        self._arm(self.patience)
        for worker in list(self._watched):
            port.probe(worker.record.engine, worker.record.name, worker.record.run)

    def _next_round(self) -> None:
        self._judging = False
        self._arm(max(0.0, self.asked_at + self.interval - self.kernel.port.monotonic()))

    def _arm(self, delay: float) -> None:
        port = self.kernel.port
        self._disarm()
        self._due = port.monotonic() + delay
        self._timer = port.arm(port.now() + delay, TimerFired(WATCH, 0), by_utc=False)

    def _disarm(self) -> None:
        if self._timer is not None:
            self.kernel.port.disarm(self._timer)
            self._timer = None

    # -- the pool ------------------------------------------------------------------------------------------------------

    def started(self, name: str) -> None:
        """Cancel the planned restart of a worker: an incarnation has started."""
        self.coming.pop(name, None)

    def up(self, worker: WorkerActor) -> None:
        """Begin to count a worker's uptime: it is ready."""
        count = self._counts.get(worker.record.name)
        if count is not None:
            count.up_since = self.kernel.port.monotonic()

    def forgive(self, name: str) -> None:
        """Reset the restart count of a worker, since an operator starts it or it is released."""
        self._counts.pop(name, None)

    def replace(self, worker: WorkerActor) -> None:
        """Plan the next incarnation of an ended worker after a delay, or give the worker up."""
        kernel, record = self.kernel, worker.record
        if kernel.draining or self.workforce.scheduler.stopped:
            return
        count = self._counts.setdefault(record.name, RestartCount())
        policy = self.settings.restarts
        delay = count.next_delay(policy, kernel.port.monotonic())
        if delay is None:
            often = (
                f"was not ready after {number_of(policy.intensity, 'further start')}"
                if record.previous_state == WorkerState.INITIALIZING
                else f"died more than {number_of(policy.intensity, 'time')} within {policy.period:g} s"
            )
            text = (
                f"worker {record.name!r} {often} and is given up; the last reason: {record.reason}. "
                "Start it again when the cause is fixed."
            )
            kernel.notice("worker_given_up", "critical", text, worker, reason=record.reason, runs=record.run)
            return
        self.coming[record.name] = worker.spec
        kernel.port.arm(kernel.port.now() + delay, TimerFired(WATCH, record.key), by_utc=False)

    def _restart_due(self, key: int) -> None:
        """Start the next incarnation of a worker: its delay is over."""
        worker = next((one for one in self.workforce.named.values() if one.record.key == key), None)
        if worker is None or not worker.ended or self.coming.get(worker.record.name) is None:
            return  # an operator has started it meanwhile, or the turn of its death was undone
        self.kernel.send(self.kernel.supervisor, StartWorkers((worker.spec,)))


def patience(settings: HealthChecks) -> float:
    """Seconds that a worker has to answer."""
    return min(PATIENCE, seconds(settings.interval))


def spec_of(record: WorkerRecord) -> Worker:
    """The specification that a worker was started with."""
    return Worker(
        record.name, engine=cast("EngineName", record.engine), capacity=record.capacity,
        capabilities=record.capabilities, recycle_after=record.recycle_after, resources=record.resources,
        labels=record.labels, metadata=record.metadata,
        lifecycle=OWN if record.published is None else record.published.lifecycle,
    )  # fmt: skip
