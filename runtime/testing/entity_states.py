"""The description of an awaited entity in a test's failure.

Rules
-----
- It describes what the runtime has decided, durable or not: the state, since when, what the entity waits for, how it
  got there, and what a test can do.
- Times are those of the trace: virtual time since the beginning. After a crash, the last known state is described.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from ...machines.builtin.table import MACHINES
from .trace import span

if TYPE_CHECKING:
    from ...actors.kernel.kernel import Kernel
    from ...actors.records.base import Record
    from ...actors.records.transition import Transitioned
    from ..dispatch.clock import VirtualClock
    from .trace import Trace

LAST = 6
"""The most transitions of one entity that are shown."""
MOST = 8
"""The most entities that are shown, if the test waited for none of them."""

_MORE_TIME = "have more time pass: a longer within=, sim.advance(...)"
_PEOPLE = ("an approval", '<HANDLE>.approve(by="ana")')
_CHECKS = ("its checks", "script them: sim.body('<BODY>.check', ...)")
_STOPS = ("the end of what is being stopped", "script its length: sim.body('<BODY>', stops_in=...)")
_RUNS = ("the end of what it runs", "script its length: sim.body(..., takes=...)")
_TASKS = ("its tasks", "see where they are: <HANDLE>.states()")
_WORKERS = "see in which state the workers are, and what they run: sim.worker(...).state"
_RESET = "sim.breaker(<NAME>).reset()"

WAITS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "task": {
        "pending": ("what it depends on", "see where that is: <JOB>.states()"),
        "held": _PEOPLE,
        "waiting": ("its time", _MORE_TIME),
        "queued": ("a free worker", _WORKERS),
        "running": ("its body", "script its end: sim.body('<BODY>', returns=..., takes=...), or a longer within="),
        "timed_out": _STOPS,
        "validating": _CHECKS,
        "recovering": ("its worker", "sim.worker(...).come_back(), or a longer within="),
        "retrying": ("its next try", _MORE_TIME),
        "circuit_open": ("its tool, or an operator", "sim.breaker(...).reset(), <HANDLE>.reset()"),
        "half_open": ("a free worker, to probe its tool", _WORKERS),
        "cancelling": _STOPS,
    },
    "workstream": {
        "planned": ("its tasks to be made", "sim.settle()"),
        "ready": ("its start", "sim.settle()"),
        "held": _PEOPLE,
        "waiting": ("its time", _MORE_TIME),
        "executing": _TASKS,
        "paused": ("an operator", "<HANDLE>.resume()"),
        "validating": _CHECKS,
        "cancelling": _TASKS,
    },
    "job": {
        "submitted": ("its checks", "sim.settle()"),
        "pending": ("the slots that it asks for", _WORKERS),
        "running": ("its tasks, or for its next run", "see where they are: <HANDLE>.states()"),
        "cancelling": _TASKS,
    },
    "worker": {
        "initializing": ("its start", "sim.worker(<NAME>).come_back(), or a longer within="),
        "idle": ("work", "submit what it can run"),
        "busy": _RUNS,
        "paused": ("an operator, or the end of its pause", "sim.worker(<NAME>).resume()"),
        "draining": _RUNS,
        "unresponsive": ("an answer of it", "sim.worker(<NAME>).come_back()"),
    },
    "breaker": {
        "closed": ("failures of its tool", "have bodies fail: sim.body(..., outcomes=[Fails('x')])"),
        "open": ("the end of its cooldown", f"{_MORE_TIME}, {_RESET}"),
        "half_open": ("a task that probes it", f"submit one that uses it, or {_RESET}"),
    },
    "approval": {"held": ("a decision", "<JOB>.task(...).approve(by='ana', approval=<NAME>)")},
}  # fmt: skip
"""By kind and phase: what an entity waits for, and what a test can do. HANDLE: of its job or task."""
_EVENT = ("an event", "sim.ask(sim.machine(<NAME>), Fire(...))")
_ENDED = "that state is final: expect it, or change the test before it"
_GOING_ON = frozenset({"job", "workstream", "task", "approval", "machine"})
_FOR_OTHERS = frozenset(
    {
        ("task", "pending"),
        ("workstream", "executing"),
        ("workstream", "cancelling"),
        ("job", "running"),
        ("job", "cancelling"),
    }
)
"""Kinds and phases in which an entity waits for other entities, which are shown."""


class _LastState(NamedTuple):
    """The last known state of an entity. since: the virtual time at which it entered that state."""

    kind: str
    name: str
    job: str | None
    state: str
    phase: str
    ended: bool
    since: float
    due: float | None
    why: str | None


class EntityDescriber:
    """Describes entities, from the kernel of a runtime (None after a crash) and from the trace."""

    def __init__(self, clock: VirtualClock, trace: Trace, kernel: Kernel | None) -> None:
        self._clock = clock
        self._trace = trace
        self._kernel = kernel

    def of(self, name: str, is_its: Callable[[Transitioned], bool], record: Record | None = None) -> str:
        """Describe one entity, on lines of its own; "" if nothing is known of it.

        name: its name in the failure. record: its present record; None: that of the entity's id in the trace.
        """
        moves = list(self._trace.moves(is_its))
        if record is None:
            record = next((one for one in self._records() if moves and one.id == moves[-1][1].entity_id), None)
        if record is None and not moves:
            return ""
        seen = self._of_row(*moves[-1]) if record is None else self._of_record(record)
        path = "; ".join(_step(at, row) for at, row in moves[-LAST:])
        others = self.of_all(seen.job or seen.name) if (seen.kind, seen.phase) in _FOR_OTHERS else ""
        return f"\n{self._told(name, seen)}" + (f"\nIts last transitions: {path}." if path else "") + others

    def of_all(self, job: str | None = None) -> str:
        """Describe the entities that have not ended, on lines of their own; first those that wait for something
        themselves.

        job: only entities of the job of that id.
        """
        living = [one for one in self._records() if one.finished_at is None and one.kind in _GOING_ON]
        if job is not None:
            living = [one for one in living if getattr(one, "job_id", one.id) == job]
        found = [one for one in living if (one.kind, str(one.state)) not in _FOR_OTHERS] or living
        texts = [self._told(f"{one.kind} {one.id}", self._of_record(one)) for one in found[:MOST]]
        if len(found) > MOST:
            texts.append(f"{len(found) - MOST} more have not ended.")
        return "".join(f"\n{line}" for line in texts)

    def _records(self) -> Iterator[Record]:
        return (one.record for one in (() if self._kernel is None else self._kernel.entities.values()))

    def _of_record(self, record: Record) -> _LastState:
        why = next(filter(None, (getattr(record, fact, None) for fact in ("last_error", "error", "reason"))), None)
        due = None if record.due_at is None else self._moment(record.due_at)
        return _LastState(
            record.kind, record.name, getattr(record, "job_id", None), record.shown, record.state,
            record.finished_at is not None, self._moment(record.updated_at), due, why,
        )  # fmt: skip

    @staticmethod
    def _of_row(at: float, row: Transitioned) -> _LastState:
        name = row.entity_id.rpartition("/")[2] if row.kind in {"task", "approval"} else row.entity_id.partition("#")[0]
        ended = row.kind in MACHINES and MACHINES[row.kind].is_terminal(row.phase)
        return _LastState(row.kind, name, row.job_id, row.to_state, row.phase, ended, at, None, row.reason)

    def _moment(self, utc: float) -> float:
        """The virtual time of a wall clock time, by the present setting of the wall clock."""
        return max(0.0, self._clock.monotonic() - (self._clock.time() - utc))

    def _told(self, name: str, seen: _LastState) -> str:
        spent = span(max(0.0, self._clock.monotonic() - seen.since))
        text = f"{name} is '{seen.state}' since {span(seen.since)} ({spent} ago)"
        if seen.ended:
            return f"{text}{_because(seen.why)}; {_ENDED}."
        what, do = WAITS.get(seen.kind, {}).get(seen.phase, _EVENT)
        by_itself = "" if seen.due is None else f", or until {span(seen.due)}"
        job = f"sim.job({seen.job!r})"
        handle = f"{job}.task({seen.name!r})" if seen.kind == "task" else f"sim.job({seen.job or seen.name!r})"
        for word, meant in (("HANDLE", handle), ("JOB", job), ("NAME", repr(seen.name)), ("BODY", seen.name)):
            do = do.replace(f"<{word}>", meant)
        return f"{text}, and waits for {what}{by_itself}{_because(seen.why)}. To have it go on: {do}."


def _step(at: float, row: Transitioned) -> str:
    return f"{span(at)} {row.from_state or 'new'} -> {row.to_state} ({row.event})"


def _because(why: str | None) -> str:
    return "" if why is None else f": {why}"
