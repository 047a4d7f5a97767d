"""What a test may say: the checks of arguments, so that a mistake is told where it is made, in words.

Rules
-----
- What is of another type raises TypeError, what is out of its range ValueError, what there is not LookupError.
- A coroutine that nobody would await is closed, and refused: what it was to do would never be done.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from inspect import isawaitable, iscoroutine, iscoroutinefunction
from typing import Any

from ...actors.spec.schema import did_you_mean, short
from ...actors.spec.times import number, seconds

_TO_DO = "what is to be done is a function that gives something to await, such as `lambda: handle.cancel()`"
MOST_NAMED = 20
"""Names that a refusal lists."""


def duration(value: object, what: str) -> float:
    """A duration, in seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f'{what} is a duration: seconds as a number, or "90s", "5m", "1h30m", "2d"; not {value!r:.60}')
    try:
        return seconds(value)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


def limit(within: object, now: float) -> float | None:
    """Until when (monotonic seconds) something is waited for; None: as long as anything happens."""
    return None if within is None else now + duration(within, "within")


def in_words(within: object) -> str:
    """A duration as somebody said it, with its unit."""
    return within if isinstance(within, str) else f"{within:g} s"


def text(value: object, what: str) -> str:
    """A name, or whatever else is a str. Empty ones are none."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is a str, not {value!r:.60}")
    if not value:
        raise ValueError(f"{what} is empty")
    return value


def amount(value: object, what: str) -> float:
    """A number, which may be negative."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} is a number of seconds, not {value!r:.60}")
    try:
        return number(value)
    except ValueError:
        raise ValueError(f"{what} is a finite number of seconds, not {short(value)}") from None


def plain(value: object, what: str, instead: str) -> Callable[[], Any]:
    """A plain function without arguments: one that is called here, and not awaited."""
    if iscoroutine(value):
        value.close()
    if isawaitable(value) or iscoroutinefunction(value):
        raise TypeError(f"{what} is a plain function, and this one is to be awaited: {instead}")
    if not callable(value):
        raise TypeError(f"{what} is a function without arguments, not {value!r:.60}: {instead}")
    return value


def awaiting(ask: object) -> Callable[[], Coroutine[Any, Any, Any]]:
    """A coroutine function that calls `ask`, and awaits what it gives."""
    if iscoroutine(ask):
        ask.close()
    if not callable(ask):
        raise TypeError(f"{_TO_DO}, not {ask!r:.60}")

    async def asking() -> Any:
        answer: object = ask()
        if not isawaitable(answer):
            raise TypeError(f"{_TO_DO}; this one returned {answer!r:.60}")
        return await answer

    return asking


def not_awaited(value: object, what: str, instead: str) -> None:
    """Refuse what a function has returned if it is to be awaited."""
    if isawaitable(value):
        if iscoroutine(value):
            value.close()
        raise TypeError(f"{what} returned what is to be awaited, and nobody does: {instead}")


def known(name: str, names: list[str], what: str) -> str:
    """One of these names. Raises LookupError with the one that is most like it."""
    if name in names:
        return name
    raise LookupError(f"{what} {name!r:.80}; {advice(name, names)}")


def advice(name: str, names: list[str]) -> str:
    """What somebody may have meant by a name that is none of these."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return did_you_mean(name, names) or f"there are: {', '.join(names[:MOST_NAMED]) or 'none'}{more}"
