"""Reading values into specification Structs: every mismatch becomes a finding, and none is raised.

msgspec converts faster, but stops at the first mismatch and does not look at Structs made in Python. Here:
- `read()` takes a Struct made in Python, or plain values from a file (mappings, lists, scalars), and returns
  a Struct of the right types, however bad the input: a value that does not fit gives a finding, and the
  field's default replaces it.
- A finding's `where` is the path as a user would write it: `tasks[2].retry.max_attempts`.
- Text must be encodable, integers fit in 64 bits and floats be finite, so that no value can stop the
  journal later.
- After `MOST_FINDINGS` the check stops, and a finding says so: a file of a million mistakes ends soon.
- `sound()` is the fast answer for the ordinary case, in C: a Struct for which it is true needs no `read()`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from operator import itemgetter
from types import FunctionType, NoneType
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect

from ...machines.keywords import did_you_mean
from ..user_code import elements, entries, holds_more, is_a, plain, shown
from .digits import whole

S = TypeVar("S", bound=msgspec.Struct)
Path = tuple[str | int, ...]

MOST_VALUES = 50_000_000
"""The most values and characters of one encoded object: a specification, a task's `args`, an event's facts."""
_WHOLE = frozenset({str, int, float, bool, NoneType, FunctionType})
_HOLD = frozenset({list, dict})
_PLAIN = _WHOLE | _HOLD
_NONE_SEEN: tuple[None, Any] = None, None
_flat_kinds: dict[type, tuple[tuple[type, ...], itemgetter[Any]]] = {}
"""By the class of a Struct: the kinds of the fields of the last Struct that had built-in types only, and which of these
fields are lists or dicts.
"""
MOST_FINDINGS = 200
"""The number of findings after which a check stops."""
_DEEPEST = 64  # levels of nesting in args: far beyond use, far below the interpreter's recursion limit
_SHOWN = 80  # characters of a bad value or name that a message repeats
_STEP = 80  # characters of a key in a place
_MESSAGE = 600  # characters of a message that are shown: an error of an imported module may be long


class Finding(msgspec.Struct, frozen=True):
    """One fault of a specification: its message, its place, and what to do about it.

    where: the path of the value ("" for the whole); line: its line in the file, from 1, if there is a file.
    """

    where: str
    message: str
    suggestion: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line is not None else ""
        where = f"{self.where}: " if self.where else ""
        advice = f" ({self.suggestion})" if self.suggestion else ""
        return f"{place}{where}{clipped(self.message, _MESSAGE)}{advice}"


class EnoughFindings(Exception):  # noqa: N818 - it ends the check, and is never shown
    """The check has enough findings and stops."""


def note(findings: list[Finding], finding: Finding) -> None:
    """Add a finding. Raises Enough after the last one, and adds a finding that says so."""
    findings.append(finding)
    if len(findings) >= MOST_FINDINGS:
        text = f"there are more than {MOST_FINDINGS} findings: the check stopped here"
        findings.append(Finding("", text))
        raise EnoughFindings


def where(path: Path) -> str:
    """Write a path as in `tasks[2].retry.max_attempts`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
            continue
        step = clipped(step, _STEP)  # noqa: PLW2901 - it is the same step
        if step.replace("_", "").replace("-", "").isalnum():
            text += f".{step}" if text else step
        else:
            text += f"[{step!r}]"
    return text


def around(place: str) -> Iterator[str]:
    """A finding's place, and the places that contain it, from the inside."""
    yield place
    while cut := max(place.rfind("."), place.rfind("["), 0):
        place = place[:cut]
        yield place


def beside(told: Sequence[Finding], more: Sequence[Finding]) -> list[Finding]:
    """The findings of `more` whose place, or a place around it, has no finding in `told`."""
    places = {finding.where for finding in told}
    return [finding for finding in more if places.isdisjoint(around(finding.where))]


def sound(value: msgspec.Struct) -> bool:
    """Whether a Struct made in Python certainly has the types it declares. False when it may not."""
    try:
        flat = _is_flat(value)
        if not flat and (_has_odd(value) or holds_more(MOST_VALUES, value)):
            return False  # the encoder sees bounded values of built-in types only
        read = _decoder(type(value)).decode(_ENCODER.encode(value))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return False
    return (flat and _PLAIN.issuperset(map(type, msgspec.structs.astuple(value)))) or _of_same_classes(value, read)


