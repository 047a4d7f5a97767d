"""A runtime for OpenTelemetry: its metrics, and one span per attempt and step. Needs the extra `otel`.

    runtime = Runtime("state.db")
    observe(runtime)
    async with Tracing(runtime), runtime:
        ...

| attribute of a span | what |
| --- | --- |
| callboard.job, .workstream, .task, .attempt, .worker | the attempt's ids, task name, number, worker |
| callboard.end | how it ended: succeeded, failed, timed_out, lost, cancelled, returned (given back by a drain) |
| callboard.state | the state that its task went to |
| callboard.step.name, .number, .tries, .function | of a step's span |

Rules
-----
- Spans are made from committed transitions: each is made when its attempt is over, with the journal's times. So no span
  is ever left open, and a program without tracing pays nothing.
- If a crash interrupted an attempt, the runtime that finds it makes the span: from the claim until it was found lost.
  If the beginning of an attempt was not seen here, it is looked up in the journal.
- If a lifecycle has no state between two attempts (`execution` retries inside running), all spans are made when the
  last attempt is over, from the journal's rows of each.
- A retry's span has a link to the span of the attempt before, if one `Tracing` made both. The span of an attempt is the
  root of a trace.
- The durable steps that ended in an attempt have spans below the attempt's; of very many, the last `_STEPS`. They are
  made with it, and read from the journal where steps are known or an attempt was lost.
- An attempt is the run of the body: acceptance checks come after it. If an attempt is told to stop, its span ends then.
- The status is an error, with the error's message, if the attempt failed, timed out or was lost. Secrets are masked.
- Spans are made in the event loop: use a processor that exports in its own thread (BatchSpanProcessor).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar
from weakref import ref

import anyio
import anyio.lowlevel
import msgspec
from anyio.abc import TaskGroup
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter
from opentelemetry.trace import (
    Link,
    SpanContext,
    Status,
    StatusCode,
    TracerProvider,
    get_tracer,
    set_span_in_context,
)

from ...actors.records.step import StepRecord
from ...actors.records.task import AttemptRecord
from ...actors.records.transition import PublishedTransition, Transitioned
from ...machines.builtin.task import TaskState
from ...machines.phases import Phase
from ..dispatch.body_context import awaited
from ..dispatch.threads import at_once
from ..errors import JournalError, RuntimeClosed
from ..journal.contract import Journal, Reader
from ..observation.events import BUFFER, Dropped, Subscription
from ..observation.filters import Event as ObservedEvent
from ..observation.metric_definitions import SERIES, Values
from ..observation.metrics import Metrics
from ..runtime import services_of

if TYPE_CHECKING:
    from ..runtime import Runtime

T = TypeVar("T")
NAME = "callboard"
_RUNS = frozenset({TaskState.RUNNING, TaskState.TIMED_OUT, TaskState.RECOVERING})
_GIVES_UP = frozenset({TaskState.FAILED, TaskState.CANCELLED})
_TROUBLE = frozenset({"failed", "timed_out", "lost"})
_ENDS: dict[str, str] = {
    TaskState.VALIDATING: "succeeded", TaskState.COMPLETED: "succeeded", TaskState.QUEUED: "returned",
}  # fmt: skip
_STEPS = 1_000
"""Spans of steps, at most, below an attempt's: a processor keeps about twice as many until it exports them."""
_AT_ONCE = 100
"""Events after which other tasks of the event loop may run."""
_LAST = 5.0
"""Seconds for the last spans if the exit is cancelled: the journal that they need may not answer."""


# -- metrics -----------------------------------------------------------------------------------------------------------


def observe(runtime: Runtime, meter_provider: MeterProvider | None = None) -> None:
    """Export a runtime's metrics to OpenTelemetry, as observable instruments (names and units: docs/observation.md).

    A reader's thread takes a snapshot at each collection; before the runtime is entered there are no values. The
    reference to the runtime is weak. Call it once for a runtime.
    """
    meter, target = get_meter(NAME, meter_provider=meter_provider), ref(runtime)
    for one in SERIES:
        create = meter.create_observable_counter if one.counts else meter.create_observable_gauge
        create(f"{NAME}.{one.name}", [_reading(target, one.labels, one.values)], one.unit, one.text)
    meter.create_observable_counter(
        f"{NAME}.state_seconds", [_reading(target, ("kind", "state"), _spent)], "s",
        "Time that entities spent in a state that they left.",
    )  # fmt: skip
    meter.create_observable_counter(
        f"{NAME}.state_exits", [_reading(target, ("kind", "state", "ordinary"), _exits)], "{entity}",
        "Entities that left a state; ordinary: by a transition below a warning.",
    )  # fmt: skip


