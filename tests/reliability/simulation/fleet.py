"""Several nodes on one simulated database, and people who send commands to them.

Rules
-----
- One step is one event at one of the nodes, or between them. Time is the same for all nodes, and advances when
  no event is left at the present instant.
- A command goes to the node that owns its target; while no node owns it, the command waits, as in the inbox.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Any

import msgspec

from callboard.actors.messages.commands import Reply
from callboard.actors.messages.inputs import InboxTaken, Message
from callboard.actors.spec.model import Tool
from callboard.actors.workers.tool_limits import RUNTIME
from callboard.runtime.errors import JournalError
from callboard.runtime.journal.cluster import ToolDemand
from callboard.runtime.journal.sharing import ToolClaim

from .engines import Run
from .ledger import Ledger, Said
from .member import Member
from .plans import Order, Plan
from .server import Server, Session
from .world import MOST_STEPS, StuckError, World

LEASE = 15.0
RESTART = 3.0
"""Seconds until a fenced node starts again."""


@dataclass(eq=False)
class Waiting:
    """A command in the inbox."""

    said: Said
    make: Callable[[World, Reply], Message | None]
    job: str | None  # the id of the job that the command concerns
    only: Member | None  # the only node that may execute it, if its target is a worker or a breaker
    about: str | None  # the entity that the command decides about
    sent_at: float
    at: Member | None = None  # the node that has taken the command


class FleetLedger(Ledger):
    """The real events of a run, on all nodes."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        super().__init__(fleet)  # type: ignore[arg-type] # until something happens on a node

    def at(self, member: Member) -> FleetLedger:
        """Assign the events that follow to that node."""
        self.world = member
        return self

    def note(self, what: str, facts: Any) -> None:
        """Add a line to the trace."""
        self.trace.append((self.fleet.now, len(self.fleet.server.disk.transitions), what, facts))

    def is_open(self, token: int) -> bool:
        """Whether the journal has a claim under a token, without its end."""
        claim: Any = self.fleet.disk.records.get(("attempt", token))
        return claim is None or claim.end is None

    def _limits(self, run: Run) -> None:
        """The limits of a tool over all nodes, as of one node. The bodies of fenced nodes do not count."""
        super()._limits(run)
        most = self.fleet.limits.get(run.tool or "")
        if most is not None:
            living = [one for one in self.fleet.members if not one.gone and not one.cluster.session.ended_as]
            runs = [one for member in living for one in member.hands.runs.values() if one.kind == "body"]
            same = sum(one.tool == run.tool and not one.lends for one in runs)
            if same > most:
                self.wrong("over_limit", f"{same} bodies use tool {run.tool} on all nodes, of {most}")


