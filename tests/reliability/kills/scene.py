"""The workstreams that the kill sweep runs: every engine, retries, a breaker, holds, a cancel, a child, a machine.

Rules:
- `run(folder)` opens the runtime of that folder, submits everything under fixed ids, and waits until all has ended:
  run again after a kill it goes on.
- Every body writes its begin and its end as one line into `folder/log`, synced at once:
  "JOB/TASK TOKEN start". Hooks write "JOB/TASK 0 hook". So the log shows what really ran, independent of the journal.
- People's commands (approve, cancel, fire) are not here: they come from outside, through the inbox (`outside.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec

from callboard import (
    Approval,
    Breaker,
    Defaults,
    Fire,
    Hook,
    Machine,
    MachineActor,
    Retry,
    Runtime,
    State,
    Task,
    Timed,
    Tool,
    Transition,
    Worker,
    Workstream,
)
from callboard.runtime.engines.context import TaskContext
from callboard.runtime.journal.location import Store, store_of, target_of

FRAGILE_LOSSES = 3
"""The number of times that the task `fragile` may be lost."""
LEASE = 2.0
"""The lease of a node in seconds."""
NOTES = 5
"""The number of events for the machine, each sent twice under one key."""


AFTER_LINES: list[Callable[[], object]] = []
"""Is called after each line of the log that this process has written."""


def folder() -> Path:
    return Path(os.environ["SCENE"])


def journal_of(place: Path) -> Store:
    """The journal of a place: the database whose address is in a file there, or a file."""
    address = place / "address"
    return store_of(address.read_text()) if address.exists() else place / "state.db"


def log_of_transitions(place: Path, node: str = "") -> Path:
    """The JSONL log of a runtime there."""
    return place / (f"transitions-{node}.jsonl" if node else "transitions.jsonl")


def write(line: str) -> None:
    handle = os.open(folder() / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, line.encode() + b"\n")
        os.fsync(handle)
    finally:
        os.close(handle)
    for act in AFTER_LINES:
        act()


def told(task: TaskContext, word: str) -> None:
    write(f"{task.job_id}/{task.task} {task.token} {word}")


def times(task: TaskContext, word: str) -> int:
    """The number of lines with that word in the log of a task, over all attempts and runtimes."""
    lines = (folder() / "log").read_text().splitlines()
    return sum(line.startswith(f"{task.job_id}/{task.task} ") and line.endswith(f" {word}") for line in lines)


async def step(task: TaskContext) -> int:
    told(task, "start")
    await anyio.sleep(0.002)
    told(task, "end")
    return 1 + sum(value for value in task.results.values() if isinstance(value, int))


def plain(task: TaskContext) -> int:
    told(task, "start")
    told(task, "end")
    return 1


async def fails_twice(task: TaskContext) -> int:
    told(task, "start")
    if times(task, "fail") < 2:
        told(task, "fail")
        raise ConnectionError("not yet")
    told(task, "end")
    return 1


async def has_child(task: TaskContext) -> int:
    told(task, "start")
    tasks = [Task("one", run=step), Task("two", run=plain, depends_on=["one"])]
    child = await task.submit(Workstream("sub", tasks=tasks, defaults=DEFAULTS), name="sub")
    outcome = await child.wait()
    told(task, "end")
    return int(outcome.state == "completed")


async def asks(task: TaskContext) -> str:
    told(task, "start")
    decisions = await task.approval("sign", people=1)
    told(task, "end")
    return str(decisions[0].by)


async def endless(task: TaskContext) -> None:
    told(task, "start")
    await anyio.sleep_forever()


async def hook(task: TaskContext) -> None:
    about: dict[str, Any] = task.args
    write(f"{about['entity_id']} 0 hook")


class Facts(msgspec.Struct, frozen=True):
    patience: str = "50ms"
    notes: int = 0


def count(facts: Facts, fire: Fire) -> Facts:
    return msgspec.structs.replace(facts, notes=facts.notes + (fire.event == "note"))


GAUGE = Machine(
    "gauge",
    "new",
    states=[
        State("new", bounded_by="the scene"),
        State("held"),
        State("counting", bounded_by="people"),
        State("out", terminal=True),
    ],
    transitions=[
        Transition("new", "submit", "held"),
        Transition("held", "expire", "counting"),
        Transition("counting", "note", "counting"),
        Transition("counting", "close", "out"),
    ],
    timed=[Timed("held", "expire", after="patience")],
)
DEFAULTS = Defaults(max_losses=10_000)  # a task that is lost by kills must not fail
RETRY = Retry(max_attempts=3, base_delay=0.01)


def _says(script: str) -> str:
    """A command that logs its begin and its end as a body does."""
    return (
        f'echo "$CALLBOARD_JOB/$CALLBOARD_TASK $CALLBOARD_FENCING_TOKEN start" >> {folder()}/log\n{script}\n'
        f'echo "$CALLBOARD_JOB/$CALLBOARD_TASK $CALLBOARD_FENCING_TOKEN end" >> {folder()}/log'
    )


def main_workstream(*, processes: bool) -> Workstream:
    tasks = [
        Task("first", run=step, on_completed=[Hook(run=hook)]),
        Task("thread", run=plain),
        Task("command", command=_says("true"), shell=True),
        Task("slow-command", command=_says("sleep 0.15"), shell=True),
        Task("fragile", run=step, optional=True, max_losses=FRAGILE_LOSSES),
        Task("once", run=step, optional=True, on_loss="fail"),
        Task("retried", run=fails_twice, depends_on=["first"], retry=RETRY),
        Task("tooled", run=fails_twice, depends_on=["first"], tool="press", retry=RETRY),
        Task("parent", run=has_child, depends_on=["thread"]),
        Task("gate", run=step, depends_on=["first"], hold=Approval(people=2, expires="1h")),
        Task("asks", run=asks, depends_on=["thread"]),
        Task("waits", run=plain, depends_on=["command"], wait="40ms"),
        *[Task(f"layer-{i}", run=(step, plain)[i % 2], depends_on=["first", "thread"]) for i in range(6)],
        Task("last", run=step, depends_on=["retried", "tooled", "parent", "gate", "asks", "waits", "slow-command"]),
    ]
    if processes:
        tasks.append(Task("process", run=plain, engine="process"))
    press = Tool(breaker=Breaker(failure_threshold=2, cooldown=0.03))
    return Workstream(
        "main", tasks=tasks, defaults=DEFAULTS, tools={"press": press}, on_completed=[Hook(run=hook)]
    )  # fmt: skip


def doomed_workstream() -> Workstream:
    """The workstream that is cancelled gracefully: its hooks run."""
    tasks = [
        Task("body", run=endless, cancel_hooks=[Hook(run=hook)]),
        Task("command", command=_says("sleep 1000"), shell=True, kill_grace=0.2),
        Task("never", run=step, depends_on=["body"]),
    ]
    return Workstream("doomed", tasks=tasks, defaults=DEFAULTS, cancel_hooks=[Hook(run=hook)])


def workers() -> list[Worker]:
    engines = ("loop", 20), ("thread", 2), ("process", 1), ("command", 4)
    return [Worker(engine, engine=engine, capacity=capacity) for engine, capacity in engines]  # type: ignore[arg-type]


async def run(place: Path, processes: bool, node: str = "") -> None:
    """Run the scene. node: this node's name, if several nodes run it."""
    as_node: dict[str, Any] = {"node": node, "lease": LEASE} if node else {}
    journal, log = target_of(journal_of(place)), log_of_transitions(place, node)
    async with Runtime(journal, jsonl=log, workers=workers(), **as_node) as runtime:
        write("scene 0 open")
        gauge = runtime.spawn(MachineActor(GAUGE, Facts(), on_event=count), name="gauge")
        main = await runtime.submit(main_workstream(processes=processes), id="main")
        doomed = await runtime.submit(doomed_workstream(), id="doomed")
        await gauge.ask(Fire("submit", request_id="submit"))
        await main.wait()
        await doomed.wait()
        while not gauge.ended:  # another node may run it, whose events do not arrive here
            await anyio.sleep(0.01)
        write("scene 0 over")
