"""The cost of the lifecycle actors, without event loop, journal and engines: processor time per no-op task.

    PYTHONPATH=src python benchmarks/kernel.py

One line per shape: 1,000 independent tasks, a chain of 1,000, 20 layers of 50 with three dependencies each, and
1 -> 1,000 -> 1. Each task is seven transitions and eight messages; its body ends at once. The figure is the best of
several runs, beside the cost of one dictionary write at the same time, since machines differ and are shared.
"""

from __future__ import annotations

import gc
from collections import deque
from random import Random
from time import process_time
from typing import Any

from callboard.actors.jobs.job import JobOver
from callboard.actors.kernel.kernel import Kernel
from callboard.actors.kernel.transaction import Effect, StartCall, Transaction
from callboard.actors.messages.commands import Reply, StartWorkers, Submit
from callboard.actors.messages.inputs import CallEnded, Message, TimerFired
from callboard.actors.messages.notices import Notice
from callboard.actors.records.loaded import Loaded
from callboard.actors.restore import make_supervisor
from callboard.actors.spec.model import Defaults, Task, Worker, Workstream

RUNS = 15


class Port:
    """The smallest environment of the actors: nothing is stored, and bodies end at once."""

    def __init__(self) -> None:
        self.random = Random(1)
        self.set_back = 0.0
        self.inputs: deque[Message] = deque()
        self.done = 0
        self.transitions = 0
        self.kernel: Kernel = make_supervisor(self, Defaults(), Loaded()).kernel
        self.kernel.run(StartWorkers((Worker("loop", engine="loop", capacity=100),)))

    def now(self) -> float:
        return 1_000_000.0

    def monotonic(self) -> float:
        return 1_000.0

    def arm(self, due: float, fire: TimerFired, *, by_utc: bool, named: bool = False) -> object:
        return fire

    def disarm(self, timer: object) -> None:
        pass

    def later(self, message: Message) -> None:
        self.inputs.append(message)

    def engine_of(self, task: Task) -> str:
        return "loop"

    def placed(self, spec: Workstream) -> Workstream:
        return spec

    def located(self, path: str, folder: str) -> str:
        return path

    def travels(self, task: Task) -> bool:
        return True

    def missing(self, task: Task) -> str:
        return ""

    def resolve(self, name: str) -> Any:
        raise LookupError(name)

    find = resolve

    def probe(self, engine: str, worker: str, incarnation: int) -> None: ...

    def tell_notice(self, notice: Notice) -> None:
        raise RuntimeError(notice.text) from notice.error

    def commit(self, turn: Transaction) -> None:
        self.transitions += len(turn.transitions)
        assert turn.records is not None
        for effect in turn.effects:
            self.release(effect)

    def release(self, effect: Effect) -> None:
        if isinstance(effect, StartCall):
            self.inputs.append(CallEnded(effect.token, "ok"))
        elif isinstance(effect, JobOver):
            self.done += 1
            effect.job.release_actors()


def independent(count: int = 1000) -> list[Task]:
    return [Task(f"t{n}", run="m:f") for n in range(count)]


def chain(count: int = 1000) -> list[Task]:
    return [Task(f"t{n}", run="m:f", depends_on=[f"t{n - 1}"] if n else []) for n in range(count)]


def layers(count: int = 20, width: int = 50) -> list[Task]:
    return [
        Task(
            f"t{layer}-{n}",
            run="m:f",
            depends_on=[f"t{layer - 1}-{(n + k) % width}" for k in range(3)] if layer else [],
        )
        for layer in range(count)
        for n in range(width)
    ]


def fan(width: int = 1000) -> list[Task]:
    middle = [Task(f"t{n}", run="m:f", depends_on=["first"]) for n in range(width)]
    return [Task("first", run="m:f"), *middle, Task("last", run="m:f", depends_on=[task.name for task in middle])]


def once(tasks: list[Task]) -> float:
    """Run these tasks; returns microseconds of processor time per task."""
    port = Port()
    spec = Workstream("w", tasks=tasks)
    gc.collect()
    began = process_time()
    port.kernel.run(Submit("job", False, spec, b"", "", Reply(None)))
    while port.inputs:
        port.kernel.run(port.inputs.popleft())
    took = process_time() - began
    assert port.done == 1
    return took / len(tasks) * 1e6


def write_cost() -> float:
    """Nanoseconds of one write of a dictionary, measured now."""
    began = process_time()
    kept: dict[int, Any] = {}
    for n in range(100_000):
        kept[n & 1023] = (n, kept.get(n))
    return (process_time() - began) * 1e4


def main() -> None:
    print(f"{'shape':14}{'us a task':>12}{'dict writes':>14}")
    for make in (independent, chain, layers, fan):
        best = min(once(make()) for _ in range(RUNS))
        floor = min(write_cost() for _ in range(RUNS))
        print(f"{make.__name__:14}{best:12.1f}{best * 1000 / floor:14.0f}")


if __name__ == "__main__":
    main()
