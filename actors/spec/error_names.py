"""Names of errors in a breaker's `ignore`: which names are valid, and which errors they match.

Rules
-----
- A name is a category of errors, the kind of an end without an exception (`KINDS`), or the name of an exception:
  exceptions of Python and of Callboard without a module, every other one with the module that defines it.
- A name matches all errors whose class has that name, or derives from it. A group matches if the group itself does, or
  every error in it.
- A renamed error of Callboard is found by its older name, too (`RENAMED`).
- A name that matches nothing that exists is refused at validation: it would never match. Classes inside a function, or
  in the program's own file, are not looked for.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ...machines.keywords import did_you_mean
from ..user_code import contained
from .schema import short

CATEGORIES = ("transient", "resources", "permanent", "unknown")
KINDS = (
    "exit_code", "timed_out", "killed_by_signal", "exit_status_lost", "abandoned", "cancelled", "worker_lost",
    "body_not_found", "result_not_serialisable", "no_truth", "internal_error", "command_not_found",
    "command_not_executable", "command_not_encodable", "command_too_large", "bad_working_directory",
)  # fmt: skip
RENAMED: Final[dict[str, str]] = {"AskCycleError": "AskCycle", "InvalidPairError": "InvalidPair"}
"""Older names of Callboard's errors: specifications and journals hold them."""
_OURS = __name__.partition(".")[0]


def present_name(name: str | None) -> str | None:
    """The present name of an error, for its present or older name."""
    return name if name is None else RENAMED.get(name, name)


def name_finding(name: str, bodies: Callable[[str], Any] | None) -> tuple[str, str | None] | None:
    """A fault of a name, and an advice; None if the name is valid. bodies: finds the object of a path."""
    if not name.strip():
        return "is empty", "name an error's type or category"
    if name in CATEGORIES or name in KINDS or name in RENAMED or "<locals>" in name or name.startswith("__main__."):
        return None
    if "." not in name:
        return None if name in _plain() else (_nothing(name), did_you_mean(name, [*CATEGORIES, *KINDS, *_plain()]))
    kind = _found(name, bodies)
    if kind is ...:  # the module cannot be imported; the code that needs the module reports that
        return None
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        return _nothing(name), "write it with the module that defines it: 'package.module.Refused'"
    if _is_of_the_program(kind.__module__):
        path = f"__main__.{kind.__qualname__}"
        return f"{short(name)} is of this program's own file, and is recorded as {short(path)}", f"write {path!r}"
    path = f"{kind.__module__}.{kind.__qualname__}"
    if kind.__module__ == "builtins" or kind.__module__.partition(".")[0] == _OURS:
        path = kind.__qualname__
    if bodies is None or path == name or path.endswith(f".{name}"):
        return None
    return f"{short(name)} is another name of an error that is recorded as {short(path)}", f"write {path!r}"


def _nothing(name: str) -> str:
    return f"{short(name)} is neither an error that can be found, nor a category or kind of one"


def _is_of_the_program(module: str) -> bool:
    """Whether a module is a second import of the program's file, whose errors are never raised."""
    found, main = (getattr(sys.modules.get(name), "__file__", None) for name in (module, "__main__"))
    try:
        return bool(found and main) and module != "__main__" and Path(str(found)).samefile(str(main))
    except OSError:
        return False


def _plain() -> list[str]:
    """The names of exceptions that are recorded without a module: Python's and Callboard's."""
    ours = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == _OURS]
    named = [found for module in (builtins, *ours) for found in list(vars(module).items())]
    return [name for name, kind in named if isinstance(kind, type) and issubclass(kind, BaseException)]


def _found(name: str, bodies: Callable[[str], Any] | None) -> object:
    """The object of a dotted name; None if there is none, ... if its module raised."""
    import pkgutil  # noqa: PLC0415 - only for a name of an error of the application

    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError):
        pass
    except BaseException as error:
        contained(error)
        return ...
    module, _, attribute = name.rpartition(".")
    try:
        return None if bodies is None else bodies(f"{module}:{attribute}")  # `bodies` also knows a file's folder
    except LookupError:
        return None
