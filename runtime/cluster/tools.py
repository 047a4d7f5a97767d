"""A node's tools: its shares of their limits, and the breakers of all nodes.

Rules
-----
- It checks on a signal of the kernel (a task waits for a tool, a breaker has opened), on a notification of the journal
  (a notifier), and at each check of the membership, that is at least every third of the lease.
- A change of a breaker is durable here before other nodes learn of it.
- While it asks for shares, the tools that it asks for start nothing beyond the use that it declares. If no answer
  comes, that stays so until one does: nothing new begins, and running attempts keep their slots.
- A share that is not needed is kept for `IDLE` seconds, unless another node wants it.
- A limit that this program sets for a tool is announced whether the tool is used here or not; at a start, before any
  task begins. Before the first task of a tool begins here, it asks whether any node sets a limit. If none does, each
  check asks again whether one does now: that is one cheap query, and stops nothing here.
- If this node is fenced, this does nothing more: the runtime breaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskStatus

from ...actors.messages.inputs import ToolHeard, ToolShares
from ...actors.workers.queues import NO_LIMIT
from ...actors.workers.tool_limits import NONE_DECLARED, DeclaredLimit
from ...actors.workers.tool_quota import ToolWant
from ..errors import JournalError, RuntimeClosed
from ..journal.cluster import ToolDemand, ToolState
from ..journal.sharing import ToolClaim
from .breakers import CLOSED, HALF_OPEN, BreakerSnapshot, to_hear, to_say
from .delays import Delays

if TYPE_CHECKING:
    from ..host import KernelHost
    from ..journal.cluster import LeaseRenewal
    from .node_context import NodeContext

IDLE = 10.0
"""Seconds for which a node keeps unused slots of a tool, if no other node wants them."""
NOTIFIED_EVERY = 0.02
"""Seconds between two looks that notifications cause: the journal sends one for every change."""
SETTLED = 5.0
"""Seconds that a breaker's change may take to become durable, before the next look at it."""
TRIES = 4
"""How often it tries to write before other nodes do, until the next look."""


