"""The last so many: a dict that forgets the oldest, so that it does not grow with what comes."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def keep_last(book: dict[K, V], key: K, value: V, most: int) -> None:
    """Put it into the dict as the latest, and forget the oldest of those beyond `most`."""
    book.pop(key, None)
    book[key] = value
    if len(book) > most:
        del book[next(iter(book))]
