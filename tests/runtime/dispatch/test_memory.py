"""Refused commands leave nothing in memory, however many there are."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from callboard import Actor, Fire, MachineActor, Runtime, Task, Workstream
from callboard.errors import ActorStopped
from callboard.machines.lifecycles.execution import EXECUTION

pytestmark = pytest.mark.anyio
Refused = Callable[[int], Awaitable[Any]]


async def one() -> int:
    return 1


async def fails() -> None:
    raise ValueError("not today")


class Fails(Actor):
    def receive(self, message: object, ctx: Any) -> object:
        raise ValueError(message)


class FailsLater(Actor):
    async def receive(self, message: object, ctx: Any) -> object:
        await checkpoint()
        raise ValueError(message)


class Full(Actor):
    async def receive(self, message: object, ctx: Any) -> object:
        await anyio.sleep_forever()


async def pause_what_has_ended(runtime: Runtime) -> Refused:
    job = await runtime.submit(Workstream("w", tasks=[Task("a", run=one)]))
    await job.wait()
    return lambda number: job.pause()


async def fire_what_is_not_possible(runtime: Runtime) -> Refused:
    run = runtime.spawn(MachineActor(EXECUTION), name="run")
    return lambda number: run.ask(Fire("SUCCEED"))


async def fire_it_with_a_key(runtime: Runtime) -> Refused:
    run = runtime.spawn(MachineActor(EXECUTION), name="run")
    return lambda number: run.ask(Fire("SUCCEED", request_id=f"r{number}"))


async def tell_it(runtime: Runtime) -> Refused:
    run = runtime.spawn(MachineActor(EXECUTION), name="run")

    async def told(number: int) -> None:
        run.tell(Fire("SUCCEED"))
        await run.ask(Fire("SUCCEED"))

    return told


async def submit_another_under_its_id(runtime: Runtime) -> Refused:
    await (await runtime.submit(Workstream("w", tasks=[Task("a", run=one)]), id="j")).wait()
    return lambda number: runtime.submit(Workstream("other", tasks=[Task("a", run=one)]), id="j")


def asks(actor: type[Actor]) -> Callable[[Runtime], Awaitable[Refused]]:
    async def ask_an_actor_that_raises(runtime: Runtime) -> Refused:
        async def asked(number: int) -> None:
            ref = runtime.spawn(actor, name=f"fails-{number}")
            try:
                await ref.ask(number)
            finally:
                ref.stop()
                dispatcher = runtime._services.dispatcher
                dispatcher.dead_letters._ring.clear()  # which keeps the newest thousand, with their errors
                dispatcher.supervisor.failures.clear()  # as these do

        return asked

    return ask_an_actor_that_raises


async def offer_to_one_that_stops(runtime: Runtime) -> Refused:
    async def offered(number: int) -> None:
        ref = runtime.spawn(Full, name=f"full-{number}", mailbox=1, stop_timeout=0)
        while ref.tell(number):
            await checkpoint()
        async with anyio.create_task_group() as group:
            group.start_soon(stopped, ref)
            with suppress(ActorStopped):
                await ref.offer(number)
        runtime._services.dispatcher.dead_letters._ring.clear()

    async def stopped(ref: Any) -> None:
        ref.stop()

    return offered


async def run_a_body_that_raises(runtime: Runtime) -> Refused:
    async def ran(number: int) -> None:
        job = await runtime.submit(Workstream("w", tasks=[Task("a", run=fails)]))
        (await job.wait()).results()

    return ran


REFUSALS = [
    pause_what_has_ended, fire_what_is_not_possible, fire_it_with_a_key, tell_it, submit_another_under_its_id,
    asks(Fails), asks(FailsLater), offer_to_one_that_stops, run_a_body_that_raises,
]  # fmt: skip


@pytest.mark.parametrize("prepare", REFUSALS, ids=lambda prepare: prepare.__name__)
async def test_what_was_refused_is_not_held(prepare: Callable[[Runtime], Awaitable[Refused]], no_logs: object) -> None:
    async with Runtime() as runtime:
        refused = await prepare(runtime)

        async def times(first: int, count: int) -> int:
            for number in range(first, first + count):
                with suppress(Exception):
                    await refused(number)
            gc.collect()
            return sum(type(one).__name__ in {"frame", "traceback", "Transaction"} for one in gc.get_objects())

        before = await times(0, 10)
        assert await times(10, 30) - before < 15
