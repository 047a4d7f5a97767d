"""Steps of running bodies that run on workers: which steps wait, where they run, and what frees the slots."""

from __future__ import annotations

from typing import Any

import pytest
from tests.actors.stage import KernelHarness, flow, hangs, task

from callboard.actors.kernel.transaction import StartCall
from callboard.actors.messages.commands import Pause, Reply, RunStep, StartWorkers, StopStep, TerminateWorker
from callboard.actors.messages.inputs import REBUILT, CallEnded, Drain, TurnFailed, WorkerBeat, WorkerDied
from callboard.actors.records.step import StepRecord
from callboard.actors.spec.model import Task, Worker

GPU = ("gpu",)
ONE = (Worker("loop", engine="loop", capacity=100), Worker("g", engine="loop", capacity=1, capabilities=["gpu"]))
PROCESSES = (Worker("loop", engine="loop", capacity=100), Worker("p", engine="process", capacity=1))


class Steps(KernelHarness):
    """A stage of bodies that hang, whose steps run on workers as the test says."""

    def __init__(self, *tasks: Task, **more: Any) -> None:
        self.heard: dict[str, list[str]] = {}  # by the label of each step: its answers so far
        self.calls: dict[str, int] = {}  # by the label of each step that runs: the token of its call
        super().__init__(**({"workers": ONE} | more))
        if "kept" not in more:
            tasks = tasks or tuple(task(name, optional=True) for name in "abcd")
            self.scripts |= {one.name: hangs for one in tasks}
            self.submit(flow(*tasks))

    def run_step(
        self, name: str, number: int = 1, *, engine: str = "loop", capabilities: tuple[str, ...] = GPU,
        token: int = 0, moves: bool = False,
    ) -> str:  # fmt: skip
        """Let a step of a task's body ask for a worker. Returns the step's first answer."""
        label = name if number == 1 else f"{name}{number}"
        step = StepRecord(
            key=0, flow=0, task=0, task_id="", name=label, began_at=self.time, tries=0, engine=engine,
            capabilities=capabilities,
        )  # fmt: skip
        answers = self.heard.setdefault(label, [])

        def answered(row: StepRecord | None, error: Exception | None) -> None:
            if row is None:
                answers.append(type(error).__name__)
            else:
                answers.append(row.unroutable or f"{row.worker_use} {row.worker_id or row.engine}")

        self.send(RunStep(token or self.token(name), number, step, moves, Reply(answered)))
        return answers[0]

    def _start(self, call: StartCall) -> None:
        if call.kind != "step":
            super()._start(call)
        elif self.kernel.is_step(call.token):
            order = self.kernel.calls[call.token]
            self.kernel.heard(call.token)
            self.running[call.token] = call
            self.where[call.token] = self.kernel.entities[order.worker].record.id
            self.calls[next(one.step.name for one in self.waits_and_runs() if one.call == call.token)] = call.token
        else:
            self.inputs.append(CallEnded(call.token, "gone"))

    def waits_and_runs(self) -> list[Any]:
        return [one for of_body in self.kernel.step_calls.values() for one in of_body.values()]

    def ends(self, label: str, status: str = "ok") -> None:
        """Let the function of a step end."""
        self.end(self.calls[label], status)
        self.settle()

    def stop(self, name: str, number: int = 1) -> None:
        self.send(StopStep(self.token(name), number))

    def used(self, worker: str) -> tuple[int, int]:
        """How many slots of a worker are used, by the scheduler and by its record."""
        actor = self.workforce.named[worker]
        return actor.used, actor.record.assigned

    def nothing_is_left(self) -> bool:
        kernel, scheduler = self.kernel, self.workforce.scheduler
        kinds = {call.kind for call in kernel.calls.values()} | {slot.kind for slot in kernel.slots.values()}
        return not kernel.step_calls and not scheduler.step_calls.waiting and "step" not in kinds


