"""Jobs that a node takes over: their restored state, and the effect on the jobs that run there already."""

from __future__ import annotations

import msgspec
import pytest
from tests.actors.machines_help import FUNCTIONS, Facts, fire, kind, spawn
from tests.actors.stage import WORKERS, KernelHarness, fails, flow, hangs, task

from callboard.actors.jobs.workstream import WorkstreamActor
from callboard.actors.messages.commands import Approve, Command, Reply, Request
from callboard.actors.messages.inputs import Adopt, Drain, InboxTaken, NewEpoch, Recover, ToolHeard
from callboard.actors.records.base import Published
from callboard.actors.records.entities import BreakerRecord, JobRecord, WorkerRecord
from callboard.actors.records.task import AttemptRecord
from callboard.actors.spec.model import Approval, Breaker, Check, Condition, Hook, Retry, Tool, Worker
from callboard.actors.spec.names import node_of
from callboard.machines.audit.log import EPOCH


def node(name: str, epoch: int, *, workers: tuple[Worker, ...] = WORKERS) -> KernelHarness:
    """A node, with numbers of its own."""
    return KernelHarness(node=name, epoch=epoch, functions=dict(FUNCTIONS), workers=workers)


def ids(stage: KernelHarness, kind: type) -> list[str]:
    return sorted(record.id for record in stage.kept.of(kind))


# -- names -------------------------------------------------------------------------------------------------------------


def test_ids_of_workers_and_breakers_name_their_node() -> None:
    stage = node("web-1", 1)
    stage.submit(flow(task("a", tool="cc")))
    assert ids(stage, WorkerRecord) == ["command@web-1#1", "loop@web-1#1"]
    assert ids(stage, BreakerRecord) == ["cc@web-1"]
    assert stage.workforce.named.keys() == {"loop", "command"}
    assert stage.workforce.breakers.keys() == {"cc"}
    assert [attempt.worker_id for attempt in stage.attempts("a")] == ["loop@web-1#1"]
    assert stage.audit() == []


def test_without_a_cluster_they_do_not() -> None:
    stage = KernelHarness()
    stage.submit(flow(task("a", tool="cc")))
    assert ids(stage, WorkerRecord) == ["command#1", "loop#1"]
    assert ids(stage, BreakerRecord) == ["cc"]


@pytest.mark.parametrize(
    ("worker", "named"), [("loop@web-1#3", "web-1"), ("a@b@web-1#3", "web-1"), ("loop#3", ""), (None, "")]
)
def test_the_node_of_a_worker_is_read_of_its_id(worker: str | None, named: str) -> None:
    assert node_of(worker) == named


def test_a_new_epoch_begins_above_all_numbers_and_never_goes_back() -> None:
    stage = node("a", 1)
    stage.send(NewEpoch(5 * EPOCH, 5 * EPOCH))
    stage.send(NewEpoch(2 * EPOCH, 2 * EPOCH))
    stage.submit(flow(task("x")))
    assert min(record.key for record in stage.kept.of(JobRecord)) == 5 * EPOCH + 1
    assert next(row.seq for row in stage.kept.transitions if row.kind == "job") == 5 * EPOCH + 1
    assert stage.audit() == []


# -- what is taken over ------------------------------------------------------------------------------------------------


def test_an_attempt_of_a_dead_node_is_lost_by_a_reason_that_names_it_and_runs_again_here() -> None:
    dead, here = node("web-1", 1), node("web-2", 2)
    dead.scripts["a"] = hangs
    dead.submit(flow(task("a"), task("b", "a")))
    loaded = here.take_over(dead.kept)
    here.advance(0)
    assert here.state() == "completed"
    assert [(one.end, one.error, one.worker_id) for one in here.attempts("a")] == [
        ("lost", "node 'web-1' has ended", "loop@web-1#1"),
        ("succeeded", None, "loop@web-2#1"),
    ]
    recovering = next(row for row in here.kept.transitions if row.to_state == "recovering")
    assert (recovering.reason, recovering.seq > loaded.last_seq) == ("node 'web-1' has ended", True)
    assert here.attempts("a")[1].key > loaded.last_key
    assert here.audit() == []


