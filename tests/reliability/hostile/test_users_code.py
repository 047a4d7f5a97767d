"""Every place where the application's code is called, or its object used: any error or object fails only the operation
that called it, once.

A place is a function of this module. To add one, write it, and put it into `RAISE_IN`: it is held against every second
error of `guests.ERRORS` (in the long mode: all of them), and, if it takes what the code returns, against every object
of `guests.OBJECTS`.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
import sniffio
from msgspec.structs import replace
from tests.reliability.hostile import guests
from tests.reliability.hostile.budget import LONG
from tests.waiting import until

from callboard import (
    Actor,
    Approval,
    Check,
    Clause,
    Condition,
    Defaults,
    Directive,
    Fire,
    Hook,
    Machine,
    MachineActor,
    Notice,
    Retry,
    Runtime,
    State,
    Supervision,
    Task,
    TaskContext,
    Transition,
    Worker,
    Workstream,
)
from callboard.actors.users.errors import ActorStopped, AskTimeout, MailboxFull, ReceiveFailed
from callboard.errors import FireFailed

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.laboratory,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
WORKERS = [Worker("loop", engine="loop", capacity=5), Worker("threads", engine="thread", capacity=5)]
Act = Callable[[], Any]
"""The act of the application's code: it raises, or returns something."""


def fine() -> int:
    return 1


async def fine_later() -> int:
    return 1


@contextlib.asynccontextmanager
async def undisturbed(**settings: Any) -> AsyncIterator[tuple[Runtime, list[Notice]]]:
    """A runtime that continues its other work, and that can be left. It shows no internal error type."""
    told: list[Notice] = []
    with anyio.fail_after(300):
        runtime = Runtime(workers=WORKERS, drain_deadline=0, **settings)
        runtime.on_trouble = told.append
        async with runtime:
            seen = runtime.events()
            yield runtime, told
            seen.close()
            shown = [str(replace(event, error=None) if isinstance(event, Notice) else event) async for event in seen]
            assert not [text for text in shown if "Escaped" in text]
            for body in (fine, fine_later):
                job = await runtime.submit(Workstream("by-stander", tasks=[Task("a", run=body)]))
                assert (await job.wait()).ok


def plain(act: Act) -> Act:
    """A plain function that takes nothing, whatever `act` is."""

    def function() -> Any:
        return act()

    return function


def only(name: str, **settings: Any) -> Workstream:
    settings = {"run": fine_later, "retry": Retry(max_attempts=1), **settings}
    return Workstream(name, tasks=[Task("t", **settings)])


# -- places: how they handle raised errors --------------------------------------------------------------------------


async def in_a_body_on_the_loop(act: Act) -> None:
    async def body() -> Any:
        return act()

    await fails_once(run=body)


async def in_a_body_on_the_loop_that_has_waited(act: Act) -> None:
    async def body() -> Any:
        await anyio.lowlevel.checkpoint()
        return act()

    await fails_once(run=body)


async def in_a_body_on_the_loop_with_a_task_group(act: Act) -> None:
    if sniffio.current_async_library() == "asyncio":
        try:
            act()
        except (SystemExit, KeyboardInterrupt):
            return  # of a task that is not ours: asyncio lets these end its whole loop, before anybody can catch them
        except BaseException:
            pass

    async def other() -> None:
        act()

    async def body() -> Any:
        async with anyio.create_task_group() as group:
            group.start_soon(other)
        return act()

    await fails_once(run=body)


async def in_a_body_in_a_thread(act: Act) -> None:
    await fails_once(run=plain(act))


async def fails_once(**settings: Any) -> None:
    async with undisturbed() as (runtime, _):
        outcome = await (await runtime.submit(only("w", **settings))).wait()
        record = outcome.tasks["t"]
        assert (record.state, record.attempt) == ("failed", 1), record.last_error
        str(record.last_error).encode()


