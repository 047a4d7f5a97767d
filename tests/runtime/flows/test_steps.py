"""Durable steps: a completed one never runs again, and a body goes on from where it was."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import sys
import threading
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.forks import Forks
from tests.waiting import until

from callboard import Hook, Retry, Runtime, Task, TaskContext, VirtualClock, Worker, Workstream, step
from callboard.errors import AttemptOver, FlowAsleep, Permanent, StepFailed, TaskCancelled
from callboard.runtime.engines.context import connection_of

pytestmark = pytest.mark.anyio
Open = Callable[..., Runtime]
SOON = Retry(max_attempts=2, base_delay=0.0, jitter=0.0)
ran: list[Any] = []
"""What the functions of steps have done, in order."""


@pytest.fixture(autouse=True)
def _anew() -> None:
    ran.clear()


@step
async def double(n: int) -> int:
    ran.append(("double", n))
    return n * 2


@step
def half(n: int) -> float:
    ran.append(("half", n))
    return n / 2


async def run(runtime: Runtime, body: Any, *, job_id: str | None = None, **options: Any) -> Any:
    """Run a body as the only task of a job. Returns its result; raises the error text of a failed one."""
    job = await runtime.submit(Workstream("flow", tasks=[Task("t", run=body, **options)]), id=job_id)
    outcome = await job.wait()
    if outcome.state != "completed":
        raise AssertionError(outcome.error)
    return outcome.results["t"]


async def test_a_step_that_has_completed_is_not_run_again_by_a_later_attempt(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> list[Any]:
        first = await double(1)
        second = await task.step(half, first)
        third = await double(5)
        if task.attempt == 1:
            raise RuntimeError("interrupted")
        return [first, second, third, await double(7)]

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        assert await run(runtime, "body", retry=SOON) == [2, 1.0, 10, 14]
    assert ran == [("double", 1), ("half", 2), ("double", 5), ("double", 7)]


async def test_the_arguments_of_a_step_are_kept_for_people_masked_if_they_are_short_and_json_holds_them(
    open_runtime: Open,
) -> None:
    def takes(*args: Any, **named: Any) -> int:
        ran.append(args)
        return len(args) + len(named)

    async def body(task: TaskContext) -> None:
        await task.step(takes, 1, f"key {task.secrets['KEY']}", of={"a": [task.secrets["KEY"]], "b": None})
        await task.step(takes)
        await task.step(takes, "x" * 3000)
        await task.step(takes, object())
        await task.step(takes_one, 3)
        if task.attempt == 1:
            raise RuntimeError("interrupted")

    takes_one = step(name="one")(takes)
    async with open_runtime(secrets={"KEY": "rosebud-7"}) as runtime:
        runtime.task(name="body")(body)
        job = await runtime.submit(
            Workstream("flow", tasks=[Task("t", run="body", retry=SOON, secrets=["KEY"])]), id="given"
        )
        assert (await job.wait()).state == "completed"
        kept = [one.given for one in await job.steps("t")]
    assert kept == [([1, "key ***"], {"of": {"a": ["***"], "b": None}}), None, None, None, ([3], {})]
    assert len(ran) == 5  # the second attempt found each of them again


async def test_a_function_that_is_no_step_and_a_body_without_a_context(open_runtime: Open) -> None:
    def plain(n: int) -> int:
        ran.append(threading.current_thread().name)
        return n

    async def with_context(task: TaskContext) -> int:
        return await task.step(plain, 3)

    async def without() -> int:
        return await double(4)

    async with open_runtime() as runtime:
        runtime.task(name="with")(with_context)
        runtime.task(name="without")(without)
        assert await run(runtime, "with") == 3
        assert await run(runtime, "without") == 8
    assert ran[0] != threading.main_thread().name


async def test_outside_of_a_flow_a_step_is_a_plain_call() -> None:
    assert await double(2) == 4
    assert half(3) == 1.5
    assert ran == [("double", 2), ("half", 3)]


async def test_parallel_steps_keep_their_numbers_by_the_order_of_the_calls(open_runtime: Open) -> None:
    release = anyio.Event()

    @step
    async def waits(n: int) -> int:
        ran.append(n)
        if n == 0 and not release.is_set():
            await release.wait()
        else:
            release.set()
        return n

    async def body(task: TaskContext) -> list[list[int]]:
        listed = await task.gather(*(waits.bind(n) for n in range(4)))
        grouped: dict[int, int] = {}

        async def one(n: int, call: Any) -> None:
            grouped[n] = await call

        async with anyio.create_task_group() as group:
            for n in range(3):
                group.start_soon(one, n, task.step(waits, 10 + n))  # the number is taken here
        if task.attempt == 1:
            raise RuntimeError("interrupted")
        return [
            listed,
            [grouped[n] for n in range(3)],
            await task.gather(waits.bind(20), waits.bind(21), max_parallel=1),
        ]

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        assert await run(runtime, "body", retry=SOON) == [[0, 1, 2, 3], [10, 11, 12], [20, 21]]
    assert sorted(ran) == [0, 1, 2, 3, 10, 11, 12, 20, 21]


async def test_of_parallel_steps_all_run_to_their_ends_and_the_first_failure_is_raised(open_runtime: Open) -> None:
    @step
    async def odd(n: int) -> int:
        await anyio.lowlevel.checkpoint()
        ran.append(n)
        if n % 2:
            raise ValueError(n)
        return n

    async def body(task: TaskContext) -> str:
        try:
            await task.gather(*(odd.bind(n) for n in (4, 3, 2, 1)))
        except ValueError as error:
            return f"{error} of {sorted(ran)}"
        return "none"

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        assert await run(runtime, "body") == "3 of [1, 2, 3, 4]"


async def test_steps_that_one_too_many_is_refused_with_leave_no_call_unawaited(
    open_runtime: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callboard.runtime.engines.flow.MOST_STEPS", 2)

    async def body(task: TaskContext) -> None:
        await task.gather(*(double.bind(n) for n in range(3)))

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(AssertionError, match="this flow has taken 2 steps"):
                await run(runtime, "body")
            gc.collect()
    assert not ran


async def test_a_plain_body_takes_steps_in_its_own_thread(open_runtime: Open) -> None:
    @step
    def where(n: int) -> str:
        ran.append(n)
        return threading.current_thread().name

    def body(task: TaskContext) -> list[Any]:
        here = threading.current_thread().name
        places = [where(1), task.step_blocking(where, 2), task.step_blocking(half, 6)]
        if task.attempt == 1:
            raise RuntimeError("interrupted")
        return [places[0] == places[1] == here or task.attempt, places[2]]

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        assert (await run(runtime, "body", retry=SOON))[1] == 3.0
    assert ran == [1, 2, ("half", 6)]


async def test_what_an_async_body_awaits_is_refused_in_a_plain_one_where_it_is_called(open_runtime: Open) -> None:
    calls: dict[str, Callable[[TaskContext], object]] = {
        "sleep": lambda task: task.sleep("3d"), "send": lambda task: task.send("other", "go"),
        "publish": lambda task: task.publish("stage", 1), "receive": lambda task: task.receive("go"),
        "now": lambda task: task.now(), "uuid": lambda task: str(task.uuid()), "random": lambda task: task.random(),
        "version": lambda task: task.version("two", 2), "gather": lambda task: task.gather(half.bind(1)),
        "submit": lambda task: task.submit(Workstream("w", tasks=[Task("t", run=len)]), name="w"),
        "approval": lambda task: task.approval("go"),
    }  # fmt: skip

    def body(task: TaskContext) -> list[str]:
        told: list[str] = []
        for name, call in calls.items():
            try:
                call(task)
            except RuntimeError as error:
                told.append(f"{name}: {error}")
        return told

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        told = await run(runtime, "body")
    assert [line.partition(":")[0] for line in told] == list(calls)
    assert all("this body runs in a thread or process: use task." in line for line in told)
    assert not ran


async def test_an_async_step_of_a_plain_body_runs_on_the_loop(open_runtime: Open) -> None:
    def body(task: TaskContext) -> int:
        return task.step_blocking(double.func, 4) + task.step_blocking(double, 5)  # type: ignore[operator]

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        assert await run(runtime, "body") == 18


# -- failures ----------------------------------------------------------------------------------------------------------


class OddError(Exception):
    """An error that cannot be made again: JSON holds no set."""

    def __init__(self, n: int, text: str) -> None:
        super().__init__({n})
        self.text = text

    def __str__(self) -> str:
        return f"1: {self.text}"


async def test_a_step_is_tried_again_as_its_own_policy_says_and_its_tries_are_kept(open_runtime: Open) -> None:
    @step(retry=Retry(max_attempts=3, base_delay=0.0, jitter=0.0))
    async def flaky() -> int:
        ran.append("flaky")
        if len(ran) < 3:
            raise ConnectionError("away")
        return len(ran)

    async def body() -> int:
        return await flaky()

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        assert await run(runtime, "body", job_id="one") == 3
        (row,) = runtime._services.journal.reader.steps((await runtime.job("one")).task("t").record.flow)
    assert (row.name, row.number, row.tries, row.result, row.failed) == ("flaky", 1, 3, 3, False)


async def test_a_retry_that_names_no_number_is_five_tries_as_for_a_task(open_runtime: Open) -> None:
    @step(retry=Retry(wait=lambda number: 0.0 * number))  # any function: nothing of it is journaled
    async def flaky() -> None:
        ran.append("flaky")
        raise ConnectionError("away")

    async def body() -> None:
        await flaky()

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        with pytest.raises(AssertionError, match="away"):
            await run(runtime, "body", retry=Retry(max_attempts=1))
    assert len(ran) == 5


async def test_the_error_of_a_step_can_be_caught_and_is_the_same_in_a_replay(open_runtime: Open) -> None:
    @step
    async def breaks(kind: str) -> None:
        ran.append(kind)
        raise KeyError("gone") if kind == "plain" else OddError(1, "odd")

    async def body(task: TaskContext) -> list[str]:
        seen: list[str] = []
        for kind in ("plain", "odd"):
            try:
                await breaks(kind)
            except KeyError as error:
                seen.append(f"{type(error).__name__} {error}")
            except StepFailed as error:
                seen.append(f"{error.step} {error.error_type} {error.text} {'breaks' in error.traceback}")
        ran.append(seen)
        if task.attempt == 1:
            await task.step(stop_the_worker)
        return seen

    @step
    async def stop_the_worker() -> None:
        raise RuntimeError("interrupted")

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        await run(runtime, "body", retry=SOON)
    first, second = (said for said in ran if isinstance(said, list))
    assert first == second == ["KeyError 'gone'", "breaks#2 OddError 1: odd True"]
    assert [said for said in ran if isinstance(said, str)] == [
        "plain",
        "odd",
    ] * 2  # a new attempt runs failed ones again


async def test_what_a_step_took_is_that_of_its_last_run_and_a_wrong_wait_is_told_at_the_line_of_the_body(
    open_runtime: Open,
) -> None:
    @step
    async def breaks() -> None:
        raise ConnectionError("away")

    async def body(task: TaskContext) -> None:
        await breaks()

    async def wrong(task: TaskContext) -> None:
        await task.sleep("soon")

    clock = VirtualClock()
    async with open_runtime(clock=clock) as runtime:
        runtime.task(name="body")(body)
        runtime.task(name="wrong")(wrong)
        job = await runtime.submit(Workstream("flow", tasks=[Task("t", run="body")]), id="again")
        await job.wait()
        clock.advance(3600)
        await (await job.retry(reason="once more")).wait()
        (kept,) = await job.steps("t")
        assert (kept.state, kept.tries, kept.duration_ms) == ("failed", 1, 0)
        with pytest.raises(AssertionError, match=r"'soon' is not a duration.*\(test_steps.py:\d+ in wrong\)"):
            await run(runtime, "wrong")


async def test_a_permanent_error_is_not_tried_again(open_runtime: Open) -> None:
    @step(retry=Retry(max_attempts=5))
    def refuses() -> None:
        ran.append("refuses")
        raise Permanent("never")

    async def body(task: TaskContext) -> None:
        await task.step(refuses)

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        with pytest.raises(AssertionError, match="never"):
            await run(runtime, "body", retry=Retry(max_attempts=4))
    assert ran == ["refuses"]


async def test_a_try_has_its_own_time_limit(open_runtime: Open) -> None:
    clock = VirtualClock()

    @step(timeout="10s")
    async def slow() -> None:
        clock.advance(11)
        await anyio.sleep_forever()

    async def body() -> str:
        try:
            await slow()
        except TimeoutError as error:
            return str(error)
        return "in time"

    async with open_runtime(clock=clock) as runtime:
        runtime.task(name="body")(body)
        assert await run(runtime, "body") == "step 'slow' took longer than 10 s"


@pytest.mark.parametrize("value", [object(), {1: 2}, float("nan"), "\ud800"])
async def test_a_result_that_cannot_be_kept_fails_its_step_once(value: Any, open_runtime: Open) -> None:
    @step(retry=Retry(max_attempts=3))
    async def returns() -> Any:
        ran.append("returns")
        return value

    async def body() -> str:
        try:
            await returns()
        except TypeError as error:
            return str(error)
        return "kept"

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        assert "the result of step 'returns'" in await run(runtime, "body")
    assert ran == ["returns"]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, BaseException, TaskCancelled])
async def test_what_is_no_exception_ends_the_body_and_keeps_nothing(kind: type[BaseException]) -> None:
    @step
    async def leaves() -> None:
        raise kind("out")

    async def body(task: TaskContext) -> str:
        if task.attempt == 1:
            await leaves()
        return "second"

    async with Runtime() as runtime:
        runtime.task(name="body")(body)
        assert await run(runtime, "body", retry=SOON) == "second"


async def test_a_step_inside_a_step_is_refused_in_words(open_runtime: Open) -> None:
    @step
    async def outer(task: TaskContext) -> str:
        refusals: list[str] = []
        for call in (lambda: double(1), lambda: task.step(double, 1)):
            try:
                await call()
            except RuntimeError as error:
                refusals.append(str(error))
        return "|".join(refusals)

    async def body(task: TaskContext) -> str:
        return await outer(task)

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        assert (await run(runtime, "body")).count("step 'double' was called inside step 'outer'") == 2
    assert not ran


async def test_a_plain_step_on_the_loop_and_steps_in_the_wrong_place_are_refused(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> list[str]:
        refusals: list[str] = []
        for call in (lambda: half(2), lambda: task.step_blocking(half, 2)):
            try:
                call()
            except RuntimeError as error:
                refusals.append(str(error))
        return refusals

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        first, second = await run(runtime, "body")
    assert "await task.step(half, ...)" in first
    assert "use await task.step(...)" in second
    assert not ran


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: step(lambda: 1), "no name"),
        (lambda: step(half.func, name="a#2"), "cannot be the name"),
        (lambda: step(half.func, name="task.x"), "does not begin with 'task.'"),
        (lambda: step(half), "is a step already"),
        (lambda: step(3), "takes a function"),  # type: ignore[call-overload]
        (lambda: step(half.func, timeout="soon"), "soon"),
        (lambda: step(half.func, retry=3), "the retry of step 'half' is a Retry, not 3"),  # type: ignore[arg-type]
        (lambda: step(half.func, retry=Retry(max_attempts=0)), "wrong in step 'half':\n.*at least 1, not 0"),
        (lambda: step(half.func, retry=Retry(base_delay="1h")), "is above max_delay"),
        (lambda: step(half.func, retry=Retry(wait=3)), "no wait strategy"),
        (lambda: step(double.func, timeout=0), "timeout of step 'double': a limit of 0"),
        (lambda: step(staticmethod(double.func)), "put @step below @staticmethod"),
        (lambda: step(classmethod(double.func)), "put @step below @classmethod"),  # type: ignore[call-overload]
    ],
)
def test_what_can_be_no_step_is_refused_when_it_is_made(make: Callable[[], Any], told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=told):
        make()


async def test_a_function_has_attributes_and_arguments_of_any_name(open_runtime: Open) -> None:
    async def charge(self: int, step: int, func: int) -> list[int]:
        return [self, step, func]

    for name in ("name", "path", "retry", "timeout", "on_loop", "func", "bind", "of", "owner"):
        setattr(charge, name, "mine")
    made = step(charge, retry=SOON)
    assert (made.name, made.retry, made.timeout, made.on_loop, made.func) == ("charge", SOON, None, True, charge)
    assert made.path.endswith("charge")
    assert (made.__name__, vars(made)["owner"]) == ("charge", "mine")  # type: ignore[attr-defined]

    async def body(task: TaskContext) -> list[list[int]]:
        given = {"self": 1, "step": 2, "func": 3}
        return [await made(**given), await task.step(made, **given), *await task.gather(made.bind(**given))]

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        assert await run(runtime, "body") == [[1, 2, 3]] * 3


async def test_the_names_and_versions_that_a_body_gives_are_checked(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> list[str]:
        told: list[str] = []
        for name, latest in (("a", True), ("a", "2"), ("a", 0), (3, 1), ("", 1), ("a#2", 1), ("n" * 200, 1)):
            try:
                await task.version(name, latest)  # type: ignore[arg-type]
            except (TypeError, ValueError) as error:
                told.append(f"{type(error).__name__} {error}")
        for wrong in ("a#2", task.secrets["KEY"], 3):
            try:
                await task.uuid(wrong)  # type: ignore[arg-type]
            except (TypeError, ValueError) as error:
                told.append(f"{type(error).__name__} {error}")
        return told

    async with open_runtime(secrets={"KEY": "hush-hush-1"}) as runtime:
        runtime.task(name="body")(body)
        task = Task("t", run="body", secrets=["KEY"])
        told = (await (await runtime.submit(Workstream("flow", tasks=[task]))).wait()).raise_for_state().results["t"]
    assert told == [
        "TypeError task.version('a', ...) takes the number of the latest version, a whole one from 1 on, not True",
        "TypeError task.version('a', ...) takes the number of the latest version, a whole one from 1 on, not '2'",
        "ValueError task.version('a', 0): versions are 1 and up; the first code is 1",
        "TypeError the name of a version is a str, not 3",
        "ValueError '' cannot be the name of a version: it takes 1 to 187 printable characters without '#'",
        "ValueError 'a#2' cannot be the name of a version: it takes 1 to 187 printable characters without '#'",
        f"ValueError '{'n' * 79} cannot be the name of a version: it takes 1 to 187 printable characters without '#'",
        "ValueError 'a#2' cannot be the name of task.uuid(): it takes 1 to 190 printable characters without '#'",
        "ValueError the name of task.uuid() holds the value of a secret, and would be journaled",
        "TypeError the name of task.uuid() is a str, not 3",
    ]


# -- changed code ------------------------------------------------------------------------------------------------------


async def test_another_function_under_a_kept_name_fails_for_good(open_runtime: Open) -> None:
    @step
    async def other(n: int) -> int:
        return n

    other.name = "double"

    async def body(task: TaskContext) -> None:
        ran.append(task.attempt)
        if task.attempt == 1:
            await double(1)
            raise RuntimeError("interrupted")
        await other(1)

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        with pytest.raises(AssertionError, match=r"FlowChanged: step 'double' of this flow was .*:double, and"):
            await run(runtime, "body", retry=Retry(max_attempts=5, base_delay=0.0))
    assert ran == [1, ("double", 1), 2]


@pytest.mark.parametrize("way", ["returns", "raises", "goes on", "in a group", "again"])
async def test_a_body_that_catches_all_errors_compensates_nothing_because_its_code_has_changed(
    way: str, open_runtime: Open
) -> None:
    async def body(task: TaskContext) -> Any:
        if task.attempt == 1:
            await double(1)
            raise RuntimeError("interrupted")
        try:
            if way == "in a group":
                async with anyio.create_task_group() as group:
                    group.start_soon(anyio.sleep_forever)
                    await double(2)
            await double(2)
        except Exception:
            ran.append("caught")
            if way == "raises":
                raise KeyError("what it made of it") from None
            if way == "again":
                return task.again(page=2)
            if way == "goes on":
                for request in (task.step(half, 3), task.sleep("1h"), task.uuid(), task.submit(child, name="undo")):
                    with pytest.raises(Exception, match="other arguments than now"):
                        await request
        return "compensated"

    child = Workstream("undo", tasks=[Task("undo", run=lambda: ran.append("undone"))])
    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        job = await runtime.submit(
            Workstream("flow", tasks=[Task("t", run="body", retry=Retry(max_attempts=5, base_delay=0.0))])
        )
        failed = (await job.wait()).tasks["t"]
    assert (failed.state, failed.error_type, failed.attempt) == ("failed", "FlowChanged", 2)
    assert "step 'double' of this flow was called with other arguments than now (kept: (1), asked for: (2))" in str(
        failed.last_error
    )
    assert ran == [("double", 1), "caught"]


async def test_kept_steps_that_are_never_asked_for_are_told(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> str:
        if task.attempt == 1:
            await double(1)
            await double(2)
            raise RuntimeError("interrupted")
        return "other way"

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        seen = runtime.events()
        await run(runtime, "body", retry=SOON)
        with anyio.fail_after(300):
            async for event in seen:
                if getattr(event, "event", "") == "steps_not_asked":
                    break
    assert "double, double#2" in event.text  # type: ignore[union-attr]


async def test_a_flow_keeps_the_version_that_it_began_with(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> list[int]:
        if task.attempt == 1:
            await double(1)
            seen = [await task.version("asked", 3)]
            raise RuntimeError(f"interrupted {seen}")
        await double(1)
        return [await task.version("asked", 4), await task.version("asked", 5), await task.version("new", 2)]

    async def fresh(task: TaskContext) -> int:
        return await task.version("asked", 7)

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        runtime.task(name="fresh")(fresh)
        assert await run(runtime, "body", retry=SOON) == [3, 3, 1]
        assert await run(runtime, "fresh") == 7


@pytest.mark.parametrize("latest", [0, -1])
async def test_a_version_below_the_first_is_refused(open_runtime: Open, latest: int) -> None:
    async def body(task: TaskContext) -> str:
        with pytest.raises(ValueError, match=rf"task.version\('c', {latest}\): versions are 1 and up"):
            await task.version("c", latest)
        return "refused"

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        assert await run(runtime, "body") == "refused"


async def test_parallel_branches_get_their_own_results_in_whatever_order_they_come(open_runtime: Open) -> None:
    @step
    async def pack(order: str) -> str:
        ran.append(f"pack {order}")
        return f"parcel {order}"

    @step
    async def ship(order: str, parcel: str) -> str:
        ran.append(f"ship {order}")
        return f"{order} got {parcel}"

    async def body(task: TaskContext) -> dict[str, str]:
        out: dict[str, str] = {}

        async def one(order: str, turns: int) -> None:
            await double(turns)
            for _ in range(turns if task.attempt == 1 else 0):
                await anyio.sleep(0.001)
            parcel = await pack(order)
            if task.attempt == 1 and order == "A":
                raise RuntimeError("interrupted")
            out[order] = await ship(order, parcel)

        async with anyio.create_task_group() as group:
            group.start_soon(one, "A", 100)
            group.start_soon(one, "B", 1)
        return out

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        value = await run(runtime, "body", retry=SOON)
    assert value == {"A": "A got parcel A", "B": "B got parcel B"}
    assert sorted(one for one in ran if isinstance(one, str)) == ["pack A", "pack B", "ship A", "ship B"]


async def test_a_call_put_before_kept_ones_of_its_name_is_refused_and_gets_no_others_result(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> None:
        if task.attempt == 1:
            await double(1)
            raise RuntimeError("interrupted")
        await double(0)

    async def named(task: TaskContext) -> list[int]:
        first = [] if task.attempt == 1 else [await task.step(step(double.func, name="double the fee"), 0)]
        first.append(await double(1))
        if task.attempt == 1:
            raise RuntimeError("interrupted")
        return first

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        runtime.task(name="named")(named)
        with pytest.raises(AssertionError, match="FlowChanged: step 'double' of this flow was called with other arg"):
            await run(runtime, "body", retry=Retry(max_attempts=5, base_delay=0.0))
        assert await run(runtime, "named", retry=SOON) == [0, 2]
    assert ran == [("double", 1), ("double", 1), ("double", 0)]


async def test_arguments_that_json_cannot_hold_say_nothing(open_runtime: Open) -> None:
    @step
    async def use(client: object, n: int) -> int:
        ran.append(n)
        return n

    async def body(task: TaskContext) -> list[int]:
        seen = [await use(object(), 1), await use(object(), 2)]
        if task.attempt == 1:
            raise RuntimeError("interrupted")
        return seen

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        assert await run(runtime, "body", retry=SOON) == [1, 2]
    assert ran == [1, 2]


@pytest.mark.parametrize("way", ["a client", "a partial", "a partial of a step", "a keyword"])
async def test_arguments_that_json_can_hold_tell_branches_apart_beside_others(way: str, open_runtime: Open) -> None:
    async def pack(client: object, order: str) -> str:
        ran.append(order)
        return f"parcel {order}"

    def call(task: TaskContext, order: str) -> Any:
        match way:
            case "a client":
                return task.step(pack, object(), order)
            case "a keyword":
                return task.step(pack, object(), order=order)
            case "a partial":
                return task.step(functools.partial(pack, None, order))
            case _:
                return task.step(functools.partial(step(pack), order=order), object())

    async def body(task: TaskContext) -> dict[str, str]:
        out: dict[str, str] = {}

        async def one(order: str, done: anyio.Event) -> None:
            out[order] = await call(task, order)
            done.set()

        async with anyio.create_task_group() as group:
            for order in ("A", "B") if task.attempt == 1 else ("B", "A"):
                done = anyio.Event()
                group.start_soon(one, order, done)
                await done.wait()
        if task.attempt == 1:
            raise RuntimeError("interrupted")
        return out

    async def changed(task: TaskContext) -> str:
        packed = await call(task, "A" if task.attempt == 1 else "C")
        raise RuntimeError(f"interrupted with {packed}")

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        runtime.task(name="changed")(changed)
        assert await run(runtime, "body", retry=SOON) == {"A": "parcel A", "B": "parcel B"}
        assert sorted(ran) == ["A", "B"]
        with pytest.raises(AssertionError, match="FlowChanged: step 'pack' of this flow was called with other arg"):
            await run(runtime, "changed", retry=SOON)


async def test_in_a_branch_a_fact_needs_a_name(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> list[Any]:
        keys: dict[str, str] = {}
        refused: list[str] = []

        async def one(order: str) -> None:
            try:
                await task.uuid()
            except RuntimeError as error:
                refused.append(str(error))
            keys[order] = str(await task.uuid(f"payment of {order}"))

        orders = ["A", "B"] if task.attempt == 1 else ["B", "A"]
        async with anyio.create_task_group() as group:
            for order in orders:
                group.start_soon(one, order)
        ran.append(keys)
        if task.attempt == 1:
            raise RuntimeError("interrupted")
        return refused

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        value = await run(runtime, "body", retry=SOON)
    assert ran[0] == ran[1]
    assert all("needs a name" in text for text in value)


class HttpError(Exception):
    """An error as libraries have them: its status is no argument of it."""

    def __init__(self, message: str, status: int = 500) -> None:
        super().__init__(message)
        self.status = status
        self.response = object()


async def test_an_error_has_the_same_attributes_in_a_replay(open_runtime: Open) -> None:
    @step
    async def call(kind: str) -> None:
        if kind == "http":
            raise HttpError("no such order", status=404)
        Path("/nowhere/at/all").read_text(encoding="utf-8")

    async def body() -> list[Any]:
        seen: list[Any] = []
        for kind in ("http", "file"):
            try:
                await call(kind)
            except HttpError as error:
                seen += [str(error), error.status, hasattr(error, "response")]
            except FileNotFoundError as error:
                seen += [str(error), error.errno, str(error.filename)]
        return seen

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        assert await run(runtime, "body") == [
            "no such order",
            404,
            False,
            "[Errno 2] No such file or directory: '/nowhere/at/all'",
            2,
            "/nowhere/at/all",
        ]


class Shop:
    """An object whose methods are steps."""

    def __init__(self, name: str) -> None:
        self.name = name

    @step
    async def charge(self, cents: int) -> str:
        ran.append((self.name, cents))
        return f"{self.name} {cents}"


async def test_a_method_is_a_step_in_every_way_that_a_function_is(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> list[Any]:
        shop = Shop("shop")
        seen = [await shop.charge(1), await task.step(shop.charge, 2), *await task.gather(shop.charge.bind(3))]
        seen.append(await task.step(functools.partial(double, 4)))
        if task.attempt == 1:
            raise RuntimeError("interrupted")
        return seen

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        assert await run(runtime, "body", retry=SOON) == ["shop 1", "shop 2", "shop 3", 8]
    assert ran == [("shop", 1), ("shop", 2), ("shop", 3), ("double", 4)]


async def test_the_retries_of_a_step_are_not_multiplied_by_those_of_its_task(open_runtime: Open) -> None:
    @step(retry=Retry(max_attempts=3, base_delay=0.0, jitter=0.0))
    async def charge() -> None:
        ran.append("charge")
        raise ConnectionError("away")

    async def body() -> None:
        await double(1)
        await charge()

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        with pytest.raises(AssertionError, match="away"):
            await run(runtime, "body")
    assert ran == [("double", 1), *["charge"] * 3]


async def test_a_step_of_a_plain_body_that_ends_as_its_task_is_cancelled_is_kept(open_runtime: Open) -> None:
    began, cancelled = threading.Event(), threading.Event()

    def charge() -> int:
        ran.append("charge")
        began.set()
        assert cancelled.wait(600)
        return 7

    def body(task: TaskContext) -> int:
        return task.step_blocking(charge) + task.step_blocking(half.func, 6)

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        job = await runtime.submit(Workstream("flow", tasks=[Task("t", run="body", engine="thread")]), id="one")
        try:
            await anyio.to_thread.run_sync(began.wait)
            await job.cancel()
            async for _ in job.events(task="t", to_state="cancelling", notices=False):
                break
        finally:
            cancelled.set()
        assert (await job.wait()).state == "cancelled"
        assert (await (await job.retry()).wait()).raise_for_state().results == {"t": 10}
        assert ran == ["charge", ("half", 6)]


async def test_a_cancel_waits_for_a_plain_step_before_hooks_run_and_keeps_its_result(open_runtime: Open) -> None:
    goes_on = threading.Event()

    @step
    def pay() -> str:
        ran.append("pay begins")
        goes_on.wait(600)
        ran.append("pay ends")
        return "paid"

    async def body(task: TaskContext) -> str:
        return await task.step(pay)

    async def refund() -> None:
        ran.append("refund")

    async with open_runtime() as runtime:
        for name, func in (("body", body), ("refund", refund)):
            runtime.task(name=name)(func)
        hooks = [Hook(run="refund")]
        job = await runtime.submit(Workstream("flow", tasks=[Task("t", run="body", cancel_hooks=hooks)]), id="one")
        with anyio.fail_after(300):
            while not ran:
                await anyio.sleep(0.001)
            await job.cancel()
            while job.task("t").record.state != "cancelling":
                await anyio.sleep(0.001)
            goes_on.set()
            await job.wait()
        (row,) = await job.steps("t")
    assert ran == ["pay begins", "pay ends", "refund"]
    assert row.result == "paid"


async def test_a_drain_stops_a_flow_between_two_steps(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> int:
        for n in range(1_000_000):
            await double(n)
        return 1

    async with open_runtime(drain_deadline=600) as runtime:
        runtime.task(name="body")(body)
        job = await runtime.submit(Workstream("flow", tasks=[Task("t", run="body")]), id="one")
        with anyio.fail_after(300):
            while len(ran) < 3:
                await anyio.sleep(0.001)
            await runtime.drain()
        steps = await job.steps("t")
    assert [row.state for row in steps] == ["completed"] * len(ran)


async def test_a_drain_does_not_wait_for_a_step_that_is_shielded_in_finally(open_runtime: Open) -> None:
    async def charge() -> None:
        ran.append("charge")
        await anyio.sleep_forever()

    async def body(task: TaskContext) -> None:
        try:
            await task.step(charge)
        finally:
            with anyio.CancelScope(shield=True):
                for n in range(2):
                    try:
                        await task.step(double.func, n)
                    except BaseException as error:
                        ran.append(type(error).__name__)
                        if not isinstance(error, FlowAsleep):  # it was abandoned, after its grace
                            raise

    async with open_runtime(drain_deadline=600) as runtime:
        runtime.task(name="body")(body)
        job = await runtime.submit(Workstream("flow", tasks=[Task("t", run="body", kill_grace=600)]), id="one")
        with anyio.fail_after(300):
            while not ran:
                await anyio.sleep(0.001)
        await runtime.drain(0)
        assert ran == ["charge", "FlowAsleep", "FlowAsleep"]
        assert (job.task("t").record.state, await job.steps("t")) == ("queued", [])


# -- facts and times ---------------------------------------------------------------------------------------------------


async def test_the_time_ids_and_random_numbers_are_steps(open_runtime: Open) -> None:
    clock = VirtualClock()

    async def body(task: TaskContext) -> list[Any]:
        seen = [str(await task.now()), str(await task.uuid()), await task.random(), await task.random()]
        ran.append(seen)
        clock.advance(60)
        if task.attempt == 1:
            raise RuntimeError("interrupted")
        return seen

    async with open_runtime(clock=clock) as runtime:
        began = datetime.fromtimestamp(clock.time(), UTC)
        runtime.task(name="body")(body)
        value = await run(runtime, "body", retry=SOON)
    assert ran == [value, value]
    assert value[0] == str(began)
    assert value[2] != value[3]


async def test_a_sleep_lends_its_slot_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    clock = VirtualClock()
    first = Runtime(tmp_path / "state.db", clock=clock, workers=[Worker(name="w", engine="loop", capacity=1)])

    async def body(task: TaskContext) -> str:
        await double(1)
        await task.sleep("3d")
        await double(2)
        return "rested"

    async def other() -> str:
        return "ran meanwhile"

    async with first as runtime:
        runtime.task(name="body")(body)
        runtime.task(name="other")(other)
        job = await runtime.submit(Workstream("flow", tasks=[Task("t", run="body")]), id="sleeps")
        await until(lambda: ("double", 1) in ran and runtime._services.host.kernel.lent)
        assert await run(runtime, "other") == "ran meanwhile"
        assert job.state == "running"
    clock.advance(4 * 24 * 3600)
    async with Runtime(tmp_path / "state.db", clock=clock) as runtime:
        runtime.task(name="body")(body)
        runtime.task(name="other")(other)
        outcome = await (await runtime.job("sleeps")).wait()
    assert outcome.results == {"t": "rested"}
    assert ran == [("double", 1), ("double", 2)]


# -- death -------------------------------------------------------------------------------------------------------------

PROGRAM = """
import os, sys
from pathlib import Path
import anyio
from callboard import Runtime, Task, TaskContext, Workstream, step
folder, dies_at = Path(sys.argv[1]), int(sys.argv[2])

