"""Which attempt's text a copy holds, and when it is over."""

from __future__ import annotations

import pytest

from callboard.actors.records.task import TaskRecord
from callboard.runtime.cluster.text_copy import TextCopy
from callboard.runtime.journal.live import LiveText


def record(state: str, token: int) -> TaskRecord:
    """The record of the task, whose last attempt has that token."""
    return TaskRecord(
        key=1, id="w@1/a", name="a", state=state, created_at=0.0, workstream=2, workstream_id="w@1", job_id="w",
        index=0, unmet=0, optional=False, token=token,
    )  # fmt: skip


def test_a_copy_of_an_old_record_is_of_the_attempt_that_runs_now() -> None:
    copy = TextCopy(record("running", 7))
    copy.take(LiveText(1, 9, 0, "new"))
    copy.take(LiveText(1, 7, 0, "of the attempt before"))
    assert (copy.live.token, copy.live.text.after(0), copy.live.over) == (9, (0, "new"), False)
    copy.take(LiveText(1, 11, 0, "of the attempt after it"))
    assert (copy.live.text.after(0), copy.live.over) == ((0, "new"), True)

    copy = TextCopy(record("running", 7))
    for _ in range(3):
        copy.compare(record("running", 9))
    assert (copy.place.token, copy.live.over) == (9, False)
    copy.take(LiveText(1, 11, 0, "of the attempt after it"))
    assert (copy.live.text.size, copy.live.over) == (0, True)

    copy = TextCopy(record("running", 7))
    for _ in range(3):
        copy.compare(record("retrying", 7))
    assert (copy.place.token, copy.live.over) == (8, False)  # it waits for the next attempt


def test_a_copy_of_a_task_that_has_ended_meanwhile_has_the_text_that_is_left() -> None:
    copy = TextCopy(record("running", 7))
    copy.compare(record("completed", 7))
    copy.take(LiveText(1, 7, 0, "the end"))
    copy.compare(record("completed", 7))
    assert (copy.live.text.after(0), copy.live.over) == ((0, "the end"), True)


@pytest.mark.parametrize("state", ["retrying", "circuit_open", "held"])
def test_a_copy_ends_while_the_task_waits_for_its_next_attempt(state: str) -> None:
    copy = TextCopy(record("running", 7))
    copy.compare(record("running", 7))
    copy.take(LiveText(1, 7, 0, "text"))
    copy.compare(record(state, 7))
    assert not copy.live.over  # its node may be writing the end
    copy.compare(record("running", 7))
    copy.compare(record(state, 7))
    assert not copy.live.over
    copy.compare(record(state, 7))
    assert copy.live.over
