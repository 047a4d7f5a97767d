"""How nodes share the limit of a tool: which part of it is each one's, decided one node at a time.

Rules
-----
- What a node has said and was told is its *claim*; claims are kept in the database, and whoever asks decides for
  itself alone, under a lock of the tool. A node that was fenced has no claim any more.
- Exact: what all nodes hold is never above the limit. A node holds what it was told, and what it still uses beyond
  that: slots in use are never taken away, they come back when their bodies are gone.
- The limit is the smallest that any node says, whether it uses the tool or not. Where none says one, it is the
  smallest of those that held last: as nodes still know, and as those said that are gone. Where it falls, nothing new is
  given out until enough has come back, and those who have slots are rung.
- Of a tool without a limit everybody is told that: `NO_LIMIT`. That is a claim, too, which is held against those who
  say a limit later: they have nothing until the others have asked again.
- Whose task is the most urgent is served first, for as many tasks as are that urgent; equals get equal parts. Where
  there is less than one slot for each, who has had one for `TURN` seconds gives it to whoever waits longest.
- What nobody wants may be kept by who has it, and is given up as soon as somebody wants it.
- Who wants more than there is has the others ask again (the ring), once: what they have said may be old, and they
  learn that slots are scarce, and give back each that they do not need. Whose claim is what it was before rings nobody:
  else those who can do nothing about it would ring one another for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from ...actors.workers.queues import NO_LIMIT
from ...actors.workers.tool_limits import RUNTIME
from .cluster import Want

TURN = 5.0
"""Seconds for which a node may keep a slot that others wait for as urgently, where there are fewer slots than nodes."""
NO_WANT = Want(limit=NO_LIMIT, slots=0)


class Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node has said of a tool, and what it was told: what it may use (slots), and whether others wait for more.

    at: when it last got more than it had. most and by: the limit over all nodes, and who says it: a job's id, RUNTIME
    for this node's own, or the runtime of another node.
    """

    want: Want = NO_WANT
    told: int = 0
    at: float = 0.0
    scarce: bool = False
    most: int = NO_LIMIT
    by: str = ""

    @property
    def held(self) -> int:
        """The slots that nobody else can have."""
        return max(self.told, self.want.used)

    @property
    def waits(self) -> bool:
        """Whether it wants more than it was told that it may have."""
        return self.told < self.want.slots

    @property
    def empty(self) -> bool:
        """Whether it says nothing: it need not be kept."""
        return not (self.held or self.want.slots or self.want.says)


def portion(
    node: str, want: Want, claims: Mapping[str, Claim], now: float, gone: Iterable[tuple[str, Claim]] = ()
) -> tuple[Claim, bool]:
    """The claim of a node that wants this, beside the `claims` of all nodes by name (its own is the one before).

    `told` of it is what the node may use. The second: whether the other nodes should ask again, since there is
    something for them, or they have what is this one's. gone: claims of nodes that are, with their names.
    """
    before = claims.get(node, Claim(at=now))
    others = {name: claim for name, claim in claims.items() if name != node and not claim.empty}
    everybody = {**others, node: Claim(want, before.told, before.at)}
    limit, by = _limit(node, everybody, gone)
    if limit == NO_LIMIT:
        told = NO_LIMIT if want.slots or want.keep else 0
        mine = Claim(want, told, now if told > before.told else before.at)
        return mine, mine != before and any(claim.waits for claim in others.values())
    parts = _parts(limit, everybody, now)
    left = limit - sum(claim.held for claim in others.values())
    kept = min(want.keep, parts[node] + limit - sum(parts.values()))
    told = max(0, min(max(parts[node], kept), left))
    scarce = any(claim.waits for claim in others.values())
    mine = Claim(want, told, now if told > before.told else before.at, scarce, limit, by)
    free = left - mine.held
    first = mine.waits and not before.waits and any(claim.held for claim in others.values())
    others_should = any(
        (claim.told < parts[name] and free > 0)
        or (claim.told > parts[name] and told < parts[node])
        or (claim.told and claim.most > limit)
        for name, claim in others.items()
    )
    ring = first or (others_should and mine != before)
    return mine, ring


def _limit(node: str, claims: Mapping[str, Claim], gone: Iterable[tuple[str, Claim]]) -> tuple[int, str]:
    """The limit over all nodes, and who says it as `node` names them; NO_LIMIT where nobody says any."""
    said = [(claim.want, name != node, name) for name, claim in claims.items() if claim.want.says]
    words = [word for word in said if not word[0].last]
    words = words or said + [(claim.want, True, name) for name, claim in gone if claim.want.says]
    if not words:
        return NO_LIMIT, ""
    want, elsewhere, name = min(words, key=lambda word: (word[0].limit, word[1]))
    return want.limit, f"the runtime of {name}" if elsewhere and want.said_by == RUNTIME else want.said_by


def _parts(limit: int, claims: Mapping[str, Claim], now: float) -> dict[str, int]:
    """What each node should have: the most urgent first, and then what is less urgent, or runs already."""
    parts = dict.fromkeys(claims, 0)
    levels = sorted({claim.want.priority for claim in claims.values() if claim.want.urgent}, reverse=True)
    left = limit
    for level in levels:
        asked = {name: one.want.urgent for name, one in claims.items() if one.want.priority == level}
        left = _divide(left, asked, claims, parts, now)
    rest = {name: one.want.slots - one.want.urgent for name, one in claims.items()}
    _divide(left, rest, claims, parts, now)
    return parts


def _divide(left: int, asked: Mapping[str, int], claims: Mapping[str, Claim], parts: dict[str, int], now: float) -> int:
    """Give equal parts of what is left to those who ask, and nobody more than that. Returns what is left then."""
    waiting = sorted((count, name) for name, count in asked.items() if count > 0)
    while waiting and left > 0:
        each, more = divmod(left, len(waiting))
        count, name = waiting[0]
        if count > each:  # so do all the others
            in_turn = sorted((_turn(claims[name], each, now), name) for _, name in waiting)
            for place, (_, name) in enumerate(in_turn):
                parts[name] += each + (place < more)
            return 0
        parts[name] += count
        left -= count
        del waiting[0]
    return left


def _turn(claim: Claim, each: int, now: float) -> tuple[int, float]:
    """Who comes first where there is one slot more for some: who has it, unless others have none at all by that."""
    if claim.told <= each:
        return 1, claim.at
    return (0, claim.at) if each or now - claim.at < TURN else (2, claim.at)
