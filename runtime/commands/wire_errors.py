"""The answers to inbox rows, as both sides read them, and how refusals are sent to the caller.

Rules
-----
- The caller gets the refusal of a command as the same error, with the same text and fields.
- Of an error that is not in the table, only the text is sent (`CommandFailed`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ...actors.messages.errors import CircuitOpen, FireFailed, MachineNotFound, TooManyMessages
from ...actors.records.base import Decision
from ...actors.records.transition import Transitioned
from ...actors.tasks.holds import DecisionConflict, DecisionRefused
from ...actors.user_code import message_of
from ...machines import GuardRejected, InvalidTransitionError
from ...machines.machine import BuiltinRefusal
from .idempotency import RequestIdReused


class CommandFailed(RuntimeError):  # noqa: N818 - it says what happened
    """A command failed in its runtime by an error that has no type here. The command had no effect."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class RefusalDetails(msgspec.Struct, frozen=True, omit_defaults=True):
    """The further fields of an `InvalidTransitionError` or a subclass, beside machine, state and allowed events."""

    event: str = ""
    advice: str | None = None
    subject: str | None = None
    why: str | None = None
    expired_at: float | None = None
    decision: Decision | None = None
    guards: list[str] | None = None
    tool: str | None = None
    retry_in: float = 0.0
    own: BuiltinRefusal | None = None


class CommandAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a command.

    Accepted: `kind`, `id` and `state` of the entity after the command, the state of a job's `workstream`, and the
    `transition` that the command fired at a machine. Refused: `error` has the text, `refused` the kind of the error
    (conflict, reused, full, missing, invalid, unfound, fire, broken), with the present state, the allowed events, and
    `more`.
    """

    kind: str = ""
    id: str = ""
    state: str = ""
    workstream: str = ""
    transition: Transitioned | None = None
    error: str | None = None
    refused: str | None = None
    allowed: list[str] = []
    more: RefusalDetails | None = None


def answer_to(error: Exception) -> CommandAnswer:
    """The answer that a client gets for an error."""
    if isinstance(error, InvalidTransitionError):
        return CommandAnswer(
            error.machine, state=str(error.state), error=str(error), refused="conflict", allowed=sorted(error.allowed),
            more=_more(error),
        )  # fmt: skip
    for kind, name, _ in _KINDS:
        if isinstance(error, kind):
            text = error.args[0] if isinstance(error, KeyError) and error.args else error
            return CommandAnswer(error=str(text), refused=name)
    return CommandAnswer(error=message_of(error), refused="broken")


def error_of(answered: CommandAnswer) -> Exception | None:
    """The error of a refused command; None for an accepted one."""
    if answered.error is None:
        return None
    if answered.refused == "conflict":
        return refusal_of(answered.kind, answered.state, answered.allowed, answered.more or RefusalDetails())
    for _, name, make in _KINDS:
        if name == answered.refused:
            return make(answered.error)
    return CommandFailed(answered.error)


def refusal_of(machine: str, state: str, allowed: list[str], more: RefusalDetails) -> InvalidTransitionError:
    """The error for a command that the state did not allow, rebuilt from the answer."""
    details = machine, state, more.event, frozenset(allowed)
    if more.decision is not None:
        error: InvalidTransitionError = DecisionConflict(*details, more.why or "", more.decision)
    elif more.why is not None:
        error = DecisionRefused(*details, more.why, more.expired_at)
    elif more.guards is not None:
        error = GuardRejected(*details, tuple(more.guards))
    elif more.tool is not None:
        error = CircuitOpen(state, details[-1], more.tool, more.retry_in)
    else:
        error = InvalidTransitionError(*details, more.advice or "")
    if more.subject is not None:
        error.subject = more.subject
    if more.own is not None:
        error.own = more.own
    return error


def particulars(error: InvalidTransitionError) -> dict[str, Any]:
    """The fields that only the error's own class has, by name; they are needed to rebuild the error."""
    match error:
        case DecisionConflict():
            return {"why": error.why, "decision": error.decision}
        case DecisionRefused():
            return {"why": error.why, "expired_at": error.expired_at}
        case GuardRejected():
            return {"guards": list(error.guards)}
        case CircuitOpen():
            return {"tool": error.tool, "retry_in": error.retry_in}
        case _:
            return {}


def refused_by(answered: CommandAnswer) -> str:
    """The kind of the entity whose state did not allow the command; "" where that is not why."""
    error = error_of(answered)
    return error.kind if isinstance(error, InvalidTransitionError) else ""


def in_zone(answered: CommandAnswer, when: Callable[[float], str]) -> str:
    """Why a command was refused, with times formatted by `when`; "" for an accepted command."""
    error = error_of(answered)
    return error.told(when) if isinstance(error, DecisionRefused) else answered.error or ""


def _more(error: InvalidTransitionError) -> RefusalDetails:
    more = particulars(error)
    return RefusalDetails(
        event=str(error.event), advice=error.advice or None, subject=error.subject, own=error.own, **more
    )


_KINDS: tuple[tuple[tuple[type[Exception], ...], str, Callable[[str], Exception]], ...] = (
    ((RequestIdReused,), "reused", RequestIdReused),
    ((MachineNotFound,), "unfound", MachineNotFound),
    ((FireFailed,), "fire", FireFailed),
    ((TooManyMessages,), "full", TooManyMessages),
    ((LookupError,), "missing", LookupError),
    ((ValueError, TypeError), "invalid", ValueError),
)
