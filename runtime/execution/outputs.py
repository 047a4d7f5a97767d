"""Files for the output of commands, and for the results that they read.

Each job has a folder, each attempt a file.

Rules
-----
- A journal keeps the paths of its outputs at the time of their making. If the journal was moved, so were its outputs:
  they are looked up in its present output folder first, by the part of the path after that folder's name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..engines.files import make_file

if TYPE_CHECKING:
    from ...actors.tasks.task import TaskActor


SUFFIX = ".output"
"""The suffix of a journal's output folder, after the journal's name."""
_LEVELS = 3
"""Levels that the runtime made in a path that lies in no known folder: the job's folder, the run's, the file."""


class OutputLocation(msgspec.Struct, frozen=True):
    """The place of an output. root: the folder below which no folder may be a link."""

    path: Path
    root: Path


def found(kept: str | Path, folder: Path, root: Path) -> OutputLocation:
    """Find an output by the path that the journal keeps. folder: the journal's present output folder."""
    path = Path(kept)
    for tail in _tails(path, folder.name):
        if os.path.lexists(folder / tail):
            return OutputLocation(folder / tail, root)
    if path.is_relative_to(folder):
        return OutputLocation(path, root)
    return as_kept(root / path)  # older versions kept it relative to the folder they ran in


def as_kept(path: Path) -> OutputLocation:
    """Return the place of an output from its record, unchanged."""
    return OutputLocation(path, path.parents[min(_LEVELS, len(path.parents)) - 1])


def beside(journal: Path) -> tuple[Path, Path]:
    """Return the output folder beside a journal's file, and its root as in `OutputLocation`."""
    return journal.with_name(f"{journal.name}{SUFFIX}"), journal.parent


def _tails(path: Path, folder: str) -> Iterator[Path]:
    """Yield the parts of a path after an output folder of any journal."""
    for number, part in enumerate(path.parts[:-1]):
        if part == folder or part.endswith(SUFFIX):
            yield Path(*path.parts[number + 1 :])


class Outputs:
    """The output files of commands: one folder per job under `folder`, one file per attempt.

    root: the folder below which no folder may be a link (`runtime/engines/files.py`); by default `folder`.
    """

    def __init__(self, folder: Path, root: Path | None = None) -> None:
        self.folder = folder
        self.root = folder if root is None else root

    def place(self, task: TaskActor) -> Path:
        """Return the file for the present attempt's output. Its folder may not exist yet."""
        record = task.record
        return self._folder(record.job_id, record.run) / f"{record.name}.{record.attempt}.log"

    def found(self, kept: str | Path) -> OutputLocation:
        """Find the output whose record has this path."""
        return found(kept, self.folder, self.root)

    def write_results(self, task: TaskActor, results: dict[str, Any]) -> Path:
        """Write the dependencies' results for a command. Raises OSError if that fails."""
        record = task.record
        path = self._folder(record.job_id, record.run) / f"{record.name}.{record.attempt}.results.json"
        try:
            with open(make_file(path, self.root), "wb") as file:  # noqa: PTH123 - it opens a handle
                file.write(msgspec.json.encode(results))
        except OSError as error:
            text = f"the results of its dependencies cannot be written to {path}: {error.strerror}"
            raise OSError(error.errno, text) from error
        return path

    def _folder(self, job_id: str, run: int) -> Path:
        """Return the folder of a run. A child job's lies in the folder "children" of its parent's."""
        root, *steps = job_id.split("/")
        folder = self.folder / root
        for task, name in zip(steps[::2], steps[1::2], strict=True):
            folder = folder / "children" / task / name
        return folder / str(run)
