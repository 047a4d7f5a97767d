"""The program's own module: names that distinguish the `__main__` of different programs.

| the program was started as | names of its functions | found by |
| --- | --- | --- |
| `python -m shop.jobs` | `shop.jobs:work` | programs that can import that module |
| `python jobs.py`, `python folder`, `python -m shop` | `__main__@/path/of/jobs.py:work` | programs of that file |
| `python -`, `python -c`, a notebook, the prompt | `__main__@#3f1c...:work` | this process |

Rules
-----
- A file is the same under every path that leads to it, also by a link, and after any change. A moved file is another
  program; a link at its old place makes it the same again.
- A program that has imported that file as a module has its functions as well. No program is ever imported to find them:
  the import could run the whole program.
- A journal of an older version has `__main__:work`, without a file: its program is unknown. The program that has the
  function can say so (`@runtime.task(aliases=["__main__:work"])`).
- A program may change its working folder while it is loaded (`os.chdir("data")`). A process that loads the program
  again begins in the folder where the program began. That folder is known from the program's file, if its path was
  given relative to the folder, else it is the working folder when this module was imported.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from inspect import unwrap
from types import ModuleType
from typing import Any, cast

from .folder_modules import same_file

MAIN = "__main__"
AGAIN = "__mp_main__"
"""The name of a program's module in a worker process (`runtime/engines/process/main_module.py`)."""
NOT_OF_A_FILE = f"{MAIN}@#"
"""The prefix of names of functions whose program was not read from a file."""
_MARK = f"#{uuid.uuid4().hex[:16]}"  # of this process

_told: tuple[str, str] | None = None
_told_folder = ""
_seen: tuple[Any, tuple[str, str] | None] = None, None  # a main module, and how to find it; computed once


def _here() -> str:
    """The working folder; "" if it does not exist any more."""
    try:
        return os.getcwd()  # noqa: PTH109 - as text
    except OSError:
        return ""


def _first_folder() -> str:
    """The folder in which this process's program was started."""
    file, typed = _file(sys.modules.get(MAIN)), sys.argv[0] if sys.argv else ""
    if file is not None and typed and not os.path.isabs(typed):  # noqa: PTH117 - as it was typed
        ending = os.sep + os.path.normpath(typed)
        if file.endswith(ending) and os.path.isdir(folder := file.removesuffix(ending) or os.sep):  # noqa: PTH112
            return folder
    return _here()


def began_in() -> str:
    """The folder in which the program was started; "" if unknown."""
    return _told_folder or _BEGAN_IN


@contextmanager
def where_it_began() -> Generator[None, None, None]:
    """Change to the folder in which the program was started, and back at the end."""
    before = _here()
    with suppress(OSError):  # the folder was removed, or is on another machine
        os.chdir(began_in() or before)
    try:
        yield
    finally:
        with suppress(OSError):
            os.chdir(before)


def search_path() -> list[str]:
    """`sys.path` for another process: relative entries also count from the folder where the program began."""
    folder, path = began_in(), list[str]()
    for entry in map(str, sys.path):
        path.append(entry)
        if folder and folder != _here() and not os.path.isabs(entry):  # noqa: PTH117 - it is text
            path.append(os.path.normpath(os.path.join(folder, entry)))  # noqa: PTH118
    return path


def be_told_of(main: tuple[str, str] | None, folder: str) -> None:
    """Set this process's program and start folder to those of the process that it works for."""
    global _told, _told_folder
    _told, _told_folder = main, folder


def own_main() -> tuple[str, str] | None:
    """How another process finds this program's module: by ("module", name) or ("file", path). None: it cannot."""
    global _seen  # noqa: PLW0603 - as above
    if _told is not None:
        return _told
    main = sys.modules.get(MAIN)
    if _seen[0] is not main:
        _seen = main, _found(main)
    return _seen[1]


