"""Every command, its output and its exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import anyio
import pytest
from tests.programs import killed_after
from tests.runtime.journal import samples

from callboard import Approval, Notice, Runtime, Task, Workstream
from callboard.actors.spec.model import Allowed
from callboard.machines.builtin.table import MACHINES
from callboard.machines.lifecycles import PUBLISHED
from callboard.runtime.cli import hints, words
from callboard.runtime.cli.command_errors import CommandError
from callboard.runtime.cli.spans import span

from .conftest import PROGRAM, CommandResult, environment

Cli = Callable[..., CommandResult]

GOOD = """
name = "good"
[[tasks]]
name = "one"
command = ["sh", "-c", "echo from one; echo noise >&2"]
[[tasks]]
name = "two"
run = "beside:two"
depends_on = ["one"]
"""
BAD = """
name = "bad"
[[tasks]]
name = "breaks"
command = ["sh", "-c", "echo what broke; exit 7"]
[tasks.retry]
max_attempts = 2
base_delay = 0
[[tasks]]
name = "never"
command = ["true"]
depends_on = ["breaks"]
"""
BESIDE = """
def two(task):
    print("printed by a body")
    return {"heard": task.results["one"]["output"]}
"""


@pytest.fixture
def files(folder: Path) -> Path:
    (folder / "good.toml").write_text(GOOD)
    (folder / "bad.toml").write_text(BAD)
    (folder / "beside.py").write_text(BESIDE)
    return folder


@pytest.fixture(scope="module")
def two_jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a journal of two jobs that have ended, j1 and j2."""
    folder = tmp_path_factory.mktemp("two_jobs")
    for name, text in (("good.toml", GOOD), ("bad.toml", BAD), ("beside.py", BESIDE)):
        (folder / name).write_text(text)
    for name, job in (("good.toml", "j1"), ("bad.toml", "j2")):
        subprocess.run(
            [*PROGRAM, "run", name, "--id", job], cwd=folder, env=environment(), check=False, capture_output=True
        )
    return folder


def rows(told: CommandResult) -> list[dict[str, Any]]:
    return [json.loads(line) for line in told.out.splitlines()]


def test_run_to_completion_in_plain_lines(cli: Cli, files: Path) -> None:
    result = cli("run", "good.toml", "--id", "j1")
    assert result.code == 0
    assert result.err == ""
    lines = [line.split(" ", 1)[1] for line in result.out.splitlines() if line != "printed by a body"]
    assert lines[0] == "j1: good, 2 tasks"
    assert lines[1] == "one started"
    assert lines[2].startswith("one completed (")
    assert "two completed" in result.out
    assert lines[-1] == "j1 completed (2 completed)"


def test_run_that_fails_shows_why(cli: Cli, files: Path) -> None:
    result = cli("run", "bad.toml", "--id", "j1")
    assert result.code == 1
    assert "breaks failed, will be retried (" in result.out
    assert "breaks started (attempt 2)" in result.out
    assert "\nbreaks failed: `sh -c 'echo what broke; exit 7'` exited with 7" in result.out
    assert "  | what broke" in result.out
    assert "job j1 failed (1 failed, 1 skipped)" in result.out or "job j1 failed (1 skipped, 1 failed)" in result.out


def test_run_as_json(cli: Cli, files: Path) -> None:
    result = cli("run", "good.toml", "--id", "j1", "--json", "--jsonl", "log.jsonl")
    *events, last = rows(result)
    assert result.code == 0
    assert result.err == "printed by a body\n"
    assert {event["job_id"] for event in events} == {"j1"}
    assert [event["to_state"] for event in events if event["entity_id"] == "j1"] == [
        "submitted",
        "pending",
        "running",
        "completed",
    ]
    log = [json.loads(line) for line in Path("log.jsonl").read_text().splitlines()]
    assert events == [line for line in log if line["job_id"] == "j1"]
    (job,) = last["jobs"]
    assert (last["event_type"], last["exit_code"], job["state"], job["job_id"]) == ("outcome", 0, "completed", "j1")
    assert job["results"]["two"] == {"heard": "from one\nnoise"}
    assert job["tasks"]["one"]["exit_code"] == 0

    *_, last = rows(cli("run", "bad.toml", "--json"))
    assert last["exit_code"] == 1
    assert last["jobs"][0]["tasks"]["breaks"]["exit_code"] == 7


def test_the_same_id_again_is_the_same_job(cli: Cli, files: Path) -> None:
    assert cli("run", "good.toml", "--id", "j1").code == 0
    result = cli("run", "good.toml", "--id", "j1")
    assert (result.code, "started" in result.out, "job j1 completed" in result.out) == (0, False, True)
    result = cli("run", "bad.toml", "--id", "j1")
    assert result.code == 2
    assert "there is a job 'j1' already" in result.err
    result = cli("run", "good.toml", "--id", "../x")
    assert result.code == 2
    assert "cannot be a job's id" in result.err


def test_status(cli: Cli, files: Path) -> None:
    cli("run", "good.toml", "--id", "j1")
    cli("run", "bad.toml", "--id", "j2")
    result = cli("status")
    assert result.code == 0
    head, second, first = [line.split() for line in result.out.splitlines()]
    assert head[:4] == ["JOB", "WORKSTREAM", "STATE", "DONE"]
    assert second[:4] == ["j2", "bad", "failed", "2/2"]
    assert first[:4] == ["j1", "good", "completed", "2/2"]
    result = cli("status", "j2")
    assert result.out.startswith("job j2: bad, failed")
    assert "breaks  failed   2/2" in result.out
    job, breaks, never = rows(cli("status", "j2", "--json"))
    assert (job["kind"], job["tasks"]) == ("job", {"failed": 1, "skipped": 1})
    assert (breaks["state"], breaks["attempt"], breaks["exit_code"], never["state"]) == ("failed", 2, 7, "skipped")
    assert [row["id"] for row in rows(cli("status", "--json"))] == ["j2", "j1"]


