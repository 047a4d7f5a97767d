"""Slots that bodies lend while they wait for something outside of them: a child job, a time, a message, a decision.

Rules
- A body lends its slot while it waits for at least one thing. If a wait begins before the body got its slot back after
  another one, the slot stays lent, and the branch that has asked for it goes on without one.
- The record of the task names what the body waits for (`TaskRecord.durable_wait`) only while the body does nothing
  else. The field is cleared as soon as a step runs or a second wait begins beside the wait. It is set again when the
  body has only waited for `QUIET` seconds: a branch of the body often takes one step after another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from ...actors.messages.commands import Lend, Regain, Reply
from ...actors.messages.errors import FlowAsleep
from ...actors.records.task import DurableWait

if TYPE_CHECKING:
    from ..dispatch.timers import Timer
    from ..host import KernelHost

QUIET = 30.0
"""Seconds for which a body has to do nothing but wait, after it did something else, until its record says so."""

AT_ONCE = DurableWait()
"""The wait of a body that only waits, but has to run again at once after a kill: nobody else would notice the end of a
time limit that the body has set, or ask for its tool. Such a wait counts as over at a start.
"""


class _BodyWaits(msgspec.Struct, eq=False):
    """The things for which one body waits. None: a wait beside which the body may do something that is not known here.

    told: the wait that the record of its task names. timer: armed until the body has only waited for `QUIET` seconds.
    """

    things: list[DurableWait | None]
    told: DurableWait | None = None
    timer: Timer | None = None


class LentSlots:
    """Lends the slot of a body while it waits for at least one thing, and gives it back when it waits for none.

    runs: whether a function of a step of the body under a token runs.
    """

    def __init__(self, host: KernelHost, runs: Callable[[int], bool]) -> None:
        self._host = host
        self._runs = runs
        self._waits: dict[int, _BodyWaits] = {}  # by token
        self._regaining: Counter[int] = Counter()  # by token: branches whose waits are over, and that ask for the slot

    async def while_waiting(
        self, token: int, wait: Callable[[], Awaitable[Any]], durable: DurableWait | None = None
    ) -> None:
        """Await `wait()` without the slot of the attempt under `token`; then wait until the attempt has one again.

        durable: what the body waits for; None if it may do something that is not known here meanwhile.
        """
        waits = self._waits.get(token)
        if waits is None:
            told = None if self._runs(token) or self.asks(token) else durable
            waits = self._waits[token] = _BodyWaits([durable], told)
            self._host.tell(Lend(token, told))
        else:
            waits.things.append(durable)
        self.look(token)
        try:
            await wait()
        except FlowAsleep:  # the body is dropped: its slot stays lent
            self._over(token, durable)
            raise
        except BaseException:
            if self._over(token, durable) and not self._host.kernel.draining:  # a drain interrupts no wait
                self._host.tell(Regain(token, Reply(unheard), goes_on=True))
            raise
        if self._over(token, durable):
            self._regaining[token] += 1
            try:
                await self._host.ask(lambda reply: Regain(token, reply))
            except BaseException:
                if token not in self._waits and not self._host.kernel.draining:  # cancelled: the body goes on at once
                    self._host.tell(Regain(token, Reply(unheard), goes_on=True))
                raise
            finally:
                self._regaining[token] -= 1
                if not self._regaining[token]:
                    del self._regaining[token]

    def waits(self, token: int) -> int:
        """For how many things a body waits."""
        waits = self._waits.get(token)
        return 0 if waits is None else len(waits.things)

    def asks(self, token: int) -> bool:
        """Whether a branch of a body whose wait is over asks for the slot: it goes on soon."""
        return token in self._regaining

    @property
    def waiting(self) -> int:
        """How many bodies wait in memory."""
        return len(self._waits)

    def look(self, token: int) -> None:
        """Update the record: a step of the body has begun or ended, or a wait beside another."""
        waits = self._waits.get(token)
        if waits is None:
            return
        if self._sole(token, waits) is None:
            self._unarm(waits)
            if waits.told is not None:
                waits.told = None
                self._host.tell(Lend(token))
        elif waits.told is None and waits.timer is None:
            waits.timer = self._host.dispatcher.timers.arm(self._host.monotonic() + QUIET, self._was_quiet, token)

    def _was_quiet(self, token: int) -> None:
        waits = self._waits[token]
        waits.timer, waits.told = None, self._sole(token, waits)
        self._host.tell(Lend(token, waits.told))

    def _sole(self, token: int, waits: _BodyWaits) -> DurableWait | None:
        """What the body waits for, if it does nothing else."""
        return None if len(waits.things) > 1 or self._runs(token) else waits.things[0]

    def _over(self, token: int, durable: DurableWait | None) -> bool:
        """Note that a wait is over. Returns True if the body waits for nothing any more."""
        waits = self._waits[token]
        waits.things.remove(durable)
        if waits.things:
            self.look(token)
            return False
        self._unarm(waits)
        del self._waits[token]
        return True

    def _unarm(self, waits: _BodyWaits) -> None:
        if waits.timer is not None:
            self._host.dispatcher.timers.cancel(waits.timer)
            waits.timer = None


def unheard(value: Any, error: Exception | None) -> None:
    """Drop the reply: the body has gone on."""
