"""The verbs of all handles of jobs, tasks, workers, breakers and machines, each written once.

Rules
-----
- A verb checks its arguments and passes them on as plain data, under the names in `runtime/commands/verbs.py`.
- The method `_say` of a handle is the transport. It sends a command into this runtime (`handles/`), through the
  database to the node that runs the target (`remote_jobs.py`), or over HTTP (`client/`). A simulation has the same
  verbs without `await` (`testing/handles.py`).
- So a verb has the same arguments, defaults, checks and promises wherever its target runs.
- Each verb returns when its effect is durable. It raises InvalidTransitionError if the state does not allow it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import anyio
import msgspec

from ...actors.messages.commands import Fire
from ...actors.spec.names import message_name
from ...actors.times import Duration, cooldown_of, limit_of, seconds
from ...actors.user_code import plain_text, shown
from ...actors.users.errors import AskTimeout
from ...actors.users.ref import ASK_TIMEOUT
from ...machines.keywords import called_as
from ..commands.author import name_of, reason_of, words
from ..values import checked

if TYPE_CHECKING:
    from ...actors.records.entities import MachineRecord, WorkerRecord
    from ...actors.records.transition import Transitioned
    from ...actors.spec.model import Hook

J = TypeVar("J")  # the handle of a job
Arguments: TypeAlias = dict[str, Any]
"""The checked arguments of a verb, by name."""
TASK_NAME = "the name of a task"
LARGEST_MESSAGE = 1024 * 1024
"""Bytes of a message's value as JSON in UTF-8 without spaces: the same limit whatever way it comes."""


class MessageTooLarge(ValueError):  # noqa: N818 - it says what is the matter
    """The value of a message is too large."""


@called_as("job")
class JobVerbs(ABC, Generic[J]):
    """The verbs of a job."""

    id: str

    @abstractmethod
    async def _say(self, task: str | None, verb: str, said: Arguments, request_id: str | None) -> J:
        """Send a command to the job or to one of its tasks. Returns the handle of the run that goes on, if any."""

    @property
    def parent(self) -> str | None:
        """The id of the job whose task submitted it; None if none did."""
        return self.id.rsplit("/", 2)[0] if "/" in self.id else None

    async def cancel(
        self,
        reason: str = "cancelled by the user",
        *,
        force: bool = False,
        by: str | None = None,
        request_id: str | None = None,
    ) -> None:
        """Cancel the job and all its tasks. Returns when the cancellation is durable.

        request_id: a command with the same request_id takes effect once (RequestIdReused if another command used it).
        A command that was refused is judged again when it is repeated.
        Raises InvalidTransitionError if the job has ended.
        """
        await self._say(None, "cancel", _forced(reason, force, by), request_id)

    async def pause(
        self, reason: str = "paused by the user", *, by: str | None = None, request_id: str | None = None
    ) -> None:
        """Pause the job: none of its tasks starts until `resume`.

        Running tasks go on, and limits and deadlines still apply. Returns when the pause is durable. request_id: as for
        `cancel`. Raises InvalidTransitionError unless the workstream of the job is executing.
        """
        await self._say(None, "pause", worded(reason, by), request_id)

    async def resume(
        self, reason: str = "resumed by the user", *, by: str | None = None, request_id: str | None = None
    ) -> J:
        """Continue a paused job, or start the next run of a job that failed or was cancelled.

        Returns the handle of the run that goes on, when this is durable. request_id: as for `cancel`. Raises
        InvalidTransitionError for a job in any other state.
        """
        return await self._say(None, "resume", worded(reason, by), request_id)

    async def retry(
        self,
        task: str | None = None,
        reason: str = "retried by the user",
        *,
        from_step: str | None = None,
        by: str | None = None,
        request_id: str | None = None,
    ) -> J:
        """Start the next run of an ended job; completed tasks keep their results.

        task: also run this task again, completed or not, and all tasks that depend on it. If the job has not ended, a
        parked task gets one more attempt instead. from_step: the label of a durable step of that task ("charge",
        "ask_model#3"): this step and those that were kept after it run again, and those before it are kept, also if the
        task had completed. Returns the handle of the next run, when it is durable; this handle stays with its own run.
        request_id: as for `cancel`. Raises InvalidTransitionError if the job has not ended (except for a parked task
        without `from_step`), or if it completed and no task is named; LookupError if it has no such task, or if that
        keeps no such step; ValueError for a step without a task.
        """
        task = None if task is None else plain_text(task, TASK_NAME)
        if task is None and from_step is not None:
            raise ValueError("from_step is a step of one task: name the task, too")
        return await self._say(task, "retry", {**worded(reason, by), **_from(from_step)}, request_id)

    async def skip(
        self,
        task: str,
        reason: str = "skipped by an operator",
        *,
        by: str | None = None,
        request_id: str | None = None,
    ) -> J:
        """Skip a task, as if it had completed: in this run if the task is pending, otherwise in a next run.

        Returns the handle of the run that skips the task, when this is durable. request_id: as for `cancel`. Raises
        InvalidTransitionError if the job has not ended and the task has started, LookupError if it has no such task.
        """
        return await self._say(plain_text(task, TASK_NAME), "skip", worded(reason, by), request_id)

    async def send(
        self,
        name: str,
        value: Any = None,
        *,
        task: str | None = None,
        by: str | None = None,
        request_id: str | None = None,
    ) -> None:
        """Send the job a message, which a body gets by `task.receive(name)`. Returns when the message is durable.

        Messages of one name are received in the order in which they were sent, each once; a message that no body waits
        for yet stays until one does. value: plain JSON data, 1,048,576 bytes at most. task: the only task that may
        receive it (by default the first that asks). request_id: the same message with the same request_id is sent once
        (RequestIdReused for another one). Raises InvalidTransitionError if the job or that task has ended, LookupError
        if it has no such task, NotSerialisable, ValueError for a name or a value that is too long, TooManyMessages.
        """
        task = None if task is None else plain_text(task, TASK_NAME)
        await self._say(task, "send", sent(name, value, by), request_id)

    async def approve(self, *, by: str, reason: str | None = None, request_id: str | None = None) -> None:
        """Approve the hold of the job's workstream. Returns when this is durable. request_id: as for `cancel`.

        Raises DecisionConflict if the hold was decided before, DecisionRefused if `by` may not decide it or if it is
        too late, and InvalidTransitionError if the workstream is not held.
        """
        await self._say(None, "approve", decided(name_of(by), reason), request_id)

    async def reject(self, *, by: str, reason: str | None = None, request_id: str | None = None) -> None:
        """Reject the hold of the job's workstream, which cancels the workstream. Raises the errors of `approve`."""
        await self._say(None, "reject", decided(name_of(by), reason), request_id)


