"""Durable agents: completed calls are never repeated, given approvals never asked for again, and no history changes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterable, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.runtime.engines.test_processes import environment
from tests.waiting import until

from callboard import Approval, JobHandle, Retry, Runtime, Task, TaskContext, Tool, Workstream, step

pytest.importorskip("pydantic_ai", reason='pydantic-ai is not installed: pip install "callboard[pydantic-ai]"')

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext, ToolDenied
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset

from callboard.agents import DurableAgent, ToolPolicy, durable
from callboard.testing import Fails, Simulation, Succeeds

pytestmark = pytest.mark.anyio
SOON = Retry(max_attempts=2, base_delay=0.0, jitter=0.0)
THRICE = Retry(max_attempts=3, base_delay=0.0, jitter=0.0)
Body = Callable[[TaskContext], Awaitable[Any]]
done: list[Any] = []
"""What models and tools have done, in order."""


@pytest.fixture(autouse=True)
def _anew() -> None:
    done.clear()


@pytest.fixture
def anyio_backend() -> str:
    """pydantic-ai runs on asyncio."""
    return "asyncio"


def calling(*turns: list[ToolCallPart], end: str = "done") -> FunctionModel:
    """A model that calls these tools, turn by turn, and then says something."""

    async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        number = sum(isinstance(message, ModelResponse) for message in messages)
        done.append(f"model {number}")
        return ModelResponse([TextPart(end)] if number >= len(turns) else [*turns[number]])

    return FunctionModel(respond)


def call(tool: str, **args: Any) -> ToolCallPart:
    return ToolCallPart(tool, args)


def searching(*turns: list[ToolCallPart], **more: Any) -> Agent[None, str]:
    """An agent with a tool."""
    agent = Agent(calling(*turns), name="clerk", **more)

    @agent.tool_plain
    async def search(word: str) -> str:
        done.append(f"search {word}")
        return f"found {word}"

    return agent


async def started(runtime: Runtime, body: Body, **more: Any) -> JobHandle:
    runtime.task(name="body")(body)
    return await runtime.submit(Workstream("w", tasks=[Task("t", run="body", retry=SOON, **more)]), id="job")


async def ran(body: Body, **more: Any) -> Any:
    """The result of a body that runs as a flow."""
    async with Runtime() as runtime:
        job = await started(runtime, body, **more)
        return (await job.wait()).raise_for_state().results["t"]


def replayed(body: Body) -> Callable[[TaskContext], Awaitable[list[Any]]]:
    """The body, run twice: the second attempt replays the first one. Returns the results of both."""
    results: list[Any] = []

    async def twice(task: TaskContext) -> list[Any]:
        results.append(await body(task))
        if task.attempt == 1:
            raise RuntimeError("once more")
        return [None if isinstance(result, list) else result for result in results]

    twice.results = results  # type: ignore[attr-defined]
    return twice


def test_the_public_names_are_these() -> None:
    from callboard import agents

    assert agents.__all__ == ["DurableAgent", "ToolPolicy", "durable"]


async def test_a_policy_for_a_tool_that_the_agent_cannot_have_is_refused() -> None:
    two = ToolPolicy(approval=Approval(people=2))
    wrong = durable(searching(), tools={"serch": two})

    async def body(task: TaskContext) -> str:
        return (await wrong.run("help")).output

    expected = r"policy for the tool 'serch', which the agent does not have; did you mean 'search'\?"
    with pytest.raises(LookupError, match=expected):
        await wrong.run("help")
    async with Runtime() as runtime:
        outcome = await (await started(runtime, body)).wait()
    assert "did you mean 'search'?" in (outcome.tasks["t"].last_error or "")

    agent = Agent(calling(), name="clerk")
    late = durable(agent, tools={"search": two})  # its tools may come later
    with pytest.raises(LookupError, match="it has: none"):
        await late.run("help")
    agent.tool_plain(searched)
    assert (await durable(agent, tools={"searched": two}).run("help")).output == "done"
    known = durable(agent, tools={"searched": two})
    with known.override(tools=[]):
        assert (await known.run("help")).output == "done"
    unknown = Agent(calling(), toolsets=[FunctionToolset([searched]).prefixed("my")])
    assert (await durable(unknown, tools={"my_searched": two}).run("help")).output == "done"


def searched(word: str) -> str:
    return word


_CALL = {"tool_name": "search", "args": {"word": "a"}, "tool_call_id": "1", "part_kind": "tool-call"}
_SEARCHES = {"kind": "response", "parts": [_CALL]}
"""A model's answer as the journal keeps it, with the needed fields only."""


