"""The dispatcher: its loop, parking, timers, slices, system cells, closing."""

from __future__ import annotations

import gc
import signal
import sys
import time
import tracemalloc
import weakref
from collections import deque
from typing import Any

import anyio
import pytest
from tests.actors.actor_help import Bench, Boom, Script, boom, running

from callboard.actors.users.actor import Actor, Context
from callboard.actors.users.dead_letters import Reason
from callboard.actors.users.ref import Ref
from callboard.runtime.dispatch import call_queue
from callboard.runtime.dispatch.clock import SystemClock
from callboard.runtime.dispatch.dispatcher import Dispatcher
from callboard.runtime.dispatch.runners import RunnerPool


def test_step_does_one_thing() -> None:
    bench = Bench()
    ref = bench.spawn(lambda: Script(bench))
    ref.tell(1)
    ref.tell(2)
    bench.dispatcher.timers.arm(0, bench.record.append, "timer")
    bench.dispatcher.call_threadsafe(bench.record.append, "call")
    assert [bench.dispatcher.step() for _ in range(6)] == [True] * 4 + [False] * 2
    assert bench.record == ["call", "timer", 1, 2]


def test_the_same_messages_give_the_same_run() -> None:
    def play() -> list[Any]:
        bench = Bench()
        refs = [bench.spawn(lambda n=n: Script(bench, str(n))) for n in range(5)]

        def pass_on(n: int) -> Any:
            def go(actor: Script, ctx: Context) -> None:
                bench.record.append((actor.label, n))
                if n % 7 == 0:
                    boom(actor, ctx)
                if n:
                    refs[n % 5].tell(pass_on(n - 1))
                    ctx.after(n, "timer")

            return go

        for ref in refs:
            ref.tell(pass_on(20))
        for _ in range(100):
            bench.after(1)
        return bench.record

    first = play()
    assert first == play()
    assert len(first) > 20


def test_after_slice_is_called_when_there_is_nothing_more_to_do() -> None:
    bench = Bench()
    ref = bench.spawn(lambda: Script(bench))
    ref.tell(1)
    bench.dispatcher.after_slice = lambda: bench.record.append("slice")
    bench.idle()
    assert bench.record == [1, "slice"]


def test_a_system_cell_has_two_lanes_without_bound() -> None:
    dispatcher, record = Dispatcher(), []
    system = dispatcher.spawn_system(record.append, "kernel")
    for n in range(20_000):
        system.tell(n)
    system.tell_control("control")
    dispatcher.run_until_idle()
    assert record == ["control", *range(20_000)]
    assert "kernel" in repr(system)


def test_a_system_cell_and_actors_take_turns() -> None:
    bench = Bench()
    system = bench.dispatcher.spawn_system(lambda message: bench.record.append(("system", message)), "kernel")
    ref = bench.spawn(lambda: Script(bench, "actor"))
    for n in range(100):
        system.tell(n)
        ref.tell(n)
    bench.idle()
    assert [who for who, _ in bench.record] == ["system"] * 64 + ["actor"] * 64 + ["system"] * 36 + ["actor"] * 36


def test_what_a_failing_receive_sent_to_a_system_cell_has_not_happened() -> None:
    bench = Bench()
    system = bench.dispatcher.spawn_system(bench.record.append, "kernel")
    ref = bench.spawn(lambda: Script(bench))

    def send(actor: Script, ctx: Context) -> None:
        system.tell("data")
        system.tell_control("control")

    ref.tell(lambda actor, ctx: (send(actor, ctx), boom(actor, ctx)))
    bench.after(1)
    assert bench.record == []
    ref.tell(send)
    bench.after(1)
    assert bench.record == ["control", "data"]


def test_what_a_system_cell_raises_goes_to_on_error_and_it_goes_on() -> None:
    dispatcher, record, errors = Dispatcher(), [], []

    def receive(message: Any) -> None:
        if message is None:
            raise Boom
        record.append(message)

    system = dispatcher.spawn_system(receive, "kernel")
    for message in (1, None, 2):
        system.tell(message)
    with pytest.raises(Boom):
        dispatcher.run_until_idle()
    dispatcher.reports.on_error = errors.append
    system.tell(None)
    dispatcher.timers.arm(0, boom, None, None)
    dispatcher.call_threadsafe(boom, None, None)
    dispatcher.run_until_idle()
    assert record == [1, 2]
    assert [type(error) for error in errors] == [Boom] * 3


