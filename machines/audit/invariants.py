"""The rules that must hold between transitions, as far as a log of them can show it.

Rules
-----
- Pure, and streaming: each check sees one line and the data kept from earlier lines of the entity. Memory grows
  with the entities, never with the lines.
- Data that the log does not have is unknown, not wrong: a check that lacks a figure is skipped.
- Checks read the phase of an entity's state. An entity that runs by another lifecycle than the runtime's own
  may lack phases: what happens inside another phase is not checked. If its lifecycle has no way to an end, the entity
  may rest, and counts as ended while it does.
- An entity whose table is not known (its lifecycle is unknown, or the log begins after its creation) is in unknown
  phases: no check that needs a phase applies to it, nor to its parent because of it.
- A parent (a job, a workstream) ends after its children, or, if it is cancelled before they have begun, in
  the same turn. The log does not show turns. So such an end is checked when the last child has ended; a child that
  goes on instead, or never ends, is the finding.

What the metadata of a line may hold
------------------------------------
- A task's creation: `depends_on` (a number), `optional`, `max_attempts`, `max_losses`. Its bad ends:
  `failed_attempts`, `lost_attempts` (both include this end), `granted`. Its skip: `standing`.
  The creation, in `completed`, of a task that a further run carries over: `carried_over`, its id in the earlier run.
- Any end by another lifecycle that has no word for it: `ended_as`, the phase that it really was.
- A job's creation: `parent_id`, `depth`, if a task of that job submitted it.
- A task's permit (`cool_down`): `tool`, the tool that the task probes; `while_waits`, the id of the task that had the
  permit before and passed it on: its attempt goes on, and waits for an approval, or for its cancel hooks.
- A worker's creation: `capacity`. Its other lines: `assigned` (after the line).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from ..adapt.refinement import ENDS, INSTEAD, Refinement
from ..builtin.job import JobState
from ..builtin.task import TaskState
from ..builtin.worker import WorkerState
from ..builtin.workstream import Standing, WorkstreamState, derive, standing
from ..keywords import number_of
from ..machine import Machine
from ..phases import Phase
from .log import EPOCH, TransitionEvent

TOGETHER: Final = frozenset(
    {"alive_in_ended", "completed_with_bad", "dependencies_unmet", "derived_otherwise", "started_out_of_turn"}
)
"""The kinds of findings about an entity that depend on lines of its children or its siblings."""

# A finding's kind and its text.
Broken: TypeAlias = tuple[str, str]


class Entity:
    """The data kept of one entity. For a task, `derive` reads it too."""

    __slots__ = (
        "at_most",
        "attempt",
        "bad",
        "begun_elsewhere",
        "brief",
        "children",
        "depends_on",
        "depth",
        "early",
        "ended_children",
        "entity_id",
        "epoch",
        "job_id",
        "kind",
        "live",
        "machine",
        "max_losses",
        "optional",
        "parent",
        "refined",
        "seq",
        "shown",
        "standing",
        "state",
        "told",
        "worker_id",
        "workstream_id",
    )

    def __init__(
        self,
        kind: str,
        entity_id: str,
        machine: Machine | None,
        parent: Entity | None,
        refined: Refinement | None = None,
    ) -> None:
        self.kind: Final = kind
        self.entity_id: Final = entity_id
        self.machine: Final = machine
        self.parent = parent
        self.refined: Final = refined
        self.shown = ""  # the entity's state, as the log says
        self.state = ""  # the phase of that state: in the runtime's own lifecycles the same word
        self.brief = False  # whether its log has no owners, workers and attempts (document 001)
        self.seq = 0
        self.epoch = 0  # the epoch of its last line, which names a node's numbers
        self.job_id: str | None = None
        self.workstream_id: str | None = None
        # Of a parent.
        self.begun_elsewhere = False  # whether some of its earlier children are unknown
        self.children: list[Entity] = []
        self.live = 0  # children that have not ended
        self.ended_children = 0
        self.bad = 0  # children that a completed parent must not have
        self.depth: int | None = None  # of a child job
        self.early = False  # whether it was executing before its tasks: only a log without starts allows this
        # Of a task or worker; None and False where the log does not say.
        self.at_most: int | None = None  # a task's attempts, or a worker's capacity
        self.max_losses: int | None = None
        self.depends_on: int | None = None
        self.attempt = 0
        self.worker_id: str | None = None  # the worker of the last start
        self.told = False  # whether its last start, or the lack of one, is known
        self.optional = False
        self.standing: str | None = None

    @property
    def known(self) -> bool:
        """Whether the phases of its states are known."""
        return self.machine is not None

    @property
    def knows_children(self) -> bool:
        """Whether the phases of all its children are known."""
        return all(child.known for child in self.children)

    @property
    def ended(self) -> bool:
        """Whether its state is terminal."""
        return self.machine is not None and _is_terminal(self.machine, self.shown)

    @property
    def settled(self) -> bool:
        """Whether the entity has ended, or may rest in its state."""
        return self.ended or (self.refined is not None and self.resting)

    @property
    def resting(self) -> bool:
        """Whether the entity may stay for good in a state that is not terminal (rest)."""
        return self.refined is not None and self.shown in self.refined.phases and self.refined.rests(self.shown)

    def enter(self, state: str, told: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Set its state, one of its lifecycle. told: the metadata of the line."""
        self.shown = state
        if self.refined is None:
            self.state = state
            return
        phase = str(self.refined.phases.get(state, state))
        ended_as = told.get("ended_as")
        self.state = ended_as if isinstance(ended_as, str) and phase in INSTEAD.get(ended_as, ()) else phase

    def release(self) -> None:
        """Remove its children, and its own part in its parent."""
        for child in self.children:
            child.parent = None
        self.children, self.live, self.ended_children, self.bad = [], 0, 0, 0
        self.early, self.begun_elsewhere = False, True

    def lacks(self, phase: str) -> bool:
        """Whether its lifecycle has no state of that phase."""
        return self.refined is not None and phase not in self.refined.knows


