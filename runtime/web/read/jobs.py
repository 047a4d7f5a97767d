"""Jobs over HTTP: the handlers that read them.

Rules
-----
- A list is read from the journal, which holds the durable records. Counts of a living run come from memory.
- A run of many tasks is sent in a compact form, as parallel lists, for drawing (`/graph`, `/timeline`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

from litestar import get
from litestar.params import QueryParameter

from ....actors.records.entities import JobRecord, WorkstreamRecord
from ....actors.records.step import published_by
from ....machines import JOB
from ...journal.contract import JobFilter
from ..http.context import Board, JobPath, TheBoard, job_id_of
from ..http.queries import LARGEST
from .allowed import actions_of, read_remote_facts
from .lists import (
    Cursor,
    LargeLimit,
    Limit,
    Named,
    Newer,
    Number,
    Older,
    States,
    cursor_of,
    page_of,
    place_of,
    wanted_of,
)
from .progress import progress_in
from .shapes import (
    Graph,
    JobView,
    Page,
    PublishedView,
    Row,
    Timeline,
    WorkstreamView,
    job_view,
    published_view,
    workstream_view,
)

if TYPE_CHECKING:
    from ....actors.jobs.job import JobActor


@get("/api/jobs", operation_id="list_jobs")
async def list_jobs(
    board: TheBoard,
    limit: Limit = 100,
    cursor: Cursor = None,
    states: States = None,
    name: Named = None,
    older_than: Older = None,
    newer_than: Newer = None,
) -> Page[JobView]:
    """The jobs of the journal, newest first."""
    wanted = wanted_of("job", board.states("job"), states, name, older_than, newer_than)
    services, before = board.services, place_of(cursor)
    found = await services.read(_jobs, board, limit + 1, before, wanted)
    items = [await view_of(board, job) for job in found[:limit]]
    return Page(items, cursor_of(found[limit - 1].key) if len(found) > limit else None)


def _jobs(board: Board, limit: int, before: int | None, wanted: JobFilter) -> list[JobRecord]:
    return board.services.journal.reader.jobs(limit=limit, before=before, wanted=wanted)


@get("/api/jobs/{job:str}", operation_id="get_job")
async def get_job(board: TheBoard, job: JobPath) -> JobView:
    """One job."""
    return await view_of(board, await board.job(job_id_of(job)))


@get("/api/jobs/{job:str}/workstreams", operation_id="list_workstreams")
async def list_workstreams(
    board: TheBoard, job: JobPath, limit: LargeLimit = 10_000, cursor: Cursor = None
) -> Page[WorkstreamView]:
    """The runs of a job, oldest first."""
    record = await board.job(job_id_of(job))
    runs: list[WorkstreamRecord] = await board.services.read(board.services.journal.reader.workstreams, record.id)
    return page_of(runs, limit, cursor, lambda run: workstream_view(run, actions_of(board.services, run)))


@get("/api/jobs/{job:str}/published", operation_id="get_published")
async def get_published(board: TheBoard, job: JobPath) -> dict[str, PublishedView]:
    """The values that bodies of a job's tasks have published, by their names: the last of each."""
    record = await board.job(job_id_of(job))
    flows = await board.living(record.id, _flows)  # of a large run much cheaper than all records of its tasks
    found: dict[str, PublishedView] = await board.services.read(_published, board, record.stream, flows)
    return found


def _flows(actor: JobActor) -> list[int] | None:
    return None if actor.stream is None else [task.record.flow for task in actor.stream.tasks if task.record.flow]


def _published(board: Board, stream: int, flows: list[int] | None) -> dict[str, PublishedView]:
    reader = board.services.journal.reader
    if flows is None:
        flows = [task.flow for task in reader.tasks(stream) if task.flow]
    found = published_by(step for flow in flows for step in reader.publications(flow))
    return {name: published_view(step) for name, step in found.items()}


