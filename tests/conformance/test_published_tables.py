"""The ten published machines, compared with tables that were copied from their documents.

`EXPECTED` says for each state which events it knows and where they lead. Everything that is not in it must be
refused. Guards, where the document has them, stand in `GUARDED`.
"""

from __future__ import annotations

import pytest

from callboard.machines import GuardRejected, InvalidTransitionError, Machine, Phase
from callboard.machines.lifecycles import LIFECYCLES, PUBLISHED, execution, fleet, guarded, orchestration, pipeline

EXPECTED: dict[str, dict[str, dict[str, str]]] = {
    "pipeline.workstream": {
        "S_PENDING": {"start_execution": "S_RUNNING"},
        "S_RUNNING": {"all_steps_succeed": "S_SUCCESS", "step_fails": "S_FAILED", "abandon": "S_ABANDONED"},
        "S_SUCCESS": {},
        "S_FAILED": {"retry_eligible": "S_RETRYING", "max_retries_exceeded": "S_ABANDONED"},
        "S_RETRYING": {"retry_attempt": "S_RUNNING"},
        "S_ABANDONED": {},
    },
    "pipeline.step": {
        "S_PENDING": {"dependencies_met": "S_RUNNING"},
        "S_RUNNING": {"success": "S_SUCCESS", "failure": "S_FAILED"},
        "S_SUCCESS": {},
        "S_FAILED": {"retry_eligible": "S_RETRYING"},
        "S_RETRYING": {"retry_attempt": "S_RUNNING"},
    },
    "pipeline.circuit_breaker": {
        "CLOSED": {"failure_threshold_exceeded": "OPEN"},
        "OPEN": {"cooldown_expires": "HALF_OPEN", "reset_circuit": "CLOSED"},
        "HALF_OPEN": {"success": "CLOSED", "failure": "OPEN"},
    },
    "orchestration.task": {
        "pending": {"scheduler_assigned": "queued"},
        "queued": {"worker_started": "running"},
        "running": {
            "execution_completed": "validating",
            "execution_failed": "retrying failed",
            "user_cancelled": "cancelled",
        },
        "validating": {"validation_passed": "completed", "validation_failed": "failed"},
        "completed": {},
        "failed": {},
        "retrying": {"retry_delay_elapsed": "queued"},
        "cancelled": {},
    },
    "orchestration.workstream": {
        "planned": {"all_tasks_created": "ready", "user_cancelled": "cancelled"},
        "ready": {"first_task_started": "executing", "user_cancelled": "cancelled"},
        "executing": {
            "all_tasks_completed": "validating",
            "critical_task_failed": "failed",
            "user_cancelled": "cancelled",
        },
        "validating": {"validation_passed": "completed", "validation_failed": "failed"},
        "completed": {},
        "failed": {},
        "cancelled": {},
    },
    "orchestration.worker": {
        "initializing": {"registration_complete": "idle"},
        "idle": {"task_assigned": "busy", "shutdown_requested": "shutdown"},
        "busy": {
            "task_completed": "idle",
            "health_check_timeout": "unresponsive",
            "shutdown_requested": "shutdown",
        },
        "unresponsive": {"health_check_recovered": "idle", "max_timeout_exceeded": "shutdown"},
        "shutdown": {},
    },
    "fleet.worker": {
        "IDLE": {"start_task": "RUNNING", "terminate": "TERMINATED"},
        "RUNNING": {
            "pause": "PAUSED",
            "complete_tasks": "COMPLETED",
            "error_unrecoverable": "FAILED",
            "terminate": "TERMINATED",
        },
        "PAUSED": {"resume": "RUNNING", "terminate": "TERMINATED"},
        "COMPLETED": {"terminate": "TERMINATED"},
        "FAILED": {"terminate": "TERMINATED"},
        "TERMINATED": {},
    },
    "fleet.job": {
        "SUBMITTED": {"validate": "PENDING", "validation_error": "FAILED", "cancel": "CANCELED"},
        "PENDING": {"allocate_resources": "RUNNING", "cancel": "CANCELED"},
        "RUNNING": {"success": "COMPLETED", "error": "FAILED", "cancel": "CANCELED"},
        "COMPLETED": {},
        "FAILED": {},
        "CANCELED": {},
    },
    "guarded.task": {
        "PENDING": {
            "executor_starts": "IN_PROGRESS",
            "dependency_failed": "SKIPPED",
            "optional_step_skipped": "SKIPPED",
            "conditional_not_met": "SKIPPED",
            "user_cancels": "CANCELLED",
        },
        "IN_PROGRESS": {
            "tool_execution_complete": "VALIDATING",
            "tool_execution_error": "FAILED",
            "execution_timeout": "TIMEOUT",
            "user_interrupt": "CANCELLED",
        },
        "VALIDATING": {"tests_pass": "COMPLETED", "tests_fail": "FAILED"},
        "COMPLETED": {},
        "FAILED": {
            "retry_available": "RETRYING",
            "max_retries_reached": "CIRCUIT_OPEN",
            "permanent_error": "CIRCUIT_OPEN",
            "same_error_repeated": "CIRCUIT_OPEN",
        },
        "RETRYING": {"backoff_complete": "IN_PROGRESS", "circuit_opens": "CIRCUIT_OPEN"},
        "CIRCUIT_OPEN": {
            "cooldown_expires": "HALF_OPEN",
            "manual_reset": "PENDING",
            "workstream_cancelled": "CANCELLED",
        },
        "HALF_OPEN": {"test_retry": "IN_PROGRESS", "test_fails": "CIRCUIT_OPEN"},
        "TIMEOUT": {"retry_available": "RETRYING", "no_retries_left": "FAILED"},
        "SKIPPED": {},
        "CANCELLED": {},
    },
    "execution": {
        "pending": {
            "ENQUEUE": "queued",
            "CANCEL": "cancelled",
            "SKIP": "skipped",
            "HOLD": "held",
            "WAIT": "waiting",
        },
        "held": {"APPROVE": "queued", "REJECT": "cancelled", "EXPIRE": "cancelled", "CANCEL": "cancelled"},
        "waiting": {"TIMER_DONE": "queued", "CANCEL": "cancelled"},
        "queued": {"START": "running", "FAIL": "failed", "CANCEL": "cancelled"},
        "running": {
            "SUCCEED": "success",
            "FAIL": "failed",
            "CANCEL": "cancelled",
            "CANCEL_GRACEFUL": "cancelling",
            "RECOVER": "recovering",
        },
        "cancelling": {"CANCEL_FORCE": "cancelled", "COMPLETE": "cancelled", "FAIL": "failed"},
        "recovering": {"START": "running", "FAIL": "failed", "CANCEL": "cancelled"},
        "success": {},
        "failed": {},
        "cancelled": {},
        "skipped": {},
    },
}

