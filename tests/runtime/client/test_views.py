"""The records that a client makes of a server's views."""

from __future__ import annotations

import msgspec

from callboard.actors.records.step import StepRecord
from callboard.actors.records.task import TaskRecord
from callboard.runtime.client.views import step_of
from callboard.runtime.web.read.shapes import step_view

TASK = TaskRecord(
    key=1, id="j@1/t", name="t", state="running", created_at=0.0, workstream=2, workstream_id="j@1", job_id="j",
    index=0, unmet=0, optional=False,
)  # fmt: skip


def test_a_sleep_that_its_body_has_cancelled_is_cancelled_for_a_client_too() -> None:
    kept = StepRecord(
        key=1, flow=1, task=1, task_id="j@1/t", name="task.sleep 60", began_at=5.0, due_at=65.0, cancelled_at=7.0
    )
    view = msgspec.json.decode(msgspec.json.encode(step_view(kept, TASK)))
    assert view["state"] == "cancelled"
    seen = step_of(view)
    assert (seen.state, seen.due_at, seen.cancelled_at) == ("cancelled", 65.0, 7.0)
