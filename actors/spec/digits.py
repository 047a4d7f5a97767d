"""Whole numbers that stand in a text: written with the digits 0 to 9, and with no others."""

from __future__ import annotations

LONGEST = 19
"""Digits that a number may have: those of the largest one that a journal can hold."""


def whole(text: str | None) -> int | None:
    """The number that a text of digits says; None where it is none, or longer than any number of ours.

    Python's own `int` also takes signs, spaces, underscores and the digits of every script, and `str.isdigit` even
    such as no number can be made of.
    """
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > LONGEST:
        return None
    return int(text)