class ToolsService:
    """The service that agrees with other nodes on tools. See the module."""

    def __init__(self, node: NodeContext, host: KernelHost) -> None:
        self.rows: dict[str, ToolState] = {}
        """The state of each tool that all nodes have agreed on, as it was read last."""
        self._node = node
        self._host = host
        self._claims: dict[str, ToolClaim] = {}  # the last answers, without empty ones
        self._unsure: set[str] = set()  # tools whose last answer did not come
        self._busy: dict[str, float] = {}  # monotonic: when the whole share was last needed
        self._gone: set[str] = set()  # homes of rows that are not nodes any more
        self._news = True  # other nodes may have changed something
        self._notified_at = -NOTIFIED_EVERY
        self._wake_at: float | None = None  # monotonic: when the next look is due
        self._awake = anyio.Event()
        self._looking = anyio.Lock()
        self._retry = Delays()
        self._serving = anyio.CancelScope()
        self._ended: anyio.Event | None = None

    # -- life cycle ----------------------------------------------------------------------------------------------------

    async def serve(self, *, task_status: TaskStatus[None]) -> None:
        """Look whenever there may be work, until this is closed."""
        self._ended = anyio.Event()
        self._host.kernel.notify_nodes = self.look_now
        self.look_now()  # the kernel may have signalled before
        try:
            task_status.started()
            with self._serving:
                while True:
                    await self._wait()
                    try:
                        await self._look()
                        self._retry = Delays()
                    except JournalError:  # the membership reports it
                        self._news = True
                        self._look_in(self._retry())
        except RuntimeClosed:
            pass
        finally:
            self._ended.set()

    async def begin(self) -> None:
        """Read the tools' states, and announce this program's limits, before any task starts.

        The dispatcher must be running.
        """
        await self._host.barrier()  # then the kernel has the runtime's own limits
        await self._look()
        await self._node.ask_own(self._node.cluster.renew_words)

    async def close(self) -> None:
        """Stop; returns when no question to the database is open."""
        self._serving.cancel()
        if self._ended is not None:
            await self._ended.wait()

    def look_now(self) -> None:
        """Look without waiting, since there is something to announce or to ask."""
        self._awake.set()

    def notified(self) -> None:
        """Handle a notification of the journal: other nodes may have changed something."""
        self._news = True
        self._look_in(max(0.0, self._notified_at + NOTIFIED_EVERY - self._host.monotonic()))

    async def renew(self, _: LeaseRenewal) -> None:
        """Check all shares and breakers again: the membership has made its check."""
        self._news = True
        self.look_now()

    def _look_in(self, seconds: float) -> None:
        due = self._host.monotonic() + seconds
        if seconds <= 0:
            self.look_now()
        elif self._wake_at is None or due < self._wake_at:
            self._wake_at = due
            self._host.dispatcher.timers.arm(due, self.look_now)

    async def _wait(self) -> None:
        await self._awake.wait()
        self._awake, self._wake_at = anyio.Event(), None

    # -- looking -------------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        async with self._looking:
            news, self._news = self._news, False
            if news:
                self._notified_at = self._host.monotonic()
                self.rows = {row.tool: row for row in await self._node.ask_own(self._node.cluster.tools)}
                self._gone = await self._no_nodes()
            await self._agree()
            await self._share(everything=news)

    # -- breakers ------------------------------------------------------------------------------------------------------

    async def _agree(self) -> None:
        """Write the changes of this node's breakers, and apply those of other nodes."""
        heard = False
        for tool in {**self.rows, **self._host.workforce.breakers}:
            heard |= await self._agree_on(tool)
        if heard:
            await self._host.barrier()

    async def _agree_on(self, tool: str) -> bool:
        """Write and apply the changes of one tool. Returns whether its breaker got a message."""
        said: ToolState | None = None
        for _ in range(TRIES):
            seen, row = self._seen(tool), self.rows.get(tool)
            say = None if seen is None else self._to_say(seen, row)
            if say is not None:
                if not await self._host.settled(SETTLED):
                    self._look_in(self._retry())
                    return False
                if self._seen(tool) != seen:
                    continue
                said = say
                self.rows[tool] = await self._node.ask_own(self._node.cluster.set_tool, say)
                seen, row = self._seen(tool), self.rows[tool]
            hear = to_hear(seen, tool, row, self._node.name, said)
            if hear is not None:
                self._host.tell(hear)
                return True
            if say is None:
                return False
        self.look_now()
        return False

    def _to_say(self, seen: BreakerSnapshot, row: ToolState | None) -> ToolState | None:
        over = row is not None and row.home in self._gone
        return to_say(seen, row, self._node.name, self._host.now(), gone=over)

    def _seen(self, tool: str) -> BreakerSnapshot | None:
        breaker = self._host.workforce.breakers.get(tool)
        return None if breaker is None else BreakerSnapshot(breaker.record, breaker.could_try, breaker.tries)

    async def _no_nodes(self) -> set[str]:
        """Find former nodes that try a tool for which a task waits here."""
        homes = {row.home for row in self.rows.values() if row.state == HALF_OPEN and self._waits_for(row)}
        if not homes:
            return homes
        nodes = await self._node.ask_own(self._node.cluster.nodes)
        return homes - {node.name for node in nodes if node.state in {"living", "silent"}}

    def _waits_for(self, row: ToolState) -> bool:
        seen = self._seen(row.tool)
        return seen is not None and seen.could_try and row.home != self._node.name

    async def provide(self, tool: str) -> None:
        """Make a breaker of a tool that other nodes use, with the limit that applies."""
        if tool not in self._host.workforce.breakers:
            self._host.tell(ToolHeard(tool, CLOSED, 0))
            await self._host.barrier()
            await self._node.in_own_task(partial(self._share_alone, tool))  # the questions must come in order
            await self._host.barrier()

    async def _share_alone(self, tool: str) -> None:
        async with self._looking:
            await self._share(everything=False, also=tool)

    # -- limits --------------------------------------------------------------------------------------------------------

    async def _share(self, *, everything: bool, also: str | None = None) -> None:
        """Ask for the slots that are needed, and give back the others.

        everything: for all tools, not only where it helps at once. also: a tool to ask for in any case.
        """
        workforce = self._host.workforce
        shares = workforce.scheduler.tool_quotas
        if shares is None:
            return
        free = [tool for tool, claim in self._claims.items() if claim.told == NO_LIMIT]
        limited: frozenset[str] = frozenset()
        if everything and free:
            limited = await self._node.ask_own(self._node.cluster.limited, free)
        wants, words = shares.wants(), workforce.tool_limits.words
        self._busy = {tool: at for tool, at in self._busy.items() if tool in wants}
        asked: dict[str, ToolDemand] = {}
        for tool in {**wants, **words, **self._claims, **({} if also is None else {also: None})}:
            want = self._want(tool, wants.get(tool), words.get(tool, NONE_DECLARED))
            claim = self._claims.get(tool)
            again = everything and claim is not None and _again(claim, want, limited=tool in limited)
            again |= want.slots > 0 and tool not in shares.asked  # the share was dropped together with the tool
            if again or tool == also or tool in self._unsure or _matters(claim, want, shares.given.get(tool, 0)):
                asked[tool] = want
        if not asked:
            return
        for tool in asked:
            shares.hold(tool)
        questions = {tool: shares.asked[tool] for tool in asked}
        self._unsure |= asked.keys()
        claims: dict[str, ToolClaim] = await self._node.ask_own(self._node.cluster.share, asked)
        self._unsure -= asked.keys()
        for tool, claim in claims.items():
            if claim.empty:
                self._claims.pop(tool, None)
            else:
                self._claims[tool] = claim
        self._host.later(answer(claims, questions))

    def _want(self, tool: str, want: ToolWant | None, word: DeclaredLimit) -> ToolDemand:
        if want is None:  # the tool is not used here
            return ToolDemand(word.limit, 0, said_by=word.by, last=word.last)
        slots, now = want.used + want.urgent + want.less, self._host.monotonic()
        if slots >= want.share or (slots and want.share == NO_LIMIT):
            self._busy[tool] = now
        keep = want.share if now - self._busy.get(tool, -IDLE) < IDLE else 0
        return wanted(want, word, keep)


