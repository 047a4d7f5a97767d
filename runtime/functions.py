"""Import paths: from a function to the text that leads back to it, and from the text to the function.

Rules:
- A path "module:qualified.name" is made only if it leads back to the very function it was made from.
- Following one imports its module, and says in plain words what is missing.
- Worker processes import this, and start: it imports little itself.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import MethodType, ModuleType
from typing import Any, cast

from ..actors.schema import did_you_mean
from ..actors.theirs import called, said, shown, text_of
from .engines.bodies import takes_context
from .imported import imported

Body = Callable[..., Any]
_REMEDY = "Define it at the top level of a module, or register it (@runtime.task)"


class BodyNotFound(LookupError):  # noqa: N818 - it says what happened
    """There is no function of that path or name. The text says what is missing, and what to do."""


class NoPath(ValueError):  # noqa: N818 - it says what happened
    """The function has no path that leads back to it. Make it a module's function, or register it."""


def path_of(func: Body) -> str:
    """The import path "module:qualified.name" of a function. Raises NoPath if it does not lead back to it."""
    module = getattr(func, "__module__", None)
    name = getattr(func, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise NoPath(f"{func!r} has no name of its own: a restart could not find it. {_REMEDY}")
    if "<" in name:
        what = "a lambda" if name.endswith("<lambda>") else f"{name!r}, which is made inside a function,"
        raise NoPath(f"{what} cannot be found again after a restart. {_REMEDY}")
    try:
        found: object = sys.modules[module]
        for step in name.split("."):
            found = getattr(found, step)
    except (KeyError, AttributeError):
        found = None
    if found is func or (isinstance(func, MethodType) and found == func):
        return f"{module}:{name}"
    raise NoPath(f'"{module}:{name}" is not {func!r}: a restart would find something else. {_REMEDY}')


def look_in(folder: str) -> None:
    """Let modules be found in a folder first: that of a specification file."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
        importlib.invalidate_caches()


def wants_too_much(func: Body) -> str | None:
    """What is wrong with a body that asks for more than nothing, or one argument."""
    try:
        called(takes_context, func)
    except Exception as error:  # its signature may be code of its own
        return text_of(error)
    return None


def follow(path: str) -> Body:
    """The function of an import path. Raises BodyNotFound. Imports its module if need be."""
    found = find(path)
    if not callable(found):
        raise BodyNotFound(f"{path!r} is no function, but {shown(found, 60)}")
    return found


def find(path: str) -> object:
    """What stands under an import path. Raises BodyNotFound. Imports its module if need be."""
    module_name, _, names = path.partition(":")
    found: object = _module(module_name, path)
    for step in names.split("."):
        try:
            found = called(getattr, found, step)
        except AttributeError:
            known = [name for name in called(dir, found) if not name.startswith("_")]
            advice = did_you_mean(step, known) or f"its folder, if it is the right one, is {_file(found)}"
            raise BodyNotFound(f"{path!r}: there is no {step!r} in {_title(found)}; {advice}") from None
        except Exception as error:  # a module may have code of its own for its names, too
            raise BodyNotFound(f"{path!r}: {step!r} cannot be had of {_title(found)}: {said(error)}") from None
    return found


def path_of_value(value: object) -> str | None:
    """The import path "module:name" of what has no name of its own but in a module; None if none holds it.

    Where several do, the first by name counts, and the program itself last: each leads back to it.
    """
    found = [
        f"{name}:{key}"
        for name, module in list(sys.modules.items())
        for key, held in list(getattr(module, "__dict__", {}).items())
        if held is value and not key.startswith("__")
    ]
    return min(found, key=lambda path: (path.startswith("__main__:"), path), default=None)


def _module(name: str, path: str) -> ModuleType:
    if (module := imported(name)) is not None:
        return cast("ModuleType", module)
    try:
        return called(importlib.import_module, name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            text = f"there is no module {error.name!r}; install it, or put it beside the specification file"
        else:
            text = f"module {name!r} imports {error.name!r}, which is not there"
    except Exception as error:  # a module may raise whatever it likes while it is imported
        text = f"module {name!r} cannot be imported: {said(error)}"
    raise BodyNotFound(f"{path!r}: {text}")


def _title(owner: object) -> str:
    return f"module {owner.__name__!r}" if isinstance(owner, ModuleType) else shown(owner, 60)


def _file(owner: object) -> str:
    return str(getattr(owner, "__file__", None) or "not known")
