"""How an exception becomes the record of a failure: bounded texts, a category, and a requested delay.

| category | exceptions |
| --- | --- |
 transient: may pass | ConnectionError, TimeoutError, RetryAfter, OSErrors of networks and of things in use |
 resources: ran out | MemoryError, OSErrors of full disks, of too many descriptors, of no memory |
 permanent: will not pass | Permanent, errors of code (syntax, import, name, type), missing or forbidden files |
 unknown | everything else |

The category is recorded. It decides what happens to a task without a retry rule, and whether its worker pauses
(`actors/tasks/attempts.py`). Only `Permanent` (and a certain failure found by an engine) sets `permanent`. An exception
group gets its category from its members: resources if one is, else permanent if one is; its delay is the longest that a
member asks for. A group with one member is recorded as that member, else with the types and texts of all. Nested groups
are flattened.
"""

from __future__ import annotations

import errno
from typing import Any

from ...actors import times
from ...actors.messages.errors import Permanent, RetryAfter
from ...actors.user_code import (
    class_name,
    contained,
    is_a,
    is_vast,
    kind_name,
    members,
    raised_by_user,
    some_of,
    text_of,
)
from ..calling import Category, ErrorInfo
from ..functions.folder_modules import place_of
from ..text.secrets import Mask
from ..text.tracebacks import clean, traceback_of

_MRO: Any = type.__dict__["__mro__"]
_MOST_KINDS = 20  # base classes of one error that are recorded
_MODULE: Any = type.__dict__["__module__"]  # a metaclass may override the usual attribute
_LONGEST_TYPE = 500  # characters
_LONGEST_LEAF = 300  # characters of one member of a group
_MOST_LEAVES = 50
_ERRNO: Any = OSError.__dict__["errno"]

_TRANSIENT = (ConnectionError, TimeoutError, RetryAfter, InterruptedError, BlockingIOError)
_PERMANENT = (
    Permanent, SyntaxError, ImportError, NameError, TypeError, AttributeError, NotImplementedError,
    FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError,
)  # fmt: skip
_PASSING = frozenset(
    number
    for name in (
        "EADDRINUSE", "EAGAIN", "EBUSY", "ECONNREFUSED", "ECONNRESET", "EHOSTDOWN", "EHOSTUNREACH", "EIO",
        "ENETDOWN", "ENETRESET", "ENETUNREACH", "ENOBUFS", "ESTALE", "ETIMEDOUT", "ETXTBSY",
    )
    if (number := getattr(errno, name, None)) is not None
)  # fmt: skip
_SPENT = frozenset(
    number
    for name in ("EDQUOT", "EMFILE", "ENFILE", "ENOMEM", "ENOSPC")
    if (number := getattr(errno, name, None)) is not None
)


def describe(error: BaseException, mask: Mask | None = None) -> ErrorInfo:
    """Record an exception that a body raised. `mask` hides secrets, before texts are cut. Raises nothing."""
    error = raised_by_user(error)
    parts = list(members(error))
    delays = [asked for part in parts if is_a(part, RetryAfter) and (asked := _delay(part)) is not None]
    several = len(parts) > 1
    types = {type_name(part) for part in parts[:_MOST_LEAVES]}
    return ErrorInfo(
        type=clean(some_of(sorted(types), ", "), _LONGEST_TYPE),  # sorted: the order may differ between tries
        message=_message_of_group(error, parts, mask) if several else _message(parts[0], mask),
        permanent=any(is_a(part, Permanent) for part in parts),
        retry_after=max(delays, default=None),
        category=_category(parts),
        traceback=traceback_of(error, mask),
        kinds=_kinds(error, parts),
        leaves=_leaves(parts) if several else (),
    )


def _leaves(parts: list[BaseException]) -> list[list[str]]:
    """The names of each group member, with its category; members beyond the first ones are recorded without a name."""
    leaves = [[*_kinds(part, []), category_of(part)] for part in parts[:_MOST_LEAVES]]
    return leaves if len(parts) <= _MOST_LEAVES else [*leaves, []]


def type_name(error: BaseException) -> str:
    """The exception's name, with its module unless it is Python's or ours."""
    return _name(type(error))


def _name(kind: type) -> str:
    module = _MODULE.__get__(kind)
    if is_a(module, str) and (place := place_of(module)) is not None:
        return f"{place[0]}.{kind_name(kind)}"
    name = class_name(kind)
    standard = name.startswith("builtins.") or name.partition(".")[0] == __name__.partition(".")[0]
    return kind_name(kind) if standard else name


def _kinds(error: BaseException, parts: list[BaseException]) -> list[str]:
    """The names of its classes; for a group also the classes that all members share."""
    each = [dict.fromkeys(_name(kind) for kind in _MRO.__get__(type(one))[:_MOST_KINDS]) for one in (error, *parts)]
    common = [name for name in each[1] if all(name in names for names in each[2:])] if len(each) > 1 else []
    return [name for name in dict.fromkeys((*each[0], *common)) if name != "object"]


def _delay(error: BaseException) -> float | None:
    """The seconds that the error asks for; None if a derived class has replaced them with an invalid value."""
    try:
        asked = times.number(error.seconds)  # type: ignore[attr-defined]
    except BaseException as broken:
        contained(broken)
        return None
    return asked if asked >= 0 else None


def _category(parts: list[BaseException]) -> Category:
    kinds = {category_of(part) for part in parts}
    if "resources" in kinds:
        return "resources"
    if "permanent" in kinds:
        return "permanent"
    return "transient" if kinds == {"transient"} else "unknown"


def category_of(error: BaseException) -> Category:
    """The category of one exception."""
    number = _ERRNO.__get__(error) if is_a(error, OSError) else None
    number = number if type(number) is int else None
    if is_a(error, MemoryError) or number in _SPENT:
        return "resources"
    if is_a(error, _TRANSIENT):
        return "transient"
    if is_a(error, _PERMANENT):
        return "permanent"
    if number in _PASSING or (is_a(error, OSError) and kind_name(error) == "gaierror"):
        return "transient"
    return "unknown"


def _message_of_group(group: BaseException, parts: list[BaseException], mask: Mask | None) -> str:
    said = [f"{type_name(part)}: {_message(part, mask)}".removesuffix(": ") for part in parts[:_MOST_LEAVES]]
    short = sorted(clean(text, _LONGEST_LEAF) for text in said) + [""] * (len(parts) - len(said))  # only counted
    return clean(f"{_message(group, mask)}: {some_of(short, '; ')}")


def _message(error: BaseException, mask: Mask | None) -> str:
    if is_vast(error):
        return text_of(error)
    try:
        text = str.__str__(str(error))
        return clean(text if mask is None else mask.text(text))
    except BaseException as broken:
        contained(broken)
        return f"(its text could not be made: {kind_name(broken)})"
