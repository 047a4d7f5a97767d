"""Plans of runs, which never change: the tasks' names, tools and edges, in layers, and the headers of its webhooks.

Rules
-----
- A plan is made from the specification, once. For a large run that happens in a thread, so that no request waits.
- The last `KEPT` plans are kept, with the bars of drawn runs (`bars.py`), and the last `KEPT_COUNTS` counts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from ....actors.spec.model import Task
from ...dispatch.threads import in_thread
from .bars import Bars

if TYPE_CHECKING:
    from ...services import RuntimeServices

KEPT = 16
KEPT_COUNTS = 10_000
_LARGE = 500  # tasks


class Plan(msgspec.Struct):
    """The tasks of a run's specification, as lists by task number."""

    names: list[str]
    tools: list[str | None]
    commands: list[bool]
    receives: list[str | None]
    depends_on: list[list[int]]
    after: list[list[int]]
    optional: list[bool]
    layers: list[int]
    request_id_headers: list[str]
    bars: Bars = msgspec.field(default_factory=Bars)

    def depends_on_of(self, index: int) -> list[str]:
        """Return the names of a task's dependencies."""
        return [self.names[one] for one in self.depends_on[index]]

    def after_of(self, index: int) -> list[str]:
        """Return the names of the tasks that a task comes after."""
        return [self.names[one] for one in self.after[index]]


class Plans:
    """The plans of a runtime's runs."""

    def __init__(self, services: RuntimeServices) -> None:
        self._services = services
        self._kept: OrderedDict[int, Plan] = OrderedDict()
        self._counts: OrderedDict[int, dict[str, int]] = OrderedDict()  # counts of tasks of ended runs

    async def of(self, job_id: str, stream: int) -> Plan | None:
        """Return the plan of the run with that key; None if the journal no longer has its specification."""
        kept = self._kept.get(stream)
        if kept is not None:
            self._kept.move_to_end(stream)
            return kept
        actor = self._services.jobs.living(job_id)
        if actor is not None and actor.record.stream == stream:
            spec = actor.spec
            large, made = len(spec.tasks) > _LARGE, partial(plan_of, spec.tasks, spec.request_id_headers)
            plan = await in_thread("work", made) if large else made()
        else:
            plan = await self._services.read(self._read, stream)
        if plan is not None:
            self._kept[stream] = plan
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return plan

    def counts(self, stream: int) -> dict[str, int] | None:
        """Return the kept counts of tasks by phase, for an ended run."""
        return self._counts.get(stream)

    def keep_counts(self, stream: int, counts: dict[str, int]) -> None:
        """Keep the counts of an ended run."""
        self._counts[stream] = counts
        if len(self._counts) > KEPT_COUNTS:
            self._counts.popitem(last=False)

    def _read(self, stream: int) -> Plan | None:
        spec = self._services.journal.reader.spec(stream)
        if spec is None:
            return None
        read = msgspec.json.Decoder(_Planned).decode
        there = msgspec.json.decode(spec, type=_Specification)
        return plan_of([read(task) for task in there.tasks], there.request_id_headers)


class _Specification(msgspec.Struct):
    """A specification whose tasks are decoded one by one, to keep the event loop free."""

    tasks: list[msgspec.Raw] = []
    request_id_headers: list[str] = []


class _Planned(msgspec.Struct, gc=False):
    """The fields of a task that a plan needs."""

    name: str
    tool: str | None = None
    command: str | list[str] | None = None
    receive: str | None = None
    depends_on: Sequence[str] = ()
    after: Sequence[str] = ()
    optional: bool = False


def plan_of(tasks: Sequence[Task | _Planned], request_id_headers: Sequence[str] = ()) -> Plan:
    """Make the plan of these tasks, whose graph has no cycles."""
    number = {task.name: place for place, task in enumerate(tasks)}
    depends_on = [[number[name] for name in task.depends_on] for task in tasks]
    after = [[number[name] for name in task.after] for task in tasks]
    return Plan(
        names=[task.name for task in tasks], tools=[task.tool for task in tasks],
        commands=[task.command is not None for task in tasks], receives=[task.receive for task in tasks],
        depends_on=depends_on, after=after, optional=[task.optional for task in tasks],
        layers=layers_of(depends_on, after), request_id_headers=list(request_id_headers),
    )  # fmt: skip


def layers_of(depends_on: list[list[int]], after: list[list[int]]) -> list[int]:
    """Return for each task the length of the longest path to it."""
    count = len(depends_on)
    dependents: list[list[int]] = [[] for _ in range(count)]
    unmet = [0] * count
    for place in range(count):
        for before in (*depends_on[place], *after[place]):
            dependents[before].append(place)
            unmet[place] += 1
    layers = [0] * count
    ready = [place for place in range(count) if not unmet[place]]
    for place in ready:  # the loop adds to `ready`
        below = layers[place] + 1
        for one in dependents[place]:
            layers[one] = max(layers[one], below)
            unmet[one] -= 1
            if not unmet[one]:
                ready.append(one)
    return layers
