"""Import paths: from a function to the text that leads back to it, and from the text to the function.

| text | what it leads to |
| --- | --- |
| `shop.jobs:build` | the name `build` of the module that Python finds as `shop.jobs` |
| `steps@/srv/left:go` | the same of the module `steps` that lies in that folder (`folder_modules.py`) |
| `__main__@/srv/crates.py:weigh` | the same of that program itself (`main_program.py`) |

Rules:
- A path is made only if it leads back to the very function it was made from.
- Following one imports its module, and says in plain words what is missing. A module of a folder is found there or not
  at all; a program is never imported.
- Worker processes import this, and start: it imports little itself.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any, cast

from ...actors.spec.schema import did_you_mean
from ...actors.user_code import called, said, shown, text_of
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


class BodyNotFound(LookupError):  # noqa: N818 - it says what happened
    """There is no function of that path or name. The text says what is missing, and what to do."""


class NoPath(ValueError):  # noqa: N818 - it says what happened
    """The function has no path that leads back to it. Make it a module's function, or register it."""


def path_of(func: Body) -> str:
    """The import path "module:qualified.name" of a function. Raises NoPath if it does not lead back to it."""
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
        return f"{_named(module)}:{name}"
    raise NoPath(f'"{module}:{name}" is not {func!r}: a restart would find something else. {REMEDY}')


def _launched(name: str, file: str) -> str:
    """What to do about a function of a script that another program has executed: a profiler, a debugger."""
    how, where = own_main() or ("", "this process")
    launcher = f"python -m {where}" if how == "module" else where
    return (
        f"{name!r} is written in {file}, which {launcher} has executed as its own: a restart could not tell it from a "
        "function of another such script. Put the function in a module that the script imports, or register it "
        "(@runtime.task). Or start the script itself, by Python, or by runpy.run_path(path, run_name='__main__'): a "
        "profiler can be begun in it, as `with cProfile.Profile() as profile:`"
    )


def _named(module: str) -> str:
    """What stands before the colon for what is in a module of `sys.modules`."""
    if module in {MAIN, AGAIN}:
        return own_name()
    place = place_of(module)
    return module if place is None else f"{place[0]}@{place[1]}"


def parts_of(path: str) -> tuple[str, str, str]:
    """The module of an import path, where that is ("" where Python is to find it), and the names in it."""
    module, _, names = path.rpartition(":")
    module, _, where = module.partition("@")
    return module, where, names


def spoken(path: str) -> str:
    """An import path as people say it."""
    module, _, names = parts_of(path)
    return f"{module}:{names}" if ":" in path else path


def located(path: str, folder: str | None, *, program: bool = True) -> str:
    """An import path as it is kept: what is said of a module in `folder`, or of this program, says so. Imports nothing.

    A registered name stays what it is, and so does a path that says where its module is. program: whether `__main__`
    means this program.
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
    """The function under an import path, if its module is there already: nothing is imported."""
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
    """What tells the text of the module of an import path that lies in a folder; None for others. It is imported."""
    module, where, _ = parts_of(path)
    return None if not where or module == MAIN else _text(getattr(module_in(where, module), "__file__", None))


def on_another_machine(path: str, text: str | None) -> str:
    """The path that leads to the same there: where its folder is not, by a module of that name and the same `text`."""
    module, where, names = parts_of(path)
    if text is None or not where or Path(where).is_dir():
        return path
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return path
    return path if found is None or _text(found.origin) != text else f"{module}:{names}"


def _text(file: str | None) -> str | None:
    try:
        return None if file is None else blake2b(Path(file).read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return None


def look_in(folder: str) -> None:
    """Let modules be found in a folder first: the one where the command line is used."""
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
    module, where, names = parts_of(path)
    found: object = _program(where, path) if module == MAIN else _module(module, where, path)
    for step in names.split("."):
        try:
            found = called(getattr, found, step)
        except AttributeError:
            known = [name for name in called(dir, found) if not name.startswith("_")]
            advice = did_you_mean(step, known) or f"its folder, if it is the right one, is {_file(found)}"
            raise BodyNotFound(f"{spoken(path)!r}: there is no {step!r} in {_title(found)}; {advice}") from None
        except Exception as error:  # a module may have code of its own for its names, too
            raise BodyNotFound(f"{spoken(path)!r}: {step!r} cannot be had of {_title(found)}: {said(error)}") from None
    return found


def path_of_value(value: object) -> str | None:
    """The import path "module:name" of what has no name of its own but in a module; None if none holds it.

    Where several do, the first by name counts, and the program itself last, and only if a restart could find that.
    """
    wanted = id(value)
    found = [
        (name in {MAIN, AGAIN}, name, key)
        for name, module in list(sys.modules.items())
        if wanted in map(id, list(getattr(module, "__dict__", {}).values()))  # quick: there are tens of thousands
        for key, held in list(module.__dict__.items())
        if held is value and not key.startswith("__")
    ]
    if not found or (found[0][0] and own_main() is None):
        return None
    _, name, key = min(found)
    return f"{_named(name)}:{key}"


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
                f"moved, or say whose it is: @runtime.task(aliases=[{path!r}])"
            )
        elif missing and (name == missing or name.startswith(f"{missing}.")):
            text = (
                f"there is no module {missing!r}; install it, or name its folder in PYTHONPATH, or put it beside the "
                "specification file, if there is one"
            )
        else:
            text = f"module {name!r} imports {error.name!r}, which is not there"
    except Exception as error:  # a module may raise whatever it likes while it is imported
        text, cause = f"module {name!r} cannot be imported: {said(error)}", error
    raise BodyNotFound(f"{spoken(path)!r}: {text}") from cause


def _plain_module(name: str) -> ModuleType:
    """The module that Python finds under a name: this program's own, where that is its file. Imports it if need be."""
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
