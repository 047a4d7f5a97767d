"""Owed hooks: hooks of ended entities, alerts, and machines' callbacks that still must run.

The state of a job or machine does not show them, so commands that list unfinished work list them as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ..handles.owed import Owed, owed_of

if TYPE_CHECKING:
    from ..journal.contract import JournalQueries

_SHOWN = 20  # owed hooks that are listed


def owed(reader: JournalQueries, *, job_id: str | None = None) -> list[Owed]:
    """Return the owed hooks, oldest first; only those of a job, if one is named."""
    found = map(owed_of, reader.outbox())
    return [one for one in found if job_id is None or one.job_id == job_id]


def lines(found: list[Owed]) -> list[str]:
    """Make lines about owed hooks for `status`."""
    if not found:
        return []
    more = [f"  and {len(found) - _SHOWN:,} more"] if len(found) > _SHOWN else []
    head = f"{len(found):,} owed: still to run, at the next start at the latest"
    return [head, *(f"  {one.words}{_tries(one)}" for one in found[:_SHOWN]), *more]


def json_of(one: Owed) -> dict[str, Any]:
    """Describe an owed hook for JSON."""
    from ...actors.records.transition import iso  # noqa: PLC0415

    plain = msgspec.to_builtins(one)
    return {**plain, "kind": "hook", "of": one.kind, "since": None if one.since is None else iso(one.since)}


def _tries(one: Owed) -> str:
    return f" (started {one.tries} times before)" if one.tries else ""
