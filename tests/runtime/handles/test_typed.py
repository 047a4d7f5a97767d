"""The inferred types of results. mypy and pyright check each `assert_type` here, as they check the library.

A wrong one is an error of theirs, and so is an ignore that is not needed any more. pytest runs the same lines.
"""

from __future__ import annotations

from typing import Any, TypedDict, assert_type, get_type_hints

import msgspec
import pytest

from callboard import Actor, Context, JobHandle, Outcome, Ref, Runtime, Task, TaskContext, Workstream, step
from callboard.errors import JobFailed

pytestmark = pytest.mark.anyio


async def fetch(task: TaskContext) -> list[int]:
    return [30, 12]


def add(task: TaskContext) -> int:
    return sum(task.results["fetch"])


def fails() -> int:
    raise ValueError("no")


class Results(TypedDict):
    fetch: list[int]
    add: int


class Sum(msgspec.Struct):
    add: int


class Counter(Actor):
    def __init__(self, start: int = 0) -> None:
        self.total = start

    def receive(self, message: int, ctx: Context) -> str:
        self.total += message
        return str(self.total)


class Quiet(Actor):
    def receive(self, message: str, ctx: Context) -> None:
        pass


class Lookup(Actor):
    async def receive(self, message: str | bytes, ctx: Context) -> list[int]:
        counter = ctx.spawn(lambda: Counter(40))
        assert_type(counter, Ref[int, str])
        total = await ctx.ask(counter, len(message))
        return [int(assert_type(total, str))]


FETCH = Task("fetch", run=fetch)
ADD = Task("add", run=add, depends_on=["fetch"])
NAMED = Task("named", run="builtins:dict")
COMMAND = Task("command", command=["true"])


def test_a_task_has_the_type_that_its_function_returns() -> None:
    assert_type(ADD, Task[int])
    assert_type(NAMED, Task[Any])
    assert_type(COMMAND, Task[Any])
    of_any: list[Task] = [FETCH, ADD, NAMED, COMMAND]  # Task alone is Task[Any]
    assert [task.name for task in of_any] == ["fetch", "add", "named", "command"]
    assert Workstream("w", tasks=[FETCH, ADD]).tasks == of_any[:2]
    assert Task[int]("add", run=add, depends_on=["fetch"]) == ADD
    Task[int]("fetch", run=fetch)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def test_results_are_of_the_types_that_functions_return() -> None:
    async with Runtime() as runtime:
        job = await runtime.submit(Workstream("w", tasks=[FETCH, ADD]))
        assert_type(job, JobHandle)
        outcome = (await job.wait()).raise_for_state()
    assert_type(outcome, Outcome)
    assert assert_type(outcome.result(FETCH), list[int]) == [30, 12]  # the awaited value, not the coroutine
    assert assert_type(outcome.result(ADD), int) == 42
    assert assert_type(outcome.result("add"), Any) == 42
    assert assert_type(outcome.results_as(Results), Results) == {"fetch": [30, 12], "add": 42}
    assert assert_type(outcome.results_as(Sum), Sum) == Sum(42)
    with pytest.raises(AttributeError):
        outcome.result(ADD).upper  # type: ignore[attr-defined]  # pyright: ignore  # noqa: B018, PGH003


async def test_what_has_no_result_says_so() -> None:
    failing = Task("fails", run=fails)
    async with Runtime() as runtime:
        outcome = await (await runtime.submit(Workstream("w", tasks=[failing]), id="w")).wait()
    with pytest.raises(JobFailed):
        outcome.raise_for_state()
    with pytest.raises(LookupError, match=r"^task 'fails' of job 'w' has no result: it is failed$"):
        outcome.result(failing)
    with pytest.raises(LookupError, match=r"^task 'add' of job 'w' has no result: the job has fails$"):
        outcome.result(ADD)
    with pytest.raises(msgspec.ValidationError, match="missing required field `add`"):
        outcome.results_as(Sum)


