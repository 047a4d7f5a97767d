"""The runtime's own lifecycles, compared with tables that were written independently of the code.

`EXPECTED` says for each state which events it knows and where they may lead, in the order in which the guards
are asked. Everything that is not in it must be refused.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from callboard.machines import (
    APPROVAL,
    BREAKER,
    JOB,
    TASK,
    WORKER,
    WORKSTREAM,
    ApprovalState,
    BreakerState,
    Event,
    GuardRejected,
    InvalidTransitionError,
    JobState,
    Machine,
    Phase,
    TaskState,
    WorkerState,
    WorkstreamState,
)

MACHINES = {machine.name: machine for machine in (TASK, WORKSTREAM, APPROVAL, WORKER, JOB, BREAKER)}
STATES = {
    "task": TaskState,
    "workstream": WorkstreamState,
    "worker": WorkerState,
    "job": JobState,
    "breaker": BreakerState,
    "approval": ApprovalState,
}

BAD_END = "circuit_open retrying circuit_open failed"

EXPECTED: dict[str, dict[str, dict[str, str]]] = {
    "task": {
        "pending": {
            "enqueue": "queued",
            "hold": "held",
            "wait": "waiting",
            "skip": "skipped",
            "cancel": "cancelled",
            "fail": "failed",
        },
        "held": {
            "approve": "held waiting queued",
            "reject": "cancelled",
            "expire": "cancelled",
            "cancel": "cancelled",
        },
        "waiting": {"timer_done": "queued", "cancel": "cancelled"},
        "queued": {"trip": "circuit_open", "start": "running", "fail": "failed", "cancel": "cancelled"},
        "running": {
            "succeed": "validating",
            "time_out": "timed_out",
            "recover": "recovering",
            "fail": BAD_END,
            "requeue": "queued",
            "cancel": "cancelled",
            "cancel_graceful": "cancelling",
        },
        "timed_out": {"fail": BAD_END, "cancel": "cancelled"},
        "validating": {
            "validation_passed": "completed",
            "validation_failed": "circuit_open failed",
            "recover": "validating",
            "cancel": "cancelled",
            "cancel_graceful": "cancelling",
        },
        "recovering": {"start": "running", "fail": BAD_END, "cancel": "cancelled"},
        "retrying": {"requeue": "queued", "trip": "circuit_open", "fail": "failed", "cancel": "cancelled"},
        "circuit_open": {
            "cool_down": "half_open",
            "reset": "pending",
            "fail": "failed",
            "cancel": "cancelled",
        },
        "half_open": {"start": "running", "trip": "circuit_open", "fail": "failed", "cancel": "cancelled"},
        "cancelling": {"complete": "cancelled", "cancel_force": "cancelled", "fail": "failed"},
        "completed": {},
        "failed": {},
        "cancelled": {},
        "skipped": {},
    },
    "workstream": {
        "planned": {"tasks_created": "ready", "cancel": "cancelled"},
        "ready": {
            "hold": "held",
            "wait": "waiting",
            "start": "executing",
            "succeed": "validating",
            "pause": "paused",
            "fail": "failed",
            "cancel": "cancelled",
        },
        "held": {
            "approve": "held waiting ready",
            "reject": "cancelled",
            "expire": "cancelled",
            "cancel": "cancelled",
        },
        "waiting": {"timer_done": "ready", "cancel": "cancelled"},
        "executing": {
            "succeed": "validating",
            "pause": "paused",
            "fail": "cancelling",
            "cancel": "cancelling",
            "cancel_graceful": "cancelling",
        },
        "paused": {
            "resume": "ready executing",
            "fail": "cancelling",
            "cancel": "cancelling",
            "cancel_graceful": "cancelling",
        },
        "validating": {
            "validation_passed": "completed",
            "validation_failed": "failed",
            "recover": "validating",
            "cancel": "cancelling",
            "cancel_graceful": "cancelling",
        },
        "cancelling": {"complete": "failed cancelled", "cancel_force": "cancelling", "fail": "failed"},
        "completed": {},
        "failed": {},
        "cancelled": {},
    },
    "worker": {
        "initializing": {"register": "paused idle", "fail": "failed", "terminate": "terminated"},
        "idle": {
            "assign": "busy",
            "pause": "paused",
            "shut_down": "shutdown",
            "health_check_timeout": "unresponsive",
            "fail": "failed",
            "terminate": "terminated",
        },
        "busy": {
            "assign": "busy",
            "release": "busy idle",
            "pause": "paused",
            "shut_down": "draining",
            "health_check_timeout": "unresponsive",
            "fail": "failed",
            "terminate": "terminated",
        },
        "paused": {
            "release": "paused",
            "resume": "busy idle",
            "shut_down": "draining shutdown",
            "health_check_timeout": "unresponsive",
            "fail": "failed",
            "terminate": "terminated",
        },
        "draining": {
            "release": "draining shutdown",
            "drain_deadline": "terminated",
            "health_check_timeout": "unresponsive",
            "fail": "failed",
            "terminate": "terminated",
        },
        "unresponsive": {
            "recover": "draining paused busy idle",
            "expire": "shutdown",
            "fail": "failed",
            "terminate": "terminated",
        },
        "shutdown": {},
        "failed": {},
        "terminated": {},
    },
    "job": {
        "submitted": {"validate": "pending", "reject": "failed", "cancel": "cancelled"},
        "pending": {"allocate": "running", "cancel": "cancelled", "fail": "failed"},
        "running": {
            "succeed": "completed",
            "fail": "failed",
            "cancel": "cancelling",
            "cancel_graceful": "cancelling",
        },
        "cancelling": {"complete": "cancelled", "fail": "failed"},
        "completed": {},
        "failed": {},
        "cancelled": {},
    },
    "approval": {
        "held": {"approve": "held approved", "reject": "rejected", "expire": "expired", "cancel": "cancelled"},
        "approved": {},
        "rejected": {},
        "expired": {},
        "cancelled": {},
    },
    "breaker": {
        "closed": {"succeed": "closed", "fail": "closed open", "reset": "closed", "trip": "open"},
        "open": {"cool_down": "half_open", "reset": "closed", "trip": "open"},
        "half_open": {"succeed": "half_open closed", "fail": "open", "reset": "closed", "trip": "open"},
    },
}

INITIAL = {
    "task": "pending",
    "workstream": "planned",
    "worker": "initializing",
    "job": "submitted",
    "breaker": "closed",
    "approval": "held",
}
TERMINAL = {
    "task": {"completed", "failed", "cancelled", "skipped"},
    "workstream": {"completed", "failed", "cancelled"},
    "worker": {"shutdown", "failed", "terminated"},
    "job": {"completed", "failed", "cancelled"},
    "breaker": set[str](),
    "approval": {"approved", "rejected", "expired", "cancelled"},
}
# state and event: the fact that holds the delay or the due time
TIMED = {
    "task": {
        "held expire": "hold_until",
        "waiting timer_done": "wait_until",
        "queued fail": "queue_timeout",
        "running time_out": "timeout",
        "timed_out fail": "kill_grace",
        "validating validation_failed": "validation_timeout",
        "recovering fail": "recovery_timeout",
        "retrying requeue": "retry_at",
        "cancelling cancel_force": "cancel_deadline",
    },
    "workstream": {
        "held expire": "hold_until",
        "waiting timer_done": "wait_until",
        "validating validation_failed": "validation_timeout",
        "cancelling cancel_force": "cancel_deadline",
    },
    "worker": {
        "initializing fail": "start_timeout",
        "idle health_check_timeout": "health_check_timeout",
        "busy health_check_timeout": "health_check_timeout",
        "paused health_check_timeout": "health_check_timeout",
        "draining health_check_timeout": "health_check_timeout",
        "draining drain_deadline": "drain_deadline",
        "unresponsive expire": "expire_after",
    },
    "job": {},
    "breaker": {"open cool_down": "cooldown"},
    "approval": {"held expire": "hold_until"},
}

EVERY_STATE = [
    pytest.param(machine, state, id=f"{machine.name}-{state}")
    for machine in MACHINES.values()
    for state in EXPECTED[machine.name]
]


@pytest.mark.parametrize(("machine", "state"), EVERY_STATE)
def test_every_pair_of_state_and_event(machine: Machine, state: str) -> None:
    expected = EXPECTED[machine.name][state]
    assert machine.valid_events(state) == set(expected)
    for event in Event:
        if event in expected:
            assert " ".join(row.target for row in machine.table[state][event]) == expected[event]
            continue
        assert not machine.can_transition(state, event)
        with pytest.raises(InvalidTransitionError) as refusal:
            machine.transition(state, event)
        assert not isinstance(refusal.value, GuardRejected)
        assert (refusal.value.machine, refusal.value.state, refusal.value.event) == (machine.name, state, event)
        assert refusal.value.allowed == set(expected)


@pytest.mark.parametrize("name", MACHINES)
class TestDeclaration:
    def test_it_is_sound(self, name: str) -> None:
        assert MACHINES[name].check() == []

    def test_its_states_are_those_published(self, name: str) -> None:
        machine = MACHINES[name]
        assert set(machine.states) == set(EXPECTED[name]) == {state.value for state in STATES[name]}
        assert all(type(state) is STATES[name] for state in machine.states)
        assert machine.initial == INITIAL[name]
        assert {state for state in machine.states if machine.is_terminal(state)} == TERMINAL[name]

    def test_its_events_are_words_of_the_runtime(self, name: str) -> None:
        assert {type(row.event) for row in MACHINES[name].transitions} == {Event}

    def test_state_and_phase_have_the_same_name(self, name: str) -> None:
        for state in MACHINES[name].states.values():
            assert state.phase is Phase(state.name)

    def test_its_timed_events(self, name: str) -> None:
        timed = {f"{entry.state} {entry.event}": entry.after for entry in MACHINES[name].timed}
        assert timed == TIMED[name]

    def test_its_severities(self, name: str) -> None:
        for row in MACHINES[name].transitions:
            assert row.severity == expected_severity(name, row.source, row.event, row.target), row


def expected_severity(machine: str, source: str, event: str, target: str) -> str:
    if target == "failed":
        return "critical" if machine == "workstream" else "error"
    if target in {"circuit_open", "unresponsive"} or (machine, target) == ("breaker", "open"):
        return "error"
    if machine == "workstream" and event == "fail":
        return "error"
    if target in {"retrying", "timed_out"} or event in {"expire", "drain_deadline"}:
        return "warning"
    return "info"


def test_no_event_and_no_phase_is_unused() -> None:
    rows = [row for machine in MACHINES.values() for row in machine.transitions]
    assert {row.event for row in rows} == set(Event)
    phases = {state.phase for machine in MACHINES.values() for state in machine.states.values()}
    assert phases == set(Phase) - {Phase.DECIDING}  # which only published lifecycles have


# -- guards ------------------------------------------------------------------------------------------


def task(**facts: Any) -> SimpleNamespace:
    """A task's facts: three attempts, three losses, nothing used up."""
    usual = {
        "unmet": 0,
        "probe": False,
        "failed_attempts": 0,
        "lost_attempts": 0,
        "granted": 0,
        "max_attempts": 3,
        "max_losses": 3,
        "on_loss": "rerun",
        "on_exhausted": "fail",
        "hold_until": None,
        "wait_until": None,
    }
    return SimpleNamespace(**usual | facts)