def _found(main: Any) -> tuple[str, str] | None:
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    name = getattr(spec, "name", None)
    if isinstance(name, str) and name.rpartition(".")[2] not in {MAIN, AGAIN}:
        return "module", name
    if getattr(sys, "frozen", False):  # the program's modules may be in another folder at each start
        return "file", sys.executable
    if not isinstance(file, str) or (file.startswith("<") and file.endswith(">")):  # as "<stdin>"
        return None
    return "file", os.path.normpath(os.path.join(_BEGAN_IN, file))  # noqa: PTH118 - no link is followed


def own_name() -> str:
    """The part before the colon in the names of this program's own functions."""
    how, where = own_main() or ("process", _MARK)
    return where if how == "module" else f"{MAIN}@{where}"


def module_of(where: str) -> ModuleType | None:
    """The module stored as `__main__@WHERE`, if it is this program or imported here."""
    main, own = _main(), own_main()
    if where.startswith("#"):
        return main if own is None and where == _MARK else None
    if main is not None and same_file(_file(main) if own is None or own[0] == "module" else own[1], where):
        return main
    for module in list(sys.modules.values()):
        file = _file(module)
        if file is not None and os.path.basename(file) == os.path.basename(where) and same_file(file, where):  # noqa: PTH119
            return module
    return None


def own_module(name: str) -> ModuleType | None:
    """This program's own module, if that dotted name is another name for it."""
    main, own = _main(), own_main()
    if main is None or own is None:
        return None
    how, where = own
    return main if how == "module" and where == name else None


def is_own_file(file: str | None) -> bool:
    """Whether that file is this program's own."""
    own, main = own_main(), _main()
    return main is not None and same_file(own[1] if own is not None and own[0] == "file" else _file(main), file)


def written_elsewhere(func: object) -> str | None:
    """The file of a function of `__main__` that a launcher executed from another file; else None."""
    own = own_main()
    if own is None or own[0] != "file":
        return None
    file = another_file(func)
    return None if same_file(file, own[1]) else file


def another_file(func: object) -> str | None:
    """The file of a function's source, if that is not the file of `__main__`; else None."""
    with suppress(ValueError):  # the function wraps itself
        func = unwrap(cast("Callable[..., Any]", func))
    file = getattr(getattr(func, "__code__", None), "co_filename", None)
    if getattr(sys, "frozen", False) or not isinstance(file, str) or not os.path.isfile(file):  # noqa: PTH113
        return None
    return None if same_file(file, _file(_main())) else file


def main_module() -> ModuleType | None:
    """The program's module; None in a worker process that has not loaded it."""
    return _main()


def why_not(where: str, names: str) -> str:
    """Why the function `__main__@WHERE:NAMES` is not found here, and what to do."""
    own = own_main()
    here = "this one was not read from a file" if own is None else f"this one is {own[1]}"
    if not where:
        return (
            "is in the main module of an unknown program: an older version did not store which one. If it is this "
            f'program, say so: @runtime.task(aliases=["{MAIN}:{names}"])'
        )
    if where.startswith("#"):
        return (
            "is in the main module of another program, which was not read from a file (python -, python -c, a "
            "notebook): it is found in that process only. Put it in a module, or register it: @runtime.task(name=...)"
        )
    if not _is_there(where):
        moved = f"{MAIN}@{where}:{names}"
        return (
            f"is in the main module of another program, {where}, which does not exist any more, and {here}. If it was "
            "moved, make a link where it was, or say in the program that has the function that it is the same one: "
            f"@runtime.task(aliases=[{moved!r}])"
        )
    return (
        f"is in the main module of another program, {where}, and {here}. Start that program: it goes on. Put functions "
        "that several programs run in a module, or register them in each by one name: @runtime.task(name=...)"
    )


def _is_there(place: str) -> bool:
    """Whether the file exists, or an archive that may contain it."""
    while place not in {"", os.path.dirname(place)}:  # noqa: PTH120 - as it was kept
        if os.path.lexists(place):
            return not os.path.isdir(place)  # noqa: PTH112
        place = os.path.dirname(place)  # noqa: PTH120
    return False


def _main() -> ModuleType | None:
    main = sys.modules.get(MAIN)
    if _told is not None and getattr(main, "__name__", None) != AGAIN:
        return None
    return main


def _file(module: object) -> str | None:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else None


_BEGAN_IN = _first_folder()
