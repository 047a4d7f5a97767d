"""Runs of several nodes: their plans, the faults between them, and the invariants after any fault.

| move | what happens |
| --- | --- |
| crash | a node's process is killed; it starts again some time later |
| freeze | a node is stopped, perhaps for longer than its lease, and continues |
| cut | a node does not reach the server for a while |
| lose | the answer to a node's next call is lost, and then the node is cut off for a moment |
| outage | the server is down for a while |
| leave | a node drains, and leaves; it starts again later |
| clock | a node's UTC jumps |
| late, double, beat, die | as in `driver.py`: an engine reports an ended call again, a worker dies |
| words | people's commands, as in `driver.py`, to the node that owns the target |

| kind of finding, beside those of `ledger.py` and `checks.py` | broken invariant |
| --- | --- |
| numbers | a job's numbers did not rise, or a node wrote in an epoch that is not its own |
| two_owners | a node wrote rows that another node owns |
| fenced_alive | a node was fenced although it had no fault |
| not_taken | an ended node's rows still had no owner after all faults were removed |

    python -m tests.reliability.simulation.nodes 42           # one run: plan, trace, findings
    python -m tests.reliability.simulation.nodes --seeds 500  # so many, from --first on
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import msgspec

from callboard.actors.messages.commands import Cancel, ResumeWorker
from callboard.actors.messages.inputs import Drain, StopWorkers
from callboard.actors.records.entities import WorkerRecord
from callboard.actors.records.transition import Transitioned
from callboard.actors.spec.model import Breaker, HealthChecks, Hook, Task, Tool, Worker
from callboard.machines.audit.audit import audit

from . import checks, driver
from .fleet import LEASE, Fleet, Member
from .ledger import Wrong
from .plans import TOOLS, Move, Order, Plan, workstream

SPANS = (1.0, 5.0, 14.0, 16.0, 25.0, 60.0)
PAUSES = (0.0, 0.0, 1.0, 3.0, 8.0)
"""Seconds before a move."""
WORDS = (
    "cancel", "cancel", "force", "pause", "resume", "approve", "approve", "reject", "skip", "retry", "again", "reset",
    "trip", "reset_breaker", "cancel_probe",
)  # fmt: skip
ENGINES = ("late", "double", "beat", "die")
FAULTS = ("crash", "freeze", "cut", "lose", "outage", "leave", "clock")
MOVES = (*FAULTS, "crash", "freeze", "cut", "lose", *ENGINES, *WORDS, "wait", "wait", "wait")
SEEDS = 120
"""Number of runs of the usual budget."""


@dataclass(frozen=True)
class FleetPlan:
    """A plan for so many nodes."""

    plan: Plan
    names: int


def make_plan(seed: int) -> FleetPlan:
    """The plan of a seed."""
    r = Random(f"nodes/{seed}")
    moves = tuple(
        Move(r.choice(MOVES), r.choice((0, 3, 8, 21, 55, 89)), r.random(), r.choice(SPANS))
        for _ in range(r.choice((2, 4, 6, 8, 12)))
    )
    orders = []
    for number in range(r.choice((2, 3, 4, 6))):
        spec = workstream(r, r.choice(("graphs", "crashes", "words", "tools", "workers")), None)
        spec = msgspec.structs.replace(spec, tools={}, tasks=[_hooked(r, task) for task in spec.tasks])
        orders.append(Order(f"j{number}", spec, r.randint(0, len(moves) // 2), r.choice((None, "ana"))))
    workers = [
        Worker("loop", engine="loop", capacity=r.choice((1, 2, 100))),
        Worker("command", engine="command", capacity=2),
    ]
    if r.random() < 0.5:
        workers.append(Worker("p", engine="process", capacity=r.choice((1, 2))))
    plan = Plan(
        seed=seed, kind="nodes", orders=tuple(orders), moves=moves,
        workers=tuple(each for worker in workers for each in worker.each()),
        tools={name: _tool(r) for name in TOOLS},
        health=HealthChecks(interval=r.choice((2.0, 10.0)), misses=r.choice((1, 2)), expire=r.choice((5.0, 60.0))),
    )  # fmt: skip
    return FleetPlan(plan, r.choice((2, 2, 2, 3, 3, 4, 5)))


def _hooked(r: Random, task: Task) -> Task:
    """Return the workstream, perhaps with a hook: rows of the outbox have an owner, too."""
    hooks = [Hook(command=["hook", "completed"], timeout=5.0)]
    return msgspec.structs.replace(task, on_completed=hooks) if r.random() < 0.3 else task


def _tool(r: Random) -> Tool:
    breaker = Breaker(failure_threshold=r.choice((1, 2, 3)), cooldown=r.choice((2.0, 10.0, 30.0)))
    return Tool(max_parallel=r.choice((None, 1, 2)), breaker=breaker)


class Result:
    """The result of a run."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.findings: list[Wrong] = fleet.ledger.findings
        self.taken = fleet.taken