async def in_a_condition(act: Act) -> None:
    async def later() -> Any:
        return act()

    for function in (plain(act), later):
        async with undisturbed() as (runtime, _):
            outcome = await (await runtime.submit(only("w", condition=Condition(run=function)))).wait()
            assert outcome.tasks["t"].state == "failed"
            assert "its condition broke" in str(outcome.tasks["t"].last_error)


async def in_a_check(act: Act) -> None:
    async def later() -> Any:
        return act()

    for function in (plain(act), later):
        async with undisturbed() as (runtime, _):
            outcome = await (await runtime.submit(only("w", checks=[Check(run=function)]))).wait()
            assert outcome.tasks["t"].state == "failed"


async def in_a_hook(act: Act) -> None:
    async def later() -> Any:
        return act()

    for function in (plain(act), later):
        async with undisturbed() as (runtime, told):
            outcome = await (await runtime.submit(only("w", on_completed=[Hook(run=function)]))).wait()
            assert outcome.ok
            await until(lambda told=told: any(notice.event == "hook_failed" for notice in told))


async def in_a_cancel_hook(act: Act) -> None:
    async def later() -> Any:
        return act()

    for function in (plain(act), later):
        async with undisturbed() as (runtime, _):
            job = await runtime.submit(only("w", run=anyio.sleep_forever, cancel_hooks=[Hook(run=function)]))
            await until(lambda job=job: job.task("t").record.state == "running")
            await job.cancel()
            assert (await job.wait()).tasks["t"].state == "failed"  # since its clean-up did not run


async def in_a_wait_before_a_retry(act: Act) -> None:
    tries: list[int] = []

    async def body() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("once")

    async with undisturbed() as (runtime, _):
        retry = Retry(max_attempts=2, base_delay=0.0, wait=lambda n: act())
        assert (await (await runtime.submit(only("w", run=body, retry=retry))).wait()).ok


async def in_a_team(act: Act) -> None:
    def members(team: str) -> Any:
        return act()

    async def later(team: str) -> Any:
        await anyio.lowlevel.checkpoint()
        return act()

    for function in (members, later):
        async with undisturbed() as (runtime, told):
            hold = Approval(people=1, clauses=[Clause(team="ops", members=function)])
            job = await runtime.submit(only("w", hold=hold))
            await until(lambda job=job: job.task("t").record.state == "held")
            with anyio.fail_after(300), pytest.MonkeyPatch.context() as patch:
                # The time limit of a function that never returns.
                patch.setattr("callboard.runtime.handles.approvals.ASKED", 1_000)
                await job.task("t").approve(by="ana")
            assert [notice.event for notice in told] == ["team_unknown"]
            await job.cancel(force=True)


async def in_a_source_of_secrets(act: Act) -> None:
    async with undisturbed(secrets=lambda name: act()) as (runtime, _):
        outcome = await (await runtime.submit(only("w", secrets=["TOKEN"]))).wait()
        assert outcome.tasks["t"].state == "failed"


async def in_what_is_told_of_trouble(act: Act) -> None:
    async with undisturbed() as (runtime, _):
        runtime._services.host.notices.on_trouble = lambda notice: act()  # as set before entering
        outcome = await (await runtime.submit(only("w", on_completed=[Hook(run=lambda: 1 / 0)]))).wait()
        assert outcome.ok
        await until(lambda: runtime._services.caller.failed_hooks == 1)


# -- actors


