"""Draining: nothing is claimed any more, what runs may end within a deadline, the rest is stopped, and what does not go
within its grace is abandoned, as a cancel does; where other nodes live, they get each job as soon as nothing of it runs
here. Then archiving: what has ended and says so is moved out of the journal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import anyio

from ...actors.messages.inputs import Drain
from ...actors.tasks.attempts import STOP_MARGIN
from ..dispatch.threads import at_once
from ..execution.calls import CHECK_GRACE

if TYPE_CHECKING:
    from ...actors.kernel.transaction import Call
    from ...actors.tasks.task import TaskActor
    from ..host import Host


LOOK = 0.5
"""Seconds between two looks whether the journal can be written."""
STALLED = 3
"""After so many looks in a row that found nothing new to be durable, the journal counts as one that does not answer."""
LONGEST_GRACE = 10.0
"""Seconds that what was stopped has at the longest when a runtime is left, whatever its own `kill_grace`."""
LONGEST_STOP = LONGEST_GRACE + 2 * STOP_MARGIN
"""Seconds after which nobody waits any more for what was stopped."""
LetGo: TypeAlias = Callable[[], Awaitable[bool]]
"""Hands over to other nodes what may go; says whether there was something."""


async def quiesce(host: Host, deadline: float, let_go: LetGo) -> bool:
    """Let what runs end within `deadline` seconds, and have the rest stopped; a drain has begun before. Returns whether
    the journal has taken that.
    """
    over = anyio.current_time() + deadline
    answers = await durable(host)
    if not answers:
        let_go = _nothing  # the others could not be told of it
    with anyio.CancelScope(deadline=over):
        await _until_nothing_goes(let_go)
        while host.kernel.calls and not _in_vain(host):
            await host.moved()
            await _until_nothing_goes(let_go)
    host.tell(Drain(stop=True))
    return await durable(host, STALLED if answers else 1)


async def durable(host: Host, looks: int = STALLED) -> bool:
    """Wait until every input given so far has been run, and what it did is durable. False where the journal cannot be
    written, or so many looks in a row have found nothing new: then nobody waits for what may never come.
    """
    stalled, before = 0, host.journal.durable
    while True:
        with anyio.move_on_after(LOOK):
            await host.barrier()
            return True
        now = host.journal.durable
        stalled, before = stalled + 1 if now == before else 0, now
        if not host.journal.health.ok or stalled == looks:
            return False


async def idle(host: Host, let_go: LetGo, stops: dict[int, float]) -> None:
    """Wait until no call runs, or only such as their engine cannot end. What was told to stop and does not go within
    its grace is abandoned. `stops`: when each is, or was, by its token; empty at first.
    """
    while host.kernel.calls:
        due = _abandon_late(host, stops)
        if due is None:
            return
        with anyio.CancelScope(deadline=due):  # `move_on_at` is newer than the oldest anyio that is allowed
            while host.kernel.calls:
                await host.moved()
                await _until_nothing_goes(let_go)


def _abandon_late(host: Host, stops: dict[int, float]) -> float | None:
    """Abandon whatever had its grace. Returns when to look again; None if nothing is left to wait for."""
    now = anyio.current_time()
    due: float | None = None
    for token, call in list(host.kernel.calls.items()):
        if not call.told:  # that it is to stop is not durable yet
            at = now + LOOK
        elif token not in stops:
            at = stops[token] = now + _grace(host, call) + STOP_MARGIN
        else:
            at = stops[token]
            if at <= now:
                if at + STOP_MARGIN <= now:
                    continue
                host.caller.stop(token, force=True)
                at += STOP_MARGIN
        due = at if due is None else min(due, at)
    return due


def _grace(host: Host, call: Call) -> float:
    """Seconds that a call has to go once it was told to."""
    task = host.kernel.entities.get(call.key) if call.kind == "body" else None
    return CHECK_GRACE if task is None else min(cast("TaskActor", task).limits.kill_grace, LONGEST_GRACE)


async def _until_nothing_goes(let_go: LetGo) -> None:
    """Also what has become free while something was handed over: nobody would wake us for that."""
    while await let_go():
        pass


async def _nothing() -> bool:
    return False


async def hooks_over(host: Host) -> None:
    """Wait until no hook, alert or callback runs: each has its limit."""
    while any(call.kind == "hook" for call in host.kernel.calls.values()):
        await host.moved()


async def archive_ended(host: Host, journal: Path, limit: float) -> None:
    """Move out of the journal what has ended and says so, as much as can be in `limit` seconds: nothing is taken any
    more, and the file is still ours.
    """
    from ..journal.archive import move_all  # noqa: PLC0415 - most jobs stay

    until = host.monotonic() + limit
    living = frozenset(host.kernel.jobs)

    moving = partial(move_all, journal, living=living, now=host.now(), may_go_on=lambda: host.monotonic() < until)
    left = await at_once(moving)
    if left.reason is not None:
        text = f"{len(left.jobs)} ended jobs stay in the journal, to be archived the next time: {left.reason}"
        host.notice("not_archived", "warning", text, jobs=left.jobs, reason=left.reason)


def _in_vain(host: Host) -> bool:
    """Whether nothing runs but bodies that wait for child jobs, of which nothing is started any more.

    What waits for a function does not run.
    """
    kernel = host.kernel
    for token, call in kernel.calls.items():
        if token in host.caller.kept:
            continue
        lent = kernel.lent.get(token)
        if lent is None or lent.reply is not None or lent.goes_on:
            return False
        children = cast("TaskActor", kernel.entities[call.key]).stream.job.children.values()
        if not any(child.record.parent_task == call.key for child in children):
            return False  # its child has just ended: it is about to go on
    return True
