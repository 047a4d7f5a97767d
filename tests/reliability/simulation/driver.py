"""The driver: executes a plan, then removes all faults, and checks the invariants.

| move | what happens |
| --- | --- |
| crash, drain | the runtime is killed, or drained and closed, and starts again |
| die, freeze, thaw | a worker's process dies, is stopped, is continued |
| late, double, beat | an engine reports a call again, long or shortly after its end; or a late heartbeat |
| clock | UTC jumps, forward or back |
| too_late | UTC jumps to the end of a hold, and then a person approves |
| stand_still | the runtime is stopped: time passes in which no timer fires |
| sick | the journal cannot write for a while |
| wait | time passes |
| cancel, force, pause, resume, approve, reject, skip, reset, retry, again | people's commands to jobs and tasks |
| cancel_probe | a cancel of the task that probes a tool |
| trip, reset_breaker | commands to breakers |
| pause_worker, resume_worker, shut_down_worker, terminate_worker, start_worker | commands to workers |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from callboard.actors.jobs.workstream import is_clean_up
from callboard.actors.messages.commands import (
    Approve,
    Cancel,
    Pause,
    PauseWorker,
    Reject,
    ResetBreaker,
    ResetTask,
    Resume,
    ResumeWorker,
    ShutDownWorker,
    SkipTask,
    StartWorkers,
    TerminateWorker,
    TripBreaker,
)
from callboard.actors.messages.inputs import Beat, CallEnded, Message
from callboard.actors.records.entities import JobRecord
from callboard.actors.records.transition import Transitioned

from .checks import at_the_end, books
from .ledger import Wrong
from .plans import PEOPLE, Move, Plan
from .world import StuckError, World

T = TypeVar("T")
ROUND = 150.0
"""Seconds that may pass in one round of the repair."""
ROUNDS = 8
"""Rounds after which no more decisions are made, and the remaining jobs are cancelled."""


class Result:
    """The result of a run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.findings: list[Wrong] = world.ledger.findings
        self.taken = world.taken

    @property
    def kinds(self) -> set[str]:
        """The kinds of its findings."""
        return {finding.kind for finding in self.findings}

    def shown(self) -> set[tuple[str, str, str | None, str, str]]:
        """The pairs that it shows: each transition with the move that was made last before it (see `corpus.py`)."""
        marks = self.world.ledger.marks
        shown, at, last = set(), 0, ""
        for transition in self.world.disk.transitions:
            while at < len(marks) and marks[at][0] < transition.seq:
                last = marks[at][1]
                at += 1
            shown.add((transition.kind, last, transition.from_state, transition.event, transition.to_state))
        return shown

    def lines(self) -> Iterator[str]:
        """The trace: moves, reports, and the transitions as they became durable."""
        transitions, told = self.world.disk.transitions, 0
        for at, durable, what, facts in self.world.ledger.trace:
            for transition in transitions[told:durable]:
                yield _line(transition)
            told = max(told, durable)
            yield f"{at:9.2f} {what} {facts}"
        for transition in transitions[told:]:
            yield _line(transition)


def _line(t: Transitioned) -> str:
    about = "" if t.metadata is None else f" {t.metadata}"
    return f"{'':12}{t.seq} {t.kind} {t.entity_id}: {t.from_state} {t.event} {t.to_state} ({t.reason}){about}"


def carry_out(plan: Plan) -> Result:
    """Execute a plan to its end."""
    world = World(plan)
    ledger = world.ledger
    try:
        _orders(world, 0)
        for number, move in enumerate(plan.moves, start=1):
            for _ in range(move.steps):
                world.step()
            if make(world, move):
                world.taken[move.what] += 1
                ledger.marks.append((world.kernel.seq, move.what))
            _orders(world, number)
            books(world)
        _get_well(world)
        at_the_end(world)
    except StuckError as error:
        ledger.wrong("stuck", str(error))
    except Exception as error:
        ledger.wrong("raised", f"{type(error).__name__}: {error}")
        ledger.error = error
    result = Result(world)
    world.take_apart()
    return result


def _orders(world: World, after: int) -> None:
    for order in world.plan.orders:
        if order.after == after:
            world.ledger.orders[order.job_id] = False
            world.submit(order.job_id, order.spec, order.by)


