"""What a body may return: values that JSON can hold and give back unchanged.

One poison value must never stop the journal, and no value may come back from it as something else. So these
are refused, with the place they were found at: other types than dict, list, tuple, str, int, float, bool and
None; keys that are not strings; integers beyond 64 bits; NaN and the infinities; strings with lone
surrogates; and what is nested deeper than `DEEPEST` (so also what contains itself). Tuples become lists,
subclasses their base: as they would after a restart.

A value may have code of its own: a subclass whose iteration raises or never ends, a class that lies about itself. What
that raises is a refusal like any other; a subclass gives at most `MOST` values; and nothing is asked of a value but its
iteration. A dict that another thread changes meanwhile is refused, too: what it holds is not known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from ...actors.theirs import class_name, contained, said, shown

DEEPEST = 100
MOST = 1_000_000
"""Values that subclasses of dict, list and tuple may give: their own iteration may never end."""
_LEAST, _MOST = -(2**63), 2**63 - 1


class NotSerialisable(TypeError):  # noqa: N818 - the name of the recorded error, in Python's spelling
    """The value cannot be kept. Return dicts with string keys, lists, strings, numbers, booleans and None."""


class _Unfit(Exception):  # noqa: N818 - as above; it gathers its place on the way up
    """Why a value cannot be kept, with WHERE for its place."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.steps: list[str] = []

    def at(self, what: str) -> str:
        where = what + "".join(reversed(self.steps))
        if len(where) > 200:
            where = f"{where[:200]}..."
        return self.text.replace("WHERE", where, 1)


def checked(value: Any, what: str = "result") -> Any:
    """Copy `value` into plain JSON types; raises NotSerialisable, naming the place, where that cannot be."""
    if value is None:
        return None
    try:
        return _Copy().plain(value, 0)
    except _Unfit as unfit:
        text = unfit.at(what)
    except BaseException as error:
        text = f"{what} cannot be read: its own code raised {said(contained(error))}; return plain dicts and lists"
    raise NotSerialisable(text)


def _kind(value: object) -> type[object]:
    return type(value)


class _Copy:
    """One value on its way into plain types."""

    __slots__ = ("_given",)

    def __init__(self) -> None:
        self._given = 0  # by iterations of the value's own

    def plain(self, value: Any, depth: int) -> Any:
        kind = _kind(value)
        if value is None or kind is bool:
            return value
        if issubclass(kind, str):
            return _plain_text(value)
        if issubclass(kind, int):
            number = int.__int__(value)
            if not _LEAST <= number <= _MOST:
                raise _Unfit("WHERE is an integer beyond 64 bits; return it as a string")
            return number
        if issubclass(kind, float):
            real = float.__float__(value)
            if not math.isfinite(real):
                raise _Unfit(f"WHERE is {real!r}, which JSON cannot hold; return None or a string")
            return real
        if depth >= DEEPEST:
            raise _Unfit(f"WHERE is nested deeper than {DEEPEST} levels, or contains itself")
        if issubclass(kind, dict):
            return self._plain_dict(value.items() if kind is dict else self._bounded(value.items()), depth + 1)
        if issubclass(kind, list):  # a copy: another thread may go on filling it
            return self._plain_list(list(value) if kind is list else self._bounded(value), depth + 1)
        if issubclass(kind, tuple):
            return self._plain_list(value if kind is tuple else self._bounded(value), depth + 1)
        raise _Unfit(
            f"WHERE is a {class_name(kind)}, which JSON cannot hold; return dicts, lists, strings, numbers, booleans "
            "or None"
        )

    def _plain_dict(self, items: Iterable[tuple[Any, Any]], depth: int) -> dict[str, Any]:
        copy: dict[str, Any] = {}
        for key, item in items:
            if not issubclass(type(key), str):
                raise _Unfit(f"WHERE has the key {shown(key, 60)}; the keys of a dict must be strings")
            try:
                copy[_plain_text(key, "a key of WHERE")] = self.plain(item, depth)
            except _Unfit as unfit:
                unfit.steps.append(f"[{shown(key, 60)}]")
                raise
        return copy

    def _plain_list(self, items: Iterable[Any], depth: int) -> list[Any]:
        copy: list[Any] = []
        try:
            for item in items:
                copy.append(self.plain(item, depth))  # noqa: PERF401 - its length is the place where it ends
        except _Unfit as unfit:
            unfit.steps.append(f"[{len(copy)}]")
            raise
        return copy

    def _bounded(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._given += 1
            if self._given > MOST:
                raise _Unfit(f"WHERE gives more than {MOST:,} values by an iteration of its own; return a plain list")
            yield item


def _plain_text(value: Any, where: str = "WHERE") -> str:
    text: str = value if type(value) is str else str.__str__(value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise _Unfit(
                f'{where} is text with a lone surrogate at position {error.start}; decode bytes with errors="replace"'
            ) from None
    return text
