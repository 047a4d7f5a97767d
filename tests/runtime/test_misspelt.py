# pyright: strict, reportUnnecessaryTypeIgnoreComment=true, reportUnusedExpression=false
"""A misspelt or missing option is an error of mypy, of pyright, and when the program runs.

mypy and pyright check this file and `test_typed.py` with the library (pyproject.toml names both, which a test here
holds): each `type: ignore` must be needed.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from callboard import Actor, Context, Machine, MachineActor, Runtime, State, Task, Tool, Transition, Workstream
from callboard.actors.spec.model import Breaker
from callboard.testing import Simulation

if TYPE_CHECKING:
    from callboard.client import Client

ROOT = Path(__file__).parents[2]
DOOR = Machine(
    "door", "shut",
    states=(State("shut", bounded_by="whoever opens it"), State("open", terminal=True)),
    transitions=(Transition("shut", "open", "open"),),
)  # fmt: skip
SPEC = Workstream(
    "w",
    tasks=[Task("a", command=["a"], tool="t")],
    tools={"t": Tool(breaker=Breaker(failure_threshold=1, cooldown=1.0))},
)


class Quiet(Actor):
    def receive(self, message: str, ctx: Context) -> None:
        """Take it."""


async def of_a_runtime(runtime: Runtime) -> None:
    with raises("mailbx"):
        runtime.spawn(Quiet, mailbx=3)  # type: ignore[call-overload]
    with raises("mailbox"):
        runtime.spawn(MachineActor(DOOR), mailbox=3)  # type: ignore[call-overload]
    with raises("request"):
        await runtime.submit(SPEC, request="r")  # type: ignore[call-arg]
    job = await runtime.submit(SPEC, id="w")
    with raises("reson"):
        await job.cancel(reson="enough")  # type: ignore[call-arg]
    with raises("by"):
        await job.approve()  # type: ignore[call-arg]
    with raises("why"):
        await job.task("a").reset(why="mended")  # type: ignore[call-arg]
    with raises("tasks"):
        await job.retry(tasks="a")  # type: ignore[call-arg]
    with raises("within"):
        await runtime.worker("loop").shut_down(within="1m")  # type: ignore[call-arg]
    with raises("cool_down"):
        await runtime.breaker("t").trip(cool_down="1m")  # type: ignore[call-arg]
    with raises("because"):
        await runtime.spawn(MachineActor(DOOR)).fire("open", because="air")  # type: ignore[call-arg]
    with raises("retries"):
        await job.ref.fire("cancel", retries=1)  # type: ignore[call-arg]


async def of_another_process(client: Client) -> None:
    """Never called: its verbs are those of the other handles."""
    await client.submit(SPEC, request="r")  # type: ignore[call-arg]
    job = await client.job("w")
    await job.approve()  # with a token the person is known
    await job.cancel(reson="enough")  # type: ignore[call-arg]
    await job.task("a").reset(why="mended")  # type: ignore[call-arg]
    await client.worker("loop").shut_down(within="1m")  # type: ignore[call-arg]
    await client.breaker("t").trip(cool_down="1m")  # type: ignore[call-arg]
    await client.machine("door").fire("open", because="air")  # type: ignore[call-arg]


def of_a_simulation(sim: Simulation) -> None:
    with raises("mailbx"):
        sim.spawn(Quiet, mailbx=3)  # type: ignore[call-overload]
    job = sim.submit(SPEC, id="w")
    with raises("reson"):
        job.cancel(reson="enough")  # type: ignore[call-arg]
    with raises("by"):
        job.approve()  # type: ignore[call-arg]
    with raises("why"):
        job.task("a").reset(why="mended")  # type: ignore[call-arg]
    with raises("within"):
        sim.worker("loop").shut_down(within="1m")  # type: ignore[call-arg]
    with raises("cool_down"):
        sim.breaker("t").trip(cool_down="1m")  # type: ignore[call-arg]


def raises(name: str) -> Any:
    return pytest.raises(TypeError, match=rf"\b{name}\b")


@pytest.mark.anyio
async def test_a_runtime_refuses_it() -> None:
    async with Runtime(drain_deadline=0) as runtime:
        await of_a_runtime(runtime)


def test_a_simulation_refuses_it() -> None:
    with Simulation() as sim:
        sim.body("a", takes="1h")
        of_a_simulation(sim)


def test_the_type_checkers_are_told_to_read_it() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    files = {Path(__file__), Path(__file__).parent / "handles" / "test_typed.py"}
    for checked in (settings["mypy"]["files"], settings["pyright"]["include"]):
        assert files <= {ROOT / name for name in checked}
    assert settings["mypy"]["strict"]
    assert settings["pyright"]["typeCheckingMode"] == "strict"
