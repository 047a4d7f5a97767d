"""Runs of agents by the published `execution` lifecycle: two sides drive the same entities, and an agent vanishes.

    python examples/agent_runs.py

The orchestrator takes webhooks and enqueues runs; agents start and end them. Three agents: one does its work, one
vanishes and comes back, one vanishes for good while the orchestrator is down: its run fails by a timed event then.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import anyio
from msgspec import Struct

from callboard import Actor, Context, Fire, MachineActor, Ref, Runtime, Terminated, VirtualClock
from callboard.errors import InvalidTransitionError
from callboard.machines.lifecycles.execution import EXECUTION


class Facts(Struct, frozen=True):
    """The facts of a run: its agent, and how long it waits for a vanished agent, in seconds."""

    agent: str | None = None
    recovery_timeout: float = 60.0


class Webhook(Struct, frozen=True):
    """A push in a repository, which starts a run. A delivery may arrive more than once."""

    run: str
    delivery: str


class Work(Struct, frozen=True):
    """To an agent: execute this run."""

    run: str


class Agent(Actor):
    """The other side: it starts a run and ends it, unless it vanishes in between."""

    def __init__(self, runtime: Runtime, *, steady: bool = True) -> None:
        self.runtime = runtime
        self.steady = steady

    async def receive(self, message: Work, ctx: Context) -> None:
        """Execute a run."""
        run = self.runtime.machine(message.run)
        await run.ask(Fire("START", reason="taken", facts={"agent": ctx.self.name}))
        if self.steady:
            await run.ask(Fire("SUCCEED", metadata={"exit_code": 0}))
        else:
            ctx.stop()  # as when its machine is unplugged


class Orchestrator(Actor):
    """One side: it creates runs from webhooks, gives them to agents, and notices a vanished agent."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.given: dict[Ref, str] = {}

    async def receive(self, message: Any, ctx: Context) -> str | None:
        """Handle a webhook, new work, or a vanished agent."""
        match message:
            case Webhook(run=name, delivery=delivery):
                run = self.runtime.spawn(MachineActor(EXECUTION, Facts()), name=name)
                await run.ask(Fire("ENQUEUE", reason="webhook", request_id=delivery))
                return run.state
            case (name, agent):
                ctx.watch(agent)
                self.given[agent] = name
                agent.tell(Work(name))
            case Terminated(ref=agent):
                lost = self.runtime.machine(self.given.pop(agent))
                await lost.ask(Fire("RECOVER", reason=f"{agent.name} is gone"))
        return None


async def until(runtime: Runtime, run: str, state: str) -> None:
    """Wait until a run is in a state."""
    seen = runtime.events(entity=run, to_state=state)
    if runtime.machine(run).state == state:
        seen.close()
    async for _ in seen:
        seen.close()


async def main(journal: Path) -> None:
    clock = VirtualClock()  # so that a minute takes no time here
    async with Runtime(journal, clock=clock, workers=()) as runtime:
        orchestrator = runtime.spawn(lambda: Orchestrator(runtime), name="orchestrator")
        for number in (1, 2, 3):
            for _ in range(2):  # the same delivery twice is one event
                state = await orchestrator.ask(Webhook(f"run-{number}", f"delivery-{number}"))
                assert state == "queued"

        steady = runtime.spawn(lambda: Agent(runtime), name="steady")
        orchestrator.tell(("run-1", steady))
        await until(runtime, "run-1", "success")

        for number in (2, 3):
            flaky = runtime.spawn(lambda: Agent(runtime, steady=False), name=f"flaky-{number}")
            orchestrator.tell((f"run-{number}", flaky))
            await until(runtime, f"run-{number}", "recovering")

        clock.advance(59)  # run-2's agent is back in time, and takes up its run
        back = runtime.spawn(lambda: Agent(runtime), name="flaky-2-again")
        orchestrator.tell(("run-2", back))
        await until(runtime, "run-2", "success")
        assert runtime.machine("run-2").facts == Facts(agent="flaky-2-again")
        assert runtime.machine("run-3").state == "recovering"

    clock.advance(3600)  # the program is not running
    async with Runtime(journal, clock=clock, workers=()) as runtime:
        run = runtime.machine("run-3")
        assert (run.state, run.record.reason) == ("failed", "its recovery_timeout was over")
        try:
            await run.ask(Fire("START"))
        except InvalidTransitionError as refusal:
            print(refusal)  # an ended run cannot be changed
        for name in ("run-1", "run-2", "run-3"):
            path = " ".join(row.to_state for row in runtime.journal.reader.transitions(entity_id=name))
            print(f"{name}: {path}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(main, Path(folder, "runs.db"))
