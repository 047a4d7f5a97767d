"""Several nodes on one PostgreSQL, compared with two peers and a lower bound on the same server in the same run.

    python benchmarks/scale.py                               # on a private server, which it starts and removes
    python benchmarks/scale.py --quick
    python benchmarks/scale.py --only floor --only nodes
    python benchmarks/scale.py --database postgresql://...   # on an existing server; the user may create databases

| part | what is measured |
| --- | --- |
| floor | two rows for each task, committed in groups from one thread: the lower bound |
| peers | DBOS (one workflow of steps) and procrastinate (jobs deferred at once), 1,000 independent no-op tasks |
| nodes | the same on 1, 2 and 4 nodes, each a process with 1,000 tasks; the cost of a task for node and server |
| takeover | from the kill of a node to the first body of its job on another node, on the same machine and on another |
| leases | the cost of a lease's renewal for the server, with few nodes and with a thousand |
| kills | two nodes run a scene of tests/reliability/kills; one or the other is killed, `--kills` times in all |
| ray | the engine for Ray, compared with a bare call of an actor, 1,000 outstanding (`ray_engine.py`) |

Each peer is installed once, into its own environment under `--peers FOLDER`. The best of several rounds counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path

import database
import psycopg
import ray_engine
import scale_fleet
from common import Figure, figures_table
from orchestration import durable_floor, graphs, peer
from scale_node import Order
from tests.reliability.kills.outside import Zygote
from tests.reliability.kills.pairs import NODES, Pair
from tests.reliability.kills.sweep import Tally

from callboard.actors.records.loaded import Loaded
from callboard.runtime.journal.postgres.address import parse
from callboard.runtime.journal.postgres.nodes import PostgresCluster
from callboard.runtime.journal.postgres.opening import prepare
from callboard.runtime.testing.postgres import PrivateServer

HERE = Path(__file__).parent
DBOS = ("dbos==3.4.0", "psycopg[binary]==3.3.9")
PROCRASTINATE = ("procrastinate==3.10.0", "psycopg[binary]==3.3.9")
AT_ONCE = (10, 50, 100)
"""The parallel jobs of a worker of procrastinate: the best of these counts."""
TASKS = 1_000


class Run:
    """One run of the benchmark: its options, and the results of its parts for later parts."""

    def __init__(self, address: str, chosen: argparse.Namespace) -> None:
        self.address = address
        self.lease: float = chosen.lease
        self.peers: Path = chosen.peers
        self.quick: bool = chosen.quick
        self.kills: int = chosen.kills
        self.rates: dict[str, float] = {}  # tasks/s, by system

    def rate(self, name: str, seconds: float, tasks: int = TASKS) -> str:
        """Keep the rate of a system, and return it with the ratios to the rates before."""
        mine = tasks / seconds
        against = [f"{mine / rate:.3g} x {other}" for other, rate in self.rates.items()]
        self.rates[name] = mine
        return ", ".join([f"{mine:,.0f} tasks/s", *against])


def environment(folder: Path, needs: tuple[str, ...]) -> str:
    """The interpreter of an environment with these packages, which is made in that folder if it does not exist."""
    place = folder.absolute() / needs[0]
    python = str(place / "bin" / "python")
    if not (place / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *needs], check=True)
        (place / "ready").touch()
    return python


def floor(run: Run) -> Iterator[Figure]:
    """Two rows for each task."""
    wide = {"W1": graphs()["W1"]}
    with database.fresh(run.address) as address:
        kept = asyncio.run(durable_floor(database.postgres_rows(address), 1 if run.quick else 5, wide))
    yield Figure("floor: two rows a task", run.rate("floor", kept["W1"]))


def peers(run: Run) -> Iterator[Figure]:
    """DBOS and procrastinate."""
    repeats = 1 if run.quick else 2
    with database.fresh(run.address) as address:
        seconds = peer(environment(run.peers, DBOS), address, repeats, {"W1": graphs()["W1"]})
    yield Figure(DBOS[0], run.rate("DBOS", seconds["W1"]))
    with database.fresh(run.address) as address:
        asked = {"url": address, "repeats": repeats, "tasks": TASKS, "concurrency": [50] if run.quick else AT_ONCE}
        done = subprocess.run(
            [environment(run.peers, PROCRASTINATE), str(HERE / "peers" / "procrastinate_noop.py")],
            input=json.dumps(asked), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
            timeout=600,
        )  # fmt: skip
        answer = json.loads(done.stdout.splitlines()[-1])
    yield Figure(PROCRASTINATE[0], run.rate("procrastinate", answer["seconds"]))


def nodes(run: Run) -> Iterator[Figure]:
    """1, 2 and 4 nodes."""
    rounds = 1 if run.quick else 5
    for count in (1, 2, 4):
        with database.fresh(run.address) as address:
            orders = [Order(address, f"node-{number}", run.lease) for number in range(count)]
            with scale_fleet.nodes(orders) as fleet:
                before = database.spent(address)
                took = [scale_fleet.together(fleet, TASKS) for _ in range(rounds)]
                spent = database.spent(address).since(before)
            tasks = count * TASKS
            best = min(seconds for seconds, _ in took)
            name = f"{count} node{'s' if count > 1 else ''}"
            said = run.rate(name, best, tasks)
            dbos = run.rates.get("DBOS")
            reached = tasks / best >= 2_000 and (dbos is None or tasks / best >= 8 * dbos)
            goal = ("2,000 tasks/s, 8 x DBOS", reached) if count == 1 else ("", None)
            yield Figure(name, said, *goal)
            each = 1e6 / tasks / rounds
            used = sum(seconds for _, seconds in took) * each
            yield Figure(
                f"{name}: spent per task",
                f"nodes {used:,.0f} us, server {spent.processor * each:,.0f} us of the processor; "
                f"{spent.commits / tasks / rounds:.3f} commits, {spent.log / tasks / rounds:,.0f} bytes of its log",
            )


def takeover(run: Run) -> Iterator[Figure]:
    """Kill a node, and measure the time until another one continues."""
    for elsewhere in (False, True):
        took: list[float] = []
        doubled = 0
        for number in range(1 if run.quick else 3):
            with database.fresh(run.address) as address, tempfile.TemporaryDirectory() as folder:
                log = Path(folder) / "log"
                both = [Order(address, name, run.lease, "relay", str(log), elsewhere) for name in ("first", "second")]
                with scale_fleet.nodes(both) as (first, second):
                    while sum(line.word == "end" for line in scale_fleet.written(log)) < 5 + number:
                        time.sleep(0.01)
                    killed = first.kill()
                    if second.told() != b'"completed"\n':
                        raise RuntimeError("the job did not complete")
                    lines = scale_fleet.written(log)
                    took.append(min(line.at for line in lines if line.node == "second") - killed)
                    doubled += scale_fleet.duplicates(address, lines)
        where = f"as if elsewhere, lease {run.lease:g} s" if elsewhere else "on the same machine"
        limit = run.lease + 2 if elsewhere else 2
        said = f"{', '.join(f'{seconds:.2f}' for seconds in took)} s; duplicate starts: {doubled}"
        yield Figure(f"takeover, {where}", said, f"at most {limit:g} s, none", max(took) <= limit and not doubled)


STRANGERS = """
INSERT INTO callboard.nodes (name, epoch, lease, place, kernel, pid, process_started)
SELECT 'node-' || number, 1000 + number, interval '1 hour', '', '', 0, 0 FROM generate_series(2, 1000) AS number
"""


def leases(run: Run) -> Iterator[Figure]:
    """Renew a lease repeatedly, with no other node, and with a thousand others."""
    count = 50 if run.quick else 200
    with database.fresh(run.address) as address:
        where = parse(address)
        prepare(where)
        with closing(PostgresCluster(where, lambda _: Loaded(), lambda _: {}, name="node-1", lease=3600)) as node:
            for nodes in (1, 1_000):
                before, began = database.spent(address), time.perf_counter()
                for _ in range(count):
                    node.renew(0)
                    node.tools()
                took = (time.perf_counter() - began) / count
                spent = database.spent(address).since(before).processor / count
                said = f"{took * 1e3:.1f} ms, {spent * 1e6:,.0f} us of the server's processor"
                yield Figure(f"a renewal, {nodes:,} node{'s' * (nodes > 1)}", said)
                with psycopg.connect(address) as connection:
                    connection.execute(STRANGERS if nodes == 1 else "SELECT 1")


def kills(run: Run) -> Iterator[Figure]:
    """Kill nodes, and check the rules of the sweep."""
    tally, broken, began, seed = Tally(), list[str](), time.monotonic(), 0
    with ExitStack() as stack:
        zygotes = {node: stack.enter_context(closing(Zygote())) for node in NODES}
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        while tally.killed < run.kills:
            with database.fresh(run.address) as address:
                scene = place / str(seed)
                scene.mkdir()
                (scene / "address").write_text(address)
                try:
                    Pair(zygotes, scene, seed, tally).play()
                except AssertionError as error:
                    broken.append(f"scene {seed}: {error}")
            seed += 1
    said = "no completed attempt run again, no task lost" if not broken else "; ".join(broken).replace("\n", ", ")
    said += f"; {tally.chains} scenes, {time.monotonic() - began:.0f} s"
    yield Figure(f"{tally.killed} kills of one of two nodes", said, "none run again, none lost", not broken)


def ray(run: Run) -> Iterator[Figure]:
    """The cost of Ray's calls, and of the engine's."""
    if find_spec("ray") is None:
        yield Figure("Ray", "not measured: it is not installed")
        return
    figures = ray_engine.measure(2 if run.quick else 5)
    ratio = figures["ours over bare"]
    yield Figure("Ray: bare calls of an async actor, 1,000 outstanding", f"{figures['bare async calls/s']:,.0f} /s")
    said = f"{figures['bodies/s']:,.0f} /s, {ratio:.2f} x the time; one alone {figures['single body p50 ms']:.1f} ms"
    yield Figure("Ray: bodies by our engine", said, "at most 1.5 x", ratio <= 1.5)


PARTS: dict[str, Callable[[Run], Iterator[Figure]]] = {
    "floor": floor, "peers": peers, "nodes": nodes, "takeover": takeover, "leases": leases,
    "kills": kills, "ray": ray,
}  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller numbers, fewer rounds")
    parser.add_argument("--only", action="append", choices=[*PARTS], help="this part (may be given several times)")
    parser.add_argument("--database", metavar="ADDRESS", help="of a server that is there (default: a private one)")
    parser.add_argument("--kills", type=int, default=20, help="for the part of that name: 200 take some ten minutes")
    parser.add_argument("--lease", type=float, default=5.0, help="seconds of a node's lease, for `takeover`")
    parser.add_argument("--peers", type=Path, default=Path(".peers"), help="where the peers are installed")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        address = chosen.database or stack.enter_context(PrivateServer()).address()
        print(f"On {database.about(address)}, {os.cpu_count()} cores; best of several rounds.\n")
        run = Run(address, chosen)
        print(figures_table(figure for name in chosen.only or PARTS for figure in PARTS[name](run)))


if __name__ == "__main__":
    main()
