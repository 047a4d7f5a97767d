"""What a row of the inbox is answered with, as both sides read it."""

from __future__ import annotations

import msgspec

from ...machines import InvalidTransitionError
from ..requests import RequestIdReused


class Answered(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of a command.

    Taken: `kind`, `id` and `state` of the entity, as the command left it, and that of a job's `workstream`. Not taken:
    `error` says in words why, `refused` what kind of an error it is (conflict, reused, missing, invalid, broken), with
    the present state and what it allows.
    """

    kind: str = ""
    id: str = ""
    state: str = ""
    workstream: str = ""
    error: str | None = None
    refused: str | None = None
    allowed: list[str] = []


def answer_to(error: Exception) -> Answered:
    """What a client is told of an error."""
    if isinstance(error, InvalidTransitionError):
        return Answered(
            error.machine, state=str(error.state), error=str(error), refused="conflict", allowed=sorted(error.allowed)
        )
    kinds = ((RequestIdReused, "reused"), (LookupError, "missing"), ((ValueError, TypeError), "invalid"))
    for kind, name in kinds:
        if isinstance(error, kind):
            text = error.args[0] if isinstance(error, KeyError) and error.args else error
            return Answered(error=str(text), refused=name)
    return Answered(error=f"{type(error).__name__}: {error}", refused="broken")