# -- simulations -------------------------------------------------------------------------------------------------------


def test_the_steps_of_an_agent_follow_scripts_and_faults_of_a_simulation() -> None:
    agent = durable(searching([call("search", word="a")]), model_retry=THRICE, tool_retry=THRICE)

    async def body(task: TaskContext) -> str:
        return (await agent.run("help")).output

    with Simulation() as sim:
        sim.task(body, name="body")
        sim.step_body("model", outcomes=[Fails("overloaded"), Succeeds(_SEARCHES)])
        sim.step_body("tool:search", outcomes=[Fails("away")])
        sim.crash_after("model")
        job = sim.submit(Workstream("w", tasks=[Task("t", run="body")]), id="job")
        assert job.run().state == "failed"
        steps = [(row.label, str(row.state), row.tries) for row in job.task("t").steps()]
    assert steps == [("agent:clerk", "completed", 1), ("model", "completed", 2), ("tool:search", "failed", 3)]
    assert done == [], "neither the model nor the tool was called"


# -- replays -----------------------------------------------------------------------------------------------------------


async def test_each_call_is_a_step_with_a_name_and_a_replay_repeats_none() -> None:
    agent = durable(searching([call("search", word="a"), call("search", word="b")], [call("search", word="c")]))

    async def body(task: TaskContext) -> list[ModelMessage]:
        return (await agent.run("help")).all_messages()

    twice = replayed(body)
    async with Runtime() as runtime:
        job = await started(runtime, twice)
        (await job.wait()).raise_for_state()
        labels = [row.label for row in await job.task("t").steps()]
    assert labels == ["agent:clerk", "model", "tool:search", "tool:search#2", "model#2", "tool:search#3", "model#3"]
    assert done == ["model 0", "search a", "search b", "model 1", "search c", "model 2"]
    first, second = twice.results  # type: ignore[attr-defined]
    assert first == second, "times and ids are those of kept results"
    assert len(first) == 6


async def test_the_times_of_messages_come_from_steps() -> None:
    agent = durable(searching([call("search", word="a"), call("search", word="b")]))
    histories: list[list[ModelMessage]] = []

    async def body(task: TaskContext) -> None:
        histories.append((await agent.run("help")).all_messages())

    async with Runtime() as runtime:
        job = await started(runtime, body)
        await job.wait()
        rows = {row.label: row.ended_at for row in await job.task("t").steps()}
    (asked, _, returned, _) = histories[0]
    assert isinstance(asked, ModelRequest)
    assert isinstance(returned, ModelRequest)
    assert asked.timestamp is not None
    assert asked.timestamp.timestamp() == pytest.approx(rows["agent:clerk"])
    times = [part.timestamp.timestamp() for part in returned.parts if isinstance(part, ToolReturnPart)]
    assert times == [pytest.approx(rows["tool:search"]), pytest.approx(rows["tool:search#2"])]
    assert returned.timestamp is not None
    assert returned.timestamp.timestamp() == pytest.approx(max(times))


async def test_outside_of_a_flow_the_agent_is_as_it_was() -> None:
    agent = durable(searching([call("search", word="a")]), model_retry=THRICE)
    result = await agent.run("help")
    assert result.output == "done"
    async with agent.run_stream("help", model=TestModel(call_tools=[], custom_output_text="all")) as stream:
        assert await stream.get_output() == "all"
    assert isinstance(agent, DurableAgent)
    assert agent.name == "clerk"


async def test_a_conversation_of_several_runs_is_replayed() -> None:
    agent = durable(searching([call("search", word="a")]))

    async def body(task: TaskContext) -> list[ModelMessage]:
        first = await agent.run("one")
        second = await agent.run("two", message_history=first.all_messages())
        return second.all_messages()

    twice = replayed(body)
    await ran(twice)
    first, second = twice.results  # type: ignore[attr-defined]
    assert first == second
    assert len({message.conversation_id for message in first}) == 1
    assert len({message.run_id for message in first}) == 2
    assert done == ["model 0", "search a", "model 1", "model 2"]


