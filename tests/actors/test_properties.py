"""Random graphs, outcomes, operations and kills: each run ends, and the auditor finds nothing."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.actors.kernel.test_recovery import check_consistent, done
from tests.actors.stage import KernelHarness, Script

from callboard.actors.messages.commands import Cancel, Command, Reply
from callboard.actors.messages.inputs import Beat, Drain
from callboard.actors.records.task import AttemptRecord
from callboard.actors.spec.lifecycles import OWN, Lifecycles
from callboard.actors.spec.model import Breaker, Check, Condition, Retry, Task, Tool, Worker, Workstream
from callboard.machines.lifecycles import LIFECYCLES

NAMES = "abcdef"
FAR = 100_000.0


@st.composite
def graphs(draw: st.DrawFn) -> Workstream:
    """A workstream of up to six tasks, each waiting for some of those before it."""
    tasks = []
    for number, name in enumerate(NAMES[: draw(st.integers(1, 6))]):
        before = NAMES[:number]
        needs = [other for other in before if draw(st.integers(0, 3)) == 0]
        after = [other for other in before if other not in needs and draw(st.integers(0, 4)) == 0]
        tasks.append(
            Task(
                name, run="m:f", depends_on=needs, after=after,
                optional=draw(st.booleans()),
                priority=draw(st.integers(-1, 1)),
                tool=draw(st.sampled_from([None, None, "t"])),
                retry=draw(st.sampled_from([None, Retry(max_attempts=3, base_delay=2, jitter=0)])),
                condition=draw(st.sampled_from([None, None, None, Condition(run="m:c", timeout=5)])),
                checks=draw(st.sampled_from([[], [], [Check(run="m:c", timeout=5)]])),
                timeout=draw(st.sampled_from([None, 7])),
                queue_timeout=draw(st.sampled_from([None, None, 20])),
                heartbeat_timeout=draw(st.sampled_from([None, None, 4])),
                total_timeout=draw(st.sampled_from([None, None, 60])),
                kill_grace=3,
                on_loss=draw(st.sampled_from([None, None, "fail", "park"])),
                on_exhausted=draw(st.sampled_from([None, None, "park"])),
                capabilities=draw(st.sampled_from([[], [], [], ["none"]])),
            )
        )  # fmt: skip
    return Workstream(
        "flow", tasks=tasks, max_parallel=draw(st.sampled_from([None, 1, 2])),
        deadline=draw(st.sampled_from([None, None, 90])),
        checks=draw(st.sampled_from([[], [], [Check(run="m:c", timeout=5)]])),
        tools={
            "t": Tool(max_parallel=draw(st.sampled_from([None, 1])), breaker=Breaker(failure_threshold=2, cooldown=15)),
        },
    )  # fmt: skip


OUTCOMES: list[dict[str, Any] | None] = [
    {}, {}, {}, None,
    {"status": "failed", "error": "boom"},
    {"status": "failed", "error": "never", "permanent": True},
    {"status": "failed", "error": "later", "retry_after": 30.0},
]  # fmt: skip
ANSWERS: list[dict[str, Any] | None] = [{"value": True}, {"value": True}, {"value": False}, {"status": "failed"}, None]
STEPS = st.one_of(
    st.tuples(st.just("advance"), st.sampled_from([0.0, 1.0, 3.0, 10.0, 70.0])),
    st.tuples(st.just("end"), st.sampled_from(["ok", "failed", "cancelled", "abandoned"])),
    st.tuples(st.sampled_from(["cancel", "force"]), st.sampled_from([*NAMES, "stream", "job"])),
    st.tuples(st.just("beat"), st.none()),
    st.tuples(st.just("crash"), st.sampled_from([0.0, 5.0, 100.0])),
    st.tuples(st.just("drain"), st.none()),
    st.tuples(st.just("rebuild"), st.none()),
)


def scripts(data: st.DataObject) -> dict[str, Script]:
    """Return scripts of bodies and checks, which draw their behaviour when they begin."""

    def body(call: Any, entity: Any) -> dict[str, Any] | None:
        return data.draw(st.sampled_from(OUTCOMES), label=f"{entity.record.name} {entity.record.attempt}")

    def question(call: Any, entity: Any) -> dict[str, Any] | None:
        return data.draw(st.sampled_from(ANSWERS), label=f"{entity.record.name}.{call.kind}")

    found: dict[str, Script] = {}
    for name in [*NAMES, "flow"]:
        found |= {name: body, f"{name}.condition": question, f"{name}.check": question}
    return found


def take(stage: KernelHarness, what: str, how: Any) -> KernelHarness:
    """One step."""
    live = stage.kernel.jobs.get("job")
    match what:
        case "advance":
            stage.advance(how)
        case "end" if stage.running:
            stage.end(next(iter(stage.running)), how)
            stage.settle()
        case "beat" if stage.running:
            stage.send(Beat(next(iter(stage.running)), None))
        case "cancel" | "force" if live is not None and live.stream is not None:
            targets = {"job": live, "stream": live.stream} | {t.record.name: t for t in live.stream.tasks}
            if how in targets:
                key = targets[how].record.key
                stage.send(Command(key, Cancel("asked to", what == "force"), Reply(None)))
        case "crash":
            return stage.after_crash(down=how)
        case "drain":
            stage.send(Drain(stop=True))
            stage.advance(1)
            return stage.after_crash()
        case "rebuild":
            stage.kernel.recovery.rebuild()
        case _:
            pass
    return stage


def wait_for_the_end(stage: KernelHarness) -> KernelHarness:
    """Let all bodies behave, and time pass; cancel the entities that wait for a decision."""
    stage.scripts.clear()
    while stage.running:
        stage.end(next(iter(stage.running)), "ok", value=True)
        stage.settle()
    stage.advance(FAR)
    if (live := stage.kernel.jobs.get("job")) is not None:
        assert live.stream is not None
        assert {t.record.parked for t in live.stream.tasks} & {"exhausted", "lost"}
        for force in (False, True):  # a graceful cancel spares the clean-up of a failure
            if "job" in stage.kernel.jobs:
                stage.cancel(live, force=force)
        stage.advance(FAR)
    return stage


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    spec=graphs(),
    steps=st.lists(STEPS, max_size=12),
    stubborn=st.sets(st.sampled_from(NAMES), max_size=2),
    data=st.data(),
)
def test_whatever_happens_it_ends_and_the_log_is_clean(
    spec: Workstream, steps: list[tuple[str, Any]], stubborn: set[str], data: st.DataObject
) -> None:
    whatever_happens(spec, steps, stubborn, data)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    lifecycle=st.sampled_from(list(LIFECYCLES)),
    spec=graphs(),
    steps=st.lists(STEPS, max_size=12),
    stubborn=st.sets(st.sampled_from(NAMES), max_size=2),
    data=st.data(),
)
def test_whatever_happens_the_log_is_one_of_the_lifecycle_that_it_runs_by(
    lifecycle: str, spec: Workstream, steps: list[tuple[str, Any]], stubborn: set[str], data: st.DataObject
) -> None:
    whatever_happens(spec, steps, stubborn, data, lifecycle)


def whatever_happens(
    spec: Workstream, steps: list[tuple[str, Any]], stubborn: set[str], data: st.DataObject, lifecycle: str = OWN
) -> None:
    """Take the steps, then let the run end, and check all invariants."""
    lifecycles = Lifecycles(default=lifecycle)
    stage = KernelHarness(
        workers=(Worker("w", engine="loop", capacity=2),), scripts=scripts(data), lifecycles=lifecycles
    )
    stage.stubborn |= stubborn
    stage.submit(spec)
    for what, how in steps:
        completed = done(stage.kept)
        began = len(stage.started)
        before = stage
        stage = take(stage, what, how)
        if stage is not before:
            began = 0
            stage.stubborn |= stubborn
        assert not [entity for kind, entity, _ in stage.started[began:] if kind == "body" and entity in completed]
        assert stage.reports == [] or all("is stale" in text for text in stage.reports)
    stage = wait_for_the_end(stage)
    assert stage.state() in {"completed", "failed", "cancelled"}
    assert all(a.end is not None for a in stage.kept.of(AttemptRecord))
    check_consistent(stage)
