"""Errors as `application/problem+json` (RFC 9457). docs/http.md lists the types.

Rules
-----
- Every error answer is a problem, those of the framework, too.
- A problem says what was tried and what to do; it never shows a traceback, a token or a path of this machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException

from ....actors.messages.errors import CircuitOpen, FireFailed, MachineNotFound
from ....actors.records.base import Decision
from ....actors.spec.validate import SpecificationError
from ....machines import InvalidTransitionError
from ...commands.idempotency import RequestIdReused
from ...commands.verbs import commands_of
from ...commands.wire_errors import particulars
from ...errors import JobExists, JournalError, RuntimeClosed
from ...text.logs import write_error
from ..read.words import in_words

MEDIA_TYPE = "application/problem+json"
_SHOWN = 200  # characters of the framework's message, which repeats the request


class FoundWrong(msgspec.Struct, frozen=True):
    """One fault in a request. where: the value's path; line: its line in a file, if there is one."""

    where: str
    text: str
    suggestion: str | None = None
    line: int | None = None


class ProblemDetails(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error answer. type: a relative reference, `/problems/<word>`.

    machine, state, event, allowed, commands: for a conflict, what was tried in which state, and what is possible then.
    subject, advice: the name of the entity that refused it, and what to do. why: why a decision was refused; decision:
    the one that was taken before; expired_at: when its time limit was over. guards: the guards, of which none passed.
    tool, retry_in: the unhealthy tool, and the seconds until it allows a trial attempt.
    findings: all faults of the request; source: what has them.
    """

    type: str
    title: str
    status: int
    detail: str
    instance: str = ""
    machine: str | None = None
    state: str | None = None
    event: str | None = None
    allowed: list[str] | None = None
    commands: list[str] | None = None
    subject: str | None = None
    advice: str | None = None
    why: str | None = None
    decision: Decision | None = None
    expired_at: float | None = None
    guards: list[str] | None = None
    tool: str | None = None
    retry_in: float | None = None
    findings: list[FoundWrong] | None = None
    source: str | None = None


class Problem(Exception):  # noqa: N818 - the RFC's word
    """An error answer. `more`: further fields of `ProblemDetails`; `headers`: go with the answer."""

    def __init__(
        self, status: int, word: str, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.word = word
        self.detail = detail
        self.headers = dict(headers or {})
        self.more = more

    def details(self, instance: str) -> ProblemDetails:
        """Make the answer's content. instance: the path of the request."""
        return ProblemDetails(
            type=f"/problems/{self.word}", title=HTTPStatus(self.status).phrase, status=self.status,
            detail=_whole(self.detail), instance=_whole(instance), **self.more,
        )  # fmt: skip


def _whole(text: str) -> str:
    """Make text that can be encoded: a path may contain lone surrogates."""
    return text.encode("utf-8", "replace").decode("utf-8")


def unfit(wrong: list[FoundWrong]) -> Problem:
    """Make the problem of a request with invalid content."""
    text = "; ".join(f"{one.where}: {one.text}" if one.where else one.text for one in wrong[:3])
    more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return Problem(422, "specification", f"{text}{more}", findings=wrong)


def not_found(kind: str, name: str, where: str = "this journal") -> Problem:
    """Make the problem of a name that does not exist."""
    return Problem(404, "not-found", f"there is no {kind} {name!r:.200} in {where}")


def problem_of(error: Exception) -> Problem:
    """Turn an error of the library or the framework into a problem."""
    match error:
        case Problem():
            return error
        case InvalidTransitionError():
            return _refusal(error)
        case SpecificationError():
            found = [FoundWrong(one.where, one.message, one.suggestion, one.line) for one in error.findings]
            return Problem(422, "specification", str(error), findings=found, source=error.source)
        case JobExists():
            return Problem(409, "job-exists", str(error))
        case RequestIdReused():
            return Problem(422, "request-id-reused", str(error))
        case RuntimeClosed():
            return Problem(503, "closed", str(error), headers={"Retry-After": "5"})
        case JournalError():
            return Problem(503, "journal-unwritable", str(error), headers={"Retry-After": "5"})
        case MachineNotFound():
            return Problem(409, "machine-missing", str(error))
        case FireFailed():
            return Problem(409, "fire-failed", str(error))
        case LookupError():
            return Problem(404, "not-found", str(error.args[0]) if error.args else "it does not exist")
        case HTTPException():
            return _of_framework(error)
        case _:
            return Problem(500, "internal", "this is a fault of Callboard; its log has the details")


def _refusal(error: InvalidTransitionError) -> Problem:
    """Make the problem of a refused transition, with all fields to rebuild the error."""
    commands = commands_of(error.kind, error.in_own_words.allowed)
    headers: dict[str, str] = {}
    if isinstance(error, CircuitOpen):
        headers["Retry-After"] = str(math.ceil(error.retry_in) or 1)
    return Problem(
        409, "invalid-transition", in_words(error), machine=error.machine, state=str(error.state),
        event=str(error.event), allowed=sorted(map(str, error.allowed)), subject=error.subject,
        advice=error.advice or None, commands=commands,
        headers=headers, **particulars(error),
    )  # fmt: skip


_WORDS = {400: "bad-request", 404: "not-found", 405: "method-not-allowed", 413: "too-large", 415: "media-type"}


def _of_framework(error: HTTPException) -> Problem:
    status = error.status_code
    headers = error.headers or {}
    if status == 400:  # the request's content is invalid
        extra: Any = error.extra or []
        found = [FoundWrong(str(one.get("key", ""))[:_SHOWN], str(one.get("message", ""))[:_SHOWN]) for one in extra]
        return unfit(found or [FoundWrong("", error.detail[:_SHOWN])])
    return Problem(status, _WORDS.get(status, "refused"), error.detail, headers=headers)


def answer(request: Request[Any, Any, Any], error: Exception) -> Response[ProblemDetails]:
    """Answer every exception of a handler."""
    problem = problem_of(error)
    if isinstance(error, HTTPException) and error.status_code == 413:
        most = request.route_handler.resolve_request_max_body_size()
        problem.detail = f"the body of the request is larger than {most:,} bytes, the most that this path takes"
    if problem.status == 500:
        write_error(
            "request_failed", f"a request for {request.scope['path']} failed", error, path=request.scope["path"]
        )
    return Response(
        problem.details(request.scope["path"]), status_code=problem.status, media_type=MEDIA_TYPE,
        headers=problem.headers,
    )  # fmt: skip
