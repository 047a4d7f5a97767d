"""Several runtimes on one journal: what a node asks of the others' common database.

A *node* is one runtime on a journal that several share. It owns jobs and machines: only their owner runs them, and
only it commits what becomes of them.

Rules (DESIGN section 8, "Journals")
-----
- A node has a *lease*, which it renews. One whose lease ran out may be *fenced* by another node, which is written in
  the database under the same lock that every commit of a node takes: so a node that was fenced cannot commit, whatever
  its clock says. It is told so by `LeaseLost`, and has to end: what it ran is somebody else's.
- Who finds others silent was awake itself: before a node fences anyone it has reached the database for a whole lease.
- A process that is known to be dead (same machine, and no such process) is fenced at once.
- What a fenced node owned belongs to nobody until the living take it, each its share, each thing once. A share is by
  what there was and who lived when that was first looked at; what others do not fetch is had by asking again, later.
- A node that drains gives back what runs nothing, and steps aside. Those that have begun much later than it may have
  that first, since they stay the longest: as in a deployment, where the older ones leave next.
- A node that cannot run a job which it has taken gives it back while others live, and leaves it to them.
- Each taking is a new *epoch* of the node that takes: all numbers it gives from then on (keys, fencing tokens,
  transitions) are above every number that anybody gave before. So in each job's history numbers rise, whoever ran it.
- What is unique over all nodes (a job's id that a caller gave, a machine's name) is reserved before it is used, and
  given back where nothing comes of that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from ...actors.kernel.restore import Loaded
from ...actors.spec.times import seconds
from ...actors.workers.queues import NO_LIMIT
from ...machines.audit import log
from .contract import InboxRow, JournalError

if TYPE_CHECKING:
    from .sharing import Claim

EPOCH = log.EPOCH
"""Numbers in an epoch. The first of epoch n is n * EPOCH + 1; a page's script can count up to 2 ** 53."""
LEASE = 15.0
"""Seconds that a node may be silent before others take over, unless set."""
SHORTEST_LEASE = 1.0
"""Seconds that may be set, at least."""


class LeaseLost(JournalError):  # noqa: N818 - it names what happened
    """Others have taken over what this node ran, since it was silent for too long, or its database went back in time.
    So has another runtime what this one ran, of a file that lost its lock, or that was overwritten. It cannot write any
    more.
    """


def lease_of(lease: float) -> float:
    """A node's lease, in seconds, as it was set. Raises ValueError for one that no node could live by."""
    try:
        lease = seconds(lease)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a lease: {error}") from None
    if lease < SHORTEST_LEASE:
        raise ValueError(
            f"a lease is at least {SHORTEST_LEASE:g} s: a node that is silent for so long loses all that it runs, and "
            f"a busy event loop or a slow database is that sometimes. {lease:g} s is too short, {LEASE:g} s the default"
        )
    return lease


class Node(msgspec.Struct, frozen=True):
    """A node as others see it. state: living, silent (its lease ran out), fenced, left."""

    name: str
    epoch: int
    state: str
    place: str  # the machine and process, for people
    started_at: float  # UTC epoch seconds, by the database's clock
    seen_at: float  # when it last renewed its lease
    jobs: int = 0  # living ones that it owns


class Pulse(msgspec.Struct, frozen=True):
    """What a node learns when it renews its lease."""

    living: int  # nodes, this one too
    orphans: int  # living jobs and machines that nobody owns; 1 at least while it is not known whether there are any
    due_in: float | None = None  # seconds until the next lease of another node runs out, unless it is renewed
    silent: int = 0  # other nodes whose lease has run out, and that may live all the same: nobody may fence them yet

    @property
    def alone(self) -> bool:
        """Whether no other node lives, so far as can be known: a silence that may be this node's own says nothing."""
        return self.living + self.silent <= 1


class ToolState(msgspec.Struct, frozen=True):
    """What all nodes know of a tool's breaker. home: the name of the node that opened it, tries it, or has closed it;
    "" where it is half open and nobody tries it yet.
    """

    tool: str
    state: str  # closed | open | half_open
    home: str
    generation: int  # counts the changes of this row, from 1
    due_at: float | None = None  # UTC epoch seconds: when somebody may try it again
    reason: str | None = None


