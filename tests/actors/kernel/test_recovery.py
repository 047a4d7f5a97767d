"""Recovery after a kill: after every turn, and with an error at every message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
import pytest
from tests.actors.stage import Kept, KernelHarness, Script, fails, fails_until, flow, hangs, task

from callboard.actors.jobs import workstream
from callboard.actors.messages.inputs import Assign, Beat, CallEnded, Drain, ProcessStarted
from callboard.actors.records.entities import JobRecord
from callboard.actors.records.task import AttemptRecord, TaskRecord
from callboard.actors.spec.model import Breaker, Check, Condition, Defaults, Hook, Retry, Task, Tool, Worker, Workstream

AGAIN = Retry(max_attempts=3, base_delay=1, jitter=0)


# -- losses ------------------------------------------------------------------------------------------------------------


def test_an_attempt_that_ran_is_lost_and_run_again_at_once() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a")))
    after = stage.after_crash()
    assert after.steps("a")[2:5] == ["running", "recovering", "retrying"]
    after.scripts.clear()
    after.advance(0)
    assert after.state() == "completed"
    record = after.task("a")
    assert (record.attempt, record.failed_attempts, record.lost_attempts) == (2, 0, 1)
    assert [(a.end, a.error) for a in after.attempts("a")] == [("lost", "runtime_restarted"), ("succeeded", None)]
    assert after.audit() == []


def test_losses_have_a_budget_of_their_own() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a")))
    for _ in range(3):
        assert stage.task("a").state == "running"
        stage = stage.after_crash()
        stage.advance(0)
    record = stage.task("a")
    assert (record.state, record.lost_attempts, record.error_type) == ("failed", 3, "worker_lost")
    assert record.last_error == "runtime_restarted"
    assert stage.audit() == []


def test_a_kill_during_a_drain_is_no_loss_however_often_it_comes() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a", max_losses=1)))
    for _ in range(5):
        assert stage.task("a").state == "running"
        stage.send(Drain(stop=False))
        stage.send(ProcessStarted(stage.task("a").token, 7, 8))  # the message comes late: the row is written again
        stage = stage.after_crash()
    record = stage.task("a")
    assert (record.state, record.attempt, record.lost_attempts, record.failed_attempts) == ("running", 6, 0, 0)
    assert [a.end for a in stage.attempts("a")] == ["returned"] * 5 + [None]
    assert stage.audit() == []
    stage = stage.after_crash()  # an end that the program did not receive is a loss
    assert stage.task("a").state == "failed"


@pytest.mark.parametrize(("on_loss", "state"), [("fail", "failed"), ("park", "circuit_open")])
def test_a_body_that_must_not_simply_run_twice_is_lost_by_a_kill_during_a_drain(on_loss: str, state: str) -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a", on_loss=on_loss)))
    stage.send(Drain(stop=False))
    after = stage.after_crash()
    assert (after.task("a").state, after.task("a").last_error) == (state, "drained")
    assert after.audit() == []


@pytest.mark.parametrize(
    ("status", "exit_code", "end"),
    [
        ("lost", None, "returned"),  # the worker process was stopped beside the runtime
        ("failed", -15, "returned"),
        ("failed", -9, "returned"),
        ("failed", 143, "returned"),  # a shell, whose child was stopped
        ("failed", 1, "failed"),
        ("failed", -11, "failed"),  # a crash of its own
    ],
)
def test_what_a_service_manager_stops_beside_the_runtime_is_given_back(
    status: str, exit_code: int | None, end: str
) -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a", max_losses=1)))
    stage.send(Drain(stop=False))
    stage.end(stage.task("a").token, status, exit_code=exit_code)
    stage.settle()
    assert [a.end for a in stage.attempts("a")] == [end]
    assert stage.task("a").state == ("queued" if end == "returned" else "failed")
    assert stage.audit() == []


def test_failures_and_losses_do_not_share_their_budgets() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = lambda call, entity: fails()(call, entity) if entity.record.attempt in {1, 3} else None
    stage.submit(flow(task("a", retry=AGAIN, max_losses=2)))
    stage.advance(1)
    stage = stage.after_crash()
    stage.advance(0)
    assert (stage.task("a").failed_attempts, stage.task("a").lost_attempts) == (2, 1)
    stage.scripts.clear()
    stage.advance(2)
    assert stage.state() == "completed"


@pytest.mark.parametrize(("on_loss", "state"), [("rerun", "running"), ("fail", "failed"), ("park", "circuit_open")])
def test_what_a_loss_leads_to(on_loss: str, state: str) -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a", on_loss=on_loss)))
    after = stage.after_crash()
    after.advance(0)
    assert after.task("a").state == state
    assert after.task("a").lost_attempts == 1
    if on_loss == "park":
        after.advance(100_000)
        assert (after.task("a").state, after.task("a").attempt) == ("circuit_open", 1)  # it waits for a person
        assert after.cancel(after.actor("a")) is None
    assert after.audit() == []


def test_an_attempt_whose_limit_passed_while_nobody_looked_is_lost_and_not_timed_out() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a", timeout=10)))
    after = stage.after_crash(down=5000)
    assert after.task("a").lost_attempts == 1
    assert after.task("a").failed_attempts == 0


# -- every other state -------------------------------------------------------------------------------------------------


def test_one_that_had_timed_out_has_timed_out() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.stubborn.add("a")
    stage.submit(flow(task("a", timeout=10)))
    stage.advance(10)
    after = stage.after_crash()
    assert (after.task("a").state, after.task("a").failed_attempts) == ("failed", 1)
    assert after.attempts("a")[0].end == "timed_out"
    assert after.audit() == []


@pytest.mark.parametrize("checked", [False, True])
def test_one_that_was_being_cancelled_is_cancelled(checked: bool) -> None:
    stage = KernelHarness()
    stage.scripts |= {"a": None if checked else hangs, "a.check": hangs}  # type: ignore[dict-item]
    stage.scripts = {name: script for name, script in stage.scripts.items() if script is not None}
    stage.stubborn.add("a")
    stage.submit(flow(task("a", checks=[Check(run="m:c")] if checked else [])))
    stage.cancel(stage.actor("a"))
    assert stage.task("a").state == "cancelling"
    after = stage.after_crash()
    assert after.task("a").state == "cancelled"
    assert after.attempts("a")[0].end == ("succeeded" if checked else "cancelled")
    assert after.state() == "failed"
    assert after.audit() == []


def test_a_claim_without_an_end_of_one_that_was_cancelled_gets_its_end() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.deaf.add("a")
    job = stage.submit(flow(task("a")))
    stage.cancel(job, force=True)
    assert stage.attempts("a")[0].ended_at is None
    after = stage.after_crash()
    assert after.attempts("a")[0].end == "cancelled"


def test_what_was_validated_is_validated_again_and_not_run_again() -> None:
    stage = KernelHarness()
    stage.scripts["a.check"] = hangs
    stage.submit(flow(task("a", checks=[Check(run="m:c")]), task("b", "a")))
    result = stage.task("a").result
    stage.scripts.clear()
    after = stage.after_crash()
    assert after.steps("a")[-3:] == ["validating", "validating", "completed"]
    assert after.bodies() == ["b"]
    assert after.task("a").result == result
    assert after.task("a").attempt == 1
    assert after.kernel.slots == {}
    assert after.audit() == []


def test_a_backoff_goes_on_and_one_that_is_over_by_now_is_over() -> None:
    for down, state in ((0.5, "retrying"), (2000.0, "completed")):
        stage = KernelHarness()
        stage.scripts["a"] = fails_until(2)
        stage.submit(flow(task("a", retry=AGAIN)))
        after = stage.after_crash(down=down)
        after.advance(0)
        assert after.task("a").state == state
        after.advance(0.5)
        assert after.task("a").state == "completed"


def test_the_total_limit_holds_over_restarts() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = fails(retry_after=1000.0)
    stage.submit(flow(task("a", retry=AGAIN, total_timeout=100)))
    after = stage.after_crash(down=50)
    after.advance(49.9)
    assert after.task("a").state == "retrying"
    after.advance(0.1)
    assert (after.task("a").state, after.task("a").limit) == ("failed", "total")


def test_a_queue_limit_holds_over_restarts() -> None:
    stage = KernelHarness(workers=())
    stage.submit(flow(task("a", queue_timeout=100)))
    after = stage.after_crash(down=60)
    after.advance(39.9)
    assert after.task("a").state == "queued"
    after.advance(0.1)
    assert (after.task("a").state, after.task("a").limit) == ("failed", "queue")


def test_the_queue_keeps_its_order_and_nothing_is_called_unroutable() -> None:
    stage = KernelHarness(workers=(Worker("w", engine="loop", capacity=1),))
    stage.scripts["hog"] = hangs
    stage.submit(flow(task("hog", priority=2), task("b"), task("a", priority=1), task("c")))
    after = stage.after_crash(down=1000)
    after.scripts.clear()
    after.advance(0)
    assert after.bodies() == ["a", "b", "c", "hog"] or after.bodies() == ["a", "hog", "b", "c"]
    assert all(t.routable and t.reason is None for t in after.kept.of(TaskRecord))
    assert after.state() == "completed"


def test_the_last_details_of_a_heartbeat_are_there_for_the_next_attempt() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a")))
    stage.send(Beat(stage.token("a"), msgspec.Raw(b'{"row":7}')))
    after = stage.after_crash()
    after.advance(0)
    assert after.task("a").attempt == 2
    assert after.task("a").details == {"row": 7}


def test_a_condition_that_was_being_asked_is_asked_again() -> None:
    stage = KernelHarness()
    stage.scripts["a.condition"] = hangs
    stage.submit(flow(task("a", condition=Condition(run="m:c"))))
    stage.scripts.clear()
    after = stage.after_crash()
    assert after.state() == "completed"
    assert [kind for kind, _, _ in after.started] == ["condition", "body"]


def test_hooks_that_had_not_run_run_after_the_restart_and_those_that_had_do_not() -> None:
    stage = KernelHarness()
    stage.hooks_hang = True
    stage.submit(flow(task("a", on_completed=[Hook(run="m:one"), Hook(run="m:two")])))
    stage.send(CallEnded(stage.hooks[0].key, "ok"))
    after = stage.after_crash()
    assert [bytes(row.body) for row in after.hooks] == [b'{"run":"m:two"}']
    assert [key for key in after.kept.records if key[0] == "outbox"] == []
    assert after.kernel.calls == {}


@pytest.fixture
def small_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty tasks a turn, not five hundred."""
    monkeypatch.setattr(workstream, "CHUNK", 50)


