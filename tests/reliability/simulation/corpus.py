"""The corpus: seeds that showed something no seed before them had shown, kept in `corpus.txt`, one "KIND SEED" a line.

What a run shows are pairs of a transition and a move that had been made before it: a row of a machine taken after a
crash is another thing than the same row taken on a quiet day.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .driver import Result

CORPUS = Path(__file__).with_name("corpus.txt")
SEEDS = 250
"""Of each kind, from 0 on: these the tests run in any case."""
ENOUGH = 4
"""Pairs that a run must be the first to show to be kept."""


class Novelty:
    """What has been seen."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str, str | None, str, str]] = set()

    def look(self, result: Result) -> bool:
        """Whether a run shows enough that is new."""
        new = result.shown() - self._seen
        self._seen |= new
        return len(new) >= ENOUGH


def kept() -> list[tuple[str, int]]:
    """The kinds and seeds of the corpus."""
    lines = CORPUS.read_text(encoding="utf-8").splitlines() if CORPUS.exists() else []
    return [(kind, int(seed)) for kind, _, seed in (line.partition(" ") for line in lines if not line.startswith("#"))]
