"""How long a retry waits (DESIGN 5.8), and how a `wait` strategy is stored.

Rules:
- The arithmetic is tenacity's. It is imported when the first delay is computed, not before.
- Retry n (n = 1, 2, ...) waits `min(max_delay, base_delay * 2**(n-1))`, times 1 +- jitter, never above
  `max_delay`, and without overflow for any n. If the jitter would exceed `max_delay`, the delay is drawn from the range
  below `max_delay`: a cut would make half of all delays equal. `Retry(wait=...)` draws the delay in another way;
  `max_delay` still applies.
- An error that carries its own delay (`RetryAfter`, if that is a failure) overrides both, limited to a day.
- Randomness comes from the `rng` argument, also for tenacity's random strategies: a replay draws the same delays.
- The journal holds data: a strategy is written as a mapping of its name and its numbers
  (`{"strategy": "wait_fixed", "wait": 3}`), a function as its import path.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from ...machines.keywords import did_you_mean
from ..times import number, seconds
from ..user_code import called, message_of, shown
from .model import Retry
from .schema import short

if TYPE_CHECKING:
    from tenacity.wait import wait_base

LONGEST_ASKED = 86400.0
"""The longest delay that an error may ask for, in seconds (a day)."""

# The numbers of each strategy: constructor argument -> attribute that holds it.
_NUMBERS: dict[str, dict[str, str]] = {
    "wait_none": {},
    "wait_fixed": {"wait": "wait_fixed"},
    "wait_random": {"min": "wait_random_min", "max": "wait_random_max"},
    "wait_incrementing": {"start": "start", "increment": "increment", "max": "max"},
    "wait_exponential": {"multiplier": "multiplier", "max": "max", "exp_base": "exp_base", "min": "min"},
    "wait_random_exponential": {
        "multiplier": "multiplier",
        "max": "max",
        "exp_base": "exp_base",
        "min": "min",
    },
    "wait_exponential_jitter": {
        "multiplier": "multiplier",
        "max": "max",
        "exp_base": "exp_base",
        "jitter": "jitter",
        "min": "min",
    },
}
# Strategies that combine strategies, and the attribute that holds these.
_PARTS = {"wait_combine": "wait_funcs", "wait_chain": "strategies"}
_KNOWN = [*_NUMBERS, *_PARTS]
_DEEPEST = 16  # strategies within strategies


class WaitError(ValueError):
    """A `wait` is no strategy, or cannot be stored. The text names the strategies that can."""


def delay(
    retry: Retry,
    n: int,
    rng: Random,
    error_delay: float | None = None,
    resolve: Callable[[str], Callable[..., Any]] | None = None,
    *,
    tell: Callable[[str, Exception], object] | None = None,
) -> float:
    """Draw the seconds to wait before retry `n` (from 1). Never raises for a `retry` that was validated.

    error_delay: the seconds that the error itself requests, if any. resolve: finds the function of a `wait` that is a
    path (by import unless given). If the function raises, or returns no number, the default backoff is used, and `tell`
    is called with a text and the error (unless given, the text is logged). A negative result counts as 0.
    """
    if error_delay is not None and error_delay >= 0:
        return min(error_delay, LONGEST_ASKED)
    longest = seconds(retry.max_delay)
    drawn = None if retry.wait is None else _drawn(retry.wait, n, rng, resolve, tell or _log)
    if drawn is None:
        steady = _default(retry, n, longest)
        lowest, highest = steady * (1 - retry.jitter), min(longest, steady * (1 + retry.jitter))
        drawn = lowest + (highest - lowest) * rng.random()
    return min(drawn, longest)


def encode_wait(strategy: object) -> dict[str, Any]:
    """Write a strategy of tenacity as plain data. Raises WaitError for an unknown strategy."""
    return _encode(strategy, 0)


def decode_wait(data: object) -> wait_base:
    """Make the strategy of tenacity that `encode_wait` wrote. Raises WaitError if `data` is no strategy."""
    return _decode(data, 0)


def is_strategy(value: object) -> bool:
    """Whether a value is one of tenacity's strategies, without importing tenacity."""
    return any(base.__module__ == "tenacity.wait" for base in type(value).__mro__)


def _default(retry: Retry, n: int, longest: float) -> float:
    base = seconds(retry.base_delay)
    if base == 0:  # 0 times the largest power is NaN
        return 0.0
    from tenacity.wait import wait_exponential  # noqa: PLC0415 - heavy: on first use

    return _ask(wait_exponential(multiplier=base, max=longest, exp_base=2.0), n)


def _drawn(
    wait: object,
    n: int,
    rng: Random,
    resolve: Callable[[str], Callable[..., Any]] | None,
    tell: Callable[[str, Exception], object],
) -> float | None:
    try:
        drawn = called(_asked, wait, n, rng, resolve or _imported)
    except Exception as error:
        tell(f"the wait {shown(wait)} failed for retry {n} ({message_of(error)}); the default backoff is used", error)
        return None
    return drawn if drawn >= 0 else 0.0  # also for a NaN