@pytest.mark.usefixtures("small_turns")
def test_a_crash_while_the_tasks_are_made_or_started_loses_none_of_them() -> None:
    stage = KernelHarness()
    stage.submit(flow(*(task(f"t{n}") for n in range(120))))
    began = next(n for n, turn in enumerate(stage.kept.turns) if any(t.kind == "job" for t in turn.transitions))
    for cut in range(began, began + 8):
        after = stage.after_crash(cut + 1)
        after.advance(10)
        assert after.state() == "completed"
        assert set(after.states().values()) == {"completed"}
        assert len(after.states()) == 120


@pytest.mark.usefixtures("small_turns")
def test_a_crash_in_the_middle_of_a_cancel_in_many_turns() -> None:
    stage = KernelHarness(workers=())
    job = stage.submit(flow(*(task(f"t{n}") for n in range(120))))
    before = len(stage.kept.turns)
    stage.cancel(job)
    for cut in range(before + 1, len(stage.kept.turns)):
        after = stage.after_crash(cut)
        assert after.state() == "cancelled"
        assert after.audit() == []


# -- killed after every turn -------------------------------------------------------------------------------------------

TOOLS = {"t": Tool(max_parallel=2, breaker=Breaker(failure_threshold=2, cooldown=30))}


def plain() -> tuple[Workstream, dict[str, Script], Callable[[KernelHarness], None]]:
    """A diamond with a retry, an optional failure, a condition, checks and hooks."""
    hook = [Hook(run="m:h")]
    spec = flow(
        task("a", on_completed=hook), task("b", "a", retry=AGAIN), task("c", "a", optional=True, on_failed=hook),
        task("d", "b", checks=[Check(run="m:c"), Check(run="m:d")]), task("e", "c"),
        Task("last", run="m:f", after=["c", "e"], depends_on=["d"], condition=Condition(run="m:if")),
        max_parallel=2, checks=[Check(run="m:whole")], on_completed=hook, deadline=10_000,
    )  # fmt: skip
    scripts: dict[str, Script] = {"b": fails_until(2), "c": fails()}
    return spec, scripts, lambda stage: stage.advance(5)


