"""The same plans on the whole runtime, simulated with `callboard.testing`: with its verbs, inbox and caller.

Rules
-----
- Commands are put into the inbox, as by other processes, or given by handles. Those of the inbox are durable when they
  are put: each is answered in the end, whatever crashed meanwhile, and takes effect at most once.
- It is slower and coarser than `driver.py`: between two moves, all due events happen. Other moves
  (a stopped runtime, heartbeats of ended calls) are only there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from callboard.actors.records.entities import JobRecord
from callboard.testing import Exits, Fails, Hangs, Simulation, Succeeds

from .ledger import EXPECTED, Wrong
from .plans import PEOPLE, Behaviour, Move, Plan

TRIES = 8
"""Number of attempts that have a script of their own; later attempts behave like the last one."""
PARTS = ("condition", "check", "cancel_hook", "hook")
ROUND, ROUNDS = 200.0, 10
LIVES = "lives"


class Whole:
    """A run of the whole runtime."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.findings: list[Wrong] = []
        self.taken: Counter[str] = Counter()
        self.rows: dict[int, str] = {}  # the reasons of the commands in the inbox, by row
        self.submitted: set[str] = set()
        self.sim = Simulation(
            seed=plan.seed, workers=plan.workers, tools=plan.tools, defaults=plan.defaults, health_checks=plan.health,
            alerts=plan.alerts, lifecycle=plan.lifecycle, functions="succeed", trace=4_000,
        )  # fmt: skip
        world = self.sim.world
        self._began = world.began
        world.began = self._began_really  # type: ignore[method-assign]
        self._tokens: set[tuple[int, int]] = set()

    @property
    def kinds(self) -> set[str]:
        """The kinds of its findings."""
        return {finding.kind for finding in self.findings}

    def wrong(self, kind: str, text: str) -> None:
        """Add a finding."""
        self.findings.append(Wrong(kind, text))
        self.sim.world.note("WRONG", kind, text)

    def _began_really(self, kind: str, owner: str, token: int) -> None:
        """Check that the cause of a started call is durable."""
        self._began(kind, owner, token)
        sim = self.sim
        life = 0 if kind == "body" else sim.world.crashes + 1  # the calls before a crash are not reported
        if (token, life) in self._tokens:
            self.wrong("token_twice", f"{kind} of {owner} began under token {token}, used before")
        self._tokens.add((token, life))
        if kind != "body":
            return
        claims = sim.world.journal.attempts(owner)
        mine = [claim for claim in claims if claim.key == token]
        if not mine:
            self.wrong("effect_before_cause", f"{owner} began under token {token} without a claim")
        elif mine[0].end is not None:
            self.wrong("started_after_cancel", f"{owner} began under token {token}, which has ended: {mine[0].end}")
        task = sim.world.journal.task(owner)
        more = task is not None and task.granted  # a further attempt is granted after a result that failed its checks
        if any(claim.end == "succeeded" for claim in claims) and not more:
            self.wrong("run_twice", f"{owner} began, and had succeeded")

    # -- scripts -------------------------------------------------------------------------------------------------------

    def script(self, job_id: str, names: list[str]) -> None:
        """Script all calls of a job by the plan."""
        plan, sim = self.plan, self.sim
        for name in names:
            does = [plan.behaviour(f"{job_id}/{name}", "body", number) for number in range(1, TRIES + 1)]
            self._script(f"{job_id}/{name}", does)
            for part in PARTS:
                answers = [plan.behaviour(f"{job_id}/{name}", part, number) for number in range(1, 4)]
                self._script(f"{job_id}/{name}.{part}", answers)
        sim.body("child", returns=1)

    def _script(self, name: str, does: list[Behaviour]) -> None:
        first = does[0]
        self.sim.body(
            name, outcomes=[_outcome(one) for one in does], heartbeat=first.beats, details=1 if first.saves else None,
            stops_in=1.0 if first.manners == "slow" else 0.0, ignores_stop=first.manners in {"deaf", "on"},
        )  # fmt: skip

    # -- jobs and words ------------------------------------------------------------------------------------------------

    def submit(self, after: int) -> None:
        """Submit the jobs that are due after so many moves."""
        for order in self.plan.orders:
            if order.after == after and order.job_id not in self.submitted:
                self.submitted.add(order.job_id)
                self.script(order.job_id, [*(task.name for task in order.spec.tasks), order.spec.name])
                spec, job_id, by = order.spec, order.job_id, order.by
                self.sim.do(lambda spec=spec, job_id=job_id, by=by: self.sim.runtime.submit(spec, id=job_id, by=by))

    def put(self, verb: str, kind: str, target: str, *, ring: bool = True, **arguments: Any) -> None:
        """Put a command into the inbox."""
        reason = f"word {len(self.rows)}"
        self.rows[self.sim.put(verb, kind, target, ring=ring, reason=reason, **arguments)] = reason

    @property
    def living(self) -> list[Any]:
        """The actors of the living jobs, as far as a runtime has them."""
        return list(self.sim.runtime.host.kernel.jobs.values()) if self.sim.runtime.opened else []

    def tasks(self, *states: str) -> list[Any]:
        """The actors of tasks in one of these states, or in any state."""
        found = [task for job in self.living if job.stream is not None for task in job.stream.tasks]
        return [task for task in found if not states or task.record.state in states]


