"""The export to OpenTelemetry: a span for each attempt, and the metrics."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.waiting import until

from callboard import Retry, Runtime, Task, TaskContext, VirtualClock, Worker, Workstream, step

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, get_tracer
from tests.runtime.silent import Silent

from callboard.otel import Tracing, observe

pytestmark = pytest.mark.anyio

Opens = Callable[..., Runtime]


@pytest.fixture(params=["memory", "sqlite"])
def open_runtime(request: pytest.FixtureRequest, tmp_path: Path) -> Opens:
    path = None if request.param == "memory" else tmp_path / "state.db"
    return lambda **more: Runtime(path, **more)


class Spans:
    """The exported spans, and the number of started ones."""

    def __init__(self) -> None:
        self.exporter, self.begun = InMemorySpanExporter(), 0
        self.provider = TracerProvider(shutdown_on_exit=False)
        counts = SpanProcessor()
        counts.on_start = self._count  # type: ignore[method-assign]
        self.provider.add_span_processor(counts)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def _count(self, span: Span, parent_context: Any = None) -> None:
        self.begun += 1

    @property
    def ended(self) -> Sequence[ReadableSpan]:
        found = self.exporter.get_finished_spans()
        assert len(found) == self.begun, "a span was left open"
        return found


def told(span: ReadableSpan) -> dict[str, Any]:
    return {name.removeprefix("callboard."): value for name, value in (span.attributes or {}).items()}


async def one() -> int:
    return 1


async def flaky(task: TaskContext) -> None:
    if task.attempt < 3:
        raise ConnectionError(f"not at {task.attempt}")


async def sleeps() -> None:
    await anyio.sleep_forever()


DIES = """
import os

def dies(task):
    if task.attempt == 1:
        os._exit(3)
