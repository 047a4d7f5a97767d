"""A timeout of the application around a call ends the call, also while the journal does not answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.runtime.silent import Silent
from tests.waiting import until

from callboard import Breaker, Fire, JobHandle, MachineActor, Retry, Runtime, Task, Tool, Worker, Workstream
from callboard.errors import AskTimeout
from callboard.machines import Machine, State, Transition

pytestmark = pytest.mark.anyio

DOOR = Machine(
    "door",
    "shut",
    [State("shut", bounded_by="its owner"), State("opened", terminal=True)],
    [Transition("shut", "open", "opened")],
)


async def cut(journal: Silent, call: Callable[[], Awaitable[object]]) -> None:
    """Cancel a caller as soon as it waits for the journal, which does not answer, and check that it waits no longer."""
    over, scope = anyio.Event(), anyio.CancelScope()

    async def calls() -> None:
        with scope:
            await call()
        over.set()

    before = journal.waiting
    journal.answers.clear()
    async with anyio.create_task_group() as group:
        group.start_soon(calls)
        try:
            await until(lambda: journal.waiting > before)
            scope.cancel()
            with anyio.fail_after(300):
                await over.wait()
        finally:
            journal.answers.set()  # queries that still wait must end with the test
    assert scope.cancelled_caught


async def fails() -> None:
    raise LookupError("there is nothing")


async def waits() -> None:
    await anyio.sleep_forever()


def one(name: str, run: Callable[[], Awaitable[None]] = waits) -> Workstream:
    return Workstream(name, tasks=[Task("a", run=run, retry=Retry(max_attempts=1), tool="db")])


class BusyRuntime:
    """A runtime on such a journal, with a job that has failed and one that runs."""

    def __init__(self, journal: Silent, runtime: Runtime, failed: JobHandle, living: JobHandle) -> None:
        self.journal, self.runtime, self.failed, self.living = journal, runtime, failed, living


@asynccontextmanager
async def staged(path: Path) -> AsyncGenerator[BusyRuntime]:
    journal = Silent(path)
    async with Runtime(journal, tools={"db": Tool(breaker=Breaker())}, drain_deadline=0) as runtime:
        failed = await runtime.submit(one("failing", fails), id="failed")
        await until(lambda: failed.ended)
        living = await runtime.submit(one("living"), id="living")
        await until(lambda: living.task("a").record.state == "running")
        await runtime.spawn(MachineActor(DOOR), name="door")  # the runtime looks for this name in the journal, too
        yield BusyRuntime(journal, runtime, await runtime.job("failed"), living)


CALLS: dict[str, Callable[[BusyRuntime], Awaitable[object]]] = {
    "the handle of a job": lambda on: on.runtime.job("failed"),
    "a job under an id": lambda on: on.runtime.submit(one("new"), id="new"),
    "a job under a key": lambda on: on.runtime.submit(one("new"), request_id="key"),
    "a machine that is not at hand": lambda on: on.runtime.machine_of("other"),
    "a machine under a new name": lambda on: on.runtime.spawn(MachineActor(DOOR), name="new"),
    "an event for a machine": lambda on: on.runtime.machine("door").fire("open", request_id="key"),
    "notices": lambda on: on.runtime.kept_notices(),
    "a further worker": lambda on: on.runtime.start_worker(Worker("more", engine="loop"), request_id="key"),
    "a command for a worker": lambda on: on.runtime.workers()[0].pause(request_id="key"),
    "a command for a breaker": lambda on: on.runtime.breaker("db").trip(request_id="key"),
    "the end of a job, and why": lambda on: on.failed.wait(),
    "child jobs": lambda on: on.living.children(),
    "attempts": lambda on: on.living.attempts("a"),
    "attempts of a task": lambda on: on.living.task("a").attempts(),
    "events from the beginning": lambda on: anext(on.living.events()),
    "a command for a job": lambda on: on.living.pause(request_id="key"),
    "a command for a task": lambda on: on.living.task("a").cancel(request_id="key"),
    "a further run": lambda on: on.failed.retry("a"),
    "an event for a job that has ended": lambda on: on.failed.ref.ask(Fire("retry"), timeout=None),
}


@pytest.mark.parametrize("what", CALLS)
async def test_who_is_cancelled_waits_no_longer_for_a_journal_that_answers_nothing(what: str, tmp_path: Path) -> None:
    async with staged(tmp_path / "state.db") as on:
        await cut(on.journal, lambda: CALLS[what](on))
        assert on.living.state == "running"
        assert on.living.task("a").record.state == "running"
        assert (await on.runtime.job("failed")).state == "failed"
        with anyio.fail_after(300):
            await on.living.cancel(force=True)
            assert (await on.living.wait()).state == "cancelled"


async def test_an_ask_keeps_its_own_timeout_while_the_journal_answers_nothing(tmp_path: Path) -> None:
    async with staged(tmp_path / "state.db") as on:
        on.journal.answers.clear()
        raised: list[Exception] = []

        async def asks(ask: Callable[..., Awaitable[Any]], event: str) -> None:
            try:
                await ask(Fire(event, request_id="key"), timeout=0.05)
            except AskTimeout as error:
                raised.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(asks, on.failed.ref.ask, "retry")
            group.start_soon(asks, on.runtime.machine("door").ask, "open")
            try:
                await until(lambda: len(raised) == 2)
            finally:
                on.journal.answers.set()


async def test_a_command_that_was_cut_off_is_taken_once_when_it_is_given_again(tmp_path: Path) -> None:
    async with staged(tmp_path / "state.db") as on:
        await cut(on.journal, lambda: on.living.pause(request_id="key"))
        assert not on.runtime._services.in_flight("key")
        with anyio.fail_after(300):
            await on.living.pause(request_id="key")
            await on.living.pause(request_id="key")
            await on.living.cancel(force=True)
        rows = [row async for row in on.living.events(notices=False, kind="workstream", event="pause")]
        assert len(rows) == 1


async def test_events_go_on_where_a_reader_was_cut_off(tmp_path: Path) -> None:
    async with staged(tmp_path / "state.db") as on:
        events = on.failed.events(notices=False, kind="job")
        await cut(on.journal, lambda: anext(events))
        with anyio.fail_after(300):
            assert [event.to_state async for event in events] == ["submitted", "pending", "running", "failed"]


async def test_those_who_ask_again_and_again_have_so_many_threads_and_no_more(tmp_path: Path) -> None:
    async with staged(tmp_path / "state.db") as on:
        on.journal.answers.clear()
        try:
            for _ in range(40):
                with anyio.move_on_after(0.001):
                    await on.runtime.job("failed")
            assert on.journal.waiting <= 8
        finally:
            on.journal.answers.set()
        with anyio.fail_after(300):
            assert (await on.runtime.job("failed")).ended