# -- moves -------------------------------------------------------------------------------------------------------------


def make(world: World, move: Move) -> bool:
    """Make a move. Returns False if it has no possible target."""
    return _MOVES[move.what](world, move)


def _pick(move: Move, among: Sequence[T]) -> T | None:
    return among[int(move.pick * len(among))] if among else None


def _crash(world: World, move: Move) -> bool:
    world.clock.advance(move.span)
    world.crash()
    return True


def _drain(world: World, move: Move) -> bool:
    world.drain()
    return True


def _wait(world: World, move: Move) -> bool:
    world.note("wait", span=move.span)
    world.settle(move.span)
    return True


def _stand_still(world: World, move: Move) -> bool:
    world.note("stand_still", span=move.span)
    world.clock.advance(move.span)
    return True


def _clock(world: World, move: Move) -> bool:
    jump = move.span * (1 if move.pick < 0.5 else -1) * (1 if move.pick % 0.1 < 0.08 else 1000)
    world.note("clock", jump=jump)
    world.clock.jump_utc(jump)
    return True


def _too_late(world: World, move: Move) -> bool:
    """Let UTC jump to the end of a hold, and approve before the runtime has read the clock."""
    held = [one for one in _entities(world, "workstream", "task") if one.record.state == "held" and one.record.due_at]
    entity = _pick(move, held)
    if entity is None:
        return False
    world.clock.jump_utc(max(0.0, entity.record.due_at - world.clock.time()) + move.span)
    target = entity if entity.record.kind == "task" else entity.job
    world.command(target, "approve", Approve("cem"))
    return True


def _sick(world: World, move: Move) -> bool:
    world.note("sick", span=move.span)
    journal = world.journal
    journal.fall_sick(True)
    world.after(move.span, lambda: journal.fall_sick(False))
    return True


def _die(world: World, move: Move) -> bool:
    process = _pick(move, [process for process in world.hands.processes.values() if process.alive])
    if process is not None:
        world.note("die", worker=process.worker)
        world.hands.die(process)
    return process is not None


def _freeze(world: World, move: Move) -> bool:
    process = _pick(
        move, [process for process in world.hands.processes.values() if process.alive and not process.frozen]
    )
    if process is not None:
        world.note("freeze", worker=process.worker)
        process.frozen = True
    return process is not None


def _thaw(world: World, move: Move) -> bool:
    process = _pick(move, [process for process in world.hands.processes.values() if process.frozen])
    if process is not None:
        world.note("thaw", worker=process.worker)
        process.frozen = False
    return process is not None


def _late(world: World, move: Move) -> bool:
    token = _pick(move, world.hands.over)
    return token is not None and _tell_again(world, token)


def _double(world: World, move: Move) -> bool:
    return bool(world.hands.over) and _tell_again(world, world.hands.over[-1])


def _tell_again(world: World, token: int) -> bool:
    world.note("told again", token=token)
    world.host.tell(CallEnded(token, "ok", b"2"))
    return True


def _beat(world: World, move: Move) -> bool:
    token = _pick(move, world.hands.over)
    if token is not None:
        world.host.tell(Beat(token, None))
    return token is not None


# -- words -------------------------------------------------------------------------------------------------------------


def _entities(world: World, *kinds: str) -> list[Any]:
    return [entity for entity in world.kernel.entities.values() if entity.record.kind in kinds]


def _say(world: World, move: Move, what: str, kinds: Sequence[str], message: Message, *states: str) -> bool:
    """Send a command to an entity that may take it, or sometimes to any entity of that kind."""
    among = _entities(world, *kinds)
    fitting = [one for one in among if one.record.state in states] if states and move.pick * 7 % 1 > 0.15 else among
    entity = _pick(move, fitting)
    if entity is None:
        return False
    world.command(entity, what, message)
    return True


def _cancel(world: World, move: Move) -> bool:
    return _say(world, move, "cancel", ("job", "task", "task"), Cancel("asked to"))


def _force(world: World, move: Move) -> bool:
    return _say(world, move, "force", ("job", "task"), Cancel("asked to", force=True))


