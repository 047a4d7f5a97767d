"""A real process is killed with SIGKILL at random instants and started again, until its job is done.

Checked are: a task whose result was journaled never starts again; no task is lost; no command of a killed runtime runs
beside its successor; the auditor finds nothing.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.forks import Forks
from tests.processes import runs

from callboard.machines.audit.audit import audit_lines
from callboard.runtime.journal.sqlite.reader import SqliteReader

VICTIM = Path(__file__).with_name("victim.py")
SOURCE = Path(__file__).parents[2] / "src"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is of Unix")]


def lines(folder: Path) -> list[str]:
    log = folder / "log"
    return log.read_text().splitlines() if log.exists() else []


def completed(folder: Path) -> set[str]:
    """The tasks whose completion the journal holds."""
    if not (folder / "state.db").exists():
        return set()
    reader = SqliteReader(folder / "state.db")
    try:
        streams = reader.workstreams("sweep")
        return {task.name for task in reader.tasks(streams[-1].key) if task.state == "completed"} if streams else set()
    finally:
        reader.close()


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_random_instants_nothing_is_lost_and_nothing_runs_again(tmp_path: Path, seed: int) -> None:
    drawn = random.Random(seed)
    with Forks(tmp_path) as forks:
        for number in range(60):
            completed_before = completed(tmp_path)
            before = len(lines(tmp_path))
            victim = forks.start(VICTIM, tmp_path)
            opened = time.monotonic()
            # Kill once it is open, so that every round gets on, after a random time that is sometimes none. The last
            # may end: a busy machine may have done little in the others.
            while victim.poll() is None and "open" not in lines(tmp_path)[before:] and time.monotonic() - opened < 60:
                time.sleep(0.005)
            with contextlib.suppress(TimeoutError):
                victim.wait(drawn.random() * 0.25 if number < 59 else 240)
            victim.kill()
            code = victim.wait(600)
            again = {line.split()[0] for line in lines(tmp_path)[before:] if line.endswith("start")} & completed_before
            assert not again, f"run again although their results were journaled: {again}"
            if code == 0:
                break
    assert lines(tmp_path)[-1] == "outcome completed"
    assert len(completed(tmp_path)) == 42
    assert {line.split()[0] for line in lines(tmp_path) if line.endswith(" end")} >= completed(tmp_path)
    with (tmp_path / "transitions.jsonl").open("rb") as log:
        assert list(audit_lines(log)) == []


def test_a_command_that_outlived_its_runtime_is_killed_before_it_runs_again(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import sys, anyio\n"
        "from callboard.actors.spec.model import Task, Workstream\n"
        "from callboard.runtime.runtime import Runtime\n"
        "async def main():\n"
        f"    async with Runtime({str(tmp_path / 'state.db')!r}, drain_deadline=0) as runtime:\n"
        f"        command = 'echo $$ >> {tmp_path}/pids; exec sleep 1000'\n"
        "        job = await runtime.submit(Workstream('w', tasks=[Task('c', command=command, shell=True)]), id='j')\n"
        "        await job.wait()\n"
        "anyio.run(main)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    pids = tmp_path / "pids"

    def run_until(count: int) -> subprocess.Popen[bytes]:
        program = subprocess.Popen([sys.executable, str(script)], env=environment)
        limit = time.monotonic() + 60
        while not (pids.exists() and len(pids.read_text().split()) >= count) and time.monotonic() < limit:
            time.sleep(0.01)
        return program

    program = run_until(1)
    program.kill()
    program.wait()
    first = int(pids.read_text().split()[0])
    assert runs(first)  # the process did outlive its runtime
    program = run_until(2)
    try:
        assert not runs(first)
    finally:
        program.terminate()
        program.wait()
        for pid in pids.read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
