"""Pausing a workstream, and going on with it.

Rules
-----
- Pausing stops enqueueing and claiming, and nothing else: attempts that run end and are counted, timers run (a backoff
  that is over queues its task, limits are reached), a critical failure or a cancel acts at once.
- A task whose condition was being asked when the pause came is asked again after the resume: what it was about may
  have changed.
- A task that waits for its turn to probe its tool gives the permit back: the tool must not wait for a pause.
- With all its tasks over it waits for the resume, and validates then.
- One whose tasks all wait still, for people or a time or a worker, is paused as well; after the resume it is ready, as
  it was.
- That it is paused is its state, nothing more: after a restart it is paused as before.
"""

from __future__ import annotations

from ...machines import Event, TaskState
from ..messages.commands import Pause, Resume
from ..messages.inputs import READY
from .stopping import StoppableStream


class PausableStream(StoppableStream):
    """A workstream as far as its pausing and stopping go; `WorkstreamActor` is the whole of it."""

    __slots__ = ()

    def on_pause(self, message: Pause) -> None:
        """Start nothing more. Raises InvalidTransitionError where it would start nothing anyway."""
        self.fire(Event.PAUSE, reason=message.reason, metadata=_by(message))

    def entered_paused(self) -> None:
        """Have the scheduler pass its tasks over."""
        self.kernel.scheduler.pause(self.record.key)
        for task in self.tasks:
            if task.record.state == TaskState.HALF_OPEN:
                task.step_back("its workstream is paused")

    def on_resume(self, message: Resume) -> None:
        """Go on. Raises InvalidTransitionError where it is not paused."""
        self.fire(Event.RESUME, reason=message.reason, metadata=_by(message))
        self.claim_again()
        if not self.open:
            self._all_ended()
            return
        for task in self.tasks:
            if task.record.ready and task.record.state == TaskState.PENDING and not task.last_call:
                self.kernel.send(task, READY)
        self.cursor = 0
        self._start_some()

    def _start_some(self) -> None:
        """Start the next of the tasks that wait for nothing."""
        raise NotImplementedError


def _by(message: Pause | Resume) -> dict[str, str] | None:
    return None if message.by is None else {"by": message.by}
