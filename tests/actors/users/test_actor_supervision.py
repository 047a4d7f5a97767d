"""Failure, restart and stop of an actor: the effects on it, its siblings, its children and its messages."""

from __future__ import annotations

from typing import Any

import pytest
from tests.actors.actor_help import Bench, Boom, Loud, Script, boom, child, spawning

from callboard.actors.users.actor import Actor, Context, Terminated
from callboard.actors.users.errors import ChildFailed, RestartLimitReached
from callboard.actors.users.ref import Ref
from callboard.actors.users.strategy import Directive, RestartCount, Strategy, Supervision


def test_a_failed_actor_is_built_anew_after_a_delay_with_its_mail() -> None:
    bench = Bench(Supervision(backoff_min=1))
    ref = bench.spawn(lambda: Loud(bench, "a"))
    bench.idle()
    before = ref.actor
    for message in (boom, 1, 2):
        ref.tell(message)
    bench.idle()
    ref.tell(3)
    bench.after(0.5)
    assert bench.record == [("a", "started"), ("a", "stopped")]
    bench.after(0.5)
    assert bench.record[2:] == [("a", "started"), ("a", 1), ("a", 2), ("a", 3)]
    assert ref.actor is not before
    assert bench.reasons() == ["failed"]


def test_one_failing_actor_disturbs_no_other() -> None:
    bench = Bench()
    good = [bench.spawn(lambda: Loud(bench, "good")) for _ in range(3)]
    bad = bench.spawn(lambda: Script(bench))
    for n in range(5):
        bad.tell(boom)
        for ref in good:
            ref.tell(n)
        bench.after(60)
    assert len(bench.record) == 3 + 15
    assert all(not ref.stopped for ref in (*good, bad))


def test_the_delay_doubles_up_to_its_limit_and_is_forgotten_after_stable_uptime() -> None:
    supervision = Supervision(intensity=100, backoff_min=1, backoff_max=4, stable_after=10)
    bench = Bench(supervision)
    ref = bench.spawn(lambda: Loud(bench, "a"))

    def restarted_after() -> float:
        bench.idle()
        bench.record.clear()
        ref.tell(boom)
        bench.idle()
        start = bench.clock.monotonic()
        while ("a", "started") not in bench.record:
            bench.after(0.5)
        return bench.clock.monotonic() - start

    assert [restarted_after() for _ in range(4)] == [1, 2, 4, 4]
    bench.after(9.5)
    assert restarted_after() == 4
    bench.after(10)
    assert restarted_after() == 1


def test_too_many_restarts_within_the_period_stop_it_and_are_reported() -> None:
    bench = Bench(Supervision(intensity=2, period=100, backoff_min=0, backoff_max=0))
    watcher = bench.spawn(lambda: Script(bench))
    ref = bench.spawn(lambda: Script(bench), name="bad")
    watcher.tell(lambda actor, ctx: ctx.watch(ref))
    for n in range(3):
        assert not ref.stopped
        ref.tell(boom)
        bench.after(1)
        assert len(bench.critical) == (n == 2)
    assert ref.stopped
    assert bench.critical[0][0] == "bad"
    (ended,) = bench.record
    assert (ended.ref, ended.reason) == (ref, "failed")
    assert isinstance(ended.error, RestartLimitReached)
    assert isinstance(ended.error.__cause__, Boom)
    assert not watcher.stopped


def test_restarts_that_are_far_apart_are_not_too_many() -> None:
    bench = Bench(Supervision(intensity=1, period=10, backoff_min=0, backoff_max=0, stable_after=1e9))
    ref = bench.spawn(lambda: Script(bench))
    for _ in range(5):
        ref.tell(boom)
        bench.after(10)
    assert not ref.stopped


