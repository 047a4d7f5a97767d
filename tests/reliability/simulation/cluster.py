"""One node's access to the simulated database: its membership, and its journal."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from callboard.actors.records.loaded import Loaded
from callboard.actors.records.transition import Transitioned
from callboard.runtime.calling import Progress
from callboard.runtime.errors import JournalError, LeaseLost
from callboard.runtime.journal.cluster import LeaseRenewal, Node, ToolDemand, ToolState
from callboard.runtime.journal.contract import Commits, Entry, Health, Identity, InboxRow
from callboard.runtime.journal.live import LiveProgress, LiveText, TextPlace
from callboard.runtime.journal.sharing import ToolClaim

from .server import Server, nobody


class MemoryCluster:
    """A node's membership. It is `Cluster` for one node of a `Server`."""

    def __init__(self, server: Server, name: str, place: str, lease: float) -> None:
        self.server = server
        self.session = server.join(name, place, lease)
        self.on_listened: Callable[[Sequence[int]], object] = nobody
        server.clusters.append(self)

    @property
    def name(self) -> str:
        """This node's name."""
        return self.session.name

    @property
    def epoch(self) -> int:
        """The present epoch of the node."""
        return self.session.epoch

    @property
    def lease(self) -> float:
        """The lease of the node in seconds."""
        return self.session.lease

    def renew(self, last: int) -> LeaseRenewal:
        """Renew the lease."""
        return self.server.renew(self.session, last)

    def take(self) -> Loaded | None:
        """Take this node's share of the jobs without an owner."""
        return self.server.take(self.session)

    def give_back(self, jobs: Sequence[int]) -> None:
        """Release these jobs."""
        self.server.give_back(self.session, jobs)

    def cut(self) -> None:
        """Do nothing: no thread waits here."""

    def step_aside(self) -> int:
        """Take no jobs any more. No test of a draining node is made here."""
        self.server.reach(self.session)
        return 0

    def called(self) -> bool:
        """Return nothing: no node gives anything back here."""
        return False

    def want_again(self) -> None:
        """Take also the jobs that were given back."""
        self.session.given_back.clear()

    def nodes(self) -> list[Node]:
        """All nodes."""
        self.server.reach(self.session)
        return self.server.nodes()

    def reserve(self, kind: str, name: str) -> int:
        """Reserve a job's id."""
        return self.server.reserve(self.session, kind, name)

    def release(self, kind: str, name: str, reservation: int) -> None:
        """Release a reserved id."""
        self.server.release(self.session, kind, name, reservation)

    def owner_of(self, kind: str, name: str) -> str | None:
        """The name of the node that owns a living job or machine."""
        self.server.reach(self.session)
        owner = self.server.owner_of(kind, name)
        return None if owner is None or owner.ended_as else owner.name

    def adopt(self, kind: str, name: str, request: str = "", now: float = 0.0) -> bool:
        """Own an ended job or machine that is about to continue here."""
        return self.server.adopt(self.session, kind, name, request, now)

    def send(self, row: InboxRow) -> int:
        """Put a command into the inbox."""
        return self.server.send(self.session, row)

    def answer(self, row: int) -> bytes | None:
        """The answer to a row of the inbox."""
        self.server.reach(self.session)
        return self.server.answers.get(row)

    def tools(self) -> list[ToolState]:
        """Every tool whose breaker a node has opened."""
        self.server.reach(self.session)
        return list(self.server.tools.values())

    def set_tool(self, tool: ToolState) -> ToolState:
        """Change the state of a tool's breaker."""
        return self.server.set_tool(self.session, tool)

    def share(self, wants: Mapping[str, ToolDemand]) -> dict[str, ToolClaim]:
        """State the wanted slots of these tools."""
        return self.server.share(self.session, wants)

    def limited(self, named: Sequence[str]) -> frozenset[str]:
        """Return the tools among these for which a node states a limit, or has stated one."""
        return self.server.limited(self.session, named)

    def renew_words(self) -> None:
        """Drop the limits that earlier runtimes of the same name have stated."""
        self.server.renew_words(self.session)

    def write_progress(self, told: Sequence[LiveProgress], over: Sequence[int]) -> int:
        """Write the progress that bodies of this node have reported."""
        self.server.reach(self.session)
        for key in over:
            self.server.progress.pop(key, None)
        self.server.progress |= {one.key: (self.session, one) for one in told}
        return self.server.restarts

    def read_progress(self, tasks: Sequence[int]) -> dict[int, tuple[int, Progress]]:
        """The progress of these tasks."""
        self.server.reach(self.session)
        told, now = [self.server.progress[key] for key in tasks if key in self.server.progress], self.server.clock()
        return {
            one.key: (one.token, one.progress)
            for session, one in told
            if not session.ended_as and session.seen_at + session.lease >= now
        }

    def write_text(self, parts: Sequence[LiveText], cuts: Sequence[TextPlace]) -> int:
        """Write text of bodies of this node."""
        self.server.reach(self.session)
        texts = self.server.texts
        texts |= {part[:3]: (self.session, part) for part in parts}
        for cut in cuts:
            for place, (_, part) in list(texts.items()):
                if place[:2] == cut[:2] and part.place + len(part.text) <= cut.place:
                    del texts[place]
        self.server.most_texts = max(self.server.most_texts, len(texts))
        return self.server.restarts + 1

    def read_text(self, after: Sequence[TextPlace]) -> list[LiveText]:
        """The text after these places."""
        self.server.reach(self.session)
        return [
            part
            for _, (session, part) in sorted(self.server.texts.items())
            for task, token, place in after
            if part.task == task and not session.ended_as
            if part.token > token or (part.token == token and (part.place + len(part.text) > place or part.over))
        ]

    def listen(self, tasks: Sequence[int]) -> None:
        """Notify the nodes of these tasks."""
        self.server.reach(self.session)
        self.server.listened.append([*tasks])
        for cluster in self.server.clusters:
            if not cluster.session.ended_as:
                cluster.on_listened(tasks)

    def hide(self) -> None:
        """Remove the progress and text of all bodies of this node."""
        self.server.reach(self.session)
        self.server.texts = {
            place: (session, one) for place, (session, one) in self.server.texts.items() if session is not self.session
        }
        self.server.progress = {
            key: (session, one) for key, (session, one) in self.server.progress.items() if session is not self.session
        }

    def leave(self) -> None:
        """Release everything."""
        self.server.leave(self.session)


