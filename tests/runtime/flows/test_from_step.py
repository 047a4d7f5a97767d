"""`job.retry(task, from_step=...)`: a step and those after it run again in the next run; those before it are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from tests.forks import Forks
from tests.runtime.flows.dying import DIES
from tests.runtime.handles.test_jobs import audited

from callboard import JobHandle, Runtime, Task, TaskContext, Worker, Workstream, step
from callboard.errors import InvalidTransitionError, RequestIdReused

pytestmark = pytest.mark.anyio
Open = Callable[..., Runtime]
ran: list[Any] = []
"""What the functions of steps and the bodies have done, in order."""
fails: set[Any] = set()


@pytest.fixture(autouse=True)
def _anew() -> None:
    ran.clear()
    fails.clear()


@step
async def work(n: Any) -> int:
    ran.append(n)
    if n in fails:
        raise ValueError(n)
    return len(ran)


async def asks(task: TaskContext) -> list[int]:
    del task
    return [await work(n) for n in "abc"]


async def follows(task: TaskContext) -> str:
    del task
    ran.append("follows")
    return "followed"


def graph(body: Any = asks, *more: Task) -> Workstream:
    return Workstream("flow", tasks=[Task("t", run=body), *more])


async def kept(runtime: Runtime, job: JobHandle, task: str = "t") -> list[str]:
    return [row.label for row in await (await runtime.job(job.id)).steps(task)]


async def test_a_completed_task_runs_again_from_the_step_on_with_what_depends_on_it(open_runtime: Open) -> None:
    async with open_runtime() as runtime:
        job = await runtime.submit(graph(asks, Task("next", run=follows, depends_on=["t"]), Task("other", run=follows)))
        before = (await job.wait()).results["t"]
        ran.clear()
        again = await job.retry("t", from_step="work#2", by="ana", reason="b was wrong")
        outcome = await again.wait()
        assert ran == ["b", "c", "follows"]  # "other" does not depend on it
        assert outcome.results["t"] == [before[0], 1, 2]
        assert await kept(runtime, again) == ["work", "work#2", "work#3"]
        rows = runtime._services.journal.reader.transitions(entity_id=job.id)
        (begun,) = [row.metadata for row in rows if "after_run" in (row.metadata or {})]
        assert begun == {"after_run": 1, "reason": "b was wrong", "by": "ana", "from_step": "work#2"}


async def test_a_failed_task_too_and_its_later_runs_begin_where_that_one_ended(open_runtime: Open) -> None:
    fails.add("c")
    async with open_runtime() as runtime:
        job = await runtime.submit(graph())
        assert (await job.wait()).state == "failed"
        again = await job.task("t").retry(from_step="work#2")
        assert (await again.wait()).state == "failed"
        assert ran == ["a", "b", "c", "b", "c"]
        fails.clear()
        assert (await (await again.retry()).wait()).results["t"] == [1, 4, 6]


async def test_from_the_first_step_on_nothing_is_kept(open_runtime: Open) -> None:
    async with open_runtime() as runtime:
        job = await runtime.submit(graph())
        await job.wait()
        for label in ("work", "work#1"):
            ran.clear()
            job = await job.retry("t", from_step=label)
            assert (await job.wait()).results["t"] == [1, 2, 3]


async def test_a_task_that_an_earlier_run_completed_keeps_its_steps_and_its_round(open_runtime: Open) -> None:
    async def rounds(task: TaskContext) -> Any:
        n = task.args.get("n", 1)
        await task.publish("round", n)
        await work(f"{n}.1")
        await work(f"{n}.2")
        return n if n == 2 else task.again(n=n + 1)

    async with open_runtime() as runtime:
        runtime.task(name="rounds")(rounds)
        fails.add("z")
        job = await runtime.submit(graph("rounds", Task("z", run=zed)))
        await job.wait()
        fails.clear()
        job = await job.retry()  # "t" is carried over
        await job.wait()
        assert await job.published() == {"round": 2}
        ran.clear()
        job = await job.retry("t", from_step="work#2")
        assert (await job.wait()).results["t"] == 2
        assert ran == ["2.2"]


async def zed(task: TaskContext) -> None:
    del task
    await work("z")


async def test_what_it_does_not_keep_is_refused_with_what_it_keeps(open_runtime: Open) -> None:
    async with open_runtime() as runtime:
        job = await runtime.submit(graph(asks, Task("plain", run=follows)))
        await job.wait()
        with pytest.raises(
            LookupError, match=r"keeps no step 'wrok#2'; did you mean 'work#2'\? kept are: work, work#2, w"
        ):
            await job.retry("t", from_step="wrok#2")
        with pytest.raises(LookupError, match=r"task 'plain' of job '.*' keeps no step 'work'; it keeps none"):
            await job.retry("plain", from_step="work")
        with pytest.raises(LookupError, match="no task 'nobody'"):
            await job.retry("nobody", from_step="work")
        with pytest.raises(ValueError, match="name the task, too"):
            await job.retry(from_step="work")
        with pytest.raises(TypeError):
            await job.retry("t", from_step=3)  # type: ignore[arg-type]
        assert (await runtime.job(job.id)).record.runs == 1
        assert await kept(runtime, job) == ["work", "work#2", "work#3"]


async def test_a_job_that_has_not_ended_keeps_all_steps(open_runtime: Open) -> None:
    async def waits(task: TaskContext) -> Any:
        await work("a")
        return await task.receive("go")

    async with open_runtime() as runtime:
        runtime.task(name="waits")(waits)
        job = await runtime.submit(graph("waits"))
        async for event in job.events(kind="task", notices=False):
            if event.to_state == "running":
                break
        with pytest.raises(InvalidTransitionError, match="It has not ended"):
            await job.retry("t", from_step="work")
        await job.send("go", 7)
        assert (await job.wait()).results["t"] == 7
        assert ran == ["a"]


async def test_a_received_message_is_not_received_again(open_runtime: Open) -> None:
    async def takes(task: TaskContext) -> list[Any]:
        await work("a")
        return [await task.receive("n"), await task.receive("n")]

    async with open_runtime() as runtime:
        runtime.task(name="takes")(takes)
        job = await runtime.submit(graph("takes"))
        await job.send("n", 1)
        await job.send("n", 2)
        await job.wait()
        again = await job.retry("t", from_step="task.receive n#2")
        await again.send("n", 3)
        assert (await again.wait()).results["t"] == [1, 3]


async def test_the_version_that_the_flow_began_with_stays_while_steps_of_it_are_kept(open_runtime: Open) -> None:
    async def versioned(task: TaskContext) -> int:
        await work("a")
        await work("b")
        return await task.version("parcels", latest[0])

    latest = [1]
    async with open_runtime() as runtime:
        runtime.task(name="versioned")(versioned)
        job = await runtime.submit(graph("versioned"))
        await job.wait()
        latest[0] = 2
        with pytest.raises(LookupError, match="kept are: work, work#2"):
            await job.retry("t", from_step="task.version parcels")
        job = await job.retry("t", from_step="work#2")
        await job.wait()
        assert "task.version parcels" in await kept(runtime, job)
        assert ran == ["a", "b", "b"]


async def test_one_request_is_one_run_also_after_that_run_lacks_the_step(open_runtime: Open) -> None:
    async with open_runtime() as runtime:
        job = await runtime.submit(graph())
        await job.wait()
        again = await job.retry("t", from_step="work#3", request_id="r")
        fails.add("b")
        await again.wait()
        last = await again.retry("t", from_step="work#2")
        await last.wait()
        assert await kept(runtime, job) == ["work", "work#2"]  # "work#3" is kept no more
        same = await job.retry("t", from_step="work#3", request_id="r")
        assert same.record.runs == 3
        with pytest.raises(RequestIdReused):
            await job.retry("t", from_step="work#2", request_id="r")


async def test_the_history_of_the_dropped_steps_stays_and_the_journal_is_sound(tmp_path: Path) -> None:
    async with Runtime(tmp_path / "state.db") as runtime:
        job = await runtime.submit(graph())
        await job.wait()
        await (await job.retry("t", from_step="work#2")).wait()
        reader = runtime._services.journal.reader
        first = reader.workstreams(job.id)[0]
        assert [row.dropped for row in reader.all_steps(first)] == [False, True, True, False, False]
    assert audited(tmp_path / "state.db") == []


async def test_a_run_that_waits_for_its_slots_begins_from_the_step_after_a_restart_too(tmp_path: Path) -> None:
    async def hogs(task: TaskContext) -> None:
        await task.receive("never")

    async def opened(runtime: Runtime) -> Runtime:
        runtime.task(name="hogs")(hogs)
        return runtime

    one: dict[str, Any] = {"workers": [Worker("w", engine="loop", capacity=1)], "drain_deadline": 0}
    async with await opened(Runtime(tmp_path / "state.db", **one)) as runtime:
        job = await runtime.submit(Workstream("flow", tasks=[Task("t", run=asks)], worker_count=1), id="j")
        await job.wait()
        await runtime.submit(Workstream("hog", tasks=[Task("h", run="hogs")], worker_count=1), id="hog")
        again = await job.retry("t", from_step="work#3")
        assert again.state == "pending"
    async with await opened(Runtime(tmp_path / "state.db", **one)) as runtime:
        again = await runtime.job("j")
        assert again.state == "pending"
        await (await runtime.job("hog")).cancel(force=True)
        await again.wait()
    assert ran == ["a", "b", "c", "c"]


# -- death -------------------------------------------------------------------------------------------------------------

PROGRAM = (
    DIES
    + """
