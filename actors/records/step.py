"""The record of one durable step of a task's body (DESIGN section 10).

A step is identified by its name and its number: the number of the call among the calls of that name in its flow. Runs
of a task that continue one another share one flow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import msgspec

from ...machines.keywords import did_you_mean
from .base import MaybeRaw
from .task import TaskRecord, decoded

APPROVAL = "task.approval "
"""The prefix of the names of steps that say that a body gave up the wait for an approval: its name follows."""
CHILD = "child.wait "
"""The prefix of the names of steps that say that a body gave up the wait for a child job: the child's name follows."""
PUBLISH = "task.publish "
"""The prefix of the names of steps by which a body publishes a value: the value is their result."""
RECEIVE = "task.receive "
"""The prefix of the names of steps that receive a message: the name of the message follows."""
SEND = "task.send "
"""The prefix of the names of steps that send a message: the name of the message follows."""
VERSION = "task.version "
"""The prefix of the names of steps that keep the version of a part of the body."""
WAITS, HOLDS = "waits", "holds"
"""How a step uses its tool (`StepRecord.tool_use`), or a worker (`StepRecord.worker_use`)."""
_SHOWN = 20


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A step that has ended, or one that waits for a time. It is written again if it runs again."""

    kind: ClassVar[str] = "step"

    key: int
    flow: int  # key of the task in which the flow began
    task: int  # key of the task in which the step ran last
    task_id: str
    name: str
    number: int = 1
    function: str = ""  # the import path of the function, or the name that its function was given
    call: str = ""  # a digest of the arguments; "" if they cannot be written as JSON
    raw_given: MaybeRaw = msgspec.field(default=None, name="given")  # the arguments, as JSON: [positional, named]
    branch: bool = False  # it was called in a task or thread that the body had started
    attempt: int = 1  # of the task
    round: int = 0  # how many attempts of the task had failed, or were deferred, before: a failure counts in this one
    tries: int = 1  # how often the function was called
    began_at: float  # of the first try (UTC epoch seconds)
    ended_at: float | None = None  # None: it waits
    due_at: float | None = None  # when the wait is over
    cancelled_at: float | None = None  # when its body gave it up, or ended, while it waited or ran
    given_up: str | None = None  # how its body gave it up, so that a replay does the same; None if the runtime did
    worker_id: str | None = None
    raw_result: MaybeRaw = msgspec.field(default=None, name="result")  # as JSON
    error: str | None = None
    error_type: str | None = None  # the path of the error's class
    raw_arguments: MaybeRaw = msgspec.field(default=None, name="arguments")  # of the error, as JSON, if it can be made
    category: str | None = None  # of the error
    traceback: str | None = None
    message: int | None = None  # of a receive: the key of its message; of a send: of the step that it sends again
    tool: str | None = None  # the tool that its function uses
    tool_use: str | None = None  # "waits" for a unit of the tool, or "holds" one since it waited
    engine: str | None = None  # of the worker on which its function runs, unless it runs where its body does
    capabilities: tuple[str, ...] = ()  # that this worker has
    worker_use: str | None = None  # "waits" for such a worker, or "holds" a slot of one: its function runs
    unroutable: str | None = None  # why no worker can run it, while it waits for one
    dropped: bool = False  # a later run begins before this step: the step does not count any more

    @property
    def failed(self) -> bool:
        """Whether the step has ended with an error."""
        return self.error_type is not None

    @property
    def state(self) -> str:
        """One of completed, failed, waiting and cancelled. A waiting step that has an error waits for its next try. A
        cancelled step is one that its body gave up.
        """
        if self.ended_at is None:
            return "waiting" if self.cancelled_at is None else "cancelled"
        return "failed" if self.failed else "completed"

    @property
    def duration_ms(self) -> int | None:
        """From the beginning of its first try to its end; None while it waits."""
        return None if self.ended_at is None else max(round((self.ended_at - self.began_at) * 1000), 0)

    @property
    def result(self) -> Any:
        """The function's return value, decoded at each call."""
        return decoded(self.raw_result)

    @property
    def given(self) -> tuple[list[Any], dict[str, Any]] | None:
        """The arguments of the call: those by position, and those by name. None if there were none, if they cannot be
        written as JSON, or if they are too long to be kept.
        """
        found = decoded(self.raw_given)
        return None if found is None else (found[0], found[1])

    @property
    def awaits(self) -> str | None:
        """The name of the message that the step waits for; None if it waits for none."""
        waits = self.state == "waiting" and self.name.startswith(RECEIVE)
        return self.name.removeprefix(RECEIVE) if waits else None

    @property
    def waits_for_tool(self) -> str | None:
        """The tool that the step waits for; None if it waits for none."""
        return self.tool if self.ended_at is None and self.tool_use == WAITS else None

    @property
    def waits_for_worker(self) -> str | None:
        """The worker that the step waits for, in words: "engine 'process', capabilities 'gpu'"; None if it waits for
        none.
        """
        if self.ended_at is not None or self.worker_use != WAITS:
            return None
        return ", ".join(filter(None, (f"engine {self.engine!r}", _named(self.capabilities))))

    @property
    def label(self) -> str:
        """The step's name for people, with its number if that is not the first."""
        return self.name if self.number == 1 else f"{self.name}#{self.number}"