def failure(
    *, lost: bool = False, permanent: bool = False, repeated: bool = False, deferred: bool = False
) -> SimpleNamespace:
    return SimpleNamespace(lost=lost, permanent=permanent, repeated=repeated, deferred=deferred)


LOSS = failure(lost=True)
FAILURE = failure()


@pytest.mark.parametrize("state", ["running", "timed_out", "recovering"])
@pytest.mark.parametrize(
    ("facts", "payload", "target"),
    [
        pytest.param(task(), FAILURE, "retrying", id="first of three attempts"),
        pytest.param(task(failed_attempts=1), FAILURE, "retrying", id="second of three attempts"),
        pytest.param(task(failed_attempts=2), FAILURE, "failed", id="last of three attempts"),
        pytest.param(task(max_attempts=1), FAILURE, "failed", id="only attempt"),
        pytest.param(task(failed_attempts=2, granted=1), FAILURE, "retrying", id="one more was granted"),
        pytest.param(task(failed_attempts=3, granted=1), FAILURE, "failed", id="the granted one failed"),
        pytest.param(task(), failure(permanent=True), "failed", id="permanent error"),
        pytest.param(task(), failure(repeated=True), "failed", id="repeated error"),
        pytest.param(task(max_attempts=1), failure(deferred=True), "retrying", id="asks to be run later"),
        pytest.param(task(failed_attempts=2, on_exhausted="park"), FAILURE, "circuit_open", id="parks"),
        pytest.param(task(on_exhausted="park"), FAILURE, "retrying", id="parks only when exhausted"),
        pytest.param(task(on_exhausted="park"), failure(permanent=True), "circuit_open", id="permanent, parks"),
        pytest.param(task(), LOSS, "retrying", id="first of three losses"),
        pytest.param(task(lost_attempts=1), LOSS, "retrying", id="second of three losses"),
        pytest.param(task(lost_attempts=2), LOSS, "failed", id="last of three losses"),
        pytest.param(task(failed_attempts=2), LOSS, "retrying", id="a loss is not a failure"),
        pytest.param(task(lost_attempts=2), FAILURE, "retrying", id="a failure is not a loss"),
        pytest.param(task(lost_attempts=2, granted=9), LOSS, "failed", id="grants are of attempts, not losses"),
        pytest.param(task(on_loss="fail"), LOSS, "failed", id="a loss fails"),
        pytest.param(task(on_loss="park"), LOSS, "circuit_open", id="a loss parks"),
        pytest.param(task(on_loss="park", failed_attempts=2), FAILURE, "failed", id="only a loss parks"),
        pytest.param(task(on_loss="park"), FAILURE, "retrying", id="a failure retries where a loss parks"),
        pytest.param(task(lost_attempts=2, on_exhausted="park"), LOSS, "circuit_open", id="losses used up, parks"),
        pytest.param(task(probe=True), FAILURE, "circuit_open", id="the probe failed"),
        pytest.param(task(probe=True), LOSS, "circuit_open", id="the probe was lost"),
        pytest.param(task(probe=True, failed_attempts=2), FAILURE, "failed", id="the probe's last attempt failed"),
    ],
)
def test_how_an_attempt_ends_badly(state: str, facts: SimpleNamespace, payload: SimpleNamespace, target: str) -> None:
    assert TASK.transition(state, "fail", facts, payload).target == target


