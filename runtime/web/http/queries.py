"""The query parameters of a request: checked before the handler.

Rules
-----
- An unknown name, a repeated parameter that may occur once, and an invalid value are refused, with the names that
  exist: a mistyped filter must not return the whole list.
- All faults are reported at once, with only the beginning of each value.
- Values that only the operation can check (states, kinds, cursors) are checked there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_origin

from litestar.params import QueryParameter

from ....actors.times import tells
from .access import PUBLIC
from .problems import FoundWrong, unfit

if TYPE_CHECKING:
    from litestar import Request
    from litestar.handlers.base import BaseRouteHandler

LARGEST = 2**53
"""The largest whole number that every JSON reader knows."""
OWN = "own"
"""`opt={"query": OWN}`: the handler itself refuses unknown names."""
_SHOWN = 60  # characters of a value in a message
_WHOLE = re.compile(r"0|[1-9][0-9]{0,15}")
_NUMBER = re.compile(r"[0-9]{1,300}(\.[0-9]{1,300})?([eE][+-]?[0-9]{1,3})?")


class _Parameter(NamedTuple):
    """A parameter. kind: str, int, float (a point in time) or bool; longest: characters of a text."""

    name: str
    kind: type
    several: bool
    least: int
    most: int
    longest: int | None

    def problem(self, value: str) -> str | None:
        """Return the fault of a value in words; None if it has none."""
        wanted: str | None = None
        if self.kind is int and not (_WHOLE.fullmatch(value) and self.least <= int(value) <= self.most):
            wanted = f"a whole number from {self.least}" + (f" to {self.most}" if self.most < LARGEST else " on")
        elif self.kind is float and not (_NUMBER.fullmatch(value) and tells(float(value))):
            wanted = "a point in time, in UTC epoch seconds as 1767225600"
        elif self.kind is bool and value not in {"true", "false"}:
            wanted = "true or false"
        elif self.longest is not None and len(value) > self.longest:
            wanted = f"a text of at most {self.longest} characters"
        return wanted and f"{self.name} must be {wanted}, not {value[:_SHOWN]!r}"


_known: dict[str, dict[str, _Parameter]] = {}  # by operation id


def check_query(request: Request[Any, Any, Any]) -> None:
    """Check the query before every handler. Raises Problem for what the handler does not take."""
    handler = request.route_handler
    if not request.scope["query_string"] or handler.opt.get("scope") == PUBLIC:
        return
    taken = _parameters_of(handler)
    found: list[FoundWrong] = []
    sent = request.query_params
    for name in sorted(sent.keys()):
        values = sent.getall(name)
        if (one := taken.get(name)) is not None:
            found += _wrong(one, values)
        elif handler.opt.get("query") != OWN:
            there = f"there are: {', '.join(taken)}" if taken else "it takes none"
            found.append(FoundWrong(name[:_SHOWN], f"there is no parameter {name[:_SHOWN]!r} here; {there}"))
    if found:
        raise unfit(found)


def _wrong(taken: _Parameter, values: Sequence[str]) -> list[FoundWrong]:
    if len(values) > 1 and not taken.several:
        return [FoundWrong(taken.name, f"{taken.name} may be given once, not {len(values)} times")]
    return [FoundWrong(taken.name, problem) for value in values if (problem := taken.problem(value)) is not None]


def _parameters_of(handler: BaseRouteHandler) -> dict[str, _Parameter]:
    """Return a handler's parameters by name, from its annotations."""
    name = str(getattr(handler, "operation_id", None))
    if name not in _known:
        found = [
            _of(field.name, field.annotation, field.kwarg_definition)
            for field in handler.parsed_fn_signature.parameters.values()
            if isinstance(field.kwarg_definition, QueryParameter)
        ]
        _known[name] = {one.name: one for one in found}
    return _known[name]


def _of(name: str, annotation: Any, said: QueryParameter) -> _Parameter:
    kinds = get_args(annotation) if get_origin(annotation) is not list and get_args(annotation) else (annotation,)
    several = any(get_origin(kind) is list for kind in kinds)
    kind = next((kind for kind in kinds if kind in {int, float, bool}), str)
    least, most = int(said.ge or 0), int(said.le or LARGEST)
    return _Parameter(said.name or name, kind, several, least, most, said.max_length)
