"""Probes: actors that keep their messages, so that a test can expect them.

Rules
-----
- Messages are expected in the order of their arrival, each once. The next message must be the expected one.
- The expectation is a type, a value, or a function that tells whether a message fits.
- A failed expectation shows the message that came instead, the seed, and the end of the trace.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ...actors.times import Duration
from ...actors.users.actor import Actor, Context
from ...actors.users.ref import Ref

if TYPE_CHECKING:
    from .simulation import Simulation

M = TypeVar("M")
SHOWN = 10
"""Messages that a failed expectation shows."""


class ProbeActor(Actor):
    """Keeps its messages, and gives the answers of its probe."""

    def __init__(self) -> None:
        self.came: deque[Any] = deque()
        self.all: list[Any] = []
        self.answers: list[tuple[Any, Any]] = []

    def receive(self, message: Any, ctx: Context) -> Any:
        """Keep the message. An ask gets the answer of a fitting `Probe.answer`, else no answer."""
        self.came.append(message)
        self.all.append(message)
        for expected, value in self.answers:
            if fits(expected, message):
                return value(message) if callable(value) else value
        return ctx.reply_later()


class Probe:
    """An actor of a simulation whose messages a test reads. `ref` is its reference."""

    def __init__(self, simulation: Simulation, actor: ProbeActor, ref: Ref) -> None:
        self._simulation = simulation
        self._actor = actor
        self.ref = ref

    def __repr__(self) -> str:
        return f"<Probe {self.ref.name}: {len(self._actor.all)} messages>"

    @property
    def messages(self) -> list[Any]:
        """All messages so far, expected or not."""
        return list(self._actor.all)

    def answer(self, expected: Any, value: Any) -> None:
        """Answer asks that fit with `value`, or with the result of calling it with the message.

        The first fitting answer is used; asks that fit none time out.
        """
        self._actor.answers.append((expected, value))

    @overload
    def expect(self, expected: type[M], *, within: Duration = 0.0) -> M: ...
    @overload
    def expect(self, expected: Any = ..., *, within: Duration = 0.0) -> Any: ...
    def expect(self, expected: Any = object, *, within: Duration = 0.0) -> Any:
        """Let time pass until the next message arrives; returns it.

        within: 0 unless given: only messages that are due now. Raises AssertionError if none comes, or another one
        does.
        """
        simulation, came = self._simulation, self._actor.came
        what = f"{self.ref.name} to be sent {said(expected)}"
        simulation.settle()
        if not came:
            simulation.run_until(lambda: came, within=within, what=f"{what} (it was sent {self._shown()})")
        message = came.popleft()
        if not fits(expected, message):
            simulation.fail(f"expected {what}, and it was sent {message!r}")
        return message

    def expect_nothing(self, *, within: Duration = 0.0) -> None:
        """Let that much time pass. Raises AssertionError if the probe gets a message meanwhile."""
        self._simulation.advance(within)
        if self._actor.came:
            came = ", ".join(map(repr, list(self._actor.came)[:SHOWN]))
            self._simulation.fail(f"expected {self.ref.name} to be sent nothing within {within}; it was sent {came}")

    def _shown(self) -> str:
        return ", ".join(map(repr, self._actor.all[-SHOWN:])) or "nothing"


def fits(expected: Any, message: Any) -> bool:
    """Whether a message fits the expectation."""
    if isinstance(expected, type):
        return isinstance(message, expected)
    if callable(expected) and type(message) is not type(expected):
        return bool(expected(message))
    return bool(message == expected)


def said(expected: Any) -> str:
    """An expectation, in words."""
    if expected is object:
        return "a message"
    if isinstance(expected, type):
        return f"one of type {expected.__name__}"
    if callable(expected):
        return f"what {getattr(expected, '__qualname__', expected)!s} accepts"
    return repr(expected)
