"""Owed hooks, alerts and callbacks, as users see them: rows of the outbox without their arguments."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import msgspec

from ...actors.spec.model import Hook

if TYPE_CHECKING:
    from ...actors.records.entities import OutboxRow


class Owed(msgspec.Struct, frozen=True, kw_only=True):
    """A hook, an alert or a callback that must still run. id: its number.

    kind: "hook", "alert" or "callback"; owner: the entity that it belongs to; event: the event that caused it; runs:
    its function or its command; job_id: its job, None for a machine and a worker; since: UTC epoch seconds, None if the
    time was not recorded; tries: how often it was started before and interrupted.
    """

    id: int
    kind: str
    owner: str
    event: str
    runs: str
    job_id: str | None
    since: float | None
    tries: int

    @property
    def words(self) -> str:
        """The owed call in one line."""
        what = self.kind if self.kind == self.event else f"{self.event} {self.kind}"
        return f"{what} `{self.runs:.100}` of {self.owner}"


class _Context(msgspec.Struct):
    job_id: str | None = None


def owed_of(row: OutboxRow) -> Owed:
    """A row of the outbox as it is shown."""
    hook = msgspec.json.decode(row.body, type=Hook)
    command = hook.command if isinstance(hook.command, str) else shlex.join(hook.command or ())
    kind = "callback" if row.callback is not None else "alert" if row.event == "alert" else "hook"
    return Owed(
        id=row.key, kind=kind, owner=row.owner, event=row.callback or row.event, runs=hook.run or command,
        job_id=msgspec.json.decode(row.context, type=_Context).job_id, since=row.at, tries=row.tries,
    )  # fmt: skip
