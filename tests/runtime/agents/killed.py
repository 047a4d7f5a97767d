"""An agent of 12 model and tool calls, whose process is killed again and again: `python killed.py FOLDER SEED`.

It is killed (SIGKILL) when each of its steps has become durable and each of its approvals was given (`boundaries`), and
then at 15 random instants, as often from the beginning as that takes (`random`). The agent runs in forks: its packages
are imported once. Prints each fault on a line of its own, then the numbers of kills.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from mcp.server.mcpserver import MCPServer
from pydantic_ai import Agent, RunContext
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from callboard import Retry, Runtime, Task, TaskContext, Workstream
from callboard.agents import durable
from callboard.runtime.engines.flow import Flow
from callboard.runtime.journal.sqlite.reader import SqliteReader

KILLS = 50
CALLS = [
    [ToolCallPart("search", {"word": "a"}, "one"), ToolCallPart("search", {"word": "b"}, "two")],
    [ToolCallPart("lookup", {"word": "c"}, "three")],
    [ToolCallPart("refund", {"cents": 12}, "four")],
    [ToolCallPart("risky", {"cents": 34}, "four")],  # some servers give equal ids
    [ToolCallPart("search", {"word": "a"}, "one")],
]
ALL = ["model 0", "search a", "search b", "model 1", "lookup c", "model 2", "refund 12", "model 3", "risky asks",
       "risky 34", "model 4", "search a", "model 5"]  # fmt: skip
"""What the functions of steps do in an uninterrupted run; "risky asks" is a call that needs an approval."""

folder = Path()
docs = MCPServer("docs")


def note(text: str, file: str = "ran") -> None:
    """Write a line, which no kill can divide."""
    with (folder / file).open("a") as lines:
        lines.write(f"{text}\n")


def noted(file: str = "ran") -> list[str]:
    path = folder / file
    return path.read_text().splitlines() if path.exists() else []


@docs.tool()
async def lookup(word: str) -> str:
    """Look a word up."""
    note(f"lookup {word}")
    await anyio.sleep(0.01)
    return f"lookup {word}"


async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    number = sum(isinstance(message, ModelResponse) for message in messages)
    note(f"model {number}")
    note(f"{number} {ModelMessagesTypeAdapter.dump_json(messages).decode()}", "asked")
    await anyio.sleep(0.01)
    return ModelResponse([TextPart("all done")] if number == len(CALLS) else CALLS[number])


plain = Agent(FunctionModel(respond), name="clerk", toolsets=[MCPToolset(docs, id="docs", init_timeout=300)])


@plain.tool_plain
async def search(word: str) -> str:
    """Search a word."""
    note(f"search {word}")
    await anyio.sleep(0.01)
    return f"search {word}"


@plain.tool_plain(requires_approval=True)
async def refund(cents: int) -> str:
    """Pay back."""
    note(f"refund {cents}")
    await anyio.sleep(0.01)
    return f"refund {cents}"


@plain.tool
async def risky(ctx: RunContext[None], cents: int) -> str:
    """Pay back much."""
    if not ctx.tool_call_approved:
        note("risky asks")
        raise ApprovalRequired
    note(f"risky {cents}")
    await anyio.sleep(0.01)
    return f"risky {cents}"


agent = durable(plain, model_timeout="1m", tool_timeout="1m")


async def body(task: TaskContext) -> str:
    result = await agent.run("Please help")
    note(result.all_messages_json().decode(), "histories")
    if len(noted("histories")) == 1:
        raise ConnectionError("one more replay")
    return f"{result.output} {result.usage.requests} {result.usage.tool_calls}"


def done(row: Any) -> str | None:
    """What the function of a completed step has done."""
    if row.name == "model":
        return f"model {row.number - 1}"
    if not row.name.startswith(("tool:", "mcp:docs.lookup")):
        return None
    return "risky asks" if row.result["kind"] == "approval_required" else row.result["result"]


def kept() -> list[str]:
    """What the functions of all completed steps have done."""
    if not (folder / "j.db").exists():
        return []
    reader = SqliteReader(folder / "j.db")
    try:
        tasks = [task for stream in reader.workstreams("job") for task in reader.tasks(stream.key)]
        return [text for task in tasks for row in reader.steps(task.flow) if (text := done(row)) is not None]
    finally:
        reader.close()


def kills_itself_after(number: int) -> None:
    """Kill this process when its next step, of that many, is durable."""
    keep = Flow._keep
    left = [number]

    async def counted(self: Flow, row: Any) -> Any:
        found = await keep(self, row)
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    Flow._keep = counted  # type: ignore[method-assign]


async def run(kills: bool) -> None:
    async with Runtime(folder / "j.db") as runtime, anyio.create_task_group() as group:
        note("open", "opened")

        async def approves() -> None:
            while True:
                for pending in runtime.approvals():
                    note(f"asked {pending.approval}", "approvals")
                    await (await runtime.job("job")).task("help").approve(by="ana", approval=pending.approval)
                    note(f"approved {pending.approval}", "approvals")
                    if kills:
                        os.kill(os.getpid(), signal.SIGKILL)
                await anyio.sleep(0.005)

        group.start_soon(approves)
        task = Task("help", run=body, retry=Retry(max_attempts=2, base_delay=0, jitter=0), max_losses=500)
        job = await runtime.submit(Workstream("w", tasks=[task]), id="job")
        note(str((await job.wait()).results), "results")
        group.cancel_scope.cancel()


def wrong(before: list[str], ran: list[str], approvals: list[str]) -> list[str]:
    """Steps that the last process ran although they were kept. before: the steps that were kept when it began."""
    faults = [f"done again: {text}" for text in set(before) if ran.count(text) > ALL.count(text) - before.count(text)]
    for number, line in enumerate(approvals):
        if line.startswith("approved") and line.replace("approved", "asked", 1) in approvals[number:]:
            faults.append(f"asked again after it was {line}")
    return faults


def life(mode: str, drawn: random.Random, most: int) -> tuple[int, list[str]]:
    """Run the agent until it has ended. Returns how often it was killed, and the faults."""
    faults: list[str] = []
    kills = 0
    while True:
        before, began, opened = kept(), len(noted()), len(noted("opened"))
        child = os.fork()
        if child == 0:
            try:
                if mode == "boundaries":
                    kills_itself_after(1)
                anyio.run(run, mode == "boundaries")
            except BaseException:
                traceback.print_exc()
            os._exit(0)
        if mode == "random" and kills < most:
            while len(noted("opened")) == opened:
                time.sleep(0.001)
            time.sleep(drawn.random() * 0.15)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        faults += wrong(before, noted()[began:], noted("approvals"))
        if os.WIFEXITED(status):
            return kills, faults + ended_wrong()
        kills += 1


def ended_wrong() -> list[str]:
    """The faults in the result of the agent that has ended."""
    faults = []
    if set(noted()) != set(ALL):
        faults.append(f"not done: {set(ALL) - set(noted())}")
    histories = [ModelMessagesTypeAdapter.validate_json(line) for line in noted("histories")]
    if any(history != histories[0] for history in histories):
        faults.append("a replay has another history")
    for line in noted("asked"):
        number, _, asked = line.partition(" ")
        part = ModelMessagesTypeAdapter.validate_json(asked)
        if not histories or histories[0][: len(part)] != part:
            faults.append(f"model {number} was asked with another history than the one at the end")
    if noted("results")[:1] != ["{'help': 'all done 6 6'}"]:
        faults.append(f"ended with {noted('results')}")
    return faults


async def say_hello(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse([TextPart("hello")])


def warm_up() -> None:
    """Make, before the first fork, the objects that pydantic-ai makes in the first run of a process."""
    anyio.run(partial(plain.run, "Hello", model=FunctionModel(say_hello)))
    ModelMessagesTypeAdapter.dump_json([])
    logging.disable()  # MCP's handler is rich's, which takes as long as everything else
    gc.collect()
    gc.freeze()


def main(place: Path, seed: int) -> None:
    global folder  # noqa: PLW0603 - the tools write there
    warm_up()
    drawn = random.Random(seed)
    for mode in ("boundaries", "random"):
        kills = lives = 0
        while kills < KILLS:
            folder = place / f"{mode}{lives}"
            folder.mkdir()
            more, faults = life(mode, drawn, KILLS - kills)
            for fault in faults:
                print(f"{folder.name}: {fault}")
            kills, lives = kills + more, lives + 1
            if mode == "boundaries":
                break
        print("kills", kills)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
