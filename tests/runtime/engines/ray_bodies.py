"""Bodies for tests on Ray: functions that another process can find."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from callboard import Task, TaskContext, Workstream


def where() -> dict[str, Any]:
    return {"pid": os.getpid(), "parent": os.getppid(), "host": socket.gethostname()}


def host() -> str:
    return socket.gethostname()


async def where_on_loop() -> int:
    await anyio.lowlevel.checkpoint()
    return os.getpid()


async def computes() -> int:
    """Compute without an end in one call of C, during which no other thread gets Python's lock."""
    return sum(range(10**15))


def noted(task: TaskContext) -> str:
    """Note each run in a file, and wait until it may end."""
    folder = Path(task.args["folder"])
    with (folder / "runs").open("a") as file:
        file.write(f"{task.attempt} {os.getpid()} {os.getppid()}\n")
    while not (folder / "end").exists():
        task.heartbeat("noted")
        time.sleep(0.01)
    return f"attempt {task.attempt}"


async def noted_on_loop(task: TaskContext) -> str:
    folder = Path(task.args["folder"])
    with (folder / "runs").open("a") as file:
        file.write(f"{task.attempt} {os.getpid()} {os.getpid()}\n")
    while not (folder / "end").exists():
        task.heartbeat("noted")
        await anyio.sleep(0.01)
    return f"attempt {task.attempt}"


def starts_something(task: TaskContext) -> None:
    """Start a process that continues by itself, in a session of its own."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    task.heartbeat(child.pid)
    time.sleep(600)


def saves(task: TaskContext) -> Any:
    if task.attempt == 1:
        task.checkpoint({"row": 7})
        task.heartbeat("half")
        raise ValueError("once more")
    return [task.saved, task.details]


async def asks(task: TaskContext) -> dict[str, Any]:
    """Submit a child, wait for it, and ask for an approval, on an event loop."""
    child = await task.submit(Workstream("leaf", tasks=[Task("x", run=where_on_loop, engine="ray")]), name="leaf")
    outcome = await child.wait()
    decisions = await task.approval("prod", people=1)
    return {"id": child.id, "state": child.state, "result": outcome.results["x"], "by": [one.by for one in decisions]}


def tells_secret(task: TaskContext) -> str:
    print("the key is", task.secrets["KEY"])
    return f"key {task.secrets['KEY']}"
