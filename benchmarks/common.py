"""What the benchmarks share: event loops by name, a folder on a real disk, the best of several runs, tables.

Rules
-----
- A figure from a shared machine means little by itself: whatever is compared is run in one process, one after the other,
  and the ratio is printed beside the figure.
- Of several runs the best counts: the others tell about the neighbours.
- Journals are written to a folder beside the present one, not to a temporary folder that may lie in memory.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import anyio

T = TypeVar("T")
LOOPS: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncio": ("asyncio", {"use_uvloop": False}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}


def run_on(loop: str, function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run an async function on one of `LOOPS`."""
    backend, options = LOOPS[loop]
    return anyio.run(function, *args, backend=backend, backend_options=options)


def missing(loop: str) -> str | None:
    """Why a loop cannot be measured here, if it cannot."""
    return None if loop == "asyncio" or find_spec(loop) is not None else f"{loop} is not installed"


@contextmanager
def on_disk(folder: Path | None = None) -> Iterator[Path]:
    """A new folder for journals, on the disk that the present folder is on."""
    with tempfile.TemporaryDirectory(dir=folder or Path.cwd(), prefix=".benchmark-") as name:
        yield Path(name)


def collected() -> None:
    """Let a run begin without the garbage of the one before."""
    gc.collect()


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