async def test_runs_in_parallel_branches_get_their_own_results() -> None:
    release: list[anyio.Event] = [anyio.Event(), anyio.Event()]

    async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        prompt = messages[0].parts[0].content  # type: ignore[union-attr]
        number = sum(isinstance(message, ModelResponse) for message in messages)
        done.append(f"{prompt} {number}")
        if prompt == "slow":
            await release[0].wait()
        return ModelResponse([TextPart(f"{prompt} said") if number else call("search", word=str(prompt))])

    agent = durable(searching(), name="two")

    async def body(task: TaskContext) -> dict[str, str]:
        results: dict[str, str] = {}

        async def one(prompt: str) -> None:
            result = await agent.run(prompt, model=FunctionModel(respond))
            (asked,) = result.all_messages()[1].parts
            results[prompt] = f"{asked.args}, {result.output}"  # type: ignore[union-attr]
            release[0].set()

        async with anyio.create_task_group() as group:
            for prompt in ("slow", "fast") if task.attempt == 1 else ("fast", "slow"):
                group.start_soon(one, prompt)
        return results

    results = await ran(replayed(body))
    assert results == [{word: f"{{'word': '{word}'}}, {word} said" for word in ("fast", "slow")}] * 2
    assert len(done) == 6


async def test_another_prompt_than_in_the_first_run_is_refused() -> None:
    agent = durable(searching())

    async def body(task: TaskContext) -> str:
        return (await agent.run(f"attempt {task.attempt}")).output

    async with Runtime() as runtime:
        job = await started(runtime, replayed(body))
        assert (await job.wait()).tasks["t"].error_type == "FlowChanged"


async def test_what_a_tool_says_to_the_model_is_kept() -> None:
    agent = Agent(calling([call("guess", n=1)], [call("guess", n=2)], [call("guess", n="no number")]), retries=3)

    @agent.tool_plain
    async def guess(n: int) -> int:
        done.append(f"guess {n}")
        if n == 1:
            raise ModelRetry("more")
        return n

    helper = durable(agent)

    async def body(task: TaskContext) -> list[ModelMessage]:
        return (await helper.run("help")).all_messages()

    twice = replayed(body)
    await ran(twice)
    first, second = twice.results  # type: ignore[attr-defined]
    assert first == second
    assert done == ["model 0", "guess 1", "model 1", "guess 2", "model 2", "model 3"]


async def test_structured_outputs_are_validated_in_each_replay_and_asked_for_once() -> None:
    class Answer(BaseModel):
        cents: int

    agent = Agent(
        calling([ToolCallPart("final_result", {"cents": -1})], [ToolCallPart("final_result", {"cents": 5})]),
        output_type=Answer,
    )

    @agent.output_validator
    async def positive(answer: Answer) -> Answer:
        done.append(f"validated {answer.cents}")
        if answer.cents < 0:
            raise ModelRetry("not below 0")
        return answer

    helper = durable(agent)

    async def body(task: TaskContext) -> list[Any]:
        result = await helper.run("help")
        return [result.output.cents, result.all_messages(), result.usage]

    twice = replayed(body)
    await ran(twice)
    first, second = twice.results  # type: ignore[attr-defined]
    assert first == second
    assert first[0] == 5
    assert [text for text in done if text.startswith("model")] == ["model 0", "model 1"]
    assert done.count("validated 5") == 2


async def test_dependencies_are_made_anew_in_each_attempt() -> None:
    agent = Agent(calling([call("ask")]), deps_type=object)

    @agent.tool
    async def ask(ctx: RunContext[object]) -> str:
        return type(ctx.deps).__name__

    class Connection:
        """An object that JSON cannot hold."""

    helper = durable(agent)

    async def body(task: TaskContext) -> str:
        result = await helper.run("help", deps=Connection())
        return str(result.all_messages()[2].parts[0].content)  # type: ignore[union-attr]

    assert await ran(replayed(body)) == ["Connection", "Connection"]


# -- policies ----------------------------------------------------------------------------------------------------------


