"""A runtime and its objects used in another thread or on another event loop; and the portal for that."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
from anyio.abc import TaskGroup
from anyio.from_thread import start_blocking_portal
from tests.waiting import until

from callboard import (
    Actor,
    Fire,
    Machine,
    MachineActor,
    Runtime,
    State,
    Task,
    TaskContext,
    Transition,
    Worker,
    Workstream,
)
from callboard.errors import RuntimeClosed

pytestmark = pytest.mark.anyio

DOOR = Machine(
    "door", "shut", states=[State("shut", bounded_by="somebody"), State("gone", terminal=True)],
    transitions=[Transition("shut", "remove", "gone")],
)  # fmt: skip
REFUSED = r"is used on another one, or in another thread.*runtime\.portal\.call"


class Echo(Actor):
    """Answers each message, unless it has to postpone the answer: then it keeps the objects for a later answer."""

    kept: Any = None

    def receive(self, message: Any, ctx: Any) -> Any:
        if message == "put it off":
            Echo.kept = ctx, ctx.reply_later(), ctx.after(3_600, "hello")
            return None
        return message


async def quick() -> int:
    return 41


async def endless() -> None:
    await anyio.sleep_forever()


def of(run: Any) -> Workstream:
    return Workstream("one", tasks=[Task("one", run=run)])


class Things:
    """One of everything."""

    def __init__(self, runtime: Runtime, ended: Any) -> None:
        self.runtime, self.ended = runtime, ended
        self.ref = runtime.spawn(Echo, name="echo")
        self.machine = runtime.spawn(MachineActor(DOOR), name="front")
        self.told = runtime.events()
        self.began = anyio.Event()

    async def begin(self, asking: TaskGroup) -> None:
        """Start a job, and make an actor postpone an answer."""
        body = self.runtime.task(partial(self.body), name="body")
        job = Workstream("one", tasks=[Task("one", run=body, tool="press")])
        self.job: Any = await self.runtime.submit(job, id="job")
        self.its_own = self.job.events()
        await self.began.wait()
        asking.start_soon(self.ref.ask, "put it off")
        while await self.ref.ask("hello") and Echo.kept is None:
            pass
        (self.ctx, self.later, self.timer), Echo.kept = Echo.kept, None

    async def body(self, task: TaskContext) -> None:
        """The body of the job."""
        self.task: Any = task
        self.child: Any = await task.submit(of(endless), name="first")
        self.began.set()
        await anyio.sleep_forever()


USES: dict[str, Callable[[Things], Any]] = {
    "submit": lambda it: it.runtime.submit(of(quick)),
    "submit by id": lambda it: it.runtime.submit(of(quick), id="again"),
    "job": lambda it: it.runtime.job("job"),
    "spawn": lambda it: it.runtime.spawn(Echo),
    "spawn a machine": lambda it: it.runtime.spawn(MachineActor(DOOR), name="back"),
    "nodes": lambda it: it.runtime.nodes(),
    "events": lambda it: it.runtime.events(),
    "drain": lambda it: it.runtime.drain(0),
    "close": lambda it: it.runtime.close(),
    "wait": lambda it: it.job.wait(),
    "events of a job": lambda it: it.job.events(),
    "the next event": lambda it: anext(it.told),
    "the next event of a job": lambda it: anext(it.its_own),
    "cancel": lambda it: it.job.cancel(),
    "pause": lambda it: it.job.pause(),
    "resume": lambda it: it.job.resume(),
    "retry": lambda it: it.ended.retry("one"),
    "skip": lambda it: it.ended.skip("one"),
    "approve": lambda it: it.job.task("one").approve(by="ana"),
    "reject": lambda it: it.job.reject(by="ana"),
    "cancel a task": lambda it: it.job.task("one").cancel(),
    "children": lambda it: it.job.children(),
    "skip a task": lambda it: it.ended.task("one").skip(),
    "reset a task": lambda it: it.job.task("one").reset(),
    "leave": lambda it: it.runtime.__aexit__(None, None, None),
    "leave by an error": lambda it: it.runtime.__aexit__(ValueError, ValueError("odd"), None),
    "start a worker": lambda it: it.runtime.start_worker(Worker("more", engine="thread", capacity=1)),
    "end a worker": lambda it: it.runtime.worker("loop").shut_down(),
    "terminate a worker": lambda it: it.runtime.worker("loop").terminate(),
    "find a machine": lambda it: it.runtime.machine_of("front"),
    "find a breaker": lambda it: it.runtime._services.breaker_of("press"),
    "reset a breaker": lambda it: it.runtime.breaker("press").reset(),
    "close a subscription": lambda it: it.told.close(),
    "close a subscription of a job": lambda it: it.its_own.close(),
    "pause a worker": lambda it: it.runtime.worker("loop").pause(),
    "tell": lambda it: it.ref.tell("hello"),
    "ask": lambda it: it.ref.ask("hello"),
    "offer": lambda it: it.ref.offer("hello"),
    "tell a machine": lambda it: it.machine.tell(Fire("remove")),
    "ask a machine": lambda it: it.machine.ask(Fire("remove")),
    "fire": lambda it: it.machine.fire("remove"),
    "stop an actor": lambda it: it.ref.stop(),
    "answer later": lambda it: it.later.send("late"),
    "refuse later": lambda it: it.later.fail(ValueError("late")),
    "spawn out of an actor": lambda it: it.ctx.spawn(Echo),
    "set a timer": lambda it: it.ctx.after(0, "hello"),
    "cancel a timer": lambda it: it.timer.cancel(),
    "watch": lambda it: it.ctx.watch(it.machine),
    "stop oneself": lambda it: it.ctx.stop(),
    "heartbeat": lambda it: it.task.heartbeat(1),
    "checkpoint": lambda it: it.task.checkpoint(1),
    "submit a child": lambda it: it.task.submit(of(quick), name="child"),
    "wait for a child": lambda it: it.child.wait(),
    "ask for an approval": lambda it: it.task.approval("fine", people=1),
}


async def awaited(use: Callable[[], Any]) -> Any:
    """Call it, and await the result if that can be awaited."""
    with anyio.fail_after(300):
        result = use()
        return await result if isinstance(result, Awaitable) else result


async def in_a_thread(func: Callable[[], Any]) -> Any:
    return await anyio.to_thread.run_sync(func, abandon_on_cancel=True)


@pytest.mark.parametrize("busy", [False, True])
async def test_what_is_used_on_the_event_loop_of_another_thread_says_so_at_once(busy: bool, tmp_path: Path) -> None:
    """Whether the dispatcher sleeps, or has something to do just then."""
    told: dict[str, str] = {}

    def elsewhere(things: Things, use: str) -> None:
        try:
            told[use] = f"it was not refused: {anyio.run(awaited, partial(USES[use], things))!r}"
        except RuntimeError as error:
            told[use] = f"{type(error).__name__}: {error}"

    with anyio.fail_after(300):
        async with Runtime(tmp_path / "state.db", drain_deadline=0) as runtime, anyio.create_task_group() as asking:
            ended = await runtime.submit(of(quick), id="ended")
            await ended.wait()
            things = Things(runtime, ended)
            await things.begin(asking)
            await things.machine.ask(Fire("remove"))
            host = runtime._services.dispatcher._host
            for use in USES:
                if busy and use in {"tell", "ask"}:
                    continue  # while the dispatcher is awake, most sends do not check the thread
                await until(lambda: runtime._services.dispatcher.parked)
                host.parked = host.parked and not busy
                await in_a_thread(partial(elsewhere, things, use))
                host.wake()
                assert await things.ref.ask("hello") == "hello", use  # the refused use had no effect here
                assert things.job.state == "running", use
                assert runtime._services.dispatcher.dead_letters.count == 0, use
            assert (await (await runtime.submit(of(quick))).wait()).ok
            things.later.send("late")
    for use, text in told.items():
        assert re.fullmatch(f"RuntimeError: .*{REFUSED}.*", text, re.DOTALL), (use, text)
    assert len(told) >= len(USES) - 2


async def test_who_would_leave_it_elsewhere_leaves_it_open(tmp_path: Path) -> None:
    """Only code that can wait for a runtime can leave it; so `async with` ends as `close()` does."""

    def leaves(runtime: Runtime) -> None:
        with pytest.raises(RuntimeError, match=REFUSED):
            anyio.run(partial(runtime.__aexit__, None, None, None))

    with anyio.fail_after(300):
        async with Runtime(tmp_path / "state.db") as runtime:
            await in_a_thread(partial(leaves, runtime))
            await anyio.sleep(0.05)
            assert runtime.is_open
            assert (await (await runtime.submit(of(quick))).wait()).ok


async def test_a_thread_that_a_body_has_started_says_something_by_its_loop(tmp_path: Path) -> None:
    refusals: list[str] = []

    async def body(task: TaskContext) -> None:
        def computes() -> None:
            try:
                task.checkpoint(1)
            except RuntimeError as error:
                refusals.append(str(error))
            anyio.from_thread.run_sync(task.checkpoint, 2)

        await anyio.to_thread.run_sync(computes)

    with anyio.fail_after(300):
        async with Runtime(tmp_path / "state.db") as runtime:
            job = await runtime.submit(of(runtime.task(body)))
            assert (await job.wait()).ok
            assert job.task("one").record.checkpoint == 2
            assert "a task's context belongs to the event loop" in refusals[0]


async def test_what_asks_nothing_is_seen_in_any_thread(tmp_path: Path) -> None:
    def seen(runtime: Runtime, job: Any) -> None:
        assert job.state == "running"
        assert runtime.is_open
        assert runtime.health.ok
        assert runtime.metrics() is not None
        assert runtime.worker("loop").assigned == 1
        assert runtime.machines() == runtime.breakers() == runtime.approvals() == []

    with anyio.fail_after(300):
        async with Runtime(tmp_path / "state.db", drain_deadline=0) as runtime:
            job = await runtime.submit(of(endless))
            await in_a_thread(partial(seen, runtime, job))


async def test_a_message_from_a_plain_thread_is_refused_and_one_by_tell_threadsafe_comes(tmp_path: Path) -> None:
    came: list[Any] = []
    arrived = anyio.Event()

    class Keeps(Actor):
        def receive(self, message: Any, ctx: Any) -> None:
            came.append(message)
            arrived.set()

    def tells(ref: Any) -> None:
        with pytest.raises(RuntimeError, match="tell_threadsafe"):
            ref.tell("lost")
        assert ref.tell_threadsafe("comes")

    with anyio.fail_after(300):
        async with Runtime() as runtime:
            ref = runtime.spawn(Keeps)
            await until(lambda: runtime._services.dispatcher.parked)
            await in_a_thread(partial(tells, ref))
            await arrived.wait()
            assert came == ["comes"]


async def test_a_message_by_tell_threadsafe_to_a_stopped_actor_is_refused_and_a_dead_letter() -> None:
    class Quiet(Actor):
        def receive(self, message: Any, ctx: Any) -> None:
            """Ignore the message."""

    with anyio.fail_after(300):
        async with Runtime() as runtime:
            ref = runtime.spawn(Quiet, name="quiet")
            ref.stop()
            await until(lambda: ref.stopped)
            assert await anyio.to_thread.run_sync(ref.tell_threadsafe, "late") is False
            await until(lambda: runtime.dead_letters.count == 1)
            (letter,) = runtime.dead_letters.newest()
            assert (letter.recipient, letter.message, letter.reason) == ("quiet", "late", "stopped")


IN_DEV_MODE = """
import threading
import anyio
from callboard import Actor, Runtime