def note(what):
    with open(folder / "ran", "a") as file:
        file.write(what + "\\n")

@step
async def even(n):
    note(f"even {n}")
    return n * 2

@step
def odd(n):
    note(f"odd {n}")
    if n == 7:
        raise ValueError("seven")
    return n * 3

async def body(task: TaskContext):
    total = 0
    for n in range(10):
        try:
            total += await (even(n) if n % 2 == 0 else task.step(odd, n))
        except ValueError:
            total += 1000
        if n == dies_at:
            os.kill(os.getpid(), 9)
    return total

async def main():
    async with Runtime(folder / "state.db") as runtime:
        runtime.task(name="body")(body)
        job = await runtime.submit(Workstream("flow", tasks=[Task("t", run="body", max_losses=50)]), id="one")
        print((await job.wait()).results["t"])

anyio.run(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_killed_after_every_step_no_completed_one_runs_twice(loop: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("anyio.run(main)", f"anyio.run(main, backend={loop!r})"))
    with Forks(tmp_path) as forks:
        for dies_at in range(10):
            done = forks.run(program, tmp_path, dies_at)
            assert done.returncode == -9, done.stderr
        done = forks.run(program, tmp_path, 99)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == sum(n * 2 for n in range(0, 10, 2)) + (1 + 3 + 5 + 9) * 3 + 1000
    lines = (tmp_path / "ran").read_text().splitlines()
    assert lines == [f"{'odd' if n % 2 else 'even'} {n}" for n in range(10)]


@pytest.mark.parametrize("ends", [0, 1, 2])
@pytest.mark.parametrize("client", ["a client", object()], ids=["digest", "object"])
@pytest.mark.parametrize("listed", [False, True], ids=["group", "gather"])
async def test_parallel_steps_of_which_some_were_interrupted_run_again_and_only_those(
    open_runtime: Open, ends: int, client: object, listed: bool
) -> None:
    kept = anyio.Event()

    @step
    async def one(client: object, n: int) -> int:
        ran.append(n)
        if n != ends and len(ran) <= 3:
            await anyio.sleep_forever()
        return n

    async def parallel(task: TaskContext) -> list[int]:
        if listed:
            return await task.gather(*(one.bind(client, n) for n in range(3)))
        calls = [task.step(one, client, n) for n in range(3)]  # the numbers are taken here, in the body
        out = dict[int, int]()

        async def later(n: int) -> None:
            out[n] = await calls[n]

        async with anyio.create_task_group() as group:
            for n in range(3):
                group.start_soon(later, n)
        return [out[n] for n in range(3)]

    async def body(task: TaskContext) -> list[int]:
        async with anyio.create_task_group() as group:
            if task.attempt == 1:
                group.start_soon(interrupt)
            return await parallel(task)
        raise AssertionError

    async def interrupt() -> None:
        await kept.wait()
        raise RuntimeError("interrupted")

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        job = await runtime.submit(Workstream("flow", tasks=[Task("t", run="body", retry=SOON)]))
        with anyio.fail_after(300):
            while len(ran) < 3 or not await job.steps("t"):
                await anyio.lowlevel.checkpoint()
        assert [row.number for row in await job.steps("t")] == [ends + 1]
        kept.set()
        outcome = await job.wait()
        assert outcome.state == "completed", outcome.error
        assert outcome.results["t"] == [0, 1, 2]
        assert sorted(row.number for row in await job.steps("t")) == [1, 2, 3]
    assert sorted(ran[3:]) == sorted({0, 1, 2} - {ends})


async def test_a_call_of_the_body_beside_a_kept_one_of_a_branch_is_a_new_step(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> int:
        async with anyio.create_task_group() as group:
            group.start_soon(beside)
            if task.attempt == 1:
                with anyio.CancelScope(shield=True):
                    await branched.wait()
                raise RuntimeError("interrupted")
            return await double(1)
        raise AssertionError

    async def beside() -> None:
        await double(2)
        branched.set()

    branched = anyio.Event()
    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        assert await run(runtime, "body", retry=SOON) == 2
    assert ran == [("double", 2), ("double", 1)]


async def test_a_body_that_was_given_up_runs_no_kept_step_again() -> None:
    """Also before the actors know of its end: otherwise it would begin anew, with an empty history."""
    seen: list[str] = []

    @step
    async def work() -> str:
        seen.append("work")
        return "kept"

    async def body(task: TaskContext) -> str:
        if task.attempt == 2:  # as the engine tells it of a body that it has given up, which goes on
            source: Any = connection_of(task).flows
            source.ended(task.token, completed=False)
        try:
            found = await work()
        except AttemptOver:
            seen.append("over")
            raise
        if task.attempt == 1:
            raise OSError
        return found

    async with Runtime() as runtime:
        tries = Retry(max_attempts=3, base_delay=0.0, jitter=0.0)
        job = await runtime.submit(Workstream("flow", tasks=[Task("t", run=body, retry=tries)]))
        assert (await job.wait()).results == {"t": "kept"}
    assert seen == ["work", "over"]


class Desk:
    @step
    async def open(self, key: str = "brass") -> str:
        return f"opened by {key}"


@step
async def answer() -> int:
    return 42


@step
def plain_answer() -> int:
    return 43


async def test_an_async_step_is_a_coroutine_function_for_who_asks_and_may_be_a_body(open_runtime: Open) -> None:
    asked = inspect.iscoroutinefunction if sys.version_info >= (3, 12) else asyncio.iscoroutinefunction
    method = Desk().open
    assert [asked(one) for one in (answer, method, plain_answer)] == [True, True, False]
    assert [*inspect.signature(method).parameters] == ["key"]
    async with open_runtime() as runtime:
        for name, body in {"answer": answer, "method": method, "plain": plain_answer}.items():
            runtime.task(name=name)(body)
        assert [await run(runtime, name) for name in ("answer", "method", "plain")] == [42, "opened by brass", 43]