def _is_terminal(machine: Machine, state: str) -> bool:
    declared = machine.states.get(state)
    return declared is not None and declared.terminal


# In these states no child had begun: an end may come before the children's, in the same turn.
_NOT_BEGUN: Final = frozenset(
    {
        JobState.SUBMITTED,
        JobState.PENDING,
        WorkstreamState.PLANNED,
        WorkstreamState.READY,
        WorkstreamState.HELD,
        WorkstreamState.WAITING,
    }
)
# In these states a workstream lets its tasks start: the first start makes it executing; in `cancelling` only clean-up
# tasks start.
_STARTS: Final = frozenset({WorkstreamState.READY, WorkstreamState.EXECUTING, WorkstreamState.CANCELLING})
PROBED: Final = frozenset({"task", "breaker"})
"""The kinds of entities that `Probes` checks."""
_PROBING: Final = frozenset(
    {TaskState.HALF_OPEN, TaskState.RUNNING, TaskState.TIMED_OUT, TaskState.RECOVERING, TaskState.CANCELLING}
)
_RUNS: Final = frozenset({TaskState.RUNNING, TaskState.RECOVERING, TaskState.TIMED_OUT, TaskState.CANCELLING})
_CLAIMED_FROM: Final = frozenset({TaskState.QUEUED, TaskState.HALF_OPEN})


