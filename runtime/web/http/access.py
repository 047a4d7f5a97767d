"""Who asks, and what they may: tokens and their scopes.

Rules
-----
- Every handler needs a scope: `read` for what only looks, `operate` for what changes something, and `approve` for
  decisions, which is said at the handler (`opt={"scope": "approve"}`). Nothing is reachable without one.
- Where there are no tokens, only this machine is answered; who asks may all, and says who they are. Where there are,
  who asks is who their token is for: a token with `approve` decides as its name, and as nobody else.
- A secret is kept as its digest only, and compared in constant time; it is never logged, shown, or taken from a URL.
- Tokens come from a file that nobody else may read, or from the environment; never from the command line.
"""

from __future__ import annotations

import os
import tomllib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import msgspec
from litestar.di import NamedDependency

from ...commands.author import name_of
from .problems import Problem

if TYPE_CHECKING:
    from litestar import Request
    from litestar.handlers.base import BaseRouteHandler

Scope: TypeAlias = Literal["read", "operate", "approve"]
SCOPES: frozenset[Scope] = frozenset({"read", "operate", "approve"})
PUBLIC = "page"
"""What the files of the page need, which hold nothing of the runtime: no scope of any token."""
ANY = "any"
"""What needs a scope that is known only once it is looked at, which whoever says this does."""
VARIABLE = "CALLBOARD_TOKENS"
"""The variable of the environment that tokens come from: a JSON list of the tables that a file has."""
NOBODY = "operator"
"""Who acts where nobody said who they are."""
SHORTEST = 16
"""Characters of the shortest secret."""
WRONG, PERIOD = 10, 60.0
"""So many wrong tokens from one address within so many seconds: then more of them are a 429 for as long. Who shows the
right one is heard all the same, since many may come from one address.
"""
_ADDRESSES = 1_000  # that wrong tokens are counted of
_KEY = "callboard.caller"


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What somebody shows to be let in. name: who they are; secret: 16 or more characters; scopes: what they may.

    Raises ValueError for what can be none.
    """

    name: str
    secret: str
    scopes: Sequence[Scope] = ("read",)

    def __post_init__(self) -> None:
        """Refuse what protects nothing."""
        name_of(self.name)
        if len(self.secret) < SHORTEST or not (self.secret.isascii() and self.secret.isprintable()):
            raise ValueError(f"the secret of token {self.name!r} must be {SHORTEST} or more printable ASCII characters")
        if not self.scopes or not SCOPES.issuperset(self.scopes):
            raise ValueError(f"token {self.name!r} needs scopes, of: {', '.join(sorted(SCOPES))}")

    def __repr__(self) -> str:
        return f"Token({self.name!r}, scopes={list(self.scopes)!r})"


class Caller(msgspec.Struct, frozen=True):
    """Who asks. name: whom their token is for; None where no tokens are needed."""

    name: str | None = None
    scopes: frozenset[Scope] = SCOPES

    def by(self, said: str | None) -> str:
        """By whom an action is, as it is journaled. Raises Problem where somebody else was said."""
        if self.name is None:
            return said or NOBODY
        if said not in {None, self.name}:
            raise Problem(403, "forbidden", f"this token acts as {self.name!r}, and not as {said!r:.80}")
        return self.name


ANYBODY = Caller()
NO_TOKEN = Caller("nobody", frozenset())
"""Who has come without a token where there are some: to them, only the page is shown."""
TheCaller: TypeAlias = NamedDependency[Caller]
"""How a handler asks for it, by the name `caller`."""


class Tokens:
    """Those who are let in, and who has shown wrong tokens lately. clock: monotonic seconds."""

    def __init__(self, tokens: Iterable[Token], clock: Callable[[], float]) -> None:
        self._known = [
            (sha256(token.secret.encode()).digest(), Caller(token.name, frozenset(token.scopes))) for token in tokens
        ]
        self._clock = clock
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._known)

    def caller(self, authorization: str | None, address: str) -> Caller:
        """Who shows that header, from that address. Raises Problem for a token that is none."""
        if not self._known:
            return ANYBODY
        if authorization is None:
            return NO_TOKEN
        scheme, _, secret = authorization.partition(" ")
        if scheme.lower() == "bearer" and (found := self._find(secret.strip())) is not None:
            return found  # whoever else comes from that address
        self._check(address)
        self._count(address)
        raise unauthorized("the token is not known here")

    def _find(self, secret: str) -> Caller | None:
        shown = sha256(secret.encode("utf-8", "surrogatepass")).digest()
        found = None
        for digest, caller in self._known:  # all of them, so that the time says nothing
            if compare_digest(digest, shown):
                found = caller
        return found

    def _check(self, address: str) -> None:
        times = self._wrong.get(address, [])
        if len(times) >= WRONG and (left := times[-1] + PERIOD - self._clock()) > 0:
            raise Problem(
                429, "too-many", "too many wrong tokens came from this address: wait before the next one",
                headers={"Retry-After": str(int(left) + 1)},
            )  # fmt: skip

    def _count(self, address: str) -> None:
        now = self._clock()
        times = [at for at in self._wrong.pop(address, []) if at > now - PERIOD]
        self._wrong[address] = [*times, now]
        if len(self._wrong) > _ADDRESSES:
            self._wrong.popitem(last=False)


def unauthorized(detail: str) -> Problem:
    """A token is needed, and none was shown, or a wrong one."""
    return Problem(401, "unauthorized", detail, headers={"WWW-Authenticate": 'Bearer realm="callboard"'})


def came_as(scope: Any, caller: Caller) -> None:
    """Note with a request who asks."""
    scope[_KEY] = caller


def caller_of(scope: Any) -> Caller:  # Any: the framework's own type is not known in full to every type checker
    """Who asks."""
    caller: Caller = scope.get(_KEY, NO_TOKEN)
    return caller


def scope_needed(request: Request[Any, Any, Any]) -> None:
    """Asked before every handler. Raises Problem. (As a guard, the framework would copy the handler each time.)"""
    scope = cast("Mapping[str, Any]", request.scope)
    handler: BaseRouteHandler = scope["route_handler"]
    needed = handler.opt.get("scope") or ("read" if scope["method"] in {"GET", "HEAD", "OPTIONS"} else "operate")
    caller = caller_of(scope)
    if needed in caller.scopes or needed == PUBLIC or (needed == ANY and caller.scopes):
        return
    if caller is NO_TOKEN:
        raise unauthorized("a token is needed: send it as `Authorization: Bearer SECRET`")
    raise Problem(403, "forbidden", lacking(needed, caller))


def lacking(needed: str, caller: Caller) -> str:
    """Why who asks may not do that."""
    return f"this needs the scope {needed!r}, which the token of {caller.name!r} has not"


# -- where tokens come from --------------------------------------------------------------------------------------------


def tokens_from_file(path: Path) -> list[Token]:
    """The tokens of a TOML file: tables `[[tokens]]` of name, secret and scopes.

    Raises ValueError for what is none, and for a file that others may read; OSError.
    """
    mode = path.stat().st_mode
    if os.name == "posix" and mode & 0o077:
        raise ValueError(f"others may read {path}, which holds secrets: `chmod 600 {path}`")
    try:
        told: Any = tomllib.loads(path.read_text("utf-8"))
    except ValueError as error:  # which says the place, and shows nothing of it
        raise ValueError(f"{path} is no TOML: {error}") from None
    return _tokens(told.get("tokens"), f"{path}, under [[tokens]]")


def tokens_from(environment: Mapping[str, str]) -> list[Token]:
    """The tokens that an environment names; none where it names none. Raises ValueError for what is none."""
    text = environment.get(VARIABLE)
    if not text:
        return []
    try:
        told: Any = msgspec.json.decode(text)
    except ValueError:
        raise ValueError(f"{VARIABLE} is no JSON") from None
    return _tokens(told, VARIABLE)


def _tokens(told: object, where: str) -> list[Token]:
    for one in cast("list[object]", told) if isinstance(told, list) else ():
        _check_scopes(one, where)
    try:
        tokens = msgspec.convert(told, list[Token])
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    names = [token.name for token in tokens]
    if not tokens or len(set(names)) < len(names):
        raise ValueError(f"{where}: there must be tokens, each with a name of its own")
    return tokens


def _check_scopes(table: object, where: str) -> None:
    given = cast("dict[str, object]", table if isinstance(table, dict) else {})
    scopes = given.get("scopes")
    for scope in cast("list[object]", scopes) if isinstance(scopes, list) else ():
        if not isinstance(scope, str) or scope not in SCOPES:
            there = ", ".join(sorted(SCOPES))
            raise ValueError(f"{where}: token {given.get('name')!r:.200} has {scope!r:.60}; the scopes are: {there}")
