"""`--url`: each command gives the same answer and has the same effect by the board as by the journal."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest
from tests.waiting import wait_until
from typer.main import get_command

from callboard import Approval, Task, TaskContext, Tool, Worker, Workstream
from callboard.runtime.cli.app import app
from callboard.runtime.cli.command_errors import run_command
from callboard.runtime.observation.progress_file import read_progress
from callboard.runtime.web.http.access import Token

from .scenarios import DOORS, an_order, forever, one
from .serving import Served, serve

pytestmark = pytest.mark.board
COMMAND = get_command(app)  # made once: that takes longer than most commands
Cli = Callable[..., tuple[int, str, str]]


async def sleeps(task: TaskContext) -> None:
    await task.sleep("1h")


async def publishes(task: TaskContext) -> None:
    await task.publish("stage", "half")
    await task.publish("stage", "done")


async def reads(task: TaskContext) -> None:
    task.progress(3, 10, "reading \x1b[2J\nthe \u202ebooks")
    await anyio.sleep_forever()


heard = threading.Event()


async def emits(task: TaskContext) -> None:
    task.emit("to \x1b[2J\nwhoever ")
    while not heard.is_set():
        await anyio.sleep(0.01)
    task.emit("listens")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("url")


@pytest.fixture(scope="module")
def live(folder: Path) -> Iterator[Served]:
    """A runtime on a journal, and served, with two of each: j... is acted on by its journal, u... by the URL."""
    with serve(folder / "callboard.db") as served:
        for name in ("echo", "j1"):
            served.call(lambda name=name: served.runtime._services.host.notice("odd", "warning", "odd", entity_id=name))
        for letter in "ju":
            tasks = [
                Task("first", run=one), Task("held", run=one, depends_on=["first"], hold=Approval(people=2)),
                Task("last", run=one, depends_on=["held"]), Task("tooled", run=one, tool="saw", depends_on=["held"]),
                Task("long", run=forever, optional=True),
            ]  # fmt: skip
            served.submit(Workstream("work", tasks=tasks, tools={"saw": Tool()}), id=f"{letter}1")
            served.submit(Workstream("done", tasks=[Task("a", run=one)]), id=f"{letter}2", until="completed")
            served.submit(Workstream("order", tasks=[Task("a", run=an_order)]), id=f"{letter}3", until="completed")
            served.call(lambda letter=letter: served.runtime.spawn(DOORS, name=f"{letter}-door"))
            served.start_worker(Worker(f"{letter}-worker", engine="loop", capacity=1))
        served.submit(Workstream("tell", tasks=[Task("a", run=publishes)]), id="told", until="completed")
        served.submit(Workstream("wait", tasks=[Task("a", run=sleeps)]), id="asleep", until="running")
        served.wait_for_steps("asleep", "a", 1)
        served.submit(Workstream("read", tasks=[Task("a", run=reads)]), id="reads", until="running")
        wait_until(lambda: read_progress(folder / "callboard.db"), "the progress beside the journal")
        yield served


@pytest.fixture
def cli(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run the command line in this process."""
    monkeypatch.chdir(folder)

    def run(*args: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run_command(lambda: COMMAND(list(args), prog_name="callboard"))
        output = capsys.readouterr()
        assert "Traceback" not in output.err
        return code, output.out, output.err

    return run


def masked(text: str) -> str:
    """A text without the parts that may change between two reads: spans, and the columns that follow."""
    text = text.replace("whoever opens it: lock, open", "an event")  # a board does not name the person
    text = re.sub(r"\d+\.\d+ s\b|\b\d+ s\b", "SPAN", text)
    return re.sub(r" +", " ", re.sub(r'"execution_ms":\d+', '"execution_ms":N', text))


LOOKS = """
status
status --json
status j1
status j1 --json
status j-door
status j3/a
status j3/a --json
status asleep/a
status told
status told --json
status told/a
status reads
status reads/a --json
status nobody
history
history j1 held
history j-door --json
stuck --older-than 0s
stuck --older-than 0s --json
workers list
breaker list --json
tools
tools --json
notices
notices echo --json
notices nobody
""".strip().splitlines()


@pytest.mark.parametrize("line", LOOKS)
def test_it_shows_the_same(cli: Cli, live: Served, line: str) -> None:
    code, out, err = cli(*line.split())
    there = cli(*line.split(), "--url", live.url)
    url = live.url.rstrip("/")
    runs = re.sub(r"run by process \d+", f"run by the program at {url}", out)
    told, errors = (without_url(text, live) for text in there[1:])
    assert (there[0], masked(told).splitlines()) == (code, masked(runs).splitlines())
    assert errors == err


def without_url(text: str, live: Served) -> str:
    """Return the message without the URL in the commands to paste."""
    return text.replace(f" --url {live.url}", "").replace(f" --url {live.url.rstrip('/')}", "")


def test_top_shows_the_same_below_its_first_line(cli: Cli, live: Served) -> None:
    _, out, _ = cli("top", "--once")
    _, there, _ = cli("top", "--once", "--url", live.url)
    assert masked(there).splitlines()[1:] == masked(out).splitlines()[1:]
    assert there.startswith(live.url.rstrip("/"))


def test_what_a_running_body_says_of_its_progress_is_shown_in_one_harmless_line(cli: Cli, live: Served) -> None:
    text = "[###-------] 3 of 10 (30 %), reading \\x1b[2J the \\u202ebooks"
    assert cli("status", "reads")[1].splitlines()[-1].endswith(text)
    assert cli("status", "reads/a")[1].splitlines()[-1].endswith(text)
    (line,) = [line for line in cli("top", "--once")[1].splitlines() if line.startswith("reads/a ")]
    assert line.endswith(text)
    (task,) = (json.loads(line) for line in cli("status", "reads/a", "--json")[1].splitlines())
    assert task["progress"] == {"done": 3, "of": 10, "text": "reading \x1b[2J\nthe \u202ebooks"}


def test_a_task_that_sleeps_in_its_flow_says_until_when(cli: Cli, live: Served) -> None:
    wait = re.compile(r"until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")
    told = cli("status", "asleep/a")[1].splitlines()[-1]
    assert told.split()[:3] == ["1", "task.sleep", "waiting"]
    assert wait.search(told)
    (why,) = [line for line in cli("stuck", "--older-than", "0s")[1].splitlines() if "task asleep/a " in line]
    assert "waits for its body, which waits in its step task.sleep (until " in why
    assert wait.search(why)


ACTS = """
approve X1/held --by ana --reason fine
approve X1/held --by ana
approve X1/nothing
skip X1/last --reason no
skip X1/held
pause X1 --reason lunch
resume X1
resume X1
cancel X1/long --reason enough
cancel X1/long
retry X2/a --request-id X-key
retry X2/a --request-id X-key
cancel X1 --request-id X-key
breaker trip saw --cooldown 1h
breaker reset saw --check true
workers shutdown X-worker --deadline 1s
workers start X-worker
fire X-door open --metadata n=1 --reason air
fire X-door open
fire X1/held start
fire X1/held retry --json --request-id X-n
fire X1 pause --by ana --reason lunch
fire X1 pause
fire X1@1 resume --request-id X-p
fire X1@1 resume --request-id X-p
fire worker:X-worker terminate --reason enough
fire saw reset
fire X1/held approve --by ana
fire X1/held nothing
fire nothing open
reject X1/held --by ben --json --request-id X-r
""".strip().splitlines()


def test_it_does_the_same_in_the_same_words(cli: Cli, live: Served) -> None:
    for line in ACTS:
        here = cli(*line.replace("X", "j").split())
        there = cli(*line.replace("X", "u").split(), "--url", live.url)
        same = tuple(
            re.sub(r"\bu(\d|-)", r"j\1", without_url(part, live)) if isinstance(part, str) else part for part in there
        )
        assert timeless(same) == timeless(here), line


def timeless(told: tuple[object, ...]) -> tuple[object, ...]:
    """The reported transitions, without times, random keys, and incarnations of workers, which a board leaves out."""
    moment = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+Z)?|\b[0-9a-f]{32}\b")
    return tuple(
        re.sub(r"-worker#\d", "-worker", moment.sub("T", part)) if isinstance(part, str) else part for part in told
    )


