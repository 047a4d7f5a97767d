"""The steps of bodies that run on workers: each body waits here for the end of its step.

Rules
- The kernel says when a step waits, when no worker can run it, and when its call begins
  (`actors/workers/step_calls.py`). The engine reports the end of the call directly.
- The end of a step is persisted before its body waits for its slot: if the process dies meanwhile, a step that has
  returned does not run again. If the step returns while its body is being cancelled, this module persists the end.
- The time limit of a step begins when its call does, and ends with it. A step that no worker can run fails for good
  after the `unroutable_timeout` of its task, once the kernel has removed it from its queue: a worker may have taken the
  step at that moment, and then the end of its function counts.
- A step whose function was stopped ends when the function has ended: so two tries never run at a time, unless the first
  was abandoned.
- A call that ended without a stop order and without a result has lost its worker.
- The kernel may answer several times, so the host does not know this command as one that waits for its answer. If the
  host closes, this module ends the waits: its bodies are shielded from their cancel until the first answer.
- Only the loop's thread uses these objects.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio
import msgspec
from msgspec.structs import replace

from ...actors.messages.commands import KeepStep, Reply, RunStep, StopStep
from ...actors.messages.errors import WORKER_LOST, AttemptOver
from ...actors.records.step import HOLDS, WAITS, StepRecord
from ..calling import ErrorInfo, Outcome
from ..dispatch.despite_cancel import despite_cancel, is_cancellation
from ..engines.steps import StepRun, StepRunEnd
from ..errors import closed
from ..values import LARGEST
from .lent_slots import unheard

if TYPE_CHECKING:
    from ..host import KernelHost

T = TypeVar("T")
LOST = "its worker has ended"


class BodyWaits(Protocol):
    """What the flows of a runtime note about a body that waits for a step."""

    def after(self, seconds: float, do: Callable[[], object]) -> Callable[[], object]:
        """Call `do` after so many seconds. Returns the function that cancels that."""
        ...

    def idles(self, token: int, change: int) -> None:
        """Note that a body does nothing but wait (+1), or that such a wait is over (-1)."""
        ...

    async def keep(self, token: int, row: StepRecord) -> StepRecord:
        """Persist a step; returns its record when it is durable. Raises AttemptOver if the attempt has ended."""
        ...

    def works(self, token: int, change: int) -> None:
        """Note that the function of a step of a body runs (+1), or has ended (-1)."""
        ...

    def unroutable_timeout(self, token: int) -> float:
        """Seconds after which a step that no worker can run fails."""
        ...


class RunningStep:
    """A step of the body under `token` that runs on a worker, or waits for one.

    func: its function with its arguments; None if the function is in another process. stop: ends its wait or its
    function.
    """

    def __init__(
        self,
        waits: BodyWaits,
        token: int,
        request: StepRun,
        func: Callable[[], Any] | None,
        stop: Callable[[], object],
    ) -> None:
        self.request = request
        self.func = func
        self.call = 0  # the token of its call
        self.row: StepRecord = request.step
        self.heard = anyio.Event()  # the kernel has answered for the first time
        self.over = anyio.Event()
        self.outcome: Outcome | None = None
        self.error: Exception | None = None  # of a refusal
        self.late = False
        self.settled = False  # its end is being persisted
        self._waits = waits
        self._token = token
        self._unroutable: str | None = None  # it was given up: why no worker can run it
        self._timer: Callable[[], object] | None = None  # of its time limit
        self._patience: Callable[[], object] | None = None  # the timer since when no worker can run it
        self._use = ""  # of a worker, as `StepRecord.worker_use`
        self._left = False  # the body does not wait for it any more
        self.stop = stop

    @property
    def holds(self) -> bool:
        """Whether its function runs."""
        return self._use == HOLDS

    def answered(self, row: StepRecord | None, error: Exception | None) -> None:
        """Take the kernel's answer: the record of the step, or a refusal."""
        if self._left:
            return
        if row is None:
            self.error = error or AttemptOver("this attempt has ended: its steps run no more")
            self.over.set()
        else:
            self.row = row
            if not self.over.is_set():  # else its call has ended at once
                self._enter(row.worker_use or "")
                self._look_for_workers()
                if row.worker_use is None:  # the step was given up, and waits no longer
                    self.over.set()
        self.heard.set()

    def _enter(self, use: str) -> None:
        """Note how the step uses a worker now."""
        before, self._use = self._use, use
        if before == use:
            return
        for one, change in ((before, -1), (use, +1)):
            if one == HOLDS:
                self._waits.works(self._token, change)
            elif one == WAITS and self.request.alone:
                self._waits.idles(self._token, change)

    def began(self) -> None:
        """Note that the call of the step has begun: its time limit runs from now on."""
        if self.request.timeout is not None:
            self._timer = self._waits.after(self.request.timeout, self._time_out)

    def _look_for_workers(self) -> None:
        """Limit the time for which no worker can run the step, for whatever reason."""
        if self.row.unroutable is None:
            self._have_patience()
        elif self._patience is None and self._unroutable is None:
            self._patience = self._waits.after(self._waits.unroutable_timeout(self._token), self._give_up)

    def _have_patience(self) -> None:
        if self._patience is not None:
            self._patience()
            self._patience = None

    def _unlimit(self) -> None:
        self._have_patience()
        if self._timer is not None:
            self._timer()
            self._timer = None

    def _time_out(self) -> None:
        self._timer = None
        self.late = True
        self.stop()

    def _give_up(self) -> None:
        self._patience = None
        self._unroutable = self.row.unroutable
        self.stop()

    def ended(self, outcome: Outcome) -> None:
        """Note that the call of the step has ended."""
        self.outcome = outcome
        self._unlimit()
        self._enter("")
        self.over.set()

    def closed(self, error: Exception) -> None:
        """Note that the kernel answers no more, since the runtime has closed."""
        if not self.over.is_set():
            self.answered(None, error)
        self.heard.set()

    def leave(self) -> None:
        """Note that the body does not wait for the step any more."""
        self._left = True
        self._unlimit()
        self._enter("")

    def end(self) -> StepRunEnd:
        """How the step has ended."""
        outcome, row = self.outcome, self.row
        if self.error is not None:
            raise self.error
        if outcome is not None and outcome.status == "ok":
            return _reported(row, outcome.value)
        if self.late:
            return StepRunEnd(row, late=True)
        if outcome is not None and outcome.status == "failed" and outcome.error is not None:
            return StepRunEnd(row, None, outcome.error, outcome.error.type)
        if self._unroutable is not None or outcome is None:
            text = f"no worker could run it: {self._unroutable}"
            return StepRunEnd(row, None, ErrorInfo(type="unroutable", message=text, permanent=True,
                                                   category="permanent"), "unroutable")  # fmt: skip
        why = LOST if outcome.error is None else outcome.error.message
        text = f"worker {row.worker_id} was lost while the step ran: {why}"
        return StepRunEnd(row, None, ErrorInfo(type=WORKER_LOST, message=text, category="transient"), WORKER_LOST)


