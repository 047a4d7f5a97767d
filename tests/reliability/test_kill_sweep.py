"""A real process is killed with SIGKILL at every kind of moment, hundreds of times, and started again each time.

The killed program, the points of the kills and the rules are in `kills/`: `scene.py`, `death.py`, `verdict.py`. A fixed
part runs by default. To run it for an hour and a half: `CALLBOARD_LABORATORY=1.5 pytest
tests/reliability/test_kill_sweep.py -s`.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest
from tests.reliability.kills.archiving import MIGRATIONS
from tests.reliability.kills.death import Commit, Death, Line, Opened, Released, Torn
from tests.reliability.kills.outside import Zygote, live
from tests.reliability.kills.sweep import Blow, Tally, chain
from tests.reliability.kills.verdict import checked
from tests.reliability.kills.zygote import Order

from callboard.machines.audit.audit import audit_lines
from callboard.runtime.errors import JournalMissing
from callboard.runtime.journal.sqlite import opening, schema
from callboard.runtime.journal.sqlite.reader import SqliteReader

pytestmark = [
    pytest.mark.laboratory,
    pytest.mark.skipif(sys.platform == "win32", reason="kill -9 and fork are of Unix"),
]
HOURS = float(os.environ.get("CALLBOARD_LABORATORY", "0"))


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with closing(Zygote()) as zygote:
        yield zygote


BOUNDARIES = [Commit(n, where) for n in range(1, 45) for where in ("before", "within", "after")]
"""The commits of a scene that is left alone, each with the moments before, in and behind it."""
FIRST = [*BOUNDARIES[1 : 40 : 4 if HOURS else 8], Released(9), Torn(7)]
"""How the chains of the fixed part begin. They go on as their seeds say."""
MOST = 40 if HOURS else 10
"""The number of kills of such a chain, after which it goes on to its end."""


@pytest.mark.parametrize("seed", range(len(FIRST)))
def test_killed_at_a_commit_and_wherever_it_goes_on_nothing_is_lost_and_nothing_runs_again(
    zygote: Zygote, tmp_path: Path, seed: int
) -> None:
    chain(zygote, tmp_path, seed, Tally(), Blow(FIRST[seed]), most=MOST)


@pytest.mark.skipif(not HOURS, reason="the long mode: CALLBOARD_LABORATORY=hours")
def test_killed_at_every_commit_and_for_hours_nothing_is_lost_and_nothing_runs_again(
    zygote: Zygote, tmp_path: Path
) -> None:
    tally, until = Tally(), time.monotonic() + HOURS * 3600
    seed = begun = int(os.environ.get("CALLBOARD_SEED", "1000"))
    while time.monotonic() < until or seed - begun < len(BOUNDARIES):
        first = Blow(BOUNDARIES[seed - begun]) if seed - begun < len(BOUNDARIES) else None
        place = tmp_path / str(seed)
        place.mkdir()
        try:
            chain(zygote, place, seed, tally, first)
        except Exception as error:
            raise AssertionError(f"seed {seed}, after {tally}: {error}") from error
        shutil.rmtree(place)
        seed += 1
    print(f"\n{tally.chains} chains, {tally.killed} kills: {json.dumps(tally.kills)}")


def killed_copy(zygote: Zygote, prepared: Path, place: Path, order: Order) -> bool:
    """Run a victim in a copy of the prepared folder. Returns whether it was killed before its end."""
    shutil.copytree(prepared, place, ignore=shutil.ignore_patterns("*.sock"))
    code = live(zygote, order)
    assert code in {0, -9}, (place / "stderr").read_text()[-4000:]
    return code == -9


def whole(place: Path) -> tuple[set[str], set[str]]:
    """The jobs that are in the journal, and those moved out of it, once both are known to be whole."""
    with closing(SqliteReader(place / "state.db")) as reader:
        kept = {job.id for job in reader.jobs()}
        moved = {job.id for job in reader.archived()}
        for job in kept:
            assert reader.workstreams(job)
            assert list(reader.transitions(job_id=job))
        for archived in reader.archived():
            # Each job that was moved out is in its file, to the last line. (The folder was copied: the file lies
            # beside.)
            lines = (place / "state.db.archive" / Path(archived.file).name).read_bytes().splitlines()
            first = json.loads(lines[0])["archive"]
            assert first["transitions"] == len(lines) - 1
            assert first["job"]["id"] == archived.id
            assert list(audit_lines(lines)) == []
    assert list(checked(place)) == []
    return kept, moved


def counted(kills: int, death: Death) -> int:
    """Count one more kill. The long mode sometimes prints its progress: each kill takes half a second or more."""
    if HOURS and (kills + 1) % 50 == 0:
        print(f"{kills + 1} kills, the last by {death}", flush=True)
    return kills + 1


JOBS = {"one", "two", "one/b/sub", "two/b/sub", "stays"}
STRIDE = 1 if HOURS else 45
"""One of so many lines, and of so many steps of SQLite, is tried."""


def test_killed_while_it_archives_every_job_is_whole_in_the_journal_or_in_its_file(
    zygote: Zygote, tmp_path: Path
) -> None:
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    assert live(zygote, Order(str(prepared), play="prepare")) == -9
    deaths: list[list[Death]] = [
        [Line("journal/archive.py", n) for n in range(1, 1_500, STRIDE)],
        [Opened(n) for n in range(1, 12_000, 40 * STRIDE)],
    ]
    kills = 0
    for kind in deaths:
        for death in kind:
            place = tmp_path / "place"
            killed = killed_copy(zygote, prepared, place, Order(str(place), death, play="archive"))
            kept, moved = whole(place)
            assert kept | moved == JOBS
            assert not kept & moved
            if not killed:
                break  # it has done with fewer
            kills = counted(kills, death)
            assert live(zygote, Order(str(place), play="archive")) == 0
            assert whole(place) == ({"stays"}, JOBS - {"stays"})
            assert live(zygote, Order(str(place), play="open")) == 0
            assert list(checked(place)) == []
            shutil.rmtree(place)
        shutil.rmtree(place, ignore_errors=True)
    print(f"{kills} kills while archiving")
    assert kills > 10


@pytest.mark.parametrize("play", ["open", "migrate"])
def test_killed_while_its_file_is_made_or_migrated_the_next_start_makes_it_whole(
    zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, play: Literal["open", "migrate"]
) -> None:
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    if play == "migrate":
        assert live(zygote, Order(str(prepared), play="prepare")) == -9
        monkeypatch.setattr(opening, "VERSION", opening.VERSION + len(MIGRATIONS))
    files = ("journal/opening.py", "runtime/journal/jsonl.py") if play == "open" or HOURS else ()
    deaths: list[list[Death]] = [[Opened(n) for n in range(1, 9_000, 8 * STRIDE)]]
    deaths += [[Line(file, n) for n in range(1, 400, STRIDE)] for file in files]
    kills = 0
    for kind in deaths:
        for death in kind:
            place = tmp_path / "place"
            killed = killed_copy(zygote, prepared, place, Order(str(place), death, play=play))
            half_made(place, new=play == "open")
            if killed:
                kills = counted(kills, death)
                assert live(zygote, Order(str(place), play=play)) == 0, (place / "stderr").read_text()
            assert list(checked(place)) == []
            shutil.rmtree(place)
            if not killed:
                break  # it has done with fewer
    print(f"{kills} kills while a file is made or migrated ({play})")
    assert kills > 5


def half_made(place: Path, *, new: bool) -> None:
    """Check the file after a kill: no journal yet, or a journal of some version that has all its parts."""
    try:
        SqliteReader(place / "state.db").close()
    except JournalMissing:
        assert new
        return
    if new:
        return
    with closing(sqlite3.connect(place / "state.db")) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = "SELECT name FROM sqlite_master WHERE name LIKE '%_more'"
        made = ([], ["first_more"], ["second_more"])[version - schema.VERSION]
        assert [name for (name,) in connection.execute(tables)] == made
        assert all(connection.execute(f"SELECT count(*) FROM {name}").fetchone() == (3,) for name in made)
