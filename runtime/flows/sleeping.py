"""Flows that sleep: the coroutine of a body that waits for a long time is dropped, and made again by replay.

Rules
- The attempt goes on: nothing ends, fails or is lost, and its slot is lent. Only its body is not in memory.
- Only an async body of the runtime's own loop is dropped, which may run again (`on_loss`), and only while the body
  itself waits: none of its steps runs, and it has no task group and no time limit of anyio or trio around the wait.
- All waits of a flow are alike: for a time (a sleep, the next try of a step), for an event (a message, an approval, a
  child job), or for both. A body that waits for a time only is dropped at once, if that time is far. It cannot be known
  when an event comes: a body that waits for an event is dropped when the wait has lasted long.
- The wait goes on without the body. When it is over, the body runs again, and comes to the same wait: there it finds
  the message, the decision or the child's end by itself. So no message is received while the body is not in memory, and
  a crash at any time loses nothing.
- `FlowAsleep` is raised where the body waits. Its `finally` blocks and context managers run; a step, child job or
  approval that they ask for raises `FlowAsleep` again, and what the body returns or raises is dropped.
- A drain or a forced cancel ends a sleeping attempt at once. For any other stop the body is made again and cancelled
  where it sleeps, so that it can clean up as any other body.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ...actors.messages.commands import Lend, Regain, Reply
from ...actors.messages.errors import FlowAsleep
from ...actors.messages.inputs import CallEnded
from .waits import Wait

if TYPE_CHECKING:
    from ...actors.records.task import DurableWait
    from ..engines.flow import Flow
    from ..host import KernelHost

LONG = 600.0
"""Seconds: a flow that waits longer is put to sleep."""
MOST_AWAKE = 10_000
"""While so many flows wait in memory, others that begin to wait are put to sleep, if they wait longer than `SHORT`."""
SHORT = 30.0
"""Seconds for which a body is never dropped."""


class SleepingFlow(msgspec.Struct, eq=False):
    """A flow whose body was dropped, or is being dropped."""

    wait: Wait
    began_empty: bool
    dropped: bool = False  # its body has ended
    stopped: bool = False  # its attempt is to end: the body is made again, and is cancelled where it sleeps
    begun: bool = False  # its body is being made again


class SleepingFlows:
    """The sleeping flows of one runtime, by the tokens of their attempts. Only the loop's thread uses it."""

    def __init__(self, host: KernelHost) -> None:
        self._host = host
        self._flows: dict[int, SleepingFlow] = {}
        self.woken: dict[int, SleepingFlow] = {}  # whose bodies have begun again, until they take a step
        self.begin_again: Callable[[int], object] = lambda _: None  # `CallRunner.begin_again`
        self._tell_over = self._over  # bound once: each sleeping flow holds it

    def __contains__(self, token: int) -> bool:
        return token in self._flows

    def __len__(self) -> int:
        return len(self._flows)

    def drop(self, flow: Flow, wait: Wait, durable: DurableWait | None = None) -> FlowAsleep:
        """Put a flow to sleep until its wait is over, and return the error that ends the body. durable: what the body
        waits for, as its record names it.
        """
        wait.tell = self._tell_over
        self._flows[wait.token] = SleepingFlow(wait, flow.began_empty)
        flow.fall_asleep()
        if durable is not None:
            self._host.tell(Lend(wait.token, durable))
        return FlowAsleep("this flow is put to sleep: its body runs again, from its first line, when it goes on")

    def body_ended(self, token: int) -> Literal["asleep", "stopped"] | None:
        """Note the end of a body. "asleep": it was dropped; "stopped": then it was also stopped; None: neither."""
        sleeping = self._flows.get(token)
        if sleeping is None:
            return None
        if sleeping.stopped:
            self.forget(token)
            return "stopped"
        sleeping.dropped = True
        if sleeping.wait.over:
            self._over(token)
        return "asleep"

    def _over(self, token: int) -> None:
        """The wait of a flow is over: ask for a slot, once its body has ended."""
        if (sleeping := self._flows.get(token)) is not None and sleeping.dropped:
            self._host.tell(Regain(token, Reply(partial(self._has_slot, token))))

    def _has_slot(self, token: int, _: Any, __: Exception | None) -> None:
        sleeping = self._flows.get(token)
        if sleeping is not None:
            self._begin(token, sleeping)

    def _begin(self, token: int, sleeping: SleepingFlow) -> None:
        if not sleeping.begun:  # a stop may come while its history is read
            sleeping.begun = True
            self.begin_again(token)

    def stop(self, token: int, *, force: bool) -> bool:
        """Stop an attempt whose body was dropped. False if there is none.

        A body that is just being dropped is stopped by its engine, too.
        """
        sleeping = self._flows.get(token)
        if sleeping is None:
            return False
        if not sleeping.dropped:
            sleeping.stopped = True
            return False
        if force or self._host.kernel.draining:
            self.forget(token)
            self._host.tell(CallEnded(token, "cancelled", None, "cancelled", "cancelled while it slept"))
        else:
            sleeping.stopped = True
            self._begin(token, sleeping)
        return True

    def wake(self, token: int) -> bool:
        """Note that the body begins again. False if its attempt has ended meanwhile."""
        sleeping = self._flows.pop(token, None)
        if sleeping is None:
            return False
        self.woken[token] = sleeping
        return True

    def forget(self, token: int) -> None:
        """Remove the data about an attempt that has ended."""
        for book in (self._flows, self.woken):
            if (sleeping := book.pop(token, None)) is not None:
                sleeping.wait.end(self._host.dispatcher.timers)