@called_as("job.task(...)")
class TaskVerbs(Generic[J]):
    """The verbs of a task of a job. say: sends a command to the job."""

    def __init__(self, name: str, say: Callable[[str | None, str, Arguments, str | None], Awaitable[J]]) -> None:
        self.name = name
        self._say_to_job = say

    async def _say(self, verb: str, said: Arguments, request_id: str | None) -> J:
        return await self._say_to_job(self.name, verb, said, request_id)

    async def cancel(
        self,
        reason: str = "cancelled by the user",
        *,
        force: bool = False,
        by: str | None = None,
        request_id: str | None = None,
    ) -> None:
        """Cancel the task. Returns when the cancellation is durable.

        request_id: a command with the same request_id takes effect once (RequestIdReused if another command used it).
        A command that was refused is judged again when it is repeated.
        Raises InvalidTransitionError if the state of the task does not allow it.
        """
        await self._say("cancel", _forced(reason, force, by), request_id)

    async def send(self, name: str, value: Any = None, *, by: str | None = None, request_id: str | None = None) -> None:
        """Send a message that only this task may receive, as `send` of a job."""
        await self._say("send", sent(name, value, by), request_id)

    async def approve(
        self, *, by: str, reason: str | None = None, approval: str | None = None, request_id: str | None = None
    ) -> None:
        """Approve the hold of the task, or an approval that its body waits for.

        approval: the name of that approval, if the body waits for several. Raises the errors of `approve` of a job.
        """
        await self._say("approve", {**decided(name_of(by), reason), **asked_for(approval)}, request_id)

    async def reject(
        self, *, by: str, reason: str | None = None, approval: str | None = None, request_id: str | None = None
    ) -> None:
        """Reject the hold of the task, which cancels it, or an approval that its body waits for.

        Raises the errors of `approve`.
        """
        await self._say("reject", {**decided(name_of(by), reason), **asked_for(approval)}, request_id)

    async def reset(
        self, *, by: str | None = None, reason: str = "reset by an operator", request_id: str | None = None
    ) -> None:
        """Give a parked task one more attempt. Returns when this is durable.

        request_id: as for `cancel`. Raises CircuitOpen (with `retry_in`) if the task waits for the breaker of its tool,
        InvalidTransitionError if the task is not parked.
        """
        await self._say("reset", worded(reason, by), request_id)

    async def retry(
        self,
        reason: str = "retried by the user",
        *,
        from_step: str | None = None,
        by: str | None = None,
        request_id: str | None = None,
    ) -> J:
        """Run the task again: calls `retry` of the job with the name of the task."""
        return await self._say("retry", {**worded(reason, by), **_from(from_step)}, request_id)

    async def skip(
        self, reason: str = "skipped by an operator", *, by: str | None = None, request_id: str | None = None
    ) -> J:
        """Skip the task: calls `skip` of the job with the name of the task."""
        return await self._say("skip", worded(reason, by), request_id)


