"""The flow of a body in a worker process or on Ray: its steps run here, their records are sent to the runtime.

Rules:
- The kept steps are asked for before the first step, page by page: so a body that takes no step asks for nothing, and
  no message is as large as a history.
- A step's record is sent also if the body is being stopped, since the step's function has already run. The body waits
  for the answer, which says that the record is durable.
- A pause is a request to the runtime, which lends the slot of the body meanwhile. After a wait that the body has given
  up, its next step asks for the slot first.
- The time is that of the runtime's clock: its time at the start of the body, plus the seconds since then.
- A worker process has no event loop. It gets one, in a thread, with the first step that needs it: an async one, one
  with retries or a time limit, a pause, parallel ones.
- Modules are imported when they are first needed: a process must start fast.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace

from ....actors.messages.errors import AttemptOver, FlowChanged
from ....actors.records.step import StepRecord
from ..steps import StepRunEnd
from ..workers.wire import ALONE

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ....actors.messages.inputs import CallEnded
    from ...dispatch.runners import RunnerPool
    from ...dispatch.threads import ThreadLimit
    from ...text.secrets import Mask
    from ..connection import Connection
    from ..flow import Flow
    from ..flow_port import BodyLimits, Receiving
    from ..receiving import Outgoing
    from ..steps import FlowFacts, MessageRequest, StepRun, ToolRequest
    from .runtime_proxy import RuntimeProxy

T = TypeVar("T")
THREADS = 64
"""Plain functions that are run as steps in other threads than the body's at a time."""


class BodyLoop:
    """An event loop of asyncio for bodies, or for their steps. Made on that loop. post: calls a function on it soon."""

    def __init__(self, runners: RunnerPool, post: Callable[..., None]) -> None:
        import asyncio  # noqa: PLC0415 - see above

        self.runners = runners
        self.post = post
        self.thread = threading.get_ident()
        self._loop = asyncio.get_running_loop()

    def after(self, seconds: float, do: Callable[[], object]) -> Callable[[], object]:
        """Call `do` after so many seconds. Returns the function that cancels that."""
        return self._loop.call_later(seconds, do).cancel


def loop_in_thread() -> BodyLoop:
    """Start a thread with an event loop for steps. Raises RuntimeError if no thread can be started."""
    from ...dispatch.runners import RunnerPool  # noqa: PLC0415 - see above
    from ..loop_thread import LoopThread  # noqa: PLC0415

    made: list[BodyLoop] = []

    async def opened(group: TaskGroup) -> None:
        made.append(BodyLoop(RunnerPool(group), post))

    def post(func: Callable[..., None], *args: Any) -> None:
        thread.post(func, *args)

    thread = LoopThread("callboard-steps", opened)
    return made[0]


