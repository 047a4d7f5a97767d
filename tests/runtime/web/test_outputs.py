"""Outputs over HTTP belong to their journal, wherever it was moved, from any folder, and never through a link."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from tests.runtime.web.conftest import client_of

from callboard import Runtime, Task, Workstream

pytestmark = pytest.mark.anyio
SAYS = Workstream("w", tasks=[Task("says", command=["echo", "told"])])
URL = "/api/jobs/one/tasks/says/output"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, with room for a journal."""
    folder = tmp_path / "place"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


async def run(journal: str | Path, **settings: Path | str) -> None:
    with anyio.fail_after(300):
        async with Runtime(journal, **settings) as runtime:  # type: ignore[arg-type]
            assert (await (await runtime.submit(SAYS, id="one")).wait()).ok


async def told(journal: str | Path, **settings: Path | str) -> tuple[int, str]:
    with anyio.fail_after(300):
        async with Runtime(journal, **settings) as runtime, client_of(runtime) as client:  # type: ignore[arg-type]
            response = await client.get(URL)
            return response.status_code, response.text


async def test_from_another_folder(place: Path) -> None:
    await run("s.db")
    os.chdir(place.parent)
    assert await told("place/s.db") == (200, "told\n")


async def test_after_a_move_and_of_a_copy_its_own(place: Path) -> None:
    await run("s.db")
    copy, moved = place.parent / "copy", place.parent / "moved"
    shutil.copytree(place, copy)
    (copy / "s.db.output" / "one" / "1" / "says.1.log").write_text("its own\n")
    assert await told(copy / "s.db") == (200, "its own\n")
    place.rename(moved)
    assert await told(moved / "s.db") == (200, "told\n")


async def test_of_a_journal_that_was_renamed_with_its_folder_or_without(place: Path) -> None:
    await run("s.db")
    Path("s.db").rename("t.db")
    assert await told("t.db") == (200, "told\n")
    Path("s.db.output").rename("t.db.output")
    assert await told("t.db") == (200, "told\n")


async def test_of_a_folder_that_was_named_and_moved(place: Path) -> None:
    await run("s.db", outputs="kept")
    assert await told("s.db") == (200, "told\n")
    Path("kept").rename(place.parent / "kept")
    assert await told("s.db", outputs="../kept") == (200, "told\n")


@pytest.mark.parametrize("kept", ["s.db.output/one/1/says.1.log", "place/s.db.output/one/1/says.1.log"])
async def test_what_older_versions_kept_is_found(place: Path, kept: str) -> None:
    """By the path that the journal was named by in the folder of that time."""
    await run("s.db")
    with closing(sqlite3.connect("s.db")) as journal:
        for table in ("attempt_records", "task_records"):
            place_of = "$.output_path" if table == "attempt_records" else "$.produced.path"
            journal.execute(f"UPDATE {table} SET record = json_set(record, '{place_of}', ?)", (kept,))
        journal.commit()
    os.chdir(place.parent)
    assert await told(place / "s.db") == (200, "told\n")


@pytest.mark.parametrize("linked", ["s.db.output", "s.db.output/one", "s.db.output/one/1"])
async def test_through_no_link(place: Path, linked: str) -> None:
    await run("s.db")
    Path(linked).rename(place.parent / "elsewhere")
    Path(linked).symlink_to(place.parent / "elsewhere")
    code, text = await told("s.db")
    assert code == 404
    assert "told\n" not in text


async def test_what_is_no_file_is_not_waited_for(place: Path) -> None:
    await run("s.db")
    file = Path("s.db.output/one/1/says.1.log")
    file.unlink()
    os.mkfifo(file)
    assert (await told("s.db"))[0] == 404


async def test_of_a_command_that_runs_in_a_program_that_went_elsewhere(place: Path) -> None:
    waits = Workstream("w", tasks=[Task("says", command="echo told; sleep 600", shell=True)])
    with anyio.fail_after(300):
        async with Runtime("s.db", drain_deadline=0) as runtime, client_of(runtime) as client:
            job = await runtime.submit(waits, id="one")
            os.chdir(place.parent)
            while (await client.get(URL)).text != "told\n":
                await anyio.sleep(0.02)
            await job.cancel(force=True)
