"""The engine for work on a Ray cluster: functions and commands run in actors that are workers.

| how it ended | outcome | error type |
| --- | --- | --- |
 as on the engine of its kind, in its actor | as there | as there |
 its actor or its node died | lost | `worker_lost` |
 it could not be ended, and was alone in its actor, which was killed | cancelled | `cancelled` |
 it could not be ended, and others run beside it | abandoned | `abandoned` |

Rules:
- A worker is one actor (`actor.py`). It is created when the worker starts, with the resources and labels that the
  worker requests; if no node of the cluster could ever hold it, that is reported (`unfit`), and later that one could
  (`fits`).
- Ray restarts nothing and repeats no call: the task decides what happens to lost work.
- A stop works as on the runtime's machine. This engine forces an async function that does not end within its grace.
- The actor itself reports `alive`, in a thread that only code holding Python's lock can delay. If an actor has not
  answered when it is probed again, a Ray task on its node observes it, together with the node's other actors. A working
  actor is reported as busy.
- `died` is reported when Ray says that the actor has ended.
- A body's request to the runtime is reported by `asked`, and answered by `answer`.
- The connection is lost if the head of the cluster is away for longer than Ray waits for it: then all actors have
  ended, this is reported (`away`), and their workers start again once the cluster is back (`connection.py`).
- Results come with their tokens, once. Output comes in pieces of at most 64 KiB, and only the kept part of it.
- An actor that receives nothing from its runtime for `lease` seconds ends itself: before its work is run elsewhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import anyio

from ...dispatch.loop_bridge import LoopBridge
from ...functions.main_program import search_path
from ..context import TaskContext
from ..contract import Call, ProcessCall
from ..process.main_module import refuse_while_loading
from ..workers.engine import Post, WorkerCallbacks, WorkerEngine, facts_of, unheard
from ..workers.wire import Begin, BodyRequest, RequestWithdrawn
from .actor_pool import ActorPool
from .cluster import RayCluster, RayUnavailable, check_installed, ray_thread
from .connection import Connection
from .wire import CommandLine, Order
from .worker_actor import ActorMember, RayJob

if TYPE_CHECKING:
    from ....actors.spec.model import Worker

LEASE = 40.0
"""Default seconds without a message from its runtime after which an actor ends itself."""


class RayTransport:
    """Actors on a cluster: one for each worker, from its start on."""

    runs_commands = True
    eager = True
    patience = 15.0  # enough also for a cluster that was started here
    member = ActorMember

    def __init__(
        self, cluster: Connection, spec_of: Callable[[str], Worker | None], environment: Mapping[str, str], lease: float
    ) -> None:
        self.cluster = cluster
        self._spec_of = spec_of
        self._environment = environment
        self._lease = lease

    def job(self, call: Call, what: ProcessCall) -> RayJob:
        """The job that runs a call in an actor."""
        output = None if what.output_path is None else (what.output_path, what.output_root)
        return RayJob(_order(call, what), output=output, mask=call.mask)

    def pool(self, engine: WorkerEngine[Any, Any], post: Post, closed: Callable[[], None]) -> ActorPool:
        """The thread that manages the actors."""
        return ActorPool(
            engine, post, closed, self.cluster, spec_of=self._spec_of, environment=self._environment,
            path=search_path(), argv=list(sys.argv), lease=self._lease,
        )  # fmt: skip


class RayEngine(WorkerEngine[ActorMember, RayJob]):
    """Runs functions and commands on Ray. The callbacks are those of `WorkerCallbacks`, called on the loop.

    cluster: which cluster. spec_of: a worker's definition, by its name. journal: identifies actors left by a killed
    runtime; None: none can be identified. at_once: whether to connect when the engine is opened, or with the first
    worker. away: called with the reason when the cluster is lost, with None when it is connected again. environment is
    added to the actors' own. lease: see above.
    """

    name = "ray"

    def __init__(
        self,
        cluster: RayCluster | None = None,
        *,
        spec_of: Callable[[str], Worker | None] = lambda _: None,
        journal: str | None = None,
        at_once: bool = False,
        alive: Callable[[str, int, tuple[int, ...], bool], None] = unheard,
        died: Callable[[str, int, str], None] = unheard,
        unfit: Callable[[str, int, str], None] = unheard,
        fits: Callable[[str, int], None] = unheard,
        asked: Callable[[TaskContext, BodyRequest | RequestWithdrawn], None] = unheard,
        away: Callable[[str | None], None] = unheard,
        environment: Mapping[str, str] | None = None,
        lease: float = LEASE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell_away = away
        self._at_once = at_once
        connection = Connection(cluster or RayCluster(), journal)
        self._ray = RayTransport(connection, spec_of, dict(environment or {}), lease)
        reports = WorkerCallbacks(alive=alive, died=died, unfit=unfit, fits=fits, asked=asked)
        super().__init__(self._ray, reports, clock=clock)

    async def open(self) -> None:
        """Prepare, and connect if `at_once`. Raises RayUnavailable, and RuntimeError in a worker process."""
        refuse_while_loading()
        await super().open()
        line = LoopBridge()
        self._ray.cluster.lost = lambda reason: line.post(self._tell_away, reason)
        if self._at_once:
            await self._connect()

    async def _connect(self) -> None:
        check_installed()
        line, done, errors = LoopBridge(), anyio.Event(), list[Exception]()

        def told(_: object, error: Exception | None) -> None:
            if error is not None:
                errors.append(error)
            line.post(done.set)

        ray_thread().do(self._ray.cluster.connect, told)
        await done.wait()
        if errors:
            self._line = None
            raise errors[0]

    def place(self, worker: str) -> tuple[str, int]:
        """The place of a worker's actor, for people, and its process id there; ("", 0) until they are known."""
        member = self._members.get(worker)
        return ("", 0) if member is None else (member.place, member.pid)

    async def close(self, deadline: float) -> None:
        """Stop everything, wait at most `deadline` seconds, then kill the actors and close the connection."""
        used = self._pool is not None
        await super().close(deadline)
        if not used:
            ray_thread().do(self._ray.cluster.disconnect, lambda _value, _error: None)


def _order(call: Call, what: ProcessCall) -> Order:
    """The order for a call."""
    if (command := call.command) is not None:
        line = CommandLine(
            argv=command.argv, shell=command.shell, cwd=command.cwd, env=command.env,
            expected_exit_codes=command.expected_exit_codes, results=what.results,
        )  # fmt: skip
        return Order(
            call.token,
            line=line,
            grace=call.grace,
            output_limit=what.output_limit,
            secrets=tuple(what.secrets.values()),
        )
    begin = Begin(call.token, what.function, facts_of(call), what.secrets, call.bound or {}, what.text, what.flow)
    return Order(
        call.token, begin=begin, on_loop=what.on_loop, grace=call.grace, output_limit=what.output_limit,
        recycle_after=what.recycle_after,
    )  # fmt: skip


__all__ = ["LEASE", "RayCluster", "RayEngine", "RayUnavailable"]
