"""The soak: random load through one runtime for a given time, with figures of its memory and its journal.

`python -m tests.reliability.soak FOLDER --workstreams 50000 --parked 10000 --rate 60`

Rules:
- The load is drawn from a seed: graphs of up to six tasks on all engines, failures with retries, timeouts, a tool with
  its breaker, cancels with hooks, pauses, approvals, children, machines, commands with a `request_id`.
- The parked workstreams are held until the end.
- Ended jobs are archived repeatedly, by `callboard archive` in a separate process; its files are deleted.
- A sample is taken every few seconds, after a garbage collection. `Figures` evaluates the samples.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import anyio
import msgspec

from callboard import (
    Actor,
    Approval,
    Breaker,
    Fire,
    Hook,
    MachineActor,
    Notice,
    Retry,
    Runtime,
    Task,
    TaskContext,
    Tool,
    Worker,
    Workstream,
)
from callboard.errors import InvalidTransitionError
from callboard.machines.lifecycles.execution import EXECUTION

EVERY = 15.0
"""Seconds between two samples, and between two archivings."""
SIMPLE = 0.9
"""The part of the workstreams that are a single small task, as in a program with very many of them."""


FILES = ("state.db", "state.db-wal", "transitions.jsonl")


class Sample(msgspec.Struct, frozen=True):
    """The memory of the process, in bytes, and its counts."""

    at: float  # seconds since the beginning
    ended: int  # workstreams
    living: int  # jobs, with the parked ones
    rss: int
    fds: int
    threads: int
    objects: int  # objects that the garbage collector tracks
    blocks: int  # blocks of memory that Python has allocated
    used: int  # bytes that the C allocator has given out
    journal: int
    wal: int
    log: int


class Figures(msgspec.Struct):
    """The figures of a soak."""

    samples: list[Sample] = []
    outcomes: Counter[str] = msgspec.field(default_factory=Counter)
    troubles: Counter[str] = msgspec.field(default_factory=Counter)
    parked: int = 0
    archived: int = 0


async def quick(task: TaskContext) -> int:
    return 1


async def naps(task: TaskContext) -> int:
    await anyio.sleep(task.args.get("for", 0.01))
    task.heartbeat({"done": 1})
    return 1


async def stumbles(task: TaskContext) -> int:
    if task.attempt < task.args.get("until", 2):
        raise ConnectionError("not yet")
    return 1


async def breaks(task: TaskContext) -> None:
    raise ValueError("never")


def plain(task: TaskContext) -> int:
    return 1


async def asks(task: TaskContext) -> int:
    return len(await task.approval("sign", people=1))


async def has_child(task: TaskContext) -> int:
    child = await task.submit(Workstream("sub", tasks=[Task("one", run=quick), Task("two", run=plain)]), name="sub")
    return int((await child.wait()).state == "completed")


async def hook(task: TaskContext) -> None:
    pass


def drawn_task(dice: random.Random, name: str, before: list[str]) -> Task:
    edges: dict[str, Any] = {"depends_on": [one for one in before if dice.random() < 0.4]}
    which = dice.random()
    if which < 0.45:
        return Task(name, run=quick, **edges)
    if which < 0.60:
        return Task(name, run=naps, args={"for": dice.random() * 0.05}, **edges)
    if which < 0.72:
        return Task(name, run=plain, on_completed=[Hook(run=hook)] if dice.random() < 0.1 else [], **edges)
    if which < 0.82:
        return Task(name, run=stumbles, retry=Retry(max_attempts=3, base_delay=0.01), tool="press", **edges)
    if which < 0.86:
        return Task(name, run=breaks, optional=dice.random() < 0.8, **edges)
    if which < 0.89:
        return Task(name, run=naps, args={"for": 30.0}, timeout=0.02, optional=True, **edges)
    if which < 0.92:
        return Task(name, run=asks, **edges)
    if which < 0.95:
        return Task(name, run=has_child, **edges)
    if which < 0.97:
        return Task(name, run=quick, wait=dice.random() * 0.1, cancel_hooks=[Hook(run=hook)], **edges)
    if which < 0.99:
        return Task(name, command=["true"], **edges)
    return Task(name, run=plain, engine="process", **edges)


def drawn(dice: random.Random, number: int, simple: float) -> Workstream:
    tasks: list[Task] = []
    if dice.random() < simple:
        return Workstream(f"load-{number}", tasks=[Task("only", run=dice.choice((quick, quick, plain)))])
    for index in range(dice.randint(1, 6)):
        tasks.append(drawn_task(dice, f"t{index}", [task.name for task in tasks]))
    press = Tool(breaker=Breaker(failure_threshold=50, cooldown=0.05))
    return Workstream(f"load-{number}", tasks=tasks, tools={"press": press}, on_failed=[Hook(run=hook)])


class Echo(Actor):
    def receive(self, message: object, ctx: Any) -> object:
        return message


class Soak:
    """One soak, in one runtime."""

    def __init__(self, runtime: Runtime, place: Path, seed: int, most: int, simple: float) -> None:
        self.figures = Figures()
        self._runtime = runtime
        self._place = place
        self._dice = random.Random(seed)
        self._room = anyio.Semaphore(most)
        self._simple = simple
        self._began = time.monotonic()
        self._ended = 0
        runtime.on_trouble = self._trouble

    def _trouble(self, notice: Notice) -> None:
        self.figures.troubles[notice.kind] += 1

    async def park(self, count: int) -> None:
        """Submit the workstreams that stay held."""
        held = Workstream("parked", tasks=[Task("held", run=quick, hold=Approval(people=1))])
        for first in range(0, count, 100):
            async with anyio.create_task_group() as group:
                for number in range(first, min(first + 100, count)):
                    group.start_soon(partial(self._runtime.submit, held, id=f"parked-{number}"))
        self.figures.parked = count

    async def unpark(self) -> None:
        """Let every second of them continue, and cancel the others; returns when all have ended."""
        for number in range(self.figures.parked):
            job = await self._runtime.job(f"parked-{number}")
            if number % 2:
                await job.task("held").approve(by="ana")
            else:
                await job.cancel()
        for number in range(self.figures.parked):
            outcome = await (await self._runtime.job(f"parked-{number}")).wait()
            self.figures.outcomes[f"parked, {outcome.state}"] += 1

    async def load(self, workstreams: int, rate: float) -> None:
        """Run so many workstreams, so many a second at most."""
        began = time.monotonic()
        async with anyio.create_task_group() as group:
            for number in range(workstreams):
                await self._room.acquire()
                group.start_soon(self._one, number)
                await anyio.sleep(max(began + number / rate - time.monotonic(), 0))

    async def _one(self, number: int) -> None:
        dice = random.Random(self._dice.random())
        runtime = self._runtime
        try:
            job = await runtime.submit(drawn(dice, number, self._simple), id=f"load-{number}")
            if dice.random() < 0.1:
                seen = job.events()
                async for _ in seen:
                    break
                seen.close()
            if dice.random() < 0.05:
                with suppress(InvalidTransitionError):
                    await job.cancel(reason="drawn so", request_id=f"cancel-{number}")
            elif dice.random() < 0.05:
                with suppress(InvalidTransitionError):
                    await job.pause(request_id=f"pause-{number}")
                    await job.resume(request_id=f"resume-{number}")
            if dice.random() < 0.05:
                await self._machine(number)
            if dice.random() < 0.05:
                echo = runtime.spawn(Echo, name=f"echo-{number}")
                await echo.ask(number)
                echo.stop()
            outcome = await job.wait()
            self.figures.outcomes[outcome.state] += 1
        finally:
            self._ended += 1
            self._room.release()

    async def _machine(self, number: int) -> None:
        run = self._runtime.spawn(MachineActor(EXECUTION), name=f"run-{number}")
        for event in ("ENQUEUE", "START", "SUCCEED", "VALIDATION_PASSED"):
            with suppress(InvalidTransitionError):
                await run.ask(Fire(event, request_id=f"{event}-{number}"))

    async def sign(self) -> None:
        """Approve the approvals that running bodies ask for."""
        async for event in self._runtime.events(kind="approval", to_state="held", notices=False):
            task, _, name = event.entity_id.rpartition("/")
            with suppress(InvalidTransitionError, LookupError):
                job = await self._runtime.job(event.job_id or "")
                await job.task(task.rpartition("/")[2]).approve(by="ana", approval=name)

    async def watch(self, every: float) -> None:
        while True:
            await anyio.sleep(every)
            self.sample()

    async def archive(self, every: float) -> None:
        """Archive the ended jobs, and delete the files."""
        folder = self._place / "archive"
        program = "from callboard.runtime.cli import main; main()"
        said = ["archive", "--older-than", "0s", "--journal", str(self._place / "state.db"), "--to", str(folder)]
        command = [sys.executable, "-c", program, *said]
        while True:
            await anyio.sleep(every)
            ran = await anyio.to_thread.run_sync(lambda: subprocess.run(command, capture_output=True, text=True))  # noqa: PLW1510
            if ran.returncode:
                self.figures.troubles[f"archive: {ran.stdout[-300:]} {ran.stderr[-300:]}"] += 1
            with suppress(FileNotFoundError):
                self.figures.archived += _count(folder)
                await anyio.to_thread.run_sync(shutil.rmtree, folder)

    def sample(self) -> Sample:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        sample = Sample(
            round(time.monotonic() - self._began, 1), self._ended, len(self._runtime._services.host.kernel.jobs),
            pages * os.sysconf("SC_PAGE_SIZE"), _count(Path("/proc/self/fd")), threading.active_count(),
            len(gc.get_objects()), sys.getallocatedblocks(), _used(), *(_size(self._place / name) for name in FILES),
        )  # fmt: skip
        self.figures.samples.append(sample)
        return sample


class _Mallinfo(ctypes.Structure):
    _fields_: ClassVar[list[tuple[str, type]]] = [  # type: ignore[misc]
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def _used() -> int:
    """Bytes that the C library's allocator has given out; 0 if it has no such figure."""
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return 0
    ask.restype = _Mallinfo
    told = ask()
    return int(told.uordblks + told.hblkhd)


