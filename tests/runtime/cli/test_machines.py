"""`callboard fire`, and machines in `status`, `history`, `check`, `audit` and `diagram`."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio.lowlevel
import msgspec
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from callboard import (
    Approval,
    Clause,
    Condition,
    Fire,
    Machine,
    MachineActor,
    MachineRef,
    Runtime,
    State,
    Task,
    Timed,
    Transition,
    Workstream,
    load_machine,
)
from callboard.machines.lifecycles.execution import EXECUTION

from .conftest import CommandResult

Cli = Callable[..., CommandResult]

REVIEW = """
name = "review"
initial = "held"
on_event = "reviewing:count"

[facts]
needed = 2
approvals = 0
patience = "72h"

[states]
held = {}
published = { terminal = true }
expired = { terminal = true }

[[transitions]]
source = "held"
event = "approve"
target = "published"
guard = "reviewing:enough"

[[transitions]]
source = "held"
event = "approve"
target = "held"

[[transitions]]
source = "held"
event = "expire"
target = "expired"
severity = "warning"

[[timed]]
state = "held"
event = "expire"
after = "patience"
"""
FUNCTIONS = """
from msgspec.structs import replace

def enough(facts, fire):
    return facts.approvals + 1 >= facts.needed

def count(facts, fire):
    return replace(facts, approvals=facts.approvals + (fire.event == "approve"))
