"""Document 001 word by word: the transitions of its three diagrams, its guards, its derivation."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.actors.stage import KernelHarness, fails, fails_until, flow, task

from callboard.actors.messages.commands import Approve, SkipTask
from callboard.actors.records.transition import as_event
from callboard.actors.spec.lifecycles import Lifecycles
from callboard.actors.spec.model import Approval, Retry, Workstream
from callboard.machines import GuardRejected, InvalidTransitionError, Machine, TransitionEvent
from callboard.machines.audit.audit import audit
from callboard.machines.lifecycles.orchestration import (
    LIFECYCLES,
    TASK,
    WORKER,
    WORKSTREAM,
    TaskState,
    derive_workstream_state,
)

# The lines of the diagrams, as (from, to, trigger).
TASK_LINES = """
pending queued scheduler_assigned
queued running worker_started
running validating execution_completed
running retrying execution_failed
running failed execution_failed
running cancelled user_cancelled
retrying queued retry_delay_elapsed
validating completed validation_passed
validating failed validation_failed
"""
WORKSTREAM_LINES = """
planned ready all_tasks_created
ready executing first_task_started
executing validating all_tasks_completed
executing failed critical_task_failed
validating completed validation_passed
validating failed validation_failed
planned cancelled user_cancelled
ready cancelled user_cancelled
executing cancelled user_cancelled
"""
WORKER_LINES = """
initializing idle registration_complete
idle busy task_assigned
busy idle task_completed
busy unresponsive health_check_timeout
unresponsive idle health_check_recovered
unresponsive shutdown max_timeout_exceeded
idle shutdown shutdown_requested
busy shutdown shutdown_requested
"""


@pytest.mark.parametrize(
    ("machine", "lines"),
    [(TASK, TASK_LINES), (WORKSTREAM, WORKSTREAM_LINES), (WORKER, WORKER_LINES)],
    ids=["task", "workstream", "worker"],
)
def test_the_lines_of_its_diagrams_are_the_rows(machine: Machine, lines: str) -> None:
    rows = [" ".join((row.source, row.target, row.event)) for row in machine.transitions]
    assert sorted(rows) == sorted(lines.split("\n")[1:-1])


@pytest.mark.parametrize(
    ("retry_count", "max_retries", "target"),
    [(0, 1, "retrying"), (2, 3, "retrying"), (0, 0, "failed"), (3, 3, "failed"), (9, 3, "failed")],
)
def test_a_failed_execution_is_retried_below_the_limit_only(retry_count: int, max_retries: int, target: str) -> None:
    facts = SimpleNamespace(retry_count=retry_count, max_retries=max_retries)
    assert TASK.transition("running", "execution_failed", facts).target == target


def test_a_task_with_dependencies_to_come_is_not_queued() -> None:
    assert TASK.transition("pending", "scheduler_assigned", SimpleNamespace(unmet=0)).target == "queued"
    with pytest.raises(GuardRejected, match="not 'dependencies satisfied'"):
        TASK.transition("pending", "scheduler_assigned", SimpleNamespace(unmet=1))


def test_a_busy_worker_shuts_down_after_its_task() -> None:
    with pytest.raises(GuardRejected):
        WORKER.transition("busy", "shutdown_requested", SimpleNamespace(assigned=1))
    assert WORKER.transition("busy", "shutdown_requested", SimpleNamespace(assigned=0)).target == "shutdown"
    assert WORKER.transition("idle", "shutdown_requested").target == "shutdown"


def test_only_a_busy_worker_becomes_unresponsive() -> None:
    for state in ("initializing", "idle", "unresponsive", "shutdown"):
        with pytest.raises(InvalidTransitionError):
            WORKER.transition(state, "health_check_timeout")


def test_only_a_running_task_is_cancelled_by_its_user() -> None:
    knows = {state for state in TASK.states if "user_cancelled" in TASK.valid_events(state)}
    assert knows == {"running"}


def test_a_terminal_state_leads_nowhere() -> None:
    for machine in (TASK, WORKSTREAM, WORKER):
        assert not [row for row in machine.transitions if machine.is_terminal(row.source)]


def tasks(*states: str, critical: bool = True) -> list[SimpleNamespace]:
    return [SimpleNamespace(state=state, critical=critical) for state in states]


@pytest.mark.parametrize(
    ("states", "derived"),
    [
        (("running", "completed", "failed"), "executing"),
        (("completed", "completed"), "validating"),
        (("failed", "completed"), "failed"),
        (("pending", "queued"), "ready"),
        (("pending", "completed"), "executing"),
        (("retrying", "pending"), "executing"),
        (("validating",), "executing"),
        ((), "validating"),
    ],
)
def test_the_state_that_tasks_derive(states: tuple[str, ...], derived: str) -> None:
    assert derive_workstream_state(tasks(*states)) == derived


def test_a_failure_that_is_not_critical_lets_the_rest_run() -> None:
    assert derive_workstream_state(tasks("failed", "completed", critical=False)) == "executing"


def test_no_tasks_are_all_completed_and_no_state_is_none_of_a_task() -> None:
    assert derive_workstream_state([]) == "validating"
    with pytest.raises(ValueError, match="no task has the state 'nosuch'; the states of a task are pending, queued, "):
        derive_workstream_state(tasks("completed", "nosuch"))
    with pytest.raises(TypeError, match=r"a task is an object with its `state`.* and not 'completed'"):
        derive_workstream_state(["completed"])  # type: ignore[list-item]


def test_any_critical_failure_counts_and_not_only_the_last_task_that_was_looked_at() -> None:
    mixed = [*tasks("failed"), *tasks("failed", critical=False), *tasks("completed")]
    assert derive_workstream_state(mixed) == derive_workstream_state(mixed[::-1]) == "failed"


@given(
    st.lists(
        st.builds(SimpleNamespace, state=st.sampled_from([str(state) for state in TaskState]), critical=st.booleans()),
        max_size=6,
    )
)
def test_the_derivation_does_not_depend_on_the_order_of_the_tasks(drawn: list[SimpleNamespace]) -> None:
    derived = derive_workstream_state(drawn)
    assert derived in WORKSTREAM.states
    assert derived == derive_workstream_state(drawn[::-1])


# -- the derivation compared with real runs -----------------------------------------------------------------------

SCRIPTS = {"flaky": fails_until(3), "bad": fails()}


def trace(spec: Workstream) -> list[TransitionEvent]:
    """Return the log of a workstream that runs by the lifecycle "orchestration"."""
    stage = KernelHarness(lifecycles=Lifecycles(default="orchestration"), scripts=SCRIPTS)
    stage.submit(spec)
    stage.advance(60)
    assert stage.over == ["job"]
    return [as_event(row) for row in stage.kept.transitions]


def kinds(events: list[TransitionEvent]) -> list[str]:
    """Return the findings of the auditor, for lines that are numbered in this order."""
    numbered = [msgspec.structs.replace(event, seq=place) for place, event in enumerate(events, start=1)]
    return [finding.kind for finding in audit(numbered)]


def step(events: list[TransitionEvent], state: str) -> int:
    """Where the workstream enters a state."""
    (place,) = [n for n, e in enumerate(events) if e.kind == "workstream" and e.to_state == state]
    return place


GOOD = flow(task("a"), task("flaky", "a", retry=Retry(max_attempts=3)), task("b", "flaky"))


@pytest.mark.parametrize(
    "spec",
    [
        GOOD,
        flow(task("bad"), task("after", "bad"), task("beside")),
        flow(task("bad", optional=True), task("a")),
        flow(),
    ],
    ids=["completes", "a critical task fails", "an optional one fails", "empty"],
)
def test_every_step_of_a_workstream_is_what_the_function_derives(spec: Workstream) -> None:
    assert kinds(trace(spec)) == []


def test_the_function_is_what_the_auditor_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    (own,) = [one for one in LIFECYCLES if one.kind == "workstream"]
    assert own.derive is derive_workstream_state

    def derive(seen: list[SimpleNamespace]) -> str:
        asked.append([str(one.state) for one in seen])
        return derive_workstream_state(seen)

    mine = msgspec.structs.replace(own, derive=derive)
    events = trace(flow(task("a"), task("b", "a")))
    assert audit(events, lifecycles=[mine, *(one for one in LIFECYCLES if one.kind != "workstream")]) == []
    assert asked[0] == ["pending", "pending"]  # ready
    assert ["running", "pending"] in asked  # executing
    assert asked[-1] == ["completed", "completed"]  # completed


def test_a_workstream_that_executes_before_any_task_runs_is_found() -> None:
    events = trace(GOOD)
    ready, executing = step(events, "ready"), step(events, "executing")
    events.insert(ready + 1, events.pop(executing))
    assert kinds(events) == ["derived_otherwise"]


def test_a_workstream_of_which_nothing_runs_passes_through_executing() -> None:
    stage = KernelHarness(lifecycles=Lifecycles(default="orchestration"))
    stage.submit(flow(task("a"), hold=Approval()))
    stage.command(stage.actor("a"), SkipTask("not needed"))
    stage.command(stage.kernel.entities[stage.stream.key], Approve("ana"))
    events = [as_event(row) for row in stage.kept.transitions]
    assert [e.to_state for e in events if e.kind == "workstream"][-3:] == ["executing", "validating", "completed"]
    assert kinds(events) == []


def test_a_workstream_that_validates_while_a_task_runs_is_found() -> None:
    events = trace(GOOD)
    validating = events.pop(step(events, "validating"))
    last = max(n for n, e in enumerate(events) if e.kind == "task" and e.to_state == "running")
    events.insert(last + 1, validating)
    assert kinds(events) == ["derived_otherwise"]


def test_a_workstream_that_completes_though_an_optional_task_failed_is_found() -> None:
    """The second invariant of the document: only if all tasks completed."""
    events = trace(flow(task("bad", optional=True), task("a")))
    place = step(events, "failed")
    failed = events[place]
    events[place : place + 1] = [
        msgspec.structs.replace(failed, to_state="validating", trigger="all_tasks_completed", severity="info"),
        msgspec.structs.replace(
            failed, from_state="validating", to_state="completed", trigger="validation_passed", severity="info",
            entity_seq=failed.entity_seq + 1,
        ),
    ]  # fmt: skip
    assert kinds(events) == ["derived_otherwise", "derived_otherwise"]


def test_tasks_of_another_lifecycle_are_not_asked_about() -> None:
    assert kinds(trace(flow(task("a", lifecycle="guarded"), task("b", "a")))) == []


def test_a_log_with_a_state_that_no_task_has_is_audited_to_its_end() -> None:
    stage = KernelHarness(lifecycles=Lifecycles(default="orchestration"))
    stage.submit(flow(task("a"), task("b", "a")))
    stage.settle()
    told = [as_event(row) for row in stage.kept.transitions]
    place = next(place for place, row in enumerate(told) if row.kind == "task" and row.to_state == "running")
    told[place] = msgspec.structs.replace(told[place], to_state="nosuch")
    assert {"unknown_transition", "does_not_follow"} <= {finding.kind for finding in audit(told)}