def test_a_probe_that_may_retry_is_told_from_a_task_that_parks() -> None:
    rows = TASK.table["running"]["fail"]
    assert TASK.transition("running", "fail", task(probe=True), FAILURE) is rows[0]
    assert TASK.transition("running", "fail", task(max_attempts=1, on_exhausted="park"), FAILURE) is rows[2]


def test_a_task_is_queued_only_with_its_dependencies_satisfied() -> None:
    assert TASK.transition("pending", "enqueue", task()).target == "queued"
    with pytest.raises(GuardRejected, match="dependencies satisfied"):
        TASK.transition("pending", "enqueue", task(unmet=1))


def test_a_permit_keeps_a_queued_task_from_being_parked() -> None:
    assert TASK.transition("queued", "trip", task(), SimpleNamespace(permit=False)).target == "circuit_open"
    with pytest.raises(GuardRejected, match="no permit"):
        TASK.transition("queued", "trip", task(), SimpleNamespace(permit=True))


@pytest.mark.parametrize(("machine", "onward"), [(TASK, "queued"), (WORKSTREAM, "ready")])
@pytest.mark.parametrize(
    ("until", "missing", "target"),  # until: when the hold expires, and when the wait is over
    [
        pytest.param((None, None), 1, "held", id="clauses missing"),
        pytest.param((101.0, 200.0), 1, "held", id="clauses missing, also a wait"),
        pytest.param((101.0, None), 0, "onward", id="clauses met, in time"),
        pytest.param((None, 100.0), 0, "onward", id="the wait is over at that very moment"),
        pytest.param((None, 100.5), 0, "waiting", id="the wait is not over"),
        pytest.param((101.0, 100.5), 0, "waiting", id="in time, the wait is not over"),
        pytest.param((100.0, None), 0, None, id="expired at that very moment"),
        pytest.param((99.0, None), 1, None, id="expired, clauses missing"),
        pytest.param((99.0, 200.0), 0, None, id="expired, also a wait"),
    ],
)
def test_an_approval(
    machine: Machine, onward: str, until: tuple[float | None, float | None], missing: int, target: str | None
) -> None:
    facts = SimpleNamespace(hold_until=until[0], wait_until=until[1])
    decision = SimpleNamespace(at=100.0, missing=missing)
    if target is None:
        assert not machine.can_transition("held", "approve", facts, decision)
        with pytest.raises(GuardRejected, match="in time"):
            machine.transition("held", "approve", facts, decision)
    else:
        target = onward if target == "onward" else target
        assert machine.transition("held", "approve", facts, decision).target == target