async def test_model_requests_and_tools_are_tried_again_by_their_policies() -> None:
    async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        done.append("model")
        if len(done) < 3:
            raise ModelHTTPError(503, "m", "busy")
        return ModelResponse([TextPart("done") if len(messages) > 1 else call("flaky")])

    agent = Agent(FunctionModel(respond))

    @agent.tool_plain
    async def flaky() -> str:
        done.append("flaky")
        if done.count("flaky") < 2:
            raise ConnectionError("away")
        return "ok"

    helper = durable(agent, model_retry=THRICE, tools={"flaky": ToolPolicy(retry=SOON)})

    async def body(task: TaskContext) -> str:
        return (await helper.run("help")).output

    async with Runtime() as runtime:
        job = await started(runtime, body)
        assert (await job.wait()).raise_for_state().results["t"] == "done"
        tries = {row.label: row.tries for row in await job.task("t").steps()}
    assert tries == {"agent:agent": 1, "model": 3, "tool:flaky": 2, "model#2": 1}


async def test_a_model_that_fails_for_good_fails_with_its_own_error_now_and_later() -> None:
    async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        done.append("model")
        raise ModelHTTPError(400, "m", {"message": "no"})

    helper = durable(Agent(FunctionModel(respond)))

    async def body(task: TaskContext) -> list[Any]:
        try:
            await helper.run("help")
        except ModelHTTPError as error:
            return [error.status_code, error.model_name, error.body]
        return []

    assert await ran(body) == [400, "m", {"message": "no"}]


async def test_a_tool_that_takes_too_long_is_stopped() -> None:
    agent = Agent(calling([call("waits")]))

    @agent.tool_plain
    async def waits() -> None:
        await anyio.sleep_forever()

    helper = durable(agent, tools={"waits": ToolPolicy(timeout="50ms")})

    async def body(task: TaskContext) -> str:
        with pytest.raises(TimeoutError, match="'tool:waits' took longer"):
            await helper.run("help")
        return "stopped"

    assert await ran(body) == "stopped"


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ({"model_retry": 3}, "policy for its model is a Retry, not 3"),
        ({"tool_retry": Retry(max_attempts=0)}, "policy for its tools:\n.*at least 1, not 0"),
        ({"model_tool": "a/b"}, "policy for its model: the name 'a/b' holds '/'"),
        ({"approval": Approval(people=0)}, "people: must be at least 1"),
        ({"tools": {"a": None}}, "policy for its tool 'a' is a ToolPolicy, not None"),
        ({"tools": {"a": ToolPolicy(approval=2)}}, "is an Approval, not 2"),  # type: ignore[arg-type]
    ],
)
def test_what_can_be_no_policy_is_refused_at_once(policy: dict[str, Any], told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=told):
        durable(Agent(TestModel()), **policy)


def test_a_limit_that_is_no_duration_is_refused_at_once() -> None:
    for wrong in ({"model_timeout": "soon"}, {"tool_timeout": -1}, {"tools": {"a": ToolPolicy(timeout="x")}}):
        with pytest.raises((ValueError, TypeError), match=r"duration|negative|seconds"):
            durable(Agent(TestModel()), **wrong)  # type: ignore[arg-type]


async def test_requests_and_calls_share_the_limit_and_the_breaker_of_a_tool() -> None:
    at_once: list[int] = []
    busy = 0

    async def works(word: str) -> str:
        nonlocal busy
        busy += 1
        at_once.append(busy)
        await anyio.sleep(0.01)
        busy -= 1
        return word

    agent = Agent(calling([call("search", word=word) for word in "abc"]))
    agent.tool_plain(name="search")(works)
    helper = durable(agent, model_tool="model", tools={"search": ToolPolicy(tool="search-api")})

    async def body(task: TaskContext) -> str:
        return (await helper.run("help")).output

    async with Runtime(tools={"search-api": Tool(max_parallel=1)}) as runtime:
        job = await started(runtime, body)
        (await job.wait()).raise_for_state()
        rows = await job.task("t").steps()
    assert at_once == [1, 1, 1]
    assert {row.name: row.tool for row in rows} == {"agent:agent": None, "model": "model", "tool:search": "search-api"}


# -- approvals ---------------------------------------------------------------------------------------------------------


def paying(*turns: list[ToolCallPart]) -> Agent[None, str]:
    agent = Agent(calling(*turns))

    @agent.tool_plain(requires_approval=True)
    async def pay(cents: int) -> str:
        done.append(f"pay {cents}")
        return "paid"

    return agent


