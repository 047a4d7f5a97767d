"""The input of commands, and the reports about them."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from tests.waiting import until

from callboard import (
    Check,
    Hook,
    Notice,
    Retry,
    Runtime,
    StepRecord,
    Task,
    TaskContext,
    VirtualClock,
    Workstream,
)

if TYPE_CHECKING:
    from callboard.runtime.flows.histories import Over

pytestmark = pytest.mark.anyio


async def one() -> int:
    return 1


async def test_a_command_finds_its_results_whatever_its_folder_and_the_journal_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    program = "import os; print(open(os.environ['CALLBOARD_RESULTS']).read())"
    async with Runtime("state.db") as runtime:
        job = await runtime.submit(
            Workstream(
                "told",
                tasks=[
                    Task("one", run=one),
                    Task("read", command=[sys.executable, "-c", program], cwd="elsewhere", depends_on=["one"]),
                ],
            )
        )
        outcome = await job.wait()
    assert outcome.results["read"]["output"] == '{"one":1}'


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo no room; exit 3", "`echo no room; exit 3` exited with 3 (expected: 0): no room"),
        (
            "echo first; echo last; exit 3",
            "`echo first; echo last; exit 3` exited with 3 (expected: 0): last; last output: first\nlast",
        ),
        ("exit 3", "`exit 3` exited with 3 (expected: 0)"),
    ],
)
async def test_an_error_says_what_the_command_said_and_says_it_once(script: str, error: str) -> None:
    async with Runtime() as runtime:
        job = await runtime.submit(Workstream("failing", tasks=[Task("fail", command=script, shell=True)]))
        outcome = await job.wait()
    assert outcome.tasks["fail"].last_error == error


async def test_a_hook_that_takes_too_long_is_stopped() -> None:
    clock, began, stopped = VirtualClock(), anyio.Event(), anyio.Event()

    async def never_ends() -> None:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    hook = Hook(run=never_ends, timeout="1m")
    async with Runtime(clock=clock) as runtime:
        job = await runtime.submit(Workstream("hooked", tasks=[Task("one", run=one)], on_completed=[hook]))
        assert (await job.wait()).ok
        await began.wait()
        clock.advance(59)
        await anyio.wait_all_tasks_blocked()
        assert not stopped.is_set()
        clock.advance(1)
        await stopped.wait()


@pytest.mark.parametrize("holds", [True, False], ids=["holding its output", "holding nothing"])
@pytest.mark.parametrize("of", ["body", "check", "hook"])
async def test_processes_that_a_command_left_behind_are_told(of: str, holds: bool, tmp_path: Path) -> None:
    notices: list[Notice] = []
    pid_file = tmp_path / "pid"
    script = (
        "import os, sys, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        f"    if not {holds}: [os.dup2(os.open(os.devnull, os.O_RDWR), number) for number in (1, 2)]\n"
        f"    open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(600)\n"
        f"while not os.path.exists({str(pid_file)!r}) or not os.path.getsize({str(pid_file)!r}): time.sleep(0.001)\n"
    )
    command = [sys.executable, "-c", script]
    task = {
        "body": Task("leaves", command=command),
        "check": Task("leaves", run=one, checks=[Check(command=command)]),
        "hook": Task("leaves", run=one, on_completed=[Hook(command=command)]),
    }[of]
    runtime = Runtime(outputs=tmp_path / "outputs")
    runtime.on_trouble = notices.append
    with anyio.fail_after(300):
        async with runtime:
            assert (await (await runtime.submit(Workstream("w", tasks=[task]), id="j")).wait()).ok
            await runtime.drain(10)
    left = int(pid_file.read_text())
    os.kill(left, signal.SIGKILL)
    (notice,) = notices
    what = "still hold its output" if holds else "go on running"
    assert notice.text == f"j@1/leaves left processes running outside its process group ({left}): they {what}"
    assert notice.facts["pids"] == (left,)
    assert (notice.event, notice.severity) == ("processes_left_behind", "warning")
    assert (notice.kind, notice.entity_id, notice.job_id) == ("task", "j@1/leaves", "j")


@pytest.mark.parametrize("end", ["cancelled", "failed"])
async def test_the_history_of_a_body_that_is_not_started_is_forgotten(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cancelled while its history was read, or its start has failed."""
    asked: list[tuple[int, Over]] = []

    async def fails(task: TaskContext) -> None:
        await task.now()
        raise ValueError(task.task)

    def cannot(*_: object) -> None:
        raise LookupError("no start")

    async with Runtime() as runtime:
        runtime.task(name="fails")(fails)
        caller: Any = runtime._services.caller
        flows = caller._flows
        monkeypatch.setattr(flows._histories, "get", lambda flow, over: asked.append((flow, over)))
        retry = Retry(max_attempts=2, base_delay=0.0, jitter=0.0)
        job = await runtime.submit(Workstream("w", tasks=[Task("t", run="fails", retry=retry)]), id="j")
        await until(lambda: bool(asked))
        if end == "cancelled":
            await job.cancel()
        else:
            monkeypatch.setattr(caller, "_start_body", cannot)
        ((_, over),) = asked
        over([StepRecord(key=1, flow=1, task=1, task_id="t", name="task.now", began_at=1.0)], None)
        assert (await job.wait()).state == end
        assert (flows._kept, flows._flows) == ({}, {})
