"""What an answer that is no success raises: what the runtime raised there, as it is here.

| type of the problem | error |
| --- | --- |
| invalid-transition | InvalidTransitionError, or the one that its further fields are of (`_refused`) |
| specification | SpecificationError, with its findings |
| not-found | LookupError |
| closed, journal-unwritable | RuntimeClosed, JournalUnwritable |
| job-exists, request-id-reused, fire-failed, machine-missing | the error of that name |
| any other of status 401, 403, 421 | AccessRefused |
| any other of status 429, 503 | ServerUnreachable |
| any other | ServerError |

Its text is that of the runtime's error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ...actors.machines.kind import FireFailed, MachineNotFound
from ...actors.records.base import Decision
from ...actors.spec.schema import Finding
from ...actors.spec.validate import SpecificationError
from ..commands.idempotency import RequestIdReused
from ..commands.wire_errors import Refused, refusal_of
from ..handles.outcomes import JobExists, RuntimeClosed
from ..journal.contract import JournalUnwritable


class ServerUnreachable(ConnectionError):  # noqa: N818 - it says what is the matter
    """The server was not reached, or did not answer, for as long as the client was told to try.

    A command may have taken effect all the same: the same `request_id` again is the same command, and tells; if it was
    refused, it is judged anew.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class AccessRefused(PermissionError):  # noqa: N818 - it says what happened
    """The server wants a token, or another one: this one may not do that."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class ServerError(RuntimeError):
    """An answer that no client expects: `status` is its number. The server's log says more."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.args = (text, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class Told(msgspec.Struct, frozen=True):
    """A problem, as it is sent."""

    type: str = ""
    title: str = ""
    status: int = 0
    detail: str = ""
    machine: str = ""
    state: str = ""
    event: str = ""
    allowed: list[str] = []
    advice: str | None = None
    subject: str | None = None
    why: str | None = None
    expired_at: float | None = None
    decision: Decision | None = None
    guards: list[str] | None = None
    tool: str | None = None
    retry_in: float = 0.0
    source: str = "what was sent"
    findings: list[Mapping[str, Any]] = []

    @property
    def word(self) -> str:
        """What kind of a problem it is."""
        return self.type.rpartition("/")[2]


def error_of(status: int, body: bytes) -> Exception:
    """The error that an answer of that status stands for."""
    try:
        told = msgspec.json.decode(body, type=Told)
    except msgspec.DecodeError:
        told = Told(detail=body[:500].decode(errors="replace").strip())
    made = _MADE.get(told.word)
    if made is not None:
        return made(told)
    detail = told.detail or told.title or "nothing more was said"
    if status in {401, 403, 421}:
        return AccessRefused(detail)
    if status in {429, 503}:
        return ServerUnreachable(detail)
    return ServerError(f"the server answered {status}: {detail}", status)


def _refused(told: Told) -> Exception:
    more = Refused(
        told.event, told.advice, told.subject, told.why, told.expired_at, told.decision, told.guards, told.tool,
        told.retry_in,
    )  # fmt: skip
    return refusal_of(told.machine, told.state, told.allowed, more)


def _specification(told: Told) -> Exception:
    found = [
        Finding(str(one.get("where", "")), str(one.get("text", "")), one.get("suggestion"), one.get("line"))
        for one in told.findings
    ]
    return SpecificationError(found or [Finding("", told.detail)], told.source)


_MADE: dict[str, Callable[[Told], Exception]] = {
    "invalid-transition": _refused,
    "specification": _specification,
    "job-exists": lambda told: JobExists(told.detail),
    "request-id-reused": lambda told: RequestIdReused(told.detail),
    "fire-failed": lambda told: FireFailed(told.detail),
    "machine-missing": lambda told: MachineNotFound(told.detail),
    "not-found": lambda told: LookupError(told.detail),
    "closed": lambda told: RuntimeClosed(told.detail),
    "journal-unwritable": lambda told: JournalUnwritable(told.detail),
}
