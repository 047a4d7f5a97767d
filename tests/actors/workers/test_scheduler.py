"""The scheduler: which task runs next, and the reasons why others wait."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.actors.stage import KernelHarness, fails_until, flow, hangs, task

from callboard.actors.jobs.workstream import CHUNK
from callboard.actors.messages.commands import StartWorkers
from callboard.actors.spec.lifecycles import Lifecycles
from callboard.actors.spec.model import Retry, Task, Tool, Worker


def one(capacity: int = 1, *capabilities: str, name: str = "w") -> tuple[Worker, ...]:
    return (Worker(name, engine="loop", capacity=capacity, capabilities=list(capabilities)),)


def test_first_come_first_served() -> None:
    stage = KernelHarness(workers=one())
    stage.submit(flow(task("c"), task("a"), task("b")))
    assert stage.bodies() == ["c", "a", "b"]


@pytest.mark.parametrize("capacity", [1, 2, 6])
@pytest.mark.parametrize("lifecycle", [None, "pipeline", "guarded", "orchestration"])
def test_tasks_of_several_tools_come_in_the_order_of_their_list(lifecycle: str | None, capacity: int) -> None:
    """Also if a lifecycle publishes no row for the queue, so that all tasks got their places at the same number."""
    stage = KernelHarness(workers=one(capacity), lifecycles=Lifecycles(default=lifecycle) if lifecycle else None)
    names = ("a1", "b1", "a2", "b2", "a3", "b3")
    stage.submit(flow(*(task(name, tool=name[0]) for name in names)))
    assert stage.bodies() == [*names]


def test_higher_priority_first_of_tasks_and_of_workstreams() -> None:
    stage = KernelHarness(workers=())
    stage.submit(flow(task("low", priority=-1), task("plain"), task("high", priority=5)), "first")
    stage.submit(flow(task("urgent"), priority=3), "second")
    stage.send(StartWorkers(one()))
    assert stage.bodies() == ["high", "urgent", "plain", "low"]


def test_of_tasks_that_become_ready_together_the_most_urgent_is_first() -> None:
    stage = KernelHarness(workers=one())
    stage.submit(flow(task("low"), task("mid", priority=5), task("high", priority=9)), "ready")
    assert stage.bodies() == ["high", "mid", "low"]
    after = [task("l", "gate"), task("m", "gate", priority=5, tool="t"), task("h", "gate", priority=9)]
    stage.submit(flow(task("gate"), *after), "released")
    assert stage.bodies()[3:] == ["gate", "h", "m", "l"]


def test_the_most_urgent_of_very_many_is_first_too() -> None:
    stage = KernelHarness(workers=one())
    many = [task(f"t{number}") for number in range(CHUNK + 1)]
    stage.submit(flow(*many, task("high", priority=9)), "ready")
    assert stage.bodies()[:2] == ["high", "t0"]
    many = [task(f"t{number}", "gate") for number in range(2 * CHUNK)]
    stage.submit(flow(task("gate"), *many, task("high", "gate", priority=9)), "released")
    assert stage.bodies()[CHUNK + 2 :][:3] == ["gate", "high", "t0"]
    assert stage.audit() == []


def test_what_becomes_ready_as_a_limit_opens_is_weighed_with_what_waited_there() -> None:
    stage = KernelHarness(workers=one(5))
    stage.scripts["first"] = hangs
    tasks = [task("first", tool="t"), task("waits", tool="t"), task("next", "first", priority=1, tool="t")]
    stage.submit(flow(*tasks, tools={"t": Tool(max_parallel=1)}))
    stage.end(stage.token("first"))
    stage.settle()
    assert stage.bodies() == ["first", "next", "waits"]


def test_many_priorities_and_lanes_in_one_order() -> None:
    random = Random(3)
    stage = KernelHarness(workers=())
    wanted: list[tuple[int, int, str]] = []
    for job in range(8):
        tasks = []
        for number in range(12):
            name, priority = f"t{job}-{number}", random.randint(-2, 2)
            tool = random.choice([None, "t", "u"])
            tasks.append(task(name, priority=priority, tool=tool))
            wanted.append((-priority, len(wanted), name))
        stage.submit(flow(*tasks, tools={"t": Tool(max_parallel=5)}), f"job{job}")
    stage.send(StartWorkers(one(3)))
    assert [stage.state(f"job{job}") for job in range(8)] == ["completed"] * 8
    assert stage.bodies() == [name for *_, name in sorted(wanted)]
    assert stage.audit() == []


def test_several_slots_that_open_at_once_go_to_the_best_of_all_lanes() -> None:
    stage = KernelHarness(workers=())
    stage.submit(flow(task("a1", priority=9), task("a2", priority=1)), "a")
    stage.submit(flow(task("b1", priority=5)), "b")
    for name in ("a1", "a2", "b1"):
        stage.scripts[name] = hangs
    stage.send(StartWorkers(one(2)))
    assert stage.bodies() == ["a1", "b1"]


def test_requeued_work_keeps_its_old_place() -> None:
    stage = KernelHarness(workers=one())
    stage.scripts |= {"a": fails_until(2), "hog": hangs}
    stage.submit(
        flow(task("a", retry=Retry(max_attempts=2, base_delay=1, jitter=0)), task("hog"), task("c"), task("d"))
    )
    place = stage.task("a").place
    stage.advance(1)
    assert (stage.task("a").state, stage.task("a").place) == ("queued", place)
    stage.end(stage.token("hog"))
    stage.settle()
    assert stage.bodies() == ["a", "hog", "a", "c", "d"]


def most_at_once(stage: KernelHarness, ids: set[str]) -> int:
    """How many of these tasks ran at the same time, at most."""
    now = most = 0
    for t in stage.kept.transitions:
        if t.kind == "task" and t.entity_id in ids:
            now += (t.to_state == "running") - (t.from_state == "running")
            most = max(most, now)
    return most


def run_all(stage: KernelHarness) -> None:
    """End the running tasks one after the other, until none runs."""
    while stage.running:
        stage.end(next(iter(stage.running)))
        stage.settle()


def test_max_parallel_of_a_workstream() -> None:
    stage = KernelHarness()
    names = [f"t{n}" for n in range(9)]
    stage.scripts |= dict.fromkeys([*names, "other"], hangs)
    stage.submit(flow(*(task(name) for name in names), max_parallel=3))
    stage.submit(flow(task("other")), "second")
    assert list(stage.states().values()).count("running") == 3
    assert stage.states("second") == {"other": "running"}  # the limit is the workstream's own
    run_all(stage)
    assert most_at_once(stage, {f"job@1/{name}" for name in names}) == 3
    assert stage.state() == "completed"


def test_the_limit_of_a_tool_holds_over_all_workstreams() -> None:
    stage = KernelHarness()
    tools = {"t": Tool(max_parallel=2)}
    for job in "ab":
        names = [f"{job}{n}" for n in range(4)]
        stage.scripts |= dict.fromkeys(names, hangs)
        stage.submit(flow(*(task(name, tool="t") for name in names), task(f"{job}-free"), tools=tools), job)
    assert stage.states("a")["a-free"] == "completed"  # a task without a tool does not wait behind tasks with one
    assert [name for name in stage.bodies() if "free" not in name] == ["a0", "a1"]
    run_all(stage)
    assert most_at_once(stage, {f"{job}@1/{job}{n}" for job in "ab" for n in range(4)}) == 2
    assert [stage.state(job) for job in "ab"] == ["completed", "completed"]


def test_a_lane_that_waits_for_two_limits_hands_the_free_slot_on() -> None:
    stage = KernelHarness(workers=one(2))
    stage.scripts |= {"hog": hangs, "tooled": hangs}
    tools = {"t": Tool(max_parallel=1)}
    stage.submit(flow(task("hog", tool="t"), tools=tools), "hogs")
    stage.submit(flow(task("tooled", tool="t", priority=9), tools=tools), "tooled")
    stage.submit(flow(task("plain")), "plain")
    assert stage.state("plain") == "completed"
    assert stage.states("tooled") == {"tooled": "queued"}
    stage.end(next(iter(stage.running)))
    stage.settle()
    assert stage.states("tooled") == {"tooled": "running"}


def test_capabilities() -> None:
    stage = KernelHarness(workers=(*one(1, "gpu", "disk", name="big"), *one(1, name="small")))
    stage.scripts |= dict.fromkeys(["a", "b", "c", "d"], hangs)
    stage.submit(
        flow(
            task("a", capabilities=["gpu"]),
            task("b", capabilities=["disk", "gpu"]),
            task("c"),
            task("d", capabilities=["disk"]),
        )
    )
    where = {t.entity_id[-1]: t.worker_id for t in stage.kept.transitions if t.event == "start" and t.kind == "task"}
    assert where == {"a": "big#1", "c": "small#1"}
    stage.end(stage.token("a"))
    stage.settle()
    assert stage.states() == {"a": "completed", "b": "running", "c": "running", "d": "queued"}


def test_a_worker_serves_all_its_pools_within_one_capacity() -> None:
    stage = KernelHarness(workers=one(2, "gpu"))
    names = [f"t{n}" for n in range(6)]
    stage.scripts |= dict.fromkeys(names, hangs)
    stage.submit(flow(*(task(name, capabilities=["gpu"] if n % 2 else []) for n, name in enumerate(names))))
    assert len(stage.running) == 2
    run_all(stage)
    assert stage.bodies() == names
    assert stage.audit() == []


def test_what_is_backing_off_occupies_neither_a_slot_nor_a_limit() -> None:
    stage = KernelHarness(workers=one())
    stage.scripts["a"] = fails_until(2)
    stage.submit(
        flow(
            task("a", tool="t", retry=Retry(max_attempts=2)),
            task("b", tool="t"),
            max_parallel=1,
            tools={"t": Tool(max_parallel=1)},
        )
    )
    assert stage.states() == {"a": "retrying", "b": "completed"}


def test_a_decision_does_not_look_at_everybody_behind_a_limit() -> None:
    """The number of checked queues, for 40 and for 400 workstreams that wait for one slot."""
    looks: dict[int, float] = {}
    for jobs in (40, 400):
        stage = KernelHarness(workers=one())
        stage.scripts["hog"] = hangs
        stage.submit(flow(task("hog")), "hogs")
        for n in range(jobs):
            stage.submit(flow(task("t")), f"job{n}")
        before = stage.kernel.scheduler.entries
        run_all(stage)
        looks[jobs] = (stage.kernel.scheduler.entries - before) / jobs
    assert looks[400] <= looks[40] + 0.5


def test_a_rebuilt_queue_is_the_same_queue() -> None:
    """Tasks come back in the order of their specification, which is not that of their places."""
    random = Random(5)
    for _ in range(20):
        names = [f"t{n}" for n in range(8)]
        order = random.sample(names, 8)
        stage = KernelHarness(workers=one())
        stage.scripts |= dict.fromkeys(["hog", *(f"gate-{n}" for n in names)], hangs)
        spec: list[Task] = [task("hog")]
        for name in names:
            spec += [Task(f"gate-{name}", command=["x"]), task(name, f"gate-{name}")]
        gates: Any = (*one(), Worker("c", engine="command", capacity=8))
        stage = KernelHarness(workers=gates, scripts=stage.scripts)
        stage.submit(flow(*spec))
        for name in order:
            stage.end(stage.token(f"gate-{name}"))
            stage.settle()
        stage.kernel.recovery.rebuild()
        stage.end(stage.token("hog"))
        stage.settle()
        assert [name for name in stage.bodies() if name in names] == order
        assert stage.state() == "completed"
        assert stage.reports == []


def test_nothing_is_kept_of_jobs_that_ended_behind_a_gate_that_never_opens() -> None:
    stage = KernelHarness(workers=one())
    for n in range(10):
        job = stage.submit(flow(task("t", capabilities=["none"])), f"job{n}")
        stage.cancel(job)
    (pool,) = (pool for pool in stage.kernel.scheduler.pools.values() if pool.capabilities)
    assert pool.waiting == []
    assert stage.kernel.scheduler.queues == {}
