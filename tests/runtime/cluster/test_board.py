"""The board of one node: its view of another node's jobs, and its commands to them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.runtime.web.conftest import client_of

from callboard import Approval, Fire, Machine, MachineActor, State, Task, Tool, Transition, Workstream

from .scene import Nodes, quick, waits

pytestmark = pytest.mark.anyio
DOOR = Machine(
    "door",
    initial="shut",
    states=[State("shut"), State("open")],
    transitions=[Transition("shut", "open", "open"), Transition("open", "shut", "shut")],
    endless=True,
)


@pytest.fixture
def anyio_backend() -> Any:
    """The event loop of the board."""
    return "asyncio", {"use_uvloop": False}


async def test_the_limit_of_a_tool_is_shown_on_the_boards_of_all_nodes(anyio_backend: Any) -> None:
    scene = Nodes()
    tools = {"cc": Tool(max_parallel=3), "dd": Tool(max_parallel=2)}
    async with scene.runtime("a", tools=tools), scene.runtime("b") as b, client_of(b) as client, scene.ticking():

        async def shown() -> dict[str, tuple[Any, ...]]:
            items = (await client.get("/api/breakers")).json()["items"]
            return {one["id"]: (one["max_parallel"], one["limit_by"], one["entity_id"]) for one in items}

        assert await shown() == {"cc": (3, "the runtime of a", "cc@a"), "dd": (2, "the runtime of a", "dd@a")}
        await (await b.submit(Workstream("w", tasks=[Task("x", run=quick, tool="cc")]))).wait()
        assert await shown() == {"cc": (3, "the runtime of a", "cc@b"), "dd": (2, "the runtime of a", "dd@a")}
        assert (await client.post("/api/breakers/dd/trip", json={"reason": "by hand"})).status_code == 200
        assert (await client.get("/api/breakers/dd")).json()["state"] == "open"
        assert (await shown())["dd"] == (2, "the runtime of a", "dd@b")


async def test_the_jobs_of_all_nodes_are_shown_and_acted_on(anyio_backend: Any) -> None:
    scene = Nodes()
    flow = Workstream("flow", tasks=[Task("x", run=quick, hold=Approval(people=1)), Task("z", run=waits)])
    async with scene.runtime("a") as a, scene.runtime("b") as b, client_of(b) as client, scene.ticking():
        job = await a.submit(flow, id="j")
        door = a.spawn(MachineActor(DOOR), name="door")
        await door.ask(Fire("open"))
        await scene.until(lambda: job.task("z").record.state == "running")
        assert [one["id"] for one in (await client.get("/api/jobs")).json()["items"]] == ["j"]
        shown = (await client.get("/api/jobs/j")).json()
        assert (shown["state"], shown["actions"]) == ("running", ["cancel", "cancel_force", "pause", "skip"])
        tasks = {one["name"]: one for one in (await client.get("/api/jobs/j/tasks")).json()["items"]}
        assert (tasks["z"]["state"], tasks["z"]["actions"]) == ("running", ["cancel", "cancel_force"])
        assert tasks["x"]["actions"] == ["approve", "cancel", "cancel_force", "reject"]
        (pending,) = (await client.get("/api/approvals")).json()["items"]
        assert (pending["task"], pending["job_id"]) == ("x", "j")
        done = await client.post("/api/jobs/j/tasks/x/approve", json={"by": "ana", "request_id": "k"})
        assert (done.status_code, done.json()["kind"]) == (200, "task")
        again = await client.post("/api/jobs/j/tasks/x/approve", json={"by": "ana", "request_id": "k"})
        assert again.json() == done.json()
        refused = await client.post("/api/jobs/j/tasks/x/approve", json={"by": "bob"})
        assert (refused.status_code, refused.json()["decision"]["by"]) == (409, "ana")
        fired = await client.post("/api/machines/door/fire", json={"event": "shut"})
        assert fired.json()["transition"]["to_state"] == "shut"
        assert (await client.post("/api/jobs/j/cancel", json={})).status_code == 200
        await job.wait()
        assert (await client.get("/api/jobs/j")).json()["state"] == "cancelled"
