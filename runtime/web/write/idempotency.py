"""The key of a request: the header `Idempotency-Key` (an IETF draft), or the body's `request_id`.

Rules
-----
- If both are given, they must be equal. The header's value is a quoted string, as in the draft; one without quotes is
  accepted unchanged, since most clients send that. Any other value is malformed: a 400.
- The same key with another command is a 422; while its command is running, it is a 409. The runtime keeps a key's
  result (`runtime/commands/idempotency.py`): a command that took effect is in the journal, so the answer is the same
  after a restart, too; a refused one is not kept, and may be sent again.
- A key belongs to its caller: with another token the same key is another command, and the first answer is not shown.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...commands.idempotency import check_request_id
from ..http.problems import FoundWrong, Problem

if TYPE_CHECKING:
    from ...services import RuntimeServices

HEADER = "Idempotency-Key"
_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')  # RFC 8941's String
_PLAIN = re.compile(r"[!#-+.-:<-\[\]-~-]+")  # visible characters, without separators


def key_of(headers: Sequence[str], request_id: str | None) -> str | None:
    """Return the key of a request, from the header or the body. Raises Problem."""
    given = _of_header(headers)
    if given is not None and request_id is not None and given != request_id:
        text = "the header Idempotency-Key and request_id are both given, and differ: send one of them"
        raise Problem(422, "specification", text, findings=[FoundWrong("request_id", text)])
    return request_id if given is None else given


def _of_header(headers: Sequence[str]) -> str | None:
    if not headers:
        return None
    if len(headers) > 1:
        raise _malformed("it occurs more than once")
    text = headers[0].strip(" \t")
    quoted = _QUOTED.fullmatch(text)
    if quoted is None and not _PLAIN.fullmatch(text):
        raise _malformed(f'it must be a quoted ASCII string like "8e03978e-40d5", not {text!a:.80}')
    key = text if quoted is None else re.sub(r"\\(.)", r"\1", quoted[1])
    try:
        check_request_id(key)
    except ValueError as error:
        raise _malformed(str(error)) from None
    return key


def _malformed(why: str) -> Problem:
    return Problem(400, "bad-request", f"the header {HEADER} is malformed: {why}")


class KeysInFlight:
    """The keys of the requests that are being answered."""

    def __init__(self) -> None:
        self._keys: set[str] = set()

    @contextmanager
    def of(self, services: RuntimeServices, key: str) -> Generator[None]:
        """Hold a request's key while it is answered. Raises Problem if another request has it."""
        if key in self._keys or services.in_flight(key):
            text = f"the request with the key {key!r:.80} is being executed: send it again when that has ended"
            raise Problem(409, "in-flight", text, headers={"Retry-After": "1"})
        self._keys.add(key)
        try:
            yield
        finally:
            self._keys.discard(key)