def test_history(cli: Cli, files: Path) -> None:
    cli("run", "good.toml", "--id", "first")
    cli("run", "bad.toml", "--id", "second")
    whole = rows(cli("history", "--json"))
    assert [row["seq"] for row in whole] == list(range(1, len(whole) + 1))
    assert {row["job_id"] for row in rows(cli("history", "first", "--json"))} == {"first"}
    states = [row["to_state"] for row in rows(cli("history", "sec", "breaks", "--json"))]  # a beginning is enough
    assert states == ["pending", "queued", "running", "retrying", "queued", "running", "failed"]
    lines = cli("history", "second", "breaks").out.splitlines()
    assert len(lines) == 7
    assert lines[2].split()[3:] == [
        "task", "second@1/breaks", "queued", "->", "running", "[start]", "attempt", "1;", "commands#2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("status", "j1/tow"), "Job j1 has no task 'tow'; did you mean 'two'?"),
        (("status", "j1@1/zz"), "Job j1 has no task 'zz'; it has: one, two"),
        (("status", "j1@7/two"), "'j1@7/two' is of run 7, but job j1 is in run 1"),
        (("status", "j1/two", "--plan"), "'j1/two' is a task: name its job, j1."),
        (("history", "j1/tow"), "Job j1 has no task 'tow'; did you mean 'two'?"),
        (("history", "nope/two"), "There is no job 'nope/two' in this journal."),
        (("status", "jj1"), "There is no job 'jj1' in this journal; did you mean 'j1'?"),
        (("run", "."), "the file is a folder; name a file, whose name ends in one of .toml, .yaml, .yml, .json"),
        (("run", "beside.py"), "the file has a name that ends in .py, and the ending decides the format: it must be"),
        (("run", "good.toml", "--existing", "joyn"), "'--existing': 'joyn' is not one of 'join', 'refuse', 'repl"),
        (("diagram", "task", "--format", "gif"), "'--format': 'gif' is not one of 'mermaid', 'dot', 'svg'."),
        (("cancel", "j1", "--timeout", "soon"), "'--timeout': 'soon' must be a valid number."),
        (("cancel", "j1", "--timeout", "-3"), "'--timeout': '-3' must be greater than or equal to 0."),
        (("breaker", "trip", "x", "--timeout", "soon"), "'--timeout': 'soon' must be a valid number."),
        (("backup", "."), "is there already. Move it away, or name another."),
        (("backup", "/"), "Cannot make the backup /: it is a folder. Name a new file in it."),
        (("status", "nope", "--journal", "./callboard.db"), "`callboard status --journal ./callboard.db` lists them."),
        (("status", "nope"), "There is no job 'nope' in this journal. `callboard status` lists them."),
        (("status", "j"), "2 jobs begin with 'j': j2, j1. Give more of the id."),
        (("history", "nope"), "no job 'nope'"),
        (("history", "j1", "tow"), "Job j1 has no task 'tow'; did you mean 'two'?"),
        (("cancel", "nope"), "no job 'nope'"),
        (("diagram", "taks"), "There is no machine 'taks'; did you mean 'task'?"),
        (("diagram", "pipeline.stpe"), "There is no machine 'pipeline.stpe'; did you mean 'pipeline.step'?"),
        (("run", "nope.toml"), "the file does not exist"),
        (("run", "wrong.toml"), "line 3: tasks[0].comand: unknown key 'comand' (did you mean 'command'?)"),
        (("run", "missing.toml"), "line 3: tasks[0].run: 'not_there:f': there is no module 'not_there'"),
        (("run", "main.toml"), "line 3: tasks[0].run: '__main__:f' is in the main module of another program"),
        (("run", "none.toml"), "tasks: there are no tasks (`callboard init` writes an example)"),
        (("audit", "nope.jsonl"), "nope.jsonl cannot be read: No such file or directory."),
        (("init", "good.toml"), "good.toml exists already, and was not changed."),
        (("init", "a.yaml"), "must end in .toml"),
        (("init", "no/such/a.toml"), "cannot be written: No such file or directory."),
        (("status", "--journal", "nope.db"), "There is no journal nope.db"),
        (("history", "--journal", "nope.db"), "There is no journal nope.db"),
        (("check", "--journal", "nope.db"), "There is no journal nope.db"),
        (("resume", "--journal", "nope.db"), "There is no journal nope.db"),
        (("cancel", "x", "--journal", "nope.db"), "There is no journal nope.db"),
        (("status", "--journal", "."), "'.' is a folder, and no journal. Name a file."),
        (("status", "--journal", "/dev/null"), "'/dev/null' is a device, a pipe or the like, and no journal."),
        (("run", "good.toml", "--journal", "."), "'.' is a folder"),
        (("run", "good.toml", "--journal", "/dev/null"), "'/dev/null' is a device"),
        (("status", "--journal", "good.toml"), "good.toml"),
        (("run", "good.toml", "--journal", "good.toml"), "good.toml"),
        (("run", "good.toml", "--journal", "no/such/a.db"), "no/such"),
        (("run", "good.toml", "--jsonl", "no/such/log"), "Cannot write the log 'no/such/log': there is no folder"),
        (("run", "good.toml", "--jsonl", "."), "Cannot write the log '.': it is a folder"),
        (("run", "good.toml", "--jsonl", "good.toml"), "good.toml is no log of transitions. It was not touched"),
        (("run",), "Missing argument 'FILE'"),
        (("run", "good.toml", "--jason"), "--json"),
        (("stauts",), "status"),
    ],
)
def test_bad_input_is_told_in_a_paragraph(
    cli: Cli, files: Path, two_jobs: Path, args: tuple[str, ...], words: str
) -> None:
    shutil.copytree(two_jobs, files, dirs_exist_ok=True)
    (files / "wrong.toml").write_text('[[tasks]]\nname = "a"\ncomand = ["x"]\n')
    (files / "missing.toml").write_text('[[tasks]]\nname = "a"\nrun = "not_there:f"\n')
    (files / "main.toml").write_text('[[tasks]]\nname = "a"\nrun = "__main__:f"\n')
    (files / "none.toml").write_text('name = "none"\n')
    before = {path: path.read_bytes() for path in files.glob("*.toml")}
    result = cli(*args)
    assert result.code == 2
    assert words in result.err
    assert result.out == ""
    assert before == {path: path.read_bytes() for path in files.glob("*.toml")}


def test_the_history_of_a_task_is_that_of_its_name_and_of_its_id(cli: Cli, files: Path) -> None:
    del files
    cli("run", "good.toml", "--id", "j1")
    output = cli("history", "j1", "two").out
    assert "j1@1/two" in output
    assert {cli("history", name).out for name in ("j1/two", "j1@1/two")} == {output}


def test_a_hint_names_the_journal_that_was_typed(cli: Cli, files: Path) -> None:
    del files
    place = ("--journal", "./my jobs.db")
    cli("run", "good.toml", "--id", "first", *place)
    result = cli("retry", "first", *place)
    assert "`callboard retry first/TASK --journal './my jobs.db'` runs a task again." in result.err
    assert cli("restore", "./my jobs.db", "--journal", "again.db").out.endswith(
        ": `callboard resume --journal again.db` continues its unfinished jobs\n"
    )
    result = cli("status", "nope")  # nothing is kept of the command before
    assert "--journal" not in result.err


