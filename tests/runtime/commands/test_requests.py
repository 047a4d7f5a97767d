"""Idempotent commands: one key, one effect, one answer. On every loop and both journals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard.actors.records.entities import RequestRecord
from callboard.actors.spec.model import Task, Worker, Workstream
from callboard.machines import InvalidTransitionError
from callboard.runtime.commands.idempotency import RequestIdReused
from callboard.runtime.dispatch.clock import VirtualClock
from callboard.runtime.handles.jobs import JobHandle
from callboard.runtime.journal.memory import MemoryJournal
from callboard.runtime.runtime import Runtime

pytestmark = pytest.mark.anyio


@pytest.fixture(
    params=[pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"), pytest.param(("trio", {}), id="trio")]
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Two loops suffice here: what differs between them is the runtime's, and is tested with it on all."""
    return request.param


@pytest.fixture(params=["memory", "sqlite"])
def open_runtime(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Runtime]:
    """Opens runtimes on the same journal, as often as a test likes."""
    memory = MemoryJournal()

    def make(**options: Any) -> Runtime:
        target = tmp_path / "state.db" if request.param == "sqlite" else memory
        return Runtime(target, drain_deadline=0, **options)

    return make


def three() -> Workstream:
    """Three tasks that nothing can run."""
    return Workstream("three", tasks=[Task(name, command=["true"], optional=True) for name in "abc"])


async def begun(runtime: Runtime, job_id: str = "j") -> JobHandle:
    return await runtime.submit(three(), id=job_id)


def transitions(runtime: Runtime, entity_id: str) -> list[str]:
    return [row.event for row in runtime.journal.reader.transitions(entity_id=entity_id)]


async def test_the_same_key_is_the_same_command(open_runtime: Callable[..., Runtime]) -> None:
    async with open_runtime(workers=()) as runtime:
        task = (await begun(runtime)).task("a")
        for _ in range(3):
            await task.cancel("too slow", request_id="r1")
        assert transitions(runtime, "j@1/a").count("cancel") == 1
        with pytest.raises(InvalidTransitionError):
            await task.cancel("too slow", request_id="r2")


async def test_another_payload_target_or_operation_is_refused(open_runtime: Callable[..., Runtime]) -> None:
    async with open_runtime(workers=()) as runtime:
        job = await begun(runtime)
        await job.task("a").cancel("too slow", request_id="r1")
        with pytest.raises(RequestIdReused, match="cancel, to something else or with other arguments"):
            await job.task("a").cancel("another reason", request_id="r1")
        with pytest.raises(RequestIdReused):
            await job.task("a").cancel("too slow", force=True, request_id="r1")
        with pytest.raises(RequestIdReused):
            await job.task("b").cancel("too slow", request_id="r1")
        assert job.task("b").record.state == "queued"


async def test_a_refusal_is_not_kept(open_runtime: Callable[..., Runtime]) -> None:
    async with open_runtime(workers=()) as runtime:
        job = await begun(runtime)
        await job.task("a").cancel()
        with pytest.raises(InvalidTransitionError):
            await job.task("a").cancel(request_id="r1")
        await job.task("b").cancel(request_id="r1")  # nothing was journaled under it
        assert job.task("b").record.state == "cancelled"


async def test_the_answer_outlives_the_job_and_the_runtime(open_runtime: Callable[..., Runtime]) -> None:
    async with open_runtime(workers=()) as runtime:
        job = await begun(runtime)
        await job.cancel("no", request_id="r1")
        await job.wait()
        await job.cancel("no", request_id="r1")
        with pytest.raises(InvalidTransitionError):
            await job.cancel("no", request_id="r2")
    async with open_runtime(workers=()) as runtime:
        job = await runtime.job("j")
        await job.cancel("no", request_id="r1")
        with pytest.raises(RequestIdReused):
            await job.cancel("yes", request_id="r1")
        assert transitions(runtime, "j").count("cancel") == 0
        assert transitions(runtime, "j").count("cancel_graceful") == 1


async def test_the_second_one_waits_for_the_first(open_runtime: Callable[..., Runtime]) -> None:
    answers: list[str] = []
    async with open_runtime(workers=()) as runtime:
        task = (await begun(runtime)).task("a")

        async def cancel(name: str) -> None:
            await task.cancel("x", request_id="r1")
            answers.append(name)

        async with anyio.create_task_group() as group:
            for name in "abcd":
                group.start_soon(cancel, name)
        assert sorted(answers) == list("abcd")
        assert transitions(runtime, "j@1/a").count("cancel") == 1


async def test_a_caller_that_goes_away_leaves_its_key_in_flight(open_runtime: Callable[..., Runtime]) -> None:
    async with open_runtime(workers=()) as runtime:
        task = (await begun(runtime)).task("a")
        for _ in range(20):  # wherever the cancellation reaches it
            with anyio.CancelScope() as scope:
                scope.cancel()
                await task.cancel("x", request_id="r1")
        await task.cancel("x", request_id="r1")
        assert transitions(runtime, "j@1/a").count("cancel") == 1


