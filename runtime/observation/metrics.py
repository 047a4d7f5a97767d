"""Metrics: counters of what was committed, and the values of a snapshot (`runtime/snapshot.py` takes it).

Rules
-----
- Counting is cheap: once per batch, on the loop, over what was committed. Values that a snapshot can read directly
  (workers, breakers, queues) are not counted at all.
- A snapshot may be taken in any thread. Counters only grow while a runtime is open, and begin at 0 with each runtime.
- A `MachineActor` counts under `machine:NAME`, with its machine's name: two machines may use one name for two states.
- Time in a state is known only for entities that entered it since this runtime was opened.
- Names, types and units for collectors are in docs/observation.md; `prometheus.py` and `otel.py` export them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

import msgspec

from ...actors.kernel.kernel import OTHER
from ...actors.records.transition import MachineTransition, Transitioned
from ...machines.builtin.table import MACHINES

BOUNDS = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 1_800.0, 3_600.0, 86_400.0)
"""Upper bounds of the classes of time in a state, in seconds; longer times are in one more class."""
KINDS_COUNTED = 5_000
"""Kinds of transitions that are counted separately; those of further machines are counted as `OTHER_MACHINES`."""
OTHER_MACHINES = f"machine:{OTHER}"
Pair = tuple[str, str | None, str, str]
"""Kind of entity (of a `MachineActor` `machine:NAME`), from state, to state, and severity of a transition."""

_TERMINAL = frozenset(
    (kind, state) for kind, machine in MACHINES.items() for state in machine.states if machine.is_terminal(state)
)


class StateMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and times of one state.

    entered, left: how often entities did; seconds: time there of `timed` of those that left, by the classes of
    `BOUNDS`. ordinary: how many left by a transition below a warning. next_state: the state that most went to.
    """

    entered: int
    left: int
    timed: int
    seconds: float
    classes: tuple[int, ...]
    ordinary: int
    next_state: str | None

    @property
    def average(self) -> float | None:
        """Seconds in the state, on average; None if unknown."""
        return self.seconds / self.timed if self.timed else None

    @property
    def success_rate(self) -> float | None:
        """The share of entities that left by a transition below a warning."""
        return self.ordinary / self.left if self.left else None


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a runtime. Counts are since it was opened; times are in seconds.

    transitions: how often each was taken. states: by kind and state. rejected: commands that a state did not allow, by
    machine, state and event. stale: messages that were refused, since their fencing token was old. requests,
    request_hits: commands with a `request_id`, and those of them that were answered with a kept reply. inbox: messages
    that wait for the lifecycle actors; ready: actors with messages; events_left: in the journal's inbox, for machines
    that no runtime has.
    commits, committed: batches and the transitions in them; commit_seconds: time of writing them, slowest_commit: the
    longest; backlog: transitions that are not committed yet. breakers: states by tool. workers: how many are in each
    (engine, state); slots, slots_used: attempts that they can run at once, and that occupy a slot.
    timers_fired, timers_late: how many, and the seconds by which they were late, added up; latest_timer: the longest
    delay. failed_hooks, unlogged: hooks that failed, lines that the log refused.
    actors_failed, actors_restarted, actors_stopped: how often users' actors failed, were restarted, or were stopped
    after a failure; dead_letters: messages to actors that no actor handled, by the reason. notices: how many were
    emitted, by event.
    cpu_seconds: user and system time of the commands (checks and hooks too) and the bodies in worker processes that
    have ended, by engine; peak_memory_bytes: the most resident memory that one of them used, as far as it is known.
    tool_invocations: attempts and tries of steps that began with each tool; steps: durable steps that ended, by name
    and state (completed, failed); tests_passed, tests_failed: acceptance tests (of tasks and workstreams), by their
    result. If several nodes share the journal: jobs_taken: jobs that this node took over; nodes_fenced: other nodes
    that were fenced, as far as it has seen; nodes: nodes that are alive, with this one; lease_left: seconds until its
    lease runs out, None where the journal has one owner.
    """

    transitions: dict[Pair, int]
    states: dict[tuple[str, str], StateMetrics]
    rejected: dict[tuple[str, str, str], int]
    stale: int
    requests: int
    request_hits: int
    inbox: int
    ready: int
    commits: int
    committed: int
    commit_seconds: float
    slowest_commit: float
    backlog: int
    breakers: dict[str, str]
    workers: dict[tuple[str, str], int]
    slots: dict[str, int]
    slots_used: dict[str, int]
    timers_fired: int
    timers_late: float
    latest_timer: float
    failed_hooks: int
    unlogged: int
    actors_failed: int
    actors_restarted: int
    actors_stopped: int
    dead_letters: dict[str, int]
    notices: dict[str, int]
    events_left: int = 0
    cpu_seconds: dict[str, float] = {}
    peak_memory_bytes: dict[str, int] = {}
    tool_invocations: dict[str, int] = {}
    steps: dict[tuple[str, str], int] = {}
    tests_passed: int = 0
    tests_failed: int = 0
    jobs_taken: int = 0
    nodes_fenced: int = 0
    nodes: int = 1
    lease_left: float | None = None

    @property
    def request_hit_rate(self) -> float | None:
        """The share of commands with a `request_id` that were answered with a kept reply."""
        return self.request_hits / self.requests if self.requests else None


_NONE = (0,) * (len(BOUNDS) + 1)


class _Count:
    """One kind of transition: how often it was taken, and times in the state before."""

    __slots__ = ("longer", "moves", "number", "seconds", "terminal", "untimed")

    def __init__(self, pair: Pair, phase: str) -> None:
        kind, source, target, _ = pair
        self.number = 0
        self.seconds = 0.0
        self.untimed = 0  # transitions whose time in the state before is not known
        self.longer = [0] * len(BOUNDS)  # of the others: times above each bound, up to the next
        self.moves = source != target
        self.terminal = (kind, phase) in _TERMINAL

    @property
    def timed(self) -> int:
        """How many transitions have a known time in the state before."""
        return self.number - self.untimed if self.moves else 0

    @property
    def classes(self) -> list[int]:
        """Counts of times in the state before: up to each bound, and above the last."""
        longer = self.longer.copy()  # another thread may call this
        return [max(0, self.timed - sum(longer)), *longer]


class Counting:
    """Counts transitions."""

    def __init__(self) -> None:
        self._counts: dict[Pair, _Count] = {}
        self._since: dict[str, float] = {}  # when the living entities entered their present state

    def count(self, transitions: Sequence[Transitioned]) -> None:
        """Count a batch. The hot path: half a microsecond a transition."""
        counts, since, shortest = self._counts, self._since, BOUNDS[0]
        for row in transitions:
            kind, entity = row.kind, row.entity_id
            if kind == "machine":
                kind, entity = _machine_kind(row), _key(entity)
            pair = (kind, row.from_state, row.to_state, row.severity)
            try:
                count = counts[pair]
            except KeyError:
                count = self._new(pair, row.phase)
            count.number += 1
            if not count.moves:
                continue
            at = row.at
            if count.terminal:
                began = since.pop(entity, None)
            else:
                began = since.get(entity)
                since[entity] = at
            if began is None:
                count.untimed += 1
            elif at > began:  # a small step back of the wall clock is not noticed
                spent = at - began
                count.seconds += spent
                if spent > shortest:  # rare where there are many transitions
                    count.longer[bisect_left(BOUNDS, spent) - 1] += 1

    def _new(self, pair: Pair, phase: str) -> _Count:
        """Begin to count a kind of transition. An application's machines may have any number of kinds."""
        if len(self._counts) >= KINDS_COUNTED and pair[0].startswith("machine:"):
            pair = (OTHER_MACHINES, OTHER, OTHER, pair[3])
        return self._counts.setdefault(pair, _Count(pair, phase))

    def set_back(self, by: float) -> None:
        """Shift kept times by `by` seconds, since the wall clock was set back by that."""
        for entity in self._since:
            self._since[entity] -= by

    def forget(self, machine: str) -> None:
        """Remove a `MachineActor` that has ended: its kind does not show which states are terminal."""
        self._since.pop(_key(machine), None)

    def forget_entity(self, entity: str) -> None:
        """Remove an entity that is no longer in memory, and has not ended."""
        self._since.pop(entity, None)

    @property
    def pairs(self) -> dict[Pair, int]:
        """How often each transition was taken."""
        return {pair: count.number for pair, count in self._counts.copy().items()}

    def states(self) -> dict[tuple[str, str], StateMetrics]:
        """Counts and times of each state."""
        entered: Counter[tuple[str, str]] = Counter()
        left: Counter[tuple[str, str]] = Counter()
        ordinary: Counter[tuple[str, str]] = Counter()
        went: dict[tuple[str, str], Counter[str]] = {}
        times: dict[tuple[str, str], list[_Count]] = {}
        for (kind, source, target, severity), count in self._counts.copy().items():
            if not count.moves:
                continue
            entered[kind, target] += count.number
            if source is not None:
                left[kind, source] += count.number
                ordinary[kind, source] += count.number if severity == "info" else 0
                went.setdefault((kind, source), Counter())[target] += count.number
                times.setdefault((kind, source), []).append(count)
        metrics: dict[tuple[str, str], StateMetrics] = {}
        for key in entered | left:
            (most, _), *_ = went[key].most_common(1) if key in went else [(None, 0)]
            metrics[key] = StateMetrics(
                entered=entered[key], left=left[key], timed=sum(count.timed for count in times.get(key, ())),
                seconds=sum(count.seconds for count in times.get(key, ())),
                classes=tuple(map(sum, zip(_NONE, *(count.classes for count in times.get(key, ())), strict=True))),
                ordinary=ordinary[key], next_state=most,
            )  # fmt: skip
        return metrics


def _machine_kind(row: Transitioned) -> str:
    return f"machine:{row.machine}" if isinstance(row, MachineTransition) else row.kind


def _key(name: str) -> str:
    """The key of a machine: a machine's name may equal a job's."""
    return f"machine:{name}"
