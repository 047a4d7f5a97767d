"""Steps with an engine or capabilities: they run on such workers, while their body stays where it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import msgspec
import pytest
from msgspec.structs import replace
from tests.runtime.flows.helpers import Open, result, submitted
from tests.waiting import until

from callboard import (
    JobHandle,
    Retry,
    Runtime,
    StepRecord,
    TaskContext,
    Tool,
    VirtualClock,
    Worker,
    step,
)
from callboard.actors.messages.commands import RunStep
from callboard.errors import AttemptOver, RetryAfter, RuntimeClosed
from callboard.runtime.calling import ErrorInfo, Outcome
from callboard.runtime.engines.process.flow_proxy import FlowProxy
from callboard.runtime.engines.steps import FlowFacts, StepRun, StepRunEnd
from callboard.runtime.engines.workers.wire import BodyRequest, RequestAnswer
from callboard.runtime.flows.step_runs import RunningStep, StepRuns
from callboard.runtime.handles.jobs import core_of
from callboard.runtime.jobs.worker_requests import WorkerRequests
from callboard.runtime.lifespan import draining

pytestmark = pytest.mark.anyio
GPU = {"gpu"}
LOOP = Worker("loop", engine="loop", capacity=1)
ONE = (LOOP, Worker("gpu", engine="loop", capacity=1, capabilities=["gpu"]))
THREAD = Worker("thread", engine="thread", capacity=1, capabilities=["gpu"])
TWICE = Retry(max_attempts=2, base_delay=0.0, jitter=0.0)


async def wheres(job: JobHandle) -> list[tuple[str, str | None, str | None]]:
    return [(one.label, one.worker_use, one.worker_id) for one in await job.steps("t")]


async def waits(job: JobHandle, use: str = "waits", steps: int = 1) -> None:
    """Wait until so many steps wait for their workers, or run there, durably, and the slot of the body is lent."""
    lent = core_of(job).services.host.kernel.lent

    async def there() -> bool:
        found = [one for one in await wheres(job) if one[1] == use]
        return len(found) == steps and job.task("t").record.token in lent

    with anyio.fail_after(300):
        while not await there():
            await anyio.sleep(0.005)


def nothing_runs(runtime: Runtime) -> bool:
    kernel = runtime._services.host.kernel
    used = {worker.record.name: (worker.used, worker.record.assigned) for worker in kernel.workers.values()}
    return not (kernel.calls or kernel.slots or kernel.lent or kernel.step_calls) and set(used.values()) == {(0, 0)}


async def test_steps_run_on_workers_that_suit_and_their_body_lends_its_slot_meanwhile(open_runtime: Open) -> None:
    running, most = 0, 0
    come = anyio.Event()

    @step(capabilities=GPU)
    async def train(n: int) -> int:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await come.wait()
        await anyio.lowlevel.checkpoint()
        running -= 1
        return n * 10

    @step(engine="thread", capabilities=["gpu"])
    def render(n: int, *, wide: bool) -> tuple[int, bool]:
        return n, wide

    @step
    async def plain() -> str:
        return "here"

    async def body(task: TaskContext) -> list[Any]:
        got = await task.gather(*(train.bind(n) for n in range(3)))
        got.append(await task.step(render, 4, wide=True))
        return [*got, await plain()]

    async def other(task: TaskContext) -> str:
        come.set()
        return "in the only slot of the loop"

    async with open_runtime(workers=(*ONE, THREAD)) as runtime:
        job = await submitted(runtime, body)
        await until(lambda: running == 1)
        await waits(job, steps=2)
        assert sorted(use for _, use, _ in await wheres(job) if use) == ["holds", "waits", "waits"]
        assert runtime.worker("gpu").assigned == 1
        assert await result(await submitted(runtime, other, job_id="other")) == "in the only slot of the loop"
        assert await result(job) == [0, 10, 20, [4, True], "here"]
        assert most == 1
        assert {(name, use, worker) for name, use, worker in await wheres(job)} == {
            *((label, None, "gpu#1") for label in ("train", "train#2", "train#3")),
            ("render", None, "thread#1"), ("plain", None, "loop#1"),
        }  # fmt: skip
        assert [(one.engine, one.capabilities) for one in await job.steps("t")][3:] == [
            ("thread", ("gpu",)),
            (None, ()),
        ]
        assert nothing_runs(runtime)


async def test_its_policies_errors_and_results_are_those_of_any_step(open_runtime: Open) -> None:
    tried: list[str] = []
    clock = VirtualClock()

    class OddError(Exception):
        def __init__(self, *, text: str) -> None:  # it cannot be made again
            super().__init__(text)

    @step(capabilities=GPU, retry=Retry(max_attempts=3, base_delay=0.0, jitter=0.0))
    async def flaky(n: int) -> int:
        tried.append("flaky")
        if len(tried) == 1:
            raise ConnectionError("no answer")
        if len(tried) == 2:
            raise RetryAfter(0.0)
        return n

    @step(engine="thread", capabilities=GPU)
    def gone(key: str) -> None:
        raise KeyError(key)

    @step(capabilities=GPU)
    async def odd() -> None:
        raise OddError(text="odd")

    @step(capabilities=GPU)
    async def returns_a_set() -> Any:
        return {1}

    @step(capabilities=GPU)
    async def nests() -> Any:
        return await returns_a_set()

    @step(capabilities=GPU, timeout="1m", retry=TWICE)
    async def slow() -> None:
        tried.append("slow")
        if tried.count("slow") == 1:
            clock.advance(61)
        clock.advance(61)
        await anyio.sleep_forever()

    async def body(task: TaskContext) -> list[Any]:
        got: list[Any] = [await flaky(7)]
        for one, args in ((gone, ("k",)), (odd, ()), (returns_a_set, ()), (nests, ()), (slow, ())):
            try:
                await task.step(one, *args)
            except Exception as error:
                got.append(f"{type(error).__name__}: {error}")
        if task.attempt == 1:
            raise RuntimeError("interrupted")
        return got

    async with open_runtime(clock=clock, workers=(*ONE, THREAD)) as runtime:
        job = await submitted(runtime, body, retry=TWICE, timeout="10m")
        got = await result(job)
        assert got[:2] == [7, "KeyError: 'k'"]
        assert got[2].startswith("StepFailed: step 'odd' failed: ")
        assert got[2].endswith("OddError: odd")
        assert got[3].startswith("NotSerialisable: the result of step 'returns_a_set'")
        assert "step 'returns_a_set' was called inside step 'nests'" in got[4]
        assert got[5] == "TimeoutError: step 'slow' took longer than 60 s"
        assert tried == [*["flaky"] * 3, *["slow"] * 4]  # the failed ones again in the second attempt
        rows = {one.label: one for one in await job.steps("t")}
        assert (rows["flaky"].tries, rows["flaky"].state, rows["flaky"].attempt) == (3, "completed", 1)
        assert "in gone" in (rows["gone"].traceback or "")
        assert nothing_runs(runtime)


@pytest.mark.parametrize("while_it", ["waits", "holds"])
async def test_a_cancelled_body_takes_its_steps_with_it(open_runtime: Open, while_it: str) -> None:
    ended: list[str] = []

    @step(capabilities=GPU)
    async def train() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("train")

    async def body(task: TaskContext) -> None:
        try:
            await train()
        finally:
            ended.append("body")

    async with open_runtime(workers=(LOOP, *((ONE[1],) if while_it == "holds" else ()))) as runtime:
        job = await submitted(runtime, body)
        await waits(job, while_it)
        await job.cancel()
        assert (await job.wait()).state == "cancelled"
        assert ended == (["train", "body"] if while_it == "holds" else ["body"])
        await until(lambda: nothing_runs(runtime))
        assert await wheres(job) == [("train", None, "gpu#1" if while_it == "holds" else None)]


async def test_a_step_that_no_worker_can_run_says_so_and_fails_when_its_time_is_over(open_runtime: Open) -> None:
    @step(capabilities={"gpu", "a lot of memory"})
    async def train() -> str:
        return "trained"

    async def body(task: TaskContext) -> Any:
        try:
            return await train()
        except Exception as error:
            return f"{error}"

    nobody = "no worker has the engine 'loop' and the capabilities ['a lot of memory', 'gpu']"
    clock = VirtualClock()
    async with open_runtime(clock=clock, workers=ONE) as runtime:
        jobs = [
            await submitted(runtime, body, job_id=name, unroutable_timeout=limit)
            for name, limit in (("short", "1m"), ("long", "2h"))
        ]
        for job in jobs:
            await waits(job)
            assert (await job.steps("t"))[0].unroutable == nobody
        clock.advance(61)
        assert await result(jobs[0]) == f"step 'train' failed: unroutable: no worker could run it: {nobody}"
        await runtime.start_worker(Worker("big", engine="loop", capabilities=["gpu", "a lot of memory", "more"]))
        assert await result(jobs[1]) == "trained"
        assert nothing_runs(runtime)


async def test_a_step_whose_worker_is_terminated_is_lost_and_tried_again(open_runtime: Open) -> None:
    began: list[str] = []

    @step(capabilities=GPU, retry=TWICE)
    async def train() -> str:
        began.append("train")
        if len(began) == 1:
            await anyio.sleep_forever()
        return "trained"

    @step(capabilities=GPU)
    async def once() -> None:
        began.append("once")
        await anyio.sleep_forever()

    async def body(task: TaskContext) -> list[Any]:
        got = [await train()]
        try:
            await once()
        except Exception as error:
            got.append(str(error))
        return got

    async with open_runtime(workers=(*ONE, Worker("gpu2", engine="loop", capacity=1, capabilities=["gpu"]))) as runtime:
        job = await submitted(runtime, body)
        for expected in (["train"], ["train", "train", "once"]):
            await until(lambda expected=expected: began == expected)
            await waits(job, "holds")
            worker = (await wheres(job))[-1][2]
            assert worker is not None
            await runtime.worker(worker.partition("#")[0]).terminate(reason="moved")
        got = await result(job)
        assert got[0] == "trained"
        assert f"worker {worker} was lost while the step ran" in got[1]
        assert nothing_runs(runtime)


async def test_its_end_is_durable_and_its_tool_free_before_its_body_has_its_slot_again(open_runtime: Open) -> None:
    end, leave = anyio.Event(), anyio.Event()

    @step(capabilities=GPU, tool="licence")
    async def charge() -> str:
        await end.wait()
        return "charged"

    @step(capabilities=GPU, tool="licence")
    async def fails() -> str:
        raise KeyError("k")

    async def body(task: TaskContext) -> list[str]:
        got = [await charge()]
        try:
            await fails()
        except KeyError as error:
            got.append(str(error))
        return got

    async def other(task: TaskContext) -> None:
        end.set()
        await leave.wait()

    async with open_runtime(workers=ONE, tools={"licence": Tool(max_parallel=1)}) as runtime:
        job = await submitted(runtime, body)
        await waits(job, "holds")
        await submitted(runtime, other, job_id="other")  # it has the only slot of the loop
        with anyio.fail_after(300):
            while [one.state for one in await job.steps("t")] != ["completed"]:
                await anyio.sleep(0.005)
        kernel = runtime._services.host.kernel
        assert job.task("t").record.token in kernel.lent
        assert (kernel.uses, runtime.worker("gpu").assigned) == ({}, 0)
        leave.set()
        assert await result(job) == ["charged", "'k'"]
        assert nothing_runs(runtime)


async def test_one_that_returns_although_its_body_was_cancelled_does_not_run_again(open_runtime: Open) -> None:
    began, end = anyio.Event(), anyio.Event()

    @step(capabilities=GPU)
    async def charge() -> str:
        began.set()
        with anyio.CancelScope(shield=True):
            await end.wait()
        return "charged"

    async def body(task: TaskContext) -> str:
        return await charge()

    async with open_runtime(workers=ONE) as runtime:
        job = await submitted(runtime, body)
        await began.wait()
        await waits(job, "holds")
        await job.cancel()
        calls = runtime._services.host.kernel.calls
        await until(lambda: all(call.told is not None for call in calls.values()))
        end.set()
        assert (await job.wait()).state == "cancelled"
        (row,) = await job.steps("t")
        assert (row.state, row.result, row.tries, row.worker_id) == ("completed", "charged", 1, "gpu#1")
        assert nothing_runs(runtime)


async def test_a_drain_gives_a_step_the_grace_of_its_task(open_runtime: Open) -> None:
    @step(capabilities=GPU)
    async def train() -> None:
        await anyio.sleep_forever()

    async def body(task: TaskContext) -> None:
        await train()

    async with open_runtime(workers=ONE) as runtime:
        job = await submitted(runtime, body, kill_grace=9.0)
        await waits(job, "holds")
        host = runtime._services.host
        assert {call.kind: draining._grace(host, call) for call in host.kernel.calls.values()} == {
            "body": 9.0, "step": 9.0,
        }  # fmt: skip
        await job.cancel()


async def test_it_holds_its_tool_on_its_worker_and_a_body_in_a_thread_may_call_it(open_runtime: Open) -> None:
    @step(engine="thread", tool="licence")
    def solve(n: int) -> int:
        if n == 2:
            raise ConnectionError("sick")
        return n

    def body(task: TaskContext) -> list[Any]:
        got: list[Any] = [solve(1), *task.gather_blocking(solve.bind(3), solve.bind(4))]
        try:
            task.step_blocking(solve, 2)
        except ConnectionError as error:
            got.append(str(error))
        return got

    async with open_runtime(workers=(LOOP, THREAD), tools={"licence": Tool(max_parallel=1)}) as runtime:
        job = await submitted(runtime, body)  # it lends the only slot of the threads
        assert await result(job) == [1, 3, 4, "sick"]
        assert runtime.breaker("licence").record.failures == 1
        assert runtime._services.host.workforce.scheduler.tools["licence"].used == 0
        assert nothing_runs(runtime)


@pytest.mark.parametrize("still", [True, False])
async def test_a_step_that_runs_when_its_runtime_leaves_runs_again_and_a_kept_one_does_not(
    tmp_path: Path, still: bool
) -> None:
    began: list[str] = []

    def made(capabilities: set[str]) -> Any:
        @step(capabilities=capabilities)
        async def train(name: str) -> str:
            began.append(name)
            if began == ["a", "b"]:
                await anyio.sleep_forever()
            return name

        async def body(task: TaskContext) -> list[str]:
            return [await train("a"), await train("b")]

        return body

    async with Runtime(tmp_path / "j.db", workers=ONE, drain_deadline=0.0) as runtime:
        job = await submitted(runtime, made(GPU))
        await until(lambda: began == ["a", "b"])
        await waits(job, "holds")
    async with Runtime(tmp_path / "j.db", workers=ONE) as runtime:
        runtime.task(name="body of job")(made(GPU if still else set()))  # the code may have changed meanwhile
        job = await runtime.job("job")
        assert await result(job) == ["a", "b"]
        assert began == ["a", "b", "b"]
        first, second = await job.steps("t")
        assert (first.tries, first.engine, first.worker_id) == (1, "loop", "gpu#1")
        assert (second.tries, second.engine) == (1, "loop" if still else None)
        assert second.worker_id == ("gpu#2" if still else "loop#2")
        assert nothing_runs(runtime)


class Body:
    """What the flows of a runtime note about a body."""

    def __init__(self) -> None:
        self.idle = self.busy = 0
        self.timers: dict[float, Callable[[], object]] = {}  # by their seconds
        self.kept: list[StepRecord] = []

    def idles(self, _: int, change: int) -> None:
        self.idle += change

    def works(self, _: int, change: int) -> None:
        self.busy += change

    def after(self, seconds: float, do: Callable[[], object]) -> Callable[[], object]:
        assert seconds not in self.timers
        self.timers[seconds] = do
        return lambda: self.timers.pop(seconds)

    def unroutable_timeout(self, _: int) -> float:
        return 600.0

    async def keep(self, _: int, row: StepRecord) -> StepRecord:
        self.kept.append(row)
        return row


ROW = StepRecord(key=1, flow=1, task=1, task_id="t", name="s", began_at=0.0, tries=0, worker_use="waits")
HOLDS = replace(ROW, worker_use="holds", worker_id="gpu#1")
NOBODY = replace(ROW, unroutable="no worker has it")


def running_step(stops: list[str], body: Body) -> RunningStep:
    request = StepRun(1, replace(ROW, key=0), False, None, None, True, 60.0)
    return RunningStep(body, 7, request, None, lambda: stops.append("stop"))


def test_a_word_about_a_step_that_nobody_waits_for_counts_for_nothing() -> None:
    """A worker may take a step in the moment in which its body gives it up."""
    one = running_step([], body := Body())
    one.answered(ROW, None)
    assert (body.idle, body.busy) == (1, 0)
    one.leave()
    one.answered(HOLDS, None)
    assert (body.idle, body.busy) == (0, 0)


def test_each_limit_of_a_step_runs_while_it_is_to_and_no_longer() -> None:
    one = running_step([], body := Body())
    one.answered(NOBODY, None)
    (first,) = body.timers.values()
    one.answered(replace(NOBODY, unroutable="another reason"), None)
    assert list(body.timers.values()) == [first]  # the timer runs since no worker can run it, for whatever reason
    one.answered(ROW, None)
    one.answered(HOLDS, None)
    assert body.timers == {}  # a worker has a slot for it: its call has not begun
    one.began()
    assert list(body.timers) == [60.0]
    refused = ErrorInfo(type="Refused", message="no", permanent=True, category="permanent")
    one.ended(Outcome(token=9, status="failed", error=refused))
    assert (body.timers, body.idle, body.busy) == ({}, 0, 0)  # though its body waits for a slot
    assert one.end().error == refused


def test_a_step_is_given_up_when_the_kernel_says_so_and_counts_if_a_worker_has_taken_it() -> None:
    for taken in (False, True):
        one = running_step(stops := [], body := Body())
        one.answered(NOBODY, None)
        body.timers.pop(600.0)()
        assert (stops, one.over.is_set()) == (["stop"], False)
        if taken:
            one.answered(HOLDS, None)
            assert not one.over.is_set()
            one.ended(Outcome(token=9, status="ok", value={"value": 7}))
            assert one.end().value == 7
        else:
            one.answered(replace(NOBODY, worker_use=None), None)
            assert one.end().path == "unroutable"
        assert one.over.is_set()
        assert (body.idle, body.busy) == (0, 0)


RUN = StepRun(1, replace(ROW, key=0), False, None, None, True, None)
END = StepRunEnd(HOLDS, 7)


class Host:
    """A host that answers nothing: the test does."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.tell = self.told.append
        self.kernel = SimpleNamespace(drain_began=None)
        self.on_close: list[Callable[[BaseException | None], None]] = []

    def check_open(self) -> None:
        pass

    def now(self) -> float:
        return 5.0