class NodeJournal:
    """The journal of one node. A batch that could not be written is kept, and written again as a whole."""

    durable_medium = False
    identity = Identity("", "")
    shared = None

    def __init__(self, server: Server, cluster: MemoryCluster | None = None) -> None:
        self.cluster = cluster  # None until the node has joined
        self.disk = server.disk
        self.waiting: deque[Entry] = deque()
        self.batch: list[Entry] = []  # the batch that was sent: it is not known whether it was written
        self.tail = self.durable = self.backlog = 0
        self.sick = ""
        self.committed = Commits()
        self._batches = 0
        self._moved: Callable[[], None] = nobody

    @property
    def health(self) -> Health:
        """Whether the journal can write."""
        return Health(ok=not self.sick, reason=self.sick or None)

    def open(
        self,
        *,
        on_durable: Callable[[], None],
        call_threadsafe: Callable[[Callable[[], None]], object],
        after_commit: Callable[[Sequence[Transitioned]], None] | None = None,
    ) -> Loaded:
        """Load the records with which a new node begins."""
        self._moved = on_durable
        cluster = self._joined
        return cluster.server.begin(cluster.session)

    @property
    def _joined(self) -> MemoryCluster:
        assert self.cluster is not None, "it has not been opened"
        return self.cluster

    def append(self, entry: Entry) -> int:
        """Append the entry of one turn."""
        self.tail += 1
        self.backlog += len(entry.transitions)
        self.waiting.append(entry)
        return self.tail

    def commit(self, entries: int) -> bool:
        """Write the next entries, and report them. Returns False if that is not possible now. Raises LeaseLost."""
        if not self.batch:
            self._batches += 1
            self.batch = [self.waiting[place] for place in range(entries)]
        try:
            self._joined.server.write(self._joined.session, self._batches, self.batch)
        except LeaseLost:
            raise
        except JournalError as error:
            self.sick = str(error)
            self._moved()
            return False
        for entry in self.batch:
            self.waiting.popleft()
            self.backlog -= len(entry.transitions)
        self.durable += len(self.batch)
        self.batch, self.sick = [], ""
        self._moved()
        return True

    def flush(self) -> None:
        """Do nothing: the simulation decides when an entry is written."""

    def lend(self) -> None:
        """Do nothing: there is no writer thread."""

    def __getattr__(self, name: str) -> Any:  # a reader's queries, which are answered from the durable data
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.disk.journal, name)
