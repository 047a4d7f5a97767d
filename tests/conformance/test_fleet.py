"""Document 002 word by word: its tables, its forbidden transitions, and its unit tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from callboard.machines import GuardRejected
from callboard.machines.lifecycles.fleet import (
    JOB,
    WORKER,
    JobState,
    JobStateMachine,
    WorkerState,
    WorkerStateMachine,
)

WORKER_TABLE = """
IDLE RUNNING start_task
RUNNING PAUSED pause
PAUSED RUNNING resume
RUNNING COMPLETED complete_tasks
RUNNING FAILED error_unrecoverable
IDLE TERMINATED terminate
RUNNING TERMINATED terminate
PAUSED TERMINATED terminate
COMPLETED TERMINATED terminate
FAILED TERMINATED terminate
"""
JOB_TABLE = """
SUBMITTED PENDING validate
PENDING RUNNING allocate_resources
PENDING CANCELED cancel
RUNNING COMPLETED success
RUNNING FAILED error
RUNNING CANCELED cancel
SUBMITTED CANCELED cancel
SUBMITTED FAILED validation_error
"""
FORBIDDEN_TO_WORKERS = [
    ("IDLE", "PAUSED"),
    ("IDLE", "COMPLETED"),
    ("COMPLETED", "RUNNING"),
    ("COMPLETED", "PAUSED"),
    ("FAILED", "RUNNING"),
    *(("TERMINATED", str(state)) for state in WorkerState),
    ("PAUSED", "COMPLETED"),  # drawn, but not in the table
]
FORBIDDEN_TO_JOBS = [
    ("SUBMITTED", "RUNNING"),
    *(("COMPLETED", str(state)) for state in JobState),
    ("FAILED", "RUNNING"),
    ("CANCELED", "RUNNING"),
]


def lines(machine: object) -> list[str]:
    rows = WORKER.transitions if machine is WORKER else JOB.transitions
    return sorted(" ".join((row.source, row.target, row.event)) for row in rows)


def test_the_rows_of_its_tables_are_the_rows() -> None:
    assert lines(WORKER) == sorted(WORKER_TABLE.split("\n")[1:-1])
    assert lines(JOB) == sorted(JOB_TABLE.split("\n")[1:-1])


@pytest.mark.parametrize("line", WORKER_TABLE.split("\n")[1:-1])
def test_each_transition_of_a_worker_is_valid(line: str) -> None:
    source, target, event = line.split()
    assert WorkerStateMachine.is_valid_transition(WorkerState(source), WorkerState(target))
    assert WorkerStateMachine.validate_transition(WorkerState(source), WorkerState(target)) is None
    assert WORKER.transition(source, event, SimpleNamespace(assigned=0)).target == target


@pytest.mark.parametrize("line", JOB_TABLE.split("\n")[1:-1])
def test_each_transition_of_a_job_is_valid(line: str) -> None:
    source, target, event = line.split()
    assert JobStateMachine.is_valid_transition(JobState(source), JobState(target))
    assert JobStateMachine.validate_transition(JobState(source), JobState(target)) is None
    assert JOB.transition(source, event).target == target


@pytest.mark.parametrize(("source", "target"), FORBIDDEN_TO_WORKERS)
def test_what_is_forbidden_to_a_worker_is_refused_in_words(source: str, target: str) -> None:
    assert not WorkerStateMachine.is_valid_transition(WorkerState(source), WorkerState(target))
    assert WorkerStateMachine.validate_transition(WorkerState(source), WorkerState(target))


@pytest.mark.parametrize(("source", "target"), FORBIDDEN_TO_JOBS)
def test_what_is_forbidden_to_a_job_is_refused_in_words(source: str, target: str) -> None:
    assert not JobStateMachine.is_valid_transition(JobState(source), JobState(target))
    assert JobStateMachine.validate_transition(JobState(source), JobState(target))


class TestItsOwnUnitTests:
    """Section 6.1."""

    def test_valid_transition_idle_to_running(self) -> None:
        assert WorkerStateMachine.is_valid_transition(WorkerState.IDLE, WorkerState.RUNNING)

    def test_invalid_transition_idle_to_paused(self) -> None:
        assert not WorkerStateMachine.is_valid_transition(WorkerState.IDLE, WorkerState.PAUSED)

    def test_terminal_state_completed(self) -> None:
        assert WorkerStateMachine.is_terminal_state(WorkerState.COMPLETED)
        assert not WorkerStateMachine.is_valid_transition(WorkerState.COMPLETED, WorkerState.RUNNING)

    def test_force_terminate_from_any_state(self) -> None:
        for state in WorkerState:
            if state != WorkerState.TERMINATED:
                assert WorkerStateMachine.is_valid_transition(state, WorkerState.TERMINATED)


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        (WorkerState.PAUSED, WorkerState.PAUSED, "Worker already in PAUSED state"),
        (
            WorkerState.COMPLETED,
            WorkerState.RUNNING,
            "Cannot transition from terminal state COMPLETED to RUNNING. Allowed: TERMINATED.",
        ),
        (
            WorkerState.IDLE,
            WorkerState.PAUSED,
            "Invalid state transition: IDLE → PAUSED. Allowed from IDLE: RUNNING, TERMINATED.",
        ),
    ],
)
def test_the_message_names_what_is_allowed_to_a_worker(source: WorkerState, target: WorkerState, words: str) -> None:
    assert WorkerStateMachine.validate_transition(source, target) == words


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        (JobState.RUNNING, JobState.RUNNING, "Job already in RUNNING state"),
        (
            JobState.FAILED,
            JobState.RUNNING,
            "Cannot transition from terminal state FAILED to RUNNING. Allowed: none. Create a new job instead.",
        ),
        (
            JobState.SUBMITTED,
            JobState.RUNNING,
            "Invalid state transition: SUBMITTED → RUNNING. Allowed from SUBMITTED: CANCELED, FAILED, PENDING.",
        ),
    ],
)
def test_the_message_names_what_is_allowed_to_a_job(source: JobState, target: JobState, words: str) -> None:
    assert JobStateMachine.validate_transition(source, target) == words


@pytest.mark.parametrize("pair", [("NOPE", "IDLE"), ("IDLE", "NOPE"), ("NOPE", "NOPE"), ("idle", "RUNNING")])
def test_what_is_no_state_is_told_as_such_and_as_no_invalid_pair(pair: tuple[Any, Any]) -> None:
    unknown = next(state for state in pair if state not in set(WorkerState))
    text = f"Worker has no state {unknown!r}. Its states: IDLE, RUNNING, PAUSED, COMPLETED, FAILED, TERMINATED."
    assert WorkerStateMachine.validate_transition(*pair) == text
    for ask in (WorkerStateMachine.is_valid_transition, WorkerStateMachine.go):
        with pytest.raises(ValueError, match="Worker has no state") as refusal:
            ask(*pair)
        assert str(refusal.value) == text


def test_the_terminal_states_of_both() -> None:
    assert {state for state in WorkerState if WorkerStateMachine.is_terminal_state(state)} == {
        "COMPLETED",
        "FAILED",
        "TERMINATED",
    }
    assert {state for state in JobState if JobStateMachine.is_terminal_state(state)} == {
        "COMPLETED",
        "FAILED",
        "CANCELED",
    }


def test_a_worker_with_pending_tasks_is_not_complete() -> None:
    with pytest.raises(GuardRejected, match="no pending tasks"):
        WORKER.transition("RUNNING", "complete_tasks", SimpleNamespace(assigned=1))
