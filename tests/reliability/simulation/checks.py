"""The invariants of every run: of the runtime's derived state at any time, and of its data at the end.

| kind of finding | broken invariant |
| --- | --- |
| audit | a finding of the auditor about the journal: order, machines, invariants |
| books | the actors' derived state does not follow from their records: slots, timers, counts |
| never_ends | a job that was accepted did not end |
| left_over | a timer is armed, a slot is held or a call runs after all jobs have ended |
| miscounted | the counts of a task's attempts are not those of its rows, or of the bodies that really ran |
| result_lost | the journal's result is not the one that the body returned |
| hook_missed | a hook that had to run never began |
| lost_command | a command that was acknowledged had no effect |
| too_late | an entity was approved after its hold had expired |
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from callboard.actors.messages.inputs import RECOVER, TimerFired
from callboard.actors.records.entities import BreakerRecord, JobRecord, OutboxRow, WorkstreamRecord
from callboard.actors.records.task import AttemptRecord, TaskRecord
from callboard.actors.records.transition import as_event
from callboard.actors.workers.breaker import REST_EPOCH
from callboard.machines.audit.audit import audit

if TYPE_CHECKING:
    from .world import World

ENDS = {"failed": "failed", "timed_out": "failed", "lost": "lost"}
KEPT = frozenset({"worker", "breaker"})
"""The kinds of entities that outlive jobs."""


def books(world: World) -> None:
    """Check that the derived state agrees with the records, between any two turns."""
    kernel, wrong = world.kernel, world.ledger.wrong
    if RECOVER in world.host._inbox.data:  # no state is derived yet
        return
    for worker in kernel.workers.values():
        held = sum(slot.worker == worker.record.key for slot in kernel.slots.values())
        reserved = any(job.record.worker_count for job in kernel.jobs.values())
        used = held if reserved else worker.used  # it counts the slots that jobs reserve, too
        if not used == worker.record.assigned == held:
            text = f"it counts {worker.used}, its record {worker.record.assigned}, and {held} slots are held"
            wrong("books", f"worker {worker.record.id}: {text}")
    armed, fired = _armed(world)
    for entity in kernel.entities.values():
        record: Any = entity.record
        timers = armed.pop((record.key, record.epoch), 0) + fired[record.key, record.epoch]
        if (
            record.kind == "task" and record.state == "running"
        ):  # its timer only checks the limits again: one timer too many is allowed
            timers = min(timers, 1)
        if (
            record.kind in _LONG or record.kind == "breaker"
        ):  # as does a breaker's, which checks the tasks that can start now
            armed.pop((record.key, 0), None)
        if record.kind == "breaker":
            rests = armed.pop((record.key, REST_EPOCH), 0) + fired[record.key, REST_EPOCH]
            if rests != (record.not_before is not None):
                wrong("books", f"{rests} timers end the rest of {record.id}, which is until {record.not_before}")
        due = getattr(record, "due_at", None) is not None and not entity.ended
        if record.kind == "breaker" and kernel.node:
            due = timers  # after its cooldown it waits for the message that no other node probes
        if record.kind not in _LONG and timers != due:
            due_at = f"due_at is {record.due_at}"
            wrong("books", f"{record.kind} {record.id} ({record.state}) has {timers} timers armed, and {due_at}")
    for (key, epoch), count in armed.items():
        if key > 0:
            wrong("books", f"{count} timers are armed for entity {key} in epoch {epoch}, which has passed")


_LONG = frozenset({"job", "workstream"})
"""The kinds of entities whose deadlines outlive states."""


def _armed(world: World) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]]]:
    """Count the armed timers by entity and epoch, and those that have fired and are not received yet."""
    heaps = [world.dispatcher.timers.heap, *(timers.heap for timers in world.host._utc.heaps)]
    fires = [timer.args for heap in heaps for _, _, timer in heap if timer.action is not None]
    armed, fired = (
        Counter((fire.key, fire.epoch) for fire in some if isinstance(fire, TimerFired))
        for some in (fires, world.host._inbox.urgent)
    )
    return armed, fired


def at_the_end(world: World) -> None:
    """Check the invariants of a run whose jobs have all ended."""
    books(world)
    _log(world)
    _jobs(world)
    _nothing_left(world)
    for task in world.disk.of(TaskRecord):
        _attempts(world, task)
        _hooks(world, task)
    for stream in world.disk.of(WorkstreamRecord):
        _hooks(world, stream)
    _commands(world)


def _log(world: World) -> None:
    _decisions(world)
    jumped = world.taken["clock"]
    for found in audit(map(as_event, world.disk.transitions)):
        if not (jumped and found.kind == "time_backwards"):
            world.ledger.wrong("audit", f"{found.kind} at {found.seq}: {found.text}")


def _decisions(world: World) -> None:
    """Check that no entity was approved after its hold had expired."""
    expires: dict[str, str] = {}
    for t in world.disk.transitions:
        told = t.metadata or {}
        if "expires_at" in told:
            expires[t.entity_id] = told["expires_at"]
        if "clauses_met" in told and t.timestamp > expires.get(t.entity_id, "9"):
            world.ledger.wrong("too_late", f"{t.entity_id} was approved at {t.timestamp}, and expired before")


def _jobs(world: World) -> None:
    wrong, ledger = world.ledger.wrong, world.ledger
    records = {job.id: job for job in world.disk.of(JobRecord)}
    for job_id, accepted in ledger.orders.items():
        if not accepted:
            wrong("lost_command", f"job {job_id} was never answered")
        elif job_id not in records:
            wrong("lost_command", f"job {job_id} was accepted, and is not in the journal")
    for record in records.values():
        if record.finished_at is None:
            wrong("never_ends", f"job {record.id} is {record.state}")


def _nothing_left(world: World) -> None:
    kernel, wrong = world.kernel, world.ledger.wrong
    for name, left in (
        ("calls", kernel.calls), ("slots", kernel.slots), ("lent slots", kernel.lent), ("jobs", kernel.jobs),
        ("uses of tools", kernel.uses), ("steps on workers", kernel.step_calls),
        ("stuck entities", kernel.stuck),
        ("entities", [entity for entity in kernel.entities.values() if entity.record.kind not in KEPT]),
        ("outbox rows", world.disk.of(OutboxRow)), ("running bodies", world.hands.runs),
    ):  # fmt: skip
        if left:
            wrong("left_over", f"{len(left)} {name}: {str(left)[:300]}")
    scheduler = kernel.scheduler
    gates = [*scheduler.pools.values(), *scheduler.tools.values()]
    if any(gate.used for gate in gates):
        wrong("left_over", f"limits that count: {[gate.used for gate in gates]}")
    if scheduler.streams or any(scheduler.queues.values()):
        wrong("left_over", f"{len(scheduler.streams)} limits and queues of workstreams that have ended")
    for breaker in world.disk.of(BreakerRecord):
        if breaker.probe is not None:
            wrong("left_over", f"the permit of tool {breaker.name} is with task {breaker.probe}")


def _attempts(world: World, task: TaskRecord) -> None:
    wrong, name = world.ledger.wrong, task.id
    rows = sorted((a for a in world.disk.of(AttemptRecord) if a.task == task.key), key=lambda row: row.attempt)
    if task.published is None and [row.attempt for row in rows] != list(range(1, task.attempt + 1)):
        wrong("miscounted", f"{name} is at attempt {task.attempt}, and has rows {[row.attempt for row in rows]}")
    ends = Counter(ENDS.get(row.end or "none", row.end) for row in rows)
    if ends[None] or ends["none"]:
        wrong("miscounted", f"{name} has claims without an end: {[(row.attempt, row.end) for row in rows]}")
    if (ends["failed"], ends["lost"]) != (task.failed_attempts, task.lost_attempts):
        text = f"{task.failed_attempts} failed and {task.lost_attempts} lost"
        wrong("miscounted", f"{name} counts {text}; its rows are {[row.end for row in rows]}")
    if task.failed_attempts > task.max_attempts + task.granted or task.lost_attempts > task.max_losses + task.granted:
        wrong("miscounted", f"{name} failed {task.failed_attempts} and lost {task.lost_attempts} times: {task.allowed}")
    if world.ledger.bodies[task.key] > len(rows):
        wrong("miscounted", f"{name} really began {world.ledger.bodies[task.key]} times, with {len(rows)} claims")
    for row in rows:
        _end(world, task, row)


def _end(world: World, task: TaskRecord, row: AttemptRecord) -> None:
    """Check that the journal's end of an attempt is the real end of its body."""
    returned = world.ledger.returned.get(row.key)
    if row.end == "succeeded" and (returned is None or returned.status != "ok"):
        world.ledger.wrong("result_lost", f"attempt {row.attempt} of {task.id} succeeded, and its body did not")
    ended_so = returned is not None and returned.status in {"ok", "failed"}
    if row.end == "lost" and ended_so and row.key not in world.ledger.unheard:
        world.ledger.wrong("miscounted", f"attempt {row.attempt} of {task.id} is lost, and its body had ended")
    if row.end == "failed" and (returned is None or returned.status != "failed"):
        came = "never ended" if returned is None else f"ended {returned.status}"
        world.ledger.wrong("miscounted", f"attempt {row.attempt} of {task.id} failed; its body {came}")


