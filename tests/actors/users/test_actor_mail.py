"""Mailboxes: order, bounds, control messages, and a dead letter for each dropped message."""

from __future__ import annotations

import signal
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.actors.actor_help import Bench, Boom, Loud, Script, boom, child, spawning

from callboard import Notice, Runtime
from callboard.actors.users.actor import Actor, Context, Refusal, Terminated
from callboard.actors.users.dead_letters import DeadLetter, DeadLetters, Reason
from callboard.actors.users.errors import ActorStopped, NameTaken
from callboard.actors.users.ref import Request
from callboard.actors.users.strategy import Directive, Supervision


def test_messages_are_handled_in_the_order_they_were_sent() -> None:
    bench = Bench()
    ref = bench.spawn(lambda: Script(bench))
    assert all(ref.tell(n) for n in range(500))
    bench.idle()
    assert bench.record == list(range(500))


def test_an_actor_handles_64_messages_and_then_it_is_the_next_ones_turn() -> None:
    bench = Bench()
    first, second = bench.spawn(lambda: Script(bench, "a")), bench.spawn(lambda: Script(bench, "b"))
    for n in range(100):
        first.tell(n)
        second.tell(n)
    bench.idle()
    assert [label for label, _ in bench.record] == ["a"] * 64 + ["b"] * 64 + ["a"] * 36 + ["b"] * 36


@pytest.mark.parametrize("mailbox", [1, 2, 10])
def test_a_full_mailbox_refuses_and_records(mailbox: int) -> None:
    bench = Bench()
    ref = bench.spawn(lambda: Script(bench), mailbox=mailbox)
    assert [ref.tell(n) for n in range(mailbox + 2)] == [True] * mailbox + [False, False]
    assert [(letter.message, letter.reason) for letter in bench.dead.newest()] == [
        (mailbox, Reason.MAILBOX_FULL),
        (mailbox + 1, Reason.MAILBOX_FULL),
    ]
    bench.idle()
    assert bench.record == list(range(mailbox))
    assert ref.tell("room again")


def test_the_bound_holds_while_the_actor_is_starting_and_handling() -> None:
    bench = Bench()
    ref = bench.spawn(lambda: Loud(bench, "a"), mailbox=1)
    assert [ref.tell(1), ref.tell(2)] == [True, False]
    answers: list[bool] = []
    bench.idle()
    ref.tell(lambda actor, ctx: answers.extend([ctx.self.tell(3), ctx.self.tell(4)]))
    bench.idle()
    assert answers == [True, False]
    assert bench.record == [("a", "started"), ("a", 1), ("a", 3)]


def test_the_bound_counts_what_is_left_of_a_batch_in_hand() -> None:
    bench = Bench()
    ref = bench.spawn(lambda: Script(bench), mailbox=100)
    answers: list[bool] = []

    def fill(actor: Script, ctx: Context) -> None:
        answers[:] = [ref.has_room(), *(ref.tell("more") for _ in range(4))]

    for n in range(100):
        assert ref.tell(fill if n == 2 else n)
    bench.dispatcher.step()
    assert [ref.tell("one"), ref.tell("too many")] == [True, False]
    bench.idle()
    assert answers == [True, True, True, False, False]  # three were handed out, and one had come since
    assert bench.record == [0, 1, *range(3, 100), "one", "more", "more"]
    assert [ref.tell(n) for n in range(101)] == [True] * 100 + [False]


@pytest.mark.parametrize("where", [0, 1, 50, 62, 63, 64, 99])
def test_what_waits_behind_a_failure_keeps_its_order_and_its_room(where: int) -> None:
    bench = Bench(Supervision(decide=lambda error: Directive.RESUME))
    ref = bench.spawn(lambda: Script(bench), mailbox=100)
    for n in range(100):
        ref.tell(boom if n == where else n)
    bench.idle()
    assert bench.record == [n for n in range(100) if n != where]
    assert bench.reasons() == ["failed"]
    assert [ref.tell(n) for n in range(101)] == [True] * 100 + [False]


