"""The runtime as an application uses it: submit, wait, cancel, leave, open again. On every loop and both journals."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.processes import runs

from callboard.actors.messages.errors import Permanent, RetryAfter
from callboard.actors.records.transition import Transitioned
from callboard.actors.spec.model import Approval, Check, Condition, Hook, Retry, Task, Tool, Worker, Workstream
from callboard.actors.spec.validate import SpecificationError
from callboard.machines import InvalidTransitionError
from callboard.machines.audit.audit import audit_lines
from callboard.runtime.engines.command import shell as shells
from callboard.runtime.engines.context import TaskContext
from callboard.runtime.errors import JobExists, JournalLocked, RuntimeClosed
from callboard.runtime.handles.jobs import core_of
from callboard.runtime.handles.outcomes import JobFailed
from callboard.runtime.observation import events as observe
from callboard.runtime.observation.events import Dropped
from callboard.runtime.runtime import Runtime

pytestmark = pytest.mark.anyio
NO_WAIT = Retry(max_attempts=3, base_delay=0, max_delay=0)


@pytest.fixture
def durable(tmp_path: Path) -> Callable[..., Runtime]:
    def make(**options: Any) -> Runtime:
        return Runtime(tmp_path / "state.db", **options)

    return make


# -- bodies ------------------------------------------------------------------------------------------------------------


async def one() -> int:
    return 1


async def add(task: TaskContext) -> int:
    return sum(task.results.values()) + task.args.get("more", 0)


def plain(task: TaskContext) -> str:
    return f"{task.task}:{task.attempt}"


gates: dict[str, anyio.Event] = {}
seen: list[str] = []


async def forever(task: TaskContext) -> None:
    seen.append(f"{task.task} started")
    gates["started"].set()
    try:
        await anyio.sleep_forever()
    finally:
        seen.append(f"{task.task} stopped")


async def raises(task: TaskContext) -> None:
    kinds: dict[str, Callable[[], BaseException]] = {
        "exception": lambda: ValueError("no"),
        "base": lambda: BaseException("odd"),
        "interrupt": KeyboardInterrupt,
        "exit": lambda: SystemExit(3),
        "group": lambda: ExceptionGroup("several", [ValueError("a"), OSError("b")]),
    }
    raise kinds[task.args["kind"]]()


async def not_json() -> object:
    return object()


async def flaky(task: TaskContext) -> int:
    if task.attempt < 3:
        raise RuntimeError("try again")
    return task.attempt


async def permanent() -> None:
    raise Permanent("cannot ever work")


async def later(task: TaskContext) -> int:
    if task.attempt == 1:
        raise RetryAfter(0.0)
    return task.attempt


async def tells(task: TaskContext) -> Any:
    if task.attempt == 1:
        task.heartbeat({"row": 17})
        raise ValueError("after a heartbeat")
    return task.details


@pytest.fixture(autouse=True)
def _fresh() -> None:
    seen.clear()
    gates.clear()


# -- running -----------------------------------------------------------------------------------------------------------


async def test_results_travel_along_the_dependencies(open_runtime: Callable[..., Runtime]) -> None:
    async with open_runtime() as runtime:
        job = await runtime.submit(
            Workstream(
                "sum",
                tasks=[
                    Task("a", run=one),
                    Task("b", run=one),
                    Task("c", run=add, depends_on=["a", "b"], args={"more": 40}),
                    Task("d", run=plain, depends_on=["c"]),
                ],
            )
        )
        outcome = await job.wait()
    assert outcome.state == "completed"
    assert outcome.results == {"a": 1, "b": 1, "c": 42, "d": "d:1"}
    assert outcome.raise_for_state() is outcome


async def test_an_empty_workstream_completes(open_runtime: Callable[..., Runtime]) -> None:
    async with open_runtime() as runtime:
        outcome = await (await runtime.submit(Workstream("nothing"))).wait()
    assert (outcome.state, outcome.results) == ("completed", {})


@pytest.mark.parametrize("kind", ["exception", "base", "interrupt", "exit", "group"])
async def test_whatever_a_body_raises_fails_its_task_only(open_runtime: Callable[..., Runtime], kind: str) -> None:
    async with open_runtime() as runtime:
        job = await runtime.submit(
            Workstream("w", tasks=[Task("bad", run=raises, args={"kind": kind}, optional=True), Task("good", run=one)])
        )
        outcome = await job.wait()
    assert outcome.state == "completed"
    assert outcome.tasks["bad"].state == "failed"
    assert outcome.tasks["bad"].last_error
    assert outcome.tasks["good"].state == "completed"


async def test_a_result_that_json_cannot_hold_is_a_failure(open_runtime: Callable[..., Runtime]) -> None:
    async with open_runtime() as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("odd", run=not_json, retry=NO_WAIT)]))
        outcome = await job.wait()
    task = outcome.tasks["odd"]
    assert (task.state, task.error_type, task.attempt) == ("failed", "result_not_serialisable", 1)
    with pytest.raises(JobFailed, match="odd"):
        outcome.raise_for_state()


async def test_failures_are_retried_only_when_asked(open_runtime: Callable[..., Runtime]) -> None:
    async with open_runtime() as runtime:
        spec = [Task("patient", run=flaky, retry=NO_WAIT), Task("once", run=flaky, optional=True)]
        outcome = await (await runtime.submit(Workstream("w", tasks=spec))).wait()
    assert outcome.results == {"patient": 3}
    assert outcome.tasks["patient"].failed_attempts == 2
    assert outcome.tasks["once"].attempt == 1


async def test_permanent_errors_and_retry_after(open_runtime: Callable[..., Runtime]) -> None:
    slow = Retry(max_attempts=5, base_delay="1h", max_delay="1h")
    async with open_runtime() as runtime:
        spec = [Task("never", run=permanent, retry=slow, optional=True), Task("soon", run=later, retry=slow)]
        outcome = await (await runtime.submit(Workstream("w", tasks=spec))).wait()
    assert outcome.tasks["never"].attempt == 1
    assert outcome.results == {"soon": 2}


async def test_the_record_of_a_task_has_what_its_body_returned_and_told_as_values(
    open_runtime: Callable[..., Runtime],
) -> None:
    async with open_runtime() as runtime:
        spec = [Task("t", run=tells, retry=NO_WAIT), Task("one", run=one), Task("no", run=permanent, optional=True)]
        job = await runtime.submit(Workstream("w", tasks=spec))
        outcome = await job.wait()
        assert outcome.tasks["one"].result == outcome.results["one"] == 1
        assert (outcome.tasks["t"].result, outcome.tasks["t"].details) == ({"row": 17}, {"row": 17})
        assert (outcome.tasks["no"].result, outcome.tasks["no"].checkpoint) == (None, None)
        assert job.task("one").record.result == 1


async def test_heartbeat_details_reach_the_next_attempt(open_runtime: Callable[..., Runtime]) -> None:
    async with open_runtime() as runtime:
        outcome = await (await runtime.submit(Workstream("w", tasks=[Task("t", run=tells, retry=NO_WAIT)]))).wait()
    assert outcome.results == {"t": {"row": 17}}


async def test_where_there_is_no_bash_a_pipeline_is_told_of_once(
    open_runtime: Callable[..., Runtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shells, "bash", lambda: None)
    async with open_runtime() as runtime:
        notices = runtime.events(event="no_pipefail")
        lines = [Task(name, command="true | true", shell=True) for name in ("a", "b")]
        spec = Workstream("w", tasks=[Task("plain", command="true", shell=True), *lines])
        assert (await (await runtime.submit(spec)).wait()).ok
        notices.close()
        (told,) = [notice async for notice in notices]
    assert told.severity == "warning"


async def test_commands_conditions_checks_and_hooks(open_runtime: Callable[..., Runtime], tmp_path: Path) -> None:
    made = tmp_path / "made.txt"
    script = "import os, json; print(json.load(open(os.environ['CALLBOARD_RESULTS']))['a'] + 1)"
    async with open_runtime() as runtime:
        spec = Workstream(
            "w",
            cwd=str(tmp_path),
            tasks=[
                Task("a", run=one),
                Task("print", command=[sys.executable, "-c", script], depends_on=["a"]),
                Task("touch", command="echo made > made.txt", shell=True, checks=[Check(file="made.txt")]),
                Task("unchecked", command=["true"], checks=[Check(file="missing.txt")], optional=True),
                Task("importable", run=one, checks=[Check(imports="json"), Check(command=["true"])]),
                Task("unmet", run=one, condition=Condition(command=["false"])),
                Task("met", run=one, condition=Condition(command=["true"])),
            ],
            on_completed=[Hook(command=[sys.executable, "-c", HOOK])],
        )
        job = await runtime.submit(spec)
        outcome = await job.wait()
        await runtime.drain(10)
    assert outcome.state == "completed"
    assert outcome.results["print"] == {"exit_code": 0, "output": "2"}
    assert made.exists()
    assert outcome.tasks["unchecked"].state == "failed"
    assert outcome.tasks["importable"].state == "completed"
    assert outcome.tasks["unmet"].state == "skipped"
    assert outcome.tasks["met"].state == "completed"


HOOK = "import os, json; assert json.loads(os.environ['CALLBOARD_EVENT'])['state'] == 'completed'"


async def test_hooks_run_with_what_happened(open_runtime: Callable[..., Runtime]) -> None:
    told: list[dict[str, Any]] = []
    ran = anyio.Event()

    async with open_runtime() as runtime:

        @runtime.task
        async def note(task: TaskContext) -> None:
            told.append(task.args)
            ran.set()

        await runtime.submit(Workstream("w", tasks=[Task("bad", run=permanent)], on_failed=[Hook(run=note)]))
        with anyio.fail_after(300):
            await ran.wait()
    assert told[0]["state"] == "failed"
    assert "bad" in told[0]["reason"]


async def notes(task: TaskContext) -> None:
    seen.append(f"{task.args['state']} noted")


async def test_a_hook_runs_once_however_often_the_journal_is_opened(durable: Callable[..., Runtime]) -> None:
    async with durable() as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("a", run=one)], on_completed=[Hook(run=notes)]))
        await job.wait()
    for _ in range(2):
        async with durable():
            pass
    assert seen == ["completed noted"]


async def test_commands_that_cannot_start_say_why(open_runtime: Callable[..., Runtime], tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no program")
    async with open_runtime() as runtime:
        spec = [
            Task("missing", command=["no-such-program-here"], optional=True, retry=NO_WAIT),
            Task("text", command=[str(text)], optional=True),
        ]
        outcome = await (await runtime.submit(Workstream("w", tasks=spec))).wait()
    assert outcome.tasks["missing"].state == "failed"
    assert outcome.tasks["missing"].attempt == 1  # another try cannot help
    assert "no-such-program-here" in (outcome.tasks["missing"].last_error or "")
    assert outcome.tasks["text"].state == "failed"


async def test_limits_on_parallel_attempts_hold(open_runtime: Callable[..., Runtime]) -> None:
    running = {"all": 0, "db": 0}
    most = {"all": 0, "db": 0}

    async with open_runtime() as runtime:

        @runtime.task
        async def counted(task: TaskContext) -> None:
            names = ["all", "db"] if task.task.startswith("db") else ["all"]
            for name in names:
                running[name] += 1
                most[name] = max(most[name], running[name])
            await anyio.lowlevel.checkpoint()
            for name in names:
                running[name] -= 1

        tasks = [Task(f"db{i}", run=counted, tool="db") for i in range(20)] + [
            Task(f"x{i}", run=counted) for i in range(20)
        ]
        job = await runtime.submit(Workstream("w", tasks=tasks, max_parallel=5, tools={"db": Tool(max_parallel=2)}))
        outcome = await job.wait()
    assert outcome.ok
    assert most["all"] <= 5
    assert most["db"] <= 2


async def test_what_no_worker_can_run_is_shown_and_fails_in_time(open_runtime: Callable[..., Runtime]) -> None:
    async with open_runtime(workers=[Worker("loop", engine="loop", capacity=2)]) as runtime:
        spec = [Task("gpu", run=one, capabilities=["gpu"], unroutable_timeout=0.05)]
        job = await runtime.submit(Workstream("w", tasks=spec))
        outcome = await job.wait()
    assert outcome.tasks["gpu"].state == "failed"
    assert "gpu" in (outcome.tasks["gpu"].last_error or "")


# -- bad input ---------------------------------------------------------------------------------------------------------


async def test_a_bad_workstream_is_refused_whole_and_leaves_nothing(open_runtime: Callable[..., Runtime]) -> None:
    async with open_runtime() as runtime:
        with pytest.raises(SpecificationError) as refused:
            await runtime.submit(
                Workstream(
                    "w",
                    tasks=[
                        Task("a", run=one, depends_on=["b"]),
                        Task("b", run=one, depends_on=["a"]),
                        Task("b", run=one),
                    ],
                )
            )
        assert runtime.journal.reader.jobs() == []
    assert len(refused.value.findings) >= 2


async def test_a_function_without_a_name_needs_a_volatile_journal(durable: Callable[..., Runtime]) -> None:
    async with durable() as runtime:
        with pytest.raises(SpecificationError, match="lambda"):
            await runtime.submit(Workstream("w", tasks=[Task("a", run=lambda: 1)]))
    async with Runtime() as runtime:
        outcome = await (await runtime.submit(Workstream("w", tasks=[Task("a", run=lambda: 1)]))).wait()
    assert outcome.results == {"a": 1}


@pytest.mark.parametrize("job_id", ["", "../up", "a/b", ".hidden", "-x", "ä", "x" * 200])
async def test_job_ids_that_cannot_be_folders_are_refused(job_id: str) -> None:
    async with Runtime() as runtime:
        with pytest.raises(ValueError, match="cannot be a job's id"):
            await runtime.submit(Workstream("w"), id=job_id)


# -- the same job again ------------------------------------------------------------------------------------------------


async def test_the_same_id_is_the_same_job(open_runtime: Callable[..., Runtime]) -> None:
    spec = Workstream("w", tasks=[Task("a", run=one)])
    async with open_runtime() as runtime:
        first = await runtime.submit(spec, id="nightly")
        again = await runtime.submit(spec, id="nightly")
        await first.wait()
        assert (await again.wait()).results == {"a": 1}
        ended = await runtime.submit(spec, id="nightly")
        assert (await ended.wait()).results == {"a": 1}
        with pytest.raises(JobExists, match="nightly"):
            await runtime.submit(Workstream("other"), id="nightly")
        assert len(runtime.journal.reader.jobs()) == 1


async def test_submitting_at_the_same_moment_makes_one_job(open_runtime: Callable[..., Runtime]) -> None:
    spec = Workstream("w", tasks=[Task("a", run=one)])
    async with open_runtime() as runtime:
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(lambda: runtime.submit(spec, id="once"))
        assert len(runtime.journal.reader.jobs()) == 1


async def test_a_caller_that_goes_away_leaves_its_id_in_flight(open_runtime: Callable[..., Runtime]) -> None:
    spec = Workstream("w", tasks=[Task("a", run=one)])
    async with open_runtime() as runtime:
        held = KeptInbox(runtime._services.host._inbox)
        runtime._services.host._inbox = held  # type: ignore[assignment]
        with anyio.move_on_after(0):
            await runtime.submit(spec, id="once")
        while not held.messages:  # it was cancelled before it had got there
            with anyio.move_on_after(0.01):
                await runtime.submit(spec, id="once")
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: runtime.submit(spec, id="once"))
            await anyio.wait_all_tasks_blocked()
            held.let_go(runtime)
        submitted = [row for row in runtime.journal.reader.transitions(entity_id="once") if row.from_state is None]
        assert (len(held.messages), len(submitted)) == (1, 1)


class KeptInbox:
    """An inbox that keeps its messages."""

    def __init__(self, inbox: Any) -> None:
        self.inbox = inbox
        self.messages: list[Any] = []

    def tell(self, message: Any) -> None:
        self.messages.append(message)

    def let_go(self, runtime: Runtime) -> None:
        runtime._services.host._inbox = self.inbox
        for message in self.messages:
            self.inbox.tell(message)


async def test_an_ended_job_is_known_after_a_restart(durable: Callable[..., Runtime]) -> None:
    spec = Workstream("w", tasks=[Task("a", run=one)])
    async with durable() as runtime:
        await (await runtime.submit(spec, id="nightly")).wait()
    async with durable() as runtime:
        outcome = await (await runtime.submit(spec, id="nightly")).wait()
        assert outcome.results == {"a": 1}
        assert (await (await runtime.job("nightly")).wait()).ok
        with pytest.raises(LookupError, match="no job"):
            await runtime.job("weekly")


async def test_the_record_of_an_ended_job_is_its_last_one_however_the_handle_came(
    durable: Callable[..., Runtime],
) -> None:
    async with durable() as runtime:
        held = await runtime.submit(Workstream("w", tasks=[Task("a", run=one), Task("b", run=raises)]), id="nightly")
        await held.wait()
        found = await runtime.job("nightly")
        assert (found.record, found.task("b").record) == (held.record, held.task("b").record)
    async with durable() as runtime:
        known = await runtime.job("nightly")
        assert (known.record, known.task("a").record) == (held.record, held.task("a").record)
    assert (held.record.state, held.record.name, held.task("a").record.state) == ("failed", "w", "completed")


# -- cancelling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("force", [False, True])
async def test_cancelling_a_job_stops_its_bodies(open_runtime: Callable[..., Runtime], force: bool) -> None:
    gates["started"] = anyio.Event()
    async with open_runtime() as runtime:
        spec = [Task("long", run=forever), Task("next", run=one, depends_on=["long"])]
        job = await runtime.submit(Workstream("w", tasks=spec))
        await gates["started"].wait()
        await job.cancel("enough", force=force)
        outcome = await job.wait()
        for handle in (job, await runtime.job(job.id)):
            with pytest.raises(InvalidTransitionError) as refused:
                await handle.cancel()
            error = refused.value
            assert (error.machine, error.state, error.event) == ("job", "cancelled", "cancel")
            assert error.allowed == frozenset()
            with pytest.raises(InvalidTransitionError) as refused:
                await handle.task("next").cancel()
            error = refused.value
            assert (error.machine, error.state, error.event) == ("task", "cancelled", "cancel")
            assert error.allowed == frozenset()
    assert outcome.state == "cancelled"
    assert {name: str(task.state) for name, task in outcome.tasks.items()} == {"long": "cancelled", "next": "cancelled"}
    assert seen == ["long started", "long stopped"]


async def test_a_cancel_that_finds_its_job_let_go_is_refused_as_one_that_comes_too_late(
    open_runtime: Callable[..., Runtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_runtime() as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("a", run=one)]))
        monkeypatch.setattr(core_of(job), "settle", lambda *_: None)  # so that the handle has not learned of it yet
        await (await runtime.job(job.id)).wait()
        with pytest.raises(InvalidTransitionError, match="job: 'cancel' is not possible in state 'completed'"):
            await job.cancel()
        with pytest.raises(InvalidTransitionError, match="task: 'cancel' is not possible in state 'completed'"):
            await job.task("a").cancel()


async def test_a_refusal_says_what_was_tried_and_what_to_do(open_runtime: Callable[..., Runtime]) -> None:
    gates["started"] = anyio.Event()
    async with open_runtime() as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("long", run=forever)]))
        await gates["started"].wait()
        with pytest.raises(InvalidTransitionError, match=r"task: 'retry' is not possible in .*running'.*is parked"):
            await job.retry("long")
        with pytest.raises(InvalidTransitionError, match=r"job: 'retry' is not possible in state 'running'.*cancel it"):
            await job.retry()
        with pytest.raises(
            InvalidTransitionError, match=r"worker loop: 'start' is not possible in state .*shut it down or"
        ):
            await runtime.workers()[0].start()
        await job.cancel()
        await job.wait()
        done = await runtime.submit(Workstream("w", tasks=[Task("a", run=one)]))
        await done.wait()
        with pytest.raises(InvalidTransitionError, match=r"'retry' is not possible in state 'completed'.*name a task"):
            await done.retry()


async def test_a_task_that_there_is_not_is_told_with_those_that_there_are(open_runtime: Callable[..., Runtime]) -> None:
    async with open_runtime() as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task(f"task-{number}", run=one) for number in range(30)]))
        task = job.task("task-1")
        task.name = "gone"  # as a handle whose task does not exist any more
        for ask in (lambda: job.task("gone"), lambda: job.output("gone"), lambda: task.record):
            with pytest.raises(LookupError, match=f"job '{job.id}' has no task 'gone'; it has: task-0, .* and 10 more"):
                ask()
        with pytest.raises(LookupError, match="no task 'gone'"):
            await task.cancel()


async def test_arguments_of_another_type_are_told_by_what_was_expected(open_runtime: Callable[..., Runtime]) -> None:
    async with open_runtime() as runtime:
        stream = Workstream("w", tasks=[Task("a", run=one)])
        wrong: list[tuple[Callable[[], Any], str]] = [
            (lambda: runtime.submit("hello"), "submit takes a Workstream, not 'hello'"),  # type: ignore[arg-type]
            (lambda: runtime.submit(None), "submit takes a Workstream, not None"),  # type: ignore[arg-type]
            (lambda: runtime.submit(stream, id=7), "a job's id is a str, not 7"),  # type: ignore[arg-type]
            (lambda: runtime.submit(stream, id=b"x"), "a job's id is a str, not b'x'"),  # type: ignore[arg-type]
            (lambda: runtime.job(7), "a job's id is a str, not 7"),  # type: ignore[arg-type]
        ]
        for call, text in wrong:
            with pytest.raises(TypeError, match=text):
                await call()
        job = await runtime.submit(stream)
        with pytest.raises(TypeError, match="the reason must be a str, not 7"):
            await job.cancel(7)  # type: ignore[arg-type]
        assert (await job.wait()).ok
    with pytest.raises(TypeError, match="journal is a path, a Journal or None, not 7"):
        Runtime(7)  # type: ignore[arg-type]


async def test_cancelling_a_command_kills_its_group(open_runtime: Callable[..., Runtime], tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    async with open_runtime() as runtime:
        script = f"trap '' TERM; sleep 1000 & echo $! > {pid_file}; wait; wait"
        job = await runtime.submit(Workstream("w", tasks=[Task("c", command=script, shell=True, kill_grace=0.05)]))
        with anyio.fail_after(300):
            while not (pid_file.exists() and pid_file.read_text().strip()):
                await anyio.sleep(0.01)
        await job.cancel()
        outcome = await job.wait()
    assert outcome.state == "cancelled"
    assert not runs(int(pid_file.read_text()))


async def test_cancelling_one_task_of_many(open_runtime: Callable[..., Runtime]) -> None:
    gates["started"] = anyio.Event()
    async with open_runtime() as runtime:
        spec = [Task("long", run=forever, optional=True), Task("short", run=one)]
        job = await runtime.submit(Workstream("w", tasks=spec))
        await gates["started"].wait()
        await job.task("long").cancel()
        outcome = await job.wait()
        with pytest.raises(LookupError, match="no task 'other'"):
            job.task("other")
    assert outcome.state == "completed"
    assert outcome.tasks["long"].state == "cancelled"


async def test_a_deadline_cancels(open_runtime: Callable[..., Runtime]) -> None:
    gates["started"] = anyio.Event()
    async with open_runtime() as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("long", run=forever)], deadline=0.1))
        outcome = await job.wait()
    assert outcome.state == "cancelled"
    assert "deadline" in (outcome.error or "")


# -- observing ---------------------------------------------------------------------------------------------------------


async def test_events_of_a_job_come_in_order_and_end(open_runtime: Callable[..., Runtime]) -> None:
    async with open_runtime() as runtime:
        everything = runtime.events()
        job = await runtime.submit(Workstream("w", tasks=[Task("a", run=one), Task("b", run=one, depends_on=["a"])]))
        await job.wait()
        told = []
        async for event in everything:
            assert not isinstance(event, Dropped)
            told.append(event)
            if event.entity_id == job.id and event.to_state == "completed":
                break
    path = [(event.from_state, event.to_state) for event in told if event.entity_id == f"{job.id}@1/b"]
    assert path == [
        (None, "pending"), ("pending", "queued"), ("queued", "running"), ("running", "validating"),
        ("validating", "completed"),
    ]  # fmt: skip
    assert [event.seq for event in told] == list(range(told[0].seq, told[0].seq + len(told)))


async def test_a_job_s_events_begin_with_its_submission_however_late_one_asks(
    open_runtime: Callable[..., Runtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observe, "PAGE", 4)  # so that the past has several pages
    async with open_runtime() as runtime:
        everything = runtime.events(notices=False)
        job = await runtime.submit(Workstream("w", tasks=[Task("a", run=one), Task("b", run=one, depends_on=["a"])]))
        other = await runtime.submit(Workstream("w", tasks=[Task("a", run=one)]))
        early = job.events(notices=False)
        await job.wait()
        await other.wait()
        ended = job.events(notices=False)
        again = (await runtime.job(job.id)).events(task="b", to_state="completed")
        late = [event async for event in ended]
        unread = job.events(notices=False)
    whole = [event async for event in everything if isinstance(event, Transitioned) and event.job_id == job.id]
    assert next(event for event in whole if event.kind == "task").from_state is None
    assert [event async for event in early] == late == [event async for event in unread] == whole
    assert [event.entity_id async for event in again if isinstance(event, Transitioned)] == [f"{job.id}@1/b"]
    assert [event async for event in job.events()] == []  # the journal is closed


async def test_the_past_of_a_job_that_goes_on_and_its_present_meet(open_runtime: Callable[..., Runtime]) -> None:
    async with open_runtime() as runtime:
        everything = runtime.events(notices=False)
        tasks = [Task(f"t{n}", run=one, depends_on=[f"t{n - 1}"] if n else []) for n in range(60)]
        job = await runtime.submit(Workstream("w", tasks=tasks))
        seen: list[list[object]] = []

        async def follow() -> None:
            seen.append([event async for event in job.events(notices=False)])

        async with anyio.create_task_group() as group:
            async for event in everything:
                if isinstance(event, Transitioned) and (event.kind, event.to_state) == ("task", "completed"):
                    group.start_soon(follow)
                if job.ended:
                    break
    assert len(seen) > 10
    assert all(one_s == seen[0] for one_s in seen)


async def test_what_a_slow_reader_never_read_of_the_past_is_told_as_dropped() -> None:
    async with Runtime() as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("a", run=one)]))
        await job.wait()
        whole = [event async for event in job.events(notices=False)]
        events = job.events(notices=False, size=3)
    assert [event async for event in events] == [Dropped(len(whole) - 3), *whole[-3:]]


async def test_a_slow_reader_is_told_what_it_missed(open_runtime: Callable[..., Runtime]) -> None:
    async with open_runtime() as runtime:
        events = runtime.events(size=3)
        await (await runtime.submit(Workstream("w", tasks=[Task("a", run=one)]))).wait()
        events.close()
        rows = [event async for event in events]
    assert isinstance(rows[0], Dropped)
    assert rows[0].count > 0
    assert len(rows) == 4


async def test_transitions_go_to_a_configured_structlog(open_runtime: Callable[..., Runtime]) -> None:
    import structlog

    try:
        with structlog.testing.capture_logs() as lines:
            structlog.configure(processors=structlog.get_config()["processors"])
            async with open_runtime() as runtime:
                job = await runtime.submit(Workstream("w", tasks=[Task("a", run=permanent, optional=True)]))
                await job.wait()
    finally:
        structlog.reset_defaults()  # last: leaving `capture_logs` configures it too
    failed = [line for line in lines if line.get("to_state") == "failed"]
    assert failed[0]["event"] == "task_state_transition"
    assert failed[0]["log_level"] == "error"
    assert failed[0]["workstream_id"] == f"{job.id}@1"


async def test_the_log_of_transitions_is_clean(durable: Callable[..., Runtime], tmp_path: Path) -> None:
    log = tmp_path / "transitions.jsonl"
    async with durable(jsonl=log) as runtime:
        tasks = [
            Task("a", run=flaky, retry=NO_WAIT),
            Task("b", run=permanent, optional=True),
            Task("c", run=one, after=["b"]),
        ]
        assert (await (await runtime.submit(Workstream("w", tasks=tasks))).wait()).ok
    with log.open("rb") as lines:
        assert list(audit_lines(lines)) == []
    assert log.read_bytes().count(b"\n") > 20


# -- leaving and coming back -------------------------------------------------------------------------------------------


async def test_leaving_gives_tries_back_and_the_next_start_goes_on(durable: Callable[..., Runtime]) -> None:
    gates["started"] = anyio.Event()
    async with durable(drain_deadline=0) as runtime:
        job = await runtime.submit(
            Workstream("w", tasks=[Task("a", run=one), Task("b", run=forever, depends_on=["a"])]), id="j"
        )
        await gates["started"].wait()
    with pytest.raises(RuntimeClosed):
        await job.wait()
    assert seen == ["b started", "b stopped"]
    gates["started"] = anyio.Event()
    async with durable(drain_deadline=0) as runtime:
        (job,) = runtime.recovered
        await gates["started"].wait()
        record = job.task("b").record
        assert (record.attempt, record.failed_attempts, record.lost_attempts) == (2, 0, 0)
        assert job.task("a").record.attempt == 1
        await job.cancel()
        assert (await job.wait()).state == "cancelled"


async def test_leaving_waits_for_what_runs(open_runtime: Callable[..., Runtime]) -> None:
    release = anyio.Event()

    async with open_runtime() as runtime:

        @runtime.task
        async def slow() -> str:
            gates["started"].set()
            await release.wait()
            return "done"

        gates["started"] = anyio.Event()
        job = await runtime.submit(Workstream("w", tasks=[Task("a", run=slow)]))
        await gates["started"].wait()
        release.set()
    assert (await job.wait()).results == {"a": "done"}


async def test_an_error_in_the_application_comes_through_unchanged(open_runtime: Callable[..., Runtime]) -> None:
    gates["started"] = anyio.Event()
    with pytest.raises(ValueError, match="the application's own"):
        async with open_runtime() as runtime:
            await runtime.submit(Workstream("w", tasks=[Task("a", run=forever)]))
            await gates["started"].wait()
            raise ValueError("the application's own")
    assert seen == ["a started", "a stopped"]


async def test_an_application_that_is_cancelled_closes_its_runtime(durable: Callable[..., Runtime]) -> None:
    gates["started"] = anyio.Event()
    with anyio.CancelScope() as scope:
        async with durable() as runtime:
            await runtime.submit(Workstream("w", tasks=[Task("a", run=forever)]), id="j")
            await gates["started"].wait()
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    gates["started"] = anyio.Event()
    async with durable(drain_deadline=0) as runtime:
        await gates["started"].wait()
        assert [job.id for job in runtime.recovered] == ["j"]


async def test_a_closed_runtime_says_so(open_runtime: Callable[..., Runtime]) -> None:
    runtime = open_runtime()
    with pytest.raises(RuntimeClosed):
        await runtime.submit(Workstream("w"))
    async with runtime:
        pass
    with pytest.raises(RuntimeClosed):
        await runtime.submit(Workstream("w"))


async def test_a_runtime_is_entered_once_and_a_second_time_disturbs_nothing(
    open_runtime: Callable[..., Runtime],
) -> None:
    runtime = open_runtime()
    with anyio.fail_after(300):
        async with runtime:
            with pytest.raises(RuntimeError, match=r"is in use: make another Runtime\(\.\.\.\)"):
                await runtime.__aenter__()
            outcome = await (await runtime.submit(Workstream("w", tasks=[Task("a", run=one)]))).wait()
            assert outcome.ok
        with pytest.raises(RuntimeError, match=r"was closed: make another Runtime\(\.\.\.\)"):
            await runtime.__aenter__()
        async with open_runtime():
            pass


async def test_what_cannot_be_asked_before_it_was_entered_says_so(open_runtime: Callable[..., Runtime]) -> None:
    runtime = open_runtime()
    for ask in (lambda: runtime.health, lambda: runtime.failed_hooks, runtime.metrics, runtime.workers):
        with pytest.raises(RuntimeClosed):
            ask()
    with pytest.raises(RuntimeClosed):
        await runtime.drain()
    async with runtime:
        pass
    with pytest.raises(RuntimeClosed):
        await runtime.drain()
    assert runtime.health.ok


async def test_a_second_runtime_on_the_same_file_is_refused(durable: Callable[..., Runtime]) -> None:
    async with durable() as runtime:
        with pytest.raises(JournalLocked, match=str(os.getpid())):
            async with durable():
                raise AssertionError("it must not open")
        outcome = await (await runtime.submit(Workstream("w", tasks=[Task("a", run=one)]))).wait()
    assert outcome.ok


async def test_two_runtimes_in_one_program() -> None:
    async with Runtime() as first, Runtime() as second:
        one_job = await first.submit(Workstream("w", tasks=[Task("a", run=one)]))
        other = await second.submit(Workstream("w", tasks=[Task("a", run=one)]))
        assert (await one_job.wait()).ok
        assert (await other.wait()).ok


async def test_an_error_says_its_type_and_where_and_keeps_its_traceback(open_runtime: Callable[..., Runtime]) -> None:
    async with open_runtime() as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("a", run=flaky)]))
        outcome = await job.wait()
        (attempt,) = runtime.journal.reader.attempts(outcome.tasks["a"].id)
    assert re.fullmatch(
        r"RuntimeError: try again \(test_runtime\.py:\d+ in flaky\)", outcome.tasks["a"].last_error or ""
    )
    assert "raise RuntimeError" in (attempt.traceback or "")


async def test_a_recovered_task_waits_for_its_function_to_be_registered(durable: Callable[..., Runtime]) -> None:
    gates["started"] = anyio.Event()
    async with durable(drain_deadline=0) as runtime:

        @runtime.task
        async def build() -> None:
            gates["started"].set()
            await anyio.sleep_forever()

        await runtime.submit(Workstream("w", tasks=[Task("a", run="build")]), id="j")
        await gates["started"].wait()
    async with durable() as runtime:
        (job,) = runtime.recovered
        assert job.task("a").record.state == "queued"
        assert "function cannot be found" in (job.task("a").record.reason or "")
        assert not job.task("a").record.routable

        @runtime.task
        async def build() -> str:
            return "built"

        with anyio.fail_after(300):
            assert (await job.wait()).results == {"a": "built"}


async def test_arguments_that_cannot_be_meant_are_refused_and_undo_no_turn(
    open_runtime: Callable[..., Runtime],
) -> None:
    told: list[str] = []
    runtime = open_runtime(tools={"svc": Tool()}, drain_deadline=0)
    runtime.on_trouble = lambda notice: told.append(notice.event)
    async with runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("a", run=forever, hold=Approval())]))
        ended = await runtime.submit(Workstream("w"))
        await ended.wait()
        task, breaker = job.task("a"), runtime.breaker("svc")
        for wrong in (None, 5, b"x"):
            for one in (job, ended):
                with pytest.raises(TypeError, match="the name of a task is a str"):
                    await one.skip(wrong)  # type: ignore[arg-type]
        for wrong in (5, b"x"):
            with pytest.raises(TypeError, match="the name of a task is a str"):
                await ended.retry(wrong)  # type: ignore[arg-type]
            for verb in (job.pause, job.resume, job.cancel, task.cancel, breaker.reset):
                with pytest.raises(TypeError, match="`by` is the name of the author"):
                    await verb(by=wrong)  # type: ignore[operator]
        for verb in (job.cancel, task.cancel):
            with pytest.raises(TypeError, match="force is True or False"):
                await verb(force="no")
        for wrong in (5, {"a": 1}, [5], b"x"):
            with pytest.raises(TypeError, match="check is a Hook"):
                await breaker.reset(check=wrong)  # type: ignore[arg-type]
        await task.cancel("not now", by="ana")
        await job.wait()
    assert not told
    assert task.record.state == "cancelled"


async def test_tables_in_place_of_structs_are_read_as_a_file_is(open_runtime: Callable[..., Runtime]) -> None:
    async with open_runtime() as runtime:
        stream = Workstream("w", tasks=[Task("a", run=one, retry={"max_attempts": 2})], defaults={"timeout": 3})  # type: ignore[arg-type]
        assert (await (await runtime.submit(stream)).wait()).ok
        with pytest.raises(SpecificationError, match="defaults"):
            await runtime.submit(Workstream("w", defaults={"tmeout": 3}))  # type: ignore[arg-type]