async def never(*_: Any) -> None:
    raise AssertionError(_)


async def lend(_: int, wait: Callable[[], Any]) -> None:
    await wait()


async def gave_up() -> str:
    return "cancel 0"


async def test_a_step_that_is_cancelled_before_its_first_answer_is_not_kept_as_waiting() -> None:
    host = Host()
    told = host.told
    runs = StepRuns(cast("Any", host), body := Body(), lend)
    async with anyio.create_task_group() as group:
        scope = anyio.CancelScope()

        async def run() -> None:
            with scope:
                await runs.run(7, RUN, None, never, None, gave_up=gave_up)

        group.start_soon(run)
        await anyio.wait_all_tasks_blocked()
        scope.cancel()
        await anyio.wait_all_tasks_blocked()
        told[0].reply.answer(ROW, None)
    assert [type(one).__name__ for one in told] == ["RunStep", "StopStep"]
    (row,) = body.kept
    assert (row.key, row.worker_use, row.cancelled_at, row.given_up) == (1, None, 5.0, "cancel 0")


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("answers", [[], [ROW], [HOLDS]], ids=["unheard", "waits", "holds"])
async def test_a_step_ends_when_the_host_closes_although_the_kernel_answers_no_more(
    cancelled: bool, answers: list[StepRecord]
) -> None:
    host, ends, waiting = Host(), list[str](), not answers or answers == [HOLDS]
    runs = StepRuns(cast("Any", host), Body(), lend)
    with anyio.fail_after(300):
        async with anyio.create_task_group() as group:
            scope = anyio.CancelScope()

            async def run() -> None:
                try:
                    with scope:
                        await runs.run(7, RUN, None, never, None, gave_up=gave_up)
                    ends.append("cancelled")
                except RuntimeClosed as error:
                    ends.append(str(error))

            group.start_soon(run)
            await anyio.wait_all_tasks_blocked()
            for row in answers:
                host.told[0].reply.answer(row, None)
            await anyio.wait_all_tasks_blocked()
            if cancelled:
                scope.cancel()
                await anyio.wait_all_tasks_blocked()
                assert ends == ([] if waiting else ["cancelled"])  # it waits for its answer, or for the function's end
            for close in host.on_close:
                close(ArithmeticError("broken"))
                close(None)  # as the end of the dispatcher does
    assert len(ends) == 1
    assert ends[0] == "cancelled" if cancelled else "this step had ended (it broke: " in ends[0]
    assert not runs.living


