"""Flows that sleep: the coroutine of a body that waits for a long time is dropped, and made again by replay.

Rules
- The attempt goes on: nothing ends, fails or is lost, and its slot is lent. Only its body is not in memory.
- Only an async body of the runtime's own loop is dropped, which may run again (`on_loss`), and only while the body
  itself waits: none of its steps runs, and it has no task group and no time limit of anyio or trio around the wait.
- All waits of a flow are alike: for a time (a sleep, the next try of a step), for an event (a message, an approval, a
  child job), or for both. A body that waits for a time only is dropped at once, if that time is far. It cannot be known
  when an event comes: a body that waits for an event is dropped when the wait has lasted long. A body that cannot be
  dropped then, since it does something else besides, is looked at again after the same time.
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
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ...actors.messages.commands import Lend, Regain, Reply
from ...actors.messages.errors import FlowAsleep
from ...actors.messages.inputs import CallEnded
from .waits import Wait

if TYPE_CHECKING:
    from ...actors.records.task import DurableWait
    from ..dispatch.timers import Timer
    from ..engines.flow import Flow
    from ..host import KernelHost

LONG = 600.0
"""Seconds: a flow that waits longer is put to sleep."""
MOST_AWAKE = 10_000
"""While so many flows wait in memory, others that begin to wait are put to sleep, if they wait longer than `SHORT`."""
SHORT = 30.0
"""Seconds for which a body is never dropped."""
AT_ONCE = 256
"""Flows that are woken by one timer: the loop turns before the next ones."""


class TimedSleep(NamedTuple):
    """A flow that sleeps until a time, and waits for no event. It is its own place in the heap of these times, and has
    no timer: there may be 100,000.

    due: in seconds of the monotonic clock. until: the same time in UTC epoch seconds. began_empty: as in `Wait`.
    """

    due: float
    token: int
    until: float
    began_empty: bool


class SleepingFlows:
    """The sleeping flows of one runtime, by the tokens of their attempts. Only the loop's thread uses it.

    Of each flow only its wait is kept. What holds for few flows at a time is in sets of tokens. One timer is armed for
    the first of the times at which a flow goes on.
    """

    def __init__(self, host: KernelHost) -> None:
        self._host = host
        self._flows: dict[int, Wait | TimedSleep] = {}
        self._times: list[TimedSleep] = []  # a heap; it may hold flows that sleep no more, but not as the first
        self._timer: Timer | None = None
        self._timer_due = 0.0
        self._dropping: set[int] = set()  # whose bodies have not ended yet
        self._stopped: set[int] = set()  # whose attempts are to end: their bodies are made again, and cancelled there
        self._beginning: set[int] = set()  # whose bodies are being made again: their histories are being read
        self._woken: dict[int, Wait] = {}  # whose bodies have begun again, until they take a step
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
        wait.tell, wait.began_empty = self._tell_over, flow.began_empty
        return self._drop(flow, wait, durable)

    def drop_until(self, flow: Flow, token: int, due: float, durable: DurableWait) -> FlowAsleep:
        """Put a flow to sleep until a time, `due` by the monotonic clock. The rest is as for `drop`."""
        sleep = TimedSleep(due, token, durable.until or 0.0, flow.began_empty)
        heappush(self._times, sleep)
        self._arm()
        return self._drop(flow, sleep, durable)

    def _drop(self, flow: Flow, wait: Wait | TimedSleep, durable: DurableWait | None) -> FlowAsleep:
        token = wait.token
        self._flows[token] = wait
        self._dropping.add(token)
        flow.fall_asleep()
        if durable is not None:
            self._host.tell(Lend(token, durable))
        return FlowAsleep("this flow is put to sleep: its body runs again, from its first line, when it goes on")

    def body_ended(self, token: int) -> Literal["asleep", "stopped"] | None:
        """Note the end of a body. "asleep": it was dropped; "stopped": then it was also stopped; None: neither."""
        wait = self._flows.get(token)
        if wait is None:
            return None
        if token in self._stopped:
            self.forget(token)
            return "stopped"
        self._dropping.discard(token)
        if isinstance(wait, Wait) and wait.over:
            self._over(token)
        return "asleep"

    def _arm(self) -> None:
        """Have a timer for the first of the times, if there is one."""
        times, timers = self._times, self._host.dispatcher.timers
        due = times[0].due if times else None
        if self._timer is not None:
            if due == self._timer_due:
                return
            timers.cancel(self._timer)
            self._timer = None
        if due is not None:
            at = max(due, self._host.monotonic())  # what is due already comes in the next round of timers
            self._timer, self._timer_due = timers.arm(at, self._time_has_come), due

    def _time_has_come(self) -> None:
        """Wake the flows whose times have come, some at a time: the next ones follow at once."""
        self._timer, now, left = None, self._host.monotonic(), AT_ONCE
        try:
            while left and self._times and self._times[0].due <= now:
                sleep, left = heappop(self._times), left - 1
                token = sleep.token
                if self._flows.get(token) is sleep:
                    self._flows[token] = self._wait_of(sleep, over=True)
                    self._over(token)
        finally:
            self._tidy()

    def _wait_of(self, sleep: TimedSleep, *, over: bool) -> Wait:
        """The wait of a flow that sleeps no more. over: since its time has come."""
        return Wait(
            sleep.token, sleep.until, self._tell_over, over=over, in_time=over, began_empty=sleep.began_empty
        )  # fmt: skip

    def _tidy(self) -> None:
        """Drop the first times of flows that sleep no more; all of them when they are the most."""
        times, flows = self._times, self._flows
        while times and flows.get(times[0].token) is not times[0]:
            heappop(times)
        if len(times) > 2 * len(flows) + AT_ONCE:
            times[:] = [sleep for sleep in times if flows.get(sleep.token) is sleep]
            heapify(times)
        self._arm()

    def _over(self, token: int) -> None:
        """The wait of a flow is over: ask for a slot, once its body has ended."""
        if token in self._flows and token not in self._dropping:
            self._host.tell(Regain(token, Reply(partial(self._has_slot, token))))

    def _has_slot(self, token: int, _: Any, __: Exception | None) -> None:
        if token in self._flows:
            self._begin(token)

    def _begin(self, token: int) -> None:
        if token not in self._beginning:  # a stop may come while its history is read
            self._beginning.add(token)
            self.begin_again(token)

    def stop(self, token: int, *, force: bool) -> bool:
        """Stop an attempt whose body was dropped. False if there is none.

        A body that is just being dropped is stopped by its engine, too.
        """
        if token not in self._flows:
            return False
        if token in self._dropping:
            self._stopped.add(token)
            return False
        if force or self._host.kernel.draining:
            self.forget(token)
            self._host.tell(CallEnded(token, "cancelled", None, "cancelled", "cancelled while it slept"))
        else:
            self._stopped.add(token)
            self._begin(token)
        return True

    def wake(self, token: int) -> bool:
        """Note that the body begins again. False if its attempt has ended meanwhile."""
        wait = self._flows.pop(token, None)
        if wait is None:
            return False
        if isinstance(wait, TimedSleep):
            wait = self._wait_of(wait, over=False)
            self._tidy()
        self._beginning.discard(token)
        self._woken[token] = wait
        return True

    def take_woken(self, token: int) -> tuple[Wait, bool] | None:
        """The wait for which a body has slept that has begun again, and whether the body is to be cancelled there.

        None if it has not slept, or was asked for already.
        """
        wait = self._woken.pop(token, None)
        if wait is None:
            return None
        stopped = token in self._stopped
        self._stopped.discard(token)
        return wait, stopped

    @property
    def living(self) -> bool:
        """Whether a body has begun again, and has not taken a step."""
        return bool(self._woken)

    def forget(self, token: int) -> None:
        """Remove the data about an attempt that has ended."""
        for wait in (self._flows.pop(token, None), self._woken.pop(token, None)):
            if isinstance(wait, TimedSleep):
                self._tidy()
            elif wait is not None:
                wait.end(self._host.dispatcher.timers)
        for some in (self._dropping, self._stopped, self._beginning):
            some.discard(token)
