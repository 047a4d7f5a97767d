"""The command line when its output cannot be written: the reader has closed it, or the disk is full."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.forks import PATIENCE, Forks
from tests.programs import killed_after
from tests.waiting import wait_until

from callboard.runtime.journal.sqlite.journal import SqliteReader

from .conftest import PROGRAM, CommandResult, Terminal, environment
from .test_program import GATED, Program, _wait_for

pytestmark = pytest.mark.slow

Cli = Callable[..., CommandResult]

SHOWN: list[tuple[str, ...]] = [
    ("--help",),
    ("--version",),
    ("run", "--help"),
    ("status",),
    ("status", "j1"),
    ("status", "j1", "--json"),
    ("status", "j1", "--plan"),
    ("history", "j1"),
    ("history", "j1", "--json"),
    ("top", "--once"),
    ("stuck",),
    ("check",),
    ("audit", "log.jsonl"),
    ("archive", "--dry-run", "--older-than", "0s"),
    ("diagram", "task"),
    ("workers", "list"),
    ("resume",),
    ("cancel", "j2"),
    ("cancel", "j3", "--json"),
    ("init", "new.toml"),
]
"""Commands of every kind; those with an effect take effect all the same."""


@pytest.fixture
def gated(folder: Path) -> Path:
    (folder / "gated.toml").write_text(GATED)
    return folder


@pytest.fixture
def done(cli: Cli, gated: Path) -> Path:
    """A folder with a job j1 that has completed."""
    (gated / "gate").touch()
    assert cli("run", "gated.toml", "--id", "j1", "--jsonl", "log.jsonl").code == 0
    return gated


def into(output: int, folder: Path, *args: str) -> tuple[int, str]:
    """Run the command line with that standard output. Returns its exit code, and its standard error."""
    ended = subprocess.run(
        [*PROGRAM, *args],
        cwd=folder,
        env=environment(),
        stdout=output,
        stderr=subprocess.PIPE,
        timeout=600,
        check=False,
    )
    return ended.returncode, ended.stderr.decode()


def unread() -> int:
    """The end of a pipe that has no reader."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    with Forks(tmp_path_factory.mktemp("forks"), **environment()) as forks:
        yield forks


def test_a_command_whose_reader_has_left_says_so_by_its_exit_code_alone(done: Path, forks: Forks) -> None:
    for command in SHOWN:
        _begin_another(done, command, forks)
        ended = forks.run(PROGRAM[-1], *command, cwd=done, stdout="unread")
        assert (command, ended.returncode, ended.stderr) == (command, 141, "")
        _did(done, command, forks)


def test_a_command_that_finds_the_disk_of_its_output_full_says_that(done: Path, forks: Forks) -> None:
    for command in SHOWN:
        _begin_another(done, command, forks)
        ended = forks.run(PROGRAM[-1], *command, cwd=done, stdout="/dev/full")
        assert (command, ended.returncode, ended.stderr.count("\n")) == (command, 1, 1)
        assert ended.stderr.startswith("callboard: the output cannot be written: No space left on device.")
        _did(done, command, forks)


def test_so_does_one_whose_output_cannot_be_written_since_python_began(done: Path) -> None:
    output = unread()
    try:
        assert into(output, done, "status") == (141, "")
    finally:
        os.close(output)
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        code, told = into(full.fileno(), done, "status")
    assert (code, told.count("\n")) == (1, 1)


def _begin_another(folder: Path, command: tuple[str, ...], forks: Forks) -> None:
    """Leave a job behind that has not ended, where the command is about one: j2 or j3."""
    if command[0] == "cancel":
        (folder / "gate").unlink(missing_ok=True)
        running = forks.start(PROGRAM[-1], "run", "gated.toml", "--id", command[1], "--plain", cwd=folder)
        try:
            wait_until(lambda: "first started" in running.stdout or running.poll() is not None, within=PATIENCE)
            assert "first started" in running.stdout, running.stderr
        finally:
            running.kill()
            running.wait()


def _did(folder: Path, command: tuple[str, ...], forks: Forks) -> None:
    if command[0] == "cancel":
        (folder / "gate").touch()  # later commands wait for nothing
        shown = forks.run(PROGRAM[-1], "status", command[1], "--json", cwd=folder)
        assert json.loads(shown.stdout.splitlines()[0])["state"] == "cancelled"
    if command[0] == "init":
        (folder / "new.toml").unlink()


@pytest.mark.parametrize("form", [["--plain"], ["--json"]])
def test_a_run_whose_reader_leaves_stops_as_at_a_signal_and_says_so(
    cli: Cli, gated: Path, program: Program, form: list[str]
) -> None:
    running = program("run", "gated.toml", "--id", "j1", "--drain-deadline", "10m", *form)
    _wait_for(running, "started" if form == ["--plain"] else "first")
    assert running.stdout is not None
    running.stdout.close()
    (gated / "gate").touch()  # the first task ends, which is the next printed line
    assert running.wait(600) == 141
    assert running.stderr is not None
    told = running.stderr.read()
    assert "the reader of the output has closed it; `callboard resume` continues" in told
    assert "nothing new starts" in told
    assert "Traceback" not in told
    states = [json.loads(line)["state"] for line in cli("status", "j1", "--json").out.splitlines()]
    assert states[1] == "completed"
    assert "failed" not in states
    assert cli("resume").code == 0
    assert cli("status", "j1").out.startswith("job j1: gated, completed")
    assert cli("check").code == 0