async def test_what_an_ask_is_answered_with_is_what_receive_returns() -> None:
    async with Runtime() as runtime:
        counter = runtime.spawn(Counter, name="counter")
        assert_type(counter, Ref[int, str])
        assert assert_type(await counter.ask(3), str) == "3"
        assert_type(runtime.spawn(Counter(1)), Ref[int, str])
        assert_type(runtime.spawn(lambda: Counter(1)), Ref[int, str])
        assert_type(runtime.spawn(Quiet), Ref[str, None])
        assert_type(runtime.spawn(Quiet()), Ref[str, None])
        lookup = runtime.spawn(Lookup, mailbox=5)
        assert_type(lookup, Ref[str | bytes, list[int]])  # the awaited value, not the coroutine
        assert assert_type(await lookup.ask("ab"), list[int]) == [42]
        of_any: Ref = counter  # Ref alone is Ref[Any, Any]
        assert assert_type(await of_any.ask(1), Any) == "4"
        assert (lambda: counter.tell("no")) is not None  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        with pytest.raises(TypeError, match="not an Actor"):
            runtime.spawn(int)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_what_is_on_a_reference_is_for_users() -> None:
    """An editor offers no fields of the cell, which are for the dispatcher."""
    shown = {name for name in dir(Ref) if not name.startswith("_")}
    assert shown == {"name", "stopped", "tell", "offer", "ask", "stop", "tell_threadsafe"}
    assert not get_type_hints(Ref)


@step
async def charge(order: str, cents: int) -> str:
    return f"{order}: {cents}"


@step(name="weigh")
def weigh(order: str, *, unit: str = "kg") -> float:
    return float(len(order + unit))


class Shop:
    @step
    async def pack(self, order: str) -> int:
        return len(order)


def plain(task: TaskContext) -> list[str]:
    assert_type(task.step_blocking(weigh, "A7"), float)
    assert_type(task.step_blocking(charge, "A7", 3), str)  # the awaited value, not the coroutine
    assert_type(task.receive_blocking("paid", type=Sum), Sum)
    assert_type(task.gather_blocking(weigh.bind("A7")), list[float])
    return task.gather_blocking(charge.bind("A7", 1))


async def steps(task: TaskContext) -> list[str]:
    shop = Shop()
    assert_type(await charge("A7", 1), str)
    assert_type(await task.step(weigh, "A7", unit="g"), float)
    assert_type(await shop.pack("A7"), int)
    assert_type(await task.step(shop.pack, "A7"), int)
    assert_type(await task.gather(shop.pack.bind("A7")), list[int])
    assert_type(await task.gather(weigh.bind("A7"), *(weigh.bind(order) for order in "ab")), list[float])
    assert_type(await task.receive("paid", type=Sum, timeout="1d", default=None), Sum | None)
    await task.receive("paid", type=int | str)
    paid: int = await task.receive("paid", type=str)  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]
    await charge("A7", "1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await shop.pack(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    charge.bind("A7")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    shop.pack.bind("A7", 1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    wrong: list[int] = await task.gather(charge.bind("A7", 1))  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]
    return [*await task.gather(charge.bind("A7", 1), charge.bind("A8", 2)), *map(str, [*wrong, paid])]


async def begins_anew(task: TaskContext) -> int:
    if task.args["more"]:
        return task.again(more=False)
    return task.again(more=True) if task.cancelled else 1  # it adds nothing to the type


def begins_anew_in_a_thread(task: TaskContext) -> list[str] | None:
    return task.again(more=False)


async def test_what_begins_anew_fits_the_result_of_each_body() -> None:
    task = Task("anew", run=begins_anew, args={"more": True})
    async with Runtime() as runtime:
        job = await runtime.submit(Workstream("w", tasks=[task]))
        assert assert_type((await job.wait()).result(task), int) == 1


def test_a_step_has_the_arguments_and_the_result_of_its_function() -> None:
    assert callable(steps)
    assert callable(plain)  # they are for the type checkers