class Echo(Actor):
    """An actor that calls the function in its message."""

    async def _later(self, message: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        return message()

    def receive(self, message: Any, ctx: Any) -> Any:
        if isinstance(message, tuple):
            return self._later(message[0])
        return message() if callable(message) else message


async def in_a_receive(act: Act) -> None:
    async with undisturbed(supervision=Supervision(backoff_min=0)) as (runtime, _):
        ref = runtime.spawn(Echo)
        for message in (act, (act,)):
            with pytest.raises(ReceiveFailed):
                await ref.ask(message)
            assert await ref.ask("hello") == "hello"
        ref.tell(act)
        ref.tell((act,))
        assert await ref.ask("hello") == "hello"


async def in_the_decision_of_a_supervisor(act: Act) -> None:
    async with undisturbed(supervision=Supervision(decide=lambda error: act())) as (runtime, _):
        ref = runtime.spawn(Echo)
        with pytest.raises(ReceiveFailed):
            await ref.ask(lambda: 1 / 0)
        await until(lambda: ref.stopped)


async def in_a_factory_that_builds_anew(act: Act) -> None:
    built: list[Actor] = []

    def factory() -> Actor:
        if built:
            act()
            raise AssertionError("it returned")
        built.append(Echo())
        return built[0]

    async with undisturbed(supervision=Supervision(backoff_min=0, intensity=1)) as (runtime, _):
        ref = runtime.spawn(factory)
        ref.tell(lambda: 1 / 0)
        await until(lambda: ref.stopped)


async def at_the_start_and_the_stop_of_an_actor(act: Act) -> None:
    class Starts(Echo):
        def started(self, ctx: Any) -> Any:
            return act()

    class StartsLater(Echo):
        async def started(self, ctx: Any) -> Any:
            await anyio.lowlevel.checkpoint()
            return act()

    class Stops(Echo):
        def stopped(self, ctx: Any) -> Any:
            return act()

    class StopsLater(Echo):
        async def stopped(self, ctx: Any) -> Any:
            await anyio.lowlevel.checkpoint()
            return act()

    async with undisturbed(supervision=Supervision(decide=lambda error: Directive.STOP)) as (runtime, _):
        for kind in (Starts, StartsLater):
            ref = runtime.spawn(kind)
            await until(lambda ref=ref: ref.stopped)
        for kind in (Stops, StopsLater):
            ref = runtime.spawn(kind)
            ref.stop()
            await until(lambda ref=ref: ref.stopped)


async def in_a_family_that_escalates(act: Act) -> None:
    class Parent(Actor):
        def started(self, ctx: Any) -> None:
            self.child = ctx.spawn(Echo, supervision=None)

        def receive(self, message: Any, ctx: Any) -> None:
            self.child.tell(act)

    async with undisturbed(supervision=Supervision(decide=lambda error: Directive.ESCALATE)) as (runtime, _):
        ref = runtime.spawn(Parent, supervision=Supervision(decide=lambda error: Directive.ESCALATE))
        ref.tell("go")
        await until(lambda: ref.stopped)


async def in_who_reads_dead_letters(act: Act) -> None:
    async with undisturbed() as (runtime, _):
        runtime._services.dispatcher.dead_letters.subscribe(lambda letter: act())
        runtime._services.dispatcher.reports.on_trouble = lambda _: act()
        ref = runtime.spawn(Echo())  # an instance, which cannot be built anew
        ref.tell(lambda: 1 / 0)
        await until(lambda: ref.stopped)


# -- machines


class Facts(msgspec.Struct):
    """The facts of a machine."""

    count: int = 0


def machine(guard: Any = None) -> Machine:
    rows = [Transition("OFF", "PRESS", "ON", guard), Transition("ON", "PRESS", "OFF")]
    return Machine("switch", "OFF", [State("OFF"), State("ON")], rows, endless=True)


async def in_a_guard(act: Act) -> None:
    def guard(facts: Any, payload: Any) -> Any:
        return act()

    async with undisturbed() as (runtime, _):
        ref = runtime.spawn(MachineActor(machine(guard)), name="m")
        with pytest.raises(FireFailed):
            await ref.ask(Fire("PRESS"))
        ref.tell(Fire("PRESS"))
        assert ref.state == "OFF"


async def in_what_makes_facts_of_an_event(act: Act) -> None:
    async with undisturbed() as (runtime, _):
        ref = runtime.spawn(MachineActor(machine(), facts=Facts(), on_event=lambda facts, fire: act()), name="m")
        with pytest.raises(FireFailed):
            await ref.ask(Fire("PRESS"))
        assert (ref.state, ref.facts.count) == ("OFF", 0)


async def in_the_code_of_facts(act: Act) -> None:
    awake: list[bool] = []

    class Living(msgspec.Struct):
        count: int = 0

        def __post_init__(self) -> None:
            if awake:
                act()

    async with undisturbed() as (runtime, _):
        ref = runtime.spawn(MachineActor(machine(), facts=Living()), name="m")
        await ref.ask(Fire("PRESS"))
        awake.append(True)
        with pytest.raises(FireFailed):
            await ref.ask(Fire("PRESS", facts={"count": 1}))
        awake.clear()
        assert ref.state == "ON"


async def in_a_callback_of_a_machine(act: Act) -> None:
    async def later() -> Any:
        return act()

    async with undisturbed() as (runtime, told):
        actor = MachineActor(machine(), on_enter={"ON": plain(act)}, on_exit={"OFF": later})
        ref = runtime.spawn(actor, name="m")
        await ref.ask(Fire("PRESS"))
        assert ref.state == "ON"
        await until(lambda: len([notice for notice in told if notice.event == "hook_failed"]) == 2)


# -- logs, and what is imported


async def in_a_processor_of_structlog(act: Act) -> None:
    structlog = pytest.importorskip("structlog")
    structlog.configure(processors=[lambda *_: act()])
    try:
        async with undisturbed() as (runtime, _):
            assert (await (await runtime.submit(only("w"))).wait()).ok
            assert runtime._services.host.hub.unlogged > 0
    finally:
        structlog.reset_defaults()


async def in_a_module_that_is_imported(act: Act) -> None:
    guests.now = act  # type: ignore[attr-defined]
    sys.modules.pop("callboard_test_broken", None)
    async with undisturbed() as (runtime, _):
        spec = only("w", run="tests.reliability.hostile.broken:work", queue_timeout=1.0)
        with pytest.raises(Exception, match="broken"):
            await runtime.submit(spec)
        assert "tests.reliability.hostile.broken" not in sys.modules


BODIES = [
    in_a_body_on_the_loop, in_a_body_on_the_loop_that_has_waited, in_a_body_on_the_loop_with_a_task_group,
    in_a_body_in_a_thread,
]  # fmt: skip
RAISE_IN: list[Callable[[Act], Awaitable[None]]] = [
    *BODIES, in_a_condition, in_a_check, in_a_hook, in_a_cancel_hook, in_a_wait_before_a_retry, in_a_team,
    in_a_source_of_secrets, in_what_is_told_of_trouble, in_a_receive, in_the_decision_of_a_supervisor,
    in_a_factory_that_builds_anew, at_the_start_and_the_stop_of_an_actor, in_a_family_that_escalates,
    in_who_reads_dead_letters, in_a_guard, in_what_makes_facts_of_an_event, in_the_code_of_facts,
    in_a_callback_of_a_machine, in_a_processor_of_structlog, in_a_module_that_is_imported,
]  # fmt: skip


PAIRS = [
    pytest.param(place, error, id=f"{place.__name__}-{error}")
    for row, place in enumerate(RAISE_IN)
    for column, error in enumerate(guests.ALL_ERRORS)
    if LONG or (row + column) % 2 == 0
]
"""Each place with half of the errors, each error in half of the places; in the long mode all of them."""


@pytest.mark.parametrize(("place", "error"), PAIRS)
async def test_what_is_raised_fails_what_asked_for_it_and_nothing_else(
    place: Callable[[Act], Awaitable[None]], error: str
) -> None:
    if error == "memory" and place in BODIES:
        pytest.skip("a shortage is tried again, after a while")
    if error in {"no_text", "endless", "liar", "unequal", "woven"} and place is in_a_body_on_the_loop_with_a_task_group:
        pytest.skip("the event loop's own group looks at it first, and trusts it")
    await place(lambda: guests.throw(error))


# -- places: how they handle returned objects ------------------------------------------------------------------------

RETURN_TO: list[Callable[[Act], Awaitable[None]]] = [
    in_a_body_on_the_loop, in_a_body_in_a_thread, in_what_makes_facts_of_an_event, in_the_decision_of_a_supervisor,
    in_a_wait_before_a_retry,
]  # fmt: skip


@pytest.mark.parametrize("thing", [thing for thing in guests.OBJECTS if thing != "int"])  # which is valid
@pytest.mark.parametrize("place", RETURN_TO, ids=lambda place: place.__name__)
async def test_what_is_returned_fails_what_asked_for_it_and_nothing_else(
    place: Callable[[Act], Awaitable[None]], thing: str
) -> None:
    await place(guests.OBJECTS[thing])


@pytest.mark.parametrize("place", [in_a_condition, in_a_check, in_a_guard], ids=lambda place: place.__name__)
@pytest.mark.parametrize("thing", ["no_truth", "masked", "endless_list"])
async def test_what_is_neither_true_nor_false_is_a_failure(place: Callable[[Act], Awaitable[None]], thing: str) -> None:
    await place(guests.OBJECTS[thing])


@pytest.mark.parametrize("thing", guests.OBJECTS)
async def test_of_what_a_hook_returns_nothing_is_asked(thing: str) -> None:
    async def later() -> Any:
        return guests.OBJECTS[thing]()

    async with undisturbed() as (runtime, told):
        hooks = [Hook(run=guests.OBJECTS[thing]), Hook(run=later)]
        assert (await (await runtime.submit(only("w", on_completed=hooks))).wait()).ok
        ref = runtime.spawn(Echo)
        answer = await ref.ask(guests.OBJECTS[thing])
        del answer
        ref.tell(guests.OBJECTS[thing])
    assert told == []


class LazyPeople(guests.LazyList):
    """A team that cannot be read."""


@pytest.mark.parametrize("thing", ["no_truth", "masked", "lazy", "endless_list", "object"])
async def test_a_team_that_cannot_be_read_is_unknown(thing: str) -> None:
    await in_a_team(guests.OBJECTS[thing])


@pytest.mark.parametrize("thing", ["object", "masked", "lazy", "int"])
async def test_a_secret_that_is_no_text_fails_who_needs_it(thing: str) -> None:
    await in_a_source_of_secrets(guests.OBJECTS[thing])
    await in_a_source_of_secrets(lambda: guests.Text("abc"))


async def test_a_secret_of_a_class_of_its_own_is_read_as_the_text_that_it_is() -> None:
    async def body(task: TaskContext) -> bool:
        return task.secrets["TOKEN"] == "abcdef"

    async with undisturbed(secrets=lambda name: guests.Text("abcdef")) as (runtime, _):
        outcome = await (await runtime.submit(only("w", run=body, secrets=["TOKEN"]))).wait()
        assert outcome.results["t"] is True


@pytest.mark.parametrize("thing", ["no_repr", "masked", "no_truth"])
async def test_messages_that_cannot_be_shown_or_compared_are_messages(thing: str) -> None:
    class Slow(Actor):
        async def receive(self, message: Any, ctx: Any) -> None:
            await anyio.sleep_forever()

    message = guests.OBJECTS[thing]()
    async with undisturbed() as (runtime, _):
        slow = runtime.spawn(Slow, mailbox=1, stop_timeout=0)
        with pytest.raises(AskTimeout):
            await slow.ask(message, timeout=0.01)
        assert slow.tell(message)
        assert not slow.tell(message)
        with pytest.raises(MailboxFull):
            await slow.ask(message)
        slow.stop()
        await until(lambda: slow.stopped)
        assert not slow.tell(message)
        with pytest.raises(ActorStopped):
            await slow.ask(message)


async def test_a_context_variable_that_cannot_be_compared_stays_with_who_set_it() -> None:
    variable: contextvars.ContextVar[Any] = contextvars.ContextVar("variable", default=None)
    variable.set(guests.NoTruth())

    def sets() -> Any:
        old = variable.get()
        variable.set(guests.NoTruth())
        return type(old).__name__

    async with undisturbed() as (runtime, _):
        ref = runtime.spawn(Echo)
        for _ in range(3):
            ref.tell(sets)
            assert await ref.ask("hello") == "hello"
            assert await ref.ask(sets) == "NoTruth"
            assert await ref.ask((sets,)) == "NoTruth"


async def test_metadata_is_what_it_was_when_it_was_told() -> None:
    async with undisturbed() as (runtime, _):
        ref = runtime.spawn(MachineActor(machine()), name="m")
        metadata: dict[str, Any] = {"a": 1}
        fire = Fire("PRESS", metadata=metadata)
        metadata["b"] = guests.Masked()
        ref.tell(fire)
        assert (await ref.ask(Fire("PRESS"))).to_state == "OFF"


@pytest.mark.parametrize("thing", ["key", "within", "endless_list", "surrogate", "nested"])
async def test_what_cannot_be_kept_fails_the_body_that_tells_it(thing: str) -> None:
    async def beats(task: TaskContext) -> None:
        task.heartbeat(guests.OBJECTS[thing]())

    def saves(task: TaskContext) -> None:
        task.checkpoint(guests.OBJECTS[thing]())

    async def publishes(task: TaskContext) -> None:
        await task.publish("it", guests.OBJECTS[thing]())

    def publishes_in_a_thread(task: TaskContext) -> None:
        task.publish_blocking("it", guests.OBJECTS[thing]())

    async def sends(task: TaskContext) -> None:
        await task.send("j", "it", guests.OBJECTS[thing]())

    async def begins_again(task: TaskContext) -> Any:
        return task.again(it=guests.OBJECTS[thing]())

    bodies = [beats, saves, publishes, publishes_in_a_thread, sends, begins_again]
    async with undisturbed() as (runtime, _):
        tasks = [Task(body.__name__, run=body, retry=Retry(max_attempts=1), optional=True) for body in bodies]
        job = await runtime.submit(Workstream("w", tasks=tasks))
        outcome = await job.wait()
        ended = {task.name: (task.state, task.attempt) for task in outcome.tasks.values()}
        assert ended == dict.fromkeys([body.__name__ for body in bodies], ("failed", 1)), outcome.tasks
        assert await job.published() == {}


async def test_what_a_step_raises_and_what_it_returns_that_cannot_be_kept_fails_its_body_only() -> None:
    def acts(kind: str, name: str) -> Any:
        return guests.throw(name) if kind == "error" else guests.OBJECTS[name]()

    async def acts_later(kind: str, name: str) -> Any:
        return acts(kind, name)

    async def body(task: TaskContext) -> Any:
        kind, name, plain_step = task.args["act"]
        return await task.step(acts if plain_step else acts_later, kind, name)

    made = [
        ("error", name) for name in guests.ALL_ERRORS if name != "memory"
    ]  # a shortage is tried again, after a while
    made += [("object", name) for name in guests.OBJECTS if name != "int"]
    async with undisturbed() as (runtime, _):
        tasks = [
            Task(f"{kind}-{name}", run=body, args={"act": [kind, name, number % 2 == 0]}, optional=True)
            for number, (kind, name) in enumerate(made)
        ]
        job = await runtime.submit(Workstream("w", tasks=tasks, defaults=Defaults(retry=Retry(max_attempts=1))))
        for record in (await job.wait()).tasks.values():
            assert (record.state, record.attempt) == ("failed", 1), (record.name, record.last_error)
            str(record.last_error).encode()


@pytest.mark.parametrize(
    ("thing", "error"), [("key", "exit"), ("masked", "liar"), ("lazy", "no_text"), ("nested", "unequal")]
)
async def test_in_a_worker_process_too(thing: str, error: str, tmp_path: Path) -> None:
    workers = [Worker("p", engine="process")]
    async with Runtime(tmp_path / "j.db", workers=workers, drain_deadline=0) as runtime:
        for body, told in (("gives", thing), ("throws", error)):
            spec = only("w", run=f"tests.reliability.hostile.guests:{body}", engine="process", args={"what": told})
            record = (await (await runtime.submit(spec)).wait()).tasks["t"]
            assert (record.state, record.attempt) == ("failed", 1), record.last_error
