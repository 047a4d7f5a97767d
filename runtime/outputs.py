"""Where the output of commands goes, and the results that they read: a folder per job, a file per attempt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .engines.files import make_file

if TYPE_CHECKING:
    from ..actors.task import TaskActor


class Outputs:
    """Where the output of commands goes: one folder per job under `folder`, one file per attempt.

    root: the folder below which no folder may be a link (`engines/files.py`); `folder` itself unless given.
    """

    def __init__(self, folder: Path, root: Path | None = None) -> None:
        self.folder = folder
        self.root = folder if root is None else root

    def place(self, task: TaskActor) -> Path:
        """The file for the present attempt's output; its folder may not exist yet."""
        record = task.record
        return self._folder(record.job_id, record.run) / f"{record.name}.{record.attempt}.log"

    def write_results(self, task: TaskActor, results: dict[str, Any]) -> Path:
        """Write the dependencies' results for a command to read. Raises OSError where that cannot be done."""
        record = task.record
        path = self._folder(record.job_id, record.run) / f"{record.name}.{record.attempt}.results.json"
        try:
            with open(make_file(path, self.root), "wb") as file:  # noqa: PTH123 - a handle
                file.write(msgspec.json.encode(results))
        except OSError as error:
            text = f"the results that it is to read cannot be written to {path}: {error.strerror}"
            raise OSError(error.errno, text) from error
        return path

    def _folder(self, job_id: str, run: int) -> Path:
        """That of a run; those of child jobs lie in the folder "children" of their parent's."""
        root, *steps = job_id.split("/")
        folder = self.folder / root
        for task, name in zip(steps[::2], steps[1::2], strict=True):
            folder = folder / "children" / task / name
        return folder / str(run)
