"""A write that takes long makes the journal degraded; a program that stood still does not."""

from __future__ import annotations

from typing import Any

from callboard.runtime.journal.contract import Entry
from callboard.runtime.journal.writer import GO_ON, SLOW, Writer


class Silent:
    """A medium that is never asked: the writer's thread does not run."""

    name = "the journal"
    answers = "the disk"


def test_a_batch_that_is_found_late_for_the_first_time_gets_time_to_go_on() -> None:
    now = [100.0]
    medium: Any = Silent()
    writer = Writer(medium, "test", changed=lambda: None, after_commit=None, clock=lambda: now[0])
    writer.hand(1, [Entry([], [])])
    now[0] += SLOW + 3  # as after a SIGSTOP
    assert writer.health.ok
    now[0] += GO_ON / 2
    assert writer.health.ok
    writer.durable = 1
    writer.hand(2, [Entry([], [])])
    now[0] += SLOW + 1
    assert writer.health.ok
    now[0] += GO_ON
    assert writer.health.reason == f"cannot write the journal: the disk has not answered for {SLOW + 1 + GO_ON:.0f} s"
