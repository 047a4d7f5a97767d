"""How an exception becomes the record of a failure: bounded texts, a category, and what the body asked for.

| category | exceptions |
| --- | --- |
| transient: may pass | ConnectionError, TimeoutError, RetryAfter, OSErrors of networks and of what is in use |
| resources: ran out | MemoryError, OSErrors of full disks, of too many descriptors, of no memory |
| permanent: will not | Permanent, errors of code (syntax, import, name, type), missing or forbidden files |
| unknown | everything else |

The category is recorded, and decides what comes of a task that says nothing about retries, and whether its worker takes
a rest (`actors/troubles.py`). Only `Permanent` (and what an engine is sure of) sets `permanent`. An exception group is
what its members are: resources if one is, else permanent if one is; its delay is the longest that a member asks for.
"""

from __future__ import annotations

import errno
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from ...actors import times
from ...actors.errors import Permanent, RetryAfter
from ...actors.theirs import class_name, contained, is_a, kind_name, members, raised_by_user, said
from ..beside import place_of
from ..secrets import Mask
from .contract import Category, ErrorInfo

_MODULE: Any = type.__dict__["__module__"]  # what a metaclass may say otherwise
_LONGEST_MESSAGE = 2_000  # characters
_LONGEST_TRACEBACK = 8_000  # characters: its head and tail
_MOST_FRAMES = 40
_LONGEST_CHAIN = 200  # errors that one came of
_LINKS = {name: getattr(BaseException, name) for name in ("__cause__", "__context__", "__suppress_context__")}
_TRACE: Any = BaseException.__dict__["__traceback__"]
_ERRNO: Any = OSError.__dict__["errno"]
_OURS = tuple({str(path.parent.parent) for path in (Path(__file__), Path(__file__).resolve())})  # behind a link, too

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
    return ErrorInfo(
        type=type_name(error),
        message=_message(error, mask),
        permanent=any(is_a(part, Permanent) for part in parts),
        retry_after=max(delays, default=None),
        category=_category(parts),
        traceback=_traceback(error, mask),
    )


def type_name(error: BaseException) -> str:
    """The exception's name, with its module unless it is Python's or ours."""
    module = _MODULE.__get__(type(error))
    if is_a(module, str) and (place := place_of(module)) is not None:
        return f"{place[0]}.{kind_name(error)}"
    name = class_name(type(error))
    known = name.startswith("builtins.") or name.partition(".")[0] == __name__.partition(".")[0]
    return kind_name(error) if known else name


def clean(text: str, longest: int = _LONGEST_MESSAGE) -> str:
    """Make text that any journal can hold: valid Unicode, and not longer than `longest` characters."""
    if len(text) > longest:
        text = f"{text[: longest - 30]}... ({len(text)} characters)"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _delay(error: BaseException) -> float | None:
    """The seconds that it asks for; None where a class derived from it has made of them what is no time."""
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


def _message(error: BaseException, mask: Mask | None) -> str:
    try:
        text = str.__str__(str(error))
        return clean(text if mask is None else mask.text(text))
    except BaseException as broken:
        contained(broken)
        return f"(its text could not be made: {kind_name(broken)})"


def _traceback(error: BaseException, mask: Mask | None) -> str:
    frames = _TRACE.__get__(error)
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OURS):
        frames = frames.tb_next
    try:
        text = _formatted(error, frames)
    except BaseException as broken:
        contained(broken)
        return f"(the traceback could not be made: {kind_name(broken)})"
    if mask is not None:
        text = mask.text(text)
    if len(text) > _LONGEST_TRACEBACK:
        half = _LONGEST_TRACEBACK // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
    return clean(text, _LONGEST_TRACEBACK + 100)


def _formatted(error: BaseException, frames: TracebackType | None) -> str:
    """The traceback of an error and of what it came of; of that alone where the rest would be without an end."""
    if _is_whole(error):
        return "".join(traceback.format_exception(type(error), error, frames, limit=-_MOST_FRAMES))
    told = traceback.format_tb(frames, limit=-_MOST_FRAMES)
    return "".join(["Traceback (most recent call last):\n", *told, said(error, _LONGEST_MESSAGE), "\n"])


def _is_whole(error: BaseException) -> bool:
    """Whether all that an error came of is a bounded chain, and none of it says by code of its own what it came of."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        kind = type(one)
        if len(seen) > _LONGEST_CHAIN or any(getattr(kind, name, None) is not known for name, known in _LINKS.items()):
            return False
        if issubclass(kind, BaseExceptionGroup):
            if kind.exceptions is not BaseExceptionGroup.exceptions:
                return False
            waiting += cast("BaseExceptionGroup[BaseException]", one).exceptions
        waiting += [link for link in (one.__cause__, one.__context__) if link is not None]
    return True
