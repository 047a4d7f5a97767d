"""Who asks, and what they may.

Rules
-----
- Every handler needs a scope: `read` for what only looks, `operate` for what changes something, and `approve` for
  decisions, which is said at the handler (`opt={"scope": "approve"}`). Nothing is reachable without one.
- Who has come without a token (none are needed on this machine's own addresses) may all, and says who they are.
  Who has come with one is who the token is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec
from litestar.di import NamedDependency

from .problems import Problem

if TYPE_CHECKING:
    from litestar.connection import ASGIConnection
    from litestar.handlers.base import BaseRouteHandler

PUBLIC = "page"
"""What the files of the page need, which hold nothing of the runtime: no scope of any token."""
SCOPES = frozenset({"read", "operate", "approve"})
NOBODY = "operator"
"""Who acts where nobody said who they are."""
_KEY = "callboard.caller"


class Caller(msgspec.Struct, frozen=True):
    """Who asks. name: whom their token is for; None where no tokens are needed."""

    name: str | None = None
    scopes: frozenset[str] = SCOPES

    def by(self, said: str | None) -> str:
        """By whom an action is, as it is journaled. Raises Problem where somebody else was said."""
        if self.name is None:
            return said or NOBODY
        if said not in {None, self.name}:
            raise Problem(403, "forbidden", f"this token acts as {self.name!r}, and not as {said!r:.80}")
        return self.name


ANYBODY = Caller()
TheCaller: TypeAlias = NamedDependency[Caller]
"""How a handler asks for it, by the name `caller`."""


def caller_of(scope: Any) -> Caller:  # Any: the framework's own type is not known in full to every type checker
    """Who asks."""
    caller: Caller = scope.get(_KEY, ANYBODY)
    return caller


def scope_needed(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """The guard of every handler. Raises Problem."""
    scope = cast("Mapping[str, Any]", connection.scope)
    needed = handler.opt.get("scope") or ("read" if scope["method"] in {"GET", "HEAD", "OPTIONS"} else "operate")
    caller = caller_of(scope)
    if needed not in {PUBLIC, *caller.scopes}:
        raise Problem(403, "forbidden", f"this needs the scope {needed!r}, which the token of {caller.name!r} has not")
