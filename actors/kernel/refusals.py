"""Refusals in the words of an entity's lifecycle, as all that people see of the entity.

Rules
-----
- The runtime's own words are kept as well (`own`), since the commands that a state takes follow from them.
- A refused event is never listed as allowed, even if the lifecycle has such a row for another purpose.
"""

from __future__ import annotations

from ...machines import Event, InvalidTransitionError
from ...machines.adapt.lifecycle import Lifecycle
from ...machines.adapt.people import words_of
from ...machines.builtin.table import MACHINES
from ..records.base import Record
from ..spec.lifecycles import Lifecycles


def in_its_words(refusal: InvalidTransitionError, record: Record, lifecycles: Lifecycles) -> InvalidTransitionError:
    """Return the refusal in the words of the lifecycle of `record`'s entity."""
    if record.published is None or refusal.own is not None or refusal.machine != MACHINES[record.kind].name:
        return refusal
    lifecycle: Lifecycle = lifecycles.get(record.published.lifecycle, record.kind)
    machine, state = lifecycle.machine, record.published.state
    words = words_of(lifecycle, str(refusal.event))
    if not words and refusal.event == Event.CANCEL_GRACEFUL:  # "cancel" of people is first tried as a graceful cancel
        words = words_of(lifecycle, Event.CANCEL)
    knows = frozenset(map(str, machine.valid_events(state)))
    event = min(words, key=lambda word: (word not in knows, words[word]), default=str(refusal.event))
    allowed: frozenset[str] = knows - set(words) if refusal.allowed else frozenset()
    refusal.say(machine.name, state, event, allowed)
    return refusal
