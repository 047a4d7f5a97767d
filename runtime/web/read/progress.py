"""The progress that bodies on other nodes have reported."""

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

_SPAN = 2_000
"""Tasks of a run, from the first running one on, whose progress is read: in a larger run the other tasks show none."""


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
    first, last = running[0], min(running[-1], running[0] + _SPAN - 1)
    found: dict[int, Progress] = await services.read(
        _read_some, services.node, services.journal.reader, stream, first, last
    )
    return {plan.names[place]: progress for place, progress in found.items()}


def _read_some(node: NodeContext, reader: Reader, stream: int, first: int, last: int) -> dict[int, Progress]:
    tasks = reader.tasks(stream, first=first, limit=last - first + 1)
    return {task.index: progress for task, progress in read_progress(node.cluster, tasks)}
