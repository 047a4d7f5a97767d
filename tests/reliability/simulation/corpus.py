"""The corpus: seeds whose runs showed pairs that no earlier seed had shown, in `corpus.txt`, one "KIND SEED" a line.

A pair is a transition with the move that was made last before it: a row of a machine that is taken after a crash tests
other code than the same row without a fault.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .driver import Result

CORPUS = Path(__file__).with_name("corpus.txt")
SEEDS = 250
"""Number of seeds of each kind, from 0 on, that the tests run in any case."""
ENOUGH = 4
"""Number of new pairs from which on a run is kept."""


class Novelty:
    """The pairs that were shown so far."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str, str | None, str, str]] = set()

    def look(self, result: Result) -> bool:
        """Whether a run shows enough new pairs."""
        new = result.shown() - self._seen
        self._seen |= new
        return len(new) >= ENOUGH


def kept() -> list[tuple[str, int]]:
    """The kinds and seeds of the corpus."""
    lines = CORPUS.read_text(encoding="utf-8").splitlines() if CORPUS.exists() else []
    return [(kind, int(seed)) for kind, _, seed in (line.partition(" ") for line in lines if not line.startswith("#"))]
