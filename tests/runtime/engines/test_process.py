"""Worker processes: their input, their ends, and their replacement. The event loop does not matter here."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.processes import runs, stopped
from tests.waiting import until

from callboard.runtime.calling import Outcome
from callboard.runtime.engines.context import TaskContext
from callboard.runtime.engines.contract import Call
from callboard.runtime.engines.process import process_pool
from callboard.runtime.engines.process.engine import ProcessEngine
from callboard.runtime.engines.workers.wire import Unpacker

from .helpers import Bench, Record, open_bench, process_call

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """One event loop: the tested code runs in the pool's thread and in processes."""
    return "asyncio"


async def ended(bench: Bench, behaviour: str, token: int = 1, *, grace: float = 10.0, **more: Any) -> Outcome:
    """Run a body without a context to its end."""
    bench.start_call(Call(token=token, process=process_call(behaviour, token, **more), grace=grace))
    return await bench.record.outcome(token)


async def begun(bench: Bench, token: int) -> int:
    """Wait for a body's first heartbeat. Returns its process."""
    await bench.record.until(lambda: any(beat[0] == token for beat in bench.record.beats))
    return bench.record.started[token].pid


async def test_the_context_arrives_whole(tmp_path: Path) -> None:
    given_one = TaskContext(
        task="t", token=1, attempt=3, job_id="j", workstream_id="w", results={"a": [1, {"b": None}]},
        details={"at": 0.5}, args={"n": 2**63 - 1, "s": "é"},
    )  # fmt: skip
    async with open_bench("process", tmp_path) as bench:
        bench.start_call(Call(token=1, process=process_call("told"), context=given_one))
        outcome = await bench.record.outcome(1)
    assert outcome.value == {
        name: getattr(given_one, name)
        for name in ("task", "token", "attempt", "job_id", "workstream_id", "results", "details", "args")
    }


@pytest.mark.parametrize(
    ("behaviour", "kind", "says"),
    [
        ("leaves", "SystemExit", "not here"),
        ("interrupted", "KeyboardInterrupt", ""),
        ("returns_a_set", "result_not_serialisable", "set"),
        ("returns_a_coroutine", "TypeError", "coroutine"),
        ("not_there", "body_not_found", "there is no 'not_there' in module"),
    ],
)
async def test_what_a_body_does_is_its_own_failure(tmp_path: Path, behaviour: str, kind: str, says: str) -> None:
    async with open_bench("process", tmp_path) as bench:
        outcome = await ended(bench, behaviour)
        assert outcome.error is not None
        assert (outcome.status, outcome.error.type) == ("failed", kind)
        assert says in outcome.error.message
        assert (await ended(bench, "own_pid", 3)).value == bench.record.started[1].pid  # the process goes on


async def test_where_a_body_went_the_next_one_is_not(tmp_path: Path) -> None:
    async with open_bench("process", tmp_path) as bench:
        before = (await ended(bench, "where", 1)).value
        assert (await ended(bench, "moves_out", 3)).status == "failed"
        assert (await ended(bench, "where", 5)).value == before


async def test_only_a_kill_that_nobody_of_ours_sent_is_put_down_to_memory(tmp_path: Path) -> None:
    async with open_bench("process", tmp_path) as bench:
        for token, force in ((2, True), (4, False)):
            bench.start(token, "stubborn", grace=0.1)
            await begun(bench, token)
            bench.engine.stop(token, force=force)
            outcome = await bench.record.outcome(token)
            assert (outcome.status, outcome.error and outcome.error.message) == ("cancelled", "its process was ended")
        assert not bench.record.died
        bench.start(6, "busy")
        os.kill(await begun(bench, 6), signal.SIGKILL)
        lost = await bench.record.outcome(6)
        assert lost.error is not None
        assert "was killed by SIGKILL (out of memory?)" in lost.error.message


async def test_a_traceback_comes_as_text(tmp_path: Path) -> None:
    async with open_bench("process", tmp_path) as bench:
        error = (await ended(bench, "failing")).error
    assert error is not None
    assert error.traceback.startswith("Traceback")
    assert 'raise LookupError("told to fail")' in error.traceback
    assert "child.py" not in error.traceback