def created(entity: Entity, event: TransitionEvent) -> Iterator[Broken]:
    """Check an entity's first line."""
    metadata = event.metadata
    entity.job_id, entity.workstream_id = event.job_id, event.workstream_id
    entity.told = event.from_state is None
    if entity.kind == "task":
        entity.at_most = _figure(metadata, "max_attempts")
        entity.max_losses = _figure(metadata, "max_losses")
        entity.depends_on = _figure(metadata, "depends_on")
        entity.optional = metadata.get("optional") is True
    elif entity.kind == "worker":
        entity.at_most = _figure(metadata, "capacity")
    if (parent := entity.parent) is not None:
        parent.children.append(entity)
        parent.live += entity.known and not entity.settled
        parent.ended_children += entity.settled
        if entity.kind == "job":
            yield from _child(entity, parent, metadata)
        if parent.ended:
            yield (
                "alive_in_ended",
                f"was created in {parent.kind} {parent.entity_id}, which is {parent.state}",
            )


def _child(job: Entity, parent: Entity, known: Mapping[str, Any]) -> Iterator[Broken]:
    depth = job.depth = _figure(known, "depth")
    if depth is not None and depth != (parent.depth or 0) + 1:
        yield "wrong_depth", f"is at depth {depth}, and its parent {parent.entity_id} at {parent.depth or 0}"


def moved(
    entity: Entity, event: TransitionEvent, before: str, *, was_ended: bool, was_settled: bool
) -> Iterator[Broken]:
    """Check a later line, once the entity is in its new state. `before`: its phase before."""
    if not entity.known:
        yield from _attempts(entity, event.metadata)
        return
    if (check := _CHECKS.get(entity.kind)) is not None:
        yield from check(entity, event, before)
    parent = entity.parent
    if parent is not None and entity.settled != was_settled:
        over = 1 if entity.settled else -1
        parent.live -= over
        parent.ended_children += over
    if entity.kind == "workstream":
        yield from _as_derived(entity)
    if entity.ended:
        if not was_ended:
            yield from _ended(entity, before)
    elif parent is not None and parent.ended:
        yield "alive_in_ended", f"went on in {parent.kind} {parent.entity_id}, which is {parent.shown}"


def _ended(entity: Entity, before: str) -> Iterator[Broken]:
    if (parent := entity.parent) is not None and entity.kind == "task" and not entity.optional:
        parent.bad += _is_bad(entity)
    if entity.live and before not in _NOT_BEGUN:
        yield "alive_in_ended", f"became {entity.shown} with {entity.live} of its parts not ended"
    if entity.kind == "workstream" and entity.state == WorkstreamState.COMPLETED and (bad := _bad(entity)):
        yield "completed_with_bad", f"became {entity.shown} with {bad} critical tasks that ended badly"


def _bad(stream: Entity) -> int:
    """How many critical tasks have ended badly, including those that rest in a failure."""
    rest = (task for task in stream.children if task.resting and not task.optional)
    return stream.bad + sum(task.state == Phase.DECIDING or _is_bad(task) for task in rest)


def _is_bad(task: Entity) -> bool:
    return standing(task.state, task.standing) is Standing.BAD


# By the phase that a workstream has just entered: what its document's function may return for its tasks then. A
# workstream without remaining tasks passes through `executing` to its validation at once.
_MAY_SAY: Final[Mapping[str, frozenset[str]]] = {
    Phase.READY: frozenset({Phase.READY}),
    Phase.EXECUTING: frozenset({Phase.EXECUTING, Phase.VALIDATING}),
    Phase.VALIDATING: frozenset({Phase.VALIDATING}),
    Phase.COMPLETED: frozenset({Phase.VALIDATING}),
}


