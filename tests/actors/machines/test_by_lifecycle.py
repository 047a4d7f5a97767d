"""Tasks, workstreams, jobs, workers and breakers by each published lifecycle, and by a user's own."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace
from tests.actors.jobs_help import child
from tests.actors.stage import KernelHarness, fails, fails_until, flow, hangs, task

from callboard.actors.kernel import observing
from callboard.actors.messages.commands import (
    Approve,
    BeginWork,
    Cancel,
    PauseWorker,
    Reject,
    ResetBreaker,
    ResetTask,
    ResumeWorker,
    ShutDownWorker,
    SkipTask,
    TerminateWorker,
    TripBreaker,
)
from callboard.actors.messages.inputs import Drain, WorkerDied
from callboard.actors.records.entities import BreakerRecord, JobRecord
from callboard.actors.records.transition import as_event
from callboard.actors.spec.lifecycles import Lifecycles
from callboard.actors.spec.model import (
    Approval,
    Breaker,
    Check,
    Condition,
    Defaults,
    Hook,
    Retry,
    Task,
    Tool,
    Worker,
    Workstream,
)
from callboard.actors.spec.validate import findings
from callboard.machines import InvalidTransitionError
from callboard.machines.adapt.compat import faults
from callboard.machines.adapt.lifecycle import Lifecycle
from callboard.machines.adapt.refinement import Refinement
from callboard.machines.audit.audit import audit
from callboard.machines.audit.auditor import AuditFinding
from callboard.machines.builtin.task import TASK
from callboard.machines.events import Event
from callboard.machines.lifecycles import LIFECYCLES, PUBLISHED
from callboard.machines.lifecycles.guarded import TASK as GUARDED
from callboard.machines.machine import Machine
from callboard.machines.phases import Phase
from callboard.machines.rows import State, Transition, title
from callboard.runtime.cli.words import deciders

T = Transition
NAMES = list(LIFECYCLES)
by_each = pytest.mark.parametrize("name", NAMES)
SCRIPTS = {
    "flaky": fails_until(3),
    "bad": fails(),
    "late": hangs,
    "unmet.condition": lambda call, entity: {"value": False},
    "unsound.check": lambda call, entity: {"value": False},
    "reset-me": fails_until(2),
    "hooked": hangs,
}


def staged(name: str, **more: Any) -> KernelHarness:
    more.setdefault("scripts", dict(SCRIPTS))
    return KernelHarness(lifecycles=Lifecycles(default=name), **more)


def workload(name: str) -> Workstream:
    """A workstream with features for which every lifecycle has rows."""
    optional = {} if name == "pipeline" else {"optional": True}
    tries = Retry(max_attempts=3)
    return flow(
        task("first"),
        task("flaky", "first", retry=tries),
        task("late", "first", timeout=5, retry=Retry(max_attempts=2), on_exhausted="fail", **optional),
        task("bad", "first", retry=Retry(max_attempts=2), on_exhausted="fail", **optional),
        task("unmet", "first", condition=Condition(run="m:c")),
        task("unsound", "first", checks=[Check(run="m:c")], **optional),
        task("held", "first", hold=Approval()),
        task("waiting", "first", wait=7),
        task("skipped", "first", hold=Approval()),
        Task("tidy", run="m:f", after=["late", "bad", "unsound"]),
    )


def clean(stage: KernelHarness) -> list[AuditFinding]:
    """Return the findings of the auditor, which are none."""
    assert stage.reports == []
    return stage.audit()


@by_each
def test_the_workload_runs_by_it_and_its_trace_is_one_of_its_table(name: str) -> None:
    stage = staged(name)
    stage.submit(workload(name))
    stage.advance(8)
    for one in ("held", "skipped"):
        if stage.task(one).state == "held":
            stage.command(stage.actor(one), Approve("ana"))
    stage.advance(500)
    assert stage.task("flaky").state == "completed" or name == "pipeline"  # `pipeline` fails at the first bad end
    assert stage.task("first").state == "completed"
    assert stage.over == ["job"]
    assert clean(stage) == []


@by_each
def test_a_restart_at_every_turn_goes_on_where_it_was(name: str) -> None:
    stage = staged(name)
    stage.submit(workload(name))
    stage.advance(8)
    if stage.task("held").state == "held":
        stage.command(stage.actor("held"), Approve("ana"))
        stage.command(stage.actor("skipped"), Reject("ana"))
    stage.advance(500)
    for turns in range(1, len(stage.kept.turns), 3):
        again = stage.after_crash(turns, down=2.0)
        again.advance(30)
        for one in ("held", "skipped") if again.kept.transitions and "job" in again.kernel.jobs else ():
            if again.task(one).state == "held":
                again.command(again.actor(one), Approve("ana"))
        again.advance(500)
        assert again.audit() == []
        assert all(job.finished_at is not None for job in again.kept.records.values() if job.kind == "job")


def decided(stage: KernelHarness) -> str:
    """The reasons and metadata of all transitions, as one text."""
    return repr([(row.reason, row.metadata) for row in stage.kept.transitions])


@by_each
@pytest.mark.parametrize("crash", [False, True])
def test_who_approves_is_told_by_it_also_after_a_restart(name: str, crash: bool) -> None:
    stage = staged(name)
    stage.submit(flow(task("held", hold=Approval(people=2)), task("waits", hold=Approval(), wait=5)))
    assert stage.command(stage.actor("held"), Approve("ana", "fine")) is None
    assert stage.command(stage.actor("waits"), Approve("carl")) is None
    if crash:
        stage = stage.after_crash(len(stage.kept.turns))
    assert stage.command(stage.actor("held"), Approve("bob")) is None
    stage.advance(30)
    assert stage.over == ["job"]
    assert clean(stage) == []
    assert [who for who in ("'ana'", "'bob'", "'carl'", "'fine'") if who not in decided(stage)] == []


@by_each
@pytest.mark.parametrize("command", [SkipTask("why so", "emil"), Cancel("why so", by="emil")], ids=["skip", "cancel"])
def test_who_skips_or_cancels_a_task_is_told_by_it_or_by_what_the_task_is_in(name: str, command: Any) -> None:
    stage = staged(name, scripts={"slow": hangs})
    stage.submit(flow(task("slow"), task("later", "slow", optional=True)))
    assert stage.command(stage.actor("later"), command) is None
    stage.end(stage.token("slow"))
    stage.settle()
    assert stage.over == ["job"]
    assert clean(stage) == []
    rows = [row for row in stage.kept.transitions if "emil" in repr(row.metadata)]
    assert len(rows) == 1
    assert "why so" in repr((rows[0].reason, rows[0].metadata))


@by_each
@pytest.mark.parametrize("force", [False, True])
def test_a_cancel_in_every_state_leaves_a_trace_of_its_table(name: str, force: bool) -> None:
    spec = flow(
        task("hooked", cancel_hooks=[Hook(run="m:h")]),
        task("after", "hooked"),
        task("flaky", retry=Retry(max_attempts=5)),
        task("held", hold=Approval()),
        task("waiting", wait=50),
        task("checked", checks=[Check(run="m:c")]),
        task("tooled", tool="t"),
    )
    stage = staged(name, scripts={**SCRIPTS, "flaky": fails(), "checked.check": hangs})
    job = stage.submit(spec)
    stage.advance(1)
    stage.cancel(job, force=force)
    stage.advance(100)
    assert stage.state() == "cancelled"
    assert stage.over == ["job"]
    assert clean(stage) == []


@by_each
def test_a_breaker_parks_its_tasks_and_lets_one_probe(name: str) -> None:
    stage = staged(name, scripts={"a": fails_until(2), "b": fails_until(2)})
    tools = {"t": Tool(breaker=Breaker(failure_threshold=1, cooldown=10), retry=Retry(max_attempts=4))}
    stage.submit(flow(*(task(one, tool="t") for one in ("a", "b", "c", "d")), tools=tools, max_parallel=2))
    stage.advance(1)
    breaker = stage.workforce.breakers["t"]
    assert breaker.record.state == "open"
    stage.command(breaker, TripBreaker("again"))
    stage.command(breaker, ResetBreaker("sound"))
    stage.advance(300)
    assert stage.state() == "completed"
    assert clean(stage) == []
    (record,) = stage.kept.of(BreakerRecord)
    assert record.shown == ("CLOSED" if name == "pipeline" else "closed")


@by_each
def test_workers_pause_fall_silent_die_and_shut_down_by_it(name: str) -> None:
    stage = staged(name, scripts={"one": hangs, "two": hangs})
    stage.submit(flow(task("one"), task("two", max_losses=5)))
    worker = stage.worker("loop")
    stage.command(worker, PauseWorker("a while"))
    stage.command(worker, ResumeWorker("go on"))
    stage.end(stage.token("one"))
    stage.settle()
    stage.command(worker, PauseWorker("a while"))
    stage.end(stage.token("two"))
    stage.settle()
    stage.command(worker, ResumeWorker("go on"))
    stage.command(worker, ShutDownWorker("done"))
    stage.advance(100)
    assert stage.worker("loop").ended
    assert stage.state() == "completed"
    assert stage.audit() == []


@pytest.mark.parametrize("restarted", [False, True])
def test_a_worker_that_is_told_as_running_between_its_tasks_is_paused_as_a_running_one(restarted: bool) -> None:
    stage = staged("fleet")
    stage.submit(flow(task("one")))
    worker = stage.worker("loop")
    assert (worker.record.state, worker.record.shown) == ("idle", "RUNNING")
    assert stage.command(worker, PauseWorker("a while")) is None
    assert (worker.record.state, worker.record.shown) == ("paused", "PAUSED")
    if restarted:
        stage = stage.after_crash(len(stage.kept.turns))
        worker = stage.worker("loop")
        assert worker.record.state == "paused"  # the next incarnation, in a state that its lifecycle has
    job = stage.submit(flow(task("two")), "two")
    stage.settle()
    assert stage.task("two", "two").state == "queued"
    stage.command(worker, ResumeWorker("go on"))
    stage.settle()
    assert job.ended
    assert stage.worker("loop").record.shown == "RUNNING"
    assert clean(stage) == []


def test_a_worker_of_fleet_is_started_before_it_has_a_task_and_can_then_be_paused() -> None:
    stage = staged("fleet")
    worker = stage.worker("loop")
    assert isinstance(stage.command(worker, PauseWorker("too early")), InvalidTransitionError)
    assert stage.command(worker, BeginWork("at once", "ana")) is None
    assert (worker.record.state, worker.record.shown) == ("idle", "RUNNING")
    row = stage.kept.transitions[-1]
    assert (row.event, row.from_state, row.to_state, row.reason, row.metadata) == (
        "start_task", "IDLE", "RUNNING", "at once", {"by": "ana"},
    )  # fmt: skip
    assert isinstance(stage.command(worker, BeginWork("again")), InvalidTransitionError)
    assert stage.command(worker, PauseWorker("a while")) is None
    assert stage.command(worker, ResumeWorker("go on")) is None
    stage.submit(flow(task("one")))
    assert (stage.state(), worker.record.shown) == ("completed", "RUNNING")
    assert clean(stage) == []


@pytest.mark.parametrize("name", [name for name in NAMES if name != "fleet"])
def test_a_worker_of_another_lifecycle_is_not_started_while_it_lives(name: str) -> None:
    stage = staged(name)
    worker = stage.worker("loop")
    before = worker.record
    refused = stage.command(worker, BeginWork("at once"))
    assert isinstance(refused, InvalidTransitionError)
    assert "shut it down or terminate it" in str(refused)
    assert worker.record is before


def test_a_worker_of_fleet_that_has_ended_otherwise_can_be_told_as_terminated() -> None:
    stage = staged("fleet", scripts={"one": hangs})
    stage.submit(flow(task("one")))
    loop, command = stage.worker("loop"), stage.worker("command")
    stage.send(WorkerDied("loop", 1, "it is gone"))
    assert stage.command(command, BeginWork("at once")) is None
    assert stage.command(command, ShutDownWorker("enough")) is None
    assert (loop.record.shown, command.record.shown) == ("FAILED", "COMPLETED")
    for worker in (loop, command):
        assert stage.command(worker, TerminateWorker("for good", "ana")) is None
        assert worker.record.shown == "TERMINATED"
        assert isinstance(stage.command(worker, TerminateWorker("again")), InvalidTransitionError)
        assert isinstance(stage.command(worker, BeginWork("again")), InvalidTransitionError)
    assert clean(stage) == []


@by_each
def test_a_kill_during_a_drain_counts_as_nothing(name: str) -> None:
    stage = staged(name, scripts={"one": hangs})
    stage.submit(flow(task("one", max_losses=1)))
    stage.send(Drain(stop=False))
    again = stage.after_crash(down=5)
    again.scripts = {}
    again.end(again.token("one"))
    again.settle()
    assert (again.task("one").state, again.task("one").lost_attempts) == ("completed", 0)
    assert again.audit() == []


@by_each
def test_a_drain_gives_the_try_back_and_nothing_is_counted(name: str) -> None:
    stage = staged(name, scripts={"one": hangs})
    stage.submit(flow(task("one")))
    stage.send(Drain(stop=True))
    stage.settle()
    again = stage.after_crash(down=5)
    again.scripts = {}
    again.end(again.token("one"))
    again.settle()
    assert (again.task("one").state, again.task("one").failed_attempts) == ("completed", 0)
    assert again.audit() == []


@by_each
def test_what_is_parked_is_reset_by_an_operator(name: str) -> None:
    stage = staged(name, scripts={"reset-me": fails_until(3)})
    stage.submit(flow(task("reset-me", on_exhausted="park")))
    stage.advance(200)
    assert stage.task("reset-me").state == "circuit_open"
    assert stage.command(stage.actor("reset-me"), ResetTask("mended")) is None
    stage.advance(10)
    assert stage.state() == "completed"
    assert clean(stage) == []


@by_each
def test_an_operator_does_without_a_task(name: str) -> None:
    stage = staged(name, scripts={"slow": hangs})
    stage.submit(flow(task("slow"), task("next", "slow")))
    stage.command(stage.actor("next"), SkipTask("not needed"))
    stage.end(stage.token("slow"))
    stage.settle()
    assert stage.state() == "completed"
    assert clean(stage) == []


def test_a_guarded_task_fails_decides_and_is_tried_again_under_published_names() -> None:
    stage = staged("guarded")
    stage.submit(flow(task("flaky", retry=Retry(max_attempts=3))))
    stage.advance(60)
    again = ["FAILED", "RETRYING", "IN_PROGRESS"]
    assert stage.steps("flaky") == ["PENDING", "IN_PROGRESS", *again, *again, "VALIDATING", "COMPLETED"]
    record = stage.task("flaky")
    assert (record.state, record.shown, record.told) == ("completed", "COMPLETED", 10)


def test_a_guarded_task_parks_when_it_is_exhausted_and_after_the_same_error_thrice() -> None:
    stage = staged("guarded", scripts={"spent": fails(), "same": fails()})
    stage.submit(flow(task("spent"), task("same", retry=Retry(max_attempts=9))))
    stage.advance(40)
    assert stage.task("spent").parked == stage.task("same").parked == "exhausted"
    assert stage.task("same").failed_attempts == 3
    events = {t.entity_id.rpartition("/")[2]: t.event for t in stage.kept.transitions if t.to_state == "CIRCUIT_OPEN"}
    assert events == {"spent": "max_retries_reached", "same": "same_error_repeated"}


def test_a_guarded_task_whose_check_is_not_met_parks_as_after_a_permanent_error() -> None:
    stage = staged("guarded")
    stage.scripts["a.check"] = lambda call, entity: {"value": False}
    stage.submit(flow(task("a", checks=[Check(run="m:c")])))
    rows = [as_event(row).to_state for row in stage.kept.transitions if row.kind == "task"]
    assert rows == ["PENDING", "IN_PROGRESS", "VALIDATING", "FAILED", "CIRCUIT_OPEN"]
    assert stage.task("a").parked == "exhausted"
    assert clean(stage) == []


def test_a_guarded_task_that_may_fail_fails_and_holds_nobody_up_unless_it_says_that_it_parks() -> None:
    stage = staged("guarded", scripts={"may": fails(), "parks": fails()})
    stage.submit(flow(task("may", optional=True), task("plain"), task("parks", optional=True, on_exhausted="park")))
    stage.advance(1)
    assert (stage.task("may").state, stage.task("may").shown) == ("failed", "FAILED")
    assert stage.task("parks").shown == "CIRCUIT_OPEN"
    alone = staged("guarded", scripts={"may": fails()})
    alone.submit(flow(task("may", optional=True), task("plain")))
    alone.advance(1)
    assert alone.over == ["job"]
    assert clean(stage) == clean(alone) == []


def test_what_somebody_says_holds_over_what_the_lifecycle_says() -> None:
    stage = staged("guarded", defaults=Defaults(on_exhausted="fail"))
    stage.submit(flow(task("bad")))
    assert (stage.task("bad").state, stage.task("bad").shown) == ("failed", "FAILED")
    assert clean(stage) == []


def test_a_task_that_its_lifecycle_cannot_end_rests_where_it_is_and_that_is_told() -> None:
    stage = staged("orchestration", scripts={"one": hangs})
    job = stage.submit(flow(task("one"), task("two", "one")))
    stage.cancel(job)
    stage.settle()
    assert (stage.task("two").state, stage.task("two").shown) == ("cancelled", "pending")
    assert stage.steps("two") == ["pending"]
    notices = [notice for notice in stage.notices if notice.event == "rests"]
    assert [notice.facts for notice in notices] == [{"state": "pending", "phase": "cancelled"}]
    assert clean(stage) == []


def test_an_optional_failure_lets_the_rest_run_and_fails_an_orchestrated_workstream() -> None:
    stage = staged("orchestration")
    stage.submit(flow(task("bad", optional=True), task("first")))
    assert stage.task("first").state == "completed"
    assert stage.path("job@1")[-2:] == ["executing", "failed"]
    assert stage.stream.error == "task 'bad' failed: under orchestration all have to complete"
    assert clean(stage) == []


def test_what_failed_and_can_only_be_told_as_cancelled_says_that_nobody_cancelled_it() -> None:
    stage = staged("orchestration")
    stage.submit(flow(task("unmet", condition=Condition(run="m:c"))))
    stage.settle()
    assert stage.state() == "failed"
    (last,) = [row for row in stage.kept.transitions if row.kind == "workstream" and row.to_state == "cancelled"]
    assert (last.event, last.phase, last.metadata["ended_as"]) == ("user_cancelled", "failed", "failed")
    why = "task 'unmet' was skipped: under orchestration all have to complete"
    assert last.reason == f"it failed, and nobody cancelled it: {why}"
    assert clean(stage) == []


@pytest.mark.parametrize("name", ["pipeline", "orchestration"])
def test_a_task_of_another_lifecycle_may_be_skipped_by_its_condition_where_all_have_to_complete(name: str) -> None:
    stage = staged(name)
    stage.submit(flow(task("unmet", condition=Condition(run="m:c"), lifecycle="own"), task("first")))
    stage.advance(10)
    assert stage.state() == "completed"
    assert clean(stage) == []


def test_a_pipeline_refuses_optional_tasks_wherever_it_is_said() -> None:
    optional = task("a", optional=True)
    whole, own = flow(optional, lifecycle="pipeline"), flow(task("a", optional=True, lifecycle="pipeline"))
    assert [f.where for f in findings(whole)] == [f.where for f in findings(own)] == ["tasks[0].optional"]
    assert [f.where for f in findings(flow(optional), lifecycles=Lifecycles(default="pipeline"))] == [
        "tasks[0].optional"
    ]
    beside = task("a", optional=True, lifecycle="own")
    assert findings(flow(beside)) == findings(flow(beside, lifecycle="pipeline")) == []


@pytest.mark.parametrize("name", ["pipeline", "orchestration"])
def test_a_task_of_another_lifecycle_is_none_of_those_that_all_have_to_complete(name: str) -> None:
    stage = staged(name, scripts={"bad": fails(), "unmet.condition": lambda call, entity: {"value": False}})
    unmet = task("unmet", condition=Condition(run="m:c"), lifecycle="own")
    stage.submit(flow(task("a"), task("bad", optional=True, lifecycle="own"), unmet, task("b", "a")))
    assert stage.state() == "completed"
    assert stage.states() == {"a": "completed", "bad": "failed", "unmet": "skipped", "b": "completed"}
    assert clean(stage) == []


def test_a_failed_run_of_a_pipeline_is_abandoned_when_no_other_follows() -> None:
    stage = staged("pipeline", scripts={"bad": fails()})
    stage.submit(flow(task("bad"), retry=Retry(max_attempts=2)))
    stage.advance(60)
    assert stage.path("job@1") == ["S_PENDING", "S_RUNNING", "S_FAILED"]
    assert stage.path("job@2") == ["S_PENDING", "S_RUNNING", "S_FAILED", "S_ABANDONED"]
    assert clean(stage) == []


def test_one_workstream_may_have_tasks_of_several_lifecycles() -> None:
    stage = KernelHarness()
    stage.submit(
        flow(
            task("g", lifecycle="guarded"),
            task("p", "g", lifecycle="pipeline"),
            task("e", "p", lifecycle="execution"),
            task("o", "e", lifecycle="own"),
            lifecycle="orchestration",
        )
    )
    assert [stage.task(name).shown for name in "gpeo"] == ["COMPLETED", "S_SUCCESS", "success", "completed"]
    assert stage.path("job@1") == ["planned", "ready", "executing", "validating", "completed"]
    assert clean(stage) == []


def test_a_lifecycle_that_is_not_there_or_is_for_others_is_refused_with_what_there_is() -> None:
    found = findings(flow(task("a", lifecycle="gaurded"), task("b", lifecycle="fleet"), task("c", lifecycle=3)))
    assert [(f.where, f.message) for f in found] == [
        ("tasks[0].lifecycle", "there is no lifecycle 'gaurded'; did you mean 'guarded'?"),
        ("tasks[1].lifecycle", "'fleet' has no states for a task, but for a worker and a job"),
        ("tasks[2].lifecycle", "3 is no lifecycle: give a name, an import path, or a Lifecycle"),
    ]


@by_each
@pytest.mark.parametrize(
    "kinds", [{"task"}, {"workstream"}, {"job"}, {"worker"}, {"task", "workstream", "job", "worker"}]
)
def test_a_sound_trace_is_sound_where_a_lifecycle_in_it_is_not_known(name: str, kinds: set[str]) -> None:
    stage = staged(name)
    stage.submit(workload(name))
    stage.advance(8)
    for one in ("held", "skipped"):
        if stage.task(one).state == "held":
            stage.command(stage.actor(one), Approve("ana"))
    stage.advance(500)
    trace = [as_event(row) for row in stage.kept.transitions]
    renamed = [
        replace(row, metadata=row.metadata | {"lifecycle": "elsewhere:ONE"})
        if row.kind in kinds and row.metadata.get("lifecycle") == name
        else row
        for row in trace
    ]
    some = any(row.metadata.get("lifecycle") == "elsewhere:ONE" for row in renamed)
    assert [(one.severity, one.kind) for one in audit(renamed)] == [("warning", "unknown_lifecycle")] * some
    for cut in range(5, len(trace), 23):  # while it still goes on
        assert {one.severity for one in audit(renamed[:cut])} <= {"warning"}
        assert {one.severity for one in audit(renamed[cut:])} <= {"warning"}  # and where the log begins late


# -- a user's own ------------------------------------------------------------------------------------------------------

REVIEWED = Machine(
    "reviewed",
    "open",
    states=(
        State("open", Phase.PENDING, bounded_by="its dependencies"),
        State("working", Phase.RUNNING, bounded_by="its limits"),
        State("reviewing", Phase.VALIDATING, bounded_by="its checks"),
        State("merged", Phase.COMPLETED, terminal=True),
        State("dropped", Phase.FAILED, terminal=True),
    ),
    transitions=(
        T("open", "take", "working"),
        T("open", "drop", "dropped"),
        T("working", "ask_for_review", "reviewing"),
        T("working", "drop", "dropped", severity="error"),
        T("reviewing", "agree", "merged"),
        T("reviewing", "disagree", "dropped", severity="error"),
    ),
)
OWN = Lifecycle("reviewed", "task", REVIEWED, {Event.START: ("take",), Event.VALIDATION_PASSED: ("agree",)})


def test_a_lifecycle_of_ones_own_that_adds_a_state_works_by_its_phase() -> None:
    stage = KernelHarness(lifecycles=Lifecycles([OWN]), scripts={**SCRIPTS, "good": fails_until(2)})
    retry = Retry(max_attempts=2)
    stage.submit(flow(task("good", retry=retry), task("unsound", checks=[Check(run="m:c")]), lifecycle="reviewed"))
    stage.advance(10)
    assert stage.steps("good")[:2] == ["open", "working"]
    assert stage.steps("unsound") == ["open", "working", "reviewing", "dropped"]
    assert clean(stage) == []


def ending_in(*phases: Phase) -> Lifecycle:
    """A lifecycle whose only bad ends are these, reached from every state of a task."""
    names = {phase: f"ended_{phase}" for phase in phases}
    machine = Machine(
        "few_ends",
        "open",
        states=(
            State("open", Phase.PENDING, bounded_by="its dependencies"),
            State("working", Phase.RUNNING, bounded_by="its limits"),
            State("done", Phase.COMPLETED, terminal=True),
            *(State(name, phase, terminal=True) for phase, name in names.items()),
        ),
        transitions=(
            T("open", "take", "working"),
            T("working", "finish", "done"),
            *(T(source, f"end_{name}", name) for source in ("open", "working") for name in names.values()),
        ),
    )
    return Lifecycle("few", "task", machine, {})


@pytest.mark.parametrize(
    "phases",
    [
        (Phase.CANCELLED,),
        (Phase.FAILED,),
        (Phase.SKIPPED,),
        (Phase.FAILED, Phase.CANCELLED),
        (Phase.FAILED, Phase.SKIPPED),
        (Phase.CANCELLED, Phase.SKIPPED),
    ],
)
@pytest.mark.parametrize("how", ["unmet", "skipped", "failed", "cancelled"])
def test_an_end_that_its_lifecycle_has_no_word_for_counts_as_what_it_was(phases: tuple[Phase, ...], how: str) -> None:
    stage = KernelHarness(lifecycles=Lifecycles([ending_in(*phases)]), scripts=dict(SCRIPTS))
    condition = Condition(run="m:c") if how == "unmet" else None
    one = task("bad", retry=Retry(max_attempts=1)) if how == "failed" else task("unmet", condition=condition)
    job = stage.submit(flow(task("late"), one, task("next", one.name), lifecycle="few"))
    if how == "skipped":
        stage.command(stage.actor("next"), SkipTask("not needed"))
    if how == "cancelled":
        stage.cancel(job, force=True)
    elif not stage.over:
        stage.end(stage.token("late"))
        stage.settle()
    stage.advance(100)
    assert stage.state() == {"failed": "failed", "cancelled": "cancelled"}.get(how, "completed")
    assert clean(stage) == []
    last = {row.entity_id: row for row in stage.kept.transitions if row.kind == "task"}
    for row in last.values():
        record = stage.task(row.entity_id.rpartition("/")[2])
        assert row.phase == record.state, row
        said = (row.metadata or {}).get("ended_as")
        assert said == (None if record.state in {Phase.COMPLETED, *phases} else record.state)


ONLY_FROM_WORK = Machine(
    "only_from_work",
    "open",
    states=(
        State("open", Phase.PENDING, bounded_by="its dependencies"),
        State("working", Phase.RUNNING, bounded_by="its limits"),
        State("done", Phase.COMPLETED, terminal=True),
        State("lost", Phase.FAILED, terminal=True),
    ),
    transitions=(T("open", "take", "working"), T("working", "finish", "done"), T("working", "lose", "lost")),
)
"""The machine of a lifecycle that has no end for tasks that have not begun."""
OF_OTHERS = [*NAMES, "from work", "few"]
IN_STATES: dict[str, dict[str, Any]] = {
    "pending": {"depends_on": ["slow"]},
    "held": {"hold": Approval()},
    "waiting": {"wait": 1000},
    "queued": {"capabilities": ["none"]},
    "running": {},
    "validating": {"checks": [Check(run="m:c")]},
    "retrying": {"retry": Retry(max_attempts=9, base_delay=100)},
    "circuit_open": {"tool": "t", "on_exhausted": "park", "retry": Retry(max_attempts=1)},
}


def beside(name: str, state: str, *more: Task) -> KernelHarness:
    """A task `x` by this lifecycle, in this state, in a workstream by the runtime's own lifecycle."""
    own = Lifecycle("from work", "task", ONLY_FROM_WORK, {})
    scripts = {"slow": hangs, "x.check": hangs, "x": fails() if state in {"retrying", "circuit_open"} else hangs}
    if state == "validating":
        del scripts["x"]
    optional = {} if name == "pipeline" else {"optional": True}
    stage = KernelHarness(lifecycles=Lifecycles([own, ending_in(Phase.CANCELLED)]), scripts=scripts)
    x = Task("x", run="m:f", lifecycle=name, **IN_STATES[state], **optional)
    stage.submit(flow(task("slow"), x, *more))
    stage.advance(1)
    return stage