@pytest.mark.parametrize(
    ("behaviour", "says"), [("exits", "exited with 3: last words"), ("crashes", "was killed by SIGSEGV")]
)
async def test_a_process_that_dies_loses_its_body_and_is_a_dead_worker(
    tmp_path: Path, behaviour: str, says: str
) -> None:
    async with open_bench("process", tmp_path) as bench:
        outcome = await ended(bench, behaviour, 2)
        assert outcome.error is not None
        assert (outcome.status, outcome.error.type) == ("lost", "worker_lost")
        assert says in outcome.error.message
        assert [(name, run) for name, run, _ in bench.record.died] == [("w-0", 1)]
        # The dead incarnation runs nothing again, and reports nothing; the next one does.
        bench.engine.probe("w-0", 1)
        assert (await ended(bench, "quick", 4)).status == "lost"
        assert not bench.record.alive
        assert (await ended(bench, "quick", 6, incarnation=2)).status == "ok"
        assert (await ended(bench, "quick", 8, incarnation=1)).status == "lost"
        assert len(bench.record.died) == 1


async def test_an_idle_process_that_dies_is_noticed(tmp_path: Path) -> None:
    async with open_bench("process", tmp_path) as bench:
        pid = (await ended(bench, "own_pid")).value
        os.kill(pid, signal.SIGKILL)
        await bench.record.until(lambda: bench.record.died)  # without a request
        ((worker, incarnation, reason),) = bench.record.died
        assert (worker, incarnation) == ("w-1", 1)
        assert "SIGKILL" in reason


async def test_a_body_whose_process_was_killed_is_not_told_as_running_until_that_process_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    async with open_bench("process", tmp_path) as bench:
        bench.start(2, "patient")
        pid = await begun(bench, 2)
        monkeypatch.setattr(process_pool, "signal_group", lambda group, _: killed.append(group))  # without effect
        bench.engine.stop(2, force=True)
        bench.engine.probe("w-0", 1)
        await bench.record.until(lambda: bench.record.alive)
        assert (killed, bench.record.alive) == ([pid], [("w-0", 1, ())])
        os.killpg(pid, signal.SIGKILL)
        assert (await bench.record.outcome(2)).status in {"cancelled", "abandoned"}


async def test_a_busy_body_is_no_dead_worker_and_a_frozen_process_does_not_answer(tmp_path: Path) -> None:
    async with open_bench("process", tmp_path) as bench:
        bench.start(2, "busy")
        pid = await begun(bench, 2)
        bench.engine.probe("w-0", 1)
        await bench.record.until(lambda: bench.record.alive)
        assert bench.record.alive == [("w-0", 1, (2,))]
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: stopped(pid))
        for _ in range(3):
            bench.engine.probe("w-0", 1)
        assert (await ended(bench, "quick", 3)).status == "ok"  # another worker is not held up
        assert len(bench.record.alive) == 1
        os.kill(pid, signal.SIGCONT)
        await bench.record.until(lambda: len(bench.record.alive) == 2)  # the owed answer comes once
        os.kill(pid, signal.SIGSTOP)
        bench.engine.kill_worker("w-0", 1)
        assert (await bench.record.outcome(2)).status == "lost"
        assert not bench.record.died  # the end was requested
        await until(lambda: not runs(pid))


async def test_a_busy_body_is_told_by_a_signal_and_its_process_replaced(tmp_path: Path) -> None:
    path = tmp_path / "out" / "busy.log"
    async with open_bench("process", tmp_path) as bench:
        call = Call(
            token=2, process=process_call("busy", output_path=path), context=TaskContext(task="busy", token=2),
            grace=6.0,  # the body has half of it to clean up, also on a busy machine
        )  # fmt: skip
        bench.start_call(call)
        pid = await begun(bench, 2)
        await until(lambda: path.exists() and path.read_text() == "begun\n")  # no stop can come within its heartbeat
        bench.engine.stop(2)
        outcome = await bench.record.outcome(2)
        assert outcome.status == "cancelled"
        assert path.read_text() == "begun\ncleaned up\n"
        assert (await ended(bench, "own_pid", 4)).value != pid
        assert not bench.record.died


