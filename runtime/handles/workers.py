"""Handles of workers, for applications and operators.

Rules
-----
- A handle is a name, not a state: it shows the present record of the last incarnation with that name.
- A command returns when its effect is durable. It raises `InvalidTransitionError` if the state does not allow it.
- A worker that an operator stopped does not start again by itself.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, cast

import msgspec

from ...actors.messages.commands import Command, Reply, StartWorkers
from ...actors.messages.inputs import Message
from ...actors.records.entities import WorkerRecord
from ...actors.spec.lifecycles import Lifecycles
from ...actors.spec.model import ON_CLUSTER, Worker
from ...actors.spec.validate import Finding, SpecificationError, worker_findings
from ...actors.user_code import is_a, plain, shown
from ...machines import InvalidTransitionError
from ..commands.verbs import verb_of
from .base import Arguments, WorkerVerbs

if TYPE_CHECKING:
    from ...actors.workers.worker import WorkerActor
    from ..host import KernelHost
    from .references import EntityRef
    from .services import Services

LOOP_CAPACITY = 100


class WorkerHandle(WorkerVerbs):
    """A worker of a runtime."""

    def __init__(self, services: Services, host: KernelHost, name: str) -> None:
        self._services = services
        self._host = host
        self.name = name
        self._seen = host.workforce.named.get(name)  # shown once the worker is released

    @property
    def _actor(self) -> WorkerActor:
        """The worker's last incarnation. Raises LookupError if there never was one."""
        actor = self._host.workforce.named.get(self.name) or self._seen
        if actor is None:
            raise not_there(self.name, self._host)
        return actor

    def __repr__(self) -> str:
        return f"<WorkerHandle {self.record.id} {self.state}>"

    @property
    def ref(self) -> EntityRef:
        """The reference by which people fire events at the worker."""
        return self._services.reference("worker", self.name, self)

    @property
    def record(self) -> WorkerRecord:
        """The present record of the worker's last incarnation."""
        return self._actor.record

    @property
    def state(self) -> str:
        """The state: initializing, idle, busy, paused, draining, unresponsive, shutdown, failed or terminated."""
        return str(self.record.state)

    @property
    def last_seen(self) -> float:
        """When the worker last showed that it lives (UTC epoch seconds); now, for a live worker in this process."""
        actor = self._actor
        return self._host.now() if actor.in_process and not actor.ended else actor.seen

    async def _say(self, verb: str, said: Arguments, request_id: str | None) -> object:
        message = verb_of("worker", verb).message("worker", said)
        bound_to = type(message).__name__, (self.name, message)  # no incarnation: the same may be said after it again
        actor = self._host.workforce.named.get(self.name)

        def refuse() -> Exception | None:
            return not_there(self.name, self._host) if actor is None else None

        again = actor.spec if verb == "start" and actor is not None and actor.ended else None

        def make(reply: Reply) -> Message:
            if again is not None:
                return StartWorkers((again,), reply, said["reason"], said["by"])
            return Command(0 if actor is None else actor.record.key, message, reply)

        with named(self.name):
            return await self._services.commands.give(make, *bound_to, request_id=request_id, refuse=refuse)


def not_there(name: str, host: KernelHost) -> LookupError:
    """The error for a name that no worker has."""
    there = ", ".join(sorted(host.workforce.named)) or "none"
    return LookupError(f"there is no worker {name!r:.80}; there are: {there}")


@contextmanager
def named(name: str) -> Generator[None]:
    """Add the worker's name to its refusals."""
    try:
        yield
    except InvalidTransitionError as refusal:
        refusal.subject = name
        raise


async def start(
    services: Services, worker: Worker, said: tuple[str | None, str | None], request_id: str | None
) -> None:
    """Start an incarnation of a worker. Returns when this is durable. said: the reason and the author."""
    with named(worker.name):
        await services.commands.give(
            lambda reply: StartWorkers((worker,), reply, *said),
            "start_worker",
            (worker, *said),
            request_id=request_id,
        )


def check_worker(worker: object, engines: Collection[str], lifecycles: Lifecycles | None = None) -> Worker:
    """Refuse an invalid worker. Raises TypeError and SpecificationError."""
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
    """The worker with plain texts and numbers, since a journal has no other classes. Other values stay unchanged."""
    if not is_a(worker, Worker):
        return worker
    said = {field: plain(getattr(worker, field)) for field in ("name", "engine", "capacity")}
    return msgspec.structs.replace(worker, **said)


def check_workers(workers: Sequence[Worker], lifecycles: Lifecycles | None = None) -> None:
    """Refuse invalid workers, and workers that conflict. Raises SpecificationError with all findings."""
    if found := worker_findings(workers, lifecycles=lifecycles):
        raise SpecificationError(found, "the runtime's workers")


@cache
def default_workers() -> tuple[Worker, ...]:
    """One loop worker of capacity 100, and as many thread, process and command slots as there are processors."""
    cores = os.cpu_count() or 1
    return (
        Worker("loop", engine="loop", capacity=LOOP_CAPACITY),
        Worker("threads", engine="thread", capacity=cores),
        Worker("processes", engine="process", capacity=cores),
        Worker("commands", engine="command", capacity=cores),
    )
