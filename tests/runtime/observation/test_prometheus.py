"""The export to Prometheus."""

from __future__ import annotations

import pytest

from callboard import Runtime, Task, Workstream, step
from callboard.actors.kernel import kernel

pytest.importorskip("prometheus_client", reason="the extra `prometheus` is not installed")
from prometheus_client import CollectorRegistry, generate_latest

from callboard.prometheus import RuntimeCollector

pytestmark = pytest.mark.anyio


async def one() -> int:
    return 1


@step
async def picked() -> int:
    return 1


async def picks() -> None:
    await picked()
    await picked()


async def test_steps_are_counted_by_name_and_those_beyond_the_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    registry, runtime = CollectorRegistry(), Runtime()
    registry.register(RuntimeCollector(runtime))
    async with runtime:
        await (await runtime.submit(Workstream("w", tasks=[Task("a", run=picks)]))).wait()
        monkeypatch.setattr(kernel, "KINDS_COUNTED", 1)
        runtime._services.host.kernel.count_step("another", "failed")
        lines = set(generate_latest(registry).decode().splitlines())
    assert 'callboard_steps_total{name="picked",state="completed"} 2.0' in lines
    assert 'callboard_steps_total{name="(other)",state="failed"} 1.0' in lines


async def test_a_scrape_tells_of_the_runtime_as_it_is() -> None:
    registry, runtime = CollectorRegistry(), Runtime()
    registry.register(RuntimeCollector(runtime))
    assert generate_latest(registry) == b""
    async with runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("one", run=one, tool="compiler")]))
        await job.wait()
        lines = set(generate_latest(registry).decode().splitlines())
    taken = 'callboard_transitions_total{from_state="running",kind="task",severity="info",to_state="validating"} 1.0'
    assert taken in lines
    assert 'callboard_state_seconds_count{kind="task",state="running"} 1.0' in lines
    assert 'callboard_state_seconds_bucket{kind="task",le="+Inf",state="running"} 1.0' in lines
    assert 'callboard_breaker_state{state="closed",tool="compiler"} 1.0' in lines
    assert 'callboard_workers{engine="loop",state="idle"} 1.0' in lines
    assert 'callboard_slots{engine="loop"} 100.0' in lines
    assert "callboard_mailbox_depth 0.0" in lines
    assert "callboard_requests_total 0.0" in lines