def test_a_step_takes_a_slot_of_a_worker_that_suits_or_waits_in_line_by_priority_and_place() -> None:
    stage = Steps(task("a"), task("b"), task("c", priority=1), task("x", capabilities=["gpu"]), task("y"))
    assert stage.states()["x"] == "running"  # a task: it has the only slot
    assert [stage.run_step(name) for name in "bac"] == ["waits loop"] * 3
    assert stage.states()["y"] == "running"
    stage.end(stage.token("x"))
    stage.settle()
    assert stage.heard == {"b": ["waits loop"], "a": ["waits loop"], "c": ["waits loop", "holds g#1"]}
    assert stage.used("g") == (1, 1)
    stage.ends("c")
    stage.ends("a", "failed")
    assert list(stage.calls) == ["c", "a", "b"]
    rows = {one.name: one for one in stage.kept.of(StepRecord)}
    assert [(rows[name].worker_id, rows[name].worker_use) for name in "ab"] == [("g#1", "holds")] * 2
    assert stage.run_step("a", 2) == "waits loop"
    stage.stop("a", 2)
    stage.stop("a", 2)  # twice
    assert stage.heard["a2"] == ["waits loop", "None loop"]  # it waits no longer
    stage.ends("b")
    assert stage.used("g") == (0, 0)
    assert stage.nothing_is_left()
    assert stage.audit() == []


def test_a_step_that_is_to_stop_keeps_its_slot_until_its_function_has_ended() -> None:
    stage = Steps()
    stage.run_step("a")
    stage.deaf.add("a")
    stage.stop("a")
    assert stage.stops == [(stage.calls["a"], False)]
    assert stage.run_step("b") == "waits loop"
    stage.ends("a", "cancelled")
    assert stage.heard["b"] == ["waits loop", "holds g#1"]
    stage.ends("b", "abandoned")
    assert stage.notices[-1].event == "body_abandoned"
    assert stage.nothing_is_left()


@pytest.mark.parametrize("end", ["ok", "failed", "lost", "abandoned", "cancel"])
def test_the_steps_of_a_body_that_has_ended_are_stopped_and_wait_no_longer(end: str) -> None:
    stage = Steps()
    assert [stage.run_step("a"), stage.run_step("a", 2), stage.run_step("b")] == ["holds g#1", *["waits loop"] * 2]
    token = stage.token("a")
    if end == "cancel":
        stage.cancel(stage.actor("a"))
    else:
        stage.end(token, end)
        stage.settle()
    assert [force for token, force in stage.stops if token == stage.calls["a"]] == [False]  # the grace comes first
    assert stage.heard["b"] == ["waits loop", "holds g#1"]  # the function has ended, and has freed the slot
    assert stage.run_step("a", 3, token=token) == "AttemptOver"
    stage.ends("b")
    assert stage.nothing_is_left()
    assert stage.used("g") == (0, 0)
    assert stage.audit() == []


def test_it_is_told_why_no_worker_can_run_it_until_one_can() -> None:
    stage = Steps(workers=ONE[:1])
    nobody = "no worker has the engine 'loop' and the capabilities ['gpu']"
    assert stage.run_step("a") == nobody
    row = stage.kept.of(StepRecord)[0]
    assert (row.state, row.waits_for_worker, row.unroutable) == ("waiting", "engine 'loop', capabilities 'gpu'", nobody)
    stage.send(StartWorkers(ONE[1:]))
    assert stage.heard["a"] == [nobody, "waits loop", "holds g#1"]
    assert stage.run_step("b") == "waits loop"
    stage.command(stage.workforce.named["g"], TerminateWorker("done"))
    assert (stage.calls["a"], True) in stage.stops
    assert stage.heard["b"] == ["waits loop", nobody]
    stage.stop("b")
    assert stage.nothing_is_left()


def test_a_step_that_names_no_engine_moves_to_the_cluster_if_only_a_worker_there_can_run_it() -> None:
    stage = Steps(workers=ONE[:1])
    assert stage.run_step("a", moves=True).startswith("no worker has the engine 'loop'")
    assert stage.run_step("b").startswith("no worker has the engine 'loop'")
    stage.send(StartWorkers((Worker("far", engine="ray", capacity=2, capabilities=["gpu"]),)))
    assert stage.heard["a"][1:] == ["waits ray", "holds far#1"]
    assert len(stage.heard["b"]) == 1  # its function cannot run there
    assert stage.run_step("c", moves=True) == "holds far#1"


