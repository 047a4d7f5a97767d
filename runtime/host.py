"""The host of the lifecycle actors: gives their kernel time, a journal and effects. The kernel's `Port`.

Rules
-----
- Inputs come by one system cell of the dispatcher, controls before data: timers, and what people say about jobs, tasks,
  workers and tools. One input is one turn is one entry.
- Output commit: what a turn wants done waits until the journal's tail at that moment is durable, and is then done in
  order. With a volatile journal that is at once.
- The gate: while the journal cannot write, or has too much to write, nothing new is taken from outside. Results are.
- Timers arm at once. Those by UTC never sleep for more than a minute without looking at the clock.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import anyio

from ..actors.jobs.job import JobActor
from ..actors.kernel.kernel import Kernel
from ..actors.kernel.transaction import (
    NO_ENGINE,
    Answer,
    Armed,
    Decided,
    Effect,
    JobOver,
    KillWorker,
    LetGo,
    MachineOver,
    ReleaseResources,
    RunHook,
    StartCall,
    StartWorker,
    StopCall,
    StopWorker,
    TakenOver,
    Tell,
    Transaction,
)
from ..actors.machines.entity import retire
from ..actors.messages.commands import Barrier, Command, Reply, Request
from ..actors.messages.inputs import CLOCK_SET, Continue, Message, TimerFired, WorkerBeat
from ..actors.messages.notices import Notice, NoticeRecord
from ..actors.records.transition import Transitioned
from ..actors.spec.model import Task, Workstream
from ..actors.user_code import called, origins, said, set_traceback
from .dispatch.dispatcher import Dispatcher
from .dispatch.timers import Timer
from .dispatch.wall_timers import LONGEST_SLEEP, UtcTimer, UtcTimers
from .dispatch.watchdog import Watchdog
from .execution.calls import Caller
from .functions.main_program import NOT_OF_A_FILE
from .functions.registry import Bodies, BodyNotFound, NoPath, kind_of, located, placed
from .handles.outcomes import closed
from .journal.contract import Entry, Journal
from .observation.events import EventBus
from .observation.metrics import Counting
from .observation.notices import Notices
from .text.secrets import Secrets

if TYPE_CHECKING:
    from .cluster.node_context import NodeContext

MAX_BACKLOG = 50_000
"""Transitions that may wait for the disk before the gate closes."""
EFFECTS_AT_ONCE = 500
"""So many effects are released in a row, at least those of one turn, before the dispatcher looks at its clock."""
ENGINES_KEPT = 10_000
"""Names of functions of which it is kept what engine runs them."""
LET_GO_AT_ONCE = 500
"""After so many workers and breakers have been let go, their records are taken out of the journal."""
SLOW_COMMIT = 1.0
"""Seconds: a journal that wants to be asked so late only has been writing for about twice as long."""


class Host:
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
        """Tell of something that the runtime itself noticed, at once."""
        self.counting = Counting()
        self._batch: list[Transitioned] = []  # what is told at present, and not counted yet
        self.kernel: Kernel
        self.caller: Caller
        self.watchdog: Watchdog | None = None
        self.on_job_over: Callable[[JobActor], None] = lambda _: None
        self.on_machine_over: Callable[[str], None] = lambda _: None  # told of each name
        self.events_left = 0  # in the inbox, for machines that are not here
        self.on_close: Callable[[], None] = lambda: None
        self.on_job_here: Callable[[JobActor], None] = lambda _: None  # told of each that was taken over
        self._bodies = bodies
        self._clock = dispatcher.clock
        self._utc: UtcTimers
        # What the kernel asks several times a turn, bound once:
        self.now: Callable[[], float]
        """UTC epoch seconds."""
        self.monotonic = dispatcher.clock.monotonic
        """Seconds of a clock that nobody sets."""
        self._go_by(LONGEST_SLEEP)
        self.set_back = 0.0
        """Seconds by which the wall clock was set back in all, as far as `now` has seen."""
        self._inbox = dispatcher.spawn_system(self._receive, "lifecycles")
        self._tell_control = self._inbox.tell_control  # bound once: thousands of timers hold it
        self.tell: Callable[[Message], None] = self._inbox.tell
        """Give the kernel an input."""
        self._pending: deque[tuple[int, list[Effect], Sequence[Transitioned]]] = deque()
        self._engine_of: dict[str, str] = {}
        self._let_go = 0  # workers and breakers that are known no more
        self._over: list[str] = []  # machines that have ended, still to be counted
        self._moved: anyio.Event | None = None
        self.seat: NodeContext | None = None
        self.on_health: Callable[[], None] = lambda: None  # told when the journal can be written no more, or again
        self._questions: set[Question] = set()
        self._closed = False
        self._cause: BaseException | None = None  # what the runtime broke by
        self._unwritable_since: float | None = None  # monotonic; None while the journal can be written
        dispatcher.after_slice = self._after_slice

    def _go_by(self, longest_sleep: float) -> None:
        """Have timers by the wall clock, which have the kernel look at it when it was set back."""
        self._utc = UtcTimers(self._clock, self.dispatcher.timers, longest_sleep, self._clock_set)
        self.now = self._utc.wall.now

    def _clock_set(self) -> None:
        self.set_back = self._utc.wall.set_back
        self.later(CLOCK_SET)

    # -- inputs --------------------------------------------------------------------------------------------------------

    def _receive(self, message: Message) -> bool:
        self.kernel.run(message)
        return type(message) is Continue  # which is a part of something long

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
        """What the journal calls on the loop: more has become durable, or whether it can be written has changed."""
        self._look_at_journal()
        self.release()

    def _look_at_journal(self) -> None:
        """Tell of a journal that cannot be written, once, and when it can be again."""
        health = self.journal.health
        if health.ok is (self._unwritable_since is None):
            return
        if health.lost:  # it is not tried again: `lease_lost` is told, by who looks what has become of this node
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

    def arm(self, due: float, fire: TimerFired, *, by_utc: bool, named: bool = False) -> Armed:
        """Have `fire` come as an input at `due`."""
        if by_utc:
            arm = self._utc.arm if named else self._utc.arm_span
            return arm(due, self._tell_control, fire)
        left = due - self._clock.time()
        return self.dispatcher.timers.arm(self._clock.monotonic() + left, self._inbox.tell_control, fire)

    def disarm(self, timer: Armed) -> None:
        """Forget a timer."""
        if isinstance(timer, UtcTimer):
            self._utc.cancel(timer)
        elif isinstance(timer, Timer):
            self.dispatcher.timers.cancel(timer)

    def later(self, message: Message) -> None:
        """Have `message` come as an input of its own."""
        self._inbox.tell_control(message)

    def engine_of(self, task: Task) -> str:
        """The engine that runs a task: its own, or what its body is made for; none while that is not there."""
        if task.command is not None:
            return task.engine or "command"
        name: Any = task.run  # by now a name
        engine = self._engine_of.get(name)
        if engine is None:
            try:
                engine = called(lambda: kind_of(self._bodies.resolve(name)))
            except Exception:  # it is not there, or cannot be looked at
                return NO_ENGINE
            if len(self._engine_of) >= ENGINES_KEPT:  # those of local functions have names of their own each time
                self._engine_of.clear()
            self._engine_of[name] = engine
        return task.engine or engine

    def placed(self, spec: Workstream) -> Workstream:
        """A specification of the journal, with its functions named as they are kept now."""
        return placed(spec)

    def located(self, path: str, folder: str) -> str:
        """An import path that an older version kept beside its folder, as it is kept now."""
        return located(path, folder, program=False)

    def travels(self, task: Task) -> bool:
        """Whether another machine can find what a task runs: a command, or a function that has an import path."""
        name: Any = task.run  # by now a name
        if name is None or (":" in name and not self._bodies.is_registered(name)):
            return name is None or not name.startswith(NOT_OF_A_FILE)
        try:
            return not self._bodies.path_for(name, self._bodies.resolve(name)).startswith(NOT_OF_A_FILE)
        except (NoPath, BodyNotFound):
            return False

    def missing(self, task: Task) -> str:
        """Why a task's function cannot be found, in words."""
        name: Any = task.run  # by now a name
        try:
            called(self._bodies.callable_body, name)
        except Exception as error:  # whatever its module does
            return str(error) if isinstance(error, BodyNotFound) else said(error)
        return "it was not there when it was looked for"

    def resolve(self, name: str) -> Callable[..., Any]:
        """The function of that path or registered name. Raises BodyNotFound."""
        return self._bodies.resolve(name)

    def find(self, path: str) -> object:
        """What stands under an import path, or a function by its name. Raises BodyNotFound."""
        return self._bodies.find(path)

    def probe(self, engine: str, worker: str, incarnation: int) -> None:
        """Ask a worker whether it lives. In-process engines answer at once, others when their process does."""
        tokens = self.caller.engines[engine].probe(worker, incarnation)
        if tokens is not None:
            self.later(WorkerBeat(worker, incarnation, tokens))

    def tell_notice(self, notice: Notice) -> None:
        """Tell of something at once. Raises nothing."""
        if notice.event == "clock_set_back":
            self.counting.count(self._batch)
            self._batch.clear()
            self.counting.set_back(float(notice.facts["seconds"]))
        self.notices.tell(notice)

    def begin_keeping(self) -> None:
        """The journal is open, and there is a kernel: notices are kept in it from now on."""
        self.notices.kept.open(self._keep_written, self.kernel.number, self.kernel.node or None)

    def end_keeping(self) -> None:
        """The journal is about to close: what is still to be written of notices goes to it, and no more comes."""
        self.notices.kept.close()

    def _keep_written(self, notices: list[NoticeRecord]) -> None:
        self.journal.append(Entry([], [], notices=notices))

    def commit(self, turn: Transaction) -> None:
        """Take a turn that is over: journal it, and do what it wants done when it is durable."""
        journal = self.journal
        records = turn.records
        if turn.transitions or records or turn.specs or turn.outbox_done:
            entry = Entry(turn.transitions, records, turn.specs, turn.outbox_done, specs_done=turn.specs_done)
            journal.append(entry)
        if turn.effects or turn.transitions:
            self._pending.append((journal.tail, turn.effects, turn.transitions))
            if self._pending[0][0] <= journal.durable:
                self.release()
        elif self._moved is not None:  # a call may be over that nobody waits for but who drains
            self._moved.set()

    # -- effects -------------------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Do what has become durable, in order; of very much a part, so that others get their turn in between."""
        pending, durable = self._pending, self.journal.durable
        told = bool(pending) and self.hub.wanted
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
                if told:
                    self.hub.publish(transitions)
                else:
                    self.hub.publish_trouble(transitions)
            for effect in effects:
                if type(effect) is StartCall:  # the most frequent one first
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
        """Messages that wait for the kernel."""
        return len(self._inbox.urgent) + len(self._inbox.data)

    def _do(self, effect: Effect) -> None:
        match effect:
            case StartCall():
                self.caller.start(effect)
            case StopCall(token=token, force=force):
                self.caller.stop(token, force=force)
            case Answer(reply=reply, value=value, error=error):
                reply.answer(value, None if error is None else _bare(error))
            case Decided():
                self.caller.desk.answer(effect)
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
            case LetGo() | MachineOver():
                self._forget(effect)
            case JobOver() | TakenOver():
                self._about_jobs(effect)
            case _:
                raise TypeError(f"{effect!r} is no effect of ours")

    def _forget(self, effect: LetGo | MachineOver) -> None:
        """Something is over for good. Of many workers and breakers, their records go as well."""
        if isinstance(effect, MachineOver):
            self._over.append(effect.name)
            self.on_machine_over(effect.name)
            retire(self.kernel, effect.name)
            return
        self.counting.let_go(effect.id)
        if effect.name and (engine := self.caller.engines.get(effect.engine)) is not None:
            engine.forget_worker(effect.name)
        self._let_go += 1
        if self._let_go % LET_GO_AT_ONCE == 0:
            self.journal.append(Entry([], [], tidy=True))

    def _about_jobs(self, effect: JobOver | TakenOver) -> None:
        match effect:
            case JobOver(job=job):
                self.on_job_over(job)
                self.kernel.let_go(job)
                self._bodies.release(job.spec)
            case TakenOver(jobs=jobs, seq=seq):
                self.hub.told = max(self.hub.told, seq)  # what was told of them elsewhere is past
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
        """Have whoever waits for something to become durable look: something else has changed."""
        if self._moved is not None:
            self._moved.set()

    async def moved(self) -> None:
        """Wait until something has become durable, or the host is closed. Raises RuntimeClosed if it is already."""
        if self._closed:
            raise closed("the runtime has closed", self._cause)
        if self._moved is None or self._moved.is_set():
            self._moved = anyio.Event()
        await self._moved.wait()

    async def settled(self, limit: float) -> bool:
        """Wait until what has been appended so far is durable; False if it cannot be, or takes over `limit` seconds."""
        journal, number = self.journal, self.journal.tail
        if journal.durable >= number:
            return True
        with anyio.move_on_after(limit):
            while journal.durable < number and journal.health.ok:
                await self.moved()
        return journal.durable >= number

    @property
    def takes(self) -> bool:
        """Whether something new may be taken from outside."""
        return self.journal.backlog <= MAX_BACKLOG and self.journal.health.ok

    async def gate(self) -> None:
        """Wait until something new may be taken from outside. Raises RuntimeClosed if that never comes."""
        while not self.takes:
            await self.moved()

    async def barrier(self) -> None:
        """Wait until every input given so far has been run, and what it did is durable."""
        await self.ask(Barrier)

    def go_ahead(self) -> None:
        """Let happen what the present coroutine receive of a user's actor has done so far: it waits for an answer."""
        turn = self.dispatcher.turn
        if turn is not None:
            self.dispatcher.release(turn)

    async def ask(
        self,
        make: Callable[[Reply], Message],
        *,
        request: Request | None = None,
        over: Callable[[], None] | None = None,
    ) -> Any:
        """Give the kernel the command that `make(reply)` makes; returns its answer, or raises its refusal.

        request: the key that the user gave it. over: called when it is answered, also where nobody waits any more, and
        when the host closes.
        Raises RuntimeClosed if the host closes first: whether it took effect is then known only to the journal.
        """
        question = Question(self._questions.discard, over)
        if self._closed:
            question.answer(None, closed("the runtime has closed", self._cause))
        else:
            self._questions.add(question)
            self.go_ahead()
            message = make(Reply(question.answer, request))
            self.dispatcher.at_once(self._tell_control if _overtakes(message) else self._inbox.tell, message)
        return await question.answered()

    def close(self, cause: BaseException | None = None) -> None:
        """Let everybody go who still waits; `cause` is what the runtime broke by."""
        if not self._closed:
            self._closed, self._cause = True, cause
        for question in list(self._questions):
            question.answer(None, closed("the runtime closed before this was done", self._cause))
        if self._moved is not None:
            self._moved.set()
        if self.seat is not None:
            self.seat.close(self._cause)
        self.on_close()
        self.hub.close(self._cause)

    def let_go(self) -> None:
        """When all is over: hold nothing of what was still to be done.

        The garbage collector does not know of effects and calls: one that names a job, or a worker's pool, would keep
        that, and with it the whole runtime.
        """
        self._pending.clear()
        self.kernel.leave_off()

    def abandon(self) -> None:
        """Stop all that runs at once, and start nothing that waits for a commit: it is another node's now."""
        self._pending.clear()
        self.caller.abandon()