@pytest.mark.parametrize(
    ("journal", "url", "option"),
    [
        (None, None, ""),
        ("callboard.db", None, ""),
        ("a b.db", None, " --journal 'a b.db'"),
        ("postgresql://ana:secret@db:5433/jobs?schema=s", None, " --journal 'postgresql://ana@db:5433/jobs?schema=s'"),
        ("postgresql://ana:sec/ret@db/jobs", None, " --journal ADDRESS"),
        ("host=db password=secret", None, " --journal ADDRESS"),
        (None, "http://127.0.0.1:8470", " --url http://127.0.0.1:8470 --token-file t"),
    ],
)
def test_a_hint_has_the_place_and_no_password(journal: str | None, url: str | None, option: str) -> None:
    hints.forget()
    hints.journal_typed(journal)
    if url is not None:
        hints.url_typed(url)
        hints.token_file_typed(Path("t"))
    try:
        assert hints.hint("resume j") == f"`callboard resume j{option}`"
    finally:
        hints.forget()


@pytest.mark.parametrize(
    ("lifecycle", "completed", "job"),
    [
        ("pipeline", "S_SUCCESS", "completed"), ("orchestration", "completed", "completed"),
        ("fleet", "completed", "COMPLETED"), ("guarded", "COMPLETED", "completed"), ("execution", "success", "success"),
    ],
)  # fmt: skip
def test_a_file_runs_by_a_lifecycle_and_its_log_is_clean(
    cli: Cli, files: Path, lifecycle: str, completed: str, job: str
) -> None:
    spec = files / "small.toml"
    spec.write_text('[[tasks]]\nname = "a"\ncommand = ["true"]\n', encoding="utf-8")
    shown = cli("run", "small.toml", "--lifecycle", lifecycle, "--jsonl", "log.jsonl").out
    assert f" {job} (1 {completed})" in shown
    assert "consistent" in cli("audit", "log.jsonl").out
    assert "consistent" in cli("check").out


OF_ONES_OWN = """
from pathlib import Path
from callboard import Lifecycle, Machine, Phase, State, Transition

Path("imported.txt").touch()
STATES = [
    State("open", Phase.PENDING, bounded_by="it"), State("in_work", Phase.RUNNING, bounded_by="it"),
    State("merged", Phase.COMPLETED, terminal=True), State("dropped", Phase.FAILED, terminal=True),
]
ROWS = [
    Transition("open", "take", "in_work"), Transition("in_work", "merge", "merged"),
    Transition("in_work", "drop", "dropped"),
]
SHORT = Lifecycle("short", "task", Machine("short", "open", STATES, ROWS), {})
"""


def test_a_lifecycle_that_only_its_path_names_is_not_imported_by_who_checks(cli: Cli, files: Path) -> None:
    (files / "of_ones_own.py").write_text(OF_ONES_OWN)
    (files / "small.toml").write_text('[[tasks]]\nname = "a"\ncommand = ["true"]\n', encoding="utf-8")
    result = cli("run", "small.toml", "--lifecycle", "of_ones_own:SHORT", "--jsonl", "log.jsonl")
    assert result.code == 0
    (files / "imported.txt").unlink()
    for command in (["check"], ["audit", "log.jsonl"]):
        result = cli(*command)
        assert (result.code, result.out.count("unknown_lifecycle")) == (0, 1)
        assert result.out.endswith(": 0 errors, 1 warning\n")
        assert not (files / "imported.txt").exists()
        assert cli(*command, "--lifecycle", "of_ones_own:SHORT").out.endswith("consistent\n")
        sys.modules.pop("of_ones_own")
        (files / "imported.txt").unlink()


@pytest.mark.parametrize(
    ("lifecycle", "why"),
    [
        ("Guarded", "there is no lifecycle 'Guarded'; did you mean 'guarded'?"),
        ("", "there is no lifecycle ''"),
        ("no_such_module:X", "'no_such_module:X': there is no module 'no_such_module'"),
        ("sys:path", "'sys:path' is no lifecycle, but ["),
        ("impossible_lifecycle:X", "no task can run by the lifecycle"),
    ],
)
@pytest.mark.parametrize("where", ["option", "file"])
def test_a_lifecycle_that_cannot_be_is_told_where_it_was_said(
    cli: Cli, files: Path, lifecycle: str, why: str, where: str
) -> None:
    (files / "impossible_lifecycle.py").write_text(
        "from callboard import Lifecycle, Machine, State, Transition\n"
        "states = [State('new', phase='pending'), State('old', phase='completed', terminal=True)]\n"
        "machine = Machine('m', initial='new', states=states, transitions=[Transition('new', 'end', 'old')])\n"
        "X = Lifecycle('x', 'task', machine, events={})\n"
    )
    said = "" if where == "option" else f'lifecycle = "{lifecycle}"\n'
    spec = files / "small.toml"
    spec.write_text(f'{said}[[tasks]]\nname = "a"\ncommand = ["true"]\noptional = true\n', encoding="utf-8")
    result = cli("run", "small.toml", *(["--lifecycle", lifecycle] if where == "option" else []))
    place = "--lifecycle" if where == "option" else "line 1: lifecycle"
    assert (result.code, f"{place}: {why}" in result.err) == (2, True), result.err
    assert not (files / "callboard.db").exists()


@pytest.mark.parametrize("bytes_left", [0, 1, 3])
def test_a_journal_whose_making_was_killed_is_used_as_if_it_were_new(cli: Cli, files: Path, bytes_left: int) -> None:
    child = "import resource, signal; from pathlib import Path\n"
    child += "from callboard.runtime.journal.sqlite.opening import prepare\n"
    child += "signal.signal(signal.SIGXFSZ, signal.SIG_DFL); resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
    child += f"resource.setrlimit(resource.RLIMIT_FSIZE, ({bytes_left * 4096},) * 2); prepare(Path('callboard.db'))"
    subprocess.run([sys.executable, "-c", child], env=environment(), check=False)
    assert Path("callboard.db").exists()
    result = cli("status")
    assert (result.code, result.out) == (2, "")
    assert "is empty" in result.err or "is half-made" in result.err
    result = cli("resume")
    assert (result.code, result.out) == (0, "callboard.db is empty: no runtime has written to it yet.\n")
    assert cli("run", "good.toml").code == 0
    assert cli("check").code == 0


EMBEDS = """
import sys
import anyio
from callboard import Check, Runtime, Task, Workstream
def build(): pass
def registered(): pass
async def main():
    async with Runtime("callboard.db", workers=(), drain_deadline=0) as runtime:
        runtime.task(registered)
        checked = Task("c", command=["true"], checks=[Check(run=build)])
        tasks = [Task("a", run=build), Task("b", run=registered), checked]
        await runtime.submit(Workstream("embedded", tasks=tasks), id="theirs")
anyio.run(main)
"""


