"""Seeing jobs through to their end: what `run` and `resume` do with a runtime, and what Ctrl+C does to it.

Rules:
- The first Ctrl+C (SIGINT, SIGTERM, SIGHUP) drains: nothing new starts, running bodies may end within the drain
  deadline (`--drain-deadline`). The second stops them now, and their tries are given back. The third kills commands and
  leaves at once; the journal is as good as ever.
- The terminal may go away, which drains: nobody sees the rest, and all else is as ever. So does a pipe whose reader
  leaves (`callboard run FILE | head -1`), and a disk that takes no more output.
- The runtime is left before the outcome is told, so that what is told is durable and complete. Where it is not, since
  the journal could not be written to the end, that is said, and the exit code is no good one.
- A view is told of trouble with the journal while it lasts: nothing is lost meanwhile, and nothing seems to move.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from functools import partial
from typing import NoReturn, Protocol

import anyio
from anyio.abc import TaskGroup, TaskStatus

from ...actors.messages.notices import Notice
from ...actors.records.transition import Transitioned
from ..dispatch.abandoned_threads import Left
from ..engines.process_watcher import kill_all
from ..handles.jobs import JobHandle
from ..handles.outcomes import Outcome, RuntimeClosed
from ..journal.contract import JournalError
from ..lifespan.signals import Signals, not_ignored
from ..observation.events import Dropped, Subscription
from ..observation.filters import Event, wanted_by
from ..runtime import Runtime, services_of
from .ending import Shown
from .last import end_soon
from .output import Lost, Printing
from .signals import hear_children
from .terminal import draws
from .trouble import FAILED, INTERRUPTED, kept, tell, told

_TAKEN = ("SIGINT", "SIGTERM", "SIGHUP")
_LAST_SIGNAL = 3
_JOURNAL = ("journal_unwritable", "journal_writable")
_SHOWN, _TOLD = wanted_by({}, notices=False), wanted_by({"event": _JOURNAL})
_UNSAID = frozenset({"stale_message", "threads_left", *_JOURNAL})
"""Notices that are not shown as trouble: what was refused as it should be, and what is shown elsewhere (`last.py`)."""


class View(Protocol):
    """How progress is shown."""

    async def follow(self, jobs: Sequence[Shown], events: AsyncIterable[Transitioned | Dropped]) -> None:
        """Show the jobs, from the transitions told or their present state, until the events end with the runtime."""
        ...

    def notice(self, text: str) -> None:
        """Say something that is not about a task."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was. Called more than once."""
        ...

    def outcomes(self, ended: Sequence[Outcome], unfinished: Sequence[Shown], code: int) -> None:
        """Tell what came of the jobs, and the exit code."""
        ...


def see_through(
    opened: Callable[[], Runtime],
    begin: Callable[[Runtime], Awaitable[list[JobHandle]]],
    session: Session,
) -> int:
    """Open a runtime, begin jobs in it, and show them until they end or the user interrupts. Gives the exit code."""
    hear_children()
    signals = Signals(not_ignored(*_TAKEN), _LAST_SIGNAL, session.leave_at_once)
    with contextlib.closing(signals) as taken, Printing() as printing:
        try:
            return anyio.run(session.run, taken, printing, opened, begin)
        finally:
            session.view.close()


def view(*, as_json: bool, plain: bool) -> View:
    """How a command shows progress, as it was asked to."""
    if as_json:
        from .jsonlines import JsonView  # noqa: PLC0415 - one of three is needed

        return JsonView()
    if plain or not draws():
        from .plain import PlainView  # noqa: PLC0415

        return PlainView()
    from .live import LiveView  # noqa: PLC0415

    return LiveView()


