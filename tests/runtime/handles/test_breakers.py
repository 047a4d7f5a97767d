"""Breakers and alerts of a real runtime: operators' views and commands, checks before a reset, and restarts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard import (
    Alert,
    Breaker,
    BreakerHandle,
    Fire,
    Hook,
    JobHandle,
    Notice,
    Retry,
    Runtime,
    Task,
    TaskContext,
    Tool,
    VirtualClock,
    Worker,
    Workstream,
)
from callboard.errors import (
    CheckFailed,
    CircuitOpen,
    InvalidTransitionError,
    NotSerialisable,
    RequestIdReused,
    RuntimeClosed,
    SpecificationError,
)

pytestmark = pytest.mark.anyio
ill = [True]
told: list[dict[str, Any]] = []
began: list[anyio.Event] = []
TOOLS = {"t": Tool(breaker=Breaker(failure_threshold=1, cooldown="1h"))}


@pytest.fixture(autouse=True)
def afresh() -> None:
    ill[:], told[:], began[:] = [True], [], []


async def use() -> str:
    if ill[0]:
        raise RuntimeError("no answer")
    return "answer"


async def page(task: TaskContext) -> None:
    told.append(task.args)


async def healthy() -> bool:
    return not ill[0]


async def never_ends() -> None:
    began[-1].set()
    await anyio.sleep_forever()


def using(count: int) -> Workstream:
    tasks = [Task(f"a{n}", run=use, tool="t", optional=True) for n in range(count)]
    return Workstream("uses", tasks=tasks, max_parallel=1)


async def parked(runtime: Runtime, count: int = 2) -> tuple[JobHandle, BreakerHandle]:
    """A job of which the first task has failed, and so many others wait at the breaker."""
    job = await runtime.submit(using(count + 1), id="job")
    breaker = runtime.breaker("t")
    async for _ in job.events(kind="task", to_state="circuit_open"):
        if breaker.parked == count:
            break
    return job, breaker


async def test_an_operator_sees_it_and_resets_it_after_a_check(open_runtime: Callable[..., Runtime]) -> None:
    async with open_runtime(tools=TOOLS) as runtime:
        assert [(known.tool, known.state, known.parked) for known in runtime.breakers()] == [("t", "closed", 0)]
        job, breaker = await parked(runtime)
        assert (breaker.state, breaker.parked) == ("open", 2)
        assert 3000 < breaker.retry_in <= 3600
        assert repr(breaker) == "<BreakerHandle t open>"
        with pytest.raises(CircuitOpen, match=r"its tool 't' is not healthy. Retry in \d+ s") as refused:
            await job.task("a1").reset()
        assert 3000 < refused.value.retry_in <= 3600
        with pytest.raises(CheckFailed, match="tool 't' was not reset, its check did not pass: it returned"):
            await breaker.reset(check=Hook(run=healthy))
        assert breaker.state == "open"
        ill[0] = False
        await breaker.reset(check=Hook(run=healthy), by="ana", reason="it was restarted")
        outcome = await job.wait()
        assert (breaker.state, breaker.retry_in, breaker.record.reason) == ("closed", 0.0, "it was restarted")
        assert sorted(outcome.results) == ["a1", "a2"]


async def test_the_same_reset_again_does_not_run_its_check_again(open_runtime: Callable[..., Runtime]) -> None:
    async with open_runtime(tools=TOOLS) as runtime:
        breaker = runtime.breaker("t")
        await breaker.trip()
        ill[0] = True
        with pytest.raises(CheckFailed):  # which was no reset, so the key is still free
            await breaker.reset(check=Hook(run=healthy), request_id="r1")
        ill[0] = False
        await breaker.reset(check=Hook(run=healthy), request_id="r1")
        await breaker.trip()
        ill[0] = True
        await breaker.reset(check=Hook(run=healthy), request_id="r1")
        assert breaker.state == "open"  # it did nothing
        with pytest.raises(RequestIdReused):
            await breaker.reset(check=Hook(run=healthy), reason="another", request_id="r1")


PRINTS = [sys.executable, "-c", "import sys; print('still restarting'); sys.exit(3)"]


@pytest.mark.parametrize(
    ("check", "says"),
    [
        (PRINTS, r"exited with 3 .*still restarting"),
        ("echo gone; exit 1", "gone"),
        (["no-such-program-anywhere"], "no-such-program-anywhere"),
        (Hook(command=["sleep", "60"], timeout=0.1), "it took longer than 0.1 s and was stopped"),
        (Hook(run=use), "no answer"),
        (Hook(run=never_ends, timeout=0.05), "it took longer than 0.05 s and was stopped"),
    ],
)
async def test_a_check_that_does_not_pass_says_what_it_printed_and_changes_nothing(check: Any, says: str) -> None:
    began.append(anyio.Event())
    async with Runtime(tools=TOOLS) as runtime:
        breaker = runtime.breaker("t")
        await breaker.trip()
        with pytest.raises(CheckFailed, match=says) as failed:
            await breaker.reset(check=check)
        assert failed.value.tool == "t"
        assert breaker.state == "open"
        assert runtime.metrics().stale == 0  # its process is no attempt's that is over


async def test_a_check_that_cannot_be_one_is_refused_before_it_runs() -> None:
    async with Runtime(tools=TOOLS) as runtime:
        breaker = runtime.breaker("t")
        with pytest.raises(SpecificationError, match="neither run nor command"):
            await breaker.reset(check=Hook())
        with pytest.raises(LookupError, match="no_module_of_ours"):
            await breaker.reset(check=Hook(run="no_module_of_ours:f"))
        with pytest.raises(TypeError, match="`by` is the name of the author, not 7"):
            await breaker.reset(by=7)  # type: ignore[arg-type]
        with pytest.raises(NotSerialisable):
            await breaker.trip(reason="\ud800")
        with pytest.raises(ValueError, match="is not a duration"):
            await breaker.trip(cooldown="soon")
        with pytest.raises(ValueError, match="a cooldown of 0 is over before any task is parked"):
            await breaker.trip(cooldown="0s")
        with pytest.raises(ValueError, match="a cooldown of 0 is over before any task is parked"):
            await breaker.ref.ask(Fire("trip", by="ana", facts={"cooldown": 0}))
        with pytest.raises(ValueError, match="the author: 1 to 200 printable characters, not ''"):
            await breaker.reset(by="")
        with pytest.raises(InvalidTransitionError) as no:
            await breaker.ref.ask(Fire("rest"))
        assert str(no.value) == (
            "breaker t: 'rest' is not possible in state 'closed'. Possible there: reset, trip. "
            "breaker has no event of that name; did you mean 'reset'?"
        )


async def test_a_check_goes_with_its_caller_and_with_the_runtime() -> None:
    errors: list[str] = []

    async def reset(breaker: BreakerHandle) -> None:
        try:
            await breaker.reset(check=Hook(run=never_ends))
        except RuntimeClosed as error:
            errors.append(str(error))

    async with anyio.create_task_group() as outer, Runtime(tools=TOOLS) as runtime:
        breaker = runtime.breaker("t")
        await breaker.trip()
        began.append(anyio.Event())
        async with anyio.create_task_group() as group:
            group.start_soon(reset, breaker)
            await began[-1].wait()
            group.cancel_scope.cancel()
        began.append(anyio.Event())
        outer.start_soon(reset, breaker)
        await began[-1].wait()
    assert errors == ["the runtime closed while the check was running: nothing was reset"]
    assert breaker.state == "open"


async def test_a_breaker_that_nobody_has_is_told_with_those_that_are_there() -> None:
    async with Runtime(tools=TOOLS) as runtime:
        with pytest.raises(LookupError, match="no workstream has used a tool 'u' yet; there are breakers of: t"):
            runtime.breaker("u")
    with pytest.raises(RuntimeClosed):
        runtime.breakers()


async def test_a_breaker_outlives_the_runtime_and_its_cooldown_goes_on_meanwhile(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with Runtime(tmp_path / "state.db", tools=TOOLS, clock=clock) as runtime:
        await parked(runtime)
    ill[0] = False
    clock.advance(3000)
    async with Runtime(tmp_path / "state.db", tools=TOOLS, clock=clock) as runtime:
        breaker = runtime.breaker("t")
        assert (breaker.state, round(breaker.retry_in), breaker.parked) == ("open", 600, 2)
        assert breaker.record.generation == 1
        clock.advance(600)
        outcome = await (await runtime.job("job")).wait()
    assert sorted(outcome.results) == ["a1", "a2"]


async def test_a_task_that_is_parked_for_itself_is_reset() -> None:
    async with Runtime() as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("a", run=use, on_exhausted="park")]))
        async for _ in job.events(to_state="circuit_open"):
            break
        ill[0] = False
        await job.task("a").reset(by="ana", reason="mended")
        assert (await job.wait()).ok
        with pytest.raises(InvalidTransitionError, match="'reset' is not possible in state 'completed'"):
            await job.task("a").reset()


async def test_settings_of_the_runtime_that_cannot_be_are_all_told() -> None:
    tools = {"t": Tool(max_parallel=0, breaker=Breaker(failure_threshold=0, ignore=[" "]))}
    with pytest.raises(SpecificationError) as refused:
        async with Runtime(tools=tools, alerts=[Alert(), Alert(run=page, max_alerts=0, period=0)]):
            pass
    text = str(refused.value)
    assert "in the runtime's settings" in text
    for said in (
        "tools.t.max_parallel", "tools.t.breaker.failure_threshold", "tools.t.breaker.ignore[0]: is empty",
        "an alert has neither run nor command", "alerts[1].max_alerts", "alerts[1].period",
    ):  # fmt: skip
        assert said in text, text


# -- alerts ------------------------------------------------------------------------------------------------------------


async def test_a_function_and_a_command_are_told_and_subscribers_hear_of_it(
    open_runtime: Callable[..., Runtime], tmp_path: Path
) -> None:
    program = "import os, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(os.environ['CALLBOARD_EVENT'])"
    command = [sys.executable, "-c", program, str(tmp_path / "told.json")]
    tasks = [Task("a", run=use)]
    alerts = [Alert(command=command, severity="critical")]
    async with open_runtime(alerts=[Alert(run=page)]) as runtime:
        seen = runtime.events(kind="task")
        job = await runtime.submit(Workstream("w", tasks=tasks, alerts=alerts), id="job")
        outcome = await job.wait()
        seen.close()
        assert outcome.state == "failed"
    assert [alert["severity"] for alert in told] == ["error", "error", "critical", "error"]
    assert told[0]["text"].startswith("task job@1/a failed: RuntimeError: no answer")
    written = json.loads((tmp_path / "told.json").read_text(encoding="utf-8"))
    assert written["text"].startswith("workstream job@1 failed")
    assert written["severity"] == "critical"
    assert runtime.failed_hooks == 0


async def test_an_alert_that_fails_changes_nothing_and_is_told() -> None:
    notices: list[Notice] = []
    runtime = Runtime(alerts=[Alert(run=use, severity="critical")])
    runtime.on_trouble = notices.append
    async with runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("a", run=use)]), id="job")
        assert (await job.wait()).state == "failed"
    (notice,) = [notice for notice in notices if notice.event == "hook_failed"]
    assert notice.text.startswith("the alert hook")
    assert notice.entity_id == "job@1"


async def leaks(task: TaskContext) -> None:
    raise RuntimeError(f"refused: {task.secrets['KEY']}")


async def test_an_alert_shows_no_secret_and_is_handed_those_of_its_workstream() -> None:
    told_secrets: list[str] = []

    async def pages(task: TaskContext) -> None:
        told.append(task.args)
        told_secrets.append(task.secrets["KEY"])

    async with Runtime(alerts=[Alert(run=page)], secrets={"KEY": "xyz-12345"}) as runtime:
        tasks = [Task("a", run=leaks)]
        stream = Workstream("w", tasks=tasks, secrets=["KEY"], alerts=[Alert(run=pages, severity="critical")])
        await (await runtime.submit(stream)).wait()
    assert len(told) == 5
    assert "xyz" not in str(told)
    assert "refused: ***" in told[0]["text"]
    assert told_secrets == ["xyz-12345"]


# -- errors of task groups ---------------------------------------------------------------------------------------------

MANY = [KeyError("no such city"), ZeroDivisionError("rate of zero"), LookupError("no such street")]


async def in_a_group(task: TaskContext) -> None:
    """Fail in a task of its own, each time by another error."""
    async with anyio.create_task_group() as group:
        group.start_soon(fail, MANY[task.attempt - 1])


async def fail(error: Exception) -> None:
    raise error


async def twice() -> None:
    """Fail in a group in a group, by two errors that a tool may ignore."""
    async with anyio.create_task_group() as group:
        group.start_soon(fail, ExceptionGroup("inner", [ValueError("bad input"), KeyError("x")]))


def twice_in_a_process() -> None:
    """Fail as that."""
    raise ExceptionGroup("inner", [ValueError("bad input"), KeyError("x")])


async def test_different_errors_of_task_groups_are_different_and_named(
    open_runtime: Callable[..., Runtime],
) -> None:
    retry = Retry(max_attempts=3, base_delay=0)
    async with open_runtime() as runtime:
        task = Task("t", run=in_a_group, retry=retry, max_error_repeats=1)
        record = (await (await runtime.submit(Workstream("w", tasks=[task]))).wait()).tasks["t"]
    assert (record.attempt, record.error_type) == (3, "LookupError")
    assert (record.last_error or "").startswith("LookupError: no such street (test_breakers.py:")


@pytest.mark.parametrize("engine", ["loop", "process"])
async def test_a_tool_ignores_what_a_task_group_is_made_of(open_runtime: Callable[..., Runtime], engine: str) -> None:
    names = ["ValueError", "KeyError"]
    tools = {"t": Tool(breaker=Breaker(failure_threshold=1, ignore=names))}
    tools |= {"u": Tool(breaker=Breaker(failure_threshold=1, ignore=names[:1]))}
    run = twice if engine == "loop" else twice_in_a_process
    tasks = [Task(name, run=run, tool=name, engine=engine, optional=True) for name in tools]
    async with open_runtime(workers=[Worker(engine, engine=engine)]) as runtime:
        outcome = await (await runtime.submit(Workstream("w", tasks=tasks, tools=tools))).wait()
        assert (runtime.breaker("t").state, runtime.breaker("u").state) == ("closed", "open")
    assert outcome.tasks["t"].error_type == "KeyError, ValueError"
    assert (outcome.tasks["t"].last_error or "").endswith(": KeyError: 'x'; ValueError: bad input")