def carry_out(fleet_plan: FleetPlan) -> Result:
    """Execute a plan to its end."""
    plan = fleet_plan.plan
    fleet = Fleet(plan, fleet_plan.names)
    ledger = fleet.ledger
    try:
        _orders(fleet, 0)
        for number, move in enumerate(plan.moves, start=1):
            for _ in range(move.steps):
                fleet.step()
            fleet.settle(PAUSES[int(move.pick * 1000) % len(PAUSES)])
            if _make(fleet, move):
                fleet.taken[move.what] += 1
            _orders(fleet, number)
            for member in fleet.living():
                checks.books(member)
        _get_well(fleet)
        _at_the_end(fleet)
    except driver.StuckError as error:
        ledger.wrong("stuck", str(error))
    except Exception as error:
        ledger.wrong("raised", f"{type(error).__name__}: {error}")
        ledger.error = error
    return Result(fleet)


def _orders(fleet: Fleet, after: int) -> None:
    for order in fleet.plan.orders:
        if order.after == after:
            fleet.submit(order, fleet.random.random())


# -- moves -------------------------------------------------------------------------------------------------------------


def _make(fleet: Fleet, move: Move) -> bool:
    if (fault := _FAULTS.get(move.what)) is not None:
        there = [member for member in fleet.living() if member.acts]
        busy = [member for member in there if member.kernel.jobs]
        there = busy if busy and move.pick * 7 % 1 < 0.8 else there
        if not there:
            return False
        member = there[int(move.pick * len(there))]
        fleet.note(move.what, node=member.name, span=move.span)
        fault(fleet, member, move)
        return True
    if move.what == "wait":
        fleet.settle(move.span)
        return True
    there = [member for member in fleet.living() if member.acts and member.kernel.jobs] or fleet.living()
    return bool(there) and driver.make(there[int(move.pick * 31 % 1 * len(there))], move)


def _crash(fleet: Fleet, member: Member, move: Move) -> None:
    member.end("killed")


def _freeze(fleet: Fleet, member: Member, move: Move) -> None:
    member.frozen = True
    _out(fleet, member)

    def thaw() -> None:
        member.frozen = False

    fleet.after(move.span, thaw)


def _cut(fleet: Fleet, member: Member, move: Move) -> None:
    session = member.cluster.session
    session.reaches = False
    _out(fleet, member)

    def mend() -> None:
        session.reaches = True

    fleet.after(move.span, mend)


def _out(fleet: Fleet, member: Member) -> None:
    session = member.cluster.session
    if session.out_of_reach is None:
        session.out_of_reach = fleet.now


def _lose(fleet: Fleet, member: Member, move: Move) -> None:
    member.cluster.session.loses = True


def _outage(fleet: Fleet, member: Member, move: Move) -> None:
    server = fleet.server
    server.up = False

    def up() -> None:
        server.up = True

    fleet.after(move.span, up)


def _leave(fleet: Fleet, member: Member, move: Move) -> None:
    """Drain a node within the span, and let it leave."""
    tell = member.host.tell
    tell(Drain(stop=False))
    fleet.after(min(move.span, 5.0), lambda: None if member.gone else tell(Drain(stop=True)))

    def close() -> None:
        if not member.gone:
            tell(StopWorkers())
            fleet.after(1.0, go)

    def go() -> None:
        if member.gone:
            return
        if not member.log.waiting and not member.host.waiting and not member.frozen:
            try:
                member.cluster.leave()
            except Exception:  # a later check reports it
                member.end("killed")
                return
        member.end("left" if member.cluster.session.ended_as == "left" else "killed")

    fleet.after(min(move.span, 5.0) + 40.0, close)


def _clock(fleet: Fleet, member: Member, move: Move) -> None:
    jump = move.span * (1 if move.pick < 0.5 else -1) * (1 if move.pick % 0.1 < 0.08 else 100)
    member.jump += jump
    member.clock.jump_utc(jump)


_FAULTS: dict[str, Callable[[Fleet, Member, Move], None]] = {
    "crash": _crash, "freeze": _freeze, "cut": _cut, "lose": _lose, "outage": _outage, "leave": _leave,
    "clock": _clock,
}  # fmt: skip


# -- the end -----------------------------------------------------------------------------------------------------------


