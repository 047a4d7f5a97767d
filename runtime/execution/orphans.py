"""Orphans: commands and worker processes of a killed runtime, killed before their work runs again.

Rules
-----
- Every started process carries in its environment its runtime's mark (`identity.py`) and what it runs for; its
  children inherit both. So it is found even if the runtime died before it journaled anything of it, if it has a session
  of its own, and if it has become another program.
- The mark also names the purpose of a process. Commands of attempts and hooks carry their fencing token. Commands of
  conditions and checks, which are not journaled, carry the key of their entity. A worker process carries its worker's
  name; it ends with its runtime by itself, and is killed here if it could not.
- Processes are killed if their work will run again: that of attempts without an end, of hooks that are owed, of
  entities that ask anew. Processes that a command of an ended attempt left behind on purpose are left alone. A process
  that nothing durable asked for (the check of a breaker's reset) is killed if the process that started it has ended.
- Another user's processes do not show their environment, and another program may have got a new one. So a command
  without a mark is recognised by its process's number and start, if those are certainly of this machine, and only once
  it has lost its parent: a command of a living runtime has one.
- Only whole process groups are killed, never this process's own. A process that cannot be killed is reported.
- Without /proc (not on Linux) no process can be found, and nothing is done.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence

from ...actors.records.task import AttemptRecord
from ...actors.spec.digits import whole
from ..calling import ProcessInfo
from ..processes.identity import JOURNAL_VARIABLE, Origin
from ..processes.os_processes import (
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
"""The value of the variable for the asking entity, if no entity asked."""
_LONGEST = 2.0  # seconds to wait for the killed processes to end
_SLACK = 60.0  # seconds by which claim times and the boot time may be off

Found = tuple[ProcessInfo, str | None]
"""A process, and the variable that identifies it; None: its number does."""


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
    """Kill the processes that still run for a killed runtime's work, and its worker processes. Blocks.

    attempts, hooks, asking: attempts without an end, tokens of owed hooks, keys of entities with open conditions or
    checks. journal, copies: the journal's id, and the copies that the caller owns. by_number: whether the attempts'
    process numbers are of this machine. stays: called for each process that could not be killed. Returns how many
    process groups were killed.
    """
    tokens = {attempt.key for attempt in attempts} | set(hooks)
    found = {info.pgid: (info, mark) for info, mark in _marked(tokens, set(asking), journal, copies)}
    if by_number:
        for info in _known(attempts):
            found.setdefault(info.pgid, (info, None))
    found.pop(os.getpgrp(), None)  # a command of the journal may have started this program
    killed = [info for info, mark in found.values() if _kill(info, mark)]
    wait_for_ends([info.pid for info in killed], _LONGEST)
    for info in killed:
        if is_running(info.pid, info.started):
            stays(info)
    return len(killed)


def _kill(info: ProcessInfo, mark: str | None) -> bool:
    return kill_known(info) if mark is None else kill_leftover(info, wait=0, mark=mark)


def _marked(tokens: set[int], asking: set[int], journal: str, copies: Collection[str]) -> Iterator[Found]:
    """Yield processes whose work will run again, and the journal's workers, with the identifying variable."""
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
    """Return the variable that identifies a process whose work will run again; None if it will not."""
    worker, asked_by, token = variables.get(WORKER), variables.get(ASKED_BY, ""), variables.get(TOKEN, "")
    if worker is not None:
        return f"{WORKER}={worker}"
    if asked_by:
        owed = origin.process.is_gone if asked_by == UNASKED else whole(asked_by) in asking
        return f"{ASKED_BY}={asked_by}" if owed else None
    return f"{TOKEN}={token}" if whole(token) in tokens else None


def _known(attempts: Sequence[AttemptRecord]) -> Iterator[ProcessInfo]:
    """Yield running processes of attempts by their journaled numbers: each leads its group."""
    booted = booted_at()
    for attempt in attempts:
        pid, started = attempt.pid, attempt.process_started
        if not pid or not started or not booted or attempt.claimed_at < booted - _SLACK:
            continue
        if is_running(pid, started) and is_orphan(pid) and JOURNAL_VARIABLE not in environment_of(pid):
            yield ProcessInfo(attempt.key, pid, pid, started)
