"""Commands and worker processes that outlived a kill of their runtime: found and killed before anything is run again.

Rules
-----
- Every command carries its fencing token, and what names its runtime (`identity.py`), in its environment, and its
  children inherit them. So those of attempts without an end are found also where the runtime died before it could
  journal their pid.
- A worker process carries its worker's name and the same; what its bodies started carries what a command does. It dies
  with its runtime by itself; one that could not is killed here.
- Only a process that carries both is touched, by killing its process group.
- Where there is no /proc (not Linux) nothing can be found, and nothing is done.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from ..actors.task_record import AttemptRecord
from .engines.contract import ProcessInfo
from .engines.processes import TOKEN, WORKER, kill_leftover, start_time
from .identity import Origin

_PROC = Path("/proc")


def kill_leftovers(
    attempts: Sequence[AttemptRecord], journal: str, copies: Collection[str], hooks: Collection[int] = ()
) -> int:
    """Kill what still runs of these attempts of the journal with that id, and of the cancel hooks with these tokens.

    copies: those of the journal that the caller owns. Returns how many process groups that were. Blocks.
    """
    tokens = {attempt.key for attempt in attempts} | set(hooks)
    if not tokens or not _PROC.is_dir():
        return 0
    found = {info.pgid: (info, mark) for info, mark in _ours(tokens, journal, copies)}
    return sum(kill_leftover(info, mark=mark) for info, mark in found.values())


def _ours(tokens: set[int], journal: str, copies: Collection[str]) -> Iterator[tuple[ProcessInfo, str]]:
    """What belongs to an attempt or a worker of the journal, with the variable by which it is known."""
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            lines = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it is gone, or somebody else's
            continue
        variables = {name: value for name, _, value in (line.partition("=") for line in lines)}
        origin = Origin.of(variables)
        if origin is None or not origin.is_left_to(journal, copies):
            continue
        worker, token = variables.get(WORKER), variables.get(TOKEN, "")
        of_attempt = token.isdigit() and int(token) in tokens
        if worker is not None or of_attempt:
            pid = int(entry.name)
            try:
                group = os.getpgid(pid)
            except ProcessLookupError:
                continue
            number = int(token) if of_attempt else 0
            mark = f"{TOKEN}={number}" if worker is None else f"{WORKER}={worker}"
            yield ProcessInfo(number, pid, group, start_time(pid)), mark
