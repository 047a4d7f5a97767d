"""Several runtimes on one PostgreSQL: in this process, and in processes that are killed, stopped and continued."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.waiting import until

from callboard import (
    Approval,
    Fire,
    JobHandle,
    Machine,
    MachineActor,
    Runtime,
    State,
    Task,
    TaskContext,
    Transition,
    Workstream,
)
from callboard.actors import supervisor
from callboard.actors.messages.commands import Submit
from callboard.actors.workers.workforce import Workforce
from callboard.errors import DecisionConflict, InvalidTransitionError, JobExists, LeaseLost, RuntimeClosed
from callboard.runtime.commands import inbox as takers
from callboard.runtime.handles.jobs import core_of
from callboard.runtime.journal.consistency import examine
from callboard.runtime.journal.contract import InboxRow
from callboard.runtime.journal.postgres.address import parse
from callboard.runtime.journal.postgres.inbox import put
from callboard.runtime.journal.postgres.opening import connect
from callboard.runtime.lifespan import wiring
from callboard.runtime.testing.postgres import PrivateServer

from .node import FENCED, WORKERS, noted, waiting, waits

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


@pytest.fixture(params=[pytest.param(("asyncio", {}), id="asyncio"), pytest.param(("trio", {}), id="trio")])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Two loops suffice here: what differs between them is the runtime's, and is tested with it on all."""
    return request.param


@pytest.fixture
def one_backend(anyio_backend: Any) -> None:
    if anyio_backend[0] != "asyncio":
        pytest.skip("the server and processes are what matters here")


def node(address: str, name: str, folder: Path, **settings: Any) -> Runtime:
    """A node whose lease no busy machine lets run out."""
    more = {"lease": 30, "workers": WORKERS, "drain_deadline": 0, **settings}
    return Runtime(address, node=name, outputs=folder / "outputs", **more)


async def test_what_runs_elsewhere_is_reached_from_every_node(postgres: str, tmp_path: Path) -> None:
    async with node(postgres, "a", tmp_path) as a, node(postgres, "b", tmp_path) as b:
        held = Task("x", run=waits, args={"folder": str(tmp_path)}, hold=Approval(people=1))
        job = await a.submit(Workstream("w", tasks=[held, *waiting(tmp_path / "none").tasks[:0]]), id="j")
        far = await b.job("j")
        events = far.events(notices=False)
        await far.task("x").approve(by="ana", request_id="k")
        await far.task("x").approve(by="ana", request_id="k")
        with pytest.raises(DecisionConflict):
            await far.task("x").approve(by="bob")
        await until(lambda: noted(tmp_path, "began"))
        await far.pause()
        with pytest.raises(InvalidTransitionError, match="'pause' is not possible in state 'paused'"):
            await far.pause()
        await far.resume()
        await far.cancel(by="ana")
        assert (await far.wait()).state == "cancelled"
        assert (await job.wait()).state == "cancelled"
        assert [event async for event in events] == list(a.journal.reader.transitions(job_id="j"))
        again = await far.retry()
        (tmp_path / "go").touch()
        await again.task("x").approve(by="ana")
        assert (await again.wait()).ok
        assert [run.run for run in a.journal.reader.workstreams("j")] == [1, 2]
        nodes = await a.nodes()
        assert [(one.name, one.state) for one in nodes] == [("a", "living"), ("b", "living")]


came: list[str] = []


async def comes(name: str) -> str:
    came.append(name)
    return name


async def walks(task: TaskContext) -> list[str]:
    return [await task.step(comes, name) for name in "abc"]


async def test_a_task_runs_again_from_a_step_on_from_any_node_once(postgres: str, tmp_path: Path) -> None:
    came.clear()
    async with node(postgres, "a", tmp_path) as a, node(postgres, "b", tmp_path) as b:
        job = await a.submit(Workstream("w", tasks=[Task("x", run=walks)]), id="steps")
        await job.wait()
        async with anyio.create_task_group() as both:
            for one in (a, b):  # the same command to both: one run
                far = await one.job("steps")
                both.start_soon(partial(far.retry, "x", from_step="comes#2", request_id="r"))
        assert (await (await b.job("steps")).wait()).results["x"] == ["a", "b", "c"]
        assert came == ["a", "b", "c", "b", "c"]
        assert (await a.job("steps")).record.runs == 2
        assert [step.label for step in await (await b.job("steps")).steps("x")] == ["comes", "comes#2", "comes#3"]
        with pytest.raises(LookupError, match="keeps no step 'goes'"):
            await (await b.job("steps")).retry("x", from_step="goes")
        assert examine(a.journal.reader).found == []


def is_paused(job: JobHandle) -> bool:
    stream = core_of(job).stream
    return stream is not None and stream.state == "paused"


