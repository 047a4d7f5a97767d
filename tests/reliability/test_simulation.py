"""The simulation of the runtime: a fixed number of seeds, the corpus, and the bugs that it must find.

A failing seed is run again, with its trace, by the command that the failure prints; `--smaller` drops the parts that
the finding does not need.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from tests.reliability.mutations.planted import Planted
from tests.reliability.mutations.table import MUTATIONS, Mutation
from tests.reliability.simulation import whole
from tests.reliability.simulation.corpus import SEEDS, kept
from tests.reliability.simulation.driver import Result, carry_out
from tests.reliability.simulation.plans import KINDS, make_plan

pytestmark = pytest.mark.laboratory

LONG = "CALLBOARD_LABORATORY" in os.environ
EACH = SEEDS if LONG else 100
"""The number of seeds of each kind; more, up to `SEEDS`, until each move was made."""
WHOLE_SEEDS = 40 if LONG else 16
"""The number of seeds of each kind, on the whole runtime."""


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
        if seed + 1 >= EACH and set(KINDS[kind]) <= set(made):
            return
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
def test_a_deliberate_bug_is_found(planted: Planted, mutation: Mutation) -> None:
    assert planted.found("MUTATIONS", mutation), "it was not found"
