"""A blocked event loop is reported with the code that blocks it; an idle loop costs nothing."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

import anyio
import pytest

from callboard import HealthChecks, Notice, Runtime, Task, Workstream
from callboard.runtime.dispatch.watchdog import Watchdog

pytestmark = pytest.mark.anyio
QUICK = HealthChecks(loop_blocked=0.2)


heard: list[Notice] = []
looked = threading.Event()
"""Set when the watchdog has taken the loop's stack."""


async def blocks() -> None:
    for _ in range(60):  # a machine that is so busy that the watchdog itself was held up sees nothing: once more
        looked.clear()
        if looked.wait(1):
            time.sleep(0.2)  # noqa: ASYNC251 - that is the point: what was seen is long enough now
        await anyio.sleep(0.05)
        if any("in blocks" in notice.text for notice in heard):  # not about code that a busy machine delayed
            break


async def fine() -> None:
    pass


async def notices_of(body: Callable[..., object], health: HealthChecks = QUICK) -> list[Notice]:
    runtime = Runtime(health_checks=health)
    heard.clear()
    runtime.on_trouble = heard.append
    async with runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("a", run=body)]))
        assert (await job.wait()).ok
        await runtime.submit(Workstream("w", tasks=[Task("a", run=fine)]))  # lets the pending notices be delivered
    return [notice for notice in heard if notice.event == "loop_blocked"]


async def test_a_blocked_loop_is_told_of_with_what_blocked_it(monkeypatch: pytest.MonkeyPatch) -> None:
    look = Watchdog._look

    def looks(dog: Watchdog) -> str | None:
        stack = look(dog)
        looked.set()
        return stack

    monkeypatch.setattr(Watchdog, "_look", looks)
    began = time.monotonic()
    notice = next(one for one in await notices_of(blocks) if "in blocks" in one.text)
    assert notice.severity == "warning"
    assert 0.15 <= notice.facts["seconds"] <= time.monotonic() - began
    assert "in blocks" in notice.facts["stack"]
    assert "looked.wait(1)" in notice.text


async def blocks_once() -> None:
    time.sleep(0.5)  # noqa: ASYNC251 - that is the point


async def test_it_can_be_switched_off() -> None:
    assert await notices_of(blocks_once, HealthChecks(loop_blocked=0)) == []


class Clock:
    """Takes the place of the module `time`; a test sets its time."""

    def __init__(self) -> None:
        self.passed = self.spent = 0.0

    def monotonic(self) -> float:
        return self.passed

    def process_time(self) -> float:
        return self.spent


@pytest.mark.parametrize(
    ("took", "spent", "told"),
    [(0.0, 0.0, 0), (0.1, 0.1, 0), (0.74, 0.74, 0), (0.75, 0.75, 1), (60.0, 60.0, 1), (60.0, 0.0, 0)],
    ids=["at once", "soon", "just in time", "too late", "much too late", "asleep as a process"],
)
def test_only_a_loop_that_does_not_turn_is_told_of(
    took: float, spent: float, told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, heard_of = Clock(), list[float]()
    monkeypatch.setattr("callboard.runtime.dispatch.watchdog.time", clock)

    def post(answer: Callable[[], None]) -> bool:
        clock.passed += took
        clock.spent += spent
        answer()
        return True

    dog = Watchdog(1.0, post=post, busy=lambda: True, tell=lambda seconds, _: heard_of.append(seconds))
    assert dog._ping()
    assert heard_of == [took] * told


def test_what_begins_in_the_slice_that_answers_is_watched() -> None:
    busy = False

    def post(answer: Callable[[], None]) -> bool:
        nonlocal busy
        answer()
        busy = True  # the same slice begins a body, which blocks the loop from then on
        dog.turned()
        return True

    dog = Watchdog(1.0, post=post, busy=lambda: busy, tell=lambda *_: None)
    dog.asleep = False
    assert dog._ping()
    assert not dog.asleep


async def test_an_idle_runtime_is_not_asked() -> None:
    async with Runtime(health_checks=QUICK) as runtime:
        await (await runtime.submit(Workstream("w", tasks=[Task("a", run=fine)]))).wait()
        dog = runtime._services.host.watchdog  # type: ignore[attr-defined]
        assert isinstance(dog, Watchdog)
        seen: list[int] = []
        with anyio.fail_after(300):
            while seen[-2:] != [dog.pings] * 2 or not dog.asleep:  # the last of the job's own work may come late
                await anyio.sleep(0.3)
                seen.append(dog.pings)


def test_work_that_begins_as_an_answer_says_that_there_is_none_makes_no_ping_come_sooner() -> None:
    """The order of the two threads, in one: the answer decides to sleep, work signals, and the thread wakes."""
    pings: list[float] = []

    def post(answer: Callable[[], None]) -> bool:
        pings.append(time.monotonic())
        if len(pings) == 6:
            dog._over.set()
        answer()
        dog.turned()  # the slice that ran the answer
        dog.turned()  # and one with work
        return True

    dog = Watchdog(0.2, post=post, busy=lambda: len(pings) > 1, tell=lambda *_: None)
    dog._thread = threading.current_thread()  # this thread takes the place of the watchdog's thread
    dog.turned()
    dog._watch()
    pauses = [after - before for before, after in itertools.pairwise(pings)]
    assert len(pauses) == 5
    assert min(pauses) > 0.04  # a quarter of the threshold, each time


def test_an_end_that_comes_as_it_is_about_to_ask_ends_it() -> None:
    """The watchdog waited for an answer that never came, and the event loop waited a second for its thread."""
    about_to_ask, closing = threading.Event(), threading.Event()

    class Answered(threading.Event):
        def clear(self) -> None:
            about_to_ask.set()
            assert closing.wait(600)
            super().clear()

    posted: list[object] = []
    dog = Watchdog(1_000, post=lambda answer: posted.append(answer) is None, busy=lambda: True, tell=lambda *_: None)
    dog._answered = Answered()
    dog.turned()
    assert about_to_ask.wait(600)
    thread = dog._thread
    assert thread is not None

    def join(limit: float | None = None) -> None:
        closing.set()  # it has done everything by now except the wait
        threading.Thread.join(thread, 20)

    thread.join = join  # type: ignore[method-assign]
    dog.close()
    assert not thread.is_alive()
    assert posted == []
