"""Bodies for tests of worker processes: functions that another process can find."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio

from callboard import Task, Workstream
from callboard.actors.messages.errors import ApprovalRejected, TaskCancelled
from callboard.runtime.engines.context import TaskContext
from callboard.runtime.engines.process.wire import Done
from callboard.runtime.engines.workers.wire import packed


def quick() -> str:
    return "value"


def failing() -> None:
    raise LookupError("told to fail")


def patient(task: TaskContext) -> None:
    while True:
        task.heartbeat("alive")
        time.sleep(0.005)


def stubborn(task: TaskContext) -> None:
    with contextlib.suppress(TaskCancelled):  # the stop may come within the heartbeat
        task.heartbeat("alive")
    while True:
        with contextlib.suppress(TaskCancelled):
            time.sleep(60)


def computes() -> int:
    """Compute without an end in one call of C, during which no other thread gets Python's lock."""
    return sum(range(10**15))


def sleeps_with_the_lock() -> None:
    """Sleep in a call that keeps Python's lock."""
    ctypes.PyDLL(None).sleep(60)


def told(task: TaskContext) -> dict[str, Any]:
    """All fields of the context."""
    return {
        "task": task.task, "token": task.token, "attempt": task.attempt, "job_id": task.job_id,
        "workstream_id": task.workstream_id, "results": task.results, "details": task.details, "args": task.args,
    }  # fmt: skip


def own_pid() -> int:
    return os.getpid()


def busy(task: TaskContext) -> None:
    """Compute in Python without an end. After its begin it sends no heartbeat that could report the stop."""
    task.heartbeat("alive")
    try:
        print("begun")
        while True:
            sum(range(1000))
    finally:
        print("cleaned up")


def moves_out() -> None:
    os.chdir("/")
    os.environ["HOME"] = "/nowhere"
    os.environ["ONLY_HERE"] = "1"
    raise LookupError("told to fail")


def where() -> list[str | None]:
    return [str(Path.cwd()), os.environ.get("HOME"), os.environ.get("ONLY_HERE"), str(os.getpid())]


def exits() -> None:
    print("last words")
    os._exit(3)


def crashes() -> None:
    ctypes.string_at(0)


def leaves() -> None:
    sys.exit("not here")


def interrupted() -> None:
    raise KeyboardInterrupt


def returns_a_set() -> set[int]:
    return {1}


async def never_awaited() -> None: ...


def returns_a_coroutine() -> Any:
    return never_awaited()


def prints() -> None:
    print("to stdout")
    print("to stderr", file=sys.stderr)
    os.write(1, b"straight\n")
    subprocess.run(["echo", "from a command"], check=True)
    print("no newline", end="")


def surroundings() -> dict[str, Any]:
    """The things that a process shares with its runtime: descriptors, variables, and those of its children."""
    kinds: dict[str, str] = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor by which the folder is read
            kinds[entry.name] = str(entry.readlink()).partition(":")[0]
    seen = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
    started = subprocess.run(["ls", "/proc/self/fd"], capture_output=True, text=True, check=True).stdout
    return {"own": kinds, "inherited": len(started.split()), "env": seen, "cwd": str(Path.cwd())}


def forges(task: TaskContext) -> str:
    """Send the end of another attempt through the process's socket, or bytes that are no frame."""
    line = next(fd for fd in range(3, 64) if _is_socket(fd))
    frame = packed(Done(task.token + 1, "ok", "forged")) if task.args.get("whole") else b"\x03\x00\x00\x00abc"
    os.write(line, frame)
    while not task.args.get("whole"):
        time.sleep(60)
    return "own"


def _is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def saves(task: TaskContext) -> None:
    """Save more often than the process sends it on, and do not end in the first attempt."""
    for row in range(100):
        task.checkpoint(row)
        task.heartbeat()
    task.heartbeat("done")
    task.heartbeat()
    if task.attempt == 1:
        raise ValueError("once more")
    task.checkpoint([task.saved, task.details])


def leaf(task: TaskContext) -> str:
    return f"{task.args['page']} in {os.getpid()}"


def submits(task: TaskContext) -> dict[str, Any]:
    """Submit two children, of which one runs in a process, too, and wait for them."""
    children = [
        task.submit_blocking(
            Workstream("leaf", tasks=[Task("x", run=leaf, engine=engine, args={"page": engine})]), name=engine
        )
        for engine in ("thread", "process")
    ]
    outcomes = [child.wait_blocking().raise_for_state() for child in children]
    return {
        "pid": os.getpid(),
        "ids": [child.id for child in children],
        "states": [child.state for child in children],
        "results": [outcome.results["x"] for outcome in outcomes],
        "workers": [outcome.tasks["x"].attempt for outcome in outcomes],
    }


