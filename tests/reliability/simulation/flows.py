"""Random flows under random crashes, in virtual time: what DESIGN section 10 says of steps holds in each of them.

A flow is drawn from its seed: a program of steps, loops, parallel steps, branches of a task group, sleeps, and failures
that are caught and compensated. The runtime is killed between any two steps of the simulation, and the code may have
one step more from then on. The functions of the steps, and the body, look into the journal meanwhile.

One seed again, with its trace: `PYTHONPATH=src python -m tests.reliability.simulation.flows 42 43`.
"""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import anyio

from callboard import Task, TaskContext, Workstream, step
from callboard.testing import Simulation

SEEDS = 60
Program = list[list[Any]]


def make(r: Random, depth: int = 2, path: str = "") -> Program:
    """A random program. Each operation has a path of its own, which is the argument of its steps."""
    kinds = ["step", "step", "gather", "sleep", "undo", *(["loop", "branches"] if depth else [])]
    made: Program = []
    for number in range(r.randint(1, 4)):
        kind, at = r.choice(kinds), f"{path}/{number}"
        more: Any = r.choice((1.0, 40.0, 7200.0)) if kind == "sleep" else r.randint(2, 4)
        if kind == "loop":
            more = make(r, depth - 1, at)
        elif kind == "branches":
            more = [make(r, 0, f"{at}/{branch}") for branch in range(r.randint(2, 3))]
        made.append([kind, at, more])
    return made


class Flow:
    """A program that runs in a simulation, and what its body and its steps have seen."""

    def __init__(self, sim: Simulation, program: Program) -> None:
        self.sim = sim
        self.program = program
        self.longer = False  # the code has one more step at its beginning
        self.calls = 0

    def kept(self) -> list[str]:
        """The results of the steps that are durable and have completed."""
        rows = self.sim.job("j").task("t").steps()
        return [row.result for row in rows if row.state == "completed" and isinstance(row.result, str)]

    def began(self, at: str) -> None:
        """The function of a step runs."""
        assert at not in self.kept(), f"step {at} ran again, though it had completed"
        self.calls += 1

    def told(self, at: str) -> str:
        """The body has got a result."""
        assert at in self.kept(), f"the body got the result of {at}, which is not durable"
        return at

    async def body(self, task: TaskContext) -> list[str]:
        """The body of the task."""

        @step
        async def work(at: str) -> str:
            self.began(at)
            await anyio.sleep(sum(map(ord, at)) % 4)  # so parallel steps end in another order than they began
            return at

        @step
        async def fails(at: str) -> str:
            raise ConnectionError(at)

        @step
        async def count(at: str) -> int:
            return 1 + len(at) % 3

        async def run(program: Program, turn: str = "") -> list[str]:
            seen: list[str] = []
            for kind, path, more in program:
                at = f"{path}{turn}"
                if kind == "step":
                    seen.append(self.told(await work(at)))
                elif kind == "gather":
                    seen += map(self.told, await task.gather(*(work.bind(f"{at}:{n}") for n in range(more))))
                elif kind == "sleep":
                    await task.sleep(more + len(at))
                elif kind == "undo":
                    seen.append(self.told(await work(at)))
                    try:
                        await fails(at)
                    except ConnectionError:
                        seen.append(self.told(await work(f"{at} undone")))
                elif kind == "loop":
                    for number in range(await count(at)):
                        seen += await run(more, f"{turn}@{number}")
                else:
                    seen += await branches(more, turn)
            return seen

        async def branches(programs: list[Program], turn: str) -> list[str]:
            out: dict[int, list[str]] = {}

            async def one(number: int, program: Program) -> None:
                out[number] = await run(program, turn)

            async with anyio.create_task_group() as group:
                for number, program in enumerate(programs):
                    group.start_soon(one, number, program)
            return [at for number in sorted(out) for at in out[number]]

        if self.longer:
            await task.step(step(count.func, name="added"), "added")
        return await run(self.program)


def carry_out(seed: int) -> tuple[list[str], str]:
    """Run a seed; returns the result of its flow, and a digest of its trace."""
    r = Random(f"flows/{seed}")
    with Simulation(seed) as sim:
        flow = Flow(sim, make(r))
        sim.task(flow.body, name="body")
        job = sim.submit(Workstream("flow", tasks=[Task("t", run="body", timeout="1d", max_losses=1_000)]), id="j")
        crashes = r.randint(0, 8)
        for _ in range(crashes):
            for _ in range(r.choice((1, 2, 5, 13, 40))):
                if not sim.step():
                    sim.advance(r.choice((1.0, 30.0, 4000.0)))
            sim.crash(down=r.choice((0.0, 0.0, 50.0)))
            flow.longer = flow.longer or r.random() < 0.3
        outcome = job.run()
        sim.check()
        assert outcome.ok, outcome.error
        rows = job.task("t").steps()
        for name in {row.name for row in rows}:
            numbers = sorted(row.number for row in rows if row.name == name)
            assert numbers == list(range(1, len(numbers) + 1)), f"the numbers of {name} have gaps: {numbers}"
        result: list[str] = outcome.results["t"]
        assert result == expected(flow.program)
        return result, sim.trace.digest()


def expected(program: Program, turn: str = "") -> list[str]:
    """What the body of a program returns."""
    seen: list[str] = []
    for kind, path, more in program:
        at = f"{path}{turn}"
        if kind == "step":
            seen.append(at)
        elif kind == "gather":
            seen += (f"{at}:{n}" for n in range(more))
        elif kind == "undo":
            seen += (at, f"{at} undone")
        elif kind == "loop":
            seen += (one for number in range(1 + len(at) % 3) for one in expected(more, f"{turn}@{number}"))
        elif kind == "branches":
            seen += (one for branch in more for one in expected(branch, turn))
    return seen


def find(seed: int) -> str:
    """What is wrong in the run of a seed; empty if nothing is."""
    try:
        carry_out(seed)
    except Exception as error:
        return f"seed {seed}: {type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":  # the seeds from one number to another, until something is found
    wrong = next(filter(None, map(find, range(int(sys.argv[1]), int(sys.argv[2])))), "")
    print(wrong)
    raise SystemExit(bool(wrong))