@pytest.mark.parametrize("late", [False, True], ids=["it is asked for before", "it is asked for after"])
async def test_a_step_of_a_body_in_a_thread_is_answered_when_the_runtime_breaks_at_that_moment(
    open_runtime: Open, late: bool
) -> None:
    """Nobody else ends its wait: its body would stay in its thread for ever."""
    ends: list[str] = []

    @step(capabilities=GPU)
    async def train() -> None:
        await anyio.sleep_forever()

    def body(task: TaskContext) -> None:
        try:
            task.step_blocking(train)
        except RuntimeClosed as error:
            ends.append(str(error))
            raise

    runtime = open_runtime(workers=(Worker("thread", engine="thread"), ONE[1]), drain_deadline=0.0)
    with anyio.fail_after(300), pytest.raises(RuntimeClosed):
        async with runtime:
            host = runtime._services.host
            tell = host.tell

            def breaks(message: Any) -> None:
                broken = ArithmeticError("a bug of its own")
                if late and type(message) is RunStep:
                    runtime._life.broke(broken)
                tell(message)
                if not late and type(message) is RunStep:
                    runtime._life.broke(broken)

            host.tell = breaks
            job = await submitted(runtime, body)
            await job.wait()
    await until(lambda: ends)
    assert len(ends) == 1
    assert "a bug of its own" in ends[0]


