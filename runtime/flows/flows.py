"""The flows of one runtime's bodies: made when a body takes its first step, with the steps that the journal keeps.

Rules
- A body whose task has taken steps before starts after its history was read: reading is the only I/O of a replay.
- Only the loop's thread uses these objects, but for `blocking`, which threads of bodies call.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio
import msgspec

from ...actors.messages.commands import (
    AwaitMessage,
    Barrier,
    KeepStep,
    LeaveMessages,
    LeaveTool,
    Reply,
    TakeMessage,
    UseTool,
)
from ...actors.messages.errors import AttemptOver, FlowAsleep, FlowChanged, TaskCancelled
from ...actors.messages.inputs import CallEnded
from ...actors.records.step import WAITS, StepRecord
from ...actors.records.task import DurableWait
from ...actors.spec.limits import UNROUTABLE_TIMEOUT
from ...actors.tasks.attempt_clock import RUNNING
from ...actors.user_code import message_of
from ...machines.keywords import number_of
from ..dispatch.body_context import being_cancelled
from ..dispatch.despite_cancel import despite_cancel, is_cancellation
from ..dispatch.given_up import Held, held_of_asyncio
from ..dispatch.runners import RunnerPool
from ..dispatch.threads import ThreadLimit
from ..engines.from_thread import await_on_loop
from . import sleeping
from .histories import Histories
from .lent_slots import AT_ONCE, TURNS, LentSlots, unheard
from .sleeping import SleepingFlows
from .tool_waits import ToolWait
from .waits import Listen, Wait

if TYPE_CHECKING:
    from random import Random

    from ...actors.tasks.task import TaskActor
    from ..engines.connection import Connection
    from ..engines.flow import Flow
    from ..engines.flow_port import BodyLimits
    from ..engines.receiving import Outgoing
    from ..engines.steps import FlowFacts, MessageRequest, StepRun, StepRunEnd, ToolRequest
    from ..handles.jobs import JobHandle
    from ..host import KernelCommand, KernelHost
    from ..journal.contract import Reader
    from ..text.secrets import Mask
    from .step_runs import StepRuns

T = TypeVar("T")
THREADS = 64
"""Plain functions that are run as steps of async bodies at a time."""
PAGE = 1024 * 1024
"""Bytes of kept steps that are sent to a body in another process at a time."""


class Flows:
    """The source of flows. read: asks the journal in a thread. find: a job by its id. Made on the runtime's loop."""

    def __init__(
        self,
        host: KernelHost,
        runners: RunnerPool,
        read: Callable[..., Awaitable[Any]],
        reader: Callable[[], Reader],
        find: Callable[[str], Awaitable[JobHandle]],
    ) -> None:
        self.threads = ThreadLimit(THREADS)
        self.in_runtime = True
        self.lent = LentSlots(host, self._runs_step)
        self._host = host
        self._runners = runners
        self._histories = Histories(runners, read, reader, self.after)
        self._find = find
        self._thread = threading.get_ident()
        self._kept: dict[int, list[StepRecord]] = {}  # by token, of bodies that have not taken a step yet
        self._flows: dict[int, Flow] = {}  # by token
        self._ended: dict[int, None] = {}  # tokens of bodies that have ended, until the actors know it
        self._pauses: Counter[int] = Counter()  # by token
        self._stops: dict[int, anyio.Event] = {}  # by token, of bodies that wait for the end of a drain
        self._numbers = count(1)  # of waits for messages
        self._leaving: dict[int, Wait] = {}  # by token: waits that are over, of flows that slept meanwhile
        self.sleeping = SleepingFlows(host)
        self._step_runs: StepRuns | None = None  # made with the first step that runs on a worker

    # -- for calls -----------------------------------------------------------------------------------------------------

    def prepare(self, task: TaskActor, token: int, start: Callable[[], object]) -> None:
        """Read the history of a task's flow, then start its body by `start()`, on the loop."""

        def over(rows: list[StepRecord], error: BaseException | None) -> None:
            if error is None:
                self._kept[token] = rows
                start()
                return
            self.sleeping.forget(token)
            text = f"the steps of its flow could not be read: {message_of(error)}"
            self._host.tell(CallEnded(token, "lost", error_type="history_unreadable", error=text, category="transient"))

        self._histories.get(task.record.flow, over)

    def has(self, token: int) -> bool:
        """Whether the history of the attempt has been read."""
        return token in self._kept

    def facts_of(self, task: TaskActor, token: int) -> FlowFacts:
        """Return the facts that the process of the body needs to replay its flow."""
        from ..engines.steps import FlowFacts  # noqa: PLC0415 - only for bodies elsewhere

        record = task.record
        return FlowFacts(
            task=record.key, round=record.failed_attempts + record.deferrals, kept=len(self._kept.get(token, ())),
            now=self.now(),
        )  # fmt: skip

    def page(self, token: int, after: int) -> bytes:
        """The next kept steps for a body in another process, after that many: at least one, and as JSON.

        A page has about `PAGE` bytes. The steps are dropped from memory when the last page was read.
        """
        rows = self._kept.get(token)
        if rows is None:
            raise AttemptOver("this attempt has ended: it can take no more steps")
        encoded: list[bytes] = []
        size = 0
        for row in islice(rows, after, None):
            encoded.append(msgspec.json.encode(row))
            size += len(encoded[-1])
            if size >= PAGE:
                break
        if after + len(encoded) == len(rows):
            del self._kept[token]
        return b"[" + b",".join(encoded) + b"]"

    def forget(self, token: int) -> None:
        """Remove a flow from memory whose body was dropped."""
        self._kept.pop(token, None)
        self._flows.pop(token, None)

    def ended(self, token: int, completed: bool, unasked: Sequence[str] | None = None) -> None:
        """Forget an attempt. If its body returned, report the kept steps that it never asked for.

        unasked: the labels of these steps, if the body has replayed its flow in another process.
        """
        kept, flow = self._kept.pop(token, None), self._flows.pop(token, None)
        calls = self._host.kernel.calls
        while self._ended and (oldest := next(iter(self._ended))) not in calls:
            del self._ended[oldest]
        if token in calls:
            self._ended[token] = None
        self._stops.pop(token, None)
        self.sleeping.forget(token)
        self.lent.leave(token)
        if self._step_runs is not None:
            self._step_runs.body_ended(token)
        self._leave(token)
        left = unasked or (flow.unasked() if flow is not None else [row.label for row in kept or ()])
        call = self._host.kernel.calls.get(token)
        if completed and left and call is not None:
            names = ", ".join(left[:10]) + (f" and {len(left) - 10} more" if len(left) > 10 else "")
            steps = number_of(len(left), "kept step")
            text = f"{call.task_id or 'a task'} has completed without asking for {steps}: {names}"
            task = self._host.kernel.entities.get(call.key)
            record = None if task is None else cast("TaskActor", task).record
            self._host.notice(
                "steps_not_asked", "warning", text, kind="task", entity_id=None if record is None else record.id,
                job_id=None if record is None else record.job_id, steps=left[:100],
            )  # fmt: skip

    def waits(self, token: int) -> bool:
        """Whether the body waits for a time, a message or a decision, and none of its steps runs."""
        if token in self.sleeping:
            return True
        return token in self._pauses and not self._runs_step(token)

    def _runs_step(self, token: int) -> bool:
        """Whether a function of a step of the body runs. Of a body in another process that is not known here."""
        flow = self._flows.get(token)
        return flow is not None and flow.running > 0

    @property
    def living(self) -> bool:
        """Whether there is anything to forget."""
        steps = self._step_runs
        in_memory = self._flows or self._kept or self.sleeping.living or self.lent.living
        return bool(in_memory or (steps is not None and steps.living))

    # -- for bodies ----------------------------------------------------------------------------------------------------

    def of(self, token: int, mask: Mask | None, connection: Connection | None) -> Flow:
        """The flow of the attempt under that token. Raises AttemptOver if the attempt has ended."""
        flow = self._flows.get(token)
        if flow is None:
            task = self.task_of(token)
            if task is None or token in self._ended:  # a body that was abandoned would begin with an empty history
                raise AttemptOver("this attempt has ended: it can take no more steps")
            from ..engines.flow import Flow  # noqa: PLC0415 - most runtimes have no flows

            record = task.record
            flow = self._flows[token] = Flow(
                self, token, self._kept.pop(token, ()), task=record.key,
                round=record.failed_attempts + record.deferrals, mask=mask, connection=connection,
            )  # fmt: skip
            if (woken := self.sleeping.take_woken(token)) is not None:
                wait, stopped = woken
                flow.began_empty, flow.stops = wait.began_empty, stopped
                if wait.in_time and not stopped:
                    flow.rested_until = wait.until or 0.0
                self._leaving[token] = wait
        return flow

    def waits_of(self, token: int, mask: Mask | None, connection: Connection | None, *, new: bool) -> Flow | None:
        """The flow of the attempt under that token, for waits that are no steps. new: also if its body has taken no
        step, and no step of it is kept. Raises AttemptOver as `of` does.
        """
        known = new or token in self._flows or self._kept.get(token)
        return self.of(token, mask, connection) if known else None

    def changed(self, token: int) -> FlowChanged | None:
        """The error of a call of that attempt's body that the kept steps contradict; None if there was none."""
        flow = self._flows.get(token)
        return None if flow is None else flow.changed

    def task_of(self, token: int) -> TaskActor | None:
        """The task whose body runs under that token; None if the attempt has ended."""
        call = self._host.kernel.calls.get(token)
        return None if call is None else cast("TaskActor | None", self._host.kernel.entities.get(call.key))

    # -- for flows -----------------------------------------------------------------------------------------------------

    @property
    def on_loop(self) -> bool:
        """Whether the present thread is the one of the runtime's loop."""
        return threading.get_ident() == self._thread

    @property
    def in_body(self) -> bool:
        """Whether the body itself runs here, and not a task that it has started."""
        return not self.on_loop or self._runners.runs_here()

    def lacks_slot(self, token: int) -> bool:
        """Whether the next step of the body has to wait for its slot, since the body has given up a wait."""
        return self.lent.lacks(token)

    async def gate(self, token: int, *, waits: bool = False) -> None:
        """Let a new step begin once the body has its slot, but none while the runtime drains: the body is stopped here,
        between two steps. waits: the step only waits, and needs no slot.
        """
        await self.stop_here(token)
        if not waits:
            await self.lent.slot(token)
        kernel = self._host.kernel
        call = kernel.calls.get(token) if kernel.drain_began is not None else None
        task = None if call is None else kernel.entities.get(call.key)
        if task is not None and cast("TaskActor", task).record.on_loss == "rerun":  # else the stop fails the task
            self._pauses[token] += 1
            try:
                await self.lent.while_waiting(token, partial(self._until_stopped, token))
            finally:
                self._goes_on(token)

    async def _until_stopped(self, token: int) -> None:
        """Wait until the body is cancelled. A shielded body is not: its step is refused once the body has to stop."""
        call = self._host.kernel.calls.get(token)
        if call is not None and call.told is None:
            await self._stops.setdefault(token, anyio.Event()).wait()
        for _ in range(TURNS):
            await anyio.lowlevel.checkpoint()  # here the cancellation is raised
        if (flow := self._flows.get(token)) is not None:
            flow.fall_asleep()
        raise FlowAsleep("the runtime stops: this step runs when the body runs again")

    def stopping(self, token: int) -> None:
        """The attempt under that token was told to stop."""
        self.lent.leave(token)
        if (waits := self._stops.pop(token, None)) is not None:
            waits.set()

    @property
    def random(self) -> Random:
        """The runtime's source of randomness."""
        return self._host.random

    @property
    def limits(self) -> BodyLimits:
        """Finds the scopes and time limits of the body around a call."""
        return self._runners

    async def stay(self, token: int, lending: Callable[[int], object] | None = None) -> None:
        """Wait without a slot until the body cancels this. lending: as for `wait`."""
        if lending is not None:
            lending(token)
        self._pauses[token] += 1
        try:
            await self.lent.while_waiting(token, anyio.sleep_forever, AT_ONCE)
        finally:
            self._goes_on(token)

    def now(self) -> float:
        """UTC epoch seconds."""
        return self._host.now()

    def after(self, seconds: float, do: Callable[[], object]) -> Callable[[], object]:
        """Call `do` after so many seconds. Returns the function that cancels that."""
        timers = self._host.dispatcher.timers
        timer = timers.arm(self._host.monotonic() + seconds, do)
        return partial(timers.cancel, timer)

    async def keep(self, token: int, row: StepRecord) -> StepRecord:
        """Persist a step; returns its record when it is durable. Raises AttemptOver if the attempt has ended."""
        question = self._host.command(lambda reply: KeepStep(token, row, reply), here=True)
        kept: StepRecord = await self._answer(question, is_last=row.ended_at is not None)
        return kept

    async def settle(self, token: int) -> None:  # noqa: ARG002 - all that was told is settled together
        """Wait until all that was told before is durable."""
        await self._answer(self._host.command(Barrier), is_last=False)

    async def _answer(self, question: KernelCommand, *, is_last: bool) -> Any:
        """The answer to a command, whatever cancels the caller meanwhile. is_last: as for `despite_cancel`."""
        try:
            return await question.answered()
        except BaseException as error:
            if not is_cancellation(error):
                raise
            was_cancelled = not being_cancelled()  # by asyncio itself
        return await despite_cancel(
            lambda: question.wait_again(self._host.dispatcher.waiter()), lambda _: is_last, was_cancelled=was_cancelled
        )

    def keep_blocking(self, token: int, row: StepRecord, connection: Connection | None) -> StepRecord:
        """`keep` for a body in a thread. Also raises TaskCancelled: then the step, which has ended, is durable, too."""
        kept = self.blocking(lambda: self.keep(token, row), None)
        if connection is not None and connection.cancelled:
            raise TaskCancelled(f"the task {connection.task!r} was cancelled")
        return kept

    def keep_later(
        self, token: int, row: StepRecord, over: Callable[[Any, Exception | None], object] | None = None
    ) -> None:
        """Persist a step, without waiting for it. over: called with its record when it is durable, or an error."""
        self._host.tell(KeepStep(token, row, Reply(over or unheard)))

    async def pause(
        self, token: int, until: float, lending: Callable[[int], object] | None = None, *, alone: bool = True
    ) -> None:
        """Wait for a time (UTC epoch seconds), without a slot. The other arguments are those of `wait`."""
        await self.wait(DurableWait(until), token, None, lending, alone=alone)

    def take(self, token: int, request: MessageRequest, over: Callable[[Any, Exception | None], object]) -> None:
        """Receive a message, if there is one. over: called with the step when that is durable, or with an error."""
        self._host.command_nowait(
            lambda reply: TakeMessage(token, request.name, request.step, request.keep, reply), over
        )
        self._leave(token)  # only now: else the message that has woken this flow would wake the next flow, too

    async def message(
        self,
        token: int,
        name: str,
        until: float | None,
        lending: Callable[[int], object] | None = None,
        *,
        alone: bool = True,
    ) -> None:
        """Wait for a message of that name, or for a time (UTC epoch seconds), without a slot. The other arguments are
        those of `wait`.
        """
        task = self.task_of(token)
        if task is None:
            return
        job = task.stream.job.record.key

        def listen(wake: Callable[[], object]) -> Callable[[], object]:
            number = next(self._numbers)

            def came(_: object, __: Exception | None) -> None:
                wake()

            self._host.tell(AwaitMessage(token, name, number, Reply(came)))
            return lambda: self._host.tell(LeaveMessages(job, name, number))

        await self.wait(DurableWait(until, "message", name), token, listen, lending, alone=alone)

    async def wait(
        self,
        durable: DurableWait,
        token: int,
        listen: Listen | None,
        lending: Callable[[int], object] | None = None,
        *,
        alone: bool = True,
    ) -> None:
        """Wait for a time, for an event, or for the first of both, without a slot. durable: for what.

        lending: called before the slot of `token` is lent. alone: False if the body may do something else meanwhile,
        which is not known here: steps of a body in another process, a child job. `LentSlots` notes what a body in this
        process does meanwhile. Raises FlowAsleep if the body is dropped.
        """
        sole, only = await self._alone_here() if lending is None else (alone, False)
        await self.stop_here(token)
        self._leave(token)
        until = durable.until
        flow = self._flows.get(token)
        left = None if until is None else until - self.now()
        if left is not None and (left <= 0 or (flow is not None and flow.rested_until >= (until or 0.0))):
            return
        due = None if left is None else self._host.monotonic() + left
        if lending is not None:
            lending(token)
            flow = None
        elif flow is not None:
            flow.works_beside = self.lent.look
        if (
            sole
            and listen is None
            and due is not None
            and flow is not None
            and self._may_sleep(token, flow, left or 0.0)
        ):
            raise self.sleeping.drop_until(flow, token, due, durable)
        wait = Wait(token, until, _nothing)
        says = durable if sole else AT_ONCE if only else None
        await self._in_memory(wait, due, listen, flow, says, alone=alone)

    async def _alone_here(self) -> tuple[bool, bool]:
        """Whether the caller is a body itself, with no task group and no time limit around it; and whether at least no
        other task runs in those.
        """
        alone, only = self._runners.is_alone_here(), self._runners.is_only_task_here()
        if not only:
            return False, False
        held = await held_of_asyncio()
        return alone and held == Held(), not held.group

    async def _in_memory(
        self,
        wait: Wait,
        due: float | None,
        listen: Listen | None,
        flow: Flow | None,
        durable: DurableWait | None,
        *,
        alone: bool,
    ) -> None:
        """Wait with the body in memory, until the wait is over, or has lasted so long that the body is dropped.

        due: as for `Wait.begin`. flow: None if the body is not dropped. durable: None if the body may do something
        meanwhile that is not known here, `AT_ONCE` if it only waits, but is not dropped.
        """
        token, timers, came = wait.token, self._host.dispatcher.timers, anyio.Event()
        stop_looking: Callable[[], object] | None = None
        began = self._host.monotonic()
        long_at = began + sleeping.LONG
        may_drop = flow is not None and durable is not None and durable is not AT_ONCE

        def wake(_: int) -> None:
            came.set()

        async def over() -> None:
            nonlocal came, stop_looking
            await came.wait()
            while not wait.over:  # the wait may have lasted long enough by now
                left = long_at - self._host.monotonic()
                if flow is not None and self._may_drop(flow, wait, left):
                    raise self.sleeping.drop(flow, wait, durable)
                came = anyio.Event()
                stop_looking = self.after(left if left > 0 else sleeping.LONG, came.set)
                await came.wait()

        wait.tell = wake
        wait.begin(timers, due, listen)
        if may_drop and listen is not None:
            stop_looking = self.after(sleeping.SHORT, came.set)
        elif may_drop and due is not None and due - began > sleeping.LONG:  # it was not alone, else it would be dropped
            stop_looking = self.after(sleeping.LONG, came.set)
        if alone:
            self._pauses[token] += 1
        try:
            await self.lent.while_waiting(token, over, durable)
        finally:
            if stop_looking is not None:
                stop_looking()
            if wait.tell is wake:  # else the wait goes on without the body
                wait.end(timers)
            if alone:
                self._goes_on(token)
        if wait.in_time and flow is not None:
            flow.rested_until = max(flow.rested_until, wait.until or 0.0)

    def _leave(self, token: int) -> None:
        """End the wait for which a flow has slept: its body has come to it again, or has ended."""
        if (wait := self._leaving.pop(token, None)) is not None:
            wait.end(self._host.dispatcher.timers)

    def ask_tool(self, token: int, request: ToolRequest) -> ToolWait:
        """Ask for a unit of a tool, at once. `leave_tool` has to be called when it is not needed any more."""
        wait = ToolWait()
        self._host.tell(
            UseTool(token, request.number, request.tool, request.step, Reply(wait.answered), Reply(wait.came))
        )
        return wait

    async def use_tool(
        self,
        token: int,
        request: ToolRequest,
        wait: ToolWait | None = None,
        lending: Callable[[int], object] | None = None,
    ) -> StepRecord:
        """Wait for a unit of a tool, without a slot. Returns the record of the step. wait: if it was asked for already.
        lending: as for `wait`. Raises AttemptOver if the attempt has ended.
        """
        wait = wait or self.ask_tool(token, request)
        row = await wait.answer()
        if row.tool_use != WAITS:
            return row
        if lending is not None:
            lending(token)
        if request.alone:
            self._pauses[token] += 1
        try:
            only_waits = lending is None and (await self._alone_here())[1]
            await self.lent.while_waiting(token, wait.got.wait, AT_ONCE if only_waits else None)
        finally:
            if request.alone:
                self._goes_on(token)
        return row

    def leave_tool(
        self,
        token: int,
        number: int,
        ended: CallEnded,
        way: str | None = None,
        over: Callable[[Any, Exception | None], object] | None = None,
    ) -> None:
        """Give back a unit of a tool, or wait no longer for one. ended: how the function of the step has ended.
        way: how its body has given up the wait. over: called with its record when that is durable, or an error.
        """
        self._host.tell(LeaveTool(token, number, ended, Reply(over or unheard), way))

    async def give_up_tool(self, token: int, number: int, ended: CallEnded, way: str) -> StepRecord:
        """`leave_tool` for a wait that its body has given up. Returns the step's record when it is durable. Raises
        AttemptOver if the attempt has ended.
        """
        question = self._host.command(lambda reply: LeaveTool(token, number, ended, reply, way), here=True)
        left: StepRecord = await self._answer(question, is_last=False)
        return left

    async def run_step(
        self,
        token: int,
        run: StepRun,
        func: Callable[[], Any] | None,
        settle: Callable[[StepRunEnd], Awaitable[T]],
        lending: Callable[[int], object] | None = None,
        *,
        gave_up: Callable[[], Awaitable[str | None]] | None = None,
    ) -> T:
        """Run a step on a worker, without the slot of the body. func: its function with its arguments, if that is here.
        settle: persists its end, before the body waits for its slot. lending: as for `wait`. gave_up: how a body in
        another process has given it up. Returns the result of `settle`.

        Raises AttemptOver if the attempt has ended.
        """
        gave_up = gave_up or self._runners.gave_up_here
        return await self.step_runs.run(token, run, func, settle, lending, gave_up=gave_up)

    @property
    def step_runs(self) -> StepRuns:
        """The steps that run on workers."""
        if self._step_runs is None:
            from .step_runs import StepRuns  # noqa: PLC0415 - few runtimes run steps on workers

            self._step_runs = StepRuns(self._host, self, self.lent.while_waiting)
        return self._step_runs

    def idles(self, token: int, change: int) -> None:
        """Note that a body does nothing but wait for a worker (+1), or that this wait is over (-1)."""
        if change > 0:
            self._pauses[token] += 1
        else:
            self._goes_on(token)

    def works(self, token: int, change: int) -> None:
        """Note that the function of a step of a body runs on a worker (+1), or has ended (-1)."""
        if (flow := self._flows.get(token)) is not None:  # else its body is in another process
            flow.running += change
            self.lent.look(token)

    def unroutable_timeout(self, token: int) -> float:
        """Seconds after which a step of that body fails if no worker can run it."""
        task = self.task_of(token)
        return UNROUTABLE_TIMEOUT if task is None else task.limits.unroutable_timeout

    async def send(self, token: int, message: Outgoing) -> None:
        """Send a message to a job, once under its request_id. Raises the errors of `JobHandle.send`, LookupError if
        there is no such job, AttemptOver if the attempt has ended.
        """
        task = self.task_of(token)
        if task is None:
            raise AttemptOver("this attempt has ended: it sends no more messages")
        job, value = await self._find(message.job), msgspec.json.decode(message.value)
        by = f"{task.record.job_id}/{task.record.name}"[:200]  # the same in each run, as its request_id is
        await job.send(message.name, value, task=message.task, by=by, request_id=message.request_id)

    def _may_sleep(self, token: int, flow: Flow, left: float) -> bool:
        """Whether the body of a flow that is going to wait so many seconds for a time is dropped meanwhile."""
        if left <= sleeping.LONG and (left <= sleeping.SHORT or self.lent.waiting < sleeping.MOST_AWAKE):
            return False
        return not self.lent.waits(token) and self._is_droppable(token, flow)

    def _may_drop(self, flow: Flow, wait: Wait, left: float) -> bool:
        """Whether a waiting body is dropped: it waits for nothing else, and the wait has lasted long and does not end
        soon. left: seconds until it has lasted long.
        """
        token, until = wait.token, wait.until
        if left > 0 and self.lent.waiting <= sleeping.MOST_AWAKE:
            return False
        if until is not None and until - self.now() <= sleeping.SHORT:
            return False
        return self.lent.waits(token) == 1 and self._is_droppable(token, flow)

    def _is_droppable(self, token: int, flow: Flow) -> bool:
        """Whether the body that runs here can be dropped and made again."""
        task = self.task_of(token)
        if flow.running or flow.stops or task is None or self.lent.asks(token):
            return False
        if self._host.kernel.drain_began is not None:
            return False
        record = task.record
        return (
            task.engine == "loop" and record.on_loss == "rerun" and record.state == RUNNING
            and self._runners.is_alone_here()
        )  # fmt: skip

    def ready(self, token: int, connection: Connection) -> None:
        """Make the flow of an async body that has taken steps before it was made again, but none yet since then."""
        if token in self._kept and not connection.raises:
            self.of(token, connection.mask, connection)

    def is_stopped(self, token: int) -> bool:
        """Whether a body was made again only to be stopped, and has not come to where it waits."""
        flow = self._flows.get(token)
        return flow is not None and flow.stops

    async def stop_here(self, token: int) -> None:
        """Cancel a body that was made again only to be stopped: it has come to where it waits."""
        flow = self._flows.get(token)
        if flow is not None and flow.stops:
            flow.stops = False
            self._host.caller.stop(token)
            await anyio.lowlevel.checkpoint()  # here the cancellation is raised

    def _goes_on(self, token: int) -> None:
        self._pauses[token] -= 1
        if not self._pauses[token]:
            del self._pauses[token]

    def blocking(self, func: Callable[[], Coroutine[Any, Any, T]], connection: Connection | None) -> T:
        """Await a coroutine on the loop, for a body in a thread. Raises TaskCancelled if its task is cancelled."""
        return await_on_loop(self._host.dispatcher.call_threadsafe, self._runners, func, connection)


def _nothing(_: int) -> None:
    """The callback of a wait before its real one is set."""
