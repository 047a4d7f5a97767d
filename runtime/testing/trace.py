"""The trace of a simulation: all steps in order, with the same text for the same seed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Any, cast

from ...actors.messages.commands import Reply
from ...actors.messages.inputs import Message
from ...actors.records.transition import Transitioned
from ...machines.keywords import number_of

LAST = 60
"""The number of lines that a failure shows."""


class Trace:
    """The last `most` steps (None: all). Their texts are made when they are read."""

    def __init__(self, most: int | None) -> None:
        self._steps: deque[tuple[float, str, tuple[Any, ...]]] = deque(maxlen=most)
        self.count = 0

    def add(self, at: float, what: str, facts: tuple[Any, ...]) -> None:
        """Add a step at a time (monotonic seconds)."""
        self._steps.append((at, what, facts))
        self.count += 1

    def let_go(self) -> None:
        """Drop the reply addresses of the inputs. The text stays the same.

        The garbage collector does not track inputs: what they led to would stay in memory for ever.
        """
        for _, what, facts in self._steps:
            if what == "input" and isinstance(reply := getattr(facts[0], "reply", None), Reply):
                reply.answer = _ignore

    def lines(self, last: int | None = None) -> list[str]:
        """The trace in words, a line per step; only the `last` ones, if given."""
        steps = list(self._steps)
        if last is not None:
            steps = steps[-last:]
        return [f"{span(at):>14}  {text}" for at, what, facts in steps for text in _texts(what, facts)]

    def moves(self, wanted: Callable[[Transitioned], bool]) -> Iterator[tuple[float, Transitioned]]:
        """The wanted transitions, with their times (monotonic seconds)."""
        for at, what, facts in self._steps:
            if what == "turn":
                yield from ((at, row) for row in cast("list[Transitioned]", facts[0]) if wanted(row))

    def text(self) -> str:
        """The whole trace as one text."""
        return "\n".join(self.lines()) + "\n"

    def digest(self) -> str:
        """A hash of the trace, to compare traces."""
        return blake2b(self.text().encode(), digest_size=16).hexdigest()

    def excerpt(self) -> str:
        """The end of the trace, as failures show it."""
        lines = self.lines(LAST)
        before = self.count - min(self.count, LAST)
        head = [f"{'':>14}  ... {number_of(before, 'step')} before"] if before else []
        return "\n".join([*head, *lines])


def _ignore(_: Any, __: Exception | None) -> None:
    """Do nothing: no caller waits any more."""


def span(at: float) -> str:
    """Seconds since the beginning as days, hours, minutes and seconds."""
    minutes, rest = divmod(round(at * 1_000), 60_000)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = f"{hours:02}:{minutes:02}:{rest / 1_000:06.3f}"
    return f"{days}d {clock}" if days else clock


def _texts(what: str, facts: tuple[Any, ...]) -> Iterable[str]:
    if what == "turn":
        for row in cast("list[Transitioned]", facts[0]):
            yield f"  {row.kind} {row.entity_id}: {row.from_state or 'new'} -> {row.to_state} ({row.event})"
    elif what == "input":
        yield f"input {_message(facts[0])}"
    else:
        yield " ".join([what, *(str(fact) for fact in facts if fact != "")])


def _message(message: Message) -> str:
    """A message in words: its type, its numbers and its short texts."""
    words = [type(message).__name__]
    for field in message.__struct_fields__:
        value = getattr(message, field)
        if field == "message":
            words.append(_message(value))
        elif isinstance(value, int | str) and value is not False and value != "" and len(str(value)) <= 60:
            words.append(f"{field}={value}")
    return " ".join(words)
