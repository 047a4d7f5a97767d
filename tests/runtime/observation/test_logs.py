"""The destination of log lines: structlog, `logging`, or standard error if nothing is configured."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
import structlog

from callboard import Runtime, Task, TaskContext, Worker, Workstream
from callboard.actors.records.transition import Transitioned
from callboard.runtime.dispatch.clock import VirtualClock
from callboard.runtime.observation.events import EventBus
from callboard.runtime.text.logs import ALIKE, ALL, PERIOD, LastResort, LogLine, task_logger, write_error
from callboard.runtime.text.secrets import Mask

pytestmark = pytest.mark.anyio


async def weighs(task: TaskContext) -> None:
    task.log.info("weighing", crate=17)
    raise ValueError("crate 17 cannot be weighed")


CRATES = Workstream("crates", tasks=[Task("weigh", run=weighs)])


class Kept(logging.Handler):
    """Keeps the lines that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def kept(no_logs: logging.Logger) -> Kept:
    """Collects the records of a program that has configured `logging`, and nothing else."""
    kept = Kept()
    no_logs.addHandler(kept)
    no_logs.setLevel(logging.INFO)
    return kept


@pytest.fixture
def own_structlog(no_logs: logging.Logger) -> Iterator[Callable[..., None]]:
    yield lambda *processors, **more: structlog.configure(processors=[*processors], **more)
    structlog.reset_defaults()


async def fail() -> str:
    """Run a job whose body writes a log line, and fails."""
    async with Runtime(workers=[Worker("loop", engine="loop")]) as runtime:
        job = await runtime.submit(CRATES)
        outcome = await job.wait()
        assert not outcome.ok
        return job.id


async def test_a_program_that_has_configured_logging_hears_of_transitions_and_of_what_bodies_say(
    kept: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    job = await fail()
    (said,) = [record for record in kept.records if record.name == "callboard.task"]
    assert said.getMessage() == f"weighing workstream_id='{job}@1' task='weigh' attempt=1 crate=17"
    assert (said.levelname, said.funcName) == ("INFO", "weighs")
    assert said.callboard == {  # type: ignore[attr-defined]
        "event": "weighing", "crate": 17, "workstream_id": f"{job}@1", "task": "weigh", "attempt": 1,
    }  # fmt: skip
    (failed,) = [record for record in kept.records if record.levelname == "ERROR" and "task_" in record.getMessage()]
    assert failed.name == "callboard"
    assert "crate 17 cannot be weighed" in failed.getMessage()
    assert failed.callboard["trigger"] == "fail"  # type: ignore[attr-defined]
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "")


async def test_lines_of_transitions_and_notices_say_when_it_was_and_of_which_job(kept: Kept) -> None:
    async with Runtime(workers=[], clock=VirtualClock(1_700_000_000.25), drain_deadline=0) as runtime:
        await runtime.submit(CRATES, id="j")
        runtime._services.host.notice("odd", "warning", "something is odd")
        await runtime.start_worker(Worker("w", engine="loop"))
    lines: list[dict[str, Any]] = [vars(record)["callboard"] for record in kept.records if record.name == "callboard"]
    told = {line["event"].removesuffix("_state_transition"): line for line in lines}
    assert {line["timestamp"] for line in lines} == {"2023-11-14T22:13:20.250Z"}
    assert [told[kind]["job_id"] for kind in ("job", "workstream", "task")] == ["j", "j", "j"]
    assert "job_id" not in told["worker"]
    assert "timestamp" in told["odd"]


