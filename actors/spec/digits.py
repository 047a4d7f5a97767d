"""Whole numbers in a text, written with the digits 0 to 9 only."""

from __future__ import annotations

LONGEST = 19
"""The most digits of a number: those of the largest number that a journal can hold."""


def whole(text: str | None) -> int | None:
    """The number in a text of digits; None if the text is no number, or has too many digits.

    Python's own `int` also accepts signs, spaces, underscores and the digits of every script, and `str.isdigit` even
    characters that `int` refuses.
    """
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > LONGEST:
        return None
    return int(text)