@called_as("worker")
class WorkerVerbs(ABC):
    """The verbs of a worker, and the values of its record."""

    @abstractmethod
    async def _say(self, verb: str, said: Arguments, request_id: str | None) -> object:
        """Send the worker a command."""

    @property
    @abstractmethod
    def record(self) -> WorkerRecord:
        """The present record of the worker's last incarnation."""

    @property
    def engine(self) -> str:
        """The engine that executes the worker's attempts."""
        return self.record.engine

    @property
    def capacity(self) -> int:
        """How many attempts the worker may run at the same time."""
        return self.record.capacity

    @property
    def capabilities(self) -> list[str]:
        """The capabilities that the worker offers to tasks."""
        return list(self.record.capabilities)

    @property
    def assigned(self) -> int:
        """How many attempts are assigned to the worker now."""
        return self.record.assigned

    @property
    def missed(self) -> int:
        """How many health checks in a row the worker has not answered."""
        return self.record.missed

    async def pause(
        self, reason: str = "paused by an operator", *, by: str | None = None, request_id: str | None = None
    ) -> None:
        """Give the worker no new tasks; its running tasks go on. Raises InvalidTransitionError unless it is busy."""
        await self._say("pause", worded(reason, by), request_id)

    async def resume(
        self, reason: str = "resumed by an operator", *, by: str | None = None, request_id: str | None = None
    ) -> None:
        """Give the worker tasks again. Raises InvalidTransitionError unless it is paused."""
        await self._say("resume", worded(reason, by), request_id)

    async def shut_down(
        self,
        reason: str = "shut down by an operator",
        *,
        deadline: Duration | None = None,
        by: str | None = None,
        request_id: str | None = None,
    ) -> None:
        """Let the worker finish its running tasks, then end it. Returns when it takes no new tasks.

        deadline: the duration after which the worker is terminated (default: `HealthChecks.drain_deadline`). Raises
        InvalidTransitionError if the worker's state does not allow it, ValueError if `deadline` is not a duration.
        """
        await self._say("shut_down", {**worded(reason, by), "deadline": _span(deadline)}, request_id)

    async def terminate(
        self, reason: str = "terminated by an operator", *, by: str | None = None, request_id: str | None = None
    ) -> None:
        """End the worker at once. Its running attempts are lost.

        Their tasks run again elsewhere if the rules of the tasks allow this.
        Raises InvalidTransitionError if the worker has ended.
        """
        await self._say("terminate", worded(reason, by), request_id)

    async def start(
        self, reason: str = "started by an operator", *, by: str | None = None, request_id: str | None = None
    ) -> None:
        """Start the worker's next incarnation with the same settings.

        If the worker has not ended, it begins to work, provided its lifecycle has such an event (`fleet`). Otherwise
        this raises InvalidTransitionError.
        """
        await self._say("start", worded(reason, by), request_id)


@called_as("breaker")
class BreakerVerbs(ABC):
    """The verbs of the circuit breaker of a tool."""

    @abstractmethod
    async def _say(self, verb: str, said: Arguments, request_id: str | None) -> object:
        """Send the breaker a command."""

    async def reset(
        self,
        *,
        check: Hook | Sequence[str] | str | None = None,
        by: str | None = None,
        reason: str = "reset by an operator",
        request_id: str | None = None,
    ) -> None:
        """Close the breaker: all tasks that wait for it go on, in their order. Returns when this is durable.

        check: a hook, a command, or a shell text that must pass first. A breaker of another process takes no check: run
        the check here before. request_id: a command with the same request_id takes effect once, and its check does not
        run again (a command whose check did not pass was not sent). Raises CheckFailed if the check does not pass;
        TypeError, SpecificationError or LookupError if the check cannot run; RequestIdReused, RuntimeClosed.
        """
        said = worded(reason, by)
        await self._say("reset", said if check is None else {**said, "check": check}, request_id)

    async def trip(
        self,
        *,
        by: str | None = None,
        reason: str = "tripped by an operator",
        cooldown: Duration | None = None,
        request_id: str | None = None,
    ) -> None:
        """Open the breaker: tasks that need its tool are parked, and running attempts go on.

        cooldown: a duration; by default the breaker's own cooldown. request_id: a command with the same request_id
        takes effect once. Returns when this is durable. Raises ValueError if `cooldown` is not a duration
        above 0, RequestIdReused, RuntimeClosed.
        """
        await self._say(
            "trip", {**worded(reason, by), "cooldown": None if cooldown is None else cooldown_of(cooldown)}, request_id
        )


