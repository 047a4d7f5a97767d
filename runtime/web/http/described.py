"""The interface's description in OpenAPI 3.1, made from the handlers and their Structs.

Rules
-----
- Every answer of an operation is described, errors included: those of any request, and those of the operation.
- It is made on first use, and kept: it does not change during a board's life.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
from litestar import Litestar, Request, Response, get
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig

from ...dispatch.threads import in_thread
from ..read.health import VERSION
from .context import root_of
from .problems import MEDIA_TYPE, ProblemDetails

_ANY = (400, 401, 403, 404, 405, 413, 421, 422, 429, 500, 503)
"""Statuses that every operation may have: by the gate, a missing scope, the runtime's state, or its own checks."""
_POSTED = (409, 415)
_TEXTS = {
    400: "The request cannot be read.", 401: "A token is needed; the request has none, or a wrong one.",
    403: "The caller may not do that.", 404: "The resource does not exist.", 405: "The method is not allowed here.",
    409: "The state does not allow it; the answer lists what it allows.", 413: "The request is too large.",
    415: "The request does not declare JSON.", 416: "The output does not have that part.",
    421: "The request's host is not this board's.", 422: "The request's content is invalid.",
    429: "Too many wrong tokens, streams, or unread messages to a job.", 500: "A fault of Callboard.",
    503: "The runtime accepts nothing now: it is stopping, or its journal cannot be written.",
}  # fmt: skip
_PARTS = {
    "206": "A part of the output.", "304": "The output has not changed.",
}  # fmt: skip
_CREATING = frozenset({"/api/jobs", "/api/workers"})  # an empty body creates nothing
_REF = "#/components/schemas/{name}"
_PROBLEM = {"content": {MEDIA_TYPE: {"schema": {"$ref": _REF.format(name="ProblemDetails")}}}}


def describing(handlers: Sequence[HTTPRouteHandler]) -> HTTPRouteHandler:
    """Make the handler that describes these handlers."""
    made: list[dict[str, Any]] = []

    @get("/api/openapi.json", include_in_schema=False)
    async def get_description(request: Request[Any, Any, Any]) -> Response[bytes]:
        if not made:
            made.append(await in_thread("work", _description, handlers))
        here = [{"url": root_of(request.scope) or "/"}]
        return Response(msgspec.json.encode(made[0] | {"servers": here}), media_type="application/json")

    return get_description


def _description(handlers: Sequence[HTTPRouteHandler]) -> dict[str, Any]:
    """Make the document, without its servers.

    A second application describes the handlers, so that the first one has no routes of the framework's description.
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
    if "/messages/" in path:
        body: dict[str, Any] = {"application/json": {"schema": {}}, "text/plain": {"schema": {"type": "string"}}}
        operation["requestBody"] = {"required": False, "content": body}
    for code in codes:
        responses[str(code)] = {"description": _TEXTS[code], **_PROBLEM}


def _optional_body(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Mark a body without required fields as optional: an empty body is an empty table."""
    if (body := operation.get("requestBody")) is not None:
        said: str = body["content"]["application/json"]["schema"].get("$ref", "")
        if said:
            body["required"] = bool(schemas.get(said.rpartition("/")[2], {"required": True}).get("required"))