def failing() -> tuple[Workstream, dict[str, Script], Callable[[KernelHarness], None]]:
    """A critical failure while others run, with clean-up."""
    spec = flow(
        task("a"), task("slow", "a"), task("bad", "a", retry=Retry(max_attempts=2, base_delay=1, jitter=0)),
        task("x", "bad"),
        Task("clean", run="m:f", after=["bad"]), Task("more", run="m:f", after=["clean"]),
    )  # fmt: skip
    return spec, {"bad": fails(), "slow": hangs}, lambda stage: stage.advance(5)


def tripping() -> tuple[Workstream, dict[str, Script], Callable[[KernelHarness], None]]:
    """A tool falls ill and gets well again."""
    names = ["a", "b", "c", "d", "e"]
    spec = flow(
        *(task(name, tool="t", retry=Retry(max_attempts=9, base_delay=1, jitter=0)) for name in names), tools=TOOLS
    )

    def script(call: Any, entity: Any) -> dict[str, Any]:
        return {"status": "failed", "error": "down"} if entity.kernel.at < 1_000_040 else {}

    return spec, dict.fromkeys(names, script), lambda stage: stage.advance(200)


def parking() -> tuple[Workstream, dict[str, Script], Callable[[KernelHarness], None]]:
    """Exhausted tasks that park, and one that times out."""
    spec = flow(
        task("a", on_exhausted="park", optional=True), task("b", timeout=5, retry=AGAIN), task("c", "a", "b"),
        task("d", on_exhausted="park", optional=True, total_timeout=300),
    )  # fmt: skip
    scripts: dict[str, Script] = {
        "a": fails_until(2),
        "b": lambda call, entity: None if entity.record.attempt == 1 else {},
        "d": fails(),
    }
    return spec, scripts, lambda stage: stage.advance(400)


