"""Slots that jobs reserve: all or none, in the order of the requests, and without a deadlock of jobs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from random import Random
from types import FrameType
from typing import Any

import msgspec
import pytest
from tests.actors.jobs_help import child, goes_on, job_record, living, waits
from tests.actors.stage import KernelHarness, flow, hangs, task

from callboard.actors.messages.commands import (
    PauseWorker,
    Regain,
    Reply,
    ResumeWorker,
    ShutDownWorker,
    StartWorkers,
    TerminateWorker,
)
from callboard.actors.messages.inputs import Message, TurnFailed, WorkerDied
from callboard.actors.records.entities import JobRecord, WorkerRecord
from callboard.actors.records.task import TaskRecord
from callboard.actors.spec.model import HealthChecks, Task, Worker, Workstream
from callboard.actors.users.strategy import Supervision
from callboard.actors.workers.reservations import Reservations
from callboard.machines import TaskState


def stage_of(loop: int, *more: Worker) -> KernelHarness:
    stage = KernelHarness(workers=(Worker("loop", engine="loop", capacity=loop), *more))
    for name in ("a", "b", "c", "d"):
        stage.scripts[name] = hangs
    return stage


@pytest.mark.parametrize("how", ["cancelled", "failed", "ok"])
def test_a_job_in_line_begins_once_the_one_that_gave_its_slots_has_ended(how: str) -> None:
    stage = stage_of(1)
    stage.stubborn.add("a")
    stage.submit(wants(None), "first")
    stage.submit(wants(1, "b"), "second")
    if how == "cancelled":
        stage.cancel(stage.kernel.jobs["first"])
    stage.end(stage.task("a", "first").token, how, error="x")
    stage.settle()
    jobs = [(row.entity_id, row.to_state) for row in stage.kept.transitions if row.kind == "job"]
    ended = jobs.index(("first", {"ok": "completed"}.get(how, how)))
    assert ended < jobs.index(("second", "running"))


def wants(count: int | None, *names: str) -> Workstream:
    return flow(*(task(name) for name in names or ("a",)), worker_count=count)


def end(stage: KernelHarness, job_id: str, *names: str) -> None:
    for name in names or ("a",):
        stage.end(stage.task(name, job_id).token)
    stage.settle()


def running(stage: KernelHarness) -> int:
    return sum(record.state == "running" for record in stage.kept.of(TaskRecord))


def test_two_jobs_that_each_want_more_than_half_run_one_after_the_other() -> None:
    stage = stage_of(4)
    stage.submit(wants(3), "one")
    stage.submit(wants(3), "two")
    assert [stage.state(name) for name in ("one", "two")] == ["running", "pending"]
    assert job_record(stage, "two").reason == "waits for 3 slots of the engine 'loop'"
    end(stage, "one")
    assert [stage.state(name) for name in ("one", "two")] == ["completed", "running"]
    end(stage, "two")
    assert not stage.kernel.scheduler.reservations.at_work
    assert stage.audit() == []


def test_first_come_first_served() -> None:
    stage = stage_of(4)
    for job_id, count in (("one", 3), ("two", 2), ("three", 1)):
        stage.submit(wants(count), job_id)
    assert [stage.state(name) for name in ("one", "two", "three")] == ["running", "pending", "pending"]
    assert job_record(stage, "three").reason == "waits for 1 slot of the engine 'loop', behind 1 other job"
    end(stage, "one")
    assert [stage.state(name) for name in ("two", "three")] == ["running", "running"]


def test_nobody_else_has_a_reserved_slot_and_its_job_may_have_more() -> None:
    stage = stage_of(4)
    stage.submit(wants(2, "a"), "one")
    stage.submit(wants(None, "a", "b", "c", "d"), "two")
    assert sum(state == "running" for state in stage.states("two").values()) == 2
    end(stage, "one")
    assert sum(state == "running" for state in stage.states("two").values()) == 4
    stage = stage_of(4)
    stage.submit(wants(1, "a", "b", "c", "d"), "one")
    assert running(stage) == 4  # `worker_count` is a minimum, and no maximum


def test_a_slot_that_comes_free_goes_back_to_its_reservation() -> None:
    stage = stage_of(2)
    stage.submit(flow(task("a"), task("b", "a"), worker_count=2), "one")
    stage.submit(wants(None, "c"), "two")
    end(stage, "one", "a")
    assert (stage.states("one")["b"], stage.states("two")["c"]) == ("running", "queued")


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (wants(5), "it wants 5 slots of the engine 'loop', and there are 4"),
        (flow(Task("x", command=["x"], shell=False), worker_count=1), "it wants 1 slot of the engine 'command', and"),
        (flow(task("a", capabilities=["gpu"]), worker_count=1), "it wants 1 slot of the engine 'loop', and there are"),
    ],
)
def test_what_is_beyond_any_capacity_is_rejected(spec: Workstream, why: str) -> None:
    stage = stage_of(4)
    stage.submit(spec)
    assert stage.path("job") == ["submitted", "failed"]
    assert (job_record(stage).error or "").startswith(why)
    assert stage.over == ["job"]
    assert stage.audit() == []


def test_a_pending_job_is_cancelled_by_a_word_and_by_its_deadline() -> None:
    stage = stage_of(2)
    stage.submit(wants(2), "one")
    two = stage.submit(wants(2), "two")
    stage.submit(msgspec.structs.replace(wants(2), deadline=60), "three")
    assert stage.cancel(two) is None
    assert stage.path("two") == ["submitted", "pending", "cancelled"]
    stage.advance(60)
    assert stage.path("three") == ["submitted", "pending", "cancelled"]
    assert job_record(stage, "three").reason == "the deadline is over"
    assert not stage.kernel.scheduler.reservations.line
    assert stage.audit() == []


def test_the_first_in_line_lets_nothing_pass_that_came_later() -> None:
    stage = stage_of(2)
    stage.submit(wants(None, "a", "b"), "one")
    stage.submit(wants(2), "two")
    stage.submit(wants(None, "c"), "three")
    end(stage, "one", "a")
    assert stage.states("three") == {"c": "queued"}  # the free slot is set aside
    end(stage, "one", "b")
    assert stage.state("two") == "running"
    end(stage, "two")
    assert stage.states("three") == {"c": "running"}
    assert stage.audit() == []


def test_children_draw_on_the_slots_of_their_parent() -> None:
    stage = stage_of(4)
    stage.submit(wants(3, "a"), "one")
    stage.submit(wants(None, "b", "c", "d"), "two")  # the rest
    child(stage, stage.task("a", "one").token, wants(2, "b", "c"), "one/a/x")
    assert stage.states("one/a/x") == {"b": "running", "c": "running"}
    assert sum(state == "running" for state in stage.states("two").values()) == 1
    end(stage, "one/a/x", "b", "c")
    assert sum(state == "running" for state in stage.states("two").values()) == 1  # the slots are the parent's again
    end(stage, "one")
    assert sum(state == "running" for state in stage.states("two").values()) == 3
    assert stage.audit() == []


def test_a_child_gives_back_the_engine_that_it_had_from_its_parent() -> None:
    stage = stage_of(2, Worker("command", engine="command", capacity=2))
    stage.scripts["x"] = hangs
    stage.submit(wants(2, "a"), "one")
    spec = flow(Task("x", command=["x"]), task("b"), worker_count=1)
    child(stage, stage.task("a", "one").token, spec, "one/a/x")
    end(stage, "one/a/x", "x", "b")
    one = stage.kernel.scheduler.reservations.granted[job_record(stage, "one").key]
    assert {worker.record.engine: count for worker, count in one.held.items()} == {"loop": 1}
    assert {w.record.engine: w.used for w in stage.kernel.workers.values()} == {"loop": 2, "command": 0}


def test_a_child_whose_parent_has_enough_waits_in_no_line() -> None:
    stage = stage_of(4)
    stage.submit(wants(3, "a"), "one")
    stage.submit(wants(4, "b"), "two")
    child(stage, stage.task("a", "one").token, wants(2, "b"), "one/a/x")
    assert [stage.state(name) for name in ("two", "one/a/x")] == ["pending", "running"]


def test_two_parents_whose_children_each_want_what_the_other_has() -> None:
    stage = stage_of(10)
    for job_id in ("one", "two"):
        stage.submit(wants(5, "a"), job_id)
    for job_id in ("one", "two"):
        token = stage.task("a", job_id).token
        child(stage, token, wants(8, "b"), f"{job_id}/a/x")
        waits(stage, token)
    assert [stage.state(name) for name in ("one/a/x", "two/a/x")] == ["pending", "pending"]
    stage.advance(1)
    assert [stage.state(name) for name in ("one/a/x", "two/a/x")] == ["running", "pending"]
    end(stage, "one/a/x", "b")
    assert goes_on(stage, stage.task("a", "one").token)
    end(stage, "one")
    assert stage.state("two/a/x") == "running"
    end(stage, "two/a/x", "b")
    assert goes_on(stage, stage.task("a", "two").token)
    end(stage, "two")
    assert [stage.state(name) for name in ("one", "two")] == ["completed", "completed"]
    assert stage.audit() == []


def test_two_parents_whose_children_each_want_the_engine_that_the_other_has() -> None:
    stage = stage_of(1, Worker("command", engine="command", capacity=1))
    stage.scripts["x"] = hangs
    words = Task("x", command=["x"])
    stage.submit(wants(1, "a"), "one")
    stage.submit(flow(words, worker_count=1), "two")
    token = stage.task("a", "one").token
    child(stage, token, flow(words), "one/a/x")
    waits(stage, token)
    other = stage.task("x", "two").token
    child(stage, other, wants(None, "b"), "two/x/x")
    waits(stage, other)
    stage.advance(1)
    assert (stage.states("one/a/x"), stage.states("two/x/x")) == ({"x": "running"}, {"b": "running"})
    end(stage, "two/x/x", "b")
    assert not goes_on(stage, other)
    end(stage, "one/a/x", "x")
    assert goes_on(stage, token)
    end(stage, "one")
    end(stage, "two", "x")
    assert [stage.state(name) for name in ("one", "two")] == ["completed", "completed"]
    assert stage.audit() == []


def test_a_reservation_in_which_nothing_runs_yields_and_comes_back() -> None:
    stage = stage_of(2)
    stage.submit(flow(task("a"), Task("b", run="m:f", after=["a"], retry=None), worker_count=2), "one")
    token = stage.task("a", "one").token
    stage.submit(wants(None, "c", "d"), "two")
    assert stage.states("two") == {"c": "queued", "d": "queued"}
    waits(stage, token)
    stage.advance(0.9)
    assert stage.states("two") == {"c": "queued", "d": "queued"}
    stage.advance(0.1)
    assert stage.states("two") == {"c": "running", "d": "running"}
    assert not goes_on(stage, token)
    end(stage, "two", "c")
    assert stage.states("one")["a"] == "running"
    end(stage, "two", "d")
    stage.submit(wants(None, "c"), "three")
    assert stage.states("three") == {"c": "queued"}  # both are reserved again
    assert stage.audit() == []


def test_a_reservation_is_whole_again_after_a_restart_and_who_waits_keeps_the_place() -> None:
    stage = stage_of(4)
    stage.submit(wants(3), "one")
    stage.submit(wants(3), "two")
    stage.submit(wants(1), "three")
    stage.submit(wants(None, "a", "b"), "four")
    after = stage.after_crash()
    after.advance(1)
    assert [after.state(name) for name in ("one", "two", "three")] == ["running", "pending", "pending"]
    assert running(after) == 1  # the fourth is set aside
    end(after, "one")
    assert [after.state(name) for name in ("two", "three")] == ["running", "running"]
    assert after.audit() == []


def test_an_undone_turn_loses_no_reservation() -> None:
    stage = stage_of(4)
    one = stage.submit(wants(2), "one")
    stage.submit(wants(3), "two")
    stage.kernel.run(TurnFailed(-1, "nothing"))
    stage.kernel.recovery.rebuild()
    mine = stage.kernel.scheduler.reservations.granted[one.record.key]
    assert (mine.active, mine.held and next(iter(mine.held.values())), mine.missing) == (1, 1, {})
    assert next(iter(stage.kernel.scheduler.reservations.line.values())).job is living(stage, "two")
    end(stage, "one")
    assert stage.state("two") == "running"
    assert stage.audit() == []


def test_what_was_reserved_on_a_worker_that_goes_is_had_elsewhere() -> None:
    stage = stage_of(2, Worker("other", engine="loop", capacity=2))
    stage.submit(wants(2), "one")
    worker = next(worker for worker in stage.kernel.workers.values() if worker.record.name == "loop")
    stage.cancel(worker)  # the worker drains
    mine = next(iter(stage.kernel.scheduler.reservations.granted.values()))
    assert {held.record.name: count for held, count in mine.held.items()} == {"other": 1}
    end(stage, "one")
    assert {w.record.name: w.used for w in stage.kernel.workers.values()} == {"other": 0}
    assert stage.audit() == []


# -- any trees ---------------------------------------------------------------------------------------------------------


def trees(random: Random, stage: KernelHarness, engines: list[str]) -> Iterator[int]:
    """Random jobs whose bodies submit children and wait for them, played at random until all have ended."""
    roots = [f"r{number}" for number in range(random.randint(1, 5))]

    def spec() -> Workstream:
        names = [f"t{number}" for number in range(random.randint(1, 3))]
        tasks = [task(name) if random.choice(engines) == "loop" else Task(name, command=["x"]) for name in names]
        most = min(worker.capacity or 1 for worker in stage.workers)
        count = random.choice([None, None, random.randint(1, most)])
        return flow(*tasks, worker_count=count)

    for number in range(3):
        stage.scripts[f"t{number}"] = hangs
    children: dict[int, list[str]] = {}
    waiting: set[int] = set()
    for _ in range(1000):
        yield running(stage)
        if roots and random.random() < 0.3:
            stage.submit(spec(), roots.pop())
            continue
        bodies = [r for r in stage.kept.of(TaskRecord) if r.state == TaskState.RUNNING and r.token in stage.running]
        for record in list(bodies):
            if record.token in waiting:
                bodies.remove(record)
                ended = all(job_record(stage, child_id).finished_at for child_id in children[record.token])
                if ended and (goes_on(stage, record.token) or record.token not in stage.kernel.lent):
                    waiting.discard(record.token)
        if not bodies:
            if not roots and all(job.finished_at for job in stage.kept.of(JobRecord)):
                return
            stage.advance(1)  # reserved idle slots are released
            continue
        record = random.choice(bodies)
        mine = children.setdefault(record.token, [])
        depth = job_record(stage, record.job_id).depth
        if len(mine) < 2 and depth < 3 and random.random() < 0.4:
            child_id = f"{record.job_id}/{record.name}/{len(mine)}-{record.token}"
            mine.append(child_id)
            child(stage, record.token, spec(), child_id)
        elif mine and not all(job_record(stage, child_id).finished_at for child_id in mine):
            waiting.add(record.token)
            waits(stage, record.token)
        else:
            stage.end(record.token)
            stage.settle()
    raise AssertionError("it does not end")


@pytest.mark.parametrize("seed", range(25))
def test_random_trees_of_jobs_end_and_never_exceed_a_capacity(seed: int) -> None:
    random = Random(seed)
    engines = random.choice([["loop"], ["loop", "command"]])
    workers = tuple(Worker(engine, engine=engine, capacity=random.randint(1, 4)) for engine in engines)  # type: ignore[arg-type]
    stage = KernelHarness(workers=workers)
    for _ in trees(random, stage, engines):
        for worker in stage.kernel.workers.values():
            assert 0 <= worker.used <= worker.record.capacity
            assert worker.record.assigned <= worker.used
    assert all(job.state == "completed" for job in stage.kept.of(JobRecord))
    assert {worker.assigned for worker in stage.kept.of(WorkerRecord)} == {0}
    assert {worker.used for worker in stage.kernel.workers.values()} == {0}
    assert not stage.kernel.lent
    assert stage.audit() == []


@pytest.mark.parametrize("seed", range(10))
def test_a_crash_anywhere_in_random_trees_leaves_nothing_that_does_not_end(seed: int) -> None:
    random = Random(1000 + seed)
    workers = (Worker("loop", engine="loop", capacity=random.randint(1, 4)),)
    stage = KernelHarness(workers=workers)
    for _ in zip(trees(random, stage, ["loop"]), range(random.randint(5, 60)), strict=False):
        pass
    stage.scripts.clear()  # bodies end by themselves from now on
    after = stage.after_crash(random.randint(1, len(stage.kept.turns)))
    after.advance(10)
    assert all(job.finished_at for job in after.kept.of(JobRecord))
    assert {worker.used for worker in after.kernel.workers.values()} <= {0}
    assert not after.kernel.scheduler.reservations.at_work
    assert after.audit() == []


# -- slots that are not there any more ---------------------------------------------------------------------------------

TWO = (Worker("p", engine="loop", capacity=2), Worker("q", engine="loop", capacity=2))
OWN: Any = "cluster"  # any engine with processes of its own


def big_waits(workers: tuple[Worker, ...] = TWO, engine: Any = "loop") -> KernelHarness:
    """Two jobs run one task each on worker `q`, the first in line wants all four slots, and behind it a plain one."""
    stage = KernelHarness(workers=workers)
    stage.scripts |= dict.fromkeys("abcd", hangs)
    names = ("a", "b", "c", "d")
    stage.submit(flow(*(task(name, engine=engine, timeout=10_000) for name in names)), "first")
    stage.submit(flow(task("a", engine=engine, timeout=10_000), worker_count=4), "big")
    stage.submit(flow(task("b", engine=engine, timeout=10_000)), "plain")
    for name in names:
        record = stage.task(name, "first")
        if (record.worker_id or "").startswith("p"):
            end(stage, "first", name)
    assert (stage.state("big"), stage.states("plain")) == ("pending", {"b": "queued"})  # the free slots are reserved
    return stage


@pytest.mark.parametrize("word", [ShutDownWorker("enough"), TerminateWorker("enough")])
def test_the_slots_of_an_ended_worker_do_not_count(word: Message) -> None:
    stage = KernelHarness(workers=TWO)
    stage.command(stage.worker("q"), word)
    stage.submit(wants(4), "big")
    stage.submit(wants(2), "small")
    stage.submit(wants(None, "b"), "plain")
    assert (stage.state("big"), job_record(stage, "big").error) == (
        "failed", "it wants 4 slots of the engine 'loop', and there are 2",
    )  # fmt: skip
    assert [stage.state(name) for name in ("small", "plain")] == ["completed", "completed"]
    assert stage.audit() == []


def test_those_of_one_that_was_given_up_do_not_count_and_those_of_one_that_is_replaced_do() -> None:
    pair = (Worker("p", engine=OWN, capacity=2), Worker("q", engine=OWN, capacity=2))
    health = HealthChecks(restarts=Supervision(intensity=1, backoff_min=5, backoff_max=5, period=1000))
    stage = KernelHarness(workers=pair, health=health)
    spec = flow(task("a", engine=OWN), worker_count=4)
    stage.send(WorkerDied("q", 1, "killed"))
    stage.submit(spec, "one")
    stage.submit(flow(task("b", engine=OWN)), "plain")
    assert (stage.state("one"), stage.state("plain")) == ("pending", "completed")  # nothing is held up meanwhile
    stage.advance(5)
    assert stage.state("one") == "completed"
    stage.send(WorkerDied("q", 2, "killed"))
    assert any(notice.event == "worker_given_up" for notice in stage.notices)
    stage.submit(spec, "two")
    assert stage.state("two") == "failed"
    assert stage.audit() == []


def test_who_waits_for_slots_that_have_gone_holds_up_nobody_and_does_not_wait_for_ever() -> None:
    stage = big_waits()
    stage.command(stage.worker("q"), TerminateWorker("enough"))
    assert stage.states("plain") == {"b": "running"}
    assert job_record(stage, "big").reason == "unroutable: it wants 4 slots of the engine 'loop', and there are 2"
    stage.advance(599)
    assert stage.state("big") == "pending"
    stage.advance(1)
    assert stage.path("big") == ["submitted", "pending", "failed"]
    assert job_record(stage, "big").error == "unroutable: it wants 4 slots of the engine 'loop', and there are 2"
    assert not stage.kernel.scheduler.reservations.line
    assert stage.audit() == []


def test_it_has_its_turn_if_the_worker_is_started_again() -> None:
    stage = big_waits()
    stage.command(stage.worker("q"), TerminateWorker("enough"))
    stage.advance(100)
    stage.send(StartWorkers((TWO[1],), Reply(None)))
    assert (stage.state("big"), job_record(stage, "big").reason) == (
        "pending",
        "waits for 4 slots of the engine 'loop'",
    )
    stage.advance(1000)  # no limit holds any more
    assert stage.state("big") == "pending"
    stage.submit(wants(None, "c"), "late")
    assert stage.states("late") == {"c": "queued"}  # the free slots are reserved again
    for job_id, name in (("first", "c"), ("first", "d"), ("first", "a"), ("first", "b"), ("plain", "b")):
        if stage.task(name, job_id).state == "running":
            end(stage, job_id, name)
    assert stage.state("big") == "running"
    assert stage.audit() == []


def test_a_worker_that_is_paused_holds_up_nobody_for_those_who_wait_for_it() -> None:
    stage = big_waits()
    stage.command(stage.worker("q"), PauseWorker("maintenance"))
    assert stage.states("plain") == {"b": "running"}
    stage.advance(2000)
    assert (stage.state("big"), job_record(stage, "big").routable) == ("pending", True)  # the worker may come back
    stage.command(stage.worker("q"), ResumeWorker("done"))
    stage.submit(wants(None, "c"), "late")
    assert stage.states("late") == {"c": "queued"}
    assert stage.audit() == []


def test_one_that_does_not_answer_holds_up_nobody_either() -> None:
    stage = big_waits((Worker("p", engine=OWN, capacity=2), Worker("q", engine=OWN, capacity=2)), OWN)
    stage.silent.add("q")
    stage.advance(31)
    assert stage.worker("q").record.state == "unresponsive"
    assert stage.states("plain") == {"b": "running"}
    assert (stage.state("big"), job_record(stage, "big").routable) == ("pending", True)


def test_a_deadline_that_is_nearer_holds_for_who_is_unroutable() -> None:
    stage = KernelHarness(workers=TWO)
    stage.scripts["a"] = hangs
    stage.submit(wants(4, "a"), "one")
    stage.submit(msgspec.structs.replace(wants(4), deadline=60), "two")
    stage.command(stage.worker("q"), TerminateWorker("enough"))
    stage.advance(60)
    assert (stage.state("two"), job_record(stage, "two").reason) == ("cancelled", "the deadline is over")
    assert stage.audit() == []


@pytest.mark.parametrize("down", [0.0, 5000.0])
def test_after_a_restart_it_is_found_out_anew_whether_there_are_workers(down: float) -> None:
    stage = big_waits()
    stage.command(stage.worker("q"), TerminateWorker("enough"))
    stage.scripts.clear()
    after = stage.after_crash(down=down)  # with both of them again
    after.advance(10)
    assert [after.state(name) for name in ("first", "big", "plain")] == ["completed"] * 3
    assert after.audit() == []


# -- many that wait for their slots ------------------------------------------------------------------------------------


def lines_to_wake(count: int, *, tool: str | None = None) -> int:
    """The number of executed lines of the library while so many waiting bodies get their slots back, and end."""
    stage = stage_of(1)
    jobs = [f"j{number}" for number in range(count)]
    for job in jobs:  # each begins in the slot that the one before has lent
        stage.submit(flow(task("a", tool=tool)), job)
        waits(stage, stage.task("a", job).token)
    tokens = {job: stage.task("a", job).token for job in jobs}
    stage.submit(flow(task("a")), "holds the slot")
    lines = 0

    def count_lines(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if "/actors/" not in frame.f_code.co_filename or "/tests/" in frame.f_code.co_filename:
            return None
        lines += event == "line"
        return count_lines

    before = sys.gettrace()
    for token in tokens.values():
        sys.settrace(count_lines)
        stage.send(Regain(token, Reply(None)))
        sys.settrace(before)
    for job in ("holds the slot", *jobs):
        token = stage.task("a", job).token
        assert token not in stage.kernel.lent, job  # they go on in the order in which they asked
        stage.end(token)
        sys.settrace(count_lines)
        stage.settle()
        sys.settrace(before)
    assert not stage.kernel.lent
    assert not stage.kernel.scheduler.reservations.requests
    assert stage.audit() == []
    return lines


@pytest.mark.parametrize("tool", [None, "t"])
def test_many_that_want_their_slots_back_cost_no_more_each_than_few(tool: str | None) -> None:
    few, many = lines_to_wake(20, tool=tool), lines_to_wake(80, tool=tool)
    assert many < 5 * few, f"four times as many took {many / few:.1f} times as many lines"


def test_a_body_that_waits_again_and_again_before_it_has_its_slot_takes_no_more_memory() -> None:
    stage = stage_of(1)
    stage.submit(flow(task("a")), "waits")
    token = stage.task("a", "waits").token
    waits(stage, token)
    stage.submit(flow(task("a")), "holds the slot")
    for _ in range(100):
        stage.send(Regain(token, Reply(None)))
        waits(stage, token)
    stage.send(Regain(token, Reply(None)))
    requests = stage.kernel.scheduler.reservations.requests
    assert [list(queue) for mine in requests._queues.values() for queue in mine.values()] == [[token]]
    stage.end(stage.task("a", "holds the slot").token)
    stage.settle()
    assert token not in stage.kernel.lent
    assert not requests
    assert stage.audit() == []


def test_who_wants_a_slot_back_keeps_nobody_out_who_waits_for_another_limit() -> None:
    stage = stage_of(3)
    stage.submit(flow(task("a"), task("b"), max_parallel=1), "narrow")
    waits(stage, stage.task("a", "narrow").token)  # so that b runs
    stage.submit(flow(task("c")), "wide")
    waits(stage, stage.task("c", "wide").token)
    assert not goes_on(stage, stage.task("a", "narrow").token)
    assert goes_on(stage, stage.task("c", "wide").token)
    end(stage, "narrow", "b")
    assert stage.task("a", "narrow").token not in stage.kernel.lent
    end(stage, "narrow")
    end(stage, "wide", "c")
    assert stage.audit() == []


def test_one_that_ends_while_it_wants_its_slot_back_leaves_the_queue() -> None:
    stage = stage_of(1)
    stage.submit(flow(task("a")), "one")
    waits(stage, stage.task("a", "one").token)
    stage.submit(flow(task("b")), "two")
    assert not goes_on(stage, stage.task("a", "one").token)
    stage.cancel(living(stage, "one"))
    assert not stage.kernel.scheduler.reservations.requests
    end(stage, "two", "b")
    assert stage.state("two") == "completed"
    assert stage.audit() == []


@pytest.mark.parametrize("tool", [None, "t"])
@pytest.mark.parametrize("word", [PauseWorker("enough"), ShutDownWorker("enough"), TerminateWorker("enough")])
def test_a_slot_of_a_worker_that_stops_in_the_turn_in_which_it_is_regained_is_free_once(
    word: Message, tool: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = stage_of(2)
    stage.submit(flow(task("a", tool=tool), task("c")), "one")
    token = stage.task("a", "one").token
    waits(stage, token)
    stage.submit(flow(task("b")), "two")
    assert not goes_on(stage, token)
    worker, slot, gives = stage.worker("loop"), stage.kernel.lent[token].slot, Reservations._give_slot_back

    def after_a_word(mine: Reservations, *given: Any) -> bool:
        stage.kernel.send(worker, word)
        return gives(mine, *given)

    monkeypatch.setattr(Reservations, "_give_slot_back", after_a_word)
    end(stage, "two", "b")
    if stage.task("a", "one").state == "running":  # it goes on without a slot
        assert stage.kernel.lent[token].goes_on
        assert stage.task("a", "one").due_at is not None  # its clock goes on, too
    for name in ("a", "c"):
        if stage.task(name, "one").token in stage.kernel.calls:
            end(stage, "one", name)
    assert [gate.used for gate in slot.gates] == [0] * len(slot.gates)
    assert worker.record.assigned == 0
    assert worker.ended or worker.used == 0
    assert not stage.kernel.lent
    assert not stage.kernel.slots
    assert stage.audit() == []