@pytest.mark.parametrize(
    ("processor", "told"),
    [
        pytest.param(structlog.processors.TimeStamper("%Y"), r"\d{4}", id="sets-it"),
        pytest.param(structlog.processors.MaybeTimeStamper("%Y"), "2023-11-14T22:13:20.250Z", id="sets-if-missing"),
        pytest.param(structlog.processors.TimeStamper("%Y", key="at"), "2023-11-14T22:13:20.250Z", id="sets-another"),
    ],
)
async def test_a_processor_that_sets_the_timestamp_itself_wins(
    own_structlog: Callable[..., None], processor: Any, told: str
) -> None:
    lines: list[dict[str, Any]] = []

    def keep(_: Any, __: str, event: Any) -> Any:
        lines.append(dict(event))
        raise structlog.DropEvent

    own_structlog(processor, keep)
    async with Runtime(workers=[], clock=VirtualClock(1_700_000_000.25), drain_deadline=0) as runtime:
        await runtime.submit(CRATES, id="j")
        assert runtime.metrics().unlogged == 0
    (created,) = [line for line in lines if line["event"] == "job_state_transition" and line.get("trigger") == "create"]
    assert re.fullmatch(told, created["timestamp"])
    assert created["job_id"] == "j"


async def test_a_failed_body_s_traceback_is_in_its_line(kept: Kept, own_structlog: Callable[..., None]) -> None:
    job = await fail()
    shown = [record for record in kept.records if record.exc_text]
    assert [record.getMessage().split(":")[1] for record in shown] == [f" {job}@1/weigh running -> failed"]
    assert "in weighs\n" in logging.Formatter().format(shown[0])
    lines: list[Any] = []

    def keep(_logger: object, _method: str, line: Any) -> Any:
        lines.append(dict(line))
        raise structlog.DropEvent

    own_structlog(keep)
    await fail()
    (line,) = [line for line in lines if line.get("to_state") == "failed" and line["event"].startswith("task")]
    assert "in weighs\n" in line["exception"]
    assert "traceback" not in line["metadata"]


