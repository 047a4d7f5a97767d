"""Errors of steps: kept as data in the journal, and made again when a body is replayed.

Rules
- A body sees the same error in its first run and in a replay: an exception that can be made again from the path of its
  class and its arguments, with the same text, is raised itself; any other one as `StepFailed`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...actors.messages.errors import StepFailed
from ...actors.records.step import StepRecord
from ...actors.user_code import contained, is_a
from ...machines import InvalidTransitionError
from ..calling import ErrorInfo
from ..functions.import_paths import find, located, named
from ..text.secrets import Mask
from ..values import NotSerialisable, checked
from .failures import describe

_LARGEST = 64 * 1024
"""Bytes as JSON of the arguments by which an error is made again."""


def path_of(error: BaseException) -> str:
    """The path of an error's class."""
    kind = type(error)
    return f"{named(kind.__module__)}:{kind.__qualname__}"


def recorded(error: Exception, mask: Mask | None) -> tuple[ErrorInfo, msgspec.Raw | None]:
    """The facts of an error, and as JSON what it can be made again from: its arguments, and its own attributes."""
    failure = describe(error, mask)
    try:
        given: list[Any] = list(error.args)
        attributes = vars(error)
        if isinstance(error, InvalidTransitionError):  # JSON holds no sets
            given = [sorted(error.allowed) if one is error.allowed else one for one in given]
            attributes = {**attributes, "allowed": sorted(error.allowed)}
        if is_a(error, OSError) and getattr(error, "filename", None) is not None:
            given += [str(getattr(error, "filename", ""))]
        for said in (given, [str(error)]):
            arguments = msgspec.json.encode([checked(said), _plain(attributes)])
            if len(arguments) > _LARGEST or (mask is not None and mask.finds(msgspec.json.decode(arguments))):
                return failure, None
            again = _made(path_of(error), arguments)
            if type(again) is type(error) and str(again) == str(error):
                return failure, msgspec.Raw(arguments)
    except BaseException as broken:  # the code of the application's exception
        contained(broken)
    return failure, None


def _plain(attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes of an error that JSON can hold: others are lost, in the first run as in a replay."""
    kept: dict[str, Any] = {}
    for name, value in attributes.items():
        try:
            kept[name] = checked(value)
        except NotSerialisable:
            continue
    return kept


def again(row: StepRecord) -> Exception:
    """The error of a failed step, as its body sees it."""
    if row.raw_arguments is not None:
        try:
            return _made(row.error_type or "", bytes(row.raw_arguments))
        except BaseException as broken:  # the error's class has changed since
            contained(broken)
    return failed(row.label, row.error or "", row.error_type or "", row.traceback)


def failed(label: str, text: str, kind: str, traceback: str | None) -> StepFailed:
    """The error of a step whose own exception cannot be made again."""
    name = kind.rpartition(":")[2]
    return StepFailed(f"step {label!r} failed: {name}: {text}" if text else f"step {label!r} failed: {name}",
                      label, name, text, traceback or "")  # fmt: skip


def _made(path: str, arguments: bytes) -> Exception:
    found: Any = find(located(path, None))  # an older version stored `__main__` without its file
    if not (isinstance(found, type) and issubclass(found, Exception)):
        raise TypeError(f"{path} is no class of exceptions")
    given, attributes = msgspec.json.decode(arguments)
    made = found.__new__(found, *given)  # not `__init__`: it may take other arguments than those it passed on
    if not issubclass(found, OSError):
        made.args = tuple(given)
    vars(made).update(attributes)
    if isinstance(made, InvalidTransitionError):
        made.allowed = frozenset(made.allowed)
    return made