@pytest.mark.parametrize("kept", [True, False])
async def test_a_body_in_a_process_persists_the_end_before_it_asks_for_its_slot(kept: bool) -> None:
    done: list[str] = []

    class Proxy:
        given_up = 0

        @staticmethod
        async def answer_on_loop(what: str, _: str, payload: bytes = b"", gave_up: Any = None) -> bytes:
            done.append(what)
            return msgspec.json.encode(END)

        @staticmethod
        def tell(what: str, number: str, _: bytes) -> None:
            done.append(f"told {what} {number}")

    async def settle(end: StepRunEnd) -> Any:
        done.append("kept" if kept else "refused")
        if not kept:
            raise AttemptOver("this attempt has ended")
        return end.value

    loop = SimpleNamespace(runners=SimpleNamespace(gave_up_here=None))
    flow = FlowProxy(cast("Any", Proxy), FlowFacts(1, 0, 0, 0.0), lambda: cast("Any", loop))
    if kept:
        assert await flow.run_step(7, RUN, anyio.Event, settle) == 7
        assert done == ["run", "kept", "regain"]
        return
    with pytest.raises(AttemptOver):
        await flow.run_step(7, RUN, anyio.Event, settle)
    assert done == ["run", "refused", "told regain 1"]
    assert flow.lacks_slot(7)


