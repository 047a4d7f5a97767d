"""The fixed vocabulary that actors act on.

Every state of a lifecycle belongs to one phase. An actor does what its present phase requires, whatever name the
lifecycle gives the state. In the runtime's own lifecycles the state and its phase have the same name.
"""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """The meaning of a state to the actor that is in it."""

    # A task; some of these also a workstream, a job or a worker.
    PENDING = "pending"  # waits for its dependencies
    HELD = "held"  # waits for an approval
    WAITING = "waiting"  # waits for a point in time
    QUEUED = "queued"  # waits for a slot
    RUNNING = "running"  # a body is executing it
    TIMED_OUT = "timed_out"  # the time limit has passed; the body is being stopped and still holds its slot
    VALIDATING = "validating"  # the body has succeeded, its result is being validated
    RECOVERING = "recovering"  # the task's worker does not answer, or has ended
    RETRYING = "retrying"  # waits for the backoff before the next attempt
    CIRCUIT_OPEN = "circuit_open"  # parked: its tool's breaker is open, or its attempts are used up
    HALF_OPEN = "half_open"  # a task: unparked, with the breaker's permit. A breaker: lets one probe through
    CANCELLING = "cancelling"  # is being cancelled gracefully: a grace period first, then its hooks
    DECIDING = "deciding"  # published lifecycles only: a failure that is not final; the next step is being decided
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"

    # A workstream.
    PLANNED = "planned"  # known, its tasks not yet created
    READY = "ready"  # the tasks exist, none has begun
    EXECUTING = "executing"
    PAUSED = "paused"  # also a worker: it finishes its running tasks, and takes no new task

    # A job.
    SUBMITTED = "submitted"  # not yet validated

    # A worker.
    INITIALIZING = "initializing"
    IDLE = "idle"  # registered, runs nothing
    BUSY = "busy"  # runs at least one attempt
    DRAINING = "draining"  # the worker finishes its running tasks, then shuts down
    UNRESPONSIVE = "unresponsive"  # missed its health checks
    SHUTDOWN = "shutdown"  # ended in order
    TERMINATED = "terminated"  # ended by force

    # An approval that a running body asks for.
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"

    # A circuit breaker.
    CLOSED = "closed"  # lets everything through
    OPEN = "open"  # lets nothing through until its cooldown is over
