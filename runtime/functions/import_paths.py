"""Import paths: from a function to its path, and from a path to its function.

| path | object |
| --- | --- |
| `shop.jobs:build` | the name `build` of the module that Python finds as `shop.jobs` |
| `steps@/srv/left:go` | the name `go` of the module `steps` in that folder (`folder_modules.py`) |
| `__main__@/srv/crates.py:weigh` | the name `weigh` of that program itself (`main_program.py`) |

Rules:
- A path is made only if it finds the same function again.
- Following a path imports its module, and the error says in plain words what is missing. A module of a folder is found
  in that folder or not at all; a program is never imported.
- Worker processes import this module at their start: so it imports little itself.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any, cast

from ...actors.user_code import called, message_of, shown, text_of
from ...machines.keywords import did_you_mean
from ..loaded_modules import imported
from .folder_modules import file_of, lies, module_in, place_of, plain
from .main_program import (
    AGAIN,
    MAIN,
    another_file,
    is_own_file,
    main_module,
    module_of,
    own_main,
    own_module,
    own_name,
    why_not,
    written_elsewhere,
)
from .moved import MOVED
from .signatures import takes_context

Body = Callable[..., Any]
REMEDY = "Define it at the top level of a module, or register it (@runtime.task)"


class BodyNotFound(LookupError):  # noqa: N818 - the name says what happened
    """No function has that path or name. The text says what is missing, and what to do."""


class NoPath(ValueError):  # noqa: N818 - the name says what happened
    """The function has no import path. Move it to the top level of a module, or register it."""


def path_of(func: Body) -> str:
    """The import path "module:qualified.name" of a function. Raises NoPath if the path finds another object."""
    module = getattr(func, "__module__", None)
    name = getattr(func, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise NoPath(f"{func!r} has no name of its own: a restart could not find it. {REMEDY}")
    if "<" in name:
        what = "a lambda" if name.endswith("<lambda>") else f"{name!r}, which is made inside a function,"
        raise NoPath(f"{what} cannot be found again after a restart. {REMEDY}")
    try:
        found: object = sys.modules[module]
        for step in name.split("."):
            found = getattr(found, step)
    except (KeyError, AttributeError):
        found = None
    leads_back = found is func or (isinstance(func, MethodType) and found == func)
    if module in {MAIN, AGAIN}:
        file = written_elsewhere(func) if leads_back else another_file(func)
        if file is not None:
            raise NoPath(_launched(name, file))
    if leads_back:
        return f"{named(module)}:{name}"
    raise NoPath(f'"{module}:{name}" is not {func!r}: a restart would find something else. {REMEDY}')


def _launched(name: str, file: str) -> str:
    """The advice about a function of a script that another program (a profiler, a debugger) executes."""
    how, where = own_main() or ("", "this process")
    launcher = f"python -m {where}" if how == "module" else where
    return (
        f"{name!r} is written in {file}, which {launcher} has executed as its own: a restart could not tell it from a "
        "function of another such script. Put the function in a module that the script imports, or register it "
        "(@runtime.task). Or start the script itself, by Python, or by runpy.run_path(path, run_name='__main__'): a "
        "profiler can be begun in it, as `with cProfile.Profile() as profile:`"
    )


def named(module: str) -> str:
    """The part of an import path before the colon, for a module in `sys.modules`."""
    if module in {MAIN, AGAIN}:
        return own_name()
    place = place_of(module)
    return module if place is None else f"{place[0]}@{place[1]}"


def same_names(one: str, other: str) -> bool:
    """Whether two paths name one function, wherever its module was.

    The module that a program was started as has other names elsewhere: to other programs it is a plain module, and
    older versions stored `__main__` for it. So such a module is equal to any, if the names in it are.
    """
    modules = {MAIN if module == AGAIN else plain(module) for module in (parts_of(one)[0], parts_of(other)[0])}
    return parts_of(one)[2] == parts_of(other)[2] and (len(modules) == 1 or MAIN in modules)


def parts_of(path: str) -> tuple[str, str, str]:
    """An import path's module, its place ("" for Python's own search), and its names."""
    module, _, names = path.rpartition(":")
    module, _, where = module.partition("@")
    return module, where, names


def spoken(path: str) -> str:
    """An import path in its short form, for messages."""
    module, _, names = parts_of(path)
    return f"{module}:{names}" if ":" in path else path


def located(path: str, folder: str | None, *, program: bool = True) -> str:
    """The stored form of an import path: with the folder of its module, or with its program. Imports nothing.

    A registered name is not changed, nor is a path that has a place already. program: whether `__main__` means this
    program.
    """
    if ":" not in path:
        return path
    module, where, names = parts_of(path)
    if where or (module == MAIN and not program):
        return path
    if module == MAIN:
        return f"{own_name()}:{names}"
    return f"{module}@{folder}:{names}" if folder is not None and module and lies(folder, module) else path


def standing(path: str) -> Body | None:
    """The function of an import path, if its module is imported already."""
    if ":" not in path:
        return None
    module, where, names = parts_of(path)
    found: object = None
    if module == MAIN:
        found = module_of(where) if where else main_module()
    elif not where:
        found = own_module(module) or imported(module)
    for step in names.split("."):
        found = getattr(found, step, None)
    return cast("Body", found) if callable(found) else None


def source_of(path: str) -> str | None:
    """A hash of the source of a path's module in a folder; None for other modules. Imports the module."""
    module, where, _ = parts_of(path)
    return None if not where or module == MAIN else _text(getattr(module_in(where, module), "__file__", None))


