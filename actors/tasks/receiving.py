"""Messages to tasks: a body receives them as steps of its flow (DESIGN section 10).

Rules
- The message and the step that keeps its value are persisted in one turn.
- A body that finds no message persists a waiting step, so that its deadline is the same after a restart. Then the body
  waits until it is notified that there may be a message, and asks again.
- A receive that has timed out (its `step` has ended) still gets a message that has come meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...machines import InvalidTransitionError
from ..kernel.transaction import Answer
from ..messages.commands import AwaitMessage, Send, TakeMessage
from . import steps

if TYPE_CHECKING:
    from .task import TaskActor


def on_send(task: TaskActor, message: Send) -> None:
    """Put a message to this task only into its job's mailbox. Raises InvalidTransitionError if the task has ended."""
    if task.ended:
        raise InvalidTransitionError(task.machine.name, str(task.record.state), "send", frozenset())
    job = task.stream.job
    job.mailbox.put(job.record, task.record.name, message)


def take(task: TaskActor, message: TakeMessage) -> None:
    """Receive a message for the running body, or persist its step, which waits or has ended without a message."""
    kernel, step = task.kernel, message.step
    if not steps.may_keep(task, message.token):
        kernel.effect(Answer(message.reply, None, steps.over()))
        return
    key = step.key or kernel.number()
    found = task.stream.job.mailbox.take(message.name, task.record, key)
    if found is not None:
        step = replace(
            step, key=key, tries=1, ended_at=kernel.at, due_at=None, message=found.key, raw_result=found.raw_value,
            error=None, error_type=None, raw_arguments=None, category=None, traceback=None,
        )  # fmt: skip
    if found is not None or message.keep:
        step = steps.keep(task, replace(step, key=key))
    kernel.effect(Answer(message.reply, step))


def await_one(task: TaskActor, message: AwaitMessage) -> None:
    """Answer when there may be a message for the running body."""
    task.stream.job.mailbox.wait(message.name, task.record.name, message.number, message.reply)
