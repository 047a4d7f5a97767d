"""Several runtimes on one journal: the interface of a node to the common database.

A *node* is one runtime on a journal that several share. It owns jobs and machines: only the owner runs them and commits
their changes.

Rules (DESIGN section 8, "Journals")
-----
- A node has a *lease*, which it renews. A node whose lease ran out may be *fenced* by another node. The fence is
  written in the database under the same lock that every commit of a node takes: so a fenced node cannot commit,
  whatever its clock says. `LeaseLost` tells it so, and it has to end: other nodes take over what it ran.
- Before a node fences others for silence, it must have reached the database itself for a whole lease.
- A process that is known to be dead (same machine, and no such process) is fenced at once.
- The entities of a fenced node have no owner until living nodes take them, each node its share, each entity once. A
  share is computed from the amount and the living nodes when the remains were first looked at. A node that asks again
  later gets the entities that others do not fetch.
- A node that drains gives back what is not running, and takes no more. Nodes that began much later than it may take
  that first, since they stay the longest: in a deployment, the older nodes leave next.
- A node that cannot run a job which it has taken gives it back while others live, and leaves it to them.
- Each taking begins a new *epoch* of the taking node: all numbers it gives from then on (keys, fencing tokens,
  transitions) are above every number that any node gave before. So in each job's history numbers rise, whichever node
  ran it.
- A name that is unique over all nodes (a job's id from a caller, a machine's name) is reserved before it is used, and
  released if nothing is committed under it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from ...actors.records.loaded import Loaded
from ...actors.times import seconds
from ...actors.workers.queues import NO_LIMIT
from ...machines.audit import log
from .contract import InboxRow

if TYPE_CHECKING:
    from ..calling import Progress
    from .live import LiveProgress, LiveText, TextPlace
    from .sharing import ToolClaim

EPOCH = log.EPOCH
"""Numbers in an epoch. The first of epoch n is n * EPOCH + 1; JavaScript on a page counts exactly up to 2 ** 53."""
LEASE = 15.0
"""Default seconds that a node may be silent before others take over."""
SHORTEST_LEASE = 1.0
"""Minimum seconds of a lease."""


def lease_of(lease: float) -> float:
    """A node's lease in seconds, validated. Raises ValueError for a lease that is too short or no number."""
    try:
        lease = seconds(lease)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a lease: {error}") from None
    if lease < SHORTEST_LEASE:
        raise ValueError(
            f"a lease is at least {SHORTEST_LEASE:g} s: a node that is silent for so long loses all that it runs, and "
            f"a busy event loop or a slow database may cause this. {lease:g} s is too short; the default is {LEASE:g} s"
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
    jobs: int = 0  # living jobs that it owns


class LeaseRenewal(msgspec.Struct, frozen=True):
    """The answer of the database when a node renews its lease."""

    living: int  # number of living nodes, including this one
    orphans: int  # living jobs and machines without an owner; at least 1 while their number is unknown
    due_in: float | None = None  # seconds until the next lease of another node runs out, unless it is renewed
    silent: int = 0  # other nodes whose lease has run out, and that no node may fence yet: they may still run

    @property
    def alone(self) -> bool:
        """Whether no other node is known or suspected to live. A silent node may live."""
        return self.living + self.silent <= 1


class ToolState(msgspec.Struct, frozen=True):
    """The common state of a tool's breaker. home: the name of the node that opened it, tries it, or has closed it; ""
    if it is half open and no node tries it yet.
    """

    tool: str
    state: str  # closed | open | half_open
    home: str
    generation: int  # counts the changes of this row, from 1
    due_at: float | None = None  # UTC epoch seconds: when a node may try it again
    reason: str | None = None


class ToolDemand(msgspec.Struct, frozen=True, omit_defaults=True):
    """The slots that a node wants of a tool's limit, and the limit that it states. `sharing.py` allots them."""

    limit: int  # the tool's `max_parallel`, as its runtime or workstreams state it; NO_LIMIT if none does
    slots: int  # in use, or waited for by tasks that could begin at once
    priority: int = 0  # of its most urgent waiting task
    used: int = 0  # in use, or perhaps before the answer arrives: this node keeps them, whatever the answer
    urgent: int = 0  # slots for waiting tasks of `priority`; other tasks wait for slots beyond these and those in use
    keep: int = 0  # slots in total that it keeps while no other node needs them
    said_by: str = ""  # the owner of the limit: a job's id, or RUNTIME; "" for none
    last: bool = False  # the limit that was stated last: no owner states it any more

    @property
    def says(self) -> bool:
        """Whether the node states a limit."""
        return self.limit != NO_LIMIT


class Cluster(Protocol):
    """A node's membership among the nodes of its journal, from `Journal.open` until `Journal.shut`.

    All methods block unless they say otherwise (call them in a thread), may be called from several threads, and raise
    JournalError if the database cannot be reached, LeaseLost if this node was fenced.
    """

    @property
    def name(self) -> str:
        """This node's name: no two living nodes have the same."""
        ...

    @property
    def epoch(self) -> int:
        """The present epoch of the node."""
        ...

    @property
    def lease(self) -> float:
        """The duration of its lease in seconds."""
        ...

    def cut(self) -> None:
        """Stop answering: all present and later callers, in any thread, get JournalError. Does not block."""
        ...

    def renew(self, last: int) -> LeaseRenewal:
        """Renew the lease. last: the highest number given so far: near the end of its epoch a new epoch is begun."""
        ...

    def take(self) -> Loaded | None:
        """Fence silent nodes, then take this node's share of what has no owner; None if there is nothing.

        A job's children go with it. The workers in it are those of nodes that have ended; this node owns them from now
        on, and ends them: if it is fenced before, the next node gets them. `last_key` and `last_seq` are where the
        numbers of the new epoch begin; after the return this node's numbers must be above them.

        The share depends on the number of living nodes. Call again while something is left, after other nodes had time.
        """
        ...

    def give_back(self, jobs: Sequence[int]) -> None:
        """Release the ownership of these living jobs and their children, and notify: other nodes take them.

        This node does not take them again, unless it is the only one, or after `want_again`. May be repeated.
        """
        ...

    def step_aside(self) -> int:
        """Take nothing any more: the other nodes share among themselves. Returns how many other nodes take."""
        ...

    def called(self) -> bool:
        """Whether another node has offered this one its returned jobs since the last call. Does not block."""
        ...

    def want_again(self) -> None:
        """Allow this node to take again the jobs that it gave back: it can run more than before. Does not block."""
        ...

    def nodes(self) -> list[Node]:
        """All living nodes, and those that were fenced or have left lately."""
        ...

    def reserve(self, kind: str, name: str) -> int:
        """Reserve a job's id or a machine's name for this node; it may repeat its own reservation. Returns the number
        of this reservation; 0 if such an entity exists, ended or not, or another node has reserved the name.
        """
        ...

    def release(self, kind: str, name: str, reservation: int) -> None:
        """Release a reservation, if nothing was committed under it. Does nothing if the name was reserved again since.

        Call it only if no commit under the name is pending: another node may reserve it at once.
        """
        ...

    def owner_of(self, kind: str, name: str) -> str | None:
        """The name of the node that owns a living job or machine; None if it has ended or has no owner."""
        ...

    def adopt(self, kind: str, name: str, request: str = "", now: float = 0.0) -> bool:
        """Own an ended job or machine that is about to continue here. False if another node has adopted it, or it
        lives.

        request: the key of the command that continues it, at `now` (UTC epoch seconds). Also False if that command has
        already taken effect, checked in the same statement: the run that it began may have ended already. Adopting is a
        taking, too: if another node owned it, `epoch` has risen, and numbers must rise before it continues.
        """
        ...

    def send(self, row: InboxRow) -> int:
        """Put a command into the inbox, and notify its readers. Returns its number there."""
        ...

    def answer(self, row: int) -> bytes | None:
        """The answer to a row of the inbox, as JSON; None if there is none yet."""
        ...

    def tools(self) -> list[ToolState]:
        """Every tool whose breaker was ever opened, in its present state."""
        ...

    def set_tool(self, tool: ToolState) -> ToolState:
        """Change the state of a tool's breaker, if it still has the generation before, and notify.

        Returns the state that holds: `tool`, or what another node has written meanwhile.
        """
        ...

    def share(self, wants: Mapping[str, ToolDemand]) -> dict[str, ToolClaim]:
        """Set what this node wants of these tools, and the limits it states; returns its claims. `told` of each is what
        it may use until it asks again.

        `sharing.portion` decides under a lock of the tool: never more than its limit is given out in total. It notifies
        the other nodes if `portion` says so. An empty claim is deleted, and so are all claims of a node that is fenced
        or leaves, except the limits it stated.
        """
        ...

    def limited(self, named: Sequence[str]) -> frozenset[str]:
        """The given tools for which any node, or one that has ended, states a limit."""
        ...

    def renew_words(self) -> None:
        """Drop the limits stated by earlier runtimes of this node's name: this runtime has stated its own."""
        ...

    def leave(self) -> None:
        """Release everything at the end: others take what is left at once."""
        ...

    def write_progress(self, told: Sequence[LiveProgress], over: Sequence[int]) -> int:
        """Write the progress that bodies of this node have reported, and remove the progress of these tasks (by key).

        The progress is not durable. Returns a number: if it differs from that of the write before, the database may
        have lost all that was written before.
        """
        ...

    def read_progress(self, tasks: Sequence[int]) -> dict[int, tuple[int, Progress]]:
        """The progress of these tasks (by key), whichever node runs them, each with the token of its attempt.

        Raises JournalError also if it cannot be read, for example from a standby.
        """
        ...

    on_listened: Callable[[Sequence[int]], object]
    """Called on the event loop with the keys of tasks to whose text another process listens."""

    def write_text(self, parts: Sequence[LiveText], cuts: Sequence[TextPlace]) -> int:
        """Write text that bodies of this node have emitted, and remove the text before the places of `cuts`.

        The text is not durable. Returns a number, as `write_progress` does.
        """
        ...

    def read_text(self, after: Sequence[TextPlace]) -> list[LiveText]:
        """The text after these places, and that of later attempts of these tasks, in its order; perhaps a part of it.

        A part may begin before the place. Of an attempt that is over, its end is returned each time.
        """
        ...

    def listen(self, tasks: Sequence[int]) -> None:
        """Notify the nodes that this one listens to the text of these tasks (by key). Callers have to repeat this."""
        ...

    def hide(self) -> None:
        """Remove the progress and text of all bodies of this node."""
        ...
