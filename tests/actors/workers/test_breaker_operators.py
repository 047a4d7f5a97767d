"""Commands of operators to breakers and parked tasks, and the number of tasks that get a message."""

from __future__ import annotations

from typing import Any

import pytest
from tests.actors.stage import KernelHarness, fails, flow, hangs, task
from tests.actors.workers.test_breaker import AGAIN, TOOLS, opened, use

from callboard.actors.messages.commands import Command, Reply, ResetBreaker, ResetTask, TripBreaker
from callboard.actors.messages.errors import CircuitOpen
from callboard.actors.messages.inputs import Continue
from callboard.actors.spec.model import Breaker, Retry, Task, Tool, Worker
from callboard.actors.tasks.task import TaskActor
from callboard.actors.workers import breaker as breakers
from callboard.actors.workers.breaker import BreakerActor
from callboard.machines import InvalidTransitionError

ONE = (Worker("w", engine="loop", capacity=1),)
RESET = ResetBreaker("it was mended", "ana")
TRIP = TripBreaker("it is being mended", "ana")


def breaker(stage: KernelHarness) -> BreakerActor:
    return stage.workforce.breakers["t"]


def half_open(*more: Task) -> KernelHarness:
    """A stage whose breaker lets the first of these tasks probe the tool; this probe still runs."""
    stage = opened(*more)
    stage.scripts[more[0].name] = hangs
    stage.advance(60)
    assert stage.breaker.state == "half_open"
    return stage


def free(stage: KernelHarness) -> None:
    """Let the task that waits for the worker continue."""
    stage.end(stage.task("hog", "hogs").token)
    stage.settle()


# -- reset and trip, in each state -------------------------------------------------------------------------------------


def test_a_reset_lets_all_go_on_at_once_and_says_who_and_why() -> None:
    stage = opened(use("a"), use("b"))
    assert stage.command(breaker(stage), RESET) is None
    assert (stage.breaker.state, stage.breaker.failures, stage.breaker.due_at) == ("closed", 0, None)
    assert stage.state() == "completed"
    row = next(t for t in stage.kept.transitions if t.kind == "breaker" and t.event == "reset")
    assert (row.reason, row.metadata) == ("it was mended", {"by": "ana"})
    stage.advance(1000)  # no cooldown is left
    assert stage.breaker.state == "closed"
    assert stage.audit() == []


def test_a_reset_of_a_closed_one_starts_the_count_again() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = fails()
    stage.submit(flow(use("a"), tools=TOOLS))
    assert stage.breaker.failures == 1
    assert stage.command(breaker(stage), RESET) is None
    assert (stage.breaker.failures, stage.path("t")[-1]) == (0, "closed")


@pytest.mark.parametrize("good", [True, False])
def test_a_reset_while_a_probe_runs_leaves_the_probe_alone(good: bool) -> None:
    stage = half_open(use("a", retry=AGAIN), use("b"))
    assert stage.command(breaker(stage), RESET) is None
    assert (stage.breaker.state, stage.breaker.probe) == ("closed", None)
    assert stage.states() == {"a": "running", "b": "completed"}
    stage.end(stage.token("a"), "ok" if good else "failed")
    stage.scripts.clear()
    stage.settle()
    assert stage.breaker.failures == 0  # an attempt that began before the reset does not count any more
    assert stage.state() == "completed"
    assert stage.audit() == []


def test_a_reset_while_the_probe_waits_for_a_worker() -> None:
    stage = KernelHarness(workers=ONE)
    opened(use("a"), stage=stage)
    stage.scripts["hog"] = hangs
    stage.submit(flow(task("hog", timeout=1000)), "hogs")
    stage.advance(60)
    assert stage.task("a").state == "half_open"
    stage.command(breaker(stage), RESET)
    stage.scripts["a"] = fails()
    free(stage)
    assert stage.task("a").state == "failed"
    assert (stage.breaker.state, stage.breaker.failures) == ("closed", 1)