def test_what_a_node_was_draining_when_it_was_killed_is_no_loss() -> None:
    dead, here = node("web-1", 1), node("web-2", 2)
    dead.scripts["a"] = hangs
    dead.submit(flow(task("a", max_losses=1)))
    dead.send(Drain(stop=False))
    here.take_over(dead.kept)
    here.advance(0)
    assert (here.state(), here.task("a").lost_attempts) == ("completed", 0)
    assert [one.end for one in here.attempts("a")] == ["returned", "succeeded"]
    assert here.audit() == []


def test_the_workers_of_a_dead_node_are_ended_and_those_of_this_one_are_not() -> None:
    dead, here = node("web-1", 1), node("web-2", 2)
    here.take_over(dead.kept)
    states = {record.id: (str(record.state), record.reason) for record in here.kept.of(WorkerRecord)}
    assert states["loop@web-1#1"] == ("failed", "node 'web-1' has ended")
    assert states["loop@web-2#1"][0] == "idle"
    assert here.worker("loop").record.id == "loop@web-2#1"
    assert {entity.record.id for entity in here.kernel.entities.values() if entity.record.kind == "worker"} == {
        "loop@web-2#1", "command@web-2#1",
    }  # fmt: skip
    assert here.audit() == []


def test_what_runs_here_goes_on_as_if_nothing_had_happened() -> None:
    dead, here = node("web-1", 1), node("web-2", 2)
    dead.scripts["a"] = hangs
    dead.submit(flow(task("a")))
    here.scripts["mine"] = hangs
    here.submit(flow(task("mine", timeout="60s"), task("next", "mine")), "mine")
    token, timers, slots = here.task("mine", "mine").token, len(here.timers), dict(here.kernel.slots)
    here.scripts["a"] = hangs
    here.take_over(dead.kept)
    here.advance(0)
    assert here.kernel.slots.keys() == slots.keys() | {here.token("a")}
    assert here.worker("loop").used == here.worker("loop").record.assigned == 2
    assert here.stops == []
    assert len([one for one in here.timers if one[2].armed]) >= timers
    here.end(token)
    here.settle()
    assert here.state("mine") == "completed"
    assert [attempt.end for attempt in here.kept.of(AttemptRecord) if attempt.task_id.startswith("mine@")] == [
        "succeeded",
        "succeeded",
    ]
    here.end(here.token("a"))
    here.settle()
    assert here.state() == "completed"
    assert here.audit() == []


def test_the_limit_of_an_attempt_that_runs_here_is_reached_when_it_would_have_been() -> None:
    dead, here = node("web-1", 1), node("web-2", 2)
    here.scripts["mine"] = hangs
    here.submit(flow(task("mine", timeout="60s")), "mine")
    here.advance(50)
    dead.time = here.time
    dead.submit(flow(task("a")))
    here.take_over(dead.kept)
    here.advance(9)
    assert here.task("mine", "mine").state == "running"
    here.advance(2)
    assert here.task("mine", "mine").state in {"timed_out", "failed"}
    assert here.audit() == []


def test_nothing_that_is_taken_over_begins_before_all_of_it_was_told_so() -> None:
    dead, here = node("web-1", 1, workers=()), node("web-2", 2)
    dead.submit(flow(task("a", wait="10s")), "one")
    dead.submit(flow(task("b")), "two")
    here.time = dead.time + 100
    here.scripts["b"] = hangs
    here.take_over(dead.kept)  # the wait is over: the scheduler matches before "two" gets its message
    assert (here.state("one"), here.task("b", "two").state) == ("completed", "running")
    here.end(here.task("b", "two").token)
    here.settle()
    assert here.state("two") == "completed"
    assert [attempt.end for attempt in here.kept.of(AttemptRecord)] == ["succeeded"] * 2
    assert here.audit() == []


def test_taking_over_the_same_again_changes_nothing() -> None:
    dead, here = node("web-1", 1), node("web-2", 2)
    dead.scripts["a"] = here.scripts["a"] = hangs
    dead.submit(flow(task("a")))
    loaded = here.take_over(dead.kept)
    here.advance(0)
    before = here.task("a")
    assert before.state == "running"
    loaded.workers.clear()
    here.send(Adopt(loaded=loaded))
    assert here.task("a") == before
    assert here.audit() == []


GOES_ON = {
    "timed_out": (task("a", timeout="1s"), "failed"),
    "validating": (task("a", checks=[Check(run="m:c")]), "completed"),
    "cancelling": (task("a"), "cancelled"),
    "retrying": (task("a", retry=Retry(max_attempts=2, base_delay=5, jitter=0)), "completed"),
    "held": (task("a", hold=Approval(expires="10s")), "cancelled"),
    "waiting": (task("a", wait="10s"), "completed"),
    "queued": (task("a", priority=-1), "completed"),
    "pending": (task("a", condition=Condition(run="m:c")), "completed"),
}


