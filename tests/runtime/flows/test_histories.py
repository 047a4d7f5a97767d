"""Reading the histories of flows: many in one call, and no error concerns other flows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from callboard import Retry, Runtime, Task, Workstream, step
from callboard.actors.records.step import StepRecord
from callboard.runtime.dispatch.runners import PoolClosed, RunnerPool
from callboard.runtime.errors import JournalError
from callboard.runtime.flows import histories
from callboard.runtime.flows.histories import FLOWS_AT_ONCE, READERS, Histories
from callboard.runtime.journal.contract import Reader
from callboard.runtime.journal.sqlite.reader import SqliteReader

pytestmark = pytest.mark.anyio

FLOWS = 10 * FLOWS_AT_ONCE
DAMAGED = 7


class StepsOf:
    """A reader that has two steps of each flow. It cannot read the flow `DAMAGED`."""

    def steps(self, flow: int) -> list[StepRecord]:
        if flow == DAMAGED:
            raise JournalError("this record is damaged")
        return [StepRecord(key=flow, flow=flow, task=flow, task_id="t", name=name, began_at=1.0) for name in "ab"]


async def read_all(
    read: Callable[..., Any], paused: list[float] | None = None
) -> list[tuple[int, list[str], str | None]]:
    """Ask for `FLOWS` histories; their answers in the order in which they came. paused: gets the pauses, in seconds,
    which last no time here.
    """
    answers: list[tuple[int, list[str], str | None]] = []
    come = anyio.Event()

    def ask(flow: int) -> None:
        def over(steps: list[StepRecord], error: BaseException | None) -> None:
            answers.append((flow, [step.label for step in steps], None if error is None else str(error)))
            if len(answers) == FLOWS:
                come.set()

        found.get(flow, over)

    def after(seconds: float, do: Callable[[], object]) -> None:
        if paused is not None:
            paused.append(seconds)
        do()

    with anyio.fail_after(300):
        async with anyio.create_task_group() as group:
            pool = RunnerPool(group)
            found = Histories(pool, read, lambda: cast("Reader", StepsOf()), after)
            for flow in range(FLOWS):
                ask(flow)
            await come.wait()
            pool.close()
    return answers


async def test_many_histories_are_read_in_few_calls_in_the_order_of_the_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    async def read(ask: Callable[..., Any], reader: StepsOf, flows: list[int]) -> Any:
        calls.append(len(flows))
        await anyio.lowlevel.checkpoint()
        return ask(reader, flows)

    monkeypatch.setattr(histories, "STEPS_AT_ONCE", 10)  # five flows: then the call ends, whatever it was asked
    answers = await read_all(read)
    assert sorted(flow for flow, _, _ in answers) == list(range(FLOWS))
    assert {(tuple(steps), error) for flow, steps, error in answers if flow != DAMAGED} == {(("a", "b"), None)}
    assert [(steps, error) for flow, steps, error in answers if flow == DAMAGED] == [([], "this record is damaged")]
    monkeypatch.undo()
    calls.clear()
    assert len(await read_all(read)) == FLOWS
    assert len(calls) <= FLOWS // FLOWS_AT_ONCE + READERS


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), JournalError("this one failed")], ids=str)
async def test_an_error_of_one_call_concerns_its_flows_only_and_none_if_it_is_a_shortage(error: Exception) -> None:
    failed: list[int] = []
    paused: list[float] = []

    async def read(ask: Callable[..., Any], reader: StepsOf, flows: list[int]) -> Any:
        await anyio.lowlevel.checkpoint()
        if not failed:
            failed.extend(flows)
            raise error
        return ask(reader, flows)

    answers = await read_all(read, paused)
    assert sorted(flow for flow, _, _ in answers) == list(range(FLOWS))
    told = [flow for flow, _, text in answers if text == str(error)]
    assert told == ([] if "thread" in str(error) else failed)
    assert len(paused) == 1
    assert paused[0] > 0


async def test_when_nothing_can_be_read_any_more_all_that_wait_are_told() -> None:
    async def read(*_: object) -> Any:
        await anyio.lowlevel.checkpoint()
        raise PoolClosed("the runtime has closed")

    paused: list[float] = []
    answers = await read_all(read, paused)
    assert {(tuple(steps), error) for _, steps, error in answers} == {((), "the runtime has closed")}
    assert not paused


async def test_who_asks_when_the_pool_is_closed_is_told_and_no_reader_is_counted() -> None:
    refusals: list[BaseException | None] = []
    async with anyio.create_task_group() as group:
        pool = RunnerPool(group)
        pool.close()
        found = Histories(
            pool, lambda *_: anyio.lowlevel.checkpoint(), lambda: cast("Reader", StepsOf()), lambda *_: None
        )
        for flow in range(READERS + 1):
            found.get(flow, lambda _, error: refusals.append(error))
    assert [type(error) for error in refusals] == [PoolClosed] * (READERS + 1)


async def test_a_flow_whose_history_cannot_be_read_loses_an_attempt_and_repeats_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    @step
    async def charge() -> str:
        ran.append("charge")
        return "paid"

    async def body() -> str:
        paid = await charge()
        ran.append("body")
        if len(ran) == 2:
            raise ConnectionError("try again")
        return paid

    def steps(self: SqliteReader, flow: int) -> Any:
        if ran == ["charge", "body"]:
            ran.append("read")
            raise sqlite3.DatabaseError("database disk image is malformed")
        return readable(self, flow)

    readable = SqliteReader.steps
    monkeypatch.setattr(SqliteReader, "steps", steps)
    async with Runtime(tmp_path / "j.db") as runtime:
        runtime.task(name="body")(body)
        soon = Retry(max_attempts=2, base_delay=0.0, jitter=0.0)
        job = await runtime.submit(Workstream("w", tasks=[Task("t", run="body", retry=soon)]), id="j")
        outcome = await job.wait()
        assert outcome.results == {"t": "paid"}
        assert ran == ["charge", "body", "read", "body"]
        assert outcome.tasks["t"].lost_attempts == 1
        moves = runtime._services.journal.reader.transitions(entity_id="j@1/t")
        assert [move.to_state for move in moves if "disk image is malformed" in (move.reason or "")][-1] == "retrying"
