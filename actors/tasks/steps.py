"""Durable steps of a task's body: persisted for its present attempt only (DESIGN section 10).

Rules
- A step is accepted while the attempt may still report something: also while its body is being stopped, since the
  step's function has already run. A step of an earlier attempt is refused.
- The first step of a task gives the task its flow: the key under which its steps are found by later attempts and runs.
- A step counts as a heartbeat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..kernel.transaction import Answer
from ..messages.commands import KeepStep
from ..messages.errors import AttemptOver
from .attempt_clock import ALIVE
from .attempts import BEATS

if TYPE_CHECKING:
    from ..messages.commands import RunStep, UseTool
    from ..records.step import StepRecord
    from .task import TaskActor

_OPEN = ALIVE | BEATS


def keep_step(task: TaskActor, message: KeepStep) -> None:
    """Persist a step of the running body, and answer with its record."""
    kernel = task.kernel
    step = message.step
    if step.cancelled_at is not None and step.given_up is None and kernel.drain_began is not None:
        kernel.effect(Answer(message.reply, step))  # the step keeps waiting: the drain has stopped its body
    elif may_keep(task, message.token):
        kernel.effect(Answer(message.reply, keep(task, message.step)))
    else:
        kernel.effect(Answer(message.reply, None, over()))


def may_keep(task: TaskActor, token: int) -> bool:
    """Whether the attempt under that token may still report steps."""
    record = task.record
    return token == record.token and record.state in _OPEN and record.claimed_at is not None


def keep(task: TaskActor, step: StepRecord) -> StepRecord:
    """Persist a step of the present attempt. Returns its record with the facts of the task."""
    record, kernel = task.record, task.kernel
    if not record.flow:
        task.change(flow=record.key)
        record = task.record
    row = replace(
        step, key=step.key or kernel.number(), flow=record.flow, task=record.key, task_id=record.id,
        attempt=record.attempt, round=record.failed_attempts + record.deferrals,
        worker_id=record.worker_id if step.engine is None else step.worker_id,
    )  # fmt: skip
    kernel.turn.extra.append(row)
    if row.ended_at is not None:
        kernel.count_step(row.name, row.state)
    task.clock.beat_at = kernel.port.monotonic()
    return row


def use_tool(task: TaskActor, message: UseTool) -> None:
    """Give a step a unit of its tool. A step needs no unit of the tool that its attempt already holds."""
    if not may_keep(task, message.token):
        task.kernel.effect(Answer(message.reply, None, over()))
    elif message.tool == task.spec.tool:
        task.kernel.effect(Answer(message.reply, message.step))
    else:
        task.stream.workforce.scheduler.use_tool(task, message)


def run_step(task: TaskActor, message: RunStep) -> None:
    """Run a step on a worker."""
    if may_keep(task, message.token):
        task.stream.workforce.scheduler.run_step(task, message)
    else:
        task.kernel.effect(Answer(message.reply, None, over()))


def over() -> AttemptOver:
    """The error for a step of an attempt that has ended."""
    return AttemptOver("this attempt has ended: its step was not kept, and runs again in the next attempt")
