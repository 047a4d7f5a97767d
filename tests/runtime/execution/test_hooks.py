"""Hooks: they run in the folder of their workstream, and their failures are reported."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard import Fire, Hook, MachineActor, Notice, Runtime, Task, TaskContext, VirtualClock, Workstream
from callboard.machines.lifecycles.execution import EXECUTION
from callboard.runtime.functions.folder_modules import module_in

pytestmark = pytest.mark.anyio


async def one() -> int:
    return 1


async def raises() -> None:
    raise ValueError("no such channel")


def plainly_raises() -> None:
    raise ValueError("no such channel")


began: list[anyio.Event] = []


async def never_ends() -> None:
    began[-1].set()
    await anyio.sleep_forever()


async def will_not_end() -> None:
    began[-1].set()
    while True:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            if len(began) > 1:
                raise
            began.append(anyio.Event())


@pytest.mark.parametrize(
    ("hook", "says"),
    [
        (Hook(run=raises), "no such channel"),
        (Hook(run=plainly_raises), "no such channel"),
        (Hook(command="echo it broke; exit 3", shell=True), "exited with 3"),
        (Hook(command=["there-is-no-such-program"]), "there-is-no-such-program"),
    ],
)
@pytest.mark.parametrize("of", ["task", "workstream"])
async def test_a_hook_that_fails_is_told(open_runtime: Callable[..., Runtime], hook: Hook, says: str, of: str) -> None:
    notices: list[Notice] = []
    runtime = open_runtime()
    runtime.on_trouble = notices.append
    on_task, on_stream = ([hook], []) if of == "task" else ([], [hook])
    with anyio.fail_after(300):
        async with runtime:
            spec = Workstream("w", tasks=[Task("a", run=one, on_completed=on_task)], on_completed=on_stream)
            assert (await (await runtime.submit(spec, id="j")).wait()).ok
            await runtime.drain(10)
            assert runtime.failed_hooks == 1
    (notice,) = notices
    owner = "j@1/a" if of == "task" else "j@1"
    assert notice.text.startswith("the on_completed hook `")
    assert f"of {owner} failed" in notice.text
    assert (notice.event, notice.entity_id, notice.job_id) == ("hook_failed", owner, "j")
    assert notice.kind == ("task" if of == "task" else "workstream")
    assert notice.facts["hook"] == "on_completed"
    assert says in notice.facts["error"]


@pytest.mark.parametrize("hook", [Hook(run=never_ends, timeout="1m"), Hook(run=will_not_end, timeout="1m")])
async def test_a_hook_that_takes_too_long_is_told(hook: Hook) -> None:
    told: list[str] = []
    clock = VirtualClock()
    began[:] = [anyio.Event()]
    runtime = Runtime(clock=clock)
    runtime.on_trouble = lambda notice: told.append(notice.text)
    with anyio.fail_after(300):
        async with runtime:
            job = await runtime.submit(Workstream("w", tasks=[Task("a", run=one)], on_completed=[hook]))
            await job.wait()
            await began[0].wait()
            for seconds in (60, 5):  # its limit, and its grace after the order to stop
                clock.advance(seconds)
                await anyio.wait_all_tasks_blocked()
            assert runtime.failed_hooks == 1
            assert "took longer than 60 s" in told[0]
            assert len(told) == 1


async def test_a_hook_that_fails_is_a_line_in_the_log() -> None:
    import structlog

    with structlog.testing.capture_logs() as lines:
        async with Runtime() as runtime:
            spec = Workstream("w", tasks=[Task("a", run=one)], on_completed=[Hook(run=raises)])
            await (await runtime.submit(spec, id="j")).wait()
            await runtime.drain(10)
    structlog.reset_defaults()
    (line,) = [line for line in lines if line["event"] == "hook_failed"]
    assert (line["log_level"], line["entity_id"], line["hook"]) == ("error", "j@1", "on_completed")
    assert "no such channel" in line["error"]


async def test_who_is_told_of_a_failed_hook_may_raise(open_runtime: Callable[..., Runtime]) -> None:
    def fails(notice: Notice) -> None:
        raise RuntimeError(notice.text)

    runtime = open_runtime()
    runtime.on_trouble = fails
    with anyio.fail_after(300):
        async with runtime:
            spec = Workstream("w", tasks=[Task("a", run=one)], on_completed=[Hook(run=raises)])
            assert (await (await runtime.submit(spec)).wait()).ok
            assert (await (await runtime.submit(Workstream("more", tasks=[Task("a", run=one)]))).wait()).ok


async def test_a_hook_runs_in_the_folder_and_with_the_variables_of_what_it_belongs_to(
    open_runtime: Callable[..., Runtime], tmp_path: Path
) -> None:
    (tmp_path / "place" / "inner").mkdir(parents=True)
    program = "import os, json; json.dump([os.environ['WHO'], os.environ['WHY']], open('told.json', 'w'))"
    hooks = [Hook(command=[sys.executable, "-c", program])]
    with anyio.fail_after(300):
        async with open_runtime() as runtime:
            spec = Workstream(
                "w",
                cwd=str(tmp_path / "place"),
                env={"WHO": "stream", "WHY": "hooks"},
                tasks=[Task("a", command=["true"], cwd="inner", env={"WHO": "task"}, on_completed=hooks)],
                on_completed=hooks,
            )
            assert (await (await runtime.submit(spec)).wait()).ok
            await runtime.drain(10)
            assert runtime.failed_hooks == 0
    assert json.loads((tmp_path / "place" / "told.json").read_bytes()) == ["stream", "hooks"]
    assert json.loads((tmp_path / "place" / "inner" / "told.json").read_bytes()) == ["task", "hooks"]


MODULE = """
import anyio
from pathlib import Path

