"""The leftover processes of a killed runtime are ended before their work runs again, whatever they were for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from msgspec.structs import replace
from tests.processes import runs
from tests.waiting import wait_until

from callboard import Notice, Runtime
from callboard.actors.records.task import AttemptRecord
from callboard.runtime.execution import orphans as leftovers
from callboard.runtime.execution.orphans import UNASKED, kill_leftovers
from callboard.runtime.processes import os_processes as processes
from callboard.runtime.processes.identity import Origin
from callboard.runtime.processes.os_processes import ASKED_BY, TOKEN, booted_at, start_time

pytestmark = pytest.mark.anyio
LONGEST = 60.0
JOURNAL = uuid4().hex  # the same tests may run at the same time, and must not find processes of these
ATTEMPT = AttemptRecord(key=7, task=1, task_id="j@1/a", attempt=1, claimed_at=1.0)
SH = "command=['sh', '-c', NAP]"
STREAMS = {
    "attempt": f"Workstream('w', tasks=[Task('a', {SH})])",
    "condition": f"Workstream('w', tasks=[Task('a', command=['true'], condition=Condition({SH}))])",
    "check": f"Workstream('w', tasks=[Task('a', command=['true'], checks=[Check({SH})])])",
    "check of a workstream": f"Workstream('w', tasks=[Task('a', command=['true'])], checks=[Check({SH})])",
    "hook": f"Workstream('w', tasks=[Task('a', command=['true'], on_completed=[Hook({SH})])])",
    "alert": f"Workstream('w', tasks=[Task('a', command=['false'])], alerts=[Alert({SH})])",
    "own session": "Workstream('w', tasks=[Task('a', command=['sh', '-c', OWN_SESSION])])",
    "another environment": "Workstream('w', tasks=[Task('a', command=['sh', '-c', CLEAN])])",
}
PROGRAM = """
import os
import anyio
from callboard import *

NAP = "echo $$ >> pids; exec sleep 600"
OWN_SESSION = "setsid sh -c '" + NAP + "' & wait"
CLEAN = "echo $$ >> pids; exec env -i sleep 600"
DAEMON = "setsid sh -c '" + NAP + "' > /dev/null 2>&1 & until [ -s pids ]; do sleep 0.1; done"

async def main():
    async with Runtime("state.db") as runtime:
        job = await runtime.submit(STREAM, id="j")
        task = job.task("a")
        while not os.path.exists("pids") or not os.path.getsize("pids") or not (WAIT):
            await anyio.sleep(0.01)
        while task.record.state == "running" and task.record.pid is None:
            await anyio.sleep(0.01)
            await anyio.sleep(0.01)
        await runtime._services.settled(60)  # the start of the process is journaled
        open("settled", "w").close()
        await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.fixture
def anyio_backend() -> str:
    """One event loop: the search for processes does not depend on it."""
    return "asyncio"


def naps(folder: Path) -> list[int]:
    """The processes of the commands, in the order of their starts."""
    kept = folder / "pids"
    return [int(line) for line in kept.read_text().split()] if kept.exists() else []


def left_by(folder: Path, stream: str, wait: str = "True") -> list[int]:
    """The processes of commands that a killed runtime has left. wait: the condition to wait for before the kill."""
    program = folder / "victim.py"
    program.write_text(PROGRAM.replace("STREAM", stream).replace("WAIT", wait))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen([sys.executable, str(program)], env=env, cwd=folder, start_new_session=True) as victim:
        try:
            end = time.monotonic() + LONGEST
            while not (folder / "settled").exists():
                assert time.monotonic() < end, "its command did not start"
                assert victim.poll() is None
                time.sleep(0.02)
        finally:
            victim.kill()
    left = naps(folder)
    assert all(runs(pid) for pid in left)
    return left


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """A folder for runtimes; the processes that they start are ended after the test."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for pid in naps(tmp_path):
        if runs(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("kind", STREAMS)
async def test_what_would_be_run_again_is_gone_before_that(folder: Path, kind: str) -> None:
    left = left_by(folder, STREAMS[kind])
    async with Runtime(folder / "state.db", workers=(), drain_deadline=0):
        assert [pid for pid in left if runs(pid)] == []


async def test_what_a_completed_command_left_on_purpose_is_let_alone(folder: Path) -> None:
    left = "Task('a', command=['sh', '-c', DAEMON])"
    runs_on = "Task('b', command=['sleep', '600'], depends_on=['a'])"
    (pid,) = left_by(folder, f"Workstream('w', tasks=[{left}, {runs_on}])", "job.task('b').record.pid is not None")
    async with Runtime(folder / "state.db", workers=(), drain_deadline=0) as runtime:
        assert [job.id for job in runtime.recovered] == ["j"]
        assert runs(pid)


def started(*marks: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A process of this runtime with such variables."""
    variables = dict(one.split("=") for one in marks)
    return asleep({**os.environ, **Origin.here(JOURNAL, "copy").variables, **variables})