def waits_for_a_child(task: TaskContext) -> str:
    """Wait for a child that waits for an approval."""
    tasks = [Task("x", run=asks_people, engine="process")]
    outcome = task.submit_blocking(Workstream("asks", tasks=tasks), name="asks").wait_blocking()
    return outcome.state


def asks_people(task: TaskContext) -> list[str | None]:
    task.heartbeat("alive")
    return [one.by for one in task.wait_for_approval("prod", people=1)]


def asks_again(task: TaskContext) -> str:
    """Be interrupted by SIGALRM, which the test sends, during the wait, and try another request."""

    def alarm(*_: object) -> None:
        raise TimeoutError("enough")

    signal.signal(signal.SIGALRM, alarm)
    with contextlib.suppress(TimeoutError):
        task.wait_for_approval("first")
    task.heartbeat("first was not waited for")
    try:
        task.wait_for_approval("second")
    except ApprovalRejected as error:
        return f"{error.by}: {error.reason}"
    return "approved"


def asks_wrongly(task: TaskContext) -> dict[str, str]:
    """Make every request that is refused; returns the refusals."""
    plain = Workstream("w", tasks=[Task("x", run=quick)])
    other = Workstream("w", tasks=[Task("x", run=failing)])

    def inner() -> None: ...

    asks = {
        "lambda": lambda: task.submit_blocking(Workstream("w", tasks=[Task("x", run=lambda: 1)]), name="a"),
        "inner": lambda: task.submit_blocking(Workstream("w", tasks=[Task("x", run=inner)]), name="a"),
        "path": lambda: task.submit_blocking(Workstream("w", tasks=[Task("x", run="no.where:at")]), name="a"),
        "name": lambda: task.submit_blocking(plain, name="a/b"),
        "exists": lambda: [task.submit_blocking(plain, name="b"), task.submit_blocking(other, name="b")],
        "type": lambda: task.submit_blocking("w", name="c"),  # type: ignore[arg-type]
        "rule": lambda: task.wait_for_approval("prod", people=0),
        "approval": lambda: task.wait_for_approval("a/b"),
        "await": lambda: asyncio.run(task.submit(plain, name="d")),  # type: ignore[arg-type]
    }
    told: dict[str, str] = {}
    for name, ask in asks.items():
        try:
            ask()
        except Exception as error:
            told[name] = f"{type(error).__name__}: {error}"
    return told


async def async_quick() -> str:
    return "value"


async def async_failing() -> None:
    raise LookupError("told to fail")


async def async_patient(task: TaskContext) -> None:
    task.heartbeat("alive")
    await anyio.sleep_forever()


async def async_stubborn(task: TaskContext) -> None:
    task.heartbeat("alive")
    with anyio.CancelScope(shield=True):
        await anyio.sleep_forever()


BURNT = 0.2  # CPU seconds
FILLED = 150_000_000  # bytes


def burns() -> None:
    until = time.process_time() + BURNT
    while time.process_time() < until:
        pass


def has_one_burn() -> None:
    script = f"import time\nwhile time.process_time() < {BURNT}: pass"
    subprocess.run([sys.executable, "-S", "-c", script], check=True)


def burns_and_fails() -> None:
    burns()
    raise LookupError("told to fail")


def fills() -> int:
    return len(b"x" * FILLED)


def outgrows_its_parent_and_dies() -> None:
    """Have more memory than the process that started this one ever had."""
    told = Path(f"/proc/{os.getppid()}/status").read_text()
    most = next(int(line.split()[1]) * 1024 for line in told.splitlines() if line.startswith("VmHWM:"))
    kept = b"x" * (most + most // 2)
    os.kill(os.getpid() if kept else 0, signal.SIGKILL)


def leaves_a_session(task: TaskContext) -> None:
    """Start a process in a session of its own, and end; with `stays`, only when it is told to."""
    nowhere = subprocess.DEVNULL
    left = subprocess.Popen(["sleep", "600"], stdout=nowhere, stderr=nowhere, start_new_session=True)
    Path(task.args["file"]).write_text(str(left.pid))
    while task.args.get("stays"):
        task.heartbeat()
        time.sleep(0.01)
