"""The reports about users' actors that fail, and about those that cause it."""

from __future__ import annotations

from functools import partialmethod, wraps
from typing import Any

import anyio
import pytest
from tests.actors.actor_help import Bench, Boom, Loud, Script, boom, running, spawning

from callboard import Actor, Context, Notice, Runtime, Supervision, Terminated
from callboard.actors.users.dead_letters import Reason
from callboard.actors.users.strategy import Directive
from callboard.errors import ActorStopped, AskTimeout
from callboard.runtime.dispatch import supervision
from callboard.runtime.dispatch.actor_failures import FAILURES_KEPT, Failures

pytestmark = pytest.mark.anyio
AT_ONCE = Supervision(intensity=2, period=10, backoff_min=0, backoff_max=0)


class Scale(Actor):
    """An actor that fails on one kind of message."""

    def receive(self, message: Any, ctx: Context) -> Any:
        if message == "break":
            raise OSError("the scale is broken")
        return message


class Reader(Actor):
    """An actor whose `started` raises."""

    def started(self, ctx: Context) -> None:
        raise OSError("no reader is plugged in")

    def receive(self, message: Any, ctx: Context) -> int:
        return 1


def test_a_failure_a_restart_and_an_end_are_told_in_this_order() -> None:
    bench = Bench(AT_ONCE)
    ref = bench.spawn(Scale, name="scale")
    for _ in range(3):
        ref.tell("break")
        bench.after(0)
    failed, restarted = ("actor_failed", "scale"), ("actor_restarted", "scale")
    assert bench.told() == [failed, restarted, failed, restarted, failed, ("actor_stopped", "scale")]
    first, second, *_, last = bench.trouble
    assert first.text == "actor scale failed on a message of type str: OSError: the scale is broken"
    assert (first.severity, first.message) == ("error", "str")
    assert isinstance(first.error, OSError)
    assert second.text == "actor scale was built anew, after a failure: OSError: the scale is broken"
    assert second.severity == "error"
    assert last.severity == "critical"
    assert "the scale is broken" in last.text


@pytest.mark.parametrize(
    ("directive", "events"),
    [
        ("resume", ["actor_failed"]),
        ("restart", ["actor_failed", "actor_restarted"]),
        ("stop", ["actor_failed", "actor_stopped"]),
        ("escalate", ["actor_failed", "actor_stopped"]),
    ],
)
def test_what_becomes_of_it_is_told(directive: str, events: list[str]) -> None:
    bench = Bench(Supervision(backoff_min=0, backoff_max=0, decide=lambda error: Directive(directive)))
    bench.spawn(Scale, name="scale").tell("break")
    bench.after(0)
    assert [event for event, _ in bench.told()] == events


def test_an_instance_and_a_temporary_actor_end_by_their_failure() -> None:
    bench = Bench(AT_ONCE)
    for actor, restart, why in (
        (Scale(), "transient", "was given as an instance"),
        (Scale, "temporary", "is temporary"),
    ):
        bench.spawn(actor, name="scale", restart=restart).tell("break")
        bench.after(0)
        told = bench.trouble[-1]
        assert (told.event, told.severity) == ("actor_stopped", "error")
        assert f"since it {why}" in told.text


def test_who_is_built_anew_with_its_sibling_is_told_with_whose_failure_it_was() -> None:
    bench = Bench()
    parent = bench.spawn(lambda: Loud(bench, "p"), name="p", supervision=Supervision("one_for_all", backoff_min=0))
    for name in ("a", "b"):
        parent.tell(spawning(name))
    parent.tell(lambda actor, ctx: ctx.spawn(Script(bench), name="c"))
    bench.idle()
    assert parent.details is not None
    assert parent.details.children is not None
    child = parent.details.children["a"]
    child.tell(boom)
    bench.after(1)
    assert [(one.event, one.actor) for one in bench.trouble] == [
        ("actor_failed", "p/a"), ("actor_stopped", "p/c"), ("actor_restarted", "p/a"), ("actor_restarted", "p/b"),
    ]  # fmt: skip
    assert bench.trouble[-1].text == "actor p/b was built anew, after a failure of p/a: Boom"