class Want(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node wants of a tool's limit, in slots, and what it says of that. `sharing.py` says what it gets."""

    limit: int  # the tool's `max_parallel`, as its runtime or workstreams on it say; NO_LIMIT where none does
    slots: int  # in use, or waited for by tasks that could begin at once
    priority: int = 0  # of its most urgent task that waits
    used: int = 0  # in use, or may be until the answer is there: they stay this node's, whatever that is
    urgent: int = 0  # that tasks of `priority` wait for; others wait for what is beyond these and those in use
    keep: int = 0  # in all, that it would rather keep where nobody else wants them
    said_by: str = ""  # who says the limit: a job's id, or RUNTIME; "" where nobody does
    last: bool = False  # nobody says it any more: it held last

    @property
    def says(self) -> bool:
        """Whether it says anything of the limit."""
        return self.limit != NO_LIMIT


class Cluster(Protocol):
    """A node's seat among the nodes of its journal, from `Journal.open` until `Journal.shut`.

    All methods block (call them in a thread), may be called from several threads, and raise JournalError where the
    database cannot be reached, LeaseLost where this node was fenced.
    """

    @property
    def name(self) -> str:
        """This node's name: no two living nodes have the same."""
        ...

    @property
    def epoch(self) -> int:
        """Its present epoch."""
        ...

    @property
    def lease(self) -> float:
        """Seconds that its lease lasts."""
        ...

    def cut(self) -> None:
        """Answer nobody any more, also who waits now, in whatever thread: they get JournalError. Does not block."""
        ...

    def beat(self, last: int) -> Pulse:
        """Renew the lease. last: the highest number given so far: near the end of its epoch a new one is begun."""
        ...

    def take(self) -> Loaded | None:
        """Take this node's share of what nobody owns, after fencing who is silent; None if there is nothing.

        A job's children go with it. Workers in it are those of nodes that are gone; like all that is in it they belong
        to this node from now on, which ends them: should it be fenced before, the next one gets them. `last_key` and
        `last_seq` are where the numbers of the new epoch begin; from the return on the node's own must be above them.

        It is a share by the number of nodes that live. Ask again while something is left, when others had their turn.
        """
        ...

    def give_back(self, jobs: Sequence[int]) -> None:
        """Own these living jobs, and their children, no more, and ring: others take them.

        This node does not take them again, unless it is the only one, or after `want_again`. May be repeated.
        """
        ...

    def step_aside(self) -> int:
        """Take nothing any more, though it lives: others share among themselves. Returns how many others take."""
        ...

    def called(self) -> bool:
        """Whether another node has said, since this was asked last, that this one may have at once what it has given
        back. Does not block.
        """
        ...

    def want_again(self) -> None:
        """What was given back may be taken here again: this node can do more than it could. Does not block."""
        ...

    def nodes(self) -> list[Node]:
        """All nodes that live, and those that were fenced or have left lately."""
        ...

    def reserve(self, kind: str, name: str) -> int:
        """Reserve a job's id or a machine's name for this node, also where it has done so before. Returns the number of
        this reservation; 0 where there is one, ended or not, or another node has reserved it.
        """
        ...

    def release(self, kind: str, name: str, reservation: int) -> None:
        """Give back what was reserved, if nothing was committed under it. Nothing is where it was reserved again since.

        Only where nothing of it is still to be committed: another node may have it at once.
        """
        ...

    def owner_of(self, kind: str, name: str) -> str | None:
        """The name of the node that owns a living job or machine; None where it has ended, or nobody does."""
        ...

    def adopt(self, kind: str, name: str, request: str = "", now: float = 0.0) -> bool:
        """Own an ended job, or machine, that is about to go on here. False where another node has done so, or it lives.

        request: the key of the command that it goes on by, at `now` (UTC epoch seconds). False, too, where that has
        taken effect, and in the same look: what it began may have ended already.
        That is a taking, too: where it was another node's, `epoch` has risen, and numbers must before it goes on.
        """
        ...

    def send(self, row: InboxRow) -> int:
        """Put a command into the inbox, and ring. Returns its number there."""
        ...

    def answer(self, row: int) -> bytes | None:
        """The answer to a row of the inbox, as JSON; None while there is none."""
        ...

    def tools(self) -> list[ToolState]:
        """Every tool whose breaker anybody has opened since, in its present state."""
        ...

    def set_tool(self, tool: ToolState) -> ToolState:
        """Change the state of a tool's breaker, if it still has the generation before, and ring.

        Returns what holds: `tool`, or what another node has written meanwhile.
        """
        ...

    def share(self, wants: Mapping[str, Want]) -> dict[str, Claim]:
        """Say what is wanted of these tools, and what is said of their limits; returns what this node may use of each
        (`told`) until it asks again.

        Decided by `sharing.portion`, under a lock of the tool: in all no more than its limit is ever given out. It
        rings where that says so. A claim that is empty is forgotten, and so are all of a node that is fenced or leaves,
        but for what they say of limits.
        """
        ...

    def limited(self, named: Sequence[str]) -> frozenset[str]:
        """Those of these tools of whose limits any node says something, or one that is gone has."""
        ...

    def renew_words(self) -> None:
        """What runtimes before this one, of the same name, have said of limits counts no more: it has said its own."""
        ...

    def leave(self) -> None:
        """Own nothing any more, at the end: others take what is left at once."""
        ...