def _of_same_classes(value: object, read: object) -> bool:
    """Whether Structs in a value have the classes as which they were read: a `Check` may have a `Hook`'s fields."""
    if isinstance(read, msgspec.Struct):
        if not isinstance(value, type(read)):
            return False
        for mine, other in zip(msgspec.structs.astuple(value), msgspec.structs.astuple(read), strict=True):
            if type(mine) not in _WHOLE and not _of_same_classes(mine, other):
                return False
        return True
    if type(value) is list:
        return all(map(_of_same_classes, cast("list[object]", value), cast("list[object]", read)))
    if type(value) is dict:
        given, wanted = cast("dict[object, object]", value).values(), cast("dict[object, object]", read).values()
        return all(map(_of_same_classes, given, wanted))
    return True


def _is_flat(value: msgspec.Struct) -> bool:
    """Whether a Struct holds only scalars, and lists and dicts of scalars: the ordinary case, fast."""
    fields: tuple[object, ...] = msgspec.structs.astuple(value)
    kinds = tuple(map(type, fields))
    flat_kinds, holders = _flat_kinds.get(type(value), _NONE_SEEN)
    if kinds == flat_kinds:  # most tasks have the same kinds of values in their forty fields as the one before
        fields = holders(fields)
    elif _PLAIN.issuperset(kinds):
        places = [place for place, kind in enumerate(kinds) if kind in _HOLD]
        if len(places) > 1:  # with one place the getter returns no tuple
            _flat_kinds[type(value)] = kinds, itemgetter(*places)
    else:
        parts = [one for one in fields if type(one) not in _PLAIN]
        if not all(issubclass(type(one), msgspec.Struct) and _is_flat(cast("msgspec.Struct", one)) for one in parts):
            return False
        fields = tuple(one for one in fields if type(one) in _PLAIN)
    for one in filter(None, fields):
        kind = type(one)
        if kind not in _HOLD:
            continue
        if not _WHOLE.issuperset(map(type, cast("Sequence[object]", one))):
            return False
        if kind is dict and not _WHOLE.issuperset(map(type, cast("dict[object, object]", one).values())):
            return False
    return True


def _has_odd(value: msgspec.Struct) -> bool:
    """Whether a container in it is of a subclass, whose methods may return other items."""
    kinds = set(map(type, msgspec.structs.astuple(value))) - {list, tuple, dict}
    return any(issubclass(kind, (list, tuple, dict)) for kind in kinds)


def read(value: object, kind: type[S]) -> tuple[S, list[Finding]]:
    """Make a Struct of type `kind` from a Struct, or from plain values of a file. Never raises."""
    reading = _Reading(in_python=isinstance(value, msgspec.Struct))
    got: object = None
    with suppress(EnoughFindings):
        got, _ = reading.any(value, _layout(kind), ())
    return got if isinstance(got, kind) else cast("S", _blank(kind)), reading.findings


def plain_problem(value: object) -> str | None:
    """The reason why a value changes when it is written as JSON and read back; else None."""
    if holds_more(MOST_VALUES, value):
        return f"it holds more than {MOST_VALUES:,} values and characters"
    return _plain_problem(plain(value), 0)


def _plain_problem(value: object, depth: int) -> str | None:
    match value:
        case None | bool():
            return None
        case str():
            return _text_problem(value)
        case int():
            return None if -(2**63) <= value < 2**63 else f"{short(value)} does not fit in 64 bits"
        case float():
            return None if math.isfinite(value) else f"{value!r} is not a finite number"
        case _ if depth >= _DEEPEST:
            return f"it is nested more than {_DEEPEST} levels deep"
        case list() | tuple():
            items = elements(cast("object", value))
            return next((problem for item in items if (problem := _plain_problem(plain(item), depth + 1))), None)
        case dict():
            for key, item in entries(cast("object", value)):
                if not is_a(key, str):
                    return f"the key {short(key)} is {_kind(key)}, and JSON knows only text"
                if problem := _text_problem(plain(key)) or _plain_problem(plain(item), depth + 1):
                    return problem
            return None
        case _:
            return f"{short(value)} is {_kind(value)}, which JSON does not know"


