"""The handlers of the actions: one for each row of the table (`actions.py`), and path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, cast

from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody

from ..http.access import TheCaller
from ..http.context import JobPath, MachinePath, TaskPath, TheBoard, ToolPath, job_id_of
from ..read.workers import WorkerPath, name_of
from .actions import ACTIONS, FIRED, LARGEST_BODY, Action, Done, Send, Target, perform
from .idempotency import HEADER
from .request_body import RequestBody, read_whole

AnyRequest: TypeAlias = Request[Any, Any, Any]
Handler: TypeAlias = Callable[..., Any]


async def _act(
    action: Action, target: Target, data: Any, *, board: TheBoard, caller: TheCaller, request: AnyRequest
) -> Done:
    said = read_whole(b"", action.takes) if data is None else data
    return await perform(board, caller, action, target, said, keys=request.headers.getall(HEADER, []))


def _job(action: Action) -> Handler:
    async def act(*, board: TheBoard, caller: TheCaller, request: AnyRequest, job: JobPath, data: Any = None) -> Done:
        return await _act(action, Target(job_id_of(job)), data, board=board, caller=caller, request=request)

    return act


def _task(action: Action) -> Handler:
    async def act(
        *, board: TheBoard, caller: TheCaller, request: AnyRequest, job: JobPath, task: TaskPath, data: Any = None
    ) -> Done:
        return await _act(action, Target(job_id_of(job), task), data, board=board, caller=caller, request=request)

    return act


def _worker(action: Action) -> Handler:
    async def act(
        *, board: TheBoard, caller: TheCaller, request: AnyRequest, worker: WorkerPath, data: Any = None
    ) -> Done:
        return await _act(action, Target(name_of(board, worker)), data, board=board, caller=caller, request=request)

    return act


def _breaker(action: Action) -> Handler:
    async def act(*, board: TheBoard, caller: TheCaller, request: AnyRequest, tool: ToolPath, data: Any = None) -> Done:
        return await _act(action, Target(tool), data, board=board, caller=caller, request=request)

    return act


def _machine(action: Action) -> Handler:
    async def act(
        *, board: TheBoard, caller: TheCaller, request: AnyRequest, machine: MachinePath, data: Any = None
    ) -> Done:
        return await _act(action, Target(machine), data, board=board, caller=caller, request=request)

    return act


_KINDS: Mapping[str, tuple[Callable[[Action], Handler], Mapping[str, str]]] = {
    "job": (_job, {"": "/api/jobs/{job:str}"}),
    "task": (_task, {"": "/api/jobs/{job:str}/tasks/{task:str}"}),
    "worker": (_worker, {"": "/api/workers/{worker:str}", "supervisor_": "/api/supervisor/workers/{worker:str}"}),
    "breaker": (_breaker, {"": "/api/breakers/{tool:str}"}),
    "machine": (_machine, {"": "/api/machines/{machine:str}"}),
}
"""By kind: how its handlers are made, and their paths (document 002 also has workers under their supervisor)."""


def _handlers(action: Action) -> Iterator[HTTPRouteHandler]:
    make, paths = _KINDS[action.kind]
    for prefix, path in paths.items():
        act = make(action)
        act.__annotations__["data"] = cast("Any", JSONBody)[action.takes | None]
        does = f"{action.word.replace('_', ' ').capitalize()} a {action.kind}"
        if action in FIRED:
            does = f"Fire an event at a {action.kind}"
        act.__doc__ = f"{does}."
        more: dict[str, Any] = {"request_max_body_size": LARGEST_BODY} if action.takes is Send else {}
        yield post(
            f"{path}/{action.word}", operation_id=f"{prefix}{action.word}_{action.kind}", summary=does, status_code=200,
            dto=RequestBody, return_dto=None, opt={"scope": action.scope}, tags=[f"{action.kind}s"], **more,
        )(act)  # fmt: skip


HANDLERS = [handler for action in (*ACTIONS, *FIRED) for handler in _handlers(action)]