def _outcome(does: Behaviour) -> Any:
    if does.ends == "never":
        return Hangs()
    if does.ends == "failed":
        return Fails(does.error, takes=does.takes)
    if does.ends == "no":
        return Exits(1, takes=does.takes)
    return Succeeds(1, takes=does.takes)


def carry_out(plan: Plan) -> Whole:
    """Execute a plan to its end."""
    run = Whole(plan)
    try:
        run.submit(0)
        for number, move in enumerate(plan.moves, start=1):
            for _ in range(move.steps):
                run.sim.step()
            if _MOVES.get(move.what, _nothing)(run, move):
                run.taken[move.what] += 1
            run.submit(number)
        _get_well(run)
        _at_the_end(run)
    except Exception as error:
        run.wrong("raised", f"{type(error).__name__}: {error}")
        raise
    finally:
        run.sim.close()
    return run


# -- moves -------------------------------------------------------------------------------------------------------------


def _nothing(_: Whole, __: Move) -> bool:
    return False


def _pick(move: Move, among: list[Any]) -> Any:
    return among[int(move.pick * len(among))] if among else None


def _crash(run: Whole, move: Move) -> bool:
    run.sim.crash(down=move.span)
    return True


def _drain(run: Whole, move: Move) -> bool:
    if not run.sim.runtime.opened:
        return False
    runtime, span = run.sim.runtime, min(move.span, 10.0)
    asked = run.sim.begin(lambda: runtime.drain(span))
    run.sim.advance(span + 40.0)
    if not asked.answered:
        run.wrong("never_ends", "a drain is still under way after its deadline")
    run.sim.crash()
    return True


def _wait(run: Whole, move: Move) -> bool:
    run.sim.advance(move.span)
    return True


def _clock(run: Whole, move: Move) -> bool:
    run.sim.jump_utc(move.span * (1 if move.pick < 0.5 else -1))
    return True


def _sick(run: Whole, move: Move) -> bool:
    run.sim.fail_journal(lasts=move.span)
    return True


def _slow(run: Whole, move: Move) -> bool:
    run.sim.slow_journal(move.span / 10)
    return True


def _worker(run: Whole, move: Move, verb: str) -> bool:
    if not run.sim.runtime.opened:
        return False
    named = run.sim.runtime.host.workforce.named
    own = [name for name, one in named.items() if one.record.engine == "process" and not one.ended]
    name = _pick(move, own)
    if name is not None:
        getattr(run.sim.worker(name), verb)()
    return name is not None


def _late(run: Whole, move: Move) -> bool:
    told = _pick(move, run.sim.world.results())
    return told is not None and run.sim.tell_again(told[0])


def _to_job(run: Whole, move: Move, verb: str, **more: Any) -> bool:
    job = _pick(move, run.living)
    if job is not None:
        run.put(verb, "job", job.record.id, ring=move.pick * 7 % 1 < 0.8, **more)
    return job is not None


