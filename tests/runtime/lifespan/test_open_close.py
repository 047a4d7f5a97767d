"""A runtime that is opened in one task and closed in another."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard import Runtime, Task, Workstream
from callboard.errors import RuntimeClosed
from callboard.runtime.journal.sqlite.journal import SqliteReader
from callboard.runtime.loaded_modules import under_trio
from callboard.testing import VirtualRuntime

pytestmark = pytest.mark.anyio

said: contextvars.ContextVar[str] = contextvars.ContextVar("said", default="nothing")


async def weigh() -> int:
    return 41


async def endless() -> None:
    await anyio.sleep_forever()


async def what_is_said() -> str:
    return said.get()


def of(run: Any) -> Workstream:
    return Workstream("one", tasks=[Task("one", run=run)])


async def in_a_task(func: Any, *args: Any) -> Any:
    """Do something in a task of the event loop that ends with it, as a fixture, a cell or a framework does."""
    result: list[Any] = []

    async def do() -> None:
        try:
            result.append(await func(*args))
        except Exception as error:
            result.append(error)

    if under_trio():
        import trio

        async with trio.open_nursery() as nursery:
            nursery.start_soon(do)
    else:
        await asyncio.create_task(do())
    if isinstance(result[0], Exception):
        raise result[0]
    return result[0]


async def is_free(path: Path) -> None:
    async with Runtime(path, drain_deadline=0):
        pass


async def use(runtime: Runtime) -> Any:
    return (await (await runtime.submit(of(weigh))).wait()).results


async def test_it_is_opened_used_and_closed_by_three_tasks(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path / "state.db")
    with anyio.fail_after(300):
        assert await in_a_task(runtime.open) is runtime
        assert await in_a_task(use, runtime) == {"one": 41}
        await in_a_task(runtime.close)
        assert not runtime.is_open
        with pytest.raises(RuntimeClosed, match="was closed"):
            await use(runtime)
        await is_free(tmp_path / "state.db")


async def test_the_block_is_entered_in_one_task_and_left_in_another(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path / "state.db")
    with anyio.fail_after(300):
        await in_a_task(runtime.__aenter__)
        assert await use(runtime) == {"one": 41}
        await in_a_task(runtime.__aexit__, None, None, None)
        await is_free(tmp_path / "state.db")


async def test_it_is_opened_within_a_scope_that_ends_before_it(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path / "state.db")
    with anyio.fail_after(300):
        await runtime.open()
    with anyio.fail_after(300):
        assert await use(runtime) == {"one": 41}
    with anyio.fail_after(300):
        await runtime.close()


async def test_two_are_closed_in_the_order_of_their_opening(tmp_path: Path) -> None:
    first, second = Runtime(tmp_path / "first.db"), Runtime(tmp_path / "second.db")
    with anyio.fail_after(300):
        await first.open()
        await second.open()
        await first.close()
        assert await use(second) == {"one": 41}
        await second.close()


async def test_closing_lets_running_bodies_end_and_one_that_is_cancelled_stops_them(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path / "state.db", drain_deadline=1000)
    with anyio.fail_after(300):
        await runtime.open()
        job = await runtime.submit(of(endless), id="one")
        while job.task("one").record.state != "running":
            await anyio.sleep(0.001)
        async with anyio.create_task_group() as group:
            group.start_soon(runtime.close)
            while not runtime._services.host.kernel.scheduler.stopped:
                await anyio.sleep(0.001)
            group.cancel_scope.cancel()
        assert not runtime.is_open
        with pytest.raises(RuntimeClosed):
            await job.wait()
    reader = SqliteReader(tmp_path / "state.db")
    task = reader.tasks(reader.workstreams("one")[0].key)[0]
    assert (task.state, task.failed_attempts, task.lost_attempts) == ("queued", 0, 0)
    reader.close()


async def test_it_is_opened_once_and_closed_as_often_as_anybody_likes(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path / "state.db")
    with anyio.fail_after(300):
        await runtime.close()  # was never opened: there is nothing to close
        await runtime.open()
        with pytest.raises(RuntimeError, match="this one is in use"):
            await runtime.open()
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(runtime.close)
        await runtime.close()
        with pytest.raises(RuntimeError, match="this one was closed"):
            await runtime.open()
        await is_free(tmp_path / "state.db")


@pytest.mark.parametrize("steps", [0, 1, 3, 10, 20])
async def test_who_opens_one_that_is_closed_meanwhile_is_told(steps: int, tmp_path: Path) -> None:
    runtime = Runtime(tmp_path / "state.db")
    refusals: list[RuntimeClosed] = []

    async def opens() -> None:
        try:
            await runtime.open()
        except RuntimeClosed as error:
            refusals.append(error)

    with anyio.fail_after(300):
        async with anyio.create_task_group() as group:
            group.start_soon(opens)
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            opening = runtime._services.status.entered and not runtime.is_open
            await runtime.close()
            if opening and not runtime.is_open:
                await anyio.wait_all_tasks_blocked()
                assert [str(one) for one in refusals] == ["the runtime was closed while it was being opened"]
        await runtime.close()
        await is_free(tmp_path / "state.db")


async def test_an_opening_that_is_refused_leaves_it_closed(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"no journal, but long enough to be taken for one" * 100)
    runtime = Runtime(tmp_path / "state.db")
    with anyio.fail_after(300):
        with pytest.raises(Exception, match="state"):
            await runtime.open()
        await runtime.close()


async def test_a_body_cannot_close_what_it_runs_in_and_wait_for_itself(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path / "state.db")

    async def closes() -> str:
        with pytest.raises(RuntimeError, match="cannot be closed by code that runs in it") as told:
            await runtime.close()
        return str(told.value)

    with anyio.fail_after(300):
        await runtime.open()
        runtime.task(closes)
        outcome = await (await runtime.submit(of("closes"))).wait()
        assert outcome.ok, outcome.error
        await runtime.close()


async def test_bodies_have_the_context_of_who_opened_it(tmp_path: Path) -> None:
    async def opens(runtime: Runtime) -> None:
        said.set("by the opener")
        await runtime.open()

    runtime = Runtime(tmp_path / "state.db")
    with anyio.fail_after(300):
        await in_a_task(opens, runtime)
        outcome = await (await runtime.submit(of(what_is_said))).wait()
        assert outcome.results == {"one": "by the opener"}
        assert said.get() == "nothing"
        await runtime.close()


def breaks(*_: object) -> None:
    raise ArithmeticError("a bug of its own")


async def test_one_that_breaks_is_left_tells_it_and_everybody_who_uses_it_has_the_cause(tmp_path: Path) -> None:
    heard: list[str] = []
    runtime = Runtime(tmp_path / "state.db", drain_deadline=1000)
    runtime.on_trouble = lambda notice: heard.append(notice.event)
    with anyio.fail_after(300):
        await runtime.open()
        job = await runtime.submit(of(endless))
        runtime._services.dispatcher.timers.arm(0.0, breaks)
        with pytest.raises(RuntimeClosed, match="a bug of its own"):
            await job.wait()
        with pytest.raises(RuntimeClosed, match="a bug of its own") as raised:
            await runtime.submit(of(weigh))
        assert isinstance(raised.value.__cause__, ArithmeticError)
        assert heard == ["runtime_broken"]
        assert not runtime.health.ok
        assert "a bug of its own" in str(runtime.health.reason)
        while not runtime._services.status.left:  # without a close
            await anyio.sleep(0.001)
        await is_free(tmp_path / "state.db")
        for _ in range(2):
            with pytest.raises(RuntimeClosed, match="a bug of its own"):
                await in_a_task(runtime.close)


async def test_the_code_inside_is_cancelled_only_where_it_is_still_there(tmp_path: Path) -> None:
    """Entered by a task that has ended, it cancels nobody."""
    runtime = Runtime(tmp_path / "state.db", drain_deadline=1000)
    with anyio.fail_after(300):
        await in_a_task(runtime.__aenter__)
        runtime._services.dispatcher.timers.arm(0.0, breaks)
        while not runtime._services.status.left:
            await anyio.sleep(0.001)
        with pytest.raises(RuntimeClosed, match="a bug of its own"):
            await runtime.__aexit__(None, None, None)


async def test_an_error_of_the_code_inside_passes_as_it_is(tmp_path: Path) -> None:
    with anyio.fail_after(300), pytest.raises(ZeroDivisionError):
        async with Runtime(tmp_path / "state.db"):
            raise ZeroDivisionError
    with anyio.fail_after(300), pytest.raises(RuntimeClosed) as raised:
        async with Runtime(tmp_path / "state.db", drain_deadline=1000) as runtime:
            job = await runtime.submit(of(endless))
            runtime._services.dispatcher.timers.arm(0.0, breaks)
            try:
                await job.wait()
            except RuntimeClosed as error:
                told = error
                raise
    assert raised.value is told


async def test_ctrl_c_that_hits_the_dispatcher_reaches_the_program(
    anyio_backend: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    """trio raises it wherever the program just is."""
    if anyio_backend[0] != "trio":
        pytest.skip("asyncio raises it in the main task")
    program = """
        import signal, sys, trio
        from callboard import Runtime

        async def main():
            runtime = Runtime("state.db")
            await runtime.open()
            runtime._services.dispatcher.timers.arm(0.0, lambda: signal.raise_signal(signal.SIGINT))
            try:
                await trio.sleep_forever()
            except KeyboardInterrupt:
                print("interrupted")

        trio.run(main)
    """
    assert run(program, tmp_path).stdout == "interrupted\n"


def run(program: str, folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "dev", "-c", textwrap.dedent(program), *args],
        cwd=folder, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


NEVER_CLOSED = """
    import sys, anyio
    from callboard import Runtime, Task, Workstream

    async def endless():
        await anyio.sleep_forever()

    async def main():
        runtime = Runtime("state.db")
        await runtime.open()
        job = await runtime.submit(Workstream("w", tasks=[Task("a", run=endless)]), id="one")
        while job.task("a").record.state != "running":
            await anyio.sleep(0.001)
        globals()["kept"] = runtime

    anyio.run(main, backend=sys.argv[1])
    print("ended")
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_program_that_never_closes_it_ends_all_the_same_and_is_told(backend: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(NEVER_CLOSED))
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "program.py", backend], cwd=tmp_path, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "ended\n"), ended.stderr
    assert "not_closed" in ended.stderr
    assert "runtime_broken" not in ended.stderr
    assert "never retrieved" not in ended.stderr
    assert "Traceback" not in ended.stderr
    reader = SqliteReader(tmp_path / "state.db")
    assert reader.job("one") is not None
    reader.close()


