"""Memory does not grow: six thousand objects begin and end, and the runtime holds as many as before."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from tests.runtime.census import held_by, rows_of
from tests.waiting import until

from callboard import (
    Actor,
    Approval,
    Fire,
    Hook,
    Machine,
    MachineActor,
    Runtime,
    State,
    Task,
    TaskContext,
    Tool,
    Transition,
    Worker,
    Workstream,
)
from callboard.actors.jobs import job as job_actor
from callboard.actors.kernel import kernel
from callboard.actors.machines import entity as machine_actor
from callboard.actors.tasks.task import TaskActor
from callboard.actors.workers import scheduler, workforce
from callboard.actors.workers import tools as breakers
from callboard.errors import InvalidTransitionError
from callboard.machines.audit.audit import audit_lines
from callboard.runtime import host
from callboard.runtime.dispatch import supervision
from callboard.runtime.handles import jobs as handles
from callboard.runtime.journal import memory
from callboard.runtime.journal.consistency import examine
from callboard.runtime.journal.sqlite.reader import SqliteReader
from callboard.runtime.observation import metrics
from callboard.runtime.text import secrets as masks
from callboard.web import board

pytestmark = [pytest.mark.anyio, pytest.mark.laboratory]

DOOR = Machine(
    "door", "shut", states=[State("shut", bounded_by="whoever opens it"), State("gone", terminal=True)],
    transitions=[Transition("shut", "remove", "gone")],
)  # fmt: skip


async def works() -> int:
    return 1


held = threading.Event()


async def works_later() -> int:
    while not held.is_set():
        await anyio.sleep_forever()
    return 1


async def breaks() -> None:
    raise ValueError("no")


async def spawns(task: TaskContext) -> None:
    child = await task.submit(flow(Task("t", run=works)), name="child")
    await child.wait()


async def asks(task: TaskContext) -> None:
    await task.approval("go", people=1)


class Once(Actor):
    def receive(self, message: object, ctx: Any) -> None:
        ctx.stop()


def flow(*tasks: Task, **more: Any) -> Workstream:
    return Workstream("w", tasks=list(tasks), **more)


async def run(runtime: Runtime, spec: Workstream) -> None:
    await (await runtime.submit(spec)).wait()


async def jobs(runtime: Runtime, n: int) -> None:
    await run(runtime, flow(Task("t", run=works), Task("u", run=works, depends_on=["t"])))


async def jobs_that_are_run_again(runtime: Runtime, n: int) -> None:
    job = await runtime.submit(flow(Task("t", run=breaks)))
    await job.wait()
    await (await job.retry()).wait()


async def functions_of_functions(runtime: Runtime, n: int) -> None:
    async def local() -> int:
        return n

    await run(runtime, flow(Task("t", run=local)))


async def reserved_slots_and_hooks(runtime: Runtime, n: int) -> None:
    await run(runtime, flow(Task("t", run=works, on_completed=[Hook(run=works)]), worker_count=1))


async def children(runtime: Runtime, n: int) -> None:
    await run(runtime, flow(Task("t", run=spawns)))


async def approvals(runtime: Runtime, n: int) -> None:
    job = await runtime.submit(flow(Task("t", run=works, hold=Approval(people=1))))
    await job.task("t").approve(by=f"person {n}")
    await job.wait()


async def approvals_of_bodies(runtime: Runtime, n: int) -> None:
    job = await runtime.submit(flow(Task("t", run=asks)))
    await until(job.approvals)
    await job.task("t").approve(by=f"person {n}")
    await job.wait()


async def tools(runtime: Runtime, n: int) -> None:
    name = f"tool {n}"
    await run(runtime, flow(Task("t", run=works, tool=name), tools={name: Tool(max_parallel=1)}))


async def capabilities(runtime: Runtime, n: int) -> None:
    job = await runtime.submit(flow(Task("t", run=works, capabilities=[f"c{n}"])))
    await job.cancel()
    await job.wait()


async def workers(runtime: Runtime, n: int) -> None:
    (worker,) = await runtime.start_worker(Worker(f"w{n}", engine="loop", capacity=1))
    await worker.terminate()


async def incarnations(runtime: Runtime, n: int) -> None:
    name = f"again {n % 50}"
    (worker,) = await runtime.start_worker(Worker(name, engine="loop", capacity=1))
    await worker.terminate()


async def machines(runtime: Runtime, n: int) -> None:
    await runtime.spawn(MachineActor(DOOR), name=f"door {n}").ask(Fire("remove"))


async def refusals(runtime: Runtime, n: int) -> None:
    with pytest.raises(InvalidTransitionError):
        await runtime.machine("front").ask(Fire(f"made up {n}"))
    with pytest.raises(InvalidTransitionError):
        await runtime.worker("stays").resume(request_id=f"refused {n}")


async def made_up_names(runtime: Runtime, n: int) -> None:
    for look in (runtime.worker, runtime.breaker, runtime.machine):
        with pytest.raises(LookupError):
            look(f"nothing {n}")
    with pytest.raises(LookupError):
        await runtime.job(f"nothing{n}")


async def actors(runtime: Runtime, n: int) -> None:
    runtime.spawn(Once, name=f"actor {n}").tell(n)


async def subscriptions(runtime: Runtime, n: int) -> None:
    runtime.events(job=f"j{n}").close()


async def kinds_of_machines(runtime: Runtime, n: int) -> None:
    made = Machine(f"door of {n}", "shut", states=[*DOOR.states.values()], transitions=[*DOOR.transitions])
    await runtime.spawn(MachineActor(made), name=f"door {n}").ask(Fire("remove"))


async def classes_of_actors(runtime: Runtime, n: int) -> None:
    class Made(Once):
        pass

    runtime.spawn(Made).tell(n)


async def secrets(runtime: Runtime, n: int) -> None:
    await run(runtime, flow(Task("t", run=works, secrets=[f"TOKEN_{n}"])))


async def workers_with_processes(runtime: Runtime, n: int) -> None:
    (worker,) = await runtime.start_worker(Worker(f"p{n}", engine="process", capacity=1))
    await worker.terminate()


KINDS: list[Callable[[Runtime, int], Awaitable[None]]] = [
    jobs, jobs_that_are_run_again, functions_of_functions, reserved_slots_and_hooks, children, approvals,
    approvals_of_bodies, tools, capabilities, workers, incarnations, machines, refusals, made_up_names, actors,
    subscriptions, kinds_of_machines, classes_of_actors, secrets, workers_with_processes,
]  # fmt: skip
MANY = 640 if "CALLBOARD_LABORATORY" in os.environ else 160
"""Of each kind, twice: by default six thousand things in all."""
FEW = 50
"""So many of some kinds are kept here, instead of hundreds."""
AT_ONCE = 50


async def many(runtime: Runtime, kind: Callable[[Runtime, int], Awaitable[None]], first: int, count: int) -> None:
    for begin in range(first, first + count, AT_ONCE):
        async with anyio.create_task_group() as group:
            for n in range(begin, min(begin + AT_ONCE, first + count)):
                group.start_soon(kind, runtime, n)
    await run(runtime, flow(Task("last", run=works)))  # whose turn is the one that is still looked at
    gc.collect()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # the held objects are the same on each


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (workforce, "WORKERS_KEPT"), (breakers, "BREAKERS_KEPT"), (machine_actor, "KEPT"), (scheduler, "POOLS_KEPT"),
        (job_actor, "RERUNS"), (host, "ENGINES_KEPT"), (machine_actor, "KINDS_KEPT"), (supervision, "SPECS_KEPT"),
        (masks, "MASKS_KEPT"), (metrics, "KINDS_COUNTED"), (kernel, "KINDS_COUNTED"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, FEW)


def task_actors() -> int:
    """How many this process holds, of whatever runtime: other tests may have left some."""
    gc.collect()
    return sum(type(one) is TaskActor for one in gc.get_objects())  # tests leave objects that lie about their class


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_runtime_holds_does_not_grow_with_what_has_ended(
    kind: Callable[[Runtime, int], Awaitable[None]],
) -> None:
    count = 2 * FEW if kind is secrets else MANY  # each takes 10 ms
    stays, of_others = Worker("stays", engine="loop", capacity=100), task_actors()
    workers = (stays, Worker("commands", engine="command", capacity=1))
    async with Runtime(workers=workers, secrets=lambda name: f"the value of {name}") as runtime:
        runtime.on_trouble = lambda _: None
        runtime.spawn(MachineActor(DOOR), name="front")
        await many(runtime, kind, 0, count)
        before = held_by(runtime, runtime.journal)
        await many(runtime, kind, count, count)
        after = held_by(runtime, runtime.journal)
        grown = {name: (before[name], number) for name, number in after.items() if number > before[name] + count / 2}
        grown.pop("Timers.heap", None)  # those that were cancelled, up to a thousand
        assert grown == {}
    assert task_actors() < of_others + 10


async def asks_the_board(client: httpx.AsyncClient, n: int) -> None:
    """Send requests of a client that invents names and paths, and gives each command a key."""
    for path in (f"/api/jobs/nothing-{n}", f"/api/made/up/{n}", f"/{n}.js", f"/api/jobs?q={n}", f"/api/workers/w{n}"):
        assert (await client.get(path)).status_code in {404, 422}, path
    for path, said in (
        (f"/api/jobs/nothing-{n}/cancel", {"request_id": f"k{n}"}),
        ("/api/machines/front/fire", {"event": f"made up {n}", "request_id": f"f{n}"}),
        (f"/api/machines/nothing-{n}/fire", {"event": "remove"}),
        (f"/api/breakers/nothing-{n}/trip", {"by": f"person {n}"}),
        ("/api/workers/stays/resume", {"by": f"person {n}", "request_id": f"w{n}"}),
    ):
        answer = await client.post(path, json=said, headers={"idempotency-key": f"{path}{n}"})
        assert 400 <= answer.status_code < 500, (path, answer.text)


async def test_what_a_board_holds_does_not_grow_with_what_it_is_asked() -> None:
    async with Runtime(workers=(Worker("stays", engine="loop", capacity=100),)) as runtime:
        runtime.spawn(MachineActor(DOOR), name="front")
        app = board(runtime)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            counted = []
            for begin in (0, 50):
                for n in range(begin, begin + 50):
                    await asks_the_board(client, n)
                await run(runtime, flow(Task("last", run=works)))
                gc.collect()
                counted.append(held_by((app, runtime), runtime.journal))
            before, after = counted
        grown = {name: (before[name], number) for name, number in after.items() if number > before[name] + 25}
        assert grown == {}


async def test_handles_of_jobs_that_have_ended_hold_no_actors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "RECOVERED_KEPT", 5)
    held.clear()
    of_others = task_actors()
    async with Runtime(tmp_path / "j.db", drain_deadline=0) as runtime:
        for n in range(20):
            await runtime.submit(flow(*(Task(f"t{each}", run=works_later) for each in range(10))), id=f"job{n}")
    held.set()
    async with Runtime(tmp_path / "j.db") as runtime:
        kept = [await runtime.job(f"job{n}") for n in range(20)]
        for job in runtime.recovered:
            assert (await job.wait()).ok
        await run(runtime, flow(Task("last", run=works)))
        assert task_actors() < of_others + 10
        assert [job.record.state for job in kept] == ["completed"] * 20  # they still show all of it
        assert len(kept[0].tasks()) == 10
        assert len(runtime.recovered) == 5
        with pytest.raises(InvalidTransitionError, match="nothing leaves it"):
            await kept[0].cancel()


async def test_a_journal_in_memory_forgets_what_nothing_runs_by_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "ENDED_MACHINES", FEW)
    counted = []
    async with Runtime() as runtime:
        for begin in (0, 2 * FEW):
            await many(runtime, kinds_of_machines, begin, 2 * FEW)
            counted.append(held_by(runtime.journal)["MemoryJournal._specs"])
        again = runtime.spawn(MachineActor(DOOR), name="front")
        await run(runtime, flow(Task("t", run=works)))
        assert runtime.journal.reader.spec(again.record.definitions[-1]) is not None
    before, after = counted  # with those of the last ended jobs
    assert after < before + FEW


async def test_the_records_of_workers_and_breakers_do_not_grow(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    counted: list[dict[str, int]] = []
    for n in range(12):
        async with Runtime(path, workers=(Worker("stays", engine="loop", capacity=100),)) as runtime:
            await many(runtime, incarnations, 100 * n, 60)
            await run(runtime, flow(Task("t", run=works, tool="press")))
        counted.append(rows_of(path))
    for table in ("worker_records", "breaker_records", "request_records", "outbox_rows"):
        assert counted[-1][table] <= counted[2][table], table


async def test_an_id_of_a_worker_is_never_given_twice(tmp_path: Path) -> None:
    path, ids = tmp_path / "j.db", set[str]()
    for _ in range(3):
        async with Runtime(path, workers=(Worker("stays", engine="loop", capacity=100),)) as runtime:
            for n in range(FEW + 20):
                (worker,) = await runtime.start_worker(Worker(f"w{n}", engine="loop", capacity=1))
                assert worker.record.id not in ids
                ids.add(worker.record.id)
                await worker.terminate()
            assert worker.state == "terminated"
            assert len(runtime.workers()) <= FEW + 1


async def test_a_breaker_that_was_let_go_and_is_used_again_is_no_error_of_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breakers, "BREAKERS_KEPT", 2)
    async with Runtime(tmp_path / "j.db", jsonl=tmp_path / "log.jsonl") as runtime:
        for n in (1, 2, 3, 4, 5, 1, 2):
            await tools(runtime, n)
        with pytest.raises(LookupError):
            runtime.breaker("tool 4")
    with contextlib.closing(SqliteReader(tmp_path / "j.db")) as reader:
        assert examine(reader).found == []
    assert audit_lines((tmp_path / "log.jsonl").read_bytes().splitlines(keepends=True)) == []
