"""The events that people may fire at the runtime's own entities, and the verb behind each.

Rules
-----
- An event that people may fire is a verb: a method of the entity's handle, with its checks, answers and keys. The
  runtime alone fires all other events, as the work goes: a person who fires `succeed` would invent a result.
- For an entity that runs by another lifecycle, people use the words of that lifecycle: those that it fires for an event
  of this table. A word that first reports something else (an expired timer, a missed health check) stays with the
  runtime.
- "cancel" cancels gracefully, where the state knows that. If a lifecycle has a word for each kind of cancel, `CANCEL`
  is the immediate one.
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
    """The verb behind an event.

    verb: the method of the entity's handle, with `force` or without. takes: arguments of that method that the event may
    carry besides a reason and a name.
    """

    verb: str
    force: bool = False
    takes: tuple[str, ...] = ()

    @property
    def decides(self) -> bool:
        """Whether the verb decides about a hold. A running body may wait for such a decision too, in any state."""
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
"""By kind of entity. A job forwards the events of its workstream."""


class EventTarget(msgspec.Struct, frozen=True):
    """An entity, or the workstream to which a job forwards events, as these events find it.

    machine: the machine that it runs by, its own or that of its lifecycle. state: a state of that machine; None before
    it has begun. asks: the verb behind each event that people may fire at it.
    """

    kind: str
    machine: Machine
    state: str | None
    asks: Mapping[str, Asks]

    def knows(self, event: str) -> bool:
        """Whether people may fire `event` in the present state."""
        return event in self.asks and self.state is not None and event in self.machine.table[self.state]

    @property
    def possible(self) -> Iterator[str]:
        """The events that people may fire in the present state."""
        return (event for event in self.asks if self.knows(event))


def part_of(kind: str, state: str | None, lifecycle: Lifecycle | None = None) -> EventTarget:
    """An entity of that kind in `state`, which is a state of `lifecycle` if one is given."""
    machine = MACHINES[kind] if lifecycle is None else lifecycle.machine
    return EventTarget(kind, machine, state, asked_of(kind, lifecycle))


def asked_of(kind: str, lifecycle: Lifecycle | None = None) -> dict[str, Asks]:
    """The verb behind each event that people may fire at such an entity, by its machine's words."""
    asked = PEOPLE[kind]
    if lifecycle is None:
        events = {str(row.event) for row in MACHINES[kind].transitions}
        return {str(event): asks for event, asks in asked.items() if event in events}
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
    """A lifecycle's words for an own event, each with its place in the order of trying."""
    words = lifecycle.events.get(own, ())
    if own == E.SKIP and "operator" in lifecycle.skips:
        words = (lifecycle.skips["operator"],)
    return {str(word): place for place, word in reversed([*enumerate(words)])}


def _is_the_runtimes(lifecycle: Lifecycle, word: str, place: int) -> bool:
    """Whether a word first reports an event of the runtime, rather than an act of a person."""
    timed = any(str(entry.event) == word for entry in lifecycle.machine.timed)
    others = (words_of(lifecycle, own).get(word) for own in lifecycle.events if own not in PEOPLE[lifecycle.kind])
    return any(other < place or (timed and other == place) for other in others if other is not None)
