"""The key of a request: the header `Idempotency-Key` (the IETF draft's), or `request_id` in its body.

Rules
-----
- Both may be given, and must be the same then. The header's value is a quoted string, as the draft has it; one without
  quotes is taken as it stands, since most clients send that.
- What becomes of the key is the runtime's own rule (`runtime/requests.py`).
"""

from __future__ import annotations

from ..requests import check_request_id
from .problems import FoundWrong, Problem

HEADER = "Idempotency-Key"


def key_of(header: str | None, request_id: str | None) -> str | None:
    """The one key of a request, of the two places where it may stand. Raises Problem."""
    given = None if header is None else _unquoted(header)
    if given is not None and request_id is not None and given != request_id:
        raise _wrong("the header Idempotency-Key and request_id are both given, and differ")
    key = request_id if given is None else given
    if key is not None:
        try:
            check_request_id(key)
        except (TypeError, ValueError) as error:
            raise _wrong(str(error)) from None
    return key


def _unquoted(header: str) -> str:
    text = header.strip()
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return text[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    return text


def _wrong(text: str) -> Problem:
    return Problem(422, "specification", text, findings=[FoundWrong("request_id", text)])