class FlowProxy:
    """The flow of one body: it is the body's `FlowSource`, and its `FlowPort`.

    proxy: the body's requests. loop: returns the event loop of its steps, and starts it at the first call.
    """

    def __init__(self, proxy: RuntimeProxy, facts: FlowFacts, loop: Callable[[], BodyLoop]) -> None:
        self.random = Random()  # noqa: S311 - not for secrets
        self.in_runtime = False
        self._proxy = proxy
        self._facts = facts
        self._loop = loop
        self._began = time.monotonic()
        self._kept: list[StepRecord] = []
        self._loaded = not facts.kept
        self._flow: Flow | None = None
        self._threads_of_steps: ThreadLimit | None = None
        self._over = False

    # -- for the process -----------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Ask for the kept steps, for a body on the loop."""
        while not self._loaded:
            self._take(await self._proxy.answer_on_loop("steps", str(len(self._kept))))

    def end(self) -> tuple[str, ...] | None:
        """The body is over: take no more steps. Returns the labels of the kept steps that it never asked for, None if
        it has asked for none.
        """
        self._over = True
        return None if self._flow is None else tuple(self._flow.unasked())

    def changed(self, _token: int) -> FlowChanged | None:
        """The error of a call of the body that the kept steps contradict; None if there was none."""
        return None if self._flow is None else self._flow.changed

    def _take(self, page: bytes) -> None:
        self._kept += msgspec.json.decode(page, type=list[StepRecord])
        self._loaded = len(self._kept) >= self._facts.kept

    # -- for bodies ----------------------------------------------------------------------------------------------------

    def of(self, token: int, mask: Mask | None, connection: Connection | None) -> Flow:
        """The flow of the body. In a plain function it asks for the kept steps first."""
        if self._over:
            raise AttemptOver("this attempt has ended: it can take no more steps")
        if self._flow is None:
            from ..flow import Flow  # noqa: PLC0415 - see above

            while not self._loaded:
                self._take(self._proxy.answer_to(connection, "steps", str(len(self._kept))))
            kept, self._kept = self._kept, []
            self._flow = Flow(
                self, token, kept, task=self._facts.task, round=self._facts.round, mask=mask, connection=connection
            )
        return self._flow

    def waits_of(self, token: int, mask: Mask | None, connection: Connection | None, *, new: bool) -> Flow | None:
        """The flow of the body, for waits that are no steps. new: also if it has taken no step, and none is kept."""
        known = new or self._flow is not None or self._facts.kept
        return self.of(token, mask, connection) if known else None

    # -- for the flow --------------------------------------------------------------------------------------------------

    @property
    def on_loop(self) -> bool:
        """Whether the present thread is the one of the event loop."""
        return self._proxy.loop is not None and threading.get_ident() == self._proxy.loop.thread

    @property
    def in_body(self) -> bool:
        """Whether the body itself runs here, and not a task that it has started."""
        return not self.on_loop or self._loop().runners.runs_here()

    def lacks_slot(self, token: int) -> bool:  # noqa: ARG002 - it is this body's
        """Whether the body has given up a wait, and not asked for its slot since. Not if it was told to stop."""
        connection = None if self._flow is None else self._flow.connection
        return self._proxy.given_up > 0 and (connection is None or not connection.cancelled)

    async def gate(self, token: int, *, waits: bool = False) -> None:
        """Wait for the slot of a body that has given up a wait. The runtime stops this process when it drains."""
        while not waits and self.lacks_slot(token):
            before = self._proxy.given_up
            await self._proxy.answer_on_loop("slot", "")
            if self._proxy.given_up == before:
                self._proxy.given_up = 0

    @property
    def limits(self) -> BodyLimits:
        """Finds the scopes and time limits of the body around a call."""
        return self._loop().runners

    async def settle(self, token: int) -> None:  # noqa: ARG002 - it is this body's
        """Wait until all that was told before is durable."""
        await self._proxy.answer_despite_cancel("settle", "", b"", is_last=False)

    async def stay(self, token: int) -> None:  # noqa: ARG002 - it is this body's
        """Wait without a slot until the body cancels this."""
        await self._proxy.answer_on_loop("stay", "")

    @property
    def threads(self) -> ThreadLimit:
        """The threads for plain functions that have a time limit, or are steps of async bodies."""
        from ...dispatch.threads import ThreadLimit  # noqa: PLC0415 - see above

        if self._threads_of_steps is None:
            self._threads_of_steps = ThreadLimit(THREADS)
        return self._threads_of_steps

    def now(self) -> float:
        """UTC epoch seconds, on the runtime's clock."""
        return self._facts.now + time.monotonic() - self._began

    def after(self, seconds: float, do: Callable[[], object]) -> Callable[[], object]:
        """Call `do` on the loop after so many seconds. Returns the function that cancels that."""
        return self._loop().after(seconds, do)

    async def keep(self, token: int, row: StepRecord) -> StepRecord:  # noqa: ARG002 - it is this body's
        """Persist a step; returns its record when it is durable. Raises AttemptOver if the attempt has ended."""
        row_as_json = msgspec.json.encode(row)
        ended = row.ended_at is not None
        return _with_key(row, await self._proxy.answer_despite_cancel("keep", row.label, row_as_json, is_last=ended))

    def keep_blocking(self, token: int, row: StepRecord, connection: Connection | None) -> StepRecord:  # noqa: ARG002
        """`keep` for a body in a thread. Also raises TaskCancelled."""
        return _with_key(row, self._proxy.answer_to(connection, "keep", row.label, msgspec.json.encode(row)))

    def keep_later(self, token: int, row: StepRecord) -> None:  # noqa: ARG002 - it is this body's
        """Persist a step, without waiting for it."""
        self._proxy.tell("keep", row.label, msgspec.json.encode(row))

    async def pause(self, token: int, until: float) -> None:  # noqa: ARG002 - it is this body's
        """Wait for a time (UTC epoch seconds), without a slot."""
        await self._proxy.answer_on_loop("pause", repr(until), ALONE if self._alone else b"")

    def take(self, token: int, request: MessageRequest, over: Receiving) -> None:  # noqa: ARG002 - it is this body's
        """Receive a message, if there is one; `over` gets the step, on the loop, when that is durable."""

        def answered(payload: bytes | None, error: BaseException | None) -> None:
            over(msgspec.json.decode(payload, type=StepRecord) if payload else None, error)

        self._proxy.ask_later("take", request.name, msgspec.json.encode(request), answered)

    async def message(self, token: int, name: str, until: float | None) -> None:  # noqa: ARG002 - it is this body's
        """Wait for a message of that name, or for a time (UTC epoch seconds), without a slot."""
        await self._proxy.answer_on_loop("message", name, msgspec.json.encode((until, self._alone)))

    async def use_tool(self, token: int, request: ToolRequest) -> StepRecord:  # noqa: ARG002 - it is this body's
        """Wait for a unit of a tool, without a slot. Returns the record of the step."""
        request = replace(request, alone=self._alone)
        answer = await self._proxy.answer_on_loop("tool", request.tool, msgspec.json.encode(request))
        return msgspec.json.decode(answer, type=StepRecord)

    def leave_tool(self, token: int, number: int, ended: CallEnded) -> None:  # noqa: ARG002 - it is this body's
        """Give back a unit of a tool, or wait no longer for one."""
        self._proxy.tell("leave", str(number), msgspec.json.encode((ended, None)))

    async def give_up_tool(self, token: int, number: int, ended: CallEnded, way: str) -> StepRecord:  # noqa: ARG002
        """`leave_tool` for a wait that its body has given up. Returns the step's record when it is durable."""
        answer = await self._proxy.answer_despite_cancel(
            "leave", str(number), msgspec.json.encode((ended, way)), is_last=False
        )
        return msgspec.json.decode(answer, type=StepRecord)

    async def run_step(
        self,
        token: int,  # noqa: ARG002 - it is this body's
        run: StepRun,
        func: Callable[[], Any],  # noqa: ARG002 - it is found by its path
        settle: Callable[[StepRunEnd], Awaitable[T]],
    ) -> T:
        """Run a step on a worker, without the slot of the body. settle: persists its end, before the body has the slot
        again. Returns the result of `settle`.
        """
        number = str(run.number)
        try:
            settled = await settle(await self._end_of_run(run))
            await self._proxy.answer_on_loop("regain", number)
        except BaseException:
            self._proxy.given_up += 1
            self._proxy.tell("regain", number, b"")
            raise
        return settled

    async def _end_of_run(self, run: StepRun) -> StepRunEnd:
        flow = self._flow
        request = replace(run, alone=self._alone)
        if flow is not None:
            flow.running += 1  # so a wait beside the step is not the body's only activity
        try:
            answer = await self._proxy.answer_on_loop(
                "run", run.step.name, msgspec.json.encode(request), gave_up=self.limits.gave_up_here
            )
        finally:
            if flow is not None:
                flow.running -= 1
        return msgspec.json.decode(answer, type=StepRunEnd)

    async def send(self, token: int, message: Outgoing) -> None:  # noqa: ARG002 - it is this body's
        """Send a message to a job, once under its request_id. Raises the errors of `JobHandle.send`."""
        if answer := await self._proxy.answer_on_loop("send", message.job, msgspec.json.encode(message)):
            from ...commands.wire_errors import CommandAnswer, error_of  # noqa: PLC0415 - see above

            raise error_of(msgspec.json.decode(answer, type=CommandAnswer)) or RuntimeError(answer)

    @property
    def _alone(self) -> bool:
        """Whether no step runs while the body waits."""
        flow = self._flow
        return flow is not None and not flow.running and flow.connection is not None and flow.connection.raises

    def blocking(self, func: Callable[[], Coroutine[Any, Any, T]], connection: Connection | None) -> T:
        """Await a coroutine on the loop, for a body in a thread. Raises TaskCancelled if its task is cancelled."""
        from ..from_thread import await_on_loop  # noqa: PLC0415 - see above

        loop = self._proxy.loop = self._loop()
        return await_on_loop(loop.post, loop.runners, func, connection)


def _with_key(row: StepRecord, answer: bytes) -> StepRecord:
    """A record as the runtime has persisted it."""
    return replace(row, key=int(answer))