def _as_derived(stream: Entity) -> Iterator[Broken]:
    """Compare the state that a workstream has entered with its document's own function of its tasks."""
    refined = stream.refined
    may_say = _MAY_SAY.get(stream.state)
    if refined is None or refined.lifecycle.derive is None or may_say is None or stream.brief or stream.begun_elsewhere:
        return
    derive_state, name = refined.lifecycle.derive, refined.lifecycle.name
    tasks = stream.children
    for task in tasks:  # the function accepts the states of its own document only
        if task.refined is None or task.refined.lifecycle.name != name or task.shown not in task.refined.phases:
            return
    if stream.state == Phase.READY:  # tasks carried over from the run before have not begun in this run
        tasks = [task for task in tasks if task.state != TaskState.COMPLETED]
        if not tasks:
            return
    says = {
        derive_state([_Derived(task.shown, critical=not task.optional) for task in asked])
        for asked in (tasks, [task for task in tasks if not task.resting])  # a resting task may count as ended
    }
    phases = {refined.phases.get(state, state) for state in says}
    if may_say.isdisjoint(phases):
        words = " or ".join(sorted(says))
        yield "derived_otherwise", f"became {stream.shown}, while {name} derives of its tasks: {words}"
    stream.early = stream.state == Phase.EXECUTING and Phase.READY in phases


class _Derived:
    """A task, as a document's own function reads it."""

    __slots__ = ("critical", "state")

    def __init__(self, state: str, *, critical: bool) -> None:
        self.state = state
        self.critical = critical


def _task(task: Entity, event: TransitionEvent, before: str) -> Iterator[Broken]:
    metadata = event.metadata
    if task.state == TaskState.SKIPPED and metadata.get("standing") in tuple(Standing):
        task.standing = metadata["standing"]
    if metadata:
        yield from _attempts(task, metadata)
    parent = task.parent
    queues = task.state == TaskState.QUEUED or (task.state == TaskState.RUNNING and task.lacks(Phase.QUEUED))
    if queues and parent is not None and task.depends_on is not None:
        if parent.ended_children < task.depends_on and parent.knows_children:
            ended = f"only {parent.ended_children} of the tasks of {parent.entity_id} ended"
            yield (
                "dependencies_unmet",
                f"was queued with {number_of(task.depends_on, 'dependency', 'dependencies')}, but {ended}",
            )
        task.depends_on = None  # checked once: a satisfied dependency stays satisfied
    if task.state == TaskState.RUNNING:
        yield from _start(task, event, before)
    elif task.refined is not None and before in _RUNS:  # the task may have been retried inside that state
        task.worker_id, task.attempt = event.worker_id, max(task.attempt, event.attempt or 0)
    if event.attempt is not None:
        if event.attempt < task.attempt:
            yield "attempt_backwards", f"is at attempt {event.attempt} after attempt {task.attempt}"
        elif event.attempt > task.attempt and task.told and task.state != TaskState.RUNNING:
            yield "other_attempt", f"is at attempt {event.attempt}, {_last_start(task.attempt or None)}"
        task.attempt = max(task.attempt, event.attempt)
    if event.worker_id is not None and event.worker_id != task.worker_id and task.told:
        yield "other_worker", f"is said to be on {event.worker_id}, {_last_start(task.worker_id)}"


def _start(task: Entity, event: TransitionEvent, before: str) -> Iterator[Broken]:
    parent = task.parent
    if event.worker_id is None and not task.brief:
        yield "no_worker", "started without a worker"
    if event.attempt is None and not task.brief:
        yield "no_attempt", "started without the number of an attempt"
    task.worker_id, task.told = event.worker_id, True
    if parent is not None and parent.early:
        parent.early = False
        yield "derived_otherwise", f"started after {parent.kind} {parent.entity_id} had, which its tasks did not allow"
    claimed = before in _CLAIMED_FROM or task.lacks(Phase.QUEUED)
    if claimed and parent is not None and parent.known and parent.state not in _STARTS:
        yield "started_out_of_turn", f"started while workstream {parent.entity_id} was {parent.shown}"


def _last_start(what: object) -> str:
    return "before any start" if what is None else f"while its last start said {what}"