def _cancel_probe(world: World, move: Move) -> bool:
    """Cancel the task that probes a tool."""
    task = _pick(move, [one for one in _entities(world, "task") if one.record.probe or one.record.state == "half_open"])
    if task is not None:
        world.command(task, "cancel", Cancel("asked to", force=move.span > 5))
    return task is not None


def _pause(world: World, move: Move) -> bool:
    return _say(world, move, "pause", ("job",), Pause("a pause"))


def _resume(world: World, move: Move) -> bool:
    return _say(world, move, "resume", ("job",), Resume("on"))


def _approve(world: World, move: Move) -> bool:
    by = PEOPLE[int(move.pick * 100) % len(PEOPLE)]
    waiting = [one for one in _entities(world, "job", "task") if _is_held(one)]
    entity = _pick(move, waiting)
    if entity is None:
        return _say(world, move, "approve", ("task",), Approve(by))
    world.command(entity, "approve", Approve(by))
    return True


def _is_held(entity: Any) -> bool:
    if entity.record.kind == "job":
        return entity.stream is not None and entity.stream.record.state == "held"
    return entity.record.state == "held" or any(one.record.state == "held" for one in entity.asked)


def _reject(world: World, move: Move) -> bool:
    return _say(world, move, "reject", ("task",), Reject("ana"), "held", "running")


def _skip(world: World, move: Move) -> bool:
    return _say(world, move, "skip", ("task",), SkipTask("not needed"), "pending", "held")


def _reset(world: World, move: Move) -> bool:
    return _say(world, move, "reset", ("task",), ResetTask("once more"), "circuit_open")


def _ended(world: World) -> list[JobRecord]:
    living = world.kernel.jobs
    return [job for job in world.disk.of(JobRecord) if job.finished_at and job.id not in living and job.parent is None]


def _retry(world: World, move: Move) -> bool:
    record = _pick(move, _ended(world))
    if record is None:
        return _reset(world, move)
    world.next_run(record, "again", None, None)
    return True


def _again(world: World, move: Move) -> bool:
    """Start a next run in which one task runs again, or is skipped."""
    record = _pick(move, _ended(world))
    runs = [] if record is None else world.disk.journal.workstreams(record.id)
    if record is None or not runs:
        return False
    names = [task.name for task in world.disk.journal.tasks(runs[-1].key)]
    name = names[int(move.pick * 10) % len(names)]
    if move.pick * 3 % 1 < 0.5:
        world.next_run(record, "again", name, None)
    else:
        world.next_run(record, "again", None, name)
    return True


def _trip(world: World, move: Move) -> bool:
    return _say(world, move, "trip", ("breaker",), TripBreaker("it smokes", cooldown=move.span or None))


def _reset_breaker(world: World, move: Move) -> bool:
    return _say(world, move, "reset_breaker", ("breaker",), ResetBreaker("it is mended"))


def _pause_worker(world: World, move: Move) -> bool:
    return _say(world, move, "pause_worker", ("worker",), PauseWorker("a look"), "busy")


def _resume_worker(world: World, move: Move) -> bool:
    return _say(world, move, "resume_worker", ("worker",), ResumeWorker("on"), "paused")


def _shut_down_worker(world: World, move: Move) -> bool:
    message = ShutDownWorker("enough", deadline=move.span)
    return _say(world, move, "shut_down_worker", ("worker",), message, "busy", "idle", "paused")


def _terminate_worker(world: World, move: Move) -> bool:
    return _say(world, move, "terminate_worker", ("worker",), TerminateWorker("at once"), "busy", "unresponsive")


def _start_worker(world: World, move: Move) -> bool:
    gone = [one for one in world.workforce.named.values() if one.ended]
    worker = _pick(move, gone)
    if worker is not None:
        spec = world.worker_spec(worker.record.name)
        world.ledger.command("start_worker", worker.record.id, lambda reply: StartWorkers((spec,), reply))
    return worker is not None


