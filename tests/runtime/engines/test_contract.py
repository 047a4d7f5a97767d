"""The contract of engines (runtime/engines/contract.py), checked for every engine on every event loop."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from callboard.runtime.engines.command.engine import CommandEngine
from callboard.runtime.engines.contract import Call, CommandCall, Engine, EngineClosed

from .helpers import Bench, open_bench, process_call

pytestmark = pytest.mark.anyio
RAY = ("ray", "ray-async")  # plain functions there, and async ones
PROCESSES = {"command", "process", *RAY}  # what can be killed


@pytest.fixture(
    params=["loop", "thread", "command", "process", *(pytest.param(one, marks=pytest.mark.cluster) for one in RAY)]
)
def name(request: pytest.FixtureRequest) -> str:
    if request.param in RAY:
        request.getfixturevalue("ray_here")
    return str(request.param)


async def running(bench: Bench, token: int) -> None:
    """Wait until the body of a patient or stubborn call has begun."""
    engine = bench.engine
    if isinstance(engine, CommandEngine):
        await bench.record.until(lambda: token in bench.record.started)
        await until(lambda: engine.tail(token) == "alive")
    else:
        await bench.record.until(lambda: any(beat[0] == token for beat in bench.record.beats))


async def test_the_engine_has_the_contracts_shape(name: str, tmp_path: Path) -> None:
    async with open_bench(name, tmp_path) as bench:
        engine: Engine = bench.engine
        assert engine.name == name.partition("-")[0]


async def test_a_result_ends_ok_with_its_token(name: str, tmp_path: Path) -> None:
    async with open_bench(name, tmp_path) as bench:
        bench.start(7, "quick")
        assert not bench.record.outcomes  # never inside start()
        outcome = await bench.record.outcome(7)
        assert (outcome.status, outcome.error) == ("ok", None)
        assert outcome.value == (None if name == "command" else "value")
        assert outcome.exit_code == (0 if name == "command" else None)
        assert outcome.duration > 0
        assert bench.record.threads == {threading.get_ident()}


async def test_what_ran_on_the_loop_is_freed_at_its_end_without_the_garbage_collector(tmp_path: Path) -> None:
    async def body() -> str:
        return "value"

    async with open_bench("loop", tmp_path) as bench:
        there = weakref.ref(body)
        gc.disable()
        try:
            bench.start_call(Call(token=7, func=body))
            del body
            await bench.record.outcome(7)
            await until(lambda: there() is None)
        finally:
            gc.enable()


async def test_a_failure_is_described(name: str, tmp_path: Path) -> None:
    async with open_bench(name, tmp_path) as bench:
        bench.start(1, "failing")
        outcome = await bench.record.outcome(1)
        assert outcome.status == "failed"
        assert outcome.error is not None
        assert outcome.error.type == ("exit_code" if name == "command" else "LookupError")
        assert "told to fail" in outcome.error.message
        assert not outcome.error.permanent


async def test_a_stop_ends_a_patient_body_as_cancelled(name: str, tmp_path: Path) -> None:
    async with open_bench(name, tmp_path) as bench:
        context = bench.start(1, "patient", grace=600)  # only the order to stop ends it in time
        await running(bench, 1)
        assert bench.engine.stop(1)
        assert bench.engine.stop(1)  # a second stop is allowed
        assert not bench.record.outcomes  # never inside stop()
        outcome = await bench.record.outcome(1)
        assert outcome.status == "cancelled"
        assert outcome.duration < 600
        assert context.cancelled


async def test_a_stop_before_the_start_means_no_start(name: str, tmp_path: Path) -> None:
    async with open_bench(name, tmp_path) as bench:
        for token in range(1, 6):
            bench.start(token, "patient")
            assert bench.engine.stop(token)
        for token in range(1, 6):
            assert (await bench.record.outcome(token)).status == "cancelled"
        if name == "loop":
            assert not bench.record.beats


async def test_force_does_not_wait_for_manners(name: str, tmp_path: Path) -> None:
    async with open_bench(name, tmp_path) as bench:
        bench.start(1, "stubborn", grace=600)
        await running(bench, 1)
        assert bench.engine.stop(1)
        bench.start(2, "quick")
        await bench.record.outcome(2)
        assert 1 not in bench.record.outcomes
        assert bench.engine.stop(1, force=True)
        outcome = await bench.record.outcome(1)
        if name in PROCESSES:
            assert (outcome.status, outcome.exit_code) == ("cancelled", -9 if name == "command" else None)
            return
        assert outcome.status == "abandoned"
        assert bench.engine.stop(1) is False
        # Its late result is dropped and counted, and nothing else is disturbed.
        bench.release()
        await until(lambda: bench.engine.late_results)
        bench.start(3, "quick")
        assert (await bench.record.outcome(3)).status == "ok"
        assert len(bench.record.outcomes[1]) == 1


async def test_tokens_that_are_gone_are_told_so(name: str, tmp_path: Path) -> None:
    async with open_bench(name, tmp_path) as bench:
        assert bench.engine.stop(1) is False
        assert bench.engine.stop(1, force=True) is False
        bench.start(1, "quick")
        await bench.record.outcome(1)
        assert bench.engine.stop(1) is False
        # The stop of an old token never reaches the call that came after it.
        bench.start(2, "patient")
        await running(bench, 2)
        assert bench.engine.stop(1, force=True) is False
        assert 2 not in bench.record.outcomes
        assert bench.engine.stop(2)
        assert (await bench.record.outcome(2)).status == "cancelled"


async def test_a_token_runs_once_at_a_time(name: str, tmp_path: Path) -> None:
    async with open_bench(name, tmp_path) as bench:
        bench.start(1, "patient")
        with pytest.raises(ValueError, match="1"):
            bench.start(1, "quick")
        await running(bench, 1)
        bench.engine.stop(1)
        assert (await bench.record.outcome(1)).status == "cancelled"


async def test_a_heartbeat_comes_with_its_token_and_details(name: str, tmp_path: Path) -> None:
    async with open_bench(name, tmp_path) as bench:
        bench.start(3, "patient")
        await running(bench, 3)
        expected = [] if name == "command" else [(3, "alive")]
        assert bench.record.beats[:1] == expected
        assert bench.record.threads <= {threading.get_ident()}
        bench.engine.stop(3)
        await bench.record.outcome(3)


async def test_a_worker_that_lives_answers_with_what_runs_there(name: str, tmp_path: Path) -> None:
    async with open_bench(name, tmp_path) as bench:
        assert bench.engine.probe("w-0", 1) == ()
        bench.start(2, "patient")
        await running(bench, 2)
        answer = bench.engine.probe("w-0", 1)
        if name == "process" or name in RAY:
            assert answer is None
            await bench.record.until(lambda: bench.record.alive)
            assert bench.record.alive == [("w-0", 1, (2,))]
        else:
            assert answer == (2,)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_death_from_outside_is_told_once(name: str, tmp_path: Path, number: int) -> None:
    if name not in PROCESSES:
        return  # they end with this program, and no test is left to get a report
    if name in RAY and number != signal.SIGKILL:
        return  # Ray's processes take their time to end by that
    async with open_bench(name, tmp_path) as bench:
        bench.start(2, "patient")
        await running(bench, 2)
        os.kill(bench.pid(2), number)
        outcome = await bench.record.outcome(2)
        assert outcome.error is not None
        if name not in RAY:
            assert signal.Signals(number).name in outcome.error.message
        if name == "command":
            assert (outcome.status, outcome.error.type) == ("failed", "killed_by_signal")
        else:
            assert (outcome.status, outcome.error.type) == ("lost", "worker_lost")
            assert [died[:2] for died in bench.record.died] == [("w-0", 1)]
        bench.start(3, "quick")
        assert (await bench.record.outcome(3)).status == "ok"


async def test_many_calls_end_exactly_once(name: str, tmp_path: Path) -> None:
    count = {"command": 12, "process": 60, "ray": 60}.get(name, 300)
    async with open_bench(name, tmp_path) as bench:
        for token in range(1, count + 1):
            bench.start(token, "failing" if token % 3 == 0 else "quick")
            if token % 4 == 0:
                bench.engine.stop(token)
        await bench.record.until(lambda: len(bench.record.outcomes) == count)
        await bench.engine.close(5)
    assert all(len(outcomes) == 1 for outcomes in bench.record.outcomes.values())
    assert not bench.engine.late_results


async def test_close_waits_for_what_ends_when_it_is_told_to_and_refuses_more(name: str, tmp_path: Path) -> None:
    async with open_bench(name, tmp_path) as bench:
        for token in (1, 2):
            bench.start(token, "patient", grace=600)
            await running(bench, token)
        await bench.engine.close(600)
        for token in (1, 2):
            assert (await bench.record.outcome(token)).status == "cancelled"
        with pytest.raises(EngineClosed):
            bench.start(3, "quick")
        await bench.engine.close(600)  # a second close does nothing
    assert set(bench.record.outcomes) == {1, 2}


async def test_close_ends_what_does_not_end_by_itself(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in PROCESSES:  # on a busy machine the report of a killed process comes late
        monkeypatch.setattr("callboard.runtime.engines.base._PATIENCE", 120)
    async with open_bench(name, tmp_path) as bench:
        bench.start(2, "stubborn", grace=600)
        await running(bench, 2)
        await bench.engine.close(0.3)
        assert (await bench.record.outcome(2)).status == ("cancelled" if name in PROCESSES else "abandoned")
        with pytest.raises(EngineClosed):
            bench.start(3, "quick")
    assert set(bench.record.outcomes) == {2}


async def test_an_engine_that_was_never_opened_refuses(name: str, tmp_path: Path) -> None:
    async with open_bench(name, tmp_path) as bench:
        await bench.engine.close(1)
        with pytest.raises(EngineClosed, match="not open"):
            bench.start(1, "quick")


async def test_a_call_that_the_engine_cannot_run(name: str, tmp_path: Path) -> None:
    async with open_bench(name, tmp_path) as bench:
        if name == "command":
            for wrong in (None, CommandCall(), CommandCall(argv=["true"], shell="true")):
                with pytest.raises(ValueError, match="command"):
                    bench.start_call(Call(token=1, command=wrong))
            assert bench.engine.stop(1) is False
        elif name == "process" or name in RAY:
            for unknown in (None, process_call("quick", function="quick")):
                with pytest.raises(ValueError, match="import path"):
                    bench.start_call(Call(token=1, process=unknown))
            assert bench.engine.stop(1) is False
        else:
            bench.start_call(Call(token=1))
            error: Any = (await bench.record.outcome(1)).error
            assert "no function" in error.message