began = anyio.Event()

async def hook():
    began.set()
    first = Path(__file__).with_name("first")
    if not first.exists():
        first.touch()
        await anyio.sleep_forever()
"""


async def test_a_restart_finds_a_hook_in_the_folder_of_its_workstream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hook_of_a_folder.py").write_text(MODULE)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    found: list[str] = []
    monkeypatch.setattr("callboard.runtime.lifespan.closing.CLOSING", 600)  # leaving waits for no hook: it is run again
    with anyio.fail_after(300):
        for start in range(2):
            # As in a new process: the job is over, and nothing else leads to its folder.
            for name in [name for name in sys.modules if name.endswith(".hook_of_a_folder")]:
                monkeypatch.delitem(sys.modules, name)
            async with Runtime(tmp_path / "state.db", drain_deadline=0.0) as runtime:
                runtime.on_trouble = lambda notice: found.append(notice.text)
                if start == 0:
                    spec = Workstream(
                        "w",
                        folder=str(tmp_path),
                        tasks=[Task("a", run=one)],
                        on_completed=[Hook(run="hook_of_a_folder:hook")],
                    )
                    await (await runtime.submit(spec)).wait()
                module: Any = module_in(str(tmp_path), "hook_of_a_folder")
                await module.began.wait()
                assert runtime.failed_hooks == 0
    assert found == []


@pytest.fixture
def be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Writes the module that holds the hook, or takes it away; each time as for a new program."""
    path = tmp_path / "hook_elsewhere.py"
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setitem(sys.modules, "hook_elsewhere", None)  # so that it is as it was afterwards

    def write(text: str | None) -> None:
        path.write_text(text) if text is not None else path.unlink()
        sys.modules.pop("hook_elsewhere", None)
        importlib.invalidate_caches()

    return write


HANGS = "import anyio\nbegan = anyio.Event()\nasync def hook():\n    began.set()\n    await anyio.sleep_forever()\n"
RUNS = """
from pathlib import Path

def hook(task):
    with open(Path(__file__).with_name("ran"), "a") as file:
        file.write(task.task)
"""


