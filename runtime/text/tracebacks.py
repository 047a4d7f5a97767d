"""Tracebacks of errors that users' code raised, as text of limited length.

Rules
-----
- An error is not trusted: its own code may give its causes, and its chain of causes may never end.
- Frames of the library before the application's first frame do not help, and are left out.
"""

from __future__ import annotations

import os
import re
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from ...actors.user_code import contained, is_vast, is_woven, kind_name, message_of, raised_by_user
from .secrets import Mask

_LONGEST = 8_000  # characters that are kept, half from its beginning and half from its end
LONGEST_MESSAGE = 2_000
"""Characters of an error's message that are kept."""
_MOST_FRAMES = 40
_FRAME = r'File "([^"]+)", line (\d+), in (\S+)'
_COMPARED = 200  # characters of a message that are searched for in the traceback
_LONGEST_CHAIN = 200  # errors in a chain of causes
_LINKS = {name: getattr(BaseException, name) for name in ("__cause__", "__context__", "__suppress_context__")}
_TRACE: Any = BaseException.__dict__["__traceback__"]
_OURS = tuple(
    {
        f"{path.parents[2] / layer}{os.sep}"
        for path in (Path(__file__), Path(__file__).resolve())  # also behind a link
        for layer in ("machines", "actors", "runtime")
    }
)


def traceback_of(error: BaseException, mask: Mask | None = None) -> str:
    """Format an error's traceback as Python does, from the application's first frame on. Raises nothing.

    mask: hides secrets, before the text is shortened.
    """
    error = raised_by_user(error)
    frames = _TRACE.__get__(error)
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OURS):
        frames = frames.tb_next
    try:
        text = _formatted(error, frames)
    except BaseException as broken:
        contained(broken)
        return f"(the traceback could not be formatted: {kind_name(broken)})"
    if mask is not None:
        text = mask.text(text)
    if len(text) > _LONGEST:
        half = _LONGEST // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
    return clean(text, _LONGEST + 100)


def frame_of(text: str, kind: str, message: str) -> tuple[str, str, str] | None:
    """Find where an error was raised: the application's last frame in a traceback.

    Returns its file, line and function.

    kind, message: the error's type and message. After these, a traceback has the error's notes, which may hold other
    tracebacks, as a child job's; before the error's own frames it has those of its causes.
    """
    first = message.partition("\n")[0][:_COMPARED]
    last_line = re.escape(f"{kind}: {first}" if first else kind)
    ends = [found.start() for found in re.finditer(rf"^(?:[\w.<>]+\.)?{last_line}", text, re.MULTILINE)]
    frames: list[tuple[str, str, str]] = re.findall(_FRAME, text[: ends[-1]] if ends else text)
    theirs = [frame for frame in frames if not frame[0].startswith(_OURS)] or frames
    return theirs[-1] if theirs else None


def _formatted(error: BaseException, frames: TracebackType | None) -> str:
    """Format an error with its causes, or without them if their chain may be endless."""
    if _is_whole(error):
        return "".join(traceback.format_exception(type(error), error, frames, limit=-_MOST_FRAMES))
    formatted = traceback.format_tb(frames, limit=-_MOST_FRAMES)
    return "".join(["Traceback (most recent call last):\n", *formatted, message_of(error, LONGEST_MESSAGE), "\n"])


def _is_whole(error: BaseException) -> bool:
    """Whether an error's causes form a bounded chain, without own code for causes."""
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
            or any(getattr(kind, name, None) is not standard for name, standard in _LINKS.items())
        ):
            return False
        if issubclass(kind, BaseExceptionGroup):
            if kind.exceptions is not BaseExceptionGroup.exceptions or is_woven(one):
                return False
            waiting += cast("BaseExceptionGroup[BaseException]", one).exceptions
        waiting += [link for link in (one.__cause__, one.__context__) if link is not None]
    return True


def clean(text: str, longest: int = LONGEST_MESSAGE) -> str:
    """Make text that any journal can hold: valid Unicode, and at most `longest` characters."""
    if len(text) > longest:
        text = f"{text[: longest - 30]}... ({len(text)} characters)"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
