"""The life of a runtime: how it is entered, kept, drained and left. How its parts are opened is `wiring.py`'s.

Rules
-----
- Entering recovers: what fell due while nobody looked fires, and what ran is accounted for, before anything else is
  taken; only holds that somebody has decided in time, as the inbox says, wait for that decision. Leaving drains:
  nothing new starts, running attempts may end within `drain_deadline` seconds, the others are stopped and their tries
  given back; each has its own `kill_grace` to go, and no more. After a drain that has stopped them there is no other
  deadline. Left by an error or a cancellation, it does not wait for them.
- What runs inside belongs to a task of its own (`detached.py`), and to nobody's scope: so `open` and `close` may be
  called in any tasks of one event loop. A cancellation around it reaches the application's own code only. What runs
  inside is stopped by leaving, in order, so that a body which had to stop counts as stopped and not as failed.
- Should something inside end that nobody told to end, the runtime is broken, and leaves by itself: whoever waits for it
  gets RuntimeClosed with the cause, and so does who leaves or closes it. The code inside `async with` is cancelled, if
  that is left in the task that entered it. Who has opened it otherwise is cancelled by nobody: the notice
  `runtime_broken` (or `lease_lost`), its health and the next use of it say so.
- With a journal that cannot be written, or does not answer, leaving takes `drain_deadline` and `REST` seconds, and what
  runs has `CLOSING` to go. Who still waits for an answer then is cut off.
- A node that others have fenced (`LeaseLost`) is broken so, and what it ran is stopped at once: it is theirs now.
- It is entered once: whoever wants to go on makes another one of the same journal.
- It takes no signals, which is the program's business, unless it was told to (`signals`): then the first one drains it,
  and once it has drained the code inside `async with` is cancelled, so that what ended meanwhile can be waited for.
- A program that ends without leaving it has it left (trio), or cut short (asyncio), and told so: `not_closed`. Cut
  short it has not broken, and what was raised passes: it is the application's own error that ended the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias, cast

import anyio
from anyio.abc import TaskGroup, TaskStatus
from anyio.from_thread import BlockingPortal

from ...actors.messages.inputs import Drain, StopWorkers
from ...actors.spec.times import Duration
from ...actors.user_code import from_terminal, shown
from ..dispatch.detached import all_are_told_to_end, has_ended, pass_on_interrupt, present_task, start_detached
from ..dispatch.runners import RunnerPool
from ..dispatch.waker import Home
from ..handles.outcomes import CutShort, RuntimeClosed, closed
from ..journal.cluster import LeaseLost
from ..loaded_modules import under_trio
from .closing import CLOSING, REST, Closing
from .draining import LONGEST_STOP, durable, idle, quiesce
from .platform import Platform
from .settings import Settings, span
from .signals import Signals, taken_for_a_runtime
from .wiring import Wiring

if TYPE_CHECKING:
    from ..services import RuntimeServices


MakePlatform: TypeAlias = "Callable[[Settings, RuntimeServices, Closing], Platform]"


class Lifespan:
    """The life of one runtime."""

    _drained = False
    _stopped = False  # it has drained since a signal told it to stop
    _taken: Signals | None = None
    _refused: BaseException | None = None  # why it could not be entered
    _fault: BaseException | None = None  # what its leaving raised
    _loop_ends = False  # all tasks of the event loop were told to end as it was left
    _stopping: anyio.CancelScope | None = None  # around a wait for what only a living dispatcher does
    _around: anyio.CancelScope | None = None  # around the code inside `async with`
    _around_task: object = None  # whose that is
    _stops: dict[int, float]  # when what was told to stop is abandoned, by its token
    _ready: anyio.Event  # it was entered, or could not be
    _to_leave: anyio.Event
    _emptied: anyio.Event  # it was left: what still runs was told to end, and abandoned
    _over: anyio.Event  # nothing of it runs any more
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
        self._standing = services.standing
        self._drain_deadline = settings.drain_deadline
        self._takes_signals = settings.signals
        self.closing = Closing(services)
        self.platform = platform(settings, services, self.closing)
        self.wiring = Wiring(settings, services, self.platform, self.closing)
        self.wiring.on_broken = self.broke

    # -- as the application has it -------------------------------------------------------------------------------------

    async def open(self) -> None:
        """`Runtime.open`."""
        if self._standing.entered:
            now = "was left" if self._standing.left else "is in use"
            raise RuntimeError(
                f"a runtime can be entered once, and this one {now}: make another Runtime(...), of the same journal if "
                "it is to go on there"
            )
        self._taken = taken_for_a_runtime() if self._takes_signals else None
        self._standing.entered = True
        self._stops = {}
        self._standing.home = self._services.hub.home = Home()
        self._ready, self._to_leave = anyio.Event(), anyio.Event()
        self._emptied, self._over = anyio.Event(), anyio.Event()
        self._entering = anyio.CancelScope()
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
        if refused is not None or self._standing.broken is not None or self._standing.told_to_leave:
            await self._until_left()
            self._raise_broken()
            raise refused or RuntimeClosed("the runtime was closed while it was being opened")

    async def close(self) -> None:
        """`Runtime.close`."""
        if not self._standing.entered:
            return
        self._standing.check_here("a runtime")
        if self._runners is not None and self._runners.runs_here():
            raise RuntimeError(
                "a runtime cannot be closed by what runs in it, which it waits for: tell the program to close it"
            )
        self._entering.cancel()
        await self._drain_and_leave()

    @property
    def portal(self) -> BlockingPortal:
        """`Runtime.portal`."""
        if self._portal is None or self._standing.broken is not None or not self._standing.open:
            self._standing.raise_closed()
        return self._portal

    async def enter(self) -> None:
        """`async with` begins: open it, and have the code inside cancelled should it break."""
        await self.open()
        self._around, self._around_task = anyio.CancelScope(), present_task()
        self._around.__enter__()
        self._end_around()

    async def exit(self, error: BaseException | None) -> bool | None:
        """`async with` ends, by an error or without one. Returns whether that error is not to be raised."""
        self._standing.check_here("a runtime")  # elsewhere it goes on, and is to be left by who can wait for it
        around, self._around = self._around, None
        raised: BaseException | None = None
        if error is None:
            try:
                await self._drain_to_leave()
            except BaseException as cancelled:
                raised = cancelled
        ended, ends_well = raised if error is None else error, False  # it may say that it is not true
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
            said = isinstance(error, RuntimeClosed) and error.__cause__ is self._standing.broken is not None
            passes = isinstance(self._standing.broken, CutShort) and not (error is None and raised is None)
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
        with suppress(RuntimeClosed):  # it broke, or somebody else has it left
            if self._standing.running and not self._standing.told_to_leave:
                await self.drain(self._drain_deadline)

    async def _until_left(self) -> None:
        """Have it left, and wait for that, whatever is cancelled meanwhile: asyncio lets anybody cancel any task, also
        within a shield.
        """
        self._standing.told_to_leave = True
        self._to_leave.set()
        cancelled: BaseException | None = None
        with anyio.CancelScope(shield=True):
            while not self._over.is_set():
                try:
                    await self._emptied.wait()
                    with anyio.move_on_after(CLOSING):
                        await self._over.wait()
                    break  # what cannot even be interrupted, and was abandoned, is left to the event loop
                except anyio.get_cancelled_exc_class() as error:
                    cancelled = error
        if cancelled is not None:
            raise cancelled
        fault, self._fault = self._fault, None
        if fault is not None and self._standing.broken is None:
            raise fault

    def _raise_broken(self) -> None:
        broken = self._standing.broken
        if broken is None:
            return
        if isinstance(broken, Exception):
            raise closed("the runtime has closed", broken) from broken
        raise broken  # as Ctrl+C: it is meant for the program

    # -- in its own task -----------------------------------------------------------------------------------------------

    async def _hold(self) -> None:
        """Be the task that all its tasks belong to."""
        try:
            async with anyio.create_task_group() as self.closing.group:
                self.closing.group.start_soon(self._live)
        except BaseException as error:  # it ends here, also where it is cancelled, since the event loop ends
            self._fault = sole(error)
        finally:
            if not self._standing.told_to_leave and self._standing.broken is None:
                self._standing.broken = self._fault or self._strayed()
            self._end_around()
            if self._taken is not None:
                self._taken.close()
            self._ready.set()
            self._emptied.set()
            self._over.set()
            if isinstance(self._standing.broken, KeyboardInterrupt) and self._around is None:
                pass_on_interrupt()

    async def _lend(self) -> None:
        """Do what threads call for, until it was left and all of that is over."""
        with suppress(BaseException):  # it is the thread's whose function raised it
            async with cast("BlockingPortal", self._portal):
                await self._over.wait()

    async def _live(self) -> None:
        """Enter and leave, in a task of its own: neither may be left half done."""
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
            self._loop_ends = all_are_told_to_end()  # leaving begins tasks that nobody has told so
            with anyio.CancelScope(shield=True):
                if not self._standing.told_to_leave and self._standing.broken is None:
                    self._end_of_program()
                await self._leave()

    async def _heed(self, taken: Signals) -> None:
        """End it when the program is told to stop: the first signal lets bodies end, a second one stops them."""
        await self._ready.wait()
        deadline = self._drain_deadline
        async with anyio.create_task_group() as draining:
            while True:
                for _ in range(await taken.next()):
                    draining.start_soon(self._stop_as_told, deadline)
                    deadline = 0.0

    async def _stop_as_told(self, deadline: float) -> None:
        with suppress(RuntimeClosed):  # it is being left already
            await self.drain(deadline)
        self._stopped = True
        if self._around is None or has_ended(self._around_task):
            self._standing.told_to_leave = True
            self._to_leave.set()
        self._end_around()

    def _end_of_program(self) -> None:
        """Nobody has closed it. Under trio it can still be left in good order."""
        if not under_trio():
            self.broke(None)
        elif self._standing.loaded:
            self._say_not_closed("so it is left now, and what runs is stopped")

    def _say_not_closed(self, then: str) -> None:
        text = f"the runtime was not closed before the program ended, {then}"
        self._services.host.notice("not_closed", "warning", text)

    async def _entered_or_refused(self, inside: TaskGroup) -> None:
        try:
            await self._enter(inside)
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # it belongs to whoever enters, as it is, and not in a group
            self._refused = error

    async def _keep(self, *, task_status: TaskStatus[TaskGroup]) -> None:
        """Keep the runtime's own tasks out of reach of what cancels the one that enters and leaves."""
        with anyio.CancelScope(shield=True):
            try:
                async with anyio.create_task_group() as inside:
                    task_status.started(inside)
                    await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                pass  # a stray one, since nothing reaches through the shield: asyncio lets anybody cancel any task
            except BaseException as error:
                self.broke(sole(error))
                raise
        if not self._standing.left:
            self.broke(None)

    async def _serve(self) -> None:
        """Run the dispatcher. Should it break, nobody waits for it."""
        try:
            await self._services.dispatcher.run()
        except anyio.get_cancelled_exc_class():
            self.broke(None)
            raise
        except BaseException as error:
            self.broke(error)
            raise
        finally:
            self._standing.running = False
            self._services.host.close()

    def broke(self, cause: BaseException | None) -> None:
        """Something inside has ended that should not have: nothing goes on, and nobody may wait for it."""
        if self._standing.left:
            return
        first, self._standing.broken = self._standing.broken is None, self._standing.broken or cause or self._strayed()
        if cause is not None and from_terminal(cause):
            self._standing.broken = cause  # by it the others were cancelled, who have told of that before
        self._standing.running = self._standing.open = False
        if self._standing.loaded:
            self._services.jobs.let_go(self._standing.broken)
            self._services.host.close(self._standing.broken)
            if isinstance(self._standing.broken, LeaseLost):
                self._services.host.abandon()
            elif first and self._ready.is_set():
                self._say_broken(self._standing.broken)
            self._services.dispatcher.close()
        if self._stopping is not None:
            self._stopping.cancel()
        self._entering.cancel()
        self._to_leave.set()
        self._end_around()

    def _say_broken(self, broken: BaseException) -> None:
        if isinstance(broken, CutShort):
            self._say_not_closed("so it is cut short: what was running is begun again at the next start")
            return
        text = f"the runtime has broken, and stops all that it runs: {shown(broken)}. What was running is begun again"
        raised = broken if isinstance(broken, Exception) else None
        self._services.host.notice("runtime_broken", "error", text, raised=raised)

    def _end_around(self) -> None:
        """Cancel the code inside `async with`, if the runtime has broken, or was told to stop.

        Where it was cut short, all code of the event loop was cancelled already.
        """
        if (
            ((self._standing.broken is not None and not isinstance(self._standing.broken, CutShort)) or self._stopped)
            and self._around is not None
            and not has_ended(self._around_task)
        ):
            self._around.cancel()

    async def _enter(self, group: TaskGroup) -> None:
        runners = self._runners = RunnerPool(group, left=self._services.left)
        taker = await self.wiring.load(runners, group.start_soon)
        self.wiring.watch_loop(runners)
        group.start_soon(self._serve)
        if self._services.membership is not None:
            await group.start(self._services.membership.serve)
        if self._services.shared_tools is not None:
            await group.start(self._services.shared_tools.serve)
        await self.wiring.catch_up(taker)
        await group.start(taker.serve)
        self.closing.at_end(taker.close)

    async def _leave(self) -> None:
        """Close everything, in the reverse order of its opening. Nothing is waited for without a limit."""
        self._standing.open = False
        now = anyio.current_time()
        if self.closing.leave_by is None or self.closing.leave_by + REST < now:  # it was drained some time before
            self.closing.leave_by = now + REST
        try:
            with anyio.CancelScope(shield=True):
                with suppress(RuntimeClosed):
                    await self._stop()
                await self.closing.stack.aclose()
        finally:
            self._standing.left = True
            if self._standing.loaded and hasattr(self._services.host, "kernel"):
                self._services.host.let_go()
            if self._taken is not None:
                self._taken.restore()
            self._emptied.set()
            if self._inside is not None:
                self._inside.cancel_scope.cancel()

    async def _stop(self) -> None:
        if not self._standing.running:
            return
        if not self._drained:
            await self.drain(0.0)
        elif self.closing.answers:
            await self._until_idle()  # a cancellation may have ended that wait
        with anyio.CancelScope() as self._stopping:
            await self._services.dispatcher.stop_all()
        with anyio.move_on_after(self.closing.patience):
            await self._services.machines.looked()  # what was spawned is not lost
            self._services.host.tell(StopWorkers())
            self.wiring.settled = await durable(self._services.host)
        self._services.jobs.let_go(None)
        self._services.host.close()

    # -- stopping ------------------------------------------------------------------------------------------------------

    async def drain(self, deadline: Duration, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """`Runtime.drain`."""
        limit = span("the deadline of a drain", deadline)
        self._standing.check_here("a runtime")
        if not self._standing.running:
            self._standing.raise_closed()
        self._services.host.tell(Drain(stop=False))
        task_status.started()
        if self._services.host.kernel.draining:
            limit = 0.0  # what runs has been stopped before: a later drain gives it no more time
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
        """Wait for what was stopped, and abandon what does not go. Nothing can be told to stop without a journal."""
        answers = self.closing.answers
        limit = LONGEST_STOP if answers else self.closing.patience
        with anyio.move_on_after(limit):
            await idle(self._services.host, self.wiring.hand_over, self._stops)

    def _strayed(self) -> RuntimeError:
        if self._loop_ends or all_are_told_to_end():
            return CutShort()
        return RuntimeError("its own tasks were cancelled, which no code of ours does")


def sole(error: BaseException) -> BaseException | None:
    """What a task group raised, if it is one error. Of one that was only cancelled: None."""
    if isinstance(error, BaseExceptionGroup):
        raised = [
            one for one in map(sole, cast("BaseExceptionGroup[BaseException]", error).exceptions) if one is not None
        ]
        if len(raised) > 1:
            return cast("BaseException", error)
        return raised[0] if raised else None
    return None if isinstance(error, anyio.get_cancelled_exc_class()) else error
