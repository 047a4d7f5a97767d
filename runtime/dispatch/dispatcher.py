"""The dispatcher: one task that delivers every actor its messages.

Rules
- The run queue holds each cell with mail once; runtime/dispatch/batches.py decides the order of their turns.
- The clock is read once per 64 messages: due timers fire, and after a few milliseconds the slice ends,
  `after_slice` is called, and the event loop gets its turn. Without work the task parks until a wake-up.
- Calls (of the runtime's own threads, and the steps of supervision) run before the next cell, so a call that ends an
  actor overtakes the actor's data. Calls never run inside a receive. Messages from users' threads are moved into
  mailboxes in between, a batch at a time, so that a flood of them does not block other actors.
- Urgent messages to parts of the runtime (timers, commands of people) are handled before the next cell, too.
- A plain receive runs here. A coroutine receive runs on the pool of parked runners, and its actor handles no other
  message meanwhile.
- The effects of a receive happen when it returns; if it raises, none of them happens: see runtime/dispatch/mailbox.py.
- No failure of a user's actor leaves the dispatcher. An error of a system cell, a call or a timer is a bug of the
  runtime: it goes to `on_error`, which by default raises it out of `run()`.
- `step()` and `run_until_idle()` drive the same dispatcher without an event loop; then there are no coroutine
  receives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, cast

import anyio

from ...actors.users.actor import DEFAULT_MAILBOX, DEFAULT_STOP_TIMEOUT, Actor
from ...actors.users.dead_letters import DeadLetters
from ...actors.users.ref import SYSTEM, Cell, Request, SystemRef
from ...actors.users.strategy import Restart, Supervision
from .actor_failures import ActorTrouble
from .batches import BATCH, Batches
from .clock import Clock, VirtualClock
from .runners import RunnerPool
from .supervision import Supervisor
from .waker import ACTORS, Waker, native_waiter, native_waker

if TYPE_CHECKING:
    from ...actors.users.host import Host

__all__ = ["Dispatcher"]

SLICE = 0.004
"""Seconds after which the event loop gets its turn."""

SLICE_MESSAGES = 16_384
"""The most messages of a slice, since a clock that is moved by hand never ends a slice."""

TIMERS_AT_ONCE = 1_000
"""The most timers that fire between two batches."""


class _Nowhere:
    """The host of the runtime's own cells after the close: it drops their messages.

    The garbage collector does not track cells. A cell with a reference to its dispatcher would keep the dispatcher, and
    all its objects, for ever.
    """

    current = None
    parked = False
    ready: ClassVar[deque[Any]] = deque(maxlen=0)

    def call_threadsafe(self, *_: object) -> bool:
        """Drop the call."""
        return False


_NOWHERE = cast("Host", _Nowhere())


class Dispatcher(Batches):
    """Runs actors: `run()` drives it on one event loop, `step()` without an event loop.

    `runners` is the pool for coroutine receives; by default `run()` makes its own. `supervision` is the strategy for
    actors without a parent. `on_trouble` gets every failure of an actor and its consequence; by default a line in the
    log reports them.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        runners: RunnerPool | None = None,
        supervision: Supervision | None = None,
        dead_letters: DeadLetters | None = None,
        on_trouble: Callable[[ActorTrouble], object] | None = None,
    ) -> None:
        super().__init__(clock, dead_letters)
        self.runners = runners
        self.on_trouble = on_trouble
        self.on_error = _raise
        self.after_slice: Callable[[], float | None] | None = None
        self._systems: list[SystemRef] = []
        self._lent = 0  # asks that ran in the tasks of their askers since the dispatcher last ran
        self._lend_until = 0.0
        self.lives = Supervisor(self, supervision or Supervision())

    # -- spawning --------------------------------------------------------------------------------------------------

    def spawn(
        self,
        actor: type[Actor] | Callable[[], Actor] | Actor,
        *,
        name: str | None = None,
        mailbox: int = DEFAULT_MAILBOX,
        restart: Restart | str = Restart.TRANSIENT,
        supervision: Supervision | None = None,
        stop_timeout: float = DEFAULT_STOP_TIMEOUT,
    ) -> Cell:
        """Start an actor: a class or a factory (it can be restarted), or an instance (it can only be stopped).

        `name` is unique among its siblings. At most `mailbox` messages may wait for the actor. `supervision` is its
        strategy for its own children. The actor may take `stop_timeout` seconds to end its current message, and the
        same again for `stopped`. Raises `NameTaken`, `ActorStopped` once the dispatcher is closed, TypeError if `actor`
        is not an actor or has methods with a wrong signature (`receive(self, message)`), and the errors of the class or
        factory.
        """
        return self.spawn_child(
            self.lives.root,
            actor,
            name=name,
            mailbox=mailbox,
            restart=restart,
            supervision=supervision,
            stop_timeout=stop_timeout,
        )

    def spawn_child(
        self,
        parent: Cell,
        actor: type[Actor] | Callable[[], Actor] | Actor,
        *,
        name: str | None,
        mailbox: int,
        restart: Restart | str,
        supervision: Supervision | None,
        stop_timeout: float,
    ) -> Cell:
        """`Context.spawn`."""
        return self.lives.spawn(
            parent,
            actor,
            name=name,
            mailbox=mailbox,
            restart=restart,
            supervision=supervision,
            stop_timeout=stop_timeout,
        )

    def spawn_system(self, receive: Callable[[Any], object], name: str) -> SystemRef:
        """Start a cell for a part of the runtime: unbounded, with two lanes; its errors go to `on_error`.

        `receive` returns True after much work: the clock is then read before the next message.
        """
        system = SystemRef(self, receive, name, deque(), deque(), SYSTEM)
        self._systems.append(system)
        return system

    def find(self, name: str) -> Cell | None:
        """The living actor without a parent that has this name."""
        children = self.lives.root.life.children if self.lives.root.life else None
        return children.get(name) if children else None

    async def stop_all(self) -> None:
        """Stop all users' actors, the last started first, and wait until they have ended. Needs `run()` beside it."""
        waiter = native_waiter()
        self.lives.endings.stop_family(waiter.set)
        await waiter.wait()

    def close(self) -> None:
        """Release everything: no actor runs again, asks in progress fail, and every cell loses its links."""
        if self.closed:
            return
        self.closed = True
        self.lives.close()
        for system in self._systems:
            system.receive = _ignore
            system.urgent.clear()
            system.data.clear()
            system.host, system.urgent, system.data = _NOWHERE, deque(maxlen=0), deque(maxlen=0)
        self.timers.clear()
        self.ready.clear()
        self._calls.clear()
        self._outside.told.clear()
        self.after_slice = None
        self.on_trouble = _ignore
        self.dead_letters.unwire()
        if self._waker is not None:
            self._waker.wake()

    # -- driving ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run actors until `close()`. One task of the host application does this, once."""
        if self._waker is not None:
            msg = "the dispatcher is running already; one task runs it"
            raise RuntimeError(msg)
        self._waker = waker = native_waker()
        forget = self.clock.on_advance(self._ring) if isinstance(self.clock, VirtualClock) else _ignore
        try:
            if self.runners is not None:
                await self._serve(waker)
                return
            async with anyio.create_task_group() as group:
                self.runners = RunnerPool(group)
                try:
                    await self._serve(waker)
                finally:
                    self.runners.close()
                    self.runners = None
        finally:
            self._waker = None
            forget()

    async def _serve(self, waker: Waker) -> None:
        while not self.closed:
            look_again = self._slice()
            self._lent = 0
            if self.ready or self._calls or self._outside.told:
                await waker.breathe()
                continue
            seconds = self._until_next_timer()
            if look_again is not None:
                seconds = look_again if seconds is None else min(seconds, look_again)
            if seconds is not None and seconds <= 0:
                await waker.breathe()
                continue
            self.parked = True
            try:
                await waker.park(seconds)
            finally:
                self.parked = False

    def lend(self, request: Request) -> None:
        """Run actors in the task of an asker until it has its answer, which saves two turns of the event loop.

        This stays within the limits of a slice, and runs only users' actors, so that no bug of the runtime is raised in
        the asker. The dispatcher itself runs as soon as the asker waits for anything; after 64 asks it must run.
        """
        ready = self.ready
        if self._waker is None or self.current is not None or self._lent >= BATCH or self._calls:
            return
        if self._systems and (len(ready) != 1 or ready[0] is not request.target):
            return
        now = self.clock.monotonic()
        if self._lent == 0:
            self._waker.home.check(ACTORS)  # other threads must not run actors
            self._lend_until = now + SLICE
        self._lent += 1
        while ready and now <= self._lend_until and not request.done and not self._calls:
            self._pass(BATCH)
            now = self.clock.monotonic()

    def step(self) -> bool:
        """Run one call, due timer or message, without an event loop. Returns False if there was none."""
        if self._calls:
            self._run_calls(1)
        elif self._outside.told:
            self._take_told(1)
        elif not self._fire(self.clock.monotonic(), 1):
            if not self.ready:
                return False
            self._pass(1)
        return True

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything at the clock's present time."""
        if self.ready or self._calls or self._outside.told:
            return True
        due = self.timers.next_due()
        return due is not None and due <= self.clock.monotonic()

    def run_until_idle(self) -> None:
        """Run everything that can run at the clock's present time, without an event loop."""
        while True:
            self._slice()
            due = self.timers.next_due()
            if not (self.ready or self._calls or self._outside.told) and (due is None or due > self.clock.monotonic()):
                return

    def _slice(self) -> float | None:
        """Run calls, timers and messages for a few milliseconds. Returns the result of `after_slice`."""
        self._outside.rung = False  # before any look: a ring may come after its call was run, and silence a later
        clock, timers = self.clock, self.timers
        end = None
        handled = 0
        while True:
            now = clock.monotonic()
            end = now + SLICE if end is None else end
            fired = self._fire(now, TIMERS_AT_ONCE) if timers.heap else 0
            if self._calls:
                self._run_calls(BATCH)
            if self._outside.told:
                self._take_told(BATCH)
            for system in self._systems:
                if system.urgent:
                    self._context.run(self._run_urgent, system)
            if self.ready:
                self._until = min(end, timers.heap[0][0]) if timers.heap else end
                handled += self._pass(SLICE_MESSAGES - handled)
            if not (self.ready or self._calls or self._outside.told) and fired < TIMERS_AT_ONCE:
                break
            if now >= end or handled >= SLICE_MESSAGES:
                break
        return None if self.after_slice is None else self.after_slice()

    def _fire(self, now: float, limit: int) -> int:
        try:
            return self.timers.fire_due(now, limit)
        except Exception as error:
            self.on_error(error)
            return limit  # as if all had fired: the rest is looked at before anything sleeps

    def _until_next_timer(self) -> float | None:
        """Real seconds until the next timer is due; None if only `wake` can tell."""
        due = self.timers.next_due()
        if due is None:
            return None
        seconds = due - self.clock.monotonic()
        return None if seconds > 0 and isinstance(self.clock, VirtualClock) else seconds

    def _ring(self) -> None:
        if self.parked:
            self.wake()

    def _take_told(self, limit: int) -> None:
        self._outside.rung = False
        told = self._outside.told
        while told and limit:
            limit -= 1
            cell, message = told.popleft()
            cell.tell(message)

    def _run_calls(self, limit: int) -> None:
        self._outside.rung = False
        calls = self._calls
        while calls and limit:
            limit -= 1
            function, args = calls.popleft()
            try:
                function(*args)
            except Exception as error:
                self.on_error(error)


def _raise(error: BaseException) -> None:
    raise error


def _ignore(*_: Any) -> None:
    """A closed part of the runtime takes no messages."""