def test_a_parent_s_failure_by_its_child_is_told_as_its_own() -> None:
    bench = Bench(AT_ONCE)
    parent = bench.spawn(
        lambda: Loud(bench, "p"), name="p", supervision=Supervision(decide=lambda _: Directive.ESCALATE)
    )
    parent.tell(spawning("c"))
    bench.idle()
    assert parent.details is not None
    assert parent.details.children is not None
    parent.details.children["c"].tell(boom)
    bench.after(1)
    assert bench.told() == [("actor_failed", "p/c"), ("actor_failed", "p"), ("actor_restarted", "p")]
    assert bench.trouble[1].text.startswith("actor p failed by a child: ChildFailed: p/c")


def test_what_hears_of_it_is_no_part_of_the_receive_that_failed() -> None:
    bench = Bench(AT_ONCE)
    other = bench.spawn(lambda: Script(bench))
    bench.dispatcher.reports.on_trouble = lambda trouble: other.tell(trouble.event)
    bench.spawn(Scale).tell("break")
    bench.after(0)
    assert bench.record == ["actor_failed", "actor_restarted"]


def test_one_that_leaves_and_is_permanent_is_built_anew_for_information_only() -> None:
    bench = Bench(AT_ONCE)
    ref = bench.spawn(lambda: Script(bench), name="p", restart="permanent")
    ref.tell(lambda actor, ctx: ctx.stop())
    bench.after(0)
    (notice,) = bench.trouble
    assert (notice.event, notice.severity, notice.error) == ("actor_restarted", "info", None)


# -- signatures --------------------------------------------------------------------------------------------------------


class NoContext(Actor):
    def receive(self, message: Any) -> Any:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
        return message


class NoContextLater(Actor):
    async def receive(self, message: Any) -> Any:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
        return message


class StartsWithout(Actor):
    def started(self) -> None:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
        pass

    def receive(self, message: Any, ctx: Context) -> Any:
        return message


class WantsMore(Actor):
    def receive(self, message: Any, ctx: Context, more: int, *, name: str) -> Any:
        return message


class Yields(Actor):
    def receive(self, message: Any, ctx: Context) -> Any:
        yield message


class YieldsLater(Actor):
    async def receive(self, message: Any, ctx: Context) -> Any:
        yield message


class YieldsAtStart(Actor):
    async def started(self, ctx: Context) -> Any:
        yield


class HasNoMethod(Actor):
    receive: Any = 5


@pytest.mark.parametrize("way", ["class", "factory", "instance", "child"])
@pytest.mark.parametrize(
    ("actor", "says"),
    [
        (NoContext, r"its `receive\(self, message\)` is called once .*: write `def receive\(self, message, ctx\)`"),
        (NoContextLater, r"or `async def receive\(self, message, ctx\)`"),
        (StartsWithout, r"its `started\(self\)` is called before .*: write `def started\(self, ctx\)`"),
        (WantsMore, r"write `def receive\(self, message, ctx\)`"),
        (Yields, "its `receive` yields, so a call would run nothing: return the answer instead"),
        (YieldsLater, "its `receive` yields"),
        (YieldsAtStart, "its `started` yields"),
        (HasNoMethod, "its `receive` is 5, which cannot be called"),
    ],
)
def test_an_actor_that_cannot_be_called_is_refused_when_it_is_spawned(way: str, actor: type[Actor], says: str) -> None:
    bench = Bench()
    if way != "child":
        given: Any = {"class": actor, "factory": lambda: actor(), "instance": actor()}[way]  # noqa: PLW0108
        with pytest.raises(TypeError, match=f"^{actor.__name__} is no actor: .*{says}"):
            bench.spawn(given)
        assert bench.dispatcher.supervisor.root.details is not None
        assert not bench.dispatcher.supervisor.root.details.children
    else:
        bench.spawn(lambda: Script(bench), name="parent").tell(lambda _, ctx: ctx.spawn(actor))
        bench.idle()
        assert f"of type function: TypeError: {actor.__name__} is no actor" in bench.trouble[0].text