def cancelled() -> tuple[Workstream, dict[str, Script], Callable[[KernelHarness], None]]:
    """Everything is cancelled by its deadline, in many states at once."""
    spec = flow(
        task("a"), task("b", retry=Retry(max_attempts=9, base_delay=50, jitter=0)), task("c", "a"), task("q"),
        task("v", checks=[Check(run="m:c", timeout=100)]), max_parallel=3, deadline=40,
    )  # fmt: skip
    return spec, {"a": hangs, "b": fails(), "v.check": hangs}, lambda stage: stage.advance(100)


RUNS = [plain, failing, tripping, parking, cancelled]


def settled(stage: KernelHarness) -> dict[str, Any]:
    """Return the part of an outcome that must not depend on the way to it."""
    return {"job": stage.state(), "tasks": stage.states()}


def done(kept: Kept) -> set[str]:
    """The tasks whose result is in the journal."""
    return {t.id for t in kept.of(TaskRecord) if t.state in {"validating", "completed"}}


def check_consistent(stage: KernelHarness) -> None:
    """Check the rules that hold for every run, however often it was killed."""
    assert stage.audit() == []
    for record in stage.kept.of(TaskRecord):
        assert record.failed_attempts <= record.max_attempts + record.granted
        assert record.lost_attempts <= record.max_losses
        ends = [a.end for a in stage.kept.of(AttemptRecord) if a.task == record.key]
        assert len(ends) == record.attempt
        assert ends.count("succeeded") <= 1 + record.granted  # one more may follow failed checks
        assert ends.count("lost") == record.lost_attempts
        assert ends.count("failed") + ends.count("timed_out") == record.failed_attempts
        assert None not in ends
    assert stage.kernel.slots == {}
    assert stage.kernel.calls == {}
    assert {entity.record.kind for entity in stage.kernel.entities.values()} <= {"worker", "breaker"}
    assert [key for key in stage.kept.records if key[0] == "outbox"] == []
    assert [fire for *_, timer, fire in stage.timers if timer.armed and fire.key not in stage.kernel.entities] == []