def test_a_trip_parks_what_is_queued_and_what_comes_and_lets_go_on_what_runs() -> None:
    stage = KernelHarness(workers=ONE)
    stage.scripts["a"] = hangs
    stage.submit(flow(use("a"), use("b"), tools=TOOLS))
    assert stage.command(breaker(stage), TRIP) is None
    stage.submit(flow(use("c"), tools=TOOLS), "later")
    assert stage.states() | stage.states("later") == {"a": "running", "b": "circuit_open", "c": "circuit_open"}
    assert (stage.breaker.state, stage.breaker.reason) == ("open", "it is being mended")
    stage.end(stage.token("a"))
    stage.settle()
    assert stage.breaker.state == "open"
    stage.advance(60)
    assert stage.state() == stage.state("later") == "completed"
    assert stage.audit() == []


def test_a_trip_may_say_for_how_long() -> None:
    stage = KernelHarness()
    stage.submit(flow(use("x"), tools=TOOLS))
    stage.command(breaker(stage), TripBreaker("the night", cooldown=8 * 3600))
    stage.advance(8 * 3600 - 1)
    assert stage.breaker.state == "open"
    stage.advance(1)
    assert stage.breaker.state == "half_open"


def test_a_trip_of_an_open_one_begins_its_cooldown_again() -> None:
    stage = opened(use("a"))
    stage.advance(50)
    assert stage.command(breaker(stage), TRIP) is None
    stage.advance(59)
    assert stage.task("a").state == "circuit_open"
    stage.advance(1)
    assert stage.task("a").state == "completed"


@pytest.mark.parametrize("good", [True, False])
def test_a_trip_while_a_probe_runs(good: bool) -> None:
    stage = half_open(use("a", retry=AGAIN), use("b"))
    assert stage.command(breaker(stage), TRIP) is None
    assert (stage.breaker.state, stage.breaker.probe) == ("open", None)
    stage.end(stage.token("a"), "ok" if good else "failed")
    stage.settle()
    assert stage.breaker.state == "open"  # the success of an older attempt does not count after the trip
    assert stage.states() == {"a": "completed" if good else "circuit_open", "b": "circuit_open"}
    stage.scripts.clear()
    stage.advance(60)
    assert stage.state() == "completed"
    assert stage.audit() == []


def test_a_trip_while_the_probe_waits_for_a_worker_takes_its_permit_back() -> None:
    stage = KernelHarness(workers=ONE)
    opened(use("a"), stage=stage)
    stage.scripts["hog"] = hangs
    stage.submit(flow(task("hog", timeout=1000)), "hogs")
    stage.advance(60)
    stage.command(breaker(stage), TRIP)
    assert stage.steps("a")[-2:] == ["half_open", "circuit_open"]
    free(stage)
    assert stage.task("a").state == "circuit_open"
    stage.advance(60)
    assert stage.state() == "completed"
    assert stage.audit() == []


# -- one parked task ---------------------------------------------------------------------------------------------------


def exhausted(**more: object) -> KernelHarness:
    stage = KernelHarness()
    stage.scripts["a"] = fails()
    stage.submit(flow(task("a", on_exhausted="park", optional=True, **more)))
    stage.advance(10_000)
    assert (stage.task("a").state, stage.task("a").parked, stage.task("a").granted) == ("circuit_open", "exhausted", 1)
    return stage


def test_an_exhausted_task_gets_one_more_attempt_by_itself_and_then_one_by_each_reset() -> None:
    stage = exhausted()
    assert stage.command(stage.actor("a"), ResetTask("try it again", "ana")) is None
    record = stage.task("a")
    assert (record.state, record.attempt, record.granted, record.failed_attempts) == ("circuit_open", 3, 2, 3)
    row = next(t for t in stage.kept.transitions if t.event == "reset")
    assert (row.reason, row.metadata) == ("try it again", {"granted": 2, "by": "ana"})
    stage.advance(10_000)
    assert stage.task("a").attempt == 3
    stage.scripts.clear()
    stage.command(stage.actor("a"), ResetTask("and again"))
    assert stage.state() == "completed"
    assert stage.audit() == []


