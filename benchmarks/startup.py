"""The time until the first body runs, from the start of a process, and the cost of an idle runtime: CPU and memory.

    python benchmarks/startup.py [--quick]

Each figure is measured in separate processes, and the best of several counts. Times run from before the process is made
to its first body, with Python's own start; modules are already compiled, as in an installed package.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from common import Figure, print_figures

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
ENVIRONMENT["PYTHONPATH"] = str(Path(__file__).parent.parent / "src")
FIRST = """
import sys, time
import anyio
from callboard import Retry, Runtime, Task, Workstream

async def body():
    print(time.time(), flush=True)
    await anyio.sleep_forever()

async def main(journal, submits):
    async with Runtime(journal) as runtime:
        if submits:
            tasks = [Task(f"t{index:03d}", run=body) for index in range(200)]
            await runtime.submit(Workstream("many", tasks=tasks))
        await anyio.sleep_forever()

anyio.run(main, sys.argv[1], sys.argv[2] == "submit")
"""
IDLE = """
import sys
import anyio
from callboard import Runtime

async def main():
    async with Runtime(sys.argv[1]):
        print("open", flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


def start(code: str | Path, *args: object) -> tuple[float, subprocess.Popen[str]]:
    """Start a program: its text, or its file."""
    what = [str(code)] if isinstance(code, Path) else ["-c", code]
    began = time.time()
    command = [sys.executable, *what, *map(str, args)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    return began, process


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("the program ended before it was at work")
    return line


def whole(code: str, *args: object) -> float:
    """Seconds of a program."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT
    )
    return time.perf_counter() - began


def import_time(statement: str) -> float:
    """Seconds of an import, in a separate process."""
    code = f"import time; began = time.perf_counter(); {statement}; print(time.perf_counter() - began)"
    _, process = start(code)
    spent = float(first_line(process))
    kill(process)
    return spent


def program(folder: Path) -> Path:
    """Write the program with the bodies to a file: a restart finds the bodies by its name."""
    path = folder / "first.py"
    path.write_text(FIRST)
    return path


def to_first_body(folder: Path, number: int) -> float:
    """Seconds from the start of a process to its first body, with a new journal."""
    began, process = start(program(folder), folder / f"first-{number}.db", "submit")
    spent = float(first_line(process)) - began
    kill(process)
    return spent


def after_kill(folder: Path, number: int) -> float:
    """Seconds from the restart that follows a kill -9 with 100 bodies running to the first body that runs again."""
    journal = folder / f"kill-{number}.db"
    _, process = start(program(folder), journal, "submit")
    for _ in range(100):
        first_line(process)
    kill(process)
    began, process = start(program(folder), journal, "resume")
    spent = float(first_line(process)) - began
    kill(process)
    return spent


def idle(folder: Path, seconds: float) -> tuple[float, float]:
    """The use of an idle runtime: CPU seconds in so many seconds, and resident megabytes."""
    _, process = start(IDLE, folder / "idle.db")
    first_line(process)
    time.sleep(0.5)
    before = cpu(process.pid)
    time.sleep(seconds)
    used = cpu(process.pid) - before
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    kill(process)
    return used, pages * 4096 / 1e6


def cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def best(times: int, function: Callable[..., float], *args: Any) -> float:
    return min(function(*args) for _ in range(times))


def figures(folder: Path, quick: bool) -> Iterator[Figure]:
    """Measure everything."""
    times = 5 if quick else 15
    ENVIRONMENT["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
    to_first_body(folder, times)

    def within(name: str, spent: float, goal: float) -> Figure:
        return Figure(name, f"{spent:.3f} s", f"{goal:g} s", spent <= goal)

    python = best(times, whole, "pass")
    yield Figure("Python by itself", f"{python:.3f} s")
    yield within("import callboard", best(times, import_time, "import callboard"), 0.1)
    names = "from callboard import Runtime, Task, Workstream"
    yield Figure(names, f"{best(times, import_time, names):.3f} s")
    yield within("process start to first body, new journal", min(to_first_body(folder, n) for n in range(times)), 0.25)
    yield within("restart after kill -9 to first body", min(after_kill(folder, n) for n in range(times)), 0.4)
    shown = "import sys; sys.argv = ['callboard', '--help']; from callboard.runtime.cli import main; main()"
    yield within("callboard --help", best(times, whole, shown), 0.3)
    used, megabytes = idle(folder, 2 if quick else 10)
    yield Figure("CPU of an idle runtime", f"{used:.2f} s in {2 if quick else 10} s", "none", used == 0)
    yield Figure("its resident memory", f"{megabytes:.0f} MB", "60 MB", megabytes <= 60)


if __name__ == "__main__":
    print_figures(__doc__, figures)
