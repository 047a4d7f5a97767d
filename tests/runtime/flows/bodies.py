"""Bodies that take durable steps: functions that another process can find. Each run of a step is a line in a file."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import anyio

from callboard import Retry, TaskContext, step
from callboard.errors import InvalidTransitionError, StepFailed

AT_ONCE = Retry(max_attempts=3, base_delay=0.0, jitter=0.0)
STEPS = 4


def note(folder: str, text: object) -> None:
    """Write a line, which no kill can divide."""
    with Path(folder, "ran").open("a") as file:
        file.write(f"{text}\n")


def wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.005)


@step
def double(folder: str, n: int) -> int:
    note(folder, f"double {n}")
    return n * 2


@step
async def half(folder: str, n: int) -> float:
    note(folder, f"half {n}")
    await anyio.lowlevel.checkpoint()
    return n / 2


def pid(folder: str) -> int:
    note(folder, "pid")
    return os.getpid()


def replays(task: TaskContext) -> list[Any]:
    folder = task.args["folder"]
    got = [task.step_blocking(double, folder, 1), double(folder, 2), task.step_blocking(half, folder, 3)]
    ran_in = task.step_blocking(pid, folder)
    if task.attempt == 1:
        note(folder, "same" if ran_in == os.getpid() else "other")
        raise RuntimeError("interrupted")
    return [*got, double(folder, 4)]


async def replays_on_loop(task: TaskContext) -> list[Any]:
    folder = task.args["folder"]
    got = [await task.step(double, folder, 1), await task.step(double, folder, 2), await half(folder, 3)]
    ran_in = await task.step(pid, folder)
    if task.attempt == 1:
        note(folder, "same" if ran_in == os.getpid() else "other")
        raise RuntimeError("interrupted")
    return [*got, await task.step(double, folder, 4)]


PLACE = "CALLBOARD_TEST_FOLDER"


def without_a_context() -> list[Any]:
    folder = os.environ[PLACE]
    first = double(folder, 1)
    if not Path(folder, "again").exists():
        Path(folder, "again").touch()
        raise RuntimeError("interrupted")
    return [first, double(folder, 2)]


# -- kills -------------------------------------------------------------------------------------------------------------


def killed_after_each(task: TaskContext) -> list[int]:
    """Each attempt takes one new step, and is killed when that step is durable."""
    folder = task.args["folder"]
    got: list[int] = []
    for n in range(STEPS):
        got.append(double(folder, n))
        if n + 1 == task.attempt:
            os.kill(os.getpid(), signal.SIGKILL)
    return got


async def killed_after_each_on_loop(task: TaskContext) -> list[int]:
    folder = task.args["folder"]
    got: list[int] = []
    for n in range(STEPS):
        got.append(await task.step(double, folder, n))
        if n + 1 == task.attempt:
            os.kill(os.getpid(), signal.SIGKILL)
    return got


@step
def dies(folder: str, n: int, attempt: int) -> int:
    """A step that does its work, and whose process dies before its end is known."""
    note(folder, f"dies {n}")
    if attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return n


def killed_inside(task: TaskContext) -> list[int]:
    folder = task.args["folder"]
    return [double(folder, 1), dies(folder, 2, task.attempt), double(folder, 3)]


async def killed_inside_on_loop(task: TaskContext) -> list[int]:
    folder = task.args["folder"]

    async def dying(n: int) -> int:
        return dies.func(folder, n, task.attempt)

    return [
        await task.step(double, folder, 1),
        await task.step(step(dying, name="dies"), 2),
        await task.step(double, folder, 3),
    ]


# -- failures ----------------------------------------------------------------------------------------------------------


class Odd(Exception):  # noqa: N818
    """An error that cannot be made again: JSON holds no set."""

    def __init__(self, n: int, text: str) -> None:
        super().__init__({n})
        self.text = text

    def __str__(self) -> str:
        return f"1: {self.text}"


@step
def breaks(folder: str, kind: str) -> None:
    note(folder, kind)
    raise KeyError("gone") if kind == "plain" else Odd(1, "odd")


def fails(task: TaskContext) -> list[str]:
    """Catches the errors of its steps, and fails for another reason in its first attempt."""
    seen: list[str] = []
    for kind in ("plain", "odd"):
        try:
            breaks(task.args["folder"], kind)
        except KeyError as error:
            seen.append(f"{type(error).__name__} {error}")
        except StepFailed as error:
            seen.append(f"{error.step} {error.error_type} {error.text} {'breaks' in error.traceback}")
    if task.attempt == 1:
        raise RuntimeError("interrupted")
    return seen


def fails_for_good(task: TaskContext) -> None:
    breaks(task.args["folder"], "odd")


class Before:
    @staticmethod
    def charge() -> int:
        return 1


class After:
    @staticmethod
    def charge() -> int:
        return 2


def changes(task: TaskContext) -> int:
    try:
        task.step_blocking((Before if task.attempt == 1 else After).charge)
    except Exception:  # as a body that compensates: it fails all the same
        return -1
    raise RuntimeError("interrupted")


def forgets(task: TaskContext) -> None:
    if task.attempt == 1:
        double(task.args["folder"], 1)
        double(task.args["folder"], 2)
        raise RuntimeError("interrupted")
    if task.args["asks"]:
        double(task.args["folder"], 1)


@step(retry=AT_ONCE)
def flaky(folder: str) -> int:
    note(folder, "flaky")
    tries = Path(folder, "ran").read_text().count("flaky")
    if tries < 3:
        raise ConnectionError("away")
    return tries


@step(timeout=0.01)
async def slow() -> None:
    await anyio.sleep_forever()


def has_policies(task: TaskContext) -> list[Any]:
    """Takes steps that need an event loop in the process."""
    try:
        task.step_blocking(slow)
    except TimeoutError as error:
        return [flaky(task.args["folder"]), str(error)]
    return []


@step
def outer(task: TaskContext) -> list[str]:
    refusals: list[str] = []
    folder = task.args["folder"]
    for call in (
        lambda: double(folder, 1),
        lambda: task.step_blocking(double, folder, 1),
        lambda: task.gather_blocking(double.bind(folder, 1)),
        lambda: task.sleep_blocking(1),
    ):
        try:
            call()
        except RuntimeError as error:
            refusals.append(str(error))
    return refusals


def nests(task: TaskContext) -> list[Any]:
    again = step(outer.func, name="again", retry=AT_ONCE)
    return [outer(task), task.step_blocking(again, task)]


# -- several threads, waiting ------------------------------------------------------------------------------------------


def in_threads(task: TaskContext) -> list[Any]:
    """Calls steps in another thread than its own, and then as it should."""
    folder = task.args["folder"]
    got: list[Any] = [double(folder, 0)]

    def elsewhere() -> None:
        try:
            got.append(task.step_blocking(double, folder, 1))
        except RuntimeError as error:
            got.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    got.append(task.gather_blocking(*(double.bind(folder, n) for n in range(2, 6)), max_parallel=2))
    if task.attempt == 1:
        raise RuntimeError("interrupted")
    return got


def sleeps(task: TaskContext) -> str:
    folder = task.args["folder"]
    double(folder, 1)
    task.sleep_blocking("1h")
    double(folder, 2)
    return "slept"


async def sleeps_on_loop(task: TaskContext) -> str:
    folder = task.args["folder"]
    await task.step(double, folder, 1)
    await task.sleep("1h")
    await task.step(double, folder, 2)
    return "slept"


def waits_in_a_step(task: TaskContext) -> int:
    """Its step ends when its task is being cancelled."""
    folder = Path(task.args["folder"])

    def works() -> int:
        (folder / "begun").touch()
        wait_for(folder / "end")
        return 7

    return task.step_blocking(works)


@step
async def never() -> None:
    await anyio.sleep_forever()


def waits_for_ever(task: TaskContext) -> None:
    Path(task.args["folder"], "begun").touch()
    task.step_blocking(never)


async def takes_facts(task: TaskContext) -> list[Any]:
    got = [(await task.now()).isoformat(), str(await task.uuid()), await task.random(), await task.version("x", 2)]
    got += await task.gather(*(half.bind(task.args["folder"], n) for n in range(4)), max_parallel=2)
    if task.attempt == 1:
        task.checkpoint(got)
        raise RuntimeError("interrupted")
    return [got, task.saved]


# -- secrets, sizes ----------------------------------------------------------------------------------------------------


def tells_secret(task: TaskContext) -> list[Any]:
    key = task.secrets["KEY"]

    def tells() -> str:
        return f"key {key}"

    def raises() -> None:
        raise ValueError(f"key {key}")

    got: list[Any] = [task.step_blocking(tells)]
    try:
        task.step_blocking(raises)
    except StepFailed as error:
        got.append(error.text)
    return got


def returns_much(task: TaskContext) -> list[int]:
    folder = task.args["folder"]

    def large(n: int) -> str:
        note(folder, n)
        return str(n) * 700_000

    got = [len(task.step_blocking(large, n)) for n in range(5)]
    if task.attempt == 1:
        raise RuntimeError("interrupted")
    return got


def receives(task: TaskContext) -> list[Any]:
    got = [task.receive_blocking("a"), task.receive_blocking("a", type=dict[str, int])]
    if task.attempt == 1:
        raise RuntimeError("interrupted")
    return [*got, task.receive_blocking("a", timeout=0, default="none")]


def sends(task: TaskContext) -> list[str]:
    refusals: list[str] = []
    task.send_blocking("other", "n", 1)
    for job, name in (("nobody", "n"), ("ended", "n")):
        try:
            task.send_blocking(job, name)
        except (LookupError, InvalidTransitionError) as error:
            refusals.append(f"{type(error).__name__}: {error}")
    if task.attempt == 1:
        raise RuntimeError("interrupted")
    task.send_blocking("other", "n", {"two": 2}, task="t")
    return refusals


def shows(task: TaskContext) -> None:
    """Show more than can be passed on one by one, also from a thread of its own, and wait in the middle."""
    folder = Path(task.args["folder"])
    for number in range(1_000):
        task.progress(number, 1_000, f"file {number}")
        task.emit(f"{number} ")
    wait_for(folder / "on")
    more = threading.Thread(target=lambda: task.emit("from a thread "))
    more.start()
    more.join()
    task.progress(1_000, 1_000)
    task.emit("end")


def publishes(task: TaskContext) -> None:
    """Publish two values, and fail in the first attempt after the first one."""
    task.publish_blocking("stage", "one")
    if task.attempt == 1:
        raise OSError
    task.publish_blocking("stage", "two")
    task.publish_blocking("total", 3)


# -- for ever ----------------------------------------------------------------------------------------------------------


def begins_anew(task: TaskContext) -> Any:
    folder, n = task.args["folder"], task.args.get("n", 1)
    total = task.args.get("total", 0) + double(folder, n)
    if n == STEPS:
        return total
    return task.again(folder=folder, n=n + 1, total=total)


async def begins_anew_on_loop(task: TaskContext) -> Any:
    folder, n = task.args["folder"], task.args.get("n", 1)
    total = task.args.get("total", 0) + await task.step(double, folder, n)
    if n == STEPS:
        return total
    return task.again(folder=folder, n=n + 1, total=total)


def forgets_to_return(task: TaskContext) -> int:
    task.again(n=2)
    return 1


# -- tools -------------------------------------------------------------------------------------------------------------


@step(tool="model")
def asks(folder: str, n: int) -> int:
    """Two of them at a time would mix their lines."""
    note(folder, "in")
    time.sleep(0.01)
    note(folder, "out")
    if n > 3:
        raise ConnectionError("sick")
    return n


def uses_tools(task: TaskContext) -> list[Any]:
    folder = task.args["folder"]
    got = [asks(folder, 1), *task.gather_blocking(asks.bind(folder, 2), asks.bind(folder, 3))]
    try:
        return [*got, asks(folder, 4)]
    except ConnectionError as error:
        return [*got, str(error)]


@step(tool="model")
def holds(folder: str, name: str) -> str:
    note(folder, f"{name} {os.getpid()}")
    wait_for(Path(folder, "go"))
    return name


def holds_tool(task: TaskContext) -> str:
    return holds(task.args["folder"], task.args["name"])


def decides(task: TaskContext) -> list[str]:
    decided = [
        str(task.uuid_blocking()), task.now_blocking().isoformat(), str(task.random_blocking("of A")),
        str(task.version_blocking("two parcels", 2)),
    ]  # fmt: skip
    note(task.args["folder"], "\n".join(decided))
    if task.attempt == 1:
        raise RuntimeError("interrupted")
    return decided


# -- steps on workers --------------------------------------------------------------------------------------------------


@step(engine="thread")
def on_thread(folder: str, n: int) -> list[int]:
    note(folder, f"thread {n}")
    return [n, os.getpid()]


@step(engine="loop")
async def on_loop(folder: str, n: int) -> list[int]:
    note(folder, f"loop {n}")
    await anyio.lowlevel.checkpoint()
    return [n, os.getpid()]


@step(engine="process")
def in_process(folder: str, n: int, *, text: str = "") -> list[Any]:
    note(folder, f"process {n}")
    return [n, os.getpid(), text]


@step(engine="process")
def fails_in_process(folder: str, n: int) -> None:
    note(folder, f"fails {n}")
    if n == 1:
        raise KeyError("gone")
    if n == 2:
        in_process(folder, 2)
    raise SystemExit("no")


@step(engine="process", timeout=0.5)
def never_ends() -> None:
    while True:
        time.sleep(0.01)


@step(engine="process", retry=AT_ONCE)
def dies_in_process(folder: str) -> str:
    note(folder, f"dies {os.getpid()}")
    if len(Path(folder, "ran").read_text().splitlines()) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "lives"


@step(capabilities={"far"})
def far(folder: str, n: int) -> list[int]:
    note(folder, f"far {n}")
    return [n, os.getpid()]


@step(engine="ray")
async def far_on_loop(folder: str, n: int) -> list[int]:
    note(folder, f"far {n}")
    await anyio.lowlevel.checkpoint()
    return [n, os.getpid()]


@step(engine="process")
def takes_its_time(folder: str) -> None:
    note(folder, f"takes {os.getpid()}")
    wait_for(Path(folder, "end"))


def texts_of(errors: list[Any]) -> list[str]:
    return [f"{type(error).__name__} {error}" for error in errors]


def calls_workers(task: TaskContext) -> list[Any]:
    """It calls steps on workers of each engine, and tells where it and they have run."""
    folder = task.args["folder"]
    got: list[Any] = [os.getpid(), on_thread(folder, 1), in_process(folder, 2, text="two")]
    got.append(task.step_blocking(on_loop, folder, 3))
    got += sorted(task.gather_blocking(on_thread.bind(folder, 4), in_process.bind(folder, 5)))
    errors: list[Any] = []
    for n in (1, 2, 3):
        try:
            fails_in_process(folder, n)
        except Exception as error:
            errors.append(error)

    @step(engine="thread")
    def nested() -> None:
        """A function of this process."""

    try:
        nested()
    except Exception as error:
        errors.append(error)
    if task.attempt == 1:
        raise RuntimeError("interrupted")
    return [*got, texts_of(errors)]


async def calls_process(task: TaskContext) -> list[Any]:
    folder = task.args["folder"]
    got: list[Any] = [await task.step(dies_in_process, folder)]
    for call in (never_ends.bind(), in_process.bind({1}), in_process.bind(folder, 1, text="x" * 3)):  # type: ignore[arg-type]
        try:
            got += await task.gather(call)
        except Exception as error:
            got.append(f"{type(error).__name__} {error}")
    return got


async def calls_far(task: TaskContext) -> list[Any]:
    folder = task.args["folder"]
    return [os.getpid(), await task.step(far, folder, 1), await far_on_loop(folder, 2)]


async def calls_slow(task: TaskContext) -> None:
    await task.step(takes_its_time, task.args["folder"])


class Enough(Exception):  # noqa: N818 - it is no error
    """What a signal's handler of a body raises."""


