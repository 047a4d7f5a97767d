"""Why a command could not be started, and what to do about it.

 system error | meaning | error type |
| --- | --- | --- |
| ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG | permanent: there is no such program, or no such folder | `command_not_found`, `bad_working_directory` |
| EACCES, EPERM, ENOEXEC, EISDIR, EINVAL, ELIBBAD | permanent: there is one that cannot be executed | `command_not_executable`, `bad_working_directory` |
| E2BIG | permanent: an argument or a variable is too large | `command_too_large` |
 text that cannot be passed: a NUL, a lone surrogate, "=" in a name | permanent: no program can receive it | `command_not_encodable` |
| EMFILE, ENFILE, ENOMEM, ENOSPC, EDQUOT; EAGAIN: no more processes | a shortage (`resources`) | the exception's |
| ETXTBSY, EIO, ESTALE, EBUSY, network file systems | transient | the exception's |
| anything else | unknown | the exception's |

A permanent error is not retried: the same command can never be started. Values are never shown, since a variable may
hold a secret: a value that is too large, or cannot be encoded, is identified by its place or its name.
"""  # noqa: E501 - a table

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ...calling import ErrorInfo
from ...text.tracebacks import clean
from ..contract import CommandCall
from ..failures import describe
from .shell import shell_line

LARGEST = 131_071
"""Linux's maximum bytes of one argument, or of one variable with its name."""
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})
_NO_PROGRAM = frozenset({errno.EISDIR, errno.EINVAL, getattr(errno, "ELIBBAD", errno.EINVAL)})
_WAY_OUT = "write large data to a file, and give its path to the command"


def title_of(command: CommandCall) -> str:
    """A command's name in reports."""
    text = command.called or (command.shell if command.shell is not None else shlex.join(command.argv))
    return f"`{clean(text, 200)}`"


def why_not_started(command: CommandCall, error: Exception) -> ErrorInfo:
    """The record of a command that could not be started."""
    title = title_of(command)
    if (reason := _refusal(command, error)) is not None:
        kind, text = reason
        return ErrorInfo(type=kind, message=clean(f"{title}: {text}"), permanent=True, category="permanent")
    info = describe(error)
    if isinstance(error, OSError) and error.errno == errno.EAGAIN:  # from a fork it means: no more processes
        info = msgspec.structs.replace(info, category="resources")
    return msgspec.structs.replace(info, message=clean(f"{title} could not be run: {info.message}"))


def _refusal(command: CommandCall, error: Exception) -> tuple[str, str] | None:
    """For a permanent error: its type, and what to do."""
    if isinstance(error, OSError):
        return _refused_by_system(command, error)
    if isinstance(error, ValueError) and (place := next(_not_encodable(command), None)) is not None:
        return "command_not_encodable", place
    return None


def _refused_by_system(command: CommandCall, error: OSError) -> tuple[str, str] | None:
    number, cwd = error.errno, command.cwd
    program = command.argv[0] if command.shell is None else shell_line(command.shell)[0]
    if number == errno.E2BIG:
        return "command_too_large", _too_large(command)
    if number in _NOT_THERE | _FORBIDDEN and cwd and not os.path.isdir(cwd):  # noqa: PTH112 - never raises
        return "bad_working_directory", f"there is no folder {clean(cwd, 300)!r}; create it, or correct cwd"
    if number in _FORBIDDEN and cwd and not os.access(cwd, os.X_OK):
        return "bad_working_directory", f"this user may not enter the folder {cwd!r}; grant it, or correct cwd"
    if number in (errno.ELOOP, errno.ENAMETOOLONG):
        return "command_not_found", f"{clean(program, 300)!r} leads nowhere: {error.strerror}; correct the path"
    if number in _NOT_THERE:
        return "command_not_found", _missing(program, cwd)
    if number in _FORBIDDEN and "/" in program and Path(cwd or ".", program).is_dir():
        return "command_not_executable", f"{program!r} is a folder, and no program; name a program"
    if number in _FORBIDDEN:
        return "command_not_executable", f"{program!r} may not be executed; make it executable (chmod +x)"
    if number == errno.ENOEXEC:
        text = f"this system cannot execute {program!r}; a script needs a first line such as #!/bin/sh"
        return "command_not_executable", text
    if number in _NO_PROGRAM:
        text = f"this system cannot execute {program!r} ({error.strerror}); build it for this system"
        return "command_not_executable", text
    return None


def _missing(program: str, cwd: str | None) -> str:
    if "/" not in program:
        return f"there is no program {program!r} on the PATH; install it, or give its whole path"
    if (Path(cwd or ".") / program).exists():
        return f"the interpreter that the first line of {program!r} names does not exist; install it"
    return f"there is no file {program!r}; correct the path, or build it first"


def _too_large(command: CommandCall) -> str:
    """The parts of a command that are larger than the system allows."""
    sizes = {place: _size(text) for place, text in _texts(command)}
    place, size = max(sizes.items(), key=lambda item: item[1], default=("it", 0))
    if size > LARGEST:
        return f"{place} has {size:,} bytes, and the system takes at most {LARGEST:,} of one; {_WAY_OUT}"
    whole = sum(sizes.values()) + sum(_size(f"{name}={value}") for name, value in os.environ.items())
    return f"its arguments and its environment have {whole:,} bytes, which is too large for this system; {_WAY_OUT}"


def _not_encodable(command: CommandCall) -> Iterator[str]:
    """The parts of a command that cannot be passed to any program, in words."""
    for name in command.env:
        if "=" in name:
            yield f"the name of the variable {clean(name, 60)!r} holds a '=', which no environment can; rename it"
    for place, text in (*_texts(command), ("its folder", command.cwd or "")):
        if "\0" in text:
            yield f"{place} holds a NUL byte, which no program can receive; {_WAY_OUT}"
        try:
            os.fsencode(text)
        except UnicodeEncodeError as error:
            yield f"{place} holds a lone surrogate, which is no text, at character {error.start}; {_WAY_OUT}"


def _texts(command: CommandCall) -> Iterator[tuple[str, str]]:
    """All texts that the command receives, with their places."""
    if command.shell is not None:
        yield "the line for the shell", command.shell
    for index, word in enumerate(command.argv):
        yield f"argument {index}" if index else "the program's name", word
    for name, value in command.env.items():
        yield f"the variable {clean(name, 60)}", f"{name}={value}"


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass")) + 1