@contextmanager
def asleep(env: dict[str, str] | None = None, *, apart: bool = True) -> Generator[subprocess.Popen[bytes]]:
    """A process with this environment, which can be read; it is killed in the end. apart: in a session of its own."""
    with subprocess.Popen(["sleep", "600"], env=env, start_new_session=apart) as process:
        try:
            readable = Path(f"/proc/{process.pid}/environ")
            wait_until(lambda: not readable.parent.is_dir() or readable.read_bytes(), "its environment")
            yield process
        finally:
            process.kill()


def test_a_check_that_no_entity_asked_for_is_ended_with_its_runtime_only() -> None:
    with started(f"{TOKEN}=7", f"{ASKED_BY}={UNASKED}") as process:
        assert kill_leftovers([], JOURNAL, ["copy"]) == 0  # this very process has started it
        assert process.poll() is None
        process.kill()
    gone = Origin.here(JOURNAL, "another")
    gone = replace(gone, process=replace(gone.process, started=gone.process.started - 1))
    env = {**os.environ, **gone.variables, ASKED_BY: UNASKED}
    with asleep(env) as process:
        assert kill_leftovers([], JOURNAL, ["copy"]) == 1
        assert process.wait(LONGEST) == -signal.SIGKILL


@pytest.mark.parametrize("number", ["\u0667", "\u00b2", "9" * 5000])
def test_a_mark_that_holds_no_number_is_none_of_ours(number: str) -> None:
    """Anything may stand in the environment of another program."""
    mark = Origin.here(JOURNAL, "copy").mark.split(" ")
    assert Origin.read(JOURNAL, " ".join([*mark[:2], number, *mark[3:]])) is None
    assert Origin.read(JOURNAL, " ".join([*mark[:3], number, *mark[4:]])) is None
    for variables in ({TOKEN: number}, {ASKED_BY: number}):
        with started(*(f"{name}={value}" for name, value in variables.items())) as process:
            assert kill_leftovers([ATTEMPT], JOURNAL, ["copy"], [7], [7]) == 0
            assert process.poll() is None
            process.kill()


def test_the_key_of_who_asked_decides_and_no_token_that_is_another_ones_by_now() -> None:
    with started(f"{TOKEN}=7", f"{ASKED_BY}=3") as process:
        assert kill_leftovers([ATTEMPT], JOURNAL, ["copy"], [7], [4]) == 0
        assert process.poll() is None
        assert kill_leftovers([], JOURNAL, ["copy"], (), [3]) == 1
        assert process.wait(LONGEST) == -signal.SIGKILL


@pytest.mark.parametrize("wrong", ["start", "boot", "member"])
def test_a_number_alone_is_no_process(wrong: str) -> None:
    with asleep(apart=wrong != "member") as process:
        began = start_time(process.pid) - (wrong == "start")
        claimed = booted_at() - 3_600 if wrong == "boot" else time.time()
        other = replace(ATTEMPT, pid=process.pid, process_started=began, claimed_at=claimed)
        assert kill_leftovers([other], JOURNAL, ["copy"], by_number=True) == 0
        assert process.poll() is None
        right = replace(ATTEMPT, pid=process.pid, process_started=start_time(process.pid), claimed_at=time.time())
        assert kill_leftovers([right], JOURNAL, ["copy"]) == 0  # of a database: it may be another machine's
        assert kill_leftovers([right], JOURNAL, ["copy"], by_number=True) == (wrong != "member")
        process.kill()


def test_a_runtime_that_a_leftover_has_started_does_not_end_itself(tmp_path: Path) -> None:
    program = (
        "from callboard.runtime.execution.orphans import kill_leftovers as kill\n"
        "from callboard.actors.records.task import AttemptRecord as A\n"
        "a = A(key=7, task=1, task_id='j@1/a', attempt=1, claimed_at=1.0)\n"
        "print(kill([a], 'some', ['copy']))"
    )
    env = {**os.environ, **Origin.here(JOURNAL, "copy").variables, TOKEN: "7"}
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, env=env, start_new_session=True, capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


async def test_what_cannot_be_killed_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pid,) = left_by(folder, STREAMS["attempt"])
    monkeypatch.setattr(processes, "signal_group", lambda group, number: None)
    monkeypatch.setattr(leftovers, "_LONGEST", 0.01)
    notices: list[Notice] = []
    runtime = Runtime(folder / "state.db", workers=(), drain_deadline=0)
    runtime.on_trouble = notices.append
    async with runtime:
        assert runs(pid)
    assert [(notice.event, notice.facts) for notice in notices][:1] == [("leftover_stays", {"pid": pid})]