def of_present(step: StepRecord, task: TaskRecord) -> StepRecord:
    """The step as it is at present: without its use of a tool and of a worker unless its attempt still runs, and
    cancelled if it waited when its task ended.

    The row of a step stays as it was when its attempt is lost, or when its body ends without it (a task of asyncio that
    nothing awaited). task: the task in which its flow goes on; a row that a later run has written stays as it is.
    """
    if task.finished_at is not None and step.state == "waiting" and step.task <= task.key:
        step = msgspec.structs.replace(step, cancelled_at=max(task.finished_at, step.began_at))
    if step.tool_use is None and step.worker_use is None:
        return step
    if task.claimed_at is not None and (step.task, step.attempt) == (task.key, task.attempt):
        return step
    return msgspec.structs.replace(step, tool_use=None, worker_use=None, unroutable=None)


def _named(capabilities: Sequence[str]) -> str:
    return f"capabilities {', '.join(map(repr, capabilities))}" if capabilities else ""


def steps_from(steps: Sequence[StepRecord], label: str, about: str) -> list[StepRecord]:
    """The steps that do not count any more if a flow runs again from the step of that label on: this step, and the
    steps that were first kept after it.

    steps: of the flow, oldest first. label: a name, with "#" and a number unless it is the first of that name. about:
    the flow, for the error. Versions of parts of the body stay, since they show which code made the kept steps; if the
    flow runs again from its first step, they are dropped, too. Raises LookupError if no such step is kept.
    """
    rows = [step for step in steps if not step.name.startswith(VERSION)]
    for place, row in enumerate(rows):
        if label in {row.label, f"{row.name}#{row.number}"}:
            return rows[place:] if place else list(steps)
    labels = [row.label for row in rows]
    listed = ", ".join(labels[:_SHOWN]) + (f", and {len(labels) - _SHOWN:,} more" if len(labels) > _SHOWN else "")
    advice = " ".join(filter(None, (did_you_mean(label, labels), f"kept are: {listed}" if labels else "it keeps none")))
    raise LookupError(f"{about} keeps no step {label!r:.240}; {advice}")


def published_by(steps: Iterable[StepRecord]) -> dict[str, StepRecord]:
    """The steps that published the last value of each name, by these names. steps: of one job, and those of
    one flow oldest first."""
    found: dict[str, StepRecord] = {}
    for step in steps:
        if step.name.startswith(PUBLISH):
            name = step.name.removeprefix(PUBLISH)
            if (former := found.get(name)) is None or former.key <= step.key:
                found[name] = step
    return found
