"""The job: one submission, and the durable handle of an embedding application.

Rules
-----
- It is terminal only when its workstream is, and ends as that did.
- Its id is the caller's, or made by the runtime; a workstream's id is "JOB@RUN", a task's "JOB@RUN/NAME".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from msgspec.structs import replace

from ..machines import JOB, Event, JobState, WorkstreamState
from .entity import Entity
from .kernel import Kernel
from .messages import Approve, Cancel, Ended, Message, Pause, Recover, Reject, Resume, Stop, TurnFailed
from .records import JobRecord, WorkstreamRecord
from .spec import Workstream
from .turn import JobOver
from .workstream import WorkstreamActor


class JobActor(Entity[JobRecord]):
    """One job."""

    __slots__ = ("encoded", "over", "spec", "stream")

    machine = JOB
    receivers: ClassVar[dict[type[Message], str]] = {
        Approve: "on_decision",
        Cancel: "on_cancel",
        Ended: "on_ended",
        Pause: "on_pause",
        Resume: "on_pause",
        Recover: "on_recover",
        Reject: "on_decision",
        TurnFailed: "on_turn_failed",
    }

    def __init__(self, kernel: Kernel, record: JobRecord, spec: Workstream, encoded: bytes) -> None:
        super().__init__(kernel, record)
        self.spec = spec
        self.encoded = encoded
        self.stream: WorkstreamActor | None = None
        self.over = False  # it has ended, durably: its actors are let go once nothing of it runs

    def context(self) -> tuple[str | None, str | None, int | None, str | None]:
        """Its ids for the log."""
        return self.record.id, None, None, None

    def begin(self) -> None:
        """It has been found good: take what it needs, and run."""
        self.fire(Event.VALIDATE)
        self.fire(Event.ALLOCATE, replace(self.record, started_at=self.kernel.at))

    def entered_running(self) -> None:
        """Run its workstream."""
        kernel, record = self.kernel, self.record
        run = WorkstreamRecord(
            key=kernel.number(), id=f"{record.id}@{record.run}", name=self.spec.name, state=WorkstreamState.PLANNED,
            run=record.run, created_at=kernel.at, updated_at=kernel.at, job=record.key, job_id=record.id,
            first_task=kernel.numbers(len(self.spec.tasks)), task_count=len(self.spec.tasks),
        )  # fmt: skip
        self.change(workstream=run.id)
        stream = self.stream = WorkstreamActor(kernel, run, self, self.spec)
        stream.born({"tasks": run.task_count})
        kernel.turn.specs.append((run.key, self.encoded))
        stream.begin()

    def on_cancel(self, message: Cancel) -> None:
        """Cancel it with all that is in it. Raises InvalidTransitionError if that is done already, or it has ended."""
        if not (self.record.state == JobState.CANCELLING and message.force):
            at_once = message.force or not self.knows(Event.CANCEL_GRACEFUL)
            self.fire(Event.CANCEL if at_once else Event.CANCEL_GRACEFUL, reason=message.reason)
        if self.stream is not None:
            self.kernel.send(self.stream, Stop(message.reason, message.force))

    def on_pause(self, message: Pause | Resume) -> None:
        """Pause its workstream, or go on with it. Raises InvalidTransitionError where that is not possible."""
        if self.stream is None:
            self.fire(Event.PAUSE if isinstance(message, Pause) else Event.RESUME)  # which says that it is not
        else:
            self.stream.receive(message)

    def on_decision(self, message: Approve | Reject) -> None:
        """Somebody decides about the hold of its workstream. Raises InvalidTransitionError."""
        if self.stream is None:
            self.fire(Event.APPROVE if isinstance(message, Approve) else Event.REJECT)  # which says that it is not held
        else:
            self.stream.receive(message)

    def on_ended(self, _: Ended) -> None:
        """Its workstream is terminal."""
        assert self.stream is not None  # noqa: S101 - it is who says so
        record = self.stream.record
        if record.state == WorkstreamState.COMPLETED:
            self.fire(Event.SUCCEED)
        elif record.state == WorkstreamState.FAILED:
            self.fire(Event.FAIL, replace(self.record, error=record.error), reason=record.error)
        else:
            if self.record.state != JobState.CANCELLING:
                self.fire(Event.CANCEL, reason=record.reason)
            self.fire(Event.COMPLETE, reason=record.reason)

    def entered_completed(self) -> None:
        """It is done."""
        self._end()

    def entered_failed(self) -> None:
        """It did not work."""
        self._end()

    def entered_cancelled(self) -> None:
        """It was stopped."""
        self._end()

    def _end(self) -> None:
        self.change(finished_at=self.kernel.at)
        self.kernel.effect(JobOver(self))

    def rebuild(self, asked: Mapping[int, int]) -> None:
        """Derive again what is derived. `asked`: the tokens of the questions that are open, by who asked."""
        if self.stream is not None:
            self.stream.rebuild(asked)

    def on_recover(self, message: Recover) -> None:
        """The process that ran it is gone: go on."""
        if self.stream is not None:
            self.kernel.send(self.stream, message)

    def on_turn_failed(self, message: TurnFailed) -> None:
        """It could not be recovered: its workstream fails, and with that the job."""
        if self.stream is not None:
            self.kernel.send(self.stream, message)
