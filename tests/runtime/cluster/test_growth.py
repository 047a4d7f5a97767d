"""A node's data about other nodes do not grow with its checks, or with nodes that come and go."""

from __future__ import annotations

import gc

import anyio
import pytest
from tests.runtime.census import held_by

from callboard import Fire, Machine, MachineActor, Runtime, State, Task, Tool, Transition, Workstream
from callboard.actors.kernel import kernel
from callboard.actors.machines import entity as machine_actor
from callboard.actors.workers import tools
from callboard.runtime.commands import idempotency as requests

from .scene import Nodes, quick

pytestmark = pytest.mark.anyio
DOOR = Machine(
    "door", "shut", states=[State("shut", bounded_by="whoever opens it"), State("gone", terminal=True)],
    transitions=[Transition("shut", "remove", "gone")],
)  # fmt: skip


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def look(a: Runtime, b: Runtime, n: int) -> None:
    """Machines and a job of one node, as another one has them."""
    here = a.spawn(MachineActor(DOOR), name=f"door {n}")
    there = b.spawn(MachineActor(DOOR), name=f"door {n}")
    await there.ask(Fire("remove"))
    assert here.state == "gone"
    tool = f"tool {n}"
    stream = Workstream("w", tasks=[Task("t", run=quick, tool=tool)], tools={tool: Tool(max_parallel=1)})
    job = await a.submit(stream, id=f"j{n}")
    await (await b.job(f"j{n}")).wait()
    await job.wait()


async def test_what_a_node_holds_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_actor, "KEPT", 10)
    monkeypatch.setattr(tools, "BREAKERS_KEPT", 10)
    monkeypatch.setattr(kernel, "KINDS_COUNTED", 10)
    monkeypatch.setattr(requests, "_REMEMBERED", 10)
    scene = Nodes()
    counted = []
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        for begin in (0, 40):
            for n in range(begin, begin + 40):
                await look(a, b, n)
                if n % 4 == 0:
                    async with scene.runtime(f"guest-{n}"):
                        await anyio.lowlevel.checkpoint()
                    scene.base.sessions[:] = scene.base.living()  # as the database deletes them after a day
            gc.collect()
            counted.append(held_by((a, b), a.journal, b.journal, scene.base))
    before, after = counted
    after.pop("Timers.heap")  # those that were cancelled, up to a thousand
    assert {name: (before[name], number) for name, number in after.items() if number > before[name] + 8} == {}
