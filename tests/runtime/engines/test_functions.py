"""Functions as bodies, on the loop and in threads: their arguments, results and errors."""

from __future__ import annotations

import datetime
import functools
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.processes import threads
from tests.waiting import until

from callboard.actors.messages.errors import Permanent, RetryAfter, TaskCancelled
from callboard.runtime.calling import Outcome
from callboard.runtime.engines.context import TaskContext
from callboard.runtime.engines.contract import Call
from callboard.runtime.engines.thread import ThreadEngine

from .helpers import Bench, open_bench

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["loop", "thread"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def body(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """The plain function in the form that the engine takes."""
    if name == "thread":
        return plain

    @functools.wraps(plain)
    async def asynchronous(*args: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        return plain(*args)

    return asynchronous


async def run(bench: Bench, func: Callable[..., Any], token: int = 1, **facts: Any) -> Outcome:
    context = TaskContext(task="t", token=token, **facts)
    bound = {"workstream_id": context.workstream_id, "task": "t", "attempt": context.attempt}
    bench.start_call(Call(token=token, func=func, context=context, bound=bound))
    return await bench.record.outcome(token)


RAISED: list[BaseException] = [
    ValueError("no"),
    KeyboardInterrupt(),
    SystemExit(2),
    GeneratorExit(),
    BaseException("bare"),
    ExceptionGroup("both", [ValueError("a"), OSError("b")]),
    BaseExceptionGroup("worse", [KeyboardInterrupt(), ValueError("a")]),
    TaskCancelled("though nobody cancelled"),
    StopIteration(3),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
async def test_whatever_is_raised_is_a_failed_outcome(name: str, tmp_path: Path, error: BaseException) -> None:
    def raises() -> None:
        raise error

    async with open_bench(name, tmp_path) as bench:
        outcome = await run(bench, body(name, raises))
        assert outcome.status == "failed"
        assert outcome.error is not None
        # A coroutine cannot raise StopIteration: Python turns it into a RuntimeError.
        turned = isinstance(error, StopIteration) and name == "loop"
        several = error.exceptions if isinstance(error, BaseExceptionGroup) else [error]  # a group counts as its errors
        names = ", ".join(sorted(type(one).__qualname__ for one in several))
        assert outcome.error.type == ("RuntimeError" if turned else names)
        assert "raises" in outcome.error.traceback
        assert (await run(bench, body(name, lambda: "after"), token=2)).value == "after"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(object(), "result is a builtins.object", id="object"),  # its text is another in each process
        ({"at": [1, datetime.date(2020, 1, 1)]}, "result['at'][1] is a datetime.date"),
        (b"bytes", "bytes"),
        ({1: "x"}, "key 1"),
        (2**63, "64 bits"),
        (math.nan, "nan"),
        ("\ud800", "lone surrogate"),
        ({"\udfff": 1}, "lone surrogate"),
        ({1, 2}, "builtins.set"),
    ],
    ids=str,
)
async def test_what_json_cannot_hold_is_a_failure_not_a_lost_value(
    name: str, tmp_path: Path, value: Any, text: str
) -> None:
    async with open_bench(name, tmp_path) as bench:
        outcome = await run(bench, body(name, lambda: value))
    assert (outcome.status, outcome.value) == ("failed", None)
    assert outcome.error is not None
    assert (outcome.error.type, outcome.error.permanent) == ("result_not_serialisable", True)
    assert text in outcome.error.message


async def test_what_a_body_asks_for_is_recorded(name: str, tmp_path: Path) -> None:
    def later() -> None:
        raise RetryAfter(7.5)

    def never() -> None:
        raise Permanent("wrong key")

    async with open_bench(name, tmp_path) as bench:
        first = (await run(bench, body(name, later))).error
        second = (await run(bench, body(name, never), token=2)).error
    assert first is not None
    assert (first.retry_after, first.permanent, first.category) == (7.5, False, "transient")
    assert second is not None
    assert (second.type, second.message, second.permanent) == ("Permanent", "wrong key", True)


async def test_a_body_is_given_its_facts(name: str, tmp_path: Path) -> None:
    def facts(task: TaskContext) -> Any:
        return [
            task.task, task.token, task.attempt, task.job_id, task.workstream_id, task.results, task.details, task.args
        ]  # fmt: skip

    async with open_bench(name, tmp_path) as bench:
        outcome = await run(
            bench, body(name, facts), token=9, attempt=2, job_id="j", workstream_id="w",
            results={"a": 1}, details=[3], args={"x": 1},
        )  # fmt: skip
    assert outcome.value == ["t", 9, 2, "j", "w", {"a": 1}, [3], {"x": 1}]


async def test_heartbeats_carry_checked_details(name: str, tmp_path: Path) -> None:
    gate = threading.Event()

    def beats(task: TaskContext) -> str:
        task.heartbeat()
        for number in range(1000):
            task.heartbeat({"done": number, "pair": (1, 2)})
        try:
            task.heartbeat(object())
        except TypeError as error:
            return str(error)
        return "nothing was said"

    kept: list[TaskContext] = []

    def keeps(task: TaskContext) -> None:
        kept.append(task)

    async with open_bench(name, tmp_path) as bench:
        outcome = await run(bench, body(name, beats))
        assert "the heartbeat's details is a builtins.object" in outcome.value
        await bench.record.until(lambda: bench.record.beats)
        assert bench.record.beats[-1] == (1, {"done": 999, "pair": [1, 2]})
        # After the end of the attempt its messages have no receiver.
        await run(bench, body(name, keeps), token=2)
        before = len(bench.record.beats)
        kept[0].heartbeat("late")
        await run(bench, body(name, lambda: None), token=3)
        assert len(bench.record.beats) == before
    gate.set()


VAR: ContextVar[str] = ContextVar("VAR", default="unset")


async def test_context_variables_do_not_leak_between_bodies(name: str, tmp_path: Path) -> None:
    def binds() -> str:
        before = VAR.get()
        VAR.set("bound")
        return before

    VAR.set("host")
    async with open_bench(name, tmp_path) as bench:
        for token in range(1, 4):
            assert (await run(bench, body(name, binds), token)).value == "host"
    assert VAR.get() == "host"


async def test_log_lines_inside_a_body_carry_its_names(name: str, tmp_path: Path) -> None:
    import structlog
    import structlog.testing

    def logs(task: TaskContext) -> None:
        task.log.info("mine")
        structlog.get_logger().info("anybody's")

    from structlog.contextvars import merge_contextvars

    async with open_bench(name, tmp_path) as bench:
        capture = structlog.testing.LogCapture()
        structlog.configure(processors=[merge_contextvars, capture])
        try:
            await run(bench, body(name, logs), attempt=3, workstream_id="w")
            structlog.get_logger().info("outside")
        finally:
            structlog.reset_defaults()
    fields = {"workstream_id": "w", "task": "t", "attempt": 3, "log_level": "info"}
    assert capture.entries == [
        {**fields, "event": "mine"},
        {**fields, "event": "anybody's"},
        {"log_level": "info", "event": "outside"},
    ]


async def test_functions_that_want_too_much_are_refused(name: str, tmp_path: Path) -> None:
    async with open_bench(name, tmp_path) as bench:
        outcome = await run(bench, lambda task, other: None)
        bench.start_call(Call(token=2, kind="hook", func=lambda task: None))
        second = await bench.record.outcome(2)
    assert outcome.error is not None
    assert "takes nothing, or one argument: the TaskContext" in outcome.error.message
    assert second.error is not None
    assert "this kind of call (hook) has no context" in second.error.message


async def test_the_loop_runs_plain_functions_too(tmp_path: Path) -> None:
    async with open_bench("loop", tmp_path) as bench:
        assert (await run(bench, lambda: 5)).value == 5


async def test_a_thread_does_not_run_a_coroutine(tmp_path: Path) -> None:
    async def misplaced() -> None: ...

    async with open_bench("thread", tmp_path) as bench:
        outcome = await run(bench, misplaced)
    assert outcome.error is not None
    assert "async def" in outcome.error.message


async def test_a_stop_that_is_swallowed_is_visible(tmp_path: Path) -> None:
    async def swallows(task: TaskContext) -> str:
        try:
            task.heartbeat()
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            return "kept"
        return "never"

    async with open_bench("loop", tmp_path) as bench:
        bench.start_call(Call(token=1, func=swallows, context=TaskContext(task="t", token=1)))
        await bench.record.until(lambda: bench.record.beats)
        bench.engine.stop(1)
        outcome = await bench.record.outcome(1)
    assert (outcome.status, outcome.value) == ("ok", "kept")


async def test_force_gives_a_body_with_manners_a_moment(tmp_path: Path) -> None:
    async with open_bench("loop", tmp_path) as bench:
        bench.start(1, "patient")
        await bench.record.until(lambda: bench.record.beats)
        bench.engine.stop(1, force=True)
        assert (await bench.record.outcome(1)).status == "cancelled"
        assert not bench.engine.late_results


async def test_threads_are_kept_replaced_and_dismissed(tmp_path: Path) -> None:
    running = threads("callboard-thread")
    async with open_bench("thread", tmp_path) as bench:
        engine = bench.engine
        assert isinstance(engine, ThreadEngine)
        for token in range(1, 20):
            await run(bench, lambda: None, token)
        assert engine.threads == 1
        bench.start(20, "stubborn")
        await bench.record.until(lambda: bench.record.beats)
        engine.stop(20, force=True)
        await bench.record.outcome(20)
        assert engine.threads == 0
        await run(bench, lambda: None, 21)
        assert engine.threads == 1
        bench.release()
        await until(lambda: engine.threads == 2)
        assert engine.late_results == 1
        # A wave of calls needs many threads; after it only so many threads stay.
        barrier = threading.Barrier(51)
        for token in range(100, 150):
            bench.start_call(Call(token=token, func=lambda: barrier.wait(600) and None))
        await anyio.to_thread.run_sync(barrier.wait)
        await bench.record.until(lambda: all(token in bench.record.outcomes for token in range(100, 150)))
        assert engine.threads == 32
    await until(lambda: threads("callboard-thread") <= running)


ENDLESS = """
import anyio, threading
from callboard.runtime.engines.contract import Call
from callboard.runtime.engines.thread import ThreadEngine

async def main():
    engine = ThreadEngine()
    await engine.open()
    began = threading.Event()
    def endless():
        began.set()
        threading.Event().wait()
    engine.start(Call(token=1, func=endless), lambda outcome: print(outcome.status), lambda *_: None)
    await anyio.to_thread.run_sync(began.wait)
    await engine.close(0.05)

anyio.run(main)
"""


def test_a_body_that_never_ends_does_not_hold_up_the_interpreters_exit() -> None:
    root = Path(__file__).resolve().parents[3]
    ended = subprocess.run(
        [sys.executable, "-c", ENDLESS],
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "abandoned\n", "")