SIXES = """
import anyio
import jobs6
from callboard import Runtime, Task, Workstream
async def main():
    async with Runtime("callboard.db", workers=(), drain_deadline=0) as runtime:
        await runtime.submit(Workstream("sixes", tasks=[Task("a", run=jobs6.go)]), id="theirs")
anyio.run(main)
"""


@pytest.mark.parametrize("args", [("resume",), ("run", "good.toml"), ("resume", "--json")])
def test_jobs_whose_functions_are_elsewhere_are_left_alone(cli: Cli, files: Path, args: tuple[str, ...]) -> None:
    subprocess.run([sys.executable, "-c", EMBEDS], env=environment(), check=True)
    before = cli("history", "--json").out
    result = cli(*args)
    assert (result.code, result.out) == (2, "")
    first, second, third = result.err.splitlines()[1:4]
    assert first.startswith("  job theirs: tasks[0].run: '__main__:build' is in the main module of another program")
    assert second.startswith("  job theirs: tasks[1].run: no function is registered as 'registered'")
    assert third.startswith("  job theirs: tasks[2].checks[0].run: '__main__:build'")
    assert "PYTHONPATH" in result.err
    assert cli("history", "--json").out == before
    assert cli("status", "theirs", "--json").out.count('"state":"queued"') == 3


RUNS_ITS_OWN = """
import sys
import anyio
from callboard import Runtime, Task, Workstream
async def own(task):
    print("runs", flush=True)
    await anyio.sleep_forever()
async def main():
    async with Runtime("callboard.db") as runtime:
        await (await runtime.submit(Workstream("theirs", tasks=[Task("a", run=own)]), id="theirs")).wait()
anyio.run(main)
"""


def test_of_a_journal_that_a_program_runs_it_is_said_who_runs_it_not_what_is_missing_here(
    cli: Cli, files: Path
) -> None:
    (files / "own.py").write_text(RUNS_ITS_OWN)
    program = subprocess.Popen([sys.executable, "own.py"], env=environment(), stdout=subprocess.PIPE, text=True)
    with killed_after(program) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "runs\n"
        told = {args: cli(*args) for args in (("resume",), ("run", "good.toml"), ("serve", "--port", "0"))}
        owner.kill()
    text = f"callboard.db is in use by process {owner.pid}. Stop that runtime, or use another file."
    assert {args: (one.code, one.out, text in one.err) for args, one in told.items()} == dict.fromkeys(
        told, (2, "", True)
    )
    assert not any("cannot be found" in one.err for one in told.values())


def test_modules_of_the_present_folder_are_found_as_the_answer_says(files: Path) -> None:
    (files / "jobs6.py").write_text("def go(): return 6\n")
    (files / "prog.py").write_text(SIXES)
    subprocess.run([sys.executable, "prog.py"], env=environment(), check=True)
    resume = [
        sys.executable,
        "-P",
        *PROGRAM[1:],
        "resume",
    ]  # like the installed command, not in this folder
    alone = subprocess.run(resume, env=environment(), capture_output=True, text=True, check=False)
    assert alone.returncode == 2
    assert "'jobs6:go': there is no module 'jobs6'; install it, or name its folder in PYTHONPATH" in alone.stderr
    assert "`PYTHONPATH=. callboard resume`" in alone.stderr
    so = environment(PYTHONPATH=f"{environment()['PYTHONPATH']}{os.pathsep}.")
    done = subprocess.run(resume, env=so, capture_output=True, text=True, check=False)
    assert (done.returncode, "theirs completed" in done.stdout) == (0, True), done.stderr


@pytest.fixture
def without_its_module(cli: Cli, files: Path) -> Path:
    """A folder with the journal of job L, which completed; its function cannot be found any more."""
    (files / "spec").mkdir()
    (files / "spec" / "l.toml").write_text('name = "l"\n[[tasks]]\nname = "go"\nrun = "gone_steps:go"\n')
    (files / "spec" / "gone_steps.py").write_text("def go(): return 1\n")
    subprocess.run([*PROGRAM, "run", "spec/l.toml", "--id", "L"], env=environment(), check=True, capture_output=True)
    (files / "spec").rename(files / "moved")
    return files


LACKS = "the function of task 'go' cannot be found"


def test_resume_tells_of_a_job_that_the_inbox_had_run_again_and_that_was_refused(
    cli: Cli, without_its_module: Path
) -> None:
    assert cli("retry", "L/go").code == 4
    result = cli("resume")
    assert (result.code, f"job L failed (no tasks): {LACKS}" in result.out) == (1, True), result.everything


def test_a_task_of_a_job_whose_last_run_never_began_is_not_said_to_be_none_of_it(
    cli: Cli, without_its_module: Path
) -> None:
    cli("retry", "L/go")
    cli("resume")
    cli("retry", "L/go")
    result = cli("resume")
    assert f"the last run of job 'L' never began, so it has no task 'go': {LACKS}" in result.everything
    assert "`callboard retry L`" in result.everything
    (without_its_module / "moved").rename(without_its_module / "spec")
    cli("retry", "L")
    result = cli("resume")
    assert (result.code, "job L completed" in result.out) == (0, True), result.everything


def test_a_job_that_the_inbox_had_run_again_twice_is_told_of_as_it_ended_last(
    cli: Cli, without_its_module: Path
) -> None:
    cli("retry", "L/go")
    cli("retry", "L")  # which has nothing left to run
    result = cli("resume")
    assert (result.code, "job L completed" in result.out, "job L failed" in result.out) == (0, True, False), (
        result.everything
    )


def test_functions_of_what_has_ended_need_not_be_found(cli: Cli, files: Path) -> None:
    (files / "late.toml").write_text(
        '[[tasks]]\nname = "a"\nrun = "beside:one"\n'
        '[[tasks]]\nname = "b"\nrun = "beside:two"\ndepends_on = ["a"]\ncapabilities = ["none"]\n'
    )
    (files / "beside.py").write_text("def one(): return 1\ndef two(): return 2\n")
    run = subprocess.Popen(
        [*PROGRAM, "run", "late.toml", "--id", "j1"], env=environment(), stdout=subprocess.PIPE, text=True
    )
    with killed_after(run):
        assert run.stdout is not None
        assert any("a completed" in line for line in run.stdout)
    (files / "beside.py").write_text("def other(): return 1\n")
    done = subprocess.run([*PROGRAM, "resume"], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "tasks[1].run: 'beside:two': there is no 'two' in module 'beside'" in done.stderr
    assert "beside:one" not in done.stderr


def test_resume_with_nothing_to_do(cli: Cli, files: Path) -> None:
    cli("run", "good.toml")
    result = cli("resume")
    assert (result.code, result.out) == (0, "Nothing is unfinished in callboard.db.\n")
    assert cli("resume", "--json").out == ""


def test_a_page_that_no_question_reads_is_looked_at_by_check_and_by_who_finds_nothing_to_resume(
    cli: Cli, files: Path
) -> None:
    assert cli("run", "good.toml").code == 0
    with closing(sqlite3.connect("callboard.db")) as connection:
        page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'jobs_to_archive'").fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    with Path("callboard.db").open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xa5" * size)
    for command in ("check", "resume"):
        result = cli(command)
        assert (result.code, "is damaged" in result.everything) == (2, True)


