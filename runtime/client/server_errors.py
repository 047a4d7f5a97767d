"""The errors that a failed answer raises: the same that the runtime raised.

| type of the problem | error |
| --- | --- |
| invalid-transition | InvalidTransitionError, or a subclass that its further fields determine (`_refused`) |
| specification | SpecificationError, with its findings |
| not-found | LookupError |
| closed, journal-unwritable | RuntimeClosed, JournalUnwritable |
| job-exists, request-id-reused, fire-failed, machine-missing, too-many-messages | the error of that name |
| any other of status 401, 403, 421 | AccessRefused |
| any other of status 429, 503 | ServerUnreachable |
| any other | ServerError |

The text of each error is that of the runtime's error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ...actors.messages.errors import FireFailed, MachineNotFound, TooManyMessages
from ...actors.records.base import Decision
from ...actors.spec.schema import Finding
from ...actors.spec.validate import SpecificationError
from ..commands.idempotency import RequestIdReused
from ..commands.wire_errors import RefusalDetails, refusal_of
from ..errors import JobExists, JournalUnwritable, RuntimeClosed


class ServerUnreachable(ConnectionError):  # noqa: N818 - it says what is the matter
    """The server was not reached, or did not answer, for the client's `patience`.

    A command may still have taken effect. Send it again with the same `request_id`: it takes effect once, and you get
    its answer; a command that was refused is judged again.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class AccessRefused(PermissionError):  # noqa: N818 - it says what happened
    """The server requires a token, or the token does not permit this request."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class ServerError(RuntimeError):
    """An unexpected answer. `status` is its HTTP status. The server's log has details."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.args = (text, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class ProblemDocument(msgspec.Struct, frozen=True):
    """A problem document, as the server sends it."""

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
        """The type of the problem, as in the table above."""
        return self.type.rpartition("/")[2]


def error_of(status: int, body: bytes) -> Exception:
    """The error for an answer with that status."""
    try:
        problem = msgspec.json.decode(body, type=ProblemDocument)
    except msgspec.DecodeError:
        problem = ProblemDocument(detail=body[:500].decode(errors="replace").strip())
    made = _MADE.get(problem.word)
    if made is not None:
        return made(problem)
    detail = problem.detail or problem.title or "it gave no details"
    if status in {401, 403, 421}:
        return AccessRefused(detail)
    if status in {429, 503}:
        return ServerUnreachable(detail)
    return ServerError(f"the server answered {status}: {detail}", status)


def _refused(told: ProblemDocument) -> Exception:
    more = RefusalDetails(
        told.event, told.advice, told.subject, told.why, told.expired_at, told.decision, told.guards, told.tool,
        told.retry_in,
    )  # fmt: skip
    return refusal_of(told.machine, told.state, told.allowed, more)


def _specification(told: ProblemDocument) -> Exception:
    found = [
        Finding(str(one.get("where", "")), str(one.get("text", "")), one.get("suggestion"), one.get("line"))
        for one in told.findings
    ]
    return SpecificationError(found or [Finding("", told.detail)], told.source)


_MADE: dict[str, Callable[[ProblemDocument], Exception]] = {
    "invalid-transition": _refused,
    "specification": _specification,
    "job-exists": lambda told: JobExists(told.detail),
    "request-id-reused": lambda told: RequestIdReused(told.detail),
    "fire-failed": lambda told: FireFailed(told.detail),
    "too-many-messages": lambda told: TooManyMessages(told.detail),
    "machine-missing": lambda told: MachineNotFound(told.detail),
    "not-found": lambda told: LookupError(told.detail),
    "closed": lambda told: RuntimeClosed(told.detail),
    "journal-unwritable": lambda told: JournalUnwritable(told.detail),
}
