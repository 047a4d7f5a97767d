"""Numbers that become times: which values are a duration, a wait or a point in time.

Rules
-----
- Every number that a user gives for a time passes one of these functions before it is stored or waited for. They check
  that it is a number, finite, and in the range that people, files, databases and timers can represent.
- A number is an `int` or a `float`. A bool, a Decimal, a timedelta and a text of digits are no numbers, and raise a
  TypeError with a message. In the text of a duration or a date the digits are 0 to 9, and not those of other scripts.
- A value that is *set* is never negative (`seconds`). A value that a program computes when it uses it, as the time left
  until a deadline, may be negative: that wait is over already (`wait_of`).
- A point in time is UTC epoch seconds between 1970 and the year 9999, whatever the time is now: so each start accepts,
  or refuses, the same values. Milliseconds, given for seconds, are far beyond this range.
- A stored number, from before this check, is shown as it is (`tells`), and never raises.
"""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import cast

from .user_code import plain, shown

Duration = float | str

LONGEST = 100 * 365 * 86400.0
"""The longest duration accepted, in seconds (a hundred years): beyond it due times lose their meaning."""
LATEST = 253_402_300_799.999
"""The last point in time accepted (UTC epoch seconds): the end of the year 9999."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)"
_WHOLE = rf"(?:{_PART})+"
_DATE = r"[0-9]{4}-[0-9]"


def number(value: object) -> float:
    """A finite number. Raises TypeError for no number, ValueError for one that no float can hold."""
    value = plain(value)
    if type(value) not in {int, float}:
        advice = ": give its total_seconds()" if hasattr(type(value), "total_seconds") else ""
        raise TypeError(f"a number is an int or a float, and not {_short(value)}{advice}")
    try:
        found = float(cast("float", value))
    except OverflowError:
        raise ValueError("it is larger than the largest float") from None
    if not math.isfinite(found):
        raise ValueError(f"{found!r} is no finite number")
    return found


def seconds(value: Duration) -> float:
    """Read a duration: a number of seconds, or a text such as "90s" or "1h30m".

    Raises TypeError when it is neither, ValueError when it is negative, not finite, or longer than `LONGEST`.
    """
    value = plain(value)
    if type(value) is str:
        text = value.strip()
        if text.startswith("-") and re.fullmatch(_WHOLE, text[1:]):
            raise ValueError(f"{_short(value)} is not a duration between 0 and {LONGEST:.0f} seconds: it is negative")
        if not re.fullmatch(_WHOLE, text):
            raise ValueError(
                f'{_short(value)} is not a duration; write seconds as a number, or "90s", "5m", "1h30m", "2d"'
            )
        found = sum(float(amount) * _UNITS[unit] for amount, unit in re.findall(_PART, text))
    else:
        try:
            found = number(cast("float", value))
        except ValueError as error:
            fault = f"{_short(value)} is not a duration between 0 and {LONGEST:.0f} seconds"
            raise ValueError(f"{fault}: {error}") from None
    if not 0 <= found <= LONGEST:
        raise ValueError(f"{_short(value)} is not a duration between 0 and {LONGEST:.0f} seconds")
    return found


def wait_of(value: float, what: str) -> float:
    """How long to wait from now (seconds): 0 for a negative number. Raises TypeError and ValueError."""
    try:
        found = number(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what} is a number of seconds: {error}") from None
    if found > LONGEST:
        raise ValueError(f"{what} is a number of seconds, at most {LONGEST:.0f} (a hundred years), not {found!r}")
    return max(0.0, found)


def cooldown_of(value: Duration) -> float:
    """Read the duration for which a breaker is tripped. Raises as `seconds` does, and ValueError for 0."""
    found = seconds(value)
    if not found:
        raise ValueError("a cooldown of 0 is over before any task is parked; leave it out for the tool's own")
    return found


def limit_of(value: float | None, what: str) -> float | None:
    """Check a duration that may be None, which means no limit."""
    return None if value is None else wait_of(value, what)


def point(value: float) -> float:
    """A point in time (UTC epoch seconds). Raises TypeError for no number, ValueError outside the range."""
    try:
        at = number(value)
    except ValueError as error:
        raise ValueError(f"{_short(value)} is no point in time: {error}") from None
    if not 0 <= at <= LATEST:
        advice = "; give seconds since 1970, not milliseconds" if LATEST < at < LATEST * 1000 else ""
        raise ValueError(f"{_short(value)} is no point in time between the years 1970 and 9999 (UTC){advice}")
    return at


def is_named(value: Duration) -> bool:
    """Whether a `wait` is a point in time, and no duration."""
    value = plain(value)
    return type(value) is str and re.match(_DATE, value.strip()) is not None


def moment(value: Duration, now: float) -> float:
    """When a `wait` that begins at `now` ends (UTC epoch seconds): after a duration, or at its point in time.

    Raises TypeError and ValueError for other values, ValueError for a point in time without a zone.
    """
    value = plain(value)
    if type(value) is not str or not is_named(value):
        return now + seconds(value)
    try:
        at = datetime.fromisoformat(value.strip())
    except ValueError:
        raise ValueError(f'{_short(value)} is no point in time; write it as "2030-01-31T09:00:00Z"') from None
    if at.tzinfo is None:
        raise ValueError(f'{_short(value)} says no zone: end it with "Z" for UTC, or with an offset as "+02:00"')
    return point(at.timestamp())


def tells(at: float) -> bool:
    """Whether a stored number is a time in the calendar (the years 1 to 9999)."""
    return -62_135_596_800 <= at <= LATEST


def untold(at: float) -> str:
    """The text to show for a number that is no time."""
    return f"no time: {at!r}"


def _short(value: object) -> str:
    return shown(value, 80)