async def test_where_nothing_is_configured_what_went_wrong_is_on_standard_error_and_nothing_else(
    no_logs: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Runtime() as runtime:
        events = runtime.events()  # a reader of events is no log
        await (await runtime.submit(CRATES)).wait()
        events.close()
    output = capsys.readouterr()
    assert output.out == ""
    lines = [line for line in output.err.splitlines() if line.startswith("callboard: task_state_transition")]
    assert len(lines) == 1
    assert "cannot be weighed" in lines[0]
    assert output.err.count("in weighs\n") == 1  # the traceback, once
    assert "completed" not in output.err
    assert "initializing" not in output.err


async def test_a_library_is_silenced_as_any_other_is(
    no_logs: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    no_logs.addHandler(logging.NullHandler())
    await fail()
    assert capsys.readouterr().err == ""


async def test_a_handler_that_raises_disturbs_nothing_and_is_told(
    kept: Kept, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def emit(record: logging.LogRecord) -> None:
        raise SystemExit("the disk of the log is full")

    monkeypatch.setattr(kept, "emit", emit)
    async with Runtime() as runtime:
        job = await runtime.submit(CRATES)
        outcome = await job.wait()
        assert outcome.tasks["weigh"].error_type == "ValueError"
        runtime._services.host.notice("odd", "error", "something is odd")
        assert runtime.metrics().unlogged > 0
    output = capsys.readouterr().err
    assert "callboard: log_broken: " in output
    assert "the disk of the log is full" in output
    assert "something is odd" in output


@pytest.mark.parametrize("where", ["processor", "factory", "logger"])
async def test_a_structlog_that_raises_disturbs_nothing_and_is_told(
    own_structlog: Callable[..., None], where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def raises(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no such field")

    class Logger:
        info = error = critical = warning = raises

    if where == "processor":
        own_structlog(raises)
    else:
        own_structlog(logger_factory=raises if where == "factory" else lambda *_: Logger())
    async with Runtime() as runtime:
        outcome = await (await runtime.submit(CRATES)).wait()
        assert outcome.tasks["weigh"].error_type == "ValueError"
        runtime._services.host.notice("odd", "error", "something is odd")
        assert runtime.metrics().unlogged > 0
    output = capsys.readouterr().err
    assert "no such field" in output
    assert "something is odd" in output


async def test_what_a_body_says_is_named_after_its_own_place(own_structlog: Callable[..., None]) -> None:
    seen: list[Any] = []

    def keep(_: Any, __: str, event: Any) -> Any:
        seen.append(event)
        raise structlog.DropEvent

    own_structlog(structlog.processors.CallsiteParameterAdder(), keep)
    log = task_logger(None, {"task": "weigh"})
    log.bind(crate=1).info("one")
    log.new(task="other").info("two")
    here = "test_what_a_body_says_is_named_after_its_own_place"
    assert [(line["event"], line["func_name"], line["task"]) for line in seen] == [
        ("one", here, "weigh"), ("two", here, "other"),
    ]  # fmt: skip
    assert seen[0]["crate"] == 1


def test_secrets_are_in_no_record_of_logging(kept: Kept) -> None:
    log = task_logger(Mask(["hunter22"]), {})
    try:
        int("hunter22")
    except ValueError:
        log.exception("it is hunter22", deep=[{"in": "hunter22"}])
    (record,) = kept.records
    assert record.exc_info is None
    assert "Traceback" in (record.exc_text or "")
    assert "hunter22" not in f"{record.__dict__} {logging.Formatter().format(record)}"


def test_an_error_comes_with_its_traceback(kept: Kept) -> None:
    with pytest.raises(KeyError) as caught:
        raise KeyError("k")
    raised = caught.value
    write_error("request_failed", "a request failed", raised, path="/")
    (record,) = kept.records
    assert record.exc_info is not None
    assert record.exc_info[1] is raised
    assert "Traceback" in logging.Formatter().format(record)


class Clock:
    now = 5.0


def test_standard_error_is_told_so_much_and_no_more(no_logs: object, capsys: pytest.CaptureFixture[str]) -> None:
    def line(about: int) -> LogLine:
        return LogLine("error", "actor_failed", "it failed", {}, str(about), "Traceback ...\nValueError: no")

    resort = LastResort(lambda: Clock.now)

    def told(times: int, about: Callable[[int], int]) -> int:
        for number in range(times):
            resort.write(line(about(number)))
        return capsys.readouterr().err.count("callboard: actor_failed: it failed")

    resort.write(line(-1))
    assert capsys.readouterr().err.count("Traceback ...") == 1
    assert told(1000, lambda _: 0) == ALIKE
    assert told(1000, lambda number: number) == ALL - ALIKE - 1
    Clock.now += PERIOD - 1
    assert told(1, lambda _: 77) == 0
    Clock.now += 1
    assert told(1, lambda _: 77) == 1


async def test_trouble_that_is_shown_elsewhere_is_not_written(
    no_logs: object, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime = Runtime()
    runtime._services.hub.last_resort = None  # as the command line does
    async with runtime:
        await (await runtime.submit(CRATES)).wait()
    assert "cannot be weighed" not in capsys.readouterr().err


async def test_the_workers_of_a_runtime_that_was_killed_are_no_trouble(
    no_logs: object, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code = f"""
import os, anyio
from callboard import Runtime, Task, Workstream
async def main():
    async with Runtime({str(tmp_path / "j.db")!r}) as runtime:
        await (await runtime.submit(Workstream("w", tasks=[Task("t", command=["true"])]))).wait()
        os._exit(9)
anyio.run(main)
"""
    await anyio.to_thread.run_sync(partial(subprocess.run, [sys.executable, "-c", code], check=False))
    async with Runtime(tmp_path / "j.db") as runtime:
        failed = [row.entity_id for row in runtime.journal.reader.transitions() if row.reason == "runtime_restarted"]
    assert len(failed) >= 3
    assert capsys.readouterr().err == ""


def test_where_nothing_is_configured_tasks_that_a_kill_begins_again_are_no_trouble(
    no_logs: object, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(task: str, state: str, severity: str) -> Transitioned:
        return Transitioned(1, "task", task, 5, "recovering", state, "fail", severity, 1e9, "runtime_restarted")

    EventBus().publish([lost("a@1/again", "retrying", "warning"), lost("a@1/given-up", "failed", "error")])
    output = capsys.readouterr().err
    assert "a@1/again" not in output
    assert "a@1/given-up recovering -> failed: runtime_restarted" in output