def _spent(told: Metrics) -> Values:
    return {key: one.seconds for key, one in told.states.items() if one.timed}


def _exits(told: Metrics) -> Values:
    found: dict[tuple[str, ...], float] = {}
    for key, one in told.states.items():
        found[*key, "true"] = one.ordinary
        found[*key, "false"] = one.left - one.ordinary
    return {key: number for key, number in found.items() if number}


def _reading(
    target: ref[Runtime], labels: tuple[str, ...], values: Callable[[Metrics], Values]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def read(_: CallbackOptions) -> Iterator[Observation]:
        runtime = target()
        if runtime is None:
            return
        try:
            metrics = runtime.metrics()
        except RuntimeClosed:
            return
        for key, number in values(metrics).items():
            yield Observation(number, dict(zip(labels, key, strict=True)))

    return read


# -- spans -------------------------------------------------------------------------------------------------------------


class _Begun(msgspec.Struct, frozen=True):
    """When an attempt began, its number, its worker, and the span of the attempt before."""

    at: float
    attempt: int | None
    worker: str | None
    before: SpanContext | None = None


class _Ended(msgspec.Struct, frozen=True):
    """When and how an attempt ended, its task's state, the error, and resources used."""

    at: float
    end: str
    state: str
    error: str | None
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None


def _is_about_attempts(event: ObservedEvent) -> bool:
    if not isinstance(event, Transitioned) or event.kind != "task":
        return False
    return event.from_phase in _RUNS or event.phase in _RUNS or event.phase in _GIVES_UP


class Tracing:
    """Makes a span for each attempt of a runtime. An async context manager to enter around the runtime.

    Its exit makes the spans of attempts that ended while the runtime was closing; if the exit is cancelled, it has five
    seconds for them. `lost` counts the spans that could not be made: a span processor raised, or the event loop was too
    busy to make spans of 10,000 events.
    """

    def __init__(self, runtime: Runtime, tracer_provider: TracerProvider | None = None) -> None:
        self._services = services_of(runtime)
        self._tracer = get_tracer(NAME, tracer_provider=tracer_provider)
        self._begun: dict[str, _Begun] = {}  # running attempts, by the task's id
        self._before: dict[str, SpanContext] = {}  # the last spans of tasks that may be retried
        self._events: Subscription[Transitioned]
        self._group: TaskGroup
        self._following: anyio.CancelScope
        self._over: anyio.Event
        self.lost = 0

    async def __aenter__(self) -> Self:
        self._events = self._services.hub.subscribe(_is_about_attempts, size=BUFFER, quiet=True)
        self._following = anyio.CancelScope(shield=True)  # the task ends with the last event
        self._over = anyio.Event()
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._follow)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._events.close()
        try:
            await self._over.wait()
        except anyio.get_cancelled_exc_class():
            self._following.deadline = anyio.current_time() + _LAST
            raise
        finally:
            await self._group.__aexit__(None, None, None)

    async def _follow(self) -> None:
        try:
            await self._follow_events()
        finally:
            self._over.set()

    async def _follow_events(self) -> None:
        taken = 0
        with self._following:
            async for event in self._events:
                taken += 1
                if taken % _AT_ONCE == 0:
                    await anyio.lowlevel.checkpoint()
                if isinstance(event, Dropped):
                    self.lost += event.count
                    self._begun.clear()  # attempts in them may have ended in a dropped event
                    self._before.clear()
                    continue
                try:
                    await awaited(self._take, event)
                except Exception:  # a fault of the application's tracing must not stop the runtime
                    self.lost += 1

    async def _take(self, event: Transitioned) -> None:
        task = event.entity_id
        if event.phase in _RUNS:
            if event.from_phase not in _RUNS:
                self._begun[task] = _Begun(event.at, event.attempt, event.worker_id, self._before.pop(task, None))
            elif task not in self._begun:
                self._begun[task] = await self._look_up(event)
            return
        if event.from_phase not in _RUNS:
            self._before.pop(task, None)
            return
        begun = self._begun.pop(task, None) or await self._look_up(event)
        if (begun.attempt or 0) < (event.attempt or 0):
            begun = await self._between(event, begun)
        end = str((event.metadata or {}).get("end") or _ENDS.get(event.phase, "cancelled"))
        used = event.metadata or {}
        ended = _Ended(
            event.at, end, str(event.to_state), event.reason, used.get("cpu_seconds"), used.get("peak_memory_bytes")
        )
        steps = await self._steps(event, ended.end)
        made = self._make(event, begun, ended, steps)
        if event.phase != TaskState.VALIDATING and event.phase not in _GIVES_UP:
            self._before[task] = made

    async def _look_up(self, event: Transitioned) -> _Begun:
        """Look up when an attempt began, or the first attempt in the same state."""
        rows = await self._attempts(event)
        if isinstance(event, PublishedTransition) and rows and not await self._tells_of_retries(event):
            return _begun(rows[0])
        found = [row for row in rows if row.attempt == event.attempt]
        return _begun(found[-1]) if found else _Begun(event.at, event.attempt, event.worker_id)

    async def _tells_of_retries(self, event: Transitioned) -> bool:
        """Whether the lifecycle of a task has a state between two attempts."""
        (created,) = await self._ask(lambda reader: [*reader.transitions(entity_id=event.entity_id, limit=1)])
        name: str = (created.metadata or {})["lifecycle"]
        refined = self._services.lifecycles.refinement(name, "task")
        return not refined.knows.isdisjoint({Phase.RETRYING, Phase.DECIDING})

    async def _steps(self, event: Transitioned, end: str) -> list[StepRecord]:
        """The steps of the task's flow. Without steps in this program, only an attempt of another one may have some."""
        if not self._services.host.kernel.steps and end != "lost":
            return []

        def read(reader: Reader) -> list[StepRecord]:
            task = reader.task(event.entity_id)
            return [] if task is None or not task.flow else reader.steps(task.flow)

        found = await self._ask(read)
        return [step for step in found if step.task_id == event.entity_id and step.ended_at is not None]

    async def _attempts(self, event: Transitioned) -> list[AttemptRecord]:
        return await self._ask(lambda reader: reader.attempts(event.entity_id))

    async def _ask(self, question: Callable[[Reader], T]) -> T:
        """Ask the journal; with a new reader, if the runtime has closed it before the last events were processed."""
        journal = self._services.journal
        try:
            found: T = await self._services.read(question, journal.reader)
        except JournalError:
            found = await at_once(_asked_again, journal, question, abandon=True)
        return found

    async def _between(self, event: Transitioned, begun: _Begun) -> _Begun:
        """Make the spans of ended attempts since `begun`. Returns the attempt that the event ends."""
        first, last = begun.attempt or 0, event.attempt or 0
        rows = [row for row in await self._attempts(event) if first <= row.attempt <= last]
        steps = await self._steps(event, "")
        for row, following in pairwise(rows):
            ended = _Ended(
                row.ended_at or event.at, row.end or "lost", str(event.from_state), row.error, row.cpu_seconds,
                row.peak_memory_bytes,
            )  # fmt: skip
            begun = _begun(following, self._make(event, begun, ended, steps))
        return begun

    def _make(self, event: Transitioned, begun: _Begun, ended: _Ended, steps: Sequence[StepRecord]) -> SpanContext:
        name = event.entity_id.removeprefix(f"{event.workstream_id}/")
        attributes = {
            "job": event.job_id, "workstream": event.workstream_id, "task": name, "attempt": begun.attempt,
            "worker": begun.worker, "end": ended.end, "state": ended.state, "cpu_seconds": ended.cpu_seconds,
            "peak_memory_bytes": ended.peak_memory_bytes,
        }  # fmt: skip
        span = self._tracer.start_span(
            name,
            context=Context(),
            attributes={f"{NAME}.{key}": value for key, value in attributes.items() if value is not None},
            links=[] if begun.before is None else [Link(begun.before)],
            start_time=_nanoseconds(begun.at),
        )
        if ended.end in _TROUBLE:
            span.set_status(Status(StatusCode.ERROR, ended.error))
        below = set_span_in_context(span, Context())
        for step in [step for step in steps if step.attempt == begun.attempt][-_STEPS:]:
            self._make_step(step, below)
        span.end(_nanoseconds(max(begun.at, ended.at)))
        return span.get_span_context()

    def _make_step(self, step: StepRecord, below: Context) -> None:
        attributes: dict[str, str | int] = {
            "name": step.name, "number": step.number, "tries": step.tries, "function": step.function,
        }  # fmt: skip
        span = self._tracer.start_span(
            step.label,
            context=below,
            attributes={f"{NAME}.step.{key}": value for key, value in attributes.items()},
            start_time=_nanoseconds(step.began_at),
        )
        if step.failed:
            span.set_status(Status(StatusCode.ERROR, step.error))
        span.end(_nanoseconds(max(step.began_at, step.ended_at or 0.0)))


def _asked_again(journal: Journal, question: Callable[[Reader], T]) -> T:
    with closing(journal.again()) as reader:
        return question(reader)


def _begun(row: AttemptRecord, before: SpanContext | None = None) -> _Begun:
    return _Begun(row.claimed_at, row.attempt, row.worker_id, before)


def _nanoseconds(at: float) -> int:
    return round(at * 1_000_000) * 1_000
