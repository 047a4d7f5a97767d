"""The simulated engines: all calls that a runtime has started, and the workers with their own processes.

Rules
-----
- The plan decides what a call does (`Behaviour`), within the engines' contract: one end for each call, never inside
  of `start` or `stop`; a body that a loop cannot end is abandoned, one in a process is killed after its grace.
- A frozen worker does nothing and answers nothing; its due events happen when it is thawed.
- Nothing here outlives a crash of the runtime.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from callboard.actors.kernel.transaction import ApprovalDecided, RunHook, StartCall
from callboard.actors.messages.commands import AskApproval, LeaveApproval
from callboard.actors.messages.inputs import Beat, CallEnded, WorkerBeat, WorkerDied
from callboard.actors.spec.model import Approval, Hook
from callboard.actors.times import seconds

from .plans import Behaviour

if TYPE_CHECKING:
    from .world import World

GRACE = 5.0
"""Seconds between the order to stop a check, a condition or a hook, and its kill."""
KILLED = frozenset({"command", "process"})
"""The engines that can end every call by force."""
WELL = Behaviour()


@dataclass(slots=True, eq=False)
class Run:
    """A call that runs."""

    token: int
    kind: str
    key: int
    entity: str
    engine: str
    does: Behaviour
    grace: float
    began: float
    process: WorkerProcess | None = None
    index: int = 0
    stopped: bool = False
    lends: bool = False
    waits: bool = False  # it waits for a child, or for a person's decision
    tool: str | None = None
    stream: int = 0
    worker: str | None = None


@dataclass(slots=True, eq=False)
class WorkerProcess:
    """One incarnation of a worker with a process of its own."""

    worker: str
    incarnation: int
    alive: bool = True
    frozen: bool = False
    stops: bool = False


class SimulatedEngine:
    """One engine, as the host uses it: for probes and orders to workers only."""

    def __init__(self, name: str, hands: Hands) -> None:
        self.name = name
        self._hands = hands

    def probe(self, worker: str, incarnation: int) -> tuple[int, ...] | None:
        """Probe a worker."""
        if self.name != "process":
            return tuple(run.token for run in self._hands.runs.values() if run.engine == self.name)
        self._hands.probe(worker, incarnation)
        return None

    def start_worker(self, worker: str, incarnation: int) -> None:
        """Add a new incarnation."""
        if self.name == "process":
            self._hands.start_worker(worker, incarnation)

    def stop_worker(self, worker: str, incarnation: int, deadline: float) -> None:
        """Let a worker end."""
        if self.name == "process":
            self._hands.stop_worker(worker, incarnation, deadline)

    def kill_worker(self, worker: str, incarnation: int) -> None:
        """Kill a worker."""
        if self.name == "process":
            self._hands.kill_worker(worker, incarnation)

    def forget_worker(self, worker: str) -> None:
        """Do nothing: nothing is kept here."""

    def release(self) -> None:
        """Do nothing: nothing is kept here."""


class Hands:
    """The host's caller: starts and stops what the actors ask for."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.runs: dict[int, Run] = {}
        self.over: list[int] = []  # tokens of calls that ended, or were given up
        self.processes: dict[str, WorkerProcess] = {}
        self.engines: Any = {name: SimulatedEngine(name, self) for name in ("loop", "thread", "command", "process")}
        self.approvals = self
        self.failed_hooks = 0
        self.unasked: set[int] = set()

    # -- as the host's caller ------------------------------------------------------------------------------------------

    def start(self, effect: StartCall) -> None:
        """Start a call, unless its entity does not need it any more."""
        world = self.world
        entity: Any = world.kernel.entities.get(effect.key)
        if entity is None or not entity.wants(effect.token):
            world.host.tell(CallEnded(effect.token, "gone"))
            return
        world.kernel.heard(effect.token)
        record = entity.record
        engine, grace, number = "command", GRACE, record.seq
        run = Run(effect.token, effect.kind, effect.key, record.id, engine, WELL, grace, world.now, index=effect.index)
        if effect.kind == "body":
            run.engine, run.grace, number = entity.engine, entity.limits.kill_grace, record.attempt
            run.tool, run.stream, run.worker = entity.spec.tool, record.workstream, record.worker_id
        if not world.healing:
            run.does = world.plan.behaviour(record.id, f"{effect.kind}{effect.index or ''}", number)
        if effect.kind == "body" and run.engine == "process" and not self._has_process(run, effect.token):
            return
        self.runs[effect.token] = run
        world.started(run)
        self._go(run)

    def hook(self, effect: RunHook) -> None:
        """Run a hook out of the outbox."""
        world, row = self.world, effect.row
        hook = msgspec.json.decode(row.body, type=Hook)
        does = WELL if world.healing else world.plan.behaviour(row.owner, row.event, row.tries)
        run = Run(effect.token, "hook", 0, row.owner, "command", does, GRACE, world.now)
        self.runs[effect.token] = run
        world.started(run)
        self._go(run)
        limit = seconds(hook.timeout)
        world.after(limit, lambda: self.stop(effect.token))
        world.after(limit + GRACE, lambda: self.stop(effect.token, force=True))

    def answer(self, effect: ApprovalDecided) -> None:
        """Deliver a decision for which a body waits."""
        run = self.runs.get(effect.token)
        if run is not None and run.waits:
            run.waits = False
            self.world.after(run.does.takes, lambda: self.end(run))

    def stop(self, token: int, *, force: bool = False) -> None:
        """Ask a call to end."""
        self.world.kernel.told(token)
        run = self.runs.get(token)
        if run is None or (run.stopped and not force):
            return
        run.stopped = True
        after = self.world.after
        manners = run.does.manners
        frozen = run.process is not None and run.process.frozen
        if run.engine in KILLED:
            patience = {"at_once": 0.0, "slow": 1.0}.get(manners, run.grace)
            patience = 0.0 if force else run.grace if frozen else min(patience, run.grace)
            after(patience, lambda: self.end(run, "cancelled", frozen=True))
        elif manners == "at_once" or (manners == "slow" and not force):
            after(1.0 if manners == "slow" else 0.0, lambda: self.end(run, "cancelled"))
        elif force:
            after(min(run.does.takes, GRACE), lambda: self.end(run, "abandoned"))

    def tail(self, token: int) -> str:
        """Return no output: nothing is printed here."""
        return ""

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _has_process(self, run: Run, token: int) -> bool:
        """Find the process of a body. A worker that has ended loses the bodies that it gets."""
        kernel, tell = self.world.kernel, self.world.host.tell
        slot = kernel.slots.get(token)
        taker = None if slot is None else kernel.workers.get(slot.worker)
        process = None if taker is None else self.processes.get(taker.record.name)
        if taker is None or process is None or not process.alive or process.incarnation != taker.record.run:
            lost = CallEnded(token, "lost", error_type="worker_lost", error="its worker was gone", category="transient")
            self.world.after(0.0, lambda: tell(lost))
            return False
        run.process = process
        return True

    def _go(self, run: Run) -> None:
        does, world = run.does, self.world
        if does.beats is not None and run.kind == "body":
            world.after(does.beats, lambda: self._beat(run))
        if does.asks and run.kind == "body":
            run.waits = True
            rule = Approval(people=1, expires=10.0, self_approval=True)
            world.after(does.takes, lambda: self._tell(run, AskApproval(run.token, "sign", rule)))
        elif does.child and run.kind == "body":
            world.after(does.takes, lambda: self._submit(run))
        elif does.ends != "never":
            world.after(does.takes, lambda: self.end(run))

    def _tell(self, run: Run, message: Any) -> None:
        if run.token in self.runs:
            self.world.host.tell(message)

    def _submit(self, run: Run) -> None:
        if run.token in self.runs:
            self.world.submit_child(run)

    def _beat(self, run: Run) -> None:
        if run.token not in self.runs:
            return
        if run.process is None or not run.process.frozen:
            details = msgspec.Raw(b"1") if run.does.saves else None
            self.world.host.tell(Beat(run.token, details, details))
        self.world.after(run.does.beats or 1.0, lambda: self._beat(run))

    def end(self, run: Run, status: str = "", *, frozen: bool = False) -> None:
        """End a call with the given outcome, or by its behaviour."""
        if self.runs.get(run.token) is not run:
            return
        if run.process is not None and run.process.frozen and not frozen:
            self.world.after(1.0, lambda: self.end(run, status))
            return
        if run.does.asks and run.waits and run.kind == "body":
            self.world.host.tell(LeaveApproval(run.token, "sign"))
        del self.runs[run.token]
        self.over.append(run.token)
        ended = self._ended(run, status)
        self.world.ended(run, ended)
        self.world.host.tell(ended)

    def _ended(self, run: Run, status: str) -> CallEnded:
        does = run.does
        if status in {"cancelled", "abandoned", "lost"}:
            kind = "worker_lost" if status == "lost" else status
            return CallEnded(run.token, status, error_type=kind, error="it was stopped")
        value: Any = msgspec.Raw(b"1") if run.kind == "body" else does.ends != "no"
        if does.ends == "failed":
            category = "permanent" if does.permanent else "unknown" if does.retry_after is None else "transient"
            return CallEnded(
                run.token, "failed", error_type="ValueError", error=does.error, permanent=does.permanent,
                retry_after=does.retry_after, category=category,
            )  # fmt: skip
        return CallEnded(run.token, "ok", value)

    def heal(self) -> None:
        """Remove all faults: no worker freezes any more, calls go on within their limits, and new calls succeed."""
        for process in self.processes.values():
            process.frozen = False

    # -- workers -------------------------------------------------------------------------------------------------------

    def start_worker(self, worker: str, incarnation: int) -> None:
        """Add a new incarnation. The calls of the incarnation before are lost."""
        before = self.processes.get(worker)
        if before is None or before.incarnation < incarnation:
            if before is not None:
                self.world.after(0.0, lambda: self._gone(before))
            self.processes[worker] = WorkerProcess(worker, incarnation)

    def probe(self, worker: str, incarnation: int) -> None:
        """Probe a worker. It answers a moment later, if it can."""
        process = self.processes.get(worker)
        if process is not None and process.incarnation == incarnation:
            self.world.after(0.0, lambda: self._answer(process))

    def _answer(self, process: WorkerProcess) -> None:
        if process.alive and not process.frozen:
            tokens = tuple(run.token for run in self.runs.values() if run.process is process)
            self.world.host.later(WorkerBeat(process.worker, process.incarnation, tokens))

    def stop_worker(self, worker: str, incarnation: int, deadline: float) -> None:
        """Let a worker end after its running calls."""
        process = self.processes.get(worker)
        if process is not None and process.incarnation == incarnation:
            self.world.after(deadline, lambda: self._gone(process))

    def kill_worker(self, worker: str, incarnation: int) -> None:
        """Kill a worker; its running calls are lost."""
        process = self.processes.get(worker)
        if process is not None and process.incarnation == incarnation:
            self.world.after(0.0, lambda: self._gone(process))

    def die(self, process: WorkerProcess) -> None:
        """End a worker's process without a request."""
        if process.alive:
            self.world.host.tell(WorkerDied(process.worker, process.incarnation, "it was killed by signal 9"))
            self._gone(process)

    def _gone(self, process: WorkerProcess) -> None:
        process.alive = False
        for run in [run for run in self.runs.values() if run.process is process]:
            self.end(run, "lost", frozen=True)
