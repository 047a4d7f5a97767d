"""GET /api/jobs/{job}/tasks/{task}/stream: the text that a body emits, as Server-Sent Events.

| event | id | data |
| --- | --- | --- |
| text | the place after it | text: the next part |
| gap | the place after it | count: characters that are missing; text: the same in words |
| end | none | text: the attempt is over. A client that reconnects waits for the next one |
| closing | none | text: why the server ends the stream. A client that reconnects with the last id misses nothing |

Rules
-----
- A stream covers one attempt, as `TaskHandle.stream` does. A client that reconnects with `Last-Event-ID` goes on there,
  if that attempt still runs.
- A client that reads slowly costs no memory: it has a place in the text, which is kept for all.
- Data is JSON on one line: no text can end an event, or begin another one.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import anyio
import msgspec
from litestar import get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import HeaderParameter
from litestar.types import ASGIApp

from ....actors.spec.digits import whole
from ....machines.keywords import number_of
from ...handles.jobs import core_of
from ...journal.batch import encode_readable
from ...observation.events import Dropped
from ...observation.live import TextStream
from ..http.context import JobPath, TaskPath, TheBoard, job_id_of
from ..http.problems import not_found
from .frames import RETRY, closing
from .stream import HEADERS, HEARTBEAT, send_more, watch

if TYPE_CHECKING:
    from litestar.types import Receive, Scope, Send

    from .stream import Streams

OVER = "the attempt is over"
_STREAM = ResponseSpec(
    str,
    description="A stream: `text`, `gap` and, at its end, `end`. docs/http.md says more.",
    media_type="text/event-stream",
    generate_examples=False,
)


class Part(msgspec.Struct, frozen=True):
    """The next part of the text, or why the stream ends."""

    text: str


class Missing(msgspec.Struct, frozen=True):
    """Characters that are missing."""

    count: int
    text: str


class EmittedText:
    """One stream: an ASGI application that answers one request."""

    def __init__(self, streams: Streams, text: TextStream) -> None:
        self._streams = streams
        self._text = text

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - the interface
        """Send text until the attempt is over."""
        self._streams.texts.add(self._text)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(watch, receive, group.cancel_scope)
                with suppress(OSError):  # the client may have disconnected
                    await self._answer(send)
                group.cancel_scope.cancel()
        finally:
            self._streams.texts.discard(self._text)
            self._text.close()

    async def _answer(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await send_more(send, b"retry: %d\n\n" % RETRY)
        while True:
            try:
                with anyio.fail_after(HEARTBEAT):
                    part = await anext(self._text)
            except TimeoutError:
                await send_more(send, b": heartbeat\n\n")
                continue
            except StopAsyncIteration:
                break
            await send_more(send, _frame(part, *self._text.place))
        streams = self._streams
        if self._text in streams.texts and streams.services.is_open:
            end = b"event: end\ndata: %b\n\n" % encode_readable(Part(OVER))
        else:
            end = closing(streams.stopped or "the runtime has closed")
        await send({"type": "http.response.body", "body": end, "more_body": False})


def _frame(part: str | Dropped, token: int, place: int) -> bytes:
    if isinstance(part, Dropped):
        missing = Missing(part.count, f"{number_of(part.count, 'character is', 'characters are')} missing here")
        return b"event: gap\nid: %d-%d\ndata: %b\n\n" % (token, place, encode_readable(missing))
    return b"event: text\nid: %d-%d\ndata: %b\n\n" % (token, place, encode_readable(Part(part)))


@get(
    "/api/jobs/{job:str}/tasks/{task:str}/stream",
    operation_id="stream_task",
    responses={200: _STREAM},
    media_type="text/event-stream",
)
async def stream_task(
    board: TheBoard,
    job: JobPath,
    task: TaskPath,
    last_event_id: Annotated[
        str | None,
        HeaderParameter(name="Last-Event-ID", description="The last id, from a client that reconnects."),
    ] = None,
) -> ASGIApp:
    """Stream the text that a task's body emits as Server-Sent Events: what is kept of it, then as it comes.

    Of the running attempt, or else of the next one; the stream ends with the attempt.
    """
    record = await board.task(job_id_of(job), task)
    token, place = _place(last_event_id)
    board.streams.check_room()
    try:
        handle = await board.services.jobs.find(record.job_id)
    except LookupError:
        raise not_found("job", record.job_id) from None
    return EmittedText(board.streams, core_of(handle).emitted(record.name, token, place))


def _place(last_event_id: str | None) -> tuple[int, int]:
    """The place of a client that reconnects. Any other text counts as no place."""
    token, _, place = (last_event_id or "").partition("-")
    return whole(token) or 0, whole(place) or 0


HANDLERS = [stream_task]
