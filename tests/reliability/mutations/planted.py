"""Runs the simulations with a deliberate bug, in a fork of a process that has imported the library: `python -m` this.

Importing takes longer than most runs that show a bug. So one process imports all, and forks for each line of its input,
the name of a table and the index of a mutation in it. The fork compiles the changed source, gives the functions of that
file the new code, and runs seeds until one shows the bug. It answers with one line: what was found, or nothing.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import NoReturn

from tests.reliability.mutations import table
from tests.reliability.mutations.table import Mutation
from tests.reliability.simulation import corpus, driver, flows, nodes, plans

ROOT = Path(__file__).parents[3]
LIBRARY = ("machines", "actors", "runtime")
SERVER = "tests/reliability/simulation"
"""Some bugs between nodes are in the simulated server."""
PATIENCE = 300
"""Seconds after which a fork is killed."""

Find = Callable[[str, int], str]
"""Runs a seed of a kind; returns what it finds, or nothing."""


class Planted:
    """The process that forks. One bug at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        )  # fmt: skip

    def close(self) -> None:
        self._process.communicate()

    def found(self, name: str, mutation: Mutation) -> str:
        """What shows this bug of the table of that name; empty if nothing does."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name} {getattr(table, name).index(mutation)}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the process that forks has ended"
        return line.strip()


# -- the process that forks --------------------------------------------------------------------------------------------


def _of_one_node(kind: str, seed: int) -> str:
    return "; ".join(map(str, driver.carry_out(plans.make_plan(seed, kind)).findings[:1]))


def _of_nodes(kind: str, seed: int) -> str:
    return "; ".join(map(str, nodes.carry_out(nodes.make_plan(seed)).findings[:1]))


def _of_flows(kind: str, seed: int) -> str:
    return flows.find(seed)


_FINDS: dict[str, tuple[Find, int]] = {
    "MUTATIONS": (_of_one_node, corpus.SEEDS),
    "BETWEEN_NODES": (_of_nodes, nodes.SEEDS),
    "IN_FLOWS": (_of_flows, flows.SEEDS),
}
"""How the bugs of each table are looked for, and in how many runs of each kind at most."""


@cache
def _sources() -> dict[Path, str]:
    folders = (*LIBRARY, SERVER)
    return {path: path.read_text(encoding="utf-8") for name in folders for path in (ROOT / name).rglob("*.py")}


def plant(mutation: Mutation, *, of_nodes: bool) -> None:
    """Give the functions of this process the code of the changed source. Raises AssertionError if it fits nowhere."""
    texts = {path: text for path, text in _sources().items() if of_nodes or not path.is_relative_to(ROOT / SERVER)}
    places = sum(text.count(mutation.old) for text in texts.values())
    assert places == 1, f"this mutation fits in {places} places: write it anew in tests/reliability/mutations/table.py"
    path, text = next((path, text) for path, text in texts.items() if mutation.old in text)
    before = compile(text, str(path), "exec")
    after = compile(text.replace(mutation.old, mutation.new), str(path), "exec")
    codes = {(old.co_qualname, old.co_firstlineno): new for old, new in _pairs(before, after)}
    changed = 0
    for function in [one for one in gc.get_objects() if type(one) is FunctionType]:
        code = codes.get((function.__code__.co_qualname, function.__code__.co_firstlineno))
        if code is not None and os.path.realpath(function.__code__.co_filename) == os.path.realpath(path):
            function.__code__ = code
            changed += 1
    assert changed, f"{path} is not imported, or what it changes is no function"


def _pairs(before: CodeType, after: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Each code object of a source with what it is in the changed one."""
    yield before, after
    inner, of_changed = ([one for one in code.co_consts if isinstance(one, CodeType)] for code in (before, after))
    for old, new in zip(inner, of_changed, strict=True):
        yield from _pairs(old, new)


def _look(name: str, index: int) -> str:
    mutation: Mutation = getattr(table, name)[index]
    find, seeds = _FINDS[name]
    plant(mutation, of_nodes=name == "BETWEEN_NODES")
    runs = ((kind, seed) for seed in (mutation.seed, *range(seeds)) for kind in mutation.kinds.split())
    for kind, seed in runs:
        if wrong := find(kind, seed):
            return f"{kind} {seed}: {wrong}".replace("\n", " ")
    return ""


def _fork(name: str, index: int) -> NoReturn:
    signal.alarm(PATIENCE)
    try:
        print(_look(name, index), flush=True)
    except BaseException:  # whatever the error: the fork must not continue as its parent
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def main() -> None:
    """Fork for each line of the input."""
    _sources()
    for line in sys.stdin:
        name, index = line.split()
        pid = os.fork()
        if pid == 0:
            _fork(name, int(index))
        if os.waitpid(pid, 0)[1]:
            print(flush=True)  # its answer: it has failed


if __name__ == "__main__":
    main()