def test_a_task_that_was_lost_and_must_not_simply_run_again_goes_on_when_somebody_says_so() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = lambda call, entity: {"status": "cancelled"} if entity.record.attempt <= 4 else {}
    stage.submit(flow(task("a", on_loss="park", optional=True)))
    for _ in range(4):
        assert (stage.task("a").state, stage.task("a").parked) == ("circuit_open", "lost")
        stage.advance(10_000)
        stage.command(stage.actor("a"), ResetTask("it did no harm"))
    assert stage.state() == "completed"
    assert stage.audit() == []


def test_a_task_that_waits_for_its_tool_is_not_reset_and_says_when_to_come_again() -> None:
    stage = opened(use("a"))
    stage.advance(20)
    refusal = stage.command(stage.actor("a"), ResetTask("go on"))
    assert isinstance(refusal, CircuitOpen)
    assert (refusal.tool, refusal.retry_in) == ("t", 40)
    assert str(refusal) == (
        "task: 'reset' was refused in state 'circuit_open', since its tool 't' is not healthy. "
        "Retry in 40 s, or reset the breaker of the tool."
    )
    assert stage.steps("a")[-1] == "circuit_open"


def test_an_exhausted_task_whose_tool_is_ill_waits_for_the_tool_when_it_is_reset() -> None:
    stage = exhausted(tool="t")
    stage.command(breaker(stage), TRIP)
    assert stage.command(stage.actor("a"), ResetTask("go on")) is None
    assert (stage.task("a").state, stage.task("a").parked) == ("circuit_open", "tool")
    stage.scripts.clear()
    stage.advance(60)
    assert stage.state() == "completed"
    assert stage.audit() == []


def test_only_a_parked_task_is_reset() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a")))
    refusal = stage.command(stage.actor("a"), ResetTask("go on"))
    assert isinstance(refusal, InvalidTransitionError)
    assert not isinstance(refusal, CircuitOpen)
    assert stage.task("a").state == "running"


# -- what counts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        {"error_type": "ValueError"}, {"error_type": "Odd", "category": "permanent"},
        {"error_type": "mine.Odd", "kinds": ["mine.Odd", "UnicodeError", "ValueError", "Exception"]},
    ],
    ids=["type", "category", "base class"],
)  # fmt: skip
def test_errors_that_a_tool_ignores_do_not_count(error: dict[str, Any]) -> None:
    tools = {"t": Tool(breaker=Breaker(failure_threshold=1, ignore=["ValueError", "permanent"]))}
    stage = KernelHarness()
    stage.scripts["a"] = lambda call, entity: {"status": "failed", "error": "no", **error}
    stage.submit(flow(use("a"), tools=tools))
    assert stage.task("a").state == "failed"
    assert stage.path("t") == ["closed"]


@pytest.mark.parametrize(
    ("leaves", "counts"),
    [
        ((("ValueError", "unknown"), ("Odd", "permanent")), False),
        ((("ValueError", "unknown"), ("KeyError", "unknown")), True),
        ((("KeyError", "unknown"), ("ValueError", "unknown")), True),
    ],
)
def test_a_group_of_errors_does_not_count_where_a_tool_ignores_all_of_them(
    leaves: tuple[tuple[str, str], ...], counts: bool
) -> None:
    tools = {"t": Tool(breaker=Breaker(failure_threshold=1, ignore=["ValueError", "permanent"]))}
    stage = KernelHarness()
    group = {"error_type": "ValueError, Odd", "category": "unknown", "leaves": leaves}
    stage.scripts["a"] = lambda call, entity: {"status": "failed", "error": "no", **group}
    stage.submit(flow(use("a"), tools=tools))
    assert stage.task("a").state == "failed"
    assert stage.path("t") == (["closed", "open"] if counts else ["closed"])


@pytest.mark.parametrize("name", ["AskCycleError", "AskCycle"])
@pytest.mark.parametrize("leaves", [(), (("AskCycle", "ActorError"), ("AskCycle", "ActorError"))], ids=["one", "group"])
def test_an_error_that_was_renamed_is_ignored_by_its_older_name_too(name: str, leaves: tuple[Any, ...]) -> None:
    """As specifications and journals of older versions name it."""
    tools = {"t": Tool(breaker=Breaker(failure_threshold=1, ignore=[name]))}
    stage = KernelHarness()
    error = {"error_type": "mine.Cycle", "kinds": [] if leaves else ["mine.Cycle", "AskCycle"], "leaves": leaves}
    stage.scripts["a"] = lambda call, entity: {"status": "failed", "error": "no", **error}
    stage.submit(flow(use("a"), tools=tools))
    assert stage.task("a").state == "failed"
    assert stage.path("t") == ["closed"]