async def test_events_are_sent_from_node_to_node(postgres: str, tmp_path: Path) -> None:
    """To a task by its own words and by those of a published lifecycle: judged and refused where it runs."""
    for name, approve, start, pause in (("own", "approve", "start", "pause"), ("execution", "APPROVE", "START", "")):
        async with node(postgres, "a", tmp_path) as a, node(postgres, "b", tmp_path) as b:
            held = Task("x", run=waits, args={"folder": str(tmp_path)}, hold=Approval(people=1))
            job = await a.submit(Workstream("w", tasks=[held], lifecycle=name), id=name)
            ref = await b.machine_of(f"{name}@1/x")
            with pytest.raises(InvalidTransitionError) as there:
                await ref.ask(Fire(start))
            with pytest.raises(InvalidTransitionError) as at_home:
                await job.task("x").ref.ask(Fire(start))
            assert str(there.value) == str(at_home.value)
            assert approve in there.value.allowed
            for _ in "ab":
                assert await ref.ask(Fire(approve, by="ana", request_id=f"{name} k")) is None
            with pytest.raises(DecisionConflict):
                await ref.ask(Fire(approve, by="bob"))
            if pause:
                await (await b.machine_of(name)).ask(Fire(pause, by="ana"))
                await until(partial(is_paused, job))
            await (await b.job(name)).cancel(by="bob", force=True)
            await job.wait()
            assert [one.by for one in job.task("x").record.decisions] == ["ana"]


