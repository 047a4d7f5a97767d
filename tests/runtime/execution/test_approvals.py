"""Approvals from Python: the verbs of the handles, the lists, and the members of teams."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.waiting import until

from callboard import (
    Approval,
    Clause,
    Hook,
    JobHandle,
    Notice,
    PendingApproval,
    Retry,
    Runtime,
    Task,
    TaskContext,
    VirtualClock,
    Workstream,
)
from callboard.errors import ApprovalRejected, DecisionConflict, DecisionRefused, InvalidTransitionError

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
        with pytest.raises(DecisionConflict, match="approved by ben") as told:  # its actor is not in memory
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


async def test_a_team_function_that_is_elsewhere_says_where_and_what_to_do(tmp_path: Path) -> None:
    """As of a script that was moved."""
    was = f"__main__@{tmp_path / ('a-long-name-' * 10)}/crates.py:members"
    notices: list[Notice] = []
    runtime = Runtime(tmp_path / "j.db")
    runtime.on_trouble = notices.append
    async with runtime:
        runtime.task(name="members", aliases=[was])(lambda: ["ana"])
        job = await runtime.submit(held(Approval(people=1, clauses=[Clause(team="ops", members=was)])), id="j")
    runtime = Runtime(tmp_path / "j.db")
    runtime.on_trouble = notices.append
    async with runtime:
        job = await runtime.job("j")
        await job.task("deploy").approve(by="ana")
        text = next(notice.text for notice in notices if notice.event == "team_unknown")
        assert "BodyNotFound" not in text
        assert f"@runtime.task(aliases=[{was!r}])" in text


@pytest.mark.parametrize(("members", "why"), [(broken, "no directory"), (one_name, "and not the names of people")])
async def test_a_check_that_cannot_be_made_counts_as_no(members: Any, why: str) -> None:
    notices: list[Notice] = []
    runtime = Runtime()
    runtime.on_trouble = notices.append
    async with runtime:
        job = await runtime.submit(held(Approval(people=1, clauses=[Clause(team="ops", members=members)])))
        await job.task("deploy").approve(by="ana")
        assert [one.missing for one in job.approvals()] == [["1 person of team ops"]]
        (notice,) = notices
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


@pytest.mark.parametrize("by", ["", " ", "x" * 201, "ana\nben"])
async def test_who_decides_has_a_name(by: str) -> None:
    async with Runtime() as runtime:
        job = await runtime.submit(held())
        with pytest.raises(ValueError, match="`by` is the name of the author"):
            await job.task("deploy").approve(by=by)
        with pytest.raises(TypeError, match="the reason must be a str"):
            await job.task("deploy").approve(by="ana", reason=5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="`by` is the name"):
            await runtime.submit(held(), by=by)
        for verb in (
            job.cancel,
            job.pause,
            job.task("deploy").skip,
            job.task("deploy").retry,
            job.task("deploy").cancel,
        ):
            with pytest.raises(ValueError, match="`by` is the name"):
                await verb(by=by)
        for verb in (runtime.worker("loop").pause, runtime.worker("loop").terminate):
            with pytest.raises(ValueError, match="`by` is the name"):
                await verb(by=by)
        assert [one.task for one in job.approvals()] == ["deploy"]
        await job.cancel()


async def test_a_reason_that_would_swell_every_transition_is_refused() -> None:
    async with Runtime() as runtime:
        job = await runtime.submit(held())
        for verb in (job.cancel, partial(job.approve, by="ana"), partial(job.task("deploy").reject, by="ana")):
            with pytest.raises(ValueError, match="at most 10,000 characters: this one has 10,001"):
                await verb(reason="x" * 10_001)
        await job.cancel(reason="x" * 10_000)
        assert (await job.wait()).state == "cancelled"


# -- asked for by bodies -----------------------------------------------------------------------------------------------


async def asks(task: TaskContext) -> list[str | None]:
    return [one.by for one in await task.approval("prod", people=2, expires="1h")]


def asks_in_a_thread(task: TaskContext) -> list[str | None]:
    return [one.by for one in task.wait_for_approval("prod", Approval(people=2))]


async def asked(job: JobHandle) -> PendingApproval:
    """The approval that a body of the job asks for."""
    await until(job.approvals)
    return job.approvals()[0]


@pytest.mark.parametrize("body", [asks, asks_in_a_thread])
async def test_a_running_body_waits_for_people(body: Any, tmp_path: Path) -> None:
    async with Runtime(tmp_path / "state.db") as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("deploy", run=body)]))
        pending = await asked(job)
        assert (pending.kind, pending.task, pending.approval) == ("approval", "deploy", "prod")
        assert pending.entity_id == f"{job.id}@1/deploy/prod"
        task = job.task("deploy")
        await task.approve(by="ana")
        await task.approve(by="ben", approval="prod", reason="fine")
        assert (await job.wait()).results["deploy"] == ["ana", "ben"]
        history = [row.to_state for row in runtime.journal.reader.transitions(entity_id=pending.entity_id)]
        assert history == ["held", "held", "approved"]
        (kept,) = runtime.journal.reader.approvals(runtime.journal.reader.workstreams(job.id)[0].key)
        assert [one.by for one in kept.decisions] == ["ana", "ben"]


async def tries(task: TaskContext) -> str:
    try:
        await task.approval("prod")
    except ApprovalRejected as error:
        return f"{error.by}: {error.reason}"
    return "approved"


@pytest.mark.parametrize("body", [asks, asks_in_a_thread, tries])
async def test_a_rejection_is_raised_in_the_body(body: Any) -> None:
    async with Runtime() as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("deploy", run=body, retry=Retry(max_attempts=3))]))
        await asked(job)
        await job.task("deploy").reject(by="ben", reason="not today")
        outcome = await job.wait()
        if body is tries:
            assert outcome.results["deploy"] == "ben: not today"
        else:
            assert outcome.tasks["deploy"].error_type == "ApprovalRejected"
            assert outcome.tasks["deploy"].attempt == 1  # the decision stays: another attempt cannot help


@pytest.mark.parametrize("body", [asks, asks_in_a_thread])
async def test_a_cancelled_body_waits_no_longer(body: Any) -> None:
    async with Runtime() as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("deploy", run=body)]))
        await asked(job)
        await job.cancel()
        assert (await job.wait()).state == "cancelled"
        assert not runtime.approvals()


async def wrong_name(task: TaskContext) -> None:
    await task.approval("a/b")


async def wrong_rule(task: TaskContext) -> None:
    await task.approval("prod", people=0)


async def wrong_way(task: TaskContext) -> None:
    task.wait_for_approval("prod")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (wrong_name, "the approval's name 'a/b' holds '/'"),
        (wrong_rule, "people: must be at least 1, not 0"),
        (wrong_way, "this body runs on the loop: use await task.approval"),
    ],
)
async def test_what_cannot_be_asked_is_refused_at_once(body: Any, told: str) -> None:
    async with Runtime() as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("deploy", run=body)]))
        assert told in str((await job.wait()).tasks["deploy"].last_error)
