"""Who says something to the runtime, and why: what is journaled with every command of a person.

A name has 1 to 200 printable characters; a reason has at most `LONGEST_REASON` characters, since every transition that
it causes holds it.
"""

from __future__ import annotations

from ...actors.user_code import plain, shown
from ..engines.values import checked

LONGEST_REASON = 10_000


def name_of(by: object) -> str:
    """The name of who says it. Raises TypeError and ValueError for what is none."""
    by = plain(by)
    if type(by) is not str:
        raise TypeError(f"`by` is the name of who says it, not {shown(by, 60)}")
    if not by.strip() or len(by) > 200 or not by.isprintable():
        raise ValueError(f"`by` is the name of who says it: 1 to 200 printable characters, not {by!r:.60}")
    return str(checked(by, "the name"))


def reason_of(reason: object) -> str:
    """The reason that is given. Raises TypeError for what is no text, ValueError for one that is too long."""
    reason = plain(reason)
    if type(reason) is not str:
        raise TypeError(f"the reason must be a str, not {shown(reason, 60)}")
    if len(reason) > LONGEST_REASON:
        raise ValueError(
            f"a reason has at most {LONGEST_REASON:,} characters: this one has {len(reason):,}. "
            "Say where the whole can be found"
        )
    return str(checked(reason, "the reason"))


def words(reason: object, by: object) -> tuple[str, str | None]:
    """Why, and who says so if anybody does. Raises TypeError and ValueError."""
    return reason_of(reason), None if by is None else name_of(by)
