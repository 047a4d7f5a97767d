"""Child jobs, reserved slots and further runs, as an application uses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from callboard import Defaults, Outcome, Retry, Runtime, Task, TaskContext, Tool, Worker, Workstream
from callboard.errors import InvalidTransitionError, JobExists, JobFailed, Permanent
from callboard.machines.audit.auditor import AuditFinding, Auditor
from callboard.runtime.cli.check import check
from callboard.runtime.cli.status import status
from callboard.runtime.journal.sqlite.reader import SqliteReader

pytestmark = pytest.mark.anyio

LOOP = (Worker("loop", engine="loop", capacity=1), Worker("threads", engine="thread", capacity=1))
calls: list[str] = []
broken: set[str] = set()


@pytest.fixture(autouse=True)
def afresh() -> None:
    calls.clear()
    broken.clear()


async def leaf(task: TaskContext) -> str:
    calls.append(task.task)
    if task.task in broken:
        raise ValueError("no")
    return f"{task.task} of {task.job_id}"


def plain_leaf(task: TaskContext) -> str:
    return f"{task.task} of {task.job_id}"


async def sleeps() -> None:
    await anyio.sleep_forever()


LEAVES = Workstream("leaves", tasks=[Task("x", run=leaf), Task("y", run=leaf, depends_on=["x"])])


async def spawns(task: TaskContext) -> Any:
    child = await task.submit(LEAVES, name="leaves")
    calls.append(f"attempt {task.attempt}")
    outcome = (await child.wait()).raise_for_state()
    if task.attempt < task.args.get("attempts", 1):
        raise ValueError("again")
    return [child.id, outcome.results]


def plainly_spawns(task: TaskContext) -> Any:
    child = task.submit_blocking(Workstream("leaf", tasks=[Task("x", run=plain_leaf)]), name="leaf")
    return child.wait_blocking().results["x"]


async def spawns_two(task: TaskContext) -> int:
    done: list[Outcome] = []

    async def one(name: str) -> None:
        child = await task.submit(LEAVES, name=name)
        done.append(await child.wait())

    async with anyio.create_task_group() as group:
        group.start_soon(one, "a")
        group.start_soon(one, "b")
    return sum(outcome.ok for outcome in done)


async def spawns_for_ever(task: TaskContext) -> None:
    child = await task.submit(Workstream("w", tasks=[Task("s", run=sleeps)]), name="s")
    await child.wait()


def plainly_spawns_for_ever(task: TaskContext) -> None:
    child = task.submit_blocking(Workstream("w", tasks=[Task("s", run=sleeps)]), name="s")
    child.wait_blocking()


held: list[anyio.Event] = []


async def waits_if_held() -> None:
    if held:
        held[0].set()
        await anyio.sleep_forever()


async def spawns_a_waiter(task: TaskContext) -> None:
    child = await task.submit(Workstream("w", tasks=[Task("s", run=waits_if_held)]), name="w")
    (await child.wait()).raise_for_state()


async def changes(task: TaskContext) -> None:
    await task.submit(LEAVES, name="one")
    with pytest.raises(JobExists, match="with another workstream"):
        await task.submit(Workstream("other", tasks=[Task("x", run=leaf)]), name="one")
    with pytest.raises(TypeError, match="submit takes a Workstream, not 'leaves'"):
        await task.submit("leaves", name="two")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot be the name of a child job: it holds '/'"):
        await task.submit(LEAVES, name="a/b")


def audited(path: Path) -> list[AuditFinding]:
    import msgspec

    from callboard.machines import TransitionEvent
    from callboard.runtime.journal.jsonl import log_line

    auditor = Auditor()
    reader = SqliteReader(path)
    for event in reader.transitions():
        auditor.take(msgspec.convert(log_line(event), TransitionEvent, from_attributes=True))
    reader.close()
    return auditor.finish()


def flow(run: Any, **more: Any) -> Workstream:
    return Workstream("flow", tasks=[Task("t", run=run, **more)])


async def test_a_child_runs_in_the_only_slot_while_its_parent_waits(tmp_path: Path) -> None:
    async with Runtime(tmp_path / "j.db", workers=LOOP) as runtime:
        job = await runtime.submit(flow(spawns), id="job")
        outcome = await job.wait()
        assert outcome.results["t"] == ["job/t/leaves", {"x": "x of job/t/leaves", "y": "y of job/t/leaves"}]
        (child,) = await job.children()
        assert (child.id, child.parent, job.parent, child.state) == ("job/t/leaves", "job", None, "completed")
        assert (await runtime.job("job/t/leaves")).state == "completed"
    assert audited(tmp_path / "j.db") == []


async def test_a_retry_finds_the_same_child(tmp_path: Path) -> None:
    async with Runtime(tmp_path / "j.db", workers=LOOP) as runtime:
        retry = Retry(max_attempts=3, base_delay=0)
        job = await runtime.submit(flow(spawns, retry=retry, args={"attempts": 3}), id="job")
        assert (await job.wait()).ok
        assert calls == ["attempt 1", "x", "y", "attempt 2", "attempt 3"]
        assert len(await job.children()) == 1
    assert audited(tmp_path / "j.db") == []


async def test_a_child_that_failed_goes_on_in_its_next_run() -> None:
    async with Runtime(workers=LOOP) as runtime:
        broken.add("y")
        job = await runtime.submit(flow(spawns), id="job")
        assert (await job.wait()).state == "failed"
        broken.clear()
        calls.clear()
        again = await job.retry()
        assert (await again.wait()).ok
        assert calls == ["attempt 1", "y"]
        assert (await job.wait()).state == "failed"  # this handle stays that of its own run


def finds_a_bad_crate() -> None:
    raise ValueError("no such crate") from KeyError("the reason of it")


BAD_CRATE = Workstream("leaf", tasks=[Task("x", run=finds_a_bad_crate, retry=Retry(max_attempts=1))])


async def waits_for_a_bad_crate(task: TaskContext) -> None:
    child = await task.submit(BAD_CRATE, name="leaf")
    (await child.wait()).raise_for_state()


def blocks_for_a_bad_crate(task: TaskContext) -> None:
    task.submit_blocking(BAD_CRATE, name="leaf").wait_blocking().raise_for_state()


async def waits_for_who_waits_for_it(task: TaskContext) -> None:
    run = waits_for_a_bad_crate
    child = await task.submit(Workstream("mid", tasks=[Task("m", run=run, retry=Retry(max_attempts=1))]), name="mid")
    (await child.wait()).raise_for_state()


@pytest.mark.parametrize(
    ("run", "engine"),
    [
        (waits_for_a_bad_crate, None), (blocks_for_a_bad_crate, "thread"),
        (blocks_for_a_bad_crate, "process"), (waits_for_who_waits_for_it, None),
    ],
)  # fmt: skip
async def test_what_a_child_failed_by_is_in_the_traceback_of_its_parent(
    run: Any, engine: str | None, tmp_path: Path
) -> None:
    workers = [*LOOP, Worker("processes", engine="process")]
    async with Runtime(tmp_path / "j.db", workers=workers) as runtime:
        task = Task("t", run=run, engine=engine, retry=Retry(max_attempts=1))
        job = await runtime.submit(Workstream("w", tasks=[task]), id="job")
        outcome = await job.wait()
        (attempt,) = await job.attempts("t")
    for told in (outcome.tracebacks["t"], str(attempt.traceback)):
        assert "in finds_a_bad_crate" in told
        assert "KeyError: 'the reason of it'" in told
        assert "direct cause of the following exception" in told
    # its text has the place in the parent's own body, and not the place in the child's
    assert str(outcome.tasks["t"].last_error).endswith(f" in {run.__name__})")


async def gives_up(task: TaskContext) -> None:
    calls.append(f"gives up in {task.job_id}")
    raise Permanent("it will never be")


async def spawns_what_gives_up(task: TaskContext) -> None:
    child = await task.submit(Workstream("w", tasks=[Task("s", run=gives_up)]), name="w")
    (await child.wait()).raise_for_state()


@pytest.mark.parametrize("by_run", [False, True])
async def test_a_child_that_a_person_cancelled_is_not_begun_again_by_its_parent(by_run: bool) -> None:
    held[:] = [anyio.Event()]
    async with Runtime(workers=LOOP) as runtime:
        tried = Retry(max_attempts=3, base_delay=0)
        spec = flow(spawns_a_waiter, retry=None if by_run else tried)
        job = await runtime.submit(msgspec.structs.replace(spec, retry=tried if by_run else None), id="job")
        await held[0].wait()
        await (await runtime.job("job/t/w")).cancel("not this one", by="ana")
        outcome = await job.wait()
        assert (outcome.state, outcome.tasks["t"].failed_attempts) == ("failed", 1 if by_run else 3)
        assert job.record.runs == (3 if by_run else 1)  # the body is told each time that it is cancelled
        assert (await runtime.job("job/t/w")).record.runs == 1
        held.clear()
        assert (await (await job.retry()).wait()).ok  # a person retries it
        assert (await runtime.job("job/t/w")).record.runs == 2


async def test_a_child_that_failed_for_good_is_not_begun_again_by_its_parent() -> None:
    async with Runtime(workers=LOOP) as runtime:
        job = await runtime.submit(flow(spawns_what_gives_up, retry=Retry(max_attempts=3, base_delay=0)), id="job")
        assert (await job.wait()).tasks["t"].failed_attempts == 3
        assert calls == ["gives up in job/t/w"]
        await (await job.retry()).wait()
        assert calls == ["gives up in job/t/w"] * 2


async def stumbles(task: TaskContext) -> int:
    calls.append(f"{task.job_id}/{task.task} {task.attempt}")
    if task.attempt < 3:
        raise ValueError("not yet")
    return task.attempt


async def grandparent(task: TaskContext) -> Any:
    inner = [Task("one", run=stumbles, tool="scale"), Task("two", run=stumbles, depends_on=["one"])]
    return await spawned(task, Workstream("grandchild", tasks=inner))


async def parents(task: TaskContext) -> Any:
    inner = [Task("spawn", run=grandparent), Task("own", run=stumbles, tool="press", optional=True)]
    own = {"press": Tool(retry=Retry(max_attempts=2, base_delay=0))}
    return await spawned(task, Workstream("child", tasks=inner, tools=own, defaults=Defaults(timeout="7s")))


async def spawned(task: TaskContext, workstream: Workstream) -> Any:
    child = await task.submit(workstream, name="c")
    outcome = (await child.wait()).raise_for_state()
    return {name: [one.attempt, str(one.state)] for name, one in outcome.tasks.items()}


def soon(_: int) -> float:
    return 0.0


@pytest.mark.parametrize("local", [False, True])
async def test_a_child_has_what_its_parent_says_of_tasks_and_tools_unless_it_says_otherwise(local: bool) -> None:
    again = Retry(max_attempts=5, wait=(lambda n: 0.0) if local else soon)
    tools = {"scale": Tool(retry=again), "press": Tool(retry=again, timeout=3)}
    spec = Workstream(
        "w", tasks=[Task("spawn", run=parents)], tools=tools, defaults=Defaults(retry=again, timeout="9s")
    )
    async with Runtime() as runtime:
        job = await runtime.submit(spec, id="j")
        outcome = (await job.wait()).raise_for_state()
        assert outcome.results["spawn"] == {"spawn": [1, "completed"], "own": [2, "failed"]}  # which said two
        assert sum("j/spawn/c/spawn/c" in call for call in calls) == 6  # three each
        kept = msgspec.json.decode(
            runtime.journal.reader.spec((await runtime.job("j/spawn/c")).record.stream) or b"", type=Workstream
        )
        assert (kept.defaults.timeout, kept.tools["press"].timeout, kept.tools["press"].breaker) == ("7s", 3, None)
        assert not runtime._services.bodies._holds  # a function of the parent is kept until the parent has ended
    assert len(calls) == 8


async def test_a_child_is_known_again_by_what_was_submitted_whatever_its_parent_says_now(tmp_path: Path) -> None:
    """Otherwise a journal of an older version, whose children have inherited no settings, could not be continued."""
    path = tmp_path / "state.db"
    async with Runtime(path) as runtime:
        await (await runtime.submit(flow(spawns), id="j")).wait()
        first = (await runtime.job("j/t/leaves")).record.fingerprint
        spec = msgspec.structs.replace(flow(spawns), defaults=Defaults(retry=Retry(max_attempts=2)))
        await (await runtime.submit(spec, id="k")).wait()
        assert (await runtime.job("k/t/leaves")).record.fingerprint == first


async def test_a_plain_function_submits_and_waits_in_its_thread(tmp_path: Path) -> None:
    async with Runtime(tmp_path / "j.db", workers=LOOP) as runtime:
        job = await runtime.submit(flow(plainly_spawns), id="job")
        assert (await job.wait()).results == {"t": "x of job/t/leaf"}
    assert audited(tmp_path / "j.db") == []


async def test_two_children_at_once_with_one_slot() -> None:
    async with Runtime(workers=LOOP) as runtime:
        job = await runtime.submit(flow(spawns_two))
        assert (await job.wait()).results == {"t": 2}
        assert len(calls) == 4


@pytest.mark.parametrize("run", [spawns_for_ever, plainly_spawns_for_ever])
async def test_a_cancel_takes_a_waiting_body_and_its_child_along(run: Any) -> None:
    async with Runtime(workers=LOOP) as runtime:
        events = runtime.events()
        job = await runtime.submit(flow(run), id="job")
        async for event in events:
            if event.entity_id == "job/t/s@1/s" and event.to_state == "running":  # type: ignore[union-attr]
                break
        await job.cancel()
        assert (await job.wait()).state == "cancelled"
        assert (await runtime.job("job/t/s")).state == "cancelled"


async def test_a_name_stands_for_one_workstream() -> None:
    async with Runtime(workers=LOOP) as runtime:
        (await (await runtime.submit(flow(changes))).wait()).raise_for_state()


async def test_a_hook_submits_nothing() -> None:
    context = TaskContext(task="t", token=1)
    with pytest.raises(RuntimeError, match="'t' cannot submit jobs here"):
        await context.submit(LEAVES, name="x")


# -- further runs ------------------------------------------------------------------------------------------------------


async def test_a_failed_job_runs_again_also_after_a_restart(tmp_path: Path) -> None:
    broken.add("y")
    async with Runtime(tmp_path / "j.db") as runtime:
        job = await runtime.submit(LEAVES, id="job")
        with pytest.raises(JobFailed):
            (await job.wait()).raise_for_state()
    broken.clear()
    calls.clear()
    async with Runtime(tmp_path / "j.db") as runtime:
        job = await runtime.job("job")
        again = await job.retry(reason="mended", by="ana", request_id="r1")
        outcome = await again.wait()
        assert (outcome.results, calls) == ({"x": "x of job", "y": "y of job"}, ["y"])
        assert (await job.retry(reason="mended", by="ana", request_id="r1")).state == "completed"
        assert calls == ["y"]  # the same request again is the same run
        with pytest.raises(InvalidTransitionError, match="'retry' is not possible in state 'completed'"):
            await again.retry()
        assert (await (await again.retry("x")).wait()).ok
        assert calls == ["y", "x", "y"]
        with pytest.raises(LookupError, match="there is no task 'z'"):
            await again.retry("z")
    assert audited(tmp_path / "j.db") == []


async def test_skip_and_resume() -> None:
    async with Runtime() as runtime:
        broken.add("x")
        job = await runtime.submit(LEAVES, id="job")
        await job.wait()
        again = await job.task("x").skip("done by hand", by="ana")
        assert (await again.wait()).results == {"y": "y of job"}
        assert again.task("x").record.reason == "done by hand"
        other = await runtime.submit(flow(sleeps), id="other")
        await other.cancel()
        assert (await other.wait()).state == "cancelled"
        resumed = await other.resume()
        with pytest.raises(InvalidTransitionError):
            await resumed.retry()
        await resumed.cancel()


async def test_a_job_waits_for_its_slots_and_says_so() -> None:
    async with Runtime(workers=(Worker("loop", engine="loop", capacity=2),)) as runtime:
        one = await runtime.submit(Workstream("one", worker_count=2, tasks=[Task("s", run=sleeps)]))
        two = await runtime.submit(Workstream("two", worker_count=2, tasks=[Task("x", run=leaf)]))
        assert (two.state, two.record.reason) == ("pending", "waits for 2 slots of the engine 'loop'")
        await one.cancel()
        assert (await two.wait()).ok
        three = await runtime.submit(Workstream("three", worker_count=3, tasks=[Task("x", run=leaf)]), id="three")
        outcome = await three.wait()
        assert (outcome.state, outcome.error) == ("failed", "it wants 3 slots of the engine 'loop', and there are 2")
        assert (await runtime.job("three")).tasks() == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_check_finds_nothing_in_a_journal_with_children_and_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "j.db"
    broken.add("y")
    async with Runtime(path) as runtime:
        job = await runtime.submit(flow(spawns), id="job")
        await job.wait()
        broken.clear()
        again = await job.retry()
        await again.wait()
        await (await again.retry("t")).wait()
    check(path)
    assert capsys.readouterr().out.endswith(": consistent\n")
    status("job", journal=path)
    output = capsys.readouterr().out
    assert "workstream job@1: failed: task 't' failed" in output
    assert "workstream job@3: completed\n" in output
    assert "child job job/t/leaves: completed\n" in output


async def test_a_killed_runtime_goes_on_with_parents_and_children(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    with anyio.CancelScope() as scope:
        async with Runtime(path, workers=LOOP, drain_deadline=0) as runtime:
            held.append(anyio.Event())
            job = await runtime.submit(flow(spawns_a_waiter), id="job")
            await held[0].wait()
            scope.cancel()
            await job.wait()
    held.clear()
    async with Runtime(path, workers=LOOP) as runtime:
        (job,) = [job for job in runtime.recovered if job.id == "job"]
        assert {one.id for one in runtime.recovered} == {"job", "job/t/w"}
        assert (await job.wait()).ok
    assert audited(path) == []


async def step() -> None:
    held[0].set()
    await held[1].wait()


async def spawns_steps(task: TaskContext) -> bool:
    calls.append("parent")
    steps = [Task("x", run=step), Task("y", run=leaf, depends_on=["x"])]
    child = await task.submit(Workstream("steps", tasks=steps[: task.args["steps"]]), name="steps")
    return (await child.wait()).ok


@pytest.mark.parametrize("steps", [1, 2])
async def test_who_leaves_waits_for_what_can_still_end_and_for_nothing_else(tmp_path: Path, steps: int) -> None:
    path = tmp_path / "j.db"
    held[:] = [anyio.Event(), anyio.Event()]
    spec = Workstream("w", tasks=[Task("t", run=spawns_steps, args={"steps": steps})])
    with anyio.fail_after(300):
        async with Runtime(path, workers=LOOP) as runtime, anyio.create_task_group() as group:
            await runtime.submit(spec, id="job")
            await held[0].wait()
            await group.start(runtime.drain, 1000)
            held[1].set()
    ended = steps == 1  # the second one is not started any more: its parent would wait for the whole deadline
    assert calls == ["parent"]
    with anyio.fail_after(300):
        async with Runtime(path, workers=LOOP) as runtime:
            assert ("job" in [one.id for one in runtime.recovered]) is not ended
            assert (await (await runtime.job("job")).wait()).results == {"t": True}
    held.clear()
    assert sorted(calls) == (["parent"] if ended else ["parent", "parent", "y"])
    assert audited(path) == []
