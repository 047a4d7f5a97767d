"""`MachineActor`s of a runtime: spawned, driven, found again. On every loop and both journals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
import structlog
from tests.runtime.asked import asked_in_threads_only

from callboard import (
    Actor,
    Approval,
    Fire,
    Machine,
    MachineActor,
    MachineRef,
    Notice,
    Runtime,
    State,
    Task,
    TaskContext,
    Timed,
    Transition,
    VirtualClock,
    Workstream,
)
from callboard.actors.users.dead_letters import Reason
from callboard.errors import (
    AskTimeout,
    FireFailed,
    GuardRejected,
    InvalidTransitionError,
    MachineConflict,
    MachineNotFound,
    ReceiveFailed,
    RequestIdReused,
    RuntimeClosed,
    SpecificationError,
)
from callboard.machines.adapt.lifecycle import Retries
from callboard.machines.lifecycles import guarded
from callboard.machines.lifecycles.execution import EXECUTION
from callboard.runtime.errors import JournalError
from callboard.runtime.handles import machines as handles
from callboard.runtime.handles.machine_refs import core_of
from callboard.runtime.journal.contract import Health
from callboard.runtime.journal.memory import MemoryJournal
from callboard.runtime.journal.sqlite.reader import SqliteReader
from callboard.runtime.lifespan import wiring as parts

pytestmark = pytest.mark.anyio


class Facts(msgspec.Struct):
    """The facts of a run. A test changes them in place, which must have no effect elsewhere."""

    recovery_timeout: float = 60.0
    beats: list[str] = []


def note(facts: Facts, fire: Fire) -> Facts:
    """Note each event, in place."""
    facts.beats.append(fire.event)
    return facts


async def later(facts: Facts, fire: Fire) -> Facts:
    return facts


def patient(facts: Facts, fire: Fire) -> bool:
    """Whether a run may be parked."""
    return facts.recovery_timeout > 100


PARKING = Machine(
    "parking",
    "open",
    [State("open", bounded_by="its owner"), State("parked", terminal=True)],
    [Transition("open", "park", "parked", guard=patient), Transition("open", "wait", "open")],
)
called: list[dict[str, Any]] = []


async def tell(task: TaskContext) -> None:
    """Record the arguments of a callback."""
    called.append(dict(task.args))


@pytest.fixture(params=["memory", "sqlite"])
def open_runtime(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Runtime]:
    """Opens runtimes on the same journal, as often as a test likes."""
    memory = MemoryJournal()

    def make(**options: Any) -> Runtime:
        target = tmp_path / "state.db" if request.param == "sqlite" else memory
        return Runtime(target, workers=(), drain_deadline=0, **options)

    return make


Open = Callable[..., Runtime]


def events(runtime: Runtime, name: str = "run-7") -> list[str]:
    return [row.event for row in runtime.journal.reader.transitions(entity_id=name)]


async def until(runtime: Runtime, run: MachineRef, state: str) -> None:
    with anyio.fail_after(300):
        while run.state != state:
            await runtime._services.host.moved()


async def test_metadata_that_uses_the_words_of_the_log_is_told_whole_in_a_line_of_its_own(open_runtime: Open) -> None:
    words = {
        "event": "webhook", "entity_id": "order-7", "to_state": "x", "from_state": "y", "trigger": "z", "reason": "why",
        "workstream_id": "w", "job_id": "j", "attempt": 2, "worker_id": "v", "level": "no", "log_level": "no",
        "timestamp": "never", "text": "t", "metadata": "m", "exc_info": True, "stack_info": True, "machine": "q",
    }  # fmt: skip
    try:
        with structlog.testing.capture_logs() as lines:
            structlog.configure(processors=structlog.get_config()["processors"])
            async with open_runtime() as runtime:
                run = runtime.spawn(MachineActor(EXECUTION, Facts()), name="run-7")
                await run.ask(Fire("ENQUEUE", metadata=words))
                assert runtime.metrics().unlogged == 0
    finally:
        structlog.reset_defaults()
    (line,) = [line for line in lines if line.get("trigger") == "ENQUEUE"]
    assert (line["event"], line["entity_id"], line["log_level"]) == ("machine_state_transition", "run-7", "info")
    assert line["metadata"] == words


async def test_a_machine_is_spawned_driven_and_journaled(open_runtime: Open) -> None:
    async with open_runtime() as runtime:
        seen = runtime.events(notices=False, kind="machine")
        run = runtime.spawn(MachineActor(EXECUTION), name="run-7")
        assert (run.name, run.state, run.facts, run.ended) == ("run-7", "pending", None, False)
        row = await run.ask(Fire("ENQUEUE", reason="webhook", metadata={"n": 1}, request_id="r1"))
        assert (row.from_state, row.to_state, row.reason, row.metadata) == ("pending", "queued", "webhook", {"n": 1})
        with pytest.raises(InvalidTransitionError, match="execution run-7: 'SUCCEED' is not possible") as refusal:
            await run.ask(Fire("SUCCEED"))
        assert refusal.value.allowed == {"START", "FAIL", "CANCEL"}
        await run.fire("START")
        await run.fire("SUCCEED")
        assert (run.state, run.ended) == ("success", True)
        with pytest.raises(InvalidTransitionError):
            await run.ask(Fire("FAIL"))
        assert events(runtime) == ["create", "ENQUEUE", "START", "SUCCEED"]
        seen.close()
        assert [event.to_state async for event in seen] == ["pending", "queued", "running", "success"]
        metrics = runtime.metrics()
        assert metrics.transitions["machine:execution", "queued", "running", "info"] == 1
        assert metrics.rejected["execution", "queued", "SUCCEED"] == 1
        assert not runtime._services.host.counting._since  # what has ended is not measured any more


async def test_the_same_key_gives_the_same_answer_also_after_a_restart(open_runtime: Open) -> None:
    asked = Fire("ENQUEUE", reason="webhook", request_id="r1")
    async with open_runtime() as runtime:
        run = runtime.spawn(MachineActor(EXECUTION), name="run-7")
        first = await run.ask(asked)
        await run.ask(Fire("START"))
        assert await run.ask(asked) == first
        with pytest.raises(RequestIdReused):
            await run.ask(Fire("ENQUEUE", reason="another", request_id="r1"))
        other = runtime.spawn(MachineActor(EXECUTION), name="run-8")
        with pytest.raises(RequestIdReused):
            await other.ask(asked)
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await other.ask(Fire("ENQUEUE", request_id="r2")))

        async with anyio.create_task_group() as group:  # the others wait for the first
            for _ in range(3):
                group.start_soon(ask)
        assert len({answer.seq for answer in answers}) == 1
    async with open_runtime() as runtime:
        run = runtime.machine("run-7")
        assert run.state == "running"
        assert await run.ask(asked) == first
        assert events(runtime) == ["create", "ENQUEUE", "START"]


async def test_what_is_told_is_taken_in_its_order_and_a_refusal_is_a_dead_letter(open_runtime: Open) -> None:
    async with open_runtime() as runtime:
        run = runtime.spawn(MachineActor(EXECUTION), name="run-7")
        assert run.tell(Fire("ENQUEUE", request_id="r1"))
        assert run.tell(Fire("START"))
        assert run.tell(Fire("APPROVE"))
        assert run.tell(Fire("ENQUEUE", request_id="r1"))  # the same again: taken, and nothing done
        assert (await run.ask(Fire("SUCCEED"))).from_state == "running"
        letters = runtime._services.dispatcher.dead_letters
        (letter,) = letters.newest()
        assert (letter.recipient, letter.reason) == ("run-7", Reason.REFUSED)
        assert letter.message == Fire("APPROVE")
        assert isinstance(letter.error, InvalidTransitionError)
        assert runtime.metrics().rejected["execution", "running", "APPROVE"] == 1
    assert run.tell(Fire("FAIL")) is False
    assert letters.counts[Reason.STOPPED] == 1
    with pytest.raises(RuntimeClosed):
        await run.ask(Fire("FAIL"))


async def test_facts_are_read_by_guards_changed_by_events_and_kept(open_runtime: Open) -> None:
    async with open_runtime() as runtime:
        actor = MachineActor(PARKING, Facts(), on_event=note)
        run = runtime.spawn(actor, name="lot")
        with pytest.raises(GuardRejected) as refusal:
            await run.ask(Fire("park"))
        assert refusal.value.guards == ("patient",)
        run.facts.beats.append("mine")  # a copy: no other reader sees the change
        await run.ask(Fire("wait", facts={"recovery_timeout": 500}))
        assert run.facts == Facts(500, ["wait"])
        with pytest.raises(FireFailed, match="there is no fact 'beat'; did you mean 'beats'"):
            await run.ask(Fire("wait", facts={"beat": []}))
        with pytest.raises(FireFailed):
            await run.ask(Fire("wait", facts={"beats": "many"}))
        assert run.facts == Facts(500, ["wait"])
    async with open_runtime() as runtime:
        run = runtime.spawn(actor, name="lot")
        assert run.facts == Facts(500, ["wait"])
        await run.ask(Fire("park"))
        assert run.facts == Facts(500, ["wait", "park"])


async def test_timers_are_kept_and_what_fell_due_meanwhile_fires_at_the_start(open_runtime: Open) -> None:
    clock = VirtualClock()
    async with open_runtime(clock=clock) as runtime:
        for name in ("a", "b", "c"):
            run = runtime.spawn(MachineActor(EXECUTION, Facts(recovery_timeout=60)), name=name)
            for event in ("ENQUEUE", "START", "RECOVER"):
                await run.ask(Fire(event))
        assert run.record.due == {"FAIL": clock.time() + 60}
        await runtime.machine("a").ask(Fire("START"))
        clock.advance(59)
        await runtime._services.host.barrier()
        assert [one.state for one in runtime.machines()] == ["running", "recovering", "recovering"]
        clock.advance(1)
        await until(runtime, runtime.machine("b"), "failed")
        await until(runtime, runtime.machine("c"), "failed")
        run = runtime.spawn(MachineActor(EXECUTION, Facts(recovery_timeout=60)), name="d")
        for event in ("ENQUEUE", "START", "RECOVER"):
            await run.ask(Fire(event))
    clock.advance(3600)
    async with open_runtime(clock=clock) as runtime:
        assert runtime.machine("d").state == "failed"  # before anything else is taken
        assert runtime.machine("a").state == "running"


async def test_callbacks_run_after_the_commit(open_runtime: Open) -> None:
    called.clear()
    async with open_runtime() as runtime:
        actor = MachineActor(EXECUTION, on_enter={"queued": tell, "*": tell}, on_exit={"pending": tell})
        run = runtime.spawn(actor, name="run-7")
        await run.ask(Fire("ENQUEUE", reason="webhook", metadata={"n": 1}))
        with anyio.fail_after(300):
            while len(called) < 4:
                await anyio.lowlevel.checkpoint()
    assert [(told["event"], told["state"]) for told in called] == [("create", "pending"), *[("ENQUEUE", "queued")] * 3]
    assert (called[-1]["reason"], called[-1]["metadata"], called[-1]["from_state"]) == ("webhook", {"n": 1}, "pending")


async def test_a_name_that_lives_is_taken_up_and_another_machine_is_refused(open_runtime: Open) -> None:
    async with open_runtime() as runtime:
        run = runtime.spawn(MachineActor(EXECUTION), name="run-7")
        with pytest.raises(MachineConflict, match="runs by machine 'execution', and not by 'parking'"):
            runtime.spawn(MachineActor(PARKING), name="run-7")
        await run.ask(Fire("ENQUEUE"))
        assert runtime.spawn(MachineActor(EXECUTION), name="run-7").state == "queued"
    async with open_runtime() as runtime:
        with pytest.raises(MachineConflict):
            runtime.spawn(MachineActor(PARKING), name="run-7")
        run = runtime.spawn(MachineActor(EXECUTION), name="run-7")
        assert (await run.ask(Fire("CANCEL"))).from_state == "queued"
    async with open_runtime() as runtime:  # ended: only the journal has it
        with pytest.raises(MachineConflict):
            runtime.spawn(MachineActor(PARKING), name="run-7")
        run = runtime.spawn(MachineActor(EXECUTION), name="run-7")
        assert (run.state, run.ended) == ("cancelled", True)
        with pytest.raises(InvalidTransitionError):
            await run.ask(Fire("ENQUEUE"))
        assert events(runtime) == ["create", "ENQUEUE", "CANCEL"]
    async with open_runtime() as runtime:
        run = runtime.machine("run-7")
        assert run.tell(Fire("ENQUEUE"))
        with pytest.raises(InvalidTransitionError):
            await run.ask(Fire("ENQUEUE"))
        with pytest.raises(LookupError, match="there is no machine 'run-8'"):
            runtime.machine("run-8")


@pytest.mark.parametrize("recalled", [0, 100], ids=["looked for", "recalled"])
async def test_an_ended_one_that_is_spawned_anew_after_a_restart_runs_by_what_it_ran_by(
    open_runtime: Open, monkeypatch: pytest.MonkeyPatch, recalled: int
) -> None:
    monkeypatch.setattr(handles, "RECALLED", recalled)
    notices: list[Notice] = []
    for _ in range(3):
        runtime = open_runtime()
        runtime.on_trouble = notices.append
        async with runtime:
            seen = runtime.events()
            run = await runtime.spawn(MachineActor(EXECUTION), name="run-7")
            if not run.ended:
                await run.ask(Fire("ENQUEUE"))
                await run.ask(Fire("CANCEL"))
            with pytest.raises(InvalidTransitionError):
                await run.ask(Fire("ENQUEUE"))
            assert len(run.record.definitions) == 1
            seen.close()
            assert [event.event async for event in seen if isinstance(event, Notice)] == []
    assert notices == []


async def test_one_whose_machine_is_not_there_says_so_and_goes_on_when_it_is(
    open_runtime: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock()
    actor = MachineActor(LOCAL, Facts(recovery_timeout=60))
    async with open_runtime(clock=clock) as runtime:
        run = runtime.spawn(actor, name="run-7")
        await run.ask(Fire("lose"))
    monkeypatch.delitem(globals(), "LOCAL")
    notices: list[Notice] = []
    clock.advance(3600)
    runtime = open_runtime(clock=clock)
    runtime.on_trouble = notices.append
    async with runtime:
        assert [notice.event for notice in notices] == ["machine_missing"]
        assert "there is no 'LOCAL'" in notices[0].text
        run = runtime.machine("run-7")
        assert run.state == "lost"
        with pytest.raises(MachineNotFound, match="spawn it again"):
            await run.ask(Fire("find"))
        monkeypatch.setitem(globals(), "LOCAL", actor.machine)
        runtime.spawn(actor, name="run-7")
        await until(runtime, run, "gone")
    assert run.record.reason == "its recovery_timeout was over"


LOCAL = Machine(
    "local",
    "here",
    [State("here", bounded_by="nobody"), State("lost"), State("gone", terminal=True)],
    [
        Transition("here", "lose", "lost"),
        Transition("lost", "find", "here"),
        Transition("lost", "give_up", "gone"),
    ],
    [Timed("lost", "give_up", "recovery_timeout")],
)


async def test_users_actors_drive_machines_too(open_runtime: Open) -> None:
    class Driver(Actor):
        async def receive(self, message: Any, ctx: Any) -> Any:
            run = runtime.spawn(MachineActor(EXECUTION), name=message)
            run.tell(Fire("ENQUEUE", request_id=f"{message}-1"))
            return (await run.ask(Fire("START"))).to_state

    class Teller(Actor):
        def receive(self, message: Any, ctx: Any) -> None:
            runtime.machine(message).tell(Fire("SUCCEED"))

    async with open_runtime() as runtime:
        assert await runtime.spawn(Driver).ask("run-7") == "running"
        runtime.spawn(Teller).tell("run-7")
        await until(runtime, runtime.machine("run-7"), "success")


def bare(**more: Any) -> Machine:
    return Machine(
        "bare", "a", [State("a", bounded_by="nobody"), State("b", terminal=True)], [Transition("a", "go", "b", **more)]
    )


async def test_what_could_not_be_found_again_is_refused_where_it_has_to_be(tmp_path: Path) -> None:
    class Own(msgspec.Struct):
        n: int = 1

    async with Runtime(tmp_path / "state.db", workers=(), drain_deadline=0) as runtime:
        plain = runtime.spawn(MachineActor(bare()), name="plain")  # its table is all there is of it
        kept = runtime.spawn(MachineActor(bare(guard=patient), Facts(500)), name="kept")  # its guard has a path
        for actor in (
            MachineActor(bare(guard=lambda facts, fire: True)),
            MachineActor(bare(), Own()),
            MachineActor(bare(), on_event=lambda facts, fire: facts),
            MachineActor(bare(), on_enter={"b": lambda: None}),
        ):
            with pytest.raises(SpecificationError, match=r"a restart|found again"):
                runtime.spawn(actor, name="lost")
        await plain.ask(Fire("go"))
    async with Runtime(tmp_path / "state.db", workers=(), drain_deadline=0) as runtime:
        assert runtime.machine("plain").state == "b"
        kept = runtime.machine("kept")
        assert (await kept.ask(Fire("go"))).to_state == "b"
    async with Runtime(workers=(), drain_deadline=0) as runtime:  # in memory all may be local
        run = runtime.spawn(
            MachineActor(bare(guard=lambda facts, fire: facts.n), Own(), on_event=lambda facts, fire: facts), name="one"
        )
        await run.ask(Fire("go"))


async def test_what_has_just_been_spawned_is_listed() -> None:
    async with Runtime(workers=(), drain_deadline=0) as runtime:
        for name in ("a", "b"):
            runtime.spawn(MachineActor(EXECUTION), name=name)  # no code keeps its reference
        assert [run.name for run in runtime.machines()] == ["a", "b"]
        with pytest.raises(MachineConflict):
            runtime.spawn(MachineActor(bare()), name="b")
        await runtime.machine("a").ask(Fire("SKIP"))
        assert [(run.name, run.state) for run in runtime.machines()] == [("a", "skipped"), ("b", "pending")]


@pytest.mark.parametrize("kind", [list, tuple])
async def test_timed_events_are_added_to_a_machine_that_is_somebody_elses(kind: type[Any]) -> None:
    clock = VirtualClock()
    async with Runtime(workers=(), drain_deadline=0, clock=clock) as runtime:
        actor = MachineActor(EXECUTION, Facts(), timed=kind([Timed("queued", "FAIL", "recovery_timeout")]))
        run = runtime.spawn(actor, name="run-7")
        await run.ask(Fire("ENQUEUE"))
        clock.advance(Facts().recovery_timeout)
        while not run.ended:
            await anyio.lowlevel.checkpoint()
        assert run.state == "failed"


async def test_facts_that_a_machines_guards_say_they_read_have_to_be_there() -> None:
    async with Runtime(workers=(), drain_deadline=0) as runtime:
        for facts, missing in ((None, "unmet"), (Facts(), "repeated")):
            with pytest.raises(SpecificationError) as error:
                runtime.spawn(MachineActor(guarded.TASK, facts), name="run-7")
            assert f"there is no fact '{missing}', which its guards read: '" in str(error.value)
        run = runtime.spawn(MachineActor(guarded.TASK, Retries()), name="run-7")
        await run.ask(Fire("executor_starts"))
        silent = runtime.spawn(MachineActor(bare(guard=lambda facts, fire: facts.n > 1)), name="silent")
        with pytest.raises(FireFailed, match="spawned without facts, which a guard may read"):
            await silent.ask(Fire("go"))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"machine": "execution"}, r"takes a Machine, and not 'execution'"),
        ({"facts": {"a": 1}}, r"an instance of a msgspec Struct that declares them, not \{'a': 1\}"),
        ({"facts": Facts}, r"an instance of a msgspec Struct: Facts\(\), not <class"),
        ({"timed": [("queued", "FAIL", "beats")]}, r"Timed\(state, event, fact\), and not \('queued'"),
        ({"on_event": later}, r"on_event is a plain function .*, and neither async nor a generator"),
        ({"on_event": "count"}, r"on_event is a function of the facts and a Fire, and not 'count'"),
        ({"on_enter": [tell]}, r"on_enter holds functions by state"),
        ({"on_exit": {"queued": "tell"}}, r"on_exit\['queued'\] is a function, and not 'tell'"),
    ],
)
def test_what_is_no_part_of_an_actor_is_told_when_it_is_made(given: dict[str, Any], told: str) -> None:
    with pytest.raises(TypeError, match=told):
        MachineActor(**{"machine": EXECUTION, **given})


class Wild:
    """A function whose signature cannot be read."""

    def __call__(self, facts: Any, fire: Fire) -> bool:
        return True

    @property
    def __signature__(self) -> Any:
        raise RuntimeError("no signature today")


async def test_functions_that_cannot_take_what_they_get_are_refused_when_an_actor_is_spawned() -> None:
    def asks(facts: Any) -> bool:
        return True

    def reduces() -> None: ...

    def enters(task: TaskContext, what: str) -> None: ...

    async def leaves(task: TaskContext, *, what: str) -> None: ...

    async with Runtime(workers=(), drain_deadline=0) as runtime:
        with pytest.raises(SpecificationError) as error:
            runtime.spawn(
                MachineActor(bare(guard=asks), on_event=reduces, on_enter={"b": enters}, on_exit={"*": leaves}),
                name="run-7",
            )
        told = {finding.where: finding.message for finding in error.value.findings}
        assert told.keys() == {"guard", "on_event", "on_enter.b", "on_exit.*"}
        for place, name in (("guard", "asks"), ("on_event", "reduces")):
            text = f"{name} cannot be called with the facts and a Fire: too many positional arguments"
            assert told[place].endswith(text)
        for place, name in (("on_enter.b", "enters"), ("on_exit.*", "leaves")):
            text = f"{name} wants task, what; a body takes nothing, or one argument: the TaskContext"
            assert told[place].endswith(text)
        with pytest.raises(SpecificationError, match="no signature today"):
            runtime.spawn(MachineActor(bare(guard=Wild())), name="run-7")
        assert runtime.spawn(MachineActor(bare(guard=lambda *given: True)), name="run-7").state == "a"


async def test_all_that_is_wrong_with_an_actor_is_told_at_once() -> None:
    async with Runtime(workers=(), drain_deadline=0) as runtime:
        wrong = MachineActor(
            EXECUTION,
            Facts(),
            timed=(Timed("runing", "FAIL", "beats"), Timed("running", "FIAL", "recovery_timeot")),
            on_enter={"quueued": tell},
        )
        with pytest.raises(SpecificationError) as error:
            runtime.spawn(wrong, name="run-7")
        text = str(error.value)
        for part in ("did you mean 'running'?", "did you mean 'FAIL'?", "did you mean 'recovery_timeout'?",
                     "did you mean 'queued'?", "facts.beats"):  # fmt: skip
            assert part in text, text
        for name in ("", " a", "-a", "a\n", "x" * 201, "a/b"):
            with pytest.raises(ValueError, match="cannot be the name of a machine"):
                runtime.spawn(MachineActor(EXECUTION), name=name)
        with pytest.raises(TypeError, match="takes no mailbox"):
            runtime.spawn(MachineActor(EXECUTION), name="a", mailbox=3)  # type: ignore[call-overload]
        run = runtime.spawn(MachineActor(EXECUTION))  # a name is made
        assert run.name
        with pytest.raises(TypeError, match="takes a Fire"):
            run.tell("START")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "error"),
    [({"event": ""}, ValueError), ({"event": 3}, TypeError), ({"event": "a", "metadata": {"x": object()}}, ValueError),
     ({"event": "a", "metadata": [1]}, TypeError), ({"event": "\ud800"}, ValueError),
     ({"event": "a", "reason": "\ud800"}, ValueError)],
)  # fmt: skip
def test_an_event_that_could_not_be_kept_is_refused_when_it_is_made(fields: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Fire(**fields)


async def test_while_the_journal_cannot_write_an_ask_waits_and_a_tell_is_a_dead_letter() -> None:
    journal = MemoryJournal()
    async with Runtime(journal, workers=(), drain_deadline=0) as runtime:
        run = runtime.spawn(MachineActor(EXECUTION), name="run-7")
        await run.ask(Fire("ENQUEUE"))
        journal.health = Health(ok=False, reason="the disk is full")
        with pytest.raises(AskTimeout, match="asked run-7"):
            await run.ask(Fire("START"), timeout=0.01)
        assert run.tell(Fire("START")) is False
        assert runtime._services.dispatcher.dead_letters.counts[Reason.MAILBOX_FULL] == 1
        assert run.state == "queued"
        journal.health = Health()


async def test_an_ended_one_that_only_the_journal_has_is_found_for_a_late_event(
    open_runtime: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callboard.actors.machines.entity.KEPT", 1)
    async with open_runtime() as runtime:
        runs = [runtime.spawn(MachineActor(EXECUTION), name=f"run-{n}") for n in range(3)]
        for run in runs:
            await run.ask(Fire("SKIP"))
        assert [*runtime._services.host.kernel.machines] == ["run-2"]
        assert runs[0].state == "skipped"
        with pytest.raises(InvalidTransitionError):
            await runs[0].ask(Fire("SKIP"))
        assert runs[1].tell(Fire("SKIP"))
        assert MachineRef is type(runtime.machine("run-1"))
        assert events(runtime, "run-0") == ["create", "SKIP"]


class Due(msgspec.Struct, frozen=True):
    """When a run is over: a point in time, or after so long."""

    over_at: float | int | None = None
    patience: float | int | str | None = None


TIMED = Machine(
    "timed",
    "open",
    [State("open", bounded_by="its owner"), State("waiting"), State("over", terminal=True)],
    [
        Transition("open", "wait", "waiting"),
        Transition("waiting", "end", "over"),
        Transition("waiting", "wait", "waiting"),
    ],
    [Timed("waiting", "end", "over_at")],
)
SENSELESS = [1e18, 1.7e12, -1, float("inf"), float("-inf"), float("nan"), 10**400, True]


@pytest.mark.parametrize("value", SENSELESS, ids=lambda value: f"{value:.3g}" if value != 10**400 else "huge")
async def test_a_senseless_due_time_is_refused_where_it_is_taken(open_runtime: Open, value: Any) -> None:
    def by_itself(facts: Due, fire: Fire) -> Due:
        return Due(over_at=value) if fire.reason == "by itself" else facts

    async with open_runtime(clock=VirtualClock()) as runtime:
        run = runtime.spawn(MachineActor(TIMED, Due()), name="run-7")
        with pytest.raises(FireFailed, match="over_at"):
            await run.ask(Fire("wait", facts={"over_at": value}))
        assert (run.state, run.facts, run.record.due) == ("open", Due(), {})
        with pytest.raises(SpecificationError, match="over_at"):
            runtime.spawn(MachineActor(TIMED, Due(over_at=value)), name="run-8")
        await run.ask(Fire("wait", facts={"over_at": 1_800_000_000}))
        assert (run.state, run.record.due) == ("waiting", {"end": 1_800_000_000})
    if not isinstance(runtime.journal, MemoryJournal):
        return
    async with Runtime(workers=()) as runtime:  # its functions are of this test
        run = runtime.spawn(MachineActor(TIMED, Due(), on_event=by_itself), name="run-7")
        with pytest.raises(FireFailed, match="over_at"):
            await run.ask(Fire("wait", reason="by itself"))
        assert run.state == "open"


@pytest.mark.parametrize("timeout", ["1 s", True, float("nan"), 10**400])
async def test_a_timeout_that_is_no_number_is_refused_before_anything_is_asked(timeout: Any) -> None:
    async with Runtime(workers=()) as runtime:
        run = runtime.spawn(MachineActor(EXECUTION), name="run-7")
        with pytest.raises((TypeError, ValueError), match="the timeout of an ask is a number of seconds"):
            await run.ask(Fire("ENQUEUE"), timeout=timeout)
        assert run.state == "pending"
        await run.ask(Fire("ENQUEUE"), timeout=60)


OPEN = Machine(
    "open", "here", [State("here", bounded_by="its owner")], [Transition("here", "go", "here")], endless=True
)


async def test_events_told_are_bounded_refused_ones_are_told_and_commands_of_people_overtake_them(
    open_runtime: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handles, "EVENTS", 1_000)
    monkeypatch.setattr(handles, "EVENTS_OF_ALL", 1_500)
    runtime, told = open_runtime(), list[Notice]()
    runtime.on_trouble = told.append
    async with runtime:
        held = [Task("a", command=["true"], hold=Approval())]
        job = await runtime.submit(Workstream("w", tasks=held), id="held")
        refs = [runtime.spawn(MachineActor(OPEN), name=f"run-{number}") for number in range(2)]
        taken = [[ref.tell(Fire("go")) for _ in range(2_000)] for ref in refs]
        assert [sum(of_one) for of_one in taken] == [1_000, 500]
        letters = runtime._services.host.dispatcher.dead_letters
        assert letters.counts[Reason.MAILBOX_FULL] == 2_500
        assert [notice.event for notice in told] == ["events_refused"]
        await job.cancel()
        await refs[1].ask(Fire("go"))  # after the earlier events of that machine
        assert refs[1].record.seq == 1 + 500 + 1
        with anyio.fail_after(300):
            while core_of(refs[0]).waiting:
                await runtime._services.host.moved()
        assert all(ref.tell(Fire("go")) for ref in refs)
        await runtime._services.settled(60)
        rows = [*runtime.journal.reader.transitions()]
        cancelled = next(row.seq for row in rows if row.entity_id == "held@1/a" and row.event == "cancel")
        went = [row.seq for row in rows if row.event == "go"]
        assert cancelled < went[100]  # before most of the events that were sent earlier


async def test_a_receive_that_raises_has_told_a_machine_nothing_and_taken_no_room(open_runtime: Open) -> None:
    class Teller(Actor):
        def receive(self, message: Any, ctx: Any) -> None:
            for _ in range(5):
                assert run.tell(Fire("go"))
            raise ValueError("after all")

    async with open_runtime() as runtime:
        run = runtime.spawn(MachineActor(OPEN), name="run-7")
        await run.ask(Fire("go"))
        with pytest.raises(ReceiveFailed):
            await runtime.spawn(Teller, name="teller").ask("now")
        assert (core_of(run).waiting, run.record.seq) == (0, 2)


DOOR = Machine(
    "door", "shut", [State("shut", bounded_by="somebody"), State("gone", terminal=True)],
    [Transition("shut", "knock", "shut"), Transition("shut", "remove", "gone")],
)  # fmt: skip


def on_file(tmp_path: Path) -> Runtime:
    return Runtime(tmp_path / "state.db", workers=(), drain_deadline=0)


async def two_doors(tmp_path: Path) -> None:
    """Leave a journal with a living machine and an ended one."""
    async with on_file(tmp_path) as runtime:
        await runtime.spawn(MachineActor(DOOR), name="front").ask(Fire("knock"))
        await runtime.spawn(MachineActor(DOOR), name="back").ask(Fire("remove"))


@pytest.mark.parametrize("recalled", [1_000, 0], ids=["made lately", "made long ago"])
async def test_no_verb_of_a_machine_asks_the_journal_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recalled: int
) -> None:
    await two_doors(tmp_path)
    monkeypatch.setattr(handles, "RECALLED", recalled)
    with asked_in_threads_only():
        async with on_file(tmp_path) as runtime:
            front, fresh = runtime.machine("front"), runtime.spawn(MachineActor(DOOR), name="fresh")
            if recalled:
                assert (runtime.machine("back").state, runtime.machine("back").ended) == ("gone", True)
            else:
                with pytest.raises(LookupError, match=r"no machine 'back' at hand; `await runtime\.machine_of"):
                    runtime.machine("back")
            with pytest.raises(LookupError, match=r"no machine 'nobody' at hand; `await runtime\.machine_of"):
                runtime.machine("nobody")
            with pytest.raises(LookupError, match="no machine 'nobody' in this journal"):
                await runtime.machine_of("nobody")
            assert runtime.spawn(MachineActor(DOOR), name="front") is front
            back = runtime.spawn(MachineActor(DOOR), name="back")
            assert {one.name for one in runtime.machines()} >= {"front", "fresh"}
            assert fresh.tell(Fire("knock"))
            assert fresh.tell(Fire("knock", request_id="k"))
            for one in (front, fresh):
                assert (one.state, one.ended, one.elsewhere, one.events) == ("shut", False, False, {"knock", "remove"})
                assert (one.facts, one.record.name, one.name in repr(one)) == (None, one.name, True)
                assert (await one.ask(Fire("knock", request_id=f"{one.name} 1"))).to_state == "shut"
                assert await one is one
                assert (await one.fire("remove")).to_state == "gone"
            assert await back is back
            assert (back.state, back.ended, back.events) == ("gone", True, frozenset())
            with pytest.raises(InvalidTransitionError):
                await back.ask(Fire("knock"))
            assert fresh.record.seq == 5
            assert await runtime.machine_of("back") is runtime.machine("back") is back


async def test_another_machine_of_a_name_that_ended_long_ago_is_refused_to_whoever_uses_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await two_doors(tmp_path)
    monkeypatch.setattr(handles, "RECALLED", 0)
    async with on_file(tmp_path) as runtime:
        wrong = runtime.spawn(MachineActor(PARKING, Facts()), name="back")
        assert all(wrong.tell(fire) for fire in (Fire("wait"), Fire("wait", request_id="w")))
        for use in (wrong, wrong.ask(Fire("wait")), wrong.fire("wait")):
            with pytest.raises(MachineConflict, match="runs by machine 'door', and not by 'parking'"):
                await use
        assert (wrong.state, core_of(wrong).waiting) == ("gone", 0)
        letters = runtime._services.dispatcher.dead_letters
        assert letters.counts[Reason.REFUSED] == 2
        assert wrong.tell(Fire("wait"))
        with anyio.fail_after(300):
            while core_of(wrong).waiting:
                await anyio.lowlevel.checkpoint()
        right = await runtime.spawn(MachineActor(DOOR), name="back")
        assert (right.state, right is wrong) == ("gone", False)


async def test_what_is_told_to_one_whose_name_is_looked_for_is_taken_in_order_and_kept_though_all_is_left_at_once(
    tmp_path: Path,
) -> None:
    async with on_file(tmp_path) as runtime:
        run = runtime.spawn(MachineActor(OPEN), name="run-7")
        for number in range(20):
            assert run.tell(Fire("go", str(number), request_id="once" if number == 10 else None))
        await run.ask(Fire("go", "20"))
        for number in range(3):
            assert runtime.spawn(MachineActor(OPEN), name=f"late-{number}").tell(Fire("go"))
    async with on_file(tmp_path) as runtime:
        rows = [*runtime.journal.reader.transitions(entity_id="run-7")]
        assert [row.reason for row in rows] == [None, *map(str, range(21))]
        assert [runtime.machine(f"late-{number}").record.seq for number in range(3)] == [2, 2, 2]


async def test_a_name_is_looked_for_again_where_the_journal_could_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    def machine(reader: Any, name: str) -> None:
        asked.append(name)
        if len(asked) < 3:
            raise JournalError("the disk does not answer")

    monkeypatch.setattr(handles, "_AGAIN", 0.0)
    async with on_file(tmp_path) as runtime:
        monkeypatch.setattr(SqliteReader, "machine", machine)
        run = await runtime.spawn(MachineActor(DOOR), name="front")
        assert (asked, (await run.ask(Fire("knock"))).seq) == (["front"] * 3, 2)


async def test_who_waits_for_a_name_that_is_looked_for_is_let_go_when_the_runtime_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = threading.Event()
    monkeypatch.setattr(parts, "CLOSING", 0.0)
    monkeypatch.setattr(SqliteReader, "machine", lambda *_: told.wait(600) and None)

    async def ask(use: Any) -> None:
        with pytest.raises(RuntimeClosed):
            await use
        told.set()

    with anyio.fail_after(300):
        async with anyio.create_task_group() as group:
            async with on_file(tmp_path) as runtime:
                run = runtime.spawn(MachineActor(DOOR), name="front")
                group.start_soon(ask, run.ask(Fire("knock")))
                group.start_soon(ask, run)
                assert run.tell(Fire("knock"))
                await anyio.lowlevel.checkpoint()
            assert runtime._services.dispatcher.dead_letters.counts[Reason.STOPPED] == 1
