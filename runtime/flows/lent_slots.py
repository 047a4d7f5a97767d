"""Slots that bodies lend while they wait for something outside of them: a child job, a time, a message, a decision.

Rules
- A body lends its slot while it waits for at least one thing, and asks for it when it waits for nothing any more. If a
  wait begins before the body has its slot, the slot stays lent, and the branch that waits for it goes on without one.
- A body that gives up a wait goes on at once: the end of a cancel scope is not delayed. Its next step waits for the
  slot (`slot`). A body that was told to stop does not wait for it, since it has little time to clean up.
- The record of the task names what the body waits for (`TaskRecord.durable_wait`) only while the body does nothing
  else. The field is cleared as soon as a step runs or a second wait begins beside the wait. It is set again when the
  body has only waited for `QUIET` seconds: a branch of the body often takes one step after another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
from anyio.lowlevel import checkpoint

from ...actors.messages.commands import Lend, Regain, Reply
from ...actors.messages.errors import FlowAsleep
from ...actors.records.task import DurableWait

if TYPE_CHECKING:
    from ..dispatch.timers import Timer
    from ..host import KernelHost

TURNS = 3
"""Turns of the loop in which the cancellation of a body that was told to stop is raised."""
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
        self._requests: dict[int, anyio.Event] = {}  # by token: bodies that have asked for their slots
        self._asking: Counter[int] = Counter()  # by token: branches that go on when the body has its slot

    async def while_waiting(
        self, token: int, wait: Callable[[], Awaitable[Any]], durable: DurableWait | None = None
    ) -> None:
        """Await `wait()` without the slot of the attempt under `token`; then wait until the attempt has one again.

        If `wait()` raises, the body goes on at once.

        durable: what the body waits for; None if it may do something that is not known here meanwhile.
        """
        waits = self._waits.get(token)
        if waits is None:
            told = None if self._runs(token) or self.asks(token) else durable
            waits = self._waits[token] = _BodyWaits([durable], told)
            self._requests.pop(token, None)  # an earlier request is answered with this
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
            if self._over(token, durable):
                self._give_up(token, waits)
            raise
        if self._over(token, durable):
            self._request(token)
            try:
                await self.slot(token)
            except BaseException:
                if token in self._requests:
                    self._give_up(token, waits)
                raise

    def _give_up(self, token: int, waits: _BodyWaits) -> None:
        """The body goes on before it has its slot."""
        if self._host.kernel.draining:
            return  # a drain interrupts no wait
        if waits.told is not None:
            self._host.tell(Lend(token))  # whatever the body does before it has its slot: a kill then is a loss
            self._request(token)
        elif token not in self._requests:
            self._request(token)

    def _request(self, token: int) -> None:
        event = self._requests[token] = anyio.Event()
        self._host.tell(Regain(token, Reply(partial(self._answered, token, event))))

    def _answered(self, token: int, event: anyio.Event, _: Any, __: Exception | None) -> None:
        """The body has its slot, or goes on without one: its worker takes no tasks, or the body waits again."""
        event.set()
        if self._requests.get(token) is event:
            del self._requests[token]

    async def slot(self, token: int) -> None:
        """Wait until a body that waits for nothing any more has its slot again."""
        if not self.lacks(token):
            return
        self._asking[token] += 1
        try:
            while self.lacks(token):
                await self._requests[token].wait()
            if self._told_to_stop(token):
                for _ in range(TURNS):
                    await checkpoint()  # here the cancellation is raised, unless the body is shielded
        finally:
            self._asking[token] -= 1
            if not self._asking[token]:
                del self._asking[token]

    def lacks(self, token: int) -> bool:
        """Whether a body has asked for its slot, and its next step has to wait for it. Any thread may call it."""
        return token in self._requests and not self._told_to_stop(token)

    def _told_to_stop(self, token: int) -> bool:
        """Whether the attempt was told to stop, or has ended."""
        call = self._host.kernel.calls.get(token)
        return call is None or call.told is not None

    def leave(self, token: int) -> None:
        """Wait no longer for the slot of an attempt that was told to stop, or has ended."""
        if (event := self._requests.pop(token, None)) is not None:
            event.set()

    def waits(self, token: int) -> int:
        """For how many things a body waits."""
        waits = self._waits.get(token)
        return 0 if waits is None else len(waits.things)

    def asks(self, token: int) -> bool:
        """Whether a branch of a body goes on as soon as the body has its slot."""
        return token in self._asking

    @property
    def living(self) -> bool:
        """Whether there is anything to forget."""
        return bool(self._requests)

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
