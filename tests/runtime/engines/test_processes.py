"""Tasks in worker processes, as in an application: found, run, lost and run again, with no process left over."""

from __future__ import annotations

import os
import select
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from tests.processes import children, runs
from tests.programs import killed_after
from tests.runtime.engines import process_bodies as bodies
from tests.waiting import LONGEST, until

from callboard import Retry, Runtime, Task, Worker, Workstream
from callboard.actors.records.task import AttemptRecord
from callboard.actors.records.transition import Transitioned
from callboard.errors import SpecificationError
from callboard.runtime.execution.orphans import kill_leftovers
from callboard.runtime.handles.jobs import JobHandle
from callboard.runtime.processes.identity import Origin

pytestmark = pytest.mark.anyio
POOL = (Worker("loop", engine="loop"), Worker("pool", engine="process", capacity=2, recycle_after=50))


@pytest.fixture
def anyio_backend() -> str:
    """One loop: the engine's contract is held on all of them."""
    return "asyncio"


def body(name: str, run: object, **more: object) -> Task:
    return Task(name, run=run, engine="process", **more)  # type: ignore[arg-type]


async def process_of(job: JobHandle, name: str) -> int:
    """Wait until a task's body has said something. Returns its process."""
    await until(lambda: (record := job.task(name).record).pid is not None and record.details is not None)
    return job.task(name).record.pid or 0


async def test_results_go_from_process_to_process(tmp_path: Path) -> None:
    async with Runtime(workers=POOL, outputs=tmp_path) as runtime:
        runtime.task(bodies.told)
        tasks = [
            body("pid", bodies.own_pid),
            body("printing", "tests.runtime.engines.process_bodies:prints"),
            body("told", "told", depends_on=["pid"], args={"n": 1}),
        ]
        job = await runtime.submit(Workstream("w", tasks=tasks), id="j")
        outcome = await job.wait()
        assert outcome.state == "completed"
        value = outcome.results["told"]
        assert (value["task"], value["job_id"], value["args"]) == ("told", "j", {"n": 1})
        assert value["results"] == {"pid": outcome.results["pid"]}
        assert "straight" in (tmp_path / "j" / "1" / "printing.1.log").read_text()
        assert {record.name for record in outcome.tasks.values() if record.output_path} == {"printing"}
        workers = {record.worker_id for record in outcome.tasks.values()}
        assert workers == {None}  # given back
    assert not runs(outcome.results["pid"])


async def test_a_killed_process_loses_an_attempt_and_the_next_one_runs_elsewhere() -> None:
    async with Runtime(workers=POOL) as runtime:
        tasks = [body("a", bodies.patient, timeout="10m", kill_grace="10m")]
        job = await runtime.submit(Workstream("w", tasks=tasks), id="j")
        pid = await process_of(job, "a")
        seen = runtime.events()
        os.kill(pid, signal.SIGKILL)
        path: list[str] = []
        async for event in seen:
            if isinstance(event, Transitioned) and event.kind == "task":
                path.append(event.to_state)
            if path[-1:] == ["running"]:
                break
        assert path == ["recovering", "retrying", "queued", "running"]
        again = await process_of(job, "a")
        assert again != pid
        record = job.task("a").record
        assert (record.lost_attempts, record.failed_attempts, record.error_type) == (1, 0, "worker_lost")
        await job.cancel("enough")
        assert (await job.wait()).state == "cancelled"
        assert runs(again)  # the body ended in time: the process is kept


async def test_a_body_that_takes_too_long_times_out_and_its_process_is_replaced() -> None:
    async with Runtime(workers=(Worker("one", engine="process"),)) as runtime:
        tasks = [
            body("warm", bodies.own_pid),  # else a slow start would be what takes too long
            body("busy", bodies.busy, depends_on=["warm"], timeout=0.5, kill_grace=0.2, optional=True),
            body("next", bodies.own_pid, after=["busy"]),
        ]
        job = await runtime.submit(Workstream("w", tasks=tasks))
        outcome = await job.wait()
        assert (outcome.tasks["busy"].error_type, outcome.tasks["busy"].limit) == ("timed_out", "attempt")
        assert outcome.results["warm"] == outcome.tasks["busy"].pid != outcome.results["next"]


