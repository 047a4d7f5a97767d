"""Health: workers that do not answer, answer again or end; attempts that recover or are lost; replacement."""

from __future__ import annotations

from typing import Any

import pytest
from tests.actors.jobs_help import goes_on, waits
from tests.actors.stage import KernelHarness, flow, hangs, task

from callboard.actors.kernel.transaction import KillWorker, StartWorker
from callboard.actors.messages.commands import Approve, AskApproval
from callboard.actors.messages.inputs import Beat, CallEnded, Drain, StopWorkers, WorkerBeat, WorkerDied
from callboard.actors.records.entities import WorkerRecord
from callboard.actors.spec.model import Approval, HealthChecks, Task, Worker
from callboard.actors.users.strategy import Supervision

OWN: Any = "cluster"  # any engine with processes of its own
ONE = (Worker("p", engine=OWN, capacity=1),)
TWO = (Worker("p", engine=OWN, capacity=2),)
PAIR = (Worker("p", engine=OWN, capacity=1), Worker("q", engine=OWN, capacity=1))


def body(name: str, **more: Any) -> Task:
    return task(name, engine=OWN, **more)


def running(workers: tuple[Worker, ...] = ONE, names: str = "a", health: HealthChecks | None = None) -> KernelHarness:
    """A stage on which these tasks run and do not end by themselves."""
    stage = KernelHarness(workers=workers, health=health)
    for name in names:
        stage.scripts[name] = hangs
    stage.submit(flow(*(body(name, timeout=10_000) for name in names)))
    return stage


def freeze(stage: KernelHarness, name: str = "p") -> None:
    """Freeze a worker, and let the rounds pass after which it counts as unresponsive."""
    stage.silent.add(name)
    stage.advance(31)


def kept(stage: KernelHarness, worker_id: str) -> WorkerRecord:
    record: WorkerRecord = next(record for record in stage.kept.of(WorkerRecord) if record.id == worker_id)
    return record


# -- starting ------------------------------------------------------------------------------------------------------


def test_one_with_a_process_is_ready_when_it_has_answered() -> None:
    stage = KernelHarness(workers=())
    stage.silent.add("p")
    stage.workers = ONE
    from callboard.actors.messages.commands import StartWorkers

    stage.send(StartWorkers(ONE))
    assert stage.path("p#1") == ["initializing"]
    assert stage.orders == [StartWorker("cluster", "p", 1)]
    stage.submit(flow(body("a")))
    assert stage.task("a").routable  # the worker may come yet
    stage.send(WorkerBeat("p", 1))
    assert stage.path("p#1") == ["initializing", "idle", "busy", "idle"]
    assert stage.state() == "completed"


def test_one_that_does_not_start_in_time_has_failed_and_the_next_one_is_tried() -> None:
    from callboard.actors.messages.commands import StartWorkers

    stage = KernelHarness(workers=())
    stage.silent.add("p")
    stage.send(StartWorkers(ONE))
    stage.advance(30)
    assert stage.path("p#1") == ["initializing", "failed"]
    assert stage.worker("p").record.reason == "it was not ready within 30 s"
    assert KillWorker("cluster", "p", 1) in stage.orders
    stage.silent.clear()
    stage.advance(0.1)
    assert stage.path("p#2") == ["initializing", "idle"]
    assert stage.audit() == []


def test_one_that_never_gets_ready_is_given_up_and_what_waits_for_it_is_told() -> None:
    from callboard.actors.messages.commands import StartWorkers

    stage = KernelHarness(workers=())
    stage.silent.add("p")
    stage.send(StartWorkers(ONE))
    stage.submit(flow(body("a")))
    stage.advance(3600)
    assert (stage.worker("p").record.run, stage.worker("p").record.state) == (6, "failed")
    notices = [notice for notice in stage.notices if notice.event == "worker_given_up"]
    assert [notice.severity for notice in notices] == ["critical"]
    assert "was not ready after 5 further starts" in notices[0].text
    assert stage.state() == "failed"  # no worker had come in the 10 minutes of its wait
    assert stage.task("a").error_type == "unroutable_timeout"
    assert stage.audit() == []


