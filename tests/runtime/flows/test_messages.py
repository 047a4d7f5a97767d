"""Messages to flows: each is received once, in order, whatever dies meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from tests.runtime.flows import bodies
from tests.runtime.flows.dying import DIES, killed_at_each_turn
from tests.runtime.flows.helpers import Open, result, submitted
from tests.waiting import until

from callboard import JobHandle, Retry, Runtime, Task, TaskContext, VirtualClock, Worker, Workstream, step
from callboard.errors import (
    InvalidTransitionError,
    MessageInvalid,
    NotSerialisable,
    RequestIdReused,
    TooManyMessages,
)
from callboard.runtime.handles.jobs import core_of

pytestmark = pytest.mark.anyio
SOON = Retry(max_attempts=2, base_delay=0.0, jitter=0.0)
DAY = 24 * 3600.0


async def waits_for(job: JobHandle, name: str, number: int = 1) -> None:
    """Wait until a body waits for a message, durably, and the clock of its attempt stands; or until it rests."""
    lent = core_of(job).services.host.kernel.lent
    label = f"task.receive {name}" + (f"#{number}" if number > 1 else "")

    async def there() -> bool:
        waits = any(one.label == label and one.state == "waiting" for one in await job.steps("t"))
        record = job.task("t").record
        return waits and (record.token in lent or record.durable_wait is not None)

    with anyio.fail_after(300):
        while not await there():
            await anyio.sleep(0.005)


async def test_messages_wait_for_their_receiver_and_come_in_the_order_of_a_name(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> list[Any]:
        got = [await task.receive("b"), await task.receive("a"), await task.receive("a")]
        return [*got, await task.receive("later")]

    async with open_runtime() as runtime:
        job = await submitted(runtime, body)
        for name, value in (("a", 1), ("b", {"x": [2, None]}), ("a", "three")):
            await job.send(name, value)
        await waits_for(job, "later")
        await job.send("later", by="ana")
        assert await result(job) == [{"x": [2, None]}, 1, "three", None]
        records = runtime._services.journal.reader.messages("job")
        assert [(one.name, one.value, one.state, one.by) for one in records] == [
            ("a", 1, "received", None), ("b", {"x": [2, None]}, "received", None), ("a", "three", "received", None),
            ("later", None, "received", "ana"),
        ]  # fmt: skip
        steps = {one.key: one for one in await job.steps("t")}
        assert [(steps[one.step or 0].message, one.received_by) for one in records] == [
            (one.key, "job@1/t") for one in records
        ]


async def test_a_replay_gets_the_same_messages_again_and_takes_no_other(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> list[Any]:
        got = [await task.receive("a"), await task.receive("a")]
        if task.attempt == 1:
            raise RuntimeError("interrupted")
        return [*got, await task.receive("a")]

    async with open_runtime() as runtime:
        job = await submitted(runtime, body, retry=SOON)
        for n in range(3):
            await job.send("a", n)
        assert await result(job) == [0, 1, 2]


async def test_a_message_to_a_task_is_for_that_task_only_and_one_to_the_job_for_the_first(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> list[Any]:
        return [await task.receive("go"), await task.receive("end")]

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        tasks = [Task("one", run="body"), Task("two", run="body")]
        job = await runtime.submit(Workstream("flow", tasks=tasks), id="job")
        await job.task("two").send("go", "to two")
        await job.send("go", "to one", task="one")
        for _ in range(2):
            await job.send("end", "to any")
        assert (await job.wait()).results == {"one": ["to one", "to any"], "two": ["to two", "to any"]}
        with pytest.raises(LookupError, match="no task 'three'"):
            await job.send("go", task="three")


async def test_several_receivers_of_one_name_get_one_message_each(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> list[Any]:
        got: list[Any] = []

        async def one() -> None:
            got.append(await task.receive("n"))

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(one)
        return sorted(got)

    async with open_runtime() as runtime:
        job = await submitted(runtime, body)
        await waits_for(job, "n", 5)
        for n in range(5):
            await job.send("n", n)
        assert await result(job) == [0, 1, 2, 3, 4]


async def test_one_request_id_is_one_message_and_for_another_one_it_is_refused(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> list[Any]:
        return [await task.receive("a"), await task.receive("a")]

    async with open_runtime() as runtime:
        job = await submitted(runtime, body)
        for value in ({"x": 1, "y": 2}, {"y": 2, "x": 1}):  # equal as JSON
            await job.send("a", value, request_id="r1")
        with pytest.raises(RequestIdReused):
            await job.send("a", 2, request_id="r1")
        with pytest.raises(RequestIdReused):
            await job.send("b", {"x": 1, "y": 2}, request_id="r1")
        await job.send("a", {"x": 1, "y": 2})
        assert await result(job) == [{"x": 1, "y": 2}] * 2
        await job.send("a", {"x": 1, "y": 2}, request_id="r1")  # a webhook may ask after the end, too


async def test_an_ended_job_or_task_gets_no_message(open_runtime: Open) -> None:
    async def ends() -> None: ...

    async def body(task: TaskContext) -> Any:
        return await task.receive("stop")

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        runtime.task(name="ends")(ends)
        job = await runtime.submit(Workstream("flow", tasks=[Task("t", run="body"), Task("e", run="ends")]), id="job")
        await until(lambda: job.task("e").record.state == "completed")
        with pytest.raises(InvalidTransitionError, match=r"'send'.*'completed'"):
            await job.task("e").send("x")
        await job.send("stop")
        await job.wait()
        with pytest.raises(InvalidTransitionError, match=r"'send'.*'completed'"):
            await job.send("x")
        assert [one.name for one in runtime._services.journal.reader.messages("job")] == ["stop"]


@pytest.mark.parametrize(
    ("send", "error", "told"),
    [
        (lambda job: job.send(""), ValueError, "it is empty"),
        (lambda job: job.send("a\nb"), ValueError, "cannot be printed"),
        (lambda job: job.send("ä" * 101), ValueError, "202 bytes long"),
        (lambda job: job.send(7), TypeError, "the name of a message is a str"),
        (lambda job: job.send("a", object()), NotSerialisable, "the value of message 'a'"),
        (lambda job: job.send("a", "x" * 1024 * 1024), ValueError, "has 1,048,578 bytes as JSON"),
    ],
)
async def test_what_can_be_no_message_is_refused(send: Any, error: type[Exception], told: str) -> None:
    async def body(task: TaskContext) -> Any:
        return await task.receive("stop")

    async with Runtime() as runtime:
        job = await submitted(runtime, body)
        with pytest.raises(error, match=told):
            await send(job)
        await job.send("stop", "x" * (1024 * 1024 - 2))  # the largest
        assert len(await result(job)) == 1024 * 1024 - 2


async def test_a_mailbox_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.actors.kernel.mailbox.MOST_UNREAD", 2)

    async def body(task: TaskContext) -> Any:
        return await task.receive("end")

    async with Runtime() as runtime:
        job = await submitted(runtime, body)
        await job.send("a", 1)
        await job.send("b")
        with pytest.raises(TooManyMessages, match="2 messages to job 'job' are unread"):
            await job.send("a", 2)
        await job.cancel()


async def test_a_receive_without_a_message_in_time_raises_or_returns_the_default(open_runtime: Open) -> None:
    asked: list[Any] = []

    async def body(task: TaskContext) -> list[Any]:
        got = [await task.receive("a", timeout="1h", default="none"), await task.receive("a", timeout=0, default=None)]
        try:
            await task.receive("b", timeout="2d")
        except TimeoutError as error:
            got.append(f"{type(error).__name__}: {error}"[:60])
        asked.append(got)
        if task.attempt == 1:
            raise RuntimeError("interrupted")
        return [*got, await task.receive("a")]

    clock = VirtualClock()
    async with open_runtime(clock=clock) as runtime:
        job = await submitted(runtime, body, retry=SOON)
        await waits_for(job, "a")
        assert (await job.steps("t"))[0].due_at == pytest.approx(clock.time() + 3600)
        clock.advance(3601)
        await waits_for(job, "b")
        clock.advance(2 * DAY + 1)
        # The next attempt: a receive that ended with its default stays ended, one that failed waits again.
        await until(lambda: job.task("t").record.attempt == 2)
        await waits_for(job, "b")
        await job.send("a", "too late for the first two")
        clock.advance(2 * DAY + 1)
        text = "ReceiveTimeout: no message 'b' came within 172800 s"
        assert await result(job) == ["none", None, text, "too late for the first two"]
    assert len(asked) == 2


async def test_the_deadline_of_a_receive_stays_that_of_the_first_run(tmp_path: Path) -> None:
    clock = VirtualClock()

    async def body(task: TaskContext) -> Any:
        return await task.receive("a", timeout="3d", default="nothing came")

    async with Runtime(tmp_path / "j.db", clock=clock) as runtime:
        await waits_for(await submitted(runtime, body), "a")
    for days in (2, 1.5):
        clock.advance(days * DAY)
        async with Runtime(tmp_path / "j.db", clock=clock) as runtime:
            runtime.task(name="body of job")(body)
            job = await runtime.job("job")
            if days == 2:
                await waits_for(job, "a")
            else:
                assert await result(job) == "nothing came"


async def test_a_message_that_was_sent_before_a_restart_is_received_after_it(tmp_path: Path) -> None:
    async def body(task: TaskContext) -> list[Any]:
        return [await task.receive("go"), await task.receive("early")]

    async with Runtime(tmp_path / "j.db") as runtime:
        job = await submitted(runtime, body)
        await job.send("early", 1)
        await waits_for(job, "go")
    async with Runtime(tmp_path / "j.db") as runtime:
        runtime.task(name="body of job")(body)
        job = await runtime.job("job")
        await job.send("go", 0)
        assert await result(job) == [0, 1]


async def test_a_further_run_of_the_job_receives_what_was_unread_and_a_job_in_its_place_does_not(
    open_runtime: Open,
) -> None:
    async def body(task: TaskContext) -> list[Any]:
        got = [await task.receive("a")]
        if got == ["fail"] and not (folder := task.saved):
            task.checkpoint("failed before")
            raise RuntimeError("failed")
        return [*got, folder, await task.receive("a")]

    async def other(task: TaskContext) -> Any:
        return await task.receive("a", timeout=0, default="nothing")

    async with open_runtime() as runtime:
        job = await submitted(runtime, body)
        await job.send("a", "fail")
        await job.send("a", "unread")
        assert (await job.wait()).state == "failed"
        job = await job.retry()
        assert await result(job) == ["fail", "failed before", "unread"]
        runtime.task(name="other")(other)
        job = await submitted(runtime, body, job_id="second")
        await job.send("b", "never received")
        await job.send("a", "fail")
        assert (await job.wait()).state == "failed"
        again = Workstream("other", tasks=[Task("t", run="other")])
        job = await runtime.submit(again, id="second", existing="replace_ended")
        assert await result(job) == "nothing"


class Payment(msgspec.Struct):
    cents: int


async def test_a_value_of_another_type_is_refused_at_the_receive_and_a_later_attempt_takes_the_next(
    open_runtime: Open,
) -> None:
    refusals: list[str] = []

    async def body(task: TaskContext) -> int:
        try:
            return (await task.receive("payment", type=Payment)).cents
        except MessageInvalid as error:
            refusals.append(str(error))
            raise

    async with open_runtime() as runtime:
        job = await submitted(runtime, body, retry=SOON)
        await job.send("payment", {"cents": "many"})
        await job.send("payment", {"cents": 1200})
        assert await result(job) == 1200
        states = [one.state for one in runtime._services.journal.reader.messages("job")]
    assert refusals == ["message 'payment' is not what this body takes: Expected `int`, got `str` - at `$.cents`"]
    assert states == ["received", "received"]


class NoStruct:
    """A class that msgspec cannot make."""


async def test_a_type_that_nothing_fits_is_refused_before_a_message_is_taken(open_runtime: Open) -> None:
    refusals: list[str] = []

    async def body(task: TaskContext) -> Any:
        for kind in (NoStruct, list[NoStruct], "Payment", 3):
            try:
                await task.receive("payment", type=kind)  # type: ignore[arg-type]
            except TypeError as error:
                refusals.append(str(error).partition(",")[0])
        return await task.receive("payment")

    async with open_runtime() as runtime:
        job = await submitted(runtime, body)
        await job.send("payment", {"cents": 5})
        assert await result(job) == {"cents": 5}
    assert (
        refusals
        == ["receive takes a type that msgspec decodes (a Struct"] * 2
        + ["receive takes a type that msgspec decodes"] * 2
    )


async def test_a_wait_lends_its_slot_and_stops_the_clock_of_the_attempt(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> Any:
        return await task.receive("a")

    async def other() -> str:
        return "ran meanwhile"

    clock = VirtualClock()
    async with open_runtime(clock=clock, workers=[Worker(name="w", engine="loop", capacity=1)]) as runtime:
        runtime.task(name="other")(other)
        job = await submitted(runtime, body, timeout="1h")
        await waits_for(job, "a")
        second = await runtime.submit(Workstream("other", tasks=[Task("o", run="other")]))
        assert (await second.wait()).results == {"o": "ran meanwhile"}
        clock.advance(DAY)
        await job.send("a", 1)
        assert await result(job) == 1


async def test_a_receive_that_the_body_gives_up_loses_no_message(open_runtime: Open) -> None:
    """The message for it belongs to the next receive of that name."""

    async def body(task: TaskContext) -> list[Any]:
        got: list[Any] = []
        while len(got) < 20:
            with anyio.move_on_after(0.001 * (len(got) % 3)):
                got.append(await task.receive("n"))
        return got

    async with open_runtime() as runtime:
        job = await submitted(runtime, body)
        for n in range(20):
            await job.send("n", n)
        got = await result(job)
    assert got == list(range(20))


async def test_the_receive_after_a_given_up_one_has_its_own_deadline(open_runtime: Open) -> None:
    given_up = anyio.Event()

    async def body(task: TaskContext) -> Any:
        async with anyio.create_task_group() as group:

            async def wait() -> None:
                await task.receive("a")

            group.start_soon(wait)
            await given_up.wait()
            group.cancel_scope.cancel()
        return await task.receive("a", timeout="1h", default="nothing")

    clock = VirtualClock()
    async with open_runtime(clock=clock) as runtime:
        job = await submitted(runtime, body)
        await waits_for(job, "a")
        given_up.set()
        with anyio.fail_after(300):
            while (await job.steps("t"))[-1].due_at is None:
                await anyio.sleep(0.005)
        await waits_for(job, "a", 2)
        clock.advance(3601)
        assert await result(job) == "nothing"
        steps = [(one.label, one.state) for one in await job.steps("t")]
        assert steps == [("task.receive a", "cancelled"), ("task.receive a#2", "completed")]


async def test_a_cancelled_flow_receives_nothing_more(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> Any:
        return await task.receive("a")

    async def second(task: TaskContext) -> Any:
        return await task.receive("a")

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        runtime.task(name="second")(second)
        tasks = [Task("t", run="body", optional=True), Task("s", run="second")]
        job = await runtime.submit(Workstream("flow", tasks=tasks), id="job")
        await waits_for(job, "a")
        await job.task("t").cancel(force=True)
        await job.send("a", "for the other")
        assert (await job.wait()).results["s"] == "for the other"


async def test_inside_a_step_and_in_the_wrong_place_a_receive_is_refused(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> list[str]:
        refusals: list[str] = []

        @step
        async def inner() -> None:
            await task.receive("a")

        for call in (
            inner,
            lambda: task.receive("", timeout=1),
            lambda: task.receive("a", default=1),
            lambda: task.receive("a", timeout=1, default=float("nan")),
        ):
            try:
                await call()
            except Exception as error:
                refusals.append(str(error)[:60])
        try:
            task.receive_blocking("a")
        except RuntimeError as error:
            refusals.append(str(error)[:60])
        return refusals

    async with open_runtime() as runtime:
        assert await result(await submitted(runtime, body)) == [
            "step 'task.receive a' was called inside step 'inner', where ",
            "'' cannot be the name of a message: it is empty",
            "receive takes a default for the case that no message comes w",
            "receive takes no default nan: JSON has no such number. Give ",
            "this body runs on the loop: use await task.step(...)",
        ]


# -- other engines -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["thread", "process"])
async def test_plain_bodies_receive_in_threads_and_processes(engine: Any, tmp_path: Path) -> None:
    async with Runtime(tmp_path / "j.db", workers=(Worker("one", engine=engine),)) as runtime:
        task = Task("t", run=bodies.receives, engine=engine, retry=SOON)
        job = await runtime.submit(Workstream("flow", tasks=[task]), id="job")
        await job.send("a", 1)
        await waits_for(job, "a", 2)
        await job.send("a", {"two": 2})
        assert await result(job) == [1, {"two": 2}, "none"]


# -- death -------------------------------------------------------------------------------------------------------------

PROGRAM = (
    DIES
    + """
counted(when)


@step
async def charge(n, value):
    with open(folder / "ran", "a") as file:
        file.write(f"{n} {value}\\n")

async def body(task: TaskContext):
    got = []
    for n in range(4):
        value = await task.receive("n")
        await charge(n, value)
        got.append(value)
    return got

async def main():
    async with Runtime(folder / "state.db") as runtime:
        runtime.task(name="body")(body)
        job = await runtime.submit(Workstream("flow", tasks=[Task("t", run="body", max_losses=500)]), id="one")
        for n in range(4):
            await job.send("n", n, request_id=f"m{n}")
        print((await job.wait()).results["t"])

anyio.run(main)
"""
)


@pytest.mark.slow
@pytest.mark.parametrize(("loop", "when"), [("asyncio", "commit"), ("trio", "_do")])
def test_killed_at_any_instant_no_message_is_lost_or_received_twice(loop: str, when: str, tmp_path: Path) -> None:
    assert killed_at_each_turn(PROGRAM, loop, when, tmp_path) == "[0, 1, 2, 3]\n"
    lines = (tmp_path / "ran").read_text().splitlines()
    assert sorted(set(lines)) == ["0 0", "1 1", "2 2", "3 3"]  # a step that was cut runs again, with the same value