MACHINES = {
    "pipeline.workstream": pipeline.WORKSTREAM,
    "pipeline.step": pipeline.STEP,
    "pipeline.circuit_breaker": pipeline.CIRCUIT_BREAKER,
    "orchestration.task": orchestration.TASK,
    "orchestration.workstream": orchestration.WORKSTREAM,
    "orchestration.worker": orchestration.WORKER,
    "fleet.worker": fleet.WORKER,
    "fleet.job": fleet.JOB,
    "guarded.task": guarded.TASK,
    "execution": execution.EXECUTION,
}

# states, and pairs of states between which there is a transition
COUNTS = {
    "pipeline.workstream": (6, 7),
    "pipeline.step": (5, 5),
    "pipeline.circuit_breaker": (3, 4),  # and the operators' reset
    "orchestration.task": (8, 9),
    "orchestration.workstream": (7, 9),
    "orchestration.worker": (5, 8),
    "fleet.worker": (6, 10),  # six rows of the table, one of which is for five states
    "fleet.job": (6, 8),  # six rows of the table, and the two that stand elsewhere
    "guarded.task": (11, 20),  # 18 arrows of the diagram, and the two of the text
    "execution": (11, 22),  # 25 transitions, some of which join the same states
}

INITIAL = {
    "pipeline.workstream": "S_PENDING",
    "pipeline.step": "S_PENDING",
    "pipeline.circuit_breaker": "CLOSED",
    "orchestration.task": "pending",
    "orchestration.workstream": "planned",
    "orchestration.worker": "initializing",
    "fleet.worker": "IDLE",
    "fleet.job": "SUBMITTED",
    "guarded.task": "PENDING",
    "execution": "pending",
}