# -- silence -------------------------------------------------------------------------------------------------------


def test_three_missed_checks_make_it_unresponsive_and_its_attempts_recovering() -> None:
    stage = running(TWO, "ab")
    stage.advance(25)
    stage.silent.add("p")
    stage.advance(6.0)  # the check at 30, unanswered at 31
    assert (kept(stage, "p#1").missed, stage.path("p#1")[-1]) == (1, "busy")
    stage.advance(19.9)
    assert (kept(stage, "p#1").missed, stage.path("p#1")[-1]) == (2, "busy")
    stage.advance(0.2)
    assert stage.path("p#1")[-1] == "unresponsive"
    assert stage.states() == {"a": "recovering", "b": "recovering"}
    (moved,) = [t for t in stage.kept.transitions if t.to_state == "unresponsive"]
    assert (moved.severity, moved.reason) == ("error", "it did not answer 3 health checks in a row")
    assert stage.audit() == []


def test_one_that_cannot_answer_and_works_is_told_as_busy_once_for_the_same_bodies() -> None:
    stage = running(TWO, "ab")
    stage.silent.add("p")
    busy = WorkerBeat("p", 1, (stage.token("a"),), busy=True)
    both = WorkerBeat("p", 1, (stage.token("a"), stage.token("b")), busy=True)

    def told() -> int:
        return [notice.event for notice in stage.notices].count("worker_busy")

    stage.advance(25)
    assert kept(stage, "p#1").missed == 2
    stage.send(busy)
    stage.send(busy)
    assert (kept(stage, "p#1").missed, told()) == (0, 1)
    stage.send(WorkerBeat("p", 1, (stage.token("a"),)))
    stage.send(busy)
    assert told() == 1
    stage.send(both)
    stage.send(busy)
    assert told() == 2
    stage.advance(40)
    assert stage.path("p#1")[-1] == "unresponsive"
    stage.send(busy)
    assert stage.path("p#1")[-1] == "busy"
    assert (stage.task("a").state, stage.task("a").attempt) == ("running", 1)
    (moved,) = [t for t in stage.kept.transitions if t.from_state == "unresponsive"]
    assert moved.reason == "its process works"
    assert stage.audit() == []


def test_one_that_is_kept_busy_by_what_an_ended_body_has_left_is_told_as_busy() -> None:
    stage = running(TWO, "ab")
    stage.silent.add("p")
    stage.advance(25)
    for _ in range(2):
        stage.send(WorkerBeat("p", 1, (), busy=True))
    assert [notice.event for notice in stage.notices].count("worker_busy") == 1


def test_it_is_known_within_the_intervals_and_the_patience() -> None:
    """Even if the worker freezes just after an answer."""
    stage = running()
    stage.advance(10)
    frozen_at = stage.time
    stage.silent.add("p")
    while stage.path("p#1")[-1] != "unresponsive":
        stage.advance(0.25)
    assert stage.time - frozen_at <= 3 * 10 + 1


def test_an_answer_clears_the_count() -> None:
    stage = running()
    stage.silent.add("p")
    stage.advance(21)
    assert kept(stage, "p#1").missed == 2
    stage.send(WorkerBeat("p", 1, (stage.token("a"),)))
    assert kept(stage, "p#1").missed == 0
    stage.advance(20)
    assert kept(stage, "p#1").missed == 2
    assert stage.path("p#1")[-1] == "busy"