class Session:
    """One runtime, from its opening to its end.

    follows: whether its view shows transitions, so that it is stopped where they cannot be shown any more.
    drain_deadline: seconds that running bodies have to end after the first interrupt.
    """

    follows = True

    def __init__(self, view: View, drain_deadline: float) -> None:
        self.view = view
        self._drain_deadline = drain_deadline
        self._interrupts = 0
        self._incomplete = False  # the journal was left without the last of what was done
        self._runtime: Runtime | None = None  # once it is open
        self._over = anyio.Event()  # all jobs have ended, or the runtime has drained
        self._left: Left | None = None  # by the runtime
        self._group: TaskGroup

    async def run(
        self,
        taken: Signals,
        printing: Printing,
        opened: Callable[[], Runtime],
        begin: Callable[[Runtime], Awaitable[list[JobHandle]]],
    ) -> int:
        """Have one runtime opened, jobs begun in it, and seen through. Gives the exit code."""
        try:
            code = await self._see_through(taken, printing, opened, begin)
        except BaseException as error:
            end_soon(self._left, partial(told, error))
            raise
        end_soon(self._left, lambda: code)
        return code

    async def _see_through(
        self,
        taken: Signals,
        printing: Printing,
        opened: Callable[[], Runtime],
        begin: Callable[[Runtime], Awaitable[list[JobHandle]]],
    ) -> int:
        jobs: list[JobHandle] = []
        async with anyio.create_task_group() as self._group:
            self._group.start_soon(self._watch_signals, taken)
            if self.follows:
                self._group.start_soon(self._watch_output, printing)
            runtime = opened()
            self._left = services_of(runtime).left
            runtime.on_trouble = self._trouble
            # from before it opens, so that recovery is shown
            hub = services_of(runtime).hub
            hub.last_resort = None  # the view shows it
            events = hub.subscribe(_SHOWN, size=1_000_000, quiet=True) if self.follows else None
            told = hub.subscribe(_TOLD, quiet=True)
            async with anyio.create_task_group() as following, runtime:
                following.start_soon(self._watch_journal, told)
                jobs = await begin(runtime)
                if events is not None:
                    following.start_soon(self.view.follow, jobs, events)
                await self._attend(runtime, jobs)
            self._group.cancel_scope.cancel()
        self.view.close()
        ended: list[Outcome] = []
        unfinished: list[JobHandle] = []
        for job in jobs:
            try:
                ended.append(await job.wait())
            except RuntimeClosed:
                unfinished.append(job)
        code = FAILED if self._incomplete else code_of(ended, unfinished)
        shown = printing.lost is None
        self.view.outcomes(ended, unfinished, code)
        return code if printing.lost is None or not self.follows else code_unshown(printing.lost, code, told=not shown)

    def leave_at_once(self, number: int) -> NoReturn:
        """End the program. Called in a signal's handler."""
        del number
        with contextlib.suppress(Exception):  # it may have been interrupted in the middle of drawing
            self.view.close()
        kill_all()
        os._exit(INTERRUPTED)  # the journal holds what was acknowledged; the next start accounts for the rest

    async def _attend(self, runtime: Runtime, jobs: list[JobHandle]) -> None:
        """Wait until the jobs are over, or the user wants no more of it."""
        self._runtime = runtime
        others = [job.id for job in runtime.recovered if not job.ended and job.id not in {mine.id for mine in jobs}]
        if others:
            self.view.notice(f"unfinished jobs of this journal go on beside it: {', '.join(others)}")
        for job in runtime.recovered:
            runs = await services_of(runtime).read(runtime.journal.reader.workstreams, job.id)
            if [str(run.state) for run in runs[-1:]] == ["paused"]:
                self.view.notice(f"job {job.id} is paused: `callboard resume {job.id}` in another terminal goes on")
        if self._interrupts:  # before it was open: what goes on of before may run already
            await self._begin_drain(self._drain_deadline if self._interrupts == 1 else 0.0)
            await self._over.wait()
            return
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(self.wait, runtime, jobs)
            await self._over.wait()
            waiting.cancel_scope.cancel()

    async def wait(self, runtime: Runtime, jobs: Sequence[JobHandle]) -> None:
        """Wait until there is nothing more to do. Cancelled when the runtime has drained."""
        for job in jobs:
            await job.wait()
        await runtime.caught_up()
        await services_of(runtime).hooks_over()
        self._over.set()

    async def _watch_journal(self, told: Subscription[Event]) -> None:
        async for event in told:
            if isinstance(event, Notice):
                self.view.notice(event.text)

    def _trouble(self, notice: Notice) -> None:
        """Something happened that no transition tells, or is wrong with the runtime: the journal has what it needs."""
        if notice.event in _UNSAID:
            return
        self._incomplete |= notice.event == "journal_incomplete"
        error = notice.error
        if error is None or isinstance(error, JournalError):  # which says what is wrong, and what to do
            self.view.notice(notice.text)
        else:
            self.view.notice(f"{notice.text}; {kept(error)}")

    async def _watch_signals(self, taken: Signals) -> None:
        while True:
            for _ in range(await taken.next()):
                await self._interrupt()

    async def _watch_output(self, printing: Printing) -> None:
        """Stop as for a first signal once nobody can be shown anything."""
        lost = await printing.until_lost()
        if lost.terminal_gone:  # SIGHUP says what is wanted
            self.view.close()
            return
        self.view.notice(f"{lost.why}; `callboard resume` goes on with what is unfinished in the end")
        if not self._interrupts:
            await self._interrupt()

    async def _interrupt(self) -> None:
        """Do what the user wants, and say so once it holds."""
        self._interrupts += 1
        if self._interrupts == 1:
            await self._begin_drain(self._drain_deadline)
            self.view.notice(
                f"stopping: nothing new starts, running tasks may end within {self._drain_deadline:g} s "
                "(Ctrl+C again stops them now)"
            )
        else:
            await self._begin_drain(0.0)
            self.view.notice("stopping running tasks now, their tries are given back (Ctrl+C again leaves at once)")

    async def _begin_drain(self, deadline: float) -> None:
        if self._runtime is not None and self._runtime.is_open:  # else it is about to end, or it has drained
            await self._group.start(self._drain, self._runtime, deadline)

    async def _drain(
        self, runtime: Runtime, deadline: float, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        with contextlib.suppress(RuntimeClosed):  # it ended just then
            await runtime.drain(deadline, task_status=task_status)
        self._over.set()


def code_unshown(lost: Lost, code: int, *, told: bool) -> int:
    """The exit code of what had this one, where its outcome could not be shown. told: whether its user knows why."""
    if lost.terminal_gone:
        return code
    if not told and str(lost):
        tell(str(lost))
    return lost.code


def code_of(ended: Sequence[Outcome], unfinished: Sequence[Shown]) -> int:
    """The exit code of jobs that ended so, or did not."""
    states = {outcome.state for outcome in ended}
    if "failed" in states:
        return FAILED
    return INTERRUPTED if unfinished or "cancelled" in states else 0
