"""Code that the benchmarks share: event loops by name, a folder on a real disk, the best of several runs, tables.

Rules
-----
- A single figure from a shared machine means little: compared cases run in one process, one after the other, and the
  ratio is printed beside the figure.
- The best of several runs counts: other programs on the machine make runs slower.
- Journals are written to a folder in the current one, and not to a temporary folder, which may be in memory.
- Each benchmark has `figures(folder, quick)`, whose results `run.py` collects, and a `main` that prints them.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

import anyio

from callboard import Runtime, Workstream

T = TypeVar("T")
LOOPS: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncio": ("asyncio", {"use_uvloop": False}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}


class Figure(NamedTuple):
    """One measured figure: its name, its value with the unit, the aim, and whether the aim was reached."""

    name: str
    value: str
    goal: str = ""
    reached: bool | None = None


def run_on(loop: str, function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run an async function on one of `LOOPS`."""
    backend, options = LOOPS[loop]
    return anyio.run(function, *args, backend=backend, backend_options=options)


def missing(loop: str) -> str | None:
    """The reason why a loop cannot be measured here; None if it can."""
    return None if loop == "asyncio" or find_spec(loop) is not None else f"{loop} is not installed"


@contextmanager
def on_disk(folder: Path | None = None) -> Iterator[Path]:
    """A new folder for journals, on the disk of the present folder."""
    with tempfile.TemporaryDirectory(dir=folder or Path.cwd(), prefix=".benchmark-") as name:
        yield Path(name)


def collected() -> None:
    """Collect the garbage of the run before."""
    gc.collect()


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


async def seconds_of(runtime: Runtime, spec: Workstream) -> float:
    """Seconds of a workstream, from `submit` to the return of `wait`. Raises RuntimeError if it fails."""
    began = time.perf_counter()
    job = await runtime.submit(spec)
    outcome = await job.wait()
    spent = time.perf_counter() - began
    if outcome.state != "completed":
        raise RuntimeError(f"{spec.name} ended as {outcome.state}: {outcome.error}")
    return spent


def figures_table(figures: Iterable[Figure]) -> str:
    """Figures as a markdown table."""
    said = {True: "yes", False: "**no**", None: ""}
    return table(["figure", "measured", "to reach", "reached"], [[*one[:3], said[one.reached]] for one in figures])


def print_figures(text: str | None, figures: Callable[[Path, bool], Iterable[Figure]]) -> None:
    """The `main` of a benchmark: parse its options, run it, print its table."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller numbers, fewer rounds")
    parser.add_argument("--folder", type=Path, help="where journals are written (default: here)")
    chosen = parser.parse_args()
    with on_disk(chosen.folder) as folder:
        print(figures_table(figures(folder, chosen.quick)))