async def test_a_node_runs_its_program_before_events_that_were_left_are_done(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node(postgres, "one", tmp_path) as runtime:
        await runtime.spawn(MachineActor(DOOR), name="door")
    for number in range(30):
        put(postgres, InboxRow("fire", "machine", "door", f"k{number}", {"event": ("open", "shut")[number % 2]}))
    perform, done, go_on = wiring.perform, list[str](), anyio.Event()

    async def performing(on: Runtime, row: InboxRow) -> None:
        await go_on.wait()
        done.append(row.request_id)
        await perform(on, row)

    monkeypatch.setattr(wiring, "perform", performing)
    monkeypatch.setattr(takers, "IN_HAND", 10)
    with anyio.fail_after(PATIENCE):
        async with node(postgres, "two", tmp_path) as runtime:
            assert done == []
            go_on.set()
            await runtime.caught_up()
    assert done == [f"k{number}" for number in range(30)]


async def test_the_same_id_on_both_is_one_job(postgres: str, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    async with node(postgres, "a", tmp_path) as a, node(postgres, "b", tmp_path) as b:
        came: list[Any] = []

        async def submit(runtime: Runtime, name: str) -> None:
            came.append(await runtime.submit(waiting(tmp_path), id=name))

        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(submit, a, f"j{number}")
                group.start_soon(submit, b, f"j{number}")
        for handle in came:
            assert (await handle.wait()).ok
    assert sorted(noted(tmp_path, "began"))[::1] == sorted(noted(tmp_path, "returned"))
    assert len(noted(tmp_path, "began")) == 5


async def test_an_id_is_free_where_who_reserves_it_is_cut_meanwhile(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancelled command's query goes on in its thread; the id is given back after that."""
    async with node(postgres, "a", tmp_path) as a, node(postgres, "b", tmp_path) as b:
        assert a._services.node is not None
        reserve, reserved, go_on = a._services.node.cluster.reserve, threading.Event(), threading.Event()

        def reserving(kind: str, name: str) -> int:
            number = reserve(kind, name)
            reserved.set()
            assert go_on.wait(PATIENCE)
            return number

        monkeypatch.setattr(a._services.node.cluster, "reserve", reserving)
        async with anyio.create_task_group() as group:
            group.start_soon(partial(a.submit, waiting(tmp_path), id="j"))
            await until(reserved.is_set)
            group.cancel_scope.cancel()
        go_on.set()
        with anyio.fail_after(PATIENCE):
            job = await b.submit(waiting(tmp_path), id="j")
            assert not job.elsewhere
            assert (await a.submit(waiting(tmp_path), id="j")).elsewhere
            (tmp_path / "go").touch()
            assert (await job.wait()).ok
    assert len(noted(tmp_path, "began")) == 1


async def test_what_was_submitted_before_its_caller_was_cut_is_one_job(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what the kernel refuses leaves its id to others."""
    submit, broken = supervisor.submit, ["once"]

    def submitting(workforce: Workforce, message: Submit) -> None:
        submit(workforce, message)
        if broken and message.job_id == "refused":
            raise ZeroDivisionError(broken.pop())

    monkeypatch.setattr(supervisor, "submit", submitting)
    async with node(postgres, "a", tmp_path) as a, node(postgres, "b", tmp_path) as b:
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(partial(a.submit, waiting(tmp_path), id="sent"))
                await until(lambda: "sent" in a._services.host.kernel.jobs)
                group.cancel_scope.cancel()
            far = await b.submit(waiting(tmp_path), id="sent")
            assert far.elsewhere
            (tmp_path / "go").touch()
            assert (await far.wait()).ok
            assert len(noted(tmp_path, "began")) == 1
            with pytest.raises(ZeroDivisionError):
                await a.submit(waiting(tmp_path), id="refused")
            job = await b.submit(waiting(tmp_path), id="refused")
            assert not job.elsewhere
            assert (await job.wait()).ok


async def test_two_nodes_that_replace_an_ended_job_make_one_new_run(postgres: str, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    async with node(postgres, "a", tmp_path) as a, node(postgres, "b", tmp_path) as b:
        for number in range(6):
            await (await a.submit(waiting(tmp_path), id=f"j{number}")).wait()
        came: list[Any] = []

        async def replace(runtime: Runtime, job: str, key: str | None) -> None:
            try:
                found = await runtime.submit(waiting(tmp_path), id=job, existing="replace_ended", request_id=key)
                came.append((job, found.record.run))
                assert (await found.wait()).ok
            except JobExists:
                came.append((job, 0))

        async with anyio.create_task_group() as group:
            for number in range(6):
                for runtime in (a, b):  # the first three under one key each
                    group.start_soon(replace, runtime, f"j{number}", f"k{number}" if number < 3 else None)
        for number in range(3):
            assert sorted(one for one in came if one[0] == f"j{number}") == [(f"j{number}", 2)] * 2
        for number in range(6):
            runs = [run.run for run in a.journal.reader.workstreams(f"j{number}")]
            made = {run for job, run in came if job == f"j{number}" and run}
            assert runs == [1, *sorted(made)]  # one that comes after the other has ended replaces that as well
        assert examine(a.journal.reader).found == []


DOOR = Machine(
    "door",
    initial="shut",
    states=[State("shut"), State("open")],
    transitions=[Transition("shut", "open", "open"), Transition("open", "shut", "shut")],
    endless=True,
)


async def test_who_leaves_hands_jobs_and_machines_over(postgres: str, tmp_path: Path) -> None:
    async with node(postgres, "b", tmp_path) as b:
        async with node(postgres, "a", tmp_path) as a:
            await a.submit(waiting(tmp_path), id="j")
            await until(lambda: noted(tmp_path, "began"))
            near = a.spawn(MachineActor(DOOR), name="door")
            await near.ask(Fire("open"))
            far, door = await b.job("j"), b.spawn(MachineActor(DOOR), name="door")
            assert (await door.ask(Fire("shut"))).to_state == "shut"
        await until(lambda: not far.elsewhere and not door.elsewhere)
        (tmp_path / "go").touch()
        assert (await far.wait()).ok
        record = far.task("x").record
        assert (record.lost_attempts, record.failed_attempts) == (0, 0)
        assert (await door.ask(Fire("open"))).to_state == "open"
        assert [row.seq for row in b.journal.reader.transitions(job_id="j")] == sorted(
            {row.seq for row in b.journal.reader.transitions(job_id="j")}
        )


async def only_here() -> str:
    """A function that only those nodes know which registered it."""
    return "done"


@pytest.mark.usefixtures("one_backend")
async def test_a_node_without_the_functions_leaves_jobs_to_who_has_them(postgres: str, tmp_path: Path) -> None:
    async with node(postgres, "plain", tmp_path) as plain, node(postgres, "z", tmp_path) as z:
        z.task(only_here)
        async with node(postgres, "a", tmp_path) as a:
            a.task(only_here)
            for number in range(6):
                tasks = [*waiting(tmp_path).tasks, Task("then", run=only_here, depends_on=["x"])]
                await a.submit(Workstream("w", tasks=tasks), id=f"j{number}")
            await until(lambda: len(noted(tmp_path, "began")) == 6)
        (tmp_path / "go").touch()
        await until(lambda: len(z.recovered) == 6)
        assert plain.recovered == []
        for job in z.recovered:
            assert (await job.wait()).ok


async def test_a_node_that_was_fenced_says_that_alone_and_its_events_do_not_just_end(
    postgres: str, tmp_path: Path
) -> None:
    told: list[str] = []
    with anyio.fail_after(PATIENCE), pytest.raises(RuntimeClosed):
        a = node(postgres, "a", tmp_path)
        a.on_trouble = lambda notice: told.append(notice.event)
        async with a:
            job = await a.submit(waiting(tmp_path), id="j")
            streams = [job.events(), a.events()]
            await until(lambda: noted(tmp_path, "began"))
            with connect(parse(postgres), "test") as connection:
                connection.execute("UPDATE nodes SET fenced = true")
            (tmp_path / "go").touch()
            await anyio.sleep_forever()  # until it is cancelled
    with pytest.raises(RuntimeClosed, match="since it was fenced: others take over its jobs"):
        await job.wait()
    for events in streams:
        with pytest.raises(RuntimeClosed) as cut:
            while True:
                assert await anext(events) is not None
        assert isinstance(cut.value.__cause__, LeaseLost)
    assert told == ["lease_lost"]


@pytest.mark.usefixtures("one_backend")
async def test_an_outage_of_the_server_is_ridden_out_and_nobody_is_fenced(
    postgres: str, postgres_server: PrivateServer, tmp_path: Path
) -> None:
    async with node(postgres, "a", tmp_path, lease=10) as a, node(postgres, "b", tmp_path, lease=10) as b:
        job = await a.submit(waiting(tmp_path), id="j")
        far = await b.job("j")
        await until(lambda: noted(tmp_path, "began"))
        await anyio.to_thread.run_sync(postgres_server.stop)
        (tmp_path / "go").touch()
        await until(lambda: not a.health.ok)
        await until(lambda: min(one.metrics().lease_left or 0 for one in (a, b)) < -0.1)
        await anyio.to_thread.run_sync(postgres_server.start)
        with anyio.fail_after(PATIENCE):
            assert (await far.wait()).ok
            assert (await job.wait()).ok
            assert "fenced" not in [one.state for one in await b.nodes()]
    assert len(noted(tmp_path, "began")) == 1


# -- processes ---------------------------------------------------------------------------------------------------------


@contextmanager
def process(address: str, name: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A node in a process of its own, with two jobs that run."""
    command = [sys.executable, "-m", "tests.postgres.node", address, name, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        try:
            assert victim.stdout.readline() == "ready\n"
            yield victim
        finally:
            victim.kill()


@pytest.mark.usefixtures("one_backend")
async def test_a_killed_node_is_replaced_by_the_others_each_job_once(postgres: str, tmp_path: Path) -> None:
    with process(postgres, "a", tmp_path) as victim:
        async with node(postgres, "b", tmp_path) as b, node(postgres, "c", tmp_path) as c:
            handles = [await b.job("j0"), await c.job("j1")]
            victim.kill()
            await until(lambda: len(noted(tmp_path, "began")) == 4)
            (tmp_path / "go").touch()
            for handle in handles:
                assert (await handle.wait()).ok
            assert sorted(job.id for one in (b, c) for job in one.recovered) == ["j0", "j1"]
            assert [one.state for one in await b.nodes()] == ["fenced", "living", "living"]
    assert len(noted(tmp_path, "began")) == 4
    assert len(noted(tmp_path, "returned")) == 2


@pytest.mark.usefixtures("one_backend")
async def test_a_stopped_node_that_goes_on_commits_nothing(postgres: str, tmp_path: Path) -> None:
    with process(postgres, "a", tmp_path) as victim:
        async with node(postgres, "b", tmp_path, lease=10) as b:
            victim.send_signal(signal.SIGSTOP)
            await until(lambda: len(noted(tmp_path, "began")) == 4)
            jobs = [await b.job("j0"), await b.job("j1")]
            assert not any(job.elsewhere for job in jobs)
            (tmp_path / "go").touch()
            victim.send_signal(signal.SIGCONT)
            assert await anyio.to_thread.run_sync(victim.wait, PATIENCE) == FENCED
            for job in jobs:
                outcome = await job.wait()
                assert outcome.ok
                assert outcome.results["x"] != victim.pid
                ends = [attempt.end for attempt in b.journal.reader.attempts(job.task("x").record.id)]
                assert ends == ["lost", "succeeded"]


async def test_what_went_wrong_on_each_node_is_kept_with_its_name_and_outlives_it(
    postgres: str, tmp_path: Path
) -> None:
    with anyio.fail_after(PATIENCE):
        async with node(postgres, "a", tmp_path) as a:
            async with node(postgres, "b", tmp_path) as b:
                for runtime, text in ((a, "of a"), (b, "of b"), (b, "of b, again")):
                    runtime._services.host.notice(
                        "odd", "warning", f"{text} \ud800\x00", kind="actor", entity_id="echo"
                    )
                found = await b.kept_notices(about="echo")
                assert {(one.node, one.text[:4]) for one in found} >= {("b", "of b")}
            kept = await a.kept_notices(about="echo")
        assert sorted((str(one.node), one.count) for one in kept) == [("a", 1), ("b", 2)]
        async with node(postgres, "c", tmp_path) as c:
            assert {one.node for one in await c.kept_notices(about="echo")} == {"a", "b"}
            with connect(parse(postgres), "test") as connection:
                rows = connection.execute("SELECT node, event, count FROM notices WHERE entity_id = 'echo'").fetchall()
            assert sorted(rows) == [("a", "odd", 1), ("b", "odd", 2)]
