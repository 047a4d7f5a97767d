"""Helpers for tests of jobs on the stage: submit children, run jobs again, wait for children."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.actors.stage import KernelHarness

from callboard.actors.jobs.job import JobActor
from callboard.actors.messages.commands import Lend, NextRun, Regain, Reply, Submit
from callboard.actors.records.entities import JobRecord, WorkstreamRecord
from callboard.actors.records.task import TaskRecord
from callboard.actors.spec.model import Workstream


def child(stage: KernelHarness, token: int, spec: Workstream, job_id: str) -> Any:
    """Submit a child job, as the body with this token does. Returns the answer: the job, or a refusal."""
    stage.send(Submit(job_id, True, spec, msgspec.json.encode(spec), "", Reply(None), parent=token))
    return _answer(stage)


def again(stage: KernelHarness, job_id: str = "job", *, parent: int = 0, **asked: Any) -> Any:
    """Start the next run of an ended job. Returns the answer: the job, or a refusal."""
    record = job_record(stage, job_id)
    runs = sorted((run for run in stage.kept.of(WorkstreamRecord) if run.job == record.key), key=lambda run: run.key)
    last = runs[-1] if runs else None
    tasks = [task for task in stage.kept.of(TaskRecord) if last is not None and task.workstream == last.key]
    encoded = stage.kept.specs[record.stream]
    spec = msgspec.json.decode(encoded, type=Workstream)
    stage.send(NextRun(record, spec, encoded, last, tuple(tasks), Reply(None), parent=parent, **asked))
    return _answer(stage)


def _answer(stage: KernelHarness) -> Any:
    value, error = stage.answers[-1]
    return error if error is not None else value


def job_record(stage: KernelHarness, job_id: str = "job") -> JobRecord:
    """The committed record of a job."""
    return next(job for job in stage.kept.of(JobRecord) if job.id == job_id)


def waits(stage: KernelHarness, token: int) -> None:
    """Let the body with this token wait for a child."""
    stage.send(Lend(token))


def goes_on(stage: KernelHarness, token: int) -> bool:
    """Let the waiting body ask to continue. Returns whether it continues already."""
    before = len(stage.answers)
    stage.send(Regain(token, Reply(None)))
    return len(stage.answers) > before


def living(stage: KernelHarness, job_id: str) -> JobActor:
    """The actor of a job that has not ended."""
    return stage.kernel.jobs[job_id]
