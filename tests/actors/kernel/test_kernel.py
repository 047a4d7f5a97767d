"""The kernel: turns, allowed and refused messages, stale timers, undoing."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import pytest
from tests.actors.stage import KernelHarness, fails, flow, hangs, task

from callboard.actors.jobs.job import JobActor
from callboard.actors.kernel.entity import States
from callboard.actors.kernel.kernel import Kernel
from callboard.actors.messages.commands import Barrier, Cancel, Command, Reply, Submit
from callboard.actors.messages.inputs import Beat, CallEnded, Continue, Message, ProcessStarted, TimerFired, TurnFailed
from callboard.actors.records.task import TaskRecord
from callboard.actors.records.transition import as_event
from callboard.actors.spec.model import Breaker, Retry, Tool, Worker
from callboard.machines import InvalidTransitionError, JobState


def test_a_turn_is_one_input_and_all_it_causes() -> None:
    """The result of one task and the start of the next travel together."""
    stage = KernelHarness()
    stage.scripts |= {"a": hangs, "b": hangs}
    stage.submit(flow(task("a"), task("b", "a")))
    before = len(stage.kept.turns)
    stage.end(stage.token("a"))
    stage.settle()
    (turn,) = stage.kept.turns[before:]
    steps = [(t.entity_id, t.to_state) for t in turn.transitions]
    assert steps == [
        ("job@1/a", "validating"), ("job@1/a", "completed"), ("loop#1", "idle"), ("job@1/b", "queued"),
        ("loop#1", "busy"),
        ("job@1/b", "running"),
    ]  # fmt: skip
    kinds = [record.kind for record in turn.records]
    assert sorted(kinds) == ["attempt", "attempt", "task", "task", "worker"]  # the last of each entity


def test_numbers_have_no_gap_and_each_entity_has_its_own() -> None:
    stage = KernelHarness()
    stage.scripts["b"] = fails()
    stage.submit(flow(task("a"), task("b", "a", optional=True)))
    transitions = stage.kept.transitions
    assert [t.seq for t in transitions] == list(range(1, len(transitions) + 1))
    of_a = [t.entity_seq for t in transitions if t.entity_id == "job@1/a"]
    assert of_a == [1, 2, 3, 4, 5]
    created = [t for t in transitions if t.from_state is None]
    assert {t.event for t in created} == {"create"}
    assert {t.kind for t in created} == {"worker", "job", "workstream", "task"}


def test_what_a_transition_tells() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = lambda call, entity: {"duration": 2.5}
    stage.submit(flow(task("a")))
    event = next(as_event(t) for t in stage.kept.transitions if t.to_state == "validating")
    assert msgspec.to_builtins(event) == {
        "seq": event.seq, "timestamp": "1970-01-12T13:46:40.000Z", "event_type": "task_state_transition",
        "severity": "info",
        "entity_id": "job@1/a", "entity_seq": 4, "from_state": "running", "to_state": "validating",
        "trigger": "succeed",
        "reason": None, "job_id": "job", "workstream_id": "job@1", "run": 1, "attempt": 1, "worker_id": "loop#1",
        "metadata": {"duration_seconds": 2.5, "retry_count": 0},
    }  # fmt: skip


def test_severities() -> None:
    stage = KernelHarness()
    stage.scripts |= {"a": fails(), "b": hangs, "t": fails()}
    tools = {"t": Tool(breaker=Breaker(failure_threshold=1))}
    stage.submit(
        flow(
            task("a", retry=Retry(max_attempts=2)),
            task("b", timeout=1, optional=True),
            task("t", tool="t", optional=True),
            tools=tools,
        )
    )
    stage.advance(50)
    said = {(t.kind, t.to_state): t.severity for t in stage.kept.transitions if t.severity != "info"}
    assert said == {
        ("task", "retrying"): "warning", ("task", "timed_out"): "warning", ("task", "failed"): "error",
        ("workstream", "cancelling"): "error", ("workstream", "failed"): "critical", ("job", "failed"): "error",
        ("breaker", "open"): "error",
    }  # fmt: skip


def test_the_same_inputs_give_the_same_transitions() -> None:
    def once() -> list[Any]:
        stage = KernelHarness()
        stage.scripts |= {"a": fails(), "b": hangs}
        stage.submit(flow(task("a", retry=Retry(max_attempts=4)), task("b", timeout=9), task("c", "a")))
        stage.advance(100)
        return [msgspec.structs.astuple(t) for t in stage.kept.transitions]

    assert once() == once()


def test_a_timer_of_a_state_that_was_left_is_stale() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    job = stage.submit(flow(task("a")))
    record = stage.task("a")
    before = stage.kernel.stale
    stage.send(TimerFired(record.key, record.epoch - 1))
    assert stage.task("a").state == "running"
    assert stage.kernel.stale == before + 1
    assert job.stream is not None
    stage.send(TimerFired(job.stream.record.key, 1))
    assert stage.kernel.stale == before + 2
    stage.send(TimerFired(999_999, 3))  # the timer of an entity that does not exist any more
    stage.send(Continue(999_999))
    assert stage.reports == []


def test_every_state_that_is_left_takes_its_timer_with_it() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = fails()
    stage.submit(flow(task("a", retry=Retry(max_attempts=3, jitter=0), queue_timeout=50, total_timeout=90)))
    for _ in range(4):
        armed = [fire for *_, timer, fire in stage.timers if timer.armed]
        assert len(armed) == (stage.task("a").state != "failed")
        stage.advance(2.5)


def test_a_command_to_what_is_gone_is_answered() -> None:
    stage = KernelHarness()
    stage.send(Command(4711, Cancel("why not"), Reply(None)))
    assert isinstance(stage.answers[-1][1], LookupError)
    assert stage.reports == []


def test_a_refusal_is_an_answer_and_changes_nothing() -> None:
    stage = KernelHarness()
    stage.scripts["b"] = hangs
    stage.submit(flow(task("a"), task("b")))
    turns, records = len(stage.kept.transitions), dict(stage.kept.records)
    refusal = stage.cancel(stage.actor("a"))
    assert isinstance(refusal, InvalidTransitionError)
    assert str(refusal) == (
        "task: 'cancel_graceful' is not possible in state 'completed': nothing leaves it. "
        "An ended entity cannot be changed; start a new run."
    )
    assert len(stage.kept.transitions) == turns
    assert stage.kept.records == records
    assert stage.reports == []


def test_a_refusal_in_the_middle_of_a_command_leaves_no_half_of_it() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    job = stage.submit(flow(task("a")))

    def half(_: object) -> None:
        job.change(error="half done")
        raise InvalidTransitionError("job", "running", "x", frozenset())

    kind = type(job)
    received = kind.receivers
    kind.receivers = {**received, Cancel: lambda actor, message: half(message)}
    try:
        refusal = stage.cancel(job)
    finally:
        kind.receivers = received
    assert isinstance(refusal, InvalidTransitionError)
    assert job.record.error is None
    assert stage.state() == "running"


def test_a_barrier_is_answered() -> None:
    stage = KernelHarness()
    stage.send(Barrier(Reply(None)))
    assert stage.answers[-1] == (None, None)


@pytest.mark.parametrize("message", [CallEnded(77, "ok"), Beat(77, None), ProcessStarted(77, 1, 1)])
def test_what_comes_under_an_unknown_token_is_refused_and_counted(message: Message) -> None:
    stage = KernelHarness()
    stage.send(message)
    assert stage.kernel.stale == 1
    assert len(stage.reports) == 1
    assert stage.kept.transitions[-1].kind == "worker"


def test_processes_and_heartbeats_of_questions_and_hooks_are_nobodys_business() -> None:
    from callboard.actors.spec.model import Check, Condition, Hook

    stage = KernelHarness()
    stage.hooks_hang = True
    stage.scripts |= dict.fromkeys(["a.condition", "b.check", "flow.check"], hangs)
    stage.submit(flow(task("a", condition=Condition(run="m:c"))), "one")
    stage.submit(flow(task("b", checks=[Check(run="m:c")])), "two")
    stage.submit(flow(task("c", on_completed=[Hook(run="m:h")]), checks=[Check(run="m:c")]), "three")
    before = dict(stage.kept.records)
    for token in list(stage.kernel.calls):
        stage.send(Beat(token, msgspec.Raw(b"1")))
        stage.send(ProcessStarted(token, 4711, 1))
    assert stage.reports == []
    assert stage.kept.records == before


def test_an_unknown_input_is_reported() -> None:
    stage = KernelHarness()
    stage.send(Message())
    assert len(stage.reports) == 1
    assert "never sent a Message" in stage.reports[0]


# -- undoing -----------------------------------------------------------------------------------------------------------


def raising(stage: KernelHarness, kind: type[Message]) -> list[int]:
    """Have the next message of a kind raise, once."""
    send, left = Kernel.send, [1]

    def trapped(actor: Any, message: Any) -> None:
        if isinstance(message, kind) and left:
            left.pop()

            class Trap:
                record = getattr(actor, "record", None)

                def receive(self, _: Any) -> None:
                    raise RuntimeError("injected")

            actor = Trap()
        send(stage.kernel, actor, message)

    stage.kernel.send = trapped  # type: ignore[method-assign]
    return left


def test_an_undone_submission_leaves_nothing_and_may_be_made_again() -> None:
    from callboard.actors.messages.inputs import Ready

    stage = KernelHarness()
    keys = dict(stage.kernel.entities)
    raising(stage, Ready)
    spec = flow(task("a", tool="t"), deadline=5)
    stage.send(Submit("job", True, spec, msgspec.json.encode(spec), "", Reply(None)))
    assert isinstance(stage.answers[-1][1], RuntimeError)
    assert stage.kernel.entities == keys
    assert stage.kernel.jobs == {}
    assert stage.workforce.breakers == {}
    assert [timer for *_, timer, _ in stage.timers if timer.armed] == []
    stage.submit(spec)
    assert stage.state() == "completed"
    assert stage.audit() == []


def test_an_undone_end_gives_the_slot_back_that_was_freed_and_fails_its_task() -> None:
    from callboard.actors.messages.inputs import Release

    stage = KernelHarness(workers=(Worker("w", engine="loop", capacity=1),))
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a", optional=True), task("b")))
    raising(stage, Release)
    stage.end(stage.token("a"))
    stage.settle()
    assert stage.states() == {"a": "failed", "b": "completed"}
    assert stage.task("a").last_error == "internal error: RuntimeError: injected"
    assert stage.attempts("a")[0].end == "failed"
    assert stage.kernel.slots == {}
    worker = next(iter(stage.kernel.workers.values()))
    assert (worker.used, worker.record.assigned, worker.record.state) == (0, 0, "idle")
    assert stage.audit() == []


def test_an_undone_timer_fails_its_task_and_stops_its_body() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a", timeout=5)))
    kind = type(stage.actor("a"))
    entered = kind.when_entered

    def broken(actor: Any) -> None:
        raise RuntimeError("injected")

    kind.when_entered = {**entered, "timed_out": broken}
    try:
        stage.advance(5)
    finally:
        kind.when_entered = entered
    assert stage.task("a").state == "failed"
    assert stage.running == {}
    assert stage.kernel.slots == {}
    assert stage.audit() == []


def test_limits_still_run_after_somebody_elses_turn_was_undone() -> None:
    from callboard.actors.messages.inputs import Release
    from callboard.actors.spec.model import Check, Condition

    stage = KernelHarness()
    stage.scripts |= dict.fromkeys(["run", "stop", "ask.condition", "val.check", "boom"], hangs)
    stage.stubborn |= {"stop", "gone"}
    stage.scripts["gone"] = hangs
    specs = {
        "run": task("run", timeout=20), "stop": task("stop", timeout=1), "gone": task("gone"),
        "ask": task("ask", condition=Condition(run="m:c", timeout=20)),
        "val": task("val", checks=[Check(run="m:c", timeout=20)]),
        "back": task("back", retry=Retry(max_attempts=2, base_delay=20, jitter=0)),
    }  # fmt: skip
    stage.scripts["back"] = fails()
    for name, spec in specs.items():
        stage.submit(flow(spec), name)
    stage.submit(flow(task("boom")), "boom")
    stage.advance(1)
    stage.cancel(stage.actor("gone", "gone"))
    raising(stage, Release)
    stage.end(stage.task("boom", "boom").token)
    stage.settle()
    assert len(stage.reports) == 1
    stage.advance(40)
    ends = {name: stage.task(name, name).state for name in specs}
    assert ends == {
        "run": "failed",
        "stop": "failed",
        "ask": "failed",
        "val": "failed",
        "gone": "cancelled",
        "back": "failed",
    }
    assert stage.kernel.slots == {}
    assert stage.audit() == []


def test_a_workstream_whose_turn_raises_fails_with_all_its_tasks() -> None:
    stage = KernelHarness()
    stage.scripts |= {"a": hangs}
    job = stage.submit(flow(task("a"), task("b", "a")))
    assert job.stream is not None
    stage.send(TurnFailed(job.stream.record.key, "Boom: no"))
    assert stage.stream.error == "internal error: Boom: no"
    assert stage.states() == {"a": "cancelled", "b": "cancelled"}
    assert stage.state() == "failed"
    assert stage.audit() == []


@pytest.mark.parametrize("state", ["pending", "queued", "validating", "cancelling", "retrying", "timed_out"])
def test_a_task_whose_turn_raised_ends_from_every_state(state: str) -> None:
    from tests.actors.tasks.test_task import put_into

    stage = put_into(state)
    stage.send(TurnFailed(stage.task("a").key, "Boom: no"))
    record = stage.task("a")
    assert record.state == ("cancelled" if state == "cancelling" else "failed")
    assert "internal error: Boom: no" in (record.last_error or "", record.reason or "")
    for token in list(stage.running):
        stage.end(token)
    stage.settle()
    assert stage.state() == "failed"
    assert stage.kernel.slots == {}
    assert stage.audit() == []


def test_a_breaker_whose_turn_raised_looks_again_after_another_cooldown() -> None:
    stage = KernelHarness()
    stage.scripts |= {"x": fails()}
    stage.submit(flow(task("x", tool="t"), tools={"t": Tool(breaker=Breaker(failure_threshold=1, cooldown=10))}))
    kind = type(next(iter(stage.workforce.breakers.values())))
    entered = kind.when_entered

    def broken(actor: Any) -> None:
        raise RuntimeError("injected")

    kind.when_entered = {**entered, "half_open": broken}
    try:
        stage.advance(10)
    finally:
        kind.when_entered = entered
    assert stage.breaker.state == "open"
    assert stage.breaker.due_at == stage.time + 10
    stage.advance(10)
    assert stage.breaker.state == "half_open"


def test_a_rebuild_changes_nothing_that_is_true() -> None:
    """All derived state is rebuilt in the middle of a run, and the run goes on unchanged."""
    from tests.actors.kernel.test_recovery import RUNS, check_consistent, settled

    for make in RUNS:
        spec, scripts, go_on = make()
        plain, rebuilt = KernelHarness(scripts=dict(scripts)), KernelHarness(scripts=dict(scripts))
        plain.submit(spec)
        go_on(plain)
        run = rebuilt.kernel.run

        def run_and_rebuild(message: Message, run: Any = run, stage: KernelHarness = rebuilt) -> None:
            run(message)
            stage.kernel.recovery.rebuild()

        rebuilt.kernel.run = run_and_rebuild  # type: ignore[method-assign]
        rebuilt.submit(spec)
        go_on(rebuilt)
        assert settled(rebuilt) == settled(plain)
        assert [t.to_state for t in rebuilt.kept.transitions] == [t.to_state for t in plain.kept.transitions]
        check_consistent(rebuilt)


def test_records_are_what_a_journal_can_keep() -> None:
    stage = KernelHarness()
    stage.submit(flow(task("a")))
    for record in stage.kept.of(TaskRecord):
        assert msgspec.json.decode(msgspec.json.encode(record), type=TaskRecord) == record


def test_a_table_of_an_actor_names_only_states_of_its_machine() -> None:
    with pytest.raises(TypeError, match=r"has functions for \['held'\]"):

        class _Misspelt(JobActor):
            when_entered: ClassVar[States] = {JobState.RUNNING: JobActor.entered_running, "held": JobActor.begin}
