"""An engine that is made with its first call (runtime/engines/late.py)."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from callboard.runtime.engines.base import BaseEngine
from callboard.runtime.engines.command.engine import CommandEngine
from callboard.runtime.engines.contract import Call, CommandCall, Engine, EngineClosed
from callboard.runtime.engines.late import LateEngine
from callboard.runtime.engines.process.engine import ProcessEngine

from .helpers import Record, process_call

pytestmark = pytest.mark.anyio


def beats(token: int, details: Any) -> None:
    """Ignore heartbeats."""


def command(token: int, line: str) -> Call:
    return Call(token=token, command=CommandCall(shell=line))


async def test_it_is_made_with_the_first_call_and_once() -> None:
    made: list[CommandEngine] = []
    record = Record()

    def make() -> CommandEngine:
        made.append(CommandEngine())
        return made[-1]

    late: Engine = LateEngine("command", make)
    await late.open()
    late.start_worker("w", 1)
    late.stop_worker("w", 1, 1.0)
    late.kill_worker("w", 1)
    late.release()
    assert (late.stop(1), late.tail(1), late.probe("w", 1), made) == (False, "", (), [])
    for token in (1, 2):
        late.start(command(token, "true"), record.ended, beats)
        assert (await record.outcome(token)).status == "ok"
    assert len(made) == 1
    late.start(command(3, "sleep 600"), record.ended, beats)
    assert late.probe("w", 1) == (3,)
    await late.close(60)
    assert (await record.outcome(3)).status == "cancelled"
    with pytest.raises(EngineClosed):
        late.start(command(4, "true"), record.ended, beats)


async def test_a_call_is_refused_before_it_is_open_and_after_it_was_closed_without_one() -> None:
    late = LateEngine("command", CommandEngine)
    with pytest.raises(EngineClosed, match="the command engine is not open"):
        late.start(command(1, "true"), beats, beats)
    late = LateEngine("command", CommandEngine)
    await late.open()
    await late.close(60)
    with pytest.raises(EngineClosed, match="the command engine is not open"):
        late.start(command(1, "true"), beats, beats)


async def test_it_knows_the_workers_from_before_its_first_call(tmp_path: Path) -> None:
    record = Record()
    late = LateEngine("process", ProcessEngine)
    await late.open()
    late.start_worker("w-1", 2)
    late.start_worker("w-1", 1)  # an order that comes late
    late.start_worker("w-0", 2)
    late.forget_worker("w-0")
    for token in (1, 2):  # on w-1 and w-0, as their first incarnations
        late.start(Call(token=token, process=process_call("quick", token)), record.ended, beats)
    assert (await record.outcome(1)).status == "lost"
    assert (await record.outcome(2)).status == "ok"
    await late.close(60)


async def test_what_cannot_be_imported_now_is_tried_again_with_the_next_call() -> None:
    record = Record()
    shortages = [OSError(errno.EMFILE, "too many open files")]

    def make() -> BaseEngine[Any]:
        if shortages:
            raise shortages.pop()
        return CommandEngine()

    late = LateEngine("command", make)
    await late.open()
    with pytest.raises(OSError, match="too many open files"):
        late.start(command(1, "true"), record.ended, beats)
    late.start(command(1, "true"), record.ended, beats)
    assert (await record.outcome(1)).status == "ok"
    await late.close(60)
