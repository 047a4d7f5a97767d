"""Jobs over HTTP: reading them."""

from __future__ import annotations

from collections import Counter

from litestar import get

from .allowed import actions_of
from .context import Board, JobPath, TheBoard, job_id_of
from .shapes import JobView, Page, job_view


@get("/api/jobs", operation_id="list_jobs")
async def list_jobs(board: TheBoard) -> Page[JobView]:
    """The jobs of the journal, newest first."""
    found = await board.runtime.read(board.runtime.journal.jobs)
    return Page([await _view(board, job.id) for job in found])


@get("/api/jobs/{job:str}", operation_id="get_job")
async def get_job(board: TheBoard, job: JobPath) -> JobView:
    """One job."""
    return await _view(board, job_id_of(job))


async def _view(board: Board, job_id: str) -> JobView:
    job = await board.job(job_id)
    journal, read = board.runtime.journal, board.runtime.read
    tasks = await board.tasks(job_id)
    runs = await read(journal.workstreams, job_id)
    state = runs[-1].state if runs else None
    children = [child.id for child in await read(journal.children, job_id)]
    counts = dict(Counter(str(task.state) for task in tasks))
    actions = actions_of(board.runtime, job)
    return job_view(job, workstream_state=state, actions=actions, counts=counts, children=children)


HANDLERS = [list_jobs, get_job]
