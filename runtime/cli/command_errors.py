"""Errors of commands: one paragraph on stderr, and the exit code."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

FAILED = 1
BAD_INPUT = 2
INTERNAL = 3
LATER = 4
INTERRUPTED = 130
PIPE_CLOSED = 141
"""The code of a shell for a program that SIGPIPE has ended: 128 + 13."""


class CommandError(Exception):
    """A problem that ends the command; the user gets its text unchanged."""

    def __init__(self, text: str, code: int = BAD_INPUT) -> None:
        super().__init__(text)
        self.code = code


def print_error(error: BaseException) -> int:
    """Print the error that ended a command. Returns the exit code."""
    exit_code: object = getattr(error, "exit_code", None)  # the command has printed its message already
    if isinstance(exit_code, int):
        return exit_code
    return _print(_innermost(error)) if isinstance(error, Exception) else INTERRUPTED


def run_command(command: Callable[[], None]) -> int:
    """Run a command, and print its error, if any. Returns the exit code."""
    from .output import OutputLost, watched  # noqa: PLC0415 - it imports this module

    with watched():
        code = _code_of(command)
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OutputLost as lost:
            return _print(lost)
        return code


def _code_of(command: Callable[[], None]) -> int:
    try:
        command()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 0 if error.code is None else BAD_INPUT
    except (KeyboardInterrupt, Exception) as raised:  # for any error, the user gets a sentence
        return print_error(raised)
    return 0


def print_to_stderr(text: str) -> None:
    """Write a paragraph to stderr. Does nothing if stderr is closed."""
    from ..text.printable import printable  # noqa: PLC0415 - needed for a message only

    with suppress(OSError, ValueError, AttributeError):  # AttributeError: there is no stderr
        sys.stderr.write(f"callboard: {printable(text)}\n")
        sys.stderr.flush()


def _print(error: Exception) -> int:
    if isinstance(error, CommandError):
        if str(error):
            print_to_stderr(str(error))
        return error.code
    if _is_fencing(error):
        print_to_stderr(str(error))
        return FAILED
    if _is_bad_input(error):
        print_to_stderr(str(error))
        return BAD_INPUT
    if isinstance(error, ValueError | TypeError) and (bad := [one for one in sys.argv[1:] if not _is_text(one)]):
        print_to_stderr(f"the argument {bad[0]!r:.200} is not text: it contains bytes that are not UTF-8")
        return BAD_INPUT
    from .hints import hint  # noqa: PLC0415 - needed for an error only

    text = str(error) or "(no message)"
    print_to_stderr(
        f"internal error: {type(error).__name__}: {text}. This is a fault of Callboard, not of your input; "
        f"{write_report(error)} The journal is safe: {hint('resume')} continues its jobs."
    )
    return INTERNAL


def _is_text(argument: str) -> bool:
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_bad_input(error: Exception) -> bool:
    from ...actors.spec.validate import SpecificationError  # noqa: PLC0415 - needed for an error only
    from ..errors import JournalError  # noqa: PLC0415
    from ..extras import ExtraMissing  # noqa: PLC0415

    return isinstance(error, SpecificationError | JournalError | ExtraMissing) or _is_of_ray(error)


def _is_fencing(error: Exception) -> bool:
    from ..errors import LeaseLost, RuntimeClosed  # noqa: PLC0415

    return isinstance(error, LeaseLost) or (isinstance(error, RuntimeClosed) and isinstance(error.__cause__, LeaseLost))


def _is_of_ray(error: Exception) -> bool:
    from ..loaded_modules import imported  # noqa: PLC0415

    cluster = imported("callboard.runtime.engines.ray.cluster")
    return cluster is not None and isinstance(error, cluster.RayUnavailable)


def _innermost(error: Exception) -> Exception:
    """Choose the error of a group to report: the only one, or the gravest known."""
    found = _leaves(error)
    if len(found) > 1:
        if not all(isinstance(one, CommandError) or _is_bad_input(one) or _is_fencing(one) for one in found):
            return error
        found.sort(key=_is_fencing, reverse=True)
    return found[0]


def _leaves(error: Exception) -> list[Exception]:
    inner: Sequence[Exception] = getattr(error, "exceptions", ())
    return [leaf for one in inner for leaf in _leaves(one)] or [error]


def write_report(error: Exception) -> str:
    """Write the report of an internal error to a file, and return where it is."""
    from ..journal.location import looks_like_address  # noqa: PLC0415 - needed for a report only

    text = "".join(traceback.format_exception(error))
    try:
        handle, name = tempfile.mkstemp(prefix="callboard-error-", suffix=".txt", text=True)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            typed = " ".join("(an address)" if looks_like_address(one) else one for one in sys.argv)
            file.write(f"{typed}\nPython {sys.version}\n\n{text}")
    except OSError as failure:
        return f"its report could not be written ({failure.strerror})."
    return f"its report is in {Path(name)}: please send it with your bug report."
