"""A program as it was when the journals beside it were made, by commit 5c07c26: what they name is found here.

It says only what that version knew, and must stay so. Made by `python -m tests.older.make` in a checkout of it.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Any, Protocol

import anyio
import msgspec

from callboard import Machine, MachineActor, State, Task, Timed, Tool, Transition, Workstream
from callboard.machines.lifecycles import LIFECYCLES
from callboard.machines.lifecycles.execution import EXECUTION

LIFECYCLED = (None, *LIFECYCLES)
"""Each of them is that of a job."""


class Door(StrEnum):
    OPEN = "open"
    SHUT = "shut"
    LOCKED = "locked"


class Locked(msgspec.Struct, frozen=True):
    """The facts of a door."""

    key: str = "brass"
    patience: float | None = None
    times: int = 0


class HasKey(Protocol):
    @property
    def key(self) -> str: ...


def has_key(facts: HasKey, _: Any) -> bool:
    """It has the key that it was made with."""
    return facts.key == "brass"


def counted(facts: Locked, fire: Any) -> Locked:
    """It counts what is done to it."""
    return msgspec.structs.replace(facts, times=facts.times + 1)


DOOR = Machine(
    "door",
    Door.OPEN,
    states=(State(Door.OPEN, bounded_by="people"), State(Door.SHUT), State(Door.LOCKED, terminal=True)),
    transitions=(
        Transition(Door.OPEN, "close", Door.SHUT),
        Transition(Door.SHUT, "lock", Door.LOCKED, has_key),
        Transition(Door.SHUT, "open", Door.OPEN),
    ),
    timed=(Timed(Door.SHUT, "open", "patience"),),
)


def door() -> MachineActor:
    """A door, with all that one may have."""
    return MachineActor(DOOR, Locked(), on_event=counted)


async def begin() -> int:
    return 1


async def go_on(task: Any) -> int:
    """It waits where the journal is made, so that the journal ends in the middle of it."""
    if os.environ.get("OLDER") == "make":
        await anyio.sleep_forever()
    return int(task.results["begin"]) + 1


def in_a_thread() -> str:
    return "done"


def is_wanted() -> bool:
    return True


def workstream(lifecycle: str | None) -> Workstream:
    """A graph with functions by their paths, one by its name, and a command."""
    return Workstream(
        "flow",
        tools={"saw": Tool(max_parallel=8)},
        tasks=[
            Task("begin", run=begin, tool="saw"),
            Task("named", run="plane"),
            Task("thread", run=in_a_thread, depends_on=["begin"]),
            Task("go_on", run=go_on, depends_on=["begin", "thread"]),
            Task("command", command=["true"], depends_on=["go_on"]),
            Task("path", run=f"{__name__}:begin", depends_on=["go_on", "named"]),
        ],
        lifecycle=lifecycle,
    )


async def plane() -> str:
    """A function that programs register: in specifications it is named `plane`."""
    return "smooth"


def execution() -> MachineActor:
    """An actor by a published machine."""
    return MachineActor(EXECUTION)
