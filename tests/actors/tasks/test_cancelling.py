"""Graceful cancelling: the hooks of tasks and workstreams, their limits, and their restore after a crash."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.actors.stage import KernelHarness, Script, fails, flow, hangs, task

from callboard.actors.messages.inputs import RECOVER, Beat, Drain, TurnFailed
from callboard.actors.spec.model import Check, Defaults, Hook, Retry
from callboard.machines import InvalidTransitionError

HOOKS = [Hook(run="m:first"), Hook(command=["second", "--all"], timeout=10), Hook(run="m:third")]


def in_order(*outcomes: dict[str, Any] | None) -> Script:
    """A script for hooks: each gets its outcome, by its number."""
    return lambda call, entity: outcomes[call.index]


def hooks_of(stage: KernelHarness, name: str = "job@1/a") -> list[int]:
    """The numbers of the hooks that really began, in order."""
    starts = {call.token: call.index for turn in stage.kept.turns for call in turn.effects if hasattr(call, "index")}
    return [starts[token] for kind, entity, token in stage.started if kind == "cancel_hook" and entity == name]


def running(**more: Any) -> KernelHarness:
    """A stage whose task "a", with three hooks, runs."""
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a", cancel_hooks=HOOKS, **more)))
    assert stage.task("a").state == "running"
    return stage


def hooking(*outcomes: dict[str, Any] | None, **more: Any) -> KernelHarness:
    """A stage whose task "a" is cancelled: its body has ended, and its hooks follow their scripts."""
    stage = running(**more)
    stage.scripts["a.cancel_hook"] = in_order(*outcomes)
    assert stage.cancel(stage.actor("a")) is None
    return stage


def the_hook(stage: KernelHarness) -> int:
    """The token of the hook that runs."""
    (token,) = (token for token, call in stage.running.items() if call.kind == "cancel_hook")
    return token


def idle(stage: KernelHarness) -> bool:
    """Whether nothing is left: no call, no slot, no timer."""
    timers = [timer for *_, timer, _ in stage.timers if timer.armed]
    return not stage.kernel.calls and not stage.kernel.slots and not timers


# -- a task's hooks ----------------------------------------------------------------------------------------------------


def test_the_hooks_run_in_order_once_the_body_is_gone_and_then_it_is_cancelled() -> None:
    stage = running()
    stage.stubborn.add("a")
    stage.cancel(stage.actor("a"))
    assert hooks_of(stage) == []
    stage.stubborn.clear()
    stage.end(stage.token("a"), "cancelled")
    stage.settle()
    assert hooks_of(stage) == [0, 1, 2]
    assert (stage.task("a").state, stage.task("a").reason) == ("cancelled", "asked to")
    assert stage.steps("a")[-2:] == ["cancelling", "cancelled"]
    assert idle(stage)
    assert stage.audit() == []


def test_the_next_hook_waits_for_the_one_before() -> None:
    stage = hooking({}, None, {})
    assert hooks_of(stage) == [0, 1]
    assert stage.task("a").state == "cancelling"
    stage.end(the_hook(stage))
    stage.settle()
    assert hooks_of(stage) == [0, 1, 2]
    assert stage.task("a").state == "cancelled"


def test_the_slot_is_free_once_the_body_is_gone() -> None:
    stage = hooking(None, {}, {})
    assert stage.kernel.slots == {}
    assert stage.attempts("a")[0].end == "cancelled"


@pytest.mark.parametrize(
    "outcome", [{"status": "failed", "error": "no such branch"}, {"status": "gone"}, {"status": "abandoned"}]
)
def test_a_hook_that_fails_does_not_keep_the_others_from_running_and_then_it_has_failed(
    outcome: dict[str, Any],
) -> None:
    stage = hooking(outcome, {}, {})
    assert hooks_of(stage) == [0, 1, 2]
    record = stage.task("a")
    said = outcome.get("error", outcome["status"])
    assert (record.state, record.error_type) == ("failed", "cancel_hook_failed")
    assert record.last_error == f"cancel hook `m:first` failed: {said}"
    assert record.reason == f"asked to; {record.last_error}"
    assert record.failed_attempts == 0
    assert stage.steps("a").count("running") == 1
    (notice,) = stage.notices
    assert (notice.event, notice.severity, notice.entity_id) == ("hook_failed", "error", "job@1/a")
    assert (notice.text, notice.facts) == (
        f"the cancel hook `m:first` of job@1/a failed: {said}", {"hook": "cancel", "error": said},
    )  # fmt: skip
    assert idle(stage)
    assert stage.audit() == []


def test_a_hook_that_takes_too_long_is_stopped_and_the_others_run() -> None:
    stage = hooking({}, None, {})
    token = the_hook(stage)
    stage.advance(9.9)
    assert stage.stops[-1] != (token, False)
    stage.advance(0.1)
    assert stage.stops[-1] == (token, False)
    assert hooks_of(stage) == [0, 1, 2]
    assert stage.task("a").state == "failed"
    assert "cancel hook `second --all` failed: it took longer than 10 s and was stopped" in str(stage.task("a").reason)


def test_a_hook_that_does_not_stop_is_abandoned_and_the_others_run() -> None:
    stage = hooking({}, None, {})
    token = the_hook(stage)
    stage.deaf.add("a")
    stage.advance(10)
    assert hooks_of(stage) == [0, 1]  # the body still has to end
    stage.advance(6)
    assert stage.stops[-1] == (token, True)
    assert hooks_of(stage) == [0, 1, 2]
    assert stage.task("a").state == "failed"
    assert "did not stop, and was abandoned" in str(stage.task("a").reason)
    stage.end(token, "abandoned")
    stage.settle()
    assert idle(stage)


def test_the_deadline_of_all_hooks_ends_it_and_says_what_was_left() -> None:
    stage = hooking({}, None, {}, cancel_timeout=8)
    token = the_hook(stage)
    stage.advance(7.9)
    assert stage.task("a").state == "cancelling"
    stage.advance(0.1)
    record = stage.task("a")
    text = "the time for its cancel hooks was over: `second --all` was abandoned, `m:third` never ran"
    assert (record.state, record.reason) == ("cancelled", f"asked to; {text}")
    assert stage.kept.transitions[-1].entity_id == "job"
    (forced,) = [t for t in stage.kept.transitions if t.event == "cancel_force"]
    assert forced.entity_id == "job@1/a"
    assert stage.stops[-1] == (token, True)
    (notice,) = stage.notices
    assert (notice.event, notice.severity, notice.text) == ("hooks_abandoned", "warning", f"job@1/a: {text}")
    assert notice.facts == {"abandoned": ["second --all"], "never_ran": ["m:third"]}
    assert hooks_of(stage) == [0, 1]
    assert idle(stage)


def test_the_hooks_have_thirty_seconds_in_all_unless_something_else_is_said() -> None:
    for more, limit in (({}, 30.0), ({"cancel_timeout": "1m"}, 60.0)):
        stage = KernelHarness()
        stage.scripts |= {"a": hangs, "a.cancel_hook": hangs}
        stage.submit(flow(task("a", cancel_hooks=[Hook(run="m:h", timeout="1h")], **more)))
        stage.cancel(stage.actor("a"))
        stage.advance(limit - 0.1)
        assert stage.task("a").state == "cancelling"
        stage.advance(0.1)
        assert stage.task("a").state == "cancelled"


def test_a_second_cancel_is_refused_and_disturbs_no_hook() -> None:
    stage = hooking(None, {}, {})
    due, stops, count = stage.task("a").due_at, list(stage.stops), len(stage.kept.transitions)
    refusal = stage.cancel(stage.actor("a"))
    assert isinstance(refusal, InvalidTransitionError)
    assert refusal.allowed == {"complete", "cancel_force", "fail"}
    assert (stage.task("a").due_at, stage.stops, len(stage.kept.transitions)) == (due, stops, count)
    stage.end(the_hook(stage))
    stage.settle()
    assert hooks_of(stage) == [0, 1, 2]
    assert stage.task("a").state == "cancelled"


def test_nor_does_a_cancel_of_its_job_disturb_one() -> None:
    stage = hooking(None, {}, {})
    due, stops = stage.task("a").due_at, list(stage.stops)
    assert stage.cancel(stage.kernel.jobs["job"]) is None
    assert (str(stage.task("a").state), stage.task("a").due_at, stage.stops) == ("cancelling", due, stops)
    assert not stage.kernel.stale
    stage.end(the_hook(stage))
    stage.settle()
    assert hooks_of(stage) == [0, 1, 2]
    assert (stage.task("a").state, stage.task("a").reason, stage.state()) == ("cancelled", "asked to", "cancelled")
    assert not [notice for notice in stage.notices if notice.event == "turn_undone"]


def test_force_kills_the_hook_that_runs_and_runs_no_other() -> None:
    stage = hooking(None, {}, {})
    token = the_hook(stage)
    assert stage.cancel(stage.actor("a"), force=True) is None
    text = "it was forced: `m:first` was abandoned, `second --all`, `m:third` never ran"
    assert (stage.task("a").state, stage.task("a").reason) == ("cancelled", f"asked to; {text}")
    assert stage.stops[-1] == (token, True)
    assert hooks_of(stage) == [0]
    assert idle(stage)


def test_force_at_once_runs_no_hook() -> None:
    stage = running()
    stage.cancel(stage.actor("a"), force=True)
    assert stage.task("a").state == "cancelled"
    assert hooks_of(stage) == []


@pytest.mark.parametrize("state", ["pending", "queued", "retrying"])
def test_no_hook_where_nothing_of_it_runs(state: str) -> None:
    stage = KernelHarness()
    stage.scripts |= {"a": fails(), "gate": hangs}
    a = task("a", *["gate"] * (state == "pending"), cancel_hooks=HOOKS, retry=Retry(max_attempts=3))
    stage.submit(flow(task("gate", optional=True), a, max_parallel=1 if state == "queued" else None))
    assert stage.task("a").state == state
    assert stage.cancel(stage.actor("a")) is None
    assert stage.task("a").state == "cancelled"
    stage.scripts.clear()
    stage.scripts["a.cancel_hook"] = hangs
    for token in list(stage.running):
        stage.end(token)
    stage.advance(1000)
    assert hooks_of(stage) == []
    assert stage.bodies().count("a") == (1 if state == "retrying" else 0)
    assert idle(stage)


def test_no_hook_where_cleanup_is_off() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    spec = flow(task("a", cancel_hooks=HOOKS), cancel_hooks=HOOKS, defaults=Defaults(cleanup_on_cancel=False))
    stage.submit(spec)
    stage.cancel(stage.kernel.jobs["job"])
    assert stage.state() == "cancelled"
    assert [kind for kind, *_ in stage.started if kind == "cancel_hook"] == []


def test_hooks_run_as_well_where_a_check_was_stopped() -> None:
    stage = KernelHarness()
    stage.scripts["a.check"] = hangs
    stage.submit(flow(task("a", checks=[Check(run="m:c")], cancel_hooks=HOOKS)))
    stage.cancel(stage.actor("a"))
    assert hooks_of(stage) == [0, 1, 2]
    assert stage.task("a").state == "cancelled"
    assert idle(stage)


def test_an_error_of_the_body_stays_where_the_hooks_are_good() -> None:
    stage = running()
    stage.stubborn.add("a")
    stage.cancel(stage.actor("a"))
    stage.end(stage.token("a"), "failed", error="could not clean up", error_type="OSError")
    stage.settle()
    record = stage.task("a")
    assert (record.state, record.last_error, record.error_type) == ("cancelled", "could not clean up", "OSError")
    assert hooks_of(stage) == [0, 1, 2]


@pytest.mark.parametrize("checked", [False, True])
def test_a_body_that_does_not_stop_is_abandoned_and_the_hooks_run(checked: bool) -> None:
    stage = KernelHarness()
    name = "a.check" if checked else "a"
    stage.scripts[name] = hangs
    stage.submit(flow(task("a", cancel_hooks=HOOKS, checks=[Check(run="m:c")])))
    stage.deaf.add("a")
    (token,) = stage.running
    stage.cancel(stage.actor("a"))
    stage.advance(10.9)
    assert hooks_of(stage) == []
    stage.advance(0.1)
    assert stage.stops[-1] == (token, True)
    assert hooks_of(stage) == [0, 1, 2]
    record = stage.task("a")
    assert record.state == "cancelled"
    assert record.reason == "asked to; the body did not stop in time and was abandoned"
    assert stage.attempts("a")[0].end == ("succeeded" if checked else "cancelled")
    assert bool(stage.kernel.slots) is not checked
    stage.end(token, "abandoned")
    stage.settle()
    assert idle(stage)
    assert len(stage.attempts("a")) == 1
    assert stage.audit() == []


def test_a_late_end_of_an_abandoned_body_does_not_disturb_the_hooks() -> None:
    stage = running()
    stage.scripts["a.cancel_hook"] = in_order(None, {}, {})
    stage.deaf.add("a")
    token = stage.token("a")
    stage.cancel(stage.actor("a"))
    stage.advance(11)
    assert hooks_of(stage) == [0]
    stage.end(token, "abandoned")
    stage.settle()
    assert stage.task("a").state == "cancelling"
    assert stage.kernel.slots == {}
    stage.end(the_hook(stage))
    stage.settle()
    assert stage.task("a").state == "cancelled"


# -- races -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["result", "cancel"])
def test_of_a_result_and_a_cancel_in_the_same_instant_the_first_committed_wins(first: str) -> None:
    stage = running()
    actor, token = stage.actor("a"), stage.token("a")
    if first == "result":
        stage.end(token)
        stage.kernel.run(stage.inputs.popleft())
        refusal = stage.cancel(actor)
        assert refusal is not None
        assert stage.task("a").state == "completed"
        assert hooks_of(stage) == []
    else:
        assert stage.command_silently(actor) is None
        stage.end(token)
        stage.settle()
        assert stage.task("a").state == "cancelled"
        assert stage.task("a").result is None
        assert hooks_of(stage) == [0, 1, 2]
    assert idle(stage)


# -- coming back -------------------------------------------------------------------------------------------------------


def cuts(stage: KernelHarness) -> Iterator[int]:
    """How many turns were durable at each crash while "a" was cancelling."""
    state = None
    for number, turn in enumerate(stage.kept.turns, start=1):
        for transition in turn.transitions:
            if transition.entity_id == "job@1/a":
                state = transition.to_state
        if state == "cancelling":
            yield number


def test_after_a_crash_inside_cancelling_the_hooks_run_again_once_with_a_fresh_budget() -> None:
    stage = hooking({}, None, {}, cancel_timeout=20)
    stage.advance(5)
    stage.end(the_hook(stage))
    stage.settle()
    found = list(cuts(stage))
    assert len(found) >= 4
    for number in found:
        again = stage.after_crash(number, down=1000)
        again.scripts["a.cancel_hook"] = in_order({}, None, {})
        assert hooks_of(again) == [0, 1]
        assert again.task("a").state == "cancelling"
        again.advance(9)
        assert again.task("a").state == "cancelling"
        again.end(the_hook(again))
        again.settle()
        assert hooks_of(again) == [0, 1, 2]
        assert (again.task("a").state, again.state()) == ("cancelled", "failed")
        assert [attempt.end for attempt in again.attempts("a")] == ["cancelled"]
        assert idle(again)
        assert again.audit() == []
        assert again.after_crash().started == []


def test_a_crash_while_the_hooks_run_again_has_them_run_once_more() -> None:
    stage = hooking(None, {}, {})
    for _ in range(3):
        stage = stage.after_crash()
        assert hooks_of(stage) == [0]
    stage.end(the_hook(stage))
    stage.settle()
    assert hooks_of(stage) == [0, 1, 2]
    assert stage.task("a").state == "cancelled"


def test_what_a_hook_said_before_a_crash_is_forgotten_since_it_runs_again() -> None:
    stage = hooking({"status": "failed", "error": "not yet"}, None, {})
    stage.scripts["a.cancel_hook"] = in_order({}, {}, {})
    again = stage.after_crash()
    assert again.task("a").state == "cancelled"


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_drain_stops_a_hook_and_it_runs_after_the_restart(when: str) -> None:
    if when == "before":
        stage = running()
        stage.stubborn.add("a")
        stage.cancel(stage.actor("a"))
        stage.send(Drain(stop=True))
        stage.end(stage.token("a"), "cancelled")
        stage.settle()
        assert hooks_of(stage) == []
    else:
        stage = hooking(None, {}, {})
        stage.send(Drain(stop=True))
    assert stage.task("a").state == "cancelling"
    assert stage.kernel.calls == {}
    stage.advance(1000)
    assert stage.task("a").state == "cancelling"
    stage.scripts["a.cancel_hook"] = in_order({}, {}, {})
    again = stage.after_crash()
    assert hooks_of(again) == [0, 1, 2]
    assert again.task("a").state == "cancelled"


def test_a_hook_that_said_something_during_a_drain_runs_again_too() -> None:
    stage = hooking(None, {}, {})
    token = the_hook(stage)
    stage.stubborn.add("a")
    stage.send(Drain(stop=True))
    stage.end(token, "failed", error="no")
    stage.settle()
    assert stage.task("a").state == "cancelling"
    assert hooks_of(stage) == [0]


def test_a_turn_that_fails_while_a_hook_runs_ends_it() -> None:
    stage = hooking(None, {}, {})
    stage.send(TurnFailed(stage.task("a").key, "ValueError: ours"))
    assert stage.task("a").state == "cancelled"
    assert "internal error" in str(stage.task("a").reason)
    assert idle(stage)


def test_an_undone_turn_leaves_the_hook_that_runs() -> None:
    stage = hooking(None, {}, {})
    token = the_hook(stage)
    stage.kernel.recovery.rebuild()
    stage.end(token)
    stage.settle()
    assert stage.task("a").state == "cancelled"


# -- a workstream's hooks ----------------------------------------------------------------------------------------------


def streaming(*outcomes: dict[str, Any] | None, **more: Any) -> KernelHarness:
    """A stage whose job was cancelled: its tasks have ended, and the workstream's hooks follow their scripts."""
    stage = KernelHarness()
    stage.scripts |= {"a": hangs, "flow.cancel_hook": in_order(*outcomes)}
    stage.submit(flow(task("a", cancel_hooks=HOOKS[:1]), task("b", "a"), cancel_hooks=HOOKS, **more))
    assert stage.cancel(stage.kernel.jobs["job"]) is None
    return stage


