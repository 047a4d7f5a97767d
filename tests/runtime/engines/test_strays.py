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
from tests.waiting import until

from callboard import Runtime, Task, Workstream
from callboard.runtime.calling import Outcome, ProcessInfo
from callboard.runtime.cli.reading import reading
from callboard.runtime.engines import strays
from callboard.runtime.engines.contract import Call, CommandCall
from callboard.runtime.engines.strays import Beginning
from callboard.runtime.processes import os_processes
from callboard.runtime.processes.os_processes import environment_of, is_process, kill_leftover

from .helpers import open_bench

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not Path("/proc/loadavg").exists(), reason="needs /proc"),
]

MARKS = {"CALLBOARD_JOURNAL": "j", "CALLBOARD_RUNTIME": f"{os.getpid()} of this test"}
LEAVES = "setsid sh -c 'echo $$ > {0}; exec sleep 600' >/dev/null 2>&1 & until [ -s {0} ]; do sleep 0.01; done; {1}"


@contextmanager
def killed(file: Path) -> Iterator[None]:
    """At the end, kill the process that has written its id into this file."""
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
    with anyio.fail_after(300), killed(file):
        async with Runtime(tmp_path / "state.db") as runtime:
            job = await runtime.submit(Workstream("w", tasks=[body]), id="j")
            assert (await job.wait()).ok
            (attempt,) = await job.attempts("a")
            told = await runtime._services.read(lambda: [*runtime.journal.reader.transitions(entity_id="j@1/a")])
        left = int(file.read_text())
        assert attempt.left_behind == (left,)
        assert [event.metadata["left_behind"] for event in told if "left_behind" in (event.metadata or {})] == [[left]]


@pytest.mark.parametrize("kind", ["command", "process"])
async def test_what_a_drained_attempt_left_behind_stands_in_its_record_and_in_its_history(
    tmp_path: Path, kind: str
) -> None:
    file, place = tmp_path / "pid", tmp_path / "state.db"
    body = Task("a", command=LEAVES.format(file, "exec sleep 600"), shell=True)
    if kind == "process":
        body = Task(
            "a", run="tests.runtime.engines.process_bodies:leaves_a_session", engine="process",
            args={"file": str(file), "stays": True},
        )  # fmt: skip
    with anyio.fail_after(300), killed(file):
        async with Runtime(place, drain_deadline=0.0) as runtime:
            await runtime.submit(Workstream("w", tasks=[body]), id="j")
            await until(lambda: file.exists() and bool(file.read_text().strip()))
        with reading(place) as reader:
            told = [event for event in reader.transitions(entity_id="j@1/a") if event.reason == "drained"]
            (attempt,) = reader.attempts("j@1/a")
        left = int(file.read_text())
        assert attempt.left_behind == (left,)
        assert [(event.metadata or {})["left_behind"] for event in told] == [[left]]


def test_what_is_forked_while_the_processes_are_looked_at_is_seen_too(monkeypatch: pytest.MonkeyPatch) -> None:
    last = 100
    monkeypatch.setattr(strays, "_last_number", lambda: last)
    beginning = Beginning()
    last = 102
    seen = []
    for number in beginning.numbers() or ():
        seen.append(number)
        last = {102: 103, 103: 105}.get(number, last)  # it forks, and ends
    assert seen == [101, 102, 103, 104, 105]


def stat_of(state: str = "R", memory: int = 4096, environment: tuple[int, int] = (0, 0), group: int = 7) -> str:
    """The line of /proc/PID/stat of a process of this group."""
    fields = ["0"] * 50
    fields[0], fields[2], fields[20], fields[47], fields[48] = (state, str(group), str(memory), *map(str, environment))
    return f"7 (any) name) {' '.join(fields)}\n"


class ProcFolder:
    """A folder like /proc with process 7, which shows its environment when it has been waited for twice."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, stat: str) -> None:
        self.waits = 0
        self.process = folder / "7"
        self.process.mkdir()
        (self.process / "stat").write_text(stat)
        (self.process / "environ").write_bytes(b"")
        monkeypatch.setattr(os_processes, "_PROC", folder)
        monkeypatch.setattr(os_processes.time, "sleep", self.wait)

    def wait(self, _: float) -> None:
        self.waits += 1
        if self.waits == 2:
            (self.process / "environ").write_bytes(b"A=1\0B=2\0")


@pytest.mark.parametrize("environment", [(0, 0), (10, 20)], ids=["not in place", "in place when it was read again"])
def test_a_process_that_executes_its_program_is_looked_at_when_its_environment_is_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: tuple[int, int]
) -> None:
    folder = ProcFolder(tmp_path, monkeypatch, stat_of(environment=environment))
    variables = environment_of(7, "A=1")
    assert (variables.get("A"), variables.get("B"), folder.waits) == ("1", "2", 2)


def test_a_group_is_killed_by_its_mark_though_its_process_has_just_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os_processes, "signal_group", lambda group, number: killed.append((group, number)))
    monkeypatch.setattr(os_processes, "_open_pidfd", lambda _: None)
    ProcFolder(tmp_path, monkeypatch, stat_of())
    assert kill_leftover(ProcessInfo(1, 7, 7, 0), mark="B=2")
    assert killed == [(7, signal.SIGKILL)]


@pytest.mark.parametrize(
    "stat",
    [stat_of("Z", 0), stat_of(memory=0), stat_of(environment=(10, 10)), "7 (short) R 1\n"],
    ids=["ended", "a thread of the kernel", "without variables", "less is shown"],
)
def test_nobody_waits_for_an_environment_that_never_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stat: str
) -> None:
    folder = ProcFolder(tmp_path, monkeypatch, stat)
    assert (environment_of(7, "A=1"), folder.waits) == ({}, 0)


def test_an_environment_that_does_not_come_is_not_waited_for_without_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os_processes, "_EXECUTING", 0.0)
    ProcFolder(tmp_path, monkeypatch, stat_of())
    assert environment_of(7, "A=1") == {}


async def test_a_process_in_another_group_of_its_commands_session_is_found(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    script = (
        f"set -m; sh -c 'echo $$ > {file}; exec sleep 600' >/dev/null 2>&1 & until [ -s {file} ]; do sleep 0.01; done"
    )
    with killed(file):
        assert (await run(tmp_path, script, **MARKS)).left_behind == (int(file.read_text()),)


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
