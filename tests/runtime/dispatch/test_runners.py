"""The runner pool: one body at a time per runner, cancels that reach only their body, exactly one end for each."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from callboard.runtime.dispatch.body_context import StrayCancel
from callboard.runtime.dispatch.runners import BodyCancelled, PoolClosed, RunnerPool, Running

pytestmark = pytest.mark.anyio

VAR: contextvars.ContextVar[str] = contextvars.ContextVar("VAR", default="unset")


class Ends:
    """Collects how submissions ended, and lets a test wait for that."""

    def __init__(self) -> None:
        self.all: list[tuple[Any, BaseException | None]] = []
        self._changed = anyio.Event()

    def __call__(self, value: Any, error: BaseException | None) -> None:
        self.all.append((value, error))
        self._changed.set()

    async def wait(self, count: int = 1) -> tuple[Any, BaseException | None]:
        with anyio.fail_after(300):
            while len(self.all) < count:
                self._changed = anyio.Event()
                await self._changed.wait()
        return self.all[-1]


def returning(value: Any) -> Callable[[], Awaitable[Any]]:
    async def body() -> Any:
        return value

    return body


def raising(error: BaseException) -> Callable[[], Awaitable[Any]]:
    async def body() -> None:
        await anyio.lowlevel.checkpoint()
        raise error

    return body


async def settle(turns: int = 10) -> None:
    for _ in range(turns):
        await anyio.lowlevel.checkpoint()


async def test_value_and_error() -> None:
    async with anyio.create_task_group() as group:
        pool = RunnerPool(group)
        ends = Ends()
        pool.submit(returning(3), ends)
        assert await ends.wait() == (3, None)
        problem = ValueError("x")
        pool.submit(raising(problem), ends)
        assert await ends.wait(2) == (None, problem)
        pool.close()
    assert pool.runners == 0


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        SystemExit(3),
        GeneratorExit(),
        BaseException("bare"),
        BaseExceptionGroup("both", [ValueError("a"), KeyboardInterrupt()]),
        StopAsyncIteration(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_a_body_raises_is_the_bodys(error: BaseException) -> None:
    async with anyio.create_task_group() as group:
        pool = RunnerPool(group)
        ends = Ends()
        pool.submit(raising(error), ends)
        assert (await ends.wait())[1] is error
        pool.submit(returning("after"), ends)
        assert await ends.wait(2) == ("after", None)
        assert pool.runners == 1
        pool.close()


async def test_a_function_that_gives_no_awaitable_or_raises_at_once() -> None:
    def broken() -> Awaitable[None]:
        raise LookupError("no such body")

    async with anyio.create_task_group() as group:
        pool = RunnerPool(group)
        ends = Ends()
        pool.submit(broken, ends)
        assert isinstance((await ends.wait())[1], LookupError)
        pool.submit(lambda: 3, ends)  # type: ignore[arg-type, return-value]
        assert isinstance((await ends.wait(2))[1], TypeError)
        pool.close()


async def test_cancel_before_the_start_means_no_start() -> None:
    started: list[int] = []

    async def body() -> None:
        started.append(1)

    async with anyio.create_task_group() as group:
        pool = RunnerPool(group)
        ends = Ends()
        running = pool.submit(body, ends)
        running.cancel()
        running.cancel()
        assert not ends.all  # never inside cancel()
        assert isinstance((await ends.wait())[1], BodyCancelled)
        assert not started
        pool.close()


async def test_cancel_of_a_waiting_body_and_late_cancels() -> None:
    async with anyio.create_task_group() as group:
        pool = RunnerPool(group)
        ends = Ends()
        for number in range(1, 51):
            running = pool.submit(anyio.sleep_forever, ends)
            await settle(3)
            running.cancel()
            assert isinstance((await ends.wait(number))[1], BodyCancelled)
            running.cancel()
        assert pool.runners == 1
        # Nothing of this has an effect on the one runner.
        pool.submit(returning("fine"), ends)
        assert await ends.wait(51) == ("fine", None)
        await settle()
        pool.submit(settle, ends)
        assert await ends.wait(52) == (None, None)
        pool.close()


async def test_a_cancel_as_the_body_ends_does_not_hit_the_next_one() -> None:
    handle: list[Running[Any]] = []

    async def cancels_itself_and_returns() -> str:
        handle[-1].cancel()
        return "done anyway"

    async with anyio.create_task_group() as group:
        pool = RunnerPool(group)
        ends = Ends()
        for number in range(1, 20, 2):
            handle.append(pool.submit(cancels_itself_and_returns, ends))
            pool.submit(settle, ends)
            await ends.wait(number + 1)
            assert ends.all[-2:] in (
                [("done anyway", None), (None, None)],
                [(None, None), ("done anyway", None)],
            )
        pool.close()


async def test_a_swallowed_cancel_is_visible() -> None:
    async def swallows() -> str:
        with contextlib.suppress(BaseException):
            await anyio.sleep_forever()
        return "kept"

    async def turns_it_into_an_error() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise OSError("while cleaning up")

    async with anyio.create_task_group() as group:
        pool = RunnerPool(group)
        ends = Ends()
        for number, body in enumerate((swallows, turns_it_into_an_error), 1):
            running: Running[Any] = pool.submit(body, ends)
            await settle()
            running.cancel()
            await ends.wait(number)
        assert ends.all[0] == ("kept", None)
        assert isinstance(ends.all[1][1], OSError)
        pool.submit(settle, ends)
        assert await ends.wait(3) == (None, None)
        pool.close()


async def test_errors_beside_the_cancel_in_a_group_are_kept() -> None:
    async def fails_while_cancelled() -> None:
        async with anyio.create_task_group() as inner:

            async def child() -> None:
                try:
                    await anyio.sleep_forever()
                finally:
                    raise ValueError("child")

            inner.start_soon(child)
            await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        pool = RunnerPool(group)
        ends = Ends()
        running = pool.submit(fails_while_cancelled, ends)
        await settle()
        running.cancel()
        error = (await ends.wait())[1]
        assert isinstance(error, ExceptionGroup)
        assert [type(one) for one in error.exceptions] == [ValueError]
        pool.close()


async def test_each_body_has_a_context_of_its_own() -> None:
    async def binds(name: str) -> str:
        before = VAR.get()
        VAR.set(name)
        await anyio.lowlevel.checkpoint()
        async with anyio.create_task_group() as inner:
            inner.start_soon(anyio.lowlevel.checkpoint)
        assert VAR.get() == name
        return before

    VAR.set("host")
    seen: list[str] = []
    async with anyio.create_task_group() as group:
        pool = RunnerPool(group, keep=1)
        ends = Ends()

        def done(value: Any, error: BaseException | None) -> None:
            seen.append(VAR.get())
            ends(value, error)

        own = contextvars.Context()
        own.run(VAR.set, "given")
        pool.submit(lambda: binds("a"), done)
        pool.submit(lambda: binds("b"), done)
        pool.submit(lambda: binds("c"), done, context=own)
        await ends.wait(3)
        pool.close()
    assert sorted(value for value, _ in ends.all) == ["given", "host", "host"]
    assert seen == ["host"] * 3
    assert own[VAR] == "c"
    assert VAR.get() == "host"


async def test_runners_started_by_a_body_inherit_nothing_from_it() -> None:
    seen: list[str] = []

    async with anyio.create_task_group() as group:
        pool = RunnerPool(group)
        ends = Ends()

        def done(value: Any, error: BaseException | None) -> None:
            seen.append(VAR.get())
            ends(value, error)

        async def submits() -> None:
            VAR.set("leak")
            for _ in range(5):
                pool.submit(settle, done)
            await settle()

        pool.submit(submits, done)
        await ends.wait(6)
        pool.close()
    assert seen == ["unset"] * 6


async def test_bodies_that_wait_run_together_and_runners_are_kept() -> None:
    async with anyio.create_task_group() as group:
        pool = RunnerPool(group, keep=10)
        ends = Ends()
        gate = anyio.Event()
        for _ in range(100):
            pool.submit(gate.wait, ends)
        await anyio.wait_all_tasks_blocked()
        assert pool.runners == 100
        gate.set()
        await ends.wait(100)
        await anyio.wait_all_tasks_blocked()
        assert pool.runners == pool.idle == 10
        pool.close()
    assert pool.runners == 0


async def test_bodies_that_do_not_wait_need_few_runners_and_let_the_loop_turn() -> None:
    turns = 0

    async def watch() -> None:
        nonlocal turns
        while len(ends.all) < 5000:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        pool = RunnerPool(group)
        ends = Ends()
        for _ in range(5000):
            pool.submit(returning(1), ends)
        group.start_soon(watch)
        await ends.wait(5000)
        assert pool.runners <= 6
        assert turns > 20
        pool.close()


async def test_done_may_submit_the_next() -> None:
    left = 100

    async with anyio.create_task_group() as group:
        pool = RunnerPool(group)
        ends = Ends()

        def done(value: Any, error: BaseException | None) -> None:
            nonlocal left
            left -= 1
            if left:
                pool.submit(returning(left), done)
            else:
                ends(value, error)

        pool.submit(returning(0), done)
        assert await ends.wait() == (1, None)
        assert pool.runners == 1
        pool.close()


async def test_close_lets_submitted_bodies_run_and_refuses_more() -> None:
    async with anyio.create_task_group() as group:
        pool = RunnerPool(group)
        ends = Ends()
        for _ in range(20):
            pool.submit(settle, ends)
        pool.close()
        pool.close()
        with pytest.raises(PoolClosed):
            pool.submit(settle, ends)
    assert ends.all == [(None, None)] * 20


async def test_a_callback_of_asyncio_submits_bodies_too(anyio_backend_name: str) -> None:
    """There anyio finds no event loop: it asks for the present task, and a callback has none."""
    if anyio_backend_name != "asyncio":
        pytest.skip("a callback of asyncio")
    import asyncio

    import sniffio

    sniffio.current_async_library_cvar.set(None)  # as in a program of asyncio
    async with anyio.create_task_group() as group:
        pool, ends = RunnerPool(group), Ends()
        submit = partial(pool.submit, returning(1), ends)
        asyncio.get_running_loop().call_soon(submit, context=contextvars.Context())
        assert await ends.wait() == (1, None)
        pool.close()


async def test_cancelling_the_host_ends_every_body_once() -> None:
    cleaned: list[int] = []

    async def body() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cleaned.append(1)

    ends = Ends()
    async with anyio.create_task_group() as group:
        pool = RunnerPool(group)
        for _ in range(30):
            pool.submit(body, ends)
        await anyio.wait_all_tasks_blocked()
        for _ in range(30):
            pool.submit(body, ends)
        group.cancel_scope.cancel()
    assert len(ends.all) == 60
    assert all(isinstance(error, BodyCancelled) for _, error in ends.all)
    assert len(cleaned) >= 30
    assert pool.runners == 0


async def test_cancelling_the_host_beside_a_failing_body_is_a_cancellation_only() -> None:
    async def body() -> None:
        async with anyio.create_task_group() as inner:
            inner.start_soon(anyio.sleep_forever)
            try:
                await anyio.sleep_forever()
            finally:
                raise ValueError("while the host is cancelled")

    ends = Ends()
    async with anyio.create_task_group() as group:
        pool = RunnerPool(group)
        pool.submit(body, ends)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert isinstance(ends.all[0][1], ExceptionGroup)
    assert len(ends.all) == 1


async def test_a_cancelled_error_that_the_body_made_is_its_own(anyio_backend_name: str) -> None:
    if anyio_backend_name != "asyncio":
        pytest.skip("only asyncio lets a body raise its cancellation")
    import asyncio

    async def awaits_a_cancelled_future() -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    async with anyio.create_task_group() as group:
        pool = RunnerPool(group)
        ends = Ends()
        pool.submit(awaits_a_cancelled_future, ends)
        assert isinstance((await ends.wait())[1], asyncio.CancelledError)
        pool.submit(settle, ends)
        assert await ends.wait(2) == (None, None)
        pool.close()


async def test_native_cancellation_of_a_host_task_goes_through(anyio_backend_name: str) -> None:
    if anyio_backend_name != "asyncio":
        pytest.skip("asyncio's own kind of cancellation")
    import asyncio

    ends = Ends()

    async def host() -> None:
        async with anyio.create_task_group() as group:
            RunnerPool(group).submit(anyio.sleep_forever, ends)
            await anyio.sleep_forever()

    task = asyncio.ensure_future(host())
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert isinstance(ends.all[0][1], BodyCancelled)


@pytest.mark.parametrize("then", ["returns", "waits", "raises", "swallows"])
async def test_a_body_that_cancels_its_own_task_ends_only_itself(then: str, anyio_backend_name: str) -> None:
    if anyio_backend_name != "asyncio":
        pytest.skip("asyncio's own kind of cancellation")
    import asyncio

    async def cancels_itself() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if then == "raises":
            raise ValueError("its own")
        if then == "swallows":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
        elif then == "waits":
            await asyncio.sleep(60)
        return "returned"

    async with anyio.create_task_group() as group:
        pool = RunnerPool(group)
        ends = Ends()
        pool.submit(cancels_itself, ends)
        for _ in range(40):
            pool.submit(settle, ends)
        await ends.wait(41)
        odd = [end for end in ends.all if end != (None, None)]
        await settle()
        assert pool.idle == pool.runners > 0
        pool.close()
    assert len(odd) == 1
    if then == "swallows":  # like a timeout that does not take its cancel back: the body has handled the cancel
        assert odd[0] == ("returned", None)
    else:
        assert isinstance(odd[0][1], StrayCancel)
        assert "cancelled its own task" in str(odd[0][1])
    assert pool.runners == 0
    assert not group.cancel_scope.cancel_called


async def test_a_cancel_that_hits_a_parked_runner_ends_only_that_one(anyio_backend_name: str) -> None:
    if anyio_backend_name != "asyncio":
        pytest.skip("asyncio's own kind of cancellation")
    import asyncio

    tasks: list[asyncio.Task[Any] | None] = []

    async def shows_its_task() -> None:
        tasks.append(asyncio.current_task())

    async with anyio.create_task_group() as group:
        pool = RunnerPool(group)
        ends = Ends()
        pool.submit(shows_its_task, ends)
        await ends.wait()
        await settle()
        assert tasks[0] is not None
        tasks[0].cancel()
        await settle()
        assert (pool.runners, pool.idle) == (0, 0)
        pool.submit(returning(2), ends)
        assert await ends.wait(2) == (2, None)
        pool.close()


async def test_the_host_s_cancellation_goes_through_a_body_that_cancels_itself(anyio_backend_name: str) -> None:
    if anyio_backend_name != "asyncio":
        pytest.skip("asyncio's own kind of cancellation")
    import asyncio

    async def cancels_itself() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

    ends = Ends()
    with anyio.fail_after(300):
        async with anyio.create_task_group() as group:
            pool = RunnerPool(group)
            pool.submit(cancels_itself, ends)
            await settle()
            group.cancel_scope.cancel()
    assert isinstance(ends.all[0][1], BodyCancelled)
    assert pool.runners == 0


async def test_scopes_that_a_body_left_open_are_closed(anyio_backend_name: str) -> None:
    async def numbers() -> AsyncIterator[int]:
        with anyio.move_on_after(0.01):
            yield 1

    kept: list[Any] = []

    async def leaves_a_generator_open() -> int:
        generator = numbers()
        kept.append(generator)
        return await anext(generator)

    async def leaves_a_group_open() -> None:
        await anyio.create_task_group().__aenter__()

    async def is_hit_by_its_own() -> None:
        anyio.CancelScope(deadline=anyio.current_time()).__enter__()
        await anyio.sleep_forever()

    async def waits() -> str:
        await anyio.sleep(0.03)
        return "not hit"

    async with anyio.create_task_group() as group:
        pool = RunnerPool(group)
        ends = Ends()
        bodies: list[Callable[[], Awaitable[Any]]] = [leaves_a_generator_open, is_hit_by_its_own]
        if anyio_backend_name == "asyncio":
            bodies.append(leaves_a_group_open)  # trio keeps account of its nurseries, and ends the task's host
        for number, body in enumerate(bodies, 1):
            pool.submit(body, ends)
            await ends.wait(2 * number - 1)
            pool.submit(waits, ends)
            assert await ends.wait(2 * number) == ("not hit", None)
            assert pool.scopes_left_open == number
        assert ends.all[0] == (1, None)
        assert isinstance(ends.all[2][1], anyio.get_cancelled_exc_class())
        assert pool.runners == 1
        running = pool.submit(anyio.sleep_forever, ends)
        await settle()
        running.cancel()
        assert isinstance((await ends.wait(2 * len(bodies) + 1))[1], BodyCancelled)
        pool.close()
    with contextlib.suppress(RuntimeError):  # it finds its scope closed already, and raises
        await kept[0].aclose()