def test_a_workstreams_hooks_run_after_its_tasks_have_ended() -> None:
    stage = streaming({}, {}, {})
    assert [(entity, kind) for kind, entity, _ in stage.started if kind == "cancel_hook"] == [
        ("job@1/a", "cancel_hook"), *[("job@1", "cancel_hook")] * 3,
    ]  # fmt: skip
    assert (stage.stream.state, stage.state()) == ("cancelled", "cancelled")
    assert stage.states() == {"a": "cancelled", "b": "cancelled"}
    assert idle(stage)
    assert stage.audit() == []


def test_a_workstream_waits_for_the_hooks_of_its_tasks() -> None:
    stage = KernelHarness()
    stage.scripts |= {"a": hangs, "a.cancel_hook": hangs}
    stage.submit(flow(task("a", cancel_hooks=HOOKS[:1]), cancel_hooks=HOOKS))
    stage.cancel(stage.kernel.jobs["job"])
    assert hooks_of(stage, "job@1") == []
    stage.end(the_hook(stage))
    stage.settle()
    assert hooks_of(stage, "job@1") == [0, 1, 2]
    assert stage.state() == "cancelled"


def test_a_failed_hook_of_a_task_does_not_fail_the_workstream_that_is_cancelled() -> None:
    stage = KernelHarness()
    stage.scripts |= {"a": hangs, "a.cancel_hook": fails("no")}
    stage.submit(flow(task("a", cancel_hooks=HOOKS[:1])))
    stage.cancel(stage.kernel.jobs["job"])
    assert (stage.task("a").state, stage.state()) == ("failed", "cancelled")


