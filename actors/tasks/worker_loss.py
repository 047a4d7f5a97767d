"""What a task does about troubles that are not its own: a worker that does not answer, resources that ran out, an
error that passes.

Silence
-------
- The attempt stays the same, with its number, its token and its slot, until it is known to be lost.
- A worker that comes back and runs it still lets it go on; so does a result that it brings along. Its limits go on from
  where they were, and the time between heartbeats begins anew.
- Silence ends in a loss after the recovery timeout, a known death at once: each attempt is lost once, however often it
  is found dead. A late result of a lost attempt is refused.

Errors that pass (seed 002, "error recovery")
---------------------------------------------
- A transient error (a broken connection, a timeout of the network) of a task that says nothing about retries has three
  attempts in all. DESIGN section 4 lets a task retry failures only when it says so; but a task runs again after a loss
  unless it says `on_loss`, so one that says neither may run twice, and a connection that breaks is no more its fault
  than a worker that dies. `retry=Retry(max_attempts=1)` or `on_loss="fail"` keeps it to one. The further attempts are
  `granted` one by one, so that another error of the same task is final. Where it has a tool, the tool's breaker and its
  `retry` decide.
- Resources that ran out (memory, disk, descriptors) in a body are the worker's trouble: it pauses, and the attempt
  counts as a loss and not as a failure, so that a task which eats up everything is not run for ever. Other workers may
  have no more of them: so the task rests as long, too, and twice as long after each further loss. One that must not run
  twice (`on_loss`) fails by it as by any error. Where there is too little to start it, its start waits.
"""

from __future__ import annotations

from msgspec.structs import replace

from ...machines import Event, TaskState
from ..messages.inputs import Back, CallEnded, Drain, Exhausted, Silent
from ..spec.limits import PASSING_ATTEMPTS
from .attempts import EXHAUSTED, RUNNING, START
from .checks import SAID
from .slot_lending import LendingTask

RECOVERING = TaskState.RECOVERING


class TroubledTask(LendingTask):
    """A task as far as such troubles go; `TaskActor` is the whole of it."""

    __slots__ = ()

    def on_silent(self, message: Silent) -> None:
        """Its worker does not answer."""
        if self.record.state == RUNNING and self.record.token == message.token:
            due = self.kernel.at + self.limits.recovery_timeout
            self.fire(Event.RECOVER, reason=message.reason, due_at=due)

    def on_back(self, message: Back) -> None:
        """Its worker answers again, and runs it still."""
        if self.record.state == RECOVERING and self.record.token == message.token:
            self.go_on("its worker answers again")

    def go_on(self, reason: str) -> None:
        """The attempt was never gone."""
        self.beat_at = self.kernel.port.monotonic()
        due, limit = self.due_by_clock(self.beat_at)
        self.expected = self.beat_at + (0.0 if due is None else due - self.kernel.at)
        self.fire(START, replace(self.record, limit=limit), reason=reason, due_at=due)

    def heard_of(self, ended: CallEnded) -> None:
        """What came of the attempt: the worker brings it along, or is known to be dead."""
        if ended.status in SAID:
            self.go_on("its worker brought what came of it")
            self._body_ended(ended)
        else:
            self._failed(ended, end="lost")

    def due_recovering(self) -> None:
        """Its worker did not come back; unless it was the runtime itself that stood still."""
        kernel, record = self.kernel, self.record
        health = kernel.supervisor.health
        if health.stood_still(kernel.at - (record.due_at or kernel.at)):
            self.wait_until(kernel.at + health.grace)
            return
        self._lost(f"worker {record.worker_id} did not answer for {self.limits.recovery_timeout:g} s more")
        kernel.stop_call(record.token, force=True)  # its slot is free when the engine has given it up

    def on_drain(self, message: Drain) -> None:
        """The runtime stops: nobody waits for a worker that does not answer."""
        if message.stop and self.record.state == RECOVERING:
            self.kernel.stop_call(self.record.token, force=True)
        else:
            super().on_drain(message)

    def passing(self, ended: CallEnded) -> str:
        """An error that may pass, or resources that ran out: it may run once more. Returns how the attempt ended."""
        record, limits = self.record, self.limits
        if ended.category != "resources":
            if limits.tries_passing and record.failed_attempts + 1 < PASSING_ATTEMPTS and not ended.permanent:
                self.change(granted=record.granted + 1)
            return "failed"
        worker = self.kernel.workers.get(record.worker or 0)
        if worker is not None:
            self.kernel.send(worker, Exhausted(ended.error or ended.status))
        return EXHAUSTED if limits.allowed.on_loss == "rerun" else "failed"
