"""Random flows, and the bugs that they must find."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.reliability.mutations.table import IN_FLOWS, Mutation
from tests.reliability.simulation.flows import SEEDS, carry_out, find
from tests.reliability.test_simulation import copy_to, mutate

pytestmark = pytest.mark.laboratory


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_no_step_of_a_random_flow_is_repeated_or_seen_before_it_is_durable(first: int) -> None:
    assert [wrong for seed in range(first, first + 10) if (wrong := find(seed))] == []


def test_the_same_seed_is_the_same_flow_and_the_same_run() -> None:
    assert carry_out(7) == carry_out(7)


@pytest.mark.parametrize("mutation", IN_FLOWS, ids=lambda mutation: mutation.name)
def test_a_deliberate_bug_is_found(mutation: Mutation, tmp_path: Path) -> None:
    mutate(mutation, copy_to(tmp_path))
    command = [sys.executable, "-m", "tests.reliability.simulation.flows", "0", str(SEEDS)]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path / 'src'}{os.pathsep}{tmp_path}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1, f"it was not found:\n{done.stdout}{done.stderr}"
    assert "seed " in done.stdout, done.stderr