"""


class Facts(msgspec.Struct, frozen=True):
    """The facts of a run."""

    recovery_timeout: float = 60.0


class Live:
    """A runtime on callboard.db in a thread of its own."""

    def __init__(self, portal: BlockingPortal, runtime: Runtime) -> None:
        self.portal = portal
        self.runtime = runtime

    def run(self, *events: str, name: str = "run-7") -> MachineRef:
        actor = MachineActor(EXECUTION, Facts())
        run = self.portal.call(lambda: self.runtime.spawn(actor, name=name))
        for event in events:
            self.portal.call(run.ask, Fire(event))
        self.portal.call(self.runtime._services.settled, 60)  # a command finds it in the journal
        return run


@contextlib.contextmanager
def running(**options: Any) -> Iterator[Live]:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(
            Runtime("callboard.db", **{"workers": (), "drain_deadline": 0, **options})
        ) as runtime,
    ):
        portal.call(runtime.caught_up)  # the commands that were left before
        yield Live(portal, runtime)


def test_fire_drives_a_live_machine(cli: Cli, folder: Path) -> None:
    with running() as live:
        run = live.run()
        result = cli("fire", "run-7", "ENQUEUE", "--reason", "webhook", "--request-id", "r1", "--metadata", "n=3",
                   "--metadata", "branch=main", "--by", "ana")  # fmt: skip
        assert (result.code, result.out, result.err) == (0, "machine run-7 queued (webhook)\n", "")
        assert run.record.reason == "webhook"
        (row,) = [row for row in live.runtime.journal.reader.transitions(entity_id="run-7") if row.event == "ENQUEUE"]
        assert row.metadata == {"by": "ana", "n": 3, "branch": "main"}
        again = cli("fire", "run-7", "ENQUEUE", "--reason", "webhook", "--request-id", "r1", "--metadata", "n=3",
                    "--metadata", "branch=main", "--by", "ana")  # fmt: skip
        assert again == result
        result = cli("fire", "run-7", "START", "--request-id", "r1")
        assert (result.code, "'r1' was given to another command before" in result.err) == (1, True)
        result = cli("fire", "run-7", "APPROVE")
        assert result.code == 1
        assert "'APPROVE' is not possible in state 'queued'. Possible there: CANCEL, FAIL, START" in result.err
        result = cli("fire", "run-8", "APPROVE")
        assert (result.code, "There is no machine 'run-8' in this journal; did you mean 'run-7'?" in result.err) == (
            2,
            True,
        )
        assert cli("fire", "run-7", "START", "--metadata", "n").code == 2
        result = cli("fire", "run-7", "START", "--json")
        assert json.loads(result.out)["state"] == "running"


def test_a_machine_is_no_job_and_a_fact_is_given_once(cli: Cli, folder: Path) -> None:
    with running() as live:
        live.run("ENQUEUE")
        for verb in ("cancel", "retry", "approve"):
            assert "is a machine, not a job: use `callboard fire run-7 EVENT`" in cli(verb, "run-7").err
        result = cli("fire", "run-7", "START", "--metadata", "n=1", "--metadata", "n=2")
        assert (result.code, "gives 'n' twice" in result.err) == (2, True)
        assert live.runtime.machine("run-7").state == "queued"


def test_a_job_and_a_machine_of_one_name_are_told_apart(cli: Cli, folder: Path) -> None:
    held = Workstream("w", tasks=[Task("a", command=["true"], hold=Approval())])
    with running() as live:
        live.run("ENQUEUE", name="x")
        live.run(name="job:x")  # a name that exists unchanged is taken unchanged
        for name in ("x", "y"):
            live.portal.call(lambda name=name: live.runtime.submit(held, id=name))
        too = "callboard: A machine has the name 'x', too: `machine:x` shows it.\n"
        for words in (["status", "x"], ["history", "x"]):
            result = cli(*words)
            assert (result.code, result.err, "queued" in result.out, "running" in result.out) == (0, too, False, True)
        for words in (["status", "machine:x"], ["history", "machine:x"]):
            result = cli(*words)
            assert (result.code, result.err, "queued" in result.out, "running" in result.out) == (0, "", True, False)
        assert cli("status", "job:x").out.startswith("machine job:x: execution, pending")
        assert json.loads(cli("status", "job:y", "--json").out.splitlines()[0])["id"] == "y"
        result = cli("status", "machine:y")
        assert (result.code, "There is no machine 'y' in this journal" in result.err) == (2, True)
        result = cli("fire", "machine:x", "START")
        assert (result.code, result.out) == (0, "machine x running\n")
        result = cli("fire", "y", "START")
        assert (result.code, "job and workstream have no event of that name" in result.err) == (1, True)
        for command in (("fire", "machine:zz", "START"), ("cancel", "machine:zz")):
            assert "There is no machine 'zz' in this journal" in cli(*command).err
        result = cli("cancel", "machine:job:x")
        assert (result.code, "'job:x' is a machine, not a job: use `callboard fire job:x EVENT`" in result.err) == (
            2,
            True,
        )
        assert cli("cancel", "x").out == "job x cancelled (cancelled by the user)\n"
        assert cli("cancel", "job:y").out == "job y cancelled (cancelled by the user)\n"
        assert live.runtime.machine("x").state == "running"


def test_fire_at_a_stopped_journal_waits_for_the_next_start(cli: Cli, folder: Path) -> None:
    with running() as live:
        live.run("ENQUEUE")
    result = cli("fire", "run-7", "APPROVE")
    assert (result.code, result.err) == (
        1,
        "callboard: 'APPROVE' at machine run-7 is not possible: it is queued; possible now: CANCEL, FAIL, START.\n",
    )
    result = cli("fire", "run-7", "START", "--request-id", "r1")
    assert (result.code, "It will take effect at the next start" in result.err) == (4, True)
    with running() as live:
        assert live.runtime.machine("run-7").state == "running"
        result = cli("fire", "run-7", "START", "--request-id", "r1")
        assert (result.code, result.out) == (0, "machine run-7 running\n")


def test_resume_does_not_end_before_events_that_were_left_are_done(cli: Cli, folder: Path) -> None:
    """The events are taken once the runtime is open, and there may be nothing else to wait for."""
    with running() as live:
        live.run("ENQUEUE")
    assert [cli("fire", "run-7", event).code for event in ("START", "RECOVER")] == [4, 4]
    assert cli("resume").code == 0
    with contextlib.closing(sqlite3.connect("callboard.db")) as db:
        (state,) = db.execute("SELECT state FROM machines WHERE name = 'run-7'").fetchone()
    assert state == "recovering"


def test_what_is_fired_behind_what_waits_already_is_judged_when_it_is_taken(cli: Cli, folder: Path) -> None:
    with running() as live:
        live.run("ENQUEUE")
    assert cli("fire", "run-7", "SUCCEED").code == 1
    assert cli("fire", "run-7", "START").code == 4
    assert cli("fire", "run-7", "SUCCEED").code == 4
    result = cli("fire", "run-7", "PUBLISH")
    assert (result.code, "'PUBLISH' at machine run-7 is not possible" in result.err) == (
        1,
        True,
    )  # no state has the event
    with running() as live:
        states = [row.to_state for row in live.runtime.journal.reader.transitions(entity_id="run-7")]
        assert states[-2:] == ["running", live.runtime.machine("run-7").state]
        assert states[-1] != "running"


@pytest.fixture
def elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], MachineActor[Facts]]]:
    """Adds or removes a module of the program to which the machine belongs."""
    path = folder / "program_elsewhere.py"
    monkeypatch.syspath_prepend(str(folder))

    def be(there: bool) -> MachineActor[Facts]:
        path.write_text("def same(facts, fire):\n    return facts\n") if there else path.unlink()
        sys.modules.pop("program_elsewhere", None)
        importlib.invalidate_caches()
        return MachineActor(EXECUTION, Facts(), on_event=importlib.import_module(path.stem).same if there else None)

    yield be
    sys.modules.pop("program_elsewhere", None)


@pytest.mark.parametrize("spawned", [False, True])
def test_what_was_fired_at_a_machine_of_another_program_waits_for_that(
    cli: Cli, folder: Path, elsewhere: Callable[[bool], MachineActor[Facts]], spawned: bool
) -> None:
    with running() as live:
        actor = elsewhere(True)
        run = live.portal.call(lambda: live.runtime.spawn(actor, name="run-0"))
        live.portal.call(run.ask, Fire("ENQUEUE"))
    assert [cli("fire", "run-0", event).code for event in ("START", "FAIL")] == [4, 4]
    elsewhere(False)
    assert cli("resume").code == 0  # a start by a program without that module
    with running() as live:
        assert live.runtime.machine("run-0").state == "queued"
        assert "cannot be found again" in cli("fire", "run-0", "CANCEL").err  # a waiting caller gets the refusal
        if spawned:  # later, by the program itself
            actor = elsewhere(True)
            run = live.portal.call(lambda: live.runtime.spawn(actor, name="run-0"))
            while not run.ended:
                live.portal.call(anyio.lowlevel.checkpoint)
    if not spawned:
        elsewhere(True)
        with running():
            pass
    with contextlib.closing(sqlite3.connect("callboard.db")) as db:
        events = db.execute("SELECT event FROM state_transitions WHERE entity_id = 'run-0' ORDER BY seq").fetchall()
    assert [event for (event,) in events] == ["create", "ENQUEUE", "START", "FAIL"]


def test_machines_are_shown_beside_jobs(cli: Cli, folder: Path) -> None:
    with running() as live:
        live.run("ENQUEUE", "START", "RECOVER")
        live.run("SKIP", name="run-8")
        result = cli("status")
        lines = result.out.splitlines()
        assert lines[0].split() == ["NAME", "MACHINE", "STATE", "SINCE", "UNTIL", "REASON"]
        assert [line.split()[:3] for line in lines[1:]] == [
            ["run-8", "execution", "skipped"], ["run-7", "execution", "recovering"],
        ]  # fmt: skip
        rows = [json.loads(line) for line in cli("status", "--json").out.splitlines()]
        assert [(row["kind"], row["name"], row["machine"], row["state"]) for row in rows] == [
            ("machine", "run-8", "execution", "skipped"), ("machine", "run-7", "execution", "recovering"),
        ]  # fmt: skip
        one = cli("status", "run-7").out
        assert "machine run-7: execution, recovering" in one
        assert "FAIL at " in one
        assert 'facts: {"recovery_timeout":60.0}' in one
        assert json.loads(cli("status", "run-7", "--json").out)["facts"] == {"recovery_timeout": 60.0}
        history = cli("history", "run-7").out.splitlines()
        assert [line.split("[")[1].split("]")[0] for line in history] == ["create", "ENQUEUE", "START", "RECOVER"]


def test_metadata_that_uses_our_words_is_not_taken_for_what_we_say(cli: Cli, folder: Path) -> None:
    with running(jsonl=folder / "log.jsonl") as live:
        live.run("ENQUEUE")
        result = cli(
            "fire", "run-7", "START", "--metadata", "ended_as=failed", "--metadata", "machine=x", "--metadata",
            "path=callboard.machines:TASK", "--metadata", "lifecycle=theirs",
        )  # fmt: skip
        assert result.code == 0, result.err
        history = cli("history", "run-7").out
        assert "[START]" in history
        assert "ended as" not in history
    lines = (folder / "log.jsonl").read_text().splitlines(keepends=True)
    (folder / "part.jsonl").write_text(lines[-1])
    assert "'x'" not in cli("audit", "part.jsonl").everything
    assert "theirs" not in cli("audit", "part.jsonl").everything


def test_stuck_tells_of_machines_and_of_the_events_that_they_wait_for(cli: Cli, folder: Path) -> None:
    with running() as live:
        live.run("ENQUEUE", "START", "RECOVER")
        live.run("ENQUEUE", name="run-8")
        live.run("SKIP", name="run-9")  # has ended
        result = cli("stuck", "--older-than", "0")
        assert result.code == 1
        (recovering,) = re.findall(r"^machine run-7 recovering for .* waits for (.*)$", result.out, re.MULTILINE)
        assert re.fullmatch(r"CANCEL, FAIL, START; FAIL comes at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+", recovering)
        assert "waits for a free agent: CANCEL, FAIL, START\n    callboard fire run-8 EVENT\n" in result.out
        assert "run-9" not in result.out
        rows = [json.loads(line) for line in cli("stuck", "--older-than", "0", "--json").out.splitlines()]
        assert [(row["kind"], row["target"]) for row in rows] == [("machine", "run-8"), ("machine", "run-7")]
        assert cli("stuck", "--older-than", "1h").code == 0
    result = cli("stuck", "--older-than", "0")
    assert "machine run-8 queued" in result.out
    assert "waits for a runtime that opens callboard.db" in result.out
    assert "callboard resume" not in result.out  # it would find no jobs


def test_events_in_the_inbox_are_shown_until_a_program_has_their_machine(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running() as live:
        live.run("ENQUEUE")
    result = cli("fire", "run-7", "START")
    assert (result.code, "at the next start of a program that has this machine." in result.err) == (4, True)
    assert cli("fire", "run-7", "CANCEL").code == 4
    monkeypatch.delattr("callboard.machines.lifecycles.execution.EXECUTION")
    with running():
        result = cli("stuck", "--older-than", "0")
        assert "waits for a program that has its machine: START, CANCEL in the inbox\n" in result.out
        assert "    callboard status run-7\n" in result.out
        assert re.search(
            r"in the inbox since .*, until a program that has the machine opens this journal: START, CANCEL\n",
            cli("status", "run-7").out,
        )
        assert "START, CANCEL in the inbox" in cli("status").out
        assert json.loads(cli("status", "--json").out)["inbox"] == ["START", "CANCEL"]
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    with running() as live:
        assert live.runtime.machine("run-7").state == "cancelled"
    assert json.loads(cli("status", "run-7", "--json").out)["inbox"] == []


def test_the_path_of_a_machine_is_drawn_on_its_own_table(cli: Cli, folder: Path) -> None:
    with running() as live:
        live.run("ENQUEUE", "START")
        result = cli("diagram", "--entity", "run-7")
        assert result.code == 0
        assert "recovering" in result.out  # where it never was


def test_check_and_audit_hold_a_machine_against_its_own_table(cli: Cli, folder: Path) -> None:
    (folder / "reviewing.py").write_text(FUNCTIONS)
    (folder / "review.toml").write_text(REVIEW)
    with running(jsonl="log.jsonl") as live:
        live.run("ENQUEUE", "START", "SUCCEED")
        review = load_machine("review.toml").with_facts(needed=2)
        document = live.portal.call(lambda: live.runtime.spawn(review, name="doc"))
        live.portal.call(document.ask, Fire("approve"))
        assert cli("fire", "doc", "approve").out == "machine doc published\n"
    assert "consistent" in cli("check").out
    result = cli("audit", "log.jsonl")
    assert result.code == 0
    assert "1 entities run by machine 'review', which is not known here" in result.out
    result = cli("audit", "log.jsonl", "--machine", "review.toml")
    assert result.out == "log.jsonl: consistent\n"
    text = Path("log.jsonl").read_text()
    for right, wrong in (('"START"', '"HOLD"'), ('"to_state":"published"', '"to_state":"expired"')):
        Path("bad.jsonl").write_text(text.replace(right, wrong, 1))
        result = cli("audit", "bad.jsonl", "--machine", "review.toml")
        assert (result.code, "unknown_transition" in result.out) == (1, True), result.out
    with contextlib.closing(sqlite3.connect("callboard.db")) as journal, journal:
        journal.execute(
            "UPDATE transition_chunks SET transitions = replace(transitions, 'published', 'expired')"
            " WHERE owner = 'machine:doc'"
        )
    result = cli("check")
    assert result.code == 1
    assert "machine doc: the machine has no row held -> expired by 'approve'" in result.out
    assert "record_differs: doc the record says published, its last transition expired" in result.out


def test_a_declared_machine_is_found_again_from_the_journal_alone(cli: Cli, folder: Path) -> None:
    (folder / "reviewing.py").write_text(FUNCTIONS)
    (folder / "review.toml").write_text(REVIEW)
    with running() as live:
        review = load_machine("review.toml")
        document = live.portal.call(lambda: live.runtime.spawn(review, name="doc"))
        live.portal.call(document.ask, Fire("approve"))
    (folder / "review.toml").unlink()
    with running() as live:
        assert cli("fire", "doc", "approve").out == "machine doc published\n"
        assert live.runtime.machine("doc").facts.approvals == 2


def test_a_declared_machine_is_drawn(cli: Cli, folder: Path) -> None:
    (folder / "reviewing.py").write_text(FUNCTIONS)
    (folder / "review.toml").write_text(REVIEW)
    result = cli("diagram", "review.toml")
    assert result.code == 0
    assert "held --> published: approve [enough]" in result.out
    (folder / "review.toml").write_text(REVIEW.replace('target = "expired"', 'target = "expird"'))
    result = cli("diagram", "review.toml")
    assert (result.code, "did you mean 'expired'?" in result.err) == (2, True)


@pytest.mark.parametrize("command", ["status", "check"])
def test_a_journal_without_machines_is_shown_as_before(cli: Cli, folder: Path, command: str) -> None:
    with running():
        pass
    assert "machine" not in cli(command).out


class Leased(msgspec.Struct, frozen=True):
    """The facts: until when a thing is taken."""

    due_at: float | None = None


LEASED = Machine(
    "leased",
    "free",
    [State("free", bounded_by="its owner"), State("taken"), State("over", terminal=True)],
    [Transition("free", "take", "taken"), Transition("taken", "end", "over")],
    [Timed("taken", "end", "due_at")],
)


def until(facts: Leased, fire: Fire) -> Leased:
    """Take the fact of the event, unchanged."""
    return Leased(float((fire.metadata or {})["due"]))


def _keep_no_number(journal: Path) -> None:
    """Have the due time of its machine be null, as which an infinity was kept."""
    with closing(sqlite3.connect(journal)) as connection, connection:
        (text,) = connection.execute("SELECT record FROM machine_records").fetchone()
        record = json.loads(text)
        record["due"] = dict.fromkeys(record["due"])
        record["due_at"] = None
        connection.execute("UPDATE machine_records SET record = ?", (json.dumps(record),))


@pytest.mark.parametrize("value", [1e18, 1.7e12, float("inf")])
def test_a_senseless_due_time_that_is_there_is_shown_and_breaks_nothing(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    with monkeypatch.context() as older, running() as live:
        older.setattr("callboard.actors.machines.kind.point", float)  # as it was taken before
        older.setattr("callboard.actors.machines.kind.number_problem", lambda _: None)
        older.setattr("callboard.runtime.handles.machine_kinds.number_problem", lambda _: None)
        actor = MachineActor(LEASED, Leased(), on_event=until)
        run = live.portal.call(lambda: live.runtime.spawn(actor, name="run-7"))
        live.portal.call(run.ask, Fire("take", metadata={"due": repr(min(value, 1e18))}))
        live.portal.call(live.runtime._services.settled, 60)
    if math.isinf(value):
        _keep_no_number(folder / "callboard.db")
    shown = f"no time: {value!r}"
    assert shown in cli("status", "run-7").out
    assert cli("status").code == 0
    assert json.loads(cli("status", "run-7", "--json").out)["due"] == {"end": shown}
    for command in ("check", "history run-7", "top --once", "stuck", "resume"):
        result = cli(*command.split())
        assert result.code in (0, 1), result.everything
    with running() as live:  # and it goes on
        assert live.portal.call(lambda: live.runtime.machine("run-7")).state == "taken"
        result = cli("stuck", "--older-than", "0s")
        assert (result.code, result.err) == (1, "")
        assert f"end comes at {shown}" in result.out


def test_no_verb_that_only_reads_imports_what_a_file_or_a_journal_names(cli: Cli, folder: Path) -> None:
    foreign = folder / "foreign"
    foreign.mkdir()
    nosy = "import pathlib\npathlib.Path(__file__).with_name('RAN').touch()\n"
    text = nosy + FUNCTIONS + "\ndef work():\n    pass\n\ndef told(task):\n    pass\n"
    (foreign / "nosy.py").write_text(text)
    calls = '\n[on_enter]\n"*" = "nosy:told"\n'
    (foreign / "review.toml").write_text(REVIEW.replace("reviewing:", "nosy:") + calls)
    with running(jsonl="log.jsonl") as live:
        actor = load_machine(foreign / "review.toml")
        live.portal.call(lambda: live.runtime.spawn(actor, name="paper-1"))
        sys.path.insert(0, str(foreign))
        hold = Approval(clauses=[Clause(team="all", members="nosy:work")])
        task = Task("a", run="nosy:work", hold=hold, condition=Condition(run="nosy:work"))
        live.portal.call(partial(live.runtime.submit, Workstream("w", tasks=[task]), id="j1"))
        live.portal.call(live.runtime._services.settled, 60)
    sys.modules.pop("nosy", None)
    sys.path.remove(str(foreign))
    for place in (folder, foreign):  # it would be found from here, too
        (place / "RAN").unlink(missing_ok=True)
    (folder / "nosy.py").write_text(text)
    for command in (
        "diagram foreign/review.toml", "audit log.jsonl --machine foreign/review.toml", "audit log.jsonl", "status",
        "status j1", "status paper-1", "history", "history j1", "history paper-1", "top --once",
        "stuck --older-than 0s", "check",
        "diagram --entity paper-1", "diagram --entity j1/a", "workers list --all", "breaker", "archive --help",
        "approve j1/a", "fire paper-1 expire", "cancel j1",
    ):  # fmt: skip
        result = cli(*command.split())
        assert result.code in (0, 1, 2, 4), result.everything
        ran = [str(place) for place in (folder, foreign) if (place / "RAN").exists()]
        assert (ran, "nosy" in sys.modules) == ([], False), command
    drawn = cli("diagram", "foreign/review.toml")
    assert (drawn.code, "enough" in drawn.out) == (0, True)
    (foreign / "review.toml").write_text(REVIEW.replace("reviewing:", "nowhere:"))
    assert cli("diagram", "foreign/review.toml").code == 0  # the functions that it names need not exist
