"""Notices: events without a transition go to the log, to subscribers and to `on_trouble`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import pytest
import structlog
from tests.actors.stage import KernelHarness, flow, hangs, task

from callboard import Dropped, Hook, Notice, Runtime, Task, Transitioned, Workstream
from callboard.actors.records.entities import (
    ApprovalRecord,
    BreakerRecord,
    JobRecord,
    MachineRecord,
    WorkerRecord,
    WorkstreamRecord,
)
from callboard.actors.records.task import TaskRecord
from callboard.runtime.observation.filters import KINDS, Filters, wanted_by

pytestmark = pytest.mark.anyio


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as captured:
        yield captured
    structlog.reset_defaults()


async def one() -> int:
    return 1


async def raises() -> None:
    raise ValueError("no such channel")


FAILING = Workstream("w", tasks=[Task("a", run=one, on_completed=[Hook(run=raises)])])


def test_an_actor_s_notice_leaves_with_its_turn() -> None:
    stage = KernelHarness(scripts={"a": hangs})
    stage.submit(flow(task("a")))
    entity = stage.actor("a")
    stage.kernel.turn.effects.clear()
    stage.kernel.notice("body_abandoned", "warning", "it would not end", entity, after=5.0)
    (effect,) = stage.kernel.turn.effects
    assert stage.notices == []
    stage._release(effect)
    (notice,) = stage.notices
    assert (notice.event, notice.severity, notice.text, notice.at) == (
        "body_abandoned", "warning", "it would not end", stage.time,
    )  # fmt: skip
    assert (notice.kind, notice.entity_id, notice.job_id) == ("task", "job@1/a", "job")
    assert notice.facts == {"after": 5.0}


async def test_a_notice_reaches_the_log_the_subscribers_and_who_is_told_of_trouble(lines: list[Any]) -> None:
    notices: list[Notice] = []
    runtime = Runtime()
    runtime.on_trouble = notices.append
    with anyio.fail_after(300):
        async with runtime:
            everything, bare = runtime.events(), runtime.events(notices=False)
            job = await runtime.submit(FAILING, id="j")
            await job.wait()
            await runtime.drain(10)
            runtime._services.host.notice("only_said", "info", "nothing is wrong", number=7)
        seen = [event async for event in everything]
        assert {type(event) async for event in bare} == {Transitioned}
    failed, said = [event for event in seen if isinstance(event, Notice)]
    assert (failed.event, said.event) == ("hook_failed", "only_said")
    assert notices == [failed]  # information is no trouble
    assert [event for event in seen if isinstance(event, Transitioned) and event.to_state == "completed"]
    assert seen.index(failed) > next(
        place for place, event in enumerate(seen)
        if isinstance(event, Transitioned) and (event.kind, event.to_state) == ("task", "completed")
    )  # fmt: skip
    logged = {line["event"]: line for line in lines}
    assert (logged["hook_failed"]["log_level"], logged["hook_failed"]["job_id"]) == ("error", "j")
    assert (logged["only_said"]["log_level"], logged["only_said"]["number"]) == ("info", 7)


async def test_where_nobody_is_told_trouble_is_said_on_standard_error(
    no_logs: object, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Runtime() as runtime:
        runtime._services.host.notice("a_thing", "warning", "something is odd", number=7)
        runtime._services.host.notice("another", "info", "nothing is wrong")
    output = capsys.readouterr()
    assert output.out == ""
    assert "something is odd" in output.err
    assert "nothing is wrong" not in output.err


async def tells_later(notice: Notice) -> None:
    """Is no plain function."""


def tells_never(notice: Notice) -> Any:
    """Is a generator function: a call of it runs nothing."""
    yield notice


@pytest.mark.parametrize("told", [tells_later, tells_never, 5])
async def test_who_could_not_be_told_of_trouble_is_refused_when_it_is_set(told: Any) -> None:
    runtime = Runtime()
    with pytest.raises(TypeError, match="on_trouble is a plain function of a Notice, and not "):
        runtime.on_trouble = told
    assert runtime.on_trouble is None


async def test_who_is_told_of_trouble_may_be_set_at_any_time(capsys: pytest.CaptureFixture[str]) -> None:
    notices: list[Notice] = []
    with anyio.fail_after(300):
        async with Runtime() as runtime:
            runtime.on_trouble = notices.append
            await (await runtime.submit(FAILING)).wait()
            await runtime.drain(10)
            runtime.on_trouble = None
            runtime._services.host.notice("something", "warning", "something is odd")
    assert [notice.event for notice in notices] == ["hook_failed"]
    assert "hook_failed" not in capsys.readouterr().err


async def collected(filters: Filters, *, of_job: bool = False) -> list[tuple[str | None, str]]:
    """The events of two jobs under these filters: (entity id, event)."""
    with anyio.fail_after(300):
        async with Runtime() as runtime:
            runtime.on_trouble = lambda _: None
            first = await runtime.submit(FAILING, id="first")
            seen = first.events(**filters) if of_job else runtime.events(**filters)
            second = await runtime.submit(Workstream("w", tasks=[Task("a", run=one), Task("b", run=one)]), id="second")
            for job in (first, second):
                await job.wait()
            await runtime.drain(10)
        events = [event async for event in seen]
    assert not any(isinstance(event, Dropped) for event in events)
    return [(event.entity_id, event.event) for event in events if not isinstance(event, Dropped)]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"job": "second", "kind": "job", "event": ["validate", "succeed"]}, 2),
        ({"task": "b", "to_state": "completed"}, 1),
        ({"task": "second@1/a", "to_state": "completed"}, 1),
        ({"task": ["a", "b"], "to_state": {"completed"}}, 3),
        ({"workstream": "second@1", "from_state": "running"}, 2),
        ({"entity": "second", "to_state": "completed"}, 1),
        ({"severity": "error"}, 1),
        ({"severity": ["warning", "critical"]}, 0),
        ({"event": "hook_failed", "kind": "task"}, 1),
        ({"event": "hook_failed", "to_state": "completed"}, 0),
    ],
)
async def test_events_can_be_filtered(filters: Filters, expected: int) -> None:
    found = await collected(filters)
    assert len(found) == expected, found


async def test_a_job_s_events_end_with_it_whatever_they_are_filtered_by() -> None:
    assert await collected({"kind": "task", "to_state": "completed"}, of_job=True) == [
        ("first@1/a", "validation_passed")
    ]


@pytest.mark.parametrize("of_job", [False, True])
async def test_a_runtime_and_a_job_refuse_events_that_could_never_come(of_job: bool) -> None:
    async with Runtime() as runtime:
        teller = await runtime.submit(Workstream("w", tasks=[Task("a", run=one)])) if of_job else runtime
        with pytest.raises(ValueError, match="'nope' is no kind"):
            teller.events(kind="nope")
        for size in (0, -1):
            with pytest.raises(ValueError, match=f"room for at least one event, not size={size}"):
                teller.events(size=size)
        with pytest.raises(TypeError, match="is an int, not 'many'"):
            teller.events(size="many")  # type: ignore[call-overload]


@pytest.mark.parametrize("setting", ["drain_deadline", "keep_requests"])
@pytest.mark.parametrize("value", [-1, float("nan"), "soon", None])
def test_a_runtime_refuses_settings_that_are_no_durations_when_it_is_made(setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{setting}: "):
        Runtime(**{setting: value})


async def test_a_drain_for_no_duration_is_refused_before_anything_stops() -> None:
    async with Runtime(drain_deadline="30s") as runtime:
        with pytest.raises(ValueError, match="the deadline of a drain: -1 is not a duration"):
            await runtime.drain(-1)
        job = await runtime.submit(Workstream("w", tasks=[Task("a", run=one)]))
        assert (await job.wait()).ok


def test_every_kind_of_entity_can_be_asked_for() -> None:
    kinds = {
        record.kind
        for record in (
            JobRecord,
            WorkstreamRecord,
            TaskRecord,
            ApprovalRecord,
            WorkerRecord,
            BreakerRecord,
            MachineRecord,
        )
    }
    assert {*KINDS} == kinds | {"actor", "runtime"}


def test_filters_that_there_cannot_be_are_refused() -> None:
    with pytest.raises(TypeError, match="there is no filter state; there are: job"):
        wanted_by({"state": "running"})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(ValueError, match="'bad' is no severity"):
        wanted_by({"severity": "bad"})
    with pytest.raises(ValueError, match=r"'nope' is no kind; there are: job, .*approval.*, runtime"):
        wanted_by({"kind": ["task", "nope"]})
    with pytest.raises(ValueError, match="the filter task is empty"):
        wanted_by({"task": []})
    with pytest.raises(TypeError, match="takes a str or several, not 7"):
        wanted_by({"job": 7})  # type: ignore[typeddict-item]