def family(bench: Bench, supervision: Supervision, **of_two: Any) -> tuple[Ref, list[Ref]]:
    """A parent with three children, started in order."""
    parent = bench.spawn(lambda: Script(bench), name="parent", supervision=supervision)
    for name in ("one", "two", "three"):
        parent.tell(spawning(name, **(of_two if name == "two" else {})))
    bench.idle()
    bench.record.clear()
    return parent, [child(parent, name) for name in ("one", "two", "three")]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("one_for_one", [("two", "stopped"), ("two", "started")]),
        (
            "one_for_all",
            [
                *[("three", "stopped"), ("two", "stopped"), ("one", "stopped")],
                *[("one", "started"), ("two", "started"), ("three", "started")],
            ],
        ),
        (
            "rest_for_one",
            [("three", "stopped"), ("two", "stopped"), ("two", "started"), ("three", "started")],
        ),
    ],
)
def test_who_is_restarted_with_the_one_that_failed(strategy: str, expected: list[Any]) -> None:
    bench = Bench()
    _, children = family(bench, Supervision(strategy=strategy))
    children[1].tell(boom)
    bench.idle()
    for ref in children:
        ref.tell("kept")
    bench.after(1)
    assert [event for event in bench.record if event[1] != "kept"] == expected
    assert sorted(event for event in bench.record if event[1] == "kept") == [
        ("one", "kept"),
        ("three", "kept"),
        ("two", "kept"),
    ]


def test_a_family_counts_its_restarts_together() -> None:
    bench = Bench()
    supervision = Supervision(strategy=Strategy.ONE_FOR_ALL, intensity=1, backoff_min=0, backoff_max=0)
    parent, children = family(bench, supervision)
    children[0].tell(boom)
    bench.after(1)
    children[2].tell(boom)
    bench.after(1)  # one restart too many: the parent fails, and is built anew, without children
    assert all(ref.stopped for ref in children)
    assert not parent.stopped
    assert [event for event in bench.record if event[1] == "stopped"][-3:] == [
        ("three", "stopped"),
        ("two", "stopped"),
        ("one", "stopped"),
    ]


def test_a_temporary_sibling_and_an_instance_end_where_others_are_restarted() -> None:
    bench = Bench()
    parent, children = family(bench, Supervision(strategy="one_for_all"), restart="temporary")
    parent.tell(lambda actor, ctx: ctx.spawn(Loud(bench, "four"), name="four") and None)
    bench.idle()
    instance = child(parent, "four")
    children[0].tell(boom)
    bench.after(1)
    assert [ref.stopped for ref in (*children, instance)] == [False, True, False, True]


@pytest.mark.parametrize(
    ("restart", "after_failure", "after_its_own_stop", "after_a_stop"),
    [("permanent", False, False, True), ("transient", False, True, True), ("temporary", True, True, True)],
)
def test_restart_policies(restart: str, after_failure: bool, after_its_own_stop: bool, after_a_stop: bool) -> None:
    bench = Bench()
    outcomes: list[bool] = []
    for end in (lambda ref: ref.tell(boom), lambda ref: ref.tell(lambda a, ctx: ctx.stop()), lambda ref: ref.stop()):
        ref = bench.spawn(lambda: Script(bench, "a"), restart=restart)
        end(ref)
        bench.idle()
        bench.after(1)
        outcomes.append(ref.stopped)
        if not ref.stopped:
            ref.tell("alive")
            bench.idle()
            assert bench.record.pop() == ("a", "alive")
    assert outcomes == [after_failure, after_its_own_stop, after_a_stop]


def test_an_instance_is_stopped_or_resumed() -> None:
    bench = Bench()
    ref = bench.spawn(Script(bench))
    ref.tell(boom)
    bench.after(1)
    assert ref.stopped
    bench = Bench(Supervision(decide=lambda error: Directive.RESUME))
    ref = bench.spawn(Script(bench))
    for message in (boom, 1):
        ref.tell(message)
    bench.idle()
    assert bench.record == [1]
    assert bench.reasons() == ["failed"]


