"""Any machine as an actor: events and refusals, facts, timers, callbacks, and its restore after a restart."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.actors.machines_help import FUNCTIONS, REVIEW, RUN, Facts, ReviewFacts, count, fire, kind, spawn
from tests.actors.stage import KernelHarness

from callboard.actors.machines.entity import KEPT
from callboard.actors.messages.commands import Command, Fire, Reply, Request, SpawnMachine
from callboard.actors.messages.errors import FireFailed, MachineNotFound
from callboard.actors.records.entities import MachineRecord, OutboxRow, RequestRecord
from callboard.actors.records.transition import Transitioned
from callboard.machines import GuardRejected, InvalidTransitionError, Machine, State, Timed, Transition


@pytest.fixture
def stage() -> KernelHarness:
    return KernelHarness(workers=(), functions=dict(FUNCTIONS))


def record(stage: KernelHarness, name: str = "run-7") -> MachineRecord:
    (found,) = [one for one in stage.kept.of(MachineRecord) if one.name == name]
    return found  # type: ignore[no-any-return]


def test_an_event_is_answered_with_its_transition_and_journaled(stage: KernelHarness) -> None:
    spawn(stage, "run-7", kind(), Facts())
    row = fire(stage, "run-7", "START", reason="webhook", metadata={"by": "ana"})
    assert isinstance(row, Transitioned)
    assert (row.kind, row.entity_id, row.from_state, row.to_state, row.event) == (
        "machine", "run-7", "pending", "running", "START",
    )  # fmt: skip
    assert (row.reason, row.metadata, row.entity_seq) == ("webhook", {"by": "ana"}, 2)
    assert row.seq == stage.kept.transitions[-1].seq
    assert record(stage).state == "running"


def test_its_creation_says_which_machine_it_runs_by(stage: KernelHarness) -> None:
    spawn(stage, "run-7", kind(), Facts())
    (created,) = stage.kept.transitions
    assert (created.event, created.to_state, created.metadata) == (
        "create",
        "pending",
        {"machine": "run", "path": "m:RUN"},
    )


def test_what_a_state_does_not_know_is_refused_counted_and_changes_nothing(stage: KernelHarness) -> None:
    spawn(stage, "run-7", kind(), Facts())
    before = record(stage)
    refusal = fire(stage, "run-7", "SUCCEED")
    assert isinstance(refusal, InvalidTransitionError)
    assert refusal.allowed == {"START"}
    assert record(stage) == before
    assert stage.kernel.rejected["run", "pending", "SUCCEED"] == 1


def test_an_ended_one_refuses_everything(stage: KernelHarness) -> None:
    spawn(stage, "run-7", kind(), Facts())
    fire(stage, "run-7", "START")
    fire(stage, "run-7", "SUCCEED")
    assert record(stage).finished_at is not None
    assert isinstance(fire(stage, "run-7", "FAIL"), InvalidTransitionError)


def test_a_guard_reads_the_facts_and_an_event_changes_them(stage: KernelHarness) -> None:
    spawn(stage, "doc", kind(REVIEW, ReviewFacts, on_event="m:add"), ReviewFacts(needed=2))
    refusal = fire(stage, "doc", "publish")
    assert isinstance(refusal, GuardRejected)
    assert refusal.guards == ("enough",)
    assert fire(stage, "doc", "approve").to_state == "held"
    assert stage.kernel.machines["doc"].facts == ReviewFacts(needed=2, approvals=1)
    assert fire(stage, "doc", "approve").to_state == "published"


def test_the_sender_says_which_facts_change_with_its_event(stage: KernelHarness) -> None:
    entity = spawn(stage, "run-7", kind(), Facts())
    fire(stage, "run-7", "START", facts={"recovery_timeout": "5m"})
    assert entity.facts == Facts(recovery_timeout="5m")
    for wrong in ({"recovery_timeuot": 3}, {"beats": "many"}, {"recovery_timeout": [3]}):
        refusal = fire(stage, "run-7", "BEAT", facts=wrong)
        assert isinstance(refusal, FireFailed), refusal
    assert "did you mean 'recovery_timeout'?" in str(fire(stage, "run-7", "BEAT", facts={"recovery_timeuot": 3}))
    assert entity.facts == Facts(recovery_timeout="5m")


def test_a_function_of_the_application_that_raises_refuses_its_event_only(stage: KernelHarness) -> None:
    def broken(facts: Any, fire: Fire) -> Any:
        if fire.event == "BEAT":
            raise RuntimeError("out of ink")
        return facts

    def nothing(facts: Any, fire: Fire) -> Any:
        return "no facts"

    functions = {**FUNCTIONS, "m:broken": broken, "m:nothing": nothing}
    spawn(stage, "a", kind(on_event="m:broken", functions=functions), Facts())
    spawn(stage, "b", kind(on_event="m:nothing", functions=functions), Facts())
    fire(stage, "a", "START")
    refusal = fire(stage, "a", "BEAT")
    assert isinstance(refusal, FireFailed)
    assert "RuntimeError: out of ink" in str(refusal)
    assert isinstance(fire(stage, "b", "START"), FireFailed)
    assert fire(stage, "a", "SUCCEED").to_state == "success"
    assert isinstance(fire(stage, "a", "BEAT", facts={"nothing": 1}), Exception)  # a mistake of the caller only
    told = [(notice.event, notice.severity, notice.entity_id) for notice in stage.notices]
    assert told == [("event_failed", "error", "a"), ("event_failed", "error", "b")]


# -- time --------------------------------------------------------------------------------------------------------------


def test_a_timed_event_is_armed_on_entry_and_disarmed_on_exit(stage: KernelHarness) -> None:
    spawn(stage, "run-7", kind(), Facts(recovery_timeout=60))
    fire(stage, "run-7", "START")
    fire(stage, "run-7", "RECOVER")
    assert record(stage).due == {"FAIL": stage.time + 60}
    stage.advance(59)
    assert record(stage).state == "recovering"
    fire(stage, "run-7", "START")
    assert (record(stage).due, record(stage).due_at) == ({}, None)
    stage.advance(100)
    assert record(stage).state == "running"
    fire(stage, "run-7", "RECOVER")
    stage.advance(60)
    assert record(stage).state == "failed"
    assert record(stage).reason == "its recovery_timeout was over"


def test_staying_in_a_state_leaves_its_timers_but_those_whose_fact_has_changed(stage: KernelHarness) -> None:
    spawn(stage, "run-7", kind(on_event="m:count"), Facts(silent_at=stage.time + 10))
    fire(stage, "run-7", "START")
    stage.advance(9)
    fire(stage, "run-7", "BEAT")
    assert record(stage).due == {"RECOVER": stage.time + 1}
    fire(stage, "run-7", "BEAT", facts={"silent_at": stage.time + 10})
    stage.advance(9)
    assert record(stage).state == "running"
    stage.advance(2)
    assert record(stage).state == "recovering"
    assert stage.kernel.machines["run-7"].facts.beats == 2


def test_a_timed_event_that_a_guard_refuses_is_told_and_not_tried_again(stage: KernelHarness) -> None:
    machine = Machine(
        "timed",
        "waiting",
        [State("waiting"), State("done", terminal=True)],
        [Transition("waiting", "go", "done", guard=never), Transition("waiting", "stop", "done")],
        [Timed("waiting", "go", "delay"), Timed("waiting", "stop", "limit")],
    )
    functions = {"m:TIMED": machine, "m:Delays": Delays}
    spawn(stage, "one", kind(machine, Delays, functions=functions), Delays())
    stage.advance(6)
    assert [notice.event for notice in stage.notices] == ["timed_event_refused"]
    assert record(stage, "one").due == {"stop": record(stage, "one").created_at + 60}
    stage.advance(60)
    assert record(stage, "one").state == "done"


class Delays(msgspec.Struct, frozen=True):
    delay: float = 5.0
    limit: str = "1m"


def never(facts: Any, fire: Any) -> bool:
    return False


# -- callbacks ---------------------------------------------------------------------------------------------------------


def test_callbacks_are_rows_of_the_outbox_that_commit_with_their_transition(stage: KernelHarness) -> None:
    stage.hooks_hang = True
    spawn(stage, "run-7", kind(on_enter={"running": "m:entered", "*": "m:any"}, on_exit={"pending": "m:left"}), Facts())
    fire(stage, "run-7", "START", reason="go", metadata={"n": 1})
    told = [
        (msgspec.json.decode(row.body)["run"], msgspec.json.decode(row.context)) for row in stage.kept.of(OutboxRow)
    ]
    assert [name for name, _ in told] == ["m:any", "m:left", "m:entered", "m:any"]
    assert told[2][1] == {
        "machine": "run", "entity_id": "run-7", "name": "run-7", "seq": 2, "event": "START", "from_state": "pending",
        "state": "running", "reason": "go", "metadata": {"n": 1}, "facts": {"recovery_timeout": 60.0, "silent_at": None,
        "beats": 0}, "job_id": None,
    }  # fmt: skip
    again = stage.after_crash()
    assert [row.tries for row in again.hooks] == [1, 1, 1, 1]  # the callbacks that had not ended run again
    assert again.kept.of(OutboxRow) == []


def test_staying_in_a_state_calls_nothing(stage: KernelHarness) -> None:
    spawn(stage, "run-7", kind(on_enter={"running": "m:entered"}, on_exit={"running": "m:left"}), Facts())
    fire(stage, "run-7", "START")
    fire(stage, "run-7", "BEAT")
    assert len(stage.hooks) == 1


# -- restarts ----------------------------------------------------------------------------------------------------------


def story(stage: KernelHarness) -> None:
    stage.hooks_hang = True
    spawn(stage, "run-7", kind(on_event="m:count", on_enter={"recovering": "m:entered"}), Facts())
    fire(stage, "run-7", "START", reason="first")
    fire(stage, "run-7", "BEAT", facts={"silent_at": stage.time + 30})
    stage.advance(31)  # RECOVER by its timer
    fire(stage, "run-7", "START")
    fire(stage, "run-7", "RECOVER")
    stage.advance(61)  # FAIL by its timer


def test_a_kill_at_any_point_goes_on_from_there_and_ends_the_same(stage: KernelHarness) -> None:
    story(stage)
    assert stage.path("run-7") == ["pending", "running", "running", "recovering", "running", "recovering", "failed"]
    for turns in range(len(stage.kept.turns) + 1):
        again = stage.after_crash(turns)
        entity = again.kernel.machines.get("run-7")
        if entity is None:
            assert turns in {0, len(stage.kept.turns)}
            continue
        was = again.kept.transitions[-1] if again.kept.transitions else None
        assert was is not None
        assert entity.record.state == was.to_state
        again.advance(100)  # whatever the times of its timers are
        wanted = {"pending": "pending", "running": "running", "recovering": "failed"}[was.to_state]
        if was.to_state == "running" and entity.facts.silent_at and was.event == "BEAT":
            wanted = "failed"  # RECOVER, then FAIL
        assert entity.record.state == wanted, turns
        assert again.reports == []


def test_what_fell_due_while_it_was_down_fires_at_the_start(stage: KernelHarness) -> None:
    spawn(stage, "run-7", kind(), Facts())
    fire(stage, "run-7", "START")
    fire(stage, "run-7", "RECOVER")
    early = stage.after_crash(len(stage.kept.turns), down=30)
    again = stage.after_crash(down=3600)
    assert again.path("run-7")[-1] == "failed"
    assert early.path("run-7")[-1] == "recovering"
    early.advance(31)
    assert early.path("run-7")[-1] == "failed"


def test_one_whose_machine_cannot_be_found_loses_nothing(stage: KernelHarness) -> None:
    spawn(stage, "run-7", kind(), Facts())
    fire(stage, "run-7", "START")
    fire(stage, "run-7", "RECOVER")
    del stage.functions["m:RUN"]
    again = stage.after_crash(down=3600)
    assert [notice.event for notice in again.notices] == ["machine_missing"]
    assert "there is no 'm:RUN'" in again.notices[0].text
    assert "run-7" in again.notices[0].text
    refusal = fire(again, "run-7", "START")
    assert isinstance(refusal, MachineNotFound)
    assert again.path("run-7")[-1] == "recovering"
    once_more = again.after_crash()  # nor does a second restart
    spawn(once_more, "run-7", kind(), Facts())
    once_more.advance(0)
    assert once_more.path("run-7")[-1] == "failed"  # which had fallen due long before


def test_a_machine_that_has_changed_goes_on_where_the_state_is_still_known(stage: KernelHarness) -> None:
    spawn(stage, "run-7", kind(), Facts())
    fire(stage, "run-7", "START")
    rows = [*RUN.transitions, Transition("running", "PARK", "parked")]
    states = [*RUN.states.values(), State("parked", terminal=True)]
    stage.functions["m:RUN"] = Machine("run", "pending", states, rows, RUN.timed)
    again = stage.after_crash()
    assert [notice.event for notice in again.notices] == ["machine_changed"]
    assert len(record(again).definitions) == 2
    assert [notice.event for notice in again.after_crash().notices] == []
    assert fire(again, "run-7", "PARK").to_state == "parked"
    stage = KernelHarness(workers=(), functions=dict(FUNCTIONS))
    spawn(stage, "run-7", kind(), Facts())
    fire(stage, "run-7", "START")
    less = [state for state in RUN.states.values() if state.name != "running"]
    stage.functions["m:RUN"] = Machine(
        "run", "pending", less, [row for row in rows[:-1] if "running" not in {row.source, row.target}]
    )
    missing = stage.after_crash()
    assert "is in state 'running', which machine 'run' does not have any more" in missing.notices[0].text


def test_spawning_it_again_takes_up_what_there_is_with_its_facts(stage: KernelHarness) -> None:
    spawn(stage, "run-7", kind(), Facts(recovery_timeout=5))
    fire(stage, "run-7", "START")
    before = len(stage.kept.transitions)
    entity = spawn(stage, "run-7", kind(), Facts(recovery_timeout=99))
    assert entity.facts == Facts(recovery_timeout=5)
    assert len(stage.kept.transitions) == before
    again = stage.after_crash()
    entity = spawn(again, "run-7", kind(), Facts(recovery_timeout=99))
    assert (entity.record.state, entity.facts) == ("running", Facts(recovery_timeout=5))


def test_kinds_are_kept_once_and_their_keys_are_never_given_again(stage: KernelHarness) -> None:
    for number in range(3):
        spawn(stage, f"run-{number}", kind(), Facts())
    assert len(stage.kept.specs) == 1
    again = stage.after_crash()
    spawn(again, "run-3", kind(), Facts())
    assert len(again.kept.specs) == 1
    spawn(again, "doc", kind(REVIEW, ReviewFacts, on_event="m:add"), ReviewFacts())
    assert len(again.kept.specs) == 2
    assert not {one.key for one in again.kept.of(MachineRecord)} & again.kept.specs.keys()


def test_a_key_is_kept_with_its_answer_and_lives_as_long_as_the_entity(stage: KernelHarness) -> None:
    spawn(stage, "run-7", kind(), Facts())
    request = Request("r1", "fire", "print", 60.0)
    stage.send(Command("run-7", Fire("START"), Reply(None, request)))
    row = stage.answers[-1][0]
    (kept,) = stage.kept.of(RequestRecord)
    assert kept.owner == record(stage).key
    assert msgspec.json.decode(kept.answer)["transition"]["seq"] == row.seq


def test_ended_ones_are_let_go_when_many_others_have_ended(stage: KernelHarness) -> None:
    machine = Machine(
        "short",
        "new",
        [State("new", bounded_by="a test"), State("old", terminal=True)],
        [Transition("new", "end", "old")],
    )
    of = kind(machine, None, functions={"m:SHORT": machine})
    quick = KernelHarness(workers=(), copies=False)
    for number in range(KEPT + 2):
        spawn(quick, f"m{number}", of)
        fire(quick, f"m{number}", "end")
    assert len(quick.kernel.machines) == KEPT
    assert "m0" not in quick.kernel.machines
    known = quick.kept.records["machine", quick.kept.of(MachineRecord)[0].key]
    assert known.name == "m0"
    quick.send(SpawnMachine("m0", of, None, known))  # as the runtime does, before an event to it
    assert isinstance(fire(quick, "m0", "end"), InvalidTransitionError)


def test_helpers_count() -> None:
    assert count(Facts(), Fire("BEAT")).beats == 1