def test_a_system_cell_may_stop_and_tell_actors_at_once() -> None:
    bench = Bench()
    ref = bench.spawn(lambda: Script(bench))

    def receive(message: Any) -> None:
        ref.tell(message)
        if message == 2:
            ref.stop()

    system = bench.dispatcher.spawn_system(receive, "kernel")
    for n in (1, 2):
        system.tell(n)
    bench.idle()
    assert ref.stopped
    assert bench.reasons() == ["stopped", "stopped"]


def test_a_keyboard_interrupt_is_the_applications_and_leaves_order_behind() -> None:
    bench = Bench()

    def interrupt(actor: Script, ctx: Context) -> None:
        signal.raise_signal(signal.SIGINT)

    ref = bench.spawn(lambda: Script(bench))
    for message in (interrupt, 1):
        ref.tell(message)
    with pytest.raises(KeyboardInterrupt):
        bench.idle()
    bench.after(0)
    bench.after(1)
    assert bench.record == [1]


class Holder(Actor):
    """Holds on to references, as users' actors do."""

    def __init__(self) -> None:
        self.refs: list[Any] = []

    def receive(self, message: Any, ctx: Context) -> None:
        self.refs += [message, ctx]
        if isinstance(message, Ref) and message is not ctx.self:
            ctx.watch(message)
            ctx.after(1e6, ctx)
            message.tell((ctx.self, self))


