"""Draining a runtime, and archiving ended jobs.

A draining runtime claims no more tasks. Running calls may end within a deadline; then they are stopped, and those that
do not end within their grace are abandoned, as by a cancel. If other nodes live, each job is handed over to them as
soon as no call of the job runs here. After that, ended jobs whose settings ask for it are moved out of the journal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import anyio

from ...actors.messages.inputs import Drain
from ...actors.tasks.attempts import STOP_MARGIN
from ...machines.keywords import number_of
from ..dispatch.threads import at_once
from ..execution.calls import CHECK_GRACE

if TYPE_CHECKING:
    from ...actors.kernel.transaction import CallOrder
    from ...actors.tasks.task import TaskActor
    from ..host import KernelHost


LOOK = 0.5
"""Seconds between two checks whether the journal can be written."""
STALLED = 3
"""The number of checks in a row without new durable entries after which the journal counts as not answering."""
LONGEST_GRACE = 10.0
"""The longest grace in seconds of a stopped call when a runtime closes, whatever its own `kill_grace`."""
LONGEST_STOP = LONGEST_GRACE + 2 * STOP_MARGIN
"""Seconds after which the drain no longer waits for stopped calls."""
HandOverJobs: TypeAlias = Callable[[], Awaitable[bool]]
"""Hands over jobs to other nodes if they may go. Returns whether there was one."""


async def quiesce(host: KernelHost, deadline: float, hand_over: HandOverJobs) -> bool:
    """Let running calls end within `deadline` seconds, and then stop them. A drain has begun before.

    Returns whether the journal has accepted the stop.
    """
    over = anyio.current_time() + deadline
    answers = await durable(host)
    if not answers:
        hand_over = _nothing  # the other nodes could not learn of it
    with anyio.CancelScope(deadline=over):
        await _until_nothing_is_handed_over(hand_over)
        while host.kernel.calls and not _in_vain(host):
            await host.moved()
            await _until_nothing_is_handed_over(hand_over)
    host.tell(Drain(stop=True))
    return await durable(host, STALLED if answers else 1)


async def durable(host: KernelHost, looks: int = STALLED) -> bool:
    """Wait until every input so far has run, and its effects are durable.

    Returns False if the journal cannot be written, or after so many checks in a row without new durable entries.
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


async def idle(host: KernelHost, hand_over: HandOverJobs, stops: dict[int, float]) -> None:
    """Wait until no call runs, except calls that their engine cannot end.

    A stopped call that does not end within its grace is abandoned. stops: the time of this for each call, by its token;
    empty at first.
    """
    while host.kernel.calls:
        due = _abandon_late(host, stops)
        if due is None:
            return
        with anyio.CancelScope(deadline=due):  # `move_on_at` is newer than the oldest anyio that is allowed
            while host.kernel.calls:
                await host.moved()
                await _until_nothing_is_handed_over(hand_over)


def _abandon_late(host: KernelHost, stops: dict[int, float]) -> float | None:
    """Abandon the calls whose grace is over. Returns the time of the next check; None if no call is left."""
    now = anyio.current_time()
    due: float | None = None
    for token, call in list(host.kernel.calls.items()):
        if call.told is None:  # the stop is not durable yet
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


def _grace(host: KernelHost, call: CallOrder) -> float:
    """The grace of a stopped call in seconds."""
    task = host.kernel.entities.get(call.key) if call.kind in {"body", "step"} else None
    return CHECK_GRACE if task is None else min(cast("TaskActor", task).limits.kill_grace, LONGEST_GRACE)


async def _until_nothing_is_handed_over(hand_over: HandOverJobs) -> None:
    """Hand over jobs until none may go; no wake-up would report a job that became free during a hand-over."""
    while await hand_over():
        pass


async def _nothing() -> bool:
    return False


async def archive_ended(host: KernelHost, journal: Path, limit: float) -> None:
    """Move ended jobs whose settings ask for it out of the journal, as many as possible in `limit` seconds.

    At this time no command is accepted any more, and this runtime still owns the file.
    """
    from ..journal.archive import move_all  # noqa: PLC0415 - most jobs stay

    until = host.monotonic() + limit
    living = frozenset(host.jobs)

    moving = partial(move_all, journal, living=living, now=host.now(), may_go_on=lambda: host.monotonic() < until)
    left = await at_once(moving)
    if left.reason is not None:
        jobs = number_of(len(left.jobs), "ended job")
        text = f"{jobs} could not be archived, and will be the next time: {left.reason}"
        host.notice("not_archived", "warning", text, jobs=left.jobs, reason=left.reason)


def _in_vain(host: KernelHost) -> bool:
    """Whether the only running calls are bodies that wait for child jobs, whose tasks no longer start, or for what a
    restart does not end: a time, a message, a decision.

    A body that must not run again goes on while its step waits for a tool or a worker: the stop would fail it. A task
    that waits for its function does not run.
    """
    kernel = host.kernel
    for token, call in kernel.calls.items():
        if token in host.caller.kept:
            continue
        waits_for_step = token in kernel.uses or token in kernel.step_calls
        if waits_for_step and cast("TaskActor", kernel.entities[call.key]).record.on_loss != "rerun":
            return False
        if host.caller.only_waits(token):
            continue
        lent = kernel.lent.get(token)
        if lent is None or lent.reply is not None or lent.goes_on:
            return False
        children = cast("TaskActor", kernel.entities[call.key]).stream.job.children.values()
        if not any(child.record.parent_task == call.key for child in children):
            return False  # the child has just ended: the body goes on next
    return True
