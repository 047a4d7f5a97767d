"""The workstream states that the states of its tasks allow, and how the end of a task counts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from callboard.machines import Standing, WorkstreamState, derive, standing

BEFORE = {"planned", "ready", "held", "waiting", "paused"}
DURING = {"executing", "paused", "cancelling"}
AFTER = {"paused", "validating", "cancelling", "completed", "failed", "cancelled"}
AFTER_BAD = {"cancelling", "failed", "cancelled"}


def tasks(*states: str) -> list[SimpleNamespace]:
    """Tasks by state; "failed?" is an optional one, "skipped:void" one whose standing is known."""
    made = []
    for text in states:
        state, _, known = text.rstrip("?").partition(":")
        made.append(SimpleNamespace(state=state, optional=text.endswith("?"), standing=known or None))
    return made


@pytest.mark.parametrize(
    ("states", "allowed"),
    [
        ((), BEFORE | AFTER),
        (("pending", "pending"), BEFORE | DURING),
        (("pending", "completed"), BEFORE | DURING),
        (("queued", "pending"), BEFORE | DURING),
        (("circuit_open", "pending"), BEFORE | DURING),
        (("retrying", "pending"), DURING),
        (("completed", "running"), DURING),
        (("failed?", "running"), DURING),
        (("failed", "running"), {"cancelling"}),
        (("cancelled", "pending"), BEFORE | {"cancelling"}),
        (("cancelled", "retrying"), {"cancelling"}),
        (("skipped", "running"), DURING),
        (("completed", "completed"), BEFORE | AFTER),
        (("completed", "failed?", "cancelled?"), BEFORE | AFTER),
        (("completed", "skipped:good", "skipped:void"), BEFORE | AFTER),
        (("completed", "failed"), AFTER_BAD),
        (("completed", "cancelled"), AFTER_BAD),
        (("completed", "skipped:bad"), AFTER_BAD),
        (("completed", "skipped:bad?"), BEFORE | AFTER),
        (("completed", "skipped"), BEFORE | AFTER),
    ],
)
def test_what_the_tasks_allow(states: tuple[str, ...], allowed: set[str]) -> None:
    assert derive(tasks(*states)) == allowed


def test_an_unknown_state_is_refused() -> None:
    with pytest.raises(ValueError, match="task has no state 'asleep'"):
        derive(tasks("asleep"))


@pytest.mark.parametrize(
    ("state", "of_skip", "counts"),
    [
        ("completed", None, "good"),
        ("failed", None, "bad"),
        ("cancelled", None, "bad"),
        ("cancelled", "good", "bad"),
        ("skipped", "good", "good"),
        ("skipped", "void", "void"),
        ("skipped", "bad", "bad"),
        ("skipped", None, None),
        ("running", None, None),
        ("running", "good", None),
    ],
)
def test_how_an_end_counts(state: str, of_skip: str | None, counts: str | None) -> None:
    assert standing(state, of_skip) == counts


def test_the_standings() -> None:
    assert set(Standing) == {"good", "void", "bad"}
    assert all(isinstance(state, WorkstreamState) for state in derive([]))