async def test_one_that_catches_even_that_is_killed_at_the_end_of_its_grace(tmp_path: Path) -> None:
    async with open_bench("process", tmp_path) as bench:
        bench.start(2, "stubborn", grace=0.2)
        pid = await begun(bench, 2)
        bench.engine.stop(2)
        assert (await bench.record.outcome(2)).status == "cancelled"
        assert not runs(pid)
        assert (await ended(bench, "quick", 4)).status == "ok"
        assert not bench.record.died


async def test_what_waits_for_a_process_can_be_cancelled(tmp_path: Path) -> None:
    async with open_bench("process", tmp_path) as bench:
        bench.start(2, "patient")
        bench.start(4, "quick")
        bench.start(6, "quick")
        bench.engine.stop(4)
        assert (await bench.record.outcome(4)).status == "cancelled"
        bench.engine.stop(2)
        assert (await bench.record.outcome(6)).status == "ok"


async def test_what_is_printed_is_kept_as_of_a_command(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "out.log"
    async with open_bench("process", tmp_path) as bench:
        outcome = await ended(bench, "prints", output_path=path)
        text = path.read_text()
        assert sorted(text.splitlines()) == sorted(
            ["to stdout", "to stderr", "straight", "from a command", "no newline"]
        )
        assert (outcome.output_path, outcome.output_size) == (str(path), len(text))
        assert outcome.output_tail.endswith("no newline")
        silent = await ended(bench, "quick", 3, output_path=tmp_path / "none.log")
        assert (silent.output_path, silent.output_size, silent.output_tail) == (None, None, "")
        assert not (tmp_path / "none.log").exists()
        capped = await ended(bench, "prints", 5, output_path=Path("/dev/null/nowhere"))
        assert (capped.status, capped.output_path) == ("ok", None)
        assert capped.output_size == len(text)


async def test_a_process_is_recycled_after_so_many_bodies(tmp_path: Path) -> None:
    async with open_bench("process", tmp_path) as bench:
        pids = [(await ended(bench, "own_pid", token, recycle_after=2)).value for token in range(2, 12, 2)]
        assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]
        assert not bench.record.died
        await until(lambda: not any(map(runs, pids[:4])))


async def test_a_process_inherits_nothing_but_its_line_and_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "somewhere")
    locked = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(locked, True)
    try:
        async with open_bench("process", tmp_path) as bench:
            found = (await ended(bench, "surroundings", 9)).value
    finally:
        os.close(locked)
    kinds = {int(fd): kind for fd, kind in found["own"].items()}
    assert kinds.pop(0) == "/dev/null"
    assert kinds.pop(1) == kinds.pop(2) == "pipe"
    assert "socket" in kinds.values()
    assert not any("lock" in kind for kind in kinds.values())
    assert found["inherited"] == 4  # of `ls`: the three streams, and the folder it reads
    variables = dict(line.partition("=")[::2] for line in found["env"].splitlines())
    assert variables["PYTHONPATH"] == "somewhere"
    assert variables["CALLBOARD_FENCING_TOKEN"] == "9"
    assert not any(
        name.startswith("CALLBOARD_") for name in variables if name not in {"CALLBOARD_FENCING_TOKEN", *os.environ}
    )
    assert found["cwd"] == str(Path.cwd())


async def test_a_frame_of_another_attempt_changes_nothing(tmp_path: Path) -> None:
    async with open_bench("process", tmp_path) as bench:
        context = TaskContext(task="t", token=2, args={"whole": True})
        bench.start_call(Call(token=2, process=process_call("forges"), context=context))
        assert (await bench.record.outcome(2)).value == "own"
        assert set(bench.record.outcomes) == {2}


async def test_a_process_that_says_what_cannot_be_understood_is_a_dead_worker(tmp_path: Path) -> None:
    async with open_bench("process", tmp_path) as bench:
        bench.start_call(Call(token=2, process=process_call("forges"), context=TaskContext(task="t", token=2)))
        outcome = await bench.record.outcome(2)
        assert outcome.status == "lost"
        assert "sent an invalid message" in bench.record.died[0][2]