def decorated(method: Any) -> Any:
    @wraps(method)
    def receive(self: Any, message: Any, ctx: Context) -> Any:
        return method(self, message)

    return receive


class Decorated(Actor):
    @decorated
    def receive(self, message: Any) -> Any:
        return message


class Static(Actor):
    @staticmethod
    def receive(message: Any, ctx: Context) -> Any:
        return message


class Partial(Actor):
    def _receive(self, more: int, message: Any, ctx: Context) -> Any:
        return message

    receive = partialmethod(_receive, 7)  # type: ignore[assignment]


class AnyArguments(Actor):
    def receive(self, *args: Any, **_: Any) -> Any:
        return args[0]


class Optional(Actor):
    def receive(self, message: Any, ctx: Context | None = None, *, more: int = 1) -> Any:
        return message


class OfItsInstance(Actor):
    def __init__(self) -> None:
        self.receive = lambda message, ctx: message  # type: ignore[method-assign]


class Receiver:
    def __call__(self, message: Any, ctx: Context) -> Any:
        return message


class OfAnObject(Actor):
    receive = Receiver()  # type: ignore[assignment]


class OfABuiltin(Actor):
    receive = max  # type: ignore[assignment]


@pytest.mark.parametrize(
    "actor", [Decorated, Static, Partial, AnyArguments, Optional, OfItsInstance, OfAnObject, OfABuiltin]
)
def test_an_actor_may_have_its_methods_in_any_way(actor: type[Actor]) -> None:
    bench = Bench()
    bench.spawn(actor)
    for _ in range(2):
        ref = bench.spawn(lambda: actor())  # noqa: PLW0108
        ref.tell("hello")
    bench.idle()
    if actor is not OfABuiltin:  # max("hello", a Context) raises
        assert bench.trouble == []


def test_each_class_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Actor] = []
    monkeypatch.setattr(supervision, "check_methods", looked.append)
    bench = Bench()
    for _ in range(3):
        bench.spawn(Scale)
        bench.spawn(lambda: Script(bench))
    assert [type(actor) for actor in looked] == [Scale, Script]


# -- causes ------------------------------------------------------------------------------------------------------------


def test_dead_letters_name_what_their_recipient_failed_by() -> None:
    bench = Bench(Supervision(decide=lambda _: Directive.STOP))
    ref = bench.spawn(Scale, name="scale")
    ref.tell("break")
    ref.tell("waits")
    bench.idle()
    ref.tell("late")
    letters = [(letter.message, letter.reason, type(letter.error)) for letter in bench.dead.newest()]
    assert letters == [
        ("break", Reason.FAILED, OSError), ("waits", Reason.STOPPED, OSError), ("late", Reason.STOPPED, OSError),
    ]  # fmt: skip


def test_one_that_recovered_and_ended_by_itself_failed_by_nothing() -> None:
    bench = Bench(AT_ONCE)
    ref = bench.spawn(Scale, name="scale")
    ref.tell("break")
    bench.after(0)
    ref.stop()
    bench.idle()
    ref.tell("late")
    assert bench.dead.newest()[-1].error is None