@pytest.mark.parametrize(
    ("directive", "record", "stopped"),
    [
        ("resume", [("a", "next")], False),
        ("restart", [("a", "stopped"), ("a", "started"), ("a", "next")], False),
        ("stop", [("a", "stopped")], True),
        ("escalate", [("a", "stopped")], True),
    ],
)
def test_directives(directive: str, record: list[Any], stopped: bool) -> None:
    bench = Bench(Supervision(decide=lambda error: Directive(directive)))
    ref = bench.spawn(lambda: Loud(bench, "a"))
    bench.idle()
    bench.record.clear()
    ref.tell(boom)
    ref.tell("next")
    bench.idle()
    bench.after(1)
    assert bench.record == record
    assert ref.stopped == stopped
    assert len(bench.critical) == (directive == "escalate")


def test_an_escalated_failure_is_the_parents_own() -> None:
    seen: list[BaseException] = []

    def note(error: BaseException) -> Directive:
        seen.append(error)
        return Directive.RESTART

    bench = Bench(Supervision(decide=note))
    parent, children = family(bench, Supervision(decide=lambda error: Directive.ESCALATE))
    other = bench.spawn(lambda: Loud(bench, "other"))
    first = parent.actor
    children[1].tell(boom)
    bench.after(1)
    (failure,) = seen
    assert isinstance(failure, ChildFailed)
    assert isinstance(failure.__cause__, Boom)
    assert all(ref.stopped for ref in children)
    assert not parent.stopped
    assert parent.actor is not first
    assert not other.stopped


def test_a_resumed_parent_resumes_the_child_whose_failure_it_was() -> None:
    bench = Bench(Supervision(decide=lambda error: Directive.RESUME))
    parent, children = family(bench, Supervision(decide=lambda error: Directive.ESCALATE))
    children[1].tell(boom)
    children[1].tell("next")
    parent.tell("next")
    bench.idle()
    assert sorted(bench.record, key=str) == [("two", "next"), "next"]