def test_a_probe_with_an_error_that_is_ignored_gives_the_permit_back_and_waits_as_any_other() -> None:
    tools = {"t": Tool(breaker=Breaker(failure_threshold=2, ignore=["ValueError"]))}
    stage = opened(use("a", retry=AGAIN), use("b"), tools=tools)
    stage.scripts |= {"a": odd, "b": hangs}
    stage.advance(60)
    assert stage.steps("a")[-3:] == ["half_open", "running", "retrying"]
    assert stage.task("b").state == "running"  # `b` has the permit now
    assert stage.breaker.state == "half_open"
    stage.advance(1)
    assert stage.task("a").state == "circuit_open"
    stage.scripts.clear()
    stage.end(stage.token("b"))
    stage.settle()
    assert stage.state() == "completed"
    assert stage.audit() == []


def odd(call: object, entity: object) -> dict[str, str]:
    return {"status": "failed", "error": "odd", "error_type": "ValueError"}


def test_the_same_error_repeated_too_often_and_a_permanent_one_end_the_attempts() -> None:
    stage = KernelHarness()
    often = Retry(max_attempts=9, base_delay=1, max_delay=1, jitter=0)
    errors = iter(f"no answer from 10.0.0.{n}:{n} for /tmp/{n}/x" for n in range(99))
    stage.scripts |= {
        "same": lambda call, entity: {"status": "failed", "error": next(errors), "error_type": "OSError"},
        "permanent": fails(permanent=True),
        "parks": fails(permanent=True),
    }
    stage.submit(
        flow(
            task("same", retry=often, max_error_repeats=2, optional=True),
            task("permanent", retry=often, optional=True),
            task("parks", retry=often, on_exhausted="park", optional=True),
        )
    )  # fmt: skip
    stage.advance(30)
    assert [(stage.task(n).state, stage.task(n).attempt) for n in ("same", "permanent")] == [
        ("failed", 3),
        ("failed", 1),
    ]
    assert (stage.task("parks").parked, stage.task("parks").attempt) == ("exhausted", 1)
    stage.advance(60)
    assert (stage.task("parks").attempt, stage.task("parks").granted) == (2, 1)
    stage.advance(10_000)
    assert stage.task("parks").attempt == 2
    assert stage.audit() == []


# -- more tasks than get a message in one turn
# ------------------------------------------------------------------------------------

CHUNK = 50
MANY = 4 * CHUNK + 7


