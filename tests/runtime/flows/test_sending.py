"""Messages from a flow to another job: each is sent once, whatever dies meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.runtime.flows import bodies
from tests.runtime.flows.dying import DIES, killed_at_each_turn
from tests.runtime.flows.helpers import Open, result, submitted

from callboard import Retry, Runtime, Task, TaskContext, VirtualClock, Worker, Workstream, step
from callboard.errors import FlowChanged, InvalidTransitionError, NotSerialisable
from callboard.testing import Simulation

pytestmark = pytest.mark.anyio
SOON = Retry(max_attempts=2, base_delay=0.0, jitter=0.0)


async def receives_two(task: TaskContext) -> list[Any]:
    return [await task.receive("n"), await task.receive("n")]


async def nothing() -> None: ...


async def test_a_flow_sends_in_order_to_another_job_or_to_one_of_its_tasks(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> None:
        await task.send("other", "n", {"one": [1, None]})
        await task.send("other", "n", 2, task="t")

    async with open_runtime() as runtime:
        other = await submitted(runtime, receives_two, job_id="other")
        job = await submitted(runtime, body)
        assert await result(other) == [{"one": [1, None]}, 2]
        await job.wait()
        steps = await job.steps("t")
        assert [(one.label, one.state, one.tries) for one in steps] == [
            ("task.send n", "completed", 1), ("task.send n#2", "completed", 1)
        ]  # fmt: skip
        assert [one.by for one in runtime._services.journal.reader.messages("other")] == ["job/t"] * 2


async def test_a_later_attempt_does_not_send_again(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> None:
        await task.send("other", "n", 1)
        if task.attempt == 1:
            raise RuntimeError("interrupted")
        await task.send("other", "n", 1)  # another message, though it is equal

    async with open_runtime() as runtime:
        other = await submitted(runtime, receives_two, job_id="other")
        await result(await submitted(runtime, body, retry=SOON))
        assert await result(other) == [1, 1]
        assert len(runtime._services.journal.reader.messages("other")) == 2


async def test_the_errors_are_those_of_a_handle_and_a_replay_raises_them_again(open_runtime: Open) -> None:
    told: list[list[tuple[type[Exception], str]]] = []
    facts: list[Any] = []

    async def body(task: TaskContext) -> None:
        got: list[tuple[type[Exception], str]] = []
        for job, only in (("nobody", None), ("ended", None), ("ended", "t"), ("job", "zz")):
            try:
                await task.send(job, "n", task=only)
            except Exception as error:
                got.append((type(error), str(error)))
                if isinstance(error, InvalidTransitionError):
                    facts.append((error.state, error.event, error.allowed))
        told.append(got)
        if len(told) == 1:
            await task.sleep("1h")  # it is put to sleep, and replayed

    clock = VirtualClock()
    async with open_runtime(clock=clock) as runtime:
        ended = await submitted(runtime, nothing, job_id="ended")
        await ended.wait()
        with pytest.raises(InvalidTransitionError) as refused:
            await ended.send("n")
        job = await submitted(runtime, body)
        with anyio.fail_after(300):
            while not runtime._services.host.kernel.lent:  # then it sleeps
                await anyio.sleep(0.005)
        clock.advance(3601)
        await result(job)
        steps = await job.steps("t")
    assert [one.state for one in steps if one.name == "task.send n"] == ["failed"] * 4
    assert len(told) == 2
    assert told[0] == told[1]
    assert facts == [("completed", "send", frozenset())] * 4
    assert [kind.__name__ for kind, _ in told[0]] == [
        "LookupError", "InvalidTransitionError", "InvalidTransitionError", "LookupError"
    ]  # fmt: skip
    assert told[0][0][1] == "there is no job 'nobody' in this journal"
    assert told[0][1][1] == str(refused.value)


async def test_what_cannot_be_sent_is_refused_before_a_step_is_kept(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> list[str]:
        told: list[str] = []

        @step
        async def inner() -> None:
            await task.send("other", "n")

        for call in (
            lambda: task.send("other", ""), lambda: task.send(7, "n"),  # type: ignore[arg-type]
            lambda: task.send("other", "n", object()), lambda: task.send("other", "n", task=7),  # type: ignore[arg-type]
            inner,
        ):  # fmt: skip
            try:
                await call()
            except (ValueError, TypeError, NotSerialisable, RuntimeError) as error:
                told.append(str(error)[:50])
        return told

    async with open_runtime() as runtime:
        job = await submitted(runtime, body)
        told = await result(job)
        assert told[0].startswith("'' cannot be the name of a message")
        assert told[1].startswith("a job's id")
        assert "message 'n'" in told[2]
        assert told[3].startswith("the name of a task")
        assert told[4].startswith("step 'task.send n' was called inside step 'inner'")
        assert [one.label for one in await job.steps("t")] == ["inner"]


async def test_another_message_under_a_kept_name_is_refused(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> None:
        await task.send("other", "n", task.attempt)
        raise RuntimeError("interrupted")

    async with open_runtime() as runtime:
        other = await submitted(runtime, receives_two, job_id="other")
        job = await submitted(runtime, body, retry=SOON)
        outcome = await job.wait()
        assert outcome.state == "failed"
        assert FlowChanged.__name__ in str(job.task("t").record.reason)
        assert len(runtime._services.journal.reader.messages("other")) == 1
        await other.cancel()


async def test_a_send_that_the_body_gives_up_goes_out_once(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> None:
        for n in range(20):
            with anyio.move_on_after(0.001 * (n % 3)):
                await task.send("other", "n", n)
                continue
            await task.send("other", "n", n)

    async def receives(task: TaskContext) -> list[Any]:
        return [await task.receive("n") for _ in range(20)]

    async with open_runtime() as runtime:
        other = await submitted(runtime, receives, job_id="other")
        await result(await submitted(runtime, body))
        assert await result(other) == list(range(20))
        assert len(runtime._services.journal.reader.messages("other")) == 20


async def test_a_flow_sends_to_its_own_job_and_to_a_child(open_runtime: Open) -> None:
    async def child(task: TaskContext) -> Any:
        return await task.receive("n")

    async def body(task: TaskContext) -> list[Any]:
        await task.send(task.job_id, "mine", 1)
        begun = await task.submit(Workstream("child", tasks=[Task("c", run="child")]), name="child")
        await begun.send("n", 2)
        return [await task.receive("mine"), (await begun.wait()).results["c"]]

    def plain(task: TaskContext) -> Any:
        begun = task.submit_blocking(Workstream("child", tasks=[Task("c", run="child")]), name="child")
        begun.send_blocking("n", [3], task="c")
        return begun.wait_blocking().results["c"]

    async with open_runtime() as runtime:
        runtime.task(name="child")(child)
        assert await result(job := await submitted(runtime, body)) == [1, 2]
        assert [one.label for one in await job.steps("t") if one.name.startswith("task.send")] == [
            "task.send mine", "task.send n"
        ]  # fmt: skip
        assert await result(await submitted(runtime, plain, job_id="plain")) == [3]


@pytest.mark.parametrize("engine", ["thread", "process"])
async def test_plain_bodies_send_in_threads_and_processes(engine: Any, tmp_path: Path) -> None:
    workers = (Worker("one", engine=engine), Worker("loop", engine="loop"))
    async with Runtime(tmp_path / "j.db", workers=workers) as runtime:
        other = await submitted(runtime, receives_two, job_id="other")
        ended = await submitted(runtime, nothing, job_id="ended")
        await ended.wait()
        with pytest.raises(InvalidTransitionError) as refused:
            await ended.send("n")
        task = Task("t", run=bodies.sends, engine=engine, retry=SOON)
        job = await runtime.submit(Workstream("flow", tasks=[task]), id="job")
        assert await result(job) == [
            "LookupError: there is no job 'nobody' in this journal", f"InvalidTransitionError: {refused.value}"
        ]  # fmt: skip
        assert await result(other) == [1, {"two": 2}]


def test_simulated_flows_send() -> None:
    async def body(task: TaskContext) -> None:
        await task.send("other", "n", 1)
        await task.send("other", "n", 2)

    with Simulation(seed=1) as sim:
        other = sim.submit(Workstream("other", tasks=[Task("t", run=receives_two)]), id="other")
        sim.submit(Workstream("flow", tasks=[Task("t", run=body)]), id="job")
        assert other.run().results["t"] == [1, 2]


# -- death -------------------------------------------------------------------------------------------------------------

PROGRAM = (
    DIES
    + """
counted(when)


async def sends(task: TaskContext):
    for n in (1, 1, 2):  # two of them are equal
        await task.send("other", "n", n)
    await task.send("other", "end")

async def receives(task: TaskContext):
    await task.receive("end")
    got = []
    while (value := await task.receive("n", timeout=0, default=None)) is not None:
        got.append(value)
    return got

async def main():
    async with Runtime(folder / "state.db") as runtime:
        runtime.task(name="sends")(sends)
        runtime.task(name="receives")(receives)
        other = Workstream("other", tasks=[Task("t", run="receives", max_losses=500)])
        job = await runtime.submit(other, id="other")
        await runtime.submit(Workstream("flow", tasks=[Task("t", run="sends", max_losses=500)]), id="one")
        print((await job.wait()).results["t"])

anyio.run(main)
"""
)


@pytest.mark.slow
@pytest.mark.parametrize(("loop", "when"), [("asyncio", "commit"), ("trio", "_do")])
def test_killed_at_any_instant_each_message_is_sent_once(loop: str, when: str, tmp_path: Path) -> None:
    assert killed_at_each_turn(PROGRAM, loop, when, tmp_path) == "[1, 1, 2]\n"
