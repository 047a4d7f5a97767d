"""A runtime whose entities run by published lifecycles, or by a user's own: its reports, records and refusals."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest
from tests.actors.machines.test_by_lifecycle import REVIEWED

from callboard import Lifecycle, Machine, Phase, Runtime, State, Task, Worker, Workstream
from callboard.errors import InvalidTransitionError, SpecificationError
from callboard.machines.audit.audit import audit_lines
from callboard.runtime.commands.wire_errors import answer_to, error_of

pytestmark = pytest.mark.anyio

OWN = Lifecycle("own-review", "task", REVIEWED, {})
MADE = ["open", "working", "reviewing", "merged"]


async def body() -> int:
    return 1


def flow(**more: object) -> Workstream:
    return Workstream("flow", tasks=[Task("a", run=body)], **more)  # type: ignore[arg-type]


async def steps(runtime: Runtime, spec: Workstream, job_id: str) -> dict[str, list[str]]:
    """The reported states, by kind, until the job has ended."""
    job = await runtime.submit(spec, id=job_id)
    told: dict[str, list[str]] = {"job": [], "workstream": [], "task": []}
    async for event in job.events(notices=False):
        told[event.kind].append(str(event.to_state))  # type: ignore[union-attr]
    assert (await job.wait()).ok
    return told


async def test_a_runtime_by_fleet_tells_its_words_and_the_events_of_a_job_end(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    async with Runtime(tmp_path / "j.db", lifecycle="fleet", jsonl=log) as runtime:
        told = await steps(runtime, flow(lifecycle="orchestration"), "one")
        states = {worker.record.shown for worker in runtime.workers()}
    assert told["job"] == ["SUBMITTED", "PENDING", "RUNNING", "COMPLETED"]
    assert told["task"] == ["pending", "queued", "running", "validating", "completed"]
    assert told["workstream"] == ["planned", "ready", "executing", "validating", "completed"]
    assert states <= {"IDLE", "RUNNING"}
    with log.open("rb") as lines:
        assert audit_lines(lines) == []


async def test_the_views_show_the_published_state(tmp_path: Path) -> None:
    async with Runtime(tmp_path / "j.db", lifecycle="guarded") as runtime:
        await steps(runtime, flow(), "one")
    with closing(sqlite3.connect(tmp_path / "j.db")) as journal, journal:
        rows = journal.execute("SELECT state, previous_state FROM tasks").fetchall()
        events = journal.execute("SELECT to_state FROM state_transitions WHERE kind = 'task' ORDER BY seq").fetchall()
    journal.close()
    assert rows == [("COMPLETED", "VALIDATING")]
    assert [state for (state,) in events] == ["PENDING", "IN_PROGRESS", "VALIDATING", "COMPLETED"]


@pytest.mark.parametrize("given", [True, False])
async def test_a_lifecycle_of_ones_own_by_name_or_as_it_is(given: bool) -> None:
    async with Runtime(lifecycles=() if given else [OWN]) as runtime:
        told = await steps(runtime, flow(lifecycle=OWN if given else "own-review"), "one")
    assert told["task"] == MADE


async def test_one_named_by_its_import_path_is_found_again_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("reviews")
    module.OWN = OWN  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "reviews", module)
    async with Runtime(tmp_path / "j.db", workers=[]) as runtime:
        await runtime.submit(flow(lifecycle="reviews:OWN"), id="one")
    async with Runtime(tmp_path / "j.db") as runtime:
        assert (await (await runtime.job("one")).wait()).tasks["a"].shown == "merged"
        rows = [row.to_state for row in runtime.journal.reader.transitions() if row.kind == "task"]
    assert rows == MADE


async def test_a_restart_without_it_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async with Runtime(tmp_path / "j.db", lifecycles=[OWN], workers=[]) as runtime:
        await runtime.submit(flow(lifecycle="own-review"), id="one")
    with pytest.raises(SpecificationError, match=r"runs by a lifecycle that is not known: .* 'own-review'"):
        async with Runtime(tmp_path / "j.db"):
            pass
    async with Runtime(tmp_path / "j.db", lifecycles=[OWN]) as runtime:
        assert (await (await runtime.job("one")).wait()).tasks["a"].shown == "merged"


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (flow(lifecycle="gaurded"), "did you mean 'guarded'"),
        (flow(lifecycle="nowhere:OWN"), "there is no module 'nowhere'"),
        (flow(lifecycle=f"{__name__}:MADE"), "is no lifecycle, but"),
        (flow(lifecycle=Lifecycle("bad", "task", Machine("m", "a", [State("a", Phase.PENDING)], []), {})), "no path"),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_is_journaled(spec: Workstream, why: str) -> None:
    async with Runtime() as runtime:
        with pytest.raises(SpecificationError, match=why):
            await runtime.submit(spec)
        assert list(runtime.journal.reader.transitions(job_id="x")) == []


def test_a_runtime_refuses_lifecycles_that_cannot_be() -> None:
    with pytest.raises(SpecificationError, match="there is no lifecycle 'x'"):
        Runtime(lifecycle="x")


async def test_a_worker_may_have_its_own() -> None:
    workers = [Worker("w", engine="loop", lifecycle="orchestration"), Worker("v", engine="loop", lifecycle="fleet")]
    async with Runtime(workers=workers) as runtime:
        await steps(runtime, flow(), "one")
        shown = {worker.name: worker.record.published for worker in runtime.workers()}
    assert {name: published.lifecycle for name, published in shown.items() if published is not None} == {
        "w": "orchestration",
        "v": "fleet",
    }


async def test_what_has_ended_refuses_in_its_words_here_and_as_other_processes_are_told() -> None:
    async with Runtime(lifecycle="guarded") as runtime:
        job = await runtime.submit(flow(), id="one")
        assert (await job.wait()).ok
        with pytest.raises(InvalidTransitionError) as refused:
            await job.task("a").cancel()
    error = refused.value
    assert (error.machine, error.state, error.kind) == ("guarded.task", "COMPLETED", "task")
    assert error.in_own_words.state == "completed"
    crossed = error_of(answer_to(error))
    assert isinstance(crossed, InvalidTransitionError)
    assert (str(crossed), crossed.in_own_words) == (str(error), error.in_own_words)