def test_a_workstream_whose_hook_failed_has_failed_and_so_has_its_job() -> None:
    stage = streaming({}, {"status": "failed", "error": "no"}, {})
    assert hooks_of(stage, "job@1") == [0, 1, 2]
    assert (stage.stream.state, stage.state()) == ("failed", "failed")
    assert stage.stream.error == "cancel hook `second --all` failed: no"
    assert idle(stage)
    assert stage.audit() == []


def test_the_deadline_of_a_workstreams_hooks() -> None:
    stage = streaming({}, None, {}, defaults=Defaults(cancel_timeout=8))
    stage.advance(8)
    assert (stage.stream.state, stage.state()) == ("cancelled", "cancelled")
    assert "the time for its cancel hooks was over: `second --all` was abandoned" in str(stage.stream.reason)
    assert stage.path("job@1")[-3:] == ["cancelling", "cancelling", "cancelled"]
    assert idle(stage)


def test_force_ends_a_workstreams_hooks() -> None:
    stage = streaming(None, {}, {})
    token = the_hook(stage)
    assert stage.cancel(stage.kernel.jobs["job"], force=True) is None
    assert stage.stops[-1] == (token, True)
    assert (stage.stream.state, stage.state()) == ("cancelled", "cancelled")
    assert hooks_of(stage, "job@1") == [0]
    assert idle(stage)


