"""Nodes that are silent, are fenced or leave, and the take-over of their jobs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from callboard import Approval, Fire, Machine, MachineActor, Runtime, State, Task, Transition, Workstream
from callboard.actors.messages.notices import Notice
from callboard.errors import RuntimeClosed
from callboard.runtime.errors import JournalError, LeaseLost

from .scene import Nodes, quick

pytestmark = pytest.mark.anyio


@pytest.fixture
def scene() -> Nodes:
    return Nodes()


@asynccontextmanager
async def fenced_in_the_end(scene: Nodes, name: str, **settings: Any) -> AsyncGenerator[Runtime]:
    """A node that others fence before it is left."""
    with pytest.raises(RuntimeClosed) as told:
        async with scene.runtime(name, **settings) as runtime:
            yield runtime
            scene.nodes[name].cut_off(False)
            await scene.until(lambda: not runtime.is_open)
            await anyio.sleep_forever()  # until it is cancelled
    assert isinstance(told.value.__cause__, LeaseLost)


async def test_what_a_silent_node_ran_goes_on_elsewhere_within_its_lease_and_two_seconds(scene: Nodes) -> None:
    async with scene.runtime("b") as b:
        async with fenced_in_the_end(scene, "a", drain_deadline=1000) as a:
            job = await a.submit(scene.waiting(), id="j")
            await scene.until(lambda: scene.ran.began)
            far = await b.job("j")
            silent = scene.clock.monotonic()
            scene.nodes["a"].cut_off()
            await scene.until(lambda: len(scene.ran.began) == 2)
            assert scene.base.fenced_at("a") <= silent + scene.base.lease + 2
            assert not far.elsewhere
            assert (far.task("x").record.lost_attempts, far.task("x").record.attempt) == (1, 2)
            assert scene.ran.stopped == []  # the body goes on, unable to write, until the node learns of the fence
        assert scene.ran.stopped == ["j"]
        with pytest.raises(RuntimeClosed, match="was fenced"):
            await job.wait()
        assert not a.health.ok
        assert "was fenced" in (a.health.reason or "")
        with pytest.raises(RuntimeClosed, match="was fenced"):
            await a.submit(scene.waiting())
        scene.ran.go_on.set()
        async with scene.ticking():
            assert (await far.wait()).ok
    assert scene.ran.ended == ["j"]


async def test_a_task_that_waits_for_a_message_goes_on_waiting_on_another_node(scene: Nodes) -> None:
    async with scene.runtime("b") as b, fenced_in_the_end(scene, "a", drain_deadline=1000) as a:
        tasks = [Task("paid", receive="payment", timeout="7d"), Task("signed", receive="signature")]
        await a.submit(Workstream("order", tasks=tasks), id="j")
        far = await b.job("j")
        async with scene.ticking():
            await far.send("photo", {"of": "a parcel"})
            await far.task("paid").send("signature", "not for that task")
            assert [(one.name, one.task) for one in await far.messages()] == [
                ("photo", None),
                ("signature", "paid"),
            ]
            with anyio.fail_after(300):
                while not (steps := await far.steps("paid")):
                    await anyio.sleep(0.005)
        scene.nodes["a"].cut_off()
        await scene.until(lambda: not far.elsewhere)
        async with scene.ticking():
            await far.send("signature", "by ana")
            await far.send("payment", 1200)
            ended = await far.wait()
        assert ended.results == {"paid": 1200, "signed": "by ana"}
        (kept,) = await far.steps("paid")
        assert (kept.key, kept.began_at) == (steps[0].key, steps[0].began_at)
        assert [one.name for one in await far.messages()] == ["photo", "signature"]


async def all_of(events: AsyncIterator[Any], into: list[Any]) -> None:
    async for event in events:
        into += [event]


async def test_events_on_a_node_that_was_fenced_do_not_end_as_if_all_were_told(scene: Nodes) -> None:
    held = Workstream("held", tasks=[Task("x", run=quick, hold=Approval(people=1))])
    async with scene.runtime("b") as b:
        async with fenced_in_the_end(scene, "a") as a:
            job = await a.submit(scene.waiting(), id="j")
            over, goes_on = [await b.submit(held, id=name) for name in ("over", "goes-on")]
            far, over_far = await a.job(goes_on.id), await a.job(over.id)
            assert (far.elsewhere, over_far.elsewhere) == (True, True)
            cut = [job.events(), a.events(), far.events(), job.events(kind="task", event="complete")]
            whole = [over_far.events(notices=False), over_far.events(kind="task", notices=False)]
            await over.task("x").approve(by="ana")
            await scene.until(lambda: over.ended)
            scene.nodes["a"].fence()
        for events in [*cut, job.events(), a.events(), far.events()]:
            for _ in range(2):
                with pytest.raises(RuntimeClosed, match="all events were delivered, since it was fenced") as told:
                    await all_of(events, [])
                assert isinstance(told.value.__cause__, LeaseLost)
        came = [[event async for event in events] for events in whole]
        assert came[0] == list(b.journal.reader.transitions(job_id="over"))
        assert {event.kind for event in came[1]} == {"task"}


async def test_events_on_a_node_that_is_left_just_end(scene: Nodes) -> None:
    async with scene.runtime("b") as b:
        async with scene.runtime("a") as a:
            job, theirs = await a.submit(scene.waiting(), id="j"), await b.submit(scene.waiting(), id="k")
            far = await a.job(theirs.id)
            streams = [job.events(), a.events(), far.events()]
        for events in [*streams, job.events(), a.events(), far.events()]:
            await all_of(events, [])
        for one in (job, far):
            with pytest.raises(RuntimeClosed, match="it continues on another node, or at the next start"):
                await one.wait()


async def test_a_fencing_is_told_as_that_alone(scene: Nodes) -> None:
    told: list[Any] = []
    async with scene.runtime("b"):
        async with fenced_in_the_end(scene, "a") as a:
            events = a.events(kind="runtime")
            job = await a.submit(scene.waiting(), id="j")
            await scene.until(lambda: scene.ran.began)
            scene.nodes["a"].fence()
            with pytest.raises(RuntimeClosed, match="since it was fenced: others take over its jobs"):
                await a.submit(scene.waiting())
            with pytest.raises(RuntimeClosed) as waited:
                await job.wait()
            assert "others take over its jobs" in str(waited.value)
            assert "next start" not in str(waited.value)
        with pytest.raises(RuntimeClosed):
            await all_of(events, told)
    assert [one.event for one in told if one.severity != "info"] == ["lease_lost"]


async def test_a_submission_under_an_id_waits_for_the_database_as_one_without_does(scene: Nodes) -> None:
    async with scene.runtime("a") as a:
        came: list[Any] = []

        async def submit(**given: str) -> None:
            came.append(await a.submit(scene.waiting(), **given))

        async with anyio.create_task_group() as group:
            scene.base.up = False
            group.start_soon(lambda: submit(id="j"))
            group.start_soon(lambda: submit(id="j"))
            later = scene.clock.monotonic() + 5
            await scene.until(lambda: scene.clock.monotonic() >= later)
            assert came == []
            with pytest.raises(JournalError):
                await a.job("j")
            scene.base.up = True
            await scene.until(lambda: len(came) == 2)
        assert [job.id for job in came] == ["j", "j"]
        await scene.until(lambda: scene.ran.began)
        assert scene.ran.began == [("j", 1)]


async def test_a_submission_that_waits_for_the_database_ends_with_the_fencing(scene: Nodes) -> None:
    errors: list[BaseException] = []

    async def submit(runtime: Runtime) -> None:
        try:
            await runtime.submit(scene.waiting(), id="j")
        except RuntimeClosed as error:
            errors.append(error)

    async with scene.runtime("b"):
        async with anyio.create_task_group() as group, fenced_in_the_end(scene, "a") as a:
            scene.nodes["a"].cut_off()
            group.start_soon(submit, a)
            await scene.until(lambda: scene.base.fenced_at("a"))
            assert errors == []
        assert [type(error.__cause__) for error in errors] == [LeaseLost]


async def test_a_result_that_comes_after_the_fencing_is_not_taken(scene: Nodes) -> None:
    async with scene.runtime("b", workers=()) as b:
        async with fenced_in_the_end(scene, "a") as a:
            await a.submit(scene.waiting(), id="j")
            await scene.until(lambda: scene.ran.began)
            far = await b.job("j")
            scene.nodes["a"].cut_off()
            scene.ran.go_on.set()
            await scene.until(lambda: not far.elsewhere)
            assert scene.ran.ended == ["j"]
            assert far.task("x").record.state in {"retrying", "queued"}
        rows = b.journal.reader.transitions(job_id="j")
        assert [row.event for row in rows if row.kind == "task"].count("succeed") == 0


async def test_the_handle_goes_on_when_this_node_takes_the_job_over(scene: Nodes) -> None:
    async with scene.runtime("b") as b, fenced_in_the_end(scene, "a") as a:
        await a.submit(
            Workstream("w", tasks=[Task("x", run=quick, hold=Approval(people=1)), *scene.waiting("y").tasks]), id="j"
        )
        far = await b.job("j")
        events, came = far.events(notices=False), []
        async with anyio.create_task_group() as group:

            async def reads() -> None:
                came.extend([event async for event in events])

            async def waits() -> None:
                assert (await far.wait()).ok

            group.start_soon(reads)
            group.start_soon(waits)
            scene.nodes["a"].cut_off()
            await scene.until(lambda: not far.elsewhere)
            await far.task("x").approve(by="ana")
            scene.ran.go_on.set()
            await scene.until(lambda: far.ended)
            async with scene.ticking():
                pass
            await scene.until(lambda: came and came[-1].kind == "job")
        assert came == list(b.journal.reader.transitions(job_id="j"))
        assert [event async for event in far.events(notices=False)] == came


async def test_jobs_are_spread_over_the_rest_each_once(scene: Nodes) -> None:
    async with scene.runtime("b") as b, scene.runtime("c") as c:
        async with fenced_in_the_end(scene, "a") as a:
            ids = [f"j{number}" for number in range(8)]
            for name in ids:
                await a.submit(scene.waiting(), id=name)
            await scene.until(lambda: len(scene.ran.began) == 8)
            scene.nodes["a"].cut_off()
            await scene.until(lambda: len(scene.ran.began) == 16)
        mine, theirs = ([job.id for job in one.recovered] for one in (b, c))
        assert sorted(mine + theirs) == ids
        assert len(mine) == len(theirs) == 4
        assert b.metrics().jobs_taken == len(mine)
        await scene.until(lambda: (c.metrics().nodes_fenced, c.metrics().nodes) == (1, 2))  # once it has asked again


# -- a node whose program has not got the functions


async def only_here() -> str:
    """A function that only those nodes know which registered it."""
    return "done"


def only_there(name: str = "x") -> Workstream:
    return Workstream("only-there", tasks=[*Nodes.waiting("y").tasks, Task(name, run=only_here, depends_on=["y"])])


async def notices_of(runtime: Runtime, events: Any) -> list[Notice]:
    events.close()
    return [event async for event in events if isinstance(event, Notice) and event.event == "not_taken_over"]


async def test_who_has_not_got_the_functions_leaves_jobs_to_who_has(scene: Nodes) -> None:
    async with scene.runtime("plain") as plain, scene.runtime("z") as z:
        z.task(only_here)
        events = plain.events(kind="runtime")
        async with fenced_in_the_end(scene, "a") as a:
            a.task(only_here)
            ids = [f"j{number}" for number in range(4)]
            for name in ids:
                await a.submit(only_there(), id=name)
            await a.submit(scene.waiting(), id="anybodys")
            await scene.until(lambda: len(scene.ran.began) == 5)
            scene.nodes["a"].cut_off()
            await scene.until(lambda: len(scene.ran.began) == 10)
            scene.ran.go_on.set()
        assert {job.id for job in z.recovered} >= set(ids)
        assert {job.id for job in plain.recovered} <= {"anybodys"}
        async with scene.ticking():
            for job in z.recovered:
                assert (await job.wait()).ok
        told = await notices_of(plain, events)
        assert told
        assert "no function is registered as 'only_here'" in told[0].text
        left = [name for one in told for name in one.facts["jobs"]]
        assert len(left) == len(set(left))


async def test_who_is_alone_takes_what_it_cannot_run_which_waits(scene: Nodes) -> None:
    async with scene.runtime("plain") as plain, fenced_in_the_end(scene, "a") as a:
        a.task(only_here)
        await a.submit(only_there(), id="j")
        await scene.until(lambda: scene.ran.began)
        scene.nodes["a"].cut_off()
        scene.ran.go_on.set()
        await scene.until(lambda: plain.recovered)
        (job,) = plain.recovered
        await scene.until(lambda: job.task("y").record.state == "completed")
        assert job.task("x").record.finished_at is None
        plain.task(only_here)
        await scene.until(lambda: job.ended)
        assert job.state == "completed"


async def test_what_nobody_can_run_is_left_without_asking_all_the_time_until_somebody_can(
    scene: Nodes,
) -> None:
    async with scene.runtime("plain") as plain, scene.runtime("bare") as bare:
        async with fenced_in_the_end(scene, "a") as a:
            a.task(only_here)
            await a.submit(only_there(), id="j")
            await scene.until(lambda: scene.ran.began)
            scene.nodes["a"].cut_off()
            await scene.until(lambda: scene.nodes["plain"].given_back and scene.nodes["bare"].given_back)
        cluster = scene.nodes["plain"].cluster
        asked, take = [], cluster.take
        cluster.take = lambda: (asked.append(scene.clock.monotonic()), take())[1]  # type: ignore[method-assign]
        until = scene.clock.monotonic() + 60
        await scene.until(lambda: scene.clock.monotonic() > until)
        assert len(asked) < 25
        assert plain.recovered == bare.recovered == []
        plain.task(only_here)
        scene.ran.go_on.set()
        await scene.until(lambda: plain.recovered and plain.recovered[0].ended)
        assert plain.recovered[0].state == "completed"


async def test_until_what_cannot_be_run_is_given_back_nothing_else_is_gone_on_with(scene: Nodes) -> None:
    async with scene.runtime("plain") as plain, scene.runtime("z") as z:
        z.task(only_here)
        cluster, given = scene.nodes["plain"].cluster, []
        give_back = cluster.give_back

        def fails(jobs: Any) -> None:
            given.append(jobs)
            if len(given) < 3:
                raise JournalError("the answer did not come")
            give_back(jobs)

        cluster.give_back = fails  # type: ignore[method-assign]
        async with fenced_in_the_end(scene, "a") as a:
            a.task(only_here)
            await a.submit(only_there(), id="j")
            await a.submit(scene.waiting(), id="k")
            await scene.until(lambda: len(scene.ran.began) == 2)
            await z.drain(0)  # all is offered to the other one
            scene.nodes["a"].cut_off()
            await scene.until(lambda: len(given) == 2)
            assert plain.recovered == []
            await scene.until(lambda: plain.recovered)
            assert len(given) == 3
            assert given[0] == given[2]
        assert [job.id for job in plain.recovered] == ["k"]
        assert scene.base.orphans() == [("job", given[0][0])]


async def test_who_leaves_hands_over_at_once_and_tries_are_given_back(scene: Nodes) -> None:
    async with scene.runtime("b") as b:
        async with scene.runtime("a") as a:
            await a.submit(scene.waiting(), id="j")
            await scene.until(lambda: scene.ran.began)
        left = scene.clock.monotonic()
        await scene.until(lambda: len(scene.ran.began) == 2)
        assert scene.clock.monotonic() <= left + 2
        record = (await b.job("j")).task("x").record
        assert (record.lost_attempts, record.failed_attempts, scene.ran.began) == (0, 0, [("j", 1), ("j", 2)])


async def test_who_drains_takes_nothing(scene: Nodes) -> None:
    async with scene.runtime("b") as b, scene.runtime("c") as c:
        async with scene.runtime("a") as a:
            for name in ("j", "k"):
                await a.submit(scene.waiting(), id=name)
            await b.drain(0)
        await scene.until(lambda: len(c.recovered) == 2)
        assert b.recovered == []


async def test_a_start_goes_on_with_what_nobody_owns(scene: Nodes) -> None:
    async with scene.runtime("a") as a:
        await a.submit(scene.waiting(), id="j")
    async with scene.runtime("b") as b:
        assert [job.id for job in b.recovered] == ["j"]


async def test_a_node_that_does_not_reach_the_database_goes_on_when_it_does(scene: Nodes) -> None:
    notices: list[Notice] = []
    async with scene.runtime("a") as a:
        events = a.events(kind="runtime")
        job = await a.submit(scene.waiting(), id="j")
        await scene.until(lambda: scene.ran.began)
        scene.base.up = False
        scene.ran.go_on.set()
        until = scene.clock.monotonic() + 2 * scene.base.lease
        await scene.until(lambda: scene.clock.monotonic() >= until)
        assert (a.health.ok, job.ended) == (False, False)
        assert a.metrics().lease_left < 0  # type: ignore[operator]
        scene.base.up = True
        await scene.until(lambda: job.ended and (a.metrics().lease_left or 0) > 0)
        assert job.state == "completed"
        events.close()
        notices = [event async for event in events if isinstance(event, Notice)]
    assert sorted(one.event for one in notices) == [
        "journal_unwritable", "journal_writable", "lease_not_renewed", "lease_renewed",
    ]  # fmt: skip


async def test_nodes_are_told_of_one_another(scene: Nodes) -> None:
    async with scene.runtime("b") as b:
        events = b.events(kind="runtime")
        async with scene.runtime("c") as c:
            async with fenced_in_the_end(scene, "a") as a:
                assert (a.node, b.node) == ("a", "b")
                await a.submit(scene.waiting(), id="j")
                await scene.until(lambda: b.metrics().nodes == 3)
                scene.nodes["a"].cut_off()
                await scene.until(lambda: len(scene.ran.began) == 2)
            assert {node.name: node.state for node in await c.nodes()} == {
                "a": "fenced", "b": "living", "c": "living",
            }  # fmt: skip
        await scene.until(lambda: b.metrics().nodes == 1)
        events.close()
        rows = [event.event async for event in events if isinstance(event, Notice)]
    assert [event for event in rows if event.startswith("node_")] == [
        "node_joined", "node_joined", "node_fenced", "node_left",
    ]  # fmt: skip


DOOR = Machine(
    "door",
    initial="shut",
    states=[State("shut"), State("open")],
    transitions=[Transition("shut", "open", "open"), Transition("open", "shut", "shut")],
    endless=True,
)


async def test_a_machine_is_taken_over_and_its_references_go_on(scene: Nodes) -> None:
    async with scene.runtime("b") as b, fenced_in_the_end(scene, "a") as a:
        near = a.spawn(MachineActor(DOOR), name="door")
        await scene.until(lambda: scene.base.disk.journal.machine("door") is not None)
        far = b.machine("door")
        scene.nodes["a"].cut_off()
        await scene.until(lambda: not far.elsewhere)
        assert (await far.ask(Fire("open"))).to_state == "open"
        assert near.state == "shut"


async def test_a_command_for_a_dead_node_waits_for_who_takes_over(scene: Nodes) -> None:
    async with scene.runtime("b") as b, fenced_in_the_end(scene, "a") as a:
        await a.submit(scene.waiting(), id="j")
        await scene.until(lambda: scene.ran.began)
        far = await b.job("j")
        scene.nodes["a"].cut_off()
        done: list[str] = []
        async with anyio.create_task_group() as group:

            async def cancels() -> None:
                await far.cancel(by="ana")
                done.append(far.state)

            group.start_soon(cancels)
            await scene.until(lambda: done)
        assert scene.base.fenced_at("a") > 0
        await scene.until(lambda: far.ended)
        assert far.state == "cancelled"


async def test_settings_of_a_node_are_for_a_journal_that_is_shared(tmp_path: Any) -> None:
    for settings in ({"node": "a"}, {"lease": "15s"}):
        with pytest.raises(ValueError, match="settings of a journal that several runtimes share"):
            Runtime(tmp_path / "state.db", **settings)
    with pytest.raises(ValueError, match="lease: "):
        Runtime("postgresql:///db", lease="soon")
    for short in (0, "0s", "100ms", 0.999):
        with pytest.raises(ValueError, match="a lease is at least 1 s: "):
            Runtime("postgresql:///db", lease=short)
    for negative in (-5, "-5s"):
        with pytest.raises(ValueError, match=r"lease: .* is not a duration between 0 and"):
            Runtime("postgresql:///db", lease=negative)
    Runtime("postgresql:///db", lease="1s")
    async with Runtime() as runtime:
        assert runtime.node is None
        assert await runtime.nodes() == []
