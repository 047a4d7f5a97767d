"""The kernel: runs the lifecycle actors in turns. Nothing else runs them.

The parts of a turn are in `transaction.py`, the operations of actors in a turn in `operations.py`, the base of all
actors in `entity.py`.

Rules (DESIGN sections 7 and 8)
-----
- A *turn* is one input from outside and every message that it causes, first in first out, until none is left. It is
  committed as a whole: transitions, records and effects. An actor never awaits, never reads a clock, never does I/O.
- Records are immutable. The first change of an entity in a turn saves its earlier record. If anything in the turn
  raises, the earlier records are restored and all derived state is rebuilt (`actors/restore.py`), as in recovery. The
  entity of the input then fails (`TurnFailed`). If another task raised, that task fails and the input runs again. If
  failing fails as well, the entity stays as it is, out of the queue and without timers, and a notice reports it.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ...machines import InvalidTransitionError
from ..messages.commands import (
    AskApproval,
    AwaitMessage,
    Command,
    KeepStep,
    LeaveApproval,
    LeaveMessages,
    LeaveTool,
    NextRun,
    Reply,
    RunStep,
    StartWorkers,
    StopStep,
    Submit,
    TakeMessage,
    UseTool,
)
from ..messages.errors import AttemptOver, FireFailed, MachineNotFound, TooManyMessages
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
from ..spec.lifecycles import Lifecycles
from ..spec.model import Defaults, Tool
from ..spec.names import node_of
from ..user_code import called, contained, kind_name, message_of, raised_by_user, shown
from .entity import Entity
from .idempotency import keep_request
from .operations import TurnOperations
from .refusals import in_its_words
from .transaction import Answer, Port, Receiver, StopCall, Transaction

if TYPE_CHECKING:
    from ..records.entities import JobRecord, MachineRecord
    from ..records.loaded import Loaded
    from .alerts import Alerter
    from .contract import Job

AboutCall: TypeAlias = (
    CallEnded
    | Beat
    | KeepStep
    | TakeMessage
    | AwaitMessage
    | UseTool
    | RunStep
    | ProcessStarted
    | AskApproval
    | LeaveApproval
)
"""The inputs of a call, under its fencing token."""
_ANSWERED = (Command, KeepStep, TakeMessage, AwaitMessage, UseTool, RunStep, Submit, NextRun, StartWorkers)
"""The inputs that have a `reply`."""
ASKED = frozenset({"condition", "check", "cancel_hook"})
"""The kinds of calls of which an entity has at most one at a time: its `last_call`."""

OTHER = "(other)"
"""The common name under which names beyond the known ones are counted: callers may invent any name."""
KINDS_COUNTED = 1_000
"""Number of different refusals, of different tools, and of different steps that are counted separately."""
LEAVING = 500
"""Number of task actors of an ended run that are released in one turn."""


class Recovery(Protocol):
    """The recovery, which restores the actors from their records (`actors/restore.py`)."""

    @property
    def drained(self) -> frozenset[int]:
        """The tokens of attempts that were running when a drain began, of entities that are being restored."""
        ...

    def take_over(self, message: Recover) -> None:
        """Continue the work of another process, in turns of its own."""
        ...

    def recover(self) -> None:
        """End the calls of the earlier process, in the current turn."""
        ...

    def adopt(self, loaded: Loaded) -> None:
        """Restore the entities that were taken over from another node."""
        ...

    def rebuild(self) -> None:
        """Derive all derived state again."""
        ...


class Kernel(TurnOperations):
    """Holds the lifecycle actors of one runtime and runs their turns. `actors/restore.py` makes it."""

    def __init__(
        self,
        port: Port,
        defaults: Defaults,
        tools: Mapping[str, Tool],
        lifecycles: Lifecycles | None = None,
        node: str = "",
    ) -> None:
        super().__init__(port)
        self.node = node  # the name of this node among those that share the journal; "" if no other node shares it
        self.defaults = defaults
        self.tools = tools  # the runtime's own settings of tools
        self.lifecycles = lifecycles or Lifecycles()
        self.jobs: dict[str, Job] = {}  # by id, until they are released
        self.machines: dict[str, Entity[MachineRecord]] = {}  # by name; ended machines too, as long as they are kept
        self.retired: dict[str, None] = {}  # names of machines that have ended durably, oldest first
        self.reruns: dict[str, JobRecord] = {}  # the last records of rerun jobs that were released, by id
        self.kinds: dict[int, int] = {}  # the key of each stored machine definition, by the definition's digest
        self.kinds_most = 0  # at this number of definitions, the kernel looks for those that no kept machine uses
        self.awaited: dict[str, float] = {}  # as `Loaded.awaited`, until the inbox has been read
        self.put_off: set[int] = set()  # keys of entities that do not expire until those decisions are handled
        self.drain_began: float | None = None  # UTC epoch seconds: when the kernel was told to claim nothing more
        self.draining = False  # calls that still run are being stopped, and their attempts are given back
        self.stale = 0
        self.set_back = port.set_back  # total seconds that due times have been set back
        self.rejected: Counter[tuple[str, str, str]] = Counter()  # commands that a state did not allow
        self.invocations: Counter[str] = Counter()  # attempts and tries of steps that began with each tool
        self.steps: Counter[tuple[str, str]] = Counter()  # steps of bodies that ended, by their names and states
        self.tests: Counter[bool] = Counter()  # acceptance tests that passed (True), and that did not
        self.blamed: set[int] = set()  # keys of tasks that raised in a turn of another entity
        self.stuck: set[int] = set()  # keys of entities that could not even be failed
        self.supervisor: Receiver
        self.recovery: Recovery
        self.alerter: Alerter
        self.alerting = False  # alerts are configured
        self.notify_nodes: Callable[[], None] = _nobody
        """If nodes share tools: requests that the messages to other nodes are sent after the present turn."""

    # -- turns ---------------------------------------------------------------------------------------------------------

    def placed(self, name: str) -> str:
        """The id of this node's own worker or breaker with that name."""
        return f"{name}@{self.node}" if self.node else name

    def left_by(self, worker_id: str | None) -> str:
        """The reason why a worker lost its attempt: its process has ended, here or on another node."""
        node = node_of(worker_id) if self.node else ""
        return "runtime_restarted" if node in {"", self.node} else f"node {node!r} has ended"

    def count_from(self, key: int, seq: int) -> None:
        """Assign only numbers above these from now on."""
        self.key, self.seq = max(self.key, key), max(self.seq, seq)

    def run(self, message: Message) -> None:
        """Run an input. Does not raise if an actor raises: the turn is undone and its entity fails."""
        if isinstance(message, Recover) and not message.key:
            self.recovery.take_over(message)
        else:
            self.run_turn(message)

    def _follow_clock(self) -> None:
        """Set back all due times, in a separate turn, after the wall clock was set back."""
        by, self.set_back = self.port.set_back - self.set_back, self.port.set_back
        turn = self.turn = Transaction()
        for entity in self.entities.values():
            if not entity.ended:
                entity.set_back(by)
        text = f"the wall clock was set back by {by:.0f} s: waits for a duration keep their remaining time"
        self.notice("clock_set_back", "warning", text, seconds=round(by, 3))
        self.port.commit(turn)

    def run_turn(self, message: Message) -> None:
        """Run an input with all messages that it causes, and commit. If one raises, undo all and fail the entity."""
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
                    actor, received = queue.popleft()
                    actor.receive(received)
                if not scheduler.to_match:
                    break
                actor = scheduler
                scheduler.match()
        except BaseException as raised:  # a function of the application that the turn called may raise anything
            self._undo(turn, seq, message, actor, contained(raised))
            return
        if self.alerting:
            self.alerter.look(turn)
        self.port.commit(turn)
        if turn.leftover is not None:
            turn.leftover.release_actors()

    def _begin(self, message: Message) -> None:
        """Pass an input to the actor that it addresses."""
        match message:
            case (
                CallEnded()
                | Beat()
                | KeepStep()
                | TakeMessage()
                | AwaitMessage()
                | UseTool()
                | RunStep()
                | ProcessStarted()
                | AskApproval()
                | LeaveApproval()
            ):
                self._about_call(message)
            case Command(target=key, message=told, reply=reply):
                self._command(key, told, reply)
            case Continue(key=key) | LeaveMessages(job=key):
                if (entity := self.entities.get(key)) is not None:
                    entity.receive(message)
            case LeaveTool() | StopStep():
                self.scheduler.receive(message)
            case Leave():
                self.leave(message)
            case _:
                self.supervisor.receive(message)

    def _about_call(self, message: AboutCall) -> None:
        call = self.calls.get(message.token)
        if call is None:
            self.stale += 1
            kind = type(message).__name__
            text = f"a {kind} under fencing token {message.token} is stale, and was refused"
            self.notice("stale_message", "warning", text, message=kind, token=message.token)
            if isinstance(message, Beat):  # the call still runs, but should have ended
                self.effect(StopCall(message.token, force=True))
            elif isinstance(message, KeepStep | TakeMessage | AwaitMessage | UseTool | RunStep):
                self.effect(Answer(message.reply, None, AttemptOver("this attempt has ended: its step was not kept")))
            return
        if not isinstance(message, CallEnded):
            if call.kind == "body":  # the beats and processes of conditions, checks and hooks are not kept
                self.entities[call.key].receive(message)
        elif call.kind == "hook":
            self.supervisor.receive(message)
        else:
            entity = self.entities[call.key]
            (self.scheduler if call.kind == "step" else entity).receive(message)
            self.turn.leftover = entity.job_over()

    def _command(self, key: int | str, message: Message, reply: Reply) -> None:
        """Run a user's command. A command that the state does not allow is refused, and changes nothing."""
        entity = self.machines.get(key) if isinstance(key, str) else self.entities.get(key)
        if entity is None:
            self.effect(Answer(reply, None, LookupError("it has ended, or never existed: look it up in the history")))
            return
        if reply.request is not None and reply.request.sent_at:
            self.turn.said_at = min(reply.request.sent_at, self.at)
        try:
            entity.receive(message)
        except InvalidTransitionError as refusal:
            if self.turn.before or self.turn.queue:  # the command has changed something already, so undo the turn
                raise
            self.refuse(reply, refusal, entity)
        except (FireFailed, MachineNotFound, TooManyMessages) as refusal:
            self.effect(Answer(reply, None, refusal))
        else:
            self.done(reply, entity, entity.answer())

    def refuse(self, reply: Reply, refusal: InvalidTransitionError, entity: Entity[Any]) -> None:
        """Refuse and count a command that the state does not allow.

        The error uses the words of the entity's lifecycle.
        """
        job = self.jobs.get(entity.record.id) if entity.record.kind == "job" else None
        stream = None if job is None else job.stream
        about = stream if stream is not None and refusal.machine == stream.machine.name else entity
        in_its_words(refusal, about.record, self.lifecycles)
        self.count_refusal(refusal, about.known_events)
        self.effect(Answer(reply, None, refusal))

    def count_refusal(self, refusal: InvalidTransitionError, known: Container[str]) -> None:
        """Count a refused event. Unknown events count as one; so do all kinds beyond the limit."""
        machine, state, event = refusal.machine, str(refusal.state), str(refusal.event)
        if refusal.in_own_words.event not in known:
            event = OTHER
        if (machine, state, event) not in self.rejected and len(self.rejected) >= KINDS_COUNTED:
            machine = state = event = OTHER
        self.rejected[machine, state, event] += 1

    def count_invocation(self, tool: str) -> None:
        """Count an attempt or a try of a step that begins with a tool. Tools beyond the limit of kinds count as one."""
        counted = tool in self.invocations or len(self.invocations) < KINDS_COUNTED
        self.invocations[tool if counted else OTHER] += 1

    def count_step(self, name: str, state: str) -> None:
        """Count a step that has ended. Names beyond the limit of kinds count as one."""
        counted = (name, state) in self.steps or len(self.steps) < KINDS_COUNTED
        self.steps[name if counted else OTHER, state] += 1

    def done(self, reply: Reply, entity: Entity[Any], value: object = None) -> None:
        """Answer a command to `entity` that has taken effect; its idempotency key commits with it."""
        if reply.request is None:
            self.effect(Answer(reply, value))
        else:
            keep_request(entity, reply, value)

    # -- when a turn raises --------------------------------------------------------------------------------------------

    def _undo(self, turn: Transaction, seq: int, message: Message, actor: Receiver | None, error: Exception) -> None:
        """Undo the turn, rebuild derived state, answer the command, and fail the entity that raised."""
        self._put_back(turn, seq)
        self.port.tell_notice(_undone(message, error, self.at))
        if isinstance(message, TurnFailed):
            self._give_up(message)
        self.recovery.rebuild()
        reply = message.reply if isinstance(message, _ANSWERED) else None
        answers = reply is not None
        if reply is not None:
            self.turn = Transaction()
            self.effect(Answer(reply, None, error))
            self.port.commit(self.turn)
        text = message_of(error)
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
        """Set aside an entity that could not even be failed, without its timers and its call."""
        self.stuck.add(message.key)
        self.calls.pop(message.token, None)

    def _culprit(self, actor: Receiver | None) -> int:
        """The key of the task that raised; 0 if no task raised, or it was blamed before."""
        record: Record | None = next((one.record for one in self.entities.values() if one is actor), None)
        if record is None or record.kind != "task" or record.key in self.blamed or record.key in self.stuck:
            return 0
        return record.key

    def _input_of(self, message: Message) -> tuple[int, int]:
        """The key of the input's entity, and the token of the call that it ends; 0 for none."""
        match message:
            case CallEnded(token=token) if token in self.calls:
                return self.calls[token].key, token
            case (
                KeepStep(token=token)
                | TakeMessage(token=token)
                | AwaitMessage(token=token)
                | UseTool(token=token)
                | RunStep(token=token)
            ) if token in self.calls:
                return self.calls[token].key, 0
            case TimerFired(key=key) | Continue(key=key) | Recover(key=key) | TurnFailed(key=key):
                return key, 0
            case _:
                return 0, 0

    # -- releasing ended entities --------------------------------------------------------------------------------------

    def leave(self, message: Leave) -> None:
        """Release the task actors of an ended run, `LEAVING` of them in a turn."""
        tasks, end = message.tasks, message.first + LEAVING
        for task in tasks[message.first : end]:
            self.forget(task)
            for approval in task.asked:
                self.forget(approval)
        if end < len(tasks):
            self.port.later(Leave(tasks, end))

    def forget(self, entity: Entity[Any]) -> None:
        """Release an entity that is terminal and durable, was never committed, or was handed over."""
        entity.disarm_all()
        self.entities.pop(entity.record.key, None)
        self.stuck.discard(entity.record.key)
        self.blamed.discard(entity.record.key)


def _nobody() -> None:
    """Do nothing: no other node shares tools with this one."""


def _undone(message: Message, error: Exception, at: float) -> Notice:
    text = f"a turn of {type(message).__name__} raised {shown(error)} and was undone"
    # The traceback is text, since renderers of exceptions may print all local variables, secrets too.
    try:
        trace = "".join(called(traceback.format_exception, raised_by_user(error)))
    except Exception as broken:  # the application's exception may run code of its own when it is formatted
        trace = f"(the traceback could not be made: {kind_name(broken)})"
    return Notice(event="turn_undone", severity="error", text=text, at=at, facts={"traceback": trace}, error=error)
