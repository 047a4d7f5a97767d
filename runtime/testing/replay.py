"""`check_replay`: replays the kept history of a flow against its present code, without a runtime.

Rules
- The body is really called, and all its input comes from the history: the results of its steps, its messages, approvals
  and child jobs. No function of a step is called, nothing is sent, and no real time passes.
- The replay is that of production (`runtime/engines/flow.py`). Only the functions of steps, and the operations of the
  runtime, are replaced here.
- A request for something that is not kept waits for ever. When no part of the body can go on, the body is cancelled
  there, and can request nothing more: this is the end of the replay.
- Times, ids, random numbers and versions that are not kept are made, and the body goes on: they depend on nothing
  outside.
- The errors are those that would break running flows: FlowChanged, also if the body catches it, and any other error of
  the body that the history does not explain.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from inspect import isawaitable
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import anyio
import msgspec
from msgspec.structs import replace

from ...actors.messages.errors import ApprovalExpired, ApprovalRejected, FlowAsleep, FlowChanged
from ...actors.records.step import StepRecord
from ...actors.user_code import text_of
from ..dispatch.abandoned_threads import AbandonedThreads, running_body
from ..dispatch.clock import VirtualClock
from ..dispatch.threads import ThreadLimit
from ..engines.child_job import ChildJob
from ..engines.connection import Again
from ..engines.context import TaskContext, connection_of
from ..engines.contract import Call
from ..engines.failures import type_name
from ..engines.flow import SLEEP, Flow
from ..engines.invocation import bind
from ..engines.step_errors import again
from ..engines.steps import ONCE, Step
from ..engines.waiting import Waiter
from ..errors import JobExists
from ..flows.history import VERSION, ChildHistory, FlowHistory
from ..functions.signatures import is_async, takes_context
from ..handles.outcomes import JobFailed, Outcome, outcome_of
from .errors import SimulationError
from .loop import SimulatedLoop, SimulatedRunners
from .same_child import differs
from .world import bury

if TYPE_CHECKING:
    from ...actors.spec.model import Approval, Workstream
    from ..engines.connection import Connection
    from ..engines.receiving import Outgoing
    from ..engines.steps import MessageRequest
    from ..text.secrets import Mask

T = TypeVar("T")
_TOKEN = 1
_MOST_TIMES = 10_000
"""Timers of a body that may fire before it asks for something again."""
_LISTED = 20
_OF_HISTORY = (ApprovalExpired, ApprovalRejected, JobFailed)
"""Errors that only kept data can raise."""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """A replay that has found no fault. Steps are named by their labels, such as "charge#2".

    asked: the kept steps, approvals ("approval go") and child jobs ("child NAME") that the body has asked for, in its
    order.
    not_asked: the kept steps that it has not asked for: the present code has removed them, or comes to them after `at`.
    at: what it has asked for that is not kept: there a running flow goes on. Empty if the body has ended.
    result: what it has returned, if it has. error: what it has raised, if the history has the same failure.
    """

    asked: tuple[str, ...]
    not_asked: tuple[str, ...]
    at: tuple[str, ...]
    result: Any = None
    error: BaseException | None = None


def check_replay(
    history: str | os.PathLike[str] | Iterable[StepRecord],
    body: Callable[..., Any],
    *,
    args: Mapping[str, Any] | None = None,
    results: Mapping[str, Any] | None = None,
    secrets: Mapping[str, str] | None = None,
    answers: Mapping[str, Any] | None = None,
) -> Replay:
    """Replay the kept history of a flow against the present code of its body: would a running flow go on?

    history: the path of a file that `callboard history JOB/TASK --flow` has printed, or the steps that
    `job.task(name).steps()` returns (then without the task's arguments, approvals and child jobs). body: the function
    of the task, async or plain. args, results: in place of the arguments and dependencies' results of the history.
    secrets: the values of the task's secrets, which no history has. answers: results of steps that are not kept, by
    their names or labels, so that the replay goes on behind a new step.

    Raises FlowChanged if the body asks for a kept step with another function or other arguments, JobExists if it
    submits another child job than the history has under that name, what the body raises unless the history explains it,
    SimulationError if the body waits for anything outside, ValueError or OSError for a file that is no history.
    """
    if not callable(body):
        raise TypeError(f"check_replay takes the function of the task, not {type(body).__name__}")
    kept = _read(history)
    given = replace(
        kept, args=dict(kept.args if args is None else args),
        results=dict(kept.results if results is None else results),
    )  # fmt: skip
    run = _Run(given, body, dict(secrets or {}), dict(answers or {}))
    thread = threading.Thread(target=contextvars.Context().run, args=(run.all,), name="callboard-replay")
    thread.start()  # the caller may run on an event loop
    thread.join()
    return run.report()


def _read(history: str | os.PathLike[str] | Iterable[StepRecord]) -> FlowHistory:
    if not isinstance(history, str | os.PathLike):
        given: list[object] = [history] if isinstance(history, Mapping) else list(history)
        steps = [one for one in given if isinstance(one, StepRecord)]
        for one in given:
            if not isinstance(one, StepRecord):
                raise TypeError(
                    "a history is the path of a file, or the steps of a task (`await job.task(name).steps()`); this "
                    f"is, or has in it, a {type(one).__name__}"
                )
        return FlowHistory(steps=steps)
    with open(history, "rb") as file:  # noqa: PTH123 - any path
        text = file.read()
    try:
        if text.lstrip().startswith(b"["):
            return FlowHistory(steps=msgspec.json.decode(text, type=list[StepRecord]))
        found = msgspec.json.decode(text, type=FlowHistory)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{os.fspath(history)!s:.200} holds no history of a flow ({error}): `callboard history JOB/TASK --flow` "
            "prints one"
        ) from error
    if found.version > VERSION:
        raise ValueError(
            f"{os.fspath(history)!s:.200} was made by a later release of Callboard (version {found.version} of the "
            f"form; this one reads up to {VERSION})"
        )
    return found


class _NotKept(FlowAsleep):
    """A plain body has asked for something that is not kept: it is ended there."""


class _Progress:
    """What a body has asked for so far. answers: results of steps that are not kept, by names or labels."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.asked: list[str] = []
        self.at: list[str] = []
        self.changed: list[FlowChanged] = []
        self.failures: list[StepRecord] = []  # that were raised again
        self.gave_up = False  # again, what it had given up
        self._answers = answers
        self._used: set[str] = set()

    def take(self, row: StepRecord) -> None:
        """The body asks for a step."""
        if row.ended_at is not None or row.given_up is not None:
            self.asked.append(row.label)
            self.gave_up = self.gave_up or row.given_up is not None
            if row.ended_at is not None and row.failed:
                self.failures.append(row)

    def answer(self, row: StepRecord) -> tuple[Any] | None:
        """The answer that the test has given to a step that is not kept; None if there is none."""
        for name in (row.label, row.name):
            if name in self._answers:
                self._used.add(name)
                return (self._answers[name],)
        return None

    def unused(self) -> list[str]:
        """The names of answers that were not needed."""
        return [name for name in self._answers if name not in self._used]

    async def wait(self, label: str) -> NoReturn:
        """The body asks for something that is not kept: wait for ever."""
        self.at.append(label)
        while True:
            await anyio.sleep_forever()


class _ReplayedFlow(Flow):
    """A flow whose new steps are not run."""

    def __init__(self, progress: _Progress, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._progress = progress

    def call(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Coroutine[Any, Any, Any]:
        return self._run(*self._replaced(step, args, kwargs), args, kwargs)

    def call_dated(
        self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Coroutine[Any, Any, tuple[Any, float]]:
        return self._dated(*self._replaced(step, args, kwargs), args, kwargs)

    def call_blocking(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._check_thread(step.name)
        if self.flows.on_loop:
            return super().call_blocking(step, args, kwargs)  # which refuses it
        replaced = self._replaced(step, args, kwargs)
        return self.flows.blocking(lambda: self._run(*replaced, args, kwargs), self.connection)

    def _replaced(
        self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Step[..., Any], StepRecord | FlowChanged]:
        row = self._place(step.name, step.path, args, kwargs)
        if isinstance(row, FlowChanged):
            return step, row
        if row.ended_at is None:
            row = replace(row, due_at=None)  # it waits for its next try

        async def run(*_: Any, **__: Any) -> Any:
            if (found := self._progress.answer(row)) is None:
                await self._progress.wait(row.label)
            value: object = found[0]
            if isinstance(value, BaseException):
                raise value
            return value

        replaced = step.of(run)
        replaced.on_loop, replaced.retry, replaced.timeout = True, ONCE, None
        replaced.tool = replaced.runs_on = None
        return replaced, row

    def _place(self, name: str, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StepRecord | FlowChanged:
        found = super()._place(name, path, args, kwargs)
        if not isinstance(found, FlowChanged):
            self._progress.take(found)
        return found

    def _has_changed(self, text: str) -> FlowChanged:
        found = super()._has_changed(text)
        self._progress.changed.append(found)
        return found

    def _own(self, name: str, argument: object = None) -> StepRecord:
        found = super()._own(name, argument)
        self._progress.take(found)
        return found


class _Stage:
    """An event loop in virtual time, which runs one coroutine until it ends, or waits for data that is not kept."""

    def __init__(self, progress: _Progress) -> None:
        self.clock = VirtualClock()
        self.loop = SimulatedLoop(self.clock.monotonic)
        self.runners = SimulatedRunners(self.loop)
        self._progress = progress

    @property
    def here(self) -> bool:
        """Whether the caller runs on this loop."""
        return asyncio._get_running_loop() is self.loop

    def run(
        self,
        func: Callable[[], Coroutine[Any, Any, T]],
        stop: Callable[[], object],
        context: contextvars.Context | None = None,
    ) -> T:
        """Run a coroutine. stop: called before it is cancelled. Raises what it raises, and _NotKept."""
        ended: list[tuple[Any, BaseException | None]] = []
        running = self.runners.submit(func, lambda value, error: ended.append((value, error)), context=context)
        if not self._until(ended):
            with self.loop.here():
                stop()
                running.cancel()
            for _ in range(3):  # its `finally` may wait for other tasks
                self.loop.turn()
            raise _NotKept(f"not kept: {', '.join(self._progress.at)}")
        value, error = ended[0]
        if error is not None:
            raise error
        found: T = value
        return found

    def _until(self, ended: list[Any]) -> bool:
        """Let time pass until the coroutine has ended. False if it waits for something that is not kept."""
        progress = self._progress
        seen, left = 0, _MOST_TIMES
        while left:
            self.loop.turn()
            if self.loop.has_work or (not ended and self.loop.wait_for_threads()):
                continue
            if ended:
                return True
            if (due := self.loop.next_due()) is None:
                break
            self.clock.advance(max(due - self.clock.monotonic(), 0.0))
            now = len(progress.asked) + len(progress.at)
            seen, left = now, _MOST_TIMES if now > seen else left - 1
        if progress.at:
            return False
        asked = ", ".join(self._progress.asked[-_LISTED:])
        raise SimulationError(
            "the body waits for something that is no step, approval or child job, and never comes in a replay (a "
            f"socket, an event of another program): make it a step. It has asked for: {asked or 'nothing'}"
        )


class _Port:
    """The operations of the runtime, as far as a replay has them: it is the `FlowPort` of the flow, and its source."""

    def __init__(self, stage: _Stage, progress: _Progress, steps: list[StepRecord]) -> None:
        self.threads = ThreadLimit(1)
        self.random = Random(0)  # noqa: S311 - not for secrets
        self._stage = stage
        self._progress = progress
        self._steps = steps
        self._keys = count(1 + max((row.key for row in steps), default=0))
        self._last = max((row.ended_at or row.began_at for row in steps), default=stage.clock.time())
        self.flow: _ReplayedFlow | None = None

    def of(self, token: int, mask: Mask | None, connection: Connection | None) -> Flow:
        """The flow of the body."""
        if self.flow is None:
            task, number = max(((row.task, row.round) for row in self._steps), default=(0, 0))
            self.flow = _ReplayedFlow(
                self._progress, self, token, self._steps, task=task, round=number, mask=mask, connection=connection
            )
        return self.flow

    def waits_of(self, token: int, mask: Mask | None, connection: Connection | None, *, new: bool) -> Flow | None:  # noqa: ARG002
        return self.of(token, mask, connection)

    def changed(self, _token: int) -> FlowChanged | None:
        return None if self.flow is None else self.flow.changed

    @property
    def on_loop(self) -> bool:
        return self._stage.here

    @property
    def in_body(self) -> bool:
        return not self.on_loop or self._stage.runners.runs_here()

    def lacks_slot(self, token: int) -> bool:  # noqa: ARG002 - there are no slots
        return False

    async def gate(self, token: int, *, waits: bool = False) -> None:
        """Let each step begin."""

    @property
    def limits(self) -> SimulatedRunners:
        return self._stage.runners

    async def settle(self, token: int) -> None:
        """Nothing is kept."""

    async def stay(self, token: int) -> None:  # noqa: ARG002 - there is one attempt
        """Wait until the body cancels this, or its time limit is over."""
        await anyio.sleep_forever()

    def now(self) -> float:
        return self._last

    def after(self, seconds: float, do: Callable[[], object]) -> Callable[[], object]:
        return self._stage.loop.call_later(seconds, do).cancel

    async def keep(self, token: int, row: StepRecord) -> StepRecord:  # noqa: ARG002 - there is one attempt
        if row.ended_at is None and row.given_up is None and self._progress.answer(row) is None:
            await self._progress.wait(row.label)
        return replace(row, key=row.key or next(self._keys))

    def keep_blocking(self, token: int, row: StepRecord, connection: Connection | None) -> StepRecord:
        return self.blocking(lambda: self.keep(token, row), connection)

    def keep_later(self, token: int, row: StepRecord) -> None:
        """Keep nothing."""

    async def pause(self, token: int, until: float) -> None:  # noqa: ARG002 - as above
        """Only sleeps come here."""
        row = StepRecord(key=0, flow=0, task=0, task_id="", name=SLEEP, began_at=0.0)
        if self._progress.answer(row) is None:
            await self._progress.wait(SLEEP)

    def take(self, token: int, request: MessageRequest, over: Callable[..., object]) -> None:  # noqa: ARG002 - as above
        row = request.step
        key = row.key or next(self._keys)
        if (found := self._progress.answer(row)) is None:
            self._progress.at.append(row.label)
            over(replace(row, key=key), None)  # there is no message: the body waits
            return
        value = msgspec.Raw(msgspec.json.encode(found[0]))
        over(replace(row, key=key, ended_at=self._last, due_at=None, message=key, raw_result=value), None)

    async def message(self, token: int, name: str, until: float | None) -> None:  # noqa: ARG002 - as above
        await anyio.sleep_forever()

    async def send(self, token: int, message: Outgoing) -> None:
        """Send nothing: the test has answered the step."""

    def blocking(self, func: Callable[[], Coroutine[Any, Any, T]], connection: Connection | None) -> T:  # noqa: ARG002
        about = contextvars.copy_context()
        return self._stage.run(func, self.fall_asleep, about)

    def fall_asleep(self) -> None:
        """Refuse all further steps: the body is being ended."""
        if self.flow is not None:
            self.flow.fall_asleep()


class _Approvals:
    """The approvals of a history."""

    def __init__(self, history: FlowHistory, progress: _Progress, stop: Callable[[], object]) -> None:
        self._known = {one.name: one for one in history.approvals if one.decisions and one.finished_at is not None}
        self._progress = progress
        self._stop = stop

    async def decision(self, token: int, name: str, rule: Approval, connection: Connection) -> Waiter:  # noqa: ARG002
        waiter = self._asked(token, name)
        if waiter.record is None:
            await anyio.sleep_forever()
        return waiter

    def decision_blocking(self, token: int, name: str, rule: Approval, connection: Connection) -> Waiter:  # noqa: ARG002
        waiter = self._asked(token, name)
        if waiter.record is None:
            self._stop()
            raise _NotKept(f"not kept: approval {name}")
        return waiter

    def _asked(self, token: int, name: str) -> Waiter:
        """Note that the body asks for an approval, and look for its decision."""
        waiter, label = Waiter(token, name, anyio.Event()), f"approval {name}"
        waiter.record = self._known.get(name)
        (self._progress.at if waiter.record is None else self._progress.asked).append(label)
        return waiter


class _Children:
    """The child jobs of a history."""

    def __init__(
        self, history: FlowHistory, progress: _Progress, blocking: Callable[[Callable[[], Any], None], Any]
    ) -> None:
        self._history = history
        self._known = {one.name: one for one in history.children}
        self._by_id = {one.job.id: one for one in history.children}
        self._progress = progress
        self._blocking = blocking

    async def submit(self, context: TaskContext, workstream: Workstream, name: str) -> ChildJob:
        if (kept := self._known.get(name)) is None:
            await self._progress.wait(f"child {name}")
        if (found := differs(self._history, kept, workstream)) is not None:
            raise JobExists(
                f"there is a child job {kept.job.id!r} already, with another workstream ({kept.job.shown} in the "
                f"history): {found}. Use another name, or submit the same workstream in every attempt."
            )
        self._progress.asked.append(f"child {name}")
        return ChildJob(self, kept.job.id, context)

    def submit_blocking(self, context: TaskContext, workstream: Workstream, name: str) -> ChildJob:
        found: ChildJob = self._blocking(lambda: self.submit(context, workstream, name), None)
        return found

    async def wait(self, context: TaskContext, child: ChildJob) -> Outcome:  # noqa: ARG002 - there is one
        kept: ChildHistory = self._by_id[child.id]
        if kept.job.finished_at is None:
            await self._progress.wait(f"child {kept.name}")
        return outcome_of(kept.job, kept.tasks)

    def wait_blocking(self, context: TaskContext, child: ChildJob) -> Outcome:
        found: Outcome = self._blocking(lambda: self.wait(context, child), None)
        return found

    def state_of(self, context: TaskContext, child: ChildJob) -> str:  # noqa: ARG002 - there is one
        return str(self._by_id[child.id].job.state)


class _Run:
    """One replay. `all` runs it, in a thread of its own; `report` returns its result."""

    def __init__(
        self, history: FlowHistory, body: Callable[..., Any], secrets: dict[str, str], answers: dict[str, Any]
    ) -> None:
        self._history = history
        self._body = body
        self._secrets = secrets
        self._progress = _Progress(answers)
        self._left: tuple[str, ...] = ()
        self._value: Any = None
        self._error: BaseException | None = None

    def all(self) -> None:
        """Replay the body to its end, or to the first request for something that is not kept."""
        stage = _Stage(self._progress)
        try:
            self._replay(stage)
        except _NotKept:
            pass
        except BaseException as error:
            self._error = error
        finally:
            bury([stage.loop])

    def _replay(self, stage: _Stage) -> None:
        history, progress, body = self._history, self._progress, self._body
        port = _Port(stage, progress, history.steps)
        plain = not is_async(body)
        context = TaskContext(
            task=history.task, token=_TOKEN, attempt=history.attempt, job_id=history.job_id,
            workstream_id=history.workstream_id, results=history.results, args=history.args, saved=history.saved,
            details=history.details, secrets=self._secrets, flows=port,
            approvals=_Approvals(history, progress, port.fall_asleep),
            child_jobs=_Children(history, progress, port.blocking),
        )  # fmt: skip
        given = context if takes_context(body) else None
        call = Call(token=_TOKEN, func=body, context=given, flows=port, about="a replayed body")

        def beat(_: Any) -> None:
            """Drop a heartbeat."""

        async def on_loop() -> Any:
            connection_of(context).attach(beat, raises=False)
            value: object = bind(call)()
            return await value if isawaitable(value) else value

        try:
            if plain:
                connection_of(context).attach(beat, raises=True)
                here = contextvars.copy_context()
                here.run(running_body.set, (AbandonedThreads(), call.about, call))
                value = here.run(bind(call))
            else:
                value = stage.run(on_loop, port.fall_asleep, stage.runners.context_of(call.about, None, call))
            self._value = None if isinstance(value, Again) else value
        finally:
            self._left = tuple(port.of(_TOKEN, None, None).unasked())

    def report(self) -> Replay:
        """The report of the replay. Raises FlowChanged, and errors of the body that the history does not explain."""
        progress, error = self._progress, self._error
        if progress.changed:
            raise FlowChanged(f"{progress.changed[0]}\n{self._where()}") from error
        if error is not None and progress.at and _is_late(error):
            error = None  # a time limit around a request that waits for ever here
        if error is not None and not self._explained(error):
            error.add_note(f"It was raised in the replay of a history. {self._where()}")
            raise error
        if unused := progress.unused():
            raise LookupError(
                f"the body has not asked for {unused[0]!r:.80} as a step that is not kept, so its answer is of no use; "
                f"it has asked for: {_listed(progress.at) or 'no such step'}"
            )
        return Replay(
            asked=tuple(progress.asked), not_asked=self._left, at=tuple(progress.at), result=self._value, error=error
        )

    def _where(self) -> str:
        asked, left = _listed(self._progress.asked[-_LISTED:]), _listed(self._left)
        return f"Asked for before, and kept: {asked or 'nothing'}. Kept, and not asked for: {left or 'nothing'}."

    def _explained(self, error: BaseException) -> bool:
        """Whether the history has the same failure."""
        if (parts := _parts(error)) is not None:
            return all(map(self._explained, parts))
        if isinstance(error, _OF_HISTORY) or type_name(error) == self._history.error_type:
            return True
        if self._progress.gave_up and isinstance(error, TimeoutError):
            return True
        kept = [again(row) for row in self._progress.failures]
        return any(type(error) is type(one) and text_of(error) == text_of(one) for one in kept)


def _is_late(error: BaseException) -> bool:
    """Whether only time limits were over."""
    parts = _parts(error)
    return isinstance(error, TimeoutError) if parts is None else all(map(_is_late, parts))


def _parts(error: Any) -> list[BaseException] | None:
    """The errors in a group of them; None for a single one."""
    if not isinstance(error, BaseExceptionGroup):
        return None
    group: Any = error  # pyright: ignore[reportUnknownVariableType] - a group of anything
    return [*group.exceptions]


def _listed(labels: Iterable[str]) -> str:
    named = list(labels)
    return ", ".join(named[:_LISTED]) + (f", and {len(named) - _LISTED:,} more" if len(named) > _LISTED else "")
