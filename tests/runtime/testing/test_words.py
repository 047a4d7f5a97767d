"""The words of a simulation's trace can be awaited: each state and each event of all machines."""

from __future__ import annotations

import re
from contextlib import closing
from typing import Any, NamedTuple

import pytest

from callboard import Approval, Breaker, Fire, MachineActor, Retry, Task, TaskContext, Tool, Workstream
from callboard.machines import Machine, State, Transition
from callboard.machines.lifecycles import LIFECYCLES
from callboard.testing import Fails, Simulation, Succeeds

LINE = re.compile(r".*\d {4}(\w+) (\S+): \S+ -> (\S+) \((\S+)\)")
DOOR = Machine(
    "door", "shut", [State("shut", bounded_by="a test"), State("open", terminal=True)],
    [Transition("shut", "push", "open")],
)  # fmt: skip


class TracedTransition(NamedTuple):
    """A transition, as a line of the trace shows it."""

    kind: str
    entity: str
    state: str
    event: str


def build() -> None:
    """A body that a script replaces."""


async def ask(task: TaskContext) -> None:
    await task.approval("go")


RELEASE = Workstream(
    "release",
    tasks=[
        Task("build", run=build, retry=Retry(max_attempts=3), tool="compiler"),
        Task("ask", run=ask, depends_on=["build"]),
        Task("deploy", command=["deploy"], depends_on=["ask"], hold=Approval()),
    ],
    tools={"compiler": Tool(breaker=Breaker(failure_threshold=2, cooldown="1h"))},
)


def begun(lifecycle: str | None) -> Simulation:
    """A simulation in which everything is going to happen by itself."""
    settings: dict[str, Any] = {} if lifecycle is None else {"lifecycle": lifecycle}
    sim = Simulation(**settings)
    sim.body("build", outcomes=[Fails("no memory"), Fails("no memory"), Succeeds()], takes="2m")
    door = sim.spawn(MachineActor(DOOR), name="front")

    def submit() -> None:
        sim.begin(lambda: sim.runtime.submit(RELEASE, id="r1"))

    sim.at("1s", submit)
    sim.at("1m", lambda: door.tell(Fire("push")))
    sim.at("10h", lambda: sim.put("approve", "task", "r1/ask", by="ana", approval="go"))
    sim.at("20h", lambda: sim.put("approve", "task", "r1/deploy", by="ana"))
    return sim


def told(sim: Simulation) -> list[TracedTransition]:
    """All transitions that the trace shows."""
    found = (LINE.fullmatch(line) for line in sim.trace.lines())
    return [TracedTransition(*line.groups()) for line in found if line is not None]


def all_told(lifecycle: str | None) -> list[TracedTransition]:
    """Return the lines of the trace about everything after the beginning."""
    with closing(begun(lifecycle)) as sim:
        before = len(told(sim))
        sim.run()
        assert sim.job("r1").ended
        return told(sim)[before:]


def some_of_each(lifecycle: str | None, lines: list[TracedTransition]) -> list[tuple[str, str]]:
    """An entity for each state of each kind, and the state. Of a published lifecycle only the kinds that it defines:
    the others run by the machines of the runtime's own, which are tried without a lifecycle.
    """
    kinds = {line.kind for line in lines} if lifecycle is None else set(LIFECYCLES[lifecycle])
    found = {(line.kind, line.state): line.entity for line in lines if line.kind in kinds}
    assert found
    return [(entity, state) for (_, state), entity in found.items()]


@pytest.mark.parametrize("lifecycle", [None, *LIFECYCLES])
def test_each_state_that_the_trace_shows_can_be_waited_for(lifecycle: str | None) -> None:
    lines = all_told(lifecycle)
    assert {"job", "workstream", "task", "approval", "breaker", "machine", "worker"} <= {line.kind for line in lines}
    for entity, state in some_of_each(lifecycle, lines):
        with closing(begun(lifecycle)) as sim:
            sim.until(entity, state, within="30h")
            sim.crash(restart=False)
            assert state in sim.path(entity)


@pytest.mark.parametrize("lifecycle", [None, *LIFECYCLES])
def test_each_event_that_the_trace_shows_can_be_waited_for(lifecycle: str | None) -> None:
    lines = all_told(lifecycle)
    with closing(begun(lifecycle)) as sim:
        for line in lines:
            sim.expect_transition(line.entity, to=line.state, event=line.event, within="30h")


@pytest.mark.parametrize("lifecycle", [None, *LIFECYCLES])
def test_handles_understand_them_too(lifecycle: str | None) -> None:
    first = next(line.state for line in all_told(lifecycle) if line.entity == "r1@1/build")
    with closing(begun(lifecycle)) as sim:
        sim.until("r1/build", first)
        before = len(told(sim))
        sim.run()
        lines = [line for line in told(sim)[before:] if line.kind in {"job", "task", "worker", "breaker"}]
    kinds = {line.entity: line.kind for line in lines}
    for entity, state in some_of_each(lifecycle, lines):
        with closing(begun(lifecycle)) as sim:
            sim.until("r1/build", first)
            handle_of(sim, kinds[entity], entity).until(state, within="30h")
            sim.crash(restart=False)
            assert state in sim.path(entity)


def handle_of(sim: Simulation, kind: str, entity: str) -> Any:
    if kind == "job":
        return sim.job(entity)
    if kind == "task":
        return sim.job("r1").task(entity.rpartition("/")[2])
    return sim.worker(entity.partition("#")[0]) if kind == "worker" else sim.breaker(entity)


def test_what_is_passed_in_one_turn_is_waited_for_and_what_there_is_not_is_refused() -> None:
    with closing(begun(None)) as sim:
        sim.until("r1", "submitted")  # which it leaves at once
        assert sim.now == 1
        with pytest.raises(ValueError, match="a task has no state 'heldd'; did you mean 'held'"):
            sim.until("r1/deploy", "heldd")
        with pytest.raises(ValueError, match="is never 'HEALTHY'"):
            sim.worker("threads").until("HEALTHY")
        with pytest.raises(AssertionError, match="waited 1h for r1/deploy to be completed") as raised:
            sim.until("r1/deploy", "completed", within="1h")
        assert "\nr1/deploy is 'pending' since 00:00:01.000 (01:00:00.000 ago), and waits for what it" in str(
            raised.value
        )


def test_what_a_crash_undid_has_to_come_again() -> None:
    with Simulation() as sim:
        sim.body("build", takes="30s")
        sim.submit(Workstream("w", tasks=[Task("build", run=build)]), id="j")
        sim.settle()
        sim.fail_journal()
        sim.at("1m", sim.crash)
        sim.at("2m", sim.mend_journal)
        sim.until("j/build", "completed", within="5m")
        assert (sim.world.crashes, len(sim.started)) == (1, 2)
        assert sim.path("j/build")[-1] == "completed"