def told_of(stage: KernelHarness, entity_id: str) -> list[dict[str, Any]]:
    """Return the reports about an entity's end in the rows of other entities."""
    rows = [row.metadata or {} for row in stage.kept.transitions if row.entity_id != entity_id]
    decided = [one for row in rows for one in row.get("decided", ()) if one.get("entity_id") == entity_id]
    return [one for one in decided if "ended_as" in one]


@pytest.mark.parametrize("name", OF_OTHERS)
@pytest.mark.parametrize("state", IN_STATES)
@pytest.mark.parametrize(
    "command",
    [SkipTask("why so", "emil"), Cancel("why so", by="emil"), Cancel("why so", by="emil", force=True)],
    ids=["skip", "cancel", "force"],
)
@pytest.mark.parametrize("crash", [False, True])
def test_each_end_in_a_workstream_of_the_runtimes_own_is_told_by_a_row(
    name: str, state: str, command: Any, crash: bool
) -> None:
    stage = beside(name, state)
    before = len(stage.kept.transitions)
    if stage.command(stage.actor("x"), command) is not None:
        return  # it is refused in that state, by every lifecycle
    if crash:
        stage = stage.after_crash()
    stage.advance(30)
    if "job" in stage.kernel.jobs:
        stage.end(stage.token("slow"))
        stage.settle()
    stage.advance(100)
    record = stage.task("x")
    assert stage.kept.of(JobRecord)[0].finished_at is not None
    own = [row for row in stage.kept.transitions[before:] if row.entity_id == "job@1/x"]
    decisions = told_of(stage, "job@1/x")
    assert len(decisions) == (not own), (own, decisions)
    if decisions:
        assert decisions[0]["ended_as"] == record.state
    rows = stage.kept.transitions[before:]
    assert "emil" in repr([row.metadata for row in rows])
    assert "why so" in repr([(row.reason, row.metadata) for row in rows])
    assert stage.audit() == []


