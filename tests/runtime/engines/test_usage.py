"""The processor time and memory of commands and bodies in worker processes."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import pytest

from callboard.runtime.calling import Outcome
from callboard.runtime.engines import usage
from callboard.runtime.engines.contract import Call, CommandCall
from callboard.runtime.engines.usage import UNKNOWN, Meter, own_peak, used_by_child

from .helpers import Bench, open_bench, process_call
from .process_bodies import BURNT, FILLED

pytestmark = pytest.mark.anyio
linux = pytest.mark.skipif(sys.platform != "linux", reason="the peak is reset by Linux only")

PYTHON = [sys.executable, "-S", "-c"]
BURNS = f"import time\nwhile time.process_time() < {BURNT}: pass"


async def run(bench: Bench, script: str, token: int = 1) -> Outcome:
    """Run a command of Python to its end."""
    bench.start_call(Call(token=token, command=CommandCall(argv=[*PYTHON, script])))
    return await bench.record.outcome(token)


async def ended(bench: Bench, behaviour: str, token: int) -> Outcome:
    """Run a body of `process_bodies` to its end, in one process with all that have an even token."""
    bench.start_call(Call(token=token, process=process_call(behaviour, token)))
    return await bench.record.outcome(token)


async def test_a_command_is_told_with_what_it_and_its_children_used(tmp_path: Path) -> None:
    size = own_peak() * 3 // 2
    fills = f"kept = b'x' * {size}\nprint(len(kept))"
    async with open_bench("command", tmp_path) as bench:
        burnt = await run(bench, BURNS)
        assert burnt.cpu_seconds is not None
        assert burnt.cpu_seconds >= BURNT
        by_child = await run(bench, f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURNS!r}])", 2)
        assert by_child.cpu_seconds is not None
        assert by_child.cpu_seconds >= BURNT
        filled = await run(bench, fills, 3)
        assert filled.peak_memory_bytes is not None
        assert size <= filled.peak_memory_bytes
        failed = await run(bench, f"{BURNS}\nraise SystemExit(3)", 4)
        assert (failed.status, failed.exit_code) == ("failed", 3)
        assert failed.cpu_seconds is not None
        assert failed.cpu_seconds >= BURNT


async def test_a_small_command_is_not_told_with_the_memory_of_the_program_that_started_it(tmp_path: Path) -> None:
    async with open_bench("command", tmp_path) as bench:
        outcome = await run(bench, "pass")
    assert outcome.cpu_seconds is not None
    assert outcome.peak_memory_bytes is None


async def test_a_command_that_never_started_used_nothing_that_is_known(tmp_path: Path) -> None:
    async with open_bench("command", tmp_path) as bench:
        bench.start_call(Call(token=1, command=CommandCall(argv=["/nowhere/at/all"])))
        outcome = await bench.record.outcome(1)
    assert (outcome.status, outcome.cpu_seconds, outcome.peak_memory_bytes) == ("failed", None, None)


async def test_a_body_in_a_process_is_told_with_what_it_used_and_not_what_others_did(tmp_path: Path) -> None:
    async with open_bench("process", tmp_path) as bench:
        for token, behaviour in ((2, "burns"), (4, "has_one_burn"), (6, "burns_and_fails")):
            burnt = await ended(bench, behaviour, token)
            assert burnt.cpu_seconds is not None, behaviour
            assert burnt.cpu_seconds >= BURNT, behaviour
        after = await ended(bench, "quick", 8)
        assert after.cpu_seconds is not None
        assert after.cpu_seconds < BURNT


@linux
async def test_the_peak_of_a_body_is_its_own(tmp_path: Path) -> None:
    async with open_bench("process", tmp_path) as bench:
        before = await ended(bench, "quick", 2)
        filled = await ended(bench, "fills", 4)
        after = await ended(bench, "quick", 6)
    assert before.peak_memory_bytes is not None
    assert filled.peak_memory_bytes is not None
    assert after.peak_memory_bytes is not None
    assert before.peak_memory_bytes + FILLED // 2 < filled.peak_memory_bytes
    assert after.peak_memory_bytes < filled.peak_memory_bytes - FILLED // 2


@linux
async def test_of_a_body_that_its_process_died_under_the_peak_is_known(tmp_path: Path) -> None:
    async with open_bench("process", tmp_path) as bench:
        lost = await ended(bench, "outgrows_its_parent_and_dies", 2)
    assert (lost.status, lost.cpu_seconds) == ("lost", None)
    assert lost.peak_memory_bytes is not None
    assert own_peak() < lost.peak_memory_bytes


def test_a_peak_that_the_parent_could_have_had_is_not_known() -> None:
    _, _, told = os.wait4(os.spawnv(os.P_NOWAIT, sys.executable, [*PYTHON, "pass"]), 0)
    peak = told.ru_maxrss * 1024
    assert used_by_child(told, peak).peak_memory_bytes is None
    assert used_by_child(told, peak // 2).peak_memory_bytes == peak
    assert used_by_child(told, 0).cpu_seconds == told.ru_utime + told.ru_stime


def test_where_the_peak_cannot_be_reset_only_a_new_one_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(usage, "_RESET", tmp_path / "nowhere" / "clear_refs")
    meter = Meter()
    assert meter.used().peak_memory_bytes is None
    kept = b"x" * own_peak()
    assert meter.used().peak_memory_bytes == resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > len(kept)
    assert Meter().used().peak_memory_bytes is None
    assert UNKNOWN == (None, None)
