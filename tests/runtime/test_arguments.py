"""The messages about wrong arguments: the called name, its own words, and the nearest or allowed values."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import msgspec
import pytest

import callboard
from callboard import (
    Actor,
    Approval,
    Check,
    Context,
    Fire,
    HealthChecks,
    Hook,
    Lifecycle,
    Machine,
    MachineActor,
    Refusal,
    Retry,
    Runtime,
    State,
    Supervision,
    Task,
    Tool,
    Worker,
    Workstream,
)
from callboard.actors.spec.model import Spec
from callboard.errors import SpecificationError
from callboard.machines.keywords import KeywordsChecked
from callboard.runtime.handles.base import BreakerVerbs, JobVerbs, MachineVerbs, TaskVerbs, WorkerVerbs

DOOR = Machine("door", "shut", states=(State("shut", bounded_by="whoever opens it"),), transitions=())
OURS: Any = callboard  # untyped, so that type checkers do not report the mistakes first
MADE_BY_PROGRAMS = """
Alert Approval Breaker Check Clause Condition Defaults Fire HealthChecks Hook Lifecycle MachineActor RayCluster Refusal
Retry State Supervision Task Timed Tool Transition Worker Workstream
""".split()  # noqa: SIM905 - a name a word is what a reader compares


class Quiet(Actor):
    def receive(self, message: str, ctx: Context) -> None:
        """Take it."""


# -- classes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MADE_BY_PROGRAMS)
def test_a_misspelt_setting_is_told_with_its_class_and_the_nearest_name(name: str) -> None:
    last = list(inspect.signature(getattr(OURS, name)).parameters)[-1]
    with pytest.raises(TypeError) as told:
        getattr(OURS, name)(**{f"{last}x": 1})
    assert str(told.value) == f"{name}() got an unexpected keyword argument '{last}x': did you mean {last!r}?"
    assert told.value.__context__ is None  # nothing of msgspec's is shown with it


def test_every_class_of_specifications_tells_it() -> None:
    public = {kind for name in callboard.__all__ if isinstance(kind := getattr(callboard, name), KeywordsChecked)}
    assert {kind.__name__ for kind in public} == {*MADE_BY_PROGRAMS}
    assert {kind for kind in public if issubclass(kind, Spec)} >= {Task, Workstream, Tool, Retry, Approval, Worker}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: OURS.Retry(3), r"^Retry\(\) takes 0 positional arguments, and 1 .* Retry\(max_attempts=...\)"),
        (lambda: OURS.Task("a", "b"), r"^Task\(\) takes 1 positional arguments, and 2 were given: .* Task\(run=...\)"),
        (OURS.Task, r"^Task\(\): missing a required .*argument: 'name'"),
        (lambda: OURS.Worker("w"), r"^Worker\(\): missing a required .*argument: 'engine'"),
        (lambda: OURS.Task("a", name="b"), r"^Task\(\): multiple values for argument 'name'"),
        (lambda: OURS.Tool(colour="red"), r"^Tool\(\) got .* 'colour': it takes max_parallel, retry, "),
        (lambda: OURS.RayCluster(adress="auto"), "did you mean 'address'"),
    ],
)
def test_arguments_that_do_not_fit_are_told_with_the_class(make: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        make()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Fire(3), "Fire takes event as str"),  # type: ignore[arg-type]
        (lambda: Refusal("no"), r"a Refusal holds an exception, .* 'no': write Refusal\(ValueError\('no'\)\)"),  # type: ignore[arg-type]
        (lambda: MachineActor("door"), "a MachineActor takes a Machine"),  # type: ignore[arg-type]
        (lambda: Lifecycle("l", "task", DOOR, {"start": "go"}), "is a tuple of events"),  # type: ignore[dict-item]
    ],
)
def test_a_class_that_checks_its_values_itself_says_what_it_said(make: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        make()


def test_such_a_class_is_a_struct_like_others() -> None:
    task = Task("a", command=["true"], retry=Retry(max_attempts=3))
    assert msgspec.json.decode(msgspec.json.encode(task), type=Task) == task
    assert pickle.loads(pickle.dumps(task)) == task
    assert msgspec.structs.replace(task, name="b").retry == Retry(max_attempts=3)
    assert msgspec.convert({"name": "a", "command": ["true"], "retry": {"max_attempts": 3}}, Task) == task


# -- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["3", 3.5, None, True])
def test_a_count_that_is_no_number_is_told(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^Supervision: intensity=.*: a whole number, at least 0"):
        Supervision(intensity=value)
    with pytest.raises(ValueError, match=r"^HealthChecks: misses=.*: a whole number, at least 1"):
        HealthChecks(misses=value)


def test_what_is_no_supervision_is_told() -> None:
    with pytest.raises(TypeError, match=r"^HealthChecks: restarts=3: a Supervision\("):
        HealthChecks(restarts=3)  # type: ignore[arg-type]


def met() -> bool:
    return True


CLASSES: list[tuple[dict[str, Any], str]] = [
    ({"condition": met}, r"condition: must be a Condition, not a function .*write Condition\(run=met\)"),
    ({"condition": lambda: True}, r"write Condition\(run=...\)"),
    ({"condition": "test -e a"}, r"write Condition\(command='test -e a'\)"),
    ({"hold": True}, r"hold: must be an Approval, not true or false \(True\) \(write Approval\(people=...\)\)"),
    ({"hold": 2}, r"write Approval\(people=2\)"),
    ({"retry": 3}, r"retry: must be a Retry, not a number \(3\) \(write Retry\(max_attempts=3\)\)"),
    ({"retry": Approval()}, "retry: must be a Retry, not an Approval"),
    ({"checks": met}, r"checks: must be a list, not a function .*write \[Check\(run=met\)\]"),
    ({"checks": Check(run=met)}, r"checks: must be a list, not a Check .*write it in brackets"),
    ({"checks": [met]}, r"checks\[0\]: must be a Check, .*write Check\(run=met\)"),
    ({"cancel_hooks": [Retry(max_attempts=1)]}, r"cancel_hooks\[0\]: must be a Hook, not a Retry"),
    ({"args": 3}, "args: must be a dict, not a number"),
]


@pytest.mark.anyio
@pytest.mark.parametrize(("given", "words"), CLASSES)
async def test_a_value_in_place_of_a_class_is_told_with_the_class(given: dict[str, Any], words: str) -> None:
    async with Runtime() as runtime:
        with pytest.raises(SpecificationError, match=words):
            await runtime.submit(Workstream("w", tasks=[Task("a", run=met, **given)]))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tools": ["x"]}, r"tools: must be a dict, not a list .*write \{name: Tool\(...\)\}"),
        ({"tools": {"x": 3}}, r"tools\.x: must be a Tool, .*write Tool\(max_parallel=3\)"),
        ({"tasks": Task("a", run=met)}, "tasks: must be a list, not a Task .*write it in brackets"),
        ({"tasks": [met]}, r"write Task\(name=..., run=met\)"),
        ({"on_failed": [Hook(run=met), met]}, r"on_failed\[1\]: must be a Hook"),
    ],
)
async def test_so_it_is_of_a_workstream(given: dict[str, Any], words: str) -> None:
    async with Runtime() as runtime:
        with pytest.raises(SpecificationError, match=words):
            await runtime.submit(Workstream("w", **given))


def test_a_file_is_told_of_tables(tmp_path: Any) -> None:
    (tmp_path / "w.toml").write_text('name = "w"\n[[tasks]]\nname = "a"\ncommand = ["true"]\nretry = 3\n')
    with pytest.raises(SpecificationError, match="retry: must be a table of settings, not a number"):
        callboard.load(tmp_path / "w.toml")


# -- functions -------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (3, "^cannot spawn 3: give a class that is derived from callboard.Actor"),
        (None, "^cannot spawn None: give a class"),
        ("module:Actor", "^cannot spawn 'module:Actor': give a class"),
        (DOOR, r"^cannot spawn <Machine door: .*as MachineActor\(machine\)"),
    ],
)
async def test_what_is_no_actor_is_told(given: Any, words: str) -> None:
    async with Runtime() as runtime:
        with pytest.raises(TypeError, match=words):
            runtime.spawn(given)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mailbx": 3}, r"^Runtime\.spawn\(\) got an unexpected .* 'mailbx': did you mean 'mailbox'\?"),
        ({"timeout": 3}, r"^Runtime\.spawn\(\) got .* 'timeout': did you mean 'stop_timeout'\?"),
        ({"mailbox": "3"}, "with mailbox='3': a whole number, at least 1"),
        ({"mailbox": 0}, "with mailbox=0: a whole number, at least 1"),
        ({"restart": "never"}, "with restart='never': allowed are permanent, transient, temporary"),
        ({"supervision": 3}, "with supervision=3: a Supervision or None"),
        ({"supervision": {"intensity": 3}}, "with supervision={'intensity': 3}: a Supervision or None"),
        ({"stop_timeout": "1s"}, "with that stop_timeout: a number is"),
    ],
)
async def test_an_option_of_an_actor_is_told(options: dict[str, Any], words: str) -> None:
    async with Runtime() as runtime:
        with pytest.raises((TypeError, ValueError), match=words):
            runtime.spawn(Quiet, **options)
        runtime.spawn(Quiet, restart="permanent", mailbox=3, supervision=Supervision())


@pytest.mark.anyio
async def test_a_machine_is_told_of_an_option_that_nothing_has() -> None:
    async with Runtime() as runtime:
        with pytest.raises(TypeError, match="did you mean 'name'"):
            runtime.spawn(MachineActor(DOOR), nam="d")  # type: ignore[call-overload]


class Starter(Actor):
    """Starts what it is sent."""

    def receive(self, message: Any, ctx: Context) -> str:
        try:
            ctx.spawn(message)
        except TypeError as error:
            return str(error)
        return ""


@pytest.mark.anyio
async def test_an_actor_is_told_that_it_starts_no_machine() -> None:
    async with Runtime() as runtime:
        starter = runtime.spawn(Starter)
        assert "a MachineActor is spawned by a runtime" in await starter.ask(MachineActor(DOOR))
        assert "give a class that is derived from" in await starter.ask(3)


@pytest.mark.anyio
async def test_errors_name_what_was_called() -> None:
    async with Runtime(drain_deadline=0) as runtime:
        ref: Any = runtime.spawn(Quiet)
        machine: Any = runtime.spawn(MachineActor(DOOR))
        job: Any = await runtime.submit(Workstream("w", tasks=[Task("a", run=met, wait="1h")]))
        worker: Any = runtime.worker("loop")
        calls: list[tuple[Any, str]] = [
            (lambda: ref.ask("m", timout=3), "ref.ask()"),
            (lambda: ref.tell("m", 3), "ref.tell()"),
            (lambda: job.cancel(reson="r"), "job.cancel()"),
            (lambda: job.task("a").approve(bye="ana"), "job.task(...).approve()"),
            (lambda: worker.shut_down(within=3), "worker.shut_down()"),
            (lambda: machine.fire("open", because="r"), "ref.fire()"),
            (lambda: job.ref.fire("cancel", because="r"), "ref.fire()"),
            (lambda: runtime.submit(Workstream("w"), request="r"), "Runtime.submit()"),  # type: ignore[call-arg]
        ]
        for call, name in calls:
            with pytest.raises(TypeError) as told:
                call()
            assert str(told.value).startswith(name)


@pytest.mark.parametrize("kind", [JobVerbs, TaskVerbs, WorkerVerbs, BreakerVerbs, MachineVerbs])
def test_no_verb_is_named_by_a_class_that_nobody_knows(kind: type) -> None:
    functions = [one for name, one in vars(kind).items() if inspect.isfunction(one) and not name.startswith("_")]
    assert functions
    assert not [one for one in functions if kind.__name__ in one.__qualname__]
