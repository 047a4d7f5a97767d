"""A node's membership: it renews its lease, and takes over jobs without an owner.

Rules
-----
- It renews the lease at least every third of it. It checks earlier if another node's lease is about to run out, if
  there are jobs without an owner, or on a notification of the journal (a notifier): at most once a second for these.
  Checks are spread at random, so that no two nodes check in step for long (`tests/reliability/simulation/growth.py`
  simulates a thousand nodes).
- Jobs that a draining node hands over are taken at once by the nodes that it selected: so no job waits.
- Before it acts as the only node, it asks again whether it is alone: others may have joined since the last renewal.
- A take-over is an input of the kernel (`Adopt`), which runs the jobs beside its own. The jobs' commands in the inbox
  come directly after it, as at a start.
- A node that has taken jobs waits a second while others are alive: so each node gets its turn, and its share.
- Jobs that this node's program cannot run (`fitness.py`) are given back while others are alive, and left to them. It
  looks for them less and less often, and takes them if it is alone, or has registered more functions. Until it is known
  that they were given back, it takes no others; jobs that were taken together with them wait.
- While the database cannot be reached, no node is fenced and no job is taken. Running work goes on, and is committed
  when the database is back, or refused: a node that was silent for too long may have been fenced.
- If this node was fenced, the runtime ends: nothing that runs here may go on.
- A draining node takes nothing. It renews its lease until nothing runs any more; the journal leaves the cluster when
  all is written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskStatus

from ...machines.keywords import number_of
from ..errors import JournalError, LeaseLost, RuntimeClosed
from ..journal.contract import Health
from .delays import Delays
from .fitness import unfit, without

if TYPE_CHECKING:
    from random import Random

    from ...actors.records.loaded import Loaded
    from ..functions.registry import Bodies
    from ..host import KernelHost
    from ..journal.cluster import LeaseRenewal, Node
    from .node_context import NodeContext

RENEWALS = 3
"""How often the lease is renewed in the time of one lease."""
SOON = 0.25
"""Seconds until the next look, if there is work that could not be done at once."""
NOTIFIED_EVERY = 1.0
"""Seconds between two looks that a notifier causes."""
TURN = 1.0
"""Seconds after a take-over in which other nodes have their turn."""
MARGIN = 0.05
"""Seconds after the end of another node's lease when it is looked at.

