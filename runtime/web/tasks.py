"""Tasks over HTTP: reading them."""

from __future__ import annotations

from litestar import get

from .allowed import actions_of
from .context import JobPath, TaskPath, TheBoard, job_id_of
from .shapes import Page, TaskView, task_view


@get("/api/jobs/{job:str}/tasks", operation_id="list_tasks")
async def list_tasks(board: TheBoard, job: JobPath) -> Page[TaskView]:
    """The tasks of a job's present run, in the order of its specification."""
    record = await board.job(job_id_of(job))
    tasks = await board.tasks(record.id)
    return Page([task_view(task, actions=actions_of(board.runtime, task)) for task in tasks])


@get("/api/jobs/{job:str}/tasks/{task:str}", operation_id="get_task")
async def get_task(board: TheBoard, job: JobPath, task: TaskPath) -> TaskView:
    """One task of a job's present run."""
    record = await board.task(job_id_of(job), task)
    return task_view(record, actions=actions_of(board.runtime, record))


HANDLERS = [list_tasks, get_task]
