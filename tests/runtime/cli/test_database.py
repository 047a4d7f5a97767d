"""The commands for a journal in PostgreSQL: the same texts and exit codes, whichever node runs the job."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import pytest
from typer.main import get_command

from callboard import Approval, Runtime, Task, Workstream
from callboard.runtime.cli.app import app
from callboard.runtime.cli.command_errors import run_command
from callboard.runtime.cli.serve import ServeView
from callboard.runtime.errors import JournalMissing, LeaseLost, closed
from callboard.runtime.journal.location import is_address, store_of

from .conftest import PROGRAM, environment

pytestmark = pytest.mark.postgres
COMMAND = get_command(app)
Cli = Callable[..., tuple[int, str, str]]
RELEASE = 'name = "release"\n[[tasks]]\nname = "build"\ncommand = ["true"]\n'


async def one() -> int:
    return 1


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run the command line in this process."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "release.toml").write_text(RELEASE)

    def run(*args: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run_command(lambda: COMMAND(list(args), prog_name="callboard"))
        output = capsys.readouterr()
        assert "Traceback" not in output.err
        return code, output.out, output.err

    return run


def test_a_job_is_run_looked_at_and_checked_in_a_database(cli: Cli, postgres: str) -> None:
    code, _, err = cli("status", "-j", postgres)
    assert (code, "There is no journal in" in err) == (2, True)
    code, out, _ = cli("migrate", "-j", postgres)
    assert (code, "was new, and has version" in out) == (0, True)
    assert "nothing had to be changed" in cli("migrate", "-j", postgres)[1]
    code, out, err = cli("run", "release.toml", "--id", "r1", "-j", postgres, "--node", "here", "--lease", "30s")
    assert (code, "job r1 completed" in out) == (0, True), err
    assert cli("run", "release.toml", "--id", "r1", "-j", postgres)[0] == 0  # the same job
    code, out, _ = cli("status", "r1", "-j", postgres)
    assert (code, "build" in out, "completed" in out) == (0, True, True)
    assert "build" in cli("history", "r1", "-j", postgres)[1]
    code, out, _ = cli("check", "-j", postgres)
    assert (code, out.strip().endswith("consistent")) == (0, True)
    assert "stateDiagram" in cli("diagram", "--entity", "job:r1", "-j", postgres)[1]
    assert cli("stuck", "-j", postgres)[0] == 0
    assert cli("top", "--once", "-j", postgres)[0] == 0
    assert "Nothing is unfinished" in cli("resume", "-j", postgres)[1]
    code, _, err = cli("archive", "-j", postgres)
    assert (code, "Only jobs of a journal's file" in err) == (2, True)


def test_nodes_are_listed_with_what_they_run(cli: Cli, postgres: str) -> None:
    async def beside() -> None:
        async with Runtime(postgres, node="web-1") as runtime:
            await runtime.submit(Workstream("w", tasks=[Task("a", run=one, hold=Approval())]), id="held")
            code, out, _ = await anyio.to_thread.run_sync(cli, "nodes", "-j", postgres)
            assert (code, re.search(r"web-1 +living +1 ", out) is not None) == (0, True), out
            (row,) = [json.loads(line) for line in cli("nodes", "--json", "-j", postgres)[1].splitlines()]
            assert (row["name"], row["state"], row["jobs"]) == ("web-1", "living", 1)
            assert re.search(r"^loop@web-1 +1 +idle", cli("workers", "list", "-j", postgres)[1], re.MULTILINE)
            code, out, err = await anyio.to_thread.run_sync(
                cli, "workers", "terminate", "threads@web-1", "-j", postgres
            )
            assert (code, out.startswith("worker threads@web-1#1 terminated")) == (0, True), err

    anyio.run(beside)
    assert re.search(r"web-1 +left +", cli("nodes", "-j", postgres)[1])
    code, _, err = cli("nodes")
    assert (code, "is a file of one runtime alone" in err) == (2, True)
    code, _, err = cli("run", "release.toml", "--node", "x")
    assert (code, "--node and --lease are only for a database" in err) == (2, True)
    for lease in ("0s", "100ms"):
        code, _, err = cli("run", "release.toml", "--lease", lease, "-j", postgres)
        assert (code, f"--lease {lease}: a lease is at least 1 s: " in err) == (2, True), err


def test_a_command_reaches_the_node_that_runs_the_job(cli: Cli, postgres: str, tmp_path: Path) -> None:
    async def beside() -> None:
        async with Runtime(postgres, node="web-1") as runtime:
            job = await runtime.submit(
                Workstream("w", tasks=[Task(name, run=one, hold=Approval()) for name in "ab"]), id="j1"
            )

            async def does(*args: str) -> tuple[int, str, str]:
                return await anyio.to_thread.run_sync(lambda: cli(*args, "-j", postgres))

            code, out, err = await does("approve", "j1/a", "--by", "ana")
            assert (code, out.startswith("task ")) == (0, True), err
            code, _, err = await does("approve", "j1/a", "--by", "bo")
            assert code == 1, err
            command = [*PROGRAM, "run", "release.toml", "--id", "beside", "-j", postgres]
            ran = await anyio.run_process(command, cwd=tmp_path, env=environment(), check=False)  # it wants signals
            assert (ran.returncode, b"job beside completed" in ran.stdout) == (0, True), ran.stderr.decode()
            code, out, err = await does("cancel", "j1", "--reason", "enough")
            assert (code, "j1" in out) == (0, True), err
            assert (await job.wait()).state == "cancelled"

    anyio.run(beside)


def test_what_nobody_runs_is_left_for_the_next_node(cli: Cli, postgres: str) -> None:
    async def submit() -> None:
        async with Runtime(postgres) as runtime:
            await runtime.submit(Workstream("w", tasks=[Task("a", command=["true"], hold=Approval())]), id="j1")

    anyio.run(submit)
    code, _, err = cli("approve", "j1/a", "--by", "ana", "-j", postgres)
    assert (code, "It will take effect at the next start" in err) == (4, True), err
    code, out, err = cli("resume", "-j", postgres)
    assert (code, "job j1 completed" in out) == (0, True), err


def test_a_cancel_of_what_nobody_runs_takes_over_nothing(cli: Cli, postgres: str) -> None:
    async def submit() -> None:
        async with Runtime(postgres, node="web-1") as runtime:
            for name in ("j1", "j2"):
                await runtime.submit(Workstream("w", tasks=[Task("a", command=["true"], hold=Approval())]), id=name)

    anyio.run(submit)
    code, out, err = cli("cancel", "j1", "--reason", "enough", "-j", postgres)
    assert (code, "It will take effect at the next start" in err) == (4, True), err
    assert [json.loads(line)["name"] for line in cli("nodes", "--json", "-j", postgres)[1].splitlines()] == ["web-1"]
    assert "j1" in cli("status", "j1", "-j", postgres)[1]
    assert cli("approve", "j2/a", "-j", postgres)[0] == 4
    cli("resume", "-j", postgres)
    code, out, _ = cli("status", "--json", "-j", postgres)
    assert {job["id"]: job["state"] for job in map(json.loads, out.splitlines())} == {
        "j1": "cancelled",
        "j2": "completed",
    }
    code, _, err = cli("cancel", "j1", "-j", postgres)
    assert (code, "has ended already" in err) == (1, True), err


def test_which_node_runs_a_job_is_shown(cli: Cli, postgres: str) -> None:
    async def beside() -> None:
        async with Runtime(postgres, node="web-1") as runtime, Runtime(postgres, node="web-2") as other:
            held = Workstream("w", tasks=[Task("a", run=one, hold=Approval())])
            await runtime.submit(held, id="j1")
            await other.submit(held, id="j2")
            await (await runtime.submit(Workstream("w", tasks=[Task("a", run=one)]), id="done")).wait()

            async def does(*args: str) -> str:
                return (await anyio.to_thread.run_sync(lambda: cli(*args, "-j", postgres)))[1]

            told = await does("status")
            assert re.search(r"^JOB +WORKSTREAM +STATE +NODE +DONE", told)
            for job, node in (("j1", "web-1"), ("j2", "web-2"), ("done", "0|1/1")):
                assert re.search(rf"^{job} .* {node} ", told, re.MULTILINE), told
            assert not re.search(r"^done .*web-", told, re.MULTILINE)
            rows = {row["id"]: row["node"] for row in map(json.loads, (await does("status", "--json")).splitlines())}
            assert rows == {"j1": "web-1", "j2": "web-2", "done": None}
            assert re.match(r"job j2: w, .*, on web-2\n", await does("status", "j2"))
            assert re.search(r"^j2 .* web-2$", await does("top", "--once"), re.MULTILINE)
            told = await does("stuck", "--older-than", "0s")
            assert "2 found; run by nodes web-1, web-2\n" in told
            command = next(line.split() for line in told.splitlines() if line.startswith("    callboard approve"))
            assert shlex.split(" ".join(command[-2:])) == ["--journal", str(store_of(postgres))]

    anyio.run(beside)
    assert re.match(r"job j2: w, .*, no node yet\n", cli("status", "j2", "-j", postgres)[1])
    told = cli("stuck", "--older-than", "0s", "-j", postgres)[1]
    assert f"callboard resume --journal {shlex.quote(str(store_of(postgres)))}\n" in told


def test_a_breaker_is_tripped_on_all_nodes_in_words(cli: Cli, postgres: str) -> None:
    async def beside() -> None:
        async with Runtime(postgres, node="web-1") as runtime:
            await (await runtime.submit(Workstream("w", tasks=[Task("a", run=one, tool="cc")]))).wait()
            does = partial(anyio.to_thread.run_sync, abandon_on_cancel=True)
            code, out, err = await does(lambda: cli("breaker", "trip", "cc", "--reason", "fire", "-j", postgres))
            assert (code, out) == (0, "breaker cc open for all nodes (fire)\n"), err
            code, out, err = await does(lambda: cli("breaker", "reset", "cc", "--json", "-j", postgres))
            assert (code, json.loads(out)["id"]) == (0, "cc@web-1"), err

    anyio.run(beside)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql+psycopg://app:geheim@127.0.0.1:1/app",
        "mysql://app:geheim@127.0.0.1/app",
        " postgresql://app:geheim@127.0.0.1/app",
        "jdbc:postgresql://app:geheim@127.0.0.1/app",
        "host=127.0.0.1 dbname=app user=app password=geheim",
        "password=geheim",
    ],
)
def test_an_address_that_is_none_of_ours_is_refused_and_not_repeated(cli: Cli, tmp_path: Path, address: str) -> None:
    for command in ("status", "run release.toml", "serve", "nodes"):
        code, out, err = cli(*command.split(), "-j", address)
        assert (code, "geheim" in out + err, "is no address of a journal" in err) == (2, False, True), err
    with pytest.raises(JournalMissing, match="is no address of a journal") as raised:
        Runtime(address)
    assert "geheim" not in str(raised.value)
    assert [one.name for one in tmp_path.iterdir()] == ["release.toml"]


def test_a_scheme_is_ours_in_capitals_too_and_a_file_may_be_called_as_it_likes(tmp_path: Path) -> None:
    store = store_of("POSTGRESQL://app:geheim@h/d")
    assert str(store) == "postgresql://app@h/d?schema=callboard"
    for name in ("./host=a", "./a://b", "/tmp/a password=b", "state.db", "a=b"):
        assert store_of(name) == Path(name).absolute()
    assert not is_address(Path("host=a"))


def test_who_serves_says_where_the_rest_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    for place, where in (
        ("state.db", "at the next start"),
        ("postgresql:///x", "on another node, or at the next start"),
    ):
        ServeView(store_of(place)).outcomes([], [], 0)
        assert capsys.readouterr().out == f"stopped: unfinished jobs continue {where}\n"


def test_a_command_whose_node_was_fenced_says_so_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    def fenced() -> None:
        raise ExceptionGroup("one", [closed("the runtime has closed", LeaseLost("node 'a' was fenced by 'b'"))])

    assert run_command(fenced) == 1
    assert capsys.readouterr().err == (
        "callboard: the runtime has closed, since it was fenced: others take over its jobs "
        "(node 'a' was fenced by 'b')\n"
    )


def test_no_password_is_shown(cli: Cli) -> None:
    address = "postgresql://ops:geheim@127.0.0.1:1/jobs"
    for command in ("status", "check", "migrate", "nodes", "run release.toml", "resume", "cancel x"):
        code, out, err = cli(*command.split(), "-j", address)
        assert (code, "geheim" in out + err, "cannot be reached" in err) == (2, False, True), err
