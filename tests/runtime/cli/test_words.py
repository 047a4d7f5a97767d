"""The texts of the command line about one record."""

from __future__ import annotations

import pytest

from callboard.actors.records.task import TaskRecord, Trouble
from callboard.runtime.cli import words


@pytest.mark.parametrize(
    ("state", "reason", "error", "told"),
    [
        ("circuit_open", "tool 'cc' is not healthy", "boom", "tool 'cc' is not healthy; last error: boom"),
        ("circuit_open", "boom", "boom", "boom"),  # parked, since its attempts are exhausted
        ("held", "waits for ana", "boom", "waits for ana; last error: boom"),
        ("held", "waits for ana", None, "waits for ana"),
        ("retrying", "attempt 2 soon", "boom", "boom"),
        ("completed", "carried over", "boom", "carried over"),
        ("running", None, None, ""),
    ],
)
def test_a_task_that_waits_is_explained_by_what_it_waits_for(
    state: str, reason: str | None, error: str | None, told: str
) -> None:
    trouble = None if error is None else Trouble(error=error, type="E", category="transient", count=1, repeats=1)
    task = TaskRecord(
        key=1, id="w@1/a", name="a", state=state, created_at=0.0, workstream=2, workstream_id="w@1", job_id="w",
        index=0, unmet=0, optional=False, reason=reason, trouble=trouble,
    )  # fmt: skip
    assert words.explained(task) == told


@pytest.mark.parametrize("state", ["cancelling", "cancelled"])
@pytest.mark.parametrize(
    ("reason", "error", "kind", "told"),
    [
        (
            "the customer said no",
            "`sleep 60`: stopped",
            "cancelled",
            "the customer said no",
        ),  # a command
        ("the customer said no", "cancelled while it ran", "cancelled", "the customer said no"),  # a function
        (
            "the customer said no",
            "boom",
            "ValueError",
            "the customer said no; last error: boom",
        ),  # an earlier attempt
        ("the customer said no", None, None, "the customer said no"),
        (None, "cancelled while it ran", "cancelled", "cancelled while it ran"),
    ],
)
def test_a_task_that_was_cancelled_is_explained_by_why(
    state: str, reason: str | None, error: str | None, kind: str | None, told: str
) -> None:
    trouble = None if error is None else Trouble(error=error, type=kind, category=None, count=0, repeats=0)
    task = TaskRecord(
        key=1, id="w@1/a", name="a", state=state, created_at=0.0, workstream=2, workstream_id="w@1", job_id="w",
        index=0, unmet=0, optional=False, reason=reason, trouble=trouble,
    )  # fmt: skip
    assert words.explained(task) == told
