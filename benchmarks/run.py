"""All benchmarks of workstreams, one after the other, and the figures that README shows.

    python benchmarks/run.py                               # print the tables
    python benchmarks/run.py --quick
    python benchmarks/run.py --dbos VENV/bin/python        # with the peer, which is installed there
    python benchmarks/run.py --readme                      # and write them into README.md, between its two marks

Give it a machine of its own: the figures beside a neighbour are the neighbour's. Engine and journal by themselves:
`engine.py` and `journal.py`.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
from pathlib import Path

import growth
import neighbours
import orchestration
import startup
import wfcommons
from common import figures_table, on_disk

README = Path(__file__).parent.parent / "README.md"
MARKS = ("<!-- figures -->", "<!-- /figures -->")


def measure(*, quick: bool, dbos: str | None) -> str:
    """All tables, as markdown."""
    with on_disk() as folder:
        graphs = orchestration.report(folder, quick=quick, dbos=dbos)
        parts = [figures_table(one.figures(folder, quick)) for one in (neighbours, growth, startup, wfcommons)]
    machine = f"{os.cpu_count()} cores, {platform.python_implementation()} {platform.python_version()}"
    head = (
        f"Measured on {machine}, SQLite {sqlite3.sqlite_version}, by `python benchmarks/run.py`; best of several runs."
    )
    return "\n\n".join([head, graphs, *parts])


def write(text: str) -> None:
    """Put the tables between README's marks. Raises ValueError if they are not there."""
    readme = README.read_text()
    before, first, rest = readme.partition(MARKS[0])
    _, last, after = rest.partition(MARKS[1])
    if not first or not last:
        raise ValueError(f"README.md has no {MARKS[0]} and {MARKS[1]}")
    README.write_text(f"{before}{first}\n{text}\n{last}{after}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller numbers, fewer rounds")
    parser.add_argument("--dbos", metavar="PYTHON", help="the interpreter of an environment with DBOS")
    parser.add_argument("--readme", action="store_true", help="write the tables into README.md")
    chosen = parser.parse_args()
    text = measure(quick=chosen.quick, dbos=chosen.dbos)
    print(text)
    if chosen.readme:
        write(text)


if __name__ == "__main__":
    main()
