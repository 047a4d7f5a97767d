"""Runs all benchmarks of workstreams, one after the other, for the figures in README and docs/figures.md.

    python benchmarks/run.py                               # print the tables
    python benchmarks/run.py --quick
    python benchmarks/run.py --dbos VENV/bin/python        # with the DBOS of this environment
    python benchmarks/run.py --write                       # write docs/figures.md; README gets the first table

Run it on an otherwise idle machine: other programs change the figures. So the first line shows the present cost of a
method call and of a flush to the disk. `journal.py` and `kernel.py` measure those parts by themselves.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import subprocess
import sys
import time
import timeit
from pathlib import Path
from statistics import median

import growth
import neighbours
import orchestration
import startup
import transitions
import wfcommons
from common import figures_table, on_disk

ROOT = Path(__file__).parent.parent
README, FIGURES = ROOT / "README.md", ROOT / "docs" / "figures.md"
MARKS = ("<!-- figures -->", "<!-- /figures -->")


def machine(folder: Path) -> str:
    """The machine, and its speed at present."""
    flushes: list[float] = []
    file = os.open(folder / "flush", os.O_RDWR | os.O_CREAT)
    for number in range(100):
        began = time.perf_counter()
        os.pwrite(file, bytes(8192), number * 8192)
        os.fdatasync(file)
        flushes.append(time.perf_counter() - began)
    os.close(file)
    call = min(timeit.repeat("list.clear(one)", "one = []", number=100_000, repeat=20)) / 100_000
    return (
        f"{os.cpu_count()} cores, {platform.python_implementation()} {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}; meanwhile a call took {call * 1e9:.0f} ns, "
        f"a flush of 8 kB to the disk {median(flushes) * 1e3:.2f} ms"
    )


def engine(*, quick: bool) -> str:
    """The engine's own tables."""
    command = [sys.executable, str(Path(__file__).parent / "engine.py"), *(["--quick"] if quick else [])]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def measure(*, quick: bool, dbos: str | None) -> list[str]:
    """All tables, as markdown: the one for README first."""
    with on_disk() as folder:
        head = f"By `python benchmarks/run.py`, the best of several runs, on {machine(folder)}."
        graphs = orchestration.report(folder, quick=quick, dbos=dbos)
        parts = [
            figures_table(one.figures(folder, quick)) for one in (neighbours, growth, startup, wfcommons, transitions)
        ]
    return [f"{head}\n\n{graphs}", *parts, engine(quick=quick)]


def write(tables: list[str]) -> None:
    """Write the tables into the documents. Raises ValueError if README lacks its two marks."""
    text = README.read_text()
    before, first, rest = text.partition(MARKS[0])
    _, last, after = rest.partition(MARKS[1])
    if not first or not last:
        raise ValueError(f"README.md has no {MARKS[0]} and {MARKS[1]}")
    README.write_text(f"{before}{first}\n{tables[0]}\n{last}{after}")
    FIGURES.write_text("\n\n".join(["# Figures", *tables]) + "\n")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller numbers, fewer rounds")
    parser.add_argument("--dbos", metavar="PYTHON", help="the interpreter of an environment with DBOS")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/figures.md and README.md")
    chosen = parser.parse_args()
    tables = measure(quick=chosen.quick, dbos=chosen.dbos)
    print("\n\n".join(tables))
    if chosen.write:
        write(tables)


if __name__ == "__main__":
    main()