def _log(text: str, _: Exception) -> None:
    with suppress(Exception):  # a log handler of the application may raise
        called(logging.getLogger("callboard.backoff").warning, text)


def _asked(wait: object, n: int, rng: Random, resolve: Callable[[str], Callable[..., Any]]) -> float:
    way: object = resolve(wait) if isinstance(wait, str) else wait
    if isinstance(way, Mapping):
        way = decode_wait(cast("Mapping[str, object]", way))
    if is_strategy(way):
        return _strategy(cast("wait_base", way), n, rng)
    return float(cast("Callable[[int], float]", way)(n))


def _imported(path: str) -> Callable[..., Any]:
    import pkgutil  # noqa: PLC0415 - only for a `wait` that is a function

    return cast("Callable[..., Any]", pkgutil.resolve_name(path))


def _ask(strategy: wait_base, n: int) -> float:
    return float(strategy(_state(n)))


def _state(
    n: int,
) -> Any:  # replaces a RetryCallState: these strategies read only its number
    return SimpleNamespace(attempt_number=n)


def _strategy(strategy: wait_base, n: int, rng: Random) -> float:
    """Compute a strategy's delay. Random strategies use `rng`, within the bounds that tenacity computes."""
    from tenacity import wait  # noqa: PLC0415 - heavy: on first use

    match strategy:
        case wait.wait_combine():
            return sum(_strategy(cast("wait_base", part), n, rng) for part in strategy.wait_funcs)
        case wait.wait_chain():
            return _strategy(strategy.strategies[min(n, len(strategy.strategies)) - 1], n, rng)
        case wait.wait_random():
            return rng.uniform(strategy.wait_random_min, strategy.wait_random_max)
        case wait.wait_random_exponential():
            return rng.uniform(strategy.min, wait.wait_exponential.__call__(strategy, _state(n)))
        case wait.wait_exponential_jitter():
            steady = wait.wait_exponential(strategy.multiplier, strategy.max, strategy.exp_base)
            drawn = _ask(steady, n) + rng.uniform(0, strategy.jitter)
            return max(0, strategy.min, min(drawn, strategy.max))
        case _:
            return _ask(strategy, n)


def _encode(strategy: object, depth: int) -> dict[str, Any]:
    name = type(strategy).__name__
    if depth > _DEEPEST:
        raise WaitError(f"strategies are nested more than {_DEEPEST} deep; combine fewer")
    if type(strategy).__module__ != "tenacity.wait" or name not in _KNOWN:
        raise WaitError(
            f"{strategy!r} cannot be kept in a journal; give one of {', '.join(_KNOWN)}, "
            'or a function "module:function" of the retry\'s number that returns seconds'
        )
    if name in _PARTS:
        parts = cast("Sequence[object]", getattr(strategy, _PARTS[name]))
        return {"strategy": name, "strategies": [_encode(part, depth + 1) for part in parts]}
    numbers = {argument: getattr(strategy, attribute) for argument, attribute in _NUMBERS[name].items()}
    data = {"strategy": name, **numbers}
    _decode(data, depth)  # an invalid number raises now, not when the first retry is due
    return data


def _of_strategy(value: object) -> bool:
    try:
        return number(value) >= 0
    except (TypeError, ValueError):
        return False


def _decode(data: object, depth: int) -> wait_base:
    from tenacity import wait  # noqa: PLC0415 - heavy: on first use

    if not isinstance(data, Mapping) or depth > _DEEPEST:
        raise WaitError(f"{data!r} is no wait strategy; write one as {{strategy = 'wait_fixed', wait = 3}}")
    given = dict(cast("Mapping[str, object]", data))
    name = given.pop("strategy", None)
    if not isinstance(name, str) or name not in _KNOWN:
        advice = did_you_mean(str(name), _KNOWN) or f"known: {', '.join(_KNOWN)}"
        raise WaitError(f"{name!r} is no wait strategy; {advice}")
    make = getattr(wait, name)
    if name in _PARTS:
        parts = given.pop("strategies", None)
        if not isinstance(parts, list | tuple) or not parts or given:
            raise WaitError(f"{name} takes `strategies`, a list of at least one strategy, and nothing else")
        return cast("wait_base", make(*(_decode(part, depth + 1) for part in cast("Sequence[object]", parts))))
    for argument, amount in given.items():
        if argument not in _NUMBERS[name]:
            raise WaitError(f"{name} takes no {argument!r}; it takes {', '.join(_NUMBERS[name]) or 'nothing'}")
        if not _of_strategy(amount):
            raise WaitError(f"{argument!r} of {name} must be a number of at least 0, not {short(amount)}")
    try:
        return cast("wait_base", make(**given))
    except TypeError:
        raise WaitError(f"{name} needs {', '.join(_NUMBERS[name])}") from None