async def test_the_same_again_where_a_next_run_has_begun_meanwhile(open_runtime: Callable[..., Runtime]) -> None:
    async with open_runtime(workers=()) as runtime:
        job = await begun(runtime)
        await job.task("a").cancel("x", request_id="r1")
        await job.cancel("x", request_id="r2")
        await job.wait()
        for _ in range(3):
            again = await (await runtime.job("j")).resume("go on", request_id="r3")
        assert (again.state, again.record.run) == ("running", 2)
        await again.cancel("x", request_id="r4")
        await again.wait()
        for _ in range(3):
            again = await (await runtime.job("j")).retry("a", "once more", request_id="r5")
        assert again.record.run == 3
        for _ in range(3):
            await again.skip("b", "not that", request_id="r6") if again.task("b").record.state == "pending" else None
        await again.task("a").cancel("x", request_id="r1")  # the same command as for run 1
        assert again.task("a").record.state == "queued"
        await again.cancel("x", request_id="r2")
        assert again.state == "running"


async def test_what_can_be_no_key(open_runtime: Callable[..., Runtime]) -> None:
    async with open_runtime(workers=()) as runtime:
        job = await begun(runtime)
        for key in ("", "x" * 201, "a\nb", "\ud800"):
            with pytest.raises(ValueError, match="cannot be a request_id"):
                await job.cancel(request_id=key)
        with pytest.raises(TypeError, match="is a str"):
            await job.cancel(request_id=7)  # type: ignore[arg-type]
        assert job.state == "running"


async def test_a_key_is_kept_for_its_time_and_while_its_job_lives(open_runtime: Callable[..., Runtime]) -> None:
    clock = VirtualClock()
    async with open_runtime(workers=(), clock=clock, keep_requests=100) as runtime:
        living, ended = await begun(runtime, "living"), await begun(runtime, "ended")
        await living.task("a").cancel("x", request_id="living")
        await ended.cancel("x", request_id="ended")
        await ended.wait()
        clock.advance(99)
        await ended.cancel("x", request_id="ended")
        clock.advance(2)
        await living.task("a").cancel("x", request_id="living")
        with pytest.raises(InvalidTransitionError):
            await ended.cancel("x", request_id="ended")  # its time is over, so it is a new command
        await living.task("b").cancel("x", request_id="new")  # writing a key prunes
        assert runtime.journal.reader.request("ended") is None
        assert runtime.journal.reader.request("living") is not None
        await living.cancel()
        await living.wait()
        clock.advance(1000)
    async with open_runtime(workers=(), clock=clock, keep_requests=100) as runtime:
        await runtime.drain(0)
        assert runtime.journal.reader.request("living") is None  # so does a start
        assert runtime.journal.reader.request("new") is None


async def test_the_key_says_what_the_command_left(open_runtime: Callable[..., Runtime]) -> None:
    async with open_runtime(workers=()) as runtime:
        job = await begun(runtime)
        await job.cancel("x", request_id="r1")
        record = runtime.journal.reader.request("r1")
    assert isinstance(record, RequestRecord)
    assert (record.operation, bytes(record.answer)) == (
        "cancel",
        b'{"kind":"job","id":"j","state":"cancelled","workstream":"cancelled"}',  # at the end of the turn
    )


async def test_the_same_said_to_a_worker_gets_the_same_answer_after_its_next_incarnation_and_a_restart(
    open_runtime: Callable[..., Runtime],
) -> None:
    async with open_runtime(workers=()) as runtime:
        (worker,) = await runtime.start_worker(Worker("w", engine="loop", lifecycle="fleet"))
        await worker.start("go", by="ana", request_id="r1")
        await worker.pause("wait", request_id="r2")
        await worker.terminate("no", request_id="r3")
        await worker.start("anew", request_id="r4")
        assert (worker.record.run, worker.record.shown) == (2, "IDLE")
        for _ in range(2):
            await worker.start("go", by="ana", request_id="r1")
            await worker.pause("wait", request_id="r2")
            await worker.start("anew", request_id="r4")
        assert (worker.record.run, worker.record.shown) == (2, "IDLE")
        with pytest.raises(RequestIdReused):
            await worker.start("go", by="bo", request_id="r1")
    async with open_runtime(workers=()) as runtime:
        with pytest.raises(LookupError):
            runtime.worker("w")
        former = runtime._services.former_worker("w")
        await former.pause("wait", request_id="r2")
        await former.start("anew", request_id="r4")
        with pytest.raises(LookupError, match="there is no worker 'w'"):
            await former.pause("wait", request_id="r5")
