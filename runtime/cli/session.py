"""A session of `run` or `resume`: it shows jobs until they end, and handles Ctrl+C.

Rules:
- The first Ctrl+C (SIGINT, SIGTERM, SIGHUP) drains: no task starts, running bodies may end within the drain deadline
  (`--drain-deadline`). The second stops them now, without counting their attempts. The third kills commands and exits
  at once; the journal stays consistent.
- If the terminal closes, the runtime drains: the rest is not shown, and nothing else changes. The same happens if a
  pipe's reader closes it (`callboard run FILE | head -1`), or a disk takes no more output.
- The runtime is closed before the outcome is printed, so that the printed outcome is durable and complete. If it is
  not, because the journal could not be written to the end, a notice says so, and the exit code is not 0.
- The view shows trouble with the journal while it lasts: nothing is lost meanwhile, but nothing seems to move.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from functools import partial
from shlex import quote
from typing import NoReturn, Protocol

import anyio
from anyio.abc import TaskGroup, TaskStatus

from ...actors.messages.notices import Notice
from ...actors.records.transition import Transitioned
from ..dispatch.abandoned_threads import AbandonedThreads
from ..engines.process_watcher import kill_all
from ..errors import JournalError, RuntimeClosed
from ..handles.jobs import JobHandle
from ..handles.outcomes import Outcome
from ..lifespan.signals import Signals, not_ignored
from ..observation.events import Dropped, Subscription
from ..observation.filters import Event, wanted_by
from ..runtime import Runtime, services_of
from .command_errors import FAILED, INTERRUPTED, print_error, print_to_stderr, write_report
from .hints import hint
from .last import end_soon
from .output import OutputLost, Printing
from .signals import hear_children
from .summary import DisplayedJob
from .terminal import draws

_TAKEN = ("SIGINT", "SIGTERM", "SIGHUP")
_LAST_SIGNAL = 3
_MOST = 5  # running tasks that a notice names
_JOURNAL = ("journal_unwritable", "journal_writable")
_SHOWN, _TOLD = wanted_by({}, notices=False), wanted_by({"event": _JOURNAL})
_UNSAID = frozenset({"stale_message", "threads_left", *_JOURNAL})
"""Notices that are not shown as trouble: messages refused as they should be, and what `last.py` or the view shows."""


class View(Protocol):
    """A view of progress."""

    async def follow(self, jobs: Sequence[DisplayedJob], events: AsyncIterable[Transitioned | Dropped]) -> None:
        """Show the jobs, by transitions or present state, until the runtime's events end."""
        ...

    def notice(self, text: str) -> None:
        """Print a notice that is not about a task."""
        ...

    def close(self) -> None:
        """Restore the terminal. May be called more than once."""
        ...

    def outcomes(self, ended: Sequence[Outcome], unfinished: Sequence[DisplayedJob], code: int) -> None:
        """Print the outcomes of the jobs, and the exit code."""
        ...


def see_through(
    opened: Callable[[], Runtime],
    begin: Callable[[Runtime], Awaitable[list[JobHandle]]],
    session: Session,
) -> int:
    """Open a runtime, begin jobs, and show them until they end or the user interrupts.

    Returns the exit code.
    """
    hear_children()
    signals = Signals(not_ignored(*_TAKEN), _LAST_SIGNAL, session.leave_at_once)
    with contextlib.closing(signals) as taken, Printing() as printing:
        try:
            return anyio.run(session.run, taken, printing, opened, begin)
        finally:
            session.view.close()


