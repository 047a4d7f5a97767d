"""The author and the reason of a command, which are journaled with every command of a person.

A name has 1 to 200 printable characters. A reason has at most `LONGEST_REASON` characters, since every transition of
the command keeps it.
"""

from __future__ import annotations

from ...actors.user_code import plain, shown
from ..values import checked

LONGEST_REASON = 10_000


def name_of(by: object) -> str:
    """The checked name of the author. Raises TypeError and ValueError for an invalid name."""
    by = plain(by)
    if type(by) is not str:
        raise TypeError(f"`by` is the name of the author, not {shown(by, 60)}")
    if not by.strip() or len(by) > 200 or not by.isprintable():
        raise ValueError(f"`by` is the name of the author: 1 to 200 printable characters, not {by!r:.60}")
    return str(checked(by, "the name"))


def reason_of(reason: object) -> str:
    """The checked reason. Raises TypeError if it is not a text, ValueError if it is too long."""
    reason = plain(reason)
    if type(reason) is not str:
        raise TypeError(f"the reason must be a str, not {shown(reason, 60)}")
    if len(reason) > LONGEST_REASON:
        raise ValueError(
            f"a reason has at most {LONGEST_REASON:,} characters: this one has {len(reason):,}. "
            "Put the full text elsewhere, and name its place"
        )
    return str(checked(reason, "the reason"))


def words(reason: object, by: object) -> tuple[str, str | None]:
    """The checked reason and, if given, author of a command. Raises TypeError and ValueError."""
    return reason_of(reason), None if by is None else name_of(by)