def test_nothing_survives_the_closing_of_a_dispatcher() -> None:
    survivors: list[weakref.ref[Any]] = []

    def play() -> None:
        dispatcher = Dispatcher()
        refs = [dispatcher.spawn(Holder, restart="permanent") for _ in range(300)]
        for n, ref in enumerate(refs):
            ref.tell(refs[n - 1])
        for ref in refs[:10]:
            ref.tell(5 // len(refs))
        dispatcher.run_until_idle()
        for ref in refs[:100]:
            ref.stop()
        dispatcher.run_until_idle()
        for ref in refs:
            ref.tell(refs)  # dead letters that reference all actors
        survivors[:] = (weakref.ref(ref.actor) for ref in refs if ref.actor is not None)
        survivors.append(weakref.ref(dispatcher))
        dispatcher.close()

    play()
    gc.collect()
    tracemalloc.start()
    play()
    gc.collect()
    alive = sum(one() is not None for one in survivors)
    first = tracemalloc.get_traced_memory()[0]
    for _ in range(3):
        play()
        gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - first
    tracemalloc.stop()
    assert len(survivors) >= 201
    assert alive == 0
    assert grown < 20_000  # cells are unknown to the collector: 900 of them would be over 100 kB


def test_actors_that_end_leave_nothing_behind() -> None:
    dispatcher = Dispatcher()
    kept = sys.getrefcount(Holder)
    for _ in range(50):
        refs = [dispatcher.spawn(Holder) for _ in range(20)]
        for n, ref in enumerate(refs):
            ref.tell(refs[n - 1])
        dispatcher.run_until_idle()
        for ref in refs:
            ref.stop()
        dispatcher.run_until_idle()
    del refs, ref
    dispatcher.timers.clear()
    gc.collect()
    assert sys.getrefcount(Holder) <= kept + 5


def test_twenty_thousand_actors_live_and_answer() -> None:
    count = [0]

    class Small(Actor):
        __slots__ = ()

        def receive(self, message: Any, ctx: Context) -> None:
            count[0] += message

    dispatcher = Dispatcher()
    refs = [dispatcher.spawn(Small) for _ in range(20_000)]
    for ref in refs:
        ref.tell(1)
    dispatcher.run_until_idle()
    assert count == [20_000]
    for ref in refs:
        ref.stop()
    dispatcher.run_until_idle()
    assert all(ref.stopped for ref in refs)
    dispatcher.close()


# -- on the event loops ------------------------------------------------------------------------------------------------


class Taken(deque[Any]):
    """Calls that the loop has run before their caller could wake it."""

    def append(self, item: Any) -> None:
        pass


@pytest.mark.anyio
async def test_a_ring_that_comes_after_its_call_was_run_silences_no_later_one() -> None:
    dispatcher, called = Dispatcher(), anyio.Event()
    async with running(dispatcher):
        await anyio.wait_all_tasks_blocked()
        queue = dispatcher._calls
        calls, queue.waiting = queue.waiting, Taken()
        await anyio.to_thread.run_sync(dispatcher.call_threadsafe, called.set)
        queue.waiting = calls
        await anyio.wait_all_tasks_blocked()
        await anyio.to_thread.run_sync(dispatcher.call_threadsafe, called.set)
        with anyio.fail_after(300):
            await called.wait()


@pytest.mark.anyio
async def test_it_wakes_for_messages_for_calls_and_for_the_next_timer() -> None:
    dispatcher = Dispatcher()
    events = [anyio.Event() for _ in range(3)]
    system = dispatcher.spawn_system(lambda event: event.set(), "kernel")
    async with running(dispatcher):
        await anyio.wait_all_tasks_blocked()
        system.tell(events[0])
        await events[0].wait()
        await anyio.wait_all_tasks_blocked()
        await anyio.to_thread.run_sync(dispatcher.call_threadsafe, events[1].set)
        await events[1].wait()
        await anyio.wait_all_tasks_blocked()
        dispatcher.timers.arm(SystemClock().monotonic() + 0.01, events[2].set)
        await events[2].wait()


@pytest.mark.anyio
async def test_an_idle_dispatcher_does_not_turn() -> None:
    bench = Bench()
    slices: list[int] = []
    bench.dispatcher.after_slice = lambda: slices.append(1)
    async with running(bench.dispatcher):
        bench.dispatcher.timers.arm(100, print)
        await anyio.wait_all_tasks_blocked()
        before = len(slices)
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        assert len(slices) == before


@pytest.mark.anyio
async def test_after_slice_says_how_soon_it_wants_to_be_called_again() -> None:
    dispatcher = Dispatcher()
    calls: list[float] = []
    again = anyio.Event()

    def after_slice() -> float | None:
        calls.append(time.monotonic())
        if len(calls) == 3:
            again.set()
            return None
        return 0.001

    dispatcher.after_slice = after_slice
    async with running(dispatcher):
        await again.wait()
    assert len(calls) == 3


@pytest.mark.anyio
async def test_who_brings_work_runs_it_in_place_of_the_parked_task() -> None:
    """Also the timers that it arms fire, and its bugs are raised where the dispatcher runs."""
    dispatcher, record, fired = Dispatcher(), [], anyio.Event()

    def receive(message: Any) -> None:
        if message == "bug":
            raise Boom("bug")
        record.append(message)
        dispatcher.timers.arm(dispatcher.clock.monotonic() + 0.001, fired.set)

    system = dispatcher.spawn_system(receive, "kernel")
    dispatcher.run_here(system.tell, "early")
    assert record == []  # it does not run yet
    with anyio.fail_after(300), pytest.RaisesGroup(Boom, flatten_subgroups=True):
        async with running(dispatcher):
            while not dispatcher.parked:
                await anyio.lowlevel.checkpoint()
            assert record == ["early"]
            dispatcher.run_here(system.tell, "here")
            assert record == ["early", "here"]
            await fired.wait()
            while not dispatcher.parked:
                await anyio.lowlevel.checkpoint()
            dispatcher.run_here(system.tell, "bug")
            record.append("nothing was raised here")
            await anyio.sleep_forever()
    assert record == ["early", "here", "nothing was raised here"]


@pytest.mark.anyio
async def test_the_event_loop_gets_its_turn_while_actors_are_busy() -> None:
    bench = Bench()
    stop = [False]

    def forever(actor: Script, ctx: Context) -> None:
        if not stop[0]:
            ctx.self.tell(forever)

    async with running(bench.dispatcher):
        bench.spawn(lambda: Script(bench)).tell(forever)
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        stop[0] = True


@pytest.mark.anyio
async def test_it_runs_once_and_again_after_a_cancel() -> None:
    bench = Bench()
    async with running(bench.dispatcher):
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(RuntimeError, match="already"):
            await bench.dispatcher.run()
    bench = Bench()
    for n in range(2):
        async with anyio.create_task_group() as group:
            group.start_soon(bench.dispatcher.run)
            assert await bench.spawn(lambda: Script(bench)).ask(n) == n
            group.cancel_scope.cancel()
    bench.dispatcher.close()


@pytest.mark.anyio
async def test_it_shares_the_runners_it_was_given() -> None:
    bench = Bench()

    class Slow(Actor):
        async def receive(self, message: Any, ctx: Context) -> Any:
            await anyio.lowlevel.checkpoint()
            return message

    async with anyio.create_task_group() as group:
        pool = RunnerPool(group)
        bench.dispatcher.coroutines.runners = pool
        group.start_soon(bench.dispatcher.run)
        assert await bench.spawn(Slow).ask(1) == 1
        assert pool.runners == 1
        bench.dispatcher.close()
        pool.close()


def test_what_other_threads_tell_is_bounded_refused_ones_are_counted_and_it_keeps_nobody_from_his_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call_queue, "MESSAGES", 1_000)
    monkeypatch.setattr(call_queue, "REFUSED", 10)
    bench = Bench()
    dispatcher = bench.dispatcher
    ref = bench.spawn(lambda: Script(bench), mailbox=10_000)
    other = bench.spawn(lambda: Script(bench, "other"))
    system = dispatcher.spawn_system(bench.record.append, "system")
    taken = [ref.tell_threadsafe(number) for number in range(1_500)]
    assert taken == [True] * 1_000 + [False] * 500
    other.tell("mine")
    system.tell("data")
    system.tell_control("urgent")
    dispatcher.run_until_idle()
    assert len(bench.record) == 1_003
    assert [one for one in bench.record if isinstance(one, int)] == [*range(1_000)]
    assert bench.record.index("urgent") < bench.record.index("data")
    assert (
        max(bench.record.index(one) for one in (("other", "mine"), "urgent", "data")) < 500
    )  # among the first of very many
    letters = dispatcher.dead_letters
    assert letters.counts[Reason.MAILBOX_FULL] == 500
    assert [letter.message for letter in letters.newest()] == [*range(1_000, 1_010)]
    assert ref.tell_threadsafe(0)  # there is room again