def test_asks_keep_their_place_among_tells() -> None:
    bench = Bench()
    ref = bench.spawn(lambda: Script(bench))
    asks = [Request(bench.dispatcher, ref, n) for n in range(0, 300, 7)]
    for n in range(300):
        ref.tell(asks[n // 7] if n % 7 == 0 else n)
    bench.idle()
    assert bench.record == list(range(300))
    assert all(ask.done for ask in asks)


def test_what_raises_through_the_dispatcher_leaves_the_rest_in_the_mailbox() -> None:
    bench = Bench()
    ref = bench.spawn(lambda: Script(bench))

    def interrupt(actor: Script, ctx: Context) -> None:
        signal.raise_signal(signal.SIGINT)

    for message in (1, interrupt, 2, 3):
        ref.tell(message)
    with pytest.raises(KeyboardInterrupt):
        bench.idle()
    ref.stop()
    bench.idle()
    assert [letter.message for letter in bench.dead.newest()] == [interrupt, 2, 3]


def test_a_stop_overtakes_the_data_and_what_waited_is_a_dead_letter() -> None:
    bench = Bench()
    ref = bench.spawn(lambda: Loud(bench, "a"))
    bench.idle()
    ref.tell(1)
    ref.tell(2)
    ref.stop()
    bench.idle()
    assert bench.record == [("a", "started"), ("a", "stopped")]
    assert [(letter.message, letter.reason) for letter in bench.dead.newest()] == [
        (1, Reason.STOPPED),
        (2, Reason.STOPPED),
    ]
    assert ref.stopped
    assert not ref.tell(3)
    assert bench.dead.newest()[-1] == DeadLetter("actor-1", 3, Reason.STOPPED)


def test_an_actor_that_stops_itself_handles_nothing_more_of_its_batch() -> None:
    bench = Bench()
    ref = bench.spawn(lambda: Script(bench))
    for message in (1, lambda actor, ctx: ctx.stop(), 2, 3):
        ref.tell(message)
    bench.idle()
    assert bench.record == [1]
    assert bench.reasons() == ["stopped", "stopped"]


def test_timers_and_terminations_overtake_data_and_need_no_room() -> None:
    bench = Bench()
    other = bench.spawn(lambda: Script(bench))
    ref = bench.spawn(lambda: Script(bench), mailbox=2)
    ref.tell(lambda actor, ctx: (ctx.watch(other), ctx.after(1, "timer")))
    bench.idle()
    ref.tell("data 1")
    ref.tell("data 2")
    assert not ref.tell("no room")
    other.stop()
    bench.clock.advance(1)
    bench.idle()
    assert [m if isinstance(m, str) else m.ref for m in bench.record] == ["timer", other, "data 1", "data 2"]


def test_a_batch_is_interrupted_for_control() -> None:
    bench = Bench()
    dead = bench.spawn(lambda: Script(bench))
    dead.stop()
    bench.idle()
    ref = bench.spawn(lambda: Script(bench))
    ref.tell(lambda actor, ctx: ctx.watch(dead))
    ref.tell("data")
    bench.idle()
    assert bench.record == [Terminated(dead, "stopped"), "data"]


def test_what_a_failing_receive_did_has_not_happened() -> None:
    bench = Bench()
    idle, busy = bench.spawn(lambda: Script(bench, "idle")), bench.spawn(lambda: Script(bench, "busy"))
    watched = bench.spawn(lambda: Script(bench, "watched"))
    busy.tell("before")
    seen: list[Any] = []

    def half(actor: Script, ctx: Context) -> None:
        seen.append([idle.tell(1), idle.tell(2), busy.tell(3), ctx.self.tell(4)])
        born = ctx.spawn(lambda: Loud(bench, "born"), name="born")
        seen.append(born)
        born.tell("hello")
        ctx.after(1, "timer")
        ctx.watch(watched)
        busy.stop()
        raise Boom

    ref = bench.spawn(lambda: Script(bench, "ref"))
    ref.tell(half)
    bench.idle()
    bench.after(10)
    watched.stop()
    bench.idle()
    assert seen[0] == [True] * 4
    assert bench.record == [("busy", "before")]
    assert seen[1].stopped
    assert not busy.stopped
    assert [(letter.message, letter.reason) for letter in bench.dead.newest()] == [(half, Reason.FAILED)]
    assert isinstance(bench.dead.newest()[0].error, Boom)
    ref.tell(spawning("born", Script))  # the actor's name is free
    idle.tell("after")
    bench.idle()
    assert bench.record[-1] == ("idle", "after")


def test_a_send_that_is_taken_back_gives_its_room_back() -> None:
    bench = Bench()
    target = bench.spawn(lambda: Script(bench), mailbox=2)

    def half(actor: Script, ctx: Context) -> None:
        assert [target.tell(n) for n in range(3)] == [True, True, False]
        raise Boom

    bench.spawn(lambda: Script(bench)).tell(half)
    bench.idle()
    assert [target.tell(n) for n in range(3)] == [True, True, False]


def test_a_child_takes_mail_before_the_receive_that_made_it_has_returned() -> None:
    bench = Bench()

    def make(actor: Script, ctx: Context) -> None:
        born = ctx.spawn(lambda: Loud(bench, "born"))
        born.tell(1)
        born.tell(2)

    bench.spawn(lambda: Script(bench)).tell(make)
    bench.idle()
    assert bench.record == [("born", "started"), ("born", 1), ("born", 2)]


def test_names_are_unique_among_siblings_and_free_again_after_the_end() -> None:
    bench = Bench()
    ref = bench.spawn(lambda: Script(bench), name="one")
    with pytest.raises(NameTaken, match="'one'"):
        bench.spawn(lambda: Script(bench), name="one")
    assert bench.dispatcher.find("one") is ref
    ref.tell(spawning("one", Script))
    bench.idle()
    assert child(ref, "one").name == "one/one"
    ref.stop()
    bench.idle()
    assert bench.dispatcher.find("one") is None
    bench.spawn(lambda: Script(bench), name="one")


def test_spawn_refuses_what_is_no_actor_and_what_cannot_be_meant() -> None:
    bench = Bench()
    with pytest.raises(TypeError, match="not an Actor"):
        bench.spawn(dict)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mailbox=0"):
        bench.spawn(lambda: Script(bench), mailbox=0)
    with pytest.raises(ValueError, match="sometimes"):
        bench.spawn(lambda: Script(bench), restart="sometimes")
    with pytest.raises(ZeroDivisionError):
        bench.spawn(lambda: Script(bench, str(1 // 0)))
    bench.dispatcher.close()
    with pytest.raises(ActorStopped, match="closed"):
        bench.spawn(lambda: Script(bench))


def test_a_refused_message_that_nobody_asked_about_is_a_dead_letter() -> None:
    bench = Bench()
    error = ValueError("no")
    ref = bench.spawn(lambda: Script(bench))
    ref.tell(lambda actor, ctx: Refusal(error))
    bench.idle()
    assert [(letter.reason, letter.error) for letter in bench.dead.newest()] == [(Reason.REFUSED, error)]
    assert not ref.stopped


def test_dead_letters_keep_the_newest_count_all_and_tell_subscribers() -> None:
    letters = DeadLetters(limit=2)
    seen: list[Any] = []
    broken: list[tuple[type[Exception], int]] = []

    def bad(letter: DeadLetter) -> None:
        raise Boom

    letters.tell_broken(lambda error, times: broken.append((type(error), times)))
    letters.subscribe(bad)
    forget = letters.subscribe(lambda letter: seen.append(letter.message))
    for n in range(3):
        letters.add("a", n, Reason.STOPPED)
    forget()
    letters.add("a", 3, Reason.FAILED)
    letters.add("a", 4, Reason.FAILED)
    assert seen == [0, 1, 2]
    assert [letter.message for letter in letters.newest()] == [3, 4]
    assert (letters.count, letters.counts[Reason.STOPPED], letters.subscriber_errors) == (5, 3, 5)
    assert broken == [(Boom, 1), (Boom, 2), (Boom, 4)]


def test_a_subscriber_of_dead_letters_is_no_part_of_the_receive_that_sent_in_vain() -> None:
    bench = Bench()
    full = bench.spawn(lambda: Script(bench), mailbox=1)
    other = bench.spawn(lambda: Script(bench))
    bench.dead.subscribe(lambda letter: other.tell(f"lost {letter.message}"))

    def sends_and_fails(actor: Script, ctx: Context) -> None:
        full.tell("first")
        full.tell("second")
        other.tell("undone")
        boom(actor, ctx)

    bench.spawn(lambda: Script(bench), name="sender").tell(sends_and_fails)
    bench.idle()
    assert bench.record[0] == "lost second"
    assert "undone" not in bench.record


def test_a_subscriber_that_sends_in_vain_does_not_hear_of_that() -> None:
    bench = Bench()
    gone = bench.spawn(lambda: Script(bench))
    gone.stop()
    bench.idle()
    bench.dead.subscribe(gone.tell)
    gone.tell("hello")
    bench.idle()
    assert bench.dead.count == 2


@pytest.mark.parametrize("held", ["no", KeyboardInterrupt(), None])
def test_a_refusal_of_what_cannot_be_raised_is_a_failure_that_says_so(held: Any) -> None:
    with pytest.raises(TypeError, match="a Refusal holds an exception, which the ask raises, and not "):
        Refusal(held)


async def tells_later(letter: DeadLetter) -> None:
    """Is no plain function."""


def tells_never(letter: DeadLetter) -> Any:
    """Is a generator function: a call of it runs nothing."""
    yield letter


@pytest.mark.parametrize("subscriber", [tells_later, tells_never, partial(tells_later), None, 7])
def test_what_cannot_be_told_of_dead_letters_is_refused(subscriber: Any) -> None:
    with pytest.raises(TypeError, match="a subscriber of dead letters is a plain function"):
        DeadLetters().subscribe(subscriber)


@pytest.mark.anyio
async def test_a_runtime_s_dead_letters_are_counted_kept_and_told(anyio_backend_name: str) -> None:
    notices: list[Notice] = []
    seen: list[DeadLetter] = []
    runtime = Runtime()
    runtime.on_trouble = notices.append

    def bad(letter: DeadLetter) -> None:
        raise ZeroDivisionError(letter.message)

    runtime.dead_letters.subscribe(bad)  # before it is entered, too
    runtime.dead_letters.subscribe(seen.append)
    with anyio.fail_after(300):
        async with runtime:
            ref = runtime.spawn(lambda: Script(Bench()), name="a")
            ref.stop()
            while not ref.stopped:
                await anyio.lowlevel.checkpoint()
            assert not ref.tell("hello")
            while not notices:
                await anyio.lowlevel.checkpoint()
            metrics = runtime.metrics()
    (letter,) = runtime.dead_letters.newest()
    assert (letter.recipient, letter.message, letter.reason) == ("a", "hello", "stopped")
    assert seen == [letter]
    assert (runtime.dead_letters.count, metrics.dead_letters) == (1, {"stopped": 1})
    (notice,) = notices
    assert (notice.event, notice.severity) == ("subscriber_failed", "error")
    assert "ZeroDivisionError: hello" in notice.text
    assert "in bad" in notice.facts["traceback"]


def test_an_actor_may_be_a_class_with_slots() -> None:
    class Counter(Actor):
        __slots__ = ("n",)

        def __init__(self) -> None:
            self.n = 0

        def receive(self, message: Any, ctx: Context) -> None:
            self.n += 1

    bench = Bench()
    ref = bench.spawn(Counter)
    ref.tell(1)
    bench.idle()
    assert ref.actor.n == 1
    assert "actor-1" in repr(ref)


def test_a_timer_can_be_called_off_and_one_from_before_a_rebuild_is_stale() -> None:
    bench = Bench()
    ref = bench.spawn(lambda: Script(bench))
    timers: list[Any] = []
    ref.tell(lambda actor, ctx: timers.append(ctx.after(1, "never")))
    ref.tell(lambda actor, ctx: timers.append(ctx.after(2, "fires")))
    bench.idle()
    timers[0].cancel()
    bench.after(2)
    assert bench.record == ["fires"]
    ref.tell(lambda actor, ctx: timers.append(ctx.after(5, "stale")))
    ref.tell(boom)
    bench.idle()
    bench.after(1)
    bench.after(5)
    assert bench.record == ["fires"]
    assert bench.reasons() == ["failed", "stale_timer"]
    ref.stop()
    bench.idle()
    timers[1].cancel()  # long over: does nothing


def test_a_cancel_of_a_timer_in_a_failing_receive_has_not_happened() -> None:
    def decide(error: BaseException) -> Any:
        return "resume"

    from callboard.actors.users.strategy import Supervision

    bench = Bench(Supervision(decide=decide))
    ref = bench.spawn(lambda: Script(bench))
    timers: list[Any] = []
    ref.tell(lambda actor, ctx: timers.append(ctx.after(1, "fires")))
    ref.tell(lambda actor, ctx: (timers[0].cancel(), boom(actor, ctx)))
    bench.idle()
    bench.after(1)
    assert bench.record == ["fires"]


def test_watching() -> None:
    bench = Bench()
    watcher, target = bench.spawn(lambda: Script(bench)), bench.spawn(lambda: Script(bench))
    watcher.tell(lambda actor, ctx: ctx.watch(target))
    watcher.tell(lambda actor, ctx: ctx.watch(target))
    bench.idle()
    target.stop()
    bench.idle()
    assert bench.record == [Terminated(target, "stopped")]
    watcher.tell(lambda actor, ctx: ctx.watch(target))  # it has stopped: the notice comes at once
    bench.idle()
    assert bench.record == [Terminated(target, "stopped")] * 2
    other = bench.spawn(lambda: Script(bench))
    watcher.tell(lambda actor, ctx: ctx.watch(other))
    watcher.tell(lambda actor, ctx: ctx.unwatch(other))
    bench.idle()
    other.stop()
    bench.idle()
    assert len(bench.record) == 2
    last = bench.spawn(lambda: Script(bench))
    watcher.tell(lambda actor, ctx: ctx.watch(last))
    bench.idle()
    watcher.stop()
    bench.idle()
    last.stop()
    bench.idle()
    assert bench.dead.count == 0
