"""The bounded store that keeps the last entries only."""

from __future__ import annotations

from callboard.actors.kernel.recent import keep_last


def test_the_oldest_is_forgotten_and_what_comes_again_is_the_latest() -> None:
    book: dict[str, int] = {}
    for key, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        keep_last(book, key, value, 2)
    assert list(book.items()) == [("a", 3), ("c", 4)]
    keep_last(book, "d", 5, 1)
    assert len(book) == 2  # one at a time: the bound does not shrink