@pytest.mark.anyio
async def test_a_command_overtakes_those_who_have_much_mail() -> None:
    """An urgent message to a part of the runtime waits for no round of all actors."""
    bench = Bench()
    dispatcher = Dispatcher(clock=SystemClock())  # a slice is over when time has passed
    before: list[int] = []
    system = dispatcher.spawn_system(lambda _: before.append(len(bench.record)), "system")
    over = anyio.Event()

    def busy(actor: Script, ctx: Context) -> None:
        bench.record.append(0)
        time.sleep(0.0002)
        if len(bench.record) == 5:
            system.tell_control("now")
        if len(bench.record) == 2_000:
            over.set()

    async with running(dispatcher):
        for number in range(200):
            ref = dispatcher.spawn(lambda n=number: Script(bench, str(n)))
            for _ in range(10):
                ref.tell(busy)
        await over.wait()
    assert len(before) == 1
    assert before[0] < 300  # a slice later, not a round


def test_the_dispatcher_and_its_parts_have_so_few_attributes_that_each_is_found_fast() -> None:
    """CPython keeps the values of an instance beside it up to some 30 of them: beyond, an ask takes a fifth longer."""
    dispatcher = Dispatcher()
    ref = dispatcher.spawn(Holder)
    for part in (dispatcher, ref.host, dispatcher.effects, dispatcher.supervisor, dispatcher._batches):
        assert len(vars(part)) < 30
