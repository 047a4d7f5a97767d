"""The address of a journal in PostgreSQL: a database, and a schema in it.

`postgresql://USER:PASSWORD@HOST:PORT/DATABASE?schema=NAME`, with everything else that PostgreSQL's own clients accept
in such an address (several hosts, `sslmode`, `host=/a/folder`, ...). Missing parts come from PostgreSQL's environment
variables (`PGHOST`, `PGPASSFILE`, ...).

Rules
-----
- `schema` is our own parameter, and is removed before PostgreSQL's client sees the address. The default is `callboard`.
  The server's own timeout settings (`limits.py`), which the client does not know, are removed, too.
- A text for people never contains a password: people see `shown`, also if a program prints the address. An address that
  cannot be parsed is not repeated, since the password may be anywhere in it.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import msgspec

from ...errors import JournalMissing
from ..cluster import LEASE
from .limits import OF_SERVER, Limits, limits_of

SCHEMA = "callboard"
_SCHEMA_NAME = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,47}")
"""A name that needs no quotes, and leaves room for the names derived from it."""
_PARTS = re.compile(
    r"(?i:postgres(?:ql)?)://(?:(?P<who>[^@/?#]*)@)?(?P<where>[^@/?#]*)(?:/(?P<database>[^@?#]*))?(?:\?(?P<given>[^#]*))?"
)
_SHOWN = (
    "host", "hostaddr", "port", "dbname", "user", "service", "passfile", "sslmode", "target_session_attrs",
    "connect_timeout", *OF_SERVER,
)  # fmt: skip
"""Other parts of an address that are no secret."""


class Address(msgspec.Struct, frozen=True):
    """Where a journal is. Printed, it shows no password."""

    url: str  # in the form for PostgreSQL's client, with its password
    schema: str
    shown: str  # the address for people
    lease: float = LEASE  # seconds: the lease of the node that connects
    said: tuple[tuple[str, str], ...] = ()  # settings of the server that the address gives

    @property
    def limits(self) -> Limits:
        """Timeouts for this lease; settings in `said` or elsewhere in the address replace them."""
        return limits_of(self.lease)

    def within(self, lease: float) -> Address:
        """Return the address for a node with that lease."""
        return msgspec.structs.replace(self, lease=lease)

    @property
    def channel(self) -> str:
        """The channel on which this journal's listeners are notified."""
        return f"callboard_{self.schema}"

    @property
    def place(self) -> str:
        """The journal's place, independent of user and connection options."""
        parts = urlsplit(self.url)
        return f"{parts.netloc.rpartition('@')[2]}{parts.path} {self.schema}"

    def __repr__(self) -> str:
        return self.shown

    __str__ = __repr__


def parse(text: str) -> Address:
    """Parse an address. Raises JournalMissing if it cannot be parsed, or its schema is not a valid name."""
    found = _PARTS.fullmatch(text)
    if found is None:
        raise JournalMissing(
            "Cannot read the address of a database. Write postgresql://USER:PASSWORD@HOST:PORT/DATABASE?schema=NAME, "
            "with %XX for what has a meaning in it (a / in a password is %2F, a @ is %40)."
        )
    given = parse_qsl(found["given"] or "", keep_blank_values=True)
    schema = dict(given).get("schema", SCHEMA)
    if not _SCHEMA_NAME.fullmatch(schema) or schema == "information_schema":
        raise JournalMissing(
            f"{schema!r:.80} cannot be the schema of a journal. Use up to 48 of a-z, 0-9 and _, beginning with a "
            "letter, and not with pg_."
        )
    scheme, _, rest = text.partition("?")[0].partition("://")
    base = f"{scheme.lower()}://{rest}"  # PostgreSQL's client accepts it in lower case only
    passed = [(name, value) for name, value in given if name not in {"schema", *OF_SERVER}]
    who = (found["who"] or "").partition(":")[0]
    shown = [(name, value) for name, value in given if name in _SHOWN] + [("schema", schema)]
    return Address(
        base + (f"?{urlencode(passed, quote_via=quote)}" if passed else ""),
        schema,
        f"postgresql://{f'{unquote(who)}@' if who else ''}{found['where']}"
        f"{'' if found['database'] is None else '/' + unquote(found['database'])}"
        f"?{urlencode(shown, quote_via=quote, safe='/')}",
        said=tuple((name, value) for name, value in given if name in OF_SERVER),
    )
