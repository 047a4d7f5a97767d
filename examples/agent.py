"""An agent of pydantic-ai in a flow: killed in the middle, it goes on and repeats no call. No key is needed.

    python examples/agent.py

It answers a customer: two searches in parallel, then a refund that a person approves. The first process is killed after
the approval; the second one goes on from there. Needs the extra `pydantic-ai`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from callboard import Retry, Runtime, Task, TaskContext, Workstream
from callboard.agents import ToolPolicy, durable


def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Decide as a real model would: search twice, pay back, answer."""
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    print(f"  the model is asked ({turn + 1})", flush=True)
    if turn == 0:
        return ModelResponse([ToolCallPart("search", {"text": text}) for text in ("order A7", "refunds")])
    if turn == 1:
        return ModelResponse([ToolCallPart("refund", {"order": "A7", "cents": 1200})])
    return ModelResponse([TextPart("You get 12.00 back.")])


clerk = Agent(FunctionModel(model), name="clerk", instructions="Help the customer.")


@clerk.tool_plain
async def search(text: str) -> str:
    """Search orders and rules."""
    print(f"  searches for {text!r}", flush=True)
    return f"{text}: found"


@clerk.tool_plain(requires_approval=True)
async def refund(order: str, cents: int) -> str:
    """Pay back a part of an order."""
    print(f"  pays {cents} cents back", flush=True)
    return f"{cents} cents of {order} paid back"


agent = durable(
    clerk, model_retry=Retry(max_attempts=3), model_timeout="1m", tools={"search": ToolPolicy(timeout="30s")}
)


async def answer(task: TaskContext) -> str:
    result = await agent.run(task.args["question"])
    return result.output


async def main(journal: Path, dies: bool) -> None:
    async with Runtime(journal) as runtime:
        task = Task("answer", run=answer, args={"question": "My order A7 is broken."})
        job = await runtime.submit(Workstream("service", tasks=[task]), id="customer-7")
        if dies:
            asked = job.events(kind="approval", to_state="held", notices=False)
            await anext(aiter(asked))
            await job.task("answer").approve(by="ana")
            print("  ana approves, and the process is killed", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        print((await job.wait()).results["answer"])
        print([step.label for step in await job.task("answer").steps()])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        anyio.run(main, Path(sys.argv[1]), sys.argv[2] == "dies")
    else:
        with tempfile.TemporaryDirectory() as folder:
            for name in ("dies", "lives"):
                print(f"process that {name}:", flush=True)
                subprocess.run([sys.executable, __file__, f"{folder}/service.db", name], check=name == "lives")
