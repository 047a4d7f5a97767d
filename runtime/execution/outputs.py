"""Where the output of commands goes, and the results that they read: a folder per job, a file per attempt.

Rules
-----
- A journal keeps the paths of outputs as they were made. Where it lies elsewhere now, so do they: they are looked for
  in its own folder of outputs first, by what comes after that folder's name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..engines.files import make_file

if TYPE_CHECKING:
    from ...actors.tasks.task import TaskActor


SUFFIX = ".output"
"""What the folder of a journal's outputs has behind the journal's name."""
_LEVELS = 3
"""Of a path that lies in no known folder: the job's folder, the run's, and the file are the runtime's."""


class Found(NamedTuple):
    """Where an output is. root: the folder below which no folder may be a link."""

    path: Path
    root: Path


def found(kept: str | Path, folder: Path, root: Path) -> Found:
    """Where an output of a journal is that kept this path. folder: that of the journal's outputs now."""
    path = Path(kept)
    for tail in _tails(path, folder.name):
        if os.path.lexists(folder / tail):
            return Found(folder / tail, root)
    if path.is_relative_to(folder):
        return Found(path, root)
    return as_kept(root / path)  # an older version has kept it from the folder that it ran in


def as_kept(path: Path) -> Found:
    """An output where its record says that it is."""
    return Found(path, path.parents[min(_LEVELS, len(path.parents)) - 1])


def beside(journal: Path) -> tuple[Path, Path]:
    """The folder of outputs beside a journal's file, and the one below which no folder may be a link."""
    return journal.with_name(f"{journal.name}{SUFFIX}"), journal.parent


def _tails(path: Path, folder: str) -> Iterator[Path]:
    """What comes after a folder of outputs in a path, which may have been named after another journal."""
    for number, part in enumerate(path.parts[:-1]):
        if part == folder or part.endswith(SUFFIX):
            yield Path(*path.parts[number + 1 :])


class Outputs:
    """Where the output of commands goes: one folder per job under `folder`, one file per attempt.

    root: the folder below which no folder may be a link (`runtime/engines/files.py`); `folder` itself unless given.
    """

    def __init__(self, folder: Path, root: Path | None = None) -> None:
        self.folder = folder
        self.root = folder if root is None else root

    def place(self, task: TaskActor) -> Path:
        """The file for the present attempt's output; its folder may not exist yet."""
        record = task.record
        return self._folder(record.job_id, record.run) / f"{record.name}.{record.attempt}.log"

    def found(self, kept: str | Path) -> Found:
        """Where the output is that has this path in a record."""
        return found(kept, self.folder, self.root)

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