@pytest.mark.parametrize("name", OF_OTHERS)
def test_an_end_that_nobody_asked_for_is_told_by_a_row_as_well(name: str) -> None:
    stage = beside(name, "pending")
    stage.cancel(stage.kernel.jobs["job"], force=True)
    stage.settle()
    own = [row for row in stage.kept.transitions if row.entity_id == "job@1/x" and row.event != "create"]
    decisions = told_of(stage, "job@1/x")
    assert len(decisions) == (not own)
    assert [(one["ended_as"], "by" in one) for one in decisions] == [("cancelled", False)] * len(decisions)
    assert stage.audit() == []


def test_of_very_many_ends_that_nobody_asked_for_none_pushes_out_what_somebody_decided() -> None:
    many = [task(f"later-{number}", "slow", lifecycle="orchestration", optional=True) for number in range(300)]
    stage = beside("orchestration", "pending", *many)
    assert stage.command(stage.actor("x"), SkipTask("why so", "emil")) is None
    stage.cancel(stage.kernel.jobs["job"], force=True)
    stage.settle()
    (told,) = told_of(stage, "job@1/x")
    assert (told["by"], told["ended_as"]) == ("emil", "skipped")
    rows = [row for row in stage.kept.transitions if "decided" in (row.metadata or {})]
    assert max(len((row.metadata or {})["decided"]) for row in rows) <= 100
    assert stage.state() == "cancelled"
    # each is counted: 300 ends without a request, and that of "x"
    told = [(row.metadata or {}) for row in rows]
    assert sum(len(one["decided"]) + one.get("decided_more", 0) for one in told) == 301
    (last,) = (row for row in rows if "decided_more" in (row.metadata or {}))
    assert deciders(last)[-1] == f"and {(last.metadata or {})['decided_more']} more without a row of their own"
    assert "left_out" not in repr(told)


