"""Tasks over HTTP: the handlers that read them, their attempts, their steps, and their outputs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import anyio.lowlevel
from litestar import Request, Response, get
from litestar.params import PathParameter, QueryParameter
from litestar.types import Scope

from ....actors.records.task import AttemptRecord, TaskRecord
from ..http.context import Board, JobPath, TaskPath, TheBoard, board_of, job_id_of, task_of
from ..http.problems import not_found
from ..http.queries import LARGEST
from .allowed import RemoteJobFacts, actions_of, read_remote_facts
from .lists import Cursor, LargeLimit, Named, Newer, Older, States, cursor_of, page_of, place_of, wanted_of
from .outputs import Output, read_part
from .plans import Plan
from .progress import progress_elsewhere
from .shapes import AttemptView, Page, StepView, TaskView, attempt_view, step_view, task_view

if TYPE_CHECKING:
    from ....actors.records.entities import JobRecord, WorkstreamRecord
    from ...calling import Progress

_SOME = 2_000
"""Tasks that are read at a time."""
_AT_ONCE = 200
"""Views that are made before other requests get their turn."""
_RESULTS = 1_000_000
"""Bytes of steps' results after which a page ends before its limit."""
_STEPS = 101
"""Steps that are read at a time: each may have a large result."""
RunNumber = Annotated[
    int | None, QueryParameter(ge=1, le=LARGEST, description="A run's number; by default the present one.")
]
NewestFirst = Annotated[bool, QueryParameter(description="Whether the newest come first.")]
AttemptPath = Annotated[int, PathParameter(description="The number of an attempt.")]


@get("/api/jobs/{job:str}/tasks", operation_id="list_tasks")
async def list_tasks(
    board: TheBoard,
    job: JobPath,
    run: RunNumber = None,
    limit: LargeLimit = 100,
    cursor: Cursor = None,
    states: States = None,
    name: Named = None,
    older_than: Older = None,
    newer_than: Newer = None,
) -> Page[TaskView]:
    """The tasks of a job's run, in the order of its specification."""
    record = await board.job(job_id_of(job))
    stream = record.stream if run in {None, record.runs} else await _stream_of(board, record, run)
    wanted = wanted_of("task", board.states("task"), states, name, older_than, newer_than)
    found: list[TaskRecord] = []
    place, more = place_of(cursor) or 0, True
    while more and len(found) <= limit:
        some = await _some(board, record, stream, place)
        found += [task for task in some if wanted.holds(task)]
        place, more = place + len(some), len(some) == _SOME
    plan = await board.plans.of(record.id, stream)
    remote = await read_remote_facts(board.services, record.id)
    shown = await _progress(board, found[:limit], remote)
    items: list[TaskView] = []
    for first in range(0, min(len(found), limit), _AT_ONCE):
        items += [_view(board, task, plan, remote, shown) for task in found[first : min(first + _AT_ONCE, limit)]]
        await anyio.lowlevel.checkpoint()
    return Page(items, cursor_of(found[limit].index) if len(found) > limit else None)


async def _stream_of(board: Board, job: JobRecord, run: int | None) -> int:
    runs: list[WorkstreamRecord] = await board.services.read(board.services.journal.reader.workstreams, job.id)
    for one in runs:
        if one.run == run:
            return one.key
    raise not_found("run", str(run), f"job {job.id!r}")


async def _some(board: Board, job: JobRecord, stream: int, first: int) -> list[TaskRecord]:
    """Read some tasks of a run, from number `first` on."""
    live = await board.living(
        job.id,
        lambda actor: (
            None
            if actor.stream is None or actor.stream.record.key != stream
            else [task.record for task in actor.stream.tasks[first : first + _SOME]]
        ),
    )
    if live is not None:
        return live
    tasks: list[TaskRecord] = await board.services.read(_read_some, board, stream, first)
    return tasks


def _read_some(board: Board, stream: int, first: int) -> list[TaskRecord]:
    return board.services.journal.reader.tasks(stream, first=first, limit=_SOME)


async def _progress(board: Board, tasks: list[TaskRecord], remote: RemoteJobFacts | None) -> dict[int, Progress]:
    """The progress of these tasks that other nodes run, by the keys of the tasks."""
    return {} if remote is None else await progress_elsewhere(board.services, tasks)


def _view(
    board: Board, task: TaskRecord, plan: Plan | None, remote: RemoteJobFacts | None, shown: dict[int, Progress]
) -> TaskView:
    actions, progress = actions_of(board.services, task, remote), board.services.live.progress(task.id)
    progress = progress or shown.get(task.key)
    if plan is None:
        return task_view(task, actions=actions, progress=progress)
    index = task.index
    return task_view(
        task, actions=actions, tool=plan.tools[index], command=plan.commands[index], receive=plan.receives[index],
        depends_on=plan.depends_on_of(index), after=plan.after_of(index),
        progress=progress,
    )  # fmt: skip


