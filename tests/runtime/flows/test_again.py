"""`task.again`: the flow begins anew with other arguments and an empty history, as one durable step."""

from __future__ import annotations

import random
import sqlite3
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.forks import Forks
from tests.runtime.handles.test_jobs import audited
from tests.waiting import until

from callboard import Hook, JobHandle, Retry, Runtime, Task, TaskContext, VirtualClock, Worker, Workstream, step

pytestmark = pytest.mark.anyio
Open = Callable[..., Runtime]
SOON = Retry(max_attempts=2, base_delay=0.0, jitter=0.0)
ran: list[Any] = []
"""What the functions of steps have done, in order."""


@pytest.fixture(autouse=True)
def _anew() -> None:
    ran.clear()


@step
async def work(n: int) -> int:
    ran.append(n)
    return n


async def submitted(runtime: Runtime, body: Any, job_id: str | None = None, **options: Any) -> JobHandle:
    return await runtime.submit(Workstream("flow", tasks=[Task("t", run=body, **options)]), id=job_id)


async def result(runtime: Runtime, body: Any, **options: Any) -> Any:
    return (await (await submitted(runtime, body, **options)).wait()).raise_for_state().results["t"]


def kept(runtime: Runtime, job: JobHandle) -> tuple[list[str], int]:
    """The steps that the journal keeps of the task's flow, and the number of its attempts."""
    reader, record = runtime._services.journal.reader, job.task("t").record
    return [row.label for row in reader.steps(record.flow)], len(reader.attempts(record.id))


async def test_each_round_has_its_arguments_and_an_empty_history(open_runtime: Open) -> None:
    seen: list[Any] = []

    async def body(task: TaskContext) -> Any:
        seen.append(task.args)
        n = task.args["n"]
        await work(0)  # the same call in each round
        await work(n)
        if n == 3:
            return "the last round's"
        return task.again(n=n + 1)

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        job = await submitted(runtime, "body", args={"n": 1, "more": True})
        assert (await job.wait()).results == {"t": "the last round's"}
        assert seen == [{"n": 1, "more": True}, {"n": 2}, {"n": 3}]
        assert ran == [0, 1, 0, 2, 0, 3]
        assert kept(runtime, job) == (["work", "work#2"], 1)
        assert job.task("t").record.rounds == 2


