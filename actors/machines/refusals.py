"""Refusals in the words of the lifecycle that an entity runs by: what people see of it has those words, too.

Rules
-----
- The runtime's own words stay beside them (`own`): which commands a state takes follows from those.
- What was refused never stands among what is allowed, though the lifecycle may have such a row for something else.
"""

from __future__ import annotations

from ...machines import Event, InvalidTransitionError
from ...machines.adapt.lifecycle import Lifecycle
from ...machines.adapt.people import words_of
from ...machines.builtin.table import MACHINES
from ..records.base import Record
from .lifecycles import Lifecycles


def in_its_words(refusal: InvalidTransitionError, record: Record, lifecycles: Lifecycles) -> InvalidTransitionError:
    """The same refusal, in the words of what the entity of that record runs by."""
    if record.published is None or refusal.own is not None or refusal.machine != MACHINES[record.kind].name:
        return refusal
    lifecycle: Lifecycle = lifecycles.get(record.published.lifecycle, record.kind)
    machine, state = lifecycle.machine, record.published.state
    words = words_of(lifecycle, str(refusal.event))
    if not words and refusal.event == Event.CANCEL_GRACEFUL:  # which is how people's "cancel" is tried first
        words = words_of(lifecycle, Event.CANCEL)
    knows = frozenset(map(str, machine.valid_events(state)))
    event = min(words, key=lambda word: (word not in knows, words[word]), default=str(refusal.event))
    allowed: frozenset[str] = knows - set(words) if refusal.allowed else frozenset()
    refusal.say(machine.name, state, event, allowed)
    return refusal
