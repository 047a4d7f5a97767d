"""Helpers for tests of engines: a recorder of outcomes, and the same behaviours as functions and as commands."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from tests.waiting import LONGEST

from callboard.actors.messages.errors import TaskCancelled
from callboard.runtime.calling import Outcome, ProcessInfo
from callboard.runtime.dispatch.runners import RunnerPool
from callboard.runtime.engines.command.engine import CommandEngine
from callboard.runtime.engines.context import TaskContext
from callboard.runtime.engines.contract import Call, CommandCall, ProcessCall
from callboard.runtime.engines.loop import LoopEngine
from callboard.runtime.engines.process.engine import ProcessEngine
from callboard.runtime.engines.ray.engine import RayEngine
from callboard.runtime.engines.thread import ThreadEngine

AnyEngine = LoopEngine | ThreadEngine | CommandEngine | ProcessEngine | RayEngine
WITHOUT_CONTEXT = {"quick", "failing"}
PROCESSES = 2  # workers of the process engine that a bench uses, in turn


class Record:
    """Records all reports of an engine, and lets a test wait for a condition on them."""

    def __init__(self) -> None:
        self.outcomes: dict[int, list[Outcome]] = {}
        self.beats: list[tuple[int, Any]] = []
        self.started: dict[int, ProcessInfo] = {}
        self.threads: set[int] = set()
        self.alive: list[tuple[str, int, tuple[int, ...]]] = []
        self.died: list[tuple[str, int, str]] = []
        self._changed = anyio.Event()

    def ended(self, outcome: Outcome) -> None:
        self.threads.add(threading.get_ident())
        self.outcomes.setdefault(outcome.token, []).append(outcome)
        self.change()

    def beat(self, token: int, details: Any) -> None:
        self.threads.add(threading.get_ident())
        self.beats.append((token, details))
        self.change()

    def process_started(self, token: int, info: ProcessInfo) -> None:
        self.threads.add(threading.get_ident())
        self.started[token] = info
        self.change()

    def worker_alive(self, worker: str, incarnation: int, tokens: tuple[int, ...], busy: bool = False) -> None:
        self.alive.append((worker, incarnation, tokens))
        self.change()

    def worker_died(self, worker: str, incarnation: int, reason: str) -> None:
        self.died.append((worker, incarnation, reason))
        self.change()

    def change(self) -> None:
        self._changed.set()

    async def until(self, condition: Callable[[], Any], *, within: float = LONGEST) -> None:
        """Wait for the condition, at most so many seconds; else fail with the reports so far."""
        with anyio.move_on_after(within):
            while not condition():
                self._changed = anyio.Event()
                await self._changed.wait()
            return
        raise TimeoutError(f"it never came to that: {sorted(self.outcomes)} have ended, {self.died} died")

    async def outcome(self, token: int) -> Outcome:
        """The only outcome of this token."""
        await self.until(lambda: token in self.outcomes)
        assert len(self.outcomes[token]) == 1
        return self.outcomes[token][0]


class Bench:
    """One open engine with its record, and calls of a few behaviours that every engine can run."""

    def __init__(self, engine: AnyEngine, record: Record, folder: Path, flavour: str) -> None:
        self.engine = engine
        self.flavour = flavour  # on Ray: the kind of the bodies
        self.record = record
        self.folder = folder
        self.released = threading.Event()  # lets the behaviour "stubborn" end
        self.released_on_loop = anyio.Event()

    def start(self, token: int, behaviour: str, **more: Any) -> TaskContext:
        context = TaskContext(task=behaviour, token=token)
        what = self._what(behaviour, token)
        given = None if behaviour in WITHOUT_CONTEXT and "process" in what else context
        self.start_call(Call(token=token, context=given, **what, **more))
        return context

    def start_call(self, call: Call) -> None:
        self.engine.start(call, self.record.ended, self.record.beat)

    def pid(self, token: int) -> int:
        """The process of the body with that token; on Ray the process of its worker's actor."""
        if isinstance(self.engine, RayEngine):
            return self.engine.place(f"w-{token % PROCESSES}")[1]
        return self.record.started[token].pid

    def release(self) -> None:
        self.released.set()
        self.released_on_loop.set()

    def _what(self, behaviour: str, token: int) -> dict[str, Any]:
        if isinstance(self.engine, CommandEngine):
            return {"command": CommandCall(argv=[sys.executable, "-S", "-c", COMMANDS[behaviour]])}
        if isinstance(self.engine, RayEngine):
            prefix = "async_" if self.flavour == "ray-async" else ""
            return {"process": process_call(f"{prefix}{behaviour}", token, on_loop=bool(prefix))}
        if isinstance(self.engine, ProcessEngine):
            return {"process": process_call(behaviour, token)}
        flavour = "async" if isinstance(self.engine, LoopEngine) else "plain"
        return {"func": getattr(self, f"_{flavour}_{behaviour}")}

    # The behaviours: quick returns; failing raises; patient ends when it is stopped; stubborn does not.

    def _plain_quick(self) -> str:
        return "value"

    async def _async_quick(self) -> str:
        return "value"

    def _plain_failing(self) -> None:
        raise LookupError("told to fail")

    async def _async_failing(self) -> None:
        raise LookupError("told to fail")

    def _plain_patient(self, task: TaskContext) -> None:
        while True:
            task.heartbeat("alive")
            self.released.wait(0.005)

    async def _async_patient(self, task: TaskContext) -> None:
        task.heartbeat("alive")
        await anyio.sleep_forever()

    def _plain_stubborn(self, task: TaskContext) -> str:
        with contextlib.suppress(TaskCancelled):  # the stop may come within the heartbeat
            task.heartbeat("alive")
        self.released.wait(600)
        return "late"

    async def _async_stubborn(self, task: TaskContext) -> str:
        with anyio.CancelScope(shield=True):
            task.heartbeat("alive")
            await self.released_on_loop.wait()
        return "late"


def process_call(behaviour: str, token: int = 0, **more: Any) -> ProcessCall:
    """A call of one of `process_bodies`, for one of the bench's workers."""
    function = f"tests.runtime.engines.process_bodies:{behaviour}"
    given: dict[str, Any] = {"function": function, "worker": f"w-{token % PROCESSES}", "incarnation": 1, **more}
    return ProcessCall(**given)


COMMANDS = {
    "quick": "pass",
    "failing": "import sys; sys.exit('told to fail')",
    "patient": "import time; print('alive', flush=True); time.sleep(60)",
    "stubborn": (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('alive', flush=True); time.sleep(60)"
    ),
}


@asynccontextmanager
async def open_bench(name: str, folder: Path) -> AsyncIterator[Bench]:
    """An open engine by its name; closed at the end, whatever it runs."""
    record = Record()
    async with anyio.create_task_group() as group:
        pool = RunnerPool(group)
        engine: AnyEngine
        if name == "loop":
            engine = LoopEngine(pool)
        elif name == "thread":
            engine = ThreadEngine()
        elif name == "process":
            engine = ProcessEngine(started=record.process_started, alive=record.worker_alive, died=record.worker_died)
        elif name.startswith("ray"):
            engine = RayEngine(alive=record.worker_alive, died=record.worker_died)
        else:
            engine = CommandEngine(started=record.process_started)
        await engine.open()
        bench = Bench(engine, record, folder, name)
        try:
            yield bench
        finally:
            bench.release()
            await engine.close(0.2)
            pool.close()
