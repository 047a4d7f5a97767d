"""Names of errors, as a breaker's `ignore` has them: what they may be, and which errors they stand for.

Rules
-----
- A name is a category of errors, the kind of an end that no exception stands for (`KINDS`), or an exception's: that of
  Python and of ours without a module, every other one with the module that defines it.
- A name stands for all errors whose class is that one, or derives from it. Of a group it has to be true of the group
  itself, or of every error in it.
- An error of ours that is called otherwise now is found by its older name, too (`RENAMED`).
- A name that nothing can be found by is refused where it is said: it would never match. What only exists inside a
  function, or in the program's own file, is not looked for.
"""

from __future__ import annotations

import builtins
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ..user_code import contained
from .schema import did_you_mean, short

CATEGORIES = ("transient", "resources", "permanent", "unknown")
KINDS = (
    "exit_code", "timed_out", "killed_by_signal", "exit_status_lost", "abandoned", "cancelled", "worker_lost",
    "body_not_found", "result_not_serialisable", "no_truth", "internal_error", "command_not_found",
    "command_not_executable", "command_not_encodable", "command_too_large", "bad_working_directory",
)  # fmt: skip
RENAMED: Final[dict[str, str]] = {"AskCycleError": "AskCycle", "InvalidPairError": "InvalidPair"}
"""Errors of ours that were called otherwise, by their older names: specifications and journals hold these."""
_OURS = __name__.partition(".")[0]


def present_name(name: str | None) -> str | None:
    """The name that an error has now, for one that it had when this was written."""
    return name if name is None else RENAMED.get(name, name)


def name_finding(name: str, bodies: Callable[[str], Any] | None) -> tuple[str, str | None] | None:
    """What is wrong with a name, and an advice; None where it is one. bodies: finds what stands under a path."""
    if not name.strip():
        return "is empty", "name an error's type or category"
    if name in CATEGORIES or name in KINDS or name in RENAMED or "<locals>" in name or name.startswith("__main__."):
        return None
    if "." not in name:
        return None if name in _plain() else (_nothing(name), did_you_mean(name, [*CATEGORIES, *KINDS, *_plain()]))
    kind = _found(name, bodies)
    if kind is ...:  # its module cannot be imported as it is: whoever needs it is told so
        return None
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        return _nothing(name), "write it with the module that defines it: 'package.module.Refused'"
    if _is_of_the_program(kind.__module__):
        known = f"__main__.{kind.__qualname__}"
        return f"{short(name)} is of this program's own file, and is recorded as {short(known)}", f"write {known!r}"
    known = f"{kind.__module__}.{kind.__qualname__}"
    if kind.__module__ == "builtins" or kind.__module__.partition(".")[0] == _OURS:
        known = kind.__qualname__
    if bodies is None or known == name or known.endswith(f".{name}"):
        return None
    return f"{short(name)} is another name of an error that is recorded as {short(known)}", f"write {known!r}"


def _nothing(name: str) -> str:
    return f"{short(name)} is neither an error that can be found, nor a category or kind of one"


def _is_of_the_program(module: str) -> bool:
    """Whether a module is a second one of the file that runs as `__main__`: the program never raises its errors."""
    found, main = (getattr(sys.modules.get(name), "__file__", None) for name in (module, "__main__"))
    try:
        return bool(found and main) and module != "__main__" and Path(str(found)).samefile(str(main))
    except OSError:
        return False


def _plain() -> list[str]:
    """The names of exceptions that are recorded without a module: Python's, and ours."""
    ours = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == _OURS]
    named = [found for module in (builtins, *ours) for found in list(vars(module).items())]
    return [name for name, kind in named if isinstance(kind, type) and issubclass(kind, BaseException)]


def _found(name: str, bodies: Callable[[str], Any] | None) -> object:
    """What stands under a dotted name; None where nothing does, ... where a module of theirs raised."""
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError):
        pass
    except BaseException as error:
        contained(error)
        return ...
    module, _, attribute = name.rpartition(".")
    try:
        return None if bodies is None else bodies(f"{module}:{attribute}")  # which knows what lies beside a file
    except LookupError:
        return None
