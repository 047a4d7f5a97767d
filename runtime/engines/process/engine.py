"""The engine for plain functions in worker processes: reused, and replaced after they had to be stopped.

| how the body ended | outcome | error type |
| --- | --- | --- |
| returned | ok | |
 returned a value that JSON cannot hold | failed | `result_not_serialisable` |
 raised anything, also SystemExit | failed | the exception's, with its traceback |
 was not found in the process | failed | `body_not_found` |
 raised TaskCancelled after a stop, or its process had to be ended | cancelled | `cancelled` |
 its process died (a crash, os._exit, out of memory, a kill) | lost | `worker_lost` |
 its process does not even die of SIGKILL | abandoned | `abandoned` |

Rules:
- A worker is one process, which starts when it is first needed; without work there is none. Processes are spawned,
  never forked, and inherit only their socket, their output and the environment.
- The body's next heartbeat sees a stop. After half of the call's grace SIGTERM raises TaskCancelled in the body; at its
  end the process is killed. A forced stop kills at once. In both cases the process is replaced.
- A process that dies without a request is a dead worker: first this is reported (`died`), then its lost calls. That
  incarnation runs nothing again.
- The process itself reports `alive`, by a thread that only code holding Python's lock can delay. If it does not answer
  within half of `patience`, the process is observed: a working process is reported as alive, and busy.
- A body's request to the runtime is reported by `asked`, and answered by `answer`. A body that waits for a child job
  has lent its slot: `park` sets its process aside, and its worker gets another process for new calls meanwhile. A
  worker lives as long as all of its processes answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...calling import ProcessInfo
from ..context import TaskContext
from ..contract import Call, ProcessCall
from ..workers.engine import Post, WorkerCallbacks, WorkerEngine, facts_of, unheard
from ..workers.wire import Begin, BodyRequest, RequestWithdrawn
from .worker_process import Job, ProcessMember

if TYPE_CHECKING:
    from .process_pool import ProcessPool

PATIENCE = 1.0
"""Seconds within which a process has to answer."""
START_LIMIT = 30.0
"""Seconds within which a process has to be ready."""


class ProcessTransport:
    """Worker processes on this machine: one for each worker, from its first call on."""

    runs_commands = False
    eager = False
    patience = 3.0
    member = ProcessMember

    def __init__(self, environment: Mapping[str, str], start_limit: float, patience: float) -> None:
        self._environment = environment
        self._start_limit = start_limit
        self._patience = patience

    def job(self, call: Call, what: ProcessCall) -> Job:
        """The job that runs a call in a process."""
        begin = Begin(call.token, what.function, facts_of(call), what.secrets, call.bound or {}, flow=what.flow)
        return Job(begin, what, grace=call.grace, mask=call.mask)

    def pool(self, engine: WorkerEngine[Any, Any], post: Post, closed: Callable[[], None]) -> ProcessPool:
        """The thread that manages the processes."""
        from .process_pool import ProcessPool  # noqa: PLC0415 - with the first call: many runtimes make none

        return ProcessPool(
            engine, post, closed, environment=self._environment, start_limit=self._start_limit,
            patience=self._patience,
        )  # fmt: skip


class ProcessEngine(WorkerEngine[ProcessMember, Job]):
    """Runs plain functions in worker processes. The callbacks are those of `WorkerCallbacks`, called on the loop.

    environment is added to the processes' own. start_limit, patience: seconds, see above.
    """

    name = "process"

    def __init__(
        self,
        *,
        started: Callable[[int, ProcessInfo], None] = unheard,
        delayed: Callable[[int, Exception], None] = unheard,
        alive: Callable[[str, int, tuple[int, ...], bool], None] = unheard,
        died: Callable[[str, int, str], None] = unheard,
        asked: Callable[[TaskContext, BodyRequest | RequestWithdrawn], None] = unheard,
        environment: Mapping[str, str] | None = None,
        start_limit: float = START_LIMIT,
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(
            ProcessTransport(dict(environment or {}), start_limit, patience),
            WorkerCallbacks(started=started, delayed=delayed, alive=alive, died=died, asked=asked), clock=clock,
        )  # fmt: skip
