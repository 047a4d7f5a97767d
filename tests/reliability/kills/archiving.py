"""Small scenes for victims: make a journal with ended jobs, archive these, make or open a journal, migrate one."""

from __future__ import annotations

import time
from pathlib import Path

from callboard import Defaults, Runtime, Task, Workstream
from callboard.runtime.journal.archive import move_all
from callboard.runtime.journal.sqlite import migrations, opening

from . import scene
from .death import die

MIGRATIONS = (
    "CREATE TABLE first_more (one INTEGER PRIMARY KEY); INSERT INTO first_more VALUES (1), (2), (3);",
    "ALTER TABLE first_more RENAME TO second_more; CREATE INDEX more ON second_more (one);",
)
"""Migrations that a later version might have."""


async def prepare(place: Path) -> None:
    """Run jobs with `archive`, one of them with a child, and one job without; then end without leaving the runtime."""
    async with Runtime(place / "state.db", jsonl=place / "transitions.jsonl") as runtime:
        tasks = [Task("a", run=scene.step), Task("b", run=scene.has_child, depends_on=["a"])]
        for name in ("one", "two"):
            job = await runtime.submit(Workstream(name, tasks=tasks, archive=True, defaults=Defaults()), id=name)
            await job.wait()
        await (await runtime.submit(Workstream("stays", tasks=[Task("a", run=scene.step)]), id="stays")).wait()
        assert runtime._life.wiring.log is not None
        runtime._life.wiring.log.catch_up()  # otherwise the last job may stay: the log would not have it yet
        die()


def archive(place: Path) -> None:
    """Move the ended jobs out of the journal of that folder, as its runtime does when it is left."""
    left = move_all(place / "state.db", living=frozenset(), now=time.time(), may_go_on=lambda: True)
    if left.reason is not None:
        raise SystemExit(left.reason)


async def opened(place: Path) -> None:
    """Open a runtime there, and leave it."""
    async with Runtime(place / "state.db", jsonl=place / "transitions.jsonl"):
        pass


async def migrated(place: Path) -> None:
    """Open the journal as a later version would."""
    released, opening.VERSION = migrations.migrations(), opening.VERSION + len(MIGRATIONS)
    migrations.migrations = lambda: (*released, *MIGRATIONS)
    await opened(place)
