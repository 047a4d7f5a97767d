"""A journal is one file under all its names: by a link, a relative path, `~`, or from a folder that was left."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from callboard import Runtime, Task, Workstream
from callboard.runtime.cli.migrate import migrate
from callboard.runtime.commands.client import put
from callboard.runtime.errors import JournalLocked, JournalMissing, JournalUnwritable
from callboard.runtime.journal.contract import InboxRow
from callboard.runtime.journal.location import file_of, in_words, owner_of, store_of
from callboard.runtime.journal.sqlite import opening
from callboard.runtime.journal.sqlite.journal import SqliteJournal
from callboard.runtime.journal.sqlite.reader import SqliteReader

from .samples import Loop, entry, job

ROW = InboxRow("cancel", "job", "job-1", "r1", {"reason": "why"})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a journal, and another by which it is found; the present one is their parent."""
    (tmp_path / "place").mkdir()
    (tmp_path / "way").symlink_to("place")
    (tmp_path / "link.db").symlink_to("place/state.db")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "place"))
    return tmp_path / "place"


SPELLINGS = ("place/state.db", "way/state.db", "link.db", "./way/../place/state.db", "~/state.db")


@pytest.mark.parametrize("spelled", SPELLINGS)
@pytest.mark.parametrize("kind", [str, Path])
def test_however_it_is_spelled_it_has_one_owner(place: Path, spelled: str, kind: type) -> None:
    owner, loop = SqliteJournal(place / "state.db"), Loop()
    loop.open(owner)
    owner.append(entry(job(1), seq=1))
    loop.until_durable(owner)
    with pytest.raises(JournalLocked):
        Loop().open(SqliteJournal(kind(spelled)))
    store = store_of(spelled)
    assert store == place / "state.db"
    assert owner_of(store) == f"process {os.getpid()}"
    with closing(SqliteReader(kind(spelled))) as reader:
        assert reader.job("job-1") == job(1)
    put(store, ROW)
    assert [row.request_id for row in owner.inbox()] == ["r1"]
    assert owner.shut(30)
    assert not (place.parent / "link.db.lock").exists()


def mounts(tmp_path: Path, *places: Path) -> Path:
    """A table of mounts as Linux has it: with blanks and backslashes in octal."""
    told = tmp_path / "mounts"
    spelled = [str(place).replace("\\", "\\134").replace(" ", "\\040").replace("\n", "\\012") for place in places]
    lines = [f"{at} 44 254:0 /some {place} rw - ext4 /dev/vda rw\n" for at, place in enumerate((*spelled, "/proc"))]
    told.write_text("".join(lines))
    return told


@pytest.mark.parametrize("name", ["state.db", "a b\\c\n.db"])
def test_a_file_that_is_mounted_by_itself_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The -wal of the file would be left in the container, or beside the other name."""
    path = tmp_path / name
    path.touch()
    monkeypatch.setattr(opening, "_MOUNTS", mounts(tmp_path, path))
    for take in (SqliteReader, lambda path: Loop().open(SqliteJournal(path))):
        with pytest.raises(JournalUnwritable, match="mounted by itself"):
            take(path)
    assert not path.with_name(f"{name}.lock").exists()
    monkeypatch.setattr(opening, "_MOUNTS", mounts(tmp_path, tmp_path))
    Loop().open(journal := SqliteJournal(path))
    assert journal.shut(30)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may mount")
def test_such_a_mount_is_known(tmp_path: Path) -> None:
    for name in ("host", "in container"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.db").touch()
    mounted = tmp_path / "in container" / "state.db"
    program = "import sys; from callboard.runtime.journal.sqlite.reader import SqliteReader as R; R(sys.argv[1])"
    script = 'mount --bind "$1" "$2" || exit 77; exec "$3" -c "$4" "$2"'
    words = ["unshare", "--mount", "sh", "-c", script, "sh", tmp_path / "host" / "state.db", mounted, sys.executable]
    done = subprocess.run([*words, program], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(done.stderr)
    assert "mounted by itself" in done.stderr


def test_a_journal_that_is_owned_is_not_migrated_under_its_owner(place: Path) -> None:
    owner = SqliteJournal(place / "state.db")
    Loop().open(owner)
    with pytest.raises(JournalLocked):
        migrate(journal="link.db")
    assert owner.shut(30)
    migrate(journal="link.db")


def test_a_link_to_a_file_that_is_not_there_yet_makes_it_there(place: Path) -> None:
    journal = SqliteJournal("link.db")
    Loop().open(journal)
    assert journal.shut(30)
    assert (place / "state.db").is_file()
    assert Path("link.db").is_symlink()


def test_a_file_with_two_names_is_refused_by_both(place: Path) -> None:
    journal = SqliteJournal(place / "state.db")
    Loop().open(journal)
    assert journal.shut(30)
    os.link(place / "state.db", "second.db")
    for name in ("second.db", place / "state.db"):
        with pytest.raises(JournalUnwritable, match=r"has 2 names \(hard links\)"):
            Loop().open(SqliteJournal(name))
        with pytest.raises(JournalUnwritable, match="Remove the other names"):
            SqliteReader(name)
        with pytest.raises(JournalUnwritable, match="hard links"):
            put(Path(name), ROW)
    Path("second.db").unlink()
    SqliteReader(place / "state.db").close()


@pytest.mark.parametrize("text", ["file:state.db", "file:///tmp/state.db?mode=memory", ":memory:", "sqlite:///a.db"])
def test_what_other_programs_take_for_something_else_is_no_path(place: Path, text: str) -> None:
    with pytest.raises(JournalMissing):
        store_of(text)
    with pytest.raises(JournalMissing):
        Runtime(text)
    assert not any(place.iterdir())
    assert file_of(f"./{text}").parent.is_relative_to(place.parent)  # so it is one


def test_people_see_it_as_short_as_it_is_from_where_they_are(place: Path) -> None:
    assert in_words(file_of("way/state.db")) == "place/state.db"
    assert in_words(Path("/elsewhere/state.db")) == "/elsewhere/state.db"


@pytest.mark.anyio
async def test_a_program_that_goes_to_another_folder_takes_its_files_along(place: Path) -> None:
    other = place.parent / "other"
    other.mkdir()

    def goes() -> None:
        os.chdir(other)

    tasks = [
        Task("goes", run=goes),
        Task("next", command=["sh", "-c", "echo told; test -s $CALLBOARD_RESULTS"], depends_on=["goes"]),
    ]
    os.chdir(place)
    with anyio.fail_after(300):
        runtime = Runtime("state.db", jsonl="log.jsonl")
        runtime.task(goes)
        os.chdir(place.parent)  # between its making and its opening, too
        async with runtime:
            outcome = await (await runtime.submit(Workstream("w", tasks=tasks), id="one")).wait()
    assert outcome.state == "completed"
    assert list(other.iterdir()) == []
    assert {path.name for path in place.iterdir()} >= {"state.db", "log.jsonl", "state.db.output"}


@pytest.mark.anyio
async def test_files_that_are_named_otherwise_are_taken_once_too(place: Path) -> None:
    with anyio.fail_after(300):
        runtime = Runtime("state.db", jsonl="way/log.jsonl", outputs="way/outputs")
        os.chdir(place)
        task = Task("says", command=["echo", "told"])
        async with runtime:
            await (await runtime.submit(Workstream("w", tasks=[task]), id="one")).wait()
    assert (place / "log.jsonl").is_file()
    assert (place / "outputs" / "one" / "1" / "says.1.log").read_text() == "told\n"
    assert (place.parent / "state.db").is_file()
