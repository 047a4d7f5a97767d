"""The words of a text, and how often each occurs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

_WORD = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")


def count(lines: Iterable[str]) -> Counter[str]:
    """How often each word occurs in the lines. Case does not matter; digits are no words."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(word.casefold() for word in _WORD.findall(line))
    return counts


def top(counts: Counter[str], limit: int) -> list[tuple[str, int]]:
    """The most frequent words with their counts; equally frequent ones in alphabetical order."""
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:limit]
