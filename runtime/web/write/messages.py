"""Messages to jobs and tasks as webhooks send them: `POST /api/jobs/{job}/messages/{name}`, with the value as its body.

Rules
-----
- A body of JSON is the value, whatever its type is said to be; any other body is the value as text, in the charset
  that its type names (UTF-8); an empty one is null. A body that is no text of that charset is refused.
- A browser sends JSON only: the gate refuses what a form of any page could post.
- The header `Idempotency-Key` is the request's key: a webhook that is delivered twice is one message. The parameter
  `request_id` may be used instead, and `by` for the name of its sender, if no token gives one.
- Without these, the key comes from the first header in the job's `request_id_headers` that the request has.
  Its value is an event of the sender, which may send the same event to several jobs, tasks and names: the key is made
  of all of them.
- The answer, the refusals and the scope are those of the action `send` (`actions.py`).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
from litestar import Request, post
from litestar.params import PathParameter, QueryParameter

from ...commands.idempotency import RequestIdReused
from ..http.access import TheCaller
from ..http.context import JobPath, TaskPath, TheBoard, job_id_of
from ..http.problems import Problem
from .actions import LARGEST_BODY, TABLE, Done, Send, Target, perform
from .idempotency import HEADER

if TYPE_CHECKING:
    from ..http.context import Board

AnyRequest: TypeAlias = Request[Any, Any, Any]
NamePath: TypeAlias = Annotated[str, PathParameter(description="The name by which a body receives the message.")]
By: TypeAlias = Annotated[str | None, QueryParameter(description="Who sends it, if no token says so.")]
Key: TypeAlias = Annotated[str | None, QueryParameter(description=f"The request's key, as the header {HEADER}.")]


async def _sent(
    board: TheBoard, caller: TheCaller, request: AnyRequest, target: Target, name: str, by: str | None, key: str | None
) -> Done:
    action = TABLE["job" if target.task is None else "task", "send"]
    keys = request.headers.getall(HEADER, [])
    value = _value(await request.body(), request.content_type[1].get("charset", "utf-8"))
    told = None
    if key is None and not keys and (named := await _named_key(board, request, target, name)) is not None:
        key, told = named
    command = Send(name=name, value=value, by=by, request_id=key)
    try:
        return await perform(board, caller, action, target, command, keys=keys)
    except RequestIdReused:
        if told is None:
            raise
        text = (
            f"The delivery {told} was another message {name!r} before, which was taken. Send a new one under a new id"
        )
        raise RequestIdReused(text) from None


async def _named_key(board: Board, request: AnyRequest, target: Target, name: str) -> tuple[str, str] | None:
    """The key of a request by a header that the job's specification names, and the header in words. Raises Problem."""
    record = await board.job(target.name)
    plan = await board.plans.of(record.id, record.stream)
    for header in () if plan is None else plan.request_id_headers:
        if not (values := request.headers.getall(header, [])):
            continue
        if len(values) > 1 or not values[0].strip() or not values[0].isprintable():
            text = f"the header {header}, which names the delivery, must occur once and hold printable text"
            raise Problem(400, "bad-request", text)
        value = values[0].strip()
        about = msgspec.json.encode([record.id, target.task, name, header.lower(), value])
        return f"{value[:100]} {blake2b(about, digest_size=16).hexdigest()}", f"{value!r:.100} ({header})"
    return None


def _value(body: bytes, charset: str) -> Any:
    """The value in a body: JSON, or text. Raises Problem."""
    if not body.strip():
        return None
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    try:
        return body.decode(charset)
    except (LookupError, ValueError) as error:
        text = (
            f"the body is neither JSON nor text in {charset!r:.40}: {error}. Send bytes as base64 in JSON, or "
            'name its charset ("Content-Type: text/plain; charset=latin-1")'
        )
        raise Problem(422, "specification", text) from error


@post(
    "/api/jobs/{job:str}/messages/{name:str}", operation_id="post_message_to_job", status_code=200, tags=["jobs"],
    opt={"scope": "operate"}, request_max_body_size=LARGEST_BODY,
)  # fmt: skip
async def to_job(
    *, board: TheBoard, caller: TheCaller, request: AnyRequest, job: JobPath, name: NamePath, by: By = None,
    request_id: Key = None,
) -> Done:  # fmt: skip
    """Send a job a message, as a webhook: its value is the body, JSON or text."""
    return await _sent(board, caller, request, Target(job_id_of(job)), name, by, request_id)


@post(
    "/api/jobs/{job:str}/tasks/{task:str}/messages/{name:str}", operation_id="post_message_to_task", status_code=200,
    tags=["tasks"], opt={"scope": "operate"}, request_max_body_size=LARGEST_BODY,
)  # fmt: skip
async def to_task(
    *, board: TheBoard, caller: TheCaller, request: AnyRequest, job: JobPath, task: TaskPath, name: NamePath,
    by: By = None, request_id: Key = None,
) -> Done:  # fmt: skip
    """Send a message that only this task may receive, as a webhook: its value is the body, JSON or text."""
    return await _sent(board, caller, request, Target(job_id_of(job), task), name, by, request_id)


HANDLERS = [to_job, to_task]
