"""Nodes on PostgreSQL are killed with SIGKILL at every kind of moment: one that is alone, and one of two.

The scene, the kills and the rules are those of the sweep over a file (`test_kill_sweep.py`); `kills/pairs.py` runs two
nodes. A fixed part runs by default. To run it for an hour, half of the time for each: `CALLBOARD_LABORATORY=1 pytest
tests/reliability/test_kill_postgres.py -s`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.reliability.kills.death import Commit
from tests.reliability.kills.outside import Zygote
from tests.reliability.kills.pairs import NODES, Pair
from tests.reliability.kills.sweep import Blow, Tally, chain

from callboard.runtime.testing.postgres import PrivateServer

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.skipif(sys.platform == "win32", reason="kill -9 and fork are of Unix"),
]
HOURS = float(os.environ.get("CALLBOARD_LABORATORY", "0"))
BOUNDARIES = [Commit(n, where) for n in range(1, 40) for where in ("before", "within", "after")]
"""The commits of a scene that is left alone, each with the moments before, in and behind it."""


@pytest.fixture(scope="module")
def zygotes() -> Iterator[dict[str, Zygote]]:
    with ExitStack() as stack:
        yield {node: stack.enter_context(closing(Zygote())) for node in NODES}


def at(place: Path, address: str) -> Path:
    """A place whose journal is in that database."""
    place.mkdir(exist_ok=True)
    (place / "address").write_text(address)
    return place


def alone(zygotes: dict[str, Zygote], place: Path, seed: int, tally: Tally) -> None:
    """One chain of a node that is alone."""
    chain(zygotes[NODES[0]], place, seed, tally, Blow(BOUNDARIES[seed % len(BOUNDARIES)]))


def in_pairs(zygotes: dict[str, Zygote], place: Path, seed: int, tally: Tally) -> None:
    """One chain of two nodes."""
    Pair(zygotes, place, seed, tally).play()


@pytest.mark.parametrize("seed", [30])
def test_killed_at_a_commit_and_wherever_it_goes_on_a_node_loses_nothing_and_runs_nothing_again(
    zygotes: dict[str, Zygote], tmp_path: Path, postgres: str, seed: int
) -> None:
    alone(zygotes, at(tmp_path, postgres), seed, Tally())


@pytest.mark.parametrize("seed", [4, 15])
def test_one_of_two_nodes_is_killed_and_what_it_had_begun_is_ended_by_the_other(
    zygotes: dict[str, Zygote], tmp_path: Path, postgres: str, seed: int
) -> None:
    in_pairs(zygotes, at(tmp_path, postgres), seed, Tally())


@pytest.mark.skipif(not HOURS, reason="the long mode: CALLBOARD_LABORATORY=hours")
@pytest.mark.parametrize("play", [alone, in_pairs])
def test_killed_for_hours_nodes_lose_nothing_and_run_nothing_again(
    zygotes: dict[str, Zygote],
    tmp_path: Path,
    postgres_server: PrivateServer,
    play: Callable[[dict[str, Zygote], Path, int, Tally], None],
) -> None:
    tally, until = Tally(), time.monotonic() + HOURS * 1800
    seed = int(os.environ.get("CALLBOARD_SEED", "1000"))
    while time.monotonic() < until:
        place = at(tmp_path / str(seed), postgres_server.address(f"kills_{play.__name__}_{seed}"))
        try:
            play(zygotes, place, seed, tally)
        except Exception as error:
            raise AssertionError(f"seed {seed}, after {tally}: {error}") from error
        shutil.rmtree(place)
        seed += 1
    print(f"\n{play.__name__}: {tally.chains} chains, {tally.killed} kills: {json.dumps(tally.kills)}")