@called_as("ref")
class MachineVerbs(ABC):
    """The verbs of a `MachineActor`, which has a unique name, and the values of its record."""

    __slots__ = ()  # a program may have a million references
    name: str

    @abstractmethod
    async def _answer(self, message: Fire) -> Transitioned:
        """Fire an event at the machine, and wait for the transition."""

    @abstractmethod
    def _checked(self, message: Fire) -> Fire:
        """Check and normalize the event before it is sent. Raises TypeError, ValueError if it is not a valid event."""

    @property
    @abstractmethod
    def record(self) -> MachineRecord:
        """The machine's present record."""

    @property
    def ended(self) -> bool:
        """Whether the machine is in a terminal state."""
        return self.record.finished_at is not None

    async def ask(self, message: Fire, *, timeout: float | None = ASK_TIMEOUT) -> Transitioned:
        """Fire an event. Returns the transition when it is durable.

        timeout: in seconds; None waits as long as the runtime is open. If an event with the same `request_id` took
        effect, the caller gets the same answer again, also after a restart; an event that was refused is judged again.
        Raises InvalidTransitionError if the event is refused (GuardRejected if a guard refused it; nothing has changed
        then); FireFailed if a guard or `on_event` raises; MachineNotFound while the machine's definition cannot be
        found; RequestIdReused; AskTimeout (the event may still take effect); RuntimeClosed; TypeError and ValueError
        for an invalid timeout.
        """
        message = self._checked(message)
        timeout = limit_of(timeout, "the timeout of an ask")
        with anyio.move_on_after(timeout):
            return await self._answer(message)
        raise AskTimeout(f"asked {self.name} {shown(message)}: no answer within {timeout} s; it may still come")

    async def fire(
        self,
        event: str,
        *,
        reason: str | None = None,
        metadata: dict[str, Any] | None = None,
        facts: dict[str, Any] | None = None,
        request_id: str | None = None,
        by: str | None = None,
    ) -> Transitioned:
        """The same as `ask(Fire(...))`, without a timeout."""
        return await self.ask(Fire(event, reason, metadata, facts, request_id, by), timeout=None)


# -- checks of the arguments -------------------------------------------------------------------------------------------


def worded(reason: object, by: object) -> Arguments:
    """The checked reason and, if given, author of a command. Raises TypeError and ValueError."""
    why, who = words(reason, by)
    return {"reason": why, "by": who}


def decided(by: object, reason: object) -> Arguments:
    """The checked author and reason of a decision; each may be None. Raises TypeError and ValueError."""
    return {"by": None if by is None else name_of(by), "reason": None if reason is None else reason_of(reason)}


def sent(name: object, value: object, by: object) -> Arguments:
    """The checked contents of a message. Raises TypeError, ValueError, and MessageTooLarge."""
    called = message_name(name)
    plain = checked(value, f"the value of message {called!r}")
    size = len(msgspec.json.encode(plain))
    if size > LARGEST_MESSAGE:
        raise MessageTooLarge(
            f"the value of message {called!r} has {size:,} bytes as JSON without spaces, and {LARGEST_MESSAGE:,} are "
            "the most: send the path or the address of a file"
        )
    return {"name": called, "value": plain, "by": None if by is None else name_of(by)}


def asked_for(approval: object) -> Arguments:
    """The checked name of the approval that a body waits for. Raises TypeError if it is not a text."""
    return {"approval": None if approval is None else plain_text(approval, "the name of an approval")}


def _from(step: object) -> Arguments:
    """The checked label of the step from which on a task runs again, if one is given. Raises TypeError."""
    return {} if step is None else {"from_step": plain_text(step, "the label of a step")}


def _forced(reason: object, force: object, by: object) -> Arguments:
    if type(force) is not bool:
        raise TypeError(f"force is True or False, not {shown(force, 60)}")
    return {**worded(reason, by), "force": force}


def _span(span: Duration | None) -> float | None:
    return None if span is None else seconds(span)