def test_a_decision_that_raises_is_the_parents_failure() -> None:
    bench = Bench(Supervision(decide=lambda error: 1 // 0))  # type: ignore[arg-type, return-value]
    ref = bench.spawn(lambda: Script(bench), name="a")
    ref.tell(boom)
    bench.idle()
    assert ref.stopped
    assert bench.critical == [("a", "actor_stopped")]


class Fragile(Actor):
    """Fails at the chosen moments of its life."""

    def __init__(self, bench: Bench, fails: dict[str, int]) -> None:
        self.bench, self.fails = bench, fails
        self._maybe("init")

    def _maybe(self, when: str) -> None:
        self.bench.record.append(when)
        if self.fails.get(when, 0) > 0:
            self.fails[when] -= 1
            raise Boom

    def started(self, ctx: Context) -> None:
        self._maybe("started")

    def stopped(self, ctx: Context) -> None:
        self._maybe("stopped")

    def receive(self, message: Any, ctx: Context) -> None:
        self._maybe(message)


def test_failures_of_init_and_started_are_failures_like_any_other() -> None:
    bench = Bench(Supervision(intensity=100, backoff_min=0, backoff_max=0))
    fails = {"started": 2, "work": 1}
    ref = bench.spawn(lambda: Fragile(bench, fails))
    ref.tell("work")
    ref.tell("more")
    bench.idle()
    bench.idle()
    assert [e for e in bench.record if e not in {"init", "stopped"}] == [
        *("started", "started", "started", "work"),
        *("started", "more"),
    ]
    fails["init"] = 2
    fails["more"] = 1
    bench.record.clear()
    ref.tell("more")
    bench.idle()
    bench.idle()
    assert bench.record == ["more", "stopped", "init", "init", "init", "started"]
    assert not ref.stopped


def test_an_actor_that_can_never_be_built_again_is_stopped() -> None:
    bench = Bench(Supervision(intensity=3, decide=lambda error: Directive.RESTART))
    fails = {"started": 1}
    ref = bench.spawn(lambda: Fragile(bench, fails), name="f")
    fails["init"] = 99
    for _ in range(10):
        bench.after(10)
    assert ref.stopped
    assert bench.critical == [("f", "actor_stopped")]


def test_a_failing_stopped_is_reported_and_the_actor_ends_all_the_same() -> None:
    bench = Bench()
    ref = bench.spawn(lambda: Fragile(bench, {"stopped": 1}), name="f")
    ref.stop()
    bench.idle()
    assert ref.stopped
    assert bench.told() == [("actor_failed", "f")]
    assert bench.trouble[0].text == "actor f failed in stopped(): Boom"


def test_children_stop_first_the_last_started_first() -> None:
    bench = Bench()
    parent = bench.spawn(lambda: Loud(bench, "parent"), name="parent")
    for name in ("one", "two"):
        parent.tell(spawning(name))
    bench.idle()
    child(parent, "two").tell(spawning("deep"))
    bench.idle()
    bench.record.clear()
    refs = [child(parent, "one"), child(parent, "two")]
    watcher = bench.spawn(lambda: Script(bench))
    watcher.tell(lambda actor, ctx: [ctx.watch(ref) for ref in refs] and None)
    bench.idle()
    parent.stop()
    parent.stop()
    bench.idle()
    ends = [event for event in bench.record if not isinstance(event, Terminated)]
    assert ends == [("deep", "stopped"), ("two", "stopped"), ("one", "stopped"), ("parent", "stopped")]
    assert {event.reason for event in bench.record if isinstance(event, Terminated)} == {"parent_stopped"}


def test_a_stop_reaches_an_actor_that_waits_to_be_built_anew() -> None:
    bench = Bench(Supervision(backoff_min=100, backoff_max=100))
    ref = bench.spawn(lambda: Loud(bench, "a"))
    ref.tell(boom)
    ref.tell("waits")
    bench.after(1)
    ref.stop()
    bench.idle()
    assert ref.stopped
    assert bench.reasons() == ["failed", "stopped"]
    bench.after(200)
    assert bench.record == [("a", "started"), ("a", "stopped")]


def test_long_and_deep_families_end_without_recursion() -> None:
    bench = Bench()
    parent = bench.spawn(lambda: Script(bench))
    parent.tell(lambda actor, ctx: [ctx.spawn(Script(bench)) for _ in range(5_000)] and None)

    def deeper(depth: int) -> Any:
        def spawn(actor: Script, ctx: Context) -> None:
            if depth:
                ctx.spawn(Script(bench)).tell(deeper(depth - 1))
            else:
                bench.record.append("bottom")

        return spawn

    parent.tell(deeper(3_000))
    bench.idle()
    assert bench.record == ["bottom"]
    parent.stop()
    bench.idle()
    assert parent.stopped
    assert bench.dispatcher.find("x") is None


def test_supervision_refuses_what_cannot_be_meant() -> None:
    with pytest.raises(ValueError, match=r"strategy='all'.*intensity=-1.*stable_after=-1.*period=0.*backoff_min=2"):
        Supervision(strategy="all", intensity=-1, period=0, backoff_min=2, backoff_max=1, stable_after=-1)


def test_the_delay_of_any_number_of_restarts_can_be_computed() -> None:
    assert Supervision().delay(10**9) == 30.0
    assert Supervision(intensity=0).delay(1) == 0.1
    assert RestartCount().next_delay(Supervision(intensity=0), 0.0) is None


def test_what_the_siblings_of_a_restart_are_told_meanwhile_is_kept_and_a_stop_of_one_holds() -> None:
    bench = Bench()
    _, children = family(bench, Supervision(strategy="one_for_all", backoff_min=5))
    children[0].tell(boom)
    bench.after(1)
    children[2].stop()
    children[1].tell("kept")
    bench.after(5)
    assert [ref.stopped for ref in children] == [False, False, True]
    assert ("two", "kept") in bench.record


async def decides_later(error: BaseException) -> Directive:
    return Directive.RESUME


def decides_never(error: BaseException) -> Any:
    """Is a generator function: a call of it runs nothing."""
    yield Directive.RESUME


@pytest.mark.parametrize("decide", [decides_later, decides_never, 5, None])
def test_who_could_not_decide_is_refused_when_it_is_given(decide: Any) -> None:
    with pytest.raises(
        ValueError, match=r"decide=.*: a plain function of the error, which returns a Directive at once"
    ):
        Supervision(decide=decide)
