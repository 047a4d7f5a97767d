"""What programs that are no nodes do with a journal in PostgreSQL: see who runs it, and put commands into its inbox."""

from __future__ import annotations

from contextlib import closing

from ..cluster import Node
from ..contract import InboxRow
from . import inbox, statements
from .address import parse
from .opening import check_version, connect, refusing


def nodes_of(text: str) -> list[Node]:
    """The nodes of the journal at an address: those that live, and those that were fenced or left lately.

    Raises JournalError, as all here.
    """
    address = parse(text)
    with closing(connect(address, "nodes", writes=False)) as connection, refusing(address):
        check_version(connection, address)
        return [Node(*row) for row in connection.execute(statements.NODES).fetchall()]


def who_runs(text: str) -> str | None:
    """The nodes that run it, in words; None if there is none."""
    names = [node.name for node in nodes_of(text) if node.state == "living"]
    if not names:
        return None
    return f"{'node' if len(names) == 1 else f'{len(names)} nodes:'} {', '.join(names)}"


def put(text: str, row: InboxRow) -> int:
    """Put a command into its inbox, and ring. Returns its number there."""
    address = parse(text)
    with closing(connect(address, "command")) as connection, refusing(address):
        check_version(connection, address)
        return inbox.send(connection, row, address.channel)
