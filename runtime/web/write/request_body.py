"""What is posted, read whole: everything that is wrong with it is told at once.

Rules
-----
- It is JSON, and said to be (a form, which any page of any site may post, is not). Nothing at all is an empty table.
- What is no JSON is a 400; what is, and is not what the operation takes, a 422 with all findings. Types are not
  guessed: a number is no text, and unknown keys are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, get_args

import msgspec
from litestar.dto import AbstractDTO

from ....actors.spec.schema import plain_problem, read
from ....actors.spec.times import seconds
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
        raise ValueError("who says so is said as `by`, beside the metadata")


CHECKS: Mapping[str, Callable[[Any], object]] = {
    "by": name_of, "reason": reason_of, "request_id": check_request_id, "deadline": seconds, "cooldown": seconds,
    "metadata": _no_author,
}  # fmt: skip
"""What is asked of a field beyond its type, by its name; it raises ValueError or TypeError."""


def read_whole(body: bytes, kind: type[S]) -> S:
    """What a body says. Raises Problem."""
    given = _json(body)
    said, found = read({} if given is None else given, kind)
    wrong = [FoundWrong(one.where, one.message, one.suggestion) for one in found]
    told = {one.where for one in wrong}
    for name, check in CHECKS.items():
        value = getattr(said, name, None)
        if value is None or name in told:
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
        raise Problem(400, "bad-request", "the body is no JSON that is read here: it is nested too deep") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise Problem(400, "bad-request", f"the body is no JSON: {error}") from None


class Said(AbstractDTO[Any]):
    """Has a handler's `data` read by `read_whole`, as the Struct that it is annotated with; None for no body."""

    _kinds: ClassVar[dict[str, type[msgspec.Struct]]] = {}

    @classmethod
    def create_for_field_definition(
        cls, field_definition: FieldDefinition, handler_id: str, backend_cls: object = None
    ) -> None:
        """Know what a handler takes."""
        del backend_cls
        cls._kinds[handler_id] = _struct_of(field_definition.annotation)

    @classmethod
    def generate_field_definitions(cls, model_type: type[Any]) -> Iterator[DTOFieldDefinition]:  # type: ignore[override]
        """None: the Struct stands for itself."""
        del model_type
        yield from ()

    @classmethod
    def detect_nested_field(cls, field_definition: FieldDefinition) -> bool:
        """None is."""
        del field_definition
        return False

    @classmethod
    def create_openapi_schema(cls, field_definition: FieldDefinition, handler_id: str, schema_creator: Any) -> Any:
        """The schema of the Struct, which the framework's own creator makes."""
        kind = cls._kinds[handler_id]
        return schema_creator.for_field_definition(field_definition.from_annotation(kind))

    def decode_bytes(self, value: bytes) -> Any:
        """What a body says. Raises Problem."""
        connection = cast("Any", self.asgi_connection)  # pyright: ignore[reportUnknownMemberType]
        sent_as: str = connection.headers.get("content-type", "")
        if sent_as.partition(";")[0].strip().lower() != JSON:
            text = f"what is posted here is {JSON}, and not {repr(sent_as[:80]) if sent_as else 'of no type'}"
            raise Problem(415, "media-type", text)
        return read_whole(value, self._kinds[connection.route_handler.handler_id])


def _struct_of(annotation: Any) -> type[msgspec.Struct]:
    kinds: Iterable[Any] = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    return cast("type[msgspec.Struct]", next(kind for kind in kinds if kind is not type(None)))