def test_a_file_is_run_there_and_shown_here(cli: Cli, live: Served, folder: Path) -> None:
    (folder / "two.toml").write_text('[[tasks]]\nname = "a"\ncommand = ["sh", "-c", "echo hello; exit 3"]\n')
    code, out, _ = cli("run", "two.toml", "--id", "f1", "--plain", "--url", live.url)
    assert code == 1
    lines = [re.sub(r"\d\d:\d\d:\d\d |\(\d+\.\d+ s\)", "", line) for line in out.splitlines()]
    assert lines[:2] == ["job f1: two, 1 task", "a started"]
    assert lines[2].startswith("a failed")
    assert lines[-1].startswith("job f1 failed (1 failed)")
    code, out, _ = cli("run", "two.toml", "--id", "f1", "--json", "--url", live.url)
    outcome = json.loads(out.splitlines()[-1])
    assert (code, outcome["exit_code"], outcome["jobs"][0]["tasks"]["a"]["exit_code"]) == (1, 1, 3)
    (folder / "bad.toml").write_text('[[tasks]]\nname = "a"\nrun = "nowhere:nothing"\n')
    code, _, err = cli("run", "bad.toml", "--url", live.url)
    assert code == 2
    assert "line 3: tasks[0].run" in err


def test_places_are_one_or_the_other(cli: Cli, live: Served, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("status", "--url", live.url, "--journal", "x.db")[::2] == (
        2, "callboard: --url and --journal name two places: give only one of them.\n",
    )  # fmt: skip
    assert "--url: 'board'" in cli("status", "--url", "board")[2]
    code, _, err = cli("status", "--url", "http://127.0.0.1:9")
    assert (code, "Is a runtime served at http://127.0.0.1:9?" in err) == (2, True)
    for command in ("status", "top", "stuck"):
        code, out, err = cli(command, *(["--once"] if command == "top" else []), "--url", f"{live.url}/elsewhere")
        assert (code, out) == (2, "")
        assert f"There is no board at {live.url}/elsewhere" in err
    code, _, err = cli("cancel", "j1", "--url", "http://127.0.0.1:9")
    assert (code, "Is a runtime served" in err) == (2, True)
    assert "needs --url" in cli("status", "--token-file", "t")[2]
    assert "cannot be read" in cli("status", "--url", live.url, "--token-file", "nowhere")[2]
    assert "Name the JOB to resume" in cli("resume", "--url", live.url)[2]
    assert "use --journal for --plan" in cli("status", "j1", "--plan", "--url", live.url)[2]


def test_a_token_says_who_acts(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "0123456789abcdef0123456789abcdef"
    tokens = [Token("ana", secret, ("read", "operate", "approve"))]
    with serve(options={"tokens": tokens}) as served:
        served.submit(Workstream("w", tasks=[Task("a", run=one, hold=Approval())]), id="t1")
        code, _, err = cli("status", "--url", served.url)
        assert (code, "Give a token with --token-file" in err) == (2, True)
        (folder / "token").write_text(f"{secret}\n")
        assert "t1" in cli("status", "--url", served.url, "--token-file", "token")[1]
        monkeypatch.setenv("CALLBOARD_TOKEN", secret)
        code, _, err = cli("approve", "t1/a", "--by", "ben", "--url", served.url)
        assert (code, "this token acts as 'ana'" in err) == (1, True)
        assert cli("approve", "t1/a", "--url", served.url)[0] == 0
        assert "approved by ana" in cli("history", "t1", "a", "--url", served.url)[1]


def test_existing_is_said_to_the_board(cli: Cli, live: Served, folder: Path) -> None:
    (folder / "again.toml").write_text('[[tasks]]\nname = "a"\ncommand = ["true"]\n')
    given = ("run", "again.toml", "--id", "again", "--plain", "--url", live.url)
    assert cli(*given)[0] == 0
    code, _, err = cli(*given, "--existing", "refuse")
    assert (code, "there is a job 'again' already (completed now)" in err) == (2, True)
    assert cli(*given, "--existing", "replace_ended")[0] == 0
    assert "workstream again@2: completed" in cli("status", "again", "--url", live.url)[1]


def test_text_is_printed_as_it_comes_and_of_a_file_only_by_the_url(cli: Cli, live: Served) -> None:
    live.submit(Workstream("emit", tasks=[Task("a", run=emits)]), id="emits", until="running")

    def go_on() -> None:
        shown = live.runtime._services.live
        wait_until(lambda: live.call(lambda: [one for task in shown._tasks.values() for one in task.readers]))
        heard.set()

    watching = threading.Thread(target=go_on)
    watching.start()
    assert cli("stream", "emits/a", "--url", live.url) == (0, "to \\x1b[2J\nwhoever listens\n", "")
    watching.join()
    code, out, err = cli("stream", "emits/a", "--url", live.url)
    assert (code, out) == (2, "")
    assert "emits/a has ended (completed)" in err
    assert "--url" in cli("stream", "emits/a")[2]
    assert "names no task" in cli("stream", "emits", "--url", live.url)[2]
