"""The severity of each row of every lifecycle (seed 001, DESIGN section 3)."""

from __future__ import annotations

import pytest

from callboard.machines import Transition
from callboard.machines.builtin.table import MACHINES

ROWS = [(kind, row) for kind, machine in MACHINES.items() for row in machine.transitions]
ERRORS = {"failed", "unresponsive", "circuit_open"}
WARNINGS = {"retrying", "timed_out"}


def expected(kind: str, row: Transition) -> str:
    if kind == "workstream" and row.target == "failed":
        return "critical"
    if row.target in ERRORS and row.source != row.target:
        return "error"
    if kind == "breaker" and row.target == "open":
        return "error"  # the tool's own name for circuit_open
    if kind == "workstream" and row.event == "fail":
        return "error"  # a critical task failed it: it stops its tasks first, and is then critical
    if row.target in WARNINGS or row.event in {"expire", "drain_deadline"}:
        return "warning"
    return "info"  # completed, skipped, cancelled and all else


@pytest.mark.parametrize(("kind", "row"), ROWS, ids=[f"{k}-{r.source}-{r.event}-{r.target}" for k, r in ROWS])
def test_every_row_has_the_severity_that_was_published(kind: str, row: Transition) -> None:
    assert row.severity == expected(kind, row)