RAISES = """
    import asyncio, sys
    from callboard import Runtime, Task, Workstream

    async def endless():
        await asyncio.sleep(600)

    class Odd(ValueError):
        def __bool__(self):
            return False

    async def uses(runtime, ready):
        job = await runtime.submit(Workstream("w", tasks=[Task("a", run=endless)]), id="one")
        while job.task("a").record.state != "running":
            await asyncio.sleep(0.001)
        ready.set()

    async def holds(runtime, ready):
        async with runtime:
            await uses(runtime, ready)
            await asyncio.sleep(600)

    async def lends(runtime, ready):
        async with runtime:
            await uses(runtime, ready)
            yield

    async def raises(ready):
        await ready.wait()
        raise Odd("the application's")

    async def main(runtime):
        ready = asyncio.Event()
        match sys.argv[1]:
            case "beside":
                kept = asyncio.create_task(holds(runtime, ready))
                await raises(ready)
            case "gather":
                await asyncio.gather(holds(runtime, ready), raises(ready))
            case "open":
                await uses(await runtime.open(), ready)
                await raises(ready)
            case "generator":
                async for _ in lends(runtime, ready):
                    await raises(ready)
            case "inside":
                async with runtime:
                    await uses(runtime, ready)
                    await raises(ready)
            case "group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(holds(runtime, ready))
                    group.create_task(raises(ready))

    runtime = Runtime("state.db")
    try:
        asyncio.run(main(runtime))
    except* ValueError:
        print("raised;", runtime.health.reason or "was left")
"""
CUT_SHORT = "the runtime has closed (it was cut short: its event loop ended, or all tasks of the loop were cancelled)"


@pytest.mark.parametrize("way", ["beside", "gather", "open", "generator", "inside", "group"])
def test_an_error_that_ends_the_program_is_no_break_of_the_runtime(way: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(RAISES))
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "program.py", way], cwd=tmp_path, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    left = way in {"inside", "group"}
    assert ended.stdout == f"raised; {'was left' if left else CUT_SHORT}\n", ended.stderr
    assert ("not_closed" not in ended.stderr) if left else (ended.stderr.count("not_closed") == 1)
    assert "broken" not in ended.stderr
    assert "RuntimeClosed" not in ended.stderr
    with closing(SqliteReader(tmp_path / "state.db")) as reader:
        assert reader.job("one") is not None


async def test_a_virtual_runtime_is_opened_and_closed_anywhere_too() -> None:
    runtime = VirtualRuntime()
    runtime.body("one", takes="2s", returns=1)
    with anyio.fail_after(300):
        await in_a_task(runtime.open)
        job = await runtime.submit(of(weigh))
        await runtime.advance("3s")
        assert (await job.wait()).results == {"one": 1}
        await in_a_task(runtime.close)
    unused = VirtualRuntime()
    unused.body("nobody")
    await unused.open()
    with pytest.warns(UserWarning, match="nobody"):
        await unused.close()
