"""Programs with a runtime and without signal handlers: SIGTERM and Ctrl+C end them in order."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from callboard import Runtime
from callboard.runtime.journal.sqlite.journal import SqliteReader

PROGRAM = """
import asyncio, os, pathlib, signal, sys
import anyio
from callboard import Runtime, Task, Workstream
from callboard.errors import RuntimeClosed

async def work():
    print("running", flush=True)
    while not pathlib.Path("gate").exists():
        await anyio.sleep(0.01)

BEFORE = {BEFORE}

async def main():
    runtime = Runtime("state.db", signals=True, drain_deadline={DEADLINE})
    {BODY}
    assert not runtime.is_open
    assert signal.getsignal(signal.SIGTERM) is BEFORE
    print("after it", flush=True)

async def submitted(runtime):
    return await runtime.submit(Workstream("w", tasks=[Task("work", run=work)]), id="one")

{RUN}
"""
INSIDE = """
    async with runtime:
        print((await (await submitted(runtime)).wait()).state, flush=True)
        await anyio.sleep_forever()
"""
OPENED = """
    await runtime.open()
    try:
        print((await (await submitted(runtime)).wait()).state, flush=True)
        while runtime.is_open:
            await anyio.sleep(0.01)
    except RuntimeClosed:
        pass
    await runtime.close()
"""
RUNS = {
    "asyncio": "asyncio.run(main())",
    "uvloop": "anyio.run(main, backend_options={'use_uvloop': True})",
    "trio": "anyio.run(main, backend='trio')",
}
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start(run: str, body: str = INSIDE, *, deadline: float = 60, before: str = "signal.SIG_DFL") -> object:
        text = PROGRAM.replace("{BODY}", body.strip()).replace("{RUN}", RUNS[run])
        text = text.replace("{DEADLINE}", str(deadline)).replace("{BEFORE}", before)
        file = tmp_path / "program.py"
        file.write_text(text)
        one = subprocess.Popen(
            [sys.executable, file.name], cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        started.append(one)
        assert one.stdout is not None
        assert one.stdout.readline() == "running\n"
        return one

    yield start  # type: ignore[misc] # it is a Popen
    for one in started:
        one.kill()
        one.communicate()


def state(folder: Path) -> str:
    reader = SqliteReader(folder / "state.db")
    try:
        return str(reader.tasks(reader.workstreams("one")[0].key)[0].state)
    finally:
        reader.close()


@pytest.mark.parametrize("body", [INSIDE, OPENED], ids=["inside", "opened"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("run", RUNS)
def test_what_runs_may_end_and_the_program_goes_on_after_it(
    tmp_path: Path, start: Start, run: str, number: signal.Signals, body: str
) -> None:
    program = start(run, body)
    program.send_signal(number)
    (tmp_path / "gate").touch()
    out, err = program.communicate(timeout=600)
    assert (program.returncode, out, err) == (0, "completed\nafter it\n", "")
    assert state(tmp_path) == "completed"


@pytest.mark.parametrize("body", [INSIDE, OPENED], ids=["inside", "opened"])
@pytest.mark.parametrize("run", ["asyncio", "trio"])
def test_what_does_not_end_is_given_back(tmp_path: Path, start: Start, run: str, body: str) -> None:
    program = start(run, body, deadline=0.1)
    program.send_signal(signal.SIGTERM)
    out, err = program.communicate(timeout=600)
    assert (program.returncode, out, err) == (0, "after it\n", "")
    assert state(tmp_path) == "queued"


@pytest.mark.parametrize("run", ["asyncio", "trio"])
def test_a_second_signal_stops_what_runs(tmp_path: Path, start: Start, run: str) -> None:
    program = start(run, deadline=600)
    program.send_signal(signal.SIGTERM)
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=600)
    assert (program.returncode, out, err) == (0, "after it\n", "")
    assert state(tmp_path) == "queued"


def test_a_third_signal_does_what_it_would_have_done_also_where_the_loop_does_not_turn(start: Start) -> None:
    blocks = INSIDE.replace("await (await submitted(runtime)).wait()", "await submitted(runtime)").replace(
        "await anyio.sleep_forever()", "print('running', flush=True)\n        while True: pass"
    ).replace(".state, flush=True", ".state")  # fmt: skip
    program = start("asyncio", blocks)
    limit = 600
    while program.poll() is None and limit:
        program.send_signal(signal.SIGTERM)
        limit -= 1
        try:
            program.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
    assert program.returncode == -signal.SIGTERM


@pytest.mark.parametrize("run", ["asyncio", "trio"])
def test_what_the_program_handles_is_left_to_it(tmp_path: Path, start: Start, run: str) -> None:
    # Not by print: where the signal interrupts one, that raises in the body.
    handles = "lambda *_: os.write(1, b'mine\\n')\nsignal.signal(signal.SIGTERM, BEFORE)"
    program = start(run, before=handles)
    program.send_signal(signal.SIGTERM)
    assert program.stdout is not None
    assert program.stdout.readline() == "mine\n"
    program.send_signal(signal.SIGINT)
    (tmp_path / "gate").touch()
    out, err = program.communicate(timeout=600)
    assert (program.returncode, out, err) == (0, "completed\nafter it\n", "")


@pytest.mark.anyio
async def test_only_one_runtime_takes_them() -> None:
    before = signal.getsignal(signal.SIGTERM)
    async with Runtime(signals=True):
        with pytest.raises(RuntimeError, match="another runtime of this program takes its signals"):
            await Runtime(signals=True).open()
    assert signal.getsignal(signal.SIGTERM) is before
    async with Runtime(signals=True):
        pass


def test_another_thread_cannot_have_them() -> None:
    raised: list[BaseException] = []

    def elsewhere() -> None:
        try:
            anyio.run(Runtime(signals=True).open)
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0])