"""


async def test_each_attempt_is_a_span_that_links_to_the_one_before(open_runtime: Opens) -> None:
    spans, clock = Spans(), VirtualClock(start=1_000_000.0)
    runtime = open_runtime(clock=clock)
    tasks = [Task("one", run=one), Task("again", run=flaky, retry=Retry(max_attempts=3, base_delay=5.0, jitter=0.0))]
    with anyio.fail_after(300):
        async with Tracing(runtime, spans.provider) as tracing, runtime:
            retries = runtime.events(kind="task", to_state="retrying")
            with get_tracer("other", tracer_provider=spans.provider).start_as_current_span("of the application"):
                job = await runtime.submit(Workstream("w", tasks=tasks), id="j")
            for delay in (5.0, 10.0):
                await anext(retries)
                clock.advance(delay)
            assert (await job.wait()).ok
    ended = [span for span in spans.ended if span.name != "of the application"]
    quick = [span for span in ended if span.name == "one"]
    assert [told(span) for span in quick] == [
        {"job": "j", "workstream": "j@1", "task": "one", "attempt": 1, "worker": "loop#1", "end": "succeeded",
         "state": "validating"}
    ]  # fmt: skip
    first, second, third = (span for span in ended if span.name == "again")
    assert [told(span)["attempt"] for span in (first, second, third)] == [1, 2, 3]
    assert [told(span)["end"] for span in (first, second, third)] == ["failed", "failed", "succeeded"]
    assert [told(span)["state"] for span in (first, second, third)] == ["retrying", "retrying", "validating"]
    assert {told(span)["worker"] for span in ended} == {"loop#1"}
    assert [span.status.status_code for span in (first, second)] == [StatusCode.ERROR] * 2
    assert "ConnectionError: not at 2" in str(second.status.description)
    assert third.status.status_code == StatusCode.UNSET
    assert [span.parent for span in ended] == [None] * 4
    assert [span.links for span in (quick[0], first)] == [(), ()]
    assert [link.context for span in (second, third) for link in span.links] == [first.context, second.context]
    assert [(span.start_time or 0) - (first.start_time or 0) for span in (second, third)] == [5 * 10**9, 15 * 10**9]
    assert tracing.lost == 0


@step
async def picked() -> str:
    return "picked"


@step(retry=Retry(max_attempts=2, base_delay=0.0))
async def charged() -> None:
    raise ConnectionError("the bank is closed")


async def orders(task: TaskContext) -> None:
    await picked()
    await charged() if task.attempt == 1 else await picked()


@pytest.mark.parametrize("lifecycle", [None, "execution"])
async def test_the_steps_of_an_attempt_are_spans_below_its_own(open_runtime: Opens, lifecycle: str | None) -> None:
    spans = Spans()
    runtime = open_runtime()
    tasks = [Task("order", run=orders, retry=Retry(max_attempts=2, base_delay=0.0)), Task("one", run=one)]
    with anyio.fail_after(300):
        async with Tracing(runtime, spans.provider) as tracing, runtime:
            job = await runtime.submit(Workstream("w", tasks=tasks, lifecycle=lifecycle), id="j")
            assert (await job.wait()).ok
            counted = runtime.metrics().steps
    first, second = [span for span in spans.ended if span.name == "order"]
    steps = {span.name: span for span in spans.ended if span.name not in {"order", "one"}}
    assert steps.keys() == {"picked", "charged", "picked#2"}
    below = {name: span.parent and span.parent.span_id for name, span in steps.items()}
    assert below == {
        "picked": first.context.span_id, "charged": first.context.span_id, "picked#2": second.context.span_id,
    }  # fmt: skip
    assert steps["charged"].status.status_code == StatusCode.ERROR
    assert "the bank is closed" in str(steps["charged"].status.description)
    assert steps["picked"].status.status_code == StatusCode.UNSET
    assert {
        name: (told(span)["step.name"], told(span)["step.number"], told(span)["step.tries"])
        for name, span in steps.items()
    } == {"picked": ("picked", 1, 1), "charged": ("charged", 1, 2), "picked#2": ("picked", 2, 1)}
    assert all((first.start_time or 0) <= (span.start_time or 0) <= (span.end_time or 0) for span in steps.values())
    assert counted == {("picked", "completed"): 2, ("charged", "failed"): 1}
    assert tracing.lost == 0


@pytest.mark.parametrize("lifecycle", ["execution", "orchestration", "pipeline", "guarded"])
async def test_each_attempt_is_a_span_under_every_lifecycle(open_runtime: Opens, lifecycle: str) -> None:
    spans, clock = Spans(), VirtualClock(start=1_000_000.0)
    runtime = open_runtime(clock=clock)
    task = Task("again", run=flaky, retry=Retry(max_attempts=3, base_delay=5.0, jitter=0.0))
    with anyio.fail_after(300):
        async with Tracing(runtime, spans.provider) as tracing, runtime:
            job = await runtime.submit(Workstream("w", tasks=[task], lifecycle=lifecycle), id="j")
            for failed, delay in ((1, 5.0), (2, 10.0)):
                while job.task("again").record.failed_attempts < failed:
                    await runtime._services.host.moved()
                clock.advance(delay)
            assert (await job.wait()).ok
    first, second, third = spans.ended
    assert [told(span)["attempt"] for span in (first, second, third)] == [1, 2, 3]
    assert [told(span)["end"] for span in (first, second, third)] == ["failed", "failed", "succeeded"]
    assert [(span.start_time or 0) // 10**9 - 1_000_000 for span in (first, second, third)] == [0, 5, 15]
    assert [(span.end_time or 0) // 10**9 - 1_000_000 for span in (first, second, third)] == [0, 5, 15]
    assert [link.context for span in (second, third) for link in span.links] == [first.context, second.context]
    assert "ConnectionError: not at 1" in str(first.status.description)
    assert third.status.status_code == StatusCode.UNSET
    assert tracing.lost == 0


def late(take: Callable[[Any], Awaitable[None]], runtime: Runtime) -> Callable[[Any], Awaitable[None]]:
    async def taking(event: Any) -> None:
        while not runtime._services.status.left:
            await anyio.lowlevel.checkpoint()
        await take(event)

    return taking


@pytest.mark.parametrize("closed_first", [False, True])
async def test_attempts_inside_one_state_have_their_spans_though_a_crash_came_in_between(
    tmp_path: Path, closed_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, before, after = VirtualClock(start=1_000_000.0), Spans(), Spans()
    task = Task("again", run=flaky, retry=Retry(max_attempts=3, base_delay=5.0, jitter=0.0))
    runtime = Runtime(tmp_path / "state.db", clock=clock, lifecycle="execution")
    with anyio.fail_after(300):
        async with Tracing(runtime, before.provider), runtime:
            job = await runtime.submit(Workstream("w", tasks=[task]), id="j")
            while job.task("again").record.failed_attempts < 1:
                await runtime._services.host.moved()
            await runtime._services.host.barrier()  # it is durable
            for name in ("db", "db-wal"):  # as they are when it is killed now
                shutil.copyfile(tmp_path / f"state.{name}", tmp_path / f"crashed.{name}")
        assert before.ended == ()
        clock.advance(5.0)
        recovered = Runtime(tmp_path / "crashed.db", clock=clock, lifecycle="execution")
        tracing = Tracing(recovered, after.provider)
        if closed_first:  # what ended last is looked up when the journal has been closed
            monkeypatch.setattr(tracing, "_take", late(tracing._take, recovered))
        async with tracing, recovered:
            job = recovered.recovered[0]
            while job.task("again").record.failed_attempts < 2:
                await recovered._services.host.moved()
            clock.advance(10.0)
            assert (await job.wait()).ok
    assert [(told(span)["attempt"], told(span)["end"]) for span in after.ended] == [
        (1, "failed"), (2, "failed"), (3, "succeeded"),
    ]  # fmt: skip


async def test_an_attempt_that_is_cancelled_given_back_or_too_long_ends_its_span(open_runtime: Opens) -> None:
    spans, clock = Spans(), VirtualClock(start=1_000_000.0)
    runtime = open_runtime(clock=clock, drain_deadline=0.0)
    with anyio.fail_after(300):
        async with Tracing(runtime, spans.provider), runtime:
            started = runtime.events(kind="task", to_state="running")
            tasks = [Task("late", run=sleeps, timeout=60, optional=True), Task("given", run=sleeps)]
            job = await runtime.submit(Workstream("w", tasks=tasks), id="j")
            other = await runtime.submit(Workstream("w", tasks=[Task("cancelled", run=sleeps)]), id="k")
            for _ in range(3):
                await anext(started)
            await other.cancel()
            await other.wait()
            late = job.events(kind="task", task="late", to_state="failed")
            clock.advance(60)
            await anext(late)
    ended = {span.name: span for span in spans.ended}
    assert {name: told(span)["end"] for name, span in ended.items()} == {
        "late": "timed_out", "given": "returned", "cancelled": "cancelled",
    }  # fmt: skip
    assert [name for name, span in ended.items() if span.status.status_code == StatusCode.ERROR] == ["late"]
    assert "attempt limit" in str(ended["late"].status.description)
    assert (ended["late"].end_time or 0) - (ended["late"].start_time or 0) == 60 * 10**9


async def test_an_attempt_whose_process_died_ends_its_span_as_lost(tmp_path: Path) -> None:
    spans = Spans()
    (tmp_path / "takes_its_process_along.py").write_text(DIES)
    runtime = Runtime(workers=[Worker("p", engine="process")], outputs=tmp_path)
    task = Task("dies", run="takes_its_process_along:dies", engine="process")
    with anyio.fail_after(300):
        async with Tracing(runtime, spans.provider), runtime:
            job = await runtime.submit(Workstream("w", folder=str(tmp_path), tasks=[task]))
            assert (await job.wait()).ok
    lost, again = spans.ended
    assert [(told(span)["end"], told(span)["attempt"]) for span in (lost, again)] == [("lost", 1), ("succeeded", 2)]
    assert lost.status.status_code == StatusCode.ERROR
    assert [link.context for link in again.links] == [lost.context]


async def test_what_a_crash_interrupted_is_a_span_of_the_runtime_that_finds_it(tmp_path: Path) -> None:
    clock = VirtualClock(start=1_000_000.0)
    before, after = Spans(), Spans()
    runtime = Runtime(tmp_path / "state.db", clock=clock)
    with anyio.fail_after(300):
        async with Tracing(runtime, before.provider), runtime:
            runtime.task(sleeps)
            started = runtime.events(kind="task", to_state="running")
            job = await runtime.submit(Workstream("w", tasks=[Task("a", run=sleeps)]), id="j")
            await anext(started)
            for name in ("db", "db-wal"):  # as they are when it is killed now
                shutil.copyfile(tmp_path / f"state.{name}", tmp_path / f"crashed.{name}")
            assert before.ended == ()
            await job.cancel()
        clock.advance(7.0)
        recovered = Runtime(tmp_path / "crashed.db", clock=clock)
        recovered.task(sleeps)
        async with Tracing(recovered, after.provider), recovered:
            events = recovered.events(kind="task", event="start")
            job = recovered.recovered[0]
            if job.task("a").record.attempt == 1:
                await anext(events)
            await job.cancel()
            await job.wait()
    lost, again = after.ended
    assert told(lost) == {**told(before.ended[0]), "end": "lost", "state": "retrying"}
    assert ((lost.start_time or 0), (lost.end_time or 0)) == (1_000_000 * 10**9, 1_000_007 * 10**9)
    assert (lost.status.status_code, lost.status.description) == (StatusCode.ERROR, "runtime_restarted")
    assert [link.context for link in again.links] == [lost.context]


async def test_what_a_span_processor_raises_stays_with_it() -> None:
    class Raises(SpanProcessor):
        def on_start(self, span: Span, parent_context: Any = None) -> None:
            raise ValueError("no")

    provider, runtime = TracerProvider(shutdown_on_exit=False), Runtime()
    provider.add_span_processor(Raises())
    async with Tracing(runtime, provider) as tracing, runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("one", run=one)]))
        assert (await job.wait()).ok
    assert tracing.lost == 1


async def test_who_leaves_by_an_error_has_the_spans_and_the_error() -> None:
    spans, runtime = Spans(), Runtime()
    with pytest.raises(ZeroDivisionError):
        async with Tracing(runtime, spans.provider), runtime:
            started = runtime.events(kind="task", to_state="running")
            await runtime.submit(Workstream("w", tasks=[Task("a", run=sleeps)]))
            await anext(started)
            raise ZeroDivisionError
    assert [told(span)["end"] for span in spans.ended] == ["returned"]


async def test_events_that_come_too_fast_are_counted_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.runtime.collectors.otel.BUFFER", 1)
    spans, runtime = Spans(), Runtime()
    async with Tracing(runtime, spans.provider) as tracing, runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task(f"t{i}", run=one) for i in range(20)]))
        assert (await job.wait()).ok
    assert tracing.lost > 0
    assert all((span.start_time or 0) <= (span.end_time or 0) for span in spans.ended)


async def test_metrics_are_observable_instruments(open_runtime: Opens) -> None:
    reader, runtime = InMemoryMetricReader(), open_runtime()
    observe(runtime, MeterProvider([reader], shutdown_on_exit=False))
    assert readings(reader) == {}
    async with runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("one", run=one, tool="compiler")]))
        await job.wait()
        found = readings(reader)
    assert found["callboard.transitions", "task", "running", "validating", "info"] == 1
    assert found["callboard.state_exits", "task", "running", "true"] == 1
    assert ("callboard.state_exits", "task", "running", "false") not in found
    assert found["callboard.state_seconds", "task", "running"] >= 0
    assert found["callboard.breaker_state", "compiler", "closed"] == 1
    assert found["callboard.slots", "loop"] == 100
    assert found["callboard.requests",] == found["callboard.mailbox_depth",] == 0


def readings(reader: InMemoryMetricReader) -> dict[tuple[str, ...], float]:
    data: Any = reader.get_metrics_data()
    if data is None:
        return {}
    return {
        (metric.name, *map(str, point.attributes.values())): point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


async def test_who_is_cancelled_does_not_wait_for_spans_that_the_journal_must_answer_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callboard.runtime.collectors.otel._LAST", 0.05)
    journal, over = Silent(tmp_path / "state.db"), anyio.Event()

    async def traces(runtime: Runtime, scope: anyio.CancelScope) -> None:
        job = await runtime.submit(Workstream("w", tasks=[Task("a", run=sleeps)]))
        await until(lambda: job.task("a").record.state == "running")
        with scope:
            async with Tracing(runtime):  # its beginning is only in the journal
                journal.answers.clear()
                await job.cancel(force=True)
                await until(lambda: journal.waiting)
                scope.cancel()
        over.set()

    async with Runtime(journal, drain_deadline=0) as runtime, anyio.create_task_group() as group:
        scope = anyio.CancelScope()
        group.start_soon(traces, runtime, scope)
        await until(lambda: scope.cancel_called)
        try:
            with anyio.fail_after(300):
                await over.wait()
        finally:
            journal.answers.set()