@pytest.mark.parametrize("way", ["forced", "failed", "unbegun"])
def test_a_workstreams_hooks_do_not_run_where_it_is_forced_or_fails_or_never_began(way: str) -> None:
    stage = KernelHarness(workers=()) if way == "unbegun" else KernelHarness()
    stage.scripts |= {"a": hangs, "b": fails() if way == "failed" else hangs}
    stage.submit(flow(task("a"), task("b"), cancel_hooks=HOOKS))
    if way != "failed":
        stage.cancel(stage.kernel.jobs["job"], force=way == "forced")
    assert stage.state() == ("failed" if way == "failed" else "cancelled")
    assert hooks_of(stage, "job@1") == []


def test_a_deadline_of_the_workstream_runs_its_hooks() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a", cancel_hooks=HOOKS), cancel_hooks=HOOKS, deadline=60))
    stage.advance(60)
    assert (hooks_of(stage), hooks_of(stage, "job@1")) == ([0, 1, 2], [0, 1, 2])
    assert (stage.state(), stage.stream.reason) == ("cancelled", "the deadline is over")


def test_hooks_of_a_workstream_that_is_cancelled_while_it_is_validated() -> None:
    stage = KernelHarness()
    stage.scripts["flow.check"] = hangs
    stage.submit(flow(task("a"), checks=[Check(run="m:c")], cancel_hooks=HOOKS))
    stage.cancel(stage.kernel.jobs["job"])
    assert hooks_of(stage, "job@1") == [0, 1, 2]
    assert stage.state() == "cancelled"
    assert idle(stage)


