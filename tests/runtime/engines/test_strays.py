"""Processes that commands and bodies leave: found by their environment, and reported everywhere."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from callboard import Runtime, Task, Workstream
from callboard.runtime.calling import Outcome
from callboard.runtime.engines import strays
from callboard.runtime.engines.contract import Call, CommandCall
from callboard.runtime.engines.strays import Beginning
from callboard.runtime.processes.os_processes import is_process

from .helpers import open_bench

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not Path("/proc/loadavg").exists(), reason="needs /proc"),
]

MARKS = {"CALLBOARD_JOURNAL": "j", "CALLBOARD_RUNTIME": f"{os.getpid()} of this test"}
LEAVES = "setsid sh -c 'echo $$ > {0}; exec sleep 600' >/dev/null 2>&1 & until [ -s {0} ]; do sleep 0.01; done; {1}"


@contextmanager
def killed(file: Path) -> Iterator[None]:
    """Kill in the end what has written its number into this file."""
    try:
        yield
    finally:
        os.kill(int(file.read_text()), signal.SIGKILL)


async def run(folder: Path, script: str, **env: str) -> Outcome:
    async with open_bench("command", folder) as bench:
        bench.start_call(Call(token=41, command=CommandCall(shell=script, env=env)))
        outcome: Outcome = await bench.record.outcome(41)
    return outcome


@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
async def test_a_descendant_that_left_the_group_is_found(
    tmp_path: Path, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if long:
        monkeypatch.setattr(strays, "_LONG", 0.0)  # all processes are looked at, by a thread
    file = tmp_path / "pid"
    with killed(file):
        outcome = await run(tmp_path, LEAVES.format(file, "exit 3"), **MARKS)
        assert (outcome.status, outcome.exit_code, outcome.escaped) == ("failed", 3, False)
        assert outcome.left_behind == (int(file.read_text()),)


@pytest.mark.parametrize(
    "env",
    [{}, {**MARKS, "CALLBOARD_FENCING_TOKEN": "42"}, {**MARKS, "CALLBOARD_RUNTIME": "another"}],
    ids=["no runtime", "another token", "another runtime"],
)
async def test_what_another_one_started_is_none_of_it(tmp_path: Path, env: dict[str, str]) -> None:
    file = tmp_path / "pid"
    words = " ".join(f"{name}='{value}'" for name, value in env.items())
    script = LEAVES.format(file, "true").replace("setsid", f"env -u CALLBOARD_RUNTIME {words} setsid")
    with killed(file):
        assert (await run(tmp_path, script, **(MARKS if env else {}))).left_behind == ()


async def test_what_is_killed_with_the_group_is_not_left_behind(tmp_path: Path) -> None:
    outcome = await run(tmp_path, "sleep 600 >/dev/null 2>&1 & echo done", **MARKS)
    assert (outcome.status, outcome.left_behind) == ("ok", ())


def test_numbers_that_were_given_since_are_known_though_they_began_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    last = 100
    monkeypatch.setattr(strays, "_last_number", lambda: last)
    monkeypatch.setattr(strays, "_highest_number", lambda: 110)
    beginning = Beginning()
    last = 103
    assert list(beginning.numbers() or ()) == [101, 102, 103]
    last = 4
    assert list(beginning.numbers() or ()) == [*range(101, 110), 2, 3, 4]
    monkeypatch.setattr(strays, "_MOST", 3)
    assert beginning.numbers() is None  # too many to be looked at one by one
    last = 0
    assert list(beginning.numbers() or ()) == []  # where nothing can be known


@pytest.mark.parametrize("kind", ["command", "process"])
async def test_what_an_attempt_left_behind_stands_in_its_record_and_in_its_history(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "pid"
    body = Task("a", command=LEAVES.format(file, "true"), shell=True)
    if kind == "process":
        body = Task(
            "a", run="tests.runtime.engines.process_bodies:leaves_a_session", args={"file": str(file)}, engine="process"
        )
    with anyio.fail_after(60), killed(file):
        async with Runtime(tmp_path / "state.db") as runtime:
            job = await runtime.submit(Workstream("w", tasks=[body]), id="j")
            assert (await job.wait()).ok
            (attempt,) = await job.attempts("a")
            told = await runtime._services.read(lambda: [*runtime.journal.reader.transitions(entity_id="j@1/a")])
        left = int(file.read_text())
        assert attempt.left_behind == (left,)
        assert [event.metadata["left_behind"] for event in told if "left_behind" in (event.metadata or {})] == [[left]]


def test_a_process_is_told_from_its_threads() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        assert is_process(os.getpid())
        assert thread.native_id is not None
        assert not is_process(thread.native_id)
    finally:
        over.set()
        thread.join()
    assert not is_process(2**22 + 1)
