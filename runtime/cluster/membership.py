"""A node's part in the cluster, as a task beside the runtime's own: it lives by its lease, and takes over what is left.

Rules
-----
- It renews the lease at least every third of it, and looks sooner where the lease of another node is about to run out,
  where there is something that nobody owns, or when the bell was rung: at most once a second for that. No two nodes do
  so in step for long: looks are spread (`tests/reliability/simulation/growth.py` has what a thousand do).
- What a node that drains hands over is taken at once by those whom it favours: so nothing stands still meanwhile.
- Whether it is alone is asked anew before it acts on that: others may have joined since the last renewal.
- What it takes is an input of the kernel (`Adopt`), which goes on with it beside what runs already. What lay in the
  inbox for it comes right after it, as at a start.
- Who has taken something takes no more for a second while others live: so each has its turn, and gets its share.
- What this node's program cannot run (`fitness.py`) is given back while others live, and left to them. It is looked for
  seldomer and seldomer, and taken if this node is alone, or has learned more functions. Until it is known that it was
  given back, nothing else is taken: what was taken beside it waits in hand.
- While the database is not reached, nothing is fenced and nothing taken; what runs goes on, and is committed when it is
  reached again, or refused: whoever was silent for too long may have been fenced.
- Fenced, it ends the runtime: nothing that runs here may go on.
- A node that drains takes nothing. It lives until nothing runs any more; the journal leaves when all is written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskStatus

from ..handles.outcomes import RuntimeClosed
from ..journal.cluster import LeaseLost
from ..journal.contract import Health, JournalError
from .fitness import unfit, without
from .node_context import Delays

if TYPE_CHECKING:
    from random import Random

    from ...actors.kernel.restore import Loaded
    from ..functions.registry import Bodies
    from ..host import Host
    from ..journal.cluster import Node, Pulse
    from .node_context import NodeContext

RENEWALS = 3
"""Times that the lease is renewed before it would run out."""
SOON = 0.25
"""Seconds until the next look, where there is something to do that could not be done at once."""
RINGS = 1.0
"""Seconds between two looks that the bell asks for."""
TURN = 1.0
"""Seconds after a taking in which others have theirs."""
MARGIN = 0.05
"""Seconds after the end of another node's lease when it is looked at; up to three times as much, so that not all do."""
EACH = 0.001
"""Seconds by which those looks are spread for each node that lives: a thousand ask the database within a second."""
EARLY = 0.2
"""The part of a third of the lease by which it may be renewed early: those that once looked together do so no more."""
_TOLD = 5  # names of jobs in a notice, at most


def next_look(lease: float, pulse: Pulse, random: Random) -> float:
    """Seconds until a node looks again that has nothing to do now."""
    delay = lease / RENEWALS * (1 - EARLY * random.random())
    if pulse.due_in is not None:
        delay = min(delay, pulse.due_in + MARGIN * (1 + 2 * random.random()) + EACH * pulse.living * random.random())
    return delay


