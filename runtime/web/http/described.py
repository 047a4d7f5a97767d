"""The interface described by itself: OpenAPI 3.1, made from the handlers and the Structs that they take and give.

Rules
-----
- Every answer that an operation may give is described, also those that are no success: what any request can meet on its
  way, and what can go wrong with what it asks for.
- It is made when it is first asked for, and kept: it does not change while a board is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
from litestar import Litestar, Request, Response, get
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig

from ...dispatch.threads import in_lane
from ..read.health import VERSION
from .context import root_of
from .problems import MEDIA_TYPE, ProblemDetails

_ANY = (400, 401, 403, 404, 405, 413, 421, 422, 429, 500, 503)
"""What every operation may be answered with: by the gate, for want of a scope, by the runtime's state, or its own."""
_POSTED = (409, 415)
_TEXTS = {
    400: "What was sent cannot be read.", 401: "A token is needed, and none was shown, or a wrong one.",
    403: "Who asks may not do that.", 404: "There is no such thing.", 405: "That is not done to this.",
    409: "The state does not allow it; the answer says what it does.", 413: "What was sent is too large.",
    415: "What was sent is not said to be JSON.", 416: "No such part of the output.",
    421: "The board does not have the name that it was asked by.", 422: "What was sent is not what is taken here.",
    429: "Too many wrong tokens, or too many streams.", 500: "A mistake of Callboard's own.",
    503: "Nothing is taken now: the runtime is stopping, or its journal cannot be written.",
}  # fmt: skip
_PARTS = {
    "206": "A part of the output.", "304": "It is still the same.",
}  # fmt: skip
_CREATING = frozenset({"/api/jobs", "/api/workers"})  # of nothing, nothing is made
_REF = "#/components/schemas/{name}"
_PROBLEM = {"content": {MEDIA_TYPE: {"schema": {"$ref": _REF.format(name="ProblemDetails")}}}}


def describing(handlers: Sequence[HTTPRouteHandler]) -> HTTPRouteHandler:
    """The handler that tells what these handlers do."""
    made: list[dict[str, Any]] = []

    @get("/api/openapi.json", include_in_schema=False)
    async def get_description(request: Request[Any, Any, Any]) -> Response[bytes]:
        if not made:
            made.append(await in_lane("work", _description, handlers))
        here = [{"url": root_of(request.scope) or "/"}]
        return Response(msgspec.json.encode(made[0] | {"servers": here}), media_type="application/json")

    return get_description


def _description(handlers: Sequence[HTTPRouteHandler]) -> dict[str, Any]:
    """The document, but where it is.

    An application of their own describes the handlers: what it adds to be read itself is not ours.
    """
    config = OpenAPIConfig(
        title="Callboard",
        version=VERSION,
        description="Durable, supervised jobs: docs/http.md says what holds for all.",
    )
    given = {name: Provide(lambda: None, sync_to_thread=False) for name in ("board", "caller")}
    app = Litestar(handlers, dependencies=given, openapi_config=config, logging_config=None)
    schema: dict[str, Any] = app.openapi_schema.to_schema()
    _, components = msgspec.json.schema_components([ProblemDetails], ref_template=_REF)
    schema.setdefault("components", {}).setdefault("schemas", {}).update(components)
    schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    schema["security"] = [{}, {"token": []}]
    schemas = schema["components"]["schemas"]
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            if isinstance(operation, dict):
                _complete(path, method, cast("dict[str, Any]", operation))
                if path not in _CREATING:
                    _optional_body(cast("dict[str, Any]", operation), schemas)
    return schema


def _complete(path: str, method: str, operation: dict[str, Any]) -> None:
    responses: dict[str, Any] = operation["responses"]
    codes = [*_ANY, *(_POSTED if method == "post" else ())]
    if path.endswith("/output"):
        codes.append(416)
        responses["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
        responses["206"] = {**responses["200"], "description": _PARTS["206"]}
        responses["304"] = {"description": _PARTS["304"]}
    for code in codes:
        responses[str(code)] = {"description": _TEXTS[code], **_PROBLEM}


def _optional_body(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Say that a body may be left out which has to say nothing: nothing at all is an empty table."""
    if (body := operation.get("requestBody")) is not None:
        said: str = body["content"]["application/json"]["schema"].get("$ref", "")
        body["required"] = bool(schemas.get(said.rpartition("/")[2], {"required": True}).get("required"))
