"""A runtime in virtual time: scripts are followed, durable data survive, and a seed decides a run."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from typing import Any
from weakref import ref

import anyio
import anyio.lowlevel
import msgspec
import pytest

from callboard import (
    Approval,
    Check,
    Clause,
    Condition,
    Fire,
    HealthChecks,
    Hook,
    Retry,
    StepRecord,
    Task,
    TaskContext,
    Tool,
    Worker,
    Workstream,
    step,
)
from callboard.actors.records.step import of_present
from callboard.errors import DecisionRefused, InvalidTransitionError, Permanent, RetryAfter
from callboard.runtime.testing.scripted import WORKERS
from callboard.runtime.testing.world import World
from callboard.runtime.web.read.shapes import step_view
from callboard.testing import Dies, Exits, Fails, Hangs, Simulation, SimulationError, Succeeds


def body() -> None:
    """A body that a script replaces, or that does nothing."""


def flow(*tasks: Task, **more: Any) -> Workstream:
    return Workstream("flow", tasks=list(tasks), **more)


def one(name: str = "build", **more: Any) -> Workstream:
    return flow(Task(name, run=body, **more))


@pytest.fixture
def sim() -> Iterator[Simulation]:
    with Simulation() as simulation:
        yield simulation
        if simulation.world.runtime is not None:
            simulation.check()


# -- bodies ------------------------------------------------------------------------------------------------------------


def test_a_scripted_body_takes_its_time_and_returns_what_it_is_told_to(sim: Simulation) -> None:
    sim.body("build", takes="3m", returns={"size": 7})
    outcome = sim.submit(one()).run()
    assert outcome.results == {"build": {"size": 7}}
    assert sim.now == 180


def test_outcomes_come_attempt_by_attempt_and_the_last_one_stays(sim: Simulation) -> None:
    sim.body("build", outcomes=[Fails("no"), Fails(ValueError("odd")), Succeeds(3)])
    job = sim.submit(one(retry=Retry(max_attempts=3, jitter=0)), id="first")
    outcome = job.run()
    assert (outcome.results, outcome.tasks["build"].error_type, sim.now) == ({"build": 3}, "ValueError", 2 + 4)
    assert sim.submit(one(retry=Retry(max_attempts=3)), id="second").run().tasks["build"].attempt == 3


def test_an_attempt_that_is_lost_has_had_its_outcome(sim: Simulation) -> None:
    sim.body("build", outcomes=[Hangs(), Fails("no"), Succeeds(3)])
    job = sim.submit(one(retry=Retry(max_attempts=3, jitter=0)))
    sim.settle()
    sim.crash()
    outcome = job.run()
    build = outcome.tasks["build"]
    assert (build.result, build.attempt, build.lost_attempts, build.failed_attempts) == (3, 3, 1, 1)


def test_errors_say_what_bodies_say_by_them(sim: Simulation) -> None:
    sim.body("build", outcomes=[Fails(RetryAfter(50)), Fails(Permanent("never"))])
    outcome = sim.submit(one(retry=Retry(max_attempts=9))).run()
    assert (outcome.state, outcome.tasks["build"].attempt, sim.now) == ("failed", 2, 50)


def test_a_function_that_no_script_stands_for_runs_for_real_in_virtual_time(sim: Simulation) -> None:
    async def slow(task: TaskContext) -> int:
        await anyio.sleep(3_600)
        return int(task.results["plain"]) + 1

    def plain() -> int:
        return 1

    job = sim.submit(flow(Task("plain", run=plain), Task("slow", run=slow, depends_on=["plain"], timeout="2h")))
    assert job.run().results == {"plain": 1, "slow": 2}
    assert sim.now == 3_600


def test_functions_succeed_at_once_where_that_is_asked_for() -> None:
    def never() -> None:
        raise AssertionError("it ran")

    with Simulation(functions="succeed") as sim:
        assert sim.submit(flow(Task("never", run=never))).run().results == {"never": None}


def test_a_function_may_stand_for_a_body(sim: Simulation) -> None:
    async def instead(task: TaskContext) -> str:
        await anyio.sleep(5)
        return f"{task.job_id} {task.attempt}"

    sim.body("build", instead, takes=10)
    assert sim.submit(one(), id="job").run().results == {"build": "job 1"}
    assert sim.now == 15


def test_commands_are_scripted_by_the_names_of_their_tasks_and_never_run(sim: Simulation) -> None:
    sim.body("test", outcomes=[Exits(3, "one\ntwo failed"), Exits(0, "fine")])
    job = sim.submit(flow(Task("test", command=["false"], retry=Retry(max_attempts=2)), Task("other", command=["no"])))
    outcome = job.run()
    assert outcome.results["test"] == {"exit_code": 0, "output": "fine"}
    assert outcome.results["other"] == {"exit_code": 0, "output": ""}
    assert outcome.tasks["test"].last_error is not None
    assert "exited with 3 (expected: 0): two failed" in outcome.tasks["test"].last_error


def test_conditions_checks_and_hooks_are_scripted_behind_the_name_of_their_task(sim: Simulation) -> None:
    sim.body("build.condition", returns=False)
    sim.body("test.check", outcomes=[Fails("not there")])
    sim.body("test.hook", takes="10s")
    assert sim.submit(one(condition=Condition(command=["x"]))).run().tasks["build"].state == "skipped"
    failing = one("test", checks=[Check(command=["x"])], on_failed=[Hook(command=["tell"])])
    assert sim.submit(failing).run().state == "failed"
    sim.run()
    assert [kind for kind, _, _ in sim.started] == ["condition", "body", "check", "hook"]
    assert sim.now >= 10


def test_scripts_are_found_by_job_then_by_name_then_by_pattern(sim: Simulation) -> None:
    sim.body("*", returns="any")
    sim.body("ship-*", returns="ship")
    sim.body("build", returns="build")
    sim.body("second/build", returns="the second's")
    spec = flow(Task("build", run=body), Task("ship-it", run=body), Task("else", run=body))
    assert sim.submit(spec, id="first").run().results == {"build": "build", "ship-it": "ship", "else": "any"}
    assert sim.submit(spec, id="second").run().results["build"] == "the second's"


def test_a_body_that_hangs_is_timed_out_and_one_that_ignores_its_stop_is_abandoned(sim: Simulation) -> None:
    sim.body("build", outcomes=[Hangs()], ignores_stop=True)
    outcome = sim.submit(one(timeout="1m")).run()
    assert outcome.tasks["build"].error_type == "timed_out"
    assert sim.now == 60 + 10 + 1  # the grace, and what the engine has beyond it
    sim.settle()
    assert "body_abandoned" in [notice.event for notice in sim.notices]


@step
async def picked(number: int) -> int:
    return number


async def picks(task: TaskContext) -> None:
    await task.step(picked, 1)
    await task.step(picked, 2)


def test_a_simulated_task_has_its_steps(sim: Simulation) -> None:
    sim.body("build", run=picks)
    job = sim.submit(flow(Task("build", run=picks), Task("test", run=body)))
    assert job.run().state == "completed"
    assert [(one.label, one.result) for one in job.task("build").steps()] == [("picked", 1), ("picked#2", 2)]
    assert job.task("test").steps() == []


def test_heartbeats_keep_a_body_alive_and_their_absence_does_not(sim: Simulation) -> None:
    sim.body("build", takes="10m", heartbeat="20s", details={"at": 3})
    sim.body("test", takes="10m")
    job = sim.submit(flow(*(Task(name, run=body, heartbeat_timeout="30s", timeout="1h") for name in ("build", "test"))))
    assert job.run().state == "failed"
    assert job.task("test").record.limit == "heartbeat"
    assert [(one.attempt, one.end) for one in job.task("test").attempts()] == [(1, "timed_out")]


def test_a_cancelled_body_needs_the_time_that_it_needs_to_stop(sim: Simulation) -> None:
    sim.body("build", outcomes=[Hangs()], stops_in="4s")
    job = sim.submit(one())
    sim.advance(10)
    job.cancel(by="ana")
    assert job.state == "cancelling"
    sim.run()
    assert (job.state, sim.now) == ("cancelled", 14)


# -- time and verbs ----------------------------------------------------------------------------------------------------


def test_an_approval_of_days_takes_no_time(sim: Simulation) -> None:
    job = sim.submit(one(hold=Approval(people=2, expires="72h")))
    sim.advance("71h")
    job.task("build").approve(by="ana")
    assert job.task("build").state == "held"
    job.task("build").approve(by="ben")
    assert job.run().ok


def test_an_approval_that_does_not_come_expires_to_the_second(sim: Simulation) -> None:
    job = sim.submit(one(hold=Approval(expires="72h")), id="job")
    sim.advance("71h59m59s")
    assert job.task("build").state == "held"
    sim.advance("1s")
    assert sim.path("job@1/build") == ["pending", "held", "cancelled"]


def test_what_a_state_does_not_allow_is_refused_as_by_the_runtime(sim: Simulation) -> None:
    job = sim.submit(one())
    job.run()
    with pytest.raises(InvalidTransitionError):
        job.task("build").cancel()


def test_the_same_command_again_is_the_same_command_also_after_a_crash(sim: Simulation) -> None:
    job = sim.submit(one(hold=Approval(people=2)))
    job.task("build").approve(by="ana", request_id="r1")
    sim.crash()
    job.task("build").approve(by="ana", request_id="r1")
    assert len(job.task("build").record.decisions) == 1


def test_waiting_for_what_does_not_come_says_the_seed_and_what_happened() -> None:
    with Simulation(seed=12) as sim:
        job = sim.submit(one(hold=Approval()))
        with pytest.raises(AssertionError, match="waited 1h for job") as raised:
            job.run(within="1h")
        (note,) = raised.value.__notes__
        assert "seed 12; the end of the trace" in note
        assert "pending -> held" in note


def test_a_failure_shows_the_trace_once_and_the_scripts_by_which_nothing_ran() -> None:
    with pytest.raises(AssertionError) as raised, Simulation() as sim:
        sim.body("buidl", returns=1)
        sim.submit(one(hold=Approval())).until("completed", within="1h")
    (told,) = (note for note in raised.value.__notes__ if "the end of the trace" in note)
    assert told.startswith("seed 0; these scripts were not used: 'buidl'; the end of the trace:")


def test_a_state_that_there_is_not_is_not_waited_for(sim: Simulation) -> None:
    job = sim.submit(one(hold=Approval()))
    with pytest.raises(ValueError, match="is never 'heldd'; did you mean 'held'"):
        job.task("build").until("heldd", within="1h")
    with pytest.raises(ValueError, match="it may be submitted, pending, running"):
        job.until("held")
    assert sim.now == 0


def test_a_body_that_waits_for_the_real_world_is_named(sim: Simulation) -> None:
    never = anyio.Event()

    async def stuck() -> None:
        await never.wait()

    job = sim.submit(flow(Task("stuck", run=stuck, timeout="300d")))
    with pytest.raises(AssertionError, match=r"wait for what no simulation has .*: .*/stuck. Give them a script"):
        job.run(within="200d")


def test_a_paused_job_starts_nothing_until_it_is_resumed(sim: Simulation) -> None:
    sim.body("build", takes="1m")
    job = sim.submit(flow(Task("build", run=body), Task("test", run=body, depends_on=["build"])))
    sim.advance(1)
    job.pause(by="ana")
    sim.advance("1h")
    assert job.states() == {"build": "completed", "test": "pending"}
    job.resume()
    assert job.run().ok


# -- faults ------------------------------------------------------------------------------------------------------------


def test_a_crash_loses_what_ran_and_nothing_that_was_done(sim: Simulation) -> None:
    sim.body("*", takes="1m")
    job = sim.submit(flow(Task("build", run=body), Task("test", run=body, depends_on=["build"])), id="job")
    sim.advance("90s")
    sim.crash()
    outcome = job.run()
    assert outcome.ok
    assert (outcome.tasks["build"].attempt, outcome.tasks["test"].attempt) == (1, 2)
    assert outcome.tasks["test"].lost_attempts == 1


def test_what_was_not_durable_never_was() -> None:
    with Simulation() as sim:
        sim.fail_journal("no space left on device")
        asked = sim.begin(lambda: sim.runtime.submit(one(), id="job"))
        sim.advance(1)
        assert not asked.answered
        sim.crash()
        sim.mend_journal()
        with pytest.raises(LookupError):
            sim.job("job")


def test_a_journal_that_cannot_write_holds_everything_up_and_loses_nothing(sim: Simulation) -> None:
    sim.body("build", takes="10s")
    job = sim.submit(flow(Task("build", run=body), Task("test", run=body, depends_on=["build"])))
    sim.advance(5)
    sim.fail_journal("disk full", lasts="4m")
    sim.advance("3m")
    assert not sim.runtime.health.ok
    assert [owner for _, owner, _ in sim.started] == [f"{job.id}@1/build"]
    assert job.run().ok
    assert sim.runtime.health.ok
    assert 245 <= sim.now <= 250


def test_the_time_in_which_the_journal_keeps_a_start_back_is_not_the_attempts(sim: Simulation) -> None:
    sim.body("*", takes="10s")
    sim.body("build.condition", returns=True)
    tasks = [
        Task("build", run=body, timeout=15, depends_on=["slow"], condition=Condition(run=body, timeout=5)),
        Task("silent", run=body, timeout="10m", heartbeat_timeout=5, depends_on=["slow"], optional=True),
        Task("slow", run=body),
    ]
    sim.body("silent", outcomes=[Hangs()])
    job = sim.submit(flow(*tasks))
    sim.advance(5)
    sim.fail_journal("disk full", lasts="5m")  # "slow" ends, and what follows is durable at 306
    outcome = job.run()
    assert outcome.ok
    assert outcome.tasks["build"].failed_attempts == 0
    ended = [row for row in sim.transitions if row.kind == "task" and row.event in {"succeed", "time_out"}]
    assert [(row.entity_id.rpartition("/")[2], round(row.at - ended[0].at)) for row in ended] == [
        ("slow", 0), ("silent", 301), ("build", 306),
    ]  # fmt: skip


def test_of_a_hook_that_has_ended_nothing_is_left_to_happen(sim: Simulation) -> None:
    sim.body("build.hook", takes="2s")
    sim.submit(one(on_completed=[Hook(run=body, timeout="1h")]))
    sim.run()
    assert sim.now == 2


def test_nor_is_it_that_of_a_check_or_a_cancel_hook_or_the_grace_of_what_is_stopped(sim: Simulation) -> None:
    sim.body("build", takes="10s")
    sim.body("stays", outcomes=[Hangs()], stops_in="3s")
    sim.body("*.cancel_hook", takes="2s")
    check, hook = Check(run=body, timeout=5), Hook(run=body, timeout=5)
    tasks = [
        Task("build", run=body, checks=[check, check], optional=True),
        Task("stays", run=body, timeout="1h", kill_grace=5, cancel_hooks=[hook, hook], cancel_timeout=8),
    ]
    job = sim.submit(flow(*tasks))
    sim.advance(5)
    sim.slow_journal("1m")
    sim.advance("5m")
    assert job.task("build").state == "completed"
    job.cancel()
    assert not job.run().ok
    assert job.state == "cancelled"
    assert [owner for kind, owner, _ in sim.started if kind == "cancel_hook"] == [f"{job.id}@1/stays"] * 2
    assert [one.event for one in sim.notices if one.severity != "info"] == []


@pytest.mark.parametrize("latency", [0, "10s"])
def test_what_a_test_waited_for_is_not_undone_by_a_crash(latency: Any) -> None:
    pay, sign = Task("pay", run=body), Task("sign", run=body, depends_on=["pay"], hold=Approval())
    for seed in range(8):
        with Simulation(seed) as sim:
            sim.slow_journal(latency)
            job = sim.submit(flow(pay, sign), id="f")
            job.task("pay").until("completed")
            sim.crash()
            job.task("sign").until("held")
            sim.crash()
            sim.settle()
            assert job.states() == {"pay": "completed", "sign": "held"}
            job.task("sign").approve(by="ana")
            sim.expect_transition("f/sign", to="completed", within="5m")
            sim.crash()
            job.until("completed")
            sim.crash()
            assert job.state == "completed"
            assert [owner for _, owner, _ in sim.started] == ["f@1/pay", "f@1/sign"]


def test_what_a_crash_undid_while_a_test_waited_for_it_has_to_come_again(sim: Simulation) -> None:
    sim.body("build", takes="30s")
    job = sim.submit(one())
    sim.settle()
    sim.fail_journal()
    sim.at("1m", sim.crash)
    sim.at("2m", sim.mend_journal)
    job.task("build").until("completed", within="5m")
    assert (sim.world.crashes, len(sim.started)) == (1, 2)
    assert sim.path(f"{job.id}@1/build")[-1] == "completed"
    assert job.run().ok


def test_a_slow_journal_delays_what_depends_on_it(sim: Simulation) -> None:
    sim.slow_journal("10s")
    job = sim.submit(one())
    assert job.run().ok
    assert sim.now > 0


def test_a_worker_that_dies_is_replaced_and_its_attempt_runs_again(sim: Simulation) -> None:
    sim.body("build", takes="1m")
    job = sim.submit(one())
    sim.advance(30)
    sim.worker("threads").die("out of memory")
    assert job.task("build").state == "queued"
    outcome = job.run()
    assert (outcome.ok, outcome.tasks["build"].lost_attempts) == (True, 1)
    assert sim.worker("threads").record.run == 2


def test_a_body_may_take_its_worker_with_it(sim: Simulation) -> None:
    sim.body("build", outcomes=[Dies("a segmentation fault"), Succeeds(1)], takes="1s")
    outcome = sim.submit(one()).run()
    assert (outcome.results, outcome.tasks["build"].lost_attempts) == ({"build": 1}, 1)


def test_a_frozen_worker_is_found_silent_and_goes_on_when_it_is_back() -> None:
    workers = [Worker("far", engine="process")]
    with Simulation(workers=workers, health_checks=HealthChecks(interval="10s")) as sim:
        sim.body("build", takes="10m")
        job = sim.submit(flow(Task("build", run=body, engine="process", timeout="1h")))
        sim.advance(5)
        sim.worker("far").freeze()
        sim.advance("1m")
        assert sim.worker("far").state == "unresponsive"
        assert job.task("build").state == "recovering"
        sim.worker("far").come_back()
        assert (sim.worker("far").state, job.task("build").state) == ("busy", "running")
        assert job.run().tasks["build"].attempt == 1
        sim.check()


def test_a_worker_that_stays_down_comes_up_when_it_is_let() -> None:
    with Simulation(workers=[Worker("far", engine="process")]) as sim:
        job = sim.submit(flow(Task("build", run=body, engine="process")))
        job.run()
        sim.worker("far").die(for_good=True)
        second = sim.submit(flow(Task("build", run=body, engine="process")))
        sim.advance("1m")
        assert second.task("build").state == "queued"
        sim.worker("far").come_back()
        assert second.run(within="10m").ok
        sim.check()


def test_a_doubled_result_is_refused_as_stale(sim: Simulation) -> None:
    job = sim.submit(one())
    job.run()
    assert sim.tell_again(job.task("build").record.token)
    sim.settle()
    assert "stale_message" in [notice.event for notice in sim.notices]
    assert not sim.tell_again(9_999)


def test_a_late_result_of_an_abandoned_attempt_changes_nothing(sim: Simulation) -> None:
    sim.body("build", outcomes=[Succeeds("late"), Succeeds("right")], takes="5m", ignores_stop=True, late=True)
    job = sim.submit(one(timeout="1m", retry=Retry(max_attempts=9, jitter=0, base_delay=1)))
    sim.run()
    assert job.state == "failed"
    assert "late" in sim.trace.text()


def test_a_wall_clock_set_forward_brings_what_is_due_by_it_and_no_timeout(sim: Simulation) -> None:
    sim.body("build", takes="10m")
    job = sim.submit(flow(Task("build", run=body, timeout="11m"), Task("held", run=body, hold=Approval(expires="72h"))))
    sim.advance(1)
    sim.jump_utc(73 * 3600)
    sim.advance("1m")
    assert job.task("held").state == "cancelled"


def test_a_command_in_the_inbox_takes_effect_and_outlives_a_crash(sim: Simulation) -> None:
    sim.body("build", takes="1m")
    job = sim.submit(one(hold=Approval()), id="job")
    row = sim.put("approve", "task", "job/build", by="ana", ring=False)
    sim.settle()
    assert sim.answer(row) is None
    sim.crash()
    sim.settle()
    assert sim.answer(row) is not None
    assert job.task("build").state == "running"
    row = sim.put("cancel", "job", "job", by="ben")
    sim.settle()
    assert sim.answer(row) is not None
    sim.run()
    assert job.state == "cancelled"


@pytest.mark.parametrize(("verb", "kind", "target"), [("cancel", "task", "job/build"), ("cancel", "job", "job")])
def test_a_command_that_was_left_in_the_inbox_finds_what_the_crash_interrupted_counted(
    sim: Simulation, verb: str, kind: str, target: str
) -> None:
    sim.body("build", takes="1h")
    job = sim.submit(one(retry=Retry(max_attempts=3)), id="job")
    sim.settle()
    row = sim.put(verb, kind, target, ring=False)
    sim.crash()
    sim.run()
    assert '"state":"cancelled"' in str(sim.answer(row))
    build = job.task("build").record
    assert (build.state, build.attempt, build.lost_attempts) == ("cancelled", 1, 1)


def test_a_command_that_cannot_be_done_after_a_crash_is_refused_by_the_state_that_was_recovered(
    sim: Simulation,
) -> None:
    sim.body("build", takes="1h")
    sim.submit(one(retry=Retry(max_attempts=3)), id="job")
    sim.settle()
    row = sim.put("reset", "task", "job/build", ring=False)
    sim.crash()
    sim.run()
    assert "'reset' is not possible in state 'retrying'" in str(sim.answer(row))


def test_events_are_sent_to_what_is_simulated_also_after_a_crash(sim: Simulation) -> None:
    sim.body("build", takes="1m")
    job = sim.submit(
        flow(Task("build", run=body, hold=Approval()), Task("other", run=body, optional=True, hold=Approval())), id="j"
    )
    assert job.task("build").ref.events == {"approve", "reject", "cancel"}
    sim.ask(job.task("build").ref, Fire("approve", by="ana", request_id="k"))
    sim.crash()
    sim.settle()
    sim.ask(sim.machine("j@1/build"), Fire("approve", by="ana", request_id="k"))  # the same answer again
    with pytest.raises(InvalidTransitionError, match="The runtime fires 'start' itself"):
        sim.ask(sim.machine("j/other"), Fire("start"))
    assert sim.tell(job.ref, Fire("pause", by="ana"))
    assert sim.machine("j@1").state == "paused"
    sim.ask(job.ref, Fire("resume", by="ana"))
    assert sim.tell(job.task("other").ref, Fire("skip"))  # while it is held
    assert [str(letter.message.event) for letter in sim.dead_letters] == ["skip"]
    sim.ask(job.task("other").ref, Fire("reject", by="ana"))
    sim.run()
    assert job.states() == {"build": "completed", "other": "cancelled"}
    name = next(iter(sim.runtime.host.workforce.named))
    sim.ask(sim.worker(name).ref, Fire("terminate", by="ana"))
    assert sim.worker(name).state == "terminated"


def test_a_breaker_opens_and_cools_down_in_virtual_time(sim: Simulation) -> None:
    sim.body("build", outcomes=[Fails("x")] * 5 + [Succeeds()])
    job = sim.submit(one(tool="compiler", retry=Retry(max_attempts=9, base_delay=0)))
    sim.run_until(lambda: sim.breaker("compiler").state == "open", within="1m")
    assert job.run().ok
    assert sim.now >= 60
    assert sim.breaker("compiler").state == "closed"


def test_faults_may_come_by_themselves(sim: Simulation) -> None:
    sim.body("build", takes="4m")
    job = sim.submit(one(), id="job")
    sim.at("1m", lambda: sim.worker("threads").die())
    sim.at("2m", sim.crash)
    sim.at("3m", lambda: sim.crash(down="1m")).cancel()
    assert job.run().tasks["build"].lost_attempts == 2
    assert (sim.world.crashes, sim.now) == (1, 6 * 60)


# -- what bodies do ----------------------------------------------------------------------------------------------------


def test_bodies_submit_child_jobs_and_wait_for_them(sim: Simulation) -> None:
    async def parent(task: TaskContext) -> int:
        child = await task.submit(one("build"), name="child")
        return int((await child.wait()).results["build"]) + 1

    sim.body("build", returns=1, takes="1m")
    assert sim.submit(flow(Task("parent", run=parent))).run().results == {"parent": 2}
    assert sim.now == 60


def test_bodies_ask_for_approvals(sim: Simulation) -> None:
    async def ask(task: TaskContext) -> str | None:
        (decision,) = await task.approval("go", expires="24h")
        return decision.by

    job = sim.submit(flow(Task("ask", run=ask)))
    sim.advance("23h")
    job.task("ask").approve(by="ana", approval="go")
    assert job.run().results == {"ask": "ana"}


def test_a_plain_function_that_would_have_to_wait_is_told_so(sim: Simulation) -> None:
    def ask(task: TaskContext) -> None:
        task.wait_for_approval("go")

    outcome = sim.submit(flow(Task("ask", run=ask))).run()
    assert "a plain function cannot wait in a simulation" in (outcome.tasks["ask"].last_error or "")


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_who_is_in_a_team_is_asked_for_real(sim: Simulation, kind: str) -> None:
    def plain(team: str) -> list[str]:
        return ["ana"] if team == "leads" else []

    async def slow(team: str) -> list[str]:
        await anyio.sleep(3)
        return plain(team)

    clause = Clause(people=1, team="leads", members=plain if kind == "plain" else slow)
    job = sim.submit(one(hold=Approval(clauses=[clause])))
    with pytest.raises(DecisionRefused, match="ben meets no clause"):
        job.task("build").approve(by="ben")
    job.task("build").approve(by="ana")
    assert job.run().ok


def test_a_thread_that_a_body_waits_for_takes_no_virtual_time(sim: Simulation) -> None:
    def far() -> int:
        time.sleep(0.02)
        return 7

    async def body_with_threads() -> int:
        return await anyio.to_thread.run_sync(far) + await asyncio.to_thread(far)

    assert sim.submit(flow(Task("threads", run=body_with_threads))).run().results == {"threads": 14}
    assert sim.now == 0


def test_a_body_that_goes_round_in_circles_is_found(sim: Simulation) -> None:
    async def busy_body() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(SimulationError, match="repeats without end"):
        sim.submit(flow(Task("busy", run=busy_body))).run()


def test_cancelling_reaches_an_async_body_and_runs_its_cleanup_in_virtual_time(sim: Simulation) -> None:
    done: list[float] = []

    async def tidy() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(3)
            done.append(sim.now)

    job = sim.submit(flow(Task("tidy", run=tidy)))
    sim.advance(10)
    job.cancel()
    sim.run()
    assert (done, job.state) == ([13], "cancelled")


# -- making and closing ------------------------------------------------------------------------------------------------


def test_what_a_simulation_has_of_its_own_is_no_setting() -> None:
    with pytest.raises(TypeError, match="a simulation takes no journal, jsonl: it has its own"):
        Simulation(jsonl="log.jsonl", journal="state.db")
    with pytest.raises(ValueError, match="functions is"):
        Simulation(functions="never")
    with Simulation() as sim, pytest.raises(TypeError, match="an outcome is Succeeds"):
        sim.body("build", outcomes=[3])  # type: ignore[list-item]


def test_one_that_is_dropped_closes_itself_without_a_word() -> None:
    async def waiting() -> None:
        await anyio.sleep_forever()

    sim = Simulation()
    sim.submit(flow(Task("waiting", run=waiting)))
    sim.settle()
    loop = sim.world.loop
    sim.crash()
    del sim
    gc.collect()
    assert loop.is_closed()


@pytest.mark.anyio
async def test_one_is_of_use_inside_of_asyncio_and_says_why_not_inside_of_trio(anyio_backend_name: str) -> None:
    async def double(task: TaskContext) -> int:
        await anyio.sleep(60)
        return 2

    if anyio_backend_name == "trio":
        with pytest.raises(SimulationError, match="use VirtualRuntime"):
            Simulation()
        return
    with Simulation() as sim:
        assert sim.submit(flow(Task("double", run=double))).run().results == {"double": 2}
    await anyio.lowlevel.checkpoint()


# -- seeds -------------------------------------------------------------------------------------------------------------


def busy(seed: int) -> Simulation:
    """A simulation in which much is due at the same moment."""
    sim = Simulation(seed)
    sim.body("*", takes=("1s", "5s"))
    sim.body("task-3", outcomes=[Fails("x"), Dies(), Succeeds()])
    tasks = [Task(f"task-{number}", run=body, retry=Retry(max_attempts=3)) for number in range(20)]
    job = sim.submit(flow(*tasks), id="job")
    for _ in range(40):
        sim.step()
    sim.crash(down=1)
    job.run()
    return sim


def test_a_seed_is_a_run_and_another_one_another() -> None:
    with busy(1) as first, busy(1) as again, busy(2) as other:
        assert first.trace.text() == again.trace.text()
        assert first.trace.text() != other.trace.text()


def test_the_seed_orders_what_is_due_at_the_same_moment() -> None:
    orders: set[tuple[str, ...]] = set()
    for seed in range(8):
        with Simulation(seed) as sim:
            sim.body("*", takes=1)
            sim.submit(flow(*(Task(name, command=["x"]) for name in "abc")), id="job").run()
            orders.add(tuple(row.entity_id for row in sim.transitions if row.event == "succeed" and row.kind == "task"))
    assert len(orders) > 3


def test_a_crash_between_any_two_steps_loses_nothing_that_was_acknowledged() -> None:
    for steps in range(0, 60, 3):
        with Simulation(steps) as sim:
            sim.body("*", takes=1)
            job = sim.submit(flow(Task("a", run=body), Task("b", run=body, depends_on=["a"])), id="job")
            for _ in range(steps):
                if not sim.step():
                    sim.run(within=0.5)
                    break
            sim.crash()
            assert job.run(within="1h").ok
            sim.check()


def test_tools_are_settings_of_the_runtime() -> None:
    with Simulation(tools={"db": Tool(max_parallel=1)}) as sim:
        sim.body("*", takes=10)
        sim.submit(flow(*(Task(name, run=body, tool="db") for name in "abc"))).run()
        assert sim.now == 30


def test_a_record_that_is_not_what_its_transitions_say_is_found() -> None:
    with Simulation() as sim:
        job = sim.submit(one(), id="job")
        job.run()
        sim.check()
        records = sim.world.journal._tasks
        (key,) = records
        records[key] = msgspec.structs.replace(records[key], state="queued")
        with pytest.raises(AssertionError, match="record_differs: job@1/build the record says queued"):
            sim.check()


# -- durable steps -----------------------------------------------------------------------------------------------------

asked: list[object] = []
"""What the functions of steps were called with, in order."""


@step
async def ask_model(text: str) -> str:
    asked.append(text)
    return text.upper()


def plain(text: str) -> str:
    asked.append(text)
    return text


async def agent(task: TaskContext) -> list[str]:
    first = [await ask_model(word) for word in ("a", "b", "c")]
    await task.sleep("3d")
    parallel = await task.gather(ask_model.bind("d"), ask_model.bind("e"))
    return [*first, *parallel, await task.step(plain, "f")]


def run_agent(sim: Simulation) -> list[str]:
    asked.clear()
    job = sim.submit(one_flow(agent))
    outcome = job.run()
    sim.check()
    assert outcome.ok, outcome.error
    result: list[str] = outcome.results["t"]
    return result


def one_flow(run: object) -> Workstream:
    return flow(Task("t", run=run, max_losses=20))  # type: ignore[arg-type]


@pytest.mark.parametrize("label", ["ask_model", "ask_model#3", "task.sleep", "ask_model#4", "ask_model#5", "plain"])
def test_a_flow_that_crashes_after_a_step_repeats_none(label: str) -> None:
    for seed in range(5):
        with Simulation(seed) as sim:
            sim.crash_after(label, task="t")
            assert run_agent(sim) == ["A", "B", "C", "D", "E", "f"]
            assert sim.world.crashes == 1
        once = [word for word in asked if word not in {"d", "e"}]
        assert once == ["a", "b", "c", "f"]
        assert asked.count("d") <= 2  # it may have run beside the step whose end was the crash
        assert asked.count("e") <= 2


def test_the_trace_shows_steps_and_the_same_seed_is_the_same_run() -> None:
    def digest(seed: int) -> str:
        with Simulation(seed) as sim:
            sim.crash_after("ask_model#2")
            run_agent(sim)
            assert any("step " in line and "ask_model#2 completed" in line for line in sim.trace.lines())
            return sim.trace.digest()

    assert digest(3) == digest(3)


def test_steps_follow_scripts_by_name_and_by_number() -> None:
    with Simulation() as sim:
        sim.step_body("ask_model", lambda text: f"model: {text}")
        sim.step_body("ask_model#3", returns="third", takes="10s")
        sim.step_body("plain", returns="nothing ran")
        assert run_agent(sim) == ["model: a", "model: b", "third", "model: d", "model: e", "nothing ran"]
    assert asked == []


def test_a_scripted_step_fails_try_by_try_and_hangs() -> None:
    @step(name="careful", retry=Retry(max_attempts=2, base_delay=60, jitter=0))
    async def careful() -> str:
        raise AssertionError

    @step(name="slow", timeout="10s")
    async def slow() -> str:
        raise AssertionError

    async def body() -> list[str]:
        try:
            await slow()
        except TimeoutError as error:
            return [await careful(), str(error)]
        raise AssertionError

    with Simulation() as sim:
        sim.step_body("careful", outcomes=[Fails(ConnectionError("away")), Succeeds("there")])
        sim.step_body("slow#1", outcomes=Hangs())
        job = sim.submit(one_flow(body))
        assert job.run().results["t"] == ["there", "step 'slow' took longer than 10 s"]
        assert [(kept.label, kept.tries) for kept in job.task("t").steps()] == [("slow", 1), ("careful", 2)]


@step(engine="process", retry=Retry(max_attempts=2, base_delay=0.0, jitter=0.0))
def render(text: str) -> str:
    asked.append(text)
    return text.upper()


@step(capabilities={"gpu"}, timeout="1h")
async def train(text: str) -> str:
    asked.append(text)
    await anyio.sleep(60)
    return text.upper()


async def studio(task: TaskContext) -> list[str]:
    got = [await task.step(render, "a"), await train("b"), *await task.gather(train.bind("c"), render.bind("d"))]
    return [*got, await train("e")]


def test_steps_run_on_simulated_workers_which_die_and_follow_scripts() -> None:
    asked.clear()
    with Simulation(workers=(*WORKERS, Worker("gpu", engine="loop", capacity=1, capabilities=["gpu"]))) as sim:
        sim.step_body("render#2", returns="scripted", takes="10s")
        sim.crash_after("train", task="t")
        job = sim.submit(one_flow(studio))

        def scripted() -> list[StepRecord]:
            return [one for one in job.task("t").steps() if one.label == "render#2"]

        sim.run_until(lambda: any(one.worker_use for one in scripted()))
        sim.advance(1.0)  # its function runs
        sim.worker("processes").die()  # it is tried again
        assert job.run().results["t"] == ["A", "B", "C", "scripted", "E"]
        sim.check()
        assert [asked.count(text) for text in "abde"] == [1, 1, 0, 1]
        assert {one.label: one.worker_id for one in job.task("t").steps()}["train"] == "gpu#1"
        assert [(one.tries, one.worker_id) for one in scripted()] == [(2, "processes#3")]


class Quiet:
    """A function object that is false."""

    def __bool__(self) -> bool:
        return False

    def __call__(self) -> str:
        return "called"


def test_a_function_that_is_false_runs_as_any_other(sim: Simulation) -> None:
    sim.runtime.task(name="quiet")(Quiet())
    assert sim.submit(one_flow("quiet")).run().results["t"] == "called"


@step(capabilities={"gpu"}, retry=Retry(max_attempts=2, base_delay=20.0, jitter=0.0))
async def tunes(text: str) -> str:
    asked.append(text)
    if len(asked) == 1:
        raise ConnectionError("no answer")
    try:
        await anyio.sleep(60)
    finally:
        asked.append("stopped")
    return text


async def tunes_once(task: TaskContext) -> str:
    return await tunes("a")


def test_a_simulated_step_says_how_it_uses_a_worker_now_and_which() -> None:
    asked.clear()
    with Simulation(workers=(*WORKERS, Worker("far", engine="ray", capacity=1, capabilities=["gpu"]))) as sim:
        job = sim.submit(one_flow(tunes_once))

        def row() -> StepRecord:
            return job.task("t").steps()[0]

        sim.run_until(lambda: asked == ["a"])
        sim.advance(1.0)  # it waits for its second try
        assert (row().tries, row().error, row().worker_use, row().engine) == (1, "no answer", None, "ray")
        sim.run_until(lambda: len(asked) == 2)
        record = job.task("t").record
        assert (row().worker_use, of_present(row(), record)) == ("holds", row())
        for later in ({"attempt": 2}, {"claimed_at": None}):  # that attempt has ended
            task = msgspec.structs.replace(record, **later)
            assert (of_present(row(), task).worker_use, step_view(row(), task).worker_use) == (None, None)
        sim.crash()
        assert job.run().results["t"] == "a"
        assert (row().tries, row().engine, row().worker_id) == (2, "ray", "far#2")


async def shields(task: TaskContext) -> None:
    with anyio.CancelScope(shield=True):
        await tunes("b")


@pytest.mark.parametrize("deaf", [False, True])
def test_a_simulated_step_whose_body_was_abandoned_is_stopped_politely_first(deaf: bool) -> None:
    asked[:] = ["before"]
    with Simulation(workers=(*WORKERS, Worker("gpu", engine="loop", capacity=1, capabilities=["gpu"]))) as sim:
        if deaf:
            sim.body("t.step", outcomes=Hangs(), ignores_stop=True)
        job = sim.submit(flow(Task("t", run=shields, kill_grace="10s")))
        sim.advance("1s")
        job.cancel()
        assert job.run().state == "cancelled"
        sim.advance("1m")
        stops = [line.split(f"{job.id}@1/t ") for line in sim.trace.lines() if "  stop " in line]
        body, of_step = "9", "10"
        polite = [("00:00:01.000", body), ("00:00:12.000", f"{body} force"), ("00:00:12.000", of_step)]
        assert [(at.split()[0], what) for at, what in stops] == [
            *polite, *([("00:00:23.000", f"{of_step} force")] if deaf else []),
        ]  # fmt: skip
        sim.check()


def test_a_simulated_step_that_no_worker_can_run_fails_after_its_time() -> None:
    async def body(task: TaskContext) -> str:
        return await train("b")

    with Simulation() as sim:
        job = sim.submit(one_flow(body))
        outcome = job.run()
        assert "no worker has the engine 'loop' and the capabilities ['gpu']" in str(outcome.error)


def test_scripts_and_crashes_of_steps_that_never_came_are_told() -> None:
    sim = Simulation()
    sim.step_body("ask_modle", returns=1)
    sim.crash_after("ask_model#9", task="t")
    with pytest.warns(UserWarning, match="step") as told:
        sim.__exit__(None, None, None)
    assert [str(one.message) for one in told] == [
        "the script sim.step_body('ask_modle', ...) was not used: no body in this simulation called that step",
        "sim.crash_after('ask_model#9') did not crash: no such step has ended in task 't'",
    ]


def test_a_step_cannot_be_scripted_as_a_body_is() -> None:
    with Simulation() as sim:
        with pytest.raises(TypeError, match="a step Succeeds, Fails or Hangs; Dies is for bodies"):
            sim.step_body("ask_model", outcomes=Dies())
        with pytest.raises(ValueError, match="'ask_model#3' for one call"):
            sim.step_body("ask_model#last", returns=1)
        with pytest.raises(ValueError, match="is a step of the library: it has no function"):
            sim.step_body("task.now", returns=1)


@pytest.mark.parametrize("waits", ["a moment", "long", "for a message"])
def test_of_a_closed_simulation_nothing_stays_in_memory(waits: str) -> None:
    async def body(task: TaskContext) -> None:
        if waits == "for a message":
            await task.receive("go", timeout="1d")
        else:
            await task.sleep(5 if waits == "a moment" else 86400)

    def used() -> ref[World]:
        with Simulation() as sim:
            sim.task(body, name="body")
            job = sim.submit(flow(Task("t", run="body")))
            sim.crash()
            if waits == "for a message":
                job.send("go")
            assert job.run().ok
            sim.submit(flow(Task("t", run="body")))
            sim.advance("1h")  # a body that waits for long is dropped
            sim.crash()
        return ref(sim.world)

    left = used()
    gc.collect()
    assert left() is None


def test_steps_that_a_further_run_drops_are_traced_as_forgotten_and_crash_nothing() -> None:
    async def body() -> list[str]:
        return [await ask_model("a"), await ask_model("b")]

    with Simulation() as sim:
        sim.task(body, name="two questions")
        job = sim.submit(one_flow("two questions"), id="r1")
        assert job.run().ok
        sim.crash_after("ask_model#2")
        job.retry("t", from_step="ask_model#2")
        assert sim.world.crashes == 0
        assert job.run().ok
        assert sim.world.crashes == 1
        assert any("ask_model#2 forgotten" in line for line in sim.trace.lines())


def test_a_plain_function_that_returns_a_coroutine_is_refused_as_in_a_runtime() -> None:
    async def work(n: int) -> int:
        return n

    with Simulation(1) as sim:
        job = sim.submit(Workstream("w", tasks=[Task("a", run=lambda: 7), Task("b", run=lambda: work(7), after=["a"])]))
        outcome = job.run()
    assert outcome.results == {"a": 7}
    assert "returned a coroutine, which a runtime does not run; declare it `async def`" in str(outcome.error)


def test_a_limit_around_branches_that_was_over_is_over_again_after_a_crash() -> None:
    async def body(task: TaskContext) -> str:
        with anyio.move_on_after(5):
            async with anyio.create_task_group() as group:
                for name in "ab":
                    group.start_soon(task.receive, name)
        await task.receive("on")
        return "late"

    with Simulation(1) as sim:
        sim.task(body, name="body")
        job = sim.submit(Workstream("w", tasks=[Task("t", run="body")]))
        sim.advance(10)
        sim.crash()
        job.send("on")
        assert job.run(within=1).results == {"t": "late"}
