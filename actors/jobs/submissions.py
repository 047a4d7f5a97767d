"""How jobs are created: by a submission, by a task of another job, or by running a job again.

Rules
-----
- A child is submitted under the fencing token of the attempt whose body submits it. An attempt that is over is refused;
  so is an abandoned body that still runs though its job has ended.
- A child that is submitted again, by a later attempt or a later run of its task, is the same job: the runtime finds it
  by its id, and sends here only a first submission, or the next run of a child that did not complete. A `final` child
  stays as it ended, unless a person runs the parent again.
- A job that runs again keeps its key and its id. It is a new incarnation, and its specification is stored again; the
  history keeps its earlier end.
- A job that replaces an ended one is a new incarnation, too; so both never exist at once, even after a crash. But it
  has its own specification, keeps no results of the earlier runs, and numbers its runs after theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from ...machines import JOB, InvalidTransitionError, JobState
from ..kernel.publishing import birth
from ..kernel.refusals import in_its_words
from ..kernel.transaction import Answer
from ..messages.commands import NextRun, Submit
from ..messages.errors import AttemptOver
from ..records.entities import JobRecord
from ..tasks.task import TaskActor
from ..workers import tools
from .job import JobActor
from .runs import NOTHING, KeptResults, kept_of

if TYPE_CHECKING:
    from ..kernel.kernel import Kernel
    from ..workers.workforce import Workforce


def submit(workforce: Workforce, message: Submit) -> None:
    """Create a new job. Answers InvalidTransitionError if it cannot replace the job that it should replace.

    Raises AttemptOver if the submitting attempt is over.
    """
    kernel, replaced = workforce.kernel, message.replaced
    if replaced is not None and (refusal := _too_late(kernel, replaced, "replace")) is not None:
        kernel.effect(Answer(message.reply, None, refusal))
        return
    parent = _attempt(kernel, message.parent)
    spec = message.workstream
    key, run = (kernel.number(), 1) if replaced is None else (replaced.key, replaced.runs + 1)
    record = JobRecord(
        key=key, id=message.job_id, name=spec.name, state=JobState.SUBMITTED, run=run, runs=run, first=run,
        created_at=kernel.at, updated_at=kernel.at, fingerprint=message.fingerprint, caller_id=message.caller_id,
        stream=kernel.number(), worker_count=spec.worker_count or 0, by=message.by, archive=spec.archive,
        description=spec.description,
        published=birth(kernel.lifecycles, "job", kernel.lifecycles.of("job", spec.lifecycle)),
    )  # fmt: skip
    if parent is not None:
        record = _child(record, parent)
    job = JobActor(workforce, record, spec)
    kernel.turn.specs.append((record.stream, message.encoded))
    metadata: dict[str, object] = {}
    if replaced is not None:
        metadata["replaces_run"] = replaced.runs
        if message.by is not None:
            metadata["by"] = message.by
    _begin(job, parent, metadata)
    kernel.done(message.reply, job, job)


def next_run(workforce: Workforce, message: NextRun) -> None:
    """Run a job again. Answers InvalidTransitionError if its state does not allow that."""
    kernel, before = workforce.kernel, message.job
    word = "skip" if message.skip is not None else "retry"
    if (refusal := _too_late(kernel, before, word)) is not None:
        record = kernel.jobs[before.id].record if before.id in kernel.jobs else before
        kernel.effect(Answer(message.reply, None, in_its_words(refusal, record, kernel.lifecycles)))
        return
    parent = _attempt(kernel, message.parent)
    named = message.again is not None or message.skip is not None
    if before.state == JobState.COMPLETED and not named:
        kernel.effect(Answer(message.reply, None, no_next_run(before.state, word)))
        return
    run = before.runs + 1
    skip = None if message.skip is None else (message.skip, message.reason or "skipped by an operator")
    record = JobRecord(
        key=before.key, id=before.id, name=before.name, state=JobState.SUBMITTED, run=run, runs=run,
        first=before.first, created_at=kernel.at, updated_at=kernel.at, fingerprint=before.fingerprint,
        caller_id=before.caller_id, stream=kernel.number(), worker_count=before.worker_count, again=message.again,
        from_step=message.from_step, skip=skip, parent_id=before.parent_id, depth=before.depth,
        by=before.by, archive=before.archive, description=message.workstream.description,
        published=birth(kernel.lifecycles, "job", kernel.lifecycles.of("job", message.workstream.lifecycle)),
    )  # fmt: skip
    if parent is not None:
        record = _child(record, parent)
    kept = kept_of(
        message.workstream, message.stream, message.tasks, kernel.defaults, again=record.again,
        from_step=record.from_step, skip=record.skip,
    )  # fmt: skip
    kernel.turn.extra += (replace(step, dropped=True) for step in message.dropped)
    job = JobActor(workforce, record, message.workstream)
    job.load_messages(message.messages)
    kernel.turn.specs.append((record.stream, message.encoded))
    said = (("reason", message.reason), ("by", message.by), ("from_step", message.from_step))
    metadata = {name: value for name, value in said if value is not None}
    _begin(job, parent, {"after_run": before.runs, **metadata}, kept)
    kernel.done(message.reply, job, job)


def _begin(job: JobActor, parent: TaskActor | None, metadata: dict[str, object], kept: KeptResults = NOTHING) -> None:
    record = job.record
    job.kernel.jobs[record.id] = job
    if parent is not None:
        cast("JobActor", parent.stream.job).adopt(job)
        metadata |= {"parent_id": record.parent_id, "depth": record.depth}
    if record.worker_count:
        metadata["worker_count"] = record.worker_count
    job.born(metadata or None)
    tools.provide(job.workforce, job)
    job.begin(parent, kept)


def _child(record: JobRecord, parent: TaskActor) -> JobRecord:
    job = parent.stream.job.record
    return replace(
        record, parent=job.key, parent_id=job.id, parent_task=parent.record.key, parent_run=job.run,
        depth=job.depth + 1, archive=record.archive or job.archive,
    )  # fmt: skip


def _attempt(kernel: Kernel, token: int) -> TaskActor | None:
    """The task whose body runs under `token`; None for token 0. Raises AttemptOver if that attempt is over."""
    if not token:
        return None
    call = kernel.calls.get(token)
    task = None if call is None or call.kind != "body" else kernel.entities.get(call.key)
    if task is None or task.record.token != token or cast("TaskActor", task).stream.job.ended:
        raise AttemptOver("the attempt that submits this job has ended: its requests are no longer accepted")
    return cast("TaskActor", task)


def _too_late(kernel: Kernel, before: JobRecord, word: str) -> InvalidTransitionError | None:
    """The error if a faster command has changed an ended job since its record was loaded; else None."""
    if (job := kernel.jobs.get(before.id)) is not None:
        state = job.record.state
        if job.over:
            advice = "It has ended, but a part of it that did not stop still runs: wait for its end."
            return InvalidTransitionError(JOB.name, state, word, JOB.valid_events(state), advice)
        return no_next_run(state, word)
    since = kernel.reruns.get(before.id)
    return None if since is None or since.run <= before.run else _ran_meanwhile(since, word)  # the older run is over


def _ran_meanwhile(since: JobRecord, word: str) -> InvalidTransitionError:
    advice = f"It was run again meanwhile, as run {since.run}: look at the result of that run."
    return InvalidTransitionError(JOB.name, since.state, word, JOB.valid_events(since.state), advice)


def no_next_run(state: str, word: str) -> InvalidTransitionError:
    """The error for a job that gets no next run: it has not ended, or it completed and no task is named.

    word: the command.
    """
    advice = (
        "It completed: name a task to run it again."
        if state == "completed"
        else "It has not ended: wait for its end, or cancel it."
    )
    return InvalidTransitionError(JOB.name, state, word, JOB.valid_events(state), advice)