class Membership:
    """See the module. adopt: has the runtime go on with what was taken over."""

    def __init__(
        self,
        seat: NodeContext,
        host: Host,
        adopt: Callable[[Loaded], Awaitable[None]],
        bodies: Bodies,
        look_beside: Callable[[Loaded], None],
    ) -> None:
        self.seat = seat
        self.jobs_taken = 0
        self.nodes_fenced = 0  # as this one has seen them: by whomever
        self.nodes_living = 1
        self.also: list[Callable[[Pulse], Awaitable[None]]] = []  # what else is to be done at every look
        self._host = host
        self._adopt = adopt
        self._bodies = bodies
        self._look_beside = look_beside
        self._takes = False
        self._turn_at = host.monotonic()  # when it may take again beside others
        self._in_hand: tuple[Loaded, list[int]] | None = None  # taken, and what of it is to be given back first
        self._leaving: Delays | None = None  # between looks, while there is something that it leaves to others
        self._renewed = host.monotonic()
        self._retry = Delays(SOON, seat.cluster.lease / RENEWALS)
        self._pulse: Pulse | None = None  # of the last renewal
        self._silent = False  # the database was not reached the last time
        self._known: dict[str, str] = {}  # nodes, and their states
        self._lost: LeaseLost | None = None
        self._rung = False
        self._called = False  # this node may have at once what another one hands over
        self._awake = anyio.Event()
        self._looking = anyio.Lock()
        self._looked_at = host.monotonic()
        self._serving = anyio.CancelScope()
        self._ended: anyio.Event | None = None

    @property
    def lease_left(self) -> float:
        """Seconds until its lease runs out by this machine's clock, if it is not renewed: less than nothing after."""
        return self._renewed + self.seat.cluster.lease - self._host.monotonic()

    @property
    def health(self) -> Health:
        """Whether its lease holds. It is overdue when it has run out, and when it could not be renewed in the last
        third.
        """
        lease, left = self.seat.cluster.lease, self.lease_left
        if left > (lease / RENEWALS if self._silent else 0.0):
            return Health()
        since = lease - left
        text = (
            f"node {self.seat.name!r} has not renewed its lease of {lease:g} s for {since:.1f} s: "
            f"{'others may have taken over what it runs' if left <= 0 else 'others take over when it has run out'}"
        )
        return Health(ok=False, reason=text, since=self._host.now() - since)

    @property
    def _renewal_due(self) -> float:
        """When it renews its lease at the latest, though it is called to take something at once."""
        return self._renewed + self.seat.cluster.lease / RENEWALS / 2

    # -- its life ------------------------------------------------------------------------------------------------------

    async def serve(self, *, task_status: TaskStatus[None]) -> None:
        """Live by the lease until it is closed. Raises LeaseLost."""
        self._ended = anyio.Event()
        try:
            task_status.started()
            with self._serving:
                delay = 0.0
                while True:
                    await self._wait(delay)
                    async with self._looking:
                        delay = await self._look()
        finally:
            self._ended.set()

    async def join(self) -> None:
        """With the dispatcher running: take what there is, before anything else is. Raises JournalError."""
        async with self._looking:
            pulse = await self._beat()
            self._takes = True
            await self._act_on(pulse, first=True)

    async def close(self) -> None:
        """Live on no more; returns when the database is no longer asked."""
        self._serving.cancel()
        if self._ended is not None:
            await self._ended.wait()

    def lost(self, lost: LeaseLost) -> None:
        """Somebody has heard that this node was fenced."""
        self._lost = self._lost or lost
        self.look_now()

    def look_now(self) -> None:
        """Look without waiting: something has happened."""
        self._awake.set()

    def registered(self) -> None:
        """This node knows more functions than it did: it may be able to run what it left to others."""
        self.seat.cluster.want_again()
        if self._leaving is not None:
            self._leaving = None
            self.look_now()

    def rung(self) -> None:
        """The bell was rung: there may be something that nobody owns, or was just handed over to this node."""
        if self.seat.cluster.called():
            self._called = True
            self.look_now()
        elif not self._rung:
            self._rung = True
            self._host.dispatcher.timers.arm(self._looked_at + RINGS, self.look_now)

    async def _wait(self, seconds: float) -> None:
        """Wait for so long, or until it is asked to look before."""
        host = self._host
        timer = host.dispatcher.timers.arm(host.monotonic() + seconds, self.look_now)
        try:
            await self._awake.wait()
        finally:
            host.dispatcher.timers.cancel(timer)
            self._awake = anyio.Event()

    # -- looking -------------------------------------------------------------------------------------------------------

    async def _look(self) -> float:
        """Renew the lease, and do what there is to do. Returns in how many seconds to look again. Raises LeaseLost."""
        self._rung = False
        if self._lost is not None:
            raise self._lost
        try:
            pulse = self._pulse
            if pulse is None or pulse.alone or not self._called or self._host.monotonic() >= self._renewal_due:
                pulse = await self._beat()
            return await self._act_on(pulse)
        except LeaseLost as lost:
            self.seat.lost(lost)
            raise
        except RuntimeClosed:  # it is being left: what was taken goes to others again
            self._takes = False
            return self.seat.cluster.lease / RENEWALS
        except JournalError as error:
            if not self._silent:
                self._silent = True
                said = str(error).rstrip(".")
                text = f"the lease of node {self.seat.name!r} could not be renewed: {said}. It is tried again"
                self._host.notice("lease_not_renewed", "warning", text, raised=error, left=round(self.lease_left, 3))
            return self._retry()
        finally:
            self._looked_at = self._host.monotonic()

    async def _beat(self) -> Pulse:
        cluster, kernel = self.seat.cluster, self._host.kernel
        began = self._host.monotonic()
        pulse: Pulse = await self.seat.read_lease(cluster.beat, max(kernel.key, kernel.seq))
        if (health := self._host.journal.health).lost:  # a commit has heard it; the lease was not asked about that
            raise LeaseLost(health.reason)
        self._renewed, self._pulse = began, pulse
        if self._silent:
            self._silent, self._retry = False, Delays(SOON, cluster.lease / RENEWALS)
            self._host.notice("lease_renewed", "info", f"the lease of node {self.seat.name!r} was renewed")
        self.seat.count_on()
        return pulse

    async def _act_on(self, pulse: Pulse, *, first: bool = False) -> float:
        if pulse.living > 1 and self._host.kernel.drain_began is not None:
            self._host.look_again()  # there may be somebody now to whom jobs can be handed over
        if first or pulse.living != self.nodes_living:
            await self._count(first=first)
        self.nodes_living = pulse.living
        expired = pulse.due_in is not None and pulse.due_in <= 0
        alone, took, called = pulse.alone, False, self._called
        self._called = False
        waits = 0.0 if alone or first or called else max(0.0, self._turn_at - self._host.monotonic())
        if not pulse.orphans or alone:
            self._leaving = None
        wanted = first or called or pulse.orphans or expired
        if self._takes and self._host.kernel.drain_began is None and wanted and not waits:
            took = await self._take(first=first, alone=alone, called=called)
        for do in self.also:
            await do(pulse)
        if took and not alone:
            return TURN
        if waits and (pulse.orphans or expired):
            return waits
        if expired or (self._leaving is None and (took or pulse.orphans)):
            return SOON
        delay = next_look(self.seat.cluster.lease, pulse, self._host.random)
        return delay if self._leaving is None else min(delay, self._leaving())

    async def _count(self, *, first: bool) -> None:
        """See which nodes have come and gone, and tell of them."""
        nodes: list[Node] = await self.seat.read_own(self.seat.cluster.nodes)
        known, self._known = self._known, {node.name: node.state for node in nodes}
        for node in nodes:
            before = known.get(node.name)
            if first or node.state == before or node.name == self.seat.name:
                continue
            if node.state == "living" and before != "silent":
                self._tell("node_joined", "info", f"node {node.name!r} ({node.place}) has joined", node)
            elif node.state == "fenced":
                self.nodes_fenced += 1
                text = f"node {node.name!r} ({node.place}) is gone, and was fenced: others take over what it ran"
                self._tell("node_fenced", "warning", text, node)
            elif node.state == "left":
                self._tell("node_left", "info", f"node {node.name!r} ({node.place}) has left", node)

    def _tell(self, event: str, severity: Any, text: str, node: Node) -> None:  # Any: one of three words
        self._host.notice(event, severity, text, node=node.name, place=node.place)

    # -- taking over ---------------------------------------------------------------------------------------------------

    async def _take(self, *, first: bool, alone: bool, called: bool) -> bool:
        """Take this node's share of what nobody owns. Returns whether there was anything."""
        if self._in_hand is None:
            loaded: Loaded | None = await self.seat.read_own(self.seat.cluster.take)
            if loaded is None:
                return False
            missing: dict[int, str] = {}
            self._look_beside(loaded)
            if not alone and loaded.jobs:
                missing = await self.seat.read(unfit, loaded, self._bodies, self._host.kernel.lifecycles)
            if missing:
                self._tell_left(loaded, missing)
                loaded = without(loaded, missing)
            if missing or self._leaving is not None:
                self._leaving = Delays(SOON, self.seat.cluster.lease / RENEWALS)
            self._in_hand = loaded, list(missing)
        rest, given = self._in_hand
        if given:
            await self.seat.read_own(self.seat.cluster.give_back, given)
        self._in_hand = None
        self._turn_at = self._host.monotonic() + TURN
        await self._adopt(rest)
        self._tell_taken(rest)
        if not called:  # else nobody was fenced for it, and there may be more of it at once
            await self._count(first=first)
        return True

    def _tell_left(self, loaded: Loaded, missing: dict[int, str]) -> None:
        names = [job.id for job in loaded.jobs if job.key in missing]
        text = (
            f"node {self.seat.name!r} leaves {_listed(names)} to other nodes, since its program cannot run them: "
            f"{next(iter(missing.values()))}"
        )
        self._host.notice("not_taken_over", "warning", text, jobs=names)

    def _tell_taken(self, loaded: Loaded) -> None:
        self.jobs_taken += len(loaded.jobs)
        names = [job.id for job in loaded.jobs]
        if not names and not loaded.machines:
            return
        text = f"node {self.seat.name!r} has taken over {_listed(names)}, and {len(loaded.machines)} machines"
        self._host.notice("jobs_taken", "info", text, jobs=names, machines=[one.name for one in loaded.machines])


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _TOLD} more" if len(names) > _TOLD else ""
    return f"{len(names)} jobs ({', '.join(names[:_TOLD])}{more})" if names else "no jobs"