def test_of_very_many_ends_that_are_handed_over_at_once_a_hundred_are_told_and_the_others_counted() -> None:
    stage = staged("pipeline")
    stage.submit_silently(flow(*(task(f"t{number}") for number in range(300))))
    stage.cancel_silently(stage.kernel.jobs["job"])
    stage.settle()
    assert stage.state("job") == "cancelled"
    (told,) = [row.metadata or {} for row in stage.kept.transitions if "decided" in (row.metadata or {})]
    rows = Counter(row.entity_id for row in stage.kept.transitions if row.kind in {"task", "workstream"})
    without = [entity_id for entity_id, count in rows.items() if count == 1]  # the entities with only their creation
    assert (len(told["decided"]), told["decided_more"]) == (100, len(without) - 100)
    assert clean(stage) == []


def test_of_very_many_decisions_that_no_row_tells_the_oldest_are_counted() -> None:
    many = [task(f"later-{number}", "slow", lifecycle="orchestration", optional=True) for number in range(150)]
    stage = beside("orchestration", "pending", *many)
    for number in range(150):
        assert stage.command(stage.actor(f"later-{number}"), SkipTask("why so", "emil")) is None
    stage = stage.after_crash()  # the count is in the record
    stage.cancel(stage.kernel.jobs["job"], force=True)
    stage.settle()
    rows = [row.metadata or {} for row in stage.kept.transitions if "decided" in (row.metadata or {})]
    assert [(len(one["decided"]), one.get("decided_more", 0)) for one in rows] == [(100, 50), (1, 0)]
    assert {one["by"] for one in rows[0]["decided"]} == {"emil"}
    assert rows[0]["decided"][-1]["entity_id"] == "job@1/later-149"


