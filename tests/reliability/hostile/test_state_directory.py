"""Links, pipes and second names in the state directory: none is followed. Values for shells: none is executed."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from callboard import Runtime, Task, Workstream
from callboard.runtime.errors import JournalUnwritable
from callboard.runtime.handles.outcomes import Outcome
from callboard.runtime.journal.sqlite.lock import owner_of
from callboard.runtime.journal.sqlite.reader import SqliteReader

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.laboratory,
    pytest.mark.skipif(sys.platform == "win32", reason="links are of Unix"),
]
PRECIOUS = "nobody's business\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file elsewhere that must stay as it is."""
    file = tmp_path / "elsewhere" / "precious"
    file.parent.mkdir()
    file.write_text(PRECIOUS)
    return file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


TWO = Workstream(
    "w",
    tasks=[
        Task("first", command=["echo", "one"]),
        Task("second", command="cat $CALLBOARD_RESULTS", shell=True, depends_on=["first"]),
    ],
)


async def run(path: Path, workstream: Workstream = TWO) -> Outcome:
    async with Runtime(path) as runtime:
        with anyio.fail_after(300):
            return await (await runtime.submit(workstream, id="job")).wait()


@pytest.mark.parametrize("how", ["link", "second name", "dangling link", "pipe"])
async def test_a_lock_file_that_leads_elsewhere_is_refused_and_nothing_is_written(
    path: Path, precious: Path, how: str
) -> None:
    lock = path.with_name("state.db.lock")
    if how == "link":
        lock.symlink_to(precious)
    elif how == "second name":
        os.link(precious, lock)
    elif how == "dangling link":
        lock.symlink_to(precious.with_name("not there"))
    else:
        os.mkfifo(lock)
    why = "is a device, a pipe or the like" if how == "pipe" else "is a link"
    with pytest.raises(JournalUnwritable, match=rf"state\.db\.lock, which (guards|it needs beside) .*, {why}"):
        await run(path)
    assert owner_of(path) is None
    assert precious.read_text() == PRECIOUS
    assert not precious.with_name("not there").exists()


@pytest.mark.parametrize("how", ["link", "second name", "pipe"])
@pytest.mark.parametrize("name", ["first.1.log", "second.1.log", "second.1.results.json"])
async def test_files_of_a_job_are_made_anew_and_not_written_through(
    path: Path, precious: Path, how: str, name: str
) -> None:
    folder = path.with_name("state.db.output") / "job" / "1"
    folder.mkdir(parents=True)
    if how == "link":
        (folder / name).symlink_to(precious)
    elif how == "second name":
        os.link(precious, folder / name)
    else:
        os.mkfifo(folder / name)
    outcome = await run(path)
    assert outcome.state == "completed"
    assert precious.read_text() == PRECIOUS
    assert (folder / name).is_file()
    assert not (folder / name).is_symlink()


@pytest.mark.parametrize("place", ["state.db.output", "state.db.output/job", "state.db.output/job/1"])
async def test_a_folder_of_outputs_that_is_a_link_is_not_entered(path: Path, precious: Path, place: str) -> None:
    link = path.with_name("state.db").parent / place
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(precious.parent)
    outcome = await run(path)
    assert outcome.state == "failed"
    assert "it is a link, and links are not followed" in str(outcome.error)
    assert [file.name for file in precious.parent.iterdir()] == ["precious"]


async def test_the_folder_that_the_application_names_for_outputs_may_be_a_link(path: Path, precious: Path) -> None:
    link = path.with_name("outputs")
    link.symlink_to(precious.parent)
    async with Runtime(path, outputs=link) as runtime:
        outcome = await (await runtime.submit(TWO, id="job")).wait()
    assert outcome.state == "completed"
    assert (precious.parent / "job" / "1" / "first.1.log").read_text() == "one\n"


@pytest.mark.parametrize("how", ["link", "file"])
async def test_a_bell_that_is_none_is_left_alone_and_commands_are_still_heard(
    path: Path, precious: Path, how: str
) -> None:
    bell = path.with_name("state.db.sock")
    if how == "link":
        bell.symlink_to(precious)
    else:
        bell.write_text(PRECIOUS)
    assert (await run(path)).state == "completed"
    assert precious.read_text() == PRECIOUS
    assert bell.read_text() == PRECIOUS
    assert precious.stat().st_mode & 0o777 == bell.stat().st_mode & 0o777


# -- values that a shell could execute
# -------------------------------------------------------------------------------------------

OBEYED = [
    "$(touch obeyed)", "`touch obeyed`", "; touch obeyed #", "| touch obeyed", "\n touch obeyed\n",
    "' ; touch obeyed ; '", '" ; touch obeyed ; "', "&& touch obeyed", "> obeyed", "${IFS}touch${IFS}obeyed", "--help",
    "-rf", "\\\n; touch obeyed",
]  # fmt: skip


async def evil() -> object:
    return {"value": OBEYED, **{word: word for word in OBEYED}}


async def test_no_value_is_obeyed_by_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results, args, environment, names and reasons reach a shell by its environment and a file only."""
    monkeypatch.chdir(tmp_path)
    hook = {"command": 'printf "%s" "$CALLBOARD_EVENT" > told', "shell": True}
    names = ["$(touch obeyed)", "; touch obeyed #", "-rf", "--help", "' ; touch obeyed ; '", "&& touch obeyed"]
    shown = 'cat "$CALLBOARD_RESULTS"; echo $CALLBOARD_TASK $CALLBOARD_ARGS $X'
    env = {"X": " ".join(OBEYED)}
    tasks = [Task("evil", run=evil)]
    more = {"command": shown, "shell": True, "depends_on": ["evil"], "args": {"x": OBEYED}, "env": env}
    tasks += [Task(name, **more) for name in names]
    tasks.append(Task("fails", command="echo '$(touch obeyed)'; exit 3", shell=True, on_failed=[hook], optional=True))
    outcome = await run(tmp_path / "state.db", Workstream("$(touch obeyed)", tasks=tasks, cwd=str(tmp_path)))
    assert {name: str(outcome.tasks[name].state) for name in names} == dict.fromkeys(names, "completed")
    assert not (tmp_path / "obeyed").exists()
    assert "$(touch obeyed)" in (tmp_path / "told").read_text()
    assert "$(touch obeyed)" in str(outcome.results[names[0]]["output"])
    with closing(SqliteReader(tmp_path / "state.db")) as reader:
        assert reader.job("job") is not None