def _get_well(fleet: Fleet) -> None:
    """Remove all faults, and make all decisions that something waits for; then cancel the rest."""
    fleet.note("healing")
    fleet.healing = True
    fleet.server.up = True
    for member in fleet.living():
        member.frozen = False
        member.cluster.session.reaches = True
        member.cluster.session.loses = False
        member.healing = True
        member.hands.heal()
    fleet.settle(4 * LEASE)  # all nodes whose leases ran out were found
    for number in range(driver.ROUNDS + 3):
        fleet.settle(driver.ROUND, until=lambda: _quiet(fleet))
        if _quiet(fleet):
            break
        for member in fleet.living():
            for job in [job for job in member.kernel.jobs.values() if not job.over and job.parent is None]:
                if number >= driver.ROUNDS:
                    member.command(job, "cancel", Cancel("enough", force=number > driver.ROUNDS))
                else:
                    driver._help(member, job, number)
            for worker in list(member.workforce.named.values()):
                if worker.record.state == "paused":
                    member.command(worker, "resume_worker", ResumeWorker("on"))
    if not _quiet(fleet):
        left = {member.name: [repr(job) for job in member.kernel.jobs.values()] for member in fleet.living()}
        fleet.ledger.wrong("never_ends", f"jobs that do not end: {left}")
    fleet.settle(0.0)


def _quiet(fleet: Fleet) -> bool:
    if fleet.inbox or not all(fleet.ledger.orders.values()) or len(fleet.ledger.orders) < len(fleet.plan.orders):
        return False
    return not (fleet.server._jobs_left() or fleet.server._rows_left()) and all(
        not (
            member.kernel.jobs or member.clients or member.log.waiting or member.hands.runs or member.host.waiting
            or member.kernel.calls
        )
        for member in fleet.living()
    )  # fmt: skip


def _at_the_end(fleet: Fleet) -> None:
    """Check the invariants of a run whose jobs have all ended."""
    wrong = fleet.ledger.wrong
    members = fleet.living()
    for member in members:
        checks.books(member)
        checks._nothing_left(member)
    world = fleet.ledger.at(members[0]).world
    for left in (fleet.server._jobs_left(), fleet.server._rows_left(), fleet.server._claims_left()):
        if left:
            wrong("not_taken", f"{left}"[:300])
    living = {session.number for session in fleet.server.living()}
    for worker in fleet.disk.of(WorkerRecord):
        if worker.finished_at is None and fleet.server.owners["worker", worker.key].number not in living:
            wrong("not_taken", f"worker {worker.id} is {worker.state}, and its node is gone")
    for found in audit(map(checks.as_event, sorted(fleet.disk.transitions, key=_number))):
        if not (fleet.taken["clock"] and found.kind == "time_backwards"):
            wrong("audit", f"{found.kind} at {found.seq}: {found.text}")
    checks._jobs(world)
    for task in fleet.disk.of(checks.TaskRecord):
        checks._attempts(world, task)
        checks._hooks(world, task)
    for stream in fleet.disk.of(checks.WorkstreamRecord):
        checks._hooks(world, stream)
    checks._commands(world)


def _number(row: Transitioned) -> int:
    return row.seq


# -- by hand -----------------------------------------------------------------------------------------------------------


def show(seed: int) -> int:
    """Run one seed, and print the whole run."""
    plan = make_plan(seed)
    result = carry_out(plan)
    for order in plan.plan.orders:
        print(f"job {order.job_id}, after {order.after} moves: {order.spec}")
    print(plan.names, "nodes; workers:", *plan.plan.workers)
    print("tools:", plan.plan.tools)
    print("moves:", *plan.plan.moves, sep="\n  ")
    transitions, told = result.fleet.disk.transitions, 0
    for at, durable, what, facts in result.fleet.ledger.trace:
        for transition in transitions[told:durable]:
            print(driver._line(transition))
        told = max(told, durable)
        print(f"{at:9.2f} {what} {facts}")
    if result.fleet.ledger.error is not None:
        traceback.print_exception(result.fleet.ledger.error)
    print(f"{len(result.findings)} findings", *result.findings, sep="\n  ")
    return bool(result.findings)


def main() -> int:
    """Parse the command line, and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability.simulation.nodes")
    parser.add_argument("seed", nargs="?", type=int)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="so many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--hours", type=float, default=0.0, help="so long")
    parser.add_argument("--stop", action="store_true", help="at the first finding")
    options = parser.parse_args()
    if options.seed is not None:
        return show(options.seed)
    taken, found, began, seed = Counter[str](), 0, time.process_time(), options.first
    until = time.monotonic() + options.hours * 3600
    while seed < options.first + options.seeds or time.monotonic() < until:
        result = carry_out(make_plan(seed))
        taken += result.taken
        if result.findings:
            found += 1
            print(f"{seed}: {result.findings[0]}", flush=True)
            if options.stop:
                return 1
        seed += 1
    spent = time.process_time() - began
    print(f"{seed - options.first} runs in {spent:.0f} s of processor time, {found} with findings")
    print("moves that did something:", ", ".join(f"{what} {count}" for what, count in taken.most_common()))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
