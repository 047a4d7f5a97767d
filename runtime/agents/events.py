"""The text of a model, taken from the events of its answer as they arrive."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import AgentStreamEvent, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_ai.tools import RunContext

if TYPE_CHECKING:
    from pydantic_ai.agent import EventStreamHandler


def emitting(emit: Callable[[str], object], then: EventStreamHandler[Any] | None) -> EventStreamHandler[Any]:
    """A handler of events that emits each piece of the model's text, and hands all events on to `then`."""

    async def handler(ctx: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
        seen = _emitted(emit, events)
        if then is not None:
            await then(ctx, seen)
        async for _ in seen:  # the events that `then` has not read
            pass

    return handler


async def _emitted(
    emit: Callable[[str], object], events: AsyncIterable[AgentStreamEvent]
) -> AsyncIterator[AgentStreamEvent]:
    async for event in events:
        if text := _text_of(event):
            emit(text)
        yield event


def _text_of(event: AgentStreamEvent) -> str:
    match event:
        case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
            return text
        case _:
            return ""
