"""The events that people may fire at the runtime's own entities: a table of what each of them asks for.

Rules
-----
- An event that people may fire is a verb: a method of the entity's handle, with its checks, answers and keys. All other
  events are the runtime's to fire, as its work goes: somebody who fires `succeed` would make a result of nothing.
- An entity that runs by a lifecycle of its own takes the words of that one: those that the lifecycle fires for an event
  of the table. A word that tells first of something else (a timer that is over, a health check that was missed) stays
  the runtime's.
- "cancel" is meant as people say it: gracefully, where the state knows that. Of a lifecycle that has a word for each,
  `CANCEL` is the cancel at once.
- Pure, as all machines are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from ..builtin.table import MACHINES
from ..events import Event
from ..machine import Machine
from .lifecycle import Lifecycle

E = Event


class Asks(msgspec.Struct, frozen=True):
    """What an event asks for. verb: the method of the entity's handle, with `force` or without; takes: what more than a
    reason and a name may be said with it, which are arguments of that method.
    """

    verb: str
    force: bool = False
    takes: tuple[str, ...] = ()

    @property
    def decides(self) -> bool:
        """Whether it is a decision about a hold. A running body may ask for one as well, in whatever state."""
        return self.verb in {"approve", "reject"}


_CANCELS: Final = {
    E.CANCEL: Asks("cancel"), E.CANCEL_GRACEFUL: Asks("cancel"), E.CANCEL_FORCE: Asks("cancel", force=True),
}  # fmt: skip

PEOPLE: Final[Mapping[str, Mapping[Event, Asks]]] = {
    "job": _CANCELS,
    "workstream": {
        E.APPROVE: Asks("approve"), E.REJECT: Asks("reject"), E.PAUSE: Asks("pause"), E.RESUME: Asks("resume"),
        **_CANCELS,
    },
    "task": {
        E.APPROVE: Asks("approve", takes=("approval",)), E.REJECT: Asks("reject", takes=("approval",)),
        E.SKIP: Asks("skip"), E.RESET: Asks("reset"), **_CANCELS,
    },
    "worker": {
        E.START: Asks("start"), E.PAUSE: Asks("pause"), E.RESUME: Asks("resume"),
        E.SHUT_DOWN: Asks("shut_down", takes=("deadline",)), E.TERMINATE: Asks("terminate"),
    },
    "breaker": {E.RESET: Asks("reset"), E.TRIP: Asks("trip", takes=("cooldown",))},
}  # fmt: skip
"""By kind of entity. A job passes on what is said to its workstream."""


class Part(msgspec.Struct, frozen=True):
    """An entity, or what a job passes events on to, as events find it.

    machine: what it runs by, its own or that of its lifecycle; state: in the words of that; None where it has not
    begun. asks: by each event that people may fire at it.
    """

    kind: str
    machine: Machine
    state: str | None
    asks: Mapping[str, Asks]

    def knows(self, event: str) -> bool:
        """Whether people may fire it in the present state."""
        return event in self.asks and self.state is not None and event in self.machine.table[self.state]

    @property
    def possible(self) -> Iterator[str]:
        """The events that people may fire in the present state."""
        return (event for event in self.asks if self.knows(event))


def part_of(kind: str, state: str | None, lifecycle: Lifecycle | None = None) -> Part:
    """An entity of that kind in that state, which is one of its lifecycle where it has one of its own."""
    machine = MACHINES[kind] if lifecycle is None else lifecycle.machine
    return Part(kind, machine, state, asked_of(kind, lifecycle))


def asked_of(kind: str, lifecycle: Lifecycle | None = None) -> dict[str, Asks]:
    """What the events ask for that people may fire at such an entity, by the words of its machine."""
    asked = PEOPLE[kind]
    if lifecycle is None:
        known = {str(row.event) for row in MACHINES[kind].transitions}
        return {str(event): asks for event, asks in asked.items() if event in known}
    places: dict[str, tuple[int, Asks]] = {}
    for own, asks in asked.items():
        meant = asks
        if own == E.CANCEL and lifecycle.events.get(E.CANCEL_GRACEFUL):
            meant = msgspec.structs.replace(asks, force=True)
        for word, place in words_of(lifecycle, own).items():
            if not _is_the_runtimes(lifecycle, word, place) and place < places.get(word, (place + 1, asks))[0]:
                places[word] = place, meant
    return {word: meant for word, (_, meant) in places.items()}


def words_of(lifecycle: Lifecycle, own: str) -> dict[str, int]:
    """What a lifecycle fires for an own event: each word, with its place in the order in which they are tried."""
    told = lifecycle.events.get(own, ())
    if own == E.SKIP and "operator" in lifecycle.skips:
        told = (lifecycle.skips["operator"],)
    return {str(word): place for place, word in reversed([*enumerate(told)])}


def _is_the_runtimes(lifecycle: Lifecycle, word: str, place: int) -> bool:
    """Whether a word tells of something that nobody says, rather than of what somebody does."""
    timed = any(str(entry.event) == word for entry in lifecycle.machine.timed)
    others = (words_of(lifecycle, own).get(word) for own in lifecycle.events if own not in PEOPLE[lifecycle.kind])
    return any(other < place or (timed and other == place) for other in others if other is not None)
