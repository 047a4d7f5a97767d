"""The saga of `examples/saga.py`, killed at every step and at random instants: each request is made once."""

from __future__ import annotations

import random
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.forks import Forks
from tests.runtime.handles.test_jobs import audited

EXAMPLES = Path(__file__).parents[3] / "examples"
ONCE = ["charge A7", "reserve A7", "ask a carrier for A7", "release A7", "refund A7"]
PROGRAM = """
import os, sys
sys.path.insert(0, {examples!r})
dies_at, after = int(sys.argv[2]), sys.argv[3] == "after"
import anyio, saga

real, asked = saga.request, 0

def request(key, what):
    global asked
    asked += 1
    if asked == dies_at and not after:
        os.kill(os.getpid(), 9)
    real(key, what)
    if asked == dies_at and after:
        os.kill(os.getpid(), 9)  # done, and its step is not kept yet

saga.request, saga.TAKES = request, 0.05
anyio.run(saga.main, backend={loop!r})
"""


def program_of(folder: Path, loop: str) -> Path:
    program = folder / "program.py"
    program.write_text(PROGRAM.format(examples=str(EXAMPLES), loop=loop))
    return program


def completed(forks: Forks, program: Path, folder: Path) -> None:
    """Run the saga to its end, and check that each request was made once, in order."""
    done = forks.run(program, folder, 0, "never")
    assert done.stdout.splitlines() == ["cancelled: no carrier goes there", *(f"- {what}" for what in ONCE)], (
        done.stderr
    )
    with closing(sqlite3.connect(folder / "others.db")) as others:
        assert [what for (what,) in others.execute("SELECT what FROM done ORDER BY number")] == ONCE
    assert audited(folder / "orders.db") == []


@pytest.mark.slow
@pytest.mark.parametrize(("when", "loop"), [("before", "asyncio"), ("after", "trio")])
def test_killed_at_every_step_a_saga_charges_and_compensates_once(when: str, loop: str, tmp_path: Path) -> None:
    program = program_of(tmp_path, loop)
    with Forks(tmp_path) as forks:
        for dies_at in range(1, len(ONCE) + 1):
            folder = tmp_path / str(dies_at)
            killed = forks.run(program, folder, dies_at, when)
            assert killed.returncode == -9, killed.stderr
            completed(forks, program, folder)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_so_does_one_that_is_killed_at_random_instants(loop: str, tmp_path: Path) -> None:
    program, chance = program_of(tmp_path, loop), random.Random(11)
    folder = tmp_path / "random"
    kills = 0
    with Forks(tmp_path) as forks:
        for _ in range(6):
            running = forks.start(program, folder, 0, "never")
            while running.poll() is None and not (folder / "orders.db").exists():
                time.sleep(0.005)
            time.sleep(chance.random() * 0.1)  # the whole takes five times 0.05 s, at least
            running.kill()
            kills += running.wait() == -9
        assert kills
        completed(forks, program, folder)
