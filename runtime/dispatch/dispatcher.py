"""The dispatcher: one task that delivers every actor its messages.

Rules
- It is made of parts, a file each: the fields that senders read (cell_host.py), mailboxes (mailbox.py), effects of
  receives (effects.py), receives (receive.py, coroutine_receives.py), turns (batches.py), system cells
  (system_cells.py), calls (call_queue.py), sleep (parking.py), supervision (supervision.py), reports (reports.py).
  It makes them, and drives them.
- The run queue holds each cell with mail once; runtime/dispatch/batches.py decides the order of their turns.
- The clock is read once per 64 messages: due timers fire, and after a few milliseconds the slice ends,
  `after_slice` is called, and the event loop gets its turn. Without work the task parks until a wake-up. While it is
  parked, code on the loop that has brought work may run the slice itself (`run_here`): to wake the task takes a turn of
  the loop.
- Calls (of the runtime's own threads, and the steps of supervision) run before the next cell, so a call that ends an
  actor overtakes the actor's data. Calls never run inside a receive. Messages from users' threads are moved into
  mailboxes in between, a batch at a time, so that a flood of them does not block other actors.
- Urgent messages to parts of the runtime (timers, commands of people) are handled before the next cell, too.
- A plain receive runs here. A coroutine receive runs on the pool of parked runners, and its actor handles no other
  message meanwhile.
- The effects of a receive happen when it returns; if it raises, none of them happens: see runtime/dispatch/effects.py.
- No failure of a user's actor leaves the dispatcher. An error of a system cell, a call or a timer is a bug of the
  runtime: it goes to `ErrorReporter.on_error`, which by default raises it out of `run()`.
- `step()` and `run_until_idle()` drive the same dispatcher without an event loop; then there are no coroutine
  receives.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from typing import Any

import anyio

from ...actors.users.actor import DEFAULT_MAILBOX, DEFAULT_STOP_TIMEOUT, Actor
from ...actors.users.dead_letters import DeadLetters
from ...actors.users.ref import Cell, Request, SystemRef
from ...actors.users.strategy import Restart, Supervision
from .actor_failures import ActorTrouble, Failures
from .batches import BATCH, Batches
from .call_queue import CallQueue
from .cell_host import CellHost
from .clock import Clock, SystemClock, VirtualClock
from .coroutine_receives import CoroutineReceives
from .effects import Effects
from .mailbox import Mailboxes
from .parking import Parking
from .receive import Receives
from .reports import ErrorReporter
from .runners import RunnerPool
from .supervision import Supervisor
from .system_cells import SystemCells
from .timers import Timers
from .waker import Waker, native_waiter

__all__ = ["Dispatcher"]

SLICE = 0.004
"""Seconds after which the event loop gets its turn."""

SLICE_MESSAGES = 16_384
"""The most messages of a slice, since a clock that is moved by hand never ends a slice."""

TIMERS_AT_ONCE = 1_000
"""The most timers that fire between two batches."""


class Dispatcher:
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
        self.clock: Clock = clock or SystemClock()
        self.timers = Timers(on_earliest=self._earlier_timer)
        self.dead_letters = letters = DeadLetters() if dead_letters is None else dead_letters
        self.after_slice: Callable[[], float | None] | None = None
        self._lent = 0  # asks that ran in the tasks of their askers since the dispatcher last ran
        self._lend_until = 0.0
        self._host = host = CellHost(self.timers, letters)
        self._parking = parking = Parking(host)
        host.now, host.wake, parking.called = self.clock.monotonic, parking.wake, self._called
        self._context = contextvars.copy_context()  # in which slices run that are not the task's own
        failures = Failures()
        self.reports = ErrorReporter(on_trouble)
        self._calls = calls = CallQueue(host, parking, self.reports)
        self._systems = SystemCells(host, self.reports)
        mailboxes = Mailboxes(host, letters, failures)
        self.effects = effects = Effects(host, mailboxes)
        self.coroutines = coroutines = CoroutineReceives(host, effects, mailboxes, runners)
        receives = Receives(host, effects, mailboxes, coroutines)
        self._batches = Batches(
            clock=self.clock, host=host, calls=calls, mailboxes=mailboxes, effects=effects, receives=receives,
            systems=self._systems,
        )  # fmt: skip
        self.supervisor = supervisor = Supervisor(
            supervision or Supervision(), host, calls=calls, mailboxes=mailboxes, effects=effects, receives=receives,
            coroutines=coroutines, failures=failures, report=self.reports.report,
        )  # fmt: skip
        receives.supervisor = coroutines.supervisor = supervisor
        host.check_here, host.waiter = parking.check_here, parking.waiter
        host.admit, host.wait_for_room, host.failure_of = mailboxes.admit, mailboxes.wait_for_room, failures.of
        host.hold, host.stage, host.release = effects.hold, effects.stage, effects.release
        host.put_off, host.after = effects.put_off, effects.after
        host.tell_threadsafe, host.call_threadsafe = calls.tell_threadsafe, calls.call_threadsafe
        host.handled, host.lend, host.spawn_child = self._batches.handled, self.lend, supervisor.spawn
        host.stop, host.leave = supervisor.stop, supervisor.leave
        host.watch, host.unwatch = supervisor.endings.watch, supervisor.endings.unwatch
        self.soon, self.call_threadsafe, self.at_once = calls.soon, calls.call_threadsafe, host.at_once
        self.waiter = parking.waiter
        letters.wire(calls.soon)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._calls.closed

    @property
    def parked(self) -> bool:
        """Whether the task that runs the dispatcher sleeps."""
        return self._host.parked

    @property
    def ready(self) -> Sequence[Cell | SystemRef]:
        """The run queue: cells with messages, each once."""
        return self._host.ready

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
        return self.supervisor.spawn(
            self.supervisor.root,
            actor,
            name=name,
            mailbox=mailbox,
            restart=restart,
            supervision=supervision,
            stop_timeout=stop_timeout,
        )

    def spawn_system(self, receive: Callable[[Any], object], name: str) -> SystemRef:
        """Start a cell for a part of the runtime: unbounded, with two queues. `ErrorReporter.on_error` gets its errors.

        `receive` returns True after much work: the clock is then read before the next message.
        """
        return self._systems.spawn(receive, name)

    def find(self, name: str) -> Cell | None:
        """The living actor without a parent that has this name."""
        children = self.supervisor.root.details.children if self.supervisor.root.details else None
        return children.get(name) if children else None

    async def stop_all(self) -> None:
        """Stop all users' actors, the last started first, and wait until they have ended. Needs `run()` beside it."""
        waiter = native_waiter()
        self.supervisor.endings.stop_family(waiter.set)
        await waiter.wait()

    def close(self) -> None:
        """Release everything: no actor runs again, asks in progress fail, and every cell loses its links."""
        if self.closed:
            return
        self._calls.closed = True
        self.supervisor.close()
        self._systems.close()
        self.timers.clear()
        self._host.ready.clear()
        self._calls.clear()
        self.after_slice = None
        self.reports.close()
        self.dead_letters.unwire()
        self._parking.wake()

    # -- driving ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run actors until `close()`. One task of the host application does this, once."""
        waker = self._parking.open()
        forget = self.clock.on_advance(self._clock_moved) if isinstance(self.clock, VirtualClock) else _ignore
        try:
            coroutines = self.coroutines
            if coroutines.runners is not None:
                await self._serve(waker)
                return
            async with anyio.create_task_group() as group:
                coroutines.runners = RunnerPool(group)
                try:
                    await self._serve(waker)
                finally:
                    coroutines.runners.close()
                    coroutines.runners = None
        finally:
            self._parking.close()
            forget()

    async def _serve(self, waker: Waker) -> None:
        host, calls = self._host, self._calls
        self._context = contextvars.copy_context()
        while not calls.closed:
            seconds = self._until_next_slice(self._slice())
            if seconds is not None and seconds <= 0:
                await waker.breathe()
                continue
            host.parked = True
            try:
                await waker.park(seconds)
            finally:
                host.parked = False

    def run_here(self, do: Callable[..., object], *args: Any) -> None:
        """Do something that brings work, as by `at_once`. If the dispatcher's task is parked, run a slice in its place.

        Errors of the runtime are raised in that task.
        """
        host, waker = self._host, self._parking.waker
        if waker is None or not host.parked or host.current is not None:
            host.at_once(do, *args)
            return
        host.parked = False
        seconds: float | None = 0.0
        try:
            do(*args)
            seconds = self._until_next_slice(self._context.run(self._slice))
        except Exception as error:
            self._calls.waiting.appendleft((self.reports.on_error, (error,)))
        finally:
            host.parked = seconds is None or seconds > 0
            if not host.parked:
                waker.wake()
        if seconds is not None:
            waker.alarm(seconds)

    def _called(self) -> None:
        """Make the calls of other threads, which have woken the loop."""
        if self._host.parked:
            self.run_here(_ignore)
        else:
            self._host.wake()

    def lend(self, request: Request) -> None:
        """Run actors in the task of an asker until it has its answer, which saves two turns of the event loop.

        This stays within the limits of a slice, and runs only users' actors, so that no bug of the runtime is raised in
        the asker. The dispatcher itself runs as soon as the asker waits for anything; after 64 asks it must run.
        """
        host, calls = self._host, self._calls.waiting
        ready = host.ready
        if self._parking.waker is None or host.current is not None or self._lent >= BATCH or calls:
            return
        if self._systems.cells and (len(ready) != 1 or ready[0] is not request.target):
            return
        now = self.clock.monotonic()
        if self._lent == 0:
            host.check_here()  # other threads must not run actors
            self._lend_until = now + SLICE
        self._lent += 1
        while ready and now <= self._lend_until and not request.done and not calls:
            self._batches.run(BATCH)
            now = self.clock.monotonic()

    def step(self) -> bool:
        """Run one call, due timer or message, without an event loop. Returns False if there was none."""
        calls = self._calls
        if calls.waiting:
            calls.run(1)
        elif calls.messages:
            calls.deliver(1)
        elif not self._fire(self.clock.monotonic(), 1):
            if not self._host.ready:
                return False
            self._batches.run(1)
        return True

    @property
    def _has_messages(self) -> bool:
        """Whether a message or a call waits."""
        return bool(self._host.ready or self._calls.waiting or self._calls.messages)

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything at the clock's present time."""
        if self._has_messages:
            return True
        due = self.timers.next_due()
        return due is not None and due <= self.clock.monotonic()

    def run_until_idle(self) -> None:
        """Run everything that can run at the clock's present time, without an event loop."""
        while True:
            self._slice()
            due = self.timers.next_due()
            if not self._has_messages and (due is None or due > self.clock.monotonic()):
                return

    def _slice(self) -> float | None:
        """Run calls, timers and messages for a few milliseconds. Returns the result of `after_slice`."""
        clock, timers, ready = self.clock, self.timers, self._host.ready
        batches, calls, systems = self._batches, self._calls, self._systems.cells
        calls.wake_pending = (
            False  # before any look: a wake-up may come after its call was run, and silence a later one
        )
        end = None
        handled = 0
        while True:
            now = clock.monotonic()
            end = now + SLICE if end is None else end
            fired = self._fire(now, TIMERS_AT_ONCE) if timers.heap else 0
            if calls.waiting:
                calls.run(BATCH)
            if calls.messages:
                calls.deliver(BATCH)
            for system in systems:
                if system.urgent:
                    batches.run_urgent(system)
            if ready:
                batches.until = min(end, timers.heap[0][0]) if timers.heap else end
                handled += batches.run(SLICE_MESSAGES - handled)
            if not (ready or calls.waiting or calls.messages) and fired < TIMERS_AT_ONCE:
                break
            if now >= end or handled >= SLICE_MESSAGES:
                break
        return None if self.after_slice is None else self.after_slice()

    def _fire(self, now: float, limit: int) -> int:
        try:
            return self.timers.fire_due(now, limit)
        except Exception as error:
            self.reports.on_error(error)
            return limit  # as if all had fired: so the dispatcher checks the other timers before it sleeps

    def _until_next_slice(self, look_again: float | None) -> float | None:
        """Real seconds for which the task may sleep after a slice, which has ended with that result; None: for ever."""
        self._lent = 0
        calls = self._calls
        if self._host.ready or ((calls.waiting or calls.messages) and not calls.wake_pending):
            return 0.0  # a wake-up that is on its way makes the calls
        seconds = self._until_next_timer()
        if look_again is None or seconds is None:
            return seconds if look_again is None else look_again
        return min(seconds, look_again)

    def _until_next_timer(self) -> float | None:
        """Real seconds until the next timer is due; None if only `wake` can tell."""
        due = self.timers.next_due()
        if due is None:
            return None
        seconds = due - self.clock.monotonic()
        return None if seconds > 0 and isinstance(self.clock, VirtualClock) else seconds

    def _clock_moved(self) -> None:
        if self._host.parked:
            self._host.wake()

    def _earlier_timer(self) -> None:
        self._batches.until = 0.0
        if self._host.parked:
            self._host.wake()


def _ignore() -> None:
    """Do nothing: the clock moves by itself."""
