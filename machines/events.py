"""The events of the runtime's own lifecycles. One thing has the same word in every machine.

The published lifecycles have other words, and map these events to them.
"""

from __future__ import annotations

from enum import StrEnum


class Event(StrEnum):
    """An event that an actor fires at its machine."""

    # Creation and start.
    TASKS_CREATED = "tasks_created"
    VALIDATE = "validate"  # a job's specification has been found good
    ALLOCATE = "allocate"  # a job has its worker slots
    ENQUEUE = "enqueue"
    START = "start"
    SKIP = "skip"

    # Waiting for a person, or for a point in time.
    HOLD = "hold"
    APPROVE = "approve"  # also a decision that is not the last one needed
    REJECT = "reject"
    EXPIRE = "expire"
    WAIT = "wait"
    TIMER_DONE = "timer_done"
    PAUSE = "pause"
    RESUME = "resume"

    # Results.
    SUCCEED = "succeed"
    FAIL = "fail"
    TIME_OUT = "time_out"
    VALIDATION_PASSED = "validation_passed"
    VALIDATION_FAILED = "validation_failed"
    COMPLETE = "complete"  # a cancel has ended
    REQUEUE = "requeue"
    RECOVER = "recover"

    # Stops.
    CANCEL = "cancel"  # at once
    CANCEL_GRACEFUL = "cancel_graceful"  # grace, then hooks, within a deadline
    CANCEL_FORCE = "cancel_force"  # stops an entity that is already cancelling

    # Circuit breakers, and the tasks behind them.
    TRIP = "trip"
    COOL_DOWN = "cool_down"
    RESET = "reset"

    # Workers.
    REGISTER = "register"
    ASSIGN = "assign"
    RELEASE = "release"
    SHUT_DOWN = "shut_down"
    DRAIN_DEADLINE = "drain_deadline"
    HEALTH_CHECK_TIMEOUT = "health_check_timeout"
    TERMINATE = "terminate"
