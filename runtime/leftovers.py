"""Commands that outlived a kill of their runtime: found and killed before anything is run again.

Rules
-----
- Every command carries its fencing token and its journal's path in its environment, and its children inherit them. So
  those of attempts without an end are found also where the runtime died before it could journal their pid.
- Only a process that carries both is touched, by killing its process group.
- Where there is no /proc (not Linux) nothing can be found, and nothing is done.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..actors.records import AttemptRecord
from .engines.contract import ProcessInfo
from .engines.processes import kill_leftover, start_time

JOURNAL_VARIABLE = "CALLBOARD_JOURNAL"
TOKEN_VARIABLE = "CALLBOARD_TOKEN"  # noqa: S105 - a number that fences, no secret
_PROC = Path("/proc")


def kill_leftovers(attempts: Sequence[AttemptRecord], journal: str) -> int:
    """Kill what still runs of these attempts of that journal. Returns how many process groups that were. Blocks."""
    tokens = {attempt.key for attempt in attempts}
    if not tokens or not _PROC.is_dir():
        return 0
    return sum(kill_leftover(info) for info in {info.pgid: info for info in _ours(tokens, journal)}.values())


def _ours(tokens: set[int], journal: str) -> Iterator[ProcessInfo]:
    mark = f"{JOURNAL_VARIABLE}={journal}".encode()
    prefix = f"{TOKEN_VARIABLE}=".encode()
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # it is gone, or somebody else's
            continue
        if mark not in variables:
            continue
        token = next((one[len(prefix) :] for one in variables if one.startswith(prefix)), b"")
        if token.isdigit() and int(token) in tokens:
            pid = int(entry.name)
            try:
                group = os.getpgid(pid)
            except ProcessLookupError:
                continue
            yield ProcessInfo(int(token), pid, group, start_time(pid))
