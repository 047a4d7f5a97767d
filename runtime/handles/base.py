"""The verbs of all handles, each written once: what may be said to jobs, tasks, workers, breakers and machines.

Rules
-----
- A verb checks what it is given, and hands it on as plain data, by the names that `runtime/commands/verbs.py` has for
  it. How that travels is the transport, `_say` of a handle: into this runtime (`handles/`), through the database to the
  node that runs the target (`cluster/remote.py`), or over HTTP (`client/`). A simulation has the same verbs without
  `await` (`testing/handles.py`).
- So a verb has the same arguments, defaults, checks and promises wherever its target runs.
- Each returns when it took effect, durably. What the state does not allow is InvalidTransitionError.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import anyio

from ...actors.messages.commands import Fire
from ...actors.spec.times import Duration, limit_of, seconds
from ...actors.user_code import plain_text, shown
from ...actors.users.errors import AskTimeout
from ...actors.users.ref import ASK_TIMEOUT
from ..commands.author import name_of, reason_of, words

if TYPE_CHECKING:
    from ...actors.records.entities import MachineRecord, WorkerRecord
    from ...actors.records.transition import Transitioned
    from ...actors.spec.model import Hook

J = TypeVar("J")  # the handle of a job
Said: TypeAlias = dict[str, Any]
"""The arguments of a verb, checked, by name."""
TASK_NAME = "the name of a task"


class JobVerbs(ABC, Generic[J]):
    """The verbs of a job."""

    id: str

    @abstractmethod
    async def _say(self, task: str | None, verb: str, said: Said, request_id: str | None) -> J:
        """Give the job, or a task of it, a command. Returns the handle of what goes on, where the verb has that."""

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
        """Cancel it and all its tasks; returns when that took effect.

        request_id: the same again is the same command (RequestIdReused if it was given to another one before).
        What was refused is judged anew.
        Raises InvalidTransitionError if it has ended.
        """
        await self._say(None, "cancel", _forced(reason, force, by), request_id)

    async def pause(
        self, reason: str = "paused by the user", *, by: str | None = None, request_id: str | None = None
    ) -> None:
        """Start nothing more of it until `resume`; what runs goes on, limits and deadlines hold.

        Returns when that is durable. request_id: as for `cancel`. Raises InvalidTransitionError unless its workstream
        is executing.
        """
        await self._say(None, "pause", worded(reason, by), request_id)

    async def resume(
        self, reason: str = "resumed by the user", *, by: str | None = None, request_id: str | None = None
    ) -> J:
        """Go on with it: with a paused one, or, in its next run, with one that failed or was cancelled.

        Returns the handle of what goes on, when that is durable. request_id: as for `cancel`. Raises
        InvalidTransitionError for a job that is neither.
        """
        return await self._say(None, "resume", worded(reason, by), request_id)

    async def retry(
        self,
        task: str | None = None,
        reason: str = "retried by the user",
        *,
        by: str | None = None,
        request_id: str | None = None,
    ) -> J:
        """Run it again, once it has ended: a next run in which completed tasks are carried over with their results.

        task: run this one anew, completed or not, with all that waits for it; of a living job, give it one more attempt
        where it is parked. Returns the handle of the next run, when it is durable; this one stays that of the run it
        was. request_id: as for `cancel`. Raises InvalidTransitionError while it lives (but for a parked task), or if
        it completed and no task is named; LookupError for a task that it does not have.
        """
        task = None if task is None else plain_text(task, TASK_NAME)
        return await self._say(task, "retry", worded(reason, by), request_id)

    async def skip(
        self,
        task: str,
        reason: str = "skipped by an operator",
        *,
        by: str | None = None,
        request_id: str | None = None,
    ) -> J:
        """Do without a task, as if it had completed: in this run while it is pending, else in a next one.

        Returns the handle of the run that does, when it is durable. request_id: as for `cancel`. Raises
        InvalidTransitionError for a task that is under way in a living job, LookupError if there is none of that name.
        """
        return await self._say(plain_text(task, TASK_NAME), "skip", worded(reason, by), request_id)

    async def approve(self, *, by: str, reason: str | None = None, request_id: str | None = None) -> None:
        """Approve the hold of its workstream; returns when that took effect. `request_id` is as for `cancel`.

        Raises DecisionConflict if it was decided before, DecisionRefused if `by` cannot decide it, or it is too late,
        and InvalidTransitionError if it is not held.
        """
        await self._say(None, "approve", decided(name_of(by), reason), request_id)

    async def reject(self, *, by: str, reason: str | None = None, request_id: str | None = None) -> None:
        """Reject the hold of its workstream, which cancels it. Raises as `approve`."""
        await self._say(None, "reject", decided(name_of(by), reason), request_id)


class TaskVerbs(Generic[J]):
    """The verbs of a task of a job. say: how its job is given commands, `JobVerbs._say`."""

    def __init__(self, name: str, say: Callable[[str | None, str, Said, str | None], Awaitable[J]]) -> None:
        self.name = name
        self._say_to_job = say

    async def _say(self, verb: str, said: Said, request_id: str | None) -> J:
        return await self._say_to_job(self.name, verb, said, request_id)

    async def cancel(
        self,
        reason: str = "cancelled by the user",
        *,
        force: bool = False,
        by: str | None = None,
        request_id: str | None = None,
    ) -> None:
        """Cancel it; returns when that took effect.

        request_id: the same again is the same command (RequestIdReused if it was given to another one before).
        What was refused is judged anew.
        Raises InvalidTransitionError if its state does not allow it.
        """
        await self._say("cancel", _forced(reason, force, by), request_id)

    async def approve(
        self, *, by: str, reason: str | None = None, approval: str | None = None, request_id: str | None = None
    ) -> None:
        """Approve its hold, or what its body asks for (by its name, if it asks for more). Raises as for the job."""
        await self._say("approve", {**decided(name_of(by), reason), **asked_for(approval)}, request_id)

    async def reject(
        self, *, by: str, reason: str | None = None, approval: str | None = None, request_id: str | None = None
    ) -> None:
        """Reject its hold, which cancels it, or what its body asks for. Raises as `approve` of the job."""
        await self._say("reject", {**decided(name_of(by), reason), **asked_for(approval)}, request_id)

    async def reset(
        self, *, by: str | None = None, reason: str = "reset by an operator", request_id: str | None = None
    ) -> None:
        """Give it one more attempt, where it is parked for itself; returns when that took effect.

        request_id: as for `cancel`. Raises CircuitOpen (which says `retry_in`) where it waits for its tool,
        InvalidTransitionError where it is not parked.
        """
        await self._say("reset", worded(reason, by), request_id)

    async def retry(
        self, reason: str = "retried by the user", *, by: str | None = None, request_id: str | None = None
    ) -> J:
        """Run it again: `retry` of its job with its name."""
        return await self._say("retry", worded(reason, by), request_id)

    async def skip(
        self, reason: str = "skipped by an operator", *, by: str | None = None, request_id: str | None = None
    ) -> J:
        """Do without it: `skip` of its job with its name."""
        return await self._say("skip", worded(reason, by), request_id)


class WorkerVerbs(ABC):
    """The verbs of a worker, and what its record shows."""

    @abstractmethod
    async def _say(self, verb: str, said: Said, request_id: str | None) -> object:
        """Give it a command."""

    @property
    @abstractmethod
    def record(self) -> WorkerRecord:
        """The present record of its last incarnation."""

    @property
    def engine(self) -> str:
        """What it executes on."""
        return self.record.engine

    @property
    def capacity(self) -> int:
        """How many attempts it may run at the same time."""
        return self.record.capacity

    @property
    def capabilities(self) -> list[str]:
        """What it can do."""
        return list(self.record.capabilities)

    @property
    def assigned(self) -> int:
        """How many attempts it runs."""
        return self.record.assigned

    @property
    def missed(self) -> int:
        """How many health checks in a row it has not answered."""
        return self.record.missed

    async def pause(
        self, reason: str = "paused by an operator", *, by: str | None = None, request_id: str | None = None
    ) -> None:
        """Have it take nothing new; what it runs goes on. Raises InvalidTransitionError unless it is busy."""
        await self._say("pause", worded(reason, by), request_id)

    async def resume(
        self, reason: str = "resumed by an operator", *, by: str | None = None, request_id: str | None = None
    ) -> None:
        """Have it take tasks again. Raises InvalidTransitionError unless it is paused."""
        await self._say("resume", worded(reason, by), request_id)

    async def shut_down(
        self,
        reason: str = "shut down by an operator",
        *,
        deadline: Duration | None = None,
        by: str | None = None,
        request_id: str | None = None,
    ) -> None:
        """Have it finish what it runs, and end. Returns when it takes nothing new.

        deadline: a duration after which it is terminated (`HealthChecks.drain_deadline` unless given). Raises
        InvalidTransitionError where its state does not allow it, ValueError for what is no duration.
        """
        await self._say("shut_down", {**worded(reason, by), "deadline": _span(deadline)}, request_id)

    async def terminate(
        self, reason: str = "terminated by an operator", *, by: str | None = None, request_id: str | None = None
    ) -> None:
        """End it at once: what it runs is lost, and runs again elsewhere as far as its tasks allow.

        Raises InvalidTransitionError if it has ended.
        """
        await self._say("terminate", worded(reason, by), request_id)

    async def start(
        self, reason: str = "started by an operator", *, by: str | None = None, request_id: str | None = None
    ) -> None:
        """Start its next incarnation, as it was; one that lives begins to work, where its lifecycle has that (`fleet`).

        Raises InvalidTransitionError if it lives, and its lifecycle has not.
        """
        await self._say("start", worded(reason, by), request_id)


class BreakerVerbs(ABC):
    """The verbs of the circuit breaker of a tool."""

    @abstractmethod
    async def _say(self, verb: str, said: Said, request_id: str | None) -> object:
        """Give it a command."""

    async def reset(
        self,
        *,
        check: Hook | Sequence[str] | str | None = None,
        by: str | None = None,
        reason: str = "reset by an operator",
        request_id: str | None = None,
    ) -> None:
        """Close it: all tasks that wait for it go on, in their order. Returns when that is durable.

        check: a hook, a command, or a text for a shell, which must pass first; not of a breaker of another process: run
        it here before. request_id: the same again is the same command, and its check is not run again (one whose check
        did not pass was not given). Raises CheckFailed where the check does not pass, TypeError, SpecificationError or
        LookupError for one that cannot be run, RequestIdReused, RuntimeClosed.
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
        """Open it, for its cooldown or (a duration) for as long as is said: its tasks are parked, what runs goes on.

        request_id: the same again is the same command. Returns when that is durable. Raises ValueError for what is no
        duration, RequestIdReused, RuntimeClosed.
        """
        await self._say("trip", {**worded(reason, by), "cooldown": _span(cooldown)}, request_id)


