"""Counts the objects that a runtime holds, by the attributes that hold them, to find attributes that only grow."""

from __future__ import annotations

import sqlite3
import sys
import types
from collections import Counter, deque
from pathlib import Path
from typing import Any

_NONE_OF_IT = (
    str, bytes, int, float, type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType,
    types.FrameType,
)  # fmt: skip
_WEAK = {"WeakSet", "WeakValueDictionary", "WeakKeyDictionary"}


def held_by(root: object, *but: object) -> Counter[str]:
    """Count the objects that each attribute holds, over all library objects reachable from `root`, except `but`.

    Objects that modules hold are counted, too.
    """
    counted: Counter[str] = Counter()
    seen = {id(one) for one in but}
    waiting = [*in_modules(), (root, "")]
    while waiting:
        one, name = waiting.pop()
        if isinstance(one, _NONE_OF_IT) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, dict):
            counted[name] += len(one)
            waiting += [(value, f"{name}{{}}") for value in list(one.values())]
        elif isinstance(one, list | set | frozenset | deque | tuple):
            counted[name] += 0 if isinstance(one, tuple) else len(one)
            waiting += [(value, f"{name}[]") for value in list(one)]
        elif type(one).__name__ in _WEAK:
            counted[name] += len(one)
        elif isinstance(one, types.MethodType):
            waiting.append((one.__self__, name))
        elif type(one).__module__.startswith(("callboard", "tests")):
            waiting += [(value, f"{type(one).__name__}.{field}") for field, value in _fields(one)]
    return counted


def _fields(one: object) -> list[tuple[str, Any]]:
    names = set(getattr(one, "__dict__", {}))
    for each in type(one).__mro__:
        slots = each.__dict__.get("__slots__", ())
        names.update((slots,) if isinstance(slots, str) else slots)
    return [(name, getattr(one, name)) for name in names if hasattr(one, name)]


def in_modules() -> list[tuple[Any, str]]:
    """The objects that the library's modules hold, each with its name, as roots of `held_by`."""
    return [
        (value, f"{module.__name__}.{name}")
        for module in list(sys.modules.values())
        if module.__name__.partition(".")[0] == "callboard"
        for name, value in list(vars(module).items())
        if not name.startswith("__")
    ]


def rows_of(path: Path) -> dict[str, int]:
    """The number of rows in each table of a journal."""
    connection = sqlite3.connect(path)
    try:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names}
    finally:
        connection.close()
