"""Request bodies: read whole, so that all faults are reported at once.

Rules
-----
- A body is JSON, and declared as such (a form, which any page of any site may post, is not). An empty body is an empty
  table.
- Invalid JSON is a 400; valid JSON that the operation does not take is a 422 with all findings. Types are not
  converted: a number is not a text, and unknown keys are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, get_args

import msgspec
from litestar.dto import AbstractDTO

from ....actors.spec.schema import plain_problem, read
from ....actors.times import cooldown_of, seconds
from ...commands.author import name_of, reason_of
from ...commands.idempotency import check_request_id
from ..http.problems import FoundWrong, Problem, unfit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from litestar.dto.data_structures import DTOFieldDefinition
    from litestar.typing import FieldDefinition

S = TypeVar("S", bound=msgspec.Struct)
JSON = "application/json"


def _plain(value: object) -> None:
    if problem := plain_problem(value):
        raise ValueError(f"it cannot be kept: {problem}")


def _no_author(metadata: Mapping[str, object]) -> None:
    _plain(metadata)
    if "by" in metadata:
        raise ValueError("give the name in the field `by`, beside the metadata")


CHECKS: Mapping[str, Callable[[Any], object]] = {
    "by": name_of, "reason": reason_of, "request_id": check_request_id, "deadline": seconds,
    "cooldown": cooldown_of,
    "metadata": _no_author,
}  # fmt: skip
"""Checks of a field's value beyond its type, by field name. They raise ValueError or TypeError."""


def read_whole(body: bytes, kind: type[S]) -> S:
    """Read a body. Raises Problem."""
    given = _json(body)
    said, found = read({} if given is None else given, kind)
    wrong = [FoundWrong(one.where, one.message, one.suggestion) for one in found]
    places = {one.where for one in wrong}
    for name, check in CHECKS.items():
        value = getattr(said, name, None)
        if value is None or name in places:
            continue
        try:
            check(value)
        except (ValueError, TypeError) as error:
            wrong.append(FoundWrong(name, str(error)))
    if wrong:
        raise unfit(wrong)
    return said


def _json(body: bytes) -> object:
    try:
        return msgspec.json.decode(body) if body.strip() else None
    except RecursionError:
        raise Problem(400, "bad-request", "the body's JSON is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise Problem(400, "bad-request", f"the body is not valid JSON: {error}") from None


class RequestBody(AbstractDTO[Any]):
    """Reads a handler's `data` by `read_whole`, as its annotated Struct; None for no body."""

    _kinds: ClassVar[dict[str, type[msgspec.Struct]]] = {}

    @classmethod
    def create_for_field_definition(
        cls, field_definition: FieldDefinition, handler_id: str, backend_cls: object = None
    ) -> None:
        """Note the Struct that a handler takes."""
        del backend_cls
        cls._kinds[handler_id] = _struct_of(field_definition.annotation)

    @classmethod
    def generate_field_definitions(cls, model_type: type[Any]) -> Iterator[DTOFieldDefinition]:  # type: ignore[override]
        """Yield no fields: the Struct is used itself."""
        del model_type
        yield from ()

    @classmethod
    def detect_nested_field(cls, field_definition: FieldDefinition) -> bool:
        """Return False: no field is nested."""
        del field_definition
        return False

    @classmethod
    def create_openapi_schema(cls, field_definition: FieldDefinition, handler_id: str, schema_creator: Any) -> Any:
        """Return the Struct's schema, which the framework makes."""
        kind = cls._kinds[handler_id]
        return schema_creator.for_field_definition(field_definition.from_annotation(kind))

    def decode_bytes(self, value: bytes) -> Any:
        """Read a body. Raises Problem."""
        connection = cast("Any", self.asgi_connection)  # pyright: ignore[reportUnknownMemberType]
        sent_as: str = connection.headers.get("content-type", "")
        if sent_as.partition(";")[0].strip().lower() != JSON:
            text = f"the body must be {JSON}, not {repr(sent_as[:80]) if sent_as else 'without a type'}"
            raise Problem(415, "media-type", text)
        return read_whole(value, self._kinds[connection.route_handler.handler_id])


def _struct_of(annotation: Any) -> type[msgspec.Struct]:
    kinds: Iterable[Any] = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    return cast("type[msgspec.Struct]", next(kind for kind in kinds if kind is not type(None)))
