"""The key of a request: the header `Idempotency-Key` (the IETF draft's), or `request_id` in its body.

Rules
-----
- Both may be given, and must be the same then. The header's value is a quoted string, as the draft has it; one without
  quotes is taken as it stands, since most clients send that. What can be neither is malformed: a 400.
- The same key with something else is a 422, one whose command is on its way a 409. What came of a key is the runtime's
  own rule (`runtime/commands/idempotency.py`): what took effect is in the journal, so the answer is the same after a
  restart, too; what was refused is not, and is judged anew.
- A key is bound to who acts: with another's token the same command is another one, and its answer is not told.
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
_PLAIN = re.compile(r"[!#-+.-:<-\[\]-~-]+")  # visible, and nothing that would part it from another or from parameters


def key_of(headers: Sequence[str], request_id: str | None) -> str | None:
    """The one key of a request, of the two places where it may stand. Raises Problem."""
    given = _of_header(headers)
    if given is not None and request_id is not None and given != request_id:
        text = "the header Idempotency-Key and request_id are both given, and differ: send one of them"
        raise Problem(422, "specification", text, findings=[FoundWrong("request_id", text)])
    return request_id if given is None else given


def _of_header(headers: Sequence[str]) -> str | None:
    if not headers:
        return None
    if len(headers) > 1:
        raise _malformed("it is there more than once")
    text = headers[0].strip(" \t")
    quoted = _QUOTED.fullmatch(text)
    if quoted is None and not _PLAIN.fullmatch(text):
        raise _malformed(f'it is no quoted string of ASCII, as "8e03978e-40d5", but {text!a:.80}')
    key = text if quoted is None else re.sub(r"\\(.)", r"\1", quoted[1])
    try:
        check_request_id(key)
    except ValueError as error:
        raise _malformed(str(error)) from None
    return key


def _malformed(why: str) -> Problem:
    return Problem(400, "bad-request", f"the header {HEADER} is malformed: {why}")


class OnTheirWay:
    """The keys of the requests that are being answered now."""

    def __init__(self) -> None:
        self._keys: set[str] = set()

    @contextmanager
    def of(self, services: RuntimeServices, key: str) -> Generator[None]:
        """While the request of that key is answered. Raises Problem where another one is, here or in this process."""
        if key in self._keys or services.in_flight(key):
            text = f"the request with the key {key!r:.80} is on its way: ask again when that is over"
            raise Problem(409, "in-flight", text, headers={"Retry-After": "1"})
        self._keys.add(key)
        try:
            yield
        finally:
            self._keys.discard(key)