@pytest.fixture(autouse=True)
def small_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty tasks a turn, not five hundred."""
    monkeypatch.setattr(breakers, "CHUNK", CHUNK)


def crowd(count: int = MANY, *, copies: bool = False) -> KernelHarness:
    """A stage where so many tasks of the tool wait for the one worker, which is busy with something else."""
    stage = KernelHarness(workers=ONE, copies=copies)
    stage.scripts["hog"] = hangs
    stage.submit(flow(task("hog", timeout=10_000)), "hogs")
    stage.submit(flow(*(use(f"a{n}") for n in range(count)), tools=TOOLS))
    return stage


def largest(stage: KernelHarness, since: int) -> int:
    return max(len(turn.transitions) for turn in stage.kept.turns[since:])


def test_many_are_told_to_park_and_to_go_on_in_small_turns_and_keep_their_order() -> None:
    stage = crowd()
    before = len(stage.kept.turns)
    stage.command(breaker(stage), TRIP)
    assert set(stage.states().values()) == {"circuit_open"}
    stage.command(breaker(stage), RESET)
    assert set(stage.states().values()) == {"queued"}
    assert largest(stage, before) <= 2 * CHUNK + 2
    free(stage)
    assert stage.bodies()[1:] == [f"a{n}" for n in range(MANY)]
    assert stage.state() == "completed"


def test_it_may_open_and_close_while_many_are_still_being_told() -> None:
    stage = crowd()
    tripped = Command(breaker(stage).record.key, TRIP, Reply(None))
    healed = Command(breaker(stage).record.key, RESET, Reply(None))
    stage.kernel.run(tripped)
    assert sorted(set(stage.states().values())) == ["circuit_open", "queued"]
    stage.kernel.run(healed)  # some had not got their message yet
    stage.kernel.run(stage.inputs.popleft())
    stage.kernel.run(tripped)
    stage.settle()
    assert set(stage.states().values()) == {"circuit_open"}
    stage.kernel.run(healed)
    free(stage)
    assert stage.bodies()[1:] == [f"a{n}" for n in range(MANY)]


@pytest.mark.parametrize("told", ["to park", "to go on"])
def test_a_crash_while_many_are_being_told_loses_none(told: str) -> None:
    stage = crowd(CHUNK + 20, copies=True)
    stage.command(breaker(stage), TRIP) if told == "to go on" else None
    begun = len(stage.kept.turns)
    stage.kernel.run(Command(breaker(stage).record.key, TRIP if told == "to park" else RESET, Reply(None)))
    assert len(set(stage.states().values())) == 2
    assert len(stage.kept.turns) == begun + 1
    stage.scripts.clear()
    after = stage.after_crash()
    if told == "to park":
        assert set(after.states().values()) == {"circuit_open"}
        after.advance(60)
    after.advance(0)
    assert after.state() == "completed"
    assert [name for name in after.bodies() if name != "hog"] == [f"a{n}" for n in range(CHUNK + 20)]
    assert after.audit() == []


def test_tasks_that_are_stopped_while_they_are_still_to_be_told() -> None:
    stage = crowd(CHUNK + 20)
    stage.kernel.run(Command(breaker(stage).record.key, TRIP, Reply(None)))
    last = f"a{CHUNK + 19}"
    assert stage.task(last).state == "queued"
    stage.cancel_silently(stage.actor(last))
    stage.settle()
    assert stage.task(last).state == "cancelled"
    assert set(stage.states().values()) == {"circuit_open", "cancelled"}


def test_a_thousand_parked_tasks_cost_nothing() -> None:
    stage = crowd(1_000)
    stage.command(breaker(stage), TripBreaker("for long", cooldown=3600))
    inputs, timers = len(stage.kept.turns), [timer for _, _, timer, fire in stage.timers if timer.armed]
    assert len(timers) == 2  # that of the cooldown, and that of the running task's limit
    stage.advance(3599)
    assert len(stage.kept.turns) == inputs


# -- when a turn of it raises ------------------------------------------------------------------------------------------


def test_a_task_that_cannot_be_told_fails_and_the_others_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    trip = TaskActor.trip

    def broken(self: TaskActor, *args: Any, **more: Any) -> None:
        if self.record.name == "a51":
            raise RuntimeError("no")
        trip(self, *args, **more)

    monkeypatch.setattr(TaskActor, "trip", broken)
    stage = crowd(CHUNK + 20)
    stage.command(breaker(stage), TRIP)
    assert stage.task("a51").state == "failed"
    assert sorted(set(stage.states().values())) == ["circuit_open", "failed"]
    stage.command(breaker(stage), RESET)
    free(stage)
    assert stage.state() == "completed"


def test_a_breaker_that_cannot_go_on_opens_and_looks_again_after_a_cooldown(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = crowd(CHUNK + 20)
    stage.command(breaker(stage), TRIP)
    go_on, raised = BreakerActor.on_continue, []

    def broken(self: BreakerActor, *args: Any) -> None:
        if args and not raised:
            raised.append(self)
            raise RuntimeError("no")
        go_on(self, *args)

    monkeypatch.setitem(BreakerActor.receivers, Continue, broken)
    stage.command(breaker(stage), RESET)
    assert (stage.breaker.state, stage.breaker.reason) == ("open", "internal error: RuntimeError: no")
    assert set(stage.states().values()) == {"circuit_open"}
    free(stage)
    stage.advance(60)
    assert stage.state() == "completed"