def _attempts(task: Entity, known: Mapping[str, Any]) -> Iterator[Broken]:
    granted = _figure(known, "granted") or 0
    losses = None if task.max_losses is None else max(task.max_losses, 1)  # no limit forbids the first loss
    for word, figure, limit in (
        ("failed", _figure(known, "failed_attempts"), task.at_most),
        ("lost", _figure(known, "lost_attempts"), losses),
    ):
        if figure is not None and limit is not None and figure > limit + granted:
            yield (
                "too_many_attempts",
                f"has {number_of(figure, f'{word} attempt')}, of {limit} allowed and {granted} granted",
            )


def _worker(worker: Entity, event: TransitionEvent, _: str) -> Iterator[Broken]:
    assigned = _figure(event.metadata, "assigned")
    if assigned is None:
        return
    if worker.at_most is not None and assigned > worker.at_most:
        yield "over_capacity", f"runs {number_of(assigned, 'attempt')}, over its capacity of {worker.at_most}"
    if (worker.state == WorkerState.IDLE and assigned > 0) or (worker.state == WorkerState.BUSY and assigned < 1):
        yield "wrong_assignment", f"is {worker.state} and runs {number_of(assigned, 'attempt')}"


_CHECKS: Final[Mapping[str, Callable[[Entity, TransitionEvent, str], Iterator[Broken]]]] = {
    "task": _task,
    "worker": _worker,
}


class Probes:
    """The task that probes each tool: at most one, while it has the permit of the breaker's present period.

    The order of lines in several epochs is not known.
    """

    def __init__(self) -> None:
        self._of: dict[str, tuple[Entity, int]] = {}

    def take(self, entity: Entity, event: TransitionEvent) -> Iterator[Broken]:
        """Check a line of a task or a breaker, once the entity is in its new state."""
        if event.kind == "breaker":  # earlier permits do not count any more
            for name in (event.entity_id, event.entity_id.rpartition("@")[0]):  # "TOOL@NODE" where there are several
                self._of.pop(name, None)
            return
        tool = event.metadata.get("tool") if entity.state == TaskState.HALF_OPEN else None
        if isinstance(tool, str):
            epoch = event.seq // EPOCH
            other, before = self._of.get(tool, (entity, epoch))
            given_on = event.metadata.get("while_waits") == other.entity_id
            if other is not entity and before == epoch and other.state in _PROBING and not given_on:
                yield "two_probes", f"probes tool {tool}, while {other.entity_id} does (it is {other.state})"
            self._of[tool] = entity, epoch


def at_end(entity: Entity) -> Iterator[Broken]:
    """Check what only shows at the end of the log."""
    if entity.ended and entity.live:
        yield "alive_in_ended", f"is {entity.shown}, but {entity.live} of its parts have not ended"


def at_rest(entity: Entity) -> Iterator[Broken]:
    """Compare a workstream with its tasks at the end of the log."""
    if entity.kind != "workstream" or entity.ended or entity.brief or not (entity.known and entity.knows_children):
        return
    tasks = [task for task in entity.children if task.machine is not None and task.shown in task.machine.states]
    allowed = derive(_Seen(task, task.state, task.standing) for task in tasks)
    if any(task.resting for task in tasks):  # a resting task may count as ended
        allowed |= derive(_Seen(task, _over(task), None) for task in tasks)
    if entity.state not in allowed and not any(entity.lacks(state) for state in allowed):
        words = ", ".join(sorted(allowed))
        yield "not_derived", f"is {entity.shown}, while its tasks allow: {words}"


class _Seen:
    """A task as `derive` reads it, in one of its possible states."""

    __slots__ = ("optional", "standing", "state")

    def __init__(self, task: Entity, state: str, standing: str | None) -> None:
        self.state = TaskState.FAILED if state == Phase.DECIDING else state
        self.optional = task.optional
        self.standing = standing


def _over(task: Entity) -> str:
    """The state of a task that rests for good."""
    return TaskState.SKIPPED if task.resting and task.state not in {Phase.DECIDING, *ENDS} else task.state


def _figure(known: Mapping[str, Any], name: str) -> int | None:
    value = known.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
