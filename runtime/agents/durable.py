"""`durable(agent)`: an agent of pydantic-ai whose runs inside a flow lose nothing if the process is killed.

Rules
- In the body of a task each model request, tool call and MCP call is a step. Elsewhere the agent is unchanged.
- In a flow, calls that cannot be replayed are refused with an error: streams that the caller reads, plain bodies, trio.
- A run is refused if a policy names a tool that the agent cannot have: otherwise the policy would silently apply to
  nothing. Before a run, only plain functions and the agent's earlier tools are known: with other toolsets nothing is
  refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from pydantic_ai.agent import AbstractAgent, AgentRun, WrapperAgent
from pydantic_ai.models import Model
from pydantic_ai.output import OutputDataT
from pydantic_ai.tools import AgentDepsT
from pydantic_ai.toolsets import FunctionToolset

from ...actors.spec.model import Approval, Retry
from ...actors.times import Duration
from ...machines.keywords import did_you_mean
from ..dispatch.abandoned_threads import running_body
from ..engines.steps import inside, present_flow
from .capability import Durability
from .events import emitting
from .policies import Policies, ToolPolicy, check_policies
from .run_steps import RunSteps

if TYPE_CHECKING:
    from pydantic_ai.agent import EventStreamHandler

    from ..engines.context import TaskContext
    from ..engines.steps import Flow


def durable(
    agent: AbstractAgent[AgentDepsT, OutputDataT],
    *,
    name: str | None = None,
    model_retry: Retry | None = None,
    model_timeout: Duration | None = None,
    model_tool: str | None = None,
    tool_retry: Retry | None = None,
    tool_timeout: Duration | None = None,
    tools: Mapping[str, ToolPolicy] | None = None,
    approval: Approval | None = None,
    event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
    emit: bool = False,
) -> DurableAgent[AgentDepsT, OutputDataT]:
    """An agent that runs durably in the body of a task: each model request, tool call and MCP call is a step.

    agent: any agent of pydantic-ai; it stays as it is. name: of the agent in its steps (by default its own).
    model_retry, model_timeout: the tries of a model request (one unless set), and the time limit of one try (a
    duration). model_tool: the name of the Callboard tool whose limit, rests and breaker the model requests share.
    tool_retry, tool_timeout: tries and time limit of tool calls and MCP calls. tools: policies of single tools, by
    their names: a run raises LookupError for a tool that the agent cannot have. approval: who must approve calls that
    need an approval (by default one person).
    event_stream_handler: gets the events of models and tools while they happen; a replay does not pass them again.
    emit: stream the text of the model by `task.emit`, while it answers.

    Raises TypeError and ValueError for an invalid policy: SpecificationError with all findings about a retry or an
    approval.

    Outside of flows, and inside the function of a step, the result behaves as `agent` itself.
    """
    policies = Policies(
        model=ToolPolicy(retry=model_retry, timeout=model_timeout, tool=model_tool),
        tool=ToolPolicy(retry=tool_retry, timeout=tool_timeout, approval=approval),
        tools=dict(tools or {}),
    )
    check_policies(policies)
    return DurableAgent(agent, policies, name, event_stream_handler, emit)


_handler: ContextVar[Any] = ContextVar("handler of the events of this run", default=None)
_overriding: ContextVar[Any] = ContextVar("model in place of the agents' own", default=None)


class DurableAgent(WrapperAgent[AgentDepsT, OutputDataT]):
    """An agent whose runs are durable in flows; made by `durable`."""

    def __init__(
        self,
        wrapped: AbstractAgent[AgentDepsT, OutputDataT],
        policies: Policies,
        name: str | None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None,
        emit: bool,
    ) -> None:
        super().__init__(wrapped)
        self._emit = emit
        self.policies = policies
        self._own_name = name
        self._event_stream_handler = event_stream_handler
        self._known = _functions_of(wrapped) or set[str]()

    @property
    def event_stream_handler(self) -> EventStreamHandler[AgentDepsT] | None:
        """The handler of events. None in a flow: there the steps call it."""
        return None if _flow() is not None else self._handler_here()

    def _handler_here(self) -> EventStreamHandler[AgentDepsT] | None:
        return _handler.get() or self._event_stream_handler or self.wrapped.event_stream_handler

    async def _run(self, *args: Any, event_stream_handler: Any = None, **kwargs: Any) -> Any:
        """As the agent's own `run`; durable in the body of a task.

        Raises RuntimeError in a plain body and under trio, FlowChanged if a replay asks the agent something else than
        before.
        """
        token = _handler.set(event_stream_handler)
        try:
            return await super().run(*args, **{**kwargs, "infer_name": False})  # its name would be "self"
        finally:
            _handler.reset(token)

    @asynccontextmanager
    async def _iter(self, user_prompt: Any = None, **kwargs: Any) -> AsyncGenerator[AgentRun[AgentDepsT, Any]]:
        """As the agent's own `iter`; durable in the body of a task."""
        kwargs["infer_name"] = False
        if not kwargs.get("capabilities") and not kwargs.get("toolsets"):
            self._check_tools()
        flow = _flow()
        if flow is None:
            async with self.wrapped.iter(user_prompt, **kwargs) as run:
                yield run
            return
        _check_place(flow)
        steps, durability = await self._begin(flow, user_prompt, kwargs)
        kwargs |= {"run_id": steps.run_id, "capabilities": [*(kwargs.get("capabilities") or ()), durability]}
        if kwargs.get("conversation") is None and not _goes_on(kwargs):
            kwargs["conversation_id"] = steps.run_id
        async with self.wrapped.iter(user_prompt, **kwargs) as run:
            yield run

    def _check_tools(self) -> None:
        """Refuse a policy for a tool that the agent cannot have, as far as its tools are known before it runs."""
        if not self.policies.tools or (names := _functions_of(self.wrapped)) is None:
            return
        self._known |= names  # tools that it had before an `override` are no mistakes
        for name in self.policies.tools:
            if name not in self._known:
                has = sorted(self._known)
                advice = did_you_mean(name, has) or f"it has: {', '.join(has) or 'none'}"
                raise LookupError(
                    f"durable(tools=...) has a policy for the tool {name!r:.120}, which the agent does not have; "
                    f"{advice}"
                )

    async def _begin(
        self, flow: Flow, user_prompt: Any, kwargs: dict[str, Any]
    ) -> tuple[RunSteps, Durability[AgentDepsT]]:
        name = self._own_name or self.name or "agent"
        if kwargs.get("run_id") is not None:
            raise RuntimeError("a durable run gets its run_id from its flow: leave it out, and read it from the result")
        context: TaskContext | None = cast("Any", running_body.get()[2]).context
        asked = (user_prompt, kwargs.get("message_history"), kwargs.get("deferred_tool_results"))
        handler = self._handler_here()
        if self._emit:
            if context is None:
                raise RuntimeError(
                    "durable(emit=True) streams by the task of the body that runs the agent: let that body take the "
                    "task as its argument, `async def body(task: TaskContext)`"
                )
            handler = emitting(context.emit, handler)
        steps = await RunSteps.begin(flow, context, self.policies, name, asked)
        models: dict[str, Model[Any]] = {}
        for given in (kwargs.get("model"), _overriding.get()):
            if isinstance(given, Model):
                models[f"given {len(models)}"] = given  # pyright: ignore[reportUnknownMemberType]
        return steps, Durability(steps, name, models, handler)

    @contextmanager
    def _override(self, **kwargs: Any) -> Generator[None]:
        """As the agent's own `override`. A flow uses the overriding model, which this notes."""
        token = _overriding.set(kwargs.get("model", _overriding.get()))
        try:
            with super().override(**kwargs):
                yield
        finally:
            _overriding.reset(token)

    @asynccontextmanager
    async def _run_stream(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        """As the agent's own `run_stream`, outside of flows. Raises RuntimeError in a flow."""
        _refuse_stream("run_stream")
        async with super().run_stream(*args, **kwargs) as stream:
            yield stream

    def _run_stream_events(self, *args: Any, **kwargs: Any) -> Any:
        """As the agent's own `run_stream_events`, outside of flows. Raises RuntimeError in a flow."""
        _refuse_stream("run_stream_events")
        return super().run_stream_events(*args, **kwargs)

    if not TYPE_CHECKING:  # callers keep the signatures, and the types, of pydantic-ai's own methods
        run, iter, override = _run, _iter, _override
        run_stream, run_stream_events = _run_stream, _run_stream_events


def _functions_of(agent: AbstractAgent[Any, Any]) -> set[str] | None:
    """The names of an agent's tools; None if they are not known before it runs: not all of them are plain functions."""
    names = set[str]()
    for toolset in agent.toolsets:
        if not isinstance(toolset, FunctionToolset):
            return None
        names.update(toolset.tools)  # pyright: ignore[reportUnknownMemberType]
    return names


def _goes_on(kwargs: dict[str, Any]) -> bool:
    """Whether a run goes on with a conversation that has an id."""
    if (asked := kwargs.get("conversation_id")) is not None:
        return bool(asked != "new")
    return any(getattr(message, "conversation_id", None) for message in kwargs.get("message_history") or ())


def _flow() -> Flow | None:
    """The flow whose body runs here; None outside of flows, and inside the function of a step."""
    return None if inside.get() is not None else present_flow()


def _check_place(flow: Flow) -> None:
    """Refuse a run that this flow cannot await."""
    if not flow.on_loop:
        raise RuntimeError(
            "a durable agent runs in an async body, `async def body(task: TaskContext)`: a plain function has no event "
            "loop for its steps"
        )
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "pydantic-ai runs on asyncio, and this runtime runs on trio: start the program by asyncio.run(), or give "
            "the task engine='process'"
        ) from None


def _refuse_stream(method: str) -> None:
    if _flow() is not None:
        raise RuntimeError(
            f"{method} cannot be replayed: its caller reads while the model answers. In a flow write `await "
            "agent.run(...)`, with event_stream_handler=... for what is to be seen meanwhile"
        )
