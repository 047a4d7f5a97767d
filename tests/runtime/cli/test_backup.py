"""A copy of a journal in use, and a journal made from a copy: unfinished jobs continue under new tokens."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from .conftest import CommandResult
from .test_program import GATED, Program, _wait_for

Cli = Callable[..., CommandResult]


def tokens(journal: Path) -> list[int]:
    with closing(sqlite3.connect(journal)) as connection:
        return [key for (key,) in connection.execute("SELECT key FROM attempt_records ORDER BY key")]


def test_a_journal_in_use_is_copied_and_the_copy_goes_on_above_all_tokens_given_since(
    cli: Cli, folder: Path, program: Program
) -> None:
    (folder / "gated.toml").write_text(GATED)
    running = program("run", "gated.toml", "--id", "j1")
    _wait_for(running, "first started")
    result = cli("backup", "copy.db")
    assert (result.code, result.out.partition(" (")[0]) == (0, "callboard.db was copied to copy.db")
    (folder / "gate").touch()
    assert running.wait(600) == 0
    given = tokens(folder / "callboard.db")

    restored = ("--journal", "restored.db")
    result = cli("restore", "copy.db", *restored)
    assert (result.code, "`callboard resume --journal restored.db` continues" in result.out) == (0, True)
    assert cli("resume", *restored).code == 0
    tasks = [json.loads(line) for line in cli("status", "j1", "--json", *restored).out.splitlines()[1:]]
    assert [(task["name"], task["state"], task["attempt"]) for task in tasks] == [
        ("first", "completed", 2),  # at the time of the copy it ran: its end is not known there
        ("second", "completed", 1),
    ]
    new = [token for token in tokens(folder / "restored.db") if token not in given]
    assert len(new) == 2
    assert min(new) > max(given) + 1_000_000
    assert cli("check", *restored).code == 0
    assert not list(folder.glob("*.part"))


@pytest.mark.parametrize(
    ("made", "there"), [("file", "copy.db"), ("file", "copy.db-wal"), ("file", "copy.db.part"), ("link", "copy.db")]
)
@pytest.mark.parametrize("verb", ["backup", "restore"])
def test_nothing_that_is_there_is_replaced(cli: Cli, folder: Path, verb: str, made: str, there: str) -> None:
    ended(cli, folder)
    if made == "file":
        (folder / there).write_text("mine")
    else:
        (folder / there).symlink_to(folder / "nowhere")
    args = ("copy.db",) if verb == "backup" else ("callboard.db", "--journal", "copy.db")
    result = cli(verb, *args)
    assert (result.code, "is there already" in result.err) == (2, True)
    assert (folder / there).is_symlink() if made == "link" else (folder / there).read_text() == "mine"
    assert not (folder / "nowhere").exists()


def ended(cli: Cli, folder: Path) -> None:
    (folder / "gated.toml").write_text(GATED)
    (folder / "gate").touch()
    assert cli("run", "gated.toml").code == 0


def test_what_is_no_journal_is_not_made_one(cli: Cli, folder: Path) -> None:
    (folder / "text").write_text("no journal " * 100)
    (folder / "empty").touch()
    with closing(sqlite3.connect(folder / "other.db")) as connection:
        connection.execute("CREATE TABLE other (one)")
    for name in ("text", "empty", "other.db", "missing"):
        result = cli("restore", name, "--journal", "new.db")
        assert result.code == 2
        assert name in result.err
        assert not (folder / "new.db").exists()


def test_a_damaged_journal_is_not_copied(cli: Cli, folder: Path) -> None:
    ended(cli, folder)
    size = (folder / "callboard.db").stat().st_size
    with (folder / "callboard.db").open("r+b") as file:
        file.seek(size - 4096)
        file.write(b"\xff" * 4096)
    result = cli("backup", "copy.db")
    assert (result.code, "is damaged" in result.err) == (2, True)
    assert not (folder / "copy.db").exists()


def test_a_database_is_copied_by_its_own_programs(cli: Cli) -> None:
    result = cli("backup", "copy.db", "--journal", "postgresql://localhost/app")
    assert (result.code, "`pg_dump`" in result.err) == (2, True)
