"""Approvals from Python: the verbs of the handles, what is listed, and who is in a team."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from callboard import (
    Approval,
    Clause,
    DecisionConflict,
    DecisionRefused,
    Hook,
    InvalidTransitionError,
    Notice,
    Runtime,
    Task,
    VirtualClock,
    Workstream,
)

pytestmark = pytest.mark.anyio


async def nothing() -> None: ...


def operators(team: str) -> list[str]:
    return {"ops": ["ana", "Ben"]}[team]


async def operators_later(team: str) -> Iterator[str]:
    await anyio.lowlevel.checkpoint()
    return iter(operators(team))


def held(hold: Approval | None = None, **more: Any) -> Workstream:
    return Workstream("w", tasks=[Task("deploy", run=nothing, hold=hold or Approval(), **more)])


async def test_a_task_is_approved_and_the_second_one_is_told_by_whom() -> None:
    async with Runtime() as runtime:
        job = await runtime.submit(held(Approval(people=2)), by="dan")
        (pending,) = job.approvals()
        assert runtime.approvals() == [pending]
        assert (pending.kind, pending.entity_id, pending.task) == ("task", f"{job.id}@1/deploy", "deploy")
        assert (pending.missing, pending.approved_by, pending.submitted_by) == (["2 people"], [], "dan")
        assert round(pending.expires_at - pending.since) == 72 * 3600
        task = job.task("deploy")
        with pytest.raises(DecisionRefused, match="dan submitted it"):
            await task.approve(by="dan")
        await task.approve(by="ana", reason="fine")
        assert [one.approved_by for one in job.approvals()] == [["ana"]]
        await task.approve(by="ben")
        assert (await job.wait()).ok
        assert not job.approvals()
        with pytest.raises(DecisionConflict, match="approved by ben") as told:  # though its actor is gone
            await task.reject(by="cho")
        assert told.value.decision.by == "ben"


async def test_a_rejection_cancels_and_says_why() -> None:
    async with Runtime() as runtime:
        seen = runtime.events()
        job = await runtime.submit(held(on_cancelled=[Hook(run=nothing)]))
        await job.task("deploy").reject(by="ben", reason="too risky")
        outcome = await job.wait()
        assert outcome.error == "task 'deploy' was rejected by ben: too risky"
        seen.close()
        rejected = [event async for event in seen if event.event == "reject"]  # type: ignore[union-attr]
        assert [(event.reason, event.metadata) for event in rejected] == [("too risky", {"by": "ben"})]


async def test_the_hold_of_a_workstream() -> None:
    spec = Workstream("w", tasks=[Task("a", run=nothing)], hold=Approval())
    async with Runtime() as runtime:
        job = await runtime.submit(spec)
        assert [(one.kind, one.task) for one in job.approvals()] == [("workstream", None)]
        await job.approve(by="ana")
        assert (await job.wait()).ok
        with pytest.raises(DecisionConflict, match="approved by ana"):
            await job.approve(by="ben")
        other = await runtime.submit(spec)
        await other.reject(by="ben")
        assert (await other.wait()).state == "cancelled"
        found = await runtime.job(other.id)
        with pytest.raises(InvalidTransitionError, match="'reject' is not possible in state 'cancelled'"):
            await found.reject(by="ana")


@pytest.mark.parametrize("members", [operators, operators_later])
async def test_whoever_is_in_the_team_may(members: Any) -> None:
    async with Runtime() as runtime:
        job = await runtime.submit(held(Approval(clauses=[Clause(team="ops", people=2, members=members)])))
        task = job.task("deploy")
        with pytest.raises(DecisionRefused, match="cho meets no clause; it waits for 2 people of team ops"):
            await task.approve(by="cho")
        await task.approve(by="ana")
        assert [one.missing for one in job.approvals()] == [["1 of 2 people of team ops"]]
        await task.approve(by="ben")
        assert (await job.wait()).ok


def broken(team: str) -> list[str]:
    raise OSError("no directory")


def one_name(team: str) -> str:
    return "ana"


@pytest.mark.parametrize(("members", "why"), [(broken, "no directory"), (one_name, "and not the names of people")])
async def test_a_check_that_cannot_be_made_counts_as_no(members: Any, why: str) -> None:
    told: list[Notice] = []
    runtime = Runtime()
    runtime.on_trouble = told.append
    async with runtime:
        job = await runtime.submit(held(Approval(people=1, clauses=[Clause(team="ops", members=members)])))
        await job.task("deploy").approve(by="ana")
        assert [one.missing for one in job.approvals()] == [["1 person of team ops"]]
        (notice,) = told
        assert (notice.event, notice.entity_id, notice.facts["team"]) == ("team_unknown", f"{job.id}@1/deploy", "ops")
        assert why in notice.text
        await job.cancel()


async def test_72_hours_pass_in_no_time() -> None:
    clock = VirtualClock()
    async with Runtime(clock=clock) as runtime:
        job = await runtime.submit(held())
        clock.advance(72 * 3600)
        runtime.approvals()
        outcome = await job.wait()
        assert outcome.tasks["deploy"].decisions[-1].verdict == "expired"


@pytest.mark.parametrize("by", ["", " ", "x" * 201])
async def test_who_decides_has_a_name(by: str) -> None:
    async with Runtime() as runtime:
        job = await runtime.submit(held())
        with pytest.raises(ValueError, match="`by` is the name of who decides"):
            await job.task("deploy").approve(by=by)
        with pytest.raises(TypeError, match="the reason must be a str"):
            await job.task("deploy").approve(by="ana", reason=5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="`by` is the name"):
            await runtime.submit(held(), by=by)
        await job.cancel()
