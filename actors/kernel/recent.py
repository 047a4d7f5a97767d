"""A bounded dict: it drops its oldest entries, so that it does not grow without limit."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def keep_last(book: dict[K, V], key: K, value: V, most: int) -> None:
    """Put `key` into the dict as its newest entry. Beyond `most` entries the oldest is dropped."""
    book.pop(key, None)
    book[key] = value
    if len(book) > most:
        del book[next(iter(book))]
