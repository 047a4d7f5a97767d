"""Workers, as an application and its operators see them.

Rules
-----
- A handle is a name, not a state: it stands for the last incarnation of that name, and shows its present record.
- Each command is answered when it took effect, durably; what the state does not allow is `InvalidTransitionError`.
- What an operator stopped is not started again by itself.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import msgspec

from ...actors.machines.lifecycles import Lifecycles
from ...actors.messages.commands import (
    BeginWork,
    PauseWorker,
    ResumeWorker,
    ShutDownWorker,
    StartWorkers,
    TerminateWorker,
)
from ...actors.messages.inputs import Message
from ...actors.records.entities import WorkerRecord
from ...actors.spec.model import ON_CLUSTER, Worker
from ...actors.spec.times import Duration, seconds
from ...actors.spec.validate import Finding, SpecificationError, worker_findings
from ...actors.user_code import is_a, plain, shown
from ...machines import InvalidTransitionError
from ..commands.author import words

if TYPE_CHECKING:
    from ...actors.workers.worker import WorkerActor
    from ..host import Host
    from ..runtime import Runtime
    from .references import EntityRef

LOOP_CAPACITY = 100


class WorkerHandle:
    """A worker of a runtime."""

    def __init__(self, runtime: Runtime, host: Host, name: str) -> None:
        self._runtime = runtime
        self._host = host
        self.name = name
        self._seen = host.kernel.named.get(name)  # what is shown once it is let go

    @property
    def _actor(self) -> WorkerActor:
        """Its last incarnation. Raises LookupError where there never was one."""
        actor = self._host.kernel.named.get(self.name) or self._seen
        if actor is None:
            raise not_there(self.name, self._host)
        return actor

    def __repr__(self) -> str:
        return f"<WorkerHandle {self.record.id} {self.state}>"

    @property
    def ref(self) -> EntityRef:
        """It as an actor, which takes the events that people may fire at it."""
        return self._runtime.reference("worker", self.name, self)

    @property
    def record(self) -> WorkerRecord:
        """The present record of its last incarnation."""
        return self._actor.record

    @property
    def state(self) -> str:
        """initializing, idle, busy, paused, draining, unresponsive, shutdown, failed or terminated."""
        return str(self.record.state)

    @property
    def engine(self) -> str:
        """What it executes on."""
        return self.record.engine

    @property
    def capacity(self) -> int:
        """How many attempts it may run at the same time."""
        return self.record.capacity

    @property
    def capabilities(self) -> list[str]:
        """What it can do."""
        return list(self.record.capabilities)

    @property
    def assigned(self) -> int:
        """How many attempts it runs."""
        return self.record.assigned

    @property
    def missed(self) -> int:
        """How many health checks in a row it has not answered."""
        return self.record.missed

    @property
    def last_seen(self) -> float:
        """When it last gave a sign of life (UTC epoch seconds): now, where it is part of this process and lives."""
        actor = self._actor
        return self._host.now() if actor.in_process and not actor.ended else actor.seen

    async def pause(
        self, reason: str = "paused by an operator", *, by: str | None = None, request_id: str | None = None
    ) -> None:
        """Have it take nothing new; what it runs goes on. Raises InvalidTransitionError unless it is busy."""
        await self._tell(PauseWorker(*words(reason, by)), request_id)

    async def resume(
        self, reason: str = "resumed by an operator", *, by: str | None = None, request_id: str | None = None
    ) -> None:
        """Have it take tasks again. Raises InvalidTransitionError unless it is paused."""
        await self._tell(ResumeWorker(*words(reason, by)), request_id)

    async def shut_down(
        self,
        reason: str = "shut down by an operator",
        *,
        deadline: Duration | None = None,
        by: str | None = None,
        request_id: str | None = None,
    ) -> None:
        """Have it finish what it runs, and end. Returns when it takes nothing new.

        deadline: a duration after which it is terminated (`HealthChecks.drain_deadline` unless given). Raises
        InvalidTransitionError where its state does not allow it, ValueError for what is no duration.
        """
        limit = None if deadline is None else seconds(deadline)
        await self._tell(ShutDownWorker(*words(reason, by), limit), request_id)

    async def terminate(
        self, reason: str = "terminated by an operator", *, by: str | None = None, request_id: str | None = None
    ) -> None:
        """End it at once: what it runs is lost, and runs again elsewhere as far as its tasks allow.

        Raises InvalidTransitionError if it has ended.
        """
        await self._tell(TerminateWorker(*words(reason, by)), request_id)

    async def start(
        self, reason: str = "started by an operator", *, by: str | None = None, request_id: str | None = None
    ) -> None:
        """Start its next incarnation, as it was; one that lives begins to work, where its lifecycle has that (`fleet`).

        Raises InvalidTransitionError if it lives, and its lifecycle has not.
        """
        word = BeginWork(*words(reason, by))
        actor = self._host.kernel.named.get(self.name)
        if actor is None or not actor.ended:
            await self._tell(word, request_id)
            return
        again = StartWorkers((actor.spec,), None, word.reason, word.by)
        with named(self.name):
            await self._runtime.input(
                *self._said(word), lambda reply: msgspec.structs.replace(again, reply=reply), request_id=request_id
            )

    async def _tell(self, message: Message, request_id: str | None) -> None:
        actor = self._host.kernel.named.get(self.name)
        with named(self.name):
            await self._runtime.command(
                0 if actor is None else actor.record.key,
                message,
                request_id=request_id,
                said=self._said(message),
                refuse=None if actor is not None else lambda: not_there(self.name, self._host),
            )

    def _said(self, message: Message) -> tuple[str, object]:
        """What a key of a command is bound to: not the incarnation, since the same may be said again after it."""
        return type(message).__name__, (self.name, message)


def not_there(name: str, host: Host) -> LookupError:
    """There is no worker of that name."""
    return LookupError(f"there is no worker {name!r:.80}; there are: {', '.join(sorted(host.kernel.named)) or 'none'}")


@contextmanager
def named(name: str) -> Generator[None]:
    """Let what a worker refuses say which one it is."""
    try:
        yield
    except InvalidTransitionError as refusal:
        refusal.subject = name
        raise


async def start(runtime: Runtime, worker: Worker, said: tuple[str | None, str | None], request_id: str | None) -> None:
    """Start an incarnation of a worker; returns when that is durable. said: why, and who says so."""
    with named(worker.name):
        await runtime.input(
            "start_worker",
            (worker, *said),
            lambda reply: StartWorkers((worker,), reply, *said),
            request_id=request_id,
        )


def check_worker(worker: object, engines: Collection[str], lifecycles: Lifecycles | None = None) -> Worker:
    """Refuse what cannot be a worker. Raises TypeError and SpecificationError."""
    if not is_a(worker, Worker):
        raise TypeError(f"start_worker takes a Worker, not {shown(worker, 60)}")
    worker = plain_worker(cast("Worker", worker))
    if type(cast("object", worker.engine)) is str and worker.engine not in engines:
        text = f"there is no engine {worker.engine!r:.40}; there are: {', '.join(engines)}"
        if worker.engine == ON_CLUSTER:
            text += ". Open the runtime with ray=RayCluster(...), and there is"
        raise SpecificationError([Finding("workers[0].engine", text)], f"worker {worker.name!r:.80}")
    check_workers([worker], lifecycles)
    return worker


def plain_worker(worker: Worker) -> Worker:
    """It with plain texts and numbers, since a journal knows no other classes. What is no Worker stays."""
    if not is_a(worker, Worker):
        return worker
    said = {field: plain(getattr(worker, field)) for field in ("name", "engine", "capacity")}
    return msgspec.structs.replace(worker, **said)


def check_workers(workers: Sequence[Worker], lifecycles: Lifecycles | None = None) -> None:
    """Refuse workers that cannot be, or not beside one another. Raises SpecificationError with all that is wrong."""
    if found := worker_findings(workers, lifecycles=lifecycles):
        raise SpecificationError(found, "the runtime's workers")


def default_workers() -> tuple[Worker, ...]:
    """One loop worker of capacity 100, and as many thread, process and command slots as there are processors."""
    cores = os.cpu_count() or 1
    return (
        Worker("loop", engine="loop", capacity=LOOP_CAPACITY),
        Worker("threads", engine="thread", capacity=cores),
        Worker("processes", engine="process", capacity=cores),
        Worker("commands", engine="command", capacity=cores),
    )
