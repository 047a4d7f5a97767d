"""The workforce: the workers of a runtime, and all that serves them and their tools.

Rules
-----
- The actors and parts of this folder are handed the workforce when they are made, and so are jobs.
- The kernel knows only the living workers and the scheduler (`Kernel.workers`, `Kernel.scheduler`), and tasks only what
  `actors/tasks/contract.py` says.
"""

from __future__ import annotations

from ..kernel.kernel import Kernel
from ..kernel.transaction import EntityDropped
from ..spec.model import HealthChecks
from .breaker import BreakerActor
from .health import HealthWatch
from .scheduler import SchedulerActor
from .tool_limits import ToolLimits
from .worker import WorkerActor

WORKERS_KEPT = 200
"""Number of ended workers that the workforce keeps, by name."""


class Workforce:
    """The workers of one runtime, with their scheduler and health checks, and the breakers and limits of its tools."""

    def __init__(self, kernel: Kernel, health: HealthChecks) -> None:
        self.kernel = kernel
        self.workers: dict[int, WorkerActor] = {}  # the living ones
        self.named: dict[str, WorkerActor] = {}  # the last incarnation of each, ended or not
        self.gone: dict[str, None] = {}  # names of workers that have ended, oldest first
        self.incarnations: dict[str, int] = {}
        self.program = 0  # the key of the first worker of this start
        self.last_dropped_run = 0  # the highest incarnation number of any worker that was dropped
        self.breakers: dict[str, BreakerActor] = {}
        self.tool_limits = ToolLimits(self)
        self.health = HealthWatch(self, health)
        self.scheduler = SchedulerActor(self)
        kernel.workers, kernel.scheduler = self.workers, self.scheduler

    def gone_worker(self, name: str) -> None:
        """Note that a worker has ended. Their number grows without limit, so the oldest ones are released."""
        self.gone.pop(name, None)
        self.gone[name] = None
        while len(self.gone) > WORKERS_KEPT:
            oldest = next(iter(self.gone))
            del self.gone[oldest]
            worker = self.named.get(oldest)
            if worker is None or not worker.ended or oldest in self.health.coming:
                continue
            del self.named[oldest]
            self.last_dropped_run = max(self.last_dropped_run, self.incarnations.pop(oldest, 0))
            self.health.forgive(oldest)
            if worker.before is not None:
                self.kernel.forget(worker.before)
            self.kernel.forget(worker)
            self.kernel.effect(EntityDropped(worker.record.id, worker.record.name, worker.record.engine))
