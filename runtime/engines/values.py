"""What a body may return: values that JSON can hold and give back unchanged.

One poison value must never stop the journal, and no value may come back from it as something else. So these
are refused, with the place they were found at: other types than dict, list, tuple, str, int, float, bool and
None; keys that are not strings; integers beyond 64 bits; NaN and the infinities; strings with lone
surrogates; and what is nested deeper than `DEEPEST` (so also what contains itself). Tuples become lists,
subclasses their base: as they would after a restart.
"""

from __future__ import annotations

import math
from typing import Any

DEEPEST = 100
_LEAST, _MOST = -(2**63), 2**63 - 1


class NotSerialisable(TypeError):  # noqa: N818 - the name of the recorded error, in Python's spelling
    """The value cannot be kept. Return dicts with string keys, lists, strings, numbers, booleans and None."""


def checked(value: Any, what: str = "result") -> Any:
    """Copy `value` into plain JSON types; raises NotSerialisable, naming the place, where that cannot be."""
    return _plain(value, what, 0)


def _plain(value: Any, where: str, depth: int) -> Any:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return _plain_text(value, where)
    if isinstance(value, int):
        if not _LEAST <= value <= _MOST:
            raise NotSerialisable(f"{where} is an integer beyond 64 bits; return it as a string")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NotSerialisable(f"{where} is {value!r}, which JSON cannot hold; return None or a string")
        return float(value)
    if depth >= DEEPEST:
        raise NotSerialisable(f"{where[:60]}... is nested deeper than {DEEPEST} levels, or contains itself")
    if _is(value, dict):
        return {_key(k, where): _plain(item, f"{where}[{k!r}]", depth + 1) for k, item in value.items()}
    if _is(value, list) or _is(value, tuple):
        return [_plain(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise NotSerialisable(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which JSON cannot hold; "
        "return dicts, lists, strings, numbers, booleans or None"
    )


def _is(value: Any, kind: type) -> bool:
    """isinstance() that leaves the value an Any: its items are of unknown types, which is what they are."""
    return isinstance(value, kind)


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise NotSerialisable(f"{where} has the key {key!r}; the keys of a dict must be strings")
    return _plain_text(key, f"a key of {where}")


def _plain_text(text: str, where: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise NotSerialisable(
                f'{where} is text with a lone surrogate at position {error.start}; decode bytes with errors="replace"'
            ) from None
    return text if type(text) is str else str.__str__(text)
