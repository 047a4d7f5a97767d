"""Checks of the arguments of tests, so that a mistake raises at once, with a clear text.

Rules
-----
- An argument of another type raises TypeError, one out of its range ValueError, an unknown name LookupError.
- A coroutine that no code would await is closed and refused, since it would never run.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from inspect import isawaitable, iscoroutine
from typing import Any

from ...actors.spec.schema import short
from ...actors.times import number, seconds
from ...actors.user_code import is_coroutine_function
from ...machines.keywords import did_you_mean

_TO_DO = "the argument is a function that returns an awaitable, such as `lambda: handle.cancel()`"
MOST_NAMED = 20
"""The most names that an error lists."""


def duration(value: object, what: str) -> float:
    """A duration, in seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f'{what} is a duration: seconds as a number, or "90s", "5m", "1h30m", "2d"; not {value!r:.60}')
    try:
        return seconds(value)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


def limit(within: object, now: float) -> float | None:
    """The time (monotonic seconds) at which a wait ends; None: no limit."""
    return None if within is None else now + duration(within, "within")


def in_words(within: object) -> str:
    """A duration as it was given, with its unit."""
    return within if isinstance(within, str) else f"{within:g} s"


def text(value: object, what: str) -> str:
    """A non-empty str, as a name."""
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
    """A plain function without arguments, which is called and not awaited."""
    if iscoroutine(value):
        value.close()
    if isawaitable(value) or is_coroutine_function(value):
        raise TypeError(f"{what} is a plain function, and this one is async: {instead}")
    if not callable(value):
        raise TypeError(f"{what} is a function without arguments, not {value!r:.60}: {instead}")
    return value


def awaiting(ask: object) -> Callable[[], Coroutine[Any, Any, Any]]:
    """A coroutine function that calls `ask`, and awaits its result."""
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
    """Refuse a function's result if it is awaitable."""
    if isawaitable(value):
        if iscoroutine(value):
            value.close()
        raise TypeError(f"{what} returned an awaitable, which is not awaited here: {instead}")


def known(name: str, names: list[str], what: str) -> str:
    """Check that `name` is one of `names`. Raises LookupError, with the most similar name."""
    if name in names:
        return name
    raise LookupError(f"{what} {name!r:.80}; {advice(name, names)}")


def advice(name: str, names: list[str]) -> str:
    """A suggestion for an unknown name."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return did_you_mean(name, names) or f"there are: {', '.join(names[:MOST_NAMED]) or 'none'}{more}"