@pytest.mark.parametrize(("cause", "target"), [("failure", "failed"), ("cancel", "cancelled"), (None, "cancelled")])
def test_a_cancelled_workstream_ends_by_its_cause(cause: str | None, target: str) -> None:
    assert WORKSTREAM.transition("cancelling", "complete", SimpleNamespace(cause=cause)).target == target


def worker(assigned: int, *, capacity: int = 2, paused: bool = False, draining: bool = False) -> SimpleNamespace:
    return SimpleNamespace(assigned=assigned, capacity=capacity, paused=paused, draining=draining)


@pytest.mark.parametrize(
    ("state", "event", "facts", "target"),
    [
        ("busy", "assign", worker(1), "busy"),
        ("busy", "assign", worker(2), None),
        ("busy", "release", worker(2), "busy"),
        ("busy", "release", worker(1), "idle"),
        ("paused", "release", worker(1), "paused"),
        ("paused", "resume", worker(1), "busy"),
        ("paused", "resume", worker(0), "idle"),
        ("paused", "shut_down", worker(1), "draining"),
        ("paused", "shut_down", worker(0), "shutdown"),
        ("draining", "release", worker(2), "draining"),
        ("draining", "release", worker(1), "shutdown"),
        ("unresponsive", "recover", worker(1, draining=True, paused=True), "draining"),
        ("unresponsive", "recover", worker(1, paused=True), "paused"),
        ("unresponsive", "recover", worker(0, paused=True), "paused"),
        ("unresponsive", "recover", worker(1), "busy"),
        ("unresponsive", "recover", worker(0), "idle"),
    ],
)
def test_a_worker_acts_by_what_it_runs(state: str, event: str, facts: SimpleNamespace, target: str | None) -> None:
    if target is None:
        with pytest.raises(GuardRejected, match="capacity left"):
            WORKER.transition(state, event, facts)
    else:
        assert WORKER.transition(state, event, facts).target == target


def test_a_breaker_opens_and_closes_at_its_thresholds() -> None:
    def counts(failures: int = 0, successes: int = 0) -> SimpleNamespace:
        return SimpleNamespace(failures=failures, successes=successes, failure_threshold=3, success_threshold=2)

    opened = [BREAKER.transition("closed", "fail", counts(failures=n)).target for n in range(3)]
    assert opened == ["closed", "closed", "open"]
    closed = [BREAKER.transition("half_open", "succeed", counts(successes=n)).target for n in range(2)]
    assert closed == ["half_open", "closed"]
