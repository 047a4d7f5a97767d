"""Mistakes of a test are reported at their place, with a clear text."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from callboard import Actor, Approval, Context, Ref, Task, TaskContext, Workstream
from callboard.testing import Exits, Fails, SimulatedJob, Simulation, SimulationError, Succeeds, VirtualRuntime

NAN, INF = float("nan"), float("inf")


def body() -> None:
    """A body that a script replaces, or that does nothing."""


async def later() -> bool:
    return False


def flow(*tasks: Task) -> Workstream:
    return Workstream("flow", tasks=list(tasks))


@pytest.fixture
def sim() -> Iterator[Simulation]:
    """A simulation with the job "r1", whose task "deploy" is held after "build"."""
    with Simulation() as simulation:
        tasks = [Task("build", run=body), Task("deploy", run=body, depends_on=["build"], hold=Approval())]
        simulation.submit(flow(*tasks), id="r1").task("deploy").until("held")
        yield simulation


# -- scripts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"takes": -3}, "takes: -3 is not a duration between 0 and"),
        ({"takes": NAN}, "takes: nan is not a duration"),
        ({"takes": INF}, "takes: inf is not a duration"),
        ({"takes": "3 minutes"}, "takes: '3 minutes' is not a duration; write seconds as a number, or"),
        ({"takes": ("5s", "1s")}, "takes is the shortest and the longest duration, in this order, not ('5s', '1s')"),
        ({"takes": (1, 2, 3)}, "takes is a duration, or the shortest and the longest one, not 3: (1, 2, 3)"),
        ({"heartbeat": 0}, "heartbeat is the time between two of them, and more than 0; None is none"),
        ({"heartbeat": -1}, "heartbeat: -1 is not a duration between"),
        ({"heartbeat": "often"}, "heartbeat: 'often' is not a duration"),
        ({"stops_in": "soon"}, "stops_in: 'soon' is not a duration"),
        ({"outcomes": [Succeeds(1, takes=-1)]}, "takes of Succeeds: -1 is not a duration"),
        ({"outcomes": []}, "the script of 'build' needs at least one outcome"),
    ],
)
def test_a_script_of_what_nothing_could_do_is_refused_at_once(
    sim: Simulation, said: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
        sim.body("build", **said)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"takes": None}, 'takes is a duration: seconds as a number, or "90s"'),
        ({"run": 5}, "run of 'build' is a function, not 5; a result is given as returns="),
        ({"run": body, "returns": 1}, "the script of 'build' has run and returns: give one"),
        ({"returns": 1, "outcomes": [Fails()]}, "the script of 'build' has returns and outcomes: give one"),
        ({"outcomes": [Fails(5)]}, "Fails takes an exception or a text, not 5"),  # type: ignore[arg-type]
        ({"outcomes": [Exits("x")]}, "Exits takes a code and a text, not 'x' and ''"),  # type: ignore[arg-type]
    ],
)
def test_a_script_that_contradicts_itself_is_refused_at_once(sim: Simulation, said: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(words)}"):
        sim.body("build", **said)


async def _virtual() -> None:
    async with VirtualRuntime() as runtime:
        with pytest.raises(ValueError, match="heartbeat: 'often' is not a duration"):
            runtime.body("build", heartbeat="often")
        with pytest.raises(TypeError, match="a condition is a plain function, and this one is async"):
            await runtime.run_until(later)
        with pytest.raises(TypeError, match="what advance takes is a duration"):
            await runtime.advance(None)  # type: ignore[arg-type]
        runtime.body("biuld", returns=1)
        await (await runtime.submit(flow(Task("build", run=body)))).wait()


@pytest.mark.anyio
async def test_so_it_is_by_the_runtime_on_the_tests_own_loop() -> None:
    with pytest.warns(UserWarning, match=r"sim.body\('biuld', ...\) was not used: .*; did you mean 'build'\?"):
        await _virtual()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("biuld", "did you mean 'build'?"),
        ("r1/biuld", "did you mean 'r1/build'?"),
        ("build.conditon", "did you mean 'build.condition'?"),
        ("xyz", "there are: "),
    ],
)
def test_a_script_whose_name_nothing_had_is_warned_of_at_the_end(name: str, words: str) -> None:
    simulation = Simulation()
    simulation.body(name, returns=1)
    simulation.submit(flow(Task("build", run=body)), id="r1").run()
    with pytest.warns(UserWarning, match="was not used") as told, simulation:
        pass
    assert f"the script sim.body({name!r}, ...) was not used" in str(told[0].message)
    assert words in str(told[0].message)


def test_one_for_what_was_there_and_did_not_run_is_not_warned_of() -> None:
    with warnings.catch_warnings(), Simulation() as sim:
        warnings.simplefilter("error")
        for name in ("deploy", "r1/deploy", "deploy.check", "flow.hook", "threads.hook", "ship-*"):
            sim.body(name, returns=1)
        sim.submit(flow(Task("deploy", run=body, hold=Approval())), id="r1").cancel()


def test_what_was_waited_for_in_vain_says_what_it_failed_by(sim: Simulation) -> None:
    sim.body("broken", outcomes=[Fails("no memory")])
    job = sim.submit(flow(Task("broken", run=body)))
    with pytest.raises(AssertionError, match=r"is 'failed' since .*no memory; that state is final"):
        job.task("broken").until("completed")


# -- unknown names -------------------------------------------------------------------------------------------------

MISSING: list[tuple[Callable[[Simulation], object], str]] = [
    (lambda sim: sim.path("nonsense"), "the journal has no entity 'nonsense'; there are: "),
    (lambda sim: sim.path("r1/deploi"), "the journal has no entity 'r1/deploi'; did you mean 'r1/deploy'?"),
    (lambda sim: sim.worker("thread"), "there is no worker 'thread'; did you mean 'threads'?"),
    (lambda sim: sim.put("approve", "task", "r1/deploi", by="ana"), "job 'r1' has no task 'deploi'; did you mean 'dep"),
    (lambda sim: sim.put("cancel", "job", "r2"), "there is no job 'r2'; there are: r1"),
    (lambda sim: sim.job("r1").task("deploi"), "job 'r1' has no task 'deploi'; did you mean 'deploy'?"),
    (lambda sim: sim.breaker("db").state, "no workstream has used a tool 'db' yet; none has used any"),
]


@pytest.mark.parametrize(("ask", "words"), MISSING)
def test_what_there_is_not_is_refused_with_what_there_is(
    sim: Simulation, ask: Callable[[Simulation], object], words: str
) -> None:
    with pytest.raises(LookupError, match=re.escape(words)):
        ask(sim)


def test_a_path_is_found_by_a_tasks_name_as_its_transitions_are(sim: Simulation) -> None:
    assert sim.path("r1/deploy") == sim.path("r1@1/deploy") == ["pending", "held"]


def test_a_transition_of_what_there_is_not_says_what_there_is(sim: Simulation) -> None:
    with pytest.raises(
        AssertionError, match=r"r1/deploi does not exist: nothing had that name; did you mean 'r1/deploy'\?"
    ):
        sim.expect_transition("r1/deploi", to="held", within="1h")


# -- invalid arguments ------------------------------------------------------------------------------------------

WRONG: list[tuple[type[Exception], Callable[[Any], object], str]] = [
    (ValueError, lambda sim: sim.expect_transition("r1/deploy", to="hedl"), "a task has no state 'hedl'; did you mean"),
    (ValueError, lambda sim: sim.expect_transition("r1/deploy", event="hodl"), "has no event 'hodl'; did you mean 'ho"),
    (ValueError, lambda sim: sim.expect_transition("r1/deploy"), "name the expected transition of 'r1/deploy'"),
    (TypeError, lambda sim: sim.run_until(later), "a condition is a plain function, and this one is async"),
    (TypeError, lambda sim: sim.run_until(lambda: [later()][0]), "a condition returned an awaitable"),
    (TypeError, lambda sim: sim.run_until(True), "a condition is a function without arguments, not True"),
    (TypeError, lambda sim: sim.at("5m", sim.settle()), "is a function without arguments, not None: give it uncalled"),
    (TypeError, lambda sim: sim.at("5m", later), "the action of sim.at is a plain function, and this one is async"),
    (
        TypeError,
        lambda sim: (sim.at("5m", lambda: [later()][0]), sim.advance("5m")),
        "the action of sim.at returned an awaitable",
    ),
    (ValueError, lambda sim: sim.at("soon", sim.crash), "the delay of sim.at: 'soon' is not a duration"),
    (ValueError, lambda sim: sim.put("aprove", "task", "r1/deploy"), "knows no command 'aprove' for a 'task'"),
    (ValueError, lambda sim: sim.put("approve", "task", "r1/deploy", who="ana"), "approve takes no who; it takes"),
    (TypeError, lambda sim: sim.tell_again("nope"), "a token is an int, as in job.task(name).record.token; not 'nope'"),
    (TypeError, lambda sim: sim.job("r1").until(5), "a state is a str, not 5"),
    (TypeError, lambda sim: sim.body(5), "the name in a script is a str, not 5"),
    (TypeError, lambda sim: sim.jump_utc("abc"), "the change of the wall clock is a number of seconds, not 'abc'"),
    (ValueError, lambda sim: sim.jump_utc(NAN), "the change of the wall clock is a finite number of seconds, not nan"),
    (TypeError, lambda sim: sim.advance(None), 'what advance takes is a duration: seconds as a number, or "90s"'),
    (TypeError, lambda sim: sim.do(later()), "is a function that returns an awaitable, such as"),
    (TypeError, lambda sim: sim.do(lambda: 5), "such as `lambda: handle.cancel()`; this one returned 5"),
    (TypeError, lambda sim: sim.ask("x", 1), "a message goes to a reference, which spawn() returns; 'x' is none"),
    (TypeError, lambda sim: Simulation(lifecyle="fleet"), "no setting 'lifecyle' of a runtime; did you mean 'lifecycl"),
]


@pytest.mark.parametrize(("kind", "ask", "words"), WRONG)
def test_what_is_no_such_argument_is_refused_where_it_is_said(
    sim: Simulation, kind: type[Exception], ask: Callable[[Any], object], words: str
) -> None:
    with pytest.raises(kind, match=re.escape(words)):
        ask(sim)


def test_the_words_of_another_lifecycle_may_be_expected() -> None:
    with Simulation(lifecycle="orchestration") as sim:
        job = sim.submit(flow(Task("build", run=body)), id="r1")
        job.run()
        last = sim.path("r1/build")[-1]
        assert sim.expect_transition("r1/build", to=last).to_state == last


def test_after_its_end_a_simulation_says_that_it_is_closed() -> None:
    with Simulation() as sim:
        job = sim.submit(flow(Task("build", run=body)))
    for ask in (sim.settle, sim.run, lambda: job.state, sim.crash, lambda: sim.at(1, body), lambda: sim.advance(1)):
        with pytest.raises(SimulationError, match="this simulation is closed: use it inside"):
            ask()


def test_a_wait_says_its_limit_with_a_unit(sim: Simulation) -> None:
    probe = sim.probe()
    with pytest.raises(AssertionError, match="waited 60 s for an answer to a coroutine: it did not come"):
        sim.do(lambda: probe.ref.ask(1, timeout=None), within=60)


# -- circles -----------------------------------------------------------------------------------------------------------


class Restless(Actor):
    """An actor that sends itself messages without an end."""

    def receive(self, message: Any, ctx: Context) -> None:
        ctx.self.tell(message)


class Nagging(Actor):
    """An actor that sends itself a message every second, without an end."""

    def receive(self, message: Any, ctx: Context) -> None:
        ctx.after(1, message)


def test_an_actor_that_is_never_done_at_one_moment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.runtime.testing.livelock.QUIET_INSTANT", 5_000)
    with Simulation() as sim:
        restless: Ref = sim.spawn(Restless, name="restless")
        with pytest.raises(SimulationError, match=r"repeats without end. These have messages to handle: restless"):
            sim.tell(restless, "on")
        with pytest.raises(SimulationError, match="repeats without end"):
            sim.run_until(lambda: False, within="1m")


def test_nobody_waits_for_ever_for_what_only_timers_go_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.runtime.testing.livelock.MOST_MOMENTS", 500)
    with Simulation() as sim:
        sim.tell(sim.spawn(Nagging), "on")
        with pytest.raises(AssertionError, match="nothing happened but timers, messages and heartbeats; say how long"):
            sim.run()
        sim.advance("1h")  # which has a limit of its own
        with pytest.raises(AssertionError, match="waited 1h for the condition to hold: it did not come"):
            sim.run_until(lambda: False, within="1h")


def without_its_worker(sim: Simulation, fate: str) -> SimulatedJob:
    sim.body("build", takes="4m")
    job = sim.submit(flow(Task("build", run=body, engine="process", timeout="1h")), id="r")
    job.task("build").until("running")
    worker = sim.worker("processes")
    _ = worker.die(for_good=True) if fate == "die" else worker.freeze()
    return job


@pytest.mark.parametrize("fate", ["die", "freeze"])
def test_a_job_whose_worker_does_not_come_back_comes_to_its_end(fate: str) -> None:
    with Simulation() as sim:
        job = without_its_worker(sim, fate)
        assert job.run().tasks["build"].error_type == "unroutable_timeout"
        assert sim.now < 3_600


def test_nobody_waits_while_workers_are_started_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.runtime.testing.livelock.MOST_RESTARTS", 4)
    with Simulation() as sim:
        job = without_its_worker(sim, "die")
        with pytest.raises(AssertionError, match=r"waited for job 'r' to end, and .* restarted \('processes'\)"):
            job.run()


@pytest.mark.parametrize("ask", ["wait_for_approval", "submit_blocking"])
def test_a_plain_function_that_would_wait_says_what_to_do_in_a_simulation(ask: str) -> None:
    def waits(task: TaskContext) -> None:
        _ = task.wait_for_approval("sign") if ask == "wait_for_approval" else task.submit_blocking(flow(), name="sub")

    with Simulation() as sim:
        outcome = sim.submit(flow(Task("waits", run=waits))).run()
        assert "a plain function cannot wait in a simulation" in str(outcome.tasks["waits"].last_error)