async def test_who_asks_is_told_why_no_answer_comes(anyio_backend_name: str) -> None:
    notices: list[Notice] = []
    quick = Supervision(intensity=2, backoff_min=0.01, backoff_max=0.01)
    runtime = Runtime(supervision=quick)
    runtime.on_trouble = notices.append
    with anyio.fail_after(300):
        async with runtime:
            reader = runtime.spawn(Reader, name="reader")
            with pytest.raises(ActorStopped, match="no reader is plugged in") as waiting:
                await reader.ask("read")
            with pytest.raises(ActorStopped, match=r"stopped by its failure .*no reader is plugged in") as later:
                await reader.ask("read")
    for error in (waiting.value, later.value):
        assert "no reader is plugged in" in repr(error.__cause__)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_a_timeout_has_the_failure_that_came_meanwhile(when: str, anyio_backend_name: str) -> None:
    bench = Bench(Supervision(backoff_min=60, backoff_max=60))
    scale = bench.spawn(Scale, name="scale")
    raised: list[AskTimeout] = []

    async def ask() -> None:
        try:
            await scale.ask("weigh", timeout=5)
        except AskTimeout as error:
            raised.append(error)

    with anyio.fail_after(300):
        async with running(bench.dispatcher), anyio.create_task_group() as group:
            scale.tell("break")
            if when == "before":
                await anyio.wait_all_tasks_blocked()
                bench.clock.advance(1)
            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            bench.clock.advance(5)
    (error,) = raised
    assert isinstance(error.__cause__, OSError) == (when == "meanwhile")
    assert ("It failed meanwhile: OSError: the scale is broken" in str(error)) == (when == "meanwhile")


def test_so_many_failures_are_kept_and_no_more() -> None:
    bench, failures = Bench(), Failures()
    refs = [bench.spawn(Scale) for _ in range(FAILURES_KEPT + 1)]
    for at, ref in enumerate(refs):
        failures.note(ref, Boom(at), float(at))
    assert failures.of(refs[0]) is None
    assert failures.of(refs[1]) is not None
    assert len(failures._last) == FAILURES_KEPT


# -- where failures are reported
# --------------------------------------------------------------------------------------------------


async def test_it_is_a_notice_an_event_and_a_number(anyio_backend_name: str) -> None:
    notices: list[Notice] = []
    runtime = Runtime(supervision=Supervision(intensity=1, backoff_min=0, backoff_max=0))
    runtime.on_trouble = notices.append
    with anyio.fail_after(300):
        async with runtime:
            events = runtime.events(kind="actor")
            ended = anyio.Event()

            class Watcher(Actor):
                def started(self, ctx: Context) -> None:
                    ctx.watch(scale)

                def receive(self, message: Any, ctx: Context) -> None:
                    assert isinstance(message, Terminated)
                    ended.set()

            scale = runtime.spawn(Scale, name="scale")
            runtime.spawn(Watcher)
            scale.tell("break")
            scale.tell("break")
            await ended.wait()
            metrics = runtime.metrics()
            events.close()
            seen = [event async for event in events]
    assert seen == notices
    assert [notice.event for notice in notices] == ["actor_failed", "actor_restarted", "actor_failed", "actor_stopped"]
    first = notices[0]
    assert (first.kind, first.entity_id, first.severity) == ("actor", "scale", "error")
    assert (first.facts["actor"], first.facts["message"]) == ("scale", "str")
    assert 'raise OSError("the scale is broken")' in first.facts["traceback"]
    assert isinstance(first.error, OSError)
    assert (metrics.actors_failed, metrics.actors_restarted, metrics.actors_stopped) == (2, 1, 1)


async def test_where_nothing_is_configured_it_is_on_standard_error_with_its_traceback(
    no_logs: object, capsys: pytest.CaptureFixture[str], anyio_backend_name: str
) -> None:
    with anyio.fail_after(300):
        async with Runtime() as runtime:
            scale = runtime.spawn(Scale, name="scale")
            scale.tell("break")
            assert await scale.ask("weigh") == "weigh"
    output = capsys.readouterr()
    assert output.out == ""
    assert "callboard: actor_failed: actor scale failed on a message of type str: OSError: the scale is" in output.err
    assert "callboard: actor_restarted: actor scale was built anew" in output.err
    assert output.err.count('raise OSError("the scale is broken")') == 1  # and not a second time with its consequence