@pytest.mark.parametrize("of", ["job", "machine"])
async def test_a_hook_waits_for_a_program_that_has_its_function(
    tmp_path: Path, be: Callable[[str | None], None], of: str
) -> None:
    notices: list[Notice] = []

    def started() -> Runtime:
        runtime = Runtime(tmp_path / "state.db", drain_deadline=0)
        runtime.on_trouble = notices.append
        return runtime

    with anyio.fail_after(300):
        be(HANGS)
        async with started() as runtime:
            module = importlib.import_module("hook_elsewhere")
            if of == "job":
                hooks = [Hook(run="hook_elsewhere:hook")]
                await runtime.submit(Workstream("w", tasks=[Task("a", run=one)], on_completed=hooks), id="x")
            else:
                run = runtime.spawn(MachineActor(EXECUTION, on_enter={"queued": module.hook}), name="x")
                await run.ask(Fire("ENQUEUE"))
            await module.began.wait()
        be(None)
        for _ in range(2):  # programs that only do something else with the journal
            async with started() as runtime:
                await runtime.drain(10)
                assert runtime.failed_hooks == 0
        be(RUNS)
        for _ in range(2):  # it is run once
            async with started() as runtime:
                await runtime.drain(10)
                assert runtime.failed_hooks == 0
    assert (tmp_path / "ran").read_text() == ("w" if of == "job" else "x")
    waits = [notice for notice in notices if notice.event == "hook_waits"]
    hook = "on_completed" if of == "job" else "on_enter queued"
    assert [notice.facts["hook"] for notice in waits] == [hook, hook]
    assert "waits until a program that has its function starts" in waits[0].text
    assert "there is no module 'hook_elsewhere'" in waits[0].text
    assert (waits[0].kind, waits[0].entity_id) == (("workstream", "x@1") if of == "job" else ("machine", "x"))


def gives_up_its_secret(task: TaskContext) -> int:
    os.environ.pop("HOOK_TOKEN")
    return 1


async def test_a_hook_waits_for_a_program_that_has_its_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notices: list[Notice] = []
    monkeypatch.setenv("HOOK_TOKEN", "letmein-please")
    writes = f"import os; open({str(tmp_path / 'ran')!r}, 'a').write(os.environ['HOOK_TOKEN'][:5])"
    for starts in range(4):
        runtime = Runtime(tmp_path / "state.db")
        runtime.on_trouble = notices.append
        async with runtime:
            if not starts:
                hook = Hook(command=[sys.executable, "-c", writes])
                task = Task("a", run=gives_up_its_secret, secrets=["HOOK_TOKEN"], on_completed=[hook])
                spec = Workstream("w", tasks=[task])
                await (await runtime.submit(spec, id="x")).wait()
            await runtime.drain(20)
            assert runtime.failed_hooks == 0
        if starts == 1:
            monkeypatch.setenv("HOOK_TOKEN", "letmein-please")
    assert [(notice.event, notice.entity_id) for notice in notices] == [("hook_waits", "x@1/a")] * 2
    assert "there is no secret 'HOOK_TOKEN'" in notices[0].text
    assert (tmp_path / "ran").read_text() == "letme"


def fails(task: TaskContext) -> None:
    raise ValueError("no such channel")


async def test_a_callback_that_fails_is_told_as_that_of_its_machine(open_runtime: Callable[..., Runtime]) -> None:
    notices: list[Notice] = []
    runtime = open_runtime()
    runtime.on_trouble = notices.append
    async with runtime:
        run = runtime.spawn(MachineActor(EXECUTION, on_exit={"pending": fails}), name="run-1")
        await run.ask(Fire("ENQUEUE"))
        await runtime.drain(10)
    (notice,) = notices
    assert notice.text.startswith("the on_exit pending callback `")
    assert "of machine run-1 failed: ValueError: no such channel" in notice.text
    assert (notice.kind, notice.entity_id, notice.job_id) == ("machine", "run-1", None)