def test_check_finds_what_was_tampered_with(cli: Cli, files: Path) -> None:
    cli("run", "good.toml", "--id", "j1")
    result = cli("check")
    assert result.code == 0
    assert result.out.endswith("records: consistent\n")
    with closing(sqlite3.connect("callboard.db")) as database, database:
        database.execute("UPDATE task_records SET record = json_set(record, '$.state', 'failed') WHERE key % 2 = 0")
        database.execute("UPDATE job_records SET record = json_set(record, '$.seq', 99)")
    database.close()
    result = cli("check")
    assert result.code == 1
    assert "error: record_differs: j1@1/one the record says failed, its last transition completed" in result.out
    assert "error: record_without_transition: j1 the record says 99 transitions, and there are fewer" in result.out


FLOW = """
from callboard import TaskContext, step

@step
async def ask(n: int) -> int:
    return n

async def flow(task: TaskContext) -> int:
    return await ask(1) + await ask(2) + await ask(3) + await ask(4)

async def talks(task: TaskContext) -> list[int]:
    for name in "abcdefgg":
        await task.send(task.job_id, name, 1)
    return [await task.receive(name) for name in "abcdefgg"]
"""


def test_check_finds_steps_that_cannot_be(cli: Cli, files: Path) -> None:
    Path("flows.py").write_text(FLOW)
    Path("flow.toml").write_text('name = "flow"\n\n[[tasks]]\nname = "one"\nrun = "flows:flow"\n')
    assert cli("run", "flow.toml", "--id", "j1").code == 0
    assert cli("check").code == 0
    changes = ["'$.number', 2", "'$.attempt', 9", "'$.task_id', 'j1@1/two'", "'$.task', 7777"]
    with closing(sqlite3.connect("callboard.db")) as database, database:
        keys = [key for (key,) in database.execute("SELECT key FROM step_records ORDER BY key")]
        for key, change in zip(keys, changes, strict=True):
            database.execute(f"UPDATE step_records SET record = json_set(record, {change}) WHERE key = ?", [key])
    database.close()
    result = cli("check")
    assert result.code == 1
    for line in (
        "error: step_twice: j1@1/one step ask#2 is kept twice: it ran again, though it had ended",
        "error: step_of_no_attempt: j1@1/one step ask#2 ran in attempt 9, and there were 1",
        "error: step_of_other_flow: j1@1/two step ask#3 is kept for j1@1/one, which has another flow",
        "error: step_without_task: j1@1/one step ask#4 belongs to a run that does not exist",
    ):
        assert line in result.out


def test_check_finds_messages_that_were_lost_or_came_twice(cli: Cli, files: Path) -> None:
    Path("flows.py").write_text(FLOW)
    Path("flow.toml").write_text('name = "flow"\n\n[[tasks]]\nname = "one"\nrun = "flows:talks"\n')
    assert cli("run", "flow.toml", "--id", "j1").code == 0
    assert cli("check").code == 0
    messages = (
        "UPDATE message_records SET record = json_set(json_remove(record, '$.received_at'), '$.by', 'x') WHERE key ="
    )
    with closing(sqlite3.connect("callboard.db")) as database, database:
        sent = [key for (key,) in database.execute("SELECT key FROM message_records ORDER BY key")]
        labels = (
            "SELECT json_extract(record, '$.name'), key FROM step_records ORDER BY key DESC"  # of the two g, the first
        )
        steps = {name.removeprefix("task.receive "): key for name, key in database.execute(labels)}
        for step, change in (
            ("b", f"'$.message', {sent[0]}"),
            ("d", "'$.name', 'task.receive x'"),
            ("f", "'$.message', 7"),
        ):
            where = f"WHERE key = {steps[step]}"
            database.execute(f"UPDATE step_records SET record = json_set(record, {change}) {where}")
        database.execute(f"{messages} {sent[2]}")
        database.execute(f"{messages} {sent[6]}")
        database.execute(f"DELETE FROM step_records WHERE key IN ({steps['e']}, {steps['g']})")
    database.close()
    result = cli("check")
    assert result.code == 1
    found = sorted(re.sub(r", sent at [0-9.]+,", "", line) for line in result.out.splitlines() if "message_" in line)
    other = "was received by another step than task.receive x of j1@1/one, which has it"
    assert found == [
        "error: message_lost: j1 message e was received, and no step has its value",
        "error: message_missing: j1@1/one step task.receive f received a message that does not exist",
        f"error: message_of_other_step: j1 message d {other}",
        "error: message_passed: j1 message g is unread, and a later g has been received",
        "error: message_twice: j1@1/one step task.receive b received a message that step task.receive a had received",
        "error: message_unread: j1 message c is unread, and step task.receive c of j1@1/one has received it",
    ]


def test_audit(cli: Cli, files: Path) -> None:
    cli("run", "good.toml", "--jsonl", "log.jsonl")
    result = cli("audit", "log.jsonl")
    assert (result.code, result.out) == (0, "log.jsonl: consistent\n")
    lines = Path("log.jsonl").read_text().splitlines(keepends=True)
    Path("log.jsonl").write_text("".join(lines[:10] + lines[11:]))
    result = cli("audit", "log.jsonl")
    assert result.code == 1
    assert "error: line 11, byte " in result.out
    assert "gap" in result.out
    Path("log.jsonl").write_text("".join(lines)[:-20])
    result = cli("audit", "log.jsonl")
    assert result.code == 0
    assert "warning: " in result.out
    assert "torn" in result.out


def test_audit_of_an_empty_log_says_so_and_a_number_beyond_all_is_not_repeated(cli: Cli, files: Path) -> None:
    log = Path("log.jsonl")
    log.touch()
    result = cli("audit", "log.jsonl")
    assert (result.code, result.out) == (0, "log.jsonl: empty, without transitions\n")
    log.unlink()
    cli("run", "good.toml", "--jsonl", "log.jsonl")
    log.write_text(re.sub(r'"seq":7,', f'"seq":{"9" * 4_000},', log.read_text()))
    result = cli("audit", "log.jsonl")
    assert result.code == 1
    assert "bad_schema" in result.out
    assert "999999" not in result.out


def test_resume_of_an_empty_file_says_so(cli: Cli, files: Path) -> None:
    Path("empty.db").touch()
    result = cli("resume", "--journal", "empty.db")
    assert (result.code, result.out) == (0, "empty.db is empty: no runtime has written to it yet.\n")


