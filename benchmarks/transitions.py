"""Transitions through an actor: each is a message, is validated by a machine, and is kept in a log in memory.

    python benchmarks/transitions.py [--quick]

The machine is the circuit breaker's, and the log has the records that journals keep. Lower bounds: the same table as a
nested dict, and the machine without an actor.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
from common import Figure, collected, print_figures, run_on

from callboard import Actor, Context
from callboard.actors.messages.inputs import Message
from callboard.actors.records.transition import Transitioned
from callboard.machines import BREAKER, BreakerState, Event
from callboard.runtime.dispatch.dispatcher import Dispatcher

TRIP, RESET = Event.TRIP, Event.RESET
KEPT = 100_000


class Fire(Message, frozen=True):
    """Fire an event at the machine."""

    event: str


class Breaker(Actor):
    """Holds a state, and the log of its transitions."""

    def __init__(self) -> None:
        self.state: str = BreakerState.CLOSED
        self.seq = 0
        self.log: deque[Transitioned] = deque(maxlen=KEPT)
        self.now = time.time

    def receive(self, message: Any, ctx: Context) -> int | None:
        if type(message) is not Fire:
            return self.seq
        state, event = self.state, message.event
        row = BREAKER.transition(state, event)
        self.seq = seq = self.seq + 1
        self.log.append(Transitioned(seq, "breaker", "tool", seq, state, row.target, event, row.severity, self.now()))
        self.state = row.target
        return None


async def through_an_actor(count: int, rounds: int) -> float:
    """Transitions a second, the best of several rounds."""
    fires = [Fire(TRIP), Fire(RESET)] * (count // 2)
    best = 0.0
    dispatcher = Dispatcher()
    async with anyio.create_task_group() as group:
        group.start_soon(dispatcher.run)
        ref = dispatcher.spawn(Breaker, mailbox=count + 1)
        for _ in range(rounds):
            collected()
            began = time.perf_counter()
            tell = ref.tell
            for fire in fires:
                tell(fire)
            await ref.ask(None)
            best = max(best, count / (time.perf_counter() - began))
        dispatcher.close()
    return best


def bare(transition: Callable[[str, str], str], count: int, rounds: int) -> float:
    """The same without an actor and a log."""
    best = 0.0
    for _ in range(rounds):
        state: str = BreakerState.CLOSED
        began = time.perf_counter()
        for _ in range(count // 2):
            state = transition(state, TRIP)
            state = transition(state, RESET)
        best = max(best, count / (time.perf_counter() - began))
    return best


def figures(_: Path, quick: bool) -> Iterator[Figure]:
    """Measure everything."""
    count, rounds = 20_000 if quick else 100_000, 5 if quick else 15
    table = {
        state: {event: rows[0].target for event, rows in events.items()} for state, events in BREAKER.table.items()
    }
    floor = bare(lambda state, event: table[state][event], count, rounds)
    asked = bare(lambda state, event: BREAKER.transition(state, event).target, count, rounds)
    done = run_on("asyncio", through_an_actor, count, rounds)
    yield Figure("a nested dict", f"{floor:,.0f} /s")
    yield Figure("the machine, without an actor", f"{asked:,.0f} /s")
    yield Figure("through an actor, validated and logged", f"{done:,.0f} /s", "700,000 /s", done >= 700_000)


if __name__ == "__main__":
    print_figures(__doc__, figures)
