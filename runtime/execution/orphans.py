"""Commands and worker processes that outlived a kill of their runtime: found and killed before anything is run again.

Rules
-----
- All that is started carries what names its runtime (`identity.py`) in its environment, and what it is run for; its
  children inherit both. So it is found also where the runtime died before it could journal anything of it, where it has
  a session of its own, and where it has become another program.
- What is run for: commands of attempts and hooks have their fencing token; those of conditions and checks, of which
  nothing is journaled, the key of the entity that asked; a worker process its worker's name (it dies with its runtime
  by itself; one that could not is killed here).
- Killed is what would be run again: of attempts without an end, of hooks that are owed, of entities that ask anew. What
  a command left behind on purpose, whose attempt has ended, is let alone. What nobody asked for durably (the check of a
  breaker's reset) is killed once the process that started it has ended.
- The environment of a program of another user cannot be read, and another program may have got another one. So a
  command that carries no such mark is known by the number and the start of its process, where those are of this machine
  for certain, and only once it has lost its parent: what a living runtime runs has one.
- Nothing is killed but whole process groups, never that of this process. What cannot be killed is told.
- Where there is no /proc (not Linux) nothing can be found, and nothing is done.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence

from ...actors.records.task import AttemptRecord
from ...actors.spec.digits import whole
from ..engines.contract import ProcessInfo
from ..engines.identity import JOURNAL_VARIABLE, Origin
from ..engines.os_processes import (
    ASKED_BY,
    TOKEN,
    WORKER,
    booted_at,
    environment_of,
    is_orphan,
    is_running,
    kill_known,
    kill_leftover,
    pids,
    start_time,
    wait_for_ends,
)

UNASKED = "0"
"""What the variable says that names who asked, where nobody is kept who did."""
_LONGEST = 2.0  # seconds that the killed may take to be gone
_SLACK = 60.0  # seconds by which the times of claims and of the boot may differ

Found = tuple[ProcessInfo, str | None]
"""A process, and the variable by which it is known; None: by its number."""


def kill_leftovers(
    attempts: Sequence[AttemptRecord],
    journal: str,
    copies: Collection[str],
    hooks: Collection[int] = (),
    asking: Collection[int] = (),
    *,
    by_number: bool = False,
    stays: Callable[[ProcessInfo], object] = lambda _: None,
) -> int:
    """Kill what still runs of these attempts of the journal with that id, of the hooks with these tokens, and of the
    conditions and checks of the entities with these keys; and its worker processes.

    copies: those of the journal that the caller owns. by_number: the processes of the attempts were this machine's.
    stays: is told of each that could not be killed. Returns how many process groups were. Blocks.
    """
    tokens = {attempt.key for attempt in attempts} | set(hooks)
    found = {info.pgid: (info, mark) for info, mark in _marked(tokens, set(asking), journal, copies)}
    if by_number:
        for info in _known(attempts):
            found.setdefault(info.pgid, (info, None))
    found.pop(os.getpgrp(), None)  # this very program was started by one
    killed = [info for info, mark in found.values() if _kill(info, mark)]
    wait_for_ends([info.pid for info in killed], _LONGEST)
    for info in killed:
        if is_running(info.pid, info.started):
            stays(info)
    return len(killed)


def _kill(info: ProcessInfo, mark: str | None) -> bool:
    return kill_known(info) if mark is None else kill_leftover(info, wait=0, mark=mark)


def _marked(tokens: set[int], asking: set[int], journal: str, copies: Collection[str]) -> Iterator[Found]:
    """What would be run again, or is a worker of the journal, with the variable by which it is known."""
    for pid in pids():
        if pid == os.getpid():
            continue
        variables = environment_of(pid, journal)
        origin = Origin.of(variables)
        if origin is None or not origin.is_left_to(journal, copies):
            continue
        mark = _mark(variables, tokens, asking, origin)
        if mark is None:
            continue
        try:
            group = os.getpgid(pid)
        except ProcessLookupError:
            continue
        yield ProcessInfo(whole(variables.get(TOKEN)) or 0, pid, group, start_time(pid)), mark


def _mark(variables: dict[str, str], tokens: set[int], asking: set[int], origin: Origin) -> str | None:
    """By which variable it is known as something that would be run again; None where it is not."""
    worker, asked_by, token = variables.get(WORKER), variables.get(ASKED_BY, ""), variables.get(TOKEN, "")
    if worker is not None:
        return f"{WORKER}={worker}"
    if asked_by:
        owed = origin.process.is_gone if asked_by == UNASKED else whole(asked_by) in asking
        return f"{ASKED_BY}={asked_by}" if owed else None
    return f"{TOKEN}={token}" if whole(token) in tokens else None


def _known(attempts: Sequence[AttemptRecord]) -> Iterator[ProcessInfo]:
    """The processes of attempts that still run by what the journal says of them: each leads its group."""
    booted = booted_at()
    for attempt in attempts:
        pid, started = attempt.pid, attempt.process_started
        if not pid or not started or not booted or attempt.claimed_at < booted - _SLACK:
            continue
        if is_running(pid, started) and is_orphan(pid) and JOURNAL_VARIABLE not in environment_of(pid):
            yield ProcessInfo(attempt.key, pid, pid, started)
