"""Leftover processes belong to their journal, also if it was moved, copied or renamed, or is in another container."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
from tests.processes import runs
from tests.waiting import wait_until

from callboard.actors.records.task import AttemptRecord
from callboard.runtime.execution.orphans import kill_leftovers
from callboard.runtime.processes.identity import Origin
from callboard.runtime.processes.os_processes import Process, this_process

LONGEST = 60.0
JOURNAL = uuid4().hex  # the same tests may run at the same time, and must not find processes of these
ATTEMPT = AttemptRecord(key=7, task=1, task_id="j@1/a", attempt=1, claimed_at=1.0)
PROGRAM = """
import sys
import anyio
from callboard import Runtime, Task, Workstream

async def main():
    async with Runtime(sys.argv[1]) as runtime:
        nap = ["sh", "-c", f"echo $$ >> {sys.argv[2]}; exec sleep 600"]
        job = await runtime.submit(Workstream("w", tasks=[Task("nap", command=nap)]), id="one")
        await job.wait()

anyio.run(main)
"""


class Victims:
    """Runtimes in processes of their own, whose one command naps; and what these commands are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pids = folder / "pids"
        self.program = folder / "victim.py"
        self.program.write_text(PROGRAM)
        self._began: list[subprocess.Popen[bytes]] = []

    def start(self, journal: str | Path, *before: str) -> subprocess.Popen[bytes]:
        """Start a runtime, and wait until its command runs."""
        known = len(self.naps())
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        words = [*before, sys.executable, str(self.program), str(journal), str(self.pids)]
        victim = subprocess.Popen(words, env=env, cwd=self.folder, start_new_session=True)
        self._began.append(victim)
        wait_until(lambda: len(self.naps()) > known, "its command")
        return victim

    def naps(self) -> list[int]:
        """The processes of the commands, in the order of their starts."""
        return [int(line) for line in self.pids.read_text().split()] if self.pids.exists() else []

    def end(self) -> None:
        for victim in self._began:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(victim.pid, signal.SIGKILL)
            victim.wait()
        for pid in self.naps():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def victims(tmp_path: Path) -> Iterator[Victims]:
    made = Victims(tmp_path)
    yield made
    made.end()


@contextlib.contextmanager
def left_by(origin: Origin) -> Generator[subprocess.Popen[bytes]]:
    """A process that carries the marks of such a runtime, and of an attempt."""
    env = {**os.environ, **origin.variables, "CALLBOARD_FENCING_TOKEN": "7"}
    with subprocess.Popen(["sleep", "60"], env=env, start_new_session=True) as left:
        try:
            readable = Path(f"/proc/{left.pid}/environ")
            wait_until(lambda: b"CALLBOARD_FENCING_TOKEN" in readable.read_bytes(), "its environment")
            yield left
        finally:
            left.kill()


def kill(victim: subprocess.Popen[bytes]) -> None:
    victim.kill()
    victim.wait()


def test_a_command_is_found_when_the_journal_is_named_otherwise(victims: Victims, tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    (tmp_path / "way").symlink_to("place")
    kill(victims.start("place/s.db"))
    victims.start(tmp_path / "way" / ".." / "place" / "s.db")
    first, second = victims.naps()
    wait_until(lambda: not runs(first), "the end of the first command")
    assert runs(second)


def test_a_command_is_found_when_the_folder_was_moved(victims: Victims, tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    kill(victims.start("place/s.db"))
    (tmp_path / "place").rename(tmp_path / "moved")
    victims.start("moved/s.db")
    first, second = victims.naps()
    wait_until(lambda: not runs(first), "the end of the first command")
    assert runs(second)


def test_what_runs_for_a_journal_is_let_alone_by_who_opens_a_copy_of_it(victims: Victims, tmp_path: Path) -> None:
    kill(victims.start("s.db"))
    victims.start("s.db")
    original = victims.naps()[-1]
    for name in ("s.db", "s.db-wal"):
        shutil.copyfile(tmp_path / name, tmp_path / name.replace("s.db", "copy.db"))
    victims.start("copy.db")
    assert runs(original)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may make a namespace")
def test_what_runs_in_a_container_is_let_alone_whose_file_has_the_same_path(victims: Victims, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    inside = f'mount -t tmpfs none {tmp_path / "data"} && exec "$@"'
    victims.start("data/s.db", "unshare", "-m", "sh", "-c", inside, "sh")
    kill(victims.start("data/s.db"))
    victims.start("data/s.db")
    container, first, second = victims.naps()
    wait_until(lambda: not runs(first), "the end of the first command")
    assert runs(second)
    assert runs(container)


def test_what_a_living_process_runs_for_another_copy_is_let_alone() -> None:
    with left_by(Origin.here(JOURNAL, "its copy")) as left:
        assert kill_leftovers([ATTEMPT], JOURNAL, ["another copy"]) == 0
        assert left.poll() is None
        assert kill_leftovers([ATTEMPT], f"not {JOURNAL}", ["its copy"]) == 0
        assert left.poll() is None
        assert kill_leftovers([ATTEMPT], JOURNAL, ["its copy"]) == 1
        assert left.wait(LONGEST) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("change", "is_gone"),
    [
        ({"started": 1}, True),  # its number belongs to another one now
        ({"kernel": "another-boot"}, False),  # of another machine: it cannot be known
        ({"namespace": "pid:[1]"}, False),  # of a container that cannot be seen from here
        ({"started": 0}, False),
        ({}, False),
    ],
)
def test_a_process_is_gone_only_where_that_is_known(change: dict[str, str | int], is_gone: bool) -> None:
    process = msgspec.structs.replace(this_process(), **change)  # type: ignore[arg-type]
    assert process.is_gone is is_gone
    with left_by(Origin(JOURNAL, "copy", process)) as left:
        assert kill_leftovers([ATTEMPT], JOURNAL, ["another"]) == is_gone
        assert (left.poll() is None) is not is_gone


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may make a namespace")
def test_a_process_of_a_container_that_is_seen_from_here_is_known_by_its_number_there() -> None:
    words = ["unshare", "--pid", "--fork", "sh", "-c", "sleep 600 & cat /proc/self/stat; echo; wait"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as container:
        assert container.stdout is not None
        container.stdout.readline()
        try:
            wait_until(lambda: bool(sleepers(container.pid)), "its command")
            sleeper = sleepers(container.pid)[0]
            namespace = str(Path(f"/proc/{sleeper}/ns/pid").readlink())
            status = Path(f"/proc/{sleeper}/status").read_text().splitlines()
            number = int(next(line for line in status if line.startswith("NSpid:")).split()[-1])
            started = int(Path(f"/proc/{sleeper}/stat").read_text().rpartition(")")[2].split()[19])
            seen = Process(this_process().kernel, namespace, number, started)
            assert number != sleeper
            assert not seen.is_gone
            assert msgspec.structs.replace(seen, started=started + 1).is_gone
        finally:
            os.killpg(container.pid, signal.SIGKILL)


def sleepers(pid: int) -> list[int]:
    """The sleeping processes that it has started."""
    return [one for one in children_of(pid) if command_of(one).startswith(b"sleep\0")]


def children_of(pid: int) -> list[int]:
    """All processes that it has started, and those that these have started."""
    found = [int(one) for one in told_of(pid, f"task/{pid}/children").split()]
    return found + [below for one in found for below in children_of(one)]


def command_of(pid: int) -> bytes:
    return told_of(pid, "cmdline")


def told_of(pid: int, what: str) -> bytes:
    """The content of /proc about a process; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
