"""How a runtime is entered, kept, drained and closed. `wiring.py` opens its parts.

Rules
-----
- Entering recovers, before any command is accepted: overdue timers fire, and attempts that ran before are settled. Only
  a hold with a decision in the inbox that was made in time waits for this decision.
- Leaving drains: no task starts, and running attempts may end within `drain_deadline` seconds. Then they are stopped,
  do not count as tries, and have their own `kill_grace` to end, but no more. After a `drain` that has stopped them,
  leaving has no second deadline. If an error or a cancellation ends `async with`, leaving does not wait for them.
- The runtime runs in a detached task (`detached.py`), outside of all cancel scopes of the application. So any tasks of
  one event loop may call `open` and `close`, and a cancellation around the runtime reaches only the application's code.
  Leaving stops the running bodies in order, so that a stopped body counts as stopped and not as failed.
- If a part of the runtime ends unexpectedly, the runtime is broken, and closes by itself. All waits, and the code that
  leaves or closes the runtime, get RuntimeClosed with the cause. The code inside `async with` is cancelled, if the
  block is left in the task that entered it. After `open()` no code is cancelled: the notice `runtime_broken` (or
  `lease_lost`), the health and the next use of the runtime report it.
- If the journal cannot be written or does not answer, leaving takes `drain_deadline` and `REST` seconds, and running
  calls have `CLOSING` seconds to end. Then all waits for the journal are ended.
- A node that other nodes have fenced (`LeaseLost`) is broken, too. Its calls are stopped at once, since other nodes own
  the jobs now.
- A runtime is entered once. To go on, make another runtime with the same journal.
- Signals are the program's business: a runtime handles them only if `signals` is set. The first signal drains it. The
  code inside `async with` is cancelled only after the drain, so that this code can still await jobs that end meanwhile.
- If a program ends without closing the runtime, the runtime closes (trio) or is cut short (asyncio), and emits the
  notice `not_closed`. A runtime that is cut short is not broken, and the error is raised on: it is the application's
  own error that ended the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias, cast

import anyio
from anyio.abc import TaskGroup, TaskStatus

from ...actors.messages.inputs import Drain, StopWorkers
from ...actors.times import Duration
from ...actors.user_code import from_terminal, shown
from ..dispatch.detached import all_are_told_to_end, has_ended, pass_on_interrupt, present_task, start_detached
from ..dispatch.runners import RunnerPool
from ..dispatch.waker import OwnLoop
from ..errors import EventLoopEnded, LeaseLost, RuntimeClosed, closed
from ..loaded_modules import under_trio
from .closing import CLOSING, REST, Closing
from .draining import LONGEST_STOP, durable, idle, quiesce
from .platform import Platform
from .settings import Settings, span
from .wiring import Wiring

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

    from ..services import RuntimeServices
    from .signals import Signals


MakePlatform: TypeAlias = "Callable[[Settings, RuntimeServices, Closing], Platform]"


class Lifespan:
    """Enters, keeps, drains and closes one runtime."""

    _drained = False
    _stopped = False  # the runtime has drained because of a signal
    _taken: Signals | None = None
    _refused: BaseException | None = None  # why it could not be entered
    _fault: BaseException | None = None  # the error of its closing
    _loop_ends = False  # all tasks of the event loop were cancelled when it was left
    _stopping: anyio.CancelScope | None = None  # around a wait that needs a running dispatcher
    _around: anyio.CancelScope | None = None  # around the code inside `async with`
    _around_task: object = None  # the task of that code
    _stops: dict[int, float]  # when each stopped call is abandoned, by its token
    _ready: anyio.Event  # the runtime was entered, or entering failed
    _to_leave: anyio.Event
    _emptied: anyio.Event  # the runtime was left, and remaining calls were stopped and abandoned
    _over: anyio.Event  # no task of it runs any more
    _entering: anyio.CancelScope
    _inside: TaskGroup | None = None
    _runners: RunnerPool | None = None
    _portal: BlockingPortal | None = None

    def __init__(
        self,
        settings: Settings,
        services: RuntimeServices,
        platform: MakePlatform,
    ) -> None:
        self._services = services
        self._status = services.status
        self._drain_deadline = settings.drain_deadline
        self._takes_signals = settings.signals
        self.closing = Closing(services)
        self.platform = platform(settings, services, self.closing)
        self.wiring = Wiring(settings, services, self.platform, self.closing)
        self.wiring.on_broken = self.broke

    # -- for the application -------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """`Runtime.open`."""
        if self._status.entered:
            now = "was closed" if self._status.left else "is in use"
            raise RuntimeError(
                f"a runtime can be entered once, and this one {now}: make another Runtime(...), with the same journal "
                "to continue its jobs"
            )
        if self._takes_signals:
            from .signals import taken_for_a_runtime  # noqa: PLC0415 - most runtimes leave signals to their program

            self._taken = taken_for_a_runtime()
        self._status.entered = True
        self._stops = {}
        self._status.own_loop = self._services.hub.own_loop = OwnLoop()
        self._ready, self._to_leave = anyio.Event(), anyio.Event()
        self._emptied, self._over = anyio.Event(), anyio.Event()
        self._entering = anyio.CancelScope()
        from anyio.from_thread import BlockingPortal  # noqa: PLC0415 - slow, and only for an open runtime

        self._portal = BlockingPortal()
        start_detached(self._hold, "callboard runtime")
        start_detached(self._lend, "callboard portal")
        try:
            await self._ready.wait()
        except BaseException:
            self._entering.cancel()
            await self._until_left()
            raise
        refused, self._refused = self._refused, None
        if refused is not None or self._status.broken is not None or self._status.told_to_leave:
            await self._until_left()
            self._raise_broken()
            raise refused or RuntimeClosed("the runtime was closed while it was being opened")

    async def close(self) -> None:
        """`Runtime.close`."""
        if not self._status.entered:
            return
        self._status.check_here("a runtime")
        if self._runners is not None and self._runners.runs_here():
            raise RuntimeError(
                "a runtime cannot be closed by code that runs in it, since closing waits for this code: let the "
                "program close it"
            )
        self._entering.cancel()
        await self._drain_and_leave()

    @property
    def portal(self) -> BlockingPortal:
        """`Runtime.portal`."""
        if self._portal is None or self._status.broken is not None or not self._status.open:
            self._status.raise_closed()
        return self._portal

    async def enter(self) -> None:
        """Begin `async with`: open the runtime, and cancel the code inside if the runtime breaks."""
        await self.open()
        self._around, self._around_task = anyio.CancelScope(), present_task()
        self._around.__enter__()
        self._end_around()

    async def exit(self, error: BaseException | None) -> bool | None:
        """End `async with`, with or without an error. Returns whether to suppress that error."""
        self._status.check_here("a runtime")  # on another loop: refuse, and let it go on
        around, self._around = self._around, None
        raised: BaseException | None = None
        if error is None:
            try:
                await self._drain_to_leave()
            except BaseException as cancelled:
                raised = cancelled
        ended, ends_well = raised if error is None else error, False  # the error's truth may be False
        try:
            # Left in another task, there is no way out of the scope: it stays with the one that entered, unused.
            if around is not None and present_task() is self._around_task:
                ends_well = around.__exit__(None if ended is None else type(ended), ended, None)
                if ends_well:
                    raised = None
        except BaseException as rest:
            raised = rest
        try:
            await self._until_left()
            said = isinstance(error, RuntimeClosed) and error.__cause__ is self._status.broken is not None
            passes = isinstance(self._status.broken, EventLoopEnded) and not (error is None and raised is None)
            if not said and not passes:
                self._raise_broken()
            if raised is not None:
                raise raised
        finally:
            del raised, ended  # an error's traceback holds this frame
            self._around_task = None
        return ends_well

    async def _drain_and_leave(self) -> None:
        try:
            await self._drain_to_leave()
        finally:
            await self._until_left()
        self._raise_broken()

    async def _drain_to_leave(self) -> None:
        with suppress(RuntimeClosed):  # the runtime broke, or another task closes it
            if self._status.running and not self._status.told_to_leave:
                await self.drain(self._drain_deadline)

    async def _until_left(self) -> None:
        """Close the runtime, and wait for the end despite cancellations.

        asyncio lets any code cancel any task, also inside a shield.
        """
        self._status.told_to_leave = True
        self._to_leave.set()
        cancelled: BaseException | None = None
        with anyio.CancelScope(shield=True):
            while not self._over.is_set():
                try:
                    await self._emptied.wait()
                    with anyio.move_on_after(CLOSING):
                        await self._over.wait()
                    break  # abandoned calls that cannot be interrupted are left to the event loop
                except anyio.get_cancelled_exc_class() as error:
                    cancelled = error
        if cancelled is not None:
            raise cancelled
        fault, self._fault = self._fault, None
        if fault is not None and self._status.broken is None:
            raise fault

    def _raise_broken(self) -> None:
        broken = self._status.broken
        if broken is None:
            return
        if isinstance(broken, Exception):
            raise closed("the runtime has closed", broken) from broken
        raise broken  # such as Ctrl+C, which is for the program

    # -- in its own task -----------------------------------------------------------------------------------------------

    async def _hold(self) -> None:
        """Run as the parent of all tasks of the runtime."""
        try:
            async with anyio.create_task_group() as self.closing.group:
                self.closing.group.start_soon(self._live)
        except BaseException as error:  # the error ends here, also if the task is cancelled, since the event loop ends
            self._fault = sole(error)
        finally:
            if not self._status.told_to_leave and self._status.broken is None:
                self._status.broken = self._fault or self._strayed()
            self._end_around()
            if self._taken is not None:
                self._taken.close()
            self._ready.set()
            self._emptied.set()
            self._over.set()
            if isinstance(self._status.broken, KeyboardInterrupt) and self._around is None:
                pass_on_interrupt()

    async def _lend(self) -> None:
        """Serve the calls of threads until the runtime was left and these calls have ended."""
        with suppress(BaseException):  # the thread whose function raised it gets the error
            async with cast("BlockingPortal", self._portal):
                await self._over.wait()

    async def _live(self) -> None:
        """Enter and leave in a separate task, so that neither is interrupted half done."""
        try:
            with anyio.CancelScope(shield=True):
                inside: TaskGroup = await self.closing.group.start(self._keep)
                self._inside = inside
                if self._taken is not None:
                    inside.start_soon(self._heed, self._taken)
                with self._entering:
                    await self._entered_or_refused(inside)
            if not self._entering.cancel_called:
                self._ready.set()
            await self._to_leave.wait()
        finally:
            self._loop_ends = all_are_told_to_end()  # before leaving starts tasks that are not cancelled
            with anyio.CancelScope(shield=True):
                if not self._status.told_to_leave and self._status.broken is None:
                    self._end_of_program()
                await self._leave()

    async def _heed(self, taken: Signals) -> None:
        """Drain at the first stop signal, which lets bodies end. A second signal stops the bodies."""
        await self._ready.wait()
        deadline = self._drain_deadline
        async with anyio.create_task_group() as draining:
            while True:
                for _ in range(await taken.next()):
                    draining.start_soon(self._stop_as_told, deadline)
                    deadline = 0.0

    async def _stop_as_told(self, deadline: float) -> None:
        with suppress(RuntimeClosed):  # the runtime is closing already
            await self.drain(deadline)
        self._stopped = True
        if self._around is None or has_ended(self._around_task):
            self._status.told_to_leave = True
            self._to_leave.set()
        self._end_around()

    def _end_of_program(self) -> None:
        """Report that the program has not closed the runtime. Under trio it can still close in good order."""
        if not under_trio():
            self.broke(None)
        elif self._status.loaded:
            self._say_not_closed("so it is closed now, and running tasks are stopped")

    def _say_not_closed(self, then: str) -> None:
        text = f"the runtime was not closed before the program ended, {then}"
        self._services.host.notice("not_closed", "warning", text)

    async def _entered_or_refused(self, inside: TaskGroup) -> None:
        try:
            await self._enter(inside)
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # raised in the task that enters, unchanged and not in a group
            self._refused = error

    async def _keep(self, *, task_status: TaskStatus[TaskGroup]) -> None:
        """Protect the runtime's own tasks from cancellations of the task that enters and leaves."""
        with anyio.CancelScope(shield=True):
            try:
                async with anyio.create_task_group() as inside:
                    task_status.started(inside)
                    await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                pass  # a stray cancel, since the shield stops all others: asyncio lets any code cancel any task
            except BaseException as error:
                self.broke(sole(error))
                raise
        if not self._status.left:
            self.broke(None)

    async def _serve(self) -> None:
        """Run the dispatcher. If it breaks, end all waits."""
        try:
            await self._services.dispatcher.run()
        except anyio.get_cancelled_exc_class():
            self.broke(None)
            raise
        except BaseException as error:
            self.broke(error)
            raise
        finally:
            self._status.running = False
            self._services.host.close()

    def broke(self, cause: BaseException | None) -> None:
        """Mark the runtime as broken, after a part has ended unexpectedly, and end all waits."""
        if self._status.left:
            return
        first, self._status.broken = self._status.broken is None, self._status.broken or cause or self._strayed()
        if cause is not None and from_terminal(cause):
            self._status.broken = cause  # this error cancelled the other parts, which reported before
        self._status.running = self._status.open = False
        if self._status.loaded:
            self._services.jobs.end_waits(self._status.broken)
            self._services.host.close(self._status.broken)
            if isinstance(self._status.broken, LeaseLost):
                self._services.host.abandon()
            elif first and self._ready.is_set():
                self._say_broken(self._status.broken)
            self._services.dispatcher.close()
        if self._stopping is not None:
            self._stopping.cancel()
        self._entering.cancel()
        self._to_leave.set()
        self._end_around()

    def _say_broken(self, broken: BaseException) -> None:
        if isinstance(broken, EventLoopEnded):
            self._say_not_closed("so it is cut short: running tasks begin again at the next start")
            return
        text = f"the runtime has broken, and stops all that it runs: {shown(broken)}. Running tasks begin again"
        raised = broken if isinstance(broken, Exception) else None
        self._services.host.notice("runtime_broken", "error", text, raised=raised)

    def _end_around(self) -> None:
        """Cancel the code inside `async with` if the runtime has broken, or after a stop signal.

        If the runtime was cut short, all code of the event loop is already cancelled.
        """
        if (
            ((self._status.broken is not None and not isinstance(self._status.broken, EventLoopEnded)) or self._stopped)
            and self._around is not None
            and not has_ended(self._around_task)
        ):
            self._around.cancel()

    async def _enter(self, group: TaskGroup) -> None:
        runners = self._runners = RunnerPool(group, abandoned_threads=self._services.abandoned_threads)
        inbox = await self.wiring.load(runners, group.start_soon)
        self.wiring.watch_loop(runners)
        group.start_soon(self._serve)
        if self._services.membership is not None:
            await group.start(self._services.membership.serve)
        if self._services.shared_tools is not None:
            await group.start(self._services.shared_tools.serve)
        await self.wiring.catch_up(inbox)
        await group.start(inbox.serve)
        self.closing.at_end(inbox.close)

    async def _leave(self) -> None:
        """Close all parts in the reverse order of their opening. Every wait has a limit."""
        self._status.open = False
        now = anyio.current_time()
        if self.closing.leave_by is None or self.closing.leave_by + REST < now:  # the drain was some time ago
            self.closing.leave_by = now + REST
        try:
            with anyio.CancelScope(shield=True):
                with suppress(RuntimeClosed):
                    await self._stop()
                await self.closing.stack.aclose()
        finally:
            self._status.left = True
            if self._status.loaded and hasattr(self._services.host, "kernel"):
                self._services.host.drop_pending()
            if self._taken is not None:
                self._taken.restore()
            self._emptied.set()
            if self._inside is not None:
                self._inside.cancel_scope.cancel()

    async def _stop(self) -> None:
        if not self._status.running:
            return
        if not self._drained:
            await self.drain(0.0)
        elif self.closing.answers:
            await self._until_idle()  # a cancellation may have ended the earlier wait
        with anyio.CancelScope() as self._stopping:
            await self._services.dispatcher.stop_all()
        with anyio.move_on_after(self.closing.patience):
            await self._services.machines.looked()  # spawned machines are not lost
            self._services.host.tell(StopWorkers())
            self.wiring.settled = await durable(self._services.host)
        self._services.jobs.end_waits(None)
        self._services.host.close()

    # -- stopping ------------------------------------------------------------------------------------------------------

    async def drain(self, deadline: Duration, *, task_status: TaskStatus[None] | None = None) -> None:
        """`Runtime.drain`."""
        limit = span("the deadline of a drain", deadline)
        self._status.check_here("a runtime")
        if not self._status.running:
            self._status.raise_closed()
        self._services.host.tell(Drain(stop=False))
        if task_status is not None:
            task_status.started()
        if self._services.host.kernel.draining:
            limit = 0.0  # the calls were stopped before: a later drain gives them no more time
        self.closing.in_time(limit)
        answers, patience = False, CLOSING if self._services.host.journal.health.ok else REST
        with self.closing.cut_off(limit + patience), anyio.move_on_after(limit + patience):
            answers = await quiesce(self._services.host, limit, self.wiring.hand_over)
        if not answers:
            self.closing.hopeless = True
            self._services.host.tell(Drain(stop=True))
        self._drained = True
        await self._until_idle()

    async def _until_idle(self) -> None:
        """Wait for stopped calls, and abandon those that do not end. Without a journal no call can be stopped."""
        answers = self.closing.answers
        limit = LONGEST_STOP if answers else self.closing.patience
        with anyio.move_on_after(limit):
            await idle(self._services.host, self.wiring.hand_over, self._stops)

    def _strayed(self) -> RuntimeError:
        if self._loop_ends or all_are_told_to_end():
            return EventLoopEnded()
        return RuntimeError("its own tasks were cancelled by other code")


def sole(error: BaseException) -> BaseException | None:
    """The error that a task group raised, if it is one error; None if the group was only cancelled."""
    if isinstance(error, BaseExceptionGroup):
        raised = [
            one for one in map(sole, cast("BaseExceptionGroup[BaseException]", error).exceptions) if one is not None
        ]
        if len(raised) > 1:
            return cast("BaseException", error)
        return raised[0] if raised else None
    return None if isinstance(error, anyio.get_cancelled_exc_class()) else error
