"""The common state of tools for all nodes: the states of their breakers, and the parts of their limits.

Rules
-----
- A change of a breaker names the generation that it makes. Of two changes that make the same one, the first is kept.
- Parts of a limit are decided under an advisory lock of the tool, one node at a time (`runtime/journal/sharing.py`).
  Locks are taken in the order of the tools' names.
- Of an ended node only the limit it stated counts: until a node of its name has stated its own, or its rows are
  removed, a day after its end.
"""
# ruff: noqa: S608 - statements are put together from names in this package only; values are bound

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from ....actors.workers.tool_limits import RUNTIME
from ...errors import LeaseLost
from ..cluster import ToolDemand, ToolState
from ..sharing import ToolClaim, portion
from .rows import plain
from .statements import ACTED, SAYS

if TYPE_CHECKING:
    from .opening import Connection
    from .went_back import AcknowledgedState

_STATE = msgspec.json.Decoder(ToolState)
_CLAIM = msgspec.json.Decoder(ToolClaim)
_ME = "SELECT node FROM nodes WHERE node = %(me)s AND NOT fenced FOR KEY SHARE"
_CHANGE = f"""
WITH me AS ({_ME}), done AS (
  INSERT INTO tool_states (tool, generation, state) SELECT %(tool)s, %(generation)s, %(state)s FROM me
  ON CONFLICT (tool) DO UPDATE SET generation = excluded.generation, state = excluded.state
    WHERE tool_states.generation = excluded.generation - 1
  RETURNING tool
), {ACTED} SELECT (SELECT count(*) FROM me), (SELECT count(pg_notify(%(channel)s, 'tools')) FROM done),
  (SELECT number FROM acted)
"""
_LOCK = """
SELECT pg_advisory_xact_lock(hashtextextended(current_schema() || ' tool ' || tool, 0))
FROM unnest(%(tools)s::text[]) AS asked (tool)
"""
_OF_RUNTIME = f"""strpos(claim, '"said_by":"{RUNTIME}"') > 0"""  # in JSON text this can only be a key and its value
_CLAIMS = f"""
SELECT tool, nodes.name, nodes.fenced, claim.claim, extract(epoch FROM clock_timestamp())::double precision
FROM unnest(%(tools)s::text[]) AS asked (tool)
LEFT JOIN (tool_claims AS claim JOIN nodes ON nodes.node = claim.node AND (NOT nodes.fenced OR {SAYS})) USING (tool)
"""
_LIMITED = f"SELECT DISTINCT tool FROM tool_claims AS claim WHERE tool = ANY (%(tools)s) AND {SAYS}"
_RENEW = f"""
DELETE FROM tool_claims WHERE {_OF_RUNTIME} AND node IN (
  SELECT node FROM nodes WHERE fenced AND name = (SELECT name FROM nodes WHERE node = %(me)s AND NOT fenced))
"""
_CLAIM_IT = """
INSERT INTO tool_claims VALUES (%(tool)s, %(me)s, %(claim)s)
ON CONFLICT (tool, node) DO UPDATE SET claim = excluded.claim
"""


def states(connection: Connection) -> list[ToolState]:
    """The states that any node has set."""
    return [_STATE.decode(row[0]) for row in connection.execute("SELECT state FROM tool_states ORDER BY tool")]


def change(connection: Connection, known: AcknowledgedState, tool: ToolState, channel: str) -> ToolState:
    """Set a state, if it directly follows the known one. Returns the state that holds. Raises LeaseLost."""
    state = msgspec.json.encode(tool).decode()
    values = {
        "me": known.node,
        "tool": plain(tool.tool),
        "generation": tool.generation,
        "state": state,
        "channel": channel,
    }
    row = connection.execute(_CHANGE, values).fetchone()
    if row is None or not row[0]:
        raise LeaseLost
    known.acted(row[2])
    if row[1]:
        return tool
    found = connection.execute("SELECT state FROM tool_states WHERE tool = %(tool)s", values).fetchone()
    return tool if found is None else _STATE.decode(found[0])


def share(
    connection: Connection, node: AcknowledgedState, name: str, wants: Mapping[str, ToolDemand], channel: str
) -> dict[str, ToolClaim]:
    """Decide a node's parts of the limits of tools. Raises LeaseLost."""
    names = {plain(tool): tool for tool in wants}
    values = {"me": node.node, "tools": sorted(names), "channel": channel}
    shares: dict[str, ToolClaim] = {}
    with connection.transaction():
        if connection.execute(_ME, values).fetchone() is None:
            raise LeaseLost
        connection.execute(_LOCK, values)
        claims: dict[str, dict[str, ToolClaim]] = {tool: {} for tool in names}
        gone: dict[str, list[tuple[str, ToolClaim]]] = {tool: [] for tool in names}
        now = 0.0
        for tool, whose, is_gone, claim, at in connection.execute(_CLAIMS.encode(), values):
            now = at
            if is_gone:
                gone[tool].append((whose, _CLAIM.decode(claim)))
            elif whose is not None:
                claims[tool][whose] = _CLAIM.decode(claim)
        rings = False
        for tool, claims_of_tool in claims.items():
            mine, ring = portion(name, wants[names[tool]], claims_of_tool, now, gone[tool])
            rings = rings or ring
            shares[names[tool]] = mine
            this = {"tool": tool, "me": node.node, "claim": msgspec.json.encode(mine).decode()}
            if not mine.empty:
                connection.execute(_CLAIM_IT, this)
            elif name in claims_of_tool:
                connection.execute("DELETE FROM tool_claims WHERE tool = %(tool)s AND node = %(me)s", this)
        if rings:
            connection.execute("SELECT pg_notify(%(channel)s, 'tools')", values)
        acted = node.act(connection)
    node.acted(acted)
    return shares


def limited(connection: Connection, tools: Sequence[str]) -> frozenset[str]:
    """The given tools for which any node, or one that has ended, states a limit."""
    names = {plain(tool): tool for tool in tools}
    return frozenset(names[row[0]] for row in connection.execute(_LIMITED.encode(), {"tools": list(names)}))


def renew_words(connection: Connection, node: AcknowledgedState) -> None:
    """Drop the limits stated by earlier runtimes of this node's name."""
    connection.execute(_RENEW.encode(), {"me": node.node})