def _overtakes(message: Message) -> bool:
    """Whether it is a command about a job, a task, a worker or a tool: those come before data, which may be much. An
    event of a machine comes after what that machine was told before.
    """
    return type(message) is Command and type(message.target) is int


def _bare(error: Exception) -> Exception:
    """The error, and what it came of, without the frames that they were raised in.

    Those hold the turn, whose effects hold the error; and since effects are unknown to the garbage collector
    (`gc=False`), such a circle would stay for ever.
    """
    for one in origins(error):
        set_traceback(one, None)
    return error


class Question:
    """Something that was asked, and its answer."""

    __slots__ = ("_arrived", "_done", "_error", "_over", "_value")

    def __init__(self, done: Callable[[Question], None], over: Callable[[], None] | None = None) -> None:
        self._done = done
        self._over = over
        self._arrived = anyio.Event()
        self._value: Any = None  # an answer is of whatever type the command has
        self._error: Exception | None = None

    def answer(self, value: Any, error: Exception | None) -> None:
        """Answer it. The first answer holds."""
        if not self._arrived.is_set():
            self._value, self._error = value, error
            self._arrived.set()
            self._done(self)
            if self._over is not None:
                self._over()

    async def answered(self) -> Any:
        """Wait for the answer; raises it if it is an error."""
        await self._arrived.wait()
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # or it would hold itself, by its traceback
        return self._value
