"""Commands that act on a runtime from another terminal, and commands that show it. The runtime is in this process."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from msgspec.structs import replace
from tests.waiting import wait_until

from callboard import Machine, MachineActor, State, TaskContext, Transition, step
from callboard.actors.records.transition import Transitioned, iso
from callboard.actors.spec.model import Approval, Breaker, Clause, Retry, Task, Tool, Worker, Workstream
from callboard.machines.audit.audit import audit_lines
from callboard.machines.builtin.table import MACHINES
from callboard.runtime.cli import acting, words
from callboard.runtime.cli import stuck as stucks
from callboard.runtime.cli.reading import progress_at, reading
from callboard.runtime.commands.client import command
from callboard.runtime.errors import JobExists
from callboard.runtime.handles.jobs import JobHandle
from callboard.runtime.journal.contract import InboxRow
from callboard.runtime.journal.sqlite.lock import Lock
from callboard.runtime.journal.sqlite.reader import SqliteReader
from callboard.runtime.observation.progress_file import read_progress, write_progress
from callboard.runtime.runtime import Runtime

from .conftest import CommandResult, Terminal

Cli = Callable[..., CommandResult]
Program = Callable[..., "subprocess.Popen[str]"]


class Live:
    """A runtime on callboard.db in a thread of its own, and its jobs."""

    def __init__(self, portal: BlockingPortal, runtime: Runtime) -> None:
        self.portal = portal
        self.runtime = runtime

    def submit(self, job_id: str, *tasks: Task, **more: Any) -> JobHandle:
        spec = Workstream("w", tasks=list(tasks) or [Task("a", command=["x"]), Task("b", command=["x"])], **more)
        return self.portal.call(lambda: self.runtime.submit(spec, id=job_id))

    def end(self, job: JobHandle) -> None:
        self.portal.call(job.cancel)
        self.portal.call(job.wait)


@contextlib.contextmanager
def running(*workers: Worker) -> Iterator[Live]:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Runtime("callboard.db", workers=workers, drain_deadline=0)) as runtime,
    ):
        yield Live(portal, runtime)


@pytest.fixture
def live(folder: Path) -> Iterator[Live]:
    with running() as live:
        yield live


async def fail_at_once() -> None:
    raise RuntimeError("broken")


async def reached(job: JobHandle, states: dict[str, str]) -> None:
    async for _ in job.events():
        if {name: str(job.task(name).record.state) for name in states} == states:
            return


# -- cancel ------------------------------------------------------------------------------------------------------------


def test_cancel_acts_on_a_live_runtime(cli: Cli, live: Live) -> None:
    job = live.submit("j", Task("a", command=["x"], optional=True), Task("b", command=["x"]))
    result = cli("cancel", "j/a", "--reason", "too slow", "--request-id", "r1")
    assert (result.code, result.out, result.err) == (0, "task j@1/a cancelled (too slow)\n", "")
    assert job.task("a").record.reason == "too slow"
    assert cli("cancel", "j@1/a", "--reason", "too slow", "--request-id", "r1").out == result.out  # the same again
    result = cli("cancel", "j/b", "--request-id", "r1")
    assert (result.code, "'r1' was given to another command before" in result.err) == (1, True)
    result = cli("cancel", "j/a")
    assert (result.code, result.err) == (1, "callboard: task j@1/a has ended already: cancelled.\n")
    result = cli("cancel", "j", "--by", "ana", "--force", "--json")
    row = json.loads(result.out)
    assert (result.code, row["kind"], row["id"], row["state"], row["exit_code"]) == (0, "job", "j", "cancelled", 0)


def test_a_command_without_request_id_is_none_of_those_that_came_with_one(cli: Cli, live: Live) -> None:
    live.submit("j")
    for word, key in (("pause", None), ("resume", None), ("pause", "r1"), ("pause", "r1")):
        told = cli(word, "j", "--json", *(["--request-id", key] if key else []))
        assert told.code == 0
        assert json.loads(told.out)["request_id"].startswith(key or "auto-")
    told = live.portal.call(live.runtime.metrics)
    assert (told.requests, told.request_hits) == (2, 1)


def test_what_was_refused_is_judged_anew_under_its_request_id(cli: Cli, live: Live) -> None:
    live.submit("j")
    assert [cli("resume", "j", "--request-id", "r1").code for _ in range(2)] == [1, 1]
    assert cli("pause", "j").code == 0
    result = cli("resume", "j", "--request-id", "r1")
    assert result.code == 0
    assert cli("resume", "j", "--request-id", "r1").out == result.out
    assert "a refused one may be sent again" in " ".join(cli("resume", "--help").out.replace("│", " ").split())


def test_targets_that_are_none(cli: Cli, live: Live) -> None:
    live.submit("j")
    assert "There is no job 'k' in this journal" in cli("cancel", "k").err
    assert "Job j has no task 'c'; it has: a, b" in cli("cancel", "j/c").err
    assert "'j@2/a' is of run 2, but job j is in run 1: only that can be changed." in cli("cancel", "j@2/a").err
    result = cli("cancel", "")
    assert (result.code, result.err) == (2, "callboard: Name a job: an empty name could mean any.\n")
    assert "There is no job '' in this journal" in cli("history", "").err
    assert "'j/a' names a task already" in cli("cancel", "j/a", "b").err
    result = cli("cancel", "j", "--request-id", "")
    assert (result.code, "cannot be a request_id" in result.err) == (2, True)


def test_a_runtime_that_does_not_answer(cli: Cli, folder: Path) -> None:
    with running() as live:
        live.submit("j")
    lock = Lock(Path("callboard.db"))  # like a runtime that owns the journal, and does nothing
    try:
        result = cli("cancel", "j", "--timeout", "0.05")
        assert result.code == 4
        assert " within 0.05 s. It stays in the inbox, and takes effect later" in result.err
        result = cli("cancel", "j", "--timeout", "0.05", "--json", "--request-id", "r2")
        row = json.loads(result.out)
        assert (result.code, row["request_id"], "later" in row) == (4, "r2", True)
    finally:
        lock.release()
    with running() as live:
        assert live.runtime.recovered[0].state == "cancelled"


def test_two_processes_on_one_file(cli: Cli, folder: Path, program: Program) -> None:
    """Killed before it could answer, and started again: the row takes effect once."""
    Path("w.toml").write_text(
        'name = "w"\n[[tasks]]\nname = "a"\ncommand = ["sleep", "1000"]\noptional = true\n'
        '[[tasks]]\nname = "b"\ncommand = ["sleep", "1000"]\noptional = true\n'
    )
    runs = program("run", "w.toml", "--id", "j", "--plain")
    assert runs.stdout is not None
    while "b started" not in (line := runs.stdout.readline()):
        assert line
    assert (folder / "callboard.db.sock").stat().st_mode & 0o777 == 0o600
    result = cli("cancel", "j/a", "--reason", "enough")
    assert (result.code, result.out) == (0, "task j@1/a cancelling (enough)\n")
    while "a cancelled" not in (line := runs.stdout.readline()):  # so that it is stopped in no transaction
        assert line
    runs.send_signal(19)  # SIGSTOP: it has the journal, and cannot answer
    result = cli("cancel", "j/b", "--timeout", "0.1", "--request-id", "r")
    assert (result.code, f"process {runs.pid} did not answer" in result.err) == (4, True)
    runs.kill()
    runs.communicate()
    assert (folder / "callboard.db.sock").exists()
    result = cli("resume", "--plain")
    assert "b cancelled" in result.out
    assert "b started" not in result.out
    assert not (folder / "callboard.db.sock").exists()
    assert cli("check").code == 0
    events = [line for line in cli("history", "j", "b").out.splitlines() if "[cancel" in line]
    assert len(events) == 1


# -- stuck -------------------------------------------------------------------------------------------------------------


def test_stuck_says_what_is_waited_for_and_what_frees_it(cli: Cli, live: Live) -> None:
    live.submit("j", Task("a", command=["x"]), Task("b", command=["x"], depends_on=["a"]))
    result = cli("stuck", "--older-than", "0s")
    assert result.code == 1
    first, why, command, second, last = result.out.splitlines()
    assert first.startswith("task j/a queued for ")
    assert " s: waits for a worker that can run it: there is none (until " in first
    assert "no worker has the engine 'command'" in why
    assert command == "    callboard workers list --all"
    assert second.startswith("task j/b pending for ")
    assert second.endswith(" s: waits for j/a")
    assert last.startswith("2 found; run by process ")
    assert cli("stuck", "--older-than", "1h").code == 0
    rows = [json.loads(line) for line in cli("stuck", "--older-than", "0", "--json").out.splitlines()]
    assert [(row["kind"], row["target"], row["state"]) for row in rows] == [
        ("task", "j/a", "queued"),
        ("task", "j/b", "pending"),
    ]
    assert "is not a duration" in cli("stuck", "--older-than", "soon").err


def test_what_stuck_prints_can_be_pasted(cli: Cli, live: Live) -> None:
    live.submit("j", Task("a $(id); b", command=["x"], hold=Approval()))
    assert "    callboard approve 'j/a $(id); b'\n" in cli("stuck", "--older-than", "0").out


def test_no_span_of_time_is_told_where_nothing_is_stuck_too(cli: Cli, live: Live) -> None:
    result = cli("stuck", "--older-than", "soon")
    assert result.code == 2
    assert "is not a duration" in result.err


def test_what_nobody_runs_waits_for_that(cli: Cli, folder: Path) -> None:
    with running() as live:
        live.submit("j")
    result = cli("stuck", "--older-than", "0")
    assert result.out.count("waits for a runtime that opens callboard.db") == 2
    assert result.out.count("    callboard resume\n") == 2
    assert result.out.endswith("2 found; no runtime has it open\n")


def test_stuck_knows_every_state_that_can_last() -> None:
    task, workstream, job, worker, breaker = stucks.TABLES
    tables = {"task": {"pending": None, **task}, "job": job, "workstream": workstream, "worker": worker}
    for kind, table in {**tables, "breaker": breaker}.items():
        assert table.keys() <= MACHINES[kind].states.keys(), kind
    assert {name for name, state in MACHINES["task"].states.items() if not state.terminal} == tables["task"].keys()


# -- archive -----------------------------------------------------------------------------------------------------------


def test_archive_moves_what_has_ended(cli: Cli, live: Live) -> None:
    for job_id in ("a", "b"):
        live.end(live.submit(job_id))
    live.submit("c")
    assert cli("archive", "--older-than", "1h").out == "0 jobs moved\n"
    assert cli("archive", "--older-than", "0", "--dry-run").out.endswith("2 jobs to move\n")
    result = cli("archive", "--older-than", "0")
    assert (result.code, result.out.endswith("2 jobs moved\n")) == (0, True)
    assert "job a cancelled" in result.out.splitlines()[0]  # the oldest first
    assert cli("check").out.endswith(": consistent\n")
    assert cli("audit", "callboard.db.archive/a.jsonl").code == 0
    assert "Job a (cancelled) was archived in " in cli("status", "a").err
    assert [json.loads(line)["id"] for line in cli("status", "--json").out.splitlines()] == ["c"]
    with pytest.raises(JobExists, match="archived in"):
        live.submit("a")
    with pytest.raises(LookupError, match="was archived"):
        live.portal.call(live.runtime.job, "a")
    live.end(live.submit("d"))
    assert cli("check").out.endswith(": consistent\n")


def test_an_archive_that_lost_lines_is_found_out(cli: Cli, live: Live) -> None:
    live.end(live.submit("a"))
    cli("archive", "--older-than", "0", "--to", "kept")
    lines = Path("kept/a.jsonl").read_bytes().splitlines(keepends=True)
    assert audit_lines(lines) == []
    first = json.loads(lines[0])["archive"]
    assert (first["job"]["id"], len(first["tasks"]), first["transitions"]) == ("a", 2, len(lines) - 1)
    (finding,) = audit_lines(lines[:-1])
    assert (finding.kind, finding.text) == (
        "gap",
        f"the archive has {len(lines) - 2} transitions, of {len(lines) - 1} that were written",
    )
    assert {finding.kind for finding in audit_lines(lines[:2] + lines[3:])} >= {"gap"}


def test_a_log_goes_on_after_its_last_job_was_archived(cli: Cli, folder: Path) -> None:
    Path("w.toml").write_text('name = "w"\n[[tasks]]\nname = "a"\ncommand = ["true"]\n')
    assert cli("run", "w.toml", "--id", "a", "--jsonl", "log").code == 0
    lines = Path("log").read_bytes().splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if json.loads(line)["job_id"] == "a")
    Path("log").write_bytes(b"".join(lines[: last + 1]))  # as after a kill: the job's end is the last line
    cli("archive", "--older-than", "0")
    assert cli("run", "w.toml", "--id", "b", "--jsonl", "log").code == 0
    assert cli("audit", "log").out == "log: consistent\n"


def test_what_the_log_has_not_got_yet_stays(cli: Cli, folder: Path) -> None:
    Path("w.toml").write_text('name = "w"\n[[tasks]]\nname = "a"\ncommand = ["true"]\n')
    assert cli("run", "w.toml", "--id", "a", "--jsonl", "log").code == 0
    whole = Path("log").read_bytes()
    Path("log").write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    for dry in ((), ("--dry-run",)):
        result = cli("archive", "--older-than", "0", *dry)
        assert result.out.splitlines()[-1] == f"0 jobs {'to move' if dry else 'moved'}"
        assert " ".join(result.err.split()).startswith("1 job stays: the log ")
        assert "has only the transitions up to number 2" in " ".join(result.err.split())
    assert cli("run", "w.toml", "--id", "b", "--jsonl", "log").code == 0
    assert cli("archive", "--older-than", "0").out.splitlines()[-1] == "2 jobs moved"
    assert Path("log").read_bytes().startswith(whole)


def test_what_is_not_archived(cli: Cli, live: Live) -> None:
    live.end(live.submit("a"))
    with contextlib.closing(sqlite3.connect("callboard.db", isolation_level=None)) as connection:
        row = '{"key":1000,"owner":"a@1/b","event":"on_failed","body":{},"context":{}}'
        connection.execute("INSERT INTO outbox_rows VALUES (1000, ?)", (row,))
    assert cli("archive", "--older-than", "0").out == "0 jobs moved\n"  # a hook of it is still to run
    Path("file").touch()
    with contextlib.closing(sqlite3.connect("callboard.db", isolation_level=None)) as connection:
        connection.execute("DELETE FROM outbox_rows")
    result = cli("archive", "--older-than", "0", "--to", "file")
    assert (result.code, "file" in result.err) == (2, True)
    assert cli("status", "a").code == 0


# -- top ---------------------------------------------------------------------------------------------------------------


def test_top_shows_one_picture_where_there_is_no_terminal(cli: Cli, live: Live) -> None:
    live.submit("j")
    result = cli("top", "--once")
    assert result.code == 0
    assert "run by process" in result.out
    assert "j    w           running  0/2   2 queued" in result.out
    assert "j/a   queued" in result.out
    assert "\x1b" not in cli("top").out


@pytest.mark.parametrize("key", ["q", "\x03", "SIGTERM"])
def test_top_on_a_terminal_shows_what_moves_until_it_is_left(
    live: Live, terminal: Callable[..., Terminal], key: str
) -> None:
    job = live.submit("j")
    screen = terminal("top", "--every", "0.1")
    screen.wait_for("j/a")
    before = screen.settings()
    live.submit("another")
    screen.wait_for("another/a")
    live.end(job)
    screen.wait_for("0/2")  # the other alone
    screen.press("x")
    if key == "SIGTERM":
        screen.terminate()
    else:
        screen.press(key)
    assert screen.end() == 0
    assert screen.out.count("\x1b[?1049h") == screen.out.count("\x1b[?1049l") == 1
    assert screen.out.rfind("\x1b[?25h") > screen.out.rfind("\x1b[?25l")  # there is a cursor again
    assert not before & termios.ECHO  # unseen, while it was there
    assert screen.left & termios.ECHO
    assert screen.left & termios.ICANON


@pytest.mark.parametrize(("days", "dated"), [(0, False), (3, True)])
def test_top_says_the_day_of_what_is_not_today(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, days: int, dated: bool
) -> None:
    with running() as live:
        hold = Approval(people=1, expires=days * 86400 + 60)
        job = live.submit("j", Task("gate", command=["true"], hold=hold))
        live.portal.call(reached, job, {"gate": "held"})
        due = job.task("gate").record.due_at
    assert due is not None
    monkeypatch.setattr("time.time", lambda: due - days * 86400)
    output = cli("top", "--once").out
    day, _, clock = words.due(due).partition(" ")
    assert (f"until {day} {clock};" in output, f"until {clock};" in output) == (dated, not dated)


@pytest.fixture
def in_kolkata(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], str]]:
    """The text of a time in that zone, which is the zone of this process meanwhile."""
    zone = timezone(timedelta(hours=5, minutes=30))
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "IST-5:30")
        time.tzset()
        yield lambda at: datetime.fromtimestamp(at, zone).strftime("%Y-%m-%d %H:%M:%S IST")
    time.tzset()


def test_due_times_are_told_in_the_zone_of_who_reads_and_with_its_name(
    cli: Cli, live: Live, in_kolkata: Callable[[float], str]
) -> None:
    gate = Task("gate", command=["true"], hold=Approval(expires="8h"))
    job = live.submit("j", gate, Task("later", command=["true"], wait="2h"))
    live.portal.call(reached, job, {"gate": "held", "later": "waiting"})
    held, waits = (job.task(name).record.due_at or 0.0 for name in ("gate", "later"))
    live.submit("whole", wait="3h")
    wait_until(lambda: "whole@1: waiting" in cli("status", "whole").out, "its begin")
    status, stuck, history = cli("status", "j").out, cli("stuck", "--older-than", "0").out, cli("history", "j").out
    assert re.search(rf"^j/gate +held +until {in_kolkata(held)}; waits for approval by 1 person$", status, re.MULTILINE)
    assert re.search(rf"^j/later +waiting +until {in_kolkata(waits)}$", status, re.MULTILINE)
    assert f"waits for an approval (until {in_kolkata(held)})\n    waits for approval by 1 person\n" in stuck
    assert f"waits for its time (until {in_kolkata(waits)})\n    callboard cancel j/later" in stuck
    assert f"[hold]  waits for approval by 1 person; until {in_kolkata(held)}\n" in history
    assert f"[wait]  until {in_kolkata(waits)}\n" in history
    assert re.search(
        r"^j/gate .* until .* IST; waits for approval by 1 person$", cli("top", "--once").out, re.MULTILINE
    )
    run = live.runtime.journal.reader.workstreams("whole")[-1]
    assert f"workstream whole@1: waiting: until {in_kolkata(run.due_at or 0.0)}\n" in cli("status", "whole").out
    for target in (["whole"], []):
        rows = [json.loads(line) for line in cli("status", *target, "--json").out.splitlines()]
        (whole,) = (row for row in rows if row["kind"] == "job" and row["id"] == "whole")
        assert (whole["workstream_state"], whole["waits_until"]) == ("waiting", iso(run.due_at or 0.0))
    assert [row["waits_until"] for row in rows if row["kind"] == "job" and row["id"] == "j"] == [None]
    rows = [json.loads(line) for line in cli("status", "j", "--json").out.splitlines()]
    assert {row["name"]: row["due_at"] for row in rows if row["kind"] == "task"} == {
        "gate": iso(held),
        "later": iso(waits),
    }
    rows = [json.loads(line) for line in cli("stuck", "--older-than", "0", "--json").out.splitlines()]
    assert {"j/gate": iso(held), "j/later": iso(waits)}.items() <= {
        row["target"]: row["due_at"] for row in rows
    }.items()


def test_the_history_of_a_task_shows_the_end_that_its_lifecycle_has_no_row_for(cli: Cli, live: Live) -> None:
    late = Task("x", command=["true"], depends_on=["slow"], lifecycle="orchestration", optional=True)
    job = live.submit("j", Task("slow", command=["x"]), late)
    assert cli("skip", "j/x", "--by", "emil", "--reason", "why so").code == 0
    assert cli("cancel", "j", "--force").code == 0
    live.portal.call(job.wait)

    output = cli("history", "j", "x").out
    assert "workstream  j@1" in output
    assert "skip of j@1/x by emil (why so): skipped" in output
    assert "of j@1/x" not in cli("history", "j", "slow").out


def test_when_something_was_decided_is_told_in_the_zone_of_who_reads(
    cli: Cli, live: Live, in_kolkata: Callable[[float], str]
) -> None:
    job = live.submit("j", Task("gate", command=["true"], hold=Approval(people=2)))
    live.portal.call(reached, job, {"gate": "held"})
    assert cli("approve", "j/gate", "--by", "ana").code == 0
    (decision,) = job.task("gate").record.decisions

    result = cli("approve", "j/gate", "--by", "ana")
    assert result.code == 1
    assert result.err == (
        "callboard: task j@1/gate: 'approve' was refused in state 'held': j@1/gate was approved by ana. "
        f"It is held until the others have approved. (decided {in_kolkata(decision.at)})\n"
    )


def test_until_when_is_not_told_twice_of_what_an_older_journal_says_in_the_reason() -> None:
    def hold(reason: str) -> Transitioned:
        told = {"expires_at": iso(60.0)}
        return Transitioned(1, "task", "j@1/a", 2, "pending", "held", "hold", "info", 0.0, reason, metadata=told)

    assert words.until(hold("waits for approval by ana")) == f"until {words.due(60.0)}"
    assert not words.until(hold(f"waits for approval by ana until {iso(60.0)}"))


@pytest.mark.parametrize("lifecycle", ["own", "pipeline", "orchestration", "guarded", "execution"])
def test_what_was_cancelled_and_what_was_skipped_are_told_and_counted_as_that(
    cli: Cli, live: Live, lifecycle: str
) -> None:
    rest = [Task(name, command=["x"], depends_on=["a"]) for name in ("b", "c")]
    job = live.submit("j", Task("a", command=["x"]), *rest, lifecycle=lifecycle)
    assert cli("skip", "j/b").code == 0
    live.end(job)
    output = cli("status", "j").out
    for name, end in {"a": "cancelled", "b": "skipped", "c": "cancelled"}.items():
        (cell,) = re.findall(rf"^j/{name} +(\S+(?: \(\w+\))?)", output, re.MULTILINE)
        assert cell.lower() == end or cell.endswith(f" ({end})"), cell
    rows = [json.loads(line) for line in cli("status", "--json").out.splitlines()]
    assert {state.lower(): count for state, count in rows[0]["tasks"].items()} == {"cancelled": 2, "skipped": 1}
    assert re.search(r" 3/3 +2 cancelled 1 skipped", cli("top", "--once").out, re.IGNORECASE)
    assert re.search(r"^j .* 3/3 ", cli("status").out, re.MULTILINE)


# -- pause and resume --------------------------------------------------------------------------------------------------


LONG = Task("a", command=["sh", "-c", "[ -e over ] || sleep 1000"])
ONE = Worker("one", engine="command", capacity=1)


@pytest.fixture
def busy(folder: Path) -> Iterator[Live]:
    """A runtime whose worker has a long task."""
    with running(ONE) as live:
        live.submit("j", LONG, Task("b", command=["true"], depends_on=["a"]))
        yield live


def test_pause_and_resume_a_live_job(cli: Cli, busy: Live) -> None:
    live = busy
    result = cli("pause", "j", "--reason", "lunch", "--by", "ana")
    assert (result.code, result.out) == (0, "job j running, its workstream paused (lunch)\n")
    (paused,) = [row for row in live.runtime.journal.reader.transitions(job_id="j") if row.event == "pause"]
    assert (paused.reason, paused.metadata) == ("lunch", {"by": "ana"})
    assert "s: waits for an operator\n    lunch\n    callboard resume j\n" in cli("stuck", "--older-than", "0").out
    result = cli("pause", "j")
    assert (result.code, "'pause' is not possible in state 'paused'" in result.err) == (1, True)
    result = cli("pause", "j/a")
    assert (result.code, result.err) == (2, "callboard: pause takes a job, and j@1/a is a task.\n")
    assert cli("resume", "j").out == "job j running, its workstream executing (resumed by the user)\n"


def test_pause_and_resume_a_stopped_journal(cli: Cli, folder: Path) -> None:
    with running(ONE) as live:
        live.submit("j", LONG, Task("b", command=["true"], depends_on=["a"]))
    (folder / "over").touch()
    result = cli("resume", "nope")
    assert (result.code, "no job 'nope'" in result.err) == (2, True)
    result = cli("pause", "j", "--request-id", "r1")
    assert result.code == 4
    assert "pause job j: callboard.db is not open now. It will take effect at the next start." in result.err
    with running(ONE) as live:
        assert live.runtime.journal.reader.workstreams("j")[0].state == "paused"
    result = cli("pause", "j")
    assert result.code == 1
    assert "pause job j is not possible: it is running; its workstream is paused; possible now: cancel" in result.err
    result = cli("pause", "j", "--request-id", "r1")  # the command has taken effect, as it is answered again
    assert (result.code, result.out) == (0, "job j running, its workstream paused (paused by the user)\n")
    result = cli("resume", "j", "--plain")
    assert result.code == 0
    assert "job j completed (2 completed)" in result.out


def test_a_pause_that_is_left_and_a_resume_after_it(cli: Cli, folder: Path) -> None:
    with running(ONE) as live:
        live.submit("j", LONG, Task("b", command=["true"], depends_on=["a"]))
    (folder / "over").touch()
    assert cli("pause", "j").code == 4
    result = cli("resume", "j", "--plain")
    assert (result.code, "job j completed (2 completed)" in result.out) == (0, True)


def test_what_goes_on_with_a_paused_job_says_that_it_waits(cli: Cli, folder: Path, program: Program) -> None:
    with running(ONE) as live:
        live.submit("j", LONG, Task("b", command=["true"], depends_on=["a"]))
        assert cli("pause", "j").code == 0
    (folder / "over").touch()
    goes_on = program("resume", "--plain")
    assert goes_on.stderr is not None
    text = "callboard: job j is paused: `callboard resume j` in another terminal continues it\n"
    while (line := goes_on.stderr.readline()) != text:
        assert line
    assert cli("resume", "j").code == 0
    out, _ = goes_on.communicate()
    assert (goes_on.returncode, "job j completed (2 completed)" in out) == (0, True)


def test_a_task_that_is_parked_for_itself_is_not_said_to_wait_for_its_tool(
    cli: Cli, folder: Path, program: Program
) -> None:
    (folder / "parks.toml").write_text(
        '[[tasks]]\nname = "a"\ncommand = ["false"]\ntool = "t"\non_exhausted = "park"\nretry = {max_attempts = 1}\n'
    )
    runs = program("run", "parks.toml", "--id", "j", "--plain")
    assert runs.stdout is not None
    while "a parked" not in (line := runs.stdout.readline()):
        assert line
    assert "its attempts are used up" in line
    assert "breaker" not in line
    assert "callboard retry j/a" in cli("stuck", "--older-than", "0").out
    assert cli("retry", "j/a").code == 0
    while "a parked" not in (line := runs.stdout.readline()):
        assert line
    assert "circuit_open  2/2" in cli("status", "j").out
    assert cli("cancel", "j").code == 0
    runs.communicate()


# -- approvals ---------------------------------------------------------------------------------------------------------


def test_two_people_approve_from_two_terminals(cli: Cli, live: Live) -> None:
    live.submit("j", Task("deploy", command=["x"], hold=Approval(people=2)))
    assert "    callboard approve j/deploy\n" in cli("stuck", "--older-than", "0").out
    result = cli("approve", "j/deploy", "--by", "ana", "--reason", "tested")
    assert (result.code, result.out) == (0, "task j@1/deploy held (tested)\n")
    result = cli("approve", "j/deploy", "--by", "ana")
    assert result.code == 1
    assert "ana" in result.err
    result = cli("approve", "j", "deploy", "--by", "ben", "--json")
    assert (result.code, json.loads(result.out)["state"]) == (0, "queued")
    result = cli("reject", "j/deploy", "--by", "eve")
    assert result.code == 1
    assert "ben" in result.err or "approved" in result.err  # the decision that was made


def test_what_a_running_body_asks_for(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "asking.py").write_text("async def ask(task):\n    await task.approval('drop table')\n    return 1\n")
    monkeypatch.syspath_prepend(str(folder))
    with running(Worker("loop", engine="loop", capacity=1)) as live:
        job = live.submit("j", Task("a", run="asking:ask"))
        command = ""
        while "--approval" not in command:  # until it has asked
            command = cli("stuck", "--older-than", "0").out
        assert "    callboard approve j/a --approval 'drop table'\n" in command
        result = cli("approve", "j/a", "--approval", "drop table", "--by", "ana")
        assert result.code == 0
        assert live.portal.call(job.wait).ok


@pytest.mark.parametrize("verb", ["approve", "reject"])
@pytest.mark.parametrize("by_name", [False, True], ids=["alone", "by name"])
def test_what_a_body_asked_for_is_decided_while_nobody_runs_it(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, verb: str, by_name: bool
) -> None:
    asks = "async def ask(task):\n    await task.approval('pour')\n    return 1\n"
    both = "async def both(task):\n    async with anyio.create_task_group() as group:\n        for name in 'xy':\n"
    (folder / "pouring.py").write_text(f"import anyio\n{asks}{both}            group.start_soon(task.approval, name)\n")
    monkeypatch.syspath_prepend(str(folder))
    with running(Worker("loop", engine="loop", capacity=3)) as live:
        live.submit("j", Task("gate", run="pouring:ask"), Task("two", run="pouring:both"))
        wait_until(lambda: cli("stuck", "--older-than", "0").out.count("--approval") >= 3, "the requests of all")
    name = ("--approval", "pour") if by_name else ()
    result = cli(verb, "j/gate", "--by", "ana", *name)
    assert (result.code, "It will take effect at the next start" in result.err) == (4, True)
    result = cli(verb, "j/two", "--by", "ana")
    assert (result.code, "name the approval (--approval); it asks for 'x', 'y'" in result.err) == (1, True)
    assert cli(verb, "j/gate", "--by", "ana", "--approval", "spill").code == 1
    for one in "xy":
        assert cli("approve", "j/two", "--by", "ana", "--approval", one).code == 4
    out = cli("resume", "--plain").out
    assert ("job j completed (2 completed)" if verb == "approve" else "job j failed") in out
    with contextlib.closing(SqliteReader(folder / "callboard.db")) as reader:
        (pour,) = [one for one in reader.approvals(reader.workstreams("j")[-1].key) if one.name == "pour"]
    assert [(one.by, one.verdict) for one in pour.decisions] == [
        ("ana", "approved" if verb == "approve" else "rejected")
    ]


def test_reject_and_the_login_name(cli: Cli, live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "eve")
    live.submit("j", Task("deploy", command=["x"], hold=Approval()))
    assert cli("reject", "j/deploy", "--reason", "not on a friday").out.startswith("task j@1/deploy cancelled")
    (row,) = [row for row in live.runtime.journal.reader.transitions(job_id="j") if row.event == "reject"]
    assert "eve" in f"{row.reason} {row.metadata}"


def test_approve_on_a_stopped_journal(cli: Cli, folder: Path) -> None:
    with running() as live:
        live.submit("j", Task("deploy", command=["true"], hold=Approval()), Task("b", command=["true"]))
    result = cli("approve", "j/b", "--by", "ana")
    assert (result.code, "approve task j@1/b is not possible: it is queued; possible now: " in result.err) == (1, True)
    assert cli("approve", "j/deploy", "--by", "ana").code == 4
    assert "job j completed (2 completed)" in cli("resume", "--plain").out


def test_who_cannot_approve_is_refused_by_a_stopped_journal(cli: Cli, folder: Path) -> None:
    with running() as live:
        named = Approval(clauses=[Clause(person="ana"), Clause(person="ben")])
        tasks = [Task("two", command=["true"], hold=Approval(people=2)), Task("named", command=["true"], hold=named)]
        live.submit("j", *tasks)
        assert cli("approve", "j/two", "--by", "ana").code == 0
    for task, by, why in (
        ("two", " Ana", "has already approved it"), ("named", "eve", "is none of the approvers; it waits for ana, ben"),
    ):  # fmt: skip
        result = cli("approve", f"j/{task}", "--by", by)
        assert (result.code, why in result.err) == (1, True)
    assert cli("approve", "j/two", "--by", "eve").code == 4


def test_a_stopped_journal_refuses_who_submitted_it_as_a_running_one_does(cli: Cli, folder: Path) -> None:
    with running() as live:
        for job, own in (("strict", False), ("lax", True)):
            spec = Workstream("w", tasks=[Task("deploy", command=["true"], hold=Approval(self_approval=own))])
            live.portal.call(partial(live.runtime.submit, spec, id=job, by="dan"))
        running_says = cli("approve", "strict/deploy", "--by", "Dan").err
    result = cli("approve", "strict/deploy", "--by", "dan")
    assert (result.code, "dan" in result.err) == (1, True)
    assert "submitted" in result.err
    assert "submitted" in running_says
    assert cli("approve", "lax/deploy", "--by", "dan").code == 4


def test_a_stopped_journal_takes_no_name_and_no_reason_that_a_running_one_refuses(cli: Cli, folder: Path) -> None:
    with running() as live:
        live.submit("j", Task("deploy", command=["true"], hold=Approval()))
        told = [cli("approve", "j/deploy", "--by", " "), cli("cancel", "j", "--reason", "x" * 10_001)]
        assert ["`by` is the name" in told[0].err, "at most 10,000 characters" in told[1].err] == [True, True]
    told = [cli("approve", "j/deploy", "--by", " "), cli("cancel", "j", "--reason", "x" * 10_001)]
    assert [one.code for one in told] == [2, 2]
    assert ["`by` is the name" in told[0].err, "at most 10,000 characters" in told[1].err] == [True, True]
    assert "running" in cli("status", "j").out.splitlines()[0]


def test_an_empty_name_is_refused_by_every_command_and_is_not_replaced(cli: Cli, folder: Path) -> None:
    verbs = [
        ("cancel", "j"), ("cancel", "j/a"), ("pause", "j"), ("resume", "j"), ("retry", "j/a"), ("skip", "j/a"),
        ("approve", "j/deploy"), ("reject", "j/deploy"), ("send", "j", "word"), ("fire", "j", "pause"),
        ("fire", "door", "open"), ("breaker", "trip", "cc"),
        ("breaker", "reset", "cc", "--check", "echo done > checked"),
    ]  # fmt: skip
    rows = [Transition("shut", "open", "ajar")]
    door = Machine("door", states=[State("shut"), State("ajar", terminal=True)], initial="shut", transitions=rows)
    tasks = [Task("a", command=["x"], tool="cc"), Task("deploy", command=["x"], hold=Approval())]
    with running() as live:
        live.submit("j", *tasks)
        live.portal.call(lambda: live.runtime.spawn(MachineActor(door), name="door"))
        live.portal.call(live.runtime._services.settled, 60)
        told = [cli(*words, "--by", "") for words in verbs]
        (row,) = live.runtime.journal.reader.machines()
        assert row.state == "shut"
    told += [cli(*words, "--by", "") for words in verbs]
    assert [(one.code, "`by` is the name of the author" in one.err) for one in told] == [(2, True)] * len(told)
    with reading(Path("callboard.db")) as reader:
        assert not reader.inbox()
    assert not (folder / "checked").exists()


def test_decisions_that_a_stopped_journal_refuses_at_once(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "async def ask(task):\n    await task.approval('drop')\n\nasync def nothing():\n    pass\n"
    (folder / "deciding.py").write_text(body)
    monkeypatch.syspath_prepend(str(folder))
    with running(Worker("loop", engine="loop", capacity=2)) as live:
        live.submit("j", Task("a", run="deciding:ask"), Task("held", run="deciding:nothing", hold=Approval()))
        wait_until(lambda: "--approval" in cli("stuck", "--older-than", "0").out, "its request")
    result = cli("approve", "j/a", "--approval", "nope")
    assert (result.code, "it asks for no approval 'nope'" in result.err) == (1, True)
    with monkeypatch.context() as patched:
        patched.setattr(acting, "_now", lambda: 2.0**33)
        result = cli("approve", "j/held")
    assert (result.code, "is not possible: its time limit was" in result.err) == (1, True)
    assert cli("approve", "j/held", "--by", "ana", "--request-id", "k").code == 4
    assert cli("approve", "j/held", "--by", "ana", "--request-id", "k").code == 4
    result = cli(
        "approve", "j/held", "--by", "ben", "--request-id", "k"
    )  # another payload, though it has not been done
    assert (result.code, "The request id 'k' was given to another command before" in result.err) == (1, True)
    assert cli("approve", "j/a", "--approval", "drop", "--by", "ana").code == 4
    assert cli("resume", "--plain").code == 0
    result = cli("approve", "j/a", "--approval", "drop", "--by", "ben")
    assert (result.code, "its approval 'drop' has ended (approved)." in result.err) == (1, True)
    result = cli("approve", "j/held", "--by", "ana", "--request-id", "k")  # the answer of the first command
    assert (result.code, result.out[:14]) == (0, "task j@1/held ")


# -- breakers ----------------------------------------------------------------------------------------------------------


def test_breakers(cli: Cli, live: Live) -> None:
    job = live.submit("j", Task("a", command=["x"], tool="cc"))
    assert "cc    closed" in cli("breaker", "list").out
    result = cli("breaker", "trip", "cc", "--reason", "it is on fire", "--cooldown", "1h", "--by", "ana")
    assert (result.code, result.out) == (0, "breaker cc open (it is on fire)\n")
    assert "it is on fire" in cli("breaker", "list").out
    stuck = cli("stuck", "--older-than", "0").out
    assert "    callboard breaker reset cc\n" in stuck
    (breaker,) = live.runtime.journal.reader.breakers()
    assert breaker.due_at is not None
    assert f"task j/a circuit_open for 0.0 s: waits for its tool (until {words.due(breaker.due_at)})" in re.sub(
        r"for \d+\.\d s", "for 0.0 s", stuck
    )
    assert "retry in" not in stuck + cli("status", "j").out  # such a text would be wrong a second later
    assert re.search(r"^cc .* until .*; it is on fire$", cli("top", "--once").out, re.MULTILINE)
    result = cli("breaker", "reset", "cc", "--check", " ")
    assert (result.code, "--check takes a shell command, and this one is empty" in result.err) == (2, True)
    result = cli("breaker", "trip", "cc", "--cooldown", "0s")
    assert (result.code, "--cooldown: a cooldown of 0 is over before any task is parked" in result.err) == (2, True)
    result = cli("breaker", "reset", "cc", "--check", "echo no; exit 3")
    assert (result.code, "breaker cc was not reset: its check exited with 3." in result.err, result.out) == (
        1,
        True,
        "",
    )
    result = cli("breaker", "reset", "cc", "--check", "true", "--reason", "mended")
    assert (result.code, result.out) == (0, "breaker cc closed (mended)\n")
    again = ("breaker", "reset", "cc", "--request-id", "k", "--check")
    assert cli(*again, "echo once >> checked").code == cli(*again, "echo twice >> checked").code == 0
    assert Path("checked").read_text() == "once\n"  # the same command has taken effect: nothing is checked again
    assert cli("breaker", "reset", "cc", "--reason", "mended").code == 0
    (row,) = [json.loads(line) for line in cli("breaker", "list", "--json").out.splitlines()]
    assert (row["tool"], row["state"], row["reason"]) == ("cc", "closed", "mended")
    assert "has used a tool 'c'; did you mean 'cc'?" in cli("breaker", "trip", "c").err
    result = cli("breaker", "reset", "j/a")
    assert (result.code, "task j@1/a" in result.err) == (1, True)
    assert job.state == "running"


def test_tools_shows_which_limit_holds_and_who_says_so(cli: Cli, live: Live) -> None:
    tools = {"cc": Tool(max_parallel=2), "ld": Tool(breaker=Breaker(failure_threshold=3))}
    live.submit("j", Task("a", command=["x"], tool="cc"), tools=tools)
    rows = cli("tools").out.splitlines()
    assert re.split("  +", rows[0]) == [
        "TOOL", "AT ONCE", "SET BY", "RESTS UNTIL", "BREAKER", "OPENS AFTER", "COOLS DOWN", "SET BY",
    ]  # fmt: skip
    assert rows[1].split() == ["cc", "2", "j", "closed", "5", "failures", "1", "m", "00", "s"]
    assert rows[2].split() == ["ld", "no", "limit", "closed", "3", "failures", "1", "m", "00", "s", "j"]
    told = [json.loads(line) for line in cli("tools", "--json").out.splitlines()]
    assert [(row["tool"], row["max_parallel"], row["limit_by"], row["breaker_by"]) for row in told] == [
        ("cc", 2, "j", None), ("ld", None, None, "j"),
    ]  # fmt: skip


def test_a_breaker_of_a_stopped_journal(cli: Cli, folder: Path) -> None:
    with running() as live:
        live.submit("j", Task("a", command=["true"], tool="cc"))
        live.portal.call(live.runtime.breaker("cc").trip)
    assert cli("breaker", "reset", "cc").code == 4
    assert "job j completed (1 completed)" in cli("resume", "--plain").out


# -- next runs ---------------------------------------------------------------------------------------------------------

FAILS = """
name = "w"
[[tasks]]
name = "a"
command = ["true"]
[[tasks]]
name = "b"
command = ["test", "-e", "mended"]
depends_on = ["a"]
"""


def test_resume_retry_and_skip_on_a_stopped_journal(cli: Cli, folder: Path) -> None:
    (folder / "w.toml").write_text(FAILS)
    assert cli("run", "w.toml", "--id", "j", "--plain").code == 1
    result = cli("resume", "j", "--plain")
    assert result.code == 1
    assert "b started" in result.out
    assert "a started" not in result.out  # the task is carried over
    result = cli("retry", "j/b", "--reason", "mended")
    assert (result.code, "retry task j@2/b: callboard.db is not open now" in result.err) == (4, True)
    (folder / "mended").touch()
    assert "job j completed (2 completed)" in cli("resume", "--plain").out
    assert cli("resume", "--plain").out == "Nothing is unfinished in callboard.db.\n"
    result = cli("resume", "j")
    assert (result.code, "has ended already: completed" in result.err) == (1, True)
    assert cli("skip", "j/b").code == 4
    assert cli("resume", "--plain").code == 0
    assert "skipped" in cli("status", "j").out
    assert cli("check").code == 0


def test_retry_of_a_job_that_cannot_be_run_again_is_refused_by_a_stopped_journal_at_once(
    cli: Cli, folder: Path
) -> None:
    (folder / "w.toml").write_text(FAILS)
    (folder / "mended").touch()
    assert cli("run", "w.toml", "--id", "j", "--plain").code == 0
    result = cli("retry", "j", "--request-id", "r1")
    assert result.code == 1
    assert "retry job j is not possible: it is completed. `callboard retry j/TASK` runs a task again." in result.err
    assert cli("resume", "--plain").out == "Nothing is unfinished in callboard.db.\n"
    assert cli("retry", "j/b").code == 4
    assert cli("retry", "j").code == 4  # it is judged after the commands that wait before it


def test_retry_of_a_job_that_waits_is_refused_by_a_stopped_journal_at_once(cli: Cli, folder: Path) -> None:
    with running() as live:
        job = live.submit("j", Task("a", command=["x"], hold=Approval()))
        live.portal.call(reached, job, {"a": "held"})
    result = cli("retry", "j")
    assert (result.code, "retry job j is not possible: it is running, and has not ended." in result.err) == (1, True)
    assert cli("approve", "j/a").code == 4
    assert cli("retry", "j").code == 4  # it is judged after the commands that wait before it


def test_skip_and_retry_of_what_is_neither_pending_nor_parked_are_refused_at_once(cli: Cli, folder: Path) -> None:
    fails = Task("a", run=fail_at_once, on_exhausted="park", retry=Retry(max_attempts=1))
    held = Task("b", command=["x"], hold=Approval())
    with running(Worker("one", engine="loop")) as live:
        job = live.submit("j", fails, held, Task("c", command=["x"], depends_on=["a"]))
        live.portal.call(reached, job, {"a": "circuit_open", "b": "held"})
        result = cli("skip", "j/a")
        assert (result.code, "Commands there: cancel, retry." in result.err) == (1, True)
    result = cli("skip", "j/a")
    assert result.code == 1
    assert "skip task j@1/a is not possible: it is circuit_open; possible now: cancel, retry." in result.err
    result = cli("retry", "j/b")
    assert (result.code, "it is held; possible now: approve, cancel, reject." in result.err) == (1, True)
    assert cli("skip", "j/c").code == 4
    assert cli("skip", "j/a").code == 4  # it is judged after the commands that wait before it


def test_retry_and_skip_on_a_live_runtime(cli: Cli, busy: Live) -> None:
    result = cli("skip", "j/b", "--request-id", "r1")
    assert (result.code, result.out) == (0, "task j@1/b skipped (skipped by an operator)\n")
    result = cli("retry", "j")
    assert (result.code, "not possible in state 'running'" in result.err) == (1, True)
    assert cli("cancel", "j", "--force").code == 0
    result = cli("retry", "j", "--reason", "once more")
    assert result.code == 0
    assert result.out.startswith("job j running")
    assert cli("skip", "j/b", "--request-id", "r1").out == "task j@1/b skipped (skipped by an operator)\n"


# -- workers -----------------------------------------------------------------------------------------------------------


def test_workers(cli: Cli, busy: Live) -> None:
    (row,) = [json.loads(line) for line in cli("workers", "list", "--json").out.splitlines()]
    assert (row["name"], row["state"], row["assigned"], row["capacity"]) == ("one", "busy", 1, 1)
    result = cli("workers", "pause", "one", "--reason", "disk is full", "--by", "ana")
    assert (result.code, result.out) == (0, f"worker {row['id']} paused (disk is full)\n")
    assert "disk is full" in cli("workers", "list").out
    assert "    callboard workers resume one\n" in cli("stuck", "--older-than", "0").out
    result = cli("workers", "pause", "one")
    assert (result.code, "'pause' is not possible in state 'paused'" in result.err) == (1, True)
    assert cli("workers", "resume", "one").code == 0
    assert "There is no worker 'on'; did you mean 'one'?" in cli("workers", "pause", "on").err
    result = cli("workers", "terminate", row["id"])
    assert (result.code, "terminated" in result.out) == (0, True)
    result = cli("workers", "start", "one", "--request-id", "s")
    assert result.code == 0
    assert cli("workers", "start", "one", "--request-id", "s").out == result.out
    result = cli("workers", "shutdown", "one", "--deadline", "1s")
    assert result.code == 0


def test_workers_of_a_stopped_journal(cli: Cli, folder: Path) -> None:
    with running(ONE):
        pass
    result = cli("workers", "start", "one")
    assert (result.code, result.err) == (
        1,
        "callboard: worker one: no runtime has callboard.db open, so no worker runs.\n",
    )
    shown = cli("workers", "list").out
    assert shown.splitlines()[1:] == ["1 ended workers are not shown: use `callboard workers list --all`"]
    shown = cli("workers", "list", "--all").out
    assert "shutdown" in shown
    assert "not shown" not in shown


def test_what_waits_for_a_worker_that_was_ended_is_pointed_to_where_it_is_seen(cli: Cli, busy: Live) -> None:
    assert cli("workers", "terminate", "one").code == 0
    command = ""
    while "workers list" not in command:  # until its tasks are queued again
        command = next((line for line in cli("stuck", "--older-than", "0").out.splitlines() if "workers" in line), "")
    assert "terminated" in cli(*command.split()[1:]).out


async def reads(task: TaskContext) -> None:
    task.progress(3, 10, EVIL)
    await anyio.sleep_forever()


def test_the_progress_of_another_attempt_or_of_a_runtime_that_was_killed_is_not_shown(cli: Cli, folder: Path) -> None:
    journal = folder / "callboard.db"
    with running(Worker("one", engine="loop")) as live:
        job = live.submit("j", Task("a", run=reads))
        wait_until(lambda: read_progress(journal), "the progress beside the journal")
        ((task, (token, told)),) = read_progress(journal).items()
        status = cli("status", "j").out
        assert "[###-------] 3 of 10 (30 %), first j fake line" in status
        assert raw(status) == set()
        assert not any(line.startswith("j fake line") for line in status.splitlines())
        write_progress(journal, {task: (token + 1, told)})
        assert "3 of 10" not in cli("status", "j").out
        assert json.loads(cli("status", "j/a", "--json").out)["progress"] is None
        record = live.portal.call(lambda: job.task("a").record)
        token = record.token
        write_progress(journal, {task: (token, told)})
        with reading(journal) as reader:
            progress = progress_at(journal, reader)
            assert progress(record) == told
            assert progress(replace(record, state="retrying")) is None  # between two attempts
    write_progress(journal, {task: (token, told)})  # as a kill leaves it
    assert "3 of 10" not in cli("status", "j").out + cli("top", "--once").out


# -- texts of other programs ------------------------------------------------------------------------------------------

EVIL = "first\nj fake line\x1b]0;title\x07\x1b[2J\x9b31m\u202egnorw\x7f\r\b" + "x" * 5000 + "end"


def raw(text: str) -> set[str]:
    """Return the characters that a terminal would execute."""
    return {sign for sign in text if not (sign.isprintable() or sign == "\n")}


@pytest.fixture
def spoilt(folder: Path) -> Iterator[Live]:
    """A runtime whose entities all have a reason with control characters."""
    with running(ONE) as live:
        job = live.submit("j", LONG, Task("b", command=["x"], tool="t"), Task("c", command=["x"], depends_on=["a"]))
        live.portal.call(lambda: live.runtime.breaker("t").trip(reason=EVIL))
        live.portal.call(lambda: live.runtime.worker("one").pause(EVIL))
        live.portal.call(lambda: job.skip("c", EVIL))
        live.portal.call(lambda: job.pause(EVIL))
        yield live


LOOKS = (
    ("status",), ("status", "j"), ("history",), ("stuck", "--older-than", "0"), ("top", "--once"), ("workers", "list"),
    ("breaker", "list"), ("check",),
)  # fmt: skip


@pytest.mark.parametrize("look", LOOKS, ids=" ".join)
def test_nothing_that_is_shown_holds_what_a_terminal_would_obey(cli: Cli, spoilt: Live, look: tuple[str, ...]) -> None:
    result = cli(*look)
    assert raw(result.everything) == set()
    assert not any(line.startswith("j fake line") for line in result.out.splitlines())
    assert max(map(len, result.out.splitlines())) < 600
    if look[0] not in {"top", "check"}:
        result = cli(*look, "--json")
        assert raw(result.out) == set()
        assert look[0] == "status" or any(json.loads(line).get("reason") == EVIL for line in result.out.splitlines())


def test_what_came_of_a_command_holds_nothing_that_a_terminal_would_obey(cli: Cli, spoilt: Live) -> None:
    for args in (("resume", "j"), ("pause", "j"), ("pause", "j"), ("retry", "j"), ("cancel", "j"), ("skip", "j/c")):
        result = cli(*args, "--reason", EVIL)
        assert raw(result.everything) == set(), args
        assert len(result.everything.splitlines()) == 1, args
    for args in (("status", EVIL), ("history", "j", EVIL), ("workers", "pause", EVIL), ("breaker", "trip", EVIL)):
        assert raw(cli(*args).everything) == set(), args
    result = cli("status", "--journal", EVIL[:80])
    assert (result.code, raw(result.everything)) == (2, set())


def test_a_live_view_shows_nothing_that_a_terminal_would_obey_and_a_plain_one_neither(folder: Path, cli: Cli) -> None:
    (folder / "evil.py").write_text(f"def body():\n    print({EVIL!r})\n    raise ValueError({EVIL!r})\n")
    (folder / "evil.toml").write_text(
        'name = "evil"\n[[tasks]]\nname = "a"\nrun = "evil:body"\n'
        '[[tasks]]\nname = "b"\ncommand = ["sh", "-c", "printf \'\\\\033[2Jboo\\\\n\'; exit 3"]\n'
    )
    result = cli("run", "evil.toml", "--plain")
    assert result.code == 1
    assert raw(result.everything.replace(EVIL, "")) == set()  # but for what the body itself prints


@step(tool="big model")
async def ask_model(n: int) -> int:
    return n


async def asks(task: TaskContext) -> int:
    return await ask_model(7)


def test_what_a_step_waits_for_is_shown_its_tool_and_the_breaker(cli: Cli) -> None:
    with running(Worker("loop", engine="loop")) as live:
        live.portal.call(live.submit("first", Task("a", run=asks)).wait)
        assert cli("breaker", "trip", "big model", "--cooldown", "2h").code == 0
        job = live.submit("j", Task("a", run=asks))
        at_once = partial(cli, "stuck", "--older-than", "0")
        text = "for its body, which waits in its step ask_model for tool 'big model', whose breaker is open (until "
        wait_until(lambda: text in at_once().out)
        assert "    callboard breaker reset 'big model'\n" in at_once().out
        shown = cli("status", "j/a").out
        assert re.search(r"ask_model +waiting +0 +for tool 'big model', whose breaker is open", shown), shown
        assert json.loads(cli("status", "j/a", "--json").out)["steps"][0]["tool_use"] == "waits"
        assert cli("breaker", "reset", "big model").code == 0
        assert live.portal.call(job.wait).results == {"a": 7}
        assert "for tool" not in cli("status", "j/a").out


@step(capabilities={"gpu"})
async def draw(n: int) -> int:
    if n == 7:
        await anyio.sleep_forever()
    return n


async def draws(task: TaskContext) -> int:
    return await draw(7)


def test_where_a_step_runs_is_shown_and_why_no_worker_can_run_it(cli: Cli) -> None:
    with running(Worker("loop", engine="loop")) as live:
        live.submit("j", Task("a", run=draws))
        wanted = "for a worker of engine 'loop', capabilities 'gpu'"
        nobody = "no worker has the engine 'loop' and the capabilities ['gpu']"
        wait_until(lambda: f"which waits in its step draw {wanted}: {nobody}" in cli("stuck", "--older-than", "0").out)
        assert f"waiting  0  {wanted}: {nobody}" in re.sub(" {2,}", "  ", cli("status", "j/a").out)
        live.portal.call(live.runtime.start_worker, Worker("gpu", engine="loop", capabilities=["gpu"]))
        wait_until(lambda: "runs on worker gpu#1" in cli("status", "j/a").out)
        row = json.loads(cli("status", "j/a", "--json").out)["steps"][0]
        assert [row[name] for name in ("engine", "capabilities", "worker_use", "unroutable", "worker_id")] == [
            "loop", ["gpu"], "holds", None, "gpu#1",
        ]  # fmt: skip


async def takes_two(task: TaskContext) -> list[Any]:
    return [await task.receive("payment"), await task.receive("the answer", timeout="1h")]


def test_a_message_is_sent_from_another_terminal(cli: Cli) -> None:
    with running(Worker("loop", engine="loop")) as live:
        job = live.submit("j", Task("a", run=takes_two))
        wait_until(lambda: "waits for message 'payment'" in cli("stuck", "--older-than", "0").out)
        assert "    callboard send j/a payment --data JSON\n" in cli("stuck", "--older-than", "0").out
        assert "for message 'payment'" in cli("status", "j/a").out
        result = cli("send", "j", "payment", "--data", '{"cents": 1200}', "--request-id", "r1")
        assert (result.code, result.out) == (0, "job j running, its workstream executing (message payment)\n")
        assert cli("send", "j", "payment", "--data", '{"cents": 1200}', "--request-id", "r1").code == 0
        wait_until(lambda: "waits for message 'the answer' (until " in cli("stuck", "--older-than", "0").out)
        assert "callboard send j/a 'the answer' --data JSON" in cli("stuck", "--older-than", "0").out
        assert cli("send", "j/a", "the answer", "--data", "{no").code == 2
        assert cli("send", "j/a", "", "--data", "1").code == 2
        assert json.loads(cli("send", "j/a", "the answer", "--by", "ana", "--json").out)["kind"] == "task"
        assert live.portal.call(job.wait).results["a"] == [{"cents": 1200}, None]
        result = cli("send", "j", "payment")
        assert (result.code, "send" in result.err, "completed" in result.err) == (1, True, True)


async def two_steps(task: TaskContext) -> list[str]:
    return [await task.step(step(shown_twice, name="show"), n) for n in "ab"]


def shown_twice(text: str) -> str:
    stepped.append(text)
    return text


stepped: list[str] = []


def test_a_task_is_retried_from_a_step_on_from_another_terminal(cli: Cli) -> None:
    stepped.clear()
    with running(Worker("loop", engine="loop")) as live:
        live.portal.call(live.submit("j", Task("a", run=two_steps)).wait)
        result = cli("retry", "j/a", "--from-step", "shwo#2")
        assert (result.code, "keeps no step 'shwo#2'; did you mean 'show#2'? kept are: show, show#2" in result.err) == (
            2,
            True,
        )
        assert cli("retry", "j", "--from-step", "show").code == 2
        result = cli("retry", "j/a", "--from-step", "show#2", "--request-id", "r1")
        assert (result.code, result.err) == (0, "")
        live.portal.call(live.portal.call(live.runtime.job, "j").wait)
        assert stepped == ["a", "b", "b"]
        assert cli("retry", "j/a", "--from-step", "show#2", "--request-id", "r1").code == 0
        assert len(stepped) == 3
    stopped = cli("retry", "j/a", "--from-step", "x").err  # the task is named once
    assert "callboard: retry task j@2/a is not possible: it keeps no step 'x'; kept are: show, show#2." in stopped


async def asks_people(task: TaskContext) -> None:
    await task.approval("go")


async def no_step() -> None:
    pass


def test_what_a_job_waits_for_is_told_of_its_tasks_in_words_that_are_true_of_them(cli: Cli) -> None:
    with running(Worker("loop", engine="loop")) as live:
        job = live.submit("j", Task("a", run=two_steps), Task("b", run=asks_people), Task("c", run=no_step))
        live.portal.call(reached, job, {"a": "completed", "b": "running", "c": "completed"})
        at_once = partial(cli, "stuck", "--older-than", "0")
        wait_until(
            lambda: "task j/b running for " in at_once().out and "which waits for the approval 'go'" in at_once().out
        )
        assert at_once().out.count("    callboard approve j/b --approval go\n") == 2
        assert "callboard cancel" not in at_once().out
        result = cli("retry", "j/a", "--from-step", "show")
        assert result.code == 1
        assert result.err.startswith("callboard: task j@1/a: its job: 'retry' is not possible in state 'running'.")
        assert len(json.loads(cli("history", "j/a", "--flow").out)["steps"]) == 2
        assert len(json.loads(cli("history", "j/b", "--flow").out)["approvals"]) == 1
        result = cli("history", "j/c", "--flow")
        assert (result.code, result.out, "j@1/c has taken no step yet" in result.err) == (2, "", True)
        live.end(job)


def test_of_a_journal_that_nobody_runs_only_a_kept_step_is_accepted(cli: Cli) -> None:
    stepped.clear()
    with running(Worker("loop", engine="loop")) as live:
        live.portal.call(live.submit("j", Task("a", run=two_steps)).wait)
    result = cli("retry", "j/a", "--from-step", "shwo#2")
    assert (result.code, result.err.startswith("callboard: retry task j@1/a is not possible: ")) == (1, True)
    assert "did you mean 'show#2'? kept are: show, show#2." in result.err
    assert cli("retry", "j", "--from-step", "show").code == 2
    assert cli("retry", "j/a", "--from-step", "show#2").code == acting.LATER
    with running(Worker("loop", engine="loop")) as live:
        wait_until(lambda: len(stepped) == 3)
        live.portal.call(live.portal.call(live.runtime.job, "j").wait)
    assert stepped == ["a", "b", "b"]


def test_a_message_to_a_job_that_nobody_runs_waits_for_the_next_start(cli: Cli) -> None:
    with running() as live:
        live.submit("j", Task("a", run=takes_two))
        live.end(live.submit("ended", Task("a", run=takes_two)))
    assert cli("send", "j", "payment", "--data", "1").code == acting.LATER
    result = cli("send", "ended", "payment")
    assert (result.code, result.err.strip()) == (
        1, "callboard: send job ended is not possible: the job is cancelled, and receives nothing more.",
    )  # fmt: skip
    with running(Worker("loop", engine="loop")) as live:
        live.portal.call(lambda: send_to_it(live, "the answer", 2))
        job = live.portal.call(live.runtime.job, "j")
        assert live.portal.call(job.wait).results["a"] == [1, 2]


async def send_to_it(live: Live, name: str, value: object) -> None:
    await (await live.runtime.job("j")).send(name, value)


@pytest.mark.usefixtures("cli")
def test_the_largest_message_comes_through_the_inbox() -> None:
    """A row that is too long for its reader would never be answered."""

    async def takes_one(task: TaskContext) -> int:
        return len(await task.receive("large"))

    with running(Worker("loop", engine="loop")) as live:
        live.runtime.task(name="takes_one")(takes_one)
        job = live.submit("j", Task("a", run="takes_one"))
        said = {"name": "large", "value": "x" * (1024 * 1024 - 2), "by": "ana"}
        row = InboxRow("send", "job", "j", "r1", said, time.time())
        answered = command(Path("callboard.db").absolute(), row, 120.0)
        assert answered is not None
        assert answered.error is None
        assert live.portal.call(job.wait).results["a"] == 1024 * 1024 - 2
