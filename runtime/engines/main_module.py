"""The program's own module in another process: functions of `__main__` are found there too.

A program is not imported, it is run; so a worker process runs it once more under the name `__mp_main__`, as Python's
multiprocessing does, and calls that module `__main__`. What the program does only as the program stands behind
`if __name__ == "__main__":`, and is not done again. A program that forgot that would open its runtime in every worker
process; while it is being loaded, that is refused.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import ModuleType

NAME = "__mp_main__"
_loading = False
_told: tuple[str, str] | None = None


def be_told_of(main: tuple[str, str] | None) -> None:
    """Know the module of another process's program as that of this one: it works for that."""
    global _told  # noqa: PLW0603 - a process has one program
    _told = main


def own_main() -> tuple[str, str] | None:
    """How another process finds this program's module: by ("module", name) or ("file", path). None: not at all."""
    if _told is not None:
        return _told
    main = sys.modules.get("__main__")
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if isinstance(name, str) and name.rpartition(".")[2] != "__main__":
        return "module", name
    file = getattr(main, "__file__", None)
    return ("file", str(Path(file).absolute())) if isinstance(file, str) else None


def load_main(main: tuple[str, str] | None) -> None:
    """Make that program's module this process's `__main__`. Raises ImportError, and whatever it raises itself."""
    global _loading  # noqa: PLW0603 - a process has one program
    if main is None:
        raise ImportError("the program was not read from a file, so another process cannot find its functions")
    how, where = main
    module = ModuleType(NAME)
    _loading = True
    try:
        found = runpy.run_module(where, run_name=NAME) if how == "module" else runpy.run_path(where, run_name=NAME)
    finally:
        _loading = False
    module.__dict__.update(found)
    sys.modules["__main__"] = sys.modules[NAME] = module


def refuse_while_loading() -> None:
    """Raise RuntimeError while the program's module is being loaded by a worker process."""
    if _loading:
        raise RuntimeError(
            "a worker process loads this program to find its functions, and the program opens a runtime then: "
            'put what it does as a program behind `if __name__ == "__main__":`'
        )