def on_another_machine(path: str, text: str | None) -> str:
    """The path of the same function on another machine: without its folder, a module with the same `text`."""
    module, where, names = parts_of(path)
    if text is None or not where or Path(where).is_dir():
        return path
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return path
    return path if found is None or _text(found.origin) != text else f"{module}:{names}"


def _text(file: str | None) -> str | None:
    from hashlib import blake2b  # noqa: PLC0415 - slow to import

    try:
        return None if file is None else blake2b(Path(file).read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return None


def look_in(folder: str) -> None:
    """Search modules in a folder first: the working folder of the command line."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
        importlib.invalidate_caches()


def wants_too_much(func: Body) -> str | None:
    """A fault of a body that takes more than one argument; None for a valid body."""
    try:
        called(takes_context, func)
    except Exception as error:  # an object's signature may run code of its own
        return text_of(error)
    return None


def follow(path: str) -> Body:
    """The function of an import path. Raises BodyNotFound. Imports its module if need be."""
    found = find(path)
    if not callable(found):
        raise BodyNotFound(f"{path!r} is no function, but {shown(found, 60)}")
    return found


def find(path: str) -> object:
    """The object of an import path. Raises BodyNotFound. Imports its module if need be."""
    module, where, names = parts_of(path)
    found: object = _program(where, path) if module == MAIN else _module(module, where, path)
    for step in names.split("."):
        try:
            found = called(getattr, found, step)
        except AttributeError:
            members = [name for name in called(dir, found) if not name.startswith("_")]
            advice = did_you_mean(step, members) or f"its folder, if it is the right one, is {_file(found)}"
            raise BodyNotFound(f"{spoken(path)!r}: there is no {step!r} in {_title(found)}; {advice}") from None
        except Exception as error:  # a module's attributes may run code of its own
            raise BodyNotFound(
                f"{spoken(path)!r}: {step!r} cannot be read of {_title(found)}: {message_of(error)}"
            ) from None
    return found


def path_of_value(value: object) -> str | None:
    """The import path "module:name" of an object without a name of its own; None if no module holds it.

    If several modules hold it, the first by name counts, and the program itself last, if a restart could find the
    program.
    """
    kind = type(value)
    found = [
        (name in {MAIN, AGAIN}, name, key)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] not in sys.stdlib_module_names
        if [
            member for member in list(getattr(module, "__dict__", {}).values()) if type(member) is kind
        ]  # there are thousands
        for key, member in list(module.__dict__.items())
        if member is value and not key.startswith("__")
    ]
    if not found or (found[0][0] and own_main() is None):
        return None
    _, name, key = min(found)
    return f"{named(name)}:{key}"


def _program(where: str, path: str) -> ModuleType:
    found = module_of(where) if where else None
    if found is None:
        raise BodyNotFound(f"{spoken(path)!r} {why_not(where, names=parts_of(path)[2])}")
    return found


def _module(name: str, where: str, path: str) -> ModuleType:
    cause: Exception | None = None
    try:
        if where and is_own_file(file_of(where, name)):
            return sys.modules[MAIN]
        return called(module_in, where, name) if where else called(_plain_module, name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if where and not lies(where, name):
            text = (
                f"there is no module {name!r} in {where} any more; put it back, or make a link there if its folder was "
                f"moved, or register the function under this name: @runtime.task(aliases=[{path!r}])"
            )
        elif missing and (name == missing or name.startswith(f"{missing}.")):
            text = (
                f"there is no module {missing!r}; install it, or name its folder in PYTHONPATH, or put it beside the "
                "specification file, if there is one"
            )
        else:
            text = f"module {name!r} imports {error.name!r}, which cannot be found"
    except Exception as error:  # a module may raise any error while it is imported
        text, cause = f"module {name!r} cannot be imported: {message_of(error)}", error
    raise BodyNotFound(f"{spoken(path)!r}: {text}") from cause


def _plain_module(name: str) -> ModuleType:
    """The module of a plain name: this program's own module, if that is its file. Imports it if need be."""
    name = MOVED.get(name, name)
    if (module := own_module(name) or imported(name)) is not None:
        return cast("ModuleType", module)
    if "." not in name and (spec := importlib.util.find_spec(name)) is not None and is_own_file(spec.origin):
        return sys.modules[MAIN]
    return importlib.import_module(name)


def _title(owner: object) -> str:
    return f"module {plain(owner.__name__)!r}" if isinstance(owner, ModuleType) else shown(owner, 60)


def _file(owner: object) -> str:
    return str(getattr(owner, "__file__", None) or "not known")
