"""`callboard nodes`: the runtimes that share a database, and the number of their jobs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ..journal.location import Database, in_words
from .acting import AsJson
from .command_errors import CommandError
from .options import DEFAULT, Journal
from .terminal import echo

if TYPE_CHECKING:
    from ..journal.location import Store


def node_settings(store: Store, node: str | None, lease: str | None) -> dict[str, Any]:
    """Return a runtime's settings as a node. Raises CommandError if its journal is a file."""
    from ..journal.cluster import lease_of  # noqa: PLC0415 - heavy
    from .spans import span  # noqa: PLC0415

    given: dict[str, Any] = {}
    if node is not None:
        given["node"] = node
    if lease is not None:
        try:
            given["lease"] = lease_of(span(lease))
        except ValueError as error:
            raise CommandError(f"--lease {lease}: {error}.") from None
    if given and not isinstance(store, Database):
        raise CommandError(
            f"--node and --lease are only for a database that nodes share: {in_words(store)} is a file, which "
            "one runtime uses alone."
        )
    return given


def nodes(journal: Journal = DEFAULT, as_json: AsJson = False) -> None:
    """Show a database's runtimes: living ones, and those that left or were fenced lately."""
    from ...actors.records.transition import iso  # noqa: PLC0415
    from ..journal.location import store_of  # noqa: PLC0415
    from . import words  # noqa: PLC0415
    from .status import as_lines, table  # noqa: PLC0415

    store = store_of(journal)
    if not isinstance(store, Database):
        raise CommandError(
            f"{in_words(store)} is a file of one runtime alone. Nodes share a database: --journal postgresql://…"
        )
    from ..journal.postgres.nodes import nodes_of  # noqa: PLC0415 - an extra

    nodes = nodes_of(store.address)
    if as_json:
        rows: list[dict[str, Any]] = [
            {
                "name": one.name, "state": one.state, "epoch": one.epoch, "place": one.place, "jobs": one.jobs,
                "started": iso(one.started_at), "seen": iso(one.seen_at),
            }
            for one in nodes
        ]  # fmt: skip
        as_lines(rows)
        return
    if not nodes:
        echo(f"No runtime has used {in_words(store)} lately.")
        return
    now = time.time()
    table(
        ("node", "state", "jobs", "seen", "for", "place"),
        [
            [
                words.one_line(one.name), one.state, f"{one.jobs:,}", f"{words.took(now - one.seen_at)} ago",
                words.took(one.seen_at - one.started_at), words.one_line(one.place),
            ]
            for one in nodes
        ],
    )  # fmt: skip