def _without(*rows: T, states: tuple[State, ...] | None = None, machine: Machine = REVIEWED) -> Lifecycle:
    kept = tuple(row for row in machine.transitions if row not in rows)
    return Lifecycle("own", "task", Machine("m", machine.initial, states or tuple(machine.states.values()), kept), {})


def _with(name: str, phase: str | None, *, terminal: bool) -> tuple[State, ...]:
    return (*(s for s in REVIEWED.states.values() if s.name != name), State(name, phase, terminal, "somebody"))


@pytest.mark.parametrize(
    ("lifecycle", "why"),
    [
        (_without(*(r for r in REVIEWED.transitions if r.target == "merged")), "no path from open reaches merged"),
        (_without(states=_with("merged", Phase.RUNNING, terminal=True)), "merged is terminal, and its phase running"),
        (_without(states=_with("merged", Phase.COMPLETED, terminal=False)), "merged has the phase completed"),
        (_without(states=_with("reviewing", None, terminal=False)), "the state reviewing has no phase"),
        (_without(states=_with("open", Phase.RUNNING, terminal=False)), "it begins in open, whose phase running"),
        (
            _without(states=_with("working", Phase.QUEUED, terminal=False)),
            "no way from its initial state to a state",
        ),
        (_without(states=_with("dropped", Phase.COMPLETED, terminal=True)), "a task that does not succeed has no end"),
        (_without(*(r for r in REVIEWED.transitions if r.source == "reviewing")), "no path from reviewing"),
    ],
)
def test_a_lifecycle_that_cannot_work_is_refused_with_the_reason(lifecycle: Lifecycle, why: str) -> None:
    assert why in "; ".join(faults(lifecycle))
    with pytest.raises(ValueError, match="no task can run by the lifecycle 'own'"):
        Lifecycles([lifecycle])
    (found,) = findings(flow(task("a", lifecycle=lifecycle)))
    assert (found.where, why in found.message) == ("tasks[0].lifecycle", True)