def test_one_that_comes_back_goes_on_with_the_same_attempt() -> None:
    stage = running(TWO, "ab")
    freeze(stage)
    token = stage.token("a")
    stage.end(stage.token("b"), value=b"7")  # the body ended meanwhile, and the answer reports its result
    stage.silent.clear()
    stage.advance(10)
    assert stage.path("p#1")[-3:] == ["busy", "unresponsive", "busy"]
    assert stage.steps("a")[2:] == ["running", "recovering", "running"]
    assert stage.steps("b")[2:] == ["running", "recovering", "running", "validating", "completed"]
    record = stage.task("a")
    assert (record.attempt, record.token, record.lost_attempts) == (1, token, 0)
    stage.end(token)
    stage.settle()
    assert stage.state() == "completed"
    assert stage.path("p#1")[-1] == "idle"
    assert stage.bodies() == ["a", "b"]
    assert stage.audit() == []


def test_its_limits_go_on_from_where_they_were() -> None:
    stage = KernelHarness(workers=ONE)
    stage.scripts["a"] = hangs
    stage.submit(flow(body("a", timeout=100)))
    freeze(stage)
    stage.silent.clear()
    stage.advance(10)
    assert stage.states() == {"a": "running"}
    stage.advance(58)
    assert stage.states() == {"a": "running"}
    stage.advance(2)
    assert stage.steps("a")[-2:] == ["timed_out", "failed"]


def test_silence_ends_in_one_loss_and_another_attempt_elsewhere() -> None:
    stage = running(PAIR)
    first = stage.token("a")
    where = stage.task("a").worker_id
    stage.stubborn = {"a"}
    stage.deaf = {"a"}
    assert where == "p#1"
    freeze(stage)
    stage.advance(59.9)
    assert stage.states() == {"a": "recovering"}
    stage.advance(0.1)
    assert stage.steps("a")[2:] == ["running", "recovering", "retrying", "queued", "running"]
    record = stage.task("a")
    assert (record.attempt, record.lost_attempts, record.failed_attempts, record.worker_id) == (2, 1, 0, "q#1")
    assert "did not answer for 60 s more" in str(record.last_error)
    assert (first, True) in stage.stops
    # The worker is found dead once more, and its late result is refused: nothing is counted twice.
    stage.send(CallEnded(first, "ok", b"1"))
    assert stage.notices[-1].event == "stale_message"
    stage.send(WorkerDied("p", 1, "killed by SIGKILL"))
    stage.send(CallEnded(first, "lost", error="killed by SIGKILL"))
    assert stage.task("a").lost_attempts == 1
    assert [attempt.end for attempt in stage.attempts("a")] == ["lost", None]
    stage.end(stage.token("a"))
    stage.settle()
    assert stage.state() == "completed"
    assert stage.audit() == []


def test_losses_have_a_budget_of_their_own() -> None:
    stage = KernelHarness(workers=ONE)
    stage.scripts["a"] = hangs
    stage.submit(flow(body("a", max_losses=2)))
    for run in (1, 2):
        stage.inputs.append(WorkerDied("p", run, "killed by SIGKILL"))
        stage.end(stage.token("a"), status="lost", error="killed by SIGKILL", error_type="worker_lost")
        stage.settle()
        stage.advance(1)
    record = stage.task("a")
    assert (record.state, record.lost_attempts, record.error_type) == ("failed", 2, "worker_lost")


def test_a_recovering_one_can_be_cancelled() -> None:
    stage = running()
    freeze(stage)
    assert stage.cancel(stage.actor("a")) is None
    assert stage.steps("a")[2:] == ["running", "recovering", "cancelled"]
    assert [attempt.end for attempt in stage.attempts("a")] == ["cancelled"]
    assert kept(stage, "p#1").assigned == 0
    assert stage.audit() == []


def test_what_ends_while_it_is_silent_lowers_what_is_assigned() -> None:
    stage = KernelHarness(workers=TWO)
    stage.scripts |= {"a": hangs, "b": hangs}
    stage.submit(flow(body("a"), body("b", optional=True)))
    freeze(stage)
    stage.cancel(stage.actor("b"))
    assert kept(stage, "p#1").assigned == 1
    stage.cancel(stage.actor("a"))
    assert kept(stage, "p#1").assigned == 0
    stage.silent.clear()
    stage.advance(10)
    assert stage.path("p#1")[-1] == "idle"
    assert stage.audit() == []


