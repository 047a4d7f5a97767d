"""Requests of bodies in worker processes, here or on Ray: child jobs, approvals, and the steps of flows.

Rules:
- A request is handled like that of a plain function in a thread, by the same code; the answer goes to the process that
  asked. If a request is refused, the refusal's kind and text go back.
- Requests of an attempt that was told to stop, or has ended, are dropped, and so are their waits.
- A request to persist a step is not dropped: the step's function has already run, and its actor decides. The answer is
  the record's key, once the record is durable. A request for a message is not dropped either; its answer is the record.
- A body that waits lends its slot: before that slot is given away, the body's process is set
  aside (`park`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

import anyio
import msgspec

from ...actors.messages.errors import TooManyMessages
from ...actors.messages.inputs import CallEnded
from ...actors.records.step import StepRecord
from ...actors.spec.model import Approval, Workstream
from ...actors.spec.validate import SpecificationError
from ...actors.user_code import kind_name, text_of
from ...machines import InvalidTransitionError
from ..commands.idempotency import RequestIdReused
from ..commands.wire_errors import answer_to
from ..dispatch.runners import BodyCancelled, RunnerPool, Running
from ..engines.context import connection_of
from ..engines.receiving import Outgoing
from ..engines.steps import MessageRequest, StepRun, StepRunEnd, ToolRequest
from ..engines.workers.wire import ALONE, BodyRequest, RequestAnswer, RequestRefusal, RequestWithdrawn

if TYPE_CHECKING:
    from ..engines.context import TaskContext
    from ..execution.approval_waiters import ApprovalWaiters
    from ..flows.flows import Flows
    from ..flows.tool_waits import ToolWait
    from ..handles.services import Services
    from .child_jobs import Children


_AT_ONCE = frozenset({"keep", "take", "tool", "leave"})
"""The requests whose order matters: they are handled before the engine's next report."""
_SHIELDED = frozenset({"slot", "settle"})
"""The requests for which a body may wait under a shield: they are answered although it was told to stop."""


class RequestingEngine(Protocol):
    """An engine whose bodies send requests from other processes."""

    @property
    def name(self) -> str:
        """The engine's name."""
        ...

    def park(self, token: int) -> None:
        """Set the body's process aside, since the body lends its slot."""
        ...

    def answer(self, answered: RequestAnswer) -> None:
        """Send a body the answer to its request."""
        ...