_MOVES: dict[str, Callable[[World, Move], bool]] = {
    "crash": _crash, "drain": _drain, "wait": _wait, "stand_still": _stand_still, "clock": _clock, "sick": _sick,
    "too_late": _too_late, "die": _die, "freeze": _freeze, "thaw": _thaw, "late": _late, "double": _double,
    "beat": _beat, "cancel_probe": _cancel_probe,
    "cancel": _cancel, "force": _force, "pause": _pause, "resume": _resume, "approve": _approve, "reject": _reject,
    "skip": _skip, "reset": _reset, "retry": _retry, "again": _again, "trip": _trip, "reset_breaker": _reset_breaker,
    "pause_worker": _pause_worker, "resume_worker": _resume_worker, "shut_down_worker": _shut_down_worker,
    "terminate_worker": _terminate_worker, "start_worker": _start_worker,
}  # fmt: skip


# -- the end -----------------------------------------------------------------------------------------------------------


def _get_well(world: World) -> None:
    """Remove all faults, and make all decisions that something waits for; then cancel the rest."""
    world.heal()
    kernel = world.kernel
    for number in range(ROUNDS + 3):
        seen = len(world.disk.transitions)
        world.settle(ROUND, until=lambda: _quiet(world))
        if _quiet(world):
            break
        jobs = [job for job in kernel.jobs.values() if not job.over and job.parent is None]
        moved = {t.job_id for t in world.disk.transitions[seen:]}
        for job in jobs:
            if not _moved(job.record.id, moved) and not _waits_for_somebody(world, job):
                world.ledger.wrong("never_ends", f"job {job.record.id} is {job.record.state}, and waits for nobody")
            if number >= ROUNDS:
                world.command(job, "cancel", Cancel("enough", force=number > ROUNDS))
            else:
                _help(world, job, number)
        _help_workers(world)
    if not _quiet(world):
        left = {job.record.id: str(job.record.state) for job in kernel.jobs.values()}
        world.ledger.wrong("never_ends", f"jobs that do not end: {left}")
    world.settle(0.0)


_WAITING = frozenset({"waiting", "retrying", "circuit_open"})


def _moved(job_id: str, moved: set[str | None]) -> bool:
    """Whether there was a transition in a job, or in one of its child jobs."""
    return any(one == job_id or (one or "").startswith(f"{job_id}/") for one in moved)


def _waits_for_somebody(world: World, job: Any) -> bool:
    """Whether it waits for a person, or for more time than has passed."""
    stream = job.stream
    if stream is None or job.record.retry_at is not None or job.children:
        return True
    if stream.record.state in {"held", "waiting", "paused"}:
        return True
    few = any(one.record.state == "paused" or one.ended for one in world.workforce.named.values())
    for task in stream.tasks:
        state = task.record.state
        if _is_held(task) or (state in _WAITING and not _cancelling(job, task)):
            return True
        if state in {"queued", "half_open"} and (few or not task.record.routable):
            return True
    return False


def _cancelling(job: Any, task: Any) -> bool:
    """Whether a task is to be cancelled with its job. Clean-up tasks run after a failure."""
    stream = job.stream
    if stream.record.cause == "failure" and is_clean_up(task.spec):
        return False
    return job.record.state == "cancelling" or stream.record.cause == "cancel"


def _quiet(world: World) -> bool:
    return not (
        world.kernel.jobs or world.clients or world.journal.waiting or world.hands.runs or world.host.waiting
        or world.kernel.calls
    )  # fmt: skip


def _help(world: World, job: Any, number: int) -> None:
    stream = job.stream
    if stream is None:
        return
    state = stream.record.state
    by = PEOPLE[number % len(PEOPLE)]
    if state == "paused":
        world.command(job, "resume", Resume("on"))
    elif state == "held":
        world.command(job, "approve", Approve(by))
    for task in stream.tasks:
        if _is_held(task):
            world.command(task, "approve", Approve(by))
        elif task.record.state == "circuit_open" and task.record.parked != "tool":
            world.command(task, "reset", ResetTask("once more"))
    if number == ROUNDS - 1:
        for one in _entities(world, "breaker"):
            world.command(one, "reset_breaker", ResetBreaker("it is mended"))


def _help_workers(world: World) -> None:
    for worker in list(world.workforce.named.values()):
        if worker.ended and worker.record.name not in world.workforce.health.coming:
            spec = world.worker_spec(worker.record.name)
            world.ledger.command(
                "start_worker", worker.record.id, lambda reply, spec=spec: StartWorkers((spec,), reply)
            )
        elif worker.record.state == "paused":
            world.command(worker, "resume_worker", ResumeWorker("on"))
