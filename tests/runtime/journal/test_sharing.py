"""How nodes share the limit of a tool: never more than the limit in all, and no node waits without an end."""

from __future__ import annotations

from random import Random

import pytest

from callboard.runtime.journal.cluster import ToolDemand
from callboard.runtime.journal.sharing import TURN, ToolClaim, portion


class Table:
    """The claims on one tool, as a database keeps them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.claims: dict[str, ToolClaim] = {}
        self.now = 100.0
        self.rang = False

    def ask(
        self, node: str, waiting: int = 0, *, used: int = 0, priority: int = 0, keep: int = 0, less: int = 0
    ) -> int:
        """waiting: tasks of that priority; less: of lower ones."""
        urgent = min(waiting, self.limit)
        want = ToolDemand(self.limit, used + urgent + less, priority, used, urgent, keep)
        claim, self.rang = portion(node, want, self.claims, self.now)
        self.claims[node] = claim
        if claim.empty:
            del self.claims[node]
        return claim.told

    @property
    def held(self) -> int:
        return sum(claim.held for claim in self.claims.values())


def test_who_asks_alone_has_what_it_wants_up_to_the_limit() -> None:
    table = Table(3)
    assert table.ask("a", 2) == 2
    assert table.ask("a", 9) == 3
    assert not table.rang


def test_equals_get_equal_parts_as_slots_come_back() -> None:
    table = Table(4)
    assert table.ask("a", 9) == 4
    assert (table.ask("b", 9), table.rang) == (0, True)
    assert (table.ask("a", 9, used=4), table.rang) == (2, False)  # it has asked; two of the four end
    assert table.ask("b", 9) == 0
    assert not table.rang  # no node is notified twice
    assert (table.ask("a", 9, used=3), table.rang) == (2, True)
    assert table.ask("b", 9) == 1
    table.ask("a", 9, used=2)
    assert table.ask("b", 9, used=1) == 2


def test_what_is_kept_without_need_is_given_up_as_soon_as_it_is_wanted() -> None:
    table = Table(3)
    table.ask("a", 3)
    assert table.ask("a", used=1, keep=3) == 3
    assert (table.ask("b", 1), table.rang) == (0, True)
    assert (table.ask("a", used=1, keep=3), table.rang) == (2, True)
    assert (table.ask("b", 1), table.rang) == (1, False)


def test_one_urgent_task_takes_one_slot_and_not_all_of_them() -> None:
    table = Table(4)
    table.ask("a", 9)
    assert table.ask("b", 1, priority=10, less=3) == 0
    assert table.ask("a", 9, used=4) == 3
    table.ask("a", 9, used=3)
    assert table.ask("b", 1, priority=10, less=3) == 1


def test_the_smallest_limit_of_those_who_use_the_tool_holds_and_nothing_is_taken_away() -> None:
    table = Table(3)
    table.ask("a", 3)
    table.limit = 1
    assert table.ask("b", 1) == 0
    table.limit = 3
    assert table.ask("a", used=3) == 0
    assert table.held == 3
    table.ask("a", used=1)
    table.limit = 1
    assert table.ask("b", 1) == 0
    table.limit = 3
    table.ask("a")
    assert (table.held, table.claims["a"].want.says) == (0, True)
    table.limit = 1
    assert table.ask("b", 1) == 1


def test_fewer_slots_than_nodes_go_round() -> None:
    table = Table(1)
    nodes = dict.fromkeys("abc", 0)
    turns: list[str] = []
    for _ in range(60):
        table.now += 1
        for name, used in nodes.items():  # each runs one task after the other, as long as it may
            nodes[name] = min(1, table.ask(name, 5, used=used))
            turns += [name] * (nodes[name] and turns[-1:] != [name])
        assert sum(nodes.values()) <= 1
    assert turns[:6] == ["a", "b", "c", "a", "b", "c"]
    assert TURN <= 60 / len(turns) <= TURN + 2


@pytest.mark.parametrize("seed", range(8))
def test_whatever_nodes_do_no_more_is_given_out_than_there_is_and_everybody_has_something_in_the_end(seed: int) -> None:
    random = Random(seed)
    limit = random.randint(1, 5)
    table = Table(limit)
    names = "abcde"[: random.randint(2, 5)]
    used, told, waiting, served = (dict.fromkeys(names, 0) for _ in range(4))
    for _ in range(400):
        table.now += random.random()
        name = random.choice(names)
        match random.randint(0, 3):
            case 0:
                waiting[name] += random.randint(0, 3)
            case 1 if used[name]:
                used[name] -= 1
            case _:
                urgent, less = min(waiting[name], 2), max(0, waiting[name] - 2)
                priority, keep = random.randint(0, 2), random.choice([0, told[name]])
                told[name] = table.ask(name, urgent, used=used[name], priority=priority, less=less, keep=keep)
        while waiting[name] and used[name] < told[name]:
            waiting[name] -= 1
            used[name] += 1
            served[name] += 1
        assert sum(max(used[one], told[one]) for one in names) <= limit
    for _ in range(100 * len(names)):  # from now on everybody asks in turn, as one that is rung does
        table.now += 1
        for name in names:
            waiting[name] = max(waiting[name], 1)
            told[name] = table.ask(name, waiting[name], used=used[name])
            if used[name] < told[name]:
                used[name] += 1
                served[name] += 1
            elif used[name]:
                used[name] -= 1
        assert sum(max(used[one], told[one]) for one in names) <= limit
    assert min(served.values()) > 0
