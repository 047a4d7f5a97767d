"""The kept steps of a flow that its body has not called yet."""

from __future__ import annotations

from callboard.actors.records.step import StepRecord
from callboard.runtime.engines.kept_steps import KeptSteps


def row(number: int, call: str = "") -> StepRecord:
    return StepRecord(key=number, flow=1, task=1, task_id="j@1/t", name="go", number=number, call=call, began_at=0.0)


def test_what_a_body_gives_up_and_asks_for_again_for_ever_takes_no_more_memory() -> None:
    kept = KeptSteps([row(1), row(2)])
    for _ in range(1_000):
        assert kept.next_in_order("go") == row(1)
        taken = kept.take("go", "")
        assert taken == row(1)
        kept.give_back(taken)
    assert [step.number for step in kept] == [2, 1]
    assert {len(numbers) for numbers in (*kept._in_order.values(), *kept._calls.values())} == {2}
    assert [step and step.number for step in (kept.take("go", ""), kept.take("go", ""), kept.take("go", ""))] == [
        1,
        2,
        None,
    ]