def wanted(want: ToolWant, word: DeclaredLimit, keep: int = 0) -> ToolDemand:
    """Make the request for a tool from the slots wanted and the limit set."""
    slots = want.used + want.urgent + want.less
    return ToolDemand(word.limit, slots, want.priority, want.used, want.urgent, keep, word.by, word.last)


def answer(claims: Mapping[str, ToolClaim], questions: dict[str, int]) -> ToolShares:
    """Make the scheduler's message from the claims that answer these questions."""
    granted = {tool: claim.told for tool, claim in claims.items()}
    scarce = frozenset(tool for tool, claim in claims.items() if claim.scarce)
    return ToolShares(
        granted, scarce, questions, {tool: DeclaredLimit(claim.most, claim.by) for tool, claim in claims.items()}
    )


def _again(claim: ToolClaim, want: ToolDemand, *, limited: bool) -> bool:
    """Whether to ask again at a full look, although nothing has changed here."""
    if claim.told == NO_LIMIT:
        return limited or not (want.slots or want.keep)
    return bool(claim.held or claim.want.slots) or _word(want) != _word(claim.want)


def _word(want: ToolDemand) -> tuple[int, str, bool]:
    return want.limit, want.said_by, want.last


def _matters(claim: ToolClaim | None, want: ToolDemand, share: int) -> bool:
    """Whether a question helps before the next full look."""
    if claim is None:
        return want.slots > 0 or want.says
    sent = claim.want
    if want.limit != sent.limit or (want.limit < claim.most and not want.last):
        return True
    if _word(want) != _word(sent) and (claim.scarce or not claim.told):  # otherwise it can wait
        return True
    if claim.told == NO_LIMIT:
        return False
    if want.slots > want.used:
        return want != sent
    spare = share > want.slots and claim.scarce
    return spare or (want.used < sent.used and sent.used > share)