class _Reading:
    """One run of `read()`, and its findings. Each method returns the value to use, and whether it fitted.

    in_python: the specification was made in Python, so findings name classes, and not tables of a file.
    """

    def __init__(self, *, in_python: bool) -> None:
        self.findings: list[Finding] = []
        self._in_python = in_python

    def any(self, value: object, kind: inspect.Type, path: Path) -> tuple[object, bool]:
        match kind:
            case inspect.UnionType():
                return self.union(value, kind, path)
            case inspect.StructType():
                return self.struct(value, kind, path)
            case inspect.ListType():
                return self.list(value, kind, path)
            case inspect.DictType():
                return self.dict(value, kind, path)
            case inspect.AnyType():
                return value, True
            case _:
                if problem := _scalar_problem(value, kind):
                    return self.bad(path, problem, _advice(value, kind))
                return value, True

    def union(self, value: object, kind: inspect.UnionType, path: Path) -> tuple[object, bool]:
        for option in kind.types:
            if _suits(value, option):
                return self.any(value, option, path)
        options = [option for option in kind.types if not isinstance(option, inspect.NoneType)]
        near = next((option for option in options if _is_of(value, option)), None)
        if len(options) == 1 or near is not None:
            return self.any(value, near or options[0], path)
        wanted = " or ".join(_wanted(option) for option in options)
        return self.bad(path, f"must be {wanted}, not {_told(value)}", _advice(value, options[-1]))

    def bad(self, path: Path, message: str, suggestion: str | None) -> tuple[None, bool]:
        note(self.findings, Finding(where(path), message, suggestion))
        return None, False

    def struct(self, value: object, kind: inspect.StructType, path: Path) -> tuple[object, bool]:
        given: dict[object, object]
        if isinstance(value, kind.cls):
            given = {field.name: getattr(value, field.name) for field in kind.fields}
        elif isinstance(value, Mapping):
            given = dict(cast("Mapping[object, object]", value))
        else:
            if self._in_python:
                wanted = _with_article(kind.cls.__name__)
                return self.bad(path, f"must be {wanted}, not {_told(value)}", f"write {_example(value, kind)}")
            return self.bad(path, f"must be a table of settings, not {_told(value)}", None)
        fields = {field.name: field for field in kind.fields}
        for key in given:
            if key not in fields:
                suggestion = did_you_mean(str(key), list(fields)) or f"known here: {', '.join(fields)}"
                self.bad((*path, str(key)), f"unknown key {short(key)}", suggestion)
        ready: dict[str, object] = {}
        for name, field in fields.items():
            if name in given:
                got, fitted = self.any(given[name], field.type, (*path, name))
                if fitted:
                    ready[name] = got
            elif field.required:
                self.bad((*path, name), f"{name!r} is missing", f"every {kind.cls.__name__.lower()} needs one")
        return _blank(kind.cls, ready), True

    def list(self, value: object, kind: inspect.ListType, path: Path) -> tuple[object, bool]:
        if not isinstance(value, list | tuple):
            advice = f"write it in brackets: [{short(value)}]" if isinstance(value, str) else None
            if self._in_python and isinstance(kind.item_type, inspect.StructType):
                fits = isinstance(value, kind.item_type.cls)
                advice = "write it in brackets" if fits else f"write [{_example(value, kind.item_type)}]"
            return self.bad(path, f"must be a list, not {_told(value)}", advice)
        got = [
            self.any(item, kind.item_type, (*path, index)) for index, item in enumerate(elements(cast("object", value)))
        ]
        if isinstance(kind.item_type, inspect.StructType):
            # The list keeps its length, so that the indexes in later findings are those of the user.
            return [item if fitted else _blank(kind.item_type.cls) for item, fitted in got], True
        return [item for item, fitted in got if fitted], True

    def dict(self, value: object, kind: inspect.DictType, path: Path) -> tuple[object, bool]:
        if not isinstance(value, Mapping):
            if not self._in_python:
                return self.bad(path, f"must be a table, not {_told(value)}", None)
            of = kind.value_type
            advice = f"write {{name: {of.cls.__name__}(...)}}" if isinstance(of, inspect.StructType) else None
            return self.bad(path, f"must be a dict, not {_told(value)}", advice)
        ready: dict[object, object] = {}
        for key, item in cast("Mapping[object, object]", value).items():
            if problem := _scalar_problem(key, kind.key_type):
                self.bad((*path, str(key)), f"the key {problem}", _advice(key, kind.key_type))
                continue
            got, fitted = self.any(item, kind.value_type, (*path, cast("str", key)))
            if fitted:
                ready[key] = got
        return ready, True


def _suits(value: object, kind: inspect.Type) -> bool:
    """Whether a value is meant as this member of a union, even with wrong content."""
    match kind:
        case inspect.ListType():
            return isinstance(value, list | tuple)
        case inspect.StructType() | inspect.DictType():
            return isinstance(value, Mapping | msgspec.Struct)
        case _:
            return _scalar_problem(value, kind) is None


