"""Loads the program's main module in another process, so that its functions are found there.

A program is run, not imported; so a worker process runs it once more under the name `__mp_main__`, as Python's
multiprocessing does, and calls that module `__main__`. Code of the program below `if __name__ == "__main__":` is not
run again. A program without this guard would open its runtime in every worker process; while modules are being loaded
there, that is refused.

The working folder is the program's, which the program may have changed since its start. The program itself is loaded in
the folder in which it was started: there its own `os.chdir("data")` is right. A module is imported in the program's
present folder, and in its first one if a file is missing there. Afterwards the working folder is restored.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ....actors.user_code import called, message_of
from ...functions.import_paths import BodyNotFound, follow, parts_of, spoken, wants_too_much
from ...functions.main_program import AGAIN, MAIN, main_module, own_main, where_it_began

_loading = False


def function_of(path: str) -> Callable[..., Any]:
    """A body by its path, in a process that works for a program. Raises BodyNotFound.

    If it is a function of the program itself, the program is loaded first.
    """
    func = object_of(path)
    if problem := wants_too_much(func):
        raise BodyNotFound(problem)
    return func


def object_of(path: str) -> Callable[..., Any]:
    """`function_of` for a function that takes any arguments, such as that of a step."""
    global _loading  # noqa: PLW0603 - a process has one program
    before, _loading = _loading, True
    try:
        if _is_of_program(path) and main_module() is None:
            _load(path)
        return _followed(path)
    finally:
        _loading = before


def _followed(path: str) -> Callable[..., Any]:
    try:
        return follow(path)
    except BodyNotFound as error:
        if not isinstance(error.__cause__, OSError):
            raise
    with where_it_began():
        return follow(path)


def refuse_while_loading() -> None:
    """Raise RuntimeError while a worker process loads modules of the program."""
    if _loading:
        raise RuntimeError(
            "a worker process loads this program to find its functions, and the program opens a runtime then: "
            'put what it does as a program behind `if __name__ == "__main__":`'
        )


def _is_of_program(path: str) -> bool:
    module, _, _ = parts_of(path)
    return module == MAIN or own_main() == ("module", module)


def _load(path: str) -> None:
    try:
        called(load_main, own_main())
    except Exception as error:  # the program may raise anything
        text = f"{spoken(path)!r}: the program cannot be loaded here: {message_of(error)}"
        raise BodyNotFound(text) from error


def load_main(main: tuple[str, str] | None) -> None:
    """Make that program's module this process's `__main__`. Raises ImportError, and the module's own errors."""
    if main is None:
        raise ImportError("the program was not read from a file, so another process cannot find its functions")
    how, where = main
    import runpy  # noqa: PLC0415 - only in a worker process

    module = ModuleType(AGAIN)
    with where_it_began():
        found = runpy.run_module(where, run_name=AGAIN) if how == "module" else runpy.run_path(where, run_name=AGAIN)
    module.__dict__.update(found)
    sys.modules[MAIN] = sys.modules[AGAIN] = module
