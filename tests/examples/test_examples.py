"""Every example runs by the command in its first lines, and prints what it promises."""

from __future__ import annotations

import json
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import zipfile
from contextlib import closing
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from tests.programs import killed_after

from callboard.machines.audit.audit import audit_lines
from callboard.runtime.testing.postgres import PrivateServer

from .conftest import ROOT, Run, environment

pytestmark = pytest.mark.programs
PROGRAMS = sorted(
    path.name
    for path in (ROOT / "examples").iterdir()
    if path.suffix in {".py", ".toml", ".yaml"} and not path.name.endswith("_steps.py")
)
COMMAND = re.compile(r"^#? +((?:callboard run|python|pytest) examples/[\w.]+)$")
TOPICS = ["ORIGINS", "RIVALS", "PRICES", "RISKS"]
TRACES = ROOT.parent / "shared" / "wfcommons"


def command_of(name: str) -> str:
    """The first command in the first lines of an example."""
    lines = (ROOT / "examples" / name).read_text(encoding="utf-8").splitlines()[:10]
    found = [match[1] for line in lines if (match := COMMAND.match(line))]
    assert found, f"examples/{name} does not say in its first ten lines how it is run"
    return found[0]


def ends(output: str) -> dict[str, str]:
    """The last state of each task, from the output of `callboard run --json`."""
    told = [json.loads(line) for line in output.splitlines()]
    rows = [row for row in told if row.get("event_type") == "task_state_transition"]
    return {row["entity_id"].rpartition("/")[2]: row["to_state"] for row in rows}


def products_are_whole(checkout: Path) -> bool:
    dist = checkout / "examples" / "release" / "dist"
    sums = dict(reversed(line.split("  ")) for line in (dist / "SHA256SUMS").read_text(encoding="utf-8").splitlines())
    return len(sums) == 2 and all(sha256((dist / name).read_bytes()).hexdigest() == sum_ for name, sum_ in sums.items())


def test_every_example_is_run_here() -> None:
    assert PROGRAMS == [
        "actors.py", "agent.py", "agent_runs.py", "agents.py", "cluster.py", "deploy.py", "deploy.toml", "fleet.py",
        "own_lifecycle.py", "pipeline.yaml", "quickstart.py", "release.toml", "remote.py",
        "saga.py", "stages.yaml", "test_release.py", "tokens.py", "wfcommons.py",
    ]  # fmt: skip


def test_a_release_of_days_is_tested_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    if not entry_points(group="pytest11", name="callboard"):  # in a checkout that is not installed
        monkeypatch.setenv("PYTEST_PLUGINS", "callboard.runtime.testing.plugin")
    assert "16 passed" in run(f"{command_of('test_release.py')} -q").stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_command_in_its_first_lines_names_the_example(name: str) -> None:
    assert shlex.split(command_of(name))[-1] == f"examples/{name}"


def test_runs_of_agents_end_as_their_agents_do(run: Run, checkout: Path) -> None:
    done = run(command_of("agent_runs.py"))
    refusal, *paths = done.stdout.splitlines()
    assert refusal.startswith("execution run-3: 'START' is not possible in state 'failed': nothing leaves it.")
    assert paths == [
        "run-1: pending queued running success",
        "run-2: pending queued running recovering running success",
        "run-3: pending queued running recovering failed",
    ]


def test_a_release_is_built_tested_and_packaged(run: Run, checkout: Path) -> None:
    done = run(f"{command_of('release.toml')} --json")
    expected = dict.fromkeys(
        "clean build unit-tests soak-test integration-test package source-archive checksums tidy".split(),  # noqa: SIM905
        "completed",
    )
    assert ends(done.stdout) == expected | {"sign": "skipped", "announce": "failed"}
    retries = [line for line in done.stdout.splitlines() if '"to_state":"retrying"' in line]
    assert len(retries) == 1
    assert "integration-test" in retries[0]
    release = checkout / "examples" / "release"
    assert products_are_whole(checkout)
    assert "wordcount/__init__.py" in zipfile.ZipFile(release / "dist" / "wordcount.pyz").namelist()
    assert not (release / "build").exists()
    assert "consistent" in run("callboard check").stdout


def test_stages_run_in_the_order_of_their_dag_file(run: Run, checkout: Path) -> None:
    done = run(f"{command_of('stages.yaml')} --json")
    began = [
        row["entity_id"].rpartition("/")[2]
        for row in map(json.loads, done.stdout.splitlines())
        if row.get("event_type") == "task_state_transition" and row["to_state"] == "running"
    ]
    assert (began[0], set(began[1:3]), began[3]) == ("fetch", {"lint", "test"}, "publish")
    assert set(ends(done.stdout).values()) == {"completed"}


