"""The key of a command is part of the turn that the command causes, and of no other turn."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.actors.stage import KernelHarness, flow, hangs, task

from callboard.actors.messages.commands import Cancel, Command, Reply, Request
from callboard.actors.records.entities import Acknowledged, RequestRecord
from callboard.actors.records.task import TaskRecord


def cancel(stage: KernelHarness, key: int, request_id: str) -> Exception | None:
    request = Request(request_id, "Cancel", "f", 60.0, row=3)
    stage.send(Command(key, Cancel("x", True), Reply(None, request)))
    return stage.answers[-1][1]


def kept(stage: KernelHarness) -> list[RequestRecord]:
    return stage.kept.of(RequestRecord)


def test_key_and_effect_are_one_turn() -> None:
    stage = KernelHarness(scripts={"a": hangs})
    job = stage.submit(flow(task("a"), task("b", "a")))
    before = len(stage.kept.turns)
    assert cancel(stage, job.record.key, "r1") is None
    for turns in range(before, len(stage.kept.turns) + 1):  # wherever a crash comes
        there = stage.kept.first(turns)
        cancelled = any(row.entity_id == "job" and row.to_state == "cancelling" for row in there.transitions)
        assert cancelled == bool(there.of(RequestRecord)), turns
    (record,) = kept(stage)
    assert (record.request_id, record.row, record.owner) == ("r1", 3, job.record.key)
    assert record.expires_at == record.at + 60


def test_it_says_what_the_turn_left_and_not_what_it_began() -> None:
    stage = KernelHarness(workers=())
    job = stage.submit(flow(task("a"), task("b", "a")))
    cancel(stage, job.record.key, "r1")
    (record,) = kept(stage)
    left = msgspec.json.decode(record.answer, type=Acknowledged)
    assert left == Acknowledged("job", "job", "cancelled", "cancelled")
    assert stage.state() == "cancelled"


def test_a_refusal_leaves_nothing() -> None:
    stage = KernelHarness(workers=())
    job = stage.submit(flow(task("a"), task("b", "a")))
    key = stage.task("b").key
    cancel(stage, key, "r1")
    assert cancel(stage, key, "r2") is not None
    assert cancel(stage, 10**6, "r3") is not None
    assert [record.request_id for record in kept(stage)] == ["r1"]
    assert kept(stage)[0].owner == job.record.key  # a task's keys are kept as long as its job has not ended


def test_a_turn_that_raises_keeps_no_key() -> None:
    stage = KernelHarness(workers=())
    stage.submit(flow(task("a")))
    actor = stage.actor("a")

    def breaks(self: Any) -> None:
        raise RuntimeError("a mistake")

    found = type(actor).when_entered["cancelled"]
    type(actor).when_entered["cancelled"] = breaks
    try:
        assert isinstance(cancel(stage, actor.record.key, "r1"), RuntimeError)
    finally:
        type(actor).when_entered["cancelled"] = found
    assert kept(stage) == []
    assert [one.state for one in stage.kept.of(TaskRecord)] == ["queued"]