def test_a_workstreams_hooks_run_again_after_a_crash() -> None:
    stage = streaming({}, None, {})
    for number in range(1, len(stage.kept.turns) + 1):
        again = stage.after_crash(number)
        if again.kernel.jobs and again.task("a").state != "running" and again.stream.cause == "cancel":
            assert hooks_of(again, "job@1") == [0, 1]
            again.end(the_hook(again))
            again.settle()
            assert again.state() == "cancelled"
            assert again.audit() == []
            assert idle(again)
    again = stage.after_crash()
    again.send(RECOVER)
    assert hooks_of(again, "job@1")[:2] == [0, 1]


def test_a_drain_stops_a_workstreams_hook() -> None:
    stage = streaming(None, {}, {})
    stage.send(Drain(stop=True))
    assert stage.stream.state == "cancelling"
    assert stage.kernel.calls == {}
    stage.scripts["flow.cancel_hook"] = in_order({}, {}, {})
    assert stage.after_crash().state() == "cancelled"


def test_a_turn_that_fails_while_a_workstreams_hook_runs() -> None:
    stage = streaming(None, {}, {})
    stage.send(TurnFailed(stage.stream.key, "ValueError: ours"))
    assert stage.stream.state == "cancelled"
    assert idle(stage)


# -- what a stopped task leaves ----------------------------------------------------------------------------------------


