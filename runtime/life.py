"""The life of a runtime: how it is entered, kept, drained and left. How its parts are opened is `parts.py`'s.

Rules
-----
- Entering recovers: what fell due while nobody looked fires, and what ran is accounted for, before anything else is
  taken; only holds that somebody has decided in time, as the inbox says, wait for that decision. Leaving drains:
  nothing new starts, running attempts may end within `drain_deadline` seconds, the others are stopped and their tries
  given back. Left by an error or a cancellation, it does not wait for them.
- A cancellation around it reaches the application's own code only. What runs inside is stopped by leaving, in order, so
  that a body which had to stop counts as stopped and not as failed.
- Should something inside end that nobody told to end, the runtime is broken: whoever waits for it gets RuntimeClosed
  with the cause, the application's code is cancelled, and leaving raises.
- A node that others have fenced (`LeaseLost`) is broken so, and what it ran is stopped at once: it is theirs now.
  Leaving raises RuntimeClosed then.
- It is entered once, and left in the same task: whoever wants to go on makes another one of the same journal. It takes
  no signals: that is the program's business.
"""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import NoReturn, Self

import anyio
from anyio.abc import TaskGroup, TaskStatus

from ..actors.messages import Drain, StopWorkers
from ..actors.times import Duration
from .draining import idle, quiesce
from .journal.cluster import LeaseLost
from .outcomes import RuntimeClosed, closed
from .parts import CLOSING, DRAIN_DEADLINE, RuntimeParts, span
from .runners import RunnerPool


class RuntimeLife(RuntimeParts):
    """A runtime without its verbs: `Runtime` has them."""

    _entered = False
    _drained = False
    _left = False
    _refused: BaseException | None = None  # why it could not be entered
    _stopping: anyio.CancelScope | None = None  # around a wait for what only a living dispatcher does
    _group: TaskGroup
    _ready: anyio.Event  # it was entered, or could not be
    _asked_to_leave: anyio.Event
    _entering: anyio.CancelScope
    _inside: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        if self._entered:
            now = "was left" if self._left else "is in use"
            raise RuntimeError(
                f"a runtime can be entered once, and this one {now}: make another Runtime(...), of the same journal if "
                "it is to go on there"
            )
        self._entered = True
        self._ready, self._asked_to_leave = anyio.Event(), anyio.Event()
        self._entering = anyio.CancelScope()
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._live)
        try:
            await self._ready.wait()
        except BaseException:
            self._entering.cancel()
            await self._end()
            raise
        refused, self._refused = self._refused, None
        if refused is not None:
            await self._end()
            raise refused
        return self

    async def _live(self) -> None:
        """Enter and leave, in a task of its own: asyncio lets anybody cancel the application's task at any await, also
        within a shield, and neither may be left half done.
        """
        with anyio.CancelScope(shield=True):
            try:
                inside: TaskGroup = await self._group.start(self._keep)
                self._inside = inside
                with self._entering:
                    await self._entered_or_refused(inside)
                self._ready.set()
                await self._asked_to_leave.wait()
            finally:
                await self._leave()

    async def _entered_or_refused(self, inside: TaskGroup) -> None:
        try:
            await self._enter(inside)
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # it belongs to whoever enters, as it is, and not in a group
            self._refused = error

    async def _end(self) -> None:
        """Have it left, and wait for that, whatever is cancelled meanwhile."""
        self._asked_to_leave.set()
        try:
            await self._group.__aexit__(None, None, None)
        except BaseExceptionGroup as group:
            if isinstance(self._broken, LeaseLost) and group.split(LeaseLost)[1] is None:
                raise closed("the runtime has closed", self._broken) from self._broken
            raise

    async def _keep(self, *, task_status: TaskStatus[TaskGroup]) -> None:
        """Keep the runtime's own tasks out of reach of what cancels the application's."""
        with anyio.CancelScope(shield=True):
            try:
                async with anyio.create_task_group() as inside:
                    task_status.started(inside)
                    await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                pass  # a stray one, since nothing reaches through the shield: asyncio lets anybody cancel any task
            except BaseException as error:
                self._break(error)
                raise
        if not self._left:
            self._break(None)
            raise closed("the runtime has closed", self._broken)

    async def _serve(self) -> None:
        """Run the dispatcher. Should it break, nobody waits for it."""
        try:
            await self._dispatcher.run()
        except anyio.get_cancelled_exc_class():
            self._break(None)
            raise
        except BaseException as error:
            self._break(error)
            raise
        finally:
            self._running = False
            self._host.close()

    def _break(self, cause: BaseException | None) -> None:
        """Something inside has ended that should not have: nothing goes on, and nobody may wait for it."""
        if self._left:
            return
        self._broken = self._broken or cause or RuntimeError("its own tasks were cancelled, which no code of ours does")
        self._running = self._open = False
        self._let_go(self._broken)
        self._host.close(self._broken)
        if isinstance(self._broken, LeaseLost):
            self._host.abandon()
        self._dispatcher.close()
        if self._stopping is not None:
            self._stopping.cancel()

    async def _enter(self, group: TaskGroup) -> None:
        runners = RunnerPool(group)
        taker = await self._load(runners, group.start_soon)
        self._watch_loop(runners)
        group.start_soon(self._serve)
        if self._membership is not None:
            await group.start(self._membership.serve)
        if self._shared_tools is not None:
            await group.start(self._shared_tools.serve)
        await self._catch_up(taker)
        await group.start(taker.serve)
        self._closing.push_async_callback(taker.close)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.drain(self._drain_deadline)
        finally:
            await self._end()

    async def _leave(self) -> None:
        """Close everything, in the reverse order of its opening. Nothing is waited for without a limit."""
        self._open = False
        try:
            with anyio.CancelScope(shield=True):
                with suppress(RuntimeClosed):
                    await self._stop()
                await self._closing.aclose()
        finally:
            self._left = True
            if self._inside is not None:
                self._inside.cancel_scope.cancel()

    async def _stop(self) -> None:
        if not self._running:
            return
        if not self._drained:
            await self.drain(0.0)
        with anyio.CancelScope() as self._stopping:
            await self._dispatcher.stop_all()
        with anyio.move_on_after(CLOSING):
            self._host.tell(StopWorkers())
            await self._host.barrier()
            self._settled = True
        self._let_go(None)
        self._host.close()

    # -- stopping ------------------------------------------------------------------------------------------------------

    async def drain(
        self, deadline: Duration = DRAIN_DEADLINE, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Claim nothing more; what runs may end within `deadline`, the rest is stopped, its tries given back.

        Afterwards the runtime is of no more use than to be left. Queued and waiting tasks go on at the next start,
        or on another node.
        Raises ValueError for a deadline that is no duration, before anything stops, and RuntimeClosed.
        Begun by a task group's `start`, that returns once whatever ends from then on lets nothing new be claimed.
        """
        limit = span("the deadline of a drain", deadline)
        if not self._running:
            self._raise_closed()
        self._host.tell(Drain(stop=False))
        task_status.started()
        with anyio.move_on_after(limit + CLOSING):
            await quiesce(self._host, limit)
            self._drained = True
            await idle(self._host)

    def _check_open(self) -> None:
        if self._broken is not None or not self._open:
            self._raise_closed()

    def _check_entered(self) -> None:
        if not hasattr(self, "_host"):
            raise RuntimeClosed("the runtime was not entered: use it inside `async with Runtime(...)`")

    def _raise_closed(self) -> NoReturn:
        if self._broken is not None:
            raise closed("the runtime has closed", self._broken)
        raise RuntimeClosed("the runtime is not open: use it inside `async with Runtime(...)`")
