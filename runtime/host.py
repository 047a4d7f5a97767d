"""The host of the lifecycle actors: the kernel's `Port` to time, the journal and effects.

Rules
-----
- Inputs arrive in one system cell of the dispatcher, controls before data. Controls are timers, and commands of people
  about jobs, tasks, workers and tools. Each input is one turn, and each turn is one entry.
- Output commit: the effects of a turn wait until the journal's tail at that moment is durable. Then they are released
  in order. With a volatile journal this happens at once.
- The gate: while the journal cannot write, or has too much to write, no new commands are accepted from outside. Results
  are still accepted.
- Timers are armed at once. UTC timers look at the clock at least once a minute.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint

from ..actors.jobs.job import JobActor, JobOver, JobsTakenOver, jobs_of
from ..actors.kernel.kernel import Kernel
from ..actors.kernel.transaction import (
    NO_ENGINE,
    Answer,
    ApprovalDecided,
    ArmedTimer,
    Effect,
    EntityDropped,
    KillWorker,
    MachineOver,
    ReleaseResources,
    RunHook,
    StartCall,
    StartWorker,
    StopCall,
    StopWorker,
    Tell,
    Transaction,
)
from ..actors.machines.entity import retire
from ..actors.messages.commands import Barrier, Command, Reply, Request
from ..actors.messages.inputs import CLOCK_SET, Continue, Message, TimerFired, WorkerBeat
from ..actors.messages.notices import Notice, NoticeRecord
from ..actors.records.transition import Transitioned
from ..actors.spec.model import Task, Workstream
from ..actors.user_code import called, message_of, origins, set_traceback
from ..actors.workers.workforce import Workforce
from .calling import Calls
from .dispatch.dispatcher import Dispatcher
from .dispatch.timers import Timer
from .dispatch.wall_timers import LONGEST_SLEEP, UtcTimer, UtcTimers
from .dispatch.watchdog import Watchdog
from .errors import closed
from .functions.main_program import NOT_OF_A_FILE
from .functions.registry import Bodies, BodyNotFound, NoPath, kind_of, located, placed
from .journal.contract import Entry, Journal
from .observation.events import EventBus
from .observation.metrics import Counting
from .observation.notices import Notices
from .text.secrets import Secrets

if TYPE_CHECKING:
    from ..actors.users.host import Waiter

MAX_BACKLOG = 50_000
"""The number of transitions waiting for the disk at which the gate closes."""
EFFECTS_AT_ONCE = 500
"""The number of effects released in a row, at least those of one turn, before the dispatcher looks at its clock."""
ENGINES_KEPT = 10_000
"""The number of functions whose engine is cached."""
DROPPED_AT_ONCE = 500
"""The number of released workers and breakers after which their records are removed from the journal."""
SLOW_COMMIT = 1.0
"""Seconds: if a journal asks for its next check so late, it has been writing for about twice as long."""


class KernelHost:
    """Runs the kernel on a dispatcher, with a journal."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        journal: Journal,
        bodies: Bodies,
        random: Random,
        *,
        hub: EventBus | None = None,
        secrets: Secrets | None = None,
    ) -> None:
        self.dispatcher = dispatcher
        self.journal = journal
        self.random = random
        self.hub = EventBus() if hub is None else hub
        self.notices = Notices(dispatcher, self.hub, Secrets(None) if secrets is None else secrets)
        self.notice = self.notices.notice
        """Emit a notice of the runtime itself, at once."""
        self.counting = Counting()
        self._batch: list[Transitioned] = []  # the transitions that are being emitted, and are not counted yet
        self.kernel: Kernel
        self.workforce: Workforce
        self.caller: Calls
        self.watchdog: Watchdog | None = None
        self.on_job_over: Callable[[JobActor], None] = lambda _: None
        self.on_machine_over: Callable[[str], None] = lambda _: None  # called with each machine's name
        self.events_left = 0  # events in the inbox for machines that are not here
        self.on_close: list[Callable[[BaseException | None], None]] = []  # called with the error that broke the runtime
        self.on_job_here: Callable[[JobActor], None] = lambda _: None  # called with each job that was taken over
        self._bodies = bodies
        self._clock = dispatcher.clock
        self._utc: UtcTimers
        # Functions that the kernel calls several times a turn, bound once:
        self.now: Callable[[], float]
        """UTC epoch seconds."""
        self.monotonic = dispatcher.clock.monotonic
        """Seconds of the monotonic clock."""
        self._go_by(LONGEST_SLEEP)
        self.set_back = 0.0
        """Seconds by which the wall clock was set back in all, as far as `now` has seen."""
        self._inbox = dispatcher.spawn_system(self._receive, "lifecycles")
        self._tell_control = self._inbox.tell_control  # bound once: thousands of timers hold it
        self.tell: Callable[[Message], None] = self._inbox.tell
        """Send the kernel an input."""
        self._pending: deque[tuple[int, list[Effect], Sequence[Transitioned]]] = deque()
        self._engine_of: dict[str, str] = {}
        self._dropped_count = 0  # the number of released workers and breakers
        self._over: list[str] = []  # machines that have ended and are not counted yet
        self._moved: anyio.Event | None = None
        self.on_health: Callable[[], None] = lambda: None  # called when the journal becomes unwritable or writable
        self._questions: set[KernelCommand] = set()
        self._closed = False
        self._cause: BaseException | None = None  # the error that broke the runtime
        self._unwritable_since: float | None = None  # monotonic; None while the journal can be written
        dispatcher.after_slice = self._after_slice

    def _go_by(self, longest_sleep: float) -> None:
        """Start the timers by the wall clock, which make the kernel check whether the clock was set back."""
        self._utc = UtcTimers(self._clock, self.dispatcher.timers, longest_sleep, self._clock_set)
        self.now = self._utc.wall.now

    def _clock_set(self) -> None:
        self.set_back = self._utc.wall.set_back
        self.later(CLOCK_SET)

    @property
    def jobs(self) -> dict[str, JobActor]:
        """The jobs that live here, by id; ended ones too, until their actors are released."""
        return jobs_of(self.kernel)

    # -- inputs --------------------------------------------------------------------------------------------------------

    def _receive(self, message: Message) -> bool:
        self.kernel.run(message)
        return type(message) is Continue  # a part of a long operation

    def _after_slice(self) -> float | None:
        counts = self.notices.kept.look()
        self.journal.flush()
        if self.watchdog is not None:
            self.watchdog.turned()
        again = self.journal.lend()
        if again is not None and again > SLOW_COMMIT:
            self._look_at_journal()
        if counts is None:
            return again
        return counts if again is None else min(counts, again)

    def journal_moved(self) -> None:
        """Called by the journal on the loop: more entries are durable, or it has become writable or unwritable."""
        self._look_at_journal()
        self.release()

    def _look_at_journal(self) -> None:
        """Emit a notice once when the journal cannot be written, and when it can be written again."""
        health = self.journal.health
        if health.ok is (self._unwritable_since is None):
            return
        if health.lost:  # no retry: the check of this node emits `lease_lost`
            self.on_health()
            return
        if not health.ok:
            self._unwritable_since = self._clock.monotonic()
            text = f"the journal cannot be written: {health.reason}. Nothing is lost; it is tried again"
            self.notice("journal_unwritable", "error", text, reason=health.reason)
        elif self._unwritable_since is not None:
            lasted = round(self._clock.monotonic() - self._unwritable_since, 3)
            self._unwritable_since = None
            self.notice("journal_writable", "info", "the journal can be written again", seconds=lasted)
        self.on_health()

    # -- the kernel's port ---------------------------------------------------------------------------------------------

    def arm(self, due: float, fire: TimerFired, *, by_utc: bool, named: bool = False) -> ArmedTimer:
        """Arm a timer that sends `fire` as an input at `due`."""
        if by_utc:
            arm = self._utc.arm if named else self._utc.arm_span
            return arm(due, self._tell_control, fire)
        left = due - self._clock.time()
        return self.dispatcher.timers.arm(self._clock.monotonic() + left, self._tell_control, fire)

    def disarm(self, timer: ArmedTimer) -> None:
        """Disarm a timer."""
        if type(timer) is Timer:  # the most frequent kind first
            self.dispatcher.timers.cancel(timer)
        elif isinstance(timer, UtcTimer):
            self._utc.cancel(timer)

    def later(self, message: Message) -> None:
        """Send `message` as an input of its own."""
        self._inbox.tell_control(message)

    def engine_of(self, task: Task) -> str:
        """The engine that runs a task: the task's own, or the one for its body; none while the body is not found."""
        if task.receive is not None:
            return "loop"
        if task.command is not None:
            return task.engine or "command"
        name: Any = task.run  # a name at this point
        engine = self._engine_of.get(name)
        if engine is None:
            try:
                engine = called(lambda: kind_of(self._bodies.resolve(name)))
            except Exception:  # the function is not found, or cannot be inspected
                return NO_ENGINE
            if len(self._engine_of) >= ENGINES_KEPT:  # local functions have new names each time
                self._engine_of.clear()
            self._engine_of[name] = engine
        return task.engine or engine

    def placed(self, spec: Workstream) -> Workstream:
        """A specification from the journal, with its function names converted to the present form."""
        return placed(spec)

    def located(self, path: str, folder: str) -> str:
        """An import path that an older version stored with its folder, in the present form."""
        return located(path, folder, program=False)

    def travels(self, task: Task) -> bool:
        """Whether another computer can run a task: it has no function, or one that has an import path."""
        name: Any = task.run  # a name at this point
        if name is None or (":" in name and not self._bodies.is_registered(name)):
            return name is None or not name.startswith(NOT_OF_A_FILE)
        try:
            return not self._bodies.path_for(name, self._bodies.resolve(name)).startswith(NOT_OF_A_FILE)
        except (NoPath, BodyNotFound):
            return False

    def missing(self, task: Task) -> str:
        """Why a task's function cannot be found, in words."""
        name: Any = task.run  # a name at this point
        try:
            called(self._bodies.callable_body, name)
        except Exception as error:  # whatever its module does
            return str(error) if isinstance(error, BodyNotFound) else message_of(error)
        return "the function did not exist when the runtime looked for it"

    def resolve(self, name: str) -> Callable[..., Any]:
        """The function with that import path or registered name. Raises BodyNotFound."""
        return self._bodies.resolve(name)

    def find(self, path: str) -> object:
        """The object at an import path, or the function with a registered name. Raises BodyNotFound."""
        return self._bodies.find(path)

    def probe(self, engine: str, worker: str, incarnation: int) -> None:
        """Send a worker a health check. In-process engines answer at once, others when their process answers."""
        tokens = self.caller.engines[engine].probe(worker, incarnation)
        if tokens is not None:
            self.later(WorkerBeat(worker, incarnation, tokens))

    def tell_notice(self, notice: Notice) -> None:
        """Emit a notice at once. Raises nothing."""
        if notice.event == "clock_set_back":
            self.counting.count(self._batch)
            self._batch.clear()
            self.counting.set_back(float(notice.facts["seconds"]))
        self.notices.tell(notice)

    def begin_keeping(self) -> None:
        """Keep notices in the journal from now on. Called when the journal is open and there is a kernel."""
        self.notices.kept.open(self._keep_written, self.kernel.number, self.kernel.node or None)

    def end_keeping(self) -> None:
        """Write the remaining notices, and keep no more: the journal closes next."""
        self.notices.kept.close()

    def _keep_written(self, notices: list[NoticeRecord]) -> None:
        self.journal.append(Entry([], [], notices=notices))

    def commit(self, turn: Transaction) -> None:
        """Journal a finished turn, and release its effects when it is durable."""
        journal = self.journal
        records = turn.records
        if turn.transitions or records or turn.specs or turn.outbox_done:
            entry = Entry(turn.transitions, records, turn.specs, turn.outbox_done, specs_done=turn.specs_done)
            if turn.rounds:
                entry.rounds = turn.rounds
            journal.append(entry)
        if turn.effects or turn.transitions:
            self._pending.append((journal.tail, turn.effects, turn.transitions))
            if self._pending[0][0] <= journal.durable:
                self.release()
        elif self._moved is not None:  # a call may have ended for which only the drain waits
            self._moved.set()

    # -- effects -------------------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Release the effects of durable turns, in order; only a part of very many, so that others run in between."""
        pending, durable = self._pending, self.journal.durable
        listened = bool(pending) and self.hub.wanted
        batch = self._batch
        left = EFFECTS_AT_ONCE
        while pending and pending[0][0] <= durable:
            if left <= 0:
                self.dispatcher.soon(self.release)
                break
            _, effects, transitions = pending.popleft()
            left -= len(effects)
            if transitions:
                batch += transitions
                self.hub.told = transitions[-1].seq
                if listened:
                    self.hub.publish(transitions)
                else:
                    self.hub.publish_trouble(transitions)
            for effect in effects:
                if type(effect) is StartCall:  # the most frequent effect first
                    self.caller.start(effect)
                else:
                    self._do(effect)
        if batch:
            self.counting.count(batch)
            batch.clear()
        if self._over:
            for name in self._over:
                self.counting.forget(name)
            self._over.clear()
        if self._moved is not None:
            self._moved.set()

    @property
    def waiting(self) -> int:
        """The number of messages that wait for the kernel."""
        return len(self._inbox.urgent) + len(self._inbox.data)

    def _do(self, effect: Effect) -> None:
        match effect:
            case StartCall():
                self.caller.start(effect)
            case StopCall(token=token, force=force):
                self.caller.stop(token, force=force)
            case Answer(reply=reply, value=value, error=error):
                reply.answer(value, None if error is None else _bare(error))
            case ApprovalDecided():
                self.caller.approvals.answer(effect)
            case RunHook():
                self.caller.hook(effect)
            case StartWorker() | StopWorker() | KillWorker():
                self._do_to_worker(effect)
            case ReleaseResources():
                gc.collect()
                for one in self.caller.engines.values():
                    one.release()
            case Tell(notice=notice):
                self.caller.failed_hooks += notice.event == "hook_failed"
                self.tell_notice(notice)
            case EntityDropped() | MachineOver():
                self._forget(effect)
            case JobOver() | JobsTakenOver():
                self._about_jobs(effect)
            case _:
                raise TypeError(f"{effect!r} is not an effect that a runtime carries out")

    def _forget(self, effect: EntityDropped | MachineOver) -> None:
        """Count a released entity. After many workers and breakers, their records are removed from the journal."""
        if isinstance(effect, MachineOver):
            self._over.append(effect.name)
            self.on_machine_over(effect.name)
            retire(self.kernel, effect.name)
            return
        self.counting.forget_entity(effect.id)
        if effect.name and (engine := self.caller.engines.get(effect.engine)) is not None:
            engine.forget_worker(effect.name)
        self._dropped_count += 1
        if self._dropped_count % DROPPED_AT_ONCE == 0:
            self.journal.append(Entry([], [], tidy=True))

    def _about_jobs(self, effect: JobOver | JobsTakenOver) -> None:
        match effect:
            case JobOver(job=job):
                self.on_job_over(job)
                job.release_actors()
                self._bodies.release(job.spec)
            case JobsTakenOver(jobs=jobs, seq=seq):
                self.hub.told = max(self.hub.told, seq)  # transitions that another node emitted are past
                for job in jobs:
                    self.on_job_here(job)

    def _do_to_worker(self, effect: StartWorker | StopWorker | KillWorker) -> None:
        engine, worker, incarnation = self.caller.engines[effect.engine], effect.worker, effect.incarnation
        match effect:
            case StartWorker():
                engine.start_worker(worker, incarnation)
                self.probe(effect.engine, worker, incarnation)
            case StopWorker(deadline=deadline):
                engine.stop_worker(worker, incarnation, deadline)
            case KillWorker():
                engine.kill_worker(worker, incarnation)

    def look_again(self) -> None:
        """Wake all waits for durable entries, since something else has changed."""
        if self._moved is not None:
            self._moved.set()

    def check_open(self) -> None:
        """Raise RuntimeClosed if the host has closed: it answers no more commands."""
        if self._closed:
            raise closed("the runtime has closed", self._cause)

    async def moved(self) -> None:
        """Wait until more is durable, or the host closes. Raises RuntimeClosed if the host is already closed."""
        self.check_open()
        if self._moved is None or self._moved.is_set():
            self._moved = anyio.Event()
        await self._moved.wait()

    async def hooks_over(self) -> None:
        """Wait until no hook, alert or callback runs. Each has a time limit."""
        while any(call.kind == "hook" for call in self.kernel.calls.values()):
            await self.moved()

    async def settled(self, limit: float) -> bool:
        """Wait until all entries so far are durable. False if they cannot be, or after `limit` seconds."""
        journal, number = self.journal, self.journal.tail
        if journal.durable >= number:
            return True
        with anyio.move_on_after(limit):
            while journal.durable < number and journal.health.ok:
                await self.moved()
        return journal.durable >= number

    @property
    def takes(self) -> bool:
        """Whether new commands from outside are accepted."""
        return self.journal.backlog <= MAX_BACKLOG and self.journal.health.ok

    async def gate(self) -> None:
        """Wait until new commands from outside are accepted. Raises RuntimeClosed if the host closes first."""
        while not self.takes:
            await self.moved()

    async def barrier(self) -> None:
        """Wait until every input so far has run, and its effects are durable."""
        await self.ask(Barrier)

    def go_ahead(self) -> None:
        """Release the effects so far of the present coroutine receive of a user's actor, which waits for an answer."""
        self.dispatcher.effects.release_present()

    async def ask(
        self,
        make: Callable[[Reply], Message],
        *,
        request: Request | None = None,
        over: Callable[[], None] | None = None,
    ) -> Any:
        """Send the kernel the command that `make(reply)` makes. Returns its answer, or raises its refusal.

        request: the user's key of the command. over: called when the command is answered, also if the caller no longer
        waits, and when the host closes.

        Raises RuntimeClosed if the host closes first: then only the journal knows whether the command took effect.
        """
        return await self.command(make, request=request, over=over).answered()

    def command(
        self,
        make: Callable[[Reply], Message],
        *,
        request: Request | None = None,
        over: Callable[[], None] | None = None,
        here: bool = False,
    ) -> KernelCommand:
        """Send the kernel a command, as `ask` does, without waiting for its answer.

        here: begin the commit in this turn of the loop, unless others wait for answers: then one commit is made for all
        of them.
        """
        question = KernelCommand(self.dispatcher.waiter(), self._questions.discard, over)
        if self._closed:
            question.answer(None, closed("the runtime has closed", self._cause))
        else:
            deliver = self.dispatcher.run_here if here and not self._questions else self.dispatcher.at_once
            self._questions.add(question)
            self.go_ahead()
            message = make(Reply(question.answer, request))
            deliver(self._tell_control if _overtakes(message) else self._inbox.tell, message)
        return question

    def command_nowait(self, make: Callable[[Reply], Message], over: Callable[[Any, Exception | None], object]) -> None:
        """Send the kernel a command, and call `over` with its answer, its refusal, or RuntimeClosed."""

        def answered() -> None:
            over(*question.outcome)

        question = KernelCommand(_NOBODY, self._questions.discard, answered)
        if self._closed:
            question.answer(None, closed("the runtime has closed", self._cause))
        else:
            self._questions.add(question)
            self.tell(make(Reply(question.answer)))

    def close(self, cause: BaseException | None = None) -> None:
        """End all waits with RuntimeClosed. cause: the error that broke the runtime, if any."""
        if not self._closed:
            self._closed, self._cause = True, cause
        for question in list(self._questions):
            question.answer(None, closed("the runtime closed before this was done", self._cause))
        if self._moved is not None:
            self._moved.set()
        for closes in self.on_close:
            closes(self._cause)
        self.hub.close(self._cause)

    def drop_pending(self) -> None:
        """Drop all pending effects and calls, at the very end.

        The garbage collector does not track effects and calls: one with a reference to a job, or to a worker's pool,
        would keep the whole runtime in memory.
        """
        self._pending.clear()
        self.kernel.leave_off()

    def abandon(self) -> None:
        """Stop all running calls at once, and drop effects that wait for a commit: another node owns the jobs now."""
        self._pending.clear()
        self.caller.abandon()