class WorkerRequests:
    """The requests that come from one engine of a runtime."""

    def __init__(
        self,
        services: Services,
        children: Children,
        approvals: ApprovalWaiters,
        runners: RunnerPool,
        engine: RequestingEngine,
        *,
        flows: Flows,
    ) -> None:
        self._services = services
        self._children = children
        self._approvals = approvals
        self._flows = flows
        self._runners = runners
        self._engine = engine
        self._running: dict[int, dict[int, Running[bytes | None]]] = {}  # by token, then request number
        self._tools: dict[tuple[int, int], ToolWait] = {}  # requests for tools, until `take` has them
        self._runs: dict[tuple[int, int], _Run] = {}  # by token, and number of the run
        self._ends: dict[tuple[int, int], anyio.Event] = {}  # of waits that their bodies have given up
        self._runs_asked: dict[tuple[int, int], _Run] = {}  # by token, and number of the request

    def keeps(self, context: TaskContext, want: BodyRequest | RequestWithdrawn) -> bool:
        """Persist a step, or give back its tool, if that is what a body requests. Returns whether it is.

        This is done at once: the engine's next report may be the end of the attempt, after which no step is accepted.
        A tool is asked for at once, too, since the request to give it back may follow.
        """
        if isinstance(want, RequestWithdrawn) or want.what not in _AT_ONCE:
            return False
        if want.what == "take":
            request = msgspec.json.decode(want.payload, type=MessageRequest)
            self._flows.take(context.token, request, partial(self._was_taken, want))
            return True
        if want.what == "tool":
            self._tools[want.token, want.number] = self._flows.ask_tool(
                context.token, msgspec.json.decode(want.payload, type=ToolRequest)
            )
            return False
        if want.what == "leave":
            ended, way = msgspec.json.decode(want.payload, type=tuple[CallEnded, str | None])
            self._flows.leave_tool(context.token, int(want.name), ended, way, partial(self._was_taken, want))
            return True
        row = msgspec.json.decode(want.payload, type=StepRecord)
        self._flows.keep_later(context.token, row, partial(self._was_kept, want))
        return True

    def take(self, context: TaskContext, want: BodyRequest | RequestWithdrawn) -> None:
        """Handle a body's request, and have it answered; or cancel one that the body does not wait for any more."""
        token = context.token
        wait = self._tools.pop((token, want.number), None)
        if isinstance(want, RequestWithdrawn):
            if (running := self._running.get(token, {}).get(want.number)) is not None:
                if (run := self._runs_asked.get((token, want.number))) is not None:
                    run.given_up = want.given_up
                running.cancel()
                self._ends[token, want.number] = anyio.Event()
            return
        if context.cancelled:  # the body has already got the order to stop
            if want.what in _SHIELDED:  # the body does not wait for its slot any more
                self._engine.answer(RequestAnswer(token, want.number))
            return
        if want.what == "regain":
            self._ends[token, want.number] = anyio.Event()
        if token not in self._running:
            self._running[token] = {}
            connection_of(context).when_cancelled(partial(self._drop, token))
        do = partial(self._has_slot, token) if want.what == "slot" else partial(self._do, context, want, wait)
        over = partial(self._over, want)
        self._running[token][want.number] = self._runners.submit(do, over)

    def _drop(self, token: int) -> None:
        for running in self._running.pop(token, {}).values():
            running.cancel()

    def _was_kept(self, want: BodyRequest, row: StepRecord | None, error: Exception | None) -> None:
        if row is None:
            refusal = None if error is None else _refusal(error)
            self._engine.answer(RequestAnswer(want.token, want.number, refusal=refusal))
        else:
            self._engine.answer(RequestAnswer(want.token, want.number, str(row.key).encode()))

    def _was_taken(self, want: BodyRequest, row: StepRecord | None, error: Exception | None) -> None:
        payload, refusal = b"" if row is None else msgspec.json.encode(row), None if error is None else _refusal(error)
        self._engine.answer(RequestAnswer(want.token, want.number, payload, refusal))

    def _over(self, want: BodyRequest, value: bytes | None, error: BaseException | None) -> None:
        self._running.get(want.token, {}).pop(want.number, None)
        if (end := self._ends.pop((want.token, want.number), None)) is not None:
            end.set()
        if error is None:
            if value is not None:
                self._engine.answer(RequestAnswer(want.token, want.number, value))
        elif want.what in _SHIELDED and isinstance(error, BodyCancelled):  # it was told to stop: as in `take`
            self._engine.answer(RequestAnswer(want.token, want.number))
        elif not isinstance(error, BodyCancelled):
            self._engine.answer(RequestAnswer(want.token, want.number, refusal=_refusal(error)))

    async def _do(self, context: TaskContext, want: BodyRequest, wait: ToolWait | None) -> bytes | None:
        """Handle a request. Returns the answer; None if it was sent already."""
        match want.what:
            case "submit":
                workstream = msgspec.json.decode(want.payload, type=Workstream)
                return (await self._children.submit(context, workstream, want.name)).id.encode()
            case "wait":
                job = await self._services.jobs.find(want.name)
                return msgspec.json.encode(await self._children.wait_for(job, context.token, self._engine.park))
            case "state":
                return (await self._services.jobs.find(want.name)).state.encode()
            case "approval":
                rule, alone = msgspec.json.decode(want.payload, type=tuple[Approval, bool])
                waiter = await self._approvals.decision_away(context.token, want.name, rule, self._engine.park, alone)
                return msgspec.json.encode(waiter.record)
            case "pause" | "message" | "stay" | "settle":
                await self._wait(context.token, want)
                return b""
            case "tool":
                request = msgspec.json.decode(want.payload, type=ToolRequest)
                row = await self._flows.use_tool(context.token, request, wait, self._engine.park)
                return msgspec.json.encode(row)
            case "run" | "regain":
                return await self._run_step(context.token, want)
            case "send":
                try:
                    await self._flows.send(context.token, msgspec.json.decode(want.payload, type=Outgoing))
                except (LookupError, InvalidTransitionError, TooManyMessages, RequestIdReused) as error:
                    return msgspec.json.encode(answer_to(error))
                return b""
            case "steps":
                return self._flows.page(context.token, int(want.name))
            case "keep" | "take" | "leave" | "slot":
                raise AssertionError("done by `keeps` and `take`")

    async def _has_slot(self, token: int) -> bytes:
        """Wait until a body has its slot that has given up a wait: first until that wait has ended here."""
        for (body, _), end in list(self._ends.items()):
            if body == token:
                await end.wait()
        await self._flows.lent.slot(token)
        return b""

    async def _settle(self, token: int) -> None:
        """Wait until all is durable: first until the runs on workers that a body has given up have ended here."""
        for (body, number), end in list(self._ends.items()):
            if body == token and (body, number) in self._runs_asked:
                await end.wait()
        await self._flows.settle(token)

    async def _wait(self, token: int, want: BodyRequest) -> None:
        """Wait for a time, for a message, until all is durable, or until the body cancels the wait."""
        if want.what == "settle":
            await self._settle(token)
        elif want.what == "stay":
            await self._flows.stay(token, self._engine.park)
        elif want.what == "pause":
            await self._flows.pause(token, float(want.name), self._engine.park, alone=want.payload == ALONE)
        else:
            until, alone = msgspec.json.decode(want.payload, type=tuple[float | None, bool])
            await self._flows.message(token, want.name, until, self._engine.park, alone=alone)

    async def _run_step(self, token: int, want: BodyRequest) -> bytes | None:
        """Run a step on a worker. Its body gets the end, persists it, and then requests its slot back."""
        if want.what == "regain":
            if (running := self._runs.get((token, int(want.name)))) is not None:  # else its wait was dropped
                running.settled.set()
                await running.over.wait()
            return b""
        request, run = msgspec.json.decode(want.payload, type=StepRun), _Run()

        async def settle(end: StepRunEnd) -> None:
            self._engine.answer(RequestAnswer(want.token, want.number, msgspec.json.encode(end)))
            await run.settled.wait()

        self._runs[token, request.number] = self._runs_asked[token, want.number] = run
        try:
            await self._flows.run_step(token, request, None, settle, self._engine.park, gave_up=run.gave_up)
        finally:
            del self._runs[token, request.number], self._runs_asked[token, want.number]
            run.over.set()
        return None


class _Run:
    """A step that runs on a worker: whether its body has persisted its end, and has its slot again.

    given_up: how its body has given it up.
    """

    def __init__(self) -> None:
        self.given_up: str | None = None
        self.settled = anyio.Event()
        self.over = anyio.Event()

    async def gave_up(self) -> str | None:
        """How its body has given it up."""
        return self.given_up


def _refusal(error: BaseException) -> RequestRefusal:
    if isinstance(error, SpecificationError):
        return RequestRefusal("SpecificationError", error.source, error.findings)
    return RequestRefusal(kind_name(error), text_of(error, 4_000))
