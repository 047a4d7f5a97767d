"""What bodies that other nodes run have said of their progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...cluster.live_progress import IN_AN_ATTEMPT, read_progress

if TYPE_CHECKING:
    from ....actors.records.task import TaskRecord
    from ...calling import Progress
    from ...cluster.node_context import NodeContext
    from ...journal.contract import Reader
    from ...services import RuntimeServices
    from .plans import Plan

_MOST = 100
"""Running tasks of a large run whose progress is read, beyond which more are not looked for."""


async def progress_elsewhere(services: RuntimeServices, tasks: Sequence[TaskRecord]) -> dict[int, Progress]:
    """The progress of tasks whose job another node runs, by their keys."""
    if services.node is None:
        return {}
    found: list[tuple[TaskRecord, Progress]] = await services.read(read_progress, services.node.cluster, tasks)
    return {task.key: progress for task, progress in found}


async def progress_in(
    services: RuntimeServices, stream: int, plan: Plan, states: Sequence[tuple[str, str]]
) -> dict[str, Progress]:
    """The progress of the running tasks of a run (by its key), which another node runs, by the names of the tasks."""
    running = [place for place, (_, phase) in enumerate(states) if phase in IN_AN_ATTEMPT]
    if services.node is None or not running:
        return {}
    found: dict[int, Progress] = await services.read(
        _read_some, services.node, services.journal.reader, stream, running[:_MOST]
    )
    return {plan.names[place]: progress for place, progress in found.items()}


def _read_some(node: NodeContext, reader: Reader, stream: int, places: Sequence[int]) -> dict[int, Progress]:
    tasks = [task for place in places for task in reader.tasks(stream, first=place, limit=1)]
    return {task.index: progress for task, progress in read_progress(node.cluster, tasks)}