class Quiet(Actor):
    def receive(self, message, ctx):
        print(message)

def tells(ref):
    try:
        ref.tell("lost")
    except RuntimeError as error:
        print("refused", error)

async def main():
    async with Runtime() as runtime:
        ref = runtime.spawn(Quiet)
        ref.tell("first")  # so the loop is at work, and need not be woken
        thread = threading.Thread(target=tells, args=[ref])
        thread.start()
        thread.join()
        await ref.ask("last")
        ref.stop()
        while not ref.stopped:
            await anyio.sleep(0)
        print(ref.tell("late"))

anyio.run(main)
"""


def test_in_the_development_mode_of_python_each_message_from_another_thread_is_refused() -> None:
    done = subprocess.run([sys.executable, "-X", "dev", "-c", IN_DEV_MODE], capture_output=True, text=True, check=True)
    refused, *others = done.stdout.splitlines()
    assert refused.startswith("refused ")
    assert "tell_threadsafe" in refused
    assert others == ["first", "last", "False"]


async def test_a_module_that_is_imported_in_a_thread_may_register_its_functions(tmp_path: Path) -> None:
    def imports(runtime: Runtime) -> None:
        @runtime.task
        async def late() -> str:
            return "here"

    with anyio.fail_after(300):
        async with Runtime(tmp_path / "state.db") as runtime:
            await in_a_thread(partial(imports, runtime))
            assert (await (await runtime.submit(of("late"))).wait()).results == {"one": "here"}


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": False})])
async def test_what_is_used_between_two_turns_of_its_loop_is_not_refused(tmp_path: Path) -> None:
    """A synchronous program that turns its loop itself."""

    def program() -> None:
        loop = asyncio.new_event_loop()
        try:
            runtime = loop.run_until_complete(Runtime(tmp_path / "state.db").open())
            ref = runtime.spawn(Echo)
            assert ref.tell("hello")
            assert loop.run_until_complete(ref.ask("hello")) == "hello"
            assert [one.name for one in runtime.workers()]
            loop.run_until_complete(runtime.close())
        finally:
            loop.close()

    await in_a_thread(program)


# -- the portal --------------------------------------------------------------------------------------------------------


async def test_threads_submit_wait_and_read_events_by_the_portal(tmp_path: Path) -> None:
    def view(runtime: Runtime) -> Any:
        portal = runtime.portal
        job = portal.call(partial(runtime.submit, of(quick), id="mine"))
        events = portal.call(partial(job.events, notices=False, kind="job"))
        states = []
        try:
            while True:
                states.append(str(portal.call(events.__anext__).to_state))
        except StopAsyncIteration:
            pass
        with pytest.raises(LookupError):
            portal.call(runtime.job, "nobody's")
        return portal.call(job.wait).results, states

    with anyio.fail_after(300):
        async with Runtime(tmp_path / "state.db") as runtime:
            results, states = await in_a_thread(partial(view, runtime))
            assert results == {"one": 41}
            assert states[-1] == "completed"
            with pytest.raises(RuntimeError):  # it is for threads
                runtime.portal.call(runtime.workers)


async def test_a_thread_that_waits_when_the_runtime_is_left_is_told(tmp_path: Path) -> None:
    told: Future[str] = Future()

    began = anyio.Event()

    def waits(runtime: Runtime, job: Any) -> None:
        async def wait() -> Any:
            began.set()
            return await job.wait()

        try:
            runtime.portal.call(wait)
        except RuntimeClosed as error:
            told.set_result(str(error))

    with anyio.fail_after(300):
        async with Runtime(tmp_path / "state.db", drain_deadline=0) as runtime:
            job = await runtime.submit(of(endless))
            thread = threading.Thread(target=waits, args=(runtime, job))
            thread.start()
            await began.wait()
        await in_a_thread(thread.join)
        assert "it continues at the next start" in told.result(0)
        with pytest.raises(RuntimeClosed):
            _ = runtime.portal


async def test_a_thread_may_close_the_runtime_by_the_portal(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path / "state.db")
    with pytest.raises(RuntimeClosed):
        _ = runtime.portal
    with anyio.fail_after(300):
        await runtime.open()
        portal = runtime.portal
        await in_a_thread(partial(portal.call, runtime.close))
        assert not runtime.is_open


@contextmanager
def synchronous(path: Path, backend: str) -> Iterator[Runtime]:
    """Open a runtime as a program without an event loop does."""
    with start_blocking_portal(backend) as portal, portal.wrap_async_context_manager(Runtime(path)) as runtime:
        yield runtime


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_synchronous_program_has_a_runtime_in_a_thread(backend: str, tmp_path: Path) -> None:
    with synchronous(tmp_path / "state.db", backend) as runtime:
        job = runtime.portal.call(runtime.submit, of(quick))
        assert runtime.portal.call(job.wait).results == {"one": 41}
        with pytest.raises(RuntimeError, match=REFUSED):
            runtime.spawn(Echo)
