"""Draining: nothing is claimed any more, what runs may end within a deadline, the rest is stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import anyio

from ..actors.messages import Drain

if TYPE_CHECKING:
    from ..actors.task import TaskActor
    from .host import Host


async def quiesce(host: Host, deadline: float) -> None:
    """Let what runs end within `deadline` seconds, and have the rest stopped; a drain has begun before."""
    await host.barrier()
    if deadline > 0:
        with anyio.move_on_after(deadline):
            while host.kernel.calls and not _in_vain(host):
                await host.moved()
    host.tell(Drain(stop=True))
    await host.barrier()


async def idle(host: Host) -> None:
    """Wait until no call runs."""
    while host.kernel.calls:
        await host.moved()


def _in_vain(host: Host) -> bool:
    """Whether nothing runs but bodies that wait for child jobs, of which nothing is started any more."""
    kernel = host.kernel
    for token, call in kernel.calls.items():
        lent = kernel.lent.get(token)
        if lent is None or lent.reply is not None or lent.goes_on:
            return False
        children = cast("TaskActor", kernel.entities[call.key]).stream.job.children.values()
        if not any(child.record.parent_task == call.key for child in children):
            return False  # its child has just ended: it is about to go on
    return True