@step
def takes_the_slot(folder: str, name: str) -> str:
    note(folder, f"begins {name}")
    wait_for(Path(folder, "end"))
    note(folder, f"ends {name}")
    return name


def gives_up(task: TaskContext) -> list[Any]:
    """It waits for a message until it gets a signal; then its step needs the slot of its worker."""
    folder = task.args["folder"]

    def enough(*_: object) -> None:
        raise Enough

    signal.signal(signal.SIGUSR1, enough)
    try:
        note(folder, f"waits {os.getpid()}")
        task.receive_blocking("x")
    except Enough:
        note(folder, "gave up")
    done = takes_the_slot(folder, task.job_id)
    return [done, task.receive_blocking("x")]


async def gives_up_on_loop(task: TaskContext) -> list[Any]:
    """It waits for a message until there is a file; then its step needs the slot of its worker."""
    folder = task.args["folder"]
    async with anyio.create_task_group() as group:

        async def enough() -> None:
            while not Path(folder, "enough").exists():
                await anyio.sleep(0.005)
            group.cancel_scope.cancel()

        group.start_soon(enough)
        note(folder, f"waits {os.getpid()}")
        await task.receive("x")
    note(folder, "gave up")
    done = await task.step(takes_the_slot, folder, task.job_id)
    return [done, await task.receive("x")]