def test_every_published_lifecycle_can_work() -> None:
    assert [faults(one) for kinds in LIFECYCLES.values() for one in kinds.values()] == [[]] * 12


def test_another_lifecycle_of_the_same_name_is_refused() -> None:
    with pytest.raises(ValueError, match="there is another lifecycle 'guarded' of a task"):
        Lifecycles([Lifecycle("guarded", "task", GUARDED, {})])


# -- the mapping -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lifecycle", [kinds["task"] for kinds in LIFECYCLES.values() if "task" in kinds])
def test_what_is_told_of_any_row_is_a_way_of_the_table_from_the_present_state(lifecycle: Lifecycle) -> None:
    refined = Refinement(lifecycle)
    for state in lifecycle.machine.states:
        for row in TASK.transitions:
            here = state
            for told in refined.follow(state, row):
                assert told in lifecycle.machine.transitions
                assert told.source == here
                here = told.target
            assert here == state or not lifecycle.machine.is_terminal(state)


# -- what else may happen ----------------------------------------------------------------------------------------------


@by_each
def test_a_workstream_stopped_before_it_began_or_failing_its_last_check(name: str) -> None:
    stage = staged(name, scripts={"flow.check": lambda call, entity: {"value": False}})
    stage.cancel(stage.submit(flow(task("a"), hold=Approval()), "held"))
    stage.submit(flow(task("a"), checks=[Check(run="m:c")]), "checked")
    stage.submit_silently(flow(*(task(f"t{number}") for number in range(600))))
    stage.cancel_silently(stage.kernel.jobs["job"])
    stage.settle()
    ends = {"held": "cancelled", "checked": "failed", "job": "cancelled"}
    assert {job: stage.state(job) for job in ends} == ends
    assert clean(stage) == []


