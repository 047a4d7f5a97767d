"""The outcome of an ended job, and the error of a job that did not complete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar, overload

import msgspec

from ...actors.records.entities import JobRecord
from ...actors.records.task import AttemptRecord, TaskRecord, decoded
from ...actors.records.transition import Transitioned
from ...actors.spec.model import Task

T = TypeVar("T")

NO_ATTEMPTS = frozenset({"condition_broken", "validation_failed"})
"""Types of task errors that belong to no attempt: the task's transition has the error."""
_EXPLAINED = 5  # tasks whose tracebacks an outcome has
_SHOWN = 20  # names of tasks, at most, in an error


class JobFailed(Exception):  # noqa: N818 - the published name
    """A job did not complete. `outcome` has the last record of every task.

    Its notes are the tracebacks of the functions that failed the job, so that Python prints them with the error.
    """

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"job {outcome.job_id!r} {outcome.state}: {outcome.error or 'no reason was given'}")
        self.outcome = outcome
        for name, text in outcome.tracebacks.items():
            kind = "task" if name in outcome.tasks else "workstream"
            self.add_note(f"{kind} {name!r}:\n{text.rstrip()}")


class Outcome(msgspec.Struct, frozen=True):
    """How a job ended. By task name, `results` has the results of completed tasks and `tasks` every last record.

    state: completed, failed or cancelled; shown: the same state in the words of the job's lifecycle. tracebacks: the
    tracebacks, as text, of the bodies, conditions and checks that failed the job, by task name; for a check of the
    whole workstream by the workstream's id, such as "JOB@1". At most five, and none once the runtime is closed.
    """

    job_id: str
    state: str
    error: str | None
    results: Mapping[str, Any]
    tasks: Mapping[str, TaskRecord]
    shown: str = ""
    tracebacks: Mapping[str, str] = {}

    @property
    def ok(self) -> bool:
        """Whether the job completed."""
        return self.state == "completed"

    @overload
    def result(self, task: Task[Coroutine[Any, Any, T]]) -> T: ...
    @overload
    def result(self, task: Task[T]) -> T: ...
    @overload
    def result(self, task: str) -> Any: ...
    def result(self, task: Task | str) -> Any:
        """The result of a task, converted to the return type of its function; JSON keeps it, so a tuple is a list.

        Raises LookupError if the task has not completed or does not exist.
        """
        name = task if isinstance(task, str) else task.name
        if name not in self.results:
            why = f"it is {self.tasks[name].state}" if name in self.tasks else f"the job has {_some(list(self.tasks))}"
            raise LookupError(f"task {name!r:.80} of job {self.job_id!r} has no result: {why}")
        return self.results[name]

    def results_as(self, kind: type[T]) -> T:
        """All results as one value of a type: a TypedDict, dataclass or msgspec Struct with a field per task.

        A result without a field is ignored or refused, as the type defines. Raises msgspec.ValidationError if a result
        does not match the type, for example if a task has no result.
        """
        return msgspec.convert(self.results, kind)

    def raise_for_state(self) -> Outcome:
        """Return the outcome if the job completed. Raises JobFailed otherwise."""
        if not self.ok:
            raise JobFailed(self)
        return self


def outcome_of(job: JobRecord, tasks: list[TaskRecord]) -> Outcome:
    """The outcome of an ended job, from its records."""
    results = {task.name: decoded(task.raw_result) for task in tasks if task.state == "completed"}
    return Outcome(
        job.id, str(job.state), job.error or job.reason, results, {task.name: task for task in tasks}, job.shown
    )


async def with_tracebacks(
    outcome: Outcome,
    workstream: str | None,
    attempts: Callable[[str], Awaitable[Sequence[AttemptRecord]]],
    transitions: Callable[[str], Awaitable[Sequence[Transitioned]]],
) -> Outcome:
    """The outcome, with the tracebacks of the functions that failed the job, if it does not have them yet.

    workstream: the id of the run. attempts: returns the attempts of a task, by its name; transitions: returns the
    transitions of an entity, by its id. Raises the errors of these two functions.
    """
    if outcome.ok or outcome.tracebacks:
        return outcome
    failed = [task for task in outcome.tasks.values() if task.state == "failed" and not task.optional]
    found: dict[str, str | None] = {}
    for task in failed[:_EXPLAINED]:
        if task.error_type in NO_ATTEMPTS:
            found[task.name] = _traceback_of(await transitions(task.id))
        elif tries := await attempts(task.name):
            found[task.name] = tries[-1].traceback
    if not failed and workstream is not None and outcome.state == "failed":
        found[workstream] = _traceback_of(await transitions(workstream))
    tracebacks = {name: text for name, text in found.items() if text}
    return msgspec.structs.replace(outcome, tracebacks=tracebacks) if tracebacks else outcome


def _traceback_of(rows: Sequence[Transitioned]) -> str | None:
    """The traceback in an entity's last transition, for a check or a condition, which has no attempt."""
    metadata = rows[-1].metadata if rows else None
    return None if metadata is None else metadata.get("traceback")


def no_task(job: JobRecord, name: str, names: Sequence[str]) -> str:
    """Why there is no task of that name: the run has other tasks, or the job ended before it began."""
    if not names and job.state in {"failed", "cancelled"}:
        why = f": {job.error}" if job.error else ""
        return (
            f"the last run of job {job.id!r} never began, so it has no task {name!r:.80}{why}. `callboard "
            f"retry {job.id}`, or `retry()` of the job's handle, runs it again."
        )
    return f"job {job.id!r} has no task {name!r:.80}; it has: {_some(names)}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN]) or 'none'}{more}"
