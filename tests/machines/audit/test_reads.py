"""The declared inputs of guards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest

from callboard.machines.audit.guard_fields import facts_of, readers
from callboard.machines.lifecycles import PUBLISHED, guarded

if TYPE_CHECKING:
    from types import SimpleNamespace


class Counted(Protocol):
    """A fact that is said by its type alone."""

    count: int


class Watched(Counted, Protocol):
    """Another one, with what it means."""

    @property
    def patience(self) -> float:
        """How long."""
        ...

    _hidden: int


def watched(facts: Watched, _: object) -> bool:
    """Whether it is."""
    return facts.count > facts.patience


def anything(facts: Any, _: object) -> bool:
    """A guard without a declaration of its inputs."""
    return bool(facts)


def unknown(facts: SimpleNamespace, _: object) -> bool:
    """A guard whose declaration has a name that does not exist when it runs."""
    return bool(facts)


class Asked:
    """A guard that is no plain function."""

    def __call__(self, facts: Watched, _: object) -> bool:
        """Whether it is."""
        return facts.count > 0


def test_a_guard_says_what_it_reads_by_a_protocol() -> None:
    assert facts_of(watched) == {"count": "", "patience": "How long."}


@pytest.mark.parametrize("guard", [anything, unknown, Asked(), lambda facts, _: bool(facts)])
def test_of_any_other_guard_nothing_is_known(guard: Any) -> None:
    assert facts_of(guard) == {}


def test_every_published_guard_says_what_it_reads() -> None:
    for machine in PUBLISHED.values():
        guards = {row.guard for row in machine.transitions if row.guard is not None}
        assert all(facts_of(guard) for guard in guards)
    assert readers(guarded.TASK)["unmet"] == ["dependencies satisfied"]