class MachineVerbs(ABC):
    """The verbs of a `MachineActor`, by whose name it is known, and what its record shows."""

    name: str

    @abstractmethod
    async def _answer(self, message: Fire) -> Transitioned:
        """Fire an event at it, and wait for what it does."""

    @abstractmethod
    def _checked(self, message: Fire) -> Fire:
        """The event as it is sent. Raises TypeError, ValueError for what cannot be one."""

    @property
    @abstractmethod
    def record(self) -> MachineRecord:
        """Its present record."""

    @property
    def ended(self) -> bool:
        """Whether it is in a terminal state."""
        return self.record.finished_at is not None

    async def ask(self, message: Fire, *, timeout: float | None = ASK_TIMEOUT) -> Transitioned:
        """Fire an event; returns the transition when it is durable.

        timeout: in seconds; None waits as long as the runtime is open. With a `request_id`, what took effect has the
        same answer again, also after a restart, and what was refused is judged anew. Raises InvalidTransitionError
        (GuardRejected where it was a guard) and nothing has changed; FireFailed where a guard or `on_event` raises;
        MachineNotFound while its machine is not there; RequestIdReused, AskTimeout (it may still take effect),
        RuntimeClosed; TypeError and ValueError for what is no timeout.
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


# -- what they check ---------------------------------------------------------------------------------------------------


def worded(reason: object, by: object) -> Said:
    """Why, and who says so if anybody does. Raises TypeError and ValueError."""
    why, who = words(reason, by)
    return {"reason": why, "by": who}


def decided(by: object, reason: object) -> Said:
    """By whom something is decided, and why, as far as it is said. Raises TypeError and ValueError."""
    return {"by": None if by is None else name_of(by), "reason": None if reason is None else reason_of(reason)}


def asked_for(approval: object) -> Said:
    """Which of the approvals that a body asks for is meant. Raises TypeError for what is no text."""
    return {"approval": None if approval is None else plain_text(approval, "the name of an approval")}


def _forced(reason: object, force: object, by: object) -> Said:
    if type(force) is not bool:
        raise TypeError(f"force is True or False, not {shown(force, 60)}")
    return {**worded(reason, by), "force": force}


def _span(span: Duration | None) -> float | None:
    return None if span is None else seconds(span)
