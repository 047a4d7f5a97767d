"""Slots that bodies lend while they wait for something outside of them: a child job, a time, a message,
a decision."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ...actors.messages.commands import Lend, Regain, Reply
from ...actors.messages.errors import FlowAsleep

if TYPE_CHECKING:
    from ...actors.records.task import DurableWait
    from ..host import KernelHost


class LentSlots:
    """Lends the slot of a body while it waits for at least one thing, and gives it back when it waits for none."""

    def __init__(self, host: KernelHost) -> None:
        self._host = host
        self._waits: dict[int, int] = {}  # by token: how many things a body waits for

    async def while_waiting(
        self, token: int, wait: Callable[[], Awaitable[Any]], durable: DurableWait | None = None
    ) -> None:
        """Await `wait()` without the slot of the attempt under `token`; then wait until the attempt has one again.

        durable: what the body waits for, if it does nothing else.
        """
        self._waits[token] = self._waits.get(token, 0) + 1
        if self._waits[token] == 1:
            self._host.tell(Lend(token, durable))
        try:
            await wait()
        except FlowAsleep:  # the body is dropped: its slot stays lent
            self._over(token)
            raise
        except BaseException:
            if self._over(token) and not self._host.kernel.draining:  # a drain interrupts no wait
                self._host.tell(Regain(token, Reply(unheard)))
            raise
        if self._over(token):
            await self._host.ask(lambda reply: Regain(token, reply))

    def waits(self, token: int) -> int:
        """For how many things a body waits."""
        return self._waits.get(token, 0)

    @property
    def waiting(self) -> int:
        """How many bodies wait in memory."""
        return len(self._waits)

    def _over(self, token: int) -> bool:
        """Count one wait less. Returns True if the body waits for nothing any more."""
        left = self._waits.pop(token) - 1
        if left:
            self._waits[token] = left
        return not left


def unheard(value: Any, error: Exception | None) -> None:
    """Drop the reply: the body has gone on."""
