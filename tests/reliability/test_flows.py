"""Random flows, and the bugs that they must find."""

from __future__ import annotations

import os

import pytest
from tests.reliability.mutations.planted import Planted
from tests.reliability.mutations.table import IN_FLOWS, Mutation
from tests.reliability.simulation.flows import SEEDS, carry_out, find

pytestmark = pytest.mark.laboratory
EACH = SEEDS if "CALLBOARD_LABORATORY" in os.environ else 20
"""Seeds that are run."""


@pytest.mark.parametrize("first", range(0, EACH, 10))
def test_no_step_of_a_random_flow_is_repeated_or_seen_before_it_is_durable(first: int) -> None:
    assert [wrong for seed in range(first, first + 10) if (wrong := find(seed))] == []


def test_the_same_seed_is_the_same_flow_and_the_same_run() -> None:
    assert carry_out(7) == carry_out(7)


@pytest.mark.parametrize("mutation", IN_FLOWS, ids=lambda mutation: mutation.name)
def test_a_deliberate_bug_is_found(planted: Planted, mutation: Mutation) -> None:
    assert planted.found("IN_FLOWS", mutation), "it was not found"
