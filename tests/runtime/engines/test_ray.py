"""The Ray engine beyond the contract of all engines; and its parts, which need no Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import anyio
import msgspec
import pytest
from tests.processes import runs
from tests.waiting import until

from callboard.actors.spec.model import Worker
from callboard.runtime.calling import Outcome
from callboard.runtime.engines.context import TaskContext
from callboard.runtime.engines.contract import Call, CommandCall
from callboard.runtime.engines.ray import actor as rayactor
from callboard.runtime.engines.ray import warden as raywarden
from callboard.runtime.engines.ray.actor import RayWorker
from callboard.runtime.engines.ray.cluster import Actor, Cluster, RayTrouble
from callboard.runtime.engines.ray.engine import RayEngine
from callboard.runtime.engines.ray.outbox import BATCH, CHUNK, PrintedFile, RayOutbox
from callboard.runtime.engines.ray.wire import (
    ActorReady,
    CallEnd,
    CommandLine,
    FromActor,
    Order,
    OutputPart,
    Stop,
    Welcome,
)
from callboard.runtime.engines.workers.wire import Begin, Frame, Unpacker, packed

from .helpers import Bench, Record, open_bench, process_call

pytestmark = pytest.mark.anyio
cluster = pytest.mark.cluster


@pytest.fixture
def anyio_backend() -> str:
    """One event loop: the tested code runs in threads and processes."""
    return "asyncio"


def command(script: str, token: int, path: Path | None = None, **more: Any) -> Call:
    """A command line for one of the bench's workers."""
    where = process_call("", token, function="", output_path=path, **more)
    return Call(token=token, command=CommandCall(argv=["sh", "-c", script]), process=where, grace=0.5)


async def begun(bench: Bench, token: int) -> None:
    await bench.record.until(lambda: any(beat[0] == token for beat in bench.record.beats))


# -- on a cluster ------------------------------------------------------------------------------------------------------


@cluster
async def test_a_command_there_has_its_group_its_exit_code_and_its_output(ray_here: Any, tmp_path: Path) -> None:
    async with open_bench("ray", tmp_path) as bench:
        path = tmp_path / "deep" / "out.log"
        bench.start_call(command("echo first; echo second >&2; exit 3", 2, path))
        outcome = await bench.record.outcome(2)
        assert outcome.error is not None
        assert (outcome.status, outcome.error.type, outcome.exit_code) == ("failed", "exit_code", 3)
        assert (outcome.output_path, outcome.output_size) == (str(path), 13)
        assert path.read_text() == "first\nsecond\n"
        # Of a flood the head and the tail come, and its size; while it runs, its head and its last line.
        script = "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end; sleep 60"
        big = tmp_path / "big.log"
        bench.start_call(command(script, 4, big, output_limit=200_000))
        await until(lambda: cast("RayEngine", bench.engine).tail(4) == "end")
        assert big.stat().st_size == 100_000
        bench.engine.stop(4)
        outcome = await bench.record.outcome(4)
        assert (outcome.status, outcome.output_size) == ("cancelled", 3_000_005)
        assert 200_000 <= big.stat().st_size < 200_100
        assert big.read_text().endswith("x\nend\n")
        # A command that ignores the stop is killed with its whole group.
        script = f"trap '' TERM; sleep 600 & echo $! > {tmp_path}/child; while :; do sleep 0.05; done"
        bench.start_call(command(script, 6))
        await until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text())
        bench.engine.stop(6)
        assert (await bench.record.outcome(6)).exit_code == -signal.SIGKILL
        child = int((tmp_path / "child").read_text())
        await until(lambda: not runs(child))


@cluster
async def test_an_async_body_that_does_not_end_is_ended_with_its_actor_or_given_up(
    ray_here: Any, tmp_path: Path
) -> None:
    async with open_bench("ray-async", tmp_path) as bench:
        engine = cast("RayEngine", bench.engine)
        bench.start(2, "stubborn", grace=0.1)
        await begun(bench, 2)
        alone = bench.pid(2)
        engine.stop(2)  # the grace of the call is short
        assert (await bench.record.outcome(2)).status == "cancelled"
        await until(lambda: not runs(alone))
        # If other calls run beside it, the call is given up; its actor takes no new calls, and ends with the others.
        bench.start(4, "stubborn")
        bench.start(6, "patient")
        await begun(bench, 4)
        await begun(bench, 6)
        shared = bench.pid(4)
        engine.stop(4, force=True)
        assert (await bench.record.outcome(4)).status == "abandoned"
        bench.start(8, "quick")
        assert (await bench.record.outcome(8)).status == "ok"
        engine.probe("w-0", 1)
        await bench.record.until(lambda: ("w-0", 1, (6,)) in bench.record.alive)
        assert bench.pid(8) != shared
        assert runs(shared)
        engine.stop(6)
        assert (await bench.record.outcome(6)).status == "cancelled"
        await until(lambda: not runs(shared))
        assert not bench.record.died