def test_a_body_that_should_not_run_there_any_more_is_killed() -> None:
    stage = running(PAIR)
    first = stage.token("a")
    stage.deaf = {"a"}
    freeze(stage)
    stage.advance(60)
    stage.stops.clear()
    stage.silent.clear()
    stage.advance(10)  # the worker answers, and reports that it runs the first attempt
    assert stage.path("p#1")[-1] == "busy"  # until that body has ended
    assert stage.stops == [(first, True)]
    assert stage.notices[-1].event == "stray_body"
    stage.deaf.clear()
    stage.send(Beat(first, None))
    assert (first, True) in stage.stops
    assert stage.path("p#1")[-1] == "idle"
    assert stage.task("a").attempt == 2
    stage.send(Beat(first, None))  # now no entity knows it any more
    assert stage.stops[-1] == (first, True)
    assert stage.notices[-1].event == "stale_message"
    assert stage.audit() == []


def test_a_body_that_should_not_run_there_is_told_of_once_however_long_it_takes_to_kill() -> None:
    stage = running(PAIR)
    first = stage.token("a")
    stage.deaf = {"a"}
    freeze(stage)
    stage.advance(60)
    stage.stops.clear()
    stage.silent.clear()
    stage.advance(30)
    assert len(stage.stops) > 1  # the first order may be lost
    assert set(stage.stops) == {(first, True)}
    assert [notice.event for notice in stage.notices].count("stray_body") == 1


def test_an_answer_from_before_a_body_was_killed_does_not_make_it_a_stray() -> None:
    stage = running()
    first = stage.token("a")
    stage.deaf = {"a"}
    stage.silent.add("p")
    stage.advance(11)  # a round has begun, and the worker has not answered yet
    assert stage.probes[-1] == ("p", 1)
    stage.cancel(stage.actor("a"), force=True)
    assert stage.stops == [(first, True)]
    stage.send(WorkerBeat("p", 1, (first,)))  # the worker answered before it got the order
    assert (stage.stops, [notice.event for notice in stage.notices]) == ([(first, True)], [])
    stage.silent.clear()
    stage.advance(10)  # asked after it was told, it still runs that body
    assert stage.stops[1:] == [(first, True)]
    assert [notice.event for notice in stage.notices] == ["stray_body"]


def test_an_idle_one_is_asked_too_once_it_has_run_something() -> None:
    stage = KernelHarness(workers=ONE)
    stage.advance(1000)
    assert stage.probes == [("p", 1)]  # at its start; a worker that has run nothing is not probed again
    stage.submit(flow(body("a")))
    assert stage.path("p#1")[-1] == "idle"
    freeze(stage)
    assert stage.path("p#1")[-1] == "unresponsive"
    stage.silent.clear()
    stage.advance(10)
    assert stage.path("p#1")[-1] == "idle"
    assert stage.audit() == []


def test_one_that_does_not_come_back_expires_and_is_replaced() -> None:
    stage = running()
    stage.deaf = {"a"}
    freeze(stage)
    stage.advance(299.5)
    assert stage.path("p#1")[-1] == "unresponsive"
    assert stage.states() == {"a": "queued"}
    assert stage.task("a").routable  # the worker may still come back
    stage.advance(0.5)
    assert stage.path("p#1")[-1] == "shutdown"
    assert KillWorker("cluster", "p", 1) in stage.orders
    assert stage.task("a").routable  # the next one comes
    stage.silent.clear()
    stage.advance(0.1)
    assert stage.path("p#2") == ["initializing", "idle", "busy"]
    assert stage.task("a").attempt == 2
    assert stage.audit() == []