def _overtakes(message: Message) -> bool:
    """Whether a message is a command about a job, a task, a worker or a tool, which overtakes data.

    There may be much data. An event of a machine does not overtake earlier messages to that machine.
    """
    return type(message) is Command and type(message.target) is int


def _bare(error: Exception) -> Exception:
    """The error and its causes, without the frames in which they were raised.

    The frames reference the turn, and the turn's effects reference the error. The garbage collector does not track
    effects (`gc=False`), so such a cycle would stay for ever.
    """
    for one in origins(error):
        set_traceback(one, None)
    return error


class _Nobody:
    """Waits for a command that nobody awaits."""

    def set(self) -> None: ...

    async def wait(self) -> None: ...


_NOBODY = _Nobody()


class KernelCommand:
    """A command to the kernel, and its answer."""

    __slots__ = ("_answered", "_done", "_error", "_over", "_value", "_waiter")

    def __init__(
        self, waiter: Waiter, done: Callable[[KernelCommand], None], over: Callable[[], None] | None = None
    ) -> None:
        self._waiter = waiter
        self._done = done
        self._over = over
        self._answered = False
        self._value: Any = None  # the type of the answer depends on the command
        self._error: Exception | None = None

    def answer(self, value: Any, error: Exception | None) -> None:
        """Set the answer. Only the first answer counts."""
        if not self._answered:
            self._answered, self._value, self._error = True, value, error
            self._waiter.set()
            self._done(self)
            if self._over is not None:
                self._over()

    @property
    def outcome(self) -> tuple[Any, Exception | None]:
        """The answer, and the error of a refusal."""
        return self._value, self._error

    def wait_again(self, waiter: Waiter) -> Awaitable[Any]:
        """`answered` after a wait that was cancelled."""
        self._waiter = waiter
        return self.answered()

    async def answered(self) -> Any:
        """Wait for the answer. Raises it if it is an error."""
        if self._answered:
            await checkpoint()  # else a body whose journal is in memory would never let others run
        else:
            await self._waiter.wait()
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # otherwise the error would reference itself, by its traceback
        return self._value