@cluster
async def test_a_process_there_that_dies_loses_its_body_and_nothing_else(ray_here: Any, tmp_path: Path) -> None:
    async with open_bench("ray", tmp_path) as bench:
        bench.start(2, "patient")
        await begun(bench, 2)
        bench.start_call(Call(token=4, process=process_call("exits", 4)))
        outcome = await bench.record.outcome(4)
        assert outcome.error is not None
        assert (outcome.status, outcome.error.type) == ("lost", "worker_lost")
        assert "exited with 3: last words" in outcome.error.message
        bench.start(6, "quick")
        assert (await bench.record.outcome(6)).status == "ok"
        bench.engine.stop(2)
        assert (await bench.record.outcome(2)).status == "cancelled"
        assert not bench.record.died
        # A worker is stopped after its running calls; the incarnation after it is another actor.
        pid = bench.pid(2)
        bench.start(8, "patient")
        await begun(bench, 8)
        bench.engine.stop_worker("w-0", 1, 60)
        bench.start(10, "quick")
        assert (await bench.record.outcome(10)).status == "lost"
        bench.engine.stop(8)
        assert (await bench.record.outcome(8)).status == "cancelled"
        await until(lambda: not runs(pid))
        assert not bench.record.died


@cluster
async def test_a_frozen_actor_does_not_answer_and_can_be_killed(ray_here: Any, tmp_path: Path) -> None:
    async with open_bench("ray-async", tmp_path) as bench:
        bench.start(2, "patient")
        await begun(bench, 2)
        pid = bench.pid(2)
        os.kill(pid, signal.SIGSTOP)
        bench.engine.probe("w-0", 1)
        bench.start(3, "quick")
        assert (await bench.record.outcome(3)).status == "ok"  # another one is not held up
        assert not bench.record.alive
        bench.engine.kill_worker("w-0", 1)
        assert (await bench.record.outcome(2)).status == "lost"
        await until(lambda: not runs(pid))
        assert not bench.record.died


# -- the actor, without Ray --------------------------------------------------------------------------------------------


class Heard:
    """An actor of this process, asked as Ray would ask it."""

    def __init__(self) -> None:
        self.worker = RayWorker(msgspec.msgpack.encode(Welcome("w#1", [], list(sys.argv), None, "", {}, 60.0)))
        self.number = 0
        self.frames: list[Frame] = []
        self.batches: list[bytes] = []
        self._decode = msgspec.msgpack.Decoder(FromActor).decode

    def push(self, *frames: Frame, number: int | None = None) -> None:
        self.number = self.number + 1 if number is None else number
        self.worker.push(self.number, b"".join(map(packed, frames)))

    def poll(self) -> None:
        data = self.worker.poll(len(self.batches), 10.0)
        if data:
            self.batches.append(data)
        self.frames += [self._decode(body) for body in Unpacker().feed(data)]

    def until(self, kind: type[Frame], token: int = 0) -> Any:
        def found() -> list[Any]:
            return [
                one
                for one in self.frames
                if isinstance(one, kind) and token in (0, one.outcome.token if isinstance(one, CallEnd) else 0)
            ]

        while not found():
            self.poll()
        return found()[-1]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    for name, value in (("path", list(sys.path)), ("argv", list(sys.argv))):
        monkeypatch.setattr(sys, name, value)
    before = dict(os.environ)
    try:
        one = Heard()
        yield one
        os.close(one.worker._warden)  # which ends what the actor has started
    finally:
        os.environ.clear()
        os.environ.update(before)


BODIES = "tests.runtime.engines.process_bodies:"


def order(token: int, name: str) -> Order:
    return Order(token, begin=Begin(token, f"{BODIES}{name}"), on_loop=name.startswith("async"), grace=5.0)