@pytest.mark.parametrize("state", GOES_ON)
def test_each_state_goes_on_where_it_was(state: str) -> None:
    dead, here = node("web-1", 1, workers=() if state == "queued" else WORKERS), node("web-2", 2)
    dead.stubborn.add("a")
    dead.scripts |= {"a": hangs, "a.check": hangs, "a.condition": hangs}
    if state == "validating":
        del dead.scripts["a"]
    if state == "retrying":
        dead.scripts["a"] = fails()
    spec, end = GOES_ON[state]
    dead.submit(flow(spec))
    if state == "timed_out":
        dead.advance(1)
    if state == "cancelling":
        dead.cancel(dead.actor("a"))
    assert dead.task("a").state == state
    here.take_over(dead.kept)
    here.send(InboxTaken())
    here.advance(20)
    assert here.task("a").state == end
    assert here.audit() == []


def test_hooks_in_the_outbox_run_here() -> None:
    dead, here = node("web-1", 1), node("web-2", 2)
    dead.hooks_hang = True
    dead.submit(flow(task("a", on_completed=[Hook(run="m:h")])))
    here.take_over(dead.kept)
    assert [(row.owner, row.tries) for row in here.hooks] == [("job@1/a", 1)]
    assert here.kept.of(type(here.hooks[0])) == []


def test_a_body_that_had_still_to_go_when_its_job_was_cancelled_is_accounted_for() -> None:
    dead, here = node("web-1", 1), node("web-2", 2)
    dead.scripts["a"] = hangs
    dead.deaf.add("a")
    dead.submit(flow(task("a")))
    dead.cancel(dead.kernel.jobs["job"], force=True)
    here.take_over(dead.kept)
    assert [attempt.end for attempt in here.attempts("a")] == ["cancelled"]


def test_machines_are_taken_over_with_what_is_overdue() -> None:
    dead, here = node("web-1", 1), node("web-2", 2)
    spawn(dead, "one", kind(), Facts(silent_at=dead.time + 5))
    fire(dead, "one", "START")
    here.time = dead.time + 100
    here.take_over(dead.kept)
    here.advance(0)
    assert here.kernel.machines["one"].record.state == "recovering"


# -- decisions ---------------------------------------------------------------------------------------------------------


def test_a_decision_that_waits_in_the_inbox_is_heard_before_the_hold_expires() -> None:
    dead, here = node("web-1", 1), node("web-2", 2)
    dead.submit(flow(task("a", hold=Approval(expires="10s"))))
    said_at = dead.time + 5
    here.time = dead.time + 100
    here.take_over(dead.kept, awaited={"job/a": said_at})
    assert here.task("a").state == "held"
    approve = Command(
        here.task("a").key, Approve("ana"), Reply(None, Request("r1", "approve", "", 60.0, sent_at=said_at))
    )
    here.send(approve)
    here.send(InboxTaken())
    assert here.state() == "completed"


def test_a_hold_that_nobody_has_decided_expires() -> None:
    dead, here = node("web-1", 1), node("web-2", 2)
    dead.submit(flow(task("a", hold=Approval(expires="10s"))))
    here.time = dead.time + 100
    here.take_over(dead.kept, awaited={"other/a": dead.time})
    here.send(InboxTaken())
    assert here.task("a").state == "cancelled"


# -- tools -------------------------------------------------------------------------------------------------------------


def test_what_was_parked_at_a_tool_there_goes_on_at_this_node_s_own_breaker() -> None:
    dead, here = node("web-1", 1), node("web-2", 2)
    dead.scripts["a"] = fails()
    tools = {"cc": Tool(breaker=Breaker(failure_threshold=1, cooldown="60s"))}
    dead.submit(flow(task("a", tool="cc", retry=Retry(max_attempts=5)), task("b", tool="cc", priority=-1), tools=tools))
    dead.advance(30)
    assert dead.states()["a"] == "circuit_open"
    here.take_over(dead.kept)
    here.advance(5)
    assert here.workforce.breakers["cc"].record.id == "cc@web-2"
    assert here.workforce.breakers["cc"].record.failure_threshold == 1
    assert "circuit_open" not in here.states().values()
    assert here.audit() == []


