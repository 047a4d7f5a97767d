"""The sweep: chains of kills and restarts of a scene until it ends, each chain from its own seed."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import msgspec

from .death import Commit, Death, Line, Opened, Released, Torn
from .outside import Operator, Reach, Zygote, live, log_of
from .scene import journal_of
from .verdict import after_kill, at_end
from .zygote import Order

MOST = 40
"""The number of kills in one chain, after which it may end without another."""
FILES = (
    "runtime/execution/calls.py", "runtime/commands/inbox.py", "runtime/engines/command/engine.py",
    "runtime/engines/command/watcher.py", "runtime/host.py", "runtime/journal/jsonl.py", "runtime/journal/batch.py",
    "runtime/journal/sqlite/opening.py", "runtime/journal/sqlite/journal.py", "runtime/journal/sqlite/medium.py",
    "runtime/journal/writer.py", "runtime/execution/orphans.py", "runtime/lifespan/opening.py",
    "runtime/handles/machines.py", "runtime/lifespan/wiring.py", "runtime/commands/idempotency.py",
    "actors/restore.py", "actors/kernel/kernel.py", "actors/tasks/task.py", "actors/tasks/cancelling.py",
)  # fmt: skip
"""The files of the library from which a `Line` is drawn."""
OF_DATABASE = (
    "journal/postgres/journal.py", "journal/postgres/medium.py", "journal/postgres/nodes.py",
    "journal/postgres/opening.py", "journal/postgres/reader.py", "journal/postgres/rows.py",
    "journal/postgres/taking.py", "cluster/membership.py", "cluster/ids.py", "handles/remote_jobs.py",
)  # fmt: skip
"""The files of the library from which a line is drawn for a journal in a database."""
REACHES: tuple[Reach, ...] = ("runtime", "group", "tree")


class Tally(msgspec.Struct):
    """The counts of a sweep. kills: by kind."""

    chains: int = 0
    kills: Counter[str] = msgspec.field(default_factory=Counter)

    @property
    def killed(self) -> int:
        return sum(self.kills.values())


class Blow(msgspec.Struct, frozen=True):
    """One kill: by the victim itself (`death`), or from outside, after so many seconds."""

    death: Death | None = None
    after: float | None = None
    reach: Reach = "runtime"

    @property
    def kind(self) -> str:
        if self.death is None:
            return f"at an instant, {self.reach}"
        if isinstance(self.death, Commit):
            return f"commit, {self.death.where}"
        return {Released: "effects done", Torn: "log line torn", Line: "line of code", Opened: "while opening"}[
            type(self.death)
        ]


def drawn(random: random.Random, *, database: bool = False) -> Blow:
    """Draw a kill."""
    which = random.random()
    if which < 0.30:
        reaches = REACHES[:2] if database else REACHES  # a node's processes are found without its journal, too
        return Blow(after=random.choice((0.1, 0.2, 0.4)) * random.random(), reach=random.choice(reaches))
    n = random.choice((random.randint(1, 4), random.randint(1, 10), random.randint(4, 25)))
    if which < 0.65:
        where = random.choice(("before", "within", "after"))
        return Blow(Commit(n, where, random.choice((1, 20, 200, 1000))))
    if which < 0.75:
        return Blow(Released(n))
    if which < 0.82:
        return Blow(Torn(n))
    if which < 0.87 and not database:
        return Blow(Opened(random.randint(1, 4_000)))
    files = FILES + OF_DATABASE if database else FILES
    return Blow(Line(random.choice(files), int(10 ** random.uniform(0.3, 3.2))))


def said(place: Path) -> str:
    errors = place / "stderr"
    return errors.read_text()[-4000:] if errors.exists() else "without a word"


def chain(zygote: Zygote, place: Path, seed: int, tally: Tally, first: Blow | None = None) -> None:
    """Kill one scene repeatedly, and check the rules after each kill. `first`: the way of the first kill."""
    dice = random.Random(seed)
    operator = Operator(place)
    database = not isinstance(journal_of(place), Path)
    order = Order(str(place), processes=seed % 4 == 3, backend=("asyncio", "trio")[seed % 2])
    tally.chains += 1
    for number in range(MOST + 2):
        blow = (first if number == 0 else None) or drawn(dice, database=database)
        if number >= MOST:
            blow = Blow()
        before = len(log_of(place))
        code = live(
            zygote, msgspec.structs.replace(order, death=blow.death), operator=operator, after=blow.after,
            reach=blow.reach,
        )  # fmt: skip
        lived = log_of(place)[before:]
        if code == 0:
            assert "scene 0 over" in lived
            operator.look()
            at_end(place, list(operator.sent.values()))
            return
        assert code == -9, f"the victim failed ({code}): {said(place)}"
        again = "" if number == 0 or "scene 0 open" in lived else ", in recovery"
        tally.kills[blow.kind + again] += 1
        if dice.random() < 0.5:
            operator.look()  # commands that come while no runtime is open wait for the next start
        after_kill(place, list(operator.sent.values()))
    raise AssertionError(f"not over after {MOST} kills, when it was let live: {log_of(place)[-20:]}")
