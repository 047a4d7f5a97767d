"""Reading the histories of flows: many in one call, and no error concerns other flows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from callboard.actors.records.step import StepRecord
from callboard.runtime.dispatch.runners import RunnerPool
from callboard.runtime.errors import JournalError
from callboard.runtime.flows import histories
from callboard.runtime.flows.histories import FLOWS_AT_ONCE, READERS, Histories
from callboard.runtime.journal.contract import Reader

pytestmark = pytest.mark.anyio

FLOWS = 10 * FLOWS_AT_ONCE
DAMAGED = 7


class StepsOf:
    """A reader that has two steps of each flow. It cannot read the flow `DAMAGED`."""

    def steps(self, flow: int) -> list[StepRecord]:
        if flow == DAMAGED:
            raise JournalError("this record is damaged")
        return [StepRecord(key=flow, flow=flow, task=flow, task_id="t", name=name, began_at=1.0) for name in "ab"]


async def read_all(read: Callable[..., Any]) -> list[tuple[int, list[str], str | None]]:
    """Ask for `FLOWS` histories; their answers in the order in which they came."""
    answers: list[tuple[int, list[str], str | None]] = []
    come = anyio.Event()

    def ask(flow: int) -> None:
        def over(steps: list[StepRecord], error: BaseException | None) -> None:
            answers.append((flow, [step.label for step in steps], None if error is None else str(error)))
            if len(answers) == FLOWS:
                come.set()

        found.get(flow, over)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            pool = RunnerPool(group)
            found = Histories(pool, read, lambda: cast("Reader", StepsOf()))
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


async def test_when_nothing_can_be_read_any_more_all_that_wait_are_told() -> None:
    async def read(*_: object) -> Any:
        await anyio.lowlevel.checkpoint()
        raise JournalError("the runtime has closed")

    assert {(tuple(steps), error) for _, steps, error in await read_all(read)} == {((), "the runtime has closed")}