@get("/api/jobs/{job:str}/tasks/{task:str}", operation_id="get_task")
async def get_task(scope: Scope, job: JobPath, task: TaskPath) -> TaskView:
    """One task of a job's present run."""
    board = board_of(scope)  # without injection, which costs time: this request is the most frequent
    record = await board.task(job_id_of(job), task)
    remote = await read_remote_facts(board.services, record.job_id)
    shown = await _progress(board, [record], remote)
    return _view(board, record, await board.plans.of(record.job_id, record.workstream), remote, shown)


# -- attempts ----------------------------------------------------------------------------------------------------------


@get("/api/jobs/{job:str}/tasks/{task:str}/attempts", operation_id="list_attempts")
async def list_attempts(
    board: TheBoard, job: JobPath, task: TaskPath, limit: LargeLimit = 10_000, cursor: Cursor = None
) -> Page[AttemptView]:
    """The attempts of a task in the job's present run, oldest first."""
    record = await board.task(job_id_of(job), task)
    return page_of(await _attempts(board, record), limit, cursor, attempt_view)


async def _attempts(board: Board, task: TaskRecord) -> list[AttemptRecord]:
    found: list[AttemptRecord] = await board.services.read(board.services.journal.reader.attempts, task.id)
    return found


# -- steps -------------------------------------------------------------------------------------------------------------


@get("/api/jobs/{job:str}/tasks/{task:str}/steps", operation_id="list_steps")
async def list_steps(
    board: TheBoard,
    job: JobPath,
    task: TaskPath,
    limit: LargeLimit = 100,
    cursor: Cursor = None,
    newest_first: NewestFirst = False,
) -> Page[StepView]:
    """The durable steps of a task's body, in the order in which they first ended, or began to wait.

    Also those of former runs, as far as the task goes on from there. A page ends early after 1 MB of results.
    """
    record, place = await board.task(job_id_of(job), task), place_of(cursor)
    if not record.flow:
        return Page([])
    made: Page[StepView] = await board.services.read(partial(_page_of_steps, board, record, limit, place, newest_first))
    return made


def _page_of_steps(board: Board, task: TaskRecord, limit: int, place: int | None, newest_first: bool) -> Page[StepView]:
    """Read a page. place: the key of the last step of the page before: a step that runs again keeps its key."""
    reader, most = board.services.journal.reader, min(limit + 1, _STEPS)
    shown: list[StepView] = []
    size = 0
    while True:
        steps = reader.page_of_steps(task.flow, most, place, newest_first=newest_first)
        for one in steps:
            if len(shown) == limit or size >= _RESULTS:
                return Page(shown, None if place is None else cursor_of(place))
            shown.append(step_view(one, task))
            size += 0 if one.raw_result is None else len(bytes(one.raw_result))
            place = one.key
        if len(steps) < most:
            return Page(shown)


@get("/api/jobs/{job:str}/tasks/{task:str}/output", operation_id="get_output", media_type="text/plain")
async def get_output(board: TheBoard, job: JobPath, task: TaskPath, request: Request[Any, Any, Any]) -> Response[bytes]:
    """The output of a task's command in its last attempt; of a very large one, its beginning and end.

    `X-Output-Size` is its full size. A part of it may be requested (`Range`).
    """
    record = await board.task(job_id_of(job), task)
    return await read_part(await _output(board, record, record.attempt), request.headers)


@get(
    "/api/jobs/{job:str}/tasks/{task:str}/attempts/{attempt:int}/output",
    operation_id="get_attempt_output",
    media_type="text/plain",
)
async def get_attempt_output(
    board: TheBoard, job: JobPath, task: TaskPath, attempt: AttemptPath, request: Request[Any, Any, Any]
) -> Response[bytes]:
    """The output of a task's command in one attempt."""
    record = await board.task(job_id_of(job), task)
    return await read_part(await _output(board, record, attempt), request.headers)


async def _output(board: Board, task: TaskRecord, number: int) -> Output:
    """Find the output of an attempt. Raises Problem if there is none."""
    actor = board.services.jobs.living(task.job_id)
    present = None if actor is None else task_of(actor, task.name)
    if present is not None and present.record.claimed_at is not None and present.record.attempt == number:
        if present.spec.command is not None:
            return Output(board.services.output_of(present), None, f"{task.key}-{number}", live=True)
        raise not_found("output", f"attempt {number}", f"task {task.id!r}, which is not a command")
    for one in await _attempts(board, task):
        if one.attempt == number and one.output_path is not None:
            found = board.services.output_at(one.output_path)
            return Output(found, one.output_size, f"{task.key}-{number}", live=False)
    raise not_found("output", f"attempt {number}", f"task {task.id!r}")


HANDLERS = [list_tasks, get_task, list_attempts, list_steps, get_output, get_attempt_output]
