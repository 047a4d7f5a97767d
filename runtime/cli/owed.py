"""What is owed: hooks of what has ended, alerts and callbacks of machines that have not run to their end yet.

No state of a job or machine implies them, so whoever asks what is unfinished is told of them beside those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ..handles.owed import Owed, owed_of

if TYPE_CHECKING:
    from ..journal.contract import JournalQueries

_SHOWN = 20  # that are listed one by one


def owed(reader: JournalQueries, *, job_id: str | None = None) -> list[Owed]:
    """Them, oldest first; only those of a job, where one is named."""
    found = map(owed_of, reader.outbox())
    return [one for one in found if job_id is None or one.job_id == job_id]


def lines(found: list[Owed]) -> list[str]:
    """Them in words, for `status`."""
    if not found:
        return []
    more = [f"  and {len(found) - _SHOWN:,} more"] if len(found) > _SHOWN else []
    head = f"{len(found):,} owed: to run yet, at the latest at the next start"
    return [head, *(f"  {one.words}{_tries(one)}" for one in found[:_SHOWN]), *more]


def told(one: Owed) -> dict[str, Any]:
    """One as JSON tells it."""
    from ...actors.records.transition import iso  # noqa: PLC0415

    plain = msgspec.to_builtins(one)
    return {**plain, "kind": "hook", "of": one.kind, "since": None if one.since is None else iso(one.since)}


def _tries(one: Owed) -> str:
    return f" (begun {one.tries} times before)" if one.tries else ""