def test_a_number_of_too_many_digits_in_a_file_is_told_without_advice_for_programmers(cli: Cli, files: Path) -> None:
    Path("num.json").write_text(f'{{"name": {"9" * 5_000}}}')
    result = cli("run", "num.json")
    assert "is no JSON: a number in it has thousands of digits" in result.err
    assert "set_int_max" not in result.err


def test_audit_of_what_is_no_log(cli: Cli, files: Path) -> None:
    result = cli("audit", "good.toml")
    assert result.code == 1
    assert len(result.out.splitlines()) == 2
    assert "this is no log of transitions" in result.out
    result = cli("audit", ".")
    assert (result.code, result.err) == (2, "callboard: . cannot be read: Is a directory.\n")


def test_diagram_of_what_stands_under_an_import_path(cli: Cli, folder: Path) -> None:
    (folder / "of_mine_to_draw.py").write_text(
        "from callboard.machines import TASK\nfrom callboard.machines.lifecycles import LIFECYCLES\n"
        "REVIEWED = LIFECYCLES['guarded']['task']\nSEVERAL = [*LIFECYCLES['pipeline'].values()]\nNOTHING = 1\n"
    )
    assert cli("diagram", "of_mine_to_draw:TASK").out == cli("diagram", "task").out
    assert cli("diagram", "of_mine_to_draw:REVIEWED").out == cli("diagram", "guarded").out
    assert cli("diagram", "of_mine_to_draw:SEVERAL").out == cli("diagram", "pipeline").out
    for path, why in (("NOTHING", "not a machine or a lifecycle"), ("REVIEWD", "did you mean 'REVIEWED'")):
        result = cli("diagram", f"of_mine_to_draw:{path}")
        assert (result.code, why in result.err) == (2, True)


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_diagram(cli: Cli, name: str) -> None:
    assert cli("diagram", name).out == f"{MACHINES[name].mermaid()}\n"
    assert cli("diagram", name, "--format", "dot").out == f"{MACHINES[name].dot()}\n"
    assert cli("diagram", name, "--format", "svg").out == f"{MACHINES[name].svg()}\n"


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        *((name, name) for name in PUBLISHED),
        ("guarded", "guarded.task"),
        ("pipeline.task", "pipeline.step"),
        ("pipeline.breaker", "pipeline.circuit_breaker"),
        ("execution.job", "execution"),
    ],
)
def test_diagram_of_a_published_machine(cli: Cli, name: str, machine: str) -> None:
    assert cli("diagram", name, "--format", "mermaid").out == f"{PUBLISHED[machine].mermaid()}\n"


def test_a_lifecycle_of_several_machines_is_drawn_whole(cli: Cli) -> None:
    worker, job = PUBLISHED["fleet.worker"], PUBLISHED["fleet.job"]
    told = f"%% fleet.worker\n{worker.mermaid()}\n\n%% fleet.job\n{job.mermaid()}\n"
    assert cli("diagram", "fleet").out == told
    told = f"// fleet.worker\n{worker.dot()}\n\n// fleet.job\n{job.dot()}\n"
    assert cli("diagram", "fleet", "--format", "dot").out == told
    drawn = ElementTree.fromstring(cli("diagram", "fleet", "--format", "svg").out)
    texts = ["".join(text.itertext()) for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"fleet.worker", "fleet.job", *worker.states, *job.states} <= set(texts)


def test_init_writes_an_example_that_runs(cli: Cli, folder: Path) -> None:
    result = cli("init")
    assert result.out == "Wrote callboard.toml. Run it with: callboard run callboard.toml\n"
    result = cli("run", "callboard.toml", "--json")
    *_, last = rows(result)
    assert result.code == 0
    assert {name: task["state"] for name, task in last["jobs"][0]["tasks"].items()} == {
        "fetch": "completed",
        "count": "completed",
        "guess": "failed",
        "tidy": "completed",
    }
    assert last["jobs"][0]["results"]["count"]["output"].strip() == "3"
    assert not (folder / "numbers.txt").exists()
    assert cli("check").code == 0


def test_a_job_that_cancels_itself_by_its_deadline(cli: Cli, folder: Path) -> None:
    (folder / "late.toml").write_text('deadline = 0.3\n[[tasks]]\nname = "a"\ncommand = ["sleep", "60"]\n')
    result = cli("run", "late.toml", "--id", "j")
    assert result.code == 130
    assert "job j cancelled" in result.out
    assert "a cancelled: workstream cancelled: " in result.out  # the reason, and not only that its command was stopped
    assert "workstream cancelled: " in cli("status", "j/a").out
    assert ": stopped" not in result.out + cli("status", "j").out


