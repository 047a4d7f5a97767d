"""Flows whose process is killed with SIGKILL: on SQLite, on PostgreSQL, and on two nodes of which one goes on.

What the flows do is in `kills/flow_scene.py`, what must hold in `kills/flow_rules.py`. A small fixed part runs here. A
report of thousands of kills: `PYTHONPATH=src python -m tests.reliability.kills.flows --minutes 30`.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.reliability.kills import outside
from tests.reliability.kills.death import Commit, Death, Wrote
from tests.reliability.kills.flow_rules import DIFFERENT, EARLY, LOST, REPEATED, FlowRules, RulesBroken
from tests.reliability.kills.outside import Zygote, live, log_of
from tests.reliability.kills.pairs import NODES, Pair
from tests.reliability.kills.sweep import Blow, Tally, chain, flows, said
from tests.reliability.kills.zygote import Order

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kill -9 and fork are of Unix")
MOST = 8 if "CALLBOARD_LABORATORY" in os.environ else 5
"""Kills of a chain: then it goes on to its end."""


@pytest.fixture(scope="module")
def zygotes() -> Iterator[dict[str, Zygote]]:
    with ExitStack() as stack:
        yield {node: stack.enter_context(closing(Zygote())) for node in NODES}


@pytest.mark.laboratory
@pytest.mark.parametrize(("seed", "first"), [(1, Commit(9, "before")), (6, Wrote(14)), (7, Commit(5, "within"))])
def test_a_killed_flow_repeats_no_step_that_was_kept_and_loses_no_message(
    zygotes: dict[str, Zygote], tmp_path: Path, seed: int, first: Death
) -> None:
    tally = Tally()
    chain(zygotes[NODES[0]], tmp_path, seed, tally, Blow(first), plays=flows, most=MOST)
    assert tally.killed > 1
    assert tally.done["functions of steps run"] >= 38  # of two orders, their children and `books`


@pytest.mark.laboratory
def test_an_uninterrupted_flow_breaks_no_rule_and_each_breach_is_found(
    zygotes: dict[str, Zygote], tmp_path: Path
) -> None:
    order, rules = flows(tmp_path, 0)[:2]
    assert live(zygotes[NODES[0]], order, operator=rules.operator) == 0
    rules.operator.look()
    rules.at_end()
    assert rules.done["of these again, since a kill had cut them"] == 0
    with (tmp_path / "log").open("a") as log:
        log.write('order-loop did charge\norder-loop saw a-1 = "a-2"\norder-thread saw nothing = 1\n')
    with closing(sqlite3.connect(tmp_path / "state.db")) as journal, journal:
        journal.execute("DELETE FROM step_records WHERE json_extract(record, '$.name') = 'task.receive payment'")
    with pytest.raises(RulesBroken) as broken:
        rules.at_end()
    assert {REPEATED, DIFFERENT, EARLY, LOST} <= {one.kind for one in broken.value.findings}


@pytest.mark.parametrize("seed", [2])
def test_on_postgres_it_repeats_no_step_and_loses_no_message(
    zygotes: dict[str, Zygote], tmp_path: Path, postgres: str, seed: int
) -> None:
    (tmp_path / "address").write_text(postgres)
    chain(zygotes[NODES[0]], tmp_path, seed, Tally(), Blow(Commit(7, "within")), plays=flows, most=MOST)


@pytest.mark.parametrize("seed", [4])
def test_the_flows_of_a_killed_node_go_on_where_they_were_on_another_one(
    zygotes: dict[str, Zygote], tmp_path: Path, postgres: str, seed: int
) -> None:
    tally = Tally()
    (tmp_path / "address").write_text(postgres)
    Pair(zygotes, tmp_path, seed, tally, plays=flows, most=MOST).play()
    assert tally.killed


@pytest.mark.cluster
def test_a_flow_on_a_cluster_goes_on_where_it_was_after_its_runtime_was_killed(
    ray_here: Any, zygotes: dict[str, Zygote], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside, "PATIENCE", 900.0)  # on a busy machine an actor may take minutes to start
    order, rules = Order(str(tmp_path), play="flows", ray=ray_here.address), FlowRules(tmp_path, ray=True)

    def did(lines: int) -> bool:
        return sum(line.startswith("order-ray did ") for line in log_of(tmp_path)) >= lines

    for lines in (5, 11):
        killed = live(zygotes[NODES[0]], order, operator=rules.operator, ready=partial(did, lines))
        assert killed == -9, said(tmp_path)
        rules.after_kill()
    assert live(zygotes[NODES[0]], order, operator=rules.operator) == 0, said(tmp_path)
    rules.operator.look()
    rules.at_end()
