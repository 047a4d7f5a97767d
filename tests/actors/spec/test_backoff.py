"""The delay before a retry: DESIGN 5.8 for any n, tenacity's strategies, and their form in the journal."""

import json
import math
import subprocess
import sys
from random import Random
from typing import Any

import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.spec.backoff import WaitError, decode_wait, delay, encode_wait
from callboard.actors.spec.model import Retry

RNG = Random(7)


@pytest.mark.parametrize(("n", "wanted"), [(1, 2), (2, 4), (3, 8), (5, 32), (6, 60), (7, 60), (1000, 60), (10**9, 60)])
def test_it_doubles_up_to_the_longest(n: int, wanted: float) -> None:
    assert delay(Retry(jitter=0), n, RNG) == wanted


@given(
    base=st.just(0.0) | st.floats(1e-100, 1e6),
    longest=st.floats(0, 1e9),
    jitter=st.floats(0, 1),
    n=st.integers(1, 10**12),
    seed=st.integers(),
)
def test_the_formula_of_the_design(base: float, longest: float, jitter: float, n: int, seed: int) -> None:
    retry = Retry(base_delay=base, max_delay=longest, jitter=jitter)
    got = delay(retry, n, Random(seed))
    steady = min(longest, math.ldexp(base, n - 1) if n < 900 or not base else longest)
    assert 0 <= got <= longest
    assert steady * (1 - jitter) - 1e-9 <= got <= steady * (1 + jitter) + 1e-9 or got == pytest.approx(steady)


def test_delays_at_the_longest_are_spread_below_it_too() -> None:
    """Many that failed at the same moment would all come back at the same one."""
    rng = Random(1)
    drawn = [delay(Retry(max_delay=60, jitter=0.25), 50, rng) for _ in range(400)]
    assert len(set(drawn)) == 400
    assert 45 <= min(drawn) < 46
    assert 59 < max(drawn) < 60
    assert sum(one < 52.5 for one in drawn) == pytest.approx(200, abs=40)


def test_an_error_s_own_delay_wins_and_is_held_to_a_day() -> None:
    retry = Retry(base_delay=1, max_delay=5)
    assert delay(retry, 1, RNG, 300.0) == 300
    assert delay(retry, 1, RNG, 0.0) == 0
    assert delay(retry, 1, RNG, 1e9) == 86400
    assert delay(retry, 1, RNG, -1.0) <= 5


@pytest.mark.parametrize(
    ("strategy", "delays"),
    [
        (tenacity.wait_none(), [0, 0, 0]),
        (tenacity.wait_fixed(3), [3, 3, 3]),
        (tenacity.wait_incrementing(start=1, increment=5), [1, 6, 11]),
        (tenacity.wait_exponential(multiplier=3, exp_base=3, min=5), [5, 9, 27]),
        (tenacity.wait_chain(tenacity.wait_fixed(1), tenacity.wait_fixed(7)), [1, 7, 7]),
        (tenacity.wait_fixed(1) + tenacity.wait_exponential(), [2, 3, 5]),
        (tenacity.wait_fixed(900), [60, 60, 60]),
    ],
)
def test_tenacity_s_strategies(strategy: Any, delays: list[float]) -> None:
    data = json.loads(json.dumps(encode_wait(strategy)))
    for wait in (strategy, data):
        assert [delay(Retry(wait=wait), n, RNG) for n in (1, 2, 3)] == delays
    assert encode_wait(decode_wait(data)) == data


@pytest.mark.parametrize(
    ("strategy", "low", "high"),
    [
        (tenacity.wait_random(2, 5), 2, 5),
        (tenacity.wait_random_exponential(multiplier=1, max=50), 0, 4),
        (tenacity.wait_exponential_jitter(max=50, jitter=2), 4, 6),
        (tenacity.wait_fixed(1) + tenacity.wait_random(0, 2), 1, 3),
    ],
)
def test_lots_are_drawn_from_the_given_rng(strategy: Any, low: float, high: float) -> None:
    retry = Retry(wait=encode_wait(strategy))
    drawn = [delay(retry, 3, Random(seed)) for seed in range(50)]
    assert all(low <= one <= high for one in drawn)
    assert len(set(drawn)) > 40
    assert drawn == [delay(retry, 3, Random(seed)) for seed in range(50)]


def linear(n: int) -> float:
    return 1.5 * n


def test_a_function_by_itself_or_by_its_path() -> None:
    assert delay(Retry(wait=linear), 2, RNG) == 3
    assert delay(Retry(wait="math:sqrt"), 16, RNG) == 4
    assert delay(Retry(wait="mine"), 3, RNG, resolve=lambda path: {"mine": linear}[path]) == 4.5


@pytest.mark.parametrize("wait", ["no_such_module:x", lambda n: "soon", lambda n: 1 / 0, {"strategy": "x"}])
def test_a_function_that_fails_falls_back_and_says_so(wait: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert delay(Retry(wait=wait, jitter=0), 2, RNG) == 4
    assert "the default backoff is used" in caplog.text


@pytest.mark.parametrize("answer", [-5.0, float("nan")])
def test_an_answer_that_is_no_time_is_none(answer: float) -> None:
    assert delay(Retry(wait=lambda n: answer), 1, RNG) == 0


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (5, "no wait strategy"),
        ({}, "known: wait_none"),
        ({"strategy": "wait_fixd"}, "did you mean 'wait_fixed'?"),
        ({"strategy": "wait_fixed"}, "needs wait"),
        ({"strategy": "wait_fixed", "wait": "3"}, "must be a number"),
        ({"strategy": "wait_fixed", "wait": -3}, "at least 0"),
        ({"strategy": "wait_fixed", "wait": float("inf")}, "must be a number"),
        ({"strategy": "wait_fixed", "delay": 3}, "takes no 'delay'"),
        ({"strategy": "wait_chain"}, "at least one strategy"),
        ({"strategy": "wait_chain", "strategies": []}, "at least one strategy"),
        ({"strategy": "wait_combine", "strategies": [{"strategy": "no"}]}, "'no' is no wait strategy"),
    ],
)
def test_data_that_is_no_strategy(data: Any, words: str) -> None:
    with pytest.raises(WaitError, match=words.replace("?", r"\?")):
        decode_wait(data)


def test_strategies_that_cannot_be_kept() -> None:
    deep: Any = tenacity.wait_fixed(1)
    for _ in range(20):
        deep = tenacity.wait_chain(deep)
    for strategy in (tenacity.wait_exception(lambda error: 1), tenacity.wait_fixed(-1), deep, object()):
        with pytest.raises(WaitError):
            encode_wait(strategy)


def test_tenacity_is_imported_on_first_use_only() -> None:
    code = "import sys, callboard.actors.spec.backoff, callboard.actors.spec.validate; print('tenacity' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": "src"}
    )
    assert done.stdout.strip() == "False"