def _hooks(world: World, record: TaskRecord | WorkstreamRecord) -> None:
    """Check that the hooks of ended entities have ended, and those of a cancel that was not forced."""
    spec = _spec_of(world, record)
    if spec is None:
        return
    done, wrong = world.ledger.hooks, world.ledger.wrong
    of = {"completed": spec.on_completed, "failed": spec.on_failed, "cancelled": spec.on_cancelled}
    hooks = of.get(str(record.state), [])
    if record.state == "completed" and (isinstance(record, WorkstreamRecord) or record.attempt):
        for index in range(len(spec.checks)):
            if not done[record.id, "check", index]:
                wrong("hook_missed", f"{record.id} is completed, and its check {index} has not come to its end")
    carried = isinstance(record, TaskRecord) and record.state == "completed" and not record.attempt
    if not carried and done[record.id, "hook", 0] < len(hooks):
        wrong("hook_missed", f"{record.id} is {record.state}: {done[record.id, 'hook', 0]} of {len(hooks)} hooks ended")
    if record.state != "cancelled" or record.previous_state != "cancelling" or _cut_short(world, record):
        return
    if isinstance(record, WorkstreamRecord) or spec.cleanup_on_cancel is not False:
        for index in range(len(spec.cancel_hooks)):
            if not done[record.id, "cancel_hook", index]:
                wrong("hook_missed", f"{record.id} is cancelled, and its cancel hook {index} has not come to its end")


def _cut_short(world: World, record: TaskRecord | WorkstreamRecord) -> bool:
    """Whether its cancel was forced, or took too long."""
    events = {t.event for t in world.disk.transitions if t.entity_id == record.id}
    forced = isinstance(record, WorkstreamRecord) and (record.forced or record.cause != "cancel")
    forced |= any(said.what == "force" and said.error is None for said in world.ledger.said.values())
    return forced or not events.isdisjoint({"cancel_force", "cancel"}) or "abandoned" in (record.reason or "")


def _spec_of(world: World, record: TaskRecord | WorkstreamRecord) -> Any:
    for order in world.plan.orders:
        if order.job_id == record.job_id:
            if isinstance(record, WorkstreamRecord):
                return order.spec
            return next((task for task in order.spec.tasks if task.name == record.name), None)
    return None


def _commands(world: World) -> None:
    for said in world.ledger.said.values():
        if not said.answered:
            world.ledger.wrong("lost_command", f"{said.what} {said.key} was never answered")
        elif said.error is None and said.key not in world.disk.requests:
            world.ledger.wrong("lost_command", f"{said.what} {said.key} was acknowledged, and left no trace")