@pytest.mark.parametrize("end", ["died", "terminated"])
def test_an_unresponsive_one_may_die_or_be_terminated(end: str) -> None:
    from callboard.actors.messages.commands import TerminateWorker

    stage = running()
    freeze(stage)
    if end == "died":
        stage.inputs.append(WorkerDied("p", 1, "killed by SIGKILL"))
        stage.end(stage.token("a"), status="lost", error="killed by SIGKILL", error_type="worker_lost")
        stage.settle()
    else:
        assert stage.command(stage.worker("p"), TerminateWorker("enough")) is None
    assert stage.path("p#1")[-1] == ("failed" if end == "died" else "terminated")
    assert stage.steps("a")[2:5] == ["running", "recovering", "retrying"]
    assert stage.audit() == []


# -- the runtime's own pauses --------------------------------------------------------------------------------------


def test_a_runtime_that_stood_still_blames_nobody() -> None:
    stage = running()
    stage.silent.add("p")
    stage.advance(21)
    assert kept(stage, "p#1").missed == 2
    stage.stand_still(100)  # the timers come late; the answers are there, unread
    stage.advance(1)
    assert kept(stage, "p#1").missed == 2
    stage.silent.clear()
    stage.advance(10)
    assert (kept(stage, "p#1").missed, stage.path("p#1")[-1]) == (0, "busy")


def test_standing_still_excuses_one_round_only() -> None:
    stage = running()
    stage.silent.add("p")
    stage.advance(21)
    stage.stand_still(100)
    stage.advance(13)
    assert stage.path("p#1")[-1] == "unresponsive"


def test_the_recovery_timeout_and_the_expiry_give_a_round_of_grace_too() -> None:
    stage = running()
    stage.deaf = {"a"}
    freeze(stage)
    stage.stand_still(500)
    stage.advance(9)
    assert stage.states() == {"a": "recovering"}
    assert stage.path("p#1")[-1] == "unresponsive"
    stage.silent.clear()
    stage.advance(1)
    assert stage.path("p#1")[-1] == "busy"
    assert stage.task("a").attempt == 1
    stage.silent.add("p")
    stage.advance(40)
    stage.stand_still(500)
    stage.advance(12)
    assert stage.path("p#1")[-1] == "shutdown"
    assert stage.steps("a")[-1] == "queued"


# -- the pool ------------------------------------------------------------------------------------------------------


def die(stage: KernelHarness, name: str = "p") -> None:
    stage.send(WorkerDied(name, stage.worker(name).record.run, "killed by SIGKILL"))


def test_the_dead_are_replaced_with_growing_delay_and_then_given_up() -> None:
    stage = KernelHarness(
        workers=ONE, health=HealthChecks(restarts=Supervision(intensity=3, backoff_min=1, period=100))
    )
    stage.scripts["a"] = hangs
    for run, delay in ((1, 1), (2, 2), (3, 4)):
        die(stage)
        stage.advance(delay - 0.1)
        assert stage.worker("p").record.run == run
        stage.advance(0.1)
        assert stage.worker("p").record.run == run + 1
    stage.submit(flow(body("a"), body("b", optional=True)))
    stage.inputs.append(WorkerDied("p", 4, "killed by SIGKILL"))
    stage.end(stage.token("a"), status="lost", error="killed by SIGKILL", error_type="worker_lost")
    stage.advance(0)
    stage.settle()
    stage.advance(0)
    assert [stage.task(name).routable for name in "ab"] == [False, False]  # at once
    stage.advance(1000)
    assert (stage.worker("p").record.run, stage.worker("p").record.state) == (4, "failed")
    notices = [notice for notice in stage.notices if notice.event == "worker_given_up"]
    assert [notice.severity for notice in notices] == ["critical"]
    assert stage.states() == {"a": "failed", "b": "failed"}
    assert stage.task("b").error_type == "unroutable_timeout"
    assert stage.audit() == []


