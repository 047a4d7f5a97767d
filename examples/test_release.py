"""Tests in milliseconds of a release that takes days: approvals, backoffs, a cooldown, crashes.

    pytest examples/test_release.py

With `--callboard-seed 3`, simultaneous events happen in another order.
"""

import pytest

from callboard import Approval, Breaker, Hook, Retry, Task, Tool, Workstream
from callboard.errors import DecisionConflict, Permanent
from callboard.testing import Dies, Exits, Fails, Simulation, Succeeds


def build() -> str:
    raise AssertionError("tests use a script instead")


RELEASE = Workstream(
    "release",
    tasks=[
        Task("build", run=build, tool="compiler", retry=Retry(max_attempts=6, base_delay="1m", max_delay="1h")),
        Task("test", command=["pytest", "-q"], depends_on=["build"], retry=Retry(max_attempts=3)),
        Task(
            "deploy",
            command=["deploy", "production"],
            depends_on=["test"],
            hold=Approval(people=2, expires="72h"),
            on_loss="fail",
            on_completed=[Hook(command=["announce"])],
        ),
    ],
    tools={"compiler": Tool(breaker=Breaker(failure_threshold=3, cooldown="30m"))},
)


@pytest.fixture
def sim(simulation: Simulation) -> Simulation:
    simulation.body("build", returns="app-1.2", takes="4m")
    simulation.body("test", takes=("1m", "2m"))
    return simulation


def test_two_people_approve_on_the_third_day(sim: Simulation) -> None:
    job = sim.submit(RELEASE, id="r1")
    job.task("deploy").until("held")
    sim.advance("71h")
    job.task("deploy").approve(by="ana")
    job.task("deploy").approve(by="ben")
    assert job.run().results["build"] == "app-1.2"
    sim.run()
    assert sim.started[-1][0] == "hook"  # it was announced
    sim.check()


def test_one_approval_is_not_enough_and_the_third_day_ends_it(sim: Simulation) -> None:
    job = sim.submit(RELEASE, id="r1")
    job.task("deploy").until("held")
    job.task("deploy").approve(by="ana")
    with pytest.raises(DecisionConflict):  # a person counts once
        job.task("deploy").approve(by="ana")
    sim.expect_transition("r1/deploy", event="expire", within="72h")
    assert job.run().state == "failed"


def test_a_compiler_that_is_down_is_left_alone_until_it_had_time_to_recover(sim: Simulation) -> None:
    sim.body("build", outcomes=[Fails("no licence")] * 3 + [Succeeds("app-1.3")])
    job = sim.submit(RELEASE, id="r1")
    sim.breaker("compiler").until("open", within="10m")
    began = sim.now
    job.task("build").until("circuit_open", within="10m")
    job.task("test").until("completed", within="2h")
    assert sim.now - began >= 30 * 60


def test_what_can_never_work_is_not_tried_again(sim: Simulation) -> None:
    sim.body("build", outcomes=[Fails(Permanent("there is no such branch"))])
    job = sim.submit(RELEASE, id="r1")
    outcome = job.run()
    assert (outcome.state, outcome.tasks["build"].attempt) == ("failed", 1)
    assert sim.now == 0


def test_tests_that_fail_are_run_again_and_a_worker_that_dies_does_not_count(sim: Simulation) -> None:
    sim.body("test", outcomes=[Exits(1, "2 failed"), Dies("out of memory"), Exits(1, "1 failed"), Exits(0)])
    job = sim.submit(RELEASE, id="r1")
    record = job.task("test").until("completed").record
    assert (record.failed_attempts, record.lost_attempts) == (2, 1)


def test_a_crash_between_the_approvals_forgets_neither(sim: Simulation) -> None:
    job = sim.submit(RELEASE, id="r1")
    job.task("deploy").until("held")
    job.task("deploy").approve(by="ana")
    sim.crash(down="24h")
    job.task("deploy").approve(by="ben")
    assert job.run().ok


@pytest.mark.parametrize("steps", range(0, 90, 10))
def test_wherever_a_crash_comes_the_release_is_built_once(sim: Simulation, steps: int) -> None:
    job = sim.submit(RELEASE, id="r1")
    for _ in range(steps):
        if not sim.step():
            sim.run(within="1m")
    sim.crash()
    job.task("deploy").until("held", within="1h")
    assert sim.path("r1@1/build").count("completed") == 1
    sim.check()


def test_a_deployment_that_was_interrupted_is_not_simply_run_again(sim: Simulation) -> None:
    sim.body("deploy", takes="2m")
    job = sim.submit(RELEASE, id="r1")
    job.task("deploy").until("held")
    for person in ("ana", "ben"):
        job.task("deploy").approve(by=person)
    sim.advance("1m")
    sim.crash()
    assert job.run().tasks["deploy"].state == "failed"
    assert len([owner for kind, owner, _ in sim.started if kind == "body" and "deploy" in owner]) == 1
