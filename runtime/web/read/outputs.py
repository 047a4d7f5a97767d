"""Outputs over HTTP: files of commands, whole or in part (RFC 9110, Range).

Rules
-----
- The media type is always plain text, so that no browser runs it.
- One range is answered; several ranges, or another unit than bytes, are ignored, as the RFC allows. A range after the
  end is a 416 with the length; the last bytes of an empty output are empty, which is no error.
- A client that follows an output asks again with its ETag (`If-None-Match`) and for its last byte: the answer is 304
  while nothing is new, otherwise 206.
- A file is opened where the runtime made it, or beside a journal that was moved, and through no link. It is read in a
  thread, at most `MOST` bytes at once: a longer output without a range is cut there, with a 206.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping

import msgspec
from litestar import Response

from ...dispatch.threads import in_thread
from ...engines.files import open_file
from ...execution.outputs import OutputLocation
from ..http.problems import Problem, not_found

MOST = 4 * 1024 * 1024
"""The most bytes of one answer."""
_RANGE = re.compile(r"bytes=([0-9]{0,1000})-([0-9]{0,1000})")
_LINK = frozenset({errno.ELOOP, errno.ENOENT, errno.ENOTDIR})


class Output(msgspec.Struct, frozen=True):
    """The output of an attempt. size: bytes written, None while it runs; name: the beginning of its ETag."""

    at: OutputLocation
    size: int | None
    name: str
    live: bool


async def read_part(output: Output, headers: Mapping[str, str]) -> Response[bytes]:
    """Read the requested part of an output. Raises Problem."""
    return await in_thread("files", _read, output, headers.get("range"), headers)


def _read(output: Output, wanted: str | None, headers: Mapping[str, str]) -> Response[bytes]:
    try:
        handle = open_file(output.at.path, output.at.root)
    except OSError as error:
        if output.live and error.errno == errno.ENOENT:
            return _answer(b"", 200, 0, f'"{output.name}-0"', None, output)  # the command has written nothing yet
        if error.errno in _LINK:
            raise not_found("output", output.name, "its folder: it was removed") from None
        raise
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        length, etag = status.st_size, f'"{output.name}-{status.st_size}-{status.st_mtime_ns}"'
        if headers.get("if-none-match") == etag:
            return Response(b"", status_code=304, headers={"ETag": etag})
        if wanted is not None and headers.get("if-range", etag) != etag:
            wanted = None
        part = None if wanted is None else part_of(wanted, length)
        if part is None and length > MOST:
            part = (0, MOST)
        if part is None:
            return _answer(file.read(length), 200, length, etag, None, output)
        first, last = part[0], min(part[1], part[0] + MOST)
        file.seek(first)
        return _answer(file.read(last - first), 206, length, etag, first, output)


def part_of(wanted: str, length: int) -> tuple[int, int] | None:
    """Return the first byte of a Range and the one after its last; None for all. Raises Problem."""
    match = _RANGE.fullmatch(wanted.strip())
    if match is None or not any(match.groups()):
        return None
    begin, end = match.groups()
    if not begin:
        if not length and int(end):
            return None
        first, last = max(0, length - int(end)), length
    else:
        first, last = int(begin), min(length, int(end) + 1) if end else length
        if end and int(end) < int(begin):
            return None
    if first >= length or last <= first:
        raise Problem(
            416, "range", f"the output has {length} bytes, and {wanted!r:.80} selects none of them",
            headers={"Content-Range": f"bytes */{length}"},
        )  # fmt: skip
    return first, last


def _answer(data: bytes, status: int, length: int, etag: str, first: int | None, output: Output) -> Response[bytes]:
    size = length if output.size is None else output.size
    headers = {"Accept-Ranges": "bytes", "ETag": etag, "X-Output-Size": str(size)}
    if first is not None:
        headers["Content-Range"] = f"bytes {first}-{first + len(data) - 1}/{length}"
    return Response(data, status_code=status, headers=headers, media_type="text/plain")