class Fleet:
    """The nodes, the server, and the events between them."""

    def __init__(self, plan: Plan, names: int) -> None:
        self.plan = plan
        self.random = Random(f"{plan.seed}/{plan.kind}/order")
        self.now = 0.0
        self.lease = LEASE
        self.steps = self.lives = self.made = 0
        self.healing = False
        self.taken: Counter[str] = Counter()
        self.agenda: list[tuple[float, int, Callable[[], object]]] = []
        self.inbox: list[Waiting] = []
        self.members: list[Member] = []
        self.limits = {name: tool.max_parallel for name, tool in plan.tools.items()}
        self.ledger = FleetLedger(self)
        self.server = Server(lambda: self.now, self.ledger.wrong)
        self.disk = self.server.disk
        self.disk.row_done = self.ledger.row_done
        self.server.ring, self.server.lost = self._ring, self._lost
        self.says = {
            f"n{number}" for number in range(1 if plan.seed % 2 else names)
        }  # nodes whose program states limits of tools
        for name, most in self.limits.items():
            if most is not None:  # the program has stated its limits before anything begins here
                self.server.said[name] = {"n0": ToolClaim(ToolDemand(most, 0, said_by=RUNTIME))}
        for number in range(names):
            self.begin(f"n{number}", "AB"[number % 2])

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def said_by(self, name: str) -> dict[str, Tool]:
        """The limits of tools that the program of a node states."""
        if name in self.says:
            return self.plan.tools
        return {tool: msgspec.structs.replace(said, max_parallel=None) for tool, said in self.plan.tools.items()}

    def begin(self, name: str, place: str, jump: float = 0.0) -> None:
        """Start the process of a node, once the server is up."""
        try:
            member = Member(self, name, place, jump)
        except JournalError:
            self.after(1.0, lambda: self.begin(name, place, jump))
            return
        self.members = [one for one in self.members if not one.gone] + [member]

    def submit(self, order: Order, pick: float) -> None:
        """Submit a job at one of the nodes."""
        self.ledger.orders.setdefault(order.job_id, False)
        there = [member for member in self.living() if member.acts]
        if there:
            there[int(pick * len(there))].submit(order.job_id, order.spec, order.by)
        else:
            self.after(1.0, lambda: self.submit(order, pick))

    def living(self) -> list[Member]:
        """The processes that run, or are frozen."""
        return [member for member in self.members if not member.gone]

    def ended(self, member: Member, why: str) -> None:
        """Note that a process has ended. It starts again after a while."""
        for waiting in self.inbox:
            if waiting.at is member:
                waiting.at = None
        self.after(RESTART if why != "left" else 10.0, lambda: self.begin(member.name, member.place, member.jump))
        self.after(0.0, self._submit_again)

    def _submit_again(self) -> None:
        """Submit the jobs again, on another node, that were submitted on a node that has ended."""
        for order in self.plan.orders:
            if self.ledger.orders.get(order.job_id) is False:
                self.submit(order, self.random.random())

    def _lost(self, session: Session) -> None:
        """Drop the results that the bodies of a fenced node reported, and that the journal does not have."""
        for member in self.living():
            if member.cluster.session is session:
                self.ledger.unheard |= {token for token in member.hands.over if self.ledger.is_open(token)}

    def _ring(self, by: Session) -> None:
        for member in self.living():
            if member.cluster.session is not by and member.cluster.session.reaches:
                member.notified()

    # -- what people say -----------------------------------------------------------------------------------------------

    def say(  # noqa: PLR0917 - what a command is
        self,
        what: str,
        target: str,
        make: Callable[[World, Reply], Message | None],
        job: str | None = None,
        only: Member | None = None,
        decision: Message | None = None,
    ) -> None:
        """Put a command into the inbox."""
        key = f"c{len(self.ledger.said)}"
        said = self.ledger.said[key] = Said(key, what, target, lambda _: None)
        self.ledger.note("command", (key, what, target))
        about = target.partition(" ")[2].replace("@1/", "/")
        self.inbox.append(Waiting(said, make, job, only, about if decision is not None else None, self.utc()))
        self.after(0.0, self.deliver)

    def deliver(self) -> None:
        """Deliver the commands of the inbox to the nodes that own their targets."""
        self.inbox = [one for one in self.inbox if not one.said.answered]
        for waiting in self.inbox:
            if waiting.at is None:
                self._deliver(waiting)
        if self.inbox:
            self.after(1.0, self.deliver)

    def _deliver(self, waiting: Waiting) -> None:
        only = waiting.only
        if only is not None:
            if only.gone:
                self.ledger.answered(waiting.said.key, None, LookupError("its node is gone"))
                return
            there: Member | None = only
        elif waiting.said.key in self.disk.requests:
            self.ledger.answered(waiting.said.key, None, None, known=True)
            return
        else:
            there = self._owner(waiting.job)
        if there is not None:
            waiting.at = there
            there.give_here(waiting.said, waiting.make, waiting.sent_at)

    def _owner(self, job_id: str | None) -> Member | None:
        """The node that executes commands about a job: its owner, or any node if the job has ended."""
        job = self.disk.journal.job(job_id or "")
        if job is None or job.finished_at is not None:
            there = [member for member in self.living() if member.acts]
            return there[0] if there else None
        owner = self.server.owners["job", job.key]
        found = [member for member in self.living() if member.cluster.session is owner]
        return found[0] if found and job.id in found[0].kernel.jobs else None

    def awaited(self) -> dict[str, float]:
        """The decisions in the inbox."""
        found: dict[str, float] = {}
        for one in self.inbox:
            if one.about is not None and not one.said.answered:
                found[one.about] = min(one.sent_at, found.get(one.about, one.sent_at))
        return found

    def hand_out(self, member: Member, jobs: set[str]) -> None:
        """Deliver the commands about jobs that a node has taken over."""
        if member.gone:
            return
        if any(job in member.kernel.jobs for job in jobs) or not jobs:
            for waiting in self.inbox:
                if waiting.job in jobs and waiting.at is None and not waiting.said.answered:
                    waiting.at = member
                    waiting.at.give_here(waiting.said, waiting.make, waiting.sent_at)
            member.clients.append(lambda: member.host.tell(InboxTaken()))
            return
        self.after(0.1, lambda: self.hand_out(member, jobs))

    def utc(self) -> float:
        """The correct UTC time."""
        return 1_700_000_000.0 + self.now

    # -- steps ---------------------------------------------------------------------------------------------------------

    def note(self, what: str, **facts: Any) -> None:
        """Add a line to the trace."""
        self.ledger.note(what, facts)

    def after(self, delay: float, what: Callable[[], object]) -> None:
        """Call a function after so many seconds."""
        self.made += 1
        heappush(self.agenda, (self.now + delay, self.made, what))

    def step(self, until: float = float("inf")) -> bool:
        """Execute one event. Returns False if no event is left until `until`."""
        self.steps += 1
        if self.steps > MOST_STEPS * 2:
            raise StuckError(f"it has taken {self.steps} steps and goes on")
        could = [one for member in self.members if member.acts for one in member.could()]
        if self.agenda and self.agenda[0][0] <= self.now:
            could.append(self._tell)
        if not could:
            return self._wait(until)
        could[int(self.random.random() * len(could))]()
        return True

    def _tell(self) -> bool:
        heappop(self.agenda)[2]()
        return True

    def _wait(self, until: float) -> bool:
        dues = [due for member in self.members if member.acts and (due := member.due()) is not None]
        if self.agenda:
            dues.append(self.agenda[0][0])
        if not dues or min(dues) > until:
            return False
        self.advance(max(0.0, min(dues) - self.now))
        return True

    def advance(self, seconds: float) -> None:
        """Advance the time of all nodes."""
        self.now += seconds

    def settle(self, span: float, until: Callable[[], bool] | None = None) -> None:
        """Execute all events of the next seconds."""
        end = self.now + span
        while not (until is not None and until()) and self.step(end):
            pass
        if self.now < end and not (until is not None and until()):
            self.advance(end - self.now)