@pytest.mark.parametrize("make", RUNS)
def test_killed_after_every_turn(
    make: Callable[[], tuple[Workstream, dict[str, Script], Callable[[KernelHarness], None]]],
) -> None:
    spec, scripts, go_on = make()
    whole = KernelHarness(scripts=dict(scripts))
    whole.submit(spec)
    go_on(whole)
    check_consistent(whole)
    begun = next(n for n, turn in enumerate(whole.kept.turns) if any(t.kind == "job" for t in turn.transitions))
    for cut in range(begun + 1, len(whole.kept.turns) + 1):
        for again in (False, True):
            completed = done(whole.kept.first(cut))
            after = whole.after_crash(cut)
            if again:  # and killed once more, at once
                completed = done(after.kept)
                after = after.after_crash()
            go_on(after)
            after.advance(2000)
            assert [entity for kind, entity, _ in after.started if kind == "body" and entity in completed] == []
            assert settled(after) == settled(whole)
            check_consistent(after)


# -- raising at every message ------------------------------------------------------------------------------------------


class InjectedError(RuntimeError):
    """The error that a test makes an actor raise."""


def sabotage(stage: KernelHarness, at: int) -> list[str]:
    """Let the receive number `at` (from 1) raise, after it has done its work. Returns the entities that raised."""
    from callboard.actors.kernel.kernel import Kernel

    count = 0
    raised: list[str] = []
    kernel = stage.kernel
    send = Kernel.send

    class Trap:
        """Takes the place of an actor in the queue."""

        def __init__(self, actor: Any) -> None:
            self.record = getattr(actor, "record", None)
            self.actor = actor

        def receive(self, message: Any) -> None:
            nonlocal count
            self.actor.receive(message)
            count += 1
            if count == at:
                raised.append(repr(self.actor))
                raise InjectedError(f"at message {at}")

    def trapped(actor: Any, message: Any) -> None:
        send(kernel, Trap(actor), message)

    kernel.send = trapped  # type: ignore[method-assign]
    return raised


def books(stage: KernelHarness) -> None:
    """The derived books agree with the records."""
    kernel = stage.kernel
    for worker in kernel.workers.values():
        held = [slot for slot in kernel.slots.values() if slot.worker == worker.record.key]
        assert worker.used == worker.record.assigned == len(held)
    for entity in kernel.entities.values():
        record = entity.record
        assert stage.kept.records[record.kind, record.key] == msgspec.json.decode(
            msgspec.json.encode(record), type=type(record)
        )
        armed = [
            timer
            for *_, timer, fire in stage.timers
            if timer.armed and fire == fire.__class__(record.key, record.epoch)
        ]
        if entity.ended:
            assert armed == []
        else:
            assert len(armed) == (getattr(record, "due_at", None) is not None)


@pytest.mark.parametrize("make", RUNS)
def test_raising_at_every_message(
    make: Callable[[], tuple[Workstream, dict[str, Script], Callable[[KernelHarness], None]]],
) -> None:
    spec, scripts, go_on = make()
    at = 0
    while True:
        at += 1
        stage = KernelHarness(scripts=dict(scripts))
        stage.submit(flow(task("bystander", timeout=100_000)), "other")  # completed before the first fault
        stage.scripts["witness"] = hangs
        stage.submit(flow(task("witness", timeout=100_000)), "witness")
        raised = sabotage(stage, at)
        stage.submit(spec)
        go_on(stage)
        books(stage)
        stage.advance(2000)
        if not raised:
            break
        assert len(stage.reports) == 1, (at, stage.reports)
        assert "Injected" in stage.reports[0]
        jobs = {job.id: job.state for job in stage.kept.of(JobRecord)}
        assert jobs["other"] == "completed"
        assert jobs["witness"] == "running"
        if "job" in jobs:  # else the submission itself was undone, and refused
            parked = any(t.parked == "exhausted" and t.granted for t in stage.kept.of(TaskRecord))
            if jobs["job"] == "running" and parked:
                stage.cancel(stage.kernel.jobs["job"])  # the job waits for a person's command, as its settings ask for
                jobs["job"] = stage.state()
            assert jobs["job"] in {"completed", "failed", "cancelled"}, at
        else:
            assert isinstance(stage.answers[-1][1], InjectedError)
        books(stage)
        stage.end(stage.task("witness", "witness").token)
        stage.settle()
        check_consistent(stage)
    assert at > 20


