"""The sweep: chains of kills and restarts of a scene until it ends, each chain from its own seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from .death import Commit, Death, Line, Opened, Released, Torn, Wrote
from .flow_rules import FlowRules
from .outside import Operator, Reach, WorkerKill, Zygote, live, log_of
from .scene import journal_of
from .verdict import GraphRules
from .zygote import Order

MOST = 40
"""The number of kills in one chain, after which it may end without another."""
FILES = (
    "runtime/execution/calls.py", "runtime/commands/inbox.py", "runtime/engines/command/engine.py",
    "runtime/engines/command/watcher.py", "runtime/host.py", "runtime/journal/jsonl.py", "runtime/journal/batch.py",
    "runtime/journal/sqlite/opening.py", "runtime/journal/sqlite/journal.py", "runtime/journal/sqlite/medium.py",
    "runtime/journal/writer.py", "runtime/execution/orphans.py", "runtime/lifespan/opening.py",
    "runtime/handles/machines.py", "runtime/handles/machine_refs.py", "runtime/lifespan/wiring.py",
    "runtime/commands/idempotency.py",
    "actors/restore.py", "actors/kernel/kernel.py", "actors/tasks/task.py", "actors/tasks/cancelling.py",
)  # fmt: skip
"""The files of the library from which a `Line` is drawn."""
OF_DATABASE = (
    "journal/postgres/journal.py", "journal/postgres/medium.py", "journal/postgres/nodes.py",
    "journal/postgres/opening.py", "journal/postgres/reader.py", "journal/postgres/rows.py",
    "journal/postgres/taking.py", "cluster/membership.py", "cluster/ids.py", "handles/remote_jobs.py",
)  # fmt: skip
"""The files of the library from which a line is drawn for a journal in a database."""
OF_FLOWS = (
    "runtime/engines/flow.py", "runtime/engines/replay_order.py", "runtime/flows/flows.py", "runtime/flows/sleeping.py",
    "actors/tasks/steps.py", "actors/tasks/receiving.py", "actors/kernel/mailbox.py", "actors/tasks/approval.py",
    "runtime/jobs/child_jobs.py", "runtime/execution/calls.py", "runtime/host.py", "runtime/commands/inbox.py",
    "runtime/lifespan/wiring.py", "actors/restore.py",
)  # fmt: skip
"""The files of the library from which a line is drawn for flows."""
OFTEN = 0.35
"""How often flows are killed after a line of their bodies or steps, and how often their worker processes."""
SLOW = 3.0
"""How much later a kill at an instant comes if there are worker processes, which take half a second to start."""
REACHES: tuple[Reach, ...] = ("runtime", "group", "tree")


class Tally(msgspec.Struct):
    """The counts of a sweep. kills: by kind. done: what was done in chains that came to their end."""

    chains: int = 0
    kills: Counter[str] = msgspec.field(default_factory=Counter)
    done: Counter[str] = msgspec.field(default_factory=Counter)

    @property
    def killed(self) -> int:
        return sum(self.kills.values())


class Blow(msgspec.Struct, frozen=True):
    """One kill: by the victim itself (`death`), or from outside, after so many seconds.

    workers: the seconds after which its worker processes are killed; itself it goes on. None: they are not.
    """

    death: Death | None = None
    after: float | None = None
    reach: Reach = "runtime"
    workers: float | None = None

    @property
    def kind(self) -> str:
        if self.death is None:
            return f"at an instant, {self.reach}"
        if isinstance(self.death, Commit):
            return f"commit, {self.death.where}"
        return {Released: "effects done", Torn: "log line torn", Line: "line of code", Opened: "while opening",
                Wrote: "line of a body or step written"}[type(self.death)]  # fmt: skip


class Rules(Protocol):
    """The rules for a scene. done: the work done in it, counted by `at_end`."""

    operator: Operator
    done: Counter[str]

    def after_kill(self) -> None:
        """Raise AssertionError if the data of a killed runtime break a rule."""
        ...

    def at_end(self) -> None:
        """Raise AssertionError if the data of a finished scene break a rule."""
        ...


class Play(NamedTuple):
    """The target of one chain of kills.

    files: of the library, from which a line is drawn. flows: whether it is killed after lines of its bodies, too.
    """

    order: Order
    rules: Rules
    files: tuple[str, ...]
    flows: bool = False

    def blow(self, random: random.Random, *, database: bool) -> Blow:
        """Draw a kill. Of flows with worker processes these are sometimes killed alone, too."""
        workers = self.flows and self.order.processes
        if self.flows and random.random() < OFTEN:
            blow = Blow(Wrote(random.choice((random.randint(1, 6), random.randint(1, 40)))))
        else:
            blow = drawn(random, database=database, files=self.files, slow=SLOW if workers else 1.0)
        if workers and random.random() < OFTEN:
            blow = msgspec.structs.replace(blow, workers=random.random() * SLOW)
        return blow


Plays = Callable[[Path, int], Play]
"""Makes the play of a chain in that place from its seed."""


def graphs(place: Path, seed: int) -> Play:
    """The workstreams of `scene.py`."""
    order = Order(str(place), processes=seed % 4 == 3, backend=("asyncio", "trio")[seed % 2])
    return Play(order, GraphRules(place), FILES)


def flows(place: Path, seed: int) -> Play:
    """The flows of `flow_scene.py`: every fourth time in worker processes, too; every third time bodies are dropped."""
    processes, backend = seed % 4 == 3, ("asyncio", "trio")[(seed + seed // 4) % 2]
    order = Order(str(place), play="flows", processes=processes, backend=backend, drops=seed % 3 == 0)  # type: ignore[arg-type]
    return Play(order, FlowRules(place, processes=processes), OF_FLOWS, flows=True)


def drawn(random: random.Random, *, database: bool = False, files: tuple[str, ...] = FILES, slow: float = 1.0) -> Blow:
    """Draw a kill. slow: how much later it comes at an instant."""
    which = random.random()
    if which < 0.30:
        reaches = REACHES[:2] if database else REACHES  # a node's processes are found without its journal, too
        return Blow(after=slow * random.choice((0.1, 0.2, 0.4)) * random.random(), reach=random.choice(reaches))
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
    files = files + OF_DATABASE if database else files
    return Blow(Line(random.choice(files), int(10 ** random.uniform(0.3, 3.2))))


def said(place: Path) -> str:
    errors = place / "stderr"
    return errors.read_text()[-4000:] if errors.exists() else "without a word"


def chain(
    zygote: Zygote,
    place: Path,
    seed: int,
    tally: Tally,
    first: Blow | None = None,
    *,
    plays: Plays = graphs,
    most: int = MOST,
) -> None:
    """Kill one scene repeatedly, `most` times at most, and check the rules after each kill. first: the first kill."""
    dice = random.Random(seed)
    play = plays(place, seed)
    rules, operator = play.rules, play.rules.operator
    database = not isinstance(journal_of(place), Path)
    tally.chains += 1
    for number in range(most + 2):
        blow = (first if number == 0 else None) or play.blow(dice, database=database)
        if number >= most:
            blow = Blow()
        before = len(log_of(place))
        workers = None if blow.workers is None else WorkerKill(blow.workers)
        code = live(
            zygote, msgspec.structs.replace(play.order, death=blow.death), operator=operator, after=blow.after,
            reach=blow.reach, workers=workers,
        )  # fmt: skip
        if workers is not None and workers.killed:
            tally.kills["worker processes"] += 1
        lived = log_of(place)[before:]
        if code == 0:
            assert "scene 0 over" in lived
            operator.look()
            rules.at_end()
            tally.done += rules.done
            return
        assert code == -9, f"the victim failed ({code}): {said(place)}"
        again = "" if number == 0 or "scene 0 open" in lived else ", in recovery"
        tally.kills[blow.kind + again] += 1
        if dice.random() < 0.5:
            operator.look()  # commands that come while no runtime is open wait for the next start
        rules.after_kill()
    raise AssertionError(f"not over after {most} kills, when it was let live: {log_of(place)[-20:]}")
