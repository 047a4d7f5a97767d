"""Durable steps of bodies in threads, worker processes and on Ray: the same rules everywhere, and no kill loses one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.programs import killed_after
from tests.runtime.engines.test_processes import environment
from tests.runtime.flows import bodies
from tests.runtime.handles.test_jobs import audited
from tests.waiting import until, wait_until

from callboard import JobHandle, Retry, Runtime, Task, Tool, VirtualClock, Worker, Workstream

pytestmark = pytest.mark.anyio
SOON = Retry(max_attempts=2, base_delay=0.0, jitter=0.0)
WORKERS = {
    "thread": Worker("one", engine="thread", capacity=1),
    "process": Worker("one", engine="process"),
    "ray": Worker("one", engine="ray", capacity=1),
}
ON_RAY = pytest.param("ray", marks=pytest.mark.cluster)
HERE = pytest.mark.parametrize("engine", ["thread", "process"])  # where Ray runs the code of worker processes
EVERYWHERE = pytest.mark.parametrize("engine", ["thread", "process", ON_RAY])
AWAY = pytest.mark.parametrize("engine", ["process", ON_RAY])


@pytest.fixture
def anyio_backend() -> str:
    """One loop: a process knows nothing of the runtime's."""
    return "asyncio"


@pytest.fixture(autouse=True)
def _cluster(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("cluster") is not None:
        request.getfixturevalue("ray_here")


@pytest.fixture
def place(tmp_path: Path, engine: str) -> Iterator[Path]:
    """The folder in which steps write, and its audited journal."""
    yield tmp_path
    assert audited(tmp_path / "j.db") == []


def opened(place: Path, engine: str, **more: Any) -> Runtime:
    return Runtime(place / "j.db", workers=(WORKERS[engine],), **more)


async def submitted(runtime: Runtime, body: Any, place: Path, engine: str, **more: Any) -> JobHandle:
    args = {"folder": str(place), **more.pop("args", {})}
    return await runtime.submit(
        Workstream("w", tasks=[Task("t", run=body, engine=engine, args=args, **more)]), id="job"
    )


async def result(runtime: Runtime, body: Any, place: Path, engine: str, **more: Any) -> Any:
    job = await submitted(runtime, body, place, engine, **more)
    return (await job.wait()).raise_for_state().results["t"]


def ran(place: Path) -> list[str]:
    """What the functions of steps have done, in order."""
    return (place / "ran").read_text().splitlines()


def rows(job: JobHandle, runtime: Runtime) -> list[Any]:
    return list(runtime._services.journal.reader.steps(job.task("t").record.flow))


# -- replay ------------------------------------------------------------------------------------------------------------


@EVERYWHERE
async def test_completed_steps_are_not_run_again_by_a_later_attempt(engine: str, place: Path) -> None:
    async with opened(place, engine) as runtime:
        assert await result(runtime, bodies.replays, place, engine, retry=SOON) == [2, 4, 1.5, 8]
    assert ran(place) == ["double 1", "double 2", "half 3", "pid", "same", "double 4"]


@pytest.mark.parametrize("engine", [ON_RAY])
async def test_neither_are_those_of_an_async_body_on_ray(engine: str, place: Path) -> None:
    async with opened(place, engine) as runtime:
        assert await result(runtime, bodies.replays_on_loop, place, engine, retry=SOON) == [2, 4, 1.5, 8]
    assert ran(place) == ["double 1", "double 2", "half 3", "pid", "same", "double 4"]


@HERE
async def test_a_body_without_a_context_takes_steps(engine: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(place, engine) as runtime:
        monkeypatch.setenv(bodies.PLACE, str(place))
        job = await runtime.submit(
            Workstream("w", tasks=[Task("t", run=bodies.without_a_context, engine=engine, retry=SOON)])
        )
        assert (await job.wait()).raise_for_state().results["t"] == [2, 4]
    assert ran(place) == ["double 1", "double 2"]


@AWAY
async def test_a_long_history_is_sent_in_parts(engine: str, place: Path) -> None:
    async with opened(place, engine) as runtime:
        assert await result(runtime, bodies.returns_much, place, engine, retry=SOON) == [700_000] * 5
    assert ran(place) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("engine", ["process"])
@pytest.mark.parametrize("asks", [True, False])
async def test_kept_steps_that_were_not_asked_for_are_told(engine: str, place: Path, asks: bool) -> None:
    async with opened(place, engine) as runtime:
        seen = runtime.events()
        await result(runtime, bodies.forgets, place, engine, retry=SOON, args={"asks": asks})
        with anyio.fail_after(300):
            told = await anext(one async for one in seen if getattr(one, "event", "") == "steps_not_asked")
        assert told.text.endswith("1 kept step: double#2" if asks else "2 kept steps: double, double#2")


# -- kills -------------------------------------------------------------------------------------------------------------


@AWAY
async def test_a_worker_that_is_killed_after_each_step_repeats_none(engine: str, place: Path) -> None:
    async with opened(place, engine) as runtime:
        assert await result(runtime, bodies.killed_after_each, place, engine, max_losses=9) == [0, 2, 4, 6]
    assert ran(place) == ["double 0", "double 1", "double 2", "double 3"]


@pytest.mark.parametrize("engine", [ON_RAY])
async def test_nor_does_an_actor_on_ray_that_is_killed(engine: str, place: Path) -> None:
    async with opened(place, engine) as runtime:
        assert await result(runtime, bodies.killed_after_each_on_loop, place, engine, max_losses=9) == [0, 2, 4, 6]
    assert ran(place) == ["double 0", "double 1", "double 2", "double 3"]


@AWAY
async def test_a_step_whose_process_dies_before_it_is_durable_runs_again(engine: str, place: Path) -> None:
    async with opened(place, engine) as runtime:
        assert await result(runtime, bodies.killed_inside, place, engine) == [2, 2, 6]
    assert ran(place) == ["double 1", "dies 2", "dies 2", "double 3"]


@pytest.mark.parametrize("engine", [ON_RAY])
async def test_so_does_one_whose_actor_dies(engine: str, place: Path) -> None:
    async with opened(place, engine) as runtime:
        assert await result(runtime, bodies.killed_inside_on_loop, place, engine) == [2, 2, 6]
    assert ran(place) == ["double 1", "dies 2", "dies 2", "double 3"]


PROGRAM = """
import sys
from pathlib import Path
import anyio
from callboard import Runtime, Task, Workstream, step

folder = Path(sys.argv[1])

@STEP
def works(n):
    with (folder / "ran").open("a") as file:
        file.write(f"works {n}\\n")
    if n == 2 and not (folder / "begun").exists():
        (folder / "begun").touch()
        while True:
            anyio.run(anyio.sleep, 1)
    return n

def body():
    return [works(1), works(2), works(3)]

async def main():
    async with Runtime(folder / "j.db") as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("t", run=body, engine="ENGINE")]), id="j")
        outcome = await job.wait()
        print(outcome.results or outcome.tasks["t"].last_error)

if __name__ == "__main__":
    anyio.run(main)
"""


@pytest.mark.parametrize(
    ("engine", "kind"), [("thread", "step"), ("process", "step"), ("thread", "step(engine='process')")]
)
def test_a_step_that_runs_while_its_runtime_is_killed_runs_again_at_the_next_start(
    engine: str, kind: str, place: Path
) -> None:
    program = place / "program.py"
    program.write_text(PROGRAM.replace("ENGINE", engine).replace("STEP", kind))
    with killed_after(subprocess.Popen([sys.executable, program, place], env=environment())) as first:
        wait_until((place / "begun").exists)
        first.send_signal(signal.SIGKILL)
    again = subprocess.run(
        [sys.executable, program, place],
        capture_output=True, text=True, timeout=600, check=False, env=environment(),
    )  # fmt: skip
    assert again.stdout == "{'t': [1, 2, 3]}\n", again.stderr
    assert ran(place) == ["works 1", "works 2", "works 2", "works 3"]


# -- failures ----------------------------------------------------------------------------------------------------------


@EVERYWHERE
async def test_errors_travel_and_failed_steps_run_again_in_a_new_attempt(engine: str, place: Path) -> None:
    async with opened(place, engine) as runtime:
        value = await result(runtime, bodies.fails, place, engine, retry=SOON)
    assert value == ["KeyError 'gone'", "breaks#2 Odd 1: odd True"]
    assert ran(place) == ["plain", "odd"] * 2


@HERE
async def test_an_uncaught_error_of_a_step_fails_the_attempt(engine: str, place: Path) -> None:
    async with opened(place, engine) as runtime:
        job = await submitted(runtime, bodies.fails_for_good, place, engine)
        task = (await job.wait()).tasks["t"]
    assert "StepFailed: step 'breaks' failed: Odd: 1: odd" in str(task.last_error)


@HERE
async def test_another_function_under_a_kept_name_fails_permanently(engine: str, place: Path) -> None:
    async with opened(place, engine) as runtime:
        job = await submitted(runtime, bodies.changes, place, engine, retry=Retry(max_attempts=9, base_delay=0.0))
        task = (await job.wait()).tasks["t"]
    assert task.attempt == 2
    assert "FlowChanged: step 'charge' of this flow was " in str(task.last_error)
    assert "Before.charge" in str(task.last_error)
    assert "After.charge" in str(task.last_error)


@HERE
async def test_retries_and_time_limits_belong_to_the_step(engine: str, place: Path) -> None:
    async with opened(place, engine) as runtime:
        value = await result(runtime, bodies.has_policies, place, engine)
    assert value == [3, "step 'slow' took longer than 0.01 s"]


@HERE
async def test_a_step_inside_a_step_is_refused_wherever_that_runs(engine: str, place: Path) -> None:
    async with opened(place, engine) as runtime:
        value = await result(runtime, bodies.nests, place, engine)
    for name, texts in zip(("outer", "again"), value, strict=True):
        assert [text.count(f"was called inside step '{name}'") for text in texts] == [1] * 4
    assert not (place / "ran").exists()


@HERE
async def test_secrets_are_masked_in_what_steps_return_and_raise(engine: str, place: Path) -> None:
    async with opened(place, engine, secrets={"KEY": "rosebud-7"}) as runtime:
        job = await submitted(runtime, bodies.tells_secret, place, engine, secrets=["KEY"])
        assert (await job.wait()).raise_for_state().results["t"] == ["key ***", "key ***"]
        assert "rosebud" not in str([(row.result, row.error, row.traceback) for row in rows(job, runtime)])


# -- threads, waiting, stopping ----------------------------------------------------------------------------------------


@EVERYWHERE
async def test_steps_run_in_parallel_but_are_called_in_one_thread(engine: str, place: Path) -> None:
    async with opened(place, engine) as runtime:
        first, refused, listed = await result(runtime, bodies.in_threads, place, engine, retry=SOON)
    assert (first, listed) == (0, [4, 6, 8, 10])
    assert "step 'double' was called in another thread than the steps before it" in refused
    assert "task.gather_blocking" in refused
    assert sorted(ran(place)) == [f"double {n}" for n in (0, 2, 3, 4, 5)]


@EVERYWHERE
@pytest.mark.parametrize("restart", [False, True])
async def test_a_body_that_sleeps_lends_its_slot_and_its_time_runs_on(engine: str, place: Path, restart: bool) -> None:
    clock = VirtualClock()
    async with opened(place, engine, clock=clock) as runtime:
        job = await submitted(runtime, bodies.sleeps, place, engine)
        await until(lambda: len(rows(job, runtime)) == 2)
        args = {"folder": str(place)}
        other = Workstream("o", tasks=[Task("t", run=bodies.fails, args=args, engine=engine, retry=SOON)])
        assert (await (await runtime.submit(other)).wait()).state == "completed"  # in the only slot
        if not restart:
            clock.advance(7200)  # the time of a process runs on
            assert (await job.wait()).results == {"t": "slept"}
    if restart:
        clock.advance(7200)
        async with opened(place, engine, clock=clock) as runtime:
            assert (await (await runtime.job("job")).wait()).results == {"t": "slept"}
    assert [line for line in ran(place) if "double" in line] == ["double 1", "double 2"]


@pytest.mark.parametrize("engine", [ON_RAY])
async def test_so_does_an_async_body_on_ray(engine: str, place: Path) -> None:
    clock = VirtualClock()
    async with opened(place, engine, clock=clock) as runtime:
        job = await submitted(runtime, bodies.sleeps_on_loop, place, engine)
        await until(lambda: len(rows(job, runtime)) == 2)
        await until(lambda: job.task("t").record.state != "running" or runtime.worker("one").assigned == 0)
        clock.advance(7200)
        assert (await job.wait()).results == {"t": "slept"}


@EVERYWHERE
async def test_a_body_is_cancelled_while_its_step_waits_on_a_loop(engine: str, place: Path) -> None:
    async with opened(place, engine) as runtime:
        job = await submitted(runtime, bodies.waits_for_ever, place, engine, kill_grace="1h")
        await until((place / "begun").exists)
        await job.cancel()
        assert (await job.wait()).state == "cancelled"
        assert job.task("t").record.flow == 0


@AWAY
async def test_a_step_that_ends_while_its_body_is_being_stopped_is_kept(engine: str, place: Path) -> None:
    async with opened(place, engine) as runtime:
        job = await submitted(runtime, bodies.waits_in_a_step, place, engine, kill_grace="1h")
        await until((place / "begun").exists)
        await job.cancel()
        (place / "end").touch()
        assert (await job.wait()).state == "cancelled"
        assert [(row.name, row.result) for row in rows(job, runtime)] == [("works", 7)]


@pytest.mark.parametrize("engine", [ON_RAY])
async def test_facts_on_ray_are_made_once(engine: str, place: Path) -> None:
    clock = VirtualClock()
    async with opened(place, engine, clock=clock) as runtime:
        got, first = await result(runtime, bodies.takes_facts, place, engine, retry=SOON)
    assert got == first
    assert got[3:] == [2, 0.0, 0.5, 1.0, 1.5]
    assert sorted(ran(place)) == [f"half {n}" for n in range(4)]


def test_a_process_starts_without_the_modules_of_flows() -> None:
    text = "import sys, callboard.runtime.engines.process.child; print([m for m in sys.modules if m.endswith(NAMES)])"
    names = "('asyncio', 'engines.flow', 'engines.from_thread', 'dispatch.runners')"
    done = subprocess.run(
        [sys.executable, "-c", text.replace("NAMES", names)],
        capture_output=True, text=True, check=True, timeout=600, env={**os.environ},
    )  # fmt: skip
    assert done.stdout == "[]\n"


# -- for ever ----------------------------------------------------------------------------------------------------------


@EVERYWHERE
async def test_a_body_begins_anew_everywhere(engine: str, place: Path) -> None:
    async with opened(place, engine) as runtime:
        assert await result(runtime, bodies.begins_anew, place, engine) == 20
        job = await runtime.job("job")
        assert job.task("t").record.rounds == bodies.STEPS - 1
        assert [row.name for row in rows(job, runtime)] == ["double"]
    assert ran(place) == [f"double {n}" for n in range(1, bodies.STEPS + 1)]


@pytest.mark.parametrize("engine", [ON_RAY])
async def test_so_does_an_async_body_that_begins_anew_on_ray(engine: str, place: Path) -> None:
    async with opened(place, engine) as runtime:
        assert await result(runtime, bodies.begins_anew_on_loop, place, engine) == 20
    assert ran(place) == [f"double {n}" for n in range(1, bodies.STEPS + 1)]


@HERE
async def test_again_that_is_not_returned_fails_for_good_everywhere(engine: str, place: Path) -> None:
    async with opened(place, engine) as runtime:
        job = await submitted(runtime, bodies.forgets_to_return, place, engine, retry=SOON)
        outcome = await job.wait()
        assert outcome.state == "failed"
        assert "write `return task.again(...)`" in str(outcome.error)
        assert job.task("t").record.failed_attempts == 1


# -- tools -------------------------------------------------------------------------------------------------------------


@EVERYWHERE
async def test_steps_use_tools_everywhere(place: Path, engine: str) -> None:
    async with opened(place, engine, tools={"model": Tool(max_parallel=1)}) as runtime:
        args = {"folder": str(place)}
        tasks = [Task(name, run=bodies.uses_tools, engine=engine, args=args) for name in "ab"]
        job = await runtime.submit(Workstream("w", tasks=tasks), id="job")
        outcome = (await job.wait()).raise_for_state()
        assert outcome.results == {"a": [1, 2, 3, "sick"], "b": [1, 2, 3, "sick"]}
        assert ran(place) == ["in", "out"] * 8  # never two at a time
        assert runtime.breaker("model").record.failures in {1, 2}  # a success between the two failures sets it to 0
        kernel, scheduler = runtime._services.host.kernel, runtime._services.host.workforce.scheduler
        assert (kernel.uses, kernel.lent, scheduler.tools["model"].used) == ({}, {}, 0)


@AWAY
async def test_a_worker_that_is_killed_holds_and_awaits_no_tool_any_more(place: Path, engine: str) -> None:
    tools, workers = {"model": Tool(max_parallel=1)}, (Worker("one", engine=engine, capacity=2),)
    async with Runtime(place / "j.db", workers=workers, tools=tools) as runtime:
        args = {"folder": str(place)}
        tasks = [Task(name, run=bodies.holds_tool, engine=engine, args=args | {"name": name}) for name in "ab"]
        job = await runtime.submit(Workstream("w", tasks=tasks), id="job")
        await until(lambda: (place / "ran").exists() and ran(place))
        kernel = runtime._services.host.kernel
        await until(lambda: any(one.waits for of in kernel.uses.values() for one in of.values()))
        os.kill(int(ran(place)[0].split()[1]), signal.SIGKILL)
        (place / "go").touch()
        assert (await job.wait()).raise_for_state().results == {"a": "a", "b": "b"}
        assert (kernel.uses, kernel.lent, runtime.breaker("model").record.failures) == ({}, {}, 0)


@HERE
async def test_a_plain_body_decides_by_the_same_time_ids_and_versions_in_a_replay(engine: str, place: Path) -> None:
    async with opened(place, engine) as runtime:
        decided = await result(runtime, bodies.decides, place, engine, retry=SOON)
    assert ran(place) == [*decided, *decided]
    assert decided[3] == "2"


# -- steps on workers --------------------------------------------------------------------------------------------------


@EVERYWHERE
async def test_a_body_anywhere_calls_steps_on_workers_of_every_engine(place: Path, engine: str) -> None:
    others = {name: Worker(name, engine=name, capacity=1) for name in ("loop", "thread", "process") if name != engine}
    async with Runtime(place / "j.db", workers=(WORKERS[engine], *others.values())) as runtime:
        job = await submitted(runtime, bodies.calls_workers, place, engine, retry=SOON)
        here, thread, process, loop, *both, errors = (await job.wait()).raise_for_state().results["t"]
        assert [thread, loop, both[0]] == [[1, os.getpid()], [3, os.getpid()], [4, os.getpid()]]
        assert (process[0], process[2], both[1][0]) == (2, "two", 5)
        assert os.getpid() not in {process[1], both[1][1]}
        assert (here == os.getpid()) == (engine == "thread")
        assert errors[0] == "KeyError 'gone'"
        assert "step 'in_process' was called inside step 'fails_in_process#2'" in errors[1]
        assert "SystemExit" in errors[2]
        refused = ["'calls_workers.<locals>.nested', which is made inside a function" in text for text in errors[3:]]
        assert refused == ([] if engine == "thread" else [True])
        assert sorted(ran(place)) == [*sorted([f"fails {n}" for n in (1, 2, 3)] * 2), "loop 3", *(
            f"process {n}" for n in (2, 5)), *(f"thread {n}" for n in (1, 4))]  # fmt: skip
        kernel = runtime._services.host.kernel
        await until(lambda: not (kernel.calls or kernel.slots or kernel.lent or kernel.step_calls))


@pytest.mark.parametrize("engine", ["process"])
async def test_a_process_of_a_step_may_die_and_is_killed_at_its_time_limit(place: Path, engine: str) -> None:
    workers = (Worker("loop", engine="loop", capacity=1), Worker("p", engine="process"))
    async with Runtime(place / "j.db", workers=workers) as runtime:
        job = await submitted(runtime, bodies.calls_process, place, "loop", kill_grace=0.1)
        lives, late, refused, last = (await job.wait()).raise_for_state().results["t"]
        assert (lives, late) == ("lives", "TimeoutError step 'never_ends' took longer than 0.5 s")
        assert refused.startswith("NotSerialisable the arguments of step 'in_process'")
        assert (last[0], last[2]) == (1, "xxx")
        rows = {one.name: one for one in await job.steps("t")}
        assert (rows["dies_in_process"].tries, rows["dies_in_process"].worker_id) == (2, "p#2")
    assert len(ran(place)) == 3


@pytest.mark.parametrize("engine", ["process"])
async def test_a_cancelled_body_has_the_process_of_its_step_ended(place: Path, engine: str) -> None:
    workers = (Worker("loop", engine="loop", capacity=1), Worker("p", engine="process"))
    async with Runtime(place / "j.db", workers=workers) as runtime:
        job = await submitted(runtime, bodies.calls_slow, place, "loop", kill_grace=0.1)
        await until((place / "ran").exists)
        await until(lambda: runtime.worker("p").assigned == 1)
        await job.cancel()
        assert (await job.wait()).state == "cancelled"
        await until(lambda: not runtime._services.host.kernel.calls)
        assert runtime.worker("p").assigned == 0


@pytest.mark.parametrize("engine", [ON_RAY])
async def test_a_step_goes_to_ray_if_it_says_so_or_only_a_worker_there_can_run_it(place: Path, engine: str) -> None:
    workers = (Worker("loop", engine="loop"), Worker("one", engine=engine, capacity=2, capabilities=["far"]))
    async with Runtime(place / "j.db", workers=workers) as runtime:
        here, *there = await result(runtime, bodies.calls_far, place, "loop")
        assert [one[0] for one in there] == [1, 2]
        assert here not in {one[1] for one in there}
        assert {one.worker_id for one in await (await runtime.job("job")).steps("t")} == {"one#1"}
    assert ran(place) == ["far 1", "far 2"]
