"""A program that runs machines and guards of the library itself, as commit 5c07c26 named them in its journals.

In a checkout of that commit, `python -c "from tests.older import library; library.leave('FILE')"` made what is in
`library.sqlite.gz`. It must stay so.
"""

from __future__ import annotations

import os
import signal

import anyio
import msgspec

from callboard import Fire, Machine, MachineActor, Runtime, State, Transition
from callboard.machines import JOB, WORKER


class Held(msgspec.Struct, frozen=True):
    """The facts of a shelf: those that the guard reads."""

    capacity: int = 1
    assigned: int = 0
    paused: bool = False
    draining: bool = False


def shelf() -> MachineActor:
    """A machine that a restart makes of its table, with a guard of the library."""
    guard = next(row.guard for row in WORKER.transitions if row.guard and row.guard.__name__ == "capacity_left")
    table = Machine(
        "shelf", "free", states=(State("free", bounded_by="people"), State("full", terminal=True)),
        transitions=(Transition("free", "put", "free", guard), Transition("free", "fill", "full")),
    )  # fmt: skip
    return MachineActor(table, Held(capacity=2))


def leave(path: str) -> None:
    """Leave the journal as a `kill -9` does."""
    anyio.run(_fill, path)


async def _fill(path: str) -> None:
    async with Runtime(path) as runtime:
        await runtime.spawn(MachineActor(JOB), name="held").ask(Fire("validate"))
        await runtime.spawn(shelf(), name="shelf").ask(Fire("put"))
        await runtime.settled(10)
        os.kill(os.getpid(), signal.SIGKILL)
