"""Numbers that become times: the accepted values, and the refusals of all others."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from callboard import HealthChecks, Supervision
from callboard.actors.machines.kind import due_of
from callboard.actors.records.transition import iso
from callboard.actors.spec.backoff import decode_wait
from callboard.actors.spec.digits import whole
from callboard.actors.times import LATEST, LONGEST, limit_of, moment, number, point, seconds, wait_of
from callboard.errors import RetryAfter
from callboard.machines.audit import log
from callboard.runtime.engines.failures import describe
from callboard.runtime.journal.cluster import lease_of


class Like:
    """Like numpy's numbers: it can be converted to a float, but is no float."""

    def __float__(self) -> float:
        return 1.0


class Hostile:
    """An object whose repr raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


NO_NUMBERS = (
    True, False, Decimal(1), timedelta(seconds=1), Like(), Hostile(), None, [], float("nan"), float("inf"),
    float("-inf"), 10**400, -(10**400), 10**5000,
)  # fmt: skip
TAKERS: tuple[Callable[[Any], object], ...] = (
    number,
    seconds,
    point,
    lambda value: wait_of(value, "the delay"),
    lambda value: moment(value, 0.0),
    RetryAfter,
    lambda value: HealthChecks(interval=value),
    lambda value: HealthChecks(loop_blocked=value),
    lambda value: Supervision(period=value),
    lambda value: Supervision(backoff_min=value, backoff_max=value),
    lambda value: Supervision(stable_after=value),
    lambda value: decode_wait({"strategy": "wait_fixed", "wait": value}),
    lease_of,
)


@pytest.mark.parametrize("take", TAKERS)
@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: type(value).__name__)
def test_what_is_no_finite_number_is_refused_in_words(take: Callable[[Any], object], value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        take(value)


@pytest.mark.parametrize("take", [take for take in TAKERS if take is not number and take is not TAKERS[3]])
def test_what_is_set_is_never_negative(take: Callable[[Any], object]) -> None:
    with pytest.raises(ValueError, match=r"-1|at least"):
        take(-1)


@pytest.mark.parametrize("text", ["\u0663s", "1.\u0663s", "1h\u0663m", "\uff11s", "\u0967d"])
def test_a_duration_has_the_digits_0_to_9(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        seconds(text)


@pytest.mark.parametrize("text", ["\u0662\u0660\u0662\u0666-01-01T00:00:00Z", "2026-0\u0661-01T00:00:00Z"])
def test_a_date_has_the_digits_0_to_9(text: str) -> None:
    for take in (lambda value: moment(value, 0.0), lambda value: due_of("at", value, 0.0)):
        with pytest.raises(ValueError):  # noqa: PT011 - in whose words does not matter
            take(text)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(text, log.Timestamp)


def test_a_whole_number_in_a_text_has_the_digits_0_to_9() -> None:
    assert [whole(text) for text in ("0", "007", "9" * 19)] == [0, 7, int("9" * 19)]
    for text in (None, "", "\u0663", "\u00b2", "1_0", "+1", "-1", " 1", "1.0", "9" * 20, "9" * 5000):
        assert whole(text) is None


def test_what_is_left_until_something_may_be_over() -> None:
    assert wait_of(-3, "it") == 0
    assert limit_of(None, "it") is None
    assert limit_of(0.5, "it") == 0.5
    with pytest.raises(ValueError, match="the timeout is a number of seconds, at most"):
        wait_of(LONGEST * 2, "the timeout")


def test_a_point_in_time_lies_where_calendars_have_it() -> None:
    assert point(0) == 0
    assert point(LATEST) == LATEST
    for value in (-1, -1e18, LATEST + 1, 1e18):
        with pytest.raises(ValueError, match="1970 and 9999"):
            point(value)
    with pytest.raises(ValueError, match="not milliseconds"):
        point(1_700_000_000_000)


@pytest.mark.parametrize("value", NO_NUMBERS[:6] + NO_NUMBERS[7:], ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", ["patience", "expires_at"])
def test_no_fact_of_a_machine_says_a_senseless_time(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        due_of(name, value, 1000.0)


def test_dates_of_machines_are_held_to_the_same_bounds() -> None:
    assert due_of("at", datetime(2030, 1, 1, tzinfo=UTC), 0.0) == 1893456000
    for value in (datetime(1, 1, 1, tzinfo=UTC), datetime(1960, 1, 1, tzinfo=UTC), "0001-01-01T00:00:00Z"):
        with pytest.raises(ValueError, match="point in time"):
            due_of("at", value, 0.0)


def test_a_number_that_is_no_time_is_shown_as_what_it_is() -> None:
    assert iso(0) == "1970-01-01T00:00:00.000Z"
    assert iso(LATEST) == "9999-12-31T23:59:59.999Z"
    for value in (1e18, -1e18, float("inf"), float("nan"), 1.7e12):
        assert iso(value) == f"no time: {value!r}"


def test_an_error_whose_delay_was_made_none_asks_for_no_delay() -> None:
    for value in (*NO_NUMBERS, -1, "soon"):
        error = RetryAfter(1)
        error.seconds = value  # type: ignore[assignment]  # as a class derived from it might
        assert describe(error).retry_after is None
