"""The stream of events over HTTP: the parameters of a request."""
# ruff: noqa: ARG001 - the parameters are here to be documented: they are read together, with unknown ones

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import HeaderParameter, QueryParameter
from litestar.types import ASGIApp

from ....actors.messages.notices import SEVERITIES
from ...observation.filters import KINDS
from ..http.context import TheBoard
from ..http.queries import OWN

_STREAM = ResponseSpec(
    str,
    description="A stream: `transition`, `notice`, `gap` and, at its end, `closing`. docs/observation.md says more.",
    media_type="text/event-stream",
    generate_examples=False,
)
_GRAVE = f"{', '.join(SEVERITIES)}. One: this or a higher severity; several: exactly these."


def _several(text: str) -> Any:  # Any: the type of Litestar's parameters
    return QueryParameter(description=text)


@get("/api/events", operation_id="events", responses={200: _STREAM}, media_type="text/event-stream", opt={"query": OWN})
async def events(
    board: TheBoard,
    request: Request[Any, Any, Any],
    job: Annotated[list[str] | None, _several("Events of this job (its id), or of one of several.")] = None,
    workstream: Annotated[list[str] | None, _several("Events of this workstream (its id).")] = None,
    task: Annotated[list[str] | None, _several("Events of this task (its name or id), and of its parts.")] = None,
    entity: Annotated[list[str] | None, _several("Events of the entity with this id.")] = None,
    kind: Annotated[list[str] | None, _several(f"Events of entities of this kind: {', '.join(KINDS)}.")] = None,
    event: Annotated[list[str] | None, _several("Transitions and notices with this event.")] = None,
    severity: Annotated[list[str] | None, _several(_GRAVE)] = None,
    from_state: Annotated[list[str] | None, _several("Transitions that leave this state.")] = None,
    to_state: Annotated[list[str] | None, _several("Transitions that enter this state.")] = None,
    notices: Annotated[bool | None, QueryParameter(description="Whether to send notices, too (default: true).")] = None,
    after: Annotated[
        int | None, QueryParameter(ge=0, description="The number of the transition to begin after.")
    ] = None,
    last_event_id: Annotated[
        str | None,
        HeaderParameter(
            name="Last-Event-ID",
            description="The same, from a client that reconnects; it takes precedence over `after`.",
        ),
    ] = None,
) -> ASGIApp:
    """Stream events as Server-Sent Events: after a given transition, or from now on. Every given filter must match."""
    return board.streams.open(request.query_params.dict(), last_event_id)


HANDLERS = [events]
