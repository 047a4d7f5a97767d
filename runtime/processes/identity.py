"""Marks in the environment of every started process: which runtime it belongs to.

Rules
-----
- A journal is identified by the random id that it got when it was made. Its path does not identify it: two containers
  can have two files of one path, and a file may be moved, or have several names.
- Two copies of a file have one id. So the mark also names the copy (the file itself; for a database, its address and
  the node), and the process that started it.
- A process with a journal's id may be ended by the journal's owner if its mark names the same copy, since a copy has
  one owner, or if the process that started it has ended. Processes that a living process runs for another copy are left
  alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Self

import msgspec

from ...actors.spec.digits import whole
from .os_processes import JOURNAL, RUNTIME, Process, this_process

JOURNAL_VARIABLE = JOURNAL
RUNTIME_VARIABLE = RUNTIME
_PARTS = 5


class Origin(msgspec.Struct, frozen=True):
    """The origin of a started process: the journal's id, its copy, the starting process."""

    journal: str
    copy: str
    process: Process

    @classmethod
    def here(cls, journal: str, copy: str) -> Self:
        """The origin of processes that this process starts."""
        return cls(journal, copy, this_process())

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> Self | None:
        """Read the origin from a process's environment variables; None if no runtime has started it."""
        journal, mark = variables.get(JOURNAL_VARIABLE), variables.get(RUNTIME_VARIABLE)
        return None if journal is None or mark is None else cls.read(journal, mark)

    @classmethod
    def read(cls, journal: str, mark: str) -> Self | None:
        """Read the origin from a journal's id and a `mark`; None if the mark is invalid."""
        parts = mark.split(" ", _PARTS - 1)
        if len(parts) != _PARTS:
            return None
        kernel, namespace, _, _, copy = parts
        pid, started = whole(parts[2]), whole(parts[3])
        if pid is None or started is None:
            return None
        return cls(journal, copy, Process(kernel, namespace, pid, started))

    @property
    def mark(self) -> str:
        """The starting process and the copy, as one text."""
        of = self.process
        return f"{of.kernel} {of.namespace} {of.pid} {of.started} {self.copy}"

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of every process that is started here."""
        return {JOURNAL_VARIABLE: self.journal, RUNTIME_VARIABLE: self.mark}

    def is_left_to(self, journal: str, copies: Collection[str]) -> bool:
        """Whether the owner of these copies of a journal may end processes of this origin."""
        return self.journal == journal and (self.copy in copies or self.process.is_gone)
