"""Asks, offers and coroutine receives, on every event loop."""

from __future__ import annotations

import contextvars
import threading
from itertools import pairwise
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from tests.actors.actor_help import Bench, Boom, Script, boom, running

from callboard.actors.users.actor import Actor, Context, Later, Refusal
from callboard.actors.users.errors import (
    ActorStopped,
    AskCycle,
    AskTimeout,
    MailboxFull,
    NoEventLoop,
    ReceiveFailed,
)
from callboard.actors.users.ref import Ref
from callboard.actors.users.strategy import Directive, Supervision

pytestmark = pytest.mark.anyio


class Async(Actor):
    """Each message is a coroutine function of (ctx); others are recorded."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    async def receive(self, message: Any, ctx: Context) -> Any:
        if callable(message):
            return await message(ctx)
        self.bench.record.append(message)
        return message


class Gate:
    """Where a receive waits until the test lets it go on."""

    def __init__(self) -> None:
        self.reached, self.opened = anyio.Event(), anyio.Event()

    async def __call__(self, ctx: Context) -> str:
        self.reached.set()
        await self.opened.wait()
        return "through"


async def answer(ref: Ref, message: Any, results: list[Any], **options: Any) -> None:
    """Ask, and note the answer or the error."""
    try:
        results.append(await ref.ask(message, **options))
    except Exception as error:
        results.append(error)


async def test_the_answer_is_what_receive_returns() -> None:
    bench = Bench()
    async with running(bench.dispatcher):
        plain, coroutine = bench.spawn(lambda: Script(bench)), bench.spawn(lambda: Async(bench))
        assert await plain.ask(1) == 1
        assert await plain.ask(lambda actor, ctx: None) is None
        assert await coroutine.ask("hello", timeout=None) == "hello"
        assert bench.record == [1, "hello"]
        assert len(bench.dispatcher.timers) == 0


async def test_an_ask_is_answered_in_turn_with_what_was_told_before() -> None:
    bench = Bench()
    async with running(bench.dispatcher):
        ref = bench.spawn(lambda: Script(bench))
        for n in range(200):
            ref.tell(n)
        assert await ref.ask("last") == "last"
        assert bench.record == [*range(200), "last"]


async def test_asks_in_a_row_let_the_event_loop_have_its_turn() -> None:
    bench = Bench()
    turns: list[int] = []
    asked = 0

    async def other() -> None:
        while True:
            turns.append(asked)
            await checkpoint()

    async with running(bench.dispatcher), anyio.create_task_group() as group:
        group.start_soon(other)
        ref = bench.spawn(lambda: Script(bench))
        for _ in range(1_000):
            await ref.ask("next")
            asked += 1
        group.cancel_scope.cancel()
    assert max(after - before for before, after in pairwise(turns)) <= 65
    assert bench.record == ["next"] * 1_000


async def test_an_ask_in_its_askers_time_arms_timers_and_ends_actors_like_any_other() -> None:
    bench = Bench()
    async with running(bench.dispatcher):
        ref = bench.spawn(lambda: Script(bench))
        await anyio.wait_all_tasks_blocked()
        await ref.ask(lambda actor, ctx: ctx.after(5, "timer") and None)
        await anyio.wait_all_tasks_blocked()
        bench.clock.advance(5)
        await anyio.wait_all_tasks_blocked()
        assert bench.record == ["timer"]
        await ref.ask(lambda actor, ctx: ctx.stop())
        await anyio.wait_all_tasks_blocked()
        assert ref.stopped


async def test_a_failing_receive_and_a_refusal_reach_the_asker() -> None:
    bench = Bench(Supervision(decide=lambda error: Directive.RESUME))
    error = ValueError("not now")

    async def fail(ctx: Context) -> None:
        raise Boom

    async def refuse(ctx: Context) -> Refusal:
        return Refusal(error)

    async with running(bench.dispatcher):
        plain, coroutine = bench.spawn(lambda: Script(bench)), bench.spawn(lambda: Async(bench))
        for ref, message in ((plain, boom), (coroutine, fail)):
            with pytest.raises(ReceiveFailed) as caught:
                await ref.ask(message)
            assert isinstance(caught.value.__cause__, Boom)
        for ref, refusal in ((plain, lambda actor, ctx: Refusal(error)), (coroutine, refuse)):
            with pytest.raises(ValueError, match="not now"):
                await ref.ask(refusal)
            assert await ref.ask("unharmed") == "unharmed"


async def test_an_ask_times_out_by_the_clock_and_a_late_answer_is_a_dead_letter() -> None:
    bench = Bench()
    gate, results = Gate(), []
    async with running(bench.dispatcher):
        ref = bench.spawn(lambda: Async(bench), name="slow")
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: answer(ref, gate, results, timeout=5))
            await gate.reached.wait()
            bench.clock.advance(4.9)
            await checkpoint()
            assert results == []
            bench.clock.advance(0.2)
        assert isinstance(results[0], AskTimeout)
        assert isinstance(results[0], TimeoutError)
        assert "slow" in str(results[0])
        gate.opened.set()
        assert await ref.ask("next") == "next"
        assert [(letter.message, letter.reason) for letter in bench.dead.newest()] == [("through", "late_reply")]


async def test_a_cancelled_asker_leaves_nothing_behind() -> None:
    bench = Bench()
    gate = Gate()
    async with running(bench.dispatcher):
        ref = bench.spawn(lambda: Async(bench))
        async with anyio.create_task_group() as group:
            group.start_soon(ref.ask, gate)
            await gate.reached.wait()
            group.cancel_scope.cancel()
        assert len(bench.dispatcher.timers) == 0
        gate.opened.set()
        assert await ref.ask(1) == 1
        assert bench.reasons() == ["late_reply"]


async def test_asks_to_an_actor_that_stops_fail_at_once() -> None:
    bench = Bench()
    gate, results = Gate(), []
    async with running(bench.dispatcher):
        ref = bench.spawn(lambda: Async(bench))
        async with anyio.create_task_group() as group:
            group.start_soon(answer, ref, gate, results)
            await gate.reached.wait()
            group.start_soon(answer, ref, "in the queue", results)
            await anyio.wait_all_tasks_blocked()
            ref.stop()
            gate.opened.set()
        results.sort(key=str)  # the event loop decides which task runs first
        assert isinstance(results[0], ActorStopped)
        assert results[1] == "through"
        with pytest.raises(ActorStopped):
            await ref.ask("after")
        with pytest.raises(ActorStopped):
            await ref.offer("after")
        assert bench.dead.count == 0


async def test_an_ask_to_a_full_mailbox_is_refused() -> None:
    bench = Bench()
    gate = Gate()
    async with running(bench.dispatcher):
        ref = bench.spawn(lambda: Async(bench), mailbox=1)
        ref.tell(gate)
        await gate.reached.wait()
        assert ref.tell("waits")
        with pytest.raises(MailboxFull, match="of 1 is full"):
            await ref.ask("no room")
        gate.opened.set()
        await anyio.wait_all_tasks_blocked()
        assert await ref.ask("room") == "room"


async def test_offers_wait_for_room_and_are_let_in_by_turns() -> None:
    bench = Bench()
    gate = Gate()
    async with running(bench.dispatcher):
        ref = bench.spawn(lambda: Async(bench), mailbox=2)
        ref.tell(gate)
        await gate.reached.wait()
        await ref.offer(1)
        await ref.offer(2)
        async with anyio.create_task_group() as group:
            for n in (3, 4, 5):
                group.start_soon(ref.offer, n)
                await anyio.wait_all_tasks_blocked()
            with anyio.move_on_after(0):
                await ref.offer("cancelled")
            assert not ref.tell("no room")
            gate.opened.set()
        assert await ref.ask(6) == 6
        assert bench.record == [1, 2, 3, 4, 5, 6]
        assert bench.reasons() == ["mailbox_full"]


async def test_an_offer_fails_when_the_actor_stops() -> None:
    bench = Bench()
    gate = Gate()
    async with running(bench.dispatcher):
        ref = bench.spawn(lambda: Async(bench), mailbox=1)
        ref.tell(gate)
        await gate.reached.wait()
        ref.tell("full")
        async with anyio.create_task_group() as group:

            async def offer() -> None:
                with pytest.raises(ActorStopped):
                    await ref.offer("waits")

            group.start_soon(offer)
            await anyio.wait_all_tasks_blocked()
            ref.stop()
            gate.opened.set()


async def test_an_actor_cannot_wait_for_its_own_room() -> None:
    bench = Bench()

    async def fill(ctx: Context) -> None:
        ctx.self.tell(1)
        with pytest.raises(MailboxFull, match="to itself"):
            await ctx.self.offer(2)

    async with running(bench.dispatcher):
        ref = bench.spawn(lambda: Async(bench), mailbox=1)
        await ref.ask(fill)
        assert bench.dead.count == 0


async def test_a_cycle_of_asks_is_found_and_named() -> None:
    bench = Bench()
    async with running(bench.dispatcher):
        refs = {name: bench.spawn(lambda: Async(bench), name=name) for name in "abc"}

        async def ask_a(ctx: Context) -> Any:
            return await refs["a"].ask("round")

        async def ask_c(ctx: Context) -> Any:
            return await ctx.ask(refs["c"], ask_a)

        async def ask_b(ctx: Context) -> Any:
            return await ctx.ask(refs["b"], ask_c)

        with pytest.raises(ReceiveFailed) as caught:
            await refs["a"].ask(ask_b)
        error: BaseException | None = caught.value
        while isinstance(error, ReceiveFailed):
            error = error.__cause__
        assert isinstance(error, AskCycle)
        assert "c -> a -> b -> c" in str(error)

        async def ask_itself(ctx: Context) -> None:
            with pytest.raises(AskCycle, match="b -> b"):
                await ctx.self.ask(1)

        bench.clock.advance(1)  # past the restarts' delay
        await refs["b"].ask(ask_itself)
        assert all(ref.details is None or not ref.details.asking for ref in refs.values())


async def test_a_cycle_is_found_out_of_tasks_that_a_receive_started() -> None:
    bench = Bench()
    async with running(bench.dispatcher):
        a, b = bench.spawn(lambda: Async(bench), name="a"), bench.spawn(lambda: Async(bench), name="b")
        found: list[Any] = []

        async def back(ctx: Context) -> None:
            try:
                await ctx.ask(a, "round")
            except AskCycle as error:
                found.append(error)

        async def both(ctx: Context) -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: ctx.ask(b, back))
                group.start_soon(lambda: ctx.ask(b, "fine"))

        await a.ask(both)
        assert len(found) == 1
        assert bench.record == ["fine"]


async def test_an_answer_can_be_put_off() -> None:
    bench = Bench()
    later: list[Later] = []
    results: list[Any] = []
    async with running(bench.dispatcher):
        ref = bench.spawn(lambda: Script(bench))

        async def put_off(ctx: Context) -> str:
            later.append(ctx.reply_later())
            return "no answer"

        coroutine = bench.spawn(lambda: Async(bench))
        async with anyio.create_task_group() as group:
            group.start_soon(answer, ref, lambda actor, ctx: later.append(ctx.reply_later()), results)
            await anyio.wait_all_tasks_blocked()
            group.start_soon(answer, coroutine, put_off, results)
            await anyio.wait_all_tasks_blocked()
            ref.tell(lambda actor, ctx: later[0].send("from a later receive"))
            await anyio.wait_all_tasks_blocked()
            later[1].fail(ValueError("from outside"))
        assert results[0] == "from a later receive"
        assert isinstance(results[1], ValueError)
        later[0].send("twice")
        assert bench.reasons() == ["late_reply"]
        ref.tell(lambda actor, ctx: ctx.reply_later().send("nobody asked"))
        assert await ref.ask(1) == 1


async def test_an_answer_that_was_put_off_fails_when_its_actor_ends_or_is_built_anew() -> None:
    bench = Bench()
    results: list[Any] = []
    async with running(bench.dispatcher):
        for end in (lambda ref: ref.stop(), lambda ref: ref.tell(boom)):
            ref = bench.spawn(lambda: Script(bench))
            async with anyio.create_task_group() as group:
                group.start_soon(answer, ref, lambda actor, ctx: ctx.reply_later() and None, results)
                await anyio.wait_all_tasks_blocked()
                end(ref)
        assert [type(result) for result in results] == [ActorStopped, ActorStopped]


async def test_a_reply_in_a_failing_receive_has_not_happened() -> None:
    bench = Bench(Supervision(decide=lambda error: Directive.RESUME))
    later: list[Later] = []
    results: list[Any] = []
    async with running(bench.dispatcher):
        ref = bench.spawn(lambda: Script(bench))
        async with anyio.create_task_group() as group:
            group.start_soon(answer, ref, lambda actor, ctx: later.append(ctx.reply_later()), results)
            await anyio.wait_all_tasks_blocked()
            ref.tell(lambda actor, ctx: (later[0].send("half"), boom(actor, ctx)))
            await anyio.wait_all_tasks_blocked()
            assert results == []
            later[0].send("whole")
        assert results == ["whole"]


async def test_a_coroutine_receive_handles_one_message_at_a_time_and_others_go_on() -> None:
    bench = Bench()
    gate = Gate()
    async with running(bench.dispatcher):
        slow, quick = bench.spawn(lambda: Async(bench)), bench.spawn(lambda: Script(bench))
        for message in (gate, "next"):
            slow.tell(message)
        await gate.reached.wait()
        assert await quick.ask("quick") == "quick"
        assert bench.record == ["quick"]
        gate.opened.set()
        assert await slow.ask("last") == "last"
        assert bench.record == ["quick", "next", "last"]


async def test_what_a_failing_coroutine_receive_did_has_not_happened() -> None:
    bench = Bench()
    seen: list[Any] = []
    async with running(bench.dispatcher):
        target, other = bench.spawn(lambda: Script(bench), mailbox=2), bench.spawn(lambda: Script(bench))

        async def half(ctx: Context) -> None:
            seen.append([target.tell(n) for n in range(3)])
            seen.append(ctx.spawn(lambda: Script(bench), name="born"))
            seen[1].tell("hello")
            ctx.after(1, "timer")
            other.stop()
            await checkpoint()
            assert target.tell("more") is False
            raise Boom

        ref = bench.spawn(lambda: Async(bench))
        ref.tell(half)
        await anyio.wait_all_tasks_blocked()
        bench.clock.advance(5)
        await anyio.wait_all_tasks_blocked()
        assert await other.ask("alive") == "alive"
        assert seen[0] == [True, True, False]
        assert seen[1].stopped
        assert [target.tell(n) for n in range(3)] == [True, True, False]
        assert await ref.ask("built anew") == "built anew"
        await anyio.wait_all_tasks_blocked()
        assert sorted(bench.record, key=str) == [0, 1, "alive", "built anew"]
        assert bench.reasons() == ["mailbox_full", "mailbox_full", "failed", "mailbox_full"]


async def test_what_a_coroutine_receive_sends_goes_out_when_it_returns() -> None:
    bench = Bench()
    gate = Gate()
    async with running(bench.dispatcher):
        target = bench.spawn(lambda: Script(bench))

        async def send(ctx: Context) -> None:
            target.tell("held back")
            child = ctx.spawn(lambda: Script(bench, "child"))
            child.tell(1)
            await gate(ctx)

        ref = bench.spawn(lambda: Async(bench))
        ref.tell(send)
        await gate.reached.wait()
        assert await target.ask("before") == "before"
        assert bench.record == ["before"]
        gate.opened.set()
        await anyio.wait_all_tasks_blocked()
        assert bench.record == ["before", "held back", ("child", 1)]


async def test_an_ask_lets_go_of_what_was_sent_before_it() -> None:
    bench = Bench()
    async with running(bench.dispatcher):
        target = bench.spawn(lambda: Script(bench))

        async def send(ctx: Context) -> None:
            target.tell("first")
            await target.ask("second")
            target.tell("third")
            await target.offer("fourth")

        await bench.spawn(lambda: Async(bench)).ask(send)
        await target.ask("last")
        assert bench.record == ["first", "second", "third", "fourth", "last"]


async def test_hooks_may_be_coroutines() -> None:
    bench = Bench()

    class Hooked(Script):
        async def started(self, ctx: Context) -> None:
            await checkpoint()
            self.bench.record.append("started")
            ctx.self.tell("from started")

        async def stopped(self, ctx: Context) -> None:
            await checkpoint()
            self.bench.record.append("stopped")

    async with running(bench.dispatcher):
        ref = bench.spawn(lambda: Hooked(bench))
        await ref.ask(1)
        await ref.ask(2)
        ref.tell(boom)
        await anyio.wait_all_tasks_blocked()
        bench.clock.advance(1)
        await anyio.wait_all_tasks_blocked()
        await bench.dispatcher.stop_all()
        assert sorted(map(str, bench.record)) == sorted(
            ["started", "1", "from started", "2", "stopped", "started", "from started", "stopped"]
        )
        assert ref.stopped


async def test_a_stop_lets_the_message_in_hand_end_and_what_takes_too_long_is_abandoned() -> None:
    bench = Bench()
    gate, never = Gate(), Gate()
    async with running(bench.dispatcher):
        quick = bench.spawn(lambda: Async(bench), name="quick")
        slow = bench.spawn(lambda: Async(bench), name="slow", stop_timeout=3)
        quick.tell(gate)
        slow.tell(never)
        await gate.reached.wait()
        await never.reached.wait()
        async with anyio.create_task_group() as group:
            group.start_soon(bench.dispatcher.stop_all)
            await anyio.wait_all_tasks_blocked()
            bench.clock.advance(2.9)
            await anyio.wait_all_tasks_blocked()
            assert not slow.stopped
            bench.clock.advance(0.2)  # the last started child is over its limit; only now the first one stops
            await anyio.wait_all_tasks_blocked()
            assert slow.stopped
            bench.clock.advance(4)
            await anyio.wait_all_tasks_blocked()
            assert not quick.stopped
            gate.opened.set()
        assert quick.stopped
        (notice,) = bench.trouble
        assert (notice.event, notice.severity, notice.actor) == ("actor_abandoned", "critical", "slow")
        assert "3 s" in notice.text
        assert bench.reasons() == ["abandoned"]


async def test_a_body_that_swallows_its_cancellation_changes_nothing_after_it_was_abandoned() -> None:
    bench = Bench()
    gate = Gate()
    over = anyio.Event()

    async def stubborn(ctx: Context) -> None:
        try:
            await gate(ctx)
        finally:
            with anyio.CancelScope(shield=True):
                await checkpoint()
            assert target.tell("too late") is False
            over.set()

    async with running(bench.dispatcher):
        target = bench.spawn(lambda: Script(bench))
        ref = bench.spawn(lambda: Async(bench), stop_timeout=1)
        ref.tell(stubborn)
        await gate.reached.wait()
        ref.stop()
        await anyio.wait_all_tasks_blocked()
        bench.clock.advance(1)
        await over.wait()
        assert await target.ask("fine") == "fine"
        assert bench.record == ["fine"]


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="unset")


async def test_each_receive_has_a_context_of_its_own() -> None:
    VARIABLE.set("outside")
    bench = Bench()
    seen: list[str] = []

    def bind(actor: Script, ctx: Context) -> None:
        seen.append(VARIABLE.get())
        VARIABLE.set("inside")

    async def bind_slowly(ctx: Context) -> None:
        seen.append(VARIABLE.get())
        VARIABLE.set("inside")
        await checkpoint()
        seen.append(VARIABLE.get())

    async with running(bench.dispatcher):
        plain, coroutine = bench.spawn(lambda: Script(bench)), bench.spawn(lambda: Async(bench))
        for _ in range(3):
            plain.tell(bind)
        await plain.ask(bind)
        assert seen == ["outside"] * 4
        seen.clear()
        await coroutine.ask(bind_slowly)
        await coroutine.ask(bind_slowly)
        assert seen == ["outside", "inside"] * 2
        assert VARIABLE.get() == "outside"


async def test_sends_from_another_thread_arrive_and_wake_the_dispatcher() -> None:
    bench = Bench()
    done = anyio.Event()

    def receive(actor: Script, ctx: Context) -> None:
        bench.record.append(threading.get_ident())
        if len(bench.record) == 1_000:
            done.set()

    async with running(bench.dispatcher):
        ref = bench.spawn(lambda: Script(bench))
        await anyio.wait_all_tasks_blocked()

        def send() -> None:
            for _ in range(250):
                assert ref.tell_threadsafe(receive)

        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        await done.wait()
        for thread in threads:
            thread.join()
        assert set(bench.record) == {threading.get_ident()}
    assert not bench.dispatcher.call_threadsafe(print)
    assert not ref.tell_threadsafe(1)


async def test_an_actor_that_fails_in_a_coroutine_takes_no_other_down() -> None:
    bench = Bench()

    async def fail(ctx: Context) -> None:
        raise BaseExceptionGroup("many", [KeyboardInterrupt(), Boom()])

    async with running(bench.dispatcher):
        bad, good = bench.spawn(lambda: Async(bench)), bench.spawn(lambda: Async(bench))
        bad.tell(fail)
        assert await good.ask("fine") == "fine"
        assert bench.reasons() == ["failed"]


async def test_closing_fails_what_waits() -> None:
    bench = Bench()
    gate, results = Gate(), []
    async with anyio.create_task_group() as group:
        group.start_soon(bench.dispatcher.run)
        ref = bench.spawn(lambda: Async(bench), mailbox=1)
        group.start_soon(answer, ref, gate, results)
        await gate.reached.wait()
        group.start_soon(answer, ref, "waits", results)
        await anyio.wait_all_tasks_blocked()
        bench.dispatcher.close()
        bench.dispatcher.close()
    assert [type(result) for result in results] == [ActorStopped, ActorStopped]
    assert not ref.tell("after")


async def test_the_hosts_cancellation_ends_the_dispatcher() -> None:
    bench = Bench()
    gate = Gate()
    async with anyio.create_task_group() as group:
        group.start_soon(bench.dispatcher.run)
        bench.spawn(lambda: Async(bench)).tell(gate)
        await gate.reached.wait()
        group.cancel_scope.cancel()
    assert bench.reasons() == ["abandoned"]
    bench.dispatcher.close()


def test_a_coroutine_receive_needs_an_event_loop() -> None:
    bench = Bench()
    bench.spawn(lambda: Async(bench)).tell(1)
    bench.idle()
    (letter,) = bench.dead.newest()
    assert isinstance(letter.error, NoEventLoop)
