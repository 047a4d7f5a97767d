"""The simulation of several nodes on one database: a fixed number of seeds, and the bugs that it must find.

A failing seed is run again, with its trace, by the command that the failure prints.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from tests.reliability.mutations.planted import Planted
from tests.reliability.mutations.table import BETWEEN_NODES, Mutation
from tests.reliability.simulation.growth import Growth
from tests.reliability.simulation.nodes import FAULTS, SEEDS, carry_out, make_plan

from callboard.runtime.journal.cluster import LEASE

pytestmark = pytest.mark.laboratory
EACH = SEEDS if "CALLBOARD_LABORATORY" in os.environ else 48
"""Seeds that are run."""


def test_whatever_happens_between_nodes_all_that_must_be_true_is() -> None:
    made = Counter[str]()
    for seed in range(EACH):
        result = carry_out(make_plan(seed))
        told = "\n".join(str(finding) for finding in result.findings)
        assert not told, f"{told}\nThe trace: PYTHONPATH=src python -m tests.reliability.simulation.nodes {seed}"
        made += result.taken
    assert set(FAULTS) <= set(made), "a fault never happened"


def test_the_same_seed_is_the_same_run_of_several_nodes() -> None:
    once, again = (carry_out(make_plan(7)).fleet for _ in range(2))
    assert once.disk.transitions == again.disk.transitions
    assert [what[:3] for what in once.ledger.trace] == [what[:3] for what in again.ledger.trace]


@pytest.mark.parametrize("dying", [1, 10])
def test_what_a_hundred_nodes_have_is_taken_over_once_in_time_and_spread(dying: int) -> None:
    growth = Growth(100, 1000, rate=5000.0, lease=LEASE, dying=dying)
    told = growth.run()
    assert (told.fenced, told.wrongly, len(told.waits)) == (dying, 0, dying * 1000)
    assert sum(growth.owned[node] for node in range(100) if not growth.fenced[node]) == 100_000
    assert told.within(1.0) < LEASE + 2
    assert told.most < 1.2 * told.mean
    assert told.settled < 3 * told.at_rest  # the nodes do not look all at once from then on


def test_after_an_outage_nobody_is_fenced_who_lives() -> None:
    told = Growth(100, 1000, rate=5000.0, lease=LEASE, dying=0, outage=60.0).run()
    assert (told.fenced, told.takings) == (0, 0)


@pytest.mark.parametrize("mutation", BETWEEN_NODES, ids=lambda mutation: mutation.name)
def test_a_deliberate_bug_between_nodes_is_found(planted: Planted, mutation: Mutation) -> None:
    assert planted.found("BETWEEN_NODES", mutation), "it was not found"