def test_what_another_task_does_wrong_is_that_tasks_fault() -> None:
    """The end of "a" frees the slot for "b". "b" raises when it gets the slot: "a" is completed all the same."""
    stage = KernelHarness(workers=(Worker("w", engine="loop", capacity=1),))
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a"), task("b", optional=True), task("c")))
    bad = stage.actor("b")
    type_of = type(bad)
    assign = type_of.receivers

    class Broken(type_of):  # type: ignore[misc,valid-type]
        __slots__ = ()
        machine = type_of.machine

        def on_assign(self, message: Any) -> None:
            raise InjectedError("always")

        receivers: ClassVar[Any] = {**type_of.receivers, Assign: on_assign}

    bad.__class__ = Broken
    stage.end(stage.token("a"), value=msgspec.Raw(b"1"))
    stage.settle()
    assert stage.states() == {"a": "completed", "b": "failed", "c": "completed"}
    assert stage.task("b").last_error == "internal error: InjectedError: always"
    assert stage.task("a").attempt == 1
    assert stage.state() == "completed"
    assert stage.bodies() == ["a", "c"]
    assert assign is type_of.receivers
    assert stage.audit() == []


def test_an_entity_that_cannot_even_fail_is_left_alone_and_the_others_go_on() -> None:
    stage = KernelHarness(workers=(Worker("w", engine="loop", capacity=1),))
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a", timeout=10), task("c")))
    bad = stage.actor("a")
    receive = type(bad).receive

    class Broken(type(bad)):  # type: ignore[misc]
        __slots__ = ()
        machine = type(bad).machine
        receivers = type(bad).receivers
        calls = 0

        def receive(self, message: Any) -> None:
            Broken.calls += 1
            assert Broken.calls < 20
            raise InjectedError("always")

    bad.__class__ = Broken
    stage.end(stage.token("a"))
    stage.settle()
    stage.advance(10_000)
    assert stage.states() == {"a": "running", "c": "completed"}
    assert len(stage.reports) == 2
    assert stage.kernel.slots == {}
    assert Broken.calls == 2
    assert receive is not Broken.receive
    later = stage.after_crash()
    later.scripts.clear()
    later.advance(0)
    assert later.state() == "completed"


def test_a_job_that_cannot_be_recovered_takes_no_other_with_it() -> None:
    stage = KernelHarness()
    stage.scripts |= {"a": hangs, "b": hangs}
    stage.submit(flow(task("a")), "one")
    stage.submit(flow(task("b")), "two")
    from callboard.actors.tasks.task import TaskActor

    recover = TaskActor.receivers
    broken = dict(recover)

    def on_recover(actor: Any, message: Any) -> None:
        if actor.record.name == "a":
            raise InjectedError("cannot")
        next(method for kind, method in recover.items() if kind is type(message))(actor, message)

    from callboard.actors.messages.inputs import Recover

    broken[Recover] = on_recover
    TaskActor.receivers = broken
    try:
        after = stage.after_crash()
    finally:
        TaskActor.receivers = recover
    after.advance(0)
    assert after.task("b", "two").state == "running"
    assert after.task("b", "two").lost_attempts == 1
    after.advance(5)
    assert after.task("a", "one").state == "failed"
    assert after.state("one") == "failed"


def test_defaults_hold_after_a_restart() -> None:
    stage = KernelHarness(defaults=Defaults(max_losses=1))
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a")))
    assert stage.after_crash().task("a").state == "failed"