@by_each
def test_a_probe_fails_and_another_closes_the_breaker(name: str) -> None:
    stage = staged(name, workers=(Worker("w", engine="loop", capacity=1),), scripts={"a": fails_until(3)})
    tools = {"t": Tool(breaker=Breaker(failure_threshold=1, cooldown=10), retry=Retry(max_attempts=9))}
    stage.submit(flow(task("a", tool="t"), tools=tools))
    stage.advance(60)
    assert stage.state() == "completed"
    stage.scripts["hog"] = hangs
    stage.submit(flow(task("hog", timeout=10_000)), "hogs")
    stage.submit(flow(task("a", tool="t"), tools=tools), "more")
    stage.command(stage.workforce.breakers["t"], TripBreaker("ill"))
    stage.advance(11)
    assert stage.task("a", "more").state == "half_open"
    stage.command(stage.workforce.breakers["t"], TripBreaker("still ill"))
    assert stage.task("a", "more").state == "circuit_open"
    stage.end(stage.task("hog", "hogs").token)
    stage.advance(30)
    assert stage.state("more") == "completed"
    assert clean(stage) == []


@by_each
@pytest.mark.parametrize("comes_back", [True, False])
def test_a_worker_falls_silent(name: str, comes_back: bool) -> None:
    workers = (Worker("p", engine="process", capacity=1),)
    stage = staged(name, workers=workers, scripts={"a": hangs})
    stage.submit(flow(task("a", engine="process", timeout=10_000)))
    stage.silent.add("p")
    stage.advance(31)
    assert stage.worker("p").record.state == "unresponsive"
    if comes_back:
        stage.silent.clear()
    stage.advance(400)
    stage.silent.clear()
    stage.scripts.clear()
    stage.advance(400)
    for token in list(stage.running):
        stage.end(token)
    stage.settle()
    assert stage.state() == "completed"
    assert stage.audit() == []


@by_each
def test_a_worker_that_fell_silent_when_it_had_ended_its_task_is_told_as_idle_when_it_answers_again(name: str) -> None:
    stage = staged(name, workers=(Worker("p", engine="process", capacity=1),))
    stage.submit(flow(task("a", engine="process")))
    assert stage.state() == "completed"
    stage.silent.add("p")
    stage.advance(31)
    assert stage.worker("p").record.state == "unresponsive"
    stage.silent.clear()
    stage.advance(31)
    assert stage.worker("p").record.state == "idle"
    assert stage.audit() == []


@by_each
def test_workers_are_stopped_by_force_in_every_state(name: str) -> None:
    workers = tuple(Worker(one, engine="loop", capacity=1) for one in ("idle", "busy", "paused"))
    stage = staged(name, workers=workers, scripts={"a": hangs, "b": hangs})
    stage.submit(flow(task("a", max_losses=9), task("b", max_losses=9)))
    busy = [worker for worker in stage.kernel.workers.values() if worker.record.state == "busy"]
    stage.command(busy[1], PauseWorker("a while"))
    for worker in list(stage.kernel.workers.values()):
        stage.command(worker, TerminateWorker("enough"))
    assert not stage.kernel.workers
    assert stage.audit() == []


@by_each
def test_jobs_are_refused_wait_and_end_before_they_run(name: str) -> None:
    stage = staged(name, workers=(Worker("w", engine="loop", capacity=2),), scripts={"a": hangs})
    stage.submit(flow(task("a"), worker_count=9), "never")
    first = stage.submit(flow(task("a"), worker_count=2), "first")
    stage.cancel(stage.submit(flow(task("a"), worker_count=2), "second"))
    stage.stubborn.add("a")
    stage.cancel(first)
    token = stage.task("a", "first").token
    late = child(stage, token, flow(task("b")), "first/a/x")
    stage.end(token)
    stage.settle()
    assert [stage.state(job) for job in ("never", "second", "first")] == ["failed", "cancelled", "cancelled"]
    assert late.record.state == "cancelled"
    assert stage.audit() == []


