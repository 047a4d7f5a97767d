"""The page's files in `page/`, held in memory, plain and compressed.

Rules
-----
- The files are read when the board is made: a request never reads a file of this machine.
- A file's ETag is its digest, and browsers check it each time: so they load a new version at once.
"""

from __future__ import annotations

import gzip
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler

from .access import PUBLIC
from .problems import not_found

PAGE = Path(__file__).parent.parent / "page"
_TYPES = {
    ".html": "text/html", ".css": "text/css", ".js": "text/javascript",
    ".mjs": "text/javascript", ".svg": "image/svg+xml", ".png": "image/png", ".ico": "image/x-icon",
    ".json": "application/json", ".txt": "text/plain", ".md": "text/plain",
    ".woff2": "font/woff2", ".webmanifest": "application/manifest+json",
}  # fmt: skip
_SMALL = 500  # bytes that are not worth compressing


class Asset(msgspec.Struct, frozen=True):
    """One file of the page."""

    media_type: str
    etag: str
    plain: bytes
    compressed: bytes | None


def assets(folder: Path = PAGE) -> dict[str, Asset]:
    """Read the files of a folder, by their paths in it."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): _asset(path) for path in files}


def _asset(path: Path) -> Asset:
    plain = path.read_bytes()
    compressed = gzip.compress(plain, 9, mtime=0) if len(plain) > _SMALL else None
    return Asset(
        _TYPES.get(path.suffix, "text/plain"), f'"{blake2b(plain, digest_size=12).hexdigest()}"', plain,
        compressed if compressed is not None and len(compressed) < len(plain) else None,
    )  # fmt: skip


def serving() -> HTTPRouteHandler:
    """Make the handler of the page's files."""
    files = assets()

    @get(["/", "/{path:path}"], include_in_schema=False, opt={"scope": PUBLIC})
    async def get_page(request: Request[Any, Any, Any]) -> Response[bytes]:
        path = request.scope["path"].strip("/") or "index.html"
        if (found := files.get(path)) is None:
            raise not_found("page", path, "this board")
        headers = {"ETag": found.etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == found.etag:
            return Response(b"", status_code=304, headers=headers)
        if found.compressed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return Response(found.compressed, media_type=found.media_type, headers=headers)
        return Response(found.plain, media_type=found.media_type, headers=headers)

    return get_page