async def test_people_approve_and_reject_calls_and_the_model_hears_why() -> None:
    helper = durable(paying([call("pay", cents=1), call("pay", cents=2)]))

    async def body(task: TaskContext) -> list[Any]:
        result = await helper.run("help")
        return [str(getattr(part, "content", "")) for part in result.all_messages()[2].parts]

    async with Runtime() as runtime:
        job = await started(runtime, replayed(body))
        await until(lambda: len(job.approvals()) == 2)
        one, two = sorted(pending.approval or "" for pending in job.approvals())
        assert one.startswith("pay ")
        await job.task("t").approve(by="ana", approval=one)
        await job.task("t").reject(by="bo", reason="too much", approval=two)
        (await job.wait()).raise_for_state()
        assert not job.approvals()
        kept = [row.label for row in await job.task("t").steps()]
    assert len([text for text in done if text.startswith("pay")]) == 1
    assert kept == ["agent:agent", "model", "tool:pay", "model#2"]


async def test_a_call_with_other_arguments_is_another_approval_though_its_id_is_the_same() -> None:
    turns = [[ToolCallPart("pay", {"cents": cents}, "same")] for cents in (1, 1, 2)]
    helper = durable(paying(*turns))

    async def body(task: TaskContext) -> str:
        return (await helper.run("help")).output

    asked: set[str] = set()
    async with Runtime() as runtime:
        job = await started(runtime, body)
        for _ in turns:
            await until(lambda: {pending.approval for pending in job.approvals()} - asked)
            (pending,) = job.approvals()
            asked.add(pending.approval or "")
            await job.task("t").approve(by="ana", approval=pending.approval)
        assert (await job.wait()).raise_for_state().results["t"] == "done"
    assert len(asked) == 3


async def test_the_rule_of_a_tool_says_who_approves() -> None:
    helper = durable(paying([call("pay", cents=1)]), tools={"pay": ToolPolicy(approval=Approval(people=2))})

    async def body(task: TaskContext) -> str:
        return (await helper.run("help")).output

    async with Runtime() as runtime:
        job = await started(runtime, body)
        await until(job.approvals)
        await job.task("t").approve(by="ana")
        assert [pending.missing for pending in job.approvals()] == [["1 of 2 people"]]
        await job.task("t").approve(by="bo")
        (await job.wait()).raise_for_state()


async def test_a_body_without_its_context_cannot_ask_for_approvals() -> None:
    helper = durable(paying([call("pay", cents=1)]))

    async def body() -> str:
        return (await helper.run("help")).output

    async with Runtime() as runtime:
        job = await started(runtime, body)  # type: ignore[arg-type]
        told = (await job.wait()).tasks["t"].last_error or ""
    assert "let the body that runs this agent take the task as its argument" in told
    assert done == ["model 0"]


async def test_a_handler_of_the_application_answers_before_people_are_asked() -> None:
    from pydantic_ai.capabilities import HandleDeferredToolCalls

    agent = paying([call("pay", cents=1)])

    async def denies(ctx: RunContext[None], requests: Any) -> Any:
        return requests.build_results(approvals={one.tool_call_id: ToolDenied("closed") for one in requests.approvals})

    helper = durable(agent)

    async def body(task: TaskContext) -> str:
        result = await helper.run("help", capabilities=[HandleDeferredToolCalls(denies)])
        return str(result.all_messages()[2].parts[0].content)  # type: ignore[union-attr]

    assert await ran(body) == "closed"


# -- tools in the body, agents in tools --------------------------------------------------------------------------------


async def test_a_tool_that_runs_in_the_body_takes_steps_and_runs_durable_agents() -> None:
    inner = durable(searching([call("search", word="deep")]), name="inner")
    agent = Agent(calling([call("delegate")]))

    @step
    async def fetch() -> str:
        done.append("fetch")
        return "fetched"

    @agent.tool_plain
    async def delegate() -> str:
        done.append("delegate")
        return await fetch() + " " + (await inner.run("dig")).output

    helper = durable(agent, tools={"delegate": ToolPolicy(durable=False)})

    async def body(task: TaskContext) -> str:
        return (await helper.run("help")).output

    async with Runtime() as runtime:
        job = await started(runtime, replayed(body))
        (await job.wait()).raise_for_state()
        labels = [row.label for row in await job.task("t").steps()]
    assert labels == ["agent:agent", "model", "fetch", "agent:inner", "model#2", "tool:search", "model#3", "model#4"]
    assert done.count("fetch") == done.count("search deep") == 1
    assert done.count("delegate") == 2


