"""The database is asked in threads: the event loop turns, however long it takes to answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

from callboard import (
    Fire,
    Machine,
    MachineActor,
    MachineConflict,
    Runtime,
    State,
    Task,
    Transition,
    Workstream,
)
from callboard.runtime.journal.written import WrittenJournal

pytestmark = pytest.mark.anyio


def machine(name: str) -> Machine:
    return Machine(
        name, "shut", states=[State("shut", bounded_by="somebody"), State("gone", terminal=True)],
        transitions=[Transition("shut", "remove", "gone"), Transition("shut", "knock", "shut")],
    )  # fmt: skip


DOOR, GATE = machine("door"), machine("gate")


async def quick() -> int:
    return 1


@contextmanager
def asked_in_threads_only() -> Iterator[None]:
    """Whoever asks the journal on the event loop is told so."""
    loop = threading.get_ident()

    def reader(journal: Any) -> Any:
        assert threading.get_ident() != loop, "the journal was asked on the event loop"
        return journal._reader

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WrittenJournal, "reader", property(reader))
        yield


async def test_nothing_asks_it_on_the_event_loop(postgres: str) -> None:
    with anyio.fail_after(60), asked_in_threads_only():
        async with Runtime(postgres) as runtime:
            front = runtime.spawn(MachineActor(DOOR), name="front")
            assert front.tell(Fire("knock"))
            assert (await front.ask(Fire("knock"))).to_state == "shut"
            assert (await front.ask(Fire("remove"))).to_state == "gone"
            assert runtime.spawn(MachineActor(DOOR), name="front") is front
            assert (await runtime.machine_of("front")).state == "gone"
            with pytest.raises(LookupError):
                await runtime.machine_of("nobody")
            job = await runtime.submit(Workstream("w", tasks=[Task("a", run=quick)]), id="w")
            await job.wait()
            await job.retry("a")


async def test_after_a_restart_a_machine_goes_on_and_another_one_of_its_name_is_refused_where_it_is_used(
    postgres: str,
) -> None:
    with anyio.fail_after(60):
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
