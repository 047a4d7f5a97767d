"""The caller over HTTP: its name and scopes, by which pages choose their offers."""

from __future__ import annotations

import msgspec
from litestar import get

from ..http.access import TheCaller
from ..http.context import TheBoard


class MeView(msgspec.Struct, frozen=True, kw_only=True):
    """The caller. name: its token's, null where no tokens are needed.

    scopes: what it may do (read, operate, approve); commands: whether its jobs may hold commands.
    """

    name: str | None
    scopes: list[str]
    commands: bool


@get("/api/me", operation_id="get_me")
async def get_me(board: TheBoard, caller: TheCaller) -> MeView:
    """The caller's name, from its token, and its scopes."""
    return MeView(name=caller.name, scopes=sorted(caller.scopes), commands=board.commands)


HANDLERS = [get_me]