def _to_task(run: Whole, move: Move, verb: str, *states: str, **more: Any) -> bool:
    task = _pick(move, run.tasks(*states) or run.tasks())
    if task is not None:
        target = f"{task.record.job_id}/{task.record.name}"
        run.put(verb, "task", target, ring=move.pick * 7 % 1 < 0.8, **more)
    return task is not None


def _cancel(run: Whole, move: Move) -> bool:
    force = move.pick * 3 % 1 < 0.2
    return (_to_job if move.pick < 0.3 else _to_task)(run, move, "cancel", force=force)  # type: ignore[operator]


def _by(move: Move) -> str:
    return PEOPLE[int(move.pick * 100) % len(PEOPLE)]


def _approve(run: Whole, move: Move) -> bool:
    held = [job for job in run.living if job.stream is not None and job.stream.record.state == "held"]
    if held:
        run.put("approve", "job", _pick(move, held).record.id, by=_by(move))
        return True
    return _to_task(run, move, "approve", "held", by=_by(move))


def _ended(run: Whole, move: Move) -> Any:
    return _pick(
        move, [job for job in run.sim.world.journal.jobs() if job.finished_at is not None and job.parent is None]
    )


def _retry(run: Whole, move: Move) -> bool:
    job = _ended(run, move)
    if job is None:
        return _to_task(run, move, "retry", "circuit_open")
    run.put("retry", "job", job.id)
    return True


def _again(run: Whole, move: Move) -> bool:
    job = _ended(run, move)
    if job is None:
        return False
    order = next((order for order in run.plan.orders if order.job_id == job.id), None)
    if order is None:
        return False
    task = _pick(move, list(order.spec.tasks))
    run.put("retry" if move.pick < 0.5 else "skip", "task", f"{job.id}/{task.name}")
    return True


def _to_breaker(run: Whole, move: Move, verb: str) -> bool:
    known = list(run.sim.runtime.host.workforce.breakers) if run.sim.runtime.opened else []
    tool = _pick(move, known)
    if tool is not None:
        run.put(verb, "breaker", tool)
    return tool is not None


def _to_worker(run: Whole, move: Move, verb: str) -> bool:
    name = _pick(move, [worker.name for worker in run.plan.workers])
    run.put(verb, "worker", name)
    return True


_MOVES: dict[str, Callable[[Whole, Move], bool]] = {
    "crash": _crash, "drain": _drain, "wait": _wait, "clock": _clock, "sick": _sick, "stand_still": _slow,
    "die": lambda run, move: _worker(run, move, "die"),
    "freeze": lambda run, move: _worker(run, move, "freeze"),
    "thaw": lambda run, move: _worker(run, move, "come_back"),
    "late": _late, "double": _late, "cancel": _cancel, "force": _cancel, "cancel_probe": _cancel,
    "pause": lambda run, move: _to_job(run, move, "pause"),
    "resume": lambda run, move: _to_job(run, move, "resume"),
    "approve": _approve,
    "reject": lambda run, move: _to_task(run, move, "reject", "held", by="ana"),
    "skip": lambda run, move: _to_task(run, move, "skip", "pending"),
    "reset": lambda run, move: _to_task(run, move, "reset", "circuit_open"),
    "retry": _retry, "again": _again,
    "trip": lambda run, move: _to_breaker(run, move, "trip"),
    "reset_breaker": lambda run, move: _to_breaker(run, move, "reset"),
    **{
        verb: lambda run, move, verb=verb: _to_worker(run, move, verb)  # type: ignore[misc]
        for verb in ("pause_worker", "resume_worker", "shut_down_worker", "terminate_worker")
    },
}  # fmt: skip


# -- the end -----------------------------------------------------------------------------------------------------------