def test_an_actor_that_cannot_be_made_leaves_no_warden(monkeypatch: pytest.MonkeyPatch) -> None:
    """No actor would feed that warden: after its lease it would kill the process in which the actor was to be."""

    def short(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    started: list[object] = []
    monkeypatch.setattr(rayactor, "_start_warden", lambda *words: started.append(words))
    for name in ("LoopThread", "own_node"):
        with monkeypatch.context() as patch:
            patch.setattr(os, "environ", dict(os.environ))
            patch.setattr(sys, "path", list(sys.path))
            patch.setattr(sys, "argv", list(sys.argv))
            patch.setattr(rayactor, name, short)
            with pytest.raises(RuntimeError, match="new thread"):
                Heard()
    assert started == []


def test_each_batch_is_taken_once_and_in_its_order(heard: Heard) -> None:
    assert heard.until(ActorReady).pid == os.getpid()
    heard.push(Stop(1, force=True), number=2)  # overtakes: it waits
    heard.push(order(1, "async_patient"), number=1)
    assert heard.until(CallEnd, 1).outcome.status in {"failed", "cancelled", "abandoned"}
    heard.push(order(2, "async_quick"), number=3)
    assert heard.until(CallEnd, 2).outcome.value == "value"
    heard.push(order(2, "async_quick"), number=3)  # once more, since its answer was lost
    heard.push(order(3, "quick"), number=4)
    assert heard.until(CallEnd, 3).outcome.value == "value"
    ends = [one.outcome.token for one in heard.frames if isinstance(one, CallEnd)]
    assert sorted(ends) == [1, 2, 3]


def test_what_was_said_is_said_again_if_it_was_not_heard(heard: Heard) -> None:
    heard.until(ActorReady)
    heard.push(order(1, "async_quick"))
    number = len(heard.batches)
    data = heard.worker.poll(number, 10.0)
    assert heard.worker.poll(number, 10.0) == data
    assert heard.worker.poll(number + 1, 0.01) == b""


def test_an_actor_tells_what_it_cannot_begin(heard: Heard) -> None:
    heard.push(
        order(1, "async_not_there"), order(2, "not_there"), order(3, "prints"), Order(4, line=CommandLine(["nope"]))
    )
    outcomes = [heard.until(CallEnd, token).outcome for token in (1, 2, 4)]
    assert [one.error.type for one in outcomes] == ["body_not_found", "body_not_found", "command_not_found"]
    assert heard.until(CallEnd, 3).outcome.output_size
    assert heard.worker.probe() == ()


def test_what_waits_is_said_in_batches_of_bounded_size(tmp_path: Path) -> None:
    out, path = RayOutbox(), tmp_path / "out"
    path.write_bytes(b"x" * (2 * BATCH))
    printed = PrintedFile(1, path, BATCH)
    out.put(printed)
    first = out.batch(0, 0)
    assert BATCH // 2 <= len(first) < BATCH // 2 + CHUNK  # its head, which stays as it is
    printed.end()
    out.put(printed)
    out.put(b"last")
    rest = [out.batch(number, 0) for number in range(1, 9)]
    assert all(len(batch) < BATCH + 2 * CHUNK for batch in rest)
    assert b"".join(rest).endswith(b"last")
    assert not path.exists()


# -- the warden --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["its input ends", "nothing is heard"])
async def test_nothing_that_carries_the_mark_outlives_the_actor(end: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    marked = {**os.environ, "CALLBOARD_ACTOR": "x1"}
    actor = subprocess.Popen(["sleep", "600"])  # which does not carry it
    child = subprocess.Popen(["sh", "-c", "sleep 600 & wait"], env=marked, start_new_session=True)
    other = subprocess.Popen(["sleep", "600"], env={**os.environ, "CALLBOARD_ACTOR": "x2"})
    reading, writing = os.pipe()
    try:
        lease = "60" if end == "its input ends" else "0.2"
        words = [sys.executable, "-I", "-S", raywarden.__file__, "CALLBOARD_ACTOR=x1", str(actor.pid), lease]
        subprocess.run([*words, str(folder)], stdin=reading, check=True)  # noqa: ASYNC221 - it is over at once
        os.close(reading)
        if end == "its input ends":
            os.close(writing)
        await until(lambda: child.poll() is not None)
        await until(lambda: not folder.exists())
        await until(lambda: (actor.poll() is None) == (end == "its input ends"))
        assert other.poll() is None
    finally:
        for one in (actor, child, other):
            one.kill()
            one.wait()


# -- the pool, with a fake cluster -----------------------------------------------------------------


class FakeActor:
    """An actor that answers when the test lets it."""

    def __init__(self) -> None:
        self.pushed: list[tuple[int, bytes, Callable[..., None]]] = []
        self.polls: list[tuple[int, Callable[..., None]]] = []
        self.probes: list[Callable[..., None]] = []
        self.killed = 0

    def push(self, number: int, data: bytes, then: Callable[..., None]) -> None:
        self.pushed.append((number, data, then))

    def poll(self, after: int, patience: float, then: Callable[..., None]) -> None:
        self.polls.append((after, then))

    def probe(self, then: Callable[..., None]) -> None:
        self.probes.append(then)

    def kill(self) -> None:
        self.killed += 1
        self.polls[-1][1](None, RayTrouble("gone", "it was killed"))


class FakeCluster:
    """A cluster with room, or without."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.actors: list[FakeActor] = []
        self.asked: list[tuple[dict[str, float], dict[str, str]]] = []
        self.closed = False
        self.looked: list[tuple[str, int, str]] = []
        self.looks: list[tuple[str, int, Callable[..., None]]] = []  # nodes, number of actors, receivers
        self.sees = True  # whether observations are answered at once

    def look(self, node: str, those: Sequence[tuple[int, str]], then: Callable[..., None]) -> None:
        self.looked += [(node, *one) for one in those]
        self.looks.append((node, len(those), then))
        if self.sees:
            then([True] * len(those), None)

    def answer_for(self, node: str) -> int:
        """Answer the observations on that node. Returns their number."""
        looks, self.looks = self.looks, []
        self.looks = [one for one in looks if one[0] != node]
        for _, number, then in (one for one in looks if one[0] == node):
            then([True] * number, None)
        return len(looks) - len(self.looks)

    def connect(self) -> None: ...

    def disconnect(self) -> None:
        self.closed = True

    def unfit(self, resources: dict[str, float], labels: dict[str, str]) -> str | None:
        self.asked.append((dict(resources), dict(labels)))
        return self.reason

    def start(self, *_: object) -> Actor:
        self.actors.append(FakeActor())
        return cast("Actor", self.actors[-1])


class Kept:
    """An engine over a fake cluster, and its reports."""

    def __init__(self) -> None:
        self.record = Record()
        self.told: list[tuple[Any, ...]] = []
        spec = Worker("w", engine="ray", resources={"GPU": 1.0}, labels={"zone": "a"})
        self.engine = RayEngine(
            alive=self.record.worker_alive, died=self.record.worker_died, spec_of=lambda _: spec,
            unfit=lambda *told: self.tell("unfit", *told), fits=lambda *told: self.tell("fits", *told),
        )  # fmt: skip
        self.cluster = FakeCluster()
        self.engine._ray.cluster = cast("Cluster", self.cluster)

    def tell(self, *told: Any) -> None:
        self.told.append(told)
        self.record.change()

    async def actor(self, number: int = 0) -> FakeActor:
        await until(lambda: len(self.cluster.actors) > number and self.cluster.actors[number].polls)
        return self.cluster.actors[number]

    async def say(self, actor: FakeActor, *frames: Frame) -> None:
        polls = len(actor.polls)
        actor.polls[-1][1](b"".join(map(packed, frames)), None)
        await until(lambda: len(actor.polls) > polls)


async def test_a_worker_that_no_node_could_hold_is_told_of_and_told_again_when_one_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("callboard.runtime.engines.ray.actor_pool._LOOK", 0.01)
    kept = Kept()
    await kept.engine.open()
    kept.cluster.reason = "no node has GPU 1"
    kept.engine.start_worker("w", 1)
    await kept.record.until(lambda: ("unfit", "w", 1, "no node has GPU 1") in kept.told)
    assert kept.cluster.asked[0] == ({"GPU": 1.0}, {"zone": "a"})
    kept.engine.start(Call(token=1, process=process_call("quick", worker="w")), kept.record.ended, kept.record.beat)
    assert (await kept.record.outcome(1)).status == "lost"
    kept.cluster.reason = None
    await kept.record.until(lambda: ("fits", "w", 1) in kept.told)
    assert len(kept.told) == 2
    kept.engine.start_worker("w", 2)
    actor = await kept.actor()
    await kept.say(actor, ActorReady("host", 7))
    assert kept.engine.place("w") == ("process 7 on host", 7)
    assert not kept.record.died
    await kept.engine.close(0.1)
    assert kept.cluster.closed


async def test_an_actor_that_has_not_answered_when_it_is_asked_again_is_looked_at() -> None:
    kept = Kept()
    await kept.engine.open()
    kept.engine.start(Call(token=1, process=process_call("quick", worker="w")), kept.record.ended, kept.record.beat)
    actor = await kept.actor()
    await kept.say(actor, ActorReady("host", 7, "/folder", "node-1"))
    kept.engine.probe("w", 1)
    await until(lambda: actor.probes)
    assert not kept.cluster.looked
    kept.engine.probe("w", 1)
    await kept.record.until(lambda: ("w", 1, (1,)) in kept.record.alive)
    assert kept.cluster.looked == [("node-1", 7, "/folder")]  # hosts may share a name
    assert len(actor.probes) == 1  # the actor still owes that answer
    actor.probes[0]([1], None)
    await kept.record.until(lambda: len(kept.record.alive) == 2)
    kept.engine.probe("w", 1)
    await until(lambda: len(actor.probes) == 2)
    assert len(kept.cluster.looked) == 1
    await kept.engine.close(0.1)


async def test_busy_actors_are_looked_at_together_and_those_of_one_node_hold_up_no_others() -> None:
    kept = Kept()
    kept.cluster.sees = False
    await kept.engine.open()
    nodes = {f"w{number}": f"node-{number // 30}" for number in range(60)}
    for number, (worker, node) in enumerate(nodes.items()):
        kept.engine.start_worker(worker, 1)
        actor = await kept.actor(number)
        await kept.say(actor, ActorReady("host", 100 + number, f"/{worker}", node))
        kept.engine.probe(worker, 1)
        await until(lambda actor=actor: actor.probes)
    for worker in nodes:
        kept.engine.probe(worker, 1)
    await until(lambda: {node for node, *_ in kept.cluster.looks} == {"node-0", "node-1"})
    alive, looks = kept.record.alive, 0

    def seen(node: str) -> bool:
        nonlocal looks
        looks += kept.cluster.answer_for(node)
        return {worker for worker, *_ in alive} >= {worker for worker, at in nodes.items() if at == node}

    await until(lambda: seen("node-1"))  # the other node has not been answered yet
    assert len(alive) == 30
    await until(lambda: seen("node-0"))
    assert len(alive) == len(kept.cluster.looked) == 60
    assert looks <= 4  # the nodes of the first observation, and the others
    await kept.engine.close(0.1)
    assert kept.cluster.closed


async def test_the_connection_is_closed_once_nobody_looks_any_more() -> None:
    kept = Kept()
    kept.cluster.sees = False
    await kept.engine.open()
    kept.engine.start_worker("w", 1)
    actor = await kept.actor()
    await kept.say(actor, ActorReady("host", 7, "/folder", "node-1"))
    kept.engine.probe("w", 1)
    await until(lambda: actor.probes)
    kept.engine.probe("w", 1)
    await until(lambda: kept.cluster.looks)
    async with anyio.create_task_group() as group:
        group.start_soon(kept.engine.close, 0.1)
        await until(lambda: actor.killed)
        assert not kept.cluster.closed
        kept.cluster.answer_for("node-1")
    await until(lambda: kept.cluster.closed)


async def test_a_call_that_could_not_be_delivered_is_made_again_under_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("callboard.runtime.engines.ray.actor_pool._AGAIN", 0.01)
    kept = Kept()
    await kept.engine.open()
    kept.engine.start(Call(token=1, process=process_call("quick", worker="w")), kept.record.ended, kept.record.beat)
    actor = await kept.actor()
    await until(lambda: actor.pushed)
    number, data, then = actor.pushed[0]
    then(None, RayTrouble("away", "cut off"))
    await until(lambda: len(actor.pushed) == 2)
    assert actor.pushed[1][:2] == (number, data)
    actor.polls[-1][1](None, RayTrouble("away", "cut off"))
    await until(lambda: len(actor.polls) == 2)
    assert actor.polls[1][0] == actor.polls[0][0] == 0
    await kept.say(actor, CallEnd(Outcome(token=1, status="ok", value="late")))
    assert (await kept.record.outcome(1)).value == "late"
    assert actor.polls[-1][0] == 1
    # A message for a call that has ended changes nothing; bytes that are no frame end the worker.
    await kept.say(actor, CallEnd(Outcome(token=1, status="failed")), OutputPart(1, b"x"))
    actor.polls[-1][1](b"\x03\x00\x00\x00abc", None)
    await kept.record.until(lambda: kept.record.died)
    assert len(kept.record.outcomes[1]) == 1
    await kept.engine.close(0.1)


async def test_an_answer_that_comes_after_the_end_of_a_call_does_not_say_that_it_runs() -> None:
    kept = Kept()
    await kept.engine.open()
    for token in (1, 2):
        call = Call(token=token, process=process_call("quick", worker="w"))
        kept.engine.start(call, kept.record.ended, kept.record.beat)
    actor = await kept.actor()
    await kept.say(actor, ActorReady("host", 7))
    kept.engine.probe("w", 1)
    await until(lambda: actor.probes)
    await kept.say(actor, CallEnd(Outcome(token=1, status="ok")))
    await kept.record.outcome(1)
    actor.probes[0]((1, 2), None)  # given before that end
    await kept.record.until(lambda: kept.record.alive)
    assert kept.record.alive == [("w", 1, (2,))]
    kept.engine.probe("w", 1)
    await until(lambda: len(actor.probes) == 2)
    actor.probes[1]((1, 2), None)  # given after it: it does run
    await kept.record.until(lambda: len(kept.record.alive) == 2)
    assert kept.record.alive[1] == ("w", 1, (1, 2))
    await kept.engine.close(0.1)


async def test_a_worker_owes_one_answer_however_often_it_is_asked() -> None:
    kept = Kept()
    await kept.engine.open()
    assert kept.engine.probe("w", 1) == ()
    kept.engine.start_worker("w", 1)
    assert [kept.engine.probe("w", 1) for _ in range(3)] == [None] * 3
    actor = await kept.actor()
    await until(lambda: actor.probes)
    kept.engine.probe("w", 1)
    actor.probes[0]((5,), None)
    await kept.record.until(lambda: kept.record.alive)
    assert kept.record.alive == [("w", 1, (5,))]
    actor.polls[-1][1](None, RayTrouble("gone", "its node has died"))
    await kept.record.until(lambda: kept.record.died)
    assert "its node has died" in kept.record.died[0][2]
    await kept.engine.close(0.1)


async def test_one_that_does_not_even_end_when_it_is_killed_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_KILLING", "_FORCED", "_UNKILLABLE"):
        monkeypatch.setattr(f"callboard.runtime.engines.ray.actor_pool.{name}", 0.01)
    kept = Kept()
    await kept.engine.open()
    monkeypatch.setattr(FakeActor, "kill", lambda self: None)
    context = TaskContext(task="t", token=1)
    call = Call(token=1, process=process_call("async_patient", worker="w", on_loop=True), context=context)
    kept.engine.start(call, kept.record.ended, kept.record.beat)
    actor = await kept.actor()
    await kept.say(actor, ActorReady("host", 7))
    kept.engine.stop(1, force=True)
    assert (await kept.record.outcome(1)).status == "abandoned"
    await kept.engine.close(0.1)


async def test_one_that_is_stopped_by_force_again_and_again_is_given_up_in_time_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As each round of health checks does that finds it there."""
    monkeypatch.setattr("callboard.runtime.engines.ray.actor_pool._FORCED", 0.05)
    kept = Kept()
    await kept.engine.open()
    call = Call(token=1, process=process_call("async_patient", worker="w", on_loop=True))
    kept.engine.start(call, kept.record.ended, kept.record.beat)
    actor = await kept.actor()
    await kept.say(actor, ActorReady("host", 7))
    with anyio.fail_after(300):
        await until(lambda: not kept.engine.stop(1, force=True))
    assert actor.killed == 1
    assert (await kept.record.outcome(1)).status == "cancelled"
    await kept.engine.close(0.1)
