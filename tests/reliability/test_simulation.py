"""The simulation of the runtime: a fixed number of seeds, the corpus, and the bugs that it must find.

A failing seed is run again, with its trace, by the command that the failure prints; `--smaller` drops the parts that
the finding does not need.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.reliability.mutations.table import MUTATIONS, Mutation
from tests.reliability.simulation import whole
from tests.reliability.simulation.corpus import SEEDS, kept
from tests.reliability.simulation.driver import Result, carry_out
from tests.reliability.simulation.plans import KINDS, make_plan

pytestmark = pytest.mark.laboratory

ROOT = Path(__file__).parents[2]
WHOLE_SEEDS = 40
"""The number of seeds of each kind, on the whole runtime."""
SOURCES = ("machines", "actors", "runtime")


def run(kind: str, seed: int) -> Result:
    """Run a seed, which must find nothing."""
    result = carry_out(make_plan(seed, kind))
    told = "\n".join(str(finding) for finding in result.findings)
    assert not told, f"{told}\nThe trace: PYTHONPATH=src python -m tests.reliability.simulation {kind} {seed} --smaller"
    return result


@pytest.mark.parametrize("kind", list(KINDS))
def test_whatever_happens_all_that_must_be_true_is(kind: str) -> None:
    made = Counter[str]()
    for seed in range(SEEDS):
        made += run(kind, seed).taken
    assert set(KINDS[kind]) <= set(made), "a move was never made"


@pytest.mark.parametrize("kind", list(KINDS))
def test_so_it_is_for_the_whole_runtime_as_users_simulate_it(kind: str) -> None:
    for seed in range(WHOLE_SEEDS):
        told = "\n".join(map(str, whole.carry_out(make_plan(seed, kind)).findings))
        assert not told, f"{told}\nPYTHONPATH=src python -m tests.reliability.simulation {kind} {seed} --whole"


def test_what_was_new_once_still_holds() -> None:
    for kind, seed in kept():
        run(kind, seed)


def test_the_same_seed_is_the_same_run() -> None:
    for kind in KINDS:
        once, again = (list(carry_out(make_plan(7, kind)).lines()) for _ in range(2))
        assert once == again
        assert once != list(carry_out(make_plan(8, kind)).lines())


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_deliberate_bug_is_found(mutation: Mutation, tmp_path: Path) -> None:
    mutate(mutation, copy_to(tmp_path))
    command = [
        sys.executable, "-m", "tests.reliability.simulation",
        "--kinds", mutation.kinds, "--seeds", str(SEEDS), "--stop",
    ]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": f"{tmp_path / 'src'}{os.pathsep}{tmp_path}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, f"it was not found:\n{done.stdout}"
    assert done.stderr == ""


def copy_to(folder: Path) -> Path:
    """The library and the simulation, in another folder, with what this Python has compiled of them."""

    def ignored(folder: str, names: list[str]) -> set[str]:
        compiled = f".{sys.implementation.cache_tag}.pyc"
        return {name for name in names if folder.endswith("__pycache__") and not name.endswith(compiled)}

    package = folder / "src" / "callboard"
    package.mkdir(parents=True)
    for name in SOURCES:
        shutil.copytree(ROOT / name, package / name, ignore=ignored)
    for path in (ROOT / "src" / "callboard").glob("*.py"):
        shutil.copy(path, package)
    there = folder / "tests" / "reliability" / "simulation"
    shutil.copytree(ROOT / "tests" / "reliability" / "simulation", there, ignore=ignored)
    return folder


def mutate(mutation: Mutation, folder: Path, *also: str) -> None:
    """Put the bug in, in the one place where it fits: of the library, or of these folders beside."""
    within = [*(Path("src", "callboard", name) for name in SOURCES), *map(Path, also)]
    paths = [path for name in within for path in (folder / name).rglob("*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    found = [path for path, text in texts.items() if mutation.old in text]
    places = sum(text.count(mutation.old) for text in texts.values())
    assert places == 1, f"this mutation fits in {places} places: write it anew in tests/reliability/mutations/table.py"
    found[0].write_text(texts[found[0]].replace(mutation.old, mutation.new), encoding="utf-8")