async def test_arguments_are_checked_when_they_are_given(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> list[str]:
        told: list[str] = []
        for wrong in (object(), float("nan"), {1: 2}, 2**70):
            try:
                task.again(x=wrong)
            except ValueError as error:
                told.append(str(error))
        mine: dict[str, list[int]] = {"list": [1]}
        if "list" not in task.args:
            try:
                return task.again(**mine)
            finally:
                mine["list"].append(2)  # they are copied
        return [*told, str(task.args)]

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        *told, args = await result(runtime, "body")
    assert all(text.startswith("argument 'x' of task.again cannot be kept: ") for text in told)
    assert len(told) == 4
    assert args == "{'list': [1]}"


async def test_an_argument_has_a_name_and_any_name(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> Any:
        if task.args:
            return task.args
        with pytest.raises(TypeError, match=r"takes each new argument by its name, not \{'page': 2\}: write `return"):
            task.again({"page": 2})  # type: ignore[arg-type]
        return task.again(self=1, given=2, args=3)

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        assert await result(runtime, "body") == {"self": 1, "given": 2, "args": 3}


async def test_a_secret_cannot_become_an_argument(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> Any:
        return task.again(key=task.secrets["KEY"])

    async with open_runtime(secrets={"KEY": "hush-hush-1"}) as runtime:
        runtime.task(name="body")(body)
        outcome = await (await submitted(runtime, "body", secrets=["KEY"])).wait()
    assert "the value of a secret" in str(outcome.error)
    assert "hush" not in str(outcome.error)


async def test_again_that_is_not_returned_fails_the_task_for_good(open_runtime: Open) -> None:
    async def forgets(task: TaskContext) -> str:
        task.again(n=2)
        return "done"

    async def in_a_list(task: TaskContext) -> Any:
        return [task.again(n=2)]

    async with open_runtime() as runtime:
        runtime.task(name="forgets")(forgets)
        runtime.task(name="in_a_list")(in_a_list)
        for body in ("forgets", "in_a_list"):
            job = await submitted(runtime, body, retry=SOON)
            outcome = await job.wait()
            assert "write `return task.again(...)`" in str(outcome.error)
            assert job.task("t").record.failed_attempts == 1


async def test_again_in_a_step_and_in_a_hook_is_refused(open_runtime: Open) -> None:
    refusals: list[str] = []

    async def body(task: TaskContext) -> None:
        async def inner() -> None:
            task.again(n=2)

        await task.step(inner)

    def hook(task: TaskContext) -> None:
        try:
            task.again(n=2)
        except RuntimeError as error:
            refusals.append(str(error))

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        runtime.task(name="hook")(hook)
        outcome = await (await submitted(runtime, "body", on_failed=[Hook(run="hook")])).wait()
    assert "task.again was called inside step 'inner'" in str(outcome.error)
    assert refusals == ["'t' cannot begin anew here: the body of a task can, by `return task.again(...)`"]


async def test_steps_in_finally_belong_to_the_round_that_ends(open_runtime: Open) -> None:
    async def body(task: TaskContext) -> Any:
        n = task.args.get("n", 1)
        try:
            await work(n)
            if n < 3:
                return task.again(n=n + 1)
        finally:
            await work(-n)
        return n

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        assert await result(runtime, "body") == 3
    assert ran == [1, -1, 2, -2, 3, -3]


async def test_counters_and_the_checkpoint_begin_anew(open_runtime: Open) -> None:
    failed: set[int] = set()
    seen: list[Any] = []

    async def body(task: TaskContext) -> Any:
        n = task.args.get("n", 1)
        seen.append((n, task.saved, task.details))
        await work(n)
        if n not in failed:
            failed.add(n)
            task.checkpoint(n)
            task.heartbeat(n)
            raise RuntimeError("each round fails once")
        return task.again(n=n + 1) if n < 5 else n

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        job = await submitted(runtime, "body", retry=SOON)
        assert (await job.wait()).raise_for_state().results == {"t": 5}
    assert ran == [1, 2, 3, 4, 5]
    assert seen == [row for n in range(1, 6) for row in ((n, None, None), (n, n, n))]


async def test_the_limit_over_all_attempts_begins_anew() -> None:
    clock = VirtualClock()

    async def body(task: TaskContext) -> Any:
        n = task.args.get("n", 1)
        clock.advance(40)
        return task.again(n=n + 1) if n < 5 else n

    async with Runtime(clock=clock) as runtime:
        assert await result(runtime, body, total_timeout="60s", timeout="50s") == 5


async def test_children_and_approvals_of_a_round_are_its_own(open_runtime: Open) -> None:
    def part(task: TaskContext) -> int:
        ran.append(task.args["n"])
        return int(task.args["n"])

    async def body(task: TaskContext) -> Any:
        n = task.args.get("n", 1)
        child = await task.submit(Workstream("part", tasks=[Task("p", run="part", args={"n": n})]), name="part")
        assert (await child.wait()).results == {"p": n}
        decision = (await task.approval("go"))[0]
        ran.append(f"{decision.by} approved {n}")
        return task.again(n=n + 1) if n < 3 else n

    async with open_runtime() as runtime:
        runtime.task(name="part")(part)
        runtime.task(name="body")(body)
        job = await submitted(runtime, "body", "mine")
        for n in range(1, 4):
            with anyio.fail_after(300):
                while not job.approvals():
                    await anyio.sleep(0.001)
            await job.task("t").approve(by=f"person {n}")
            with anyio.fail_after(300):
                while f"person {n} approved {n}" not in ran:
                    await anyio.sleep(0.001)
        assert (await job.wait()).results == {"t": 3}
    assert [one for one in ran if isinstance(one, int)] == [1, 2, 3]


async def test_a_pause_and_a_drain_hold_the_next_round(tmp_path: Path) -> None:
    go, at = anyio.Event(), 0

    async def body(task: TaskContext) -> Any:
        nonlocal at
        at = n = task.args.get("n", 1)
        await work(n)
        if n == 2:
            await go.wait()
        return task.again(n=n + 1) if n < 4 else n

    async with Runtime(tmp_path / "j.db") as runtime:
        runtime.task(name="body")(body)
        job = await submitted(runtime, "body", "mine")
        await until(lambda: at == 2)
        await job.pause()
        go.set()
        await until(lambda: job.task("t").record.state == "queued")
        assert (ran, job.task("t").record.rounds) == ([1, 2], 2)
    async with Runtime(tmp_path / "j.db") as runtime:
        runtime.task(name="body")(body)
        job = await runtime.job("mine")
        await job.resume()
        assert (await job.wait()).results == {"t": 4}
    assert ran == [1, 2, 3, 4]
    assert audited(tmp_path / "j.db") == []


async def test_a_further_run_goes_on_in_the_same_round(open_runtime: Open) -> None:
    broken = True

    async def body(task: TaskContext) -> Any:
        n = task.args.get("n", 1)
        if n == 3 and broken:
            raise RuntimeError("not yet")
        await work(n)
        return task.again(n=n + 1) if n < 4 else n

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        job = await submitted(runtime, "body")
        assert (await job.wait()).state == "failed"
        broken = False
        job = await job.retry()
        assert (await job.wait()).raise_for_state().results == {"t": 4}
        assert ran == [1, 2, 3, 4]
        assert job.task("t").record.rounds == 3


async def test_a_late_step_of_a_round_that_has_ended_is_refused(open_runtime: Open) -> None:
    release, told = anyio.Event(), []
    left: list[Any] = []

    async def body(task: TaskContext) -> Any:
        n = task.args.get("n", 1)
        if n == 1:
            left.append(task)
            return task.again(n=2)
        try:
            await left[0].step(work, 99)
        except Exception as error:
            told.append(type(error).__name__)
        release.set()
        await work(n)
        return n

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        job = await submitted(runtime, "body")
        assert (await job.wait()).results == {"t": 2}
        assert kept(runtime, job)[0] == ["work"]
    assert told == ["AttemptOver"]
    assert ran == [2]


@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # one loop: it takes a while
async def test_nothing_grows_over_thousands_of_rounds() -> None:
    measured: dict[int, int] = {}

    async def body(task: TaskContext) -> Any:
        n = task.args.get("n", 0)
        await work(n)
        ran.clear()
        if n in (500, 1_999):
            measured[n] = tracemalloc.get_traced_memory()[0]
        return task.again(n=n + 1) if n < 1_999 else n

    async with Runtime() as runtime:
        tracemalloc.start()
        try:
            job = await submitted(runtime, body)
            assert (await job.wait()).results == {"t": 1_999}
        finally:
            tracemalloc.stop()
        assert kept(runtime, job) == (["work"], 1)
        told = list(runtime._services.journal.reader.transitions(entity_id=job.task("t").record.id))
        assert len(told) < 10
    assert measured[1_999] - measured[500] < 37_500, measured  # 25 bytes a round


async def test_nor_does_the_file(tmp_path: Path) -> None:
    async def body(task: TaskContext) -> Any:
        n = task.args.get("n", 0)
        await task.gather(*(work.bind(part) for part in range(5)))
        return task.again(n=n + 1) if n < 100 else n

    async with Runtime(tmp_path / "j.db", workers=[Worker("one", engine="loop", capacity=1)]) as runtime:
        runtime.task(name="body")(body)
        assert await result(runtime, "body") == 100
    with closing(sqlite3.connect(tmp_path / "j.db")) as file, file:
        counts = [
            file.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("step_records", "attempt_records")
        ]
        assert counts == [5, 1]
        assert file.execute("SELECT round, attempt_count FROM tasks").fetchall() == [(101, 1)]
    assert audited(tmp_path / "j.db") == []


# -- death -------------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from pathlib import Path
import anyio
from callboard import Runtime, Task, TaskContext, Workstream, step
folder = Path(sys.argv[1])

def note(what):
    with open(folder / "ran", "a") as file:
        file.write(what + "\\n")

@step
async def work(n, part):
    note(f"{n}.{part}")
    return n

async def body(task: TaskContext):
    n = task.args.get("n", 0)
    note(f"round {n}")
    for part in range(3):
        assert await work(n, part) == n
    return task.again(n=n + 1) if n < 150 else n

async def main():
    async with Runtime(folder / "state.db") as runtime:
        runtime.task(name="body")(body)
        job = await runtime.submit(Workstream("flow", tasks=[Task("t", run="body", max_losses=50)]), id="one")
        note("began")
        print((await job.wait()).results["t"])

anyio.run(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_killed_at_random_instants_no_round_is_lost_or_begins_twice(loop: str, tmp_path: Path) -> None:
    program, chance = tmp_path / "program.py", random.Random(7)
    program.write_text(PROGRAM.replace("anyio.run(main)", f"anyio.run(main, backend={loop!r})"))
    kills = 0
    log = tmp_path / "ran"
    with Forks(tmp_path) as forks:
        for _ in range(8):
            before = log.read_text().count("began") if log.exists() else 0
            running = forks.start(program, tmp_path)
            while running.poll() is None and (not log.exists() or log.read_text().count("began") == before):
                time.sleep(0.01)
            time.sleep(chance.random() * 0.05)
            running.kill()
            kills += running.wait() == -9
            assert "Traceback" not in running.stderr, running.stderr
        done = forks.run(program, tmp_path)
    assert done.stdout == "150\n", done.stderr
    steps = [line for line in log.read_text().splitlines() if "." in line]
    assert kills
    assert [*dict.fromkeys(steps)] == [f"{n}.{part}" for n in range(151) for part in range(3)]  # none is missing
    repeated = sum(Counter(steps).values()) - len(set(steps))
    assert repeated <= kills  # only the one that ran when the process was killed
    assert audited(tmp_path / "state.db") == []