def beat(stage: KernelHarness, **said: Any) -> None:
    raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in said.items()}
    stage.send(Beat(stage.token("a"), raw.get("details"), raw.get("saved")))


def test_a_checkpoint_is_kept_also_while_the_body_stops_and_a_late_one_is_not() -> None:
    stage = running()
    stage.stubborn.add("a")
    beat(stage, saved=[1], details="half")
    beat(stage, details="more")
    stage.cancel(stage.actor("a"))
    beat(stage, saved=[1, 2])
    token = stage.token("a")
    stage.end(token, "cancelled")
    stage.settle()
    stage.send(Beat(token, None, msgspec.Raw(b"[3]")))
    record = stage.task("a")
    assert (record.state, record.raw_checkpoint, record.raw_details) == (
        "cancelled", msgspec.Raw(b"[1,2]"), msgspec.Raw(b'"more"'),
    )  # fmt: skip


def test_a_checkpoint_outlives_a_crash() -> None:
    stage = running()
    beat(stage, saved=7)
    again = stage.after_crash()
    again.advance(0)
    assert again.task("a").checkpoint == 7
    assert again.task("a").attempt == 2


def test_no_checkpoint_is_kept_where_that_is_off() -> None:
    stage = running(checkpoint=False)
    beat(stage, saved=7, details=8)
    assert (stage.task("a").checkpoint, stage.task("a").details) == (None, 8)


