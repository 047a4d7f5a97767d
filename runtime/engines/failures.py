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
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from ...actors import times
from ...actors.errors import Permanent, RetryAfter
from ..secrets import Mask
from .contract import Category, ErrorInfo

_LONGEST_MESSAGE = 2_000  # characters
_LONGEST_TRACEBACK = 8_000  # characters: its head and tail
_MOST_FRAMES = 40
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


def _delay(error: RetryAfter) -> float | None:
    """The seconds that it asks for; None where a class derived from it has made of them what is no time."""
    try:
        asked = times.number(error.seconds)
    except (TypeError, ValueError, AttributeError):
        return None
    return asked if asked >= 0 else None


def describe(error: BaseException, mask: Mask | None = None) -> ErrorInfo:
    """Record an exception that a body raised. `mask` hides secrets, before texts are cut."""
    parts = list(_members(error))
    delays = [asked for part in parts if isinstance(part, RetryAfter) and (asked := _delay(part)) is not None]
    return ErrorInfo(
        type=type_name(error),
        message=_message(error, mask),
        permanent=any(isinstance(part, Permanent) for part in parts),
        retry_after=max(delays, default=None),
        category=_category(parts),
        traceback=_traceback(error, mask),
    )


def type_name(error: BaseException) -> str:
    """The exception's name, with its module unless it is Python's or ours."""
    kind = type(error)
    module = kind.__module__
    known = module == "builtins" or module.partition(".")[0] == __name__.partition(".")[0]
    return clean(kind.__qualname__ if known else f"{module}.{kind.__qualname__}")


def clean(text: str, longest: int = _LONGEST_MESSAGE) -> str:
    """Make text that any journal can hold: valid Unicode, and not longer than `longest` characters."""
    if len(text) > longest:
        text = f"{text[: longest - 30]}... ({len(text)} characters)"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _members(error: BaseException) -> Iterator[BaseException]:
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if isinstance(one, BaseExceptionGroup):
            waiting.extend(cast("BaseExceptionGroup[BaseException]", one).exceptions)
        else:
            yield one


def _category(parts: list[BaseException]) -> Category:
    kinds = {category_of(part) for part in parts}
    if "resources" in kinds:
        return "resources"
    if "permanent" in kinds:
        return "permanent"
    return "transient" if kinds == {"transient"} else "unknown"


def category_of(error: BaseException) -> Category:
    """The category of one exception."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _SPENT):
        return "resources"
    if isinstance(error, _TRANSIENT):
        return "transient"
    if isinstance(error, _PERMANENT):
        return "permanent"
    if isinstance(error, OSError) and (error.errno in _PASSING or type(error).__name__ == "gaierror"):
        return "transient"
    return "unknown"


def _message(error: BaseException, mask: Mask | None) -> str:
    try:
        return clean(str(error) if mask is None else mask.text(str(error)))
    except Exception as broken:
        return f"(its text could not be made: {type(broken).__name__})"


def _traceback(error: BaseException, mask: Mask | None) -> str:
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OURS):
        frames = frames.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, frames, limit=-_MOST_FRAMES))
    except Exception as broken:
        return f"(the traceback could not be made: {type(broken).__name__})"
    if mask is not None:
        text = mask.text(text)
    if len(text) > _LONGEST_TRACEBACK:
        half = _LONGEST_TRACEBACK // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
    return clean(text, _LONGEST_TRACEBACK + 100)
