"""Where the output of commands goes, and the results that they read: a folder per job, a file per attempt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from ..actors.task import TaskActor


class Outputs:
    """Where the output of commands goes: one folder per job under `folder`, one file per attempt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, task: TaskActor) -> Path:
        """The file for the present attempt's output; its folder exists."""
        path = self.place(task)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def place(self, task: TaskActor) -> Path:
        """The file for the present attempt's output; its folder may not exist yet."""
        record = task.record
        return self._folder(record.job_id, record.run) / f"{record.name}.{record.attempt}.log"

    def write_results(self, task: TaskActor, results: dict[str, Any]) -> Path:
        """Write the dependencies' results for a command to read. Raises OSError where that cannot be done."""
        record = task.record
        path = self._made(record.job_id, record.run) / f"{record.name}.{record.attempt}.results.json"
        path.write_bytes(msgspec.json.encode(results))
        return path

    def _made(self, job_id: str, run: int) -> Path:
        folder = self._folder(job_id, run)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _folder(self, job_id: str, run: int) -> Path:
        """That of a run; those of child jobs lie in the folder "children" of their parent's."""
        root, *steps = job_id.split("/")
        folder = self.folder / root
        for task, name in zip(steps[::2], steps[1::2], strict=True):
            folder = folder / "children" / task / name
        return folder / str(run)
