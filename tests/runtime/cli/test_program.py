"""The command line as a program: signals, terminals, kills, pipes, and the time of its answer."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.processes import runs
from tests.waiting import wait_until

from .conftest import PROGRAM, SRC, CommandResult, Terminal, environment

Cli = Callable[..., CommandResult]
Terminals = Callable[..., Terminal]
Program = Callable[..., subprocess.Popen[str]]

# A task that reports its start and runs until a file appears, a task that depends on it, and a task beside them.
GATED = """
name = "gated"
[[tasks]]
name = "first"
command = "echo $$ > pid; echo waiting here; while [ ! -e gate ]; do sleep 0.05; done; echo gone on"
shell = true
kill_grace = 60
[[tasks]]
name = "second"
command = ["true"]
depends_on = ["first"]
"""
UNHURRIED = ("--drain-deadline", "10m")  # a busy machine takes its time between two signs
PATIENT = """
from callboard.runtime.cli import main
from callboard.runtime.lifespan import draining, opening
draining.LONGEST_GRACE = opening.LONGEST_STOP = 600
main()
"""


@pytest.fixture
def gated(folder: Path) -> Path:
    (folder / "gated.toml").write_text(GATED)
    return folder


def test_live_progress_on_a_terminal(gated: Path, terminal: Terminals) -> None:
    screen = terminal("run", "gated.toml", "--id", "j1")
    screen.wait_for("waiting here")
    assert "gated" in screen.out
    (gated / "gate").touch()
    screen.wait_for("2/2")
    assert screen.end() == 0
    assert "job j1 completed (2 completed)" in screen.out
    assert screen.out.count("\x1b[?25l") == screen.out.count("\x1b[?25h")  # the cursor is there again


def test_plain_on_a_terminal(gated: Path, terminal: Terminals) -> None:
    (gated / "gate").touch()
    screen = terminal("run", "gated.toml", "--plain")
    assert screen.end() == 0
    assert "\x1b[" not in screen.out
    assert "first started" in screen.out


def test_first_ctrl_c_lets_running_tasks_end_and_resume_goes_on(cli: Cli, gated: Path, terminal: Terminals) -> None:
    there = ("--journal", "there.db")
    screen = terminal("run", "gated.toml", "--id", "j1", *UNHURRIED, *there)
    screen.wait_for("waiting here")
    screen.press("\x03")
    screen.wait_for("stopping: nothing new starts")
    (gated / "gate").touch()
    assert screen.end() == 130
    text = "job j1 is unfinished (1 completed, 1 queued): `callboard resume --journal there.db` continues it"
    assert text in " ".join(screen.out.split())
    result = cli("resume", *there)
    assert result.code == 0
    assert "first started" not in result.out
    assert "job j1 completed (2 completed)" in result.out
    assert cli("check", *there).code == 0


def test_second_ctrl_c_stops_them_and_gives_the_tries_back(cli: Cli, gated: Path, terminal: Terminals) -> None:
    screen = terminal("run", "gated.toml", "--id", "j1", *UNHURRIED)
    screen.wait_for("waiting here")
    screen.press("\x03")
    screen.wait_for("Ctrl+C again stops them now")
    screen.press("\x03")
    screen.wait_for("stopping running tasks now")
    assert screen.end() == 130
    (gated / "gate").touch()
    result = cli("run", "gated.toml", "--id", "j1")
    assert result.code == 0
    assert "first started (attempt 2)" in result.out
    _, first, _ = (json.loads(line) for line in cli("status", "j1", "--json").out.splitlines())
    assert (first["state"], first["max_attempts"]) == ("completed", 1)  # the try that was given back cost nothing
    assert cli("check").code == 0


def test_third_ctrl_c_leaves_at_once(cli: Cli, gated: Path, terminal: Terminals) -> None:
    deaf = GATED.replace("echo waiting", "trap '' TERM; echo waiting").replace("kill_grace = 60", 'kill_grace = "10m"')
    (gated / "gated.toml").write_text(deaf)
    screen = terminal("run", "gated.toml", "--id", "j1", *UNHURRIED, program=[sys.executable, "-c", PATIENT])
    screen.wait_for("waiting here")
    for text in ("stops them now", "exits at once"):
        screen.press("\x03")
        screen.wait_for(text)
    screen.press("\x03")
    assert screen.end() == 130  # the running task has ten minutes
    assert screen.out.count("\x1b[?25l") == screen.out.count("\x1b[?25h")
    (gated / "gate").touch()
    assert cli("resume").code == 0
    assert cli("check").code == 0


PROCESSED = """
name = "processed"
[[tasks]]
name = "first"
run = "processed:first"
engine = "process"
kill_grace = 60
[[tasks]]
name = "second"
run = "processed:second"
engine = "process"
depends_on = ["first"]
"""
IN_PROCESSES = """
import os, pathlib, time