def view(*, as_json: bool, plain: bool) -> View:
    """Make the view that a command was asked for."""
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

    follows: whether its view shows transitions; then it stops when they cannot be shown any more.
    drain_deadline: seconds in which running bodies may end after the first interrupt.
    """

    follows = True

    def __init__(self, view: View, drain_deadline: float) -> None:
        self.view = view
        self._drain_deadline = drain_deadline
        self._interrupts = 0
        self._incomplete = False  # the journal was closed without the last changes
        self._runtime: Runtime | None = None  # once it is open
        self._over = anyio.Event()  # all jobs have ended, or the runtime has drained
        self._abandoned_threads: AbandonedThreads | None = None  # the threads that the runtime left running
        self._group: TaskGroup

    async def run(
        self,
        taken: Signals,
        printing: Printing,
        opened: Callable[[], Runtime],
        begin: Callable[[Runtime], Awaitable[list[JobHandle]]],
    ) -> int:
        """Open one runtime, begin jobs in it, and show them to their end. Returns the exit code."""
        try:
            code = await self._see_through(taken, printing, opened, begin)
        except BaseException as error:
            end_soon(self._abandoned_threads, partial(print_error, error))
            raise
        end_soon(self._abandoned_threads, lambda: code)
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
            self._abandoned_threads = services_of(runtime).abandoned_threads
            runtime.on_trouble = self._trouble
            # subscribe before it opens, so that recovery is shown
            hub = services_of(runtime).hub
            hub.last_resort = None  # the view shows warnings
            events = hub.subscribe(_SHOWN, size=1_000_000, quiet=True) if self.follows else None
            lost = hub.subscribe(_TOLD, quiet=True)
            async with anyio.create_task_group() as following, runtime:
                following.start_soon(self._watch_journal, lost)
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
        return (
            code
            if printing.lost is None or not self.follows
            else code_unshown(printing.lost, code, explained=not shown)
        )

    def leave_at_once(self, number: int) -> NoReturn:
        """End the program. Called in a signal handler."""
        del number
        with contextlib.suppress(Exception):  # the signal may have interrupted the drawing
            self.view.close()
        kill_all()
        os._exit(INTERRUPTED)  # the journal has what was acknowledged; the next start handles the rest

    async def _attend(self, runtime: Runtime, jobs: list[JobHandle]) -> None:
        """Wait until the jobs have ended, or the user interrupts."""
        self._runtime = runtime
        others = [job.id for job in runtime.recovered if not job.ended and job.id not in {mine.id for mine in jobs}]
        if others:
            self.view.notice(f"unfinished jobs of this journal also continue: {', '.join(others)}")
        for job in runtime.recovered:
            runs = await services_of(runtime).read(runtime.journal.reader.workstreams, job.id)
            if [str(run.state) for run in runs[-1:]] == ["paused"]:
                self.view.notice(
                    f"job {job.id} is paused: {hint(f'resume {quote(job.id)}')} in another terminal continues it"
                )
        if self._interrupts:  # interrupted before it was open: recovered tasks may be running
            await self._begin_drain(self._drain_deadline if self._interrupts == 1 else 0.0)
            await self._over.wait()
            return
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(self.wait, runtime, jobs)
            await self._over.wait()
            waiting.cancel_scope.cancel()

    async def wait(self, runtime: Runtime, jobs: Sequence[JobHandle]) -> None:
        """Wait until all work is done. Cancelled when the runtime has drained."""
        for job in jobs:
            await job.wait()
        await runtime.caught_up()
        await services_of(runtime).hooks_over()
        self._over.set()

    async def _watch_journal(self, events: Subscription[Event]) -> None:
        async for event in events:
            if isinstance(event, Notice):
                self.view.notice(event.text)

    def _trouble(self, notice: Notice) -> None:
        """Show a problem of the runtime that no transition reports. The journal has what it needs."""
        if notice.event in _UNSAID:
            return
        self._incomplete |= notice.event == "journal_incomplete"
        error = notice.error
        if error is None or isinstance(error, JournalError):  # the error's text says what is wrong, and what to do
            self.view.notice(notice.text)
        else:
            self.view.notice(f"{notice.text}; {write_report(error)}")

    async def _watch_signals(self, taken: Signals) -> None:
        while True:
            for _ in range(await taken.next()):
                await self._interrupt()

    async def _watch_output(self, printing: Printing) -> None:
        """Stop as for a first signal when the output is lost."""
        lost = await printing.until_lost()
        if lost.terminal_gone:  # SIGHUP stops the run
            self.view.close()
            return
        self.view.notice(f"{lost.why}; {hint('resume')} continues the unfinished jobs")
        if not self._interrupts:
            await self._interrupt()

    async def _interrupt(self) -> None:
        """Drain for a signal, and print a notice once it has begun."""
        self._interrupts += 1
        if self._interrupts == 1:
            running = self._running()  # before the drain, which is over at once if nothing runs
            await self._begin_drain(self._drain_deadline)
            if running is not None and not running:
                self.view.notice("stopping: nothing new starts, and nothing runs now")
                return
            names = f": {', '.join(running[:_MOST])}{', …' if len(running) > _MOST else ''}" if running else ""
            self.view.notice(
                f"stopping: nothing new starts, running tasks may end within {self._drain_deadline:g} s "
                f"(Ctrl+C again stops them now){names}"
            )
        else:
            await self._begin_drain(0.0)
            self.view.notice("stopping running tasks now, without counting their attempts (Ctrl+C again exits at once)")

    def _running(self) -> list[str] | None:
        """The ids of the tasks and jobs for which a body or hook runs; None if the runtime is not open."""
        if self._runtime is None or not self._runtime.is_open:
            return None
        kernel = services_of(self._runtime).host.kernel
        owners = (kernel.entities.get(call.key) for call in kernel.calls.values())
        return list(dict.fromkeys("a hook" if owner is None else owner.record.id for owner in owners))

    async def _begin_drain(self, deadline: float) -> None:
        if self._runtime is not None and self._runtime.is_open:  # otherwise it is about to end, or has drained
            await self._group.start(self._drain, self._runtime, deadline)

    async def _drain(
        self, runtime: Runtime, deadline: float, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        with contextlib.suppress(RuntimeClosed):  # the runtime has just ended
            await runtime.drain(deadline, task_status=task_status)
        self._over.set()


def code_unshown(lost: OutputLost, code: int, *, explained: bool) -> int:
    """Return the exit code of a run whose outcome was not shown. explained: whether the user knows why."""
    if lost.terminal_gone:
        return code
    if not explained and str(lost):
        print_to_stderr(str(lost))
    return lost.code


def code_of(ended: Sequence[Outcome], unfinished: Sequence[DisplayedJob]) -> int:
    """Return the exit code of these jobs."""
    states = {outcome.state for outcome in ended}
    if "failed" in states:
        return FAILED
    return INTERRUPTED if unfinished or "cancelled" in states else 0