@pytest.mark.parametrize("way", ["cancelled", "timed out"])
def test_what_a_stopped_command_had_written_is_kept_and_told(way: str) -> None:
    stage = running(timeout=60)
    stage.stubborn.add("a")
    if way == "cancelled":
        stage.cancel(stage.actor("a"))
    else:
        stage.advance(60)
    stage.end(stage.token("a"), "cancelled", output_path="/out/a.1.log", output_size=12)
    stage.settle()
    assert (stage.task("a").output_path, stage.task("a").output_size) == ("/out/a.1.log", 12)
    (notice,) = [notice for notice in stage.notices if notice.event == "partial_output_saved"]
    assert (notice.severity, notice.facts) == ("info", {"path": "/out/a.1.log", "size": 12})


@pytest.mark.parametrize("how", ["no hooks", "hooks", "a hook fails", "deferred"])
def test_what_a_stopped_body_used_and_left_stands_in_the_transition_that_ends_its_attempt(how: str) -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    hooks = HOOKS if how in {"hooks", "a hook fails"} else []
    stage.submit(flow(task("a", cancel_hooks=hooks)))
    stage.scripts["a.cancel_hook"] = in_order(
        {}, {"status": "failed", "error": "no"} if how == "a hook fails" else {}, {}
    )
    used: dict[str, Any] = {"cpu_seconds": 1.5, "peak_memory_bytes": 4096, "left_behind": (7, 8)}
    if how == "deferred":
        stage.end(stage.token("a"), "failed", error="later", retry_after=60.0, **used)
    else:
        stage.stubborn.add("a")
        stage.cancel(stage.actor("a"))
        stage.stubborn.clear()
        stage.end(stage.token("a"), "cancelled", **used)
    stage.settle()
    last = [event for event in stage.kept.transitions if event.entity_id == "job@1/a"][-1]
    ends = {"no hooks": "cancelled", "hooks": "cancelled", "a hook fails": "failed", "deferred": "retrying"}
    assert last.to_state == ends[how]
    assert last.metadata is not None
    assert {name: last.metadata[name] for name in used} == {**used, "left_behind": [7, 8]}
    assert stage.audit() == []
