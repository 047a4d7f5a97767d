"""Who asks, over HTTP: so that a page says whose it is, and offers only what they may."""

from __future__ import annotations

import msgspec
from litestar import get

from ..http.access import TheCaller
from ..http.context import TheBoard


class MeView(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks. name: whom their token is for, null where no tokens are needed; scopes: what they may (read, operate,
    approve); commands: whether what they submit may hold commands.
    """

    name: str | None
    scopes: list[str]
    commands: bool


@get("/api/me", operation_id="get_me")
async def get_me(board: TheBoard, caller: TheCaller) -> MeView:
    """Who asks, as their token says, and what they may."""
    return MeView(name=caller.name, scopes=sorted(caller.scopes), commands=board.commands)


HANDLERS = [get_me]