async def test_a_body_in_a_process_gets_the_end_of_its_step_before_its_slot() -> None:
    done: list[str] = []

    class Flows:
        @staticmethod
        async def run_step(token: int, run: StepRun, func: None, settle: Any, lending: Any, *, gave_up: Any) -> None:
            assert (token, run.number, func) == (7, 1, None)
            await settle(END)
            done.append("slot")

    class Engine:
        park = None

        @staticmethod
        def answer(answer: RequestAnswer) -> None:
            assert msgspec.json.decode(answer.payload, type=StepRunEnd) == END
            done.append("end")

    nothing = cast("Any", None)
    requests = WorkerRequests(nothing, nothing, nothing, nothing, cast("Any", Engine), flows=cast("Any", Flows))
    async with anyio.create_task_group() as group:
        group.start_soon(requests._run_step, 7, BodyRequest(7, 1, "run", "s", msgspec.json.encode(RUN)))
        await anyio.wait_all_tasks_blocked()
        assert done == ["end"]
        assert await requests._run_step(7, BodyRequest(7, 2, "regain", "1")) == b""
        assert done == ["end", "slot"]
    assert await requests._run_step(7, BodyRequest(7, 3, "regain", "1")) == b""  # its wait was dropped


def test_what_cannot_run_there_is_refused_where_it_is_declared() -> None:
    async def flows() -> None: ...

    def plain() -> None: ...

    for what, text in (
        (lambda: step(engine="process")(plain), "'test_what_cannot_run_there_is_refused_where_it_is_declared"),
        (lambda: step(name="x", engine="ray")(lambda: None), "Define it at the top level of a module"),
        (
            lambda: step(engine="process")(flows),
            "is an async function, which runs on loop or ray, and not on 'process'",
        ),
        (lambda: step(engine="loop")(plain), "is a plain function, which runs on thread or process or ray, and not on"),
        (lambda: step(engine="command")(plain), "not on 'command'"),
        (lambda: step(capabilities=[" "])(plain), "a capability of a step is empty"),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            what()
    with pytest.raises(TypeError, match="capabilities is a set of names, not str"):
        step(capabilities="gpu")(plain)
    with pytest.raises(TypeError, match="or run it in a process"):
        step(engine="thread", timeout=1)(plain)