def _is_of(value: object, kind: inspect.Type) -> bool:
    """Whether a scalar has the type of a union's member, even if it breaks constraints."""
    match kind:
        case inspect.StrType():
            return isinstance(value, str)
        case inspect.IntType():
            return isinstance(value, int) and not isinstance(value, bool)
        case inspect.FloatType():
            return isinstance(value, int | float) and not isinstance(value, bool)
        case _:
            return False


def _scalar_problem(value: object, kind: inspect.Type) -> str | None:
    match kind:
        case inspect.StrType() if isinstance(value, str):
            return _text_problem(value)
        case inspect.BoolType() if isinstance(value, bool):
            return None
        case inspect.IntType() if isinstance(value, int) and not isinstance(value, bool):
            return plain_problem(value)
        case inspect.FloatType() if isinstance(value, int | float) and not isinstance(value, bool):
            return plain_problem(value)
        case inspect.NoneType() if value is None:
            return None
        case inspect.LiteralType() if value in kind.values:
            return None
        case _:
            return f"must be {_wanted(kind)}, not {_told(value)}"


def _wanted(kind: inspect.Type) -> str:
    match kind:
        case inspect.StrType():
            return "text"
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "a whole number"
        case inspect.FloatType():
            return "a number"
        case inspect.LiteralType():
            return "one of " + ", ".join(repr(value) for value in kind.values)
        case inspect.ListType():
            return "a list"
        case inspect.StructType() | inspect.DictType():
            return "a table"
        case _:
            return "nothing"


def _example(value: object, kind: inspect.StructType) -> str:
    """How a Struct is made of a value that was given in its place, as `Retry(max_attempts=3)` in place of 3."""
    fields = {field.name: field.type for field in kind.fields}
    if "run" in fields and callable(value):
        name = cast("FunctionType", value).__name__ if is_a(value, FunctionType) else ""
        given = f"run={name if name.isidentifier() else '...'}"
    elif "command" in fields and is_a(value, (list, str)):
        given = f"command={short(value)}"
    else:
        name, wanted = next(iter(fields.items()))
        options = wanted.types if isinstance(wanted, inspect.UnionType) else (wanted,)
        fits = value is not None and any(_scalar_problem(value, option) is None for option in options)
        given = f"{name}={short(value) if fits else '...'}"
    needed = [f"{one.name}=..., " for one in kind.fields if one.required and not given.startswith(f"{one.name}=")]
    return f"{kind.cls.__name__}({''.join(needed)}{given})"


def _advice(value: object, kind: inspect.Type) -> str | None:
    match kind:
        case inspect.LiteralType() if isinstance(value, str):
            return did_you_mean(value, [str(one) for one in kind.values])
        case inspect.StrType() if isinstance(value, bool | int | float) or hasattr(value, "isoformat"):
            return "write it in quotes"
        case inspect.IntType() | inspect.FloatType() if isinstance(value, str) and whole(value.strip()) is not None:
            return "write it without quotes"
        case inspect.BoolType() if isinstance(value, str):
            return "write true or false, without quotes"
        case _:
            return None


def _text_problem(value: str) -> str | None:
    try:
        value.encode()
    except UnicodeEncodeError:
        return f"{short(value)} holds half a character (a lone surrogate), which cannot be stored"
    return None


def _told(value: object) -> str:
    return "nothing" if value is None else f"{_kind(value)} ({short(value)})"


def _kind(value: object) -> str:
    match value:
        case bool():
            return "true or false"
        case str():
            return "text"
        case int() | float():
            return "a number"
        case list() | tuple():
            return "a list"
        case Mapping():
            return "a table"
        case _:
            return _with_article(type(value).__name__)


def _with_article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def short(value: object) -> str:
    """The repr of a value for a message, cut if it is long."""
    return clipped(shown(value), _SHOWN)


def clipped(text: str, most: int) -> str:
    """A text of at most `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _blank(kind: type[msgspec.Struct], ready: Mapping[str, object] | None = None) -> Any:
    """Make a Struct with "" in the required fields that are missing."""
    return kind(**{**_empty(kind), **(ready or {})})


def _opaque(_: object) -> list[list[object]]:
    return [[]]  # a value that only fields of type Any accept: functions and strategies


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_opaque, uuid_format="bytes")  # msgpack distinguishes bytes from text


@lru_cache
def _empty(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {field.name: "" for field in msgspec.structs.fields(kind) if field.required}  # required fields are names


@lru_cache  # a call takes 20 ms for a Workstream, which has a hundred fields
def _layout(kind: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(kind)


@lru_cache
def _decoder(kind: type[msgspec.Struct]) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)