def test_the_count_is_forgotten_after_stable_uptime_only() -> None:
    stage = KernelHarness(
        workers=ONE, health=HealthChecks(restarts=Supervision(intensity=2, backoff_min=1, stable_after=50))
    )
    for _ in range(4):
        die(stage)
        stage.advance(1)
        assert stage.worker("p").record.state == "idle"
        stage.advance(50)
    assert stage.worker("p").record.run == 5
    die(stage)
    stage.advance(1)
    die(stage)
    stage.advance(2)
    assert stage.worker("p").record.state == "idle"
    die(stage)
    stage.advance(1000)
    assert stage.worker("p").record.state == "failed"


def test_a_stopping_runtime_replaces_nobody() -> None:
    stage = KernelHarness(workers=ONE)
    stage.send(Drain(stop=False))
    die(stage)
    stage.advance(1000)
    assert stage.worker("p").record.run == 1


def test_a_closing_runtime_ends_workers_in_every_state() -> None:
    stage = running(PAIR, "ab")
    freeze(stage, "p")
    stage.send(StopWorkers())
    assert stage.path("p#1")[-1] == "terminated"
    assert stage.path("q#1")[-1] == "draining"
    assert stage.reports == []


def test_what_recovery_makes_of_silence() -> None:
    """A crash of the runtime ends it: workers have failed, attempts are lost once."""
    stage = KernelHarness(workers=(Worker("p", engine="process"),))
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a", engine="process")))
    freeze(stage)
    after = stage.after_crash()
    assert after.path("p#1")[-1] == "failed"
    after.advance(0)
    record = after.task("a")
    assert (record.state, record.attempt, record.lost_attempts) == ("running", 2, 1)
    assert record.worker_id == "p#2"
    assert after.audit() == []


@pytest.mark.parametrize(
    "setting", ["interval", "expire", "start_timeout", "drain_deadline", "cooldown", "loop_blocked"]
)
def test_health_checks_refuse_what_is_no_duration(setting: str) -> None:
    with pytest.raises(ValueError, match=f"HealthChecks: {setting}: 'soon' is not a duration"):
        HealthChecks(**{setting: "soon"})


# -- bodies that wait ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["before", "meanwhile"])
def test_a_body_that_waits_for_people_waits_on_when_its_worker_is_back(asked: str) -> None:
    stage = KernelHarness(workers=ONE)
    stage.scripts["a"] = hangs
    stage.submit(flow(body("a", timeout=100)))
    token = stage.token("a")
    if asked == "before":
        stage.send(AskApproval(token, "prod", Approval()))
    freeze(stage)
    assert stage.states() == {"a": "recovering"}
    if asked == "meanwhile":
        stage.send(AskApproval(token, "prod", Approval()))
    stage.silent.clear()
    stage.advance(10)
    stage.advance(10_000)  # the attempt's clock is stopped
    assert stage.steps("a")[2:] == ["running", "recovering", "running"]
    assert stage.command(stage.actor("a"), Approve("ana")) is None
    assert stage.decided == [(token, "prod", "approved")]
    stage.advance(100)
    assert "timed_out" in stage.steps("a")
    assert stage.audit() == []


def test_a_body_may_begin_and_end_to_wait_for_a_child_while_its_worker_is_silent() -> None:
    stage = KernelHarness(workers=ONE)
    stage.scripts["a"] = hangs
    stage.submit(flow(body("a", timeout=100)))
    token = stage.token("a")
    freeze(stage)
    waits(stage, token)
    assert goes_on(stage, token)  # the worker takes no new task: the body need not wait for its slot
    waits(stage, token)
    stage.silent.clear()
    stage.advance(10)
    stage.advance(10_000)
    assert stage.steps("a")[2:] == ["running", "recovering", "running"]
    assert goes_on(stage, token)
    stage.advance(100)
    assert "timed_out" in stage.steps("a")
    assert stage.audit() == []