def test_what_is_taken_over_waits_where_the_tool_is_ill_here() -> None:
    dead, here = node("web-1", 1), node("web-2", 2)
    tools = {"cc": Tool(breaker=Breaker(failure_threshold=1, cooldown="60s"))}
    here.scripts["x"] = fails()
    here.submit(flow(task("x", tool="cc"), tools=tools), "mine")
    assert here.workforce.breakers["cc"].record.state == "open"
    dead.scripts["a"] = hangs
    dead.submit(flow(task("a", tool="cc"), tools=tools))
    here.take_over(dead.kept)
    here.advance(1)
    assert here.task("a").state == "circuit_open"
    here.advance(60)
    seq = here.workforce.breakers["cc"].record.seq
    here.send(ToolHeard("cc", "half_open", 1, tries=True, answers=seq))  # no other node probes it
    assert here.state() == "completed"
    assert here.audit() == []


# -- what cannot be taken over -----------------------------------------------------------------------------------------


def test_a_job_that_cannot_be_made_again_takes_no_other_with_it() -> None:
    dead, here = node("web-1", 1), node("web-2", 2)
    for name in ("good", "bad"):
        dead.scripts["a"] = hangs
        dead.submit(flow(task("a")), name)
    bad = next(job for job in dead.kept.of(JobRecord) if job.id == "bad")
    dead.kept.specs[bad.stream] = b"{"
    here.take_over(dead.kept)
    here.advance(0)
    assert (here.state("good"), here.state("bad")) == ("completed", "running")
    assert "bad" not in here.kernel.jobs
    notices = [notice for notice in here.notices if notice.event == "not_taken_over"]
    assert [(one.severity, one.entity_id) for one in notices] == [("error", "bad")]
    assert here.kernel.entities.keys().isdisjoint(t.key for t in here.kept.records.values() if t.key == bad.key)


def test_a_lifecycle_that_is_not_known_here_is_told_and_nothing_is_changed() -> None:
    dead, here = node("web-1", 1), node("web-2", 2)
    dead.scripts["a"] = hangs
    dead.submit(flow(task("a")))
    (job,) = dead.kept.of(JobRecord)
    dead.kept.records["job", job.key] = msgspec.structs.replace(job, published=Published(lifecycle="own", state="x"))
    here.take_over(dead.kept)
    assert here.task("a").state == "running"
    assert [notice.event for notice in here.notices if notice.severity == "error"] == ["not_taken_over"]


def test_a_job_whose_recovery_raises_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    dead, here = node("web-1", 1), node("web-2", 2)
    for name in ("good", "bad"):
        dead.scripts["a"] = hangs
        dead.submit(flow(task("a")), name)
    recover = WorkstreamActor.on_recover

    def broken(stream: WorkstreamActor, message: Recover) -> None:
        if stream.record.job_id == "bad":
            raise RuntimeError("no")
        recover(stream, message)

    monkeypatch.setitem(WorkstreamActor.receivers, Recover, broken)
    here.take_over(dead.kept)
    here.advance(0)
    assert (here.state("good"), here.state("bad")) == ("completed", "failed")
    assert here.audit() == []


# -- a kill in the middle ----------------------------------------------------------------------------------------------


def test_a_node_that_dies_while_it_takes_over_leaves_the_same_to_the_next() -> None:
    dead = node("web-1", 1)
    dead.scripts["a"] = hangs
    for name in ("one", "two"):
        dead.submit(flow(task("a"), task("b", "a"), task("h", hold=Approval(expires="1h"))), name)
    spawn(dead, "m", kind())
    second = node("web-2", 2)
    began = len(second.kept.turns)
    second.scripts["a"] = hangs
    second.take_over(dead.kept)
    turns = len(second.kept.turns)
    assert turns - began >= 4
    for cut in range(began, turns + 1):
        third = node("web-3", 9)
        third.take_over(second.kept.first(cut))
        third.advance(0)
        for name in ("one", "two"):
            assert third.states(name) == {"a": "completed", "b": "completed", "h": "held"}
        living = {record.id for record in third.kept.of(WorkerRecord) if record.finished_at is None}
        assert living == {"loop@web-3#1", "command@web-3#1"}
        assert {attempt.end for attempt in third.kept.of(AttemptRecord)} == {"lost", "succeeded"}
        assert third.kernel.machines["m"].record.state == "pending"
        assert third.audit() == []