async def test_an_agent_inside_the_function_of_a_tool_is_a_part_of_its_step() -> None:
    inner = durable(searching([call("search", word="deep")]), name="inner")
    agent = Agent(calling([call("delegate")]))

    @agent.tool_plain
    async def delegate() -> str:
        return (await inner.run("dig")).output

    helper = durable(agent)

    async def body(task: TaskContext) -> str:
        return (await helper.run("help")).output

    async with Runtime() as runtime:
        job = await started(runtime, replayed(body))
        (await job.wait()).raise_for_state()
        labels = [row.label for row in await job.task("t").steps()]
    assert labels == ["agent:agent", "model", "tool:delegate", "model#2"]
    assert done.count("search deep") == 1


# -- streams -----------------------------------------------------------------------------------------------------------


async def test_events_are_told_live_and_not_again_in_a_replay() -> None:
    told: list[str] = []

    async def handler(ctx: RunContext[None], events: AsyncIterable[Any]) -> None:
        told.extend([event.event_kind async for event in events])

    helper = durable(
        Agent(TestModel(call_tools=[], custom_output_text="three short words")), event_stream_handler=handler
    )

    async def body(task: TaskContext) -> str:
        return (await helper.run("help")).output

    assert await ran(replayed(body)) == ["three short words"] * 2
    assert told.count("part_start") == 1
    assert told.count("part_delta") == 3


async def test_a_handler_of_one_run_hears_of_models_and_tools_too() -> None:
    told: list[str] = []

    async def handler(ctx: RunContext[None], events: AsyncIterable[Any]) -> None:
        told.extend([event.event_kind async for event in events])

    agent = Agent(TestModel())

    @agent.tool_plain
    async def search(word: str) -> str:
        return word

    helper = durable(agent)

    async def body(task: TaskContext) -> str:
        return (await helper.run("help", event_stream_handler=handler)).output

    await ran(replayed(body))
    once = ["function_tool_call", "function_tool_result"]
    assert [kind for kind in told if kind in once] == once
    assert told.count("part_start") == 2


async def test_the_text_of_a_model_is_streamed_and_not_again_in_a_replay() -> None:
    told: list[str] = []
    heard = [anyio.Event(), anyio.Event()]

    async def handler(ctx: RunContext[None], events: AsyncIterable[Any]) -> None:
        told.extend([event.event_kind async for event in events])

    model = TestModel(call_tools=[], custom_output_text="three short words")
    helper = durable(Agent(model), event_stream_handler=handler, emit=True)

    async def body(task: TaskContext) -> str:
        await heard[task.attempt - 1].wait()
        result = await helper.run("help")
        task.emit("|")
        return result.output

    texts: list[str] = []
    async with Runtime() as runtime:
        job = await started(runtime, replayed(body))
        for listens in heard:
            stream = job.task("t").stream()
            listens.set()
            texts.append("".join([str(piece) async for piece in stream]))
        (await job.wait()).raise_for_state()
    assert texts == ["three short words|", "|"]
    assert told.count("part_delta") == 3


async def test_a_body_without_its_context_cannot_emit() -> None:
    helper = durable(Agent(TestModel()), emit=True)

    async def body() -> str:
        return (await helper.run("help")).output

    async with Runtime() as runtime:
        job = await started(runtime, body)  # type: ignore[arg-type]
        assert "durable(emit=True) streams by the task of the body" in ((await job.wait()).tasks["t"].last_error or "")


# -- refused calls ---------------------------------------------------------------------------------------------------


async def refused(act: Callable[[TaskContext], Awaitable[Any]]) -> str:
    """The text of the refusal of a call in a flow."""

    async def body(task: TaskContext) -> str:
        try:
            await act(task)
        except Exception as error:
            return str(error)
        return "nothing was refused"

    return str(await ran(body))


