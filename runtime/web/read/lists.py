"""Lists over HTTP: their pages and cursors.

Rules
-----
- A cursor says where the next page begins, in a form that only the board reads: it stays valid while the list grows.
- An invalid cursor, or one outside the list, is refused with a 422.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b
from typing import Annotated, TypeAlias, TypeVar

from litestar.params import QueryParameter

from ...journal.contract import JobFilter
from ..http.problems import FoundWrong, unfit
from ..http.queries import LARGEST
from .shapes import Page

T = TypeVar("T")
V = TypeVar("V")

Limit: TypeAlias = Annotated[int, QueryParameter(ge=1, le=500, description="How many at most.")]
LargeLimit: TypeAlias = Annotated[int, QueryParameter(ge=1, le=10_000, description="How many at most.")]
Cursor: TypeAlias = Annotated[
    str | None, QueryParameter(max_length=100, description="`next` of the page before; none for the first page.")
]
States: TypeAlias = Annotated[
    list[str] | None, QueryParameter(name="state", description="Only entities in this state (or phase); repeatable.")
]
Named: TypeAlias = Annotated[
    str | None, QueryParameter(max_length=200, description="Only entities whose name contains this, in any case.")
]
Older: TypeAlias = Annotated[
    float | None, QueryParameter(description="Only entities created before this time (UTC epoch seconds).")
]
Newer: TypeAlias = Annotated[
    float | None, QueryParameter(description="Only entities created after this time (UTC epoch seconds).")
]
Number: TypeAlias = Annotated[int, QueryParameter(ge=0, le=LARGEST)]
_MARK = 3
"""Bytes at the beginning of a cursor that show that the board has made it."""


def cursor_of(number: int) -> str:
    """Make the cursor of a place in a list."""
    text = b"%d" % number
    return urlsafe_b64encode(blake2b(text, digest_size=_MARK, person=b"callboard").digest() + text).decode().rstrip("=")


def place_of(cursor: str | None) -> int | None:
    """Read the place of a cursor. Raises Problem for one that `cursor_of` has not made."""
    if cursor is None:
        return None
    try:
        number = int(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))[_MARK:])
    except ValueError:
        number = -1
    if not 0 <= number <= LARGEST or cursor != cursor_of(number):
        raise unfit([FoundWrong("cursor", "this is not a cursor: use `next` of the page before, unchanged")])
    return number


def wanted_of(
    kind: str, known: Collection[str] | None, states: Sequence[str] | None, name: str | None,
    older_than: float | None = None, newer_than: float | None = None,
) -> JobFilter:  # fmt: skip
    """Make the filter of a list. known: the states of such an entity; None: any. Raises Problem."""
    unknown = [] if known is None else [state for state in states or () if state not in known]
    if unknown:
        there = ", ".join(known or ())
        raise unfit(
            [FoundWrong("state", f"{one[:60]!r} is no state of a {kind}; there are: {there}") for one in unknown]
        )
    return JobFilter(states=states or (), name=(name or "").lower(), older_than=older_than, newer_than=newer_than)


def page_of(found: Sequence[T], limit: int, cursor: str | None, shown: Callable[[T], V]) -> Page[V]:
    """Make a page of a list that is in memory."""
    first = place_of(cursor) or 0
    more = first + limit < len(found)
    return Page([shown(one) for one in found[first : first + limit]], cursor_of(first + limit) if more else None)