@step
async def work(n):
    with open(folder / "ran", "a") as file:
        file.write(f"{n}\\n")
    return n

async def body(task: TaskContext):
    return [await work(n) for n in range(4)]

async def main():
    async with Runtime(folder / "state.db") as runtime:
        runtime.task(name="body")(body)
        job = await runtime.submit(Workstream("flow", tasks=[Task("t", run="body", max_losses=500)]), id="one")
        await job.wait()
        if dies_at:
            counted(when)  # before a turn is written, or when what it caused is let out
        if dies_at >= 0:
            again = await job.retry("t", from_step="work#3", request_id="r")
            await again.wait()
            print(again.record.runs, [row.label for row in await again.steps("t")])

anyio.run(main)
"""
)


@pytest.mark.slow
@pytest.mark.parametrize(("loop", "when"), [("asyncio", "commit"), ("trio", "_do")])
def test_killed_at_any_instant_the_run_begins_once_and_only_the_later_steps_run_again(
    loop: str, when: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("anyio.run(main)", f"anyio.run(main, backend={loop!r})"))
    completed = tmp_path / "completed"
    completed.mkdir()
    with Forks(tmp_path) as forks:
        assert forks.run(program, completed, -1, when).returncode == 0
        for dies_at in range(1, 60):
            folder = copytree(completed, tmp_path / str(dies_at))
            killed = forks.run(program, folder, dies_at, when)
            assert killed.returncode in {-9, 0}, killed.stderr
            done = forks.run(program, folder, 0, when)
            assert done.stdout == "2 ['work', 'work#2', 'work#3', 'work#4']\n", done.stderr
            lines = (folder / "ran").read_text().split()
            assert lines[:4] == ["0", "1", "2", "3"]
            assert set(lines[4:]) == {"2", "3"}  # those before it never again
            assert len(lines) <= 7  # one that was cut runs again
            assert audited(folder / "state.db") == []
            if killed.returncode == 0:
                break
    assert dies_at > 3
