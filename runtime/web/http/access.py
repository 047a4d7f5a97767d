"""Access control: callers, their tokens, and the tokens' scopes.

Rules
-----
- Every handler needs a scope: `read` if it only reads, `operate` if it changes something, and `approve` for decisions,
  which the handler declares (`opt={"scope": "approve"}`). Nothing is reachable without a scope.
- Without tokens, only requests from this machine are answered; callers may do everything, and name themselves. With
  tokens, a caller has its token's name: a token with `approve` decides under that name, and no other.
- Only a secret's digest is kept, and compared in constant time; a secret is never logged, shown, or read from a URL.
- Tokens come from a file that only its owner may read, or from the environment; never from the command line.
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
"""The scope of the page's files, which hold nothing of the runtime: it needs no token."""
ANY = "any"
"""The scope of handlers that check the needed scope themselves, after they have read the request."""
VARIABLE = "CALLBOARD_TOKENS"
"""The environment variable with tokens: a JSON list of the same tables as in a file."""
NOBODY = "operator"
"""The name of a caller that has not given one."""
SHORTEST = 16
"""Characters of the shortest secret."""
WRONG, PERIOD = 10, 60.0
"""After this many wrong tokens from one address within this many seconds, further ones get a 429 for that time.

A right token is still accepted, since many callers may share one address.
"""
_ADDRESSES = 1_000  # addresses whose wrong tokens are counted
_KEY = "callboard.caller"


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token that lets a caller in. name: the caller's; secret: 16 or more characters; scopes: what it allows.

    Raises ValueError for invalid fields.
    """

    name: str
    secret: str
    scopes: Sequence[Scope] = ("read",)

    def __post_init__(self) -> None:
        """Refuse an invalid name, secret or scope."""
        name_of(self.name)
        if len(self.secret) < SHORTEST or not (self.secret.isascii() and self.secret.isprintable()):
            raise ValueError(f"the secret of token {self.name!r} must be {SHORTEST} or more printable ASCII characters")
        if not self.scopes or not SCOPES.issuperset(self.scopes):
            raise ValueError(f"token {self.name!r} needs scopes, of: {', '.join(sorted(SCOPES))}")

    def __repr__(self) -> str:
        return f"Token({self.name!r}, scopes={list(self.scopes)!r})"


class Caller(msgspec.Struct, frozen=True):
    """The sender of a request. name: its token's name; None if no tokens are needed."""

    name: str | None = None
    scopes: frozenset[Scope] = SCOPES

    def by(self, said: str | None) -> str:
        """Return the name to journal with an action. Raises Problem if another name was given."""
        if self.name is None:
            return NOBODY if said is None else said
        if said not in {None, self.name}:
            raise Problem(403, "forbidden", f"this token acts as {self.name!r}, not as {said!r:.80}")
        return self.name


ANYBODY = Caller()
NO_TOKEN = Caller("nobody", frozenset())
"""A caller without a token, where tokens are needed: it gets only the page."""
TheCaller: TypeAlias = NamedDependency[Caller]
"""The type of a handler's parameter `caller`."""


class Tokens:
    """The known tokens, and recent wrong ones by address. clock: monotonic seconds."""

    def __init__(self, tokens: Iterable[Token], clock: Callable[[], float]) -> None:
        self._known = [
            (sha256(token.secret.encode()).digest(), Caller(token.name, frozenset(token.scopes))) for token in tokens
        ]
        self._clock = clock
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._known)

    def caller(self, authorization: str | None, address: str) -> Caller:
        """Find the caller of an `Authorization` header, from that address. Raises Problem for an unknown token."""
        if not self._known:
            return ANYBODY
        if authorization is None:
            return NO_TOKEN
        scheme, _, secret = authorization.partition(" ")
        if scheme.lower() == "bearer" and (found := self._find(secret.strip())) is not None:
            return found  # a right token is accepted even if wrong tokens came from that address
        self._check(address)
        self._count(address)
        raise unauthorized("the token is unknown")

    def _find(self, secret: str) -> Caller | None:
        shown = sha256(secret.encode("utf-8", "surrogatepass")).digest()
        found = None
        for digest, caller in self._known:  # all of them, so that the time shows nothing
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
    """Make the problem of a missing or wrong token."""
    return Problem(401, "unauthorized", detail, headers={"WWW-Authenticate": 'Bearer realm="callboard"'})


def came_as(scope: Any, caller: Caller) -> None:
    """Store the caller with its request."""
    scope[_KEY] = caller


def caller_of(scope: Any) -> Caller:  # Any: type checkers do not know the framework's type fully
    """Return the caller of a request."""
    caller: Caller = scope.get(_KEY, NO_TOKEN)
    return caller


def scope_needed(request: Request[Any, Any, Any]) -> None:
    """Check a request's scope before its handler. Raises Problem. (A guard would copy the handler each time.)"""
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
    """Explain which scope the caller lacks."""
    return f"this needs the scope {needed!r}, which the token of {caller.name!r} does not have"


# -- where tokens come from --------------------------------------------------------------------------------------------


def tokens_from_file(path: Path) -> list[Token]:
    """Read the tokens of a TOML file: tables `[[tokens]]` of name, secret and scopes.

    Raises ValueError for invalid content, and for a file that other users may read; OSError.
    """
    mode = path.stat().st_mode
    if os.name == "posix" and mode & 0o077:
        raise ValueError(f"other users may read {path}, which holds secrets: run `chmod 600 {path}`")
    try:
        settings: Any = tomllib.loads(path.read_text("utf-8"))
    except ValueError as error:  # the error's text names the place, and shows no content
        raise ValueError(f"{path} is not valid TOML: {error}") from None
    return _tokens(settings.get("tokens"), f"{path}, under [[tokens]]")


def tokens_from(environment: Mapping[str, str]) -> list[Token]:
    """Read the tokens of an environment; none if it has none. Raises ValueError for invalid content."""
    text = environment.get(VARIABLE)
    if not text:
        return []
    try:
        tokens: Any = msgspec.json.decode(text)
    except ValueError:
        raise ValueError(f"{VARIABLE} is not valid JSON") from None
    return _tokens(tokens, VARIABLE)


def _tokens(told: object, where: str) -> list[Token]:
    for one in cast("list[object]", told) if isinstance(told, list) else ():
        _check_scopes(one, where)
    try:
        tokens = msgspec.convert(told, list[Token])
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    names = [token.name for token in tokens]
    if not tokens or len(set(names)) < len(names):
        raise ValueError(f"{where}: there must be at least one token, and each needs its own name")
    return tokens


def _check_scopes(table: object, where: str) -> None:
    given = cast("dict[str, object]", table if isinstance(table, dict) else {})
    scopes = given.get("scopes")
    for scope in cast("list[object]", scopes) if isinstance(scopes, list) else ():
        if not isinstance(scope, str) or scope not in SCOPES:
            there = ", ".join(sorted(SCOPES))
            raise ValueError(f"{where}: token {given.get('name')!r:.200} has {scope!r:.60}; the scopes are: {there}")