def test_errors_of_our_own_are_reported_not_shown(
    cli: Cli, files: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    reports = tmp_path_factory.mktemp("reports")
    monkeypatch.setattr("tempfile.tempdir", str(reports))

    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("oh no")

    monkeypatch.setattr("callboard.runtime.specfiles.workstream_file.load", broken)
    result = cli("run", "good.toml")
    assert result.code == 3
    assert result.err.startswith("callboard: internal error: ZeroDivisionError: oh no.")
    assert result.err.count("\n") == 1
    (report,) = reports.iterdir()
    assert str(report) in result.err
    assert "raise ZeroDivisionError" in report.read_text()
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    result = cli("run", "good.toml")
    assert (result.code, "could not be written" in result.err) == (3, True)


def test_errors_inside_of_the_session_are_told_as_one(
    cli: Cli, files: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def broken(*_: Any) -> Any:
        raise ZeroDivisionError("oh no")

    monkeypatch.setattr("callboard.runtime.cli.plain.PlainView.follow", broken)
    result = cli("run", "good.toml")
    assert result.code == 3
    assert "internal error: ZeroDivisionError: oh no." in result.err


def test_trouble_of_the_runtime_is_a_notice(cli: Cli, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from callboard.runtime.cli import session

    attend = session.Session._attend

    async def troubled(self: Any, runtime: Any, jobs: Any) -> None:
        undone = Notice(
            event="turn_undone", severity="error", text="a turn was undone", at=0.0, error=ValueError("why")
        )
        stale = Notice(event="stale_message", severity="warning", text="a stale token", at=0.0)
        for notice in (undone, stale):
            runtime.on_trouble(notice)
        await attend(self, runtime, jobs)

    monkeypatch.setattr(session.Session, "_attend", troubled)
    result = cli("run", "good.toml")
    assert result.code == 0
    assert result.err.startswith("callboard: a turn was undone; its report is in ")
    assert "stale" not in result.err


def test_how_a_failed_body_came_about_is_told_of_its_task(cli: Cli, folder: Path) -> None:
    (folder / "crates.toml").write_text(
        'name = "crates"\n[[tasks]]\nname = "weigh"\nrun = "crates:weigh"\nretry = {max_attempts = 2, base_delay = 0}\n'
    )
    (folder / "crates.py").write_text(
        "def innermost(n):\n    return 1 // n\n\ndef weigh():\n    try:\n        innermost(0)\n"
        "    except ZeroDivisionError as error:\n        raise ValueError('crate 17') from error\n"
    )
    assert cli("run", "crates.toml", "--id", "c1").code == 1
    for named in ("c1/weigh", "c1@1/weigh"):
        output = cli("status", named).out
        assert "c1/weigh  failed" in output
        assert output.count("attempt 1 failed: ValueError: crate 17 (crates.py:8 in weigh)\n  Traceback (most") == 1
        assert output.count("in innermost\n") == 2
        assert output.count("ZeroDivisionError") == 2
    (task,) = rows(cli("status", "c1/weigh", "--json"))
    assert [(one["attempt"], one["end"]) for one in task["attempts"]] == [(1, "failed"), (2, "failed")]
    assert "in innermost" in task["attempts"][1]["traceback"]
    ended = [row for row in rows(cli("history", "c1", "weigh", "--json")) if row["metadata"].get("end")]
    assert ["in innermost" in row["metadata"]["traceback"] for row in ended] == [True, True]
    assert "Traceback" not in cli("history", "c1", "weigh").out
    assert cli("status", "c1/nobody").code == 2


@pytest.mark.parametrize("lifecycle", ["own", "fleet", "guarded", "pipeline", "orchestration", "execution"])
def test_history_says_who_decided_whatever_the_lifecycle(cli: Cli, folder: Path, lifecycle: str) -> None:
    async def decide() -> None:
        tasks = [Task("deploy", command=["true"], hold=Approval()), Task("tell", command=["true"], wait="1h")]
        async with Runtime("callboard.db") as runtime:
            held = await runtime.submit(Workstream("held", tasks=tasks, lifecycle=lifecycle), id="h")
            await held.task("deploy").approve(by="ana", reason="tests are green")
            await held.task("tell").cancel(by="bo", reason="no need")
            await held.wait()

    anyio.run(decide)
    output = cli("history", "h").out
    assert output.count("by ana") == 1
    assert output.count("tests are green") == 1
    assert output.count("by bo") == 1


def test_a_locked_journal_names_its_owner(cli: Cli, files: Path) -> None:
    import anyio

    from callboard.actors.spec.model import Task, Workstream
    from callboard.runtime.runtime import Runtime

    async def owned() -> None:
        async with Runtime("callboard.db", workers=(), drain_deadline=0) as runtime:
            await runtime.submit(Workstream("w", tasks=[Task("a", command=["x"])]), id="j")
            told = [
                await anyio.to_thread.run_sync(lambda args=args: _captured(args))
                for args in (["run", "good.toml"], ["resume"])
            ]
            for code, err in told:
                assert code == 2
                assert f"process {os.getpid()}" in err

    anyio.run(owned)


def _captured(args: list[str]) -> tuple[int, str]:
    done = subprocess.run([*PROGRAM, *args], capture_output=True, text=True, env=environment(), check=False)
    return done.returncode, done.stderr


def test_status_shows_the_plan_of_a_job(cli: Cli) -> None:
    Path("w.toml").write_text(
        'name = "w"\nmax_parallel = 3\ntools.model.max_parallel = 2\n'
        '[[tasks]]\nname = "last"\ncommand = ["true"]\ndepends_on = ["draft"]\nafter = ["review"]\n'
        '[[tasks]]\nname = "draft"\ncommand = ["true"]\ntool = "model"\ndepends_on = ["first"]\n'
        '[[tasks]]\nname = "review"\ncommand = ["true"]\ntool = "model"\ndepends_on = ["first"]\noptional = true\n'
        '[[tasks]]\nname = "first"\ncommand = ["true"]\n'
        '[[tasks]]\nname = "paid"\nreceive = "payment"\ntimeout = "1ms"\noptional = true\n'
    )
    assert cli("run", "w.toml", "--id", "r1").code == 0
    head, tool, _, *lines = cli("status", "r1", "--plan").out.splitlines()
    assert head == "job r1: w, 5 tasks in 3 waves, at most 3 at a time"
    assert tool == "tool model: at most 2 at a time, of 2 tasks"
    assert [line.split() for line in lines] == [
        ["1", "r1/first", "completed"],
        ["1", "r1/paid", "failed", "receives", "payment,", "optional"],
        ["2", "r1/draft", "completed", "first", "tool", "model"],
        ["2", "r1/review", "completed", "first", "tool", "model,", "optional"],
        ["3", "r1/last", "completed", "draft,", "the", "end", "of", "review"],
    ]
    plan, *tasks = rows(cli("status", "r1", "--plan", "--json"))
    assert plan["waves"] == [["first", "paid"], ["draft", "review"], ["last"]]
    assert [(task["name"], task["receive"], task["wave"]) for task in tasks] == [
        ("first", None, 1), ("paid", "payment", 1), ("draft", None, 2), ("review", None, 2), ("last", None, 3)
    ]  # fmt: skip
    assert "--plan shows the plan of one job" in cli("status", "--plan").err


def test_a_dag_file_is_made_of_a_job_and_taken_by_a_run(cli: Cli, folder: Path) -> None:
    tasks = [{"name": name, "command": ["true"]} for name in ("last", "first")]
    Path("w.json").write_text(json.dumps({"tasks": tasks}))
    Path("dag.json").write_text(json.dumps({"depends_on": {"last": ["first"], "first": []}}))
    assert cli("run", "w.json", "--dag", "dag.json", "--id", "r1").code == 0
    assert [row["wave"] for row in rows(cli("status", "r1", "--plan", "--json"))[1:]] == [1, 2]
    made = cli("status", "r1", "--dag").out
    assert json.loads(made) == {"task_count": 2, "depends_on": {"last": ["first"], "first": []}}
    Path("again.json").write_text(made)
    assert cli("run", "w.json", "--dag", "again.json", "--id", "r1").code == 0  # the same job
    assert "--dag prints the DAG file of one job" in cli("status", "--dag").err
    assert "use only one of them" in cli("status", "r1", "--dag", "--plan").err
    Path("dag.json").write_text(json.dumps({"edges": [["first", "last"]]}))
    result = cli("run", "w.json", "--dag", "dag.json", "--id", "r2")
    assert result.code == 2
    assert "which of its two tasks waits for the other" in result.err


@pytest.mark.parametrize("text", ["\u0663", "\u0663s", "\u0663.5", "\u00b2", "", "1_0", "+1", "1e3"])
def test_a_span_of_time_has_the_digits_0_to_9(text: str) -> None:
    with pytest.raises(CommandError, match="is not a duration"):
        span(text)
    assert [span(plain) for plain in ("3", "3.5", ".5", "3.", "1h30m")] == [3, 3.5, 0.5, 3, 5400]


@pytest.mark.parametrize("span", ["nan", "inf", "1e18", "-1", "9" * 400, "\u0663", "\u0663s", "1\u0663m"])
@pytest.mark.parametrize(
    "option",
    ["approve j --timeout", "top --every", "stuck --older-than", "serve --lease", "resume --drain-deadline"],
)
def test_no_option_takes_a_senseless_span(cli: Cli, folder: Path, option: str, span: str) -> None:
    result = cli(*option.split(), span)
    assert result.code == 2
    assert not (folder / "callboard.db").exists()


@pytest.mark.parametrize("verb", ["cancel", "retry", "approve", "pause", "resume", "skip", "status", "history"])
def test_an_id_that_somebody_chose_is_never_taken_for_the_beginning_of_another(
    cli: Cli, files: Path, verb: str
) -> None:
    assert cli("run", "good.toml", "--id", "order-1").code == 0
    assert cli("archive", "--older-than", "0s").code == 0
    assert cli("run", "bad.toml", "--id", "order-10").code == 1
    result = cli(verb, "order-1")
    assert (result.code, "Job order-1 (completed) was archived in" in result.err) == (2, True)
    result = cli(verb, "order-")
    if verb in {"status", "history"}:  # commands that only read may have a short id
        assert result.code == 0
    else:
        assert (result.code, "1 job begins with 'order-': order-10. Give the whole id." in result.err) == (2, True)


def test_an_id_that_was_made_may_be_given_by_its_beginning(cli: Cli, files: Path) -> None:
    assert cli("run", "good.toml").code == 0
    made = rows(cli("status", "--json"))[0]["id"]
    assert f"job {made}:" in cli("status", made[:20]).out
    assert cli("run", "good.toml").code == 0
    result = cli("status", made[:2])
    assert (result.code, "2 jobs begin with" in result.err) == (2, True)


def test_existing_says_what_becomes_of_a_job_of_that_id(cli: Cli, files: Path) -> None:
    assert cli("run", "bad.toml", "--id", "j", "--plain").code == 1
    refused = cli("run", "good.toml", "--id", "j", "--existing", "refuse")
    assert refused.code == 2
    assert "there is a job 'j' already (failed now)" in refused.err
    assert cli("run", "good.toml", "--id", "j").code == 2
    assert cli("run", "good.toml", "--id", "j", "--existing", "replace_ended", "--plain").code == 0
    rows = [json.loads(line) for line in cli("status", "j", "--json").out.splitlines()]
    assert [one["name"] for one in rows if "max_attempts" in one] == ["one", "two"]
    assert "job j: good, completed" in cli("status", "j").out
    assert "workstream j@1: failed" in cli("status", "j").out
    assert cli("check").code == 0
    assert cli("run", "good.toml", "--id", "j", "--plain").code == 0  # joins it
    assert cli("run", "good.toml", "--id", "new", "--existing", "refuse", "--plain").code == 0
    without = cli("run", "good.toml", "--existing", "refuse")
    assert without.code == 2
    assert "give an id, too (--id JOB)" in without.err
    assert cli("run", "good.toml", "--id", "j", "--existing", "replace").code == 2


def test_the_words_of_existing_are_those_of_submit() -> None:
    from callboard.runtime.cli.run import ExistingJob
    from callboard.runtime.jobs.submissions import EXISTING

    assert tuple(ExistingJob) == EXISTING


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"attempt": 0}, ""),
        ({"attempt": 1}, "1/1"),
        ({"attempt": 2, "lost_attempts": 1}, "2/2 (1 lost)"),  # it was printed as 2/1
        ({"attempt": 3, "allowed": Allowed(max_attempts=3), "failed_attempts": 1, "lost_attempts": 1}, "3/4 (1 lost)"),
        ({"attempt": 4, "lost_attempts": 1, "deferrals": 2}, "4/4 (1 lost, 2 put off)"),
        ({"attempt": 2, "granted": 1, "failed_attempts": 2}, "2/2"),
        ({"attempt": 3}, "3/3"),  # two were given back by a drain
    ],
)
def test_attempts_are_told_with_those_that_do_not_count(fields: dict[str, Any], told: str) -> None:
    record = samples.task(9, samples.workstream(5, 1, 9), **fields)
    assert words.tried(record) == told
    assert words.attempts(record) == (f"attempt {told}" if record.most_attempts > 1 and record.attempt else "")


