"""Timers, clocks and ids: order, cancelling, memory."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.runtime.dispatch.clock import SystemClock, TimeOrderedIds, VirtualClock
from callboard.runtime.dispatch.timers import Timers
from callboard.runtime.dispatch.wall_timers import UtcTimers


def test_what_is_due_first_fires_first_and_at_the_same_moment_what_was_armed_first() -> None:
    timers, fired = Timers(), []
    for due, name in ((3, "c"), (1, "a"), (3, "d"), (2, "b"), (9, "later")):
        timers.arm(due, fired.append, name)
    assert timers.next_due() == 1
    assert timers.fire_due(3, limit=100) == 4
    assert fired == ["a", "b", "c", "d"]
    assert timers.next_due() == 9
    assert len(timers) == 1


def test_no_more_fire_at_once_than_the_limit() -> None:
    timers, fired = Timers(), []
    for n in range(10):
        timers.arm(0, fired.append, n)
    assert [timers.fire_due(1, limit=4) for _ in range(4)] == [4, 4, 2, 0]
    assert fired == list(range(10))


def test_a_cancelled_timer_never_fires_and_is_cancelled_once() -> None:
    timers, fired = Timers(), []
    first, second = timers.arm(1, fired.append, 1), timers.arm(1, fired.append, 2)
    assert first.armed
    assert timers.cancel(first)
    assert not timers.cancel(first)
    timers.fire_due(1, limit=10)
    assert fired == [2]
    assert not timers.cancel(second)
    assert not second.armed
    assert timers.next_due() is None


def test_memory_follows_the_timers_that_are_armed() -> None:
    timers = Timers()
    for _ in range(20):
        for timer in [timers.arm(n, print) for n in range(1_000)]:
            timers.cancel(timer)
    assert len(timers) == 0
    assert len(timers.heap) < 3_000


def test_a_timer_may_arm_and_cancel_others_while_it_fires() -> None:
    timers, fired = Timers(), []
    doomed = [timers.arm(5, fired.append, "doomed") for _ in range(3_000)]

    def act() -> None:
        for timer in doomed:
            timers.cancel(timer)
        timers.arm(1, fired.append, "armed while firing")

    timers.arm(1, act)
    timers.fire_due(10, limit=10_000)
    assert fired == ["armed while firing"]


def test_an_action_that_raises_has_fired_and_the_others_still_will() -> None:
    timers, fired = Timers(), []
    timers.arm(1, lambda: 1 // 0)
    timers.arm(1, fired.append, 1)
    with pytest.raises(ZeroDivisionError):
        timers.fire_due(1, limit=10)
    assert timers.fire_due(1, limit=10) == 1
    timers.arm(1, fired.append, 2)
    timers.clear()
    assert timers.fire_due(1, limit=10) == 0
    assert fired == [1]


def test_who_sleeps_is_told_of_an_earlier_timer() -> None:
    told: list[int] = []
    timers = Timers(on_earliest=lambda: told.append(1))
    for due in (5, 6, 4, 4):
        timers.arm(due, print)
    assert len(told) == 2


@given(st.lists(st.tuples(st.sampled_from(["arm", "cancel", "fire"]), st.integers(0, 50)), max_size=200))
def test_it_agrees_with_a_sorted_list(script: list[tuple[str, int]]) -> None:
    timers, fired, expected = Timers(), [], []
    model: list[tuple[float, int, Any]] = []
    for number, (action, value) in enumerate(script):
        if action == "arm":
            model.append((value, number, timers.arm(value, fired.append, number)))
        elif action == "cancel" and model:
            entry = model.pop(value % len(model))
            assert timers.cancel(entry[2])
        elif action == "fire":
            timers.fire_due(value, limit=10**6)
            due = sorted(entry[:2] for entry in model if entry[0] <= value)
            expected += [number for _, number in due]
            model = [entry for entry in model if entry[0] > value]
        assert fired == expected
        assert len(timers) == len(model)
        assert timers.next_due() == min((entry[0] for entry in model), default=None)


def test_a_virtual_clock_moves_only_by_hand_and_never_back() -> None:
    clock, told = VirtualClock(start=1000), []
    forget = clock.on_advance(lambda: told.append(clock.monotonic()))
    clock.advance(2.5)
    assert (clock.monotonic(), clock.time()) == (2.5, 1002.5)
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)
    forget()
    forget()
    clock.advance(1)
    clock.jump_utc(-100)
    assert (clock.monotonic(), clock.time(), told) == (3.5, 903.5, [2.5])


def test_the_system_clock_is_the_machines() -> None:
    clock = SystemClock()
    assert abs(clock.time() - time.time()) < 5
    assert clock.monotonic() <= clock.monotonic()


def test_ids_rise_whatever_the_clock_does_and_are_the_same_from_the_same_seed() -> None:
    def some() -> list[str]:
        clock = VirtualClock()
        ids = TimeOrderedIds(clock, random.Random(7))
        made = [ids.new() for _ in range(100)]
        clock.advance(0.001)
        made += [ids.new() for _ in range(100)]
        clock.jump_utc(-3600)
        return made + [ids.new() for _ in range(100)]

    made = some()
    assert made == sorted(made) == some()
    assert len(set(made)) == 300
    assert {len(one) for one in made} == {26}


# -- timers by the wall clock ------------------------------------------------------------------------------------------


class TwoClocks(VirtualClock):
    """A clock whose wall may be set."""

    shift = 0.0

    def time(self) -> float:
        return super().time() + self.shift


def utc() -> tuple[TwoClocks, Timers, UtcTimers]:
    clock, timers = TwoClocks(), Timers()
    return clock, timers, UtcTimers(clock, timers)


class Runs(TwoClocks):
    """A clock that goes on by 2 us between two readings."""

    def monotonic(self) -> float:
        self.advance(2e-6)
        return super().monotonic()


def test_spans_with_one_end_hold_one_number_though_the_clocks_go_on() -> None:
    clock, timers = Runs(), Timers()
    spans = UtcTimers(clock, timers)
    due = clock.time() + 36_000
    for number in range(100):
        spans.arm_span(due, print, number)
    heap = spans.heaps[1].heap
    assert len({id(end) for end, _, _ in heap}) == 1
    clock.jump_utc(-3600)
    spans.arm_span(due, print)
    assert max(heap)[0] == pytest.approx(heap[0][0] + 3600)
    spans.arm_span(due + 1, print)
    assert len({id(end) for end, _, _ in heap}) == 3


def pass_time(clock: TwoClocks, timers: Timers, seconds: float) -> int:
    """Let time pass, and return the number of wake-ups."""
    until, woken = clock.monotonic() + seconds, 0
    while (due := timers.next_due()) is not None and due <= until:
        clock.advance(max(0.0, due - clock.monotonic()))
        woken += timers.fire_due(clock.monotonic(), 64)
    clock.advance(until - clock.monotonic())
    return woken


def test_ten_thousand_that_are_far_away_cost_one_look_a_minute() -> None:
    clock, timers, far = utc()
    fired: list[int] = []
    for number in range(10_000):
        far.arm(clock.time() + 3600 + number, fired.append, number)
    assert len(timers) == 1
    assert pass_time(clock, timers, 3599) <= 60
    assert not fired
    pass_time(clock, timers, 11)
    assert fired == list(range(11))


def test_a_clock_that_is_set_is_noticed_within_a_minute() -> None:
    clock, timers, far = utc()
    fired: list[str] = []
    far.arm(clock.time() + 3600, fired.append, "late")
    early = far.arm(clock.time() + 1800, fired.append, "cancelled")
    far.cancel(early)
    clock.shift = 7200.0
    pass_time(clock, timers, 60)
    assert fired == ["late"]
    assert not len(timers) + len(far)


def test_a_clock_that_is_set_back_fires_nothing_early() -> None:
    clock, timers, far = utc()
    fired: list[str] = []
    far.arm(clock.time() + 90, fired.append, "due")
    clock.shift = -3600.0
    pass_time(clock, timers, 120)
    assert not fired
    pass_time(clock, timers, 3600)
    assert fired == ["due"]


def test_many_at_once_fire_some_at_each_look_and_none_is_lost() -> None:
    clock, timers, far = utc()
    fired: list[int] = []
    for number in range(1000):
        far.arm(clock.time() + 1, fired.append, number)
    assert pass_time(clock, timers, 1) == 4
    assert fired == list(range(1000))
