"""A program that passes values that expand to more than any memory holds, and prints the result for each."""

from __future__ import annotations

import resource
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec

from callboard import (
    Actor,
    Condition,
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

MOST = 3_000_000_000
"""The address space of the program, in bytes."""


def vast() -> list[Any]:
    """A few lists that expand to 10**12 texts."""
    held: list[Any] = ["x"]
    for _ in range(12):
        held = [held] * 10
    return held


class Endless(list[Any]):
    """A list of large values without an end."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield ["x" * 1_000_000] * 100

    def __len__(self) -> int:
        return 10**12


class Words(frozenset[str]):
    """A set of words without an end."""

    def __iter__(self) -> Iterator[str]:
        n = 0
        while True:
            n += 1
            yield f"{n}"


class Growing(dict[str, Any]):
    """A dict that grows while its items are read."""

    def items(self) -> Any:
        while True:
            self[f"{len(self)}"] = [0] * 1_000
            yield "a", self


class Facts(msgspec.Struct):
    rows: list[Any] = []


GATE = Machine("gate", "shut", [State("shut", bounded_by="us")], [Transition("shut", "push", "shut")], endless=True)


def grown(facts: Facts, fire: Fire) -> Facts:
    return Facts(vast())


class Failing(Actor):
    def receive(self, message: Any, ctx: Any) -> None:
        raise ValueError(message)


def gives(task: TaskContext) -> Any:
    return {"vast": vast, "endless": Endless, "growing": Growing}[task.args["what"]]()


def fails() -> None:
    raise ValueError(vast(), "twice")


async def returns(runtime: Runtime, what: str, engine: str) -> str:
    task = Task("a", run=gives, engine=engine, args={"what": what})  # type: ignore[arg-type]
    return await ended(runtime, Workstream("w", tasks=[task]))


async def ended(runtime: Runtime, workstream: Workstream) -> str:
    outcome = await (await runtime.submit(workstream)).wait()
    return " ".join(str(task.last_error) for task in outcome.tasks.values() if task.last_error)


def heartbeat(task: TaskContext) -> None:
    task.heartbeat(vast())


def checkpoint(task: TaskContext) -> None:
    task.checkpoint(vast())


async def logs(task: TaskContext) -> None:
    task.log.info("here", rows=vast())


async def runs(runtime: Runtime, body: Callable[..., Any], engine: str | None = None) -> str:
    return await ended(runtime, Workstream("w", tasks=[Task("a", run=body, engine=engine)]))  # type: ignore[arg-type]


async def specified(runtime: Runtime, **said: Any) -> str:
    await runtime.submit(Workstream("w", tasks=[Task(**{"name": "a", "command": ["true"], **said})]))
    return "it was taken"


async def fired(runtime: Runtime, **said: Any) -> str:
    gate = await runtime.spawn(MachineActor(GATE, Facts(), on_event=grown if not said else None), name="gate")
    await gate.fire("push", **said)
    return "it was taken"


async def condition(runtime: Runtime) -> str:
    raises = Task("a", command=["true"], condition=Condition(run=fails))
    return await ended(runtime, Workstream("w", tasks=[raises]))


async def actor(runtime: Runtime) -> str:
    await runtime.spawn(Failing, name="failing").ask(vast(), timeout=60)
    return "it was taken"


async def spawned(runtime: Runtime) -> str:
    await runtime.spawn(MachineActor(GATE, Facts(vast())), name="first")
    return "it was taken"


async def worker(runtime: Runtime) -> str:
    await runtime.start_worker(Worker("w", engine="thread", capabilities=vast()))
    return "it was taken"


async def called(function: Callable[..., Any], *args: Any, **named: Any) -> str:
    answer = function(*args, **named)
    if isinstance(answer, Awaitable):
        await answer
    return "it was taken"


CASES: dict[str, Callable[[Runtime], Awaitable[str]]] = {
    "a result": lambda runtime: returns(runtime, "vast", "thread"),
    "a result of a process": lambda runtime: returns(runtime, "vast", "process"),
    "a result without an end": lambda runtime: returns(runtime, "endless", "thread"),
    "a result that grows": lambda runtime: returns(runtime, "growing", "thread"),
    "details of a heartbeat": lambda runtime: runs(runtime, heartbeat),
    "a checkpoint": lambda runtime: runs(runtime, checkpoint),
    "an error": lambda runtime: runs(runtime, fails),
    "an error of a process": lambda runtime: runs(runtime, fails, "process"),
    "an error of a condition": condition,
    "an error of an actor": actor,
    "args": lambda runtime: specified(runtime, args={"rows": vast()}),
    "args without an end": lambda runtime: specified(runtime, args={"rows": vast(), "more": Endless()}),
    "a command": lambda runtime: specified(runtime, command=vast()),
    "a name": lambda runtime: specified(runtime, name=vast()),
    "metadata": lambda runtime: fired(runtime, metadata={"rows": vast()}),
    "facts of an event": lambda runtime: fired(runtime, facts={"rows": vast()}),
    "facts of an event with a key": lambda runtime: fired(runtime, facts={"rows": vast()}, request_id="k"),
    "facts that on_event returns": fired,
    "facts of a machine": spawned,
    "an event": lambda runtime: fired(runtime, reason=vast()),
    "a line of a log": lambda runtime: runs(runtime, logs),
    "capabilities": worker,
    "an id": lambda runtime: called(runtime.submit, Workstream("w", tasks=[]), id=vast()),
    "a name of a machine": lambda runtime: called(runtime.machine, vast()),
    "a filter": lambda runtime: called(runtime.events, job=Words()),
    "a filter that is vast": lambda runtime: called(runtime.events, job=vast()),
    "aliases": lambda runtime: called(runtime.task, fails, aliases=Words()),
    "a workstream": lambda runtime: called(runtime.submit, vast()),
    "a duration": lambda runtime: specified(runtime, timeout=vast()),
}


async def main(journal: Path, names: list[str]) -> None:
    for name in names or CASES:
        async with Runtime(journal / f"{name}.db", drain_deadline=0) as runtime:
            with anyio.fail_after(300):
                try:
                    told = await CASES[name](runtime)
                except Exception as error:
                    told = f"{type(error).__name__}: {error}"
                good = await ended(runtime, Workstream("after", tasks=[Task("a", command=["true"])])) == ""
                assert good
                assert runtime.health.ok
        print(f"{name}: {told[:300]!r}", flush=True)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MOST, MOST))
    anyio.run(main, Path(sys.argv[1]), sys.argv[2:])