TERMINAL: dict[str, set[str]] = {
    "pipeline.workstream": {"S_SUCCESS", "S_ABANDONED"},
    "pipeline.step": {"S_SUCCESS"},
    "pipeline.circuit_breaker": set(),
    "orchestration.task": {"completed", "failed", "cancelled"},
    "orchestration.workstream": {"completed", "failed", "cancelled"},
    "orchestration.worker": {"shutdown"},
    "fleet.worker": {"COMPLETED", "FAILED", "TERMINATED"},
    "fleet.job": {"COMPLETED", "FAILED", "CANCELED"},
    "guarded.task": {"COMPLETED", "SKIPPED", "CANCELLED"},
    "execution": {"success", "failed", "cancelled", "skipped"},
}

# state and event as diagrams and errors show them
GUARDED: dict[str, dict[str, str]] = {
    "pipeline.workstream": {
        "S_FAILED retry_eligible": "retry count below max retries",
        "S_FAILED max_retries_exceeded": "retry count at max retries",
    },
    "pipeline.step": {
        "S_PENDING dependencies_met": "dependencies satisfied",
        "S_FAILED retry_eligible": "retry count below max retries",
    },
    "pipeline.circuit_breaker": {
        "CLOSED failure_threshold_exceeded": "failure threshold reached",
        "HALF_OPEN success": "success threshold reached",
    },
    "orchestration.task": {
        "pending scheduler_assigned": "dependencies satisfied",
        "running execution_failed": "retry count below max retries / retry count at max retries",
    },
    "orchestration.worker": {"busy shutdown_requested": "after task complete"},
    "fleet.worker": {"RUNNING complete_tasks": "no pending tasks"},
    "guarded.task": {
        "PENDING executor_starts": "dependencies satisfied",
        "FAILED retry_available": "retries available",
        "FAILED permanent_error": "error is permanent",
        "FAILED same_error_repeated": "error repeated too often",
        "FAILED max_retries_reached": "max attempts reached",
        "TIMEOUT retry_available": "retries available",
        "TIMEOUT no_retries_left": "no retries available",
    },
}

# state and event: the fact that holds the delay or the due time
TIMED: dict[str, dict[str, str]] = {
    "pipeline.workstream": {"S_RETRYING retry_attempt": "retry_at"},
    "pipeline.step": {"S_RETRYING retry_attempt": "retry_at"},
    "pipeline.circuit_breaker": {"OPEN cooldown_expires": "cooldown"},
    "orchestration.task": {"running execution_failed": "timeout", "retrying retry_delay_elapsed": "retry_at"},
    "orchestration.worker": {
        "busy health_check_timeout": "health_check_timeout",
        "unresponsive max_timeout_exceeded": "expire_after",
    },
    "guarded.task": {
        "IN_PROGRESS execution_timeout": "timeout",
        "VALIDATING tests_fail": "validation_timeout",
        "RETRYING backoff_complete": "retry_at",
        "CIRCUIT_OPEN cooldown_expires": "cooldown_period",
    },
    "execution": {
        "recovering FAIL": "recovery_timeout",
        "held EXPIRE": "hold_until",
        "waiting TIMER_DONE": "wait_until",
    },
}

PHASES: dict[str, str] = {
    "pipeline.workstream": "ready executing completed deciding retrying failed",
    "pipeline.step": "pending running completed deciding retrying",
    "pipeline.circuit_breaker": "closed open half_open",
    "orchestration.task": "pending queued running validating completed failed retrying cancelled",
    "orchestration.workstream": "planned ready executing validating completed failed cancelled",
    "orchestration.worker": "initializing idle busy unresponsive shutdown",
    "fleet.worker": "idle busy paused shutdown failed terminated",
    "fleet.job": "submitted pending running completed failed cancelled",
    "guarded.task": (
        "pending running validating completed deciding retrying circuit_open half_open timed_out skipped cancelled"
    ),
    "execution": ("pending queued running recovering cancelling held waiting completed failed cancelled skipped"),
}

EVERY_STATE = [pytest.param(name, state, id=f"{name}-{state}") for name in EXPECTED for state in EXPECTED[name]]


@pytest.mark.parametrize(("name", "state"), EVERY_STATE)
def test_a_state_knows_the_published_events_and_no_other(name: str, state: str) -> None:
    machine, expected = MACHINES[name], EXPECTED[name][state]
    assert machine.valid_events(state) == set(expected)
    for event in {str(row.event) for row in machine.transitions}:
        if event in expected:
            assert " ".join(row.target for row in machine.table[state][event]) == expected[event]
            continue
        assert not machine.can_transition(state, event)
        with pytest.raises(InvalidTransitionError) as refusal:
            machine.transition(state, event)
        assert not isinstance(refusal.value, GuardRejected)
        assert (refusal.value.state, refusal.value.event, refusal.value.allowed) == (state, event, set(expected))


