"""The soak (`soak.py`): some seconds of it by default, all of it with `CALLBOARD_LABORATORY=hours`."""

from __future__ import annotations

import asyncio
import os
from contextlib import closing
from pathlib import Path

import pytest
from tests.reliability.kills.verdict import checked
from tests.reliability.soak import Figures, soak

from callboard.machines.audit import audit_lines
from callboard.runtime.journal.reader import SqliteReader

pytestmark = [
    pytest.mark.laboratory,
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="what a process holds is read from /proc"),
]
HOURS = float(os.environ.get("CALLBOARD_LABORATORY", "0"))
MB = 1 << 20


def held(place: Path, figures: Figures) -> None:
    """Hold what is left against what was done."""
    assert list(checked(place)) == []
    with (place / "transitions.jsonl").open("rb") as log:
        assert list(audit_lines(log)) == []
    with closing(SqliteReader(place / "state.db")) as reader:
        left = reader.load()
        assert (left.jobs, left.attempts, left.outbox) == ([], [], [])
    parked = {word: count for word, count in figures.outcomes.items() if word.startswith("parked")}
    assert parked == {"parked, completed": figures.parked // 2, "parked, cancelled": figures.parked // 2}
    assert not {kind for kind in figures.troubles if kind.startswith("archive")}


def test_a_short_soak_leaves_nothing_behind(tmp_path: Path) -> None:
    figures = asyncio.run(soak(tmp_path, workstreams=150, parked=100, rate=200, every=1.0, simple=0.7))
    held(tmp_path, figures)
    assert sum(figures.outcomes.values()) == 250
    assert figures.samples[-1].fds <= figures.samples[0].fds + 20  # of engines that were not used before


@pytest.mark.skipif(not HOURS, reason="the long mode: CALLBOARD_LABORATORY=hours")
def test_a_long_soak_holds_no_more_at_its_end_than_when_it_was_warm(tmp_path: Path) -> None:
    figures = asyncio.run(soak(tmp_path, workstreams=max(int(HOURS * 150_000), 50_000), parked=10_000, rate=60))
    held(tmp_path, figures)
    warm, end = figures.samples[len(figures.samples) // 3], figures.samples[-2]
    assert end.rss < warm.rss + 30 * MB
    assert end.objects < warm.objects * 1.1
    assert end.fds < warm.fds + 10
    assert end.threads < warm.threads + 20
    assert end.wal < warm.wal + 8 * MB
