"""Tracebacks of errors that a user's code raised, as bounded text.

Rules
-----
- An error is not trusted: it may say by code of its own what it came of, or have come of others without an end.
- Frames of the library before the application's first one tell nobody anything, and are left out.
"""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from ...actors.user_code import contained, is_vast, is_woven, kind_name, raised_by_user, said
from .secrets import Mask

_LONGEST = 8_000  # characters: its head and tail
LONGEST_MESSAGE = 2_000
"""Characters of what an error says of itself that are kept."""
_MOST_FRAMES = 40
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_COMPARED = 200  # characters of what an error says by which it is found in its traceback
_LONGEST_CHAIN = 200  # errors that one came of
_LINKS = {name: getattr(BaseException, name) for name in ("__cause__", "__context__", "__suppress_context__")}
_TRACE: Any = BaseException.__dict__["__traceback__"]
_OURS = tuple({str(path.parent.parent) for path in (Path(__file__), Path(__file__).resolve())})  # behind a link, too


def traceback_of(error: BaseException, mask: Mask | None = None) -> str:
    """How an error came about, as Python writes it, from the application's first frame on. Raises nothing.

    mask: hides secrets, before it is cut.
    """
    error = raised_by_user(error)
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
    if len(text) > _LONGEST:
        half = _LONGEST // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
    return clean(text, _LONGEST + 100)


def frame_of(text: str, kind: str, message: str) -> tuple[str, str, str] | None:
    """Where an error was raised, by its traceback: file, line and function of its last frame that is the application's.

    kind, message: its type and what it says. What follows that in the traceback are its notes, which may hold the
    tracebacks of other errors, as those of a child job; what comes before its own frames is what it came of.
    """
    first = message.partition("\n")[0][:_COMPARED]
    said = re.escape(f"{kind}: {first}" if first else kind)
    ends = [found.start() for found in re.finditer(rf"^(?:[\w.<>]+\.)?{said}", text, re.MULTILINE)]
    frames: list[tuple[str, str, str]] = _FRAME.findall(text[: ends[-1]] if ends else text)
    theirs = [frame for frame in frames if not frame[0].startswith(_OURS)] or frames
    return theirs[-1] if theirs else None


def _formatted(error: BaseException, frames: TracebackType | None) -> str:
    """The traceback of an error and of what it came of; of that alone where the rest would be without an end."""
    if _is_whole(error):
        return "".join(traceback.format_exception(type(error), error, frames, limit=-_MOST_FRAMES))
    told = traceback.format_tb(frames, limit=-_MOST_FRAMES)
    return "".join(["Traceback (most recent call last):\n", *told, said(error, LONGEST_MESSAGE), "\n"])


def _is_whole(error: BaseException) -> bool:
    """Whether all that an error came of is a bounded chain, and none of it says by code of its own what it came of."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        kind = type(one)
        if (
            len(seen) > _LONGEST_CHAIN
            or is_vast(one)
            or any(getattr(kind, name, None) is not known for name, known in _LINKS.items())
        ):
            return False
        if issubclass(kind, BaseExceptionGroup):
            if kind.exceptions is not BaseExceptionGroup.exceptions or is_woven(one):
                return False
            waiting += cast("BaseExceptionGroup[BaseException]", one).exceptions
        waiting += [link for link in (one.__cause__, one.__context__) if link is not None]
    return True


def clean(text: str, longest: int = LONGEST_MESSAGE) -> str:
    """Make text that any journal can hold: valid Unicode, and not longer than `longest` characters."""
    if len(text) > longest:
        text = f"{text[: longest - 30]}... ({len(text)} characters)"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