def test_a_worker_that_dies_loses_its_steps_and_one_that_answers_keeps_those_that_are_known() -> None:
    stage = Steps(workers=PROCESSES)
    assert stage.run_step("a", engine="process", capabilities=()) == "holds p#1"
    stage.send(WorkerBeat("p", 1, (stage.calls["a"],)))
    assert stage.stops == []  # its call is no stray
    stage.stop("a")
    stage.send(WorkerBeat("p", 1, (stage.calls["a"],)))
    assert stage.stops == [(stage.calls["a"], False), (stage.calls["a"], True)]  # it still runs on the worker
    assert stage.run_step("b", engine="process", capabilities=()) == "holds p#1"
    stage.send(WorkerDied("p", 1, "killed by SIGKILL"))
    assert stage.run_step("c", engine="process", capabilities=()) in {"holds p#2", "waits process"}
    stage.advance(60.0)
    assert stage.heard["c"][-1] == "holds p#2"
    stage.ends("b", "lost")
    stage.ends("c")
    assert stage.nothing_is_left()
    assert stage.states()["b"] == "running"  # the body decides


def test_a_worker_that_does_not_answer_is_no_matter_of_the_body_until_its_step_is_lost() -> None:
    stage = Steps(task("a", timeout="1h"), workers=PROCESSES)
    stage.run_step("a", engine="process", capabilities=())
    stage.silent.add("p")
    stage.advance(600.0)
    assert stage.workforce.named["p"].record.run > 1
    assert stage.states()["a"] == "running"
    assert stage.nothing_is_left()


def test_an_undone_turn_leaves_the_counts_right_and_a_failed_one_stops_the_body() -> None:
    stage = Steps()
    stage.run_step("a")
    stage.run_step("b")
    stage.kernel.recovery.rebuild()
    stage.send(REBUILT)
    assert (stage.used("g"), len(stage.workforce.scheduler.step_calls.waiting)) == ((1, 1), 1)
    stage.send(TurnFailed(stage.actor("a").record.key, "a bug", stage.calls["a"]))
    assert stage.states()["a"] == "failed"
    assert stage.heard["b"] == ["waits loop", "holds g#1"]
    stage.ends("b")
    assert stage.nothing_is_left()
    assert {call.kind for call in stage.kernel.calls.values()} == {"body"}


def test_after_a_crash_nothing_runs_and_nothing_waits() -> None:
    stage = Steps()
    stage.run_step("a")
    stage.run_step("b")
    after = stage.after_crash()
    assert not after.kernel.step_calls
    assert after.workforce.named["g"].record.assigned == after.workforce.named["g"].used == 0
    assert after.audit() == []


def test_a_drain_lets_no_step_begin_and_a_paused_workstream_does() -> None:
    stage = Steps()
    stage.command(stage.kernel.jobs["job"], Pause("lunch"))
    assert stage.run_step("a") == "holds g#1"
    stage.ends("a")
    stage.send(Drain(stop=False))
    assert stage.run_step("b") == "waits loop"
    stage.send(Drain(stop=True))
    assert stage.nothing_is_left()


def test_while_it_drains_the_steps_of_bodies_that_must_not_run_again_begin() -> None:
    stage = Steps(task("a"), task("b"), task("c", on_loss="fail"), task("x", capabilities=["gpu"]))
    assert [stage.run_step(name) for name in "abc"] == ["waits loop"] * 3
    stage.send(Drain(stop=False))
    stage.end(stage.token("x"))
    stage.settle()
    assert stage.heard == {"a": ["waits loop"], "b": ["waits loop"], "c": ["waits loop", "holds g#1"]}
    stage.ends("c")
    assert stage.run_step("c", 2) == "holds g#1"
    stage.ends("c2")
    assert list(stage.calls) == ["c", "c2"]
    assert stage.used("g") == (0, 0)
    assert stage.audit() == []


def test_a_drain_stops_the_bodies_and_these_their_steps() -> None:
    stage = Steps()
    stage.run_step("a")
    stage.send(Drain(stop=True))
    assert [force for token, force in stage.stops if token == stage.calls["a"]] == [False]  # since its body has ended
    assert stage.nothing_is_left()


def test_the_pools_of_invented_capabilities_are_dropped() -> None:
    stage = Steps()
    for number in range(1, 520):
        stage.run_step("a", number, capabilities=(f"c{number}",))
        stage.stop("a", number)
    stage.cancel(stage.kernel.jobs["job"])
    scheduler = stage.workforce.scheduler
    assert (len(scheduler.step_calls.queues), len(scheduler.pools) < 10) == (0, True)