@pytest.mark.parametrize("name", EXPECTED)
class TestDeclaration:
    def test_it_is_sound(self, name: str) -> None:
        assert MACHINES[name].check() == []

    def test_it_goes_by_the_name_of_its_file_and_constant(self, name: str) -> None:
        assert PUBLISHED[name] is MACHINES[name]
        assert MACHINES[name].name == name
        assert set(PUBLISHED) == set(EXPECTED)

    def test_its_states_are_those_published(self, name: str) -> None:
        machine = MACHINES[name]
        assert set(machine.states) == set(EXPECTED[name])
        assert machine.initial == INITIAL[name]
        assert {state for state in machine.states if machine.is_terminal(state)} == TERMINAL[name]

    def test_its_counts_are_those_published(self, name: str) -> None:
        machine = MACHINES[name]
        rows = [row for row in machine.transitions if row not in pipeline.OPERATOR_ROWS]
        assert (len(machine.states), len({(row.source, row.target) for row in rows})) == COUNTS[name]

    def test_its_guards_are_those_published(self, name: str) -> None:
        asked: dict[str, str] = {}
        for state, events in MACHINES[name].table.items():
            for event, rows in events.items():
                if guards := [row.guard_name for row in rows if row.guard_name]:
                    asked[f"{state} {event}"] = " / ".join(guards)
        assert asked == GUARDED.get(name, {})

    def test_its_timed_events(self, name: str) -> None:
        timed = {f"{entry.state} {entry.event}": entry.after for entry in MACHINES[name].timed}
        assert timed == TIMED.get(name, {})

    def test_its_phases(self, name: str) -> None:
        assert " ".join(str(state.phase) for state in MACHINES[name].states.values()) == PHASES[name]

    def test_its_severities(self, name: str) -> None:
        for row in MACHINES[name].transitions:
            assert row.severity == expected_severity(MACHINES[name], row.source, row.event, row.target), row

    def test_nothing_leaves_a_terminal_state_but_by_force(self, name: str) -> None:
        left = {f"{row.source} {row.event}" for row in MACHINES[name].transitions if row.source in TERMINAL[name]}
        assert left == ({"COMPLETED terminate", "FAILED terminate"} if name == "fleet.worker" else set())
        assert all(row.forced == (row.source in TERMINAL[name]) for row in MACHINES[name].transitions)

    def test_each_of_its_events_is_fired_by_something(self, name: str) -> None:
        """Every published event stands for one of ours."""
        machine = MACHINES[name]
        used = {
            event
            for kinds in LIFECYCLES.values()
            for lifecycle in kinds.values()
            if lifecycle.machine is machine
            for events in lifecycle.events.values()
            for event in events
        }
        assert {row.event for row in machine.transitions} <= used


def expected_severity(machine: Machine, source: str, event: str, target: str) -> str:
    """Document 001's, and by analogy with the runtime's own tables."""
    if event == "max_retries_exceeded" or (machine.name == "orchestration.workstream" and target == "failed"):
        return "critical"
    if target in {"S_FAILED", "failed", "FAILED", "CIRCUIT_OPEN", "unresponsive", "OPEN"}:
        return "error"
    if target in {"S_RETRYING", "retrying", "RETRYING", "TIMEOUT"} or event in {"EXPIRE", "max_timeout_exceeded"}:
        return "warning"
    return "info"


def test_the_lifecycles_are_the_five_that_were_published() -> None:
    assert {name: set(kinds) for name, kinds in LIFECYCLES.items()} == {
        "pipeline": {"workstream", "task", "breaker"},
        "orchestration": {"task", "workstream", "worker"},
        "fleet": {"worker", "job"},
        "guarded": {"task"},
        "execution": {"task", "workstream", "job"},
    }
    for name, kinds in LIFECYCLES.items():
        assert all(lifecycle.name == name and lifecycle.kind == kind for kind, lifecycle in kinds.items())


@pytest.mark.parametrize("name", EXPECTED)
def test_the_runtime_has_a_phase_for_each_of_its_states(name: str) -> None:
    for kinds in LIFECYCLES.values():
        for lifecycle in kinds.values():
            assert all(lifecycle.phase(state) in set(Phase) for state in lifecycle.machine.states)