class StepRuns:
    """The steps of one runtime's bodies that run on workers. lend: awaits something without the slot of a body."""

    def __init__(
        self,
        host: KernelHost,
        waits: BodyWaits,
        lend: Callable[[int, Callable[[], Awaitable[Any]]], Awaitable[None]],
    ) -> None:
        self._host = host
        self._waits = waits
        self._lend = lend
        self._of_bodies: dict[int, dict[int, RunningStep]] = {}  # by the token of the body, and the number of the run
        self._by_call: dict[int, RunningStep] = {}
        host.on_close.append(self._close)

    async def run(
        self,
        token: int,
        request: StepRun,
        func: Callable[[], Any] | None,
        settle: Callable[[StepRunEnd], Awaitable[T]],
        lending: Callable[[int], object] | None,
        *,
        gave_up: Callable[[], Awaitable[str | None]],
    ) -> T:
        """Run a step on a worker, and wait for its end without the slot of its body. lending: called before that slot
        is lent. settle: persists its end, before the body waits for its slot. gave_up: how its body has given it up.
        Returns what `settle` does.

        Raises AttemptOver if the attempt has ended, RuntimeClosed if the host closes first.
        """
        self._host.check_open()
        number = request.number
        step = RunningStep(self._waits, token, request, func, partial(self._stop, token, number))
        self._of_bodies.setdefault(token, {})[number] = step
        self._host.tell(RunStep(token, number, request.step, request.moves, Reply(step.answered)))
        settled: list[T] = []

        async def over() -> None:
            await step.over.wait()
            end = step.end()
            step.settled = True
            settled.append(await settle(end))

        try:
            await despite_cancel(step.heard.wait, _goes_on)  # else it could be kept as waiting without a known key
            if step.over.is_set():
                await over()
            else:
                if lending is not None:
                    lending(token)
                await self._lend(token, over)
        except BaseException as error:
            await self._cancelled(token, step, gave_up if is_cancellation(error) else _not_given_up)
            raise
        finally:
            step.leave()
            self._by_call.pop(step.call, None)
            of_body = self._of_bodies.get(token, {})
            of_body.pop(number, None)
            if not of_body:
                self._of_bodies.pop(token, None)
        return settled[0]

    async def _cancelled(self, token: int, step: RunningStep, gave_up: Callable[[], Awaitable[str | None]]) -> None:
        """Handle the cancel of a step: wait until the function has ended, if it runs. If the function has returned,
        persist its result. gave_up: how the body has given it up, if it has.
        """
        given_up = await gave_up()
        if step.error is not None or (step.settled and step.func is not None):
            return
        if step.outcome is None:
            step.stop()
            if step.holds:
                with anyio.CancelScope(shield=True):
                    await step.over.wait()
        row = None if step.outcome is None else self._returned(step.row, step.outcome)
        if row is None and step.row.key and not step.settled:
            drains = given_up is None and self._host.kernel.drain_began is not None  # then it runs again
            at = None if drains else self._host.now()
            row = replace(step.row, worker_use=None, unroutable=None, cancelled_at=at)
        if row is None:
            return
        if given_up is None:
            self._host.tell(KeepStep(token, row, Reply(unheard)))
            return
        with suppress(Exception):  # as in `Flow._decided`
            while given_up is not None and given_up != row.given_up:
                row = await self._waits.keep(token, replace(row, given_up=given_up))
                given_up = await gave_up()

    def _returned(self, row: StepRecord, outcome: Outcome) -> StepRecord | None:
        """The row of a step that has returned; None if it has not, or if its result cannot be kept."""
        if outcome.status != "ok" or (end := _reported(row, outcome.value)).error is not None:
            return None
        result = msgspec.json.encode(end.value)
        if len(result) > LARGEST:
            return None
        return replace(
            row, tries=row.tries + 1, ended_at=self._host.now(), due_at=None, raw_result=msgspec.Raw(result),
            tool_use=None, worker_use=None, unroutable=None, error=None, error_type=None, raw_arguments=None,
            category=None, traceback=None,
        )  # fmt: skip

    def _stop(self, token: int, number: int) -> None:
        self._host.tell(StopStep(token, number))

    @property
    def living(self) -> bool:
        """Whether there is anything to forget."""
        return bool(self._of_bodies)

    # -- for calls -----------------------------------------------------------------------------------------------------

    def begin(self, call: int, body: int, number: int) -> RunningStep | None:
        """The step whose call begins under the token `call`; None if its body does not wait for it any more."""
        step = self._of_bodies.get(body, {}).get(number)
        if step is not None:
            step.call = call
            self._by_call[call] = step
        return step

    def ended(self, outcome: Outcome) -> None:
        """A call has ended; it need not be that of a step."""
        step = self._by_call.pop(outcome.token, None)
        if step is not None:
            step.ended(outcome)

    def body_ended(self, token: int) -> None:
        """The body under that token has ended: a body that was abandoned waits for its steps no longer."""
        for step in list(self._of_bodies.get(token, {}).values()):
            step.answered(None, None)

    def _close(self, cause: BaseException | None) -> None:
        """The host has closed. cause: the error that broke the runtime, if any."""
        for of_body in self._of_bodies.values():
            for step in of_body.values():
                step.closed(closed("the runtime closed before this step had ended", cause))


def _goes_on(_: object) -> bool:
    return False


async def _not_given_up() -> None:
    """The body did not give up a step whose wait was not cancelled."""


def _reported(row: StepRecord, report: Any) -> StepRunEnd:
    """The end that the process of the function has reported."""
    from ..engines.step_call import failure_of  # noqa: PLC0415 - few runtimes run steps on workers

    failure = None if report is None else failure_of(report)
    if failure is None:
        return StepRunEnd(row, None if report is None else report["value"])
    return StepRunEnd(row, None, failure.error, failure.path, failure.arguments)
