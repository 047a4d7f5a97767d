"""What every handler of the board is given: the runtime, and the way it is read.

Rules
-----
- What is shown is durable. Memory is read first, and shown once all that was in it by then is; while the journal cannot
  be written, or takes longer than `PATIENCE`, what it has committed is shown instead.
- Of the living, memory is read; of what has ended, the journal, in a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

from litestar.di import NamedDependency
from litestar.params import PathParameter

from ...runtime import services_of
from ..read.plans import Plans
from ..stream.stream import Streams
from ..write.idempotency import OnTheirWay
from .problems import not_found

if TYPE_CHECKING:
    from ....actors.jobs.job import JobActor
    from ....actors.records.entities import JobRecord
    from ....actors.records.task import TaskRecord
    from ....actors.tasks.task import TaskActor
    from ...runtime import Runtime

PATIENCE = 2.0
"""Seconds that a read waits for the commit of what it has read."""
T = TypeVar("T")


class Board:
    """One board, on one runtime. commands: whether bodies may be commands that come over HTTP."""

    def __init__(self, runtime: Runtime, *, commands: bool = False) -> None:
        self.runtime = runtime
        services = self.services = services_of(runtime)
        self.commands = commands
        self.streams = Streams(services)
        self.on_their_way = OnTheirWay()
        self.plans = Plans(services)

    def states(self, kind: str) -> list[str]:
        """The states that an entity of that kind may be shown in, as far as anybody here knows: and its phases."""
        return self.services.lifecycles.states(kind)

    async def shown(self, look: Callable[[], T | None]) -> T | None:
        """What `look` sees in memory, once that is durable; None if the journal has to be asked."""
        seen = look()
        return seen if seen is not None and await self.services.settled(PATIENCE) else None

    async def living(self, job_id: str, look: Callable[[JobActor], T | None]) -> T | None:
        """What `look` sees of a living job, once that is durable; None if the journal has to be asked."""
        actor = self.services.jobs.living(job_id)
        return None if actor is None else await self.shown(lambda: look(actor))

    async def job(self, job_id: str) -> JobRecord:
        """The record of a job, as it is durable. Raises Problem."""
        record = await self.living(job_id, lambda actor: actor.record)
        if record is None:
            record = await self.services.read(self.services.journal.reader.job, job_id)
        if record is None:
            raise not_found("job", job_id)
        return record

    async def task(self, job_id: str, name: str) -> TaskRecord:
        """The record of a task, of the job's present run. Raises Problem."""
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
    """The actor of a task, of a living job's present run."""
    stream = actor.stream
    if stream is None or (index := stream.graph.names.get(name)) is None or index >= len(stream.tasks):
        return None
    return stream.tasks[index]


TheBoard: TypeAlias = NamedDependency[Board]
"""How a handler asks for it, by the name `board`."""
JobPath: TypeAlias = Annotated[str, PathParameter(description='A job (in the id of a child, ":" for each "/").')]
TaskPath: TypeAlias = Annotated[str, PathParameter(description="A task's name.")]
ToolPath: TypeAlias = Annotated[str, PathParameter(description="A tool's name.")]
MachinePath: TypeAlias = Annotated[str, PathParameter(description="The name that a machine was spawned with.")]


_BOARD = "callboard.board"
_ROOT = "callboard.root"


def asked_of(scope: Any, board: Board, root: str) -> None:
    """Keep in a request of which board it is asked, and where that is mounted."""
    scope[_BOARD] = board
    scope[_ROOT] = root


def board_of(scope: Any) -> Board:
    """The board that a request is about, for a handler that speaks ASGI itself."""
    board: Board = scope[_BOARD]
    return board


def root_of(scope: Any) -> str:
    """The path at which the board that a request is about is mounted: "" where it is alone."""
    root: str = scope[_ROOT]
    return root


def job_id_of(text: str) -> str:
    """The id that a path means: in that of a child, each ":" stands for a "/"."""
    return text.replace(":", "/")


def path_of(job_id: str) -> str:
    """A job's id as it is written in paths."""
    return job_id.replace("/", ":")
