"""The consequences of the end of a task with very many dependents: in small turns, and correct after each."""

from __future__ import annotations

from typing import Any

import pytest
from tests.actors.stage import KernelHarness, fails, flow, hangs, task

from callboard.actors.jobs import workstream
from callboard.actors.jobs.workstream import WorkstreamActor
from callboard.actors.messages.inputs import REBUILT, Continue
from callboard.actors.spec.model import Task, Workstream

CHUNK = 20
MANY = 3 * CHUNK + 7


@pytest.fixture(autouse=True)
def _small_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workstream, "CHUNK", CHUNK)


def fan(count: int, **first: Any) -> Workstream:
    """`count` tasks that depend on one task, a task that depends on the last of them, and a clean-up task."""
    return flow(
        task("first", **first),
        *(task(f"t{number}", "first") for number in range(count)),
        task("last", f"t{count - 1}"),
        Task("tidy", run="m:f", after=["first"]),
    )


def largest(stage: KernelHarness, since: int = 0) -> int:
    """The transitions of the largest turn."""
    return max(len(turn.transitions) for turn in stage.kept.turns[since:])


def failing(count: int = MANY, *, copies: bool = False, **first: Any) -> KernelHarness:
    """A stage where many tasks depend on a task that fails when the test ends it."""
    stage = KernelHarness(copies=copies)
    stage.scripts["first"] = hangs
    stage.submit(fan(count, **first))
    return stage


def end(stage: KernelHarness, status: str = "failed", *, turns: int | None = None) -> None:
    """End the first task, and run the turns that follow from it; at most `turns` of them, if given."""
    stage.end(stage.token("first"), status, error=None if status == "ok" else "boom")
    while stage.inputs and turns != 0:
        stage.kernel.run(stage.inputs.popleft())
        turns = None if turns is None else turns - 1


def ended(stage: KernelHarness) -> dict[str, int]:
    """The number of tasks in each state."""
    states = list(stage.states().values())
    return {state: states.count(state) for state in sorted(set(states))}


def test_thousands_that_wait_for_a_task_that_fails_are_skipped_in_small_turns() -> None:
    stage = failing()
    before = len(stage.kept.turns)
    end(stage)
    assert ended(stage) == {"completed": 1, "failed": 1, "skipped": MANY + 1}  # tidy completed
    assert stage.state() == "failed"
    assert largest(stage, before) <= CHUNK + 20
    assert stage.audit() == []


def test_those_that_wait_for_an_optional_one_that_fails_are_skipped_as_void_and_all_is_well() -> None:
    stage = failing(optional=True)
    before = len(stage.kept.turns)
    end(stage)
    assert {stage.task(f"t{number}").standing for number in range(MANY)} == {"void"}
    assert stage.state() == "completed"
    assert largest(stage, before) <= CHUNK + 20


def test_what_follows_from_many_that_are_skipped_is_told_in_small_turns_too() -> None:
    middle = [task(f"m{number}", "first") for number in range(8)]
    stage = KernelHarness(copies=False)
    stage.scripts["first"] = fails()
    stage.submit(flow(task("first"), *middle, *(task(f"t{number}", f"m{number % 8}") for number in range(MANY))))
    assert ended(stage) == {"failed": 1, "skipped": 8 + MANY}
    assert largest(stage) <= 2 * CHUNK  # a turn ends with the dependents of one task


def test_thousands_that_wait_for_a_task_that_completes_run_in_their_order() -> None:
    stage = failing()
    before = len(stage.kept.turns)
    end(stage, "ok")
    assert stage.state() == "completed"
    assert [name for name in stage.bodies() if name.startswith("t") and name != "tidy"] == [
        f"t{number}" for number in range(MANY)
    ]
    assert largest(stage, before) <= 3 * CHUNK
    assert stage.audit() == []


@pytest.mark.parametrize("status", ["ok", "failed"])
def test_a_crash_at_any_turn_between_the_parts_leaves_none_of_them_waiting_for_ever(status: str) -> None:
    stage = failing(copies=True)
    begun = len(stage.kept.turns)
    end(stage, status)
    expected = ended(stage)
    for cut in range(begun + 1, min(len(stage.kept.turns), begun + 8)):
        after = stage.after_crash(cut)
        after.advance(60)  # those whose bodies ran are lost, and tried again
        assert ended(after) == expected, cut
        assert after.state() == stage.state()
        assert after.audit() == []


def test_a_turn_that_is_undone_between_the_parts_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = failing(optional=True)
    go_on, raised = WorkstreamActor.on_continue, []

    def broken(self: WorkstreamActor, message: Continue) -> None:
        go_on(self, message)
        if not raised:
            raised.append(self)
            raise RuntimeError("no")

    monkeypatch.setitem(WorkstreamActor.receivers, Continue, broken)
    end(stage)
    assert raised
    assert stage.state() == "failed"  # because its own turn raised
    assert "pending" not in ended(stage)
    assert stage.audit() == []


def test_another_entitys_turn_that_is_undone_between_the_parts_loses_none() -> None:
    stage = failing(optional=True)
    end(stage, turns=1)
    assert ended(stage)["pending"] > CHUNK
    stage.inputs.clear()  # the inputs that had still to be handled are lost
    stage.kernel.recovery.rebuild()
    stage.send(REBUILT)
    assert stage.state() == "completed"
    assert "pending" not in ended(stage)


def test_a_cancel_between_the_parts_cancels_those_that_are_left() -> None:
    stage = failing(optional=True)
    end(stage, turns=1)
    assert ended(stage)["pending"] > CHUNK
    stage.cancel(stage.kernel.jobs["job"])
    states = ended(stage)
    assert stage.state() == "cancelled"
    assert states["skipped"] <= 2 * CHUNK  # one chunk, and the next one, which was requested already
    assert states["cancelled"] >= MANY - 2 * CHUNK
    assert stage.audit() == []
