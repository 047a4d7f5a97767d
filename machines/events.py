"""The events of the runtime's own lifecycles: the same word for the same thing in every machine.

The published lifecycles bring words of their own, and map these onto them.
"""

from __future__ import annotations

from enum import StrEnum


class Event(StrEnum):
    """What is fired at a machine."""

    # Getting going.
    TASKS_CREATED = "tasks_created"
    VALIDATE = "validate"  # a job's specification has been found good
    ALLOCATE = "allocate"  # a job has its worker slots
    ENQUEUE = "enqueue"
    START = "start"
    SKIP = "skip"

    # Waiting for somebody, or for a point in time.
    HOLD = "hold"
    APPROVE = "approve"  # also a decision that is not the last one needed
    REJECT = "reject"
    EXPIRE = "expire"
    WAIT = "wait"
    TIMER_DONE = "timer_done"
    PAUSE = "pause"
    RESUME = "resume"

    # How it went.
    SUCCEED = "succeed"
    FAIL = "fail"
    TIME_OUT = "time_out"
    VALIDATION_PASSED = "validation_passed"
    VALIDATION_FAILED = "validation_failed"
    COMPLETE = "complete"  # what was being cancelled has come to its end
    REQUEUE = "requeue"
    RECOVER = "recover"

    # Being stopped.
    CANCEL = "cancel"  # at once
    CANCEL_GRACEFUL = "cancel_graceful"  # grace, then hooks, within a deadline
    CANCEL_FORCE = "cancel_force"  # the harder stop of what is already being cancelled

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