async def test_a_process_that_cannot_be_started_is_a_dead_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    async with open_bench("process", tmp_path) as bench:
        outcome = await ended(bench, "quick", 2)
        assert outcome.status == "lost"
        assert "no-python" in bench.record.died[0][2]


async def test_a_process_that_does_not_come_up_in_time_is_a_dead_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "slow-python"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    record = Record()
    engine = ProcessEngine(died=record.worker_died, start_limit=0.2)
    await engine.open()
    engine.start(Call(token=1, process=process_call("quick", 1)), record.ended, record.beat)
    assert (await record.outcome(1)).status == "lost"
    assert "did not start within 0.2 s" in record.died[0][2]
    await engine.close(1)


async def test_a_process_that_works_while_it_comes_up_has_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "slow-python"
    count = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done"
    slow.write_text(f'#!/bin/sh\n{count}\nexec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    record = Record()
    engine = ProcessEngine(died=record.worker_died, start_limit=0.15)
    await engine.open()
    engine.start(Call(token=1, process=process_call("quick", 1)), record.ended, record.beat)
    assert (await record.outcome(1)).status == "ok"
    assert not record.died
    await engine.close(1)


async def test_a_worker_is_stopped_after_what_it_runs(tmp_path: Path) -> None:
    async with open_bench("process", tmp_path) as bench:
        bench.engine.stop_worker("w-0", 1, 1.0)  # the worker has no process yet
        bench.start(2, "patient")
        pid = await begun(bench, 2)
        bench.engine.stop_worker("w-0", 1, 60.0)
        bench.start(4, "quick")
        assert (await bench.record.outcome(4)).status == "lost"  # the worker takes no new call
        assert runs(pid)
        bench.engine.stop(2)
        assert (await bench.record.outcome(2)).status == "cancelled"
        await until(lambda: not runs(pid))
        # One that does not end in time is killed, and its body lost.
        bench.start(3, "stubborn")
        pid = await begun(bench, 3)
        bench.engine.stop_worker("w-1", 1, 0.1)
        assert (await bench.record.outcome(3)).status == "lost"
        await until(lambda: not runs(pid))
        assert not bench.record.died


async def test_a_new_incarnation_ends_the_one_before(tmp_path: Path) -> None:
    async with open_bench("process", tmp_path) as bench:
        bench.start(2, "stubborn")
        pid = await begun(bench, 2)
        bench.engine.start_worker("w-0", 2)
        assert (await bench.record.outcome(2)).status == "lost"
        await until(lambda: not runs(pid))
        bench.engine.probe("w-0", 2)
        await bench.record.until(lambda: bench.record.alive == [("w-0", 2, ())])  # without a process


async def test_nothing_is_left_when_it_is_closed(tmp_path: Path) -> None:
    async with open_bench("process", tmp_path) as bench:
        pids = [(await ended(bench, "own_pid", token)).value for token in (1, 2)]
        await bench.engine.close(1)
        assert not any(map(runs, pids))


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(1, 30), min_size=1))
def test_frames_come_whole_however_they_were_cut(bodies: list[bytes], sizes: list[int]) -> None:
    data = b"".join(len(body).to_bytes(4, "little") + body for body in bodies)
    unpacker, got, at = Unpacker(), [], 0
    for index in range(len(data)):
        size = sizes[index % len(sizes)]
        got += unpacker.feed(data[at : at + size])
        at += size
    assert got == bodies


async def test_a_process_whose_body_ended_before_it_was_set_aside_ends_too(tmp_path: Path) -> None:
    async with open_bench("process", tmp_path) as bench:
        assert isinstance(bench.engine, ProcessEngine)
        bench.start(2, "patient")
        pid = await begun(bench, 2)
        job, pool = bench.engine._runs[2].job, bench.engine._pool
        bench.engine.stop(2)
        await bench.record.outcome(2)
        assert pool is not None
        pool.park(job)  # as when that was asked while its end was on the way
        bench.engine.member_spoiled(job.member)
        await until(lambda: not (runs(pid) or bench.engine._aside["w-0"]))
        assert (await ended(bench, "own_pid", 4)).value != pid