@by_each
def test_the_rest_of_the_rows(name: str) -> None:
    limits = Defaults(queue_timeout=20)
    bodies = {"hog": hangs, "f": fails(), "p": fails(permanent=True)}
    stage = staged(name, workers=(Worker("w", engine="loop", capacity=1),), scripts=bodies)
    stage.submit(flow(task("expires", hold=Approval(expires="5s"))), "expires")
    stage.advance(10)
    stage.submit(flow(task("p", on_exhausted="park")), "permanent")
    stage.submit(flow(task("hog", cancel_hooks=[Hook(run="m:h")], queue_timeout=None)), "hogs")
    stage.submit(flow(task("waits"), defaults=limits), "waits")
    stage.cancel(stage.submit(flow(task("a")), "queued"))
    stage.advance(25)
    assert [stage.state(job) for job in ("expires", "waits", "queued")] == ["failed", "failed", "cancelled"]
    stage.stubborn.add("hog")
    hogs = stage.kernel.jobs["hogs"]
    stage.cancel(hogs)
    stage.cancel(hogs, force=True)
    stage.settle()
    assert stage.state("hogs") == "cancelled"
    stage.submit(flow(task("f", on_exhausted="fail"), task("g", "f")), "dependents")
    assert stage.task("g", "dependents").state == "skipped"
    lost = staged(name, scripts={"a": hangs})
    lost.submit(flow(task("a", on_loss="fail", on_exhausted="fail")))
    lost = lost.after_crash()
    assert lost.state() == "failed"
    assert stage.audit() == lost.audit() == []


@by_each
def test_one_more_attempt_is_taken_back_when_its_tool_falls_ill(name: str) -> None:
    bodies = {"a": fails(), "hog": hangs}
    stage = staged(name, workers=(Worker("w", engine="loop", capacity=1),), scripts=bodies)
    tools = {"t": Tool(breaker=Breaker(failure_threshold=5, cooldown=10))}
    stage.submit(flow(task("a", tool="t", on_exhausted="park"), tools=tools))
    stage.submit(flow(task("hog", timeout=10_000)), "hogs")
    stage.advance(11)
    assert stage.task("a").state == "half_open"
    stage.command(stage.workforce.breakers["t"], TripBreaker("ill"))
    assert stage.task("a").state == "circuit_open"
    assert clean(stage) == []


BY_MACHINE_ACTORS = {
    # A run that failed is followed by a new one, which has a trace of its own.
    "pipeline.workstream: S_FAILED retry_eligible [retry count below max retries] S_RETRYING",
    "pipeline.workstream: S_RETRYING retry_attempt S_RUNNING",
}
"""The rows that only a `MachineActor` takes (test_published_machines.py). The plugin checks that all rows are taken."""


def test_the_runtimes_actors_take_all_rows_but_those_of_machine_actors_only(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: set[str] = set()
    before = observing.observe_transition

    def observe(machine: Machine, row: Transition) -> None:
        taken.add(f"{machine.name}: {title(row)}")
        if before is not None:
            before(machine, row)

    monkeypatch.setattr(observing, "observe_transition", observe)
    for name in NAMES:
        test_the_workload_runs_by_it_and_its_trace_is_one_of_its_table(name)
        test_a_restart_at_every_turn_goes_on_where_it_was(name)
        for force in (False, True):
            test_a_cancel_in_every_state_leaves_a_trace_of_its_table(name, force)
            test_a_worker_falls_silent(name, force)
        test_a_breaker_parks_its_tasks_and_lets_one_probe(name)
        test_workers_pause_fall_silent_die_and_shut_down_by_it(name)
        test_what_is_parked_is_reset_by_an_operator(name)
        test_an_operator_does_without_a_task(name)
        test_a_workstream_stopped_before_it_began_or_failing_its_last_check(name)
        test_a_probe_fails_and_another_closes_the_breaker(name)
        test_workers_are_stopped_by_force_in_every_state(name)
        test_jobs_are_refused_wait_and_end_before_they_run(name)
        test_the_rest_of_the_rows(name)
        test_one_more_attempt_is_taken_back_when_its_tool_falls_ill(name)
    test_a_guarded_task_parks_when_it_is_exhausted_and_after_the_same_error_thrice()
    test_a_worker_of_fleet_that_has_ended_otherwise_can_be_told_as_terminated()
    every = {f"{machine.name}: {title(row)}" for machine in PUBLISHED.values() for row in machine.transitions}
    assert every - taken == BY_MACHINE_ACTORS


@pytest.mark.parametrize(
    ("name", "command", "machine", "event", "state"),
    [
        ("guarded", Cancel("stop"), "guarded.task", "user_cancels", "COMPLETED"),
        ("pipeline", ResetTask("again"), "pipeline.step", "reset", "S_SUCCESS"),
        ("orchestration", Cancel("stop"), "orchestration.task", "user_cancelled", "completed"),
        ("execution", SkipTask("no need"), "execution", "SKIP", "success"),
        ("execution", Approve(by="ana"), "execution", "APPROVE", "success"),
    ],
)
def test_what_has_ended_refuses_in_the_words_of_its_lifecycle(
    name: str, command: Any, machine: str, event: str, state: str
) -> None:
    stage = staged(name)
    stage.scripts["b"] = hangs
    stage.submit(flow(task("a"), task("b")))
    refused = stage.command(stage.actor("a"), command)
    assert isinstance(refused, InvalidTransitionError)
    assert (refused.machine, refused.event, refused.state, set(refused.allowed)) == (machine, event, state, set())
    assert repr(state) in str(refused)
    assert refused.kind == "task"
    assert stage.kernel.rejected[machine, state, event] == 1


def test_what_is_refused_does_not_stand_in_what_is_allowed() -> None:
    stage = staged("execution")
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a")))
    refused = stage.command(stage.actor("a"), SkipTask("no need"))
    assert isinstance(refused, InvalidTransitionError)
    assert (refused.state, refused.event) == ("running", "SKIP")
    assert "SKIP" not in refused.allowed
    assert {"CANCEL", "CANCEL_GRACEFUL", "SUCCEED"} <= set(refused.allowed)
    assert (refused.in_own_words.event, refused.in_own_words.state) == ("skip", "running")