def test_a_release_killed_in_the_middle_goes_on_where_it_was(run: Run, checkout: Path) -> None:
    command = f"{command_of('release.toml')} --jsonl log.jsonl"
    program = subprocess.Popen(
        command.split(), cwd=checkout, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    with killed_after(program) as killed:
        assert killed.stdout is not None
        seen: list[str] = []
        for line in killed.stdout:  # until the soak test, which takes seconds, is running, and something is done
            seen.append(line)
            if "unit-tests completed" in line:
                break
        assert any("soak-test started" in line for line in seen)
        killed.kill()
    assert killed.returncode == -signal.SIGKILL

    assert "running" in run("callboard status").stdout
    run("callboard resume --jsonl log.jsonl")

    assert products_are_whole(checkout)
    assert "consistent" in run("callboard check").stdout
    assert "consistent" in run("callboard audit log.jsonl").stdout
    with closing(sqlite3.connect(checkout / "callboard.db")) as journal, journal:
        rows = journal.execute("SELECT entity_id, to_state, COUNT(*) FROM state_transitions GROUP BY 1, 2").fetchall()
    journal.close()
    count = {(str(entity).rpartition("/")[2], state): times for entity, state, times in rows}
    for task in ("clean", "build", "unit-tests"):  # ended tasks were not run again
        assert count[task, "running"] == 1
    assert count["soak-test", "running"] == 2  # the interrupted task was


def test_a_pipeline_makes_one_report_of_fifty_files(run: Run, checkout: Path) -> None:
    done = run(f"{command_of('pipeline.yaml')} --json")
    states = ends(done.stdout)
    assert len(states) == 52
    assert set(states.values()) == {"completed"}
    data = checkout / "examples" / "pipeline-data"
    assert len(list(data.glob("station-*.csv"))) == 50
    rows = [line.split("|")[1:-1] for line in (data / "report.md").read_text(encoding="utf-8").splitlines()[2:]]
    means = [float(row[2]) for row in rows]
    assert len(rows) == 50
    assert means == sorted(means, reverse=True)


def test_one_program_runs_in_its_own_process_and_behind_a_board(run: Run, checkout: Path) -> None:
    command = command_of("remote.py")
    embedded = run(command).stdout
    assert embedded.endswith("deploy held\nana had approved it\nrelease completed\n")
    serve = ["callboard", "serve", "--allow-commands", "--port", "0"]
    program = subprocess.Popen(serve, cwd=checkout, env=environment(), text=True, stdout=subprocess.PIPE)
    with killed_after(program) as server:
        try:
            assert server.stdout is not None
            address = next(line.split()[-1] for line in server.stdout if line.startswith("serving"))
            assert run(f"{command} {address}").stdout == embedded
        finally:
            server.send_signal(signal.SIGINT)
            server.communicate(timeout=600)
    assert server.returncode == 0


def test_the_quickstart_embeds_a_runtime(run: Run) -> None:
    shown = run(command_of("quickstart.py")).stdout
    lines = re.sub(r"quickstart\.py:\d+", "quickstart.py:N", shown).splitlines()
    assert [line.partition(" (quickstart.py:")[0] for line in lines if not line.startswith("{")] == [
        "order-1: paid 42",
        "order-2: job 'order-2' failed: task 'pay' failed: Permanent: 120 is over the limit of 100",
        "order-1 again: paid 42",
    ]
    logged = [json.loads(line) for line in lines if line.startswith("{")]
    assert [line["steps"] for line in logged if line["event"] == "order_over"] == [
        ["retry", "fetch", "price", "pay"],
        ["retry", "fetch", "price"],
    ]
    assert {"job_state_transition", "workstream_state_transition", "task_state_transition", "fetched"} <= {
        line["event"] for line in logged
    }


def test_tasks_run_by_a_lifecycle_of_ones_own(run: Run) -> None:
    lines = run(command_of("own_lifecycle.py")).stdout.splitlines()
    assert [line.split() for line in lines if line.startswith("hack")] == [
        ["hack", "create", "open"],
        ["hack", "take", "in_work"],
        ["hack", "ask_for_review", "reviewing"],
        ["hack", "drop", "dropped"],
    ]
    assert lines[-1] == "and the log holds to the table"


@pytest.mark.parametrize(("lifecycle", "completed"), [("pipeline", "S_SUCCESS"), ("orchestration", "completed")])
def test_a_release_runs_by_the_lifecycles_that_need_all_of_their_tasks_and_its_log_is_clean(
    run: Run, checkout: Path, lifecycle: str, completed: str
) -> None:
    spec = checkout / "examples" / "release.toml"
    text = spec.read_text(encoding="utf-8").replace('"2.5"', '"0.1"').replace('"300ms"', '"10ms"')  # the same, quicker
    spec.write_text(text, encoding="utf-8")
    shown = run(f"{command_of('release.toml')} --lifecycle {lifecycle} --jsonl log.jsonl").stdout
    assert f"(9 {completed}, 1 skipped, 1 failed)" in shown
    with (checkout / "log.jsonl").open("rb") as log:
        assert audit_lines(log) == []


def test_agents_wait_for_their_model_and_for_people(run: Run) -> None:
    said = run(command_of("agents.py")).stdout
    assert "the breaker was closed -> closed -> open -> half_open -> open -> half_open -> closed\n" in said
    assert said.endswith("published:\n" + "".join(f"  WHAT IS KNOWN OF {topic}\n" for topic in TOPICS))


def test_a_saga_undoes_what_was_done(run: Run) -> None:
    assert run(command_of("saga.py")).stdout.splitlines()[-5:] == [
        "- charge A7", "- reserve A7", "- ask a carrier for A7", "- release A7", "- refund A7",
    ]  # fmt: skip


def test_an_application_streams_the_tokens_of_a_running_task(run: Run) -> None:
    assert run(command_of("tokens.py")).stdout == (
        "A bear walked into a theatre and asked when the next rehearsal was . \n{'words': 14}\n"
    )


def test_an_agent_that_is_killed_repeats_no_call(run: Run) -> None:
    pytest.importorskip("pydantic_ai", reason="the extra `pydantic-ai` is not installed")
    assert run(command_of("agent.py")).stdout.splitlines() == [
        "process that dies:",
        "  the model is asked (1)",
        "  searches for 'order A7'",
        "  searches for 'refunds'",
        "  the model is asked (2)",
        "  ana approves, and the process is killed",
        "process that lives:",
        "  pays 1200 cents back",
        "  the model is asked (3)",
        "You get 12.00 back.",
        "['agent:clerk', 'model', 'tool:search', 'tool:search#2', 'model#2', 'tool:refund', 'model#3']",
    ]


def test_a_deployment_is_approved_rejected_and_rolled_back(run: Run) -> None:
    review = [
        "deploy waits for 2 people, ana",
        "refused: dan submitted it, and self-approval is off. Another person must approve.",
        "refused: ana has approved already",
    ]
    assert run(command_of("deploy.py")).stdout.splitlines() == [
        *review,
        "approved: go-live waiting",
        "first: completed",
        "second: failed: task 'deploy' was rejected by ben: not on a Friday",
        *review,
        "third: cancelled, rolled back",
    ]


def test_actors_fail_and_go_on(run: Run) -> None:
    assert run(command_of("actors.py")).stdout.splitlines() == [
        "  card reader: ready",
        "gold card pays 12.50",
        "refused: -1 cents is no price",
        "refused: try another card: the card is stuck",
        "  card reader: ready",
        "new card pays 7.50",
        "taken: 2000",
        "the till has stopped",
    ]


def test_a_fleet_survives_a_killed_and_a_frozen_process(run: Run) -> None:
    *told, lost = run(command_of("fleet.py")).stdout.splitlines()
    events, picture = told[:3], told[3:]
    killed, silent, given_up = (re.fullmatch(r"(\S+) (.*) after (\S+) s(.*)", line) for line in events)
    assert killed is not None
    assert silent is not None
    assert given_up is not None
    assert [one[2] for one in (killed, silent, given_up)] == ["failed", "was found unresponsive", "was given up there"]
    assert "SIGKILL" in killed[4]
    assert float(killed[3]) <= float(silent[3]) < float(given_up[3]) < 60
    assert [len(line) for line in picture] == [96] * 48
    assert picture[24].count("#") > 40
    assert lost.count(": 1") == 2


def figures(output: str) -> dict[str, str]:
    """Return the values that `wfcommons.py` printed, by their labels."""
    return {line[:15].strip(): line[15:] for line in output.splitlines()}


def test_a_small_graph_takes_as_long_as_its_critical_path(run: Run) -> None:
    told = figures(run(f"{command_of('wfcommons.py')} --scale 0.01").stdout)
    assert told["workflow"] == "diamond: completed"
    assert told["tasks"] == "15 of 15 completed, 6 layers"
    assert told["critical path"] == "0.390 s"
    assert float(told["makespan"].split()[0]) >= 0.39


@pytest.mark.postgres
def test_one_of_two_nodes_is_killed_and_the_other_ends_the_picture(run: Run, postgres_server: PrivateServer) -> None:
    lines = run(f"{command_of('cluster.py')} {postgres_server.address('picture')}").stdout.splitlines()
    drawn = [line.split()[:2] for line in lines if line.endswith("drawn")]
    assert lines.count("anton is killed") == 1
    assert {name for name, _ in drawn} == {"anton:", "berta:"}
    assert len({strip for _, strip in drawn}) == len(drawn)  # none of them twice
    assert sum(len(line) == 64 for line in lines) == 32
    assert lines[-1].startswith("lost with the other node, and drawn again: strip-")


BARE = """
import runpy, sys
from callboard.runtime.testing import postgres
postgres._PLACES = ()
runpy.run_path(sys.argv.pop(), run_name="__main__")
"""


def test_without_a_database_the_cluster_says_what_is_missing(checkout: Path) -> None:
    command = [sys.executable, "-c", BARE, "examples/cluster.py"]
    bare = environment() | {"PATH": ""}
    done = subprocess.run(command, cwd=checkout, env=bare, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "Install them" in done.stderr
    assert "postgresql://" in done.stderr


WITHOUT_EXTRAS = """
import runpy, sys
for name in ("psycopg", "httpx", "ray", "yaml", "litestar", "prometheus_client", "opentelemetry"):
    sys.modules[name] = None
runpy.run_path(sys.argv.pop(), run_name="__main__")
"""


@pytest.mark.parametrize(("name", "extra"), [("cluster.py", "postgres"), ("remote.py", "client")])
def test_an_example_without_its_extra_says_so_in_a_sentence(checkout: Path, name: str, extra: str) -> None:
    command = [sys.executable, "-c", WITHOUT_EXTRAS, f"examples/{name}"]
    done = subprocess.run(command, cwd=checkout, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith(f"which is not installed: pip install 'callboard[{extra}]'\n")


def test_nodes_that_reach_no_database_say_so_without_a_traceback(checkout: Path) -> None:
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    command = [sys.executable, "examples/cluster.py", "postgresql:///jobs?host=/no/such/folder"]
    done = subprocess.run(command, cwd=checkout, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "/no/such/folder" in done.stderr


@pytest.mark.parametrize(
    ("name", "tasks", "layers"),
    [("hic-dirt02-001", 38, 13), ("cutandrun-dirt02-001", 120, 22), ("montage-chameleon-dss-125d-001", 1066, 8)],
)
def test_real_workflows_run(run: Run, name: str, tasks: int, layers: int) -> None:
    path = TRACES / f"{name}.json"
    if not path.exists():
        pytest.skip("the traces of real workflows are not beside this checkout (../shared/wfcommons)")
    told = figures(run(f"{command_of('wfcommons.py')} {path} --scale 0.0005").stdout)
    assert told["workflow"] == f"{name}: completed"
    assert told["tasks"] == f"{tasks} of {tasks} completed, {layers} layers"


def test_a_workflow_that_has_run_is_not_run_again(run: Run) -> None:
    command = f"{command_of('wfcommons.py')} --scale 0.01 --journal run.db"
    first, again = (figures(run(command).stdout) for _ in range(2))
    assert again["tasks"] == first["tasks"]
    assert float(first["makespan"].split()[0]) >= max(0.39, float(again["makespan"].split()[0]))


def trace(**parents: list[str]) -> str:
    """A trace of these tasks without their durations."""
    tasks = [{"id": name, "parents": ids} for name, ids in parents.items()]
    return json.dumps({"workflow": {"specification": {"tasks": tasks}, "execution": {"tasks": []}}})


NO_TRACES = {
    "none.json": (None, "No such file"),
    "torn.json": ("{", "JSONDecodeError"),
    "list.json": ("[]", "no trace in WfFormat"),
    "empty.json": (trace(), "has no tasks"),
    "unmeasured.json": (trace(a=[]), "duration of a"),
    "cycle.json": (trace(a=["b"], b=["a"]), "wait for one another"),
}
EACH = """
import contextlib, io, json, runpy, sys
program, *paths = sys.argv[1:]
for path in paths:
    sys.argv, said = [program, path], io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            runpy.run_path(program, run_name="__main__")
        except SystemExit as exit:
            print(json.dumps([exit.code, said.getvalue()]))
"""


def test_what_is_no_trace_is_refused_in_one_line(checkout: Path) -> None:
    """All of them in one process: to start one takes half a second."""
    for name, (text, _) in NO_TRACES.items():
        if text is not None:
            (checkout / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", EACH, "examples/wfcommons.py", *NO_TRACES]
    done = subprocess.run(command, cwd=checkout, env=environment(), capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for (code, said), (_, says) in zip(answers, NO_TRACES.values(), strict=True):
        assert code == 2
        assert says in said
        assert said.count("\n") == 1