def test_a_task_that_was_lost_once_is_told_so_by_status(cli: Cli, folder: Path) -> None:
    (folder / "lost.py").write_text(LOST)
    codes = [subprocess.run([sys.executable, "lost.py"], cwd=folder, check=False).returncode for _ in range(2)]
    assert codes == [9, 0]
    assert re.search(r"^j/a +completed +2/2 \(1 lost\)", cli("status", "j").out, re.MULTILINE)
    (task,) = [one for one in map(json.loads, cli("status", "j", "--json").out.splitlines()) if one["kind"] == "task"]
    told = {name: task[name] for name in ("attempt", "max_attempts", "failed_attempts", "lost_attempts", "granted")}
    assert told == {"attempt": 2, "max_attempts": 1, "failed_attempts": 0, "lost_attempts": 1, "granted": 0}


LOST = """
import os, anyio
from callboard import Retry, Runtime, Task, Workstream

def work(task):
    if task.attempt == 1:
        os._exit(9)

async def main():
    async with Runtime("callboard.db") as runtime:
        if runtime.recovered:
            await runtime.recovered[0].wait()
        else:
            tasks = [Task("a", run=work, retry=Retry(max_attempts=1))]
            await (await runtime.submit(Workstream("w", tasks=tasks), id="j")).wait()

if __name__ == "__main__":
    anyio.run(main)
"""


def test_a_module_beside_the_file_may_change_the_folder_while_it_is_imported(cli: Cli, folder: Path) -> None:
    """The file's folder, the journal and the log were typed before: they are where they were meant."""
    (folder / "data").mkdir()
    (folder / "moves.py").write_text("import os\nos.chdir('data')\n\ndef go(task):\n    return os.getcwd()\n")
    tasks = ['name = "a"\nrun = "moves:go"', 'name = "b"\nrun = "moves:go"\nengine = "process"']
    (folder / "moving.toml").write_text('name = "m"\n' + "".join(f"[[tasks]]\n{task}\n" for task in tasks))
    command = [*PROGRAM, "run", "moving.toml", "--id", "m", "--jsonl", "log.jsonl", "--plain"]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in folder.iterdir()} >= {"callboard.db", "log.jsonl"}
    assert not [*(folder / "data").iterdir()]
