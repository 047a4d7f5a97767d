"""Several nodes on one PostgreSQL, against two peers and the floor on the same server in the same run.

    python benchmarks/scale.py --database postgresql://...   # a database of a server that may make others
    python benchmarks/scale.py --only floor --only peers
    python benchmarks/scale.py --quick

| part | what is measured |
| --- | --- |
| floor | two rows a task, committed in groups from one thread: what the server does for one who keeps so little |
| peers | DBOS (one workflow of steps) and procrastinate (jobs deferred at once), 1,000 independent no-op tasks |

Each peer is installed into an environment of its own under `--peers FOLDER`, once. The best of several rounds counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import database
from common import Figure, figures_table
from orchestration import durable_floor, graphs, peer

HERE = Path(__file__).parent
DBOS = ("dbos==3.4.0", "psycopg[binary]==3.3.9")
PROCRASTINATE = ("procrastinate==3.10.0", "psycopg[binary]==3.3.9")
AT_ONCE = (10, 50, 100)
"""Jobs that a worker of procrastinate runs at once: the best of these counts."""
TASKS = 1_000


class Run:
    """One run of the benchmark: how it was asked for, and what its parts have found, for those after them."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.address: str = chosen.database
        self.peers: Path = chosen.peers
        self.quick: bool = chosen.quick
        self.rates: dict[str, float] = {}  # tasks/s, by who reached them

    def rate(self, name: str, seconds: float, tasks: int = TASKS) -> str:
        """Keep how fast somebody was, and say it with the ratio to those before."""
        mine = tasks / seconds
        against = [f"{mine / rate:.2f} x {other}" for other, rate in self.rates.items()]
        self.rates[name] = mine
        return ", ".join([f"{mine:,.0f} tasks/s", *against])


def environment(folder: Path, needs: tuple[str, ...]) -> str:
    """The interpreter of an environment that has what is needed; made in that folder if it is not there."""
    place = folder.absolute() / needs[0]
    python = str(place / "bin" / "python")
    if not (place / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *needs], check=True)
        (place / "ready").touch()
    return python


def floor(run: Run) -> Iterator[Figure]:
    """Two rows a task."""
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


PARTS: dict[str, Callable[[Run], Iterator[Figure]]] = {"floor": floor, "peers": peers}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller numbers, fewer rounds")
    parser.add_argument("--only", action="append", choices=[*PARTS], help="this part (may be given several times)")
    parser.add_argument("--database", metavar="ADDRESS", required=True, help="of a server that is there")
    parser.add_argument("--peers", type=Path, default=Path(".peers"), help="where the peers are installed")
    chosen = parser.parse_args()
    run = Run(chosen)
    print(f"On {database.about(run.address)}, {TASKS:,} no-op tasks.\n")
    print(figures_table(figure for name in chosen.only or PARTS for figure in PARTS[name](run)))


if __name__ == "__main__":
    main()
