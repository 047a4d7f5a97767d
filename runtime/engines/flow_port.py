"""The operations of the runtime that a flow needs: `FlowPort`, and what waits for a message that it requests.

Rules
- `runtime/flows/flows.py` has them in the runtime's process, `engines/process/flow_proxy.py` in a worker's, and
  `runtime/testing/replay.py` in a replay of a history.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio

from ...actors.messages.errors import AttemptOver

if TYPE_CHECKING:
    from random import Random

    from ...actors.messages.inputs import CallEnded
    from ...actors.records.step import StepRecord
    from ..dispatch.given_up import Limit
    from ..dispatch.threads import ThreadLimit
    from .connection import Connection
    from .receiving import Outgoing
    from .steps import MessageRequest, StepRun, StepRunEnd, ToolRequest

T = TypeVar("T")


class FlowPort(Protocol):
    """The operations of the runtime that a flow needs, in the process of its body."""

    @property
    def threads(self) -> ThreadLimit:
        """The threads for plain functions that have a time limit, or are steps of async bodies."""
        ...

    @property
    def on_loop(self) -> bool:
        """Whether the present thread is the one of the event loop."""
        ...

    @property
    def in_body(self) -> bool:
        """Whether the body itself runs here, and not a task that it has started."""
        ...

    def lacks_slot(self, token: int) -> bool:
        """Whether `gate` would wait for the slot of the body, which has given up a wait. Any thread may call it."""
        ...

    async def gate(self, token: int, *, waits: bool = False) -> None:
        """Wait until a new step may begin: when the body has its slot, and not while the runtime drains.

        waits: the step only waits, and needs no slot.
        """
        ...

    @property
    def in_runtime(self) -> bool:
        """Whether the body runs in the process of the runtime."""
        ...

    @property
    def random(self) -> Random:
        """A source of randomness."""
        ...

    @property
    def limits(self) -> BodyLimits:
        """Finds the scopes and time limits of the body around a call. Only on the loop."""
        ...

    async def settle(self, token: int) -> None:
        """Wait until all that was told before is durable, by `keep_later` and `leave_tool`, and of runs on workers."""
        ...

    async def stay(self, token: int) -> None:
        """Wait without a slot until the body cancels this."""
        ...

    def now(self) -> float:
        """UTC epoch seconds, on the runtime's clock."""
        ...

    def after(self, seconds: float, do: Callable[[], object]) -> Callable[[], object]:
        """Call `do` on the loop after so many seconds. Returns the function that cancels that."""
        ...

    async def keep(self, token: int, row: StepRecord) -> StepRecord:
        """Persist a step; returns its record when it is durable. Raises AttemptOver if the attempt has ended."""
        ...

    def keep_blocking(self, token: int, row: StepRecord, connection: Connection | None) -> StepRecord:
        """`keep` for a body in a thread. Also raises TaskCancelled."""
        ...

    def keep_later(self, token: int, row: StepRecord) -> None:
        """Persist a step, without waiting for it."""
        ...

    async def pause(self, token: int, until: float) -> None:
        """Wait for a time (UTC epoch seconds), without a slot."""
        ...

    def take(self, token: int, request: MessageRequest, over: Receiving) -> None:
        """Receive a message, if there is one; `over` gets the step, on the loop, when that is durable."""
        ...

    async def message(self, token: int, name: str, until: float | None) -> None:
        """Wait for a message of that name, or for a time (UTC epoch seconds), without a slot."""
        ...

    async def use_tool(self, token: int, request: ToolRequest) -> StepRecord:
        """Wait for a unit of a tool, without a slot. Returns the record of the step. Whatever it raises, `leave_tool`
        has to be called. Raises AttemptOver if the attempt has ended.
        """
        ...

    def leave_tool(self, token: int, number: int, ended: CallEnded) -> None:
        """Give back a unit of a tool, or wait no longer for one. ended: how the function of the step has ended."""
        ...

    async def give_up_tool(self, token: int, number: int, ended: CallEnded, way: str) -> StepRecord:
        """`leave_tool` for a wait that its body has given up. way: as in `StepRecord.given_up`. Returns the step's
        record when it is durable. Raises AttemptOver if the attempt has ended.
        """
        ...

    async def run_step(
        self, token: int, run: StepRun, func: Callable[[], Any], settle: Callable[[StepRunEnd], Awaitable[T]]
    ) -> T:
        """Run a step on a worker, without the slot of the body. func: its function with its arguments, if it need not
        go to another process. settle: persists its end, before the body waits for its slot. Returns the result of
        `settle`.

        Raises AttemptOver if the attempt has ended.
        """
        ...

    async def send(self, token: int, message: Outgoing) -> None:
        """Send a message, once under its request_id. Raises the errors of `JobHandle.send`, and LookupError."""
        ...

    def blocking(self, func: Callable[[], Coroutine[Any, Any, T]], connection: Connection | None) -> T:
        """Await a coroutine on the loop, for a body in a thread. Raises TaskCancelled if its task is cancelled."""
        ...


class BodyLimits(Protocol):
    """Finds the scopes and time limits around a call of a body, in the task that makes the call (`given_up.py`)."""

    async def gave_up_here(self) -> str | None:
        """How the body has given up the call whose cancellation is being raised; None if the runtime ends the body."""
        ...

    async def limit_here(self, way: str) -> Limit | None:
        """The limit by which the body gave up this call before; None if there is no such limit now."""
        ...


class Receiving:
    """A request for a message, and its answer."""

    def __init__(self) -> None:
        self._over = anyio.Event()
        self._row: StepRecord | None = None
        self._error: BaseException | None = None

    def __call__(self, row: StepRecord | None, error: BaseException | None) -> None:
        """Take the answer, on the loop."""
        self._row, self._error = row, error
        self._over.set()

    async def row(self) -> StepRecord:
        """Wait for the step. Raises the error of a refusal."""
        if not self._over.is_set():  # else a receive whose time is over would get no message
            await self._over.wait()
        if self._row is None:
            raise self._error or AttemptOver("this attempt has ended: it receives no more messages")
        return self._row