Up to three times as much, to spread the nodes.
"""
EACH = 0.001
"""Seconds for each living node over which these looks are spread: a thousand nodes ask within a second."""
EARLY = 0.2
"""The part of a third of the lease by which it may be renewed early, so that nodes do not stay in step."""
_TOLD = 5  # the most names of jobs in a notice


def next_look(lease: float, renewal: LeaseRenewal, random: Random) -> float:
    """Return the seconds until the next look of a node that has nothing to do."""
    delay = lease / RENEWALS * (1 - EARLY * random.random())
    if renewal.due_in is not None:
        delay = min(
            delay, renewal.due_in + MARGIN * (1 + 2 * random.random()) + EACH * renewal.living * random.random()
        )
    return delay


class Membership:
    """This node's membership. See the module. adopt: runs the jobs that were taken over."""

    def __init__(
        self,
        node: NodeContext,
        host: KernelHost,
        adopt: Callable[[Loaded], Awaitable[None]],
        bodies: Bodies,
        look_beside: Callable[[Loaded], None],
    ) -> None:
        self.node = node
        self.jobs_taken = 0
        self.nodes_fenced = 0  # nodes that any node has fenced, as far as this one has seen
        self.nodes_living = 1
        self.also: list[Callable[[LeaseRenewal], Awaitable[None]]] = []  # other work for every look
        self._host = host
        self._adopt = adopt
        self._bodies = bodies
        self._look_beside = look_beside
        self._takes = False
        self._turn_at = host.monotonic()  # when it may take jobs again, while others are alive
        self._in_hand: tuple[Loaded, list[int]] | None = None  # taken jobs, and keys of those to give back first
        self._leaving: Delays | None = None  # delays between checks, while it leaves jobs to other nodes
        self._renewed = host.monotonic()
        self._retry = Delays(SOON, node.cluster.lease / RENEWALS)
        self._renewal: LeaseRenewal | None = None  # the last renewal's answer
        self._silent = False  # the last renewal did not reach the database
        self._known: dict[str, str] = {}  # nodes, and their states
        self._lost: LeaseLost | None = None
        self._look_armed = False
        self._called = False  # another node hands over jobs to this one
        self._awake = anyio.Event()
        self._looking = anyio.Lock()
        self._looked_at = host.monotonic()
        self._serving = anyio.CancelScope()
        self._ended: anyio.Event | None = None

    @property
    def lease_left(self) -> float:
        """Seconds until the lease runs out by this machine's clock; negative after that."""
        return self._renewed + self.node.cluster.lease - self._host.monotonic()

    @property
    def health(self) -> Health:
        """Whether the lease holds. It is overdue after its end, and in its last third if it could not be renewed."""
        lease, left = self.node.cluster.lease, self.lease_left
        if left > (lease / RENEWALS if self._silent else 0.0):
            return Health()
        since = lease - left
        text = (
            f"node {self.node.name!r} has not renewed its lease of {lease:g} s for {since:.1f} s: "
            f"{'others may have taken over its jobs' if left <= 0 else 'others take over when the lease ends'}"
        )
        return Health(ok=False, reason=text, since=self._host.now() - since)

    @property
    def _renewal_due(self) -> float:
        """The time at which the node must renew its lease, even if jobs are handed over to it."""
        return self._renewed + self.node.cluster.lease / RENEWALS / 2

    # -- life cycle ----------------------------------------------------------------------------------------------------

    async def serve(self, *, task_status: TaskStatus[None]) -> None:
        """Renew the lease until this is closed. Raises LeaseLost."""
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
        """Take over jobs at the start, before other work, with the dispatcher running. Raises JournalError."""
        async with self._looking:
            renewal = await self._renew()
            self._takes = True
            await self._act_on(renewal, first=True)

    async def close(self) -> None:
        """Stop; returns when no question to the database is open."""
        self._serving.cancel()
        if self._ended is not None:
            await self._ended.wait()

    def lost(self, lost: LeaseLost) -> None:
        """Note that this node was fenced, as another part of the runtime has found out."""
        self._lost = self._lost or lost
        self.look_now()

    def look_now(self) -> None:
        """Look without waiting, since something has happened."""
        self._awake.set()

    def registered(self) -> None:
        """Look again after functions were registered, which jobs left to others may need."""
        self.node.cluster.want_again()
        if self._leaving is not None:
            self._leaving = None
            self.look_now()

    def notified(self) -> None:
        """Handle a notification of the journal: this node may have jobs to take over."""
        if self.node.cluster.called():
            self._called = True
            self.look_now()
        elif not self._look_armed:
            self._look_armed = True
            self._host.dispatcher.timers.arm(self._looked_at + NOTIFIED_EVERY, self.look_now)

    async def _wait(self, seconds: float) -> None:
        """Wait for so many seconds, or until the next call of `look_now`."""
        host = self._host
        timer = host.dispatcher.timers.arm(host.monotonic() + seconds, self.look_now)
        try:
            await self._awake.wait()
        finally:
            host.dispatcher.timers.cancel(timer)
            self._awake = anyio.Event()

    # -- looking -------------------------------------------------------------------------------------------------------

    async def _look(self) -> float:
        """Renew the lease, and do the work that is due. Returns the seconds until the next check. Raises LeaseLost."""
        self._look_armed = False
        if self._lost is not None:
            raise self._lost
        try:
            renewal = self._renewal
            if renewal is None or renewal.alone or not self._called or self._host.monotonic() >= self._renewal_due:
                renewal = await self._renew()
            return await self._act_on(renewal)
        except LeaseLost as lost:
            self.node.lost(lost)
            raise
        except RuntimeClosed:  # the runtime is closing: taken jobs go to other nodes again
            self._takes = False
            return self.node.cluster.lease / RENEWALS
        except JournalError as error:
            if not self._silent:
                self._silent = True
                said = str(error).rstrip(".")
                text = f"the lease of node {self.node.name!r} could not be renewed: {said}. It will be retried"
                self._host.notice("lease_not_renewed", "warning", text, raised=error, left=round(self.lease_left, 3))
            return self._retry()
        finally:
            self._looked_at = self._host.monotonic()

    async def _renew(self) -> LeaseRenewal:
        cluster, kernel = self.node.cluster, self._host.kernel
        began = self._host.monotonic()
        renewal: LeaseRenewal = await self.node.read_lease(cluster.renew, max(kernel.key, kernel.seq))
        if (health := self._host.journal.health).lost:  # a commit has found out that this node was fenced
            raise LeaseLost(health.reason)
        self._renewed, self._renewal = began, renewal
        if self._silent:
            self._silent, self._retry = False, Delays(SOON, cluster.lease / RENEWALS)
            self._host.notice("lease_renewed", "info", f"the lease of node {self.node.name!r} was renewed")
        self.node.count_on()
        return renewal

    async def _act_on(self, renewal: LeaseRenewal, *, first: bool = False) -> float:
        if renewal.living > 1 and self._host.kernel.drain_began is not None:
            self._host.look_again()  # a node may have joined that takes this node's jobs
        if first or renewal.living != self.nodes_living:
            await self._count(first=first)
        self.nodes_living = renewal.living
        expired = renewal.due_in is not None and renewal.due_in <= 0
        alone, took, called = renewal.alone, False, self._called
        self._called = False
        waits = 0.0 if alone or first or called else max(0.0, self._turn_at - self._host.monotonic())
        if not renewal.orphans or alone:
            self._leaving = None
        wanted = first or called or renewal.orphans or expired
        if self._takes and self._host.kernel.drain_began is None and wanted and not waits:
            took = await self._take(first=first, alone=alone, called=called)
        for do in self.also:
            await do(renewal)
        if took and not alone:
            return TURN
        if waits and (renewal.orphans or expired):
            return waits
        if expired or (self._leaving is None and (took or renewal.orphans)):
            return SOON
        delay = next_look(self.node.cluster.lease, renewal, self._host.random)
        return delay if self._leaving is None else min(delay, self._leaving())

    async def _count(self, *, first: bool) -> None:
        """Find the nodes that joined, left or were fenced, and emit notices."""
        nodes: list[Node] = await self.node.read_own(self.node.cluster.nodes)
        before_now, self._known = self._known, {node.name: node.state for node in nodes}
        for node in nodes:
            before = before_now.get(node.name)
            if first or node.state == before or node.name == self.node.name:
                continue
            if node.state == "living" and before != "silent":
                self._tell("node_joined", "info", f"node {node.name!r} ({node.place}) has joined", node)
            elif node.state == "fenced":
                self.nodes_fenced += 1
                text = f"node {node.name!r} ({node.place}) was silent, and was fenced: other nodes take over its jobs"
                self._tell("node_fenced", "warning", text, node)
            elif node.state == "left":
                self._tell("node_left", "info", f"node {node.name!r} ({node.place}) has left", node)

    def _tell(self, event: str, severity: Any, text: str, node: Node) -> None:  # Any: a severity
        self._host.notice(event, severity, text, node=node.name, place=node.place)

    # -- taking over ---------------------------------------------------------------------------------------------------

    async def _take(self, *, first: bool, alone: bool, called: bool) -> bool:
        """Take over this node's share of the jobs without an owner. Returns whether there were any."""
        if self._in_hand is None:
            loaded: Loaded | None = await self.node.read_own(self.node.cluster.take)
            if loaded is None:
                return False
            missing: dict[int, str] = {}
            self._look_beside(loaded)
            if not alone and loaded.jobs:
                missing = await self.node.read(unfit, loaded, self._bodies, self._host.kernel.lifecycles)
            if missing:
                self._tell_left(loaded, missing)
                loaded = without(loaded, missing)
            if missing or self._leaving is not None:
                self._leaving = Delays(SOON, self.node.cluster.lease / RENEWALS)
            self._in_hand = loaded, list(missing)
        rest, given = self._in_hand
        if given:
            await self.node.read_own(self.node.cluster.give_back, given)
        self._in_hand = None
        self._turn_at = self._host.monotonic() + TURN
        await self._adopt(rest)
        self._tell_taken(rest)
        if not called:  # a hand-over fences no node, and more may follow at once
            await self._count(first=first)
        return True

    def _tell_left(self, loaded: Loaded, missing: dict[int, str]) -> None:
        names = [job.id for job in loaded.jobs if job.key in missing]
        text = (
            f"node {self.node.name!r} leaves {_listed(names)} to other nodes, because its program cannot run them: "
            f"{next(iter(missing.values()))}"
        )
        self._host.notice("not_taken_over", "warning", text, jobs=names)

    def _tell_taken(self, loaded: Loaded) -> None:
        self.jobs_taken += len(loaded.jobs)
        names = [job.id for job in loaded.jobs]
        if not names and not loaded.machines:
            return
        text = (
            f"node {self.node.name!r} has taken over {_listed(names)}, and {number_of(len(loaded.machines), 'machine')}"
        )
        self._host.notice("jobs_taken", "info", text, jobs=names, machines=[one.name for one in loaded.machines])


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _TOLD} more" if len(names) > _TOLD else ""
    return f"{number_of(len(names), 'job')} ({', '.join(names[:_TOLD])}{more})" if names else "no jobs"
