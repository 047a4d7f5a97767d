"""The kernel: runs the lifecycle actors in turns, and nothing else does.

What a turn is made of is in `transaction.py`, what actors do in one in `operations.py`, what all the actors are in
`entity.py`.

Rules (DESIGN sections 7 and 8)
-----
- A *turn* is one input from outside and every message it causes, first in first out, until none is left. It is
  committed whole: transitions, records and effects. An actor never awaits, never reads a clock, never does I/O.
- Records are immutable. The first change of an entity in a turn notes the record it had; if anything in the turn
  raises, those are put back and all that is derived from records is rebuilt (`restore.py`), as recovery does. The
  input then fails its entity (`TurnFailed`). Where it was another task that raised, that one fails and the input is run
  again. If failing fails as well, the entity is left as it is, out of the queue and without timers, and said so.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, Any, cast

from ...machines import InvalidTransitionError
from ..machines.kind import FireFailed, MachineNotFound
from ..machines.lifecycles import Lifecycles
from ..machines.refusals import in_its_words
from ..messages.commands import AskApproval, Command, LeaveApproval, NextRun, Reply, StartWorkers, Submit
from ..messages.inputs import (
    REBUILT,
    Beat,
    CallEnded,
    Continue,
    Leave,
    Message,
    ProcessStarted,
    Rebuilt,
    Recover,
    TimerFired,
    TurnFailed,
)
from ..messages.notices import Notice
from ..records.base import Record
from ..spec.model import Defaults, Tool, Workstream
from ..spec.names import node_of
from ..user_code import called, contained, kind_name, raised_by_user, said, shown
from ..workers.tool_limits import ToolLimits
from .entity import Entity
from .idempotency import keep_request
from .operations import Staging
from .recent import keep_last
from .transaction import Answer, LetGo, Port, Receiver, StopCall, Transaction

if TYPE_CHECKING:
    from ..jobs.job import JobActor
    from ..jobs.workstream import WorkstreamActor
    from ..machines.entity import MachineEntity
    from ..records.entities import JobRecord
    from ..tasks.task import TaskActor
    from ..workers.alerts import Alerter
    from ..workers.breaker import BreakerActor
    from ..workers.supervisor import SupervisorActor
    from ..workers.worker import WorkerActor
    from .restore import Recovery


ASKED = frozenset({"condition", "check", "cancel_hook"})
"""The kinds of calls of which an entity has one at a time: its `last_call`."""

RERUNS = 100
"""Of so many jobs that were run again, and have ended, it is known that what was loaded before comes too late."""
OTHER = "(other)"
"""What is counted under one name: it may be anything that somebody made up."""
KINDS_COUNTED = 1_000
"""Kinds of refusals that are counted apart."""
WORKERS_KEPT = 200
"""Workers that have ended which are still at hand, by their names."""
LEAVING = 500
"""Actors of an ended run that are let go in one turn."""


class Kernel(Staging):
    """The lifecycle actors of one runtime, and the turns they are run in. Made by `restore.make_kernel`."""

    def __init__(
        self,
        port: Port,
        defaults: Defaults,
        tools: Mapping[str, Tool],
        lifecycles: Lifecycles | None = None,
        node: str = "",
    ) -> None:
        super().__init__(port)
        self.node = node  # its name among those that share its journal; "" where it has that alone
        self.defaults = defaults
        self.tools = tools  # what the runtime itself says of tools
        self.tool_limits = ToolLimits(self)
        self.lifecycles = lifecycles or Lifecycles()
        self.jobs: dict[str, JobActor] = {}
        self.breakers: dict[str, BreakerActor] = {}
        self.named: dict[str, WorkerActor] = {}  # the last incarnation of each, ended or not
        self.machines: dict[str, MachineEntity] = {}  # by name; ended ones too, as long as they are at hand
        self.retired: dict[str, None] = {}  # those that have ended durably, oldest first
        self.reruns: dict[str, JobRecord] = {}  # the last of the jobs that were run again and have been let go, by id
        self.kinds: dict[int, int] = {}  # under which key what they run by is kept, by its digest
        self.kinds_most = 0  # having so many, it looks which of them no machine at hand runs by
        self.gone: dict[str, None] = {}  # names of workers that have ended, oldest first
        self.incarnations: dict[str, int] = {}
        self.program = 0  # the key of the first worker of this start
        self.let_go_run = 0  # no incarnation of a worker that was let go has a higher number
        self.awaited: dict[str, float] = {}  # as `Loaded.awaited`, until the inbox has been taken
        self.put_off: set[int] = set()  # keys of what would have expired, but for those
        self.drain_began: float | None = None  # UTC epoch seconds: when it was told to claim nothing more
        self.draining = False  # what still runs is being stopped, its tries given back
        self.stale = 0
        self.set_back = port.set_back  # as far as due times have followed it
        self.rejected: Counter[tuple[str, str, str]] = Counter()  # commands that a state did not allow
        self.invocations: Counter[str] = Counter()  # attempts that began with each tool
        self.tests: Counter[bool] = Counter()  # acceptance tests that passed (True), and that did not
        self.blamed: set[int] = set()  # tasks that failed another's turn
        self.stuck: set[int] = set()  # entities that could not even be failed
        self.supervisor: SupervisorActor
        self.recovery: Recovery
        self.alerter: Alerter
        self.alerting = False  # somebody wants alerts
        self.ring: Callable[[], None] = _nobody
        """Where nodes share tools: has somebody look at what is to be told or asked of them, after the present turn."""

    # -- turns ---------------------------------------------------------------------------------------------------------

    def placed(self, name: str) -> str:
        """The id of what each node has of its own under that name: a worker, a breaker."""
        return f"{name}@{self.node}" if self.node else name

    def left_by(self, worker_id: str | None) -> str:
        """Why what a worker was given goes on without it: its process is gone, here or on another node."""
        node = node_of(worker_id) if self.node else ""
        return "runtime_restarted" if node in {"", self.node} else f"node {node!r} is gone"

    def count_from(self, key: int, seq: int) -> None:
        """Give only numbers above these from now on."""
        self.key, self.seq = max(self.key, key), max(self.seq, seq)

    def run(self, message: Message) -> None:
        """Run an input. Never raises for what an actor does wrong: that turn is undone and its entity fails."""
        if isinstance(message, Recover) and not message.key:
            self.recovery.take_over(message)
        else:
            self.run_turn(message)

    def _follow_clock(self) -> None:
        """The wall clock was set back: so are the due times of all that waits, in a turn of its own."""
        by, self.set_back = self.port.set_back - self.set_back, self.port.set_back
        turn = self.turn = Transaction()
        for entity in self.entities.values():
            if not entity.ended:
                entity.set_back(by)
        text = f"the wall clock was set back by {by:.0f} s: what waits for a span is due as soon as it was"
        self.notice("clock_set_back", "warning", text, seconds=round(by, 3))
        self.port.commit(turn)

    def run_turn(self, message: Message) -> None:
        """Run an input and all that it causes, and commit that; or undo it, and fail its entity."""
        self.at = self.port.now()
        if self.port.set_back != self.set_back:
            self._follow_clock()
        turn = self.turn = Transaction()
        seq = self.seq
        actor: Receiver | None = None
        try:
            self._begin(message)
            queue, scheduler = turn.queue, self.scheduler
            while True:
                while queue:
                    actor, told = queue.popleft()
                    actor.receive(told)
                if not scheduler.to_match:
                    break
                actor = scheduler
                scheduler.match()
        except BaseException as raised:  # of a function of the application's that was called in it
            self._undo(turn, seq, message, actor, contained(raised))
            return
        if self.alerting:
            self.alerter.look(turn)
        self.port.commit(turn)
        if turn.leftover is not None:
            self.let_go(turn.leftover)

    def _begin(self, message: Message) -> None:
        """Hand an input to the actor it is for."""
        match message:
            case CallEnded() | Beat() | ProcessStarted() | AskApproval() | LeaveApproval():
                self._about_call(message)
            case Command(target=key, message=told, reply=reply):
                self._command(key, told, reply)
            case Continue(key=key):
                if (entity := self.entities.get(key)) is not None:
                    entity.receive(message)
            case Leave():
                self._leave(message)
            case _:
                self.supervisor.receive(message)

    def _about_call(self, message: CallEnded | Beat | ProcessStarted | AskApproval | LeaveApproval) -> None:
        call = self.calls.get(message.token)
        if call is None:
            self.stale += 1
            kind = type(message).__name__
            text = f"a {kind} under fencing token {message.token} is stale: refused"
            self.notice("stale_message", "warning", text, message=kind, token=message.token)
            if isinstance(message, Beat):  # it lives, and should not
                self.effect(StopCall(message.token, force=True))
            return
        if not isinstance(message, CallEnded):
            if call.kind == "body":  # of conditions, checks and hooks neither beats nor processes are kept
                self.entities[call.key].receive(message)
        elif call.kind == "hook":
            self.supervisor.receive(message)
        else:
            entity = self.entities[call.key]
            entity.receive(message)
            self.turn.leftover = entity.job_over()

    def _command(self, key: int | str, message: Message, reply: Reply) -> None:
        """Run a user's command; what the state does not allow is a refusal, and changes nothing."""
        entity = self.machines.get(key) if isinstance(key, str) else self.entities.get(key)
        if entity is None:
            self.effect(Answer(reply, None, LookupError("it has ended, or was never here: look it up in the history")))
            return
        if reply.request is not None and reply.request.sent_at:
            self.turn.said_at = min(reply.request.sent_at, self.at)
        try:
            entity.receive(message)
        except InvalidTransitionError as refusal:
            if self.turn.before or self.turn.queue:  # half of it is done already
                raise
            self.refuse(reply, refusal, entity)
        except (FireFailed, MachineNotFound) as refusal:
            self.effect(Answer(reply, None, refusal))
        else:
            self.done(reply, entity, entity.answer())

    def refuse(self, reply: Reply, refusal: InvalidTransitionError, entity: Entity[Any]) -> None:
        """Answer that the state does not allow it, in the words of what the entity runs by, and count that."""
        job = self.jobs.get(entity.record.id) if entity.record.kind == "job" else None
        stream = None if job is None else job.stream
        about = stream if stream is not None and refusal.machine == stream.machine.name else entity
        in_its_words(refusal, about.record, self.lifecycles)
        self.count_refusal(refusal, about.known_events)
        self.effect(Answer(reply, None, refusal))

    def count_refusal(self, refusal: InvalidTransitionError, known: Container[str]) -> None:
        """Count what a state did not allow. What no machine knows, or knows too much of, counts as one."""
        machine, state, event = refusal.machine, str(refusal.state), str(refusal.event)
        if refusal.in_own_words.event not in known:
            event = OTHER
        if (machine, state, event) not in self.rejected and len(self.rejected) >= KINDS_COUNTED:
            machine = state = event = OTHER
        self.rejected[machine, state, event] += 1

    def count_invocation(self, tool: str) -> None:
        """Count an attempt that begins with a tool. Of tools there may be any number: the last of too many are one."""
        known = tool in self.invocations or len(self.invocations) < KINDS_COUNTED
        self.invocations[tool if known else OTHER] += 1

    def done(self, reply: Reply, entity: Entity[Any], value: object = None) -> None:
        """Answer a command about `entity` that has taken effect; the key it was given commits with it."""
        if reply.request is None:
            self.effect(Answer(reply, value))
        else:
            keep_request(entity, reply, value)

    # -- when a turn raises --------------------------------------------------------------------------------------------

    def _undo(self, turn: Transaction, seq: int, message: Message, actor: Receiver | None, error: Exception) -> None:
        """Put back what the turn changed, rebuild what is derived, and have somebody answer for it."""
        self._put_back(turn, seq)
        self.port.tell_notice(_undone(message, error, self.at))
        if isinstance(message, TurnFailed):
            self._give_up(message)
        self.recovery.rebuild()
        reply = message.reply if isinstance(message, Command | Submit | NextRun | StartWorkers) else None
        answers = reply is not None
        if reply is not None:
            self.turn = Transaction()
            self.effect(Answer(reply, None, error))
            self.port.commit(self.turn)
        text = said(error)
        culprit = self._culprit(actor)
        key, token = self._input_of(message)
        if culprit and culprit != key:
            self.blamed.add(culprit)
            self.port.later(TurnFailed(culprit, text))
            if not answers:
                self.port.later(message)
        elif key and not isinstance(message, TurnFailed):
            self.port.later(TurnFailed(key, text, token))
        if not isinstance(message, Rebuilt):
            self.port.later(REBUILT)

    def _put_back(self, turn: Transaction, seq: int) -> None:
        self.seq = seq
        for entity, record in turn.before.items():
            entity.record = record
        for entity in turn.created:
            self.forget(entity)
        for book, token, call in reversed(turn.booked):
            if call is None:
                book.pop(token, None)
            else:
                book[token] = call

    def _give_up(self, message: TurnFailed) -> None:
        """Not even failing worked: leave the entity as it is, where it does no harm."""
        self.stuck.add(message.key)
        self.calls.pop(message.token, None)

    def _culprit(self, actor: Receiver | None) -> int:
        """The key of the task that raised, where it was one and has not been blamed before; else 0."""
        record: Record | None = next((one.record for one in self.entities.values() if one is actor), None)
        if record is None or record.kind != "task" or record.key in self.blamed or record.key in self.stuck:
            return 0
        return record.key

    def _input_of(self, message: Message) -> tuple[int, int]:
        """The key of the entity that an input is for, and the token of the call whose end it is; 0 for none."""
        match message:
            case CallEnded(token=token) if token in self.calls:
                return self.calls[token].key, token
            case TimerFired(key=key) | Continue(key=key) | Recover(key=key) | TurnFailed(key=key):
                return key, 0
            case _:
                return 0, 0

    # -- what has ended ------------------------------------------------------------------------------------------------

    def spec_of(self, token: int) -> Workstream | None:
        """The specification of the workstream whose task's body runs under a token; None where none does."""
        call = self.calls.get(token)
        entity = None if call is None else self.entities.get(call.key)
        return None if entity is None or entity.record.kind != "task" else cast("TaskActor", entity).stream.spec

    def folder_of(self, token: int) -> str | None:
        """The folder of the specification of the task whose body runs under a token."""
        spec = self.spec_of(token)
        return None if spec is None else spec.folder

    def let_go(self, job: JobActor) -> None:
        """Let the actors of a job go that has ended durably, once nothing of it runs."""
        job.over = True
        job.past = [stream for stream in job.past if not self.drop(stream)]
        if job.past or (job.stream is not None and not self.drop(job.stream)):
            return
        self.forget(job)
        self.jobs.pop(job.record.id, None)
        if job.record.run > 1:
            keep_last(self.reruns, job.record.id, job.record, RERUNS)

    def drop(self, stream: WorkstreamActor) -> bool:
        """Let the actors of a run go that has ended, unless something of it still runs: then False."""
        first, last = stream.record.first_task, stream.record.first_task + stream.record.task_count
        if any(first <= call.key < last or call.key == stream.record.key for call in self.calls.values()):
            return False
        self.forget(stream)
        self.scheduler.forget(stream.record.key)
        self._leave(Leave(stream.tasks))
        return True

    def _leave(self, message: Leave) -> None:
        """Let the actors of an ended run's tasks go, so many at a time."""
        tasks, end = message.tasks, message.first + LEAVING
        for task in tasks[message.first : end]:
            self.forget(task)
            for approval in task.asked:
                self.forget(approval)
        if end < len(tasks):
            self.port.later(Leave(tasks, end))

    def gone_worker(self, name: str) -> None:
        """A worker has ended. Of those there are always more: the oldest are let go."""
        self.gone.pop(name, None)
        self.gone[name] = None
        while len(self.gone) > WORKERS_KEPT:
            oldest = next(iter(self.gone))
            del self.gone[oldest]
            worker = self.named.get(oldest)
            if worker is None or not worker.ended or oldest in self.supervisor.health.coming:
                continue
            del self.named[oldest]
            self.let_go_run = max(self.let_go_run, self.incarnations.pop(oldest, 0))
            self.supervisor.health.forgive(oldest)
            if worker.before is not None:
                self.forget(worker.before)
            self.forget(worker)
            self.effect(LetGo(worker.record.id, worker.record.name, worker.record.engine))

    def forget(self, entity: Entity[Any]) -> None:
        """Let an entity go: it is terminal and durable, or was never committed."""
        entity.disarm_all()
        self.entities.pop(entity.record.key, None)
        self.stuck.discard(entity.record.key)
        self.blamed.discard(entity.record.key)


def _nobody() -> None:
    """Nobody shares anything with this node."""


def _undone(message: Message, error: Exception, at: float) -> Notice:
    text = f"a turn of {type(message).__name__} raised {shown(error)} and was undone"
    # As text, since what renders exceptions for people may print every local variable, secrets too.
    try:
        trace = "".join(called(traceback.format_exception, raised_by_user(error)))
    except Exception as broken:  # the error of a function of the application's may have code of its own
        trace = f"(the traceback could not be made: {kind_name(broken)})"
    return Notice(event="turn_undone", severity="error", text=text, at=at, facts={"traceback": trace}, error=error)