@pytest.mark.parametrize("form", [["--plain"], ["--json"]])
def test_a_run_that_finds_the_disk_of_its_output_full_says_that_and_stops(
    cli: Cli, gated: Path, form: list[str]
) -> None:
    (gated / "gate").touch()
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        code, told = into(full.fileno(), gated, "run", "gated.toml", "--id", "j1", *form)
    assert code == 1
    assert "the output cannot be written: No space left on device" in told
    assert "internal error" not in told
    assert cli("resume").code == 0
    assert cli("status", "j1").out.startswith("job j1: gated, completed")


def test_what_a_body_prints_where_the_reader_has_left_fails_no_body(cli: Cli, folder: Path, program: Program) -> None:
    (folder / "talks.toml").write_text('name = "talks"\n[[tasks]]\nname = "talk"\nrun = "talks:talk"\n')
    (folder / "talks.py").write_text(
        "import pathlib, anyio\n"
        "async def talk():\n"
        "    while not pathlib.Path('gate').exists():\n"
        "        await anyio.sleep(0.01)\n"
        "    print('x' * 100_000, flush=True)\n"
    )
    running = program("run", "talks.toml", "--id", "j1", "--plain")
    _wait_for(running, "talk started")
    assert running.stdout is not None
    running.stdout.close()
    (folder / "gate").touch()
    assert running.wait(600) == 141
    assert cli("status", "j1").out.startswith("job j1: talks, completed")


def test_a_standard_error_that_nobody_reads_changes_nothing(cli: Cli, gated: Path) -> None:
    unheard = unread()
    running = subprocess.Popen(
        [*PROGRAM, "run", "gated.toml", "--id", "j1", "--plain", "--drain-deadline", "10m"], cwd=gated,
        env=environment(), text=True, stdout=subprocess.PIPE, stderr=unheard,
    )  # fmt: skip
    os.close(unheard)
    with killed_after(running):
        _wait_for(running, "first started")
        running.send_signal(signal.SIGTERM)  # the signal is reported on standard error
        with contextlib.closing(SqliteReader(gated / "callboard.db")) as journal:
            wait_until(lambda: journal.attempts("j1@1/first")[0].drained_at is not None, "it has received the signal")
        (gated / "gate").touch()
        out, _ = running.communicate(timeout=600)
    assert running.returncode == 130
    assert "unfinished" in out
    assert cli("resume").code == 0


def test_a_server_whose_reader_leaves_goes_on(gated: Path, program: Program) -> None:
    running = program("serve", "--port", "0")
    _wait_for(running, "serving")
    assert running.stdout is not None
    running.stdout.close()
    running.send_signal(signal.SIGTERM)
    assert running.wait(600) == 0


def on_terminal(forks: Forks, folder: Path, *args: str, **said: str) -> str:
    """Return what a command has written on a terminal."""
    screen, end = pty.openpty()
    try:
        settings = {"TERM": "xterm", "LINES": "30", **said}
        name = os.ttyname(end)
        running = forks.start(PROGRAM[-1], *args, cwd=folder, stdout=name, stderr=name, **settings)
        out, ended = b"", False
        while not ended:
            ended = running.poll() is not None  # what it has written is there by then
            while select.select([screen], [], [], 0 if ended else 0.05)[0]:
                out += os.read(screen, 65536)
        return out.decode(errors="replace")
    finally:
        os.close(end)
        os.close(screen)


def painted(shown: str) -> set[str]:
    """Return the sequences by which a command has set colours on its terminal."""
    return set(re.findall(r"\x1b\[(?:\d+;)*(?:3|4|9|10)\d(?:;\d+)*m", shown))


LOOKS = [("status",), ("status", "j1"), ("history", "j1"), ("workers", "list", "--all"), ("--help",), ("bogus",)]


@pytest.mark.parametrize("said", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_colours_are_sent_to_no_terminal_that_wants_none_and_none_is_ended_that_never_began(
    done: Path, forks: Forks, said: dict[str, str]
) -> None:
    for args in (*LOOKS, ("run", "gated.toml", "--id", "j2")):
        shown = on_terminal(forks, done, *args, **said)
        assert shown
        assert (args, painted(shown)) == (args, set())
        assert args not in LOOKS or "\x1b" not in shown  # a dumb terminal shows it


@pytest.mark.parametrize("said", [{}, {"NO_COLOR": ""}], ids=str)
def test_colours_are_sent_to_a_terminal_otherwise(done: Path, forks: Forks, said: dict[str, str]) -> None:
    assert painted(on_terminal(forks, done, "status", **said)) == {"\x1b[32m"}
    assert painted(on_terminal(forks, done, "run", "gated.toml", "--id", "j2", **said))


def test_top_draws_over_nothing_on_a_dumb_terminal(done: Path, terminal: Callable[..., Terminal]) -> None:
    screen = terminal("top", TERM="dumb")
    assert (screen.end(), "\x1b" in screen.out, "completed" in screen.out) == (0, False, True)
