"""Checks values that bodies return or give to the runtime: JSON must hold them and return them unchanged.

No value may stop the journal, and no value may come back from it changed. So these are refused, with their place: types
other than dict, list, tuple, str, int, float, bool and None; keys that are not strings; integers beyond 64 bits; NaN
and the infinities; strings with lone surrogates; and nesting deeper than `DEEPEST` (so also a value that contains
itself). Tuples become lists, subclasses their base: as they would after a restart.

The size is checked during the copy, not after it: a few lists that contain one another several times stand for more
values than any memory holds. Each value counts with its minimum size in JSON, a list or a dict with `WEIGHT` bytes
more; the total may be `LARGEST` bytes.

A value may have its own code: a subclass whose iteration raises or never ends, a class that misreports its type. An
error from that code is a refusal like any other; a subclass may yield at most `MOST` values; and only its iteration is
called. A dict that another thread changes meanwhile is refused, too: its content is not known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from ..actors.user_code import class_name, contained, holds_more, kind_name, message_of, shown

LARGEST = 256 * 1024 * 1024
"""Maximum bytes as JSON of a result, of heartbeat details and of a checkpoint: databases have limits of their own."""
LARGE = 4 * 1024 * 1024
WEIGHT = 16
DEEPEST = 100
MOST = 1_000_000
"""Maximum values from subclasses of dict, list and tuple: their own iteration may never end."""
_TOO_LARGE = f"WHERE cannot be kept: more than {LARGEST:,} bytes; write a file, and give its path"
_LENGTHS: dict[type, Any] = {kind: kind.__dict__["__len__"] for kind in (dict, list, tuple)}
_LEAST, _MOST = -(2**63), 2**63 - 1


class NotSerialisable(TypeError):  # noqa: N818 - the name of the recorded error, in Python's spelling
    """The value cannot be stored. Use dicts with string keys, lists, strings, numbers, booleans and None."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class _Unfit(Exception):  # noqa: N818 - as above; it collects its place on the way up
    """Why a value cannot be stored, with WHERE for its place."""

    def __init__(self, text: str, *, placed: bool = True) -> None:
        super().__init__(text)
        self.text = text
        self.placed = placed  # whether the place is useful
        self.steps: list[str] = []

    def at(self, what: str) -> str:
        where = what + "".join(reversed(self.steps) if self.placed else ())
        if len(where) > 200:
            where = f"{where[:200]}..."
        return self.text.replace("WHERE", where, 1)


def checked(value: Any, what: str = "result") -> Any:
    """Copy `value` into plain JSON types. Raises NotSerialisable, naming the place, if that is impossible."""
    if value is None:
        return None
    try:
        return _Copy().whole(value)
    except _Unfit as unfit:
        text = unfit.at(what)
    except BaseException as error:
        text = f"{what} cannot be read: its own code raised {message_of(contained(error))}; use plain dicts and lists"
    raise NotSerialisable(text)


def _kind(value: object) -> type[object]:
    return type(value)


class _Copy:
    """The copy of one value into plain types."""

    __slots__ = ("_given", "_looks_at", "_size", "_whole")

    def __init__(self) -> None:
        self._given = 0  # values yielded by custom iterations
        self._size = 0  # minimum size in bytes
        self._looks_at = LARGE  # size from which `_is_vast` checks the whole value
        self._whole: object = None

    def whole(self, value: Any) -> Any:
        self._whole = value
        copy = self.plain(value, 0)
        self._weigh(0)
        return copy

    def plain(self, value: Any, depth: int) -> Any:
        kind = _kind(value)
        if value is None or kind is bool:
            return value
        if issubclass(kind, str):
            return self._text(value)
        if issubclass(kind, int):
            number = int.__int__(value)
            if not _LEAST <= number <= _MOST:
                raise _Unfit("WHERE is an integer beyond 64 bits; make it a string")
            return number
        if issubclass(kind, float):
            real = float.__float__(value)
            if not math.isfinite(real):
                raise _Unfit(f"WHERE is {real!r}, which JSON cannot hold; use None or a string")
            return real
        if depth >= DEEPEST:
            raise _Unfit(
                f"WHERE is nested deeper than {DEEPEST} levels, or contains itself: there is a {kind_name(kind)} at "
                f"level {depth + 1}",
                placed=False,
            )
        if issubclass(kind, dict):
            self._weigh(WEIGHT + 4 * _LENGTHS[dict](value))  # for each item a comma, a colon, quotation marks
            return self._plain_dict(value.items() if kind is dict else self._bounded(value.items()), depth + 1)
        if issubclass(kind, list):
            self._weigh(WEIGHT + 2 * _LENGTHS[list](value))  # for each item a digit and a comma
            # a copy: another thread may continue to fill it
            return self._plain_list(list(value) if kind is list else self._bounded(value), depth + 1)
        if issubclass(kind, tuple):
            self._weigh(WEIGHT + 2 * _LENGTHS[tuple](value))
            return self._plain_list(value if kind is tuple else self._bounded(value), depth + 1)
        raise _Unfit(
            f"WHERE is a {class_name(kind)}, which JSON cannot hold; use dicts, lists, strings, numbers, booleans "
            "or None"
        )

    def _plain_dict(self, items: Iterable[tuple[Any, Any]], depth: int) -> dict[str, Any]:
        copy: dict[str, Any] = {}
        for key, item in items:
            if not issubclass(type(key), str):
                raise _Unfit(f"WHERE has the key {shown(key, 60)}; the keys of a dict must be strings")
            try:
                copy[self._text(key, "a key of WHERE")] = self.plain(item, depth)
            except _Unfit as unfit:
                unfit.steps.append(f"[{shown(key, 60)}]")
                raise
        return copy

    def _plain_list(self, items: Iterable[Any], depth: int) -> list[Any]:
        copy: list[Any] = []
        try:
            for item in items:
                copy.append(self.plain(item, depth))  # noqa: PERF401 - its length is the index of a failure
        except _Unfit as unfit:
            unfit.steps.append(f"[{len(copy)}]")
            raise
        return copy

    def _text(self, value: Any, where: str = "WHERE") -> str:
        text: str = value if type(value) is str else str.__str__(value)
        self._size += len(text)
        if not text.isascii():
            _refuse_half_characters(text, where)
        return text

    def _weigh(self, more: int) -> None:
        self._size += more
        if self._size > LARGEST or (self._size > self._looks_at and self._is_vast()):
            raise _Unfit(_TOO_LARGE, placed=False)

    def _is_vast(self) -> bool:
        """Whether a large value holds the same parts repeatedly, so that it would take long to copy."""
        self._looks_at = LARGEST
        return holds_more(LARGEST, self._whole)

    def _bounded(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._given += 1
            if self._given > MOST:
                raise _Unfit(f"WHERE gives more than {MOST:,} values by an iteration of its own; use a plain list")
            yield item


def _refuse_half_characters(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _Unfit(
            f'{where} is text with a lone surrogate at position {error.start}; decode bytes with errors="replace"'
        ) from None
