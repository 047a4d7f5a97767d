"""Probes: actors that keep what they are sent, and let a test expect it.

Rules
-----
- What was sent is expected in the order in which it came, each message once. The next one has to be the expected one.
- What is expected is a type, a value, or a function that says whether it is the one.
- A failed expectation says what came instead, the seed, and the end of the trace.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ...actors.spec.times import Duration
from ...actors.users.actor import Actor, Context
from ...actors.users.ref import Ref

if TYPE_CHECKING:
    from .simulation import Simulation

M = TypeVar("M")
SHOWN = 10
"""Messages that a failed expectation shows."""


class ProbeActor(Actor):
    """Keeps what it is sent, and answers what it is told to."""

    def __init__(self) -> None:
        self.came: deque[Any] = deque()
        self.all: list[Any] = []
        self.answers: list[tuple[Any, Any]] = []

    def receive(self, message: Any, ctx: Context) -> Any:
        """Keep it. Who asks is answered with what `Probe.answer` has for it, and else not at all."""
        self.came.append(message)
        self.all.append(message)
        for expected, value in self.answers:
            if fits(expected, message):
                return value(message) if callable(value) else value
        return ctx.reply_later()


class Probe:
    """An actor of a simulation that a test looks into. `ref` is its reference, to be given to others."""

    def __init__(self, simulation: Simulation, actor: ProbeActor, ref: Ref) -> None:
        self._simulation = simulation
        self._actor = actor
        self.ref = ref

    def __repr__(self) -> str:
        return f"<Probe {self.ref.name}: {len(self._actor.all)} messages>"

    @property
    def messages(self) -> list[Any]:
        """Everything it was sent so far, expected or not."""
        return list(self._actor.all)

    def answer(self, expected: Any, value: Any) -> None:
        """Have asks that fit answered with `value`, or what it returns for the message. The first one given holds;
        asks that none fits time out.
        """
        self._actor.answers.append((expected, value))

    @overload
    def expect(self, expected: type[M], *, within: Duration = 0.0) -> M: ...
    @overload
    def expect(self, expected: Any = ..., *, within: Duration = 0.0) -> Any: ...
    def expect(self, expected: Any = object, *, within: Duration = 0.0) -> Any:
        """Have time pass until the next message is there; returns it.

        within: none unless said: what is due now. Raises AssertionError where none comes, or another one does.
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
        """Have that much time pass, in which it must be sent nothing. Raises AssertionError where it was."""
        self._simulation.advance(within)
        if self._actor.came:
            came = ", ".join(map(repr, list(self._actor.came)[:SHOWN]))
            self._simulation.fail(f"expected {self.ref.name} to be sent nothing within {within}; it was sent {came}")

    def _shown(self) -> str:
        return ", ".join(map(repr, self._actor.all[-SHOWN:])) or "nothing"


def fits(expected: Any, message: Any) -> bool:
    """Whether a message is the expected one."""
    if isinstance(expected, type):
        return isinstance(message, expected)
    if callable(expected) and type(message) is not type(expected):
        return bool(expected(message))
    return bool(message == expected)


def said(expected: Any) -> str:
    """What is expected, in words."""
    if expected is object:
        return "a message"
    if isinstance(expected, type):
        return f"one of type {expected.__name__}"
    if callable(expected):
        return f"what {getattr(expected, '__qualname__', expected)!s} accepts"
    return repr(expected)
