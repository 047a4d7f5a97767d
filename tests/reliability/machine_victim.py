"""A program that is killed while it runs machines: `python machine_victim.py FOLDER AHEAD [hold]`. A new one goes on.

AHEAD: seconds that its clock is ahead of the machine's. hold: it writes the journal for run-7 only, so that commands
find the file free on a busy machine, too; by default it always writes. It writes lines into FOLDER/log: the state at
its start ("open STATE"), when run-7 only waits for its timer ("waits STATE"), and when run-7 has ended ("over").
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import anyio
import msgspec

from callboard import Fire, MachineActor, Runtime
from callboard.machines.lifecycles.execution import EXECUTION

FOLDER = Path(sys.argv[1])
AHEAD = float(sys.argv[2])
HOLD = sys.argv[3:] == ["hold"]


class Facts(msgspec.Struct, frozen=True):
    """How long a run may be away."""

    recovery_timeout: float = 60.0


class Ahead:
    """A clock that is ahead of the machine's by so many seconds."""

    monotonic = staticmethod(time.monotonic)

    def time(self) -> float:
        return time.time() + AHEAD


def write(line: str) -> None:
    with (FOLDER / "log").open("ab", buffering=0) as log:
        log.write(line.encode() + b"\n")


def over() -> None:
    write("over")


async def main() -> None:
    journal, log = FOLDER / "state.db", FOLDER / "transitions.jsonl"
    async with Runtime(journal, jsonl=log, clock=Ahead(), workers=()) as runtime:
        found = next((one for one in runtime.machines() if one.name == "run-7"), None)
        write(f"open {None if found is None else found.state}")
        run = runtime.spawn(MachineActor(EXECUTION, Facts(), on_enter={"failed": over}), name="run-7")
        for event in ("ENQUEUE", "START", "RECOVER") if run.state == "pending" else ():
            await run.ask(Fire(event))
        write(f"waits {run.state}")
        if HOLD:
            await anyio.sleep_forever()
        for number in range(10**9):  # so that the journal is written at the time of the kill
            other = runtime.spawn(MachineActor(EXECUTION), name=f"{AHEAD:g}-{time.time_ns()}-{number}")
            for event in ("ENQUEUE", "START", "SUCCEED"):
                await other.ask(Fire(event))


if __name__ == "__main__":
    anyio.run(main)