def _count(folder: Path) -> int:
    return sum(1 for _ in folder.iterdir())


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


async def soak(
    place: Path, *, workstreams: int, parked: int, rate: float, every: float = EVERY, seed: int = 0, most: int = 100,
    simple: float = SIMPLE, tell: Any = None,
) -> Figures:  # fmt: skip
    """Run the whole soak in a runtime of that folder."""
    sizes = ("loop", 100), ("thread", 4), ("process", 1), ("command", 4)
    workers = [Worker(name, engine=name, capacity=size) for name, size in sizes]  # type: ignore[arg-type]
    async with Runtime(place / "state.db", jsonl=place / "transitions.jsonl", workers=workers) as runtime:
        one = Soak(runtime, place, seed, most, simple)
        await one.park(parked)
        one.sample()
        async with anyio.create_task_group() as group:
            group.start_soon(one.watch, every)
            group.start_soon(one.archive, every)
            group.start_soon(one.sign)
            if tell is not None:
                group.start_soon(tell, one.figures)
            await one.load(workstreams, rate)
            one.sample()
            group.cancel_scope.cancel()
        await one.unpark()
        one.sample()
    return one.figures


async def _tell(figures: Figures) -> None:
    told = 0
    while True:
        await anyio.sleep(1)
        for sample in figures.samples[told:]:
            print(msgspec.json.encode(sample).decode(), flush=True)
        told = len(figures.samples)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workstreams", type=int, default=50_000)
    parser.add_argument("--parked", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=EVERY)
    asked = parser.parse_args()
    asked.folder.mkdir(exist_ok=True)
    asking = partial(
        soak, asked.folder, workstreams=asked.workstreams, parked=asked.parked, rate=asked.rate, every=asked.every,
        tell=_tell,
    )  # fmt: skip
    figures = anyio.run(asking)
    print(figures.samples[-1])
    print(figures.outcomes, figures.troubles, figures.parked, figures.archived)


if __name__ == "__main__":
    main()