async def view_of(board: Board, job: JobRecord) -> JobView:
    """Make the view of a job. For a living one, memory may be newer than the record."""
    live = await board.living(job.id, lambda actor: (actor.record, _stream(actor.stream), _counted(actor.stream)))
    services = board.services
    if live is not None:
        job, run, counts = live
    else:
        run, counts = await services.read(_of_run, board, job)
    children: list[JobRecord] = await services.read(services.journal.reader.children, job.id)
    remote = None if live is not None else await read_remote_facts(services, job.id)
    return job_view(
        job,
        run=run,
        actions=actions_of(services, job, remote),
        counts=counts,
        children=[child.id for child in children],
    )


def _stream(stream: object) -> WorkstreamRecord | None:
    record: WorkstreamRecord | None = getattr(stream, "record", None)
    return record


def _counted(stream: object) -> dict[str, int]:
    return dict(Counter([str(task.record.state) for task in getattr(stream, "tasks", ())]))


def _of_run(board: Board, job: JobRecord) -> tuple[WorkstreamRecord | None, dict[str, int]]:
    reader = board.services.journal.reader
    last = job.last_of(reader.workstreams(job.id))
    counts = board.plans.counts(job.stream) if JOB.is_terminal(job.state) else None
    if counts is None:
        counts = reader.counts(job.stream)
        if JOB.is_terminal(job.state):
            board.plans.keep_counts(job.stream, counts)
    return last, counts


# -- a whole run -------------------------------------------------------------------------------------------------------


@get("/api/jobs/{job:str}/graph", operation_id="get_graph")
async def get_graph(board: TheBoard, job: JobPath) -> Graph:
    """All tasks of a job's present run, as parallel lists by task number; edges name numbers, too."""
    record = await board.job(job_id_of(job))
    states = await _states(board, record)
    plan = await board.plans.of(record.id, record.stream)
    if plan is None or record.workstream is None:
        return Graph(record.runs, [], [], [], [], [], [], [])
    missing = len(plan.names) - len(states)  # tasks that are still being created
    shown = [*states, *[("pending", "pending")] * missing]
    progress = board.services.live.progress_in(record.workstream)
    if not progress and await board.services.jobs.is_elsewhere(record.id):
        progress = await progress_in(board.services, record.stream, plan, states)
    return Graph(
        record.runs, plan.names, [state for state, _ in shown], [phase for _, phase in shown], plan.layers,
        plan.depends_on, plan.after, plan.optional, progress,
    )  # fmt: skip


async def _states(board: Board, job: JobRecord) -> list[tuple[str, str]]:
    """Return the state and phase of each task."""
    live = await board.living(
        job.id,
        lambda actor: (
            None if actor.stream is None else [(task.record.shown, task.record.state) for task in actor.stream.tasks]
        ),
    )
    if live is not None:
        return live
    states: list[tuple[str, str]] = await board.services.read(_read_states, board, job)
    return states


def _read_states(board: Board, job: JobRecord) -> list[tuple[str, str]]:
    return board.services.journal.reader.states(job.stream)


@get("/api/jobs/{job:str}/timeline", operation_id="get_timeline")
async def get_timeline(
    board: TheBoard,
    job: JobPath,
    offset: Number = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=LARGEST, description="How many tasks at most.")] = 500,
) -> Timeline:
    """The phases, with times, of tasks of a job's present run, from number `offset` on."""
    record = await board.job(job_id_of(job))
    plan = await board.plans.of(record.id, record.stream)
    now = board.services.now()
    if plan is None or record.workstream is None:
        return Timeline(record.runs, now, [])
    reader = board.services.journal.reader
    await board.services.read(plan.bars.read, reader, record.id, record.workstream)
    names = plan.names[offset : offset + limit]
    rows = plan.bars.rows
    return Timeline(record.runs, now, [Row(offset + place, rows.get(name, [])) for place, name in enumerate(names)])


HANDLERS = [list_jobs, get_job, get_published, list_workstreams, get_graph, get_timeline]
