"""The progress of running bodies among nodes: written by the node that runs them, read by the others.

Rules
-----
- A write holds only the changes since the last write; the progress of ended bodies is removed.
- If the database may have lost the rows (it was restarted), all progress is written again, with the next change.
- To a reader, a database that does not answer means "nothing is known". A progress counts only for the attempt whose
  token the task's record has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from ...machines import TaskState
from ..errors import JournalError

if TYPE_CHECKING:
    from ...actors.records.task import TaskRecord
    from ..calling import Progress
    from ..journal.cluster import Cluster
    from ..journal.live import LiveProgress

IN_AN_ATTEMPT = frozenset({TaskState.RUNNING, TaskState.TIMED_OUT, TaskState.RECOVERING, TaskState.CANCELLING})
"""The phases of a task in which a body of it may run."""


class SharedProgress:
    """Writes the progress of one node's bodies into the database of the nodes, until `remove`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = Lock()  # so that no write comes after the removal
        self._removed = False
        self._written: dict[int, LiveProgress] = {}
        self._connection = 0

    def write(self, progress: Sequence[LiveProgress]) -> None:
        """Write the progress of all bodies. Blocks. Raises JournalError."""
        with self._lock:
            if self._removed:
                return
            now, before = {one.key: one for one in progress}, self._written
            changed = [one for one in progress if before.get(one.key) != one]
            connection = self._write(changed, [key for key in before if key not in now])
            if connection != self._connection and len(changed) < len(progress):
                connection = self._write(progress, [])
            self._written, self._connection = now, connection

    def _write(self, progress: Sequence[LiveProgress], over: Sequence[int]) -> int:
        return self._cluster.write_progress(progress, over) if progress or over else self._connection

    def remove(self) -> None:
        """Write no more, and remove the written rows. Blocks. Raises JournalError."""
        with self._lock:
            self._removed = True
            self._cluster.hide()


def read_progress(cluster: Cluster, tasks: Iterable[TaskRecord]) -> list[tuple[TaskRecord, Progress]]:
    """The progress of these tasks, as far as their bodies have reported any, on whichever node they run. Blocks."""
    running = {task.key: task for task in tasks if task.state in IN_AN_ATTEMPT}
    if not running:
        return []
    try:
        progress_of = cluster.read_progress([*running])
    except JournalError:
        return []
    return [(running[key], progress) for key, (token, progress) in progress_of.items() if token == running[key].token]
