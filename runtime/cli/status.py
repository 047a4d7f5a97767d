"""`callboard status [JOB[/TASK]]`: the jobs and machines of a journal, or one of them.

A runtime may have the journal open. With `--plan`, `plan.py` shows the order of a job's tasks.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..text.printable import printable
from .boards import Place
from .command_errors import CommandError
from .hints import hint
from .options import JOURNAL, AsJson, MaybeJobId
from .terminal import colours, echo, echo_json

if TYPE_CHECKING:
    from ...actors.records.entities import ApprovalRecord, JobRecord, WorkstreamRecord
    from ...actors.records.step import StepRecord
    from ...actors.records.task import TaskRecord
    from ..calling import Progress
    from ..journal.contract import JournalQueries
    from .reading import Nodes

_MOST = 50  # jobs, and machines, listed: the newest
_MOST_STEPS = 200  # likewise, of a task


Plan = Annotated[bool, typer.Option("--plan", help="Show the order of its tasks, and which can run at the same time.")]
Dag = Annotated[bool, typer.Option("--dag", help="Print its DAG file: the dependencies of its tasks, for `run --dag`.")]


def status(
    job_id: MaybeJobId = None,
    *,
    journal: Place = JOURNAL,
    as_json: AsJson = False,
    plan: Plan = False,
    dag: Dag = False,
) -> None:
    """Show the newest jobs and machines of a journal, or one job, task or machine."""
    from . import machines, words  # noqa: PLC0415
    from . import owed as owing  # noqa: PLC0415
    from .notices import lately  # noqa: PLC0415
    from .reading import (  # noqa: PLC0415
        approvals_of,
        find_job,
        nodes_by_job,
        progress_at,
        reading,
        run_of,
        task_named,
        tasks_of,
    )  # fmt: skip

    if (plan or dag) and job_id is None:
        what = "--plan shows the plan" if plan else "--dag prints the DAG file"
        raise CommandError(f"{what} of one job: name the job. {hint('status')} lists all jobs.")
    if plan and dag:
        raise CommandError("--plan shows the plan of a job, and --dag prints its DAG file: use only one of them.")
    with reading(journal) as reader:
        if job_id is None:
            _show_all(reader, journal, as_json=as_json)
            return
        if not (plan or dag) and (machine := machines.named(reader, job_id)) is not None:
            machines.show_one(reader, machine, as_json=as_json)
            return
        if not (plan or dag) and (task := task_named(reader, job_id)) is not None:
            _show_task(reader, task, progress_at(journal, reader)(task), as_json=as_json)
            return
        job = find_job(reader, job_id)
        if dag:
            from .plan import show_dag  # noqa: PLC0415

            show_dag(reader, job)
            return
        tasks = tasks_of(reader, job)
        if plan:
            from .plan import show  # noqa: PLC0415

            show(reader, job, tasks, as_json=as_json)
            return
        asked, owed = approvals_of(reader, job), owing.owed(reader, job_id=job.id)
        nodes, published = nodes_by_job(journal, reader, [job]), _published(reader, tasks)
        progress = progress_at(journal, reader)
        if as_json:
            report = _job(job, run_of(reader, job), tasks, nodes)
            as_lines(
                [
                    report | {"published": {name: step.result for name, step in published.items()}},
                    *(_task(task, progress(task)) for task in tasks),
                    *map(_approval, asked),
                    *map(owing.json_of, owed),
                ]
            )
            return
        _job_told(reader, job, nodes)
        rows = [_task_row(task, job.id, progress(task)) for task in tasks]
        table(("task", "state", "attempt", "took", "exit", "reason"), rows)
        if asked:
            rows = [
                [f"{one.task_id.rpartition('/')[2]}/{one.name}", str(one.shown), words.awaited(one, one.reason)]
                for one in asked
            ]
            table(("approval", "state", "reason"), rows)
        _show_published(published)
        for line in owing.lines(owed):
            echo(line)
        if (noticed := lately(reader, job.id)) is not None:
            echo(noticed)


def _show_all(reader: JournalQueries, journal: Place, *, as_json: bool) -> None:
    """Show the newest jobs and machines, owed hooks, and recent notices."""
    from . import machines  # noqa: PLC0415
    from . import owed as owing  # noqa: PLC0415
    from .notices import lately  # noqa: PLC0415
    from .reading import nodes_by_job, run_of, tasks_of  # noqa: PLC0415

    jobs = reader.jobs(limit=_MOST)
    rows = [(job, tasks_of(reader, job)) for job in jobs]
    nodes = nodes_by_job(journal, reader, jobs)
    others, owed = reader.machines(limit=_MOST), owing.owed(reader)
    if as_json:
        left = machines.waiting(reader) if others else {}
        shown = [machines.json_of(machine, left.get(machine.name, ())) for machine in others]
        jobs_told = (_job(job, run_of(reader, job), tasks, nodes) for job, tasks in rows)
        as_lines([*jobs_told, *shown, *map(owing.json_of, owed)])
        return
    if rows or not others:
        head = ("job", "workstream", "state", *(() if nodes is None else ("node",)), "done", "began", "took")
        table((*head, "error"), [_row(*one, nodes) for one in rows])
    if others:
        machines.show(reader, others)
    for line in owing.lines(owed):
        echo(line)
    if (noticed := lately(reader)) is not None:
        echo(noticed)


def _show_task(reader: JournalQueries, task: TaskRecord, progress: Progress | None, *, as_json: bool) -> None:
    """Show one task, the steps of its body, and its attempts that did not succeed, with tracebacks."""
    from ...actors.records.step import of_present, published_by  # noqa: PLC0415
    from . import words  # noqa: PLC0415

    ends: list[dict[str, Any]] = [
        {
            "attempt": event.attempt,
            "end": metadata.get("end", str(event.event)),  # a condition or check has no attempt's end
            "error": event.reason,
            "traceback": metadata.get("traceback"),
            "cpu_seconds": metadata.get("cpu_seconds"),
            "peak_memory_bytes": metadata.get("peak_memory_bytes"),
        }
        for event in reader.transitions(entity_id=task.id)
        if {"end", "traceback"} & (metadata := event.metadata or {}).keys() and event.to_state != "completed"
    ]
    steps = [of_present(one, task) for one in reader.steps(task.flow)] if task.flow else []
    if as_json:
        echo_json({**_task(task, progress), "attempts": ends, "steps": [*map(_step, steps)]})
        return
    table(("task", "state", "attempt", "took", "exit", "reason"), [_task_row(task, task.job_id, progress)])
    if task.test_results:
        rows = [
            [one.check, "passed" if one.passed else "failed", _milliseconds(one.duration_ms), words.brief(one.error)]
            for one in task.test_results
        ]
        table(("test", "result", "took", "reason"), rows)
    _show_steps(steps, reader)
    _show_published(published_by(steps))
    for one in ends:
        whose = f"attempt {one['attempt']} " if one["attempt"] else ""
        echo(f"{whose}{one['end']}: {words.brief(one['error'])}")
        for line in str(one["traceback"] or "").splitlines():
            echo(f"  {line}")


def _show_steps(steps: list[StepRecord], reader: JournalQueries) -> None:
    """Show the newest steps of a flow, in their order."""
    from . import words  # noqa: PLC0415

    waits = any(step.waits_for_tool is not None for step in steps)
    breakers = {one.name: one for one in reader.breakers()} if waits else {}
    first = max(len(steps) - _MOST_STEPS, 0)
    if first:
        echo(f"{first:,} earlier steps: --json shows all")
    rows: list[list[str]] = []
    for number, step in enumerate(steps[first:], first + 1):
        took, why = _milliseconds(step.duration_ms), words.step(step, breakers)
        rows.append([str(number), step.label, step.state, took, str(step.tries), why])
    if rows:
        table(("no.", "step", "state", "took", "tries", "error"), rows)


def _published(reader: JournalQueries, tasks: list[TaskRecord]) -> dict[str, StepRecord]:
    """The steps that have published the last value of each name."""
    from ...actors.records.step import published_by  # noqa: PLC0415

    return published_by(step for task in tasks if task.flow for step in reader.publications(task.flow))


def _show_published(published: dict[str, StepRecord]) -> None:
    from . import words  # noqa: PLC0415

    rows: list[list[str]] = []
    for name, step in published.items():
        value = bytes(step.raw_result or b"null").decode()
        rows.append([words.one_line(name), words.one_line(value), step.task_id.rpartition("/")[2]])
    if rows:
        table(("published", "value", "by"), rows)


def _milliseconds(spent: int | None) -> str:
    from . import words  # noqa: PLC0415

    return "" if spent is None else words.took(spent / 1000)


def _job_told(reader: JournalQueries, job: JobRecord, nodes: Nodes) -> None:
    from . import words  # noqa: PLC0415
    from .reading import node_of  # noqa: PLC0415

    runs = reader.workstreams(job.id)
    spent = words.duration(job, time.time())
    head = [job.name, str(job.shown), *([words.took(spent)] if spent is not None else [])]
    if node := node_of(job, nodes):
        head.append(f"on {node}" if nodes and job.key in nodes else node)
    echo(f"job {job.id}: {', '.join(head)}")
    if job.description:
        echo(words.one_line(job.description, 500))
    for run in runs:
        why = words.one_line(run.error or run.reason or "", 200) if run is not runs[-1] else ""
        if run.waits_until is not None:
            why = words.one_line(words.awaited(run, run.reason), 200)
        echo(f"workstream {run.id}: {run.shown}{why and f': {why}'}")
    for child in reader.children(job.id):
        echo(f"child job {child.id}: {child.shown}")
    if reason := job.error or job.reason:
        echo(words.one_line(reason, 500))


def _row(job: JobRecord, tasks: list[TaskRecord], nodes: Nodes) -> list[str]:
    from . import words  # noqa: PLC0415
    from .reading import node_of  # noqa: PLC0415

    done = sum(task.state in words.ENDED for task in tasks)
    spent = words.duration(job, time.time())
    return [
        job.id,
        job.name,
        str(job.shown),
        *(() if nodes is None else (words.one_line(node_of(job, nodes)),)),
        f"{done}/{len(tasks)}",
        words.moment(job.created_at),
        "" if spent is None else words.took(spent),
        words.one_line(job.error or job.reason or ""),
    ]


def _task_row(task: TaskRecord, job_id: str, progress: Progress | None) -> list[str]:
    from . import words  # noqa: PLC0415

    spent = words.duration(task, time.time())
    notes = "; ".join(filter(None, (words.progress(progress), words.explained(task))))
    return [
        f"{job_id}/{task.name}",  # as `cancel` and other commands take it
        words.state(task),
        words.tried(task),
        "" if spent is None else words.took(spent),
        "" if task.exit_code is None else str(task.exit_code),
        words.awaited(task, notes),
    ]


def _approval(record: ApprovalRecord) -> dict[str, Any]:
    return {**_told(record), "kind": "approval", "task": record.task_id.rpartition("/")[2]}


def _job(job: JobRecord, run: WorkstreamRecord | None, tasks: list[TaskRecord], nodes: Nodes) -> dict[str, Any]:
    from collections import Counter  # noqa: PLC0415

    from ...actors.records.transition import iso  # noqa: PLC0415
    from . import words  # noqa: PLC0415

    counts = Counter(map(words.counted, tasks))
    node = {} if nodes is None else {"node": nodes.get(job.key)}
    until = None if run is None else run.waits_until
    waits = {
        "workstream_state": None if run is None else run.shown, "waits_until": None if until is None else iso(until),
    }  # fmt: skip
    described = {"description": job.description}
    return {**_told(job), "kind": "job", **waits, "tasks": dict(counts), "error": job.error, **node, **described}


def _task(task: TaskRecord, progress: Progress | None) -> dict[str, Any]:
    import msgspec  # noqa: PLC0415

    names = (
        "attempt", "max_attempts", "failed_attempts", "lost_attempts", "granted", "deferrals", "exit_code",
        "execution_ms", "output_path", "worker_id", "optional", "cpu_seconds", "peak_memory_bytes",
    )  # fmt: skip
    tests = msgspec.to_builtins(task.test_results)
    more = {name: getattr(task, name) for name in names}
    said = None if progress is None else {"done": progress.done, "of": progress.of, "text": progress.text}
    more["progress"] = said
    return {**_told(task), "kind": "task", **more, "error": task.last_error, "test_results": tests}


def _step(step: StepRecord) -> dict[str, Any]:
    from ...actors.records.transition import iso  # noqa: PLC0415

    names = (
        "label", "name", "number", "function", "state", "attempt", "tries", "worker_id", "tool", "tool_use",
        "engine", "capabilities", "worker_use", "unroutable",
        "duration_ms", "result", "error", "error_type", "category", "traceback",
    )  # fmt: skip
    times = {name: getattr(step, name) for name in ("began_at", "ended_at", "due_at", "cancelled_at")}
    more = {name: None if at is None else iso(at) for name, at in times.items()}
    return {**{name: getattr(step, name) for name in names}, "arguments": step.given, **more}


def _told(record: JobRecord | TaskRecord | ApprovalRecord) -> dict[str, Any]:
    from ...actors.records.transition import iso  # noqa: PLC0415
    from . import words  # noqa: PLC0415

    times = {name: getattr(record, name) for name in ("created_at", "started_at", "finished_at", "due_at")}
    return {
        "id": record.id,
        "name": record.name,
        "state": record.shown,
        **words.phase(record),
        "reason": record.reason,
        **{name: None if at is None else iso(at) for name, at in times.items()},
    }


def as_lines(rows: list[dict[str, Any]]) -> None:
    """Print rows as JSON, one per line."""
    for row in rows:
        echo_json(row)


def _shaded(text: str, colour: str | None) -> str:
    return (
        text if colour is None else typer.style(text, fg=colour)
    )  # `style` without a colour would still write a reset


def table(head: tuple[str, ...], rows: list[list[str]]) -> None:
    """Print columns. On a terminal the last one is cut, so that each row is one line."""
    from shutil import get_terminal_size  # noqa: PLC0415

    from . import words  # noqa: PLC0415

    rows = [[*map(printable, row)] for row in rows]
    widths = [max(len(row[number]) for row in (list(head), *rows)) for number in range(len(head))]
    left = sum(widths[:-1]) + 2 * len(widths)
    room = max(get_terminal_size().columns - left, 20) if sys.stdout.isatty() else 200
    shades = words.COLOURS if colours() else {}
    for row in ([name.upper() for name in head], *rows):
        cells = [_shaded(f"{cell:<{width}}", shades.get(cell)) for cell, width in zip(row, widths, strict=True)]
        typer.echo("  ".join([*cells[:-1], words.one_line(row[-1], room)]).rstrip())
