"""`check_replay`: a test that fails when changed code would break running flows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from callboard import Runtime, StepRecord, Task, TaskContext, Workstream, step
from callboard.errors import ApprovalRejected, FlowChanged, JobExists
from callboard.runtime.cli.boards import Board
from callboard.runtime.cli.command_errors import CommandError
from callboard.runtime.cli.history import history
from callboard.runtime.handles.jobs import JobHandle
from callboard.testing import Fails, Simulation, SimulationError, check_replay

ran: list[Any] = []
"""What the functions of steps have done."""


@pytest.fixture(autouse=True)
def _anew() -> None:
    ran.clear()


@step(tool="bank")
async def charge(order: str, cents: int) -> dict[str, Any]:
    ran.append((order, cents))
    return {"order": order, "cents": cents}


@step(tool="shelves")
async def reserve(shelf: int) -> int:
    ran.append(shelf)
    return shelf


def pack(order: str) -> str:
    ran.append(order)
    return f"parcel {order}"


async def process(task: TaskContext) -> list[Any]:
    payment = await charge("A7", 1200)
    shelves = await task.gather(*(reserve.bind(n) for n in range(3)), max_parallel=2)
    began, key, part = await task.now(), await task.uuid(), await task.random()
    await task.sleep("2h")
    await anyio.sleep(3600)  # no step: it costs no time in a replay
    comment = await task.receive("comment")
    more = await task.receive("comment", timeout="1h", default=None)
    await task.publish("stage", "packed")
    parcel = await task.step(pack, payment["order"])
    late = await task.receive("late")
    return [shelves, began.isoformat(), str(key), part, comment, more, parcel, late]


def kept(body: Any = process, *, ends: bool = False) -> tuple[list[StepRecord], Any]:
    """The steps of a flow that waits for its last message, or has ended, and its result."""
    with Simulation() as sim:
        sim.task(body, name="body")
        job = sim.submit(Workstream("flow", tasks=[Task("t", run="body", timeout="1d", max_losses=9)]), id="j")
        job.send("comment", "hurry")
        sim.advance("3h")
        sim.crash()
        sim.advance("3h")
        if ends:
            job.send("late", 1)
        result = job.run().results["t"] if ends else None
        steps = job.task("t").steps()
    ran.clear()
    return steps, result


def test_a_history_replays_without_calling_anything_up_to_where_the_flow_waits() -> None:
    steps, _ = kept()
    found = check_replay(steps, process)
    assert found.asked == (
        "charge", "reserve", "reserve#2", "reserve#3", "task.now", "task.uuid", "task.random", "task.sleep",
        "task.receive comment", "task.receive comment#2", "task.publish stage", "pack",
    )  # fmt: skip
    assert (found.not_asked, found.at, found.error) == ((), ("task.receive late",), None)
    assert ran == []
    steps, result = kept(ends=True)
    assert check_replay(steps, process).result == result


def test_other_arguments_and_another_function_under_a_kept_name_fail_also_if_the_body_catches_that() -> None:
    steps, _ = kept()

    async def dearer(task: TaskContext) -> None:
        del task
        try:
            await charge("A7", 1300)
        except Exception:  # as a careless body does
            await reserve(0)

    with pytest.raises(FlowChanged, match=r"(?s)'charge' of this flow was called with other arguments.*not asked for"):
        check_replay(steps, dearer)

    def pack_well(order: str) -> str:
        return order

    pack_well.__qualname__ = "better.pack"

    async def renamed(task: TaskContext) -> None:
        await task.step(pack_well, "A7")

    with pytest.raises(FlowChanged, match="'pack' of this flow was"):
        check_replay(steps, renamed)
    assert ran == []


def test_removed_steps_are_reported_and_an_answer_leads_behind_a_new_one() -> None:
    steps, _ = kept()

    async def shorter(task: TaskContext) -> str:
        payment = await charge("A7", 1200)
        return await task.step(pack, payment["order"])

    found = check_replay(steps, shorter)
    assert (found.result, found.at) == ("parcel A7", ())
    assert "task.sleep" in found.not_asked
    assert "charge" not in found.not_asked

    async def longer(task: TaskContext) -> list[Any]:
        rates = await task.step(step(pack, name="rates", tool="bank"), "EUR")
        if await task.version("checks", 2) == 2:  # not in a flow that began before
            await reserve(17)
        await task.sleep("1m")
        news = await task.receive("news")
        await task.send("other", "told", 1)
        return [rates, news, *await process(task)]

    async def by_tool(task: TaskContext) -> str:
        return await task.step(step(pack, name="by tool", tool="press"), "A7")

    assert check_replay(steps, by_tool).at == ("by tool",)
    assert check_replay(steps, by_tool, answers={"by tool": "flat"}).result == "flat"
    assert check_replay(steps, longer).at == ("rates",)
    answers = {"rates": 1.1, "task.sleep": None, "task.receive news": "n", "task.send told": None}
    found = check_replay(steps, longer, answers=answers)
    assert (found.not_asked, found.at[-1]) == ((), "task.receive late")
    found = check_replay(steps, longer, answers={**answers, "task.receive late": 7})
    assert found.result[:2] + found.result[-1:] == [1.1, "n", 7]
    with pytest.raises(LookupError, match="has not asked for 'ratse'"):
        check_replay(steps, longer, answers={"ratse": 1})
    assert ran == []


def test_what_the_body_raises_is_raised_unless_the_history_has_the_same_failure() -> None:
    steps, _ = kept()

    async def wants_more(task: TaskContext) -> str:
        del task
        return (await charge("A7", 1200))["customer"]  # which no payment that is kept has

    with pytest.raises(KeyError, match="customer") as told:
        check_replay(steps, wants_more)
    assert "Asked for before, and kept: charge" in told.value.__notes__[0]

    async def compensates(task: TaskContext) -> None:
        await charge("A7", 1200)
        try:
            await reserve(1)
        except RuntimeError:
            await task.step(pack, "undone")
            raise

    with Simulation() as sim:
        sim.task(compensates, name="body")
        sim.step_body("reserve", outcomes=[Fails("no place")])
        job = sim.submit(Workstream("flow", tasks=[Task("t", run="body")]), id="j")
        assert job.run().state == "failed"
        steps = job.task("t").steps()
    found = check_replay(steps, compensates)
    assert str(found.error) == "no place"
    assert (found.asked, found.at) == (("charge", "reserve", "pack"), ())


def test_branches_go_on_as_far_as_each_can() -> None:
    async def branches(task: TaskContext) -> None:
        async def one(shelf: int) -> None:
            if shelf:
                await anyio.sleep(shelf)
            await reserve(shelf)
            await task.receive(f"go {shelf}")

        async with anyio.create_task_group() as group:
            for shelf in range(3):
                group.start_soon(one, shelf)

    steps, _ = kept(branches)
    found = check_replay(steps, branches)
    assert sorted(found.asked) == ["reserve", "reserve#2", "reserve#3"]
    assert sorted(found.at) == [f"task.receive go {n}" for n in range(3)]


def test_a_time_limit_around_what_is_not_kept_is_no_fault() -> None:
    async def beats() -> None:
        while True:
            await anyio.sleep(30)

    async def limited(task: TaskContext) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(beats)
            with anyio.move_on_after(60):
                await task.receive("never")
            await charge("A7", 1200)
            with anyio.fail_after(300):
                await task.receive("later")

    steps, _ = kept(limited)
    found = check_replay([row for row in steps if row.given_up is None], limited)
    assert (found.asked, found.error) == (("charge",), None)
    assert found.at == ("task.receive never", "task.receive later")
    whole = check_replay(steps, limited)  # with what the body had given up
    assert (whole.asked, whole.at) == (("task.receive never", "charge", "task.receive later"), ())
    assert isinstance(whole.error, ExceptionGroup)


def test_what_is_no_history_no_body_or_no_end_is_refused(tmp_path: Path) -> None:
    steps, _ = kept()
    (tmp_path / "a.json").write_text('{"steps": 3}')
    with pytest.raises(ValueError, match="holds no history of a flow"):
        check_replay(tmp_path / "a.json", process)
    (tmp_path / "b.json").write_text('{"version": 99}')
    with pytest.raises(ValueError, match="a later release"):
        check_replay(str(tmp_path / "b.json"), process)
    with pytest.raises(TypeError, match="the steps of a task"):
        check_replay([1], process)  # type: ignore[list-item]
    with pytest.raises(TypeError, match="this is, or has in it, a dict"):
        check_replay({"steps": []}, process)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes the function"):
        check_replay(steps, "process")  # type: ignore[arg-type]

    async def waits(task: TaskContext) -> None:
        del task
        await charge("A7", 1200)
        await anyio.Event().wait()

    with pytest.raises(SimulationError, match="It has asked for: charge"):
        check_replay(steps, waits)


# -- whole histories -------------------------------------------------------------------------------------------------


async def child() -> int:
    return 3


def asks_all(task: TaskContext) -> list[Any]:
    """A plain body that makes every kind of request."""
    ran.append("body")
    got = [charge.func.__name__, task.step_blocking(charge, task.args["order"], 5), task.results["before"]]
    got += task.gather_blocking(reserve.bind(1), reserve.bind(2))
    task.sleep_blocking(0.001)
    job = task.submit_blocking(Workstream("child", tasks=[Task("c", run=child)]), name="c")
    got.append(job.wait_blocking().results["c"])
    got.append(task.wait_for_approval("go")[0].by)
    task.send_blocking(task.job_id, "note", {"a": 1})
    got.append(task.receive_blocking("note"))
    got.append(task.step_blocking(pack, "X"))
    try:
        task.wait_for_approval("not")
    except ApprovalRejected as error:
        got.append(str(error))
    task.receive_blocking("end")
    return [*got, task.step_blocking(pack, "end")]


async def asks_all_on_loop(task: TaskContext) -> list[Any]:
    ran.append("body")
    got: list[Any] = ["charge", await charge(task.args["order"], 5), task.results["before"]]
    got += await task.gather(reserve.bind(1), reserve.bind(2))
    await task.sleep(0.001)
    job = await task.submit(Workstream("child", tasks=[Task("c", run=child)]), name="c")
    got.append((await job.wait()).results["c"])
    got.append((await task.approval("go"))[0].by)
    await task.send(task.job_id, "note", {"a": 1})
    got.append(await task.receive("note"))
    got.append(await task.step(pack, "X"))
    try:
        await task.approval("not")
    except ApprovalRejected as error:
        got.append(str(error))
    await task.receive("end")
    return [*got, await task.step(pack, "end")]


async def submits(task: TaskContext) -> None:
    await task.submit(submits.now, name="c")  # type: ignore[attr-defined]


OTHERS = [
    (Workstream("child", tasks=[Task("c", run=child)], description="in other words"), ""),
    (Workstream("child", tasks=[Task("c", run=f"{__name__}:child")]), ""),
    (Workstream("child", tasks=[Task("c", run="registered")]), ""),  # it is not known which function that is
    (Workstream("another", tasks=[Task("c", run=child)]), "its name was 'child' and is 'another' now"),
    (Workstream("child", tasks=[Task("c", run=child, timeout="1s")]), "task 'c': timeout was not set and is '1s' now"),
    (Workstream("child", tasks=[Task("c", run=asks_all)]), "its function '.*:child' is '.*:asks_all' here"),
]
"""What a body may submit now, and what differs from what it has submitted."""


async def decided(job: JobHandle, name: str, *, rejected: bool = False) -> None:
    with anyio.fail_after(300):
        while not any(one.approval == name for one in job.approvals()):
            await anyio.sleep(0.005)
    if rejected:
        await job.task("t").reject(by="ana", reason="no", approval=name)
    else:
        await job.task("t").approve(by="ana", approval=name)


@pytest.mark.anyio
@pytest.mark.parametrize("body", [asks_all, asks_all_on_loop], ids=["thread", "loop"])
async def test_the_history_that_the_command_prints_has_arguments_approvals_and_children(
    body: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = [Task("before", run=child), Task("t", run=body, args={"order": "A7"}, depends_on=["before"])]
    async with Runtime(tmp_path / "state.db") as runtime:
        job = await runtime.submit(Workstream("all", tasks=tasks), id="all")
        await decided(job, "go")
        await decided(job, "not", rejected=True)
        with anyio.fail_after(300):
            while not any(one.awaits == "end" for one in await job.steps("t")):
                await anyio.sleep(0.005)
        steps = await job.steps("t")
        capsys.readouterr()
        history("all/t", journal=tmp_path / "state.db", flow=True)
        output = capsys.readouterr().out
        await job.send("end", 1)
        result = (await job.wait()).raise_for_state().results["t"]
    file = tmp_path / "history.json"
    file.write_text(output)
    for wrong in (None, "all", "all/other"):
        with pytest.raises(CommandError, match="task"):
            history(wrong, journal=tmp_path / "state.db", flow=True)
    with pytest.raises(CommandError, match="name the journal"):
        history("all/t", journal=Board("http://localhost:1", None), flow=True)
    assert ran.count("body") == 1
    ran.clear()
    found = check_replay(file, body)
    assert found.not_asked == ()
    assert found.at == ("task.receive end",)
    assert found.asked[-4:] == ("task.send note", "task.receive note", "pack", "approval not")
    assert {"child c", "approval go", "task.sleep"} < {*found.asked}
    assert check_replay(file, body, answers={"task.receive end": 1, "pack#2": "parcel end"}).result == result
    with pytest.raises(FlowChanged, match="other arguments"):
        check_replay(file, body, args={"order": "B8"})
    with pytest.raises(KeyError, match="before"):
        check_replay(steps, body, args={"order": "A7"})  # steps alone lack the results of dependencies
    assert check_replay(steps, body, args={"order": "A7"}, results={"before": 3}).at == ("child c",)
    for now, differs in OTHERS:
        submits.now = now  # type: ignore[attr-defined]
        if not differs:
            assert check_replay(file, submits).asked == ("child c",)
            continue
        with pytest.raises(JobExists, match=differs):
            check_replay(file, submits)
    rows = tmp_path / "steps.json"
    rows.write_bytes(msgspec.json.encode(steps))
    assert check_replay(rows, body, args={"order": "A7"}, results={"before": 3}).at == ("child c",)
    assert {*ran} == {"body"}
    assert json.loads(output)["args"] == {"order": "A7"}
