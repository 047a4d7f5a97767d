"""The context of every handler: the board's runtime, and how handlers read it.

Rules
-----
- Only durable data is shown. Memory is read first, and shown after it was committed. While the journal cannot be
  written, or a commit takes longer than `PATIENCE`, the journal's data is shown instead.
- Living entities are read from memory; ended ones from the journal, in a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

from litestar.di import NamedDependency
from litestar.params import PathParameter

from ...runtime import services_of
from ..read.plans import Plans
from ..stream.stream import Streams
from ..write.idempotency import KeysInFlight
from .problems import not_found

if TYPE_CHECKING:
    from ....actors.jobs.job import JobActor
    from ....actors.records.entities import JobRecord
    from ....actors.records.task import TaskRecord
    from ....actors.tasks.task import TaskActor
    from ...runtime import Runtime

PATIENCE = 2.0
"""Seconds for which a read waits for the commit of the data it has read."""
T = TypeVar("T")


class Board:
    """A board on one runtime. commands: whether bodies sent over HTTP may be commands."""

    def __init__(self, runtime: Runtime, *, commands: bool = False) -> None:
        self.runtime = runtime
        services = self.services = services_of(runtime)
        self.commands = commands
        self.streams = Streams(services)
        self.on_their_way = KeysInFlight()
        self.plans = Plans(services)

    def states(self, kind: str) -> list[str]:
        """Return the states and phases in which an entity of that kind may be shown."""
        return self.services.lifecycles.states(kind)

    async def shown(self, look: Callable[[], T | None]) -> T | None:
        """Return what `look` reads in memory, after its commit; None if the journal must be asked."""
        seen = look()
        return seen if seen is not None and await self.services.settled(PATIENCE) else None

    async def living(self, job_id: str, look: Callable[[JobActor], T | None]) -> T | None:
        """Return what `look` reads of a living job, after its commit; None if the journal must be asked."""
        actor = self.services.jobs.living(job_id)
        return None if actor is None else await self.shown(lambda: look(actor))

    async def job(self, job_id: str) -> JobRecord:
        """Return the durable record of a job. Raises Problem."""
        record = await self.living(job_id, lambda actor: actor.record)
        if record is None:
            record = await self.services.read(self.services.journal.reader.job, job_id)
        if record is None:
            raise not_found("job", job_id)
        return record

    async def task(self, job_id: str, name: str) -> TaskRecord:
        """Return the durable record of a task of the job's present run. Raises Problem."""
        found = await self.living(job_id, lambda actor: _record(actor, name))
        if found is None:
            job = await self.job(job_id)
            found = await self.services.read(self.services.journal.reader.task, f"{job.workstream}/{name}")
        if found is None:
            raise not_found("task", name, f"job {job_id!r}")
        return found


def _record(actor: JobActor, name: str) -> TaskRecord | None:
    task = task_of(actor, name)
    return None if task is None else task.record


def task_of(actor: JobActor, name: str) -> TaskActor | None:
    """Return the actor of a task, in a living job's present run."""
    stream = actor.stream
    if stream is None or (index := stream.graph.names.get(name)) is None or index >= len(stream.tasks):
        return None
    return stream.tasks[index]


TheBoard: TypeAlias = NamedDependency[Board]
"""The type of a handler's parameter `board`."""
JobPath: TypeAlias = Annotated[str, PathParameter(description='A job (in the id of a child, ":" for each "/").')]
TaskPath: TypeAlias = Annotated[str, PathParameter(description="A task's name.")]
ToolPath: TypeAlias = Annotated[str, PathParameter(description="A tool's name.")]
MachinePath: TypeAlias = Annotated[str, PathParameter(description="The name that a machine was spawned with.")]


_BOARD = "callboard.board"
_ROOT = "callboard.root"


def asked_of(scope: Any, board: Board, root: str) -> None:
    """Store with a request its board, and the path at which that is mounted."""
    scope[_BOARD] = board
    scope[_ROOT] = root


def board_of(scope: Any) -> Board:
    """Return the board of a request. Raises RuntimeClosed while its runtime is not open: then nothing can be read."""
    board: Board = scope[_BOARD]
    board.services.status.check_open()
    return board


def root_of(scope: Any) -> str:
    """Return the path at which a request's board is mounted; "" if it is not."""
    root: str = scope[_ROOT]
    return root


def job_id_of(text: str) -> str:
    """Return the job id of a path. Each ":" in it stands for "/"."""
    return text.replace(":", "/")


def path_of(job_id: str) -> str:
    """Write a job's id for a path."""
    return job_id.replace("/", ":")
