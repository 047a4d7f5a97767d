"""Finds the modules that cannot be the first import of a process. `python tests/first_imports.py` reads their names.

Rules
-----
- Each module is imported by a fork of this process, which has imported no module of its package before, except those of
  earlier groups (an empty line divides groups). No module may import one of a later group. So what an earlier group
  imports never leads back to the module, and the result is that of a process that has imported nothing.
- What a group imports from other packages is imported before that, once, and not earlier: a fork of a small process
  costs less. The whole takes half the time of forks that import everything.
- A line is written for each module that cannot be imported: its name, a tab, and the error. If a module of another
  package is missing, which an extra would install, the error is `lacks` with that module's name.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module


def error_of(name: str) -> str:
    """The error of importing the module, in words; empty if it can be imported."""
    try:
        import_module(name)
    except BaseException as error:  # SystemExit, too: a module must not end the process
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ModuleNotFoundError) and not within(cause.name or name, name):
                return f"lacks {cause.name}"
            cause = cause.__cause__ or cause.__context__
        return " ".join(f"{type(error).__name__}: {error}".split())
    return ""


def within(one: str, other: str) -> bool:
    """Whether two modules are of one package."""
    return one.partition(".")[0] == other.partition(".")[0]


def in_fork(do: Callable[[], str]) -> str:
    """Call a function in a fork of this process; returns its result."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        answer = "it ended the process"
        try:
            answer = do()
        finally:
            os.write(writing, answer.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def imported_from_elsewhere(names: Sequence[str]) -> list[str]:
    """The modules of other packages that are imported with these, each after those that it needs."""

    def all_loaded() -> str:
        for name in names:
            error_of(name)
        return "\n".join(one for one in sys.modules if one not in before and not within(one, names[0]))

    before = set(sys.modules)
    return in_fork(all_loaded).splitlines()


def main(groups: Sequence[Sequence[str]]) -> None:
    """Print the modules that cannot be imported first."""
    for group in groups:
        for name in imported_from_elsewhere(group):
            with contextlib.suppress(Exception):  # then the forks import it themselves
                import_module(name)
        loaded = [name for name in group if name in sys.modules]
        assert not loaded, f"imported before the forks: {loaded}"
        gc.freeze()
        for name in group:
            if error := in_fork(partial(error_of, name)):
                print(f"{name}\t{error}")
        for name in group:
            error_of(name)  # imports it for the later groups


if __name__ == "__main__":
    main([group.split() for group in sys.stdin.read().split("\n\n")])
