"""Commands and worker processes that outlived a kill of their runtime: found and killed before anything is run again.

Rules
-----
- Every command carries its fencing token and its journal's path in its environment, and its children inherit them. So
  those of attempts without an end are found also where the runtime died before it could journal their pid.
- A worker process carries its worker's name and the journal's path; what its bodies started carries what a command
  does. It dies with its runtime by itself; one that could not is killed here.
- Only a process that carries both is touched, by killing its process group.
- Where there is no /proc (not Linux) nothing can be found, and nothing is done.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from ..actors.task_record import AttemptRecord
from .engines.contract import ProcessInfo
from .engines.processes import WORKER, kill_leftover, start_time

JOURNAL_VARIABLE = "CALLBOARD_JOURNAL"
TOKEN_VARIABLE = "CALLBOARD_FENCING_TOKEN"  # noqa: S105 - a number that fences, no secret
_PROC = Path("/proc")


def kill_leftovers(attempts: Sequence[AttemptRecord], journal: str, hooks: Collection[int] = ()) -> int:
    """Kill what still runs of these attempts of that journal, and of the cancel hooks with these tokens.

    Returns how many process groups that were. Blocks.
    """
    tokens = {attempt.key for attempt in attempts} | set(hooks)
    if not tokens or not _PROC.is_dir():
        return 0
    found = {info.pgid: (info, mark) for info, mark in _ours(tokens, journal)}
    return sum(kill_leftover(info, mark=mark) for info, mark in found.values())


def _ours(tokens: set[int], journal: str) -> Iterator[tuple[ProcessInfo, str]]:
    """What belongs to an attempt or a worker of the journal, with the variable by which it is known."""
    ours = f"{JOURNAL_VARIABLE}={journal}".encode()
    token_prefix, worker_prefix = f"{TOKEN_VARIABLE}=".encode(), f"{WORKER}=".encode()
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # it is gone, or somebody else's
            continue
        if ours not in variables:
            continue
        worker = next((one for one in variables if one.startswith(worker_prefix)), None)
        token = next((one[len(token_prefix) :] for one in variables if one.startswith(token_prefix)), b"")
        of_attempt = token.isdigit() and int(token) in tokens
        if worker is not None or of_attempt:
            pid = int(entry.name)
            try:
                group = os.getpgid(pid)
            except ProcessLookupError:
                continue
            number = int(token) if of_attempt else 0
            mark = f"{TOKEN_VARIABLE}={number}" if worker is None else worker.decode(errors="replace")
            yield ProcessInfo(number, pid, group, start_time(pid)), mark
