"""Whose something is that runs: what a runtime puts into the environment of all that it starts, and how that is read.

Rules
-----
- A journal is the random id that it was made with. A path is not it: two containers can have two files of one path, and
  a file may be moved, or named in several ways.
- Two copies of a file have one id. So the mark also says which of them it was (the file itself; of a database, its
  address and the node), and which process ran it.
- What carries a journal's id is left over for its owner where it is of the same copy, since nobody else owns that, or
  where the process that started it has ended. What a living process runs for another copy is let alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Self

from ...actors.spec.digits import whole
from .os_processes import JOURNAL, RUNTIME, Process, this_process

JOURNAL_VARIABLE = JOURNAL
RUNTIME_VARIABLE = RUNTIME
_PARTS = 5


class Origin(NamedTuple):
    """Where something comes from that was started: a journal's id, which copy of it, and by which process."""

    journal: str
    copy: str
    process: Process

    @classmethod
    def here(cls, journal: str, copy: str) -> Self:
        """That of what this process starts."""
        return cls(journal, copy, this_process())

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> Self | None:
        """That of a process with these variables of the environment; None where it was started by no runtime."""
        journal, mark = variables.get(JOURNAL_VARIABLE), variables.get(RUNTIME_VARIABLE)
        return None if journal is None or mark is None else cls.read(journal, mark)

    @classmethod
    def read(cls, journal: str, mark: str) -> Self | None:
        """That of a journal with this id, from its `mark`; None for what is none."""
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
        """Its process, and the copy, as one text."""
        kernel, namespace, pid, started = self.process
        return f"{kernel} {namespace} {pid} {started} {self.copy}"

    @property
    def variables(self) -> dict[str, str]:
        """What all carries in its environment that is started."""
        return {JOURNAL_VARIABLE: self.journal, RUNTIME_VARIABLE: self.mark}

    def is_left_to(self, journal: str, copies: Collection[str]) -> bool:
        """Whether the owner of these copies of a journal may end what came from here."""
        return self.journal == journal and (self.copy in copies or self.process.is_gone)
