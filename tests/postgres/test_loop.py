"""Database queries run in threads: the event loop turns, however slow the database is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.runtime.asked import asked_in_threads_only

from callboard import Approval, Fire, Machine, MachineActor, Runtime, State, Task, Transition, Workstream
from callboard.errors import MachineConflict
from callboard.runtime.errors import JournalError
from callboard.runtime.journal.postgres.reader import PostgresReader
from callboard.runtime.journal.sqlite.reader import SqliteReader
from callboard.runtime.lifespan import wiring as parts
from callboard.runtime.observation.events import EarlierTransitions

pytestmark = pytest.mark.anyio


def machine(name: str) -> Machine:
    return Machine(
        name, "shut", states=[State("shut", bounded_by="somebody"), State("gone", terminal=True)],
        transitions=[Transition("shut", "remove", "gone"), Transition("shut", "knock", "shut")],
    )  # fmt: skip


DOOR, GATE = machine("door"), machine("gate")


async def quick() -> int:
    return 1


async def test_nothing_asks_it_on_the_event_loop(postgres: str) -> None:
    with anyio.fail_after(300), asked_in_threads_only():
        async with Runtime(postgres) as runtime:
            front = runtime.spawn(MachineActor(DOOR), name="front")
            assert front.tell(Fire("knock"))
            assert (await front.ask(Fire("knock"))).to_state == "shut"
            assert (await front.ask(Fire("remove"))).to_state == "gone"
            assert runtime.spawn(MachineActor(DOOR), name="front") is front
            assert (await runtime.machine_of("front")).state == "gone"
            assert runtime.machine("front") is front
            for one in (front, await runtime.spawn(MachineActor(DOOR), name="back")):
                assert (one.events, one.facts, one.ended) == (DOOR.valid_events(one.state), None, one is front)
            with pytest.raises(LookupError):
                await runtime.machine_of("nobody")
            with pytest.raises(LookupError, match=r"await runtime\.machine_of"):
                runtime.machine("nobody")
            job = await runtime.submit(Workstream("w", tasks=[Task("a", run=quick)]), id="w")
            await job.wait()
            await (await job.retry("a")).wait()
            its_own = job.events(notices=False, kind="job")  # read once the runtime has been left
        states = [str(event.to_state) async for event in its_own]
        assert (states[0], states[-1]) == ("submitted", "completed")


class Slow:
    """Queries in threads that get no answer before the event loop has turned."""

    def __init__(self) -> None:
        self.asked = 0
        self.stood_still = False  # whether the event loop stood still during a query
        self._turned = threading.Event()

    def asking(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*args: Any) -> Any:
            self.asked += 1
            self.stood_still |= not self._turned.wait(600)
            return ask(*args)

        return asked

    async def turn(self) -> None:
        while not self.asked:
            await anyio.sleep(0.01)
        self._turned.set()


@pytest.mark.parametrize("medium", ["sqlite", "postgres"])
async def test_leaving_with_subscribers_stops_no_loop_where_the_journal_is_slow(
    medium: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    address = tmp_path / "state.db" if medium == "sqlite" else request.getfixturevalue("postgres")
    held = Workstream("held", tasks=[Task("x", run=quick, hold=Approval(people=1))])
    slow = Slow()
    with anyio.fail_after(300), pytest.MonkeyPatch.context() as patch:
        async with anyio.create_task_group() as group, AsyncExitStack() as nodes:
            runtime = await nodes.enter_async_context(Runtime(address))
            jobs = [await runtime.submit(held)]
            if medium == "postgres":
                other = await nodes.enter_async_context(Runtime(address))
                jobs += [await runtime.job((await other.submit(held)).id)]
                assert jobs[1].elsewhere
            streams = [job.events(notices=False) for job in jobs]
            for reader in (SqliteReader, PostgresReader):
                patch.setattr(reader, "_rows", slow.asking(reader._rows))
            group.start_soon(slow.turn)
            await runtime.close()
            assert (slow.asked > 0, slow.stood_still) == (True, False)
            patch.undo()
            for events, job in zip(streams, jobs, strict=True):
                rows = [event.entity_id async for event in events]
                assert rows[0] == job.id
                assert any(name.endswith("/x") for name in rows)


@pytest.mark.parametrize("limit", [0.0, 0.05])
async def test_what_cannot_be_read_any_more_is_told_to_who_would_have_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: float
) -> None:
    answers = threading.Event()
    page = EarlierTransitions.page

    def late(past: EarlierTransitions) -> Any:
        assert answers.wait(600), "it was waited for"
        return page(past)

    monkeypatch.setattr(EarlierTransitions, "page", late)
    try:
        async with Runtime(tmp_path / "state.db") as runtime:
            job = await runtime.submit(Workstream("w", tasks=[Task("a", run=quick)]))
            events = job.events(notices=False)
            assert (await job.wait()).ok
            monkeypatch.setattr(parts, "CLOSING", limit)
        with pytest.raises(JournalError, match="did not answer in time"):
            assert [event async for event in events]
    finally:
        answers.set()


async def test_after_a_restart_a_machine_goes_on_and_another_one_of_its_name_is_refused_where_it_is_used(
    postgres: str,
) -> None:
    with anyio.fail_after(300):
        async with Runtime(postgres) as runtime:
            await runtime.spawn(MachineActor(DOOR), name="front").ask(Fire("knock"))
            await runtime.spawn(MachineActor(DOOR), name="back").ask(Fire("remove"))
        with asked_in_threads_only():
            async with Runtime(postgres) as runtime:
                assert (await runtime.spawn(MachineActor(DOOR), name="front").ask(Fire("remove"))).to_state == "gone"
                wrong = runtime.spawn(MachineActor(GATE), name="back")
                for _ in range(2):
                    with pytest.raises(MachineConflict, match="Use another name"):
                        await wrong.ask(Fire("knock"))
                assert wrong.tell(Fire("knock"))
                right = runtime.spawn(MachineActor(DOOR), name="back")
                assert right is not wrong
                with pytest.raises(Exception, match="gone"):
                    await right.ask(Fire("knock"))
                assert right.state == "gone"


async def test_what_is_spawned_just_before_leaving_is_kept(postgres: str) -> None:
    with anyio.fail_after(300):
        async with Runtime(postgres) as runtime:
            for name in ("front", "back"):
                runtime.spawn(MachineActor(DOOR), name=name)
        async with Runtime(postgres) as runtime:
            assert [(await runtime.machine_of(name)).state for name in ("front", "back")] == ["shut", "shut"]