def _get_well(run: Whole) -> None:
    """Remove all faults, and make all decisions that something waits for; then cancel the rest."""
    sim = run.sim
    sim.world.note("healing")
    sim.mend_journal()
    sim.slow_journal(0.0)
    for name in list(sim.world.frozen):
        sim.worker(name).come_back()
    for order in run.plan.orders:
        for name in [*(task.name for task in order.spec.tasks), order.spec.name]:
            for part in ("", *(f".{part}" for part in PARTS)):
                sim.body(f"{order.job_id}/{name}{part}", returns=1)
    for number in range(ROUNDS):
        sim.world.later(0.0, "notify", sim._ring)
        sim.run(within=ROUND)
        if not run.living and all(sim.answer(row) is not None for row in run.rows):
            return
        for job in run.living:
            _help(run, job, number)
        for worker in sim.runtime.host.workforce.named.values():
            if worker.ended and worker.record.name not in sim.runtime.host.workforce.health.coming:
                sim.begin(sim.runtime.worker(worker.record.name).start)
            elif worker.record.state == "paused":
                run.put("resume_worker", "worker", worker.record.name)
    run.wrong("never_ends", f"{run.living}")


def _help(run: Whole, job: Any, number: int) -> None:
    if job.over or job.parent is not None:
        return
    by, record = PEOPLE[number % len(PEOPLE)], job.record
    if number >= ROUNDS - 3:
        run.put("cancel", "job", record.id, force=number == ROUNDS - 2)
    elif job.stream is None:
        return
    elif job.stream.record.state == "paused":
        run.put("resume", "job", record.id)
    elif job.stream.record.state == "held":
        run.put("approve", "job", record.id, by=by)
    else:
        for task in job.stream.tasks:
            target = f"{record.id}/{task.record.name}"
            if task.record.state == "held":
                run.put("approve", "task", target, by=by)
            elif task.record.state == "circuit_open" and task.record.parked != "tool":
                run.put("reset", "task", target)


def _at_the_end(run: Whole) -> None:
    sim, journal = run.sim, run.sim.world.journal
    kernel = sim.runtime.host.kernel
    for finding in sim.findings():
        if "time_backwards" not in finding:
            run.wrong("audit", finding)
    for notice in sim.notices:
        if notice.event == "turn_undone" or (notice.severity == "error" and notice.event not in EXPECTED):
            run.wrong("trouble", f"{notice.event}: {notice.text}")
    _promises(run)
    left = [kernel.calls, kernel.slots, kernel.lent, kernel.uses, kernel.step_calls, kernel.jobs, kernel.stuck]
    if any(left):
        run.wrong("left_over", f"{left}")
    bodies = Counter(owner for kind, owner, _ in sim.started if kind == "body")
    for job in journal.jobs(limit=1_000):
        for stream in journal.workstreams(job.id):
            for task in journal.tasks(stream.key):
                _attempts(run, task, bodies)


def _promises(run: Whole) -> None:
    """Check that accepted work has ended, and that each command was answered and took effect once."""
    sim, journal = run.sim, run.sim.world.journal
    for job_id in run.submitted:
        record: JobRecord | None = journal.job(job_id)
        if record is None or record.finished_at is None:
            run.wrong("lost_command", f"job {job_id} was accepted, and is {record and record.state}")
    told = Counter((t.reason, t.entity_id, t.event) for t in sim.transitions if t.kind == "task")
    for row, reason in run.rows.items():
        if sim.answer(row) is None:
            run.wrong("lost_command", f"row {row} of the inbox was never answered")
        if any(count > 1 for (said, _, _), count in told.items() if said == reason):
            run.wrong("done_twice", f"row {row} of the inbox took effect twice")


def _attempts(run: Whole, task: Any, bodies: Counter[str]) -> None:
    rows = run.sim.world.journal.attempts(task.id)
    ends = Counter(row.end for row in rows)
    failed, lost = ends["failed"] + ends["timed_out"], ends["lost"]
    if ends[None]:
        run.wrong("miscounted", f"{task.id} has claims without an end")
    if (failed, lost) != (task.failed_attempts, task.lost_attempts):
        run.wrong("miscounted", f"{task.id}: {task.failed_attempts} failed, {task.lost_attempts} lost; rows {ends}")
    if bodies[task.id] > len(rows):
        run.wrong("miscounted", f"{task.id} really began {bodies[task.id]} times, with {len(rows)} claims")