async def test_streams_that_the_caller_reads_are_refused_in_a_flow() -> None:
    helper = durable(searching())

    async def stream(task: TaskContext) -> None:
        async with helper.run_stream("help"):
            pass

    async def events(task: TaskContext) -> None:
        async with helper.run_stream_events("help"):
            pass

    assert await refused(stream) == (
        "run_stream cannot be replayed: its caller reads while the model answers. In a flow write `await "
        "agent.run(...)`, with event_stream_handler=... for what is to be seen meanwhile"
    )
    assert "run_stream_events cannot be replayed" in await refused(events)


async def test_ids_and_toolsets_of_one_run_are_refused_in_a_flow() -> None:
    helper = durable(searching())
    assert "run_id" in await refused(lambda task: helper.run("help", run_id="mine"))
    late: FunctionToolset[None] = FunctionToolset(id="late")

    @late.tool_plain
    def anything() -> None:
        pass

    assert "Callboard" in await refused(lambda task: helper.run("help", toolsets=[late]))


async def test_a_plain_body_is_told_to_be_async() -> None:
    helper = durable(searching())

    def body(task: TaskContext) -> str:
        return anyio.run(helper.run, "help").output

    async with Runtime() as runtime:
        job = await started(runtime, body)  # type: ignore[arg-type]
        assert "a durable agent runs in an async body" in ((await job.wait()).tasks["t"].last_error or "")


def test_trio_is_refused_in_words() -> None:
    helper = durable(searching())

    async def body(task: TaskContext) -> str:
        return (await helper.run("help")).output

    async def main() -> str:
        async with Runtime() as runtime:
            job = await started(runtime, body)
            return (await job.wait()).tasks["t"].last_error or ""

    assert "pydantic-ai runs on asyncio, and this runtime runs on trio" in anyio.run(main, backend="trio")


# -- models ------------------------------------------------------------------------------------------------------------


async def test_a_model_may_be_given_for_one_run_or_put_in_the_agents_place() -> None:
    helper = durable(Agent(TestModel(custom_output_text="none"), name="open"))

    async def body(task: TaskContext) -> list[str]:
        one = await helper.run("help", model=TestModel(custom_output_text="one"))
        with helper.override(model=TestModel(custom_output_text="two")):
            two = await helper.run("help")
        return [one.output, two.output]

    twice = replayed(body)
    await ran(twice)
    assert twice.results == [["one", "two"]] * 2  # type: ignore[attr-defined]


# -- MCP and kills -----------------------------------------------------------------------------------------------------

SERVER = """
from pathlib import Path
from mcp.server.mcpserver import MCPServer

server = MCPServer("docs")

@server.tool()
def lookup(word: str) -> str:
    with Path(PLACE).open("a") as file:
        file.write(word + "\\n")
    return f"{word} is a word"

server.run()
"""


async def test_calls_of_an_mcp_server_are_steps(tmp_path: Path) -> None:
    from pydantic_ai.mcp import MCPToolset

    (tmp_path / "server.py").write_text(SERVER.replace("PLACE", repr(str(tmp_path / "asked"))))
    server = MCPToolset(tmp_path / "server.py", id="docs", init_timeout=300)  # a busy machine: by default it has 5 s
    agent = durable(Agent(calling([call("lookup", word="a")]), toolsets=[server]))

    async def body(task: TaskContext) -> list[ModelMessage]:
        return (await agent.run("help")).all_messages()

    twice = replayed(body)
    async with Runtime() as runtime:
        job = await started(runtime, twice)
        (await job.wait()).raise_for_state()
        labels = [row.label for row in await job.task("t").steps()]
    first, second = twice.results  # type: ignore[attr-defined]
    assert first == second
    assert labels == ["agent:agent", "mcp:docs.tools", "model", "mcp:docs.lookup", "model#2"]
    assert (tmp_path / "asked").read_text() == "a\n"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is of Unix")
def test_an_agent_that_is_killed_again_and_again_repeats_nothing(tmp_path: Path) -> None:
    program = Path(__file__).with_name("killed.py")
    ended = subprocess.run(
        [sys.executable, program, tmp_path, "1"],
        capture_output=True, text=True, timeout=900, check=False, env=environment(),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-5000:]
    lines = ended.stdout.splitlines()
    assert [line for line in lines if not line.startswith("kills ")] == []
    of_steps, at_random = (int(line.removeprefix("kills ")) for line in lines)
    assert of_steps >= 15
    assert at_random >= 50