def first(task):
    pathlib.Path("pid").write_text(str(os.getpid()))
    print("waiting here")
    while not pathlib.Path("gate").exists():
        task.heartbeat()
        time.sleep(0.05)

def second():
    return os.getpid()
"""


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_beside_worker_processes_drains_and_leaves_none(
    cli: Cli, folder: Path, terminal: Terminals, presses: int
) -> None:
    (folder / "processed.toml").write_text(PROCESSED)
    (folder / "processed.py").write_text(IN_PROCESSES)
    screen = terminal("run", "processed.toml", "--id", "j1", *UNHURRIED)
    screen.wait_for("waiting here")
    worker = int((folder / "pid").read_text())
    screen.press("\x03")  # reaches the program only: its worker processes have a session of their own
    screen.wait_for("Ctrl+C again stops them now")
    assert runs(worker)
    if presses == 1:
        (folder / "gate").touch()
    else:
        screen.press("\x03")
        screen.wait_for("stopping running tasks now")
    assert screen.end() == 130
    assert not runs(worker)
    (folder / "gate").touch()
    result = cli("resume")
    assert (result.code, "job j1 completed (2 completed)" in result.out) == (0, True)
    _, first, second = (json.loads(line) for line in cli("status", "j1", "--json").out.splitlines())
    assert (first["attempt"], second["attempt"]) == (presses, 1)
    assert cli("check").code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_drain(cli: Cli, gated: Path, number: signal.Signals, program: Program) -> None:
    running = program("run", "gated.toml", "--id", "j1", *UNHURRIED)
    assert running.stdout is not None
    _wait_for(running, "first started")
    running.send_signal(number)
    assert running.stderr is not None
    told = running.stderr.readline()
    assert "stopping: nothing new starts, running tasks may end within 600 s (Ctrl+C again stops them now)" in told
    assert told.endswith(": j1@1/first\n")  # the task that the drain waits for
    (gated / "gate").touch()
    out, _ = running.communicate(timeout=600)
    assert running.returncode == 130
    assert "job j1 is unfinished (1 completed, 1 queued)" in out
    assert cli("resume").code == 0


def test_ctrl_c_ends_a_run_at_once_in_which_nothing_runs(cli: Cli, folder: Path, program: Program) -> None:
    (folder / "later.toml").write_text('[[tasks]]\nname = "a"\ncommand = ["true"]\nwait = "30d"\n')
    running = program("run", "later.toml", "--id", "j1", "--drain-deadline", "1h")
    _wait_for(running, "a waits")
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=600)  # and not the drain deadline
    assert running.returncode == 130
    assert "stopping: nothing new starts, and nothing runs now" in err
    assert "job j1 is unfinished (1 waiting)" in out
    assert cli("check").code == 0


def test_an_ignored_signal_stays_ignored(gated: Path, program: Program) -> None:
    running = program("run", "gated.toml", ignoring="INT")
    _wait_for(running, "first started")
    running.send_signal(signal.SIGINT)
    (gated / "gate").touch()
    out, err = running.communicate(timeout=600)
    assert (running.returncode, err) == (0, "")
    assert "completed (2 completed)" in out


def test_killed_in_the_middle_and_resumed(cli: Cli, gated: Path, program: Program) -> None:
    running = program("run", "gated.toml", "--id", "j1", "--jsonl", "log.jsonl")
    _wait_for(running, "first started")
    assert "running" in cli("status", "j1").out  # while it lives
    assert cli("check").code == 0
    result = cli("run", "gated.toml")
    assert result.code == 2
    assert f"as job j1. process {running.pid} runs it: wait for its end, give it up" in " ".join(result.err.split())
    running.kill()
    running.communicate()
    result = cli("run", "gated.toml")
    assert result.code == 2
    assert "'gated' is unfinished in callboard.db, as job j1. Finish it with `callboard resume`" in result.err
    (gated / "gate").touch()
    result = cli("resume", "--jsonl", "log.jsonl")
    assert result.code == 0
    assert "first was interrupted, will run again (runtime_restarted)" in result.out
    assert "failed" not in result.out
    assert "first started (attempt 2)" in result.out
    assert cli("check").code == 0
    assert cli("audit", "log.jsonl").code == 0


def test_resume_has_the_workers_that_run_had(cli: Cli, gated: Path, program: Program) -> None:
    special = 'capabilities = ["gpu"]\n'
    workers = f'[[workers]]\nname = "mine"\nengine = "command"\ncapacity = 3\n{special}'
    (gated / "gated.toml").write_text(f"{GATED}{special}{workers}")
    running = program("run", "gated.toml", "--id", "j1")
    _wait_until_it_runs(gated, running)
    running.kill()
    running.communicate()
    (gated / "gate").touch()
    result = cli("resume")
    assert result.code == 0, result.everything
    events = [json.loads(line) for line in cli("history", "--json").out.splitlines()]
    assert {event["entity_id"] for event in events if event["event_type"].startswith("worker")} == {"mine#1", "mine#2"}


def test_modules_beside_the_file_are_found_from_anywhere(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "its_steps.py").write_text("import os\ndef where(): return os.getcwd()\ndef wait(n): return 0\n")
    (folder / "deep" / "a.toml").write_text(
        '[[tasks]]\nname = "a"\ncommand = ["pwd"]\nretry = { wait = "its_steps:wait" }\n'
        '[[tasks]]\nname = "b"\nrun = "its_steps:where"\n'
    )
    result = cli("run", "deep/a.toml", "--json")
    assert result.code == 0
    results = json.loads(result.out.splitlines()[-1])["jobs"][0]["results"]
    assert results["a"]["output"].strip() == str(folder / "deep")  # where commands run
    assert results["b"] == str(folder)  # a function runs in the program's own folder


def test_a_run_that_is_refused_starts_and_kills_nothing(cli: Cli, gated: Path, program: Program) -> None:
    running = program("run", "gated.toml", "--id", "j1")
    pid_file = _wait_until_it_runs(gated, running)
    running.kill()
    running.communicate()
    pid = int(pid_file.read_text())  # of what outlived the kill
    other = (gated / "gated.toml").read_text().replace('"second"', '"another"')
    assert 'name = "another"' in other
    (gated / "other.toml").write_text(other)
    before = cli("history", "j1").out
    result = cli("run", "other.toml", "--id", "j1")
    assert result.code == 2
    assert (
        "there is a job 'j1' already, submitted with another workstream (running now): this workstream adds"
        in result.err
    )
    assert cli("history", "j1").out == before
    try:
        assert runs(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_cancel_what_nobody_runs(cli: Cli, gated: Path, program: Program) -> None:
    running = program("run", "gated.toml", "--id", "j1")
    pid_file = _wait_until_it_runs(gated, running)
    running.kill()
    running.communicate()
    result = cli("cancel", "j1", "--reason", "not needed")
    assert (result.code, result.out) == (0, "job j1 cancelled (2 cancelled)\n")
    assert "not needed" in cli("status", "j1").out
    assert cli("check").code == 0
    pid = pid_file.read_text().strip()  # of what outlived the kill
    left = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True, check=False).stdout
    assert left.strip()[:1] in ("", "Z")  # it has ended, or waits to be reaped by its new parent
    assert cli("resume").out == "Nothing is unfinished in callboard.db.\n"


def test_cancel_one_task(cli: Cli, gated: Path, program: Program) -> None:
    (gated / "gated.toml").write_text(GATED + "optional = true\n")
    running = program("run", "gated.toml", "--id", "j1")
    _wait_until_it_runs(gated, running)
    running.kill()
    running.communicate()
    result = cli("cancel", "j1", "second", "--reason", "not needed")
    assert (result.code, result.out) == (0, "task j1@1/second cancelled (not needed)\n"), result.err
    (gated / "gate").touch()
    assert "job j1 completed (1 completed, 1 cancelled)" in cli("resume").out
    assert cli("check").code == 0


def test_the_commands_are_put_together_without_what_they_need_to_run() -> None:
    asked = "import sys, callboard.runtime.cli.app; print(*sorted(name for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, env=environment(), check=True)
    heavy = {
        "callboard.actors",
        "callboard.machines",
        "anyio",
        "msgspec",
        "structlog",
        "tenacity",
        "sqlite3",
        "asyncio",
        "rich",
    }
    assert heavy & set(done.stdout.split()) == set()


def test_help_is_there_at_once() -> None:
    bare: list[float] = []
    took: list[float] = []
    for _ in range(3):
        for command, spent in (([sys.executable, "-c", ""], bare), ([*PROGRAM, "--help"], took)):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(took) < 25 * min(bare)  # 11 times that of Python itself; processor time, since others have the machine
    for word in (
        "run",
        "resume",
        "status",
        "history",
        "cancel",
        "audit",
        "check",
        "stuck",
        "archive",
        "top",
        "diagram",
        "init",
        "Exit codes",
    ):
        assert word in done.stdout


@pytest.mark.parametrize(
    "command",
    ["run", "resume", "status", "history", "cancel", "audit", "check", "stuck", "archive", "top", "diagram", "init"],
)
def test_every_command_documents_the_exit_codes(cli: Cli, command: str) -> None:
    result = cli(command, "--help")
    assert result.code == 0
    assert "130 cancelled or interrupted" in " ".join(result.out.split())


def test_light_commands_load_nothing_heavy(folder: Path) -> None:
    code = (
        "import sys; from callboard.runtime.cli.app import app\n"
        "print([name for name in ('rich', 'anyio', 'asyncio', 'sqlite3', 'structlog', 'tenacity', 'yaml')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout == "[]\n"


def test_without_the_extra_it_says_what_to_install(folder: Path) -> None:
    (folder / "typer.py").write_text("raise ModuleNotFoundError('no typer', name='typer')")
    done = subprocess.run(
        PROGRAM,
        capture_output=True,
        text=True,
        env={**environment(), "PYTHONPATH": f"{folder}{os.pathsep}{SRC}"},
        check=False,
    )
    assert done.returncode == 2
    assert (
        done.stderr
        == "callboard: The command line needs Typer and Rich, which are not installed: pip install 'callboard[cli]'\n"
    )


def _wait_until_it_runs(gated: Path, running: subprocess.Popen[str]) -> Path:
    """Wait until the first command runs: a task that has started is about to run. Returns the file with its pid."""
    _wait_for(running, "first started")
    pid_file = gated / "pid"
    wait_until(lambda: pid_file.exists() and pid_file.read_text(), "the first command")
    return pid_file


def _wait_for(running: subprocess.Popen[str], text: str) -> None:
    assert running.stdout is not None
    for line in running.stdout:
        if text in line:
            return
    raise AssertionError(f"it ended before {text!r} came")


@pytest.mark.cluster
def test_a_specification_runs_on_ray_by_one_option(ray_here: Any, folder: Path, program: Program) -> None:
    (folder / "there.toml").write_text(
        'name = "there"\n[[tasks]]\nname = "a"\ncommand = "echo by $CALLBOARD_ACTOR; test ! -e stop || sleep 60"\n'
        'shell = true\n[[tasks]]\nname = "b"\nrun = "os:getppid"\ndepends_on = ["a"]\n'
    )
    (folder / "stop").touch()
    running = program("run", "there.toml", "--engine", "ray", "--address", ray_here.address, "--id", "j1", "--plain")
    assert running.stdout is not None
    for line in running.stdout:
        if "a started" in line:
            break
    assert running.stderr is not None
    running.send_signal(signal.SIGTERM)  # it is the program's, and not Ray's
    assert "nothing new starts" in running.stderr.readline()
    running.send_signal(signal.SIGTERM)
    assert running.wait(600) == 130  # an actor on a busy machine takes a minute to start
    (folder / "stop").unlink()
    told = program("resume", "--address", ray_here.address, "--plain")
    out, _ = told.communicate(timeout=600)
    assert "job j1 completed (2 completed)" in out
    assert re.fullmatch(r"by [0-9a-f]{32}\n", (folder / "callboard.db.output" / "j1" / "1" / "a.2.log").read_text())


def test_a_cluster_that_does_not_answer_is_told_of_soon(folder: Path, cli: Cli, program: Program) -> None:
    pytest.importorskip("ray", reason='Ray is not installed: pip install "callboard[ray]"')
    (folder / "a.toml").write_text('name = "a"\n[[tasks]]\nname = "a"\ncommand = ["true"]\n')
    tried = {at: program("run", "a.toml", "--engine", "ray", "--address", at) for at in ("127.0.0.1:1", "ray://x:1")}
    told = {at: one.communicate(timeout=600)[1] for at, one in tried.items()}
    assert [one.returncode for one in tried.values()] == [2, 2]
    assert "no Ray cluster answers at '127.0.0.1:1'" in told["127.0.0.1:1"]
    assert "the address of a Ray client" in told["ray://x:1"]
    assert "only ray is allowed" in cli("run", "a.toml", "--engine", "dask").err
    assert "own workers" in cli("run", "a.toml", "--url", "http://x", "--address", "x:1").err