async def test_a_body_that_no_process_could_find_is_refused_at_once() -> None:
    async with Runtime(workers=POOL) as runtime:
        for wrong, says in ((lambda: 1, "lambda"), (bodies.never_awaited, "async")):
            with pytest.raises(SpecificationError, match=says):
                await runtime.submit(Workstream("w", tasks=[body("a", wrong)]))


async def test_a_runtime_that_runs_nothing_in_processes_has_none() -> None:
    before = children()  # such as a database that other tests use
    async with Runtime() as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("a", run=bodies.quick)]))
        await job.wait()
        assert children() <= before


PROGRAM = """
import sys
import anyio
from callboard import Runtime, Task, Workstream

def greet():
    return "hello"

async def main():
    async with Runtime() as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("greet", run=greet, engine="process")]))
        outcome = await job.wait()
        print(outcome.results or outcome.tasks["greet"].last_error)

"""


@pytest.mark.parametrize(
    ("start", "says"),
    [
        ('if __name__ == "__main__":\n    anyio.run(main)\n', "{'greet': 'hello'}"),
        ("anyio.run(main)\n", "put what it does as a program behind"),
    ],
)
def test_functions_of_the_program_itself_are_found(tmp_path: Path, start: str, says: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + start)
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=600, check=False, env=environment()
    )
    assert done.returncode == 0, done.stderr
    assert says in done.stdout


VICTIM = """
import subprocess, sys, time
import anyio
from callboard import Runtime, Task, Workstream

def body(task):
    child = subprocess.Popen(["sleep", "60"])
    task.heartbeat(child.pid)
    while True:  # busy, as a body may be
        pass

async def main():
    async with Runtime(sys.argv[1]) as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("a", run=body, engine="process")]), id="j")
        while job.task("a").record.details is None or job.task("a").record.pid is None:
            await anyio.sleep(0.01)
        print(job.task("a").record.pid, job.task("a").record.details, flush=True)
        await job.wait()

if __name__ == "__main__":
    anyio.run(main)
"""


def test_processes_die_with_a_runtime_that_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "victim.py"
    program.write_text(VICTIM)
    journal = tmp_path / "state.db"
    victim = subprocess.Popen([sys.executable, program, journal], stdout=subprocess.PIPE, text=True, env=environment())
    with killed_after(victim):
        assert victim.stdout is not None
        worker, started = map(int, victim.stdout.readline().split())
        assert runs(worker)
        assert runs(started)
        victim.kill()
    wait_until_gone(worker)
    # What the body started may have been left: the next start finds it by the attempt's token.
    attempt = AttemptRecord(key=token_of(started), task=1, task_id="j@1/a", attempt=1, claimed_at=1.0)
    with closing(sqlite3.connect(journal)) as reading, reading:
        known = reading.execute("SELECT id FROM meta").fetchone()[0]
    kill_leftovers([attempt], known, [])
    wait_until_gone(started)


def token_of(pid: int) -> int:
    """The fencing token in a process's environment; 0 if the process has ended."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(one.partition(b"=")[2]) for one in variables if one.startswith(b"CALLBOARD_FENCING_TOKEN=")), 0)


def wait_until_gone(pid: int) -> None:
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with os.fdopen(watched):
        assert select.select([watched], [], [], LONGEST)[0], f"process {pid} goes on"


def test_a_worker_process_that_was_left_behind_is_killed() -> None:
    journal = uuid4().hex  # the same test may run at the same time, and must not find processes of this one
    marks = {**Origin.here(journal, "copy").variables, "CALLBOARD_WORKER": "pool-1#1"}
    with killed_after(subprocess.Popen(["sleep", "60"], env={**os.environ, **marks}, start_new_session=True)) as left:
        attempt = AttemptRecord(key=1, task=1, task_id="j@1/a", attempt=1, claimed_at=1.0)
        assert kill_leftovers([attempt], f"not {journal}", ["copy"]) == 0
        assert left.poll() is None
        assert kill_leftovers([attempt], journal, ["copy"]) == 1
        assert left.wait(600) == -signal.SIGKILL


def environment() -> dict[str, str]:
    """An environment in which programs import the library under test."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


async def test_what_a_body_saved_is_kept_for_its_next_attempt() -> None:
    async with Runtime(workers=POOL) as runtime:
        again = Retry(max_attempts=2, base_delay=0)
        job = await runtime.submit(Workstream("w", tasks=[body("a", bodies.saves, retry=again)]))
        record = (await job.wait()).tasks["a"]
    assert (record.state, record.checkpoint) == ("completed", [99, "done"])
