"""How nodes share the limit of a tool: the part of each node is decided one node at a time.

Rules
-----
- A node's *claim* is what it has stated and the part it was given. Claims are kept in the database; a node that asks
  decides its own part only, under a lock of the tool. A fenced node has no claim any more.
- Exact: the slots that all nodes hold are never above the limit. A node holds its part, and the slots it still uses
  beyond it: slots in use are never taken away, they return when their bodies have ended.
- The limit is the smallest that any node states, whether it uses the tool or not. If none states one, it is the
  smallest of the last stated ones: those that nodes still know, and those of nodes that have ended. When the limit
  falls, no new slots are given out until enough have returned, and the nodes with slots are notified.
- For a tool without a limit every node gets `NO_LIMIT`. This is a claim, too, and counts against nodes that state a
  limit later: they get nothing until the others have asked again.
- The node with the most urgent task is served first, for as many tasks as are that urgent; equals get equal parts. If
  there is less than one slot for each, a node that has had one for `TURN` seconds passes it to the longest waiting
  node.
- A node may keep slots that no node wants, and gives them up as soon as a node wants them.
- A node that wants more than is free notifies the others, once, to ask again: their claims may be outdated, and they
  learn that slots are scarce, and give back those that they do not need. A node whose claim has not changed notifies
  nobody: else nodes that cannot help would notify one another for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from ...actors.workers.queues import NO_LIMIT
from ...actors.workers.tool_limits import RUNTIME
from .cluster import ToolDemand

TURN = 5.0
"""Seconds that a node may keep a slot that others want as urgently, if there are fewer slots than nodes."""
NO_WANT = ToolDemand(limit=NO_LIMIT, slots=0)


class ToolClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """The demand that a node has stated for a tool, the slots it was given (`told`), and whether others wait for more.

    at: when it last got more than before. most and by: the limit over all nodes, and who states it: a job's id, RUNTIME
    for this node's own, or the runtime of another node.
    """

    want: ToolDemand = NO_WANT
    told: int = 0
    at: float = 0.0
    scarce: bool = False
    most: int = NO_LIMIT
    by: str = ""

    @property
    def held(self) -> int:
        """The slots that no other node can have."""
        return max(self.told, self.want.used)

    @property
    def waits(self) -> bool:
        """Whether the node needs more slots than it was given."""
        return self.told < self.want.slots

    @property
    def empty(self) -> bool:
        """Whether the claim holds no information: then it need not be stored."""
        return not (self.held or self.want.slots or self.want.says)


def portion(
    node: str, want: ToolDemand, claims: Mapping[str, ToolClaim], now: float, gone: Iterable[tuple[str, ToolClaim]] = ()
) -> tuple[ToolClaim, bool]:
    """Decide the claim of a node with this `want`. claims: those of all nodes by name (its own is the previous one).

    Returns the claim, whose `told` is what the node may use, and whether the other nodes should ask again, since there
    is something for them, or they hold this node's part. gone: claims of nodes that have ended, with their names.
    """
    before = claims.get(node, ToolClaim(at=now))
    others = {name: claim for name, claim in claims.items() if name != node and not claim.empty}
    everybody = {**others, node: ToolClaim(want, before.told, before.at)}
    limit, by = _limit(node, everybody, gone)
    if limit == NO_LIMIT:
        granted = NO_LIMIT if want.slots or want.keep else 0
        mine = ToolClaim(want, granted, now if granted > before.told else before.at)
        return mine, mine != before and any(claim.waits for claim in others.values())
    parts = _parts(limit, everybody, now)
    left = limit - sum(claim.held for claim in others.values())
    kept = min(want.keep, parts[node] + limit - sum(parts.values()))
    granted = max(0, min(max(parts[node], kept), left))
    scarce = any(claim.waits for claim in others.values())
    mine = ToolClaim(want, granted, now if granted > before.told else before.at, scarce, limit, by)
    free = left - mine.held
    first = mine.waits and not before.waits and any(claim.held for claim in others.values())
    others_should = any(
        (claim.told < parts[name] and free > 0)
        or (claim.told > parts[name] and granted < parts[node])
        or (claim.told and claim.most > limit)
        for name, claim in others.items()
    )
    ring = first or (others_should and mine != before)
    return mine, ring


def _limit(node: str, claims: Mapping[str, ToolClaim], gone: Iterable[tuple[str, ToolClaim]]) -> tuple[int, str]:
    """The limit over all nodes, and its owner, named for `node`; NO_LIMIT if no owner states one."""
    said = [(claim.want, name != node, name) for name, claim in claims.items() if claim.want.says]
    words = [word for word in said if not word[0].last]
    words = words or said + [(claim.want, True, name) for name, claim in gone if claim.want.says]
    if not words:
        return NO_LIMIT, ""
    want, elsewhere, name = min(words, key=lambda word: (word[0].limit, word[1]))
    return want.limit, f"the runtime of {name}" if elsewhere and want.said_by == RUNTIME else want.said_by


def _parts(limit: int, claims: Mapping[str, ToolClaim], now: float) -> dict[str, int]:
    """The part of each node: first for the most urgent tasks, then for less urgent and running ones."""
    parts = dict.fromkeys(claims, 0)
    levels = sorted({claim.want.priority for claim in claims.values() if claim.want.urgent}, reverse=True)
    left = limit
    for level in levels:
        asked = {name: one.want.urgent for name, one in claims.items() if one.want.priority == level}
        left = _divide(left, asked, claims, parts, now)
    rest = {name: one.want.slots - one.want.urgent for name, one in claims.items()}
    _divide(left, rest, claims, parts, now)
    return parts


def _divide(
    left: int, asked: Mapping[str, int], claims: Mapping[str, ToolClaim], parts: dict[str, int], now: float
) -> int:
    """Divide `left` equally among the nodes that ask, none above its request. Returns the rest."""
    waiting = sorted((count, name) for name, count in asked.items() if count > 0)
    while waiting and left > 0:
        each, more = divmod(left, len(waiting))
        count, name = waiting[0]
        if count > each:  # all the other waiting nodes ask for more, too
            in_turn = sorted((_turn(claims[name], each, now), name) for _, name in waiting)
            for place, (_, name) in enumerate(in_turn):
                parts[name] += each + (place < more)
            return 0
        parts[name] += count
        left -= count
        del waiting[0]
    return left


def _turn(claim: ToolClaim, each: int, now: float) -> tuple[int, float]:
    """Sort key for the remaining slots: holders first, unless others get none and the holder had `TURN` seconds."""
    if claim.told <= each:
        return 1, claim.at
    return (0, claim.at) if each or now - claim.at < TURN else (2, claim.at)
