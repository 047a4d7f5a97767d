"""Binds model requests, tool calls and MCP calls of an agent to the steps of one run, by pydantic-ai's extension point.

Rules
- One `Durability` belongs to one run of an agent in a flow. It is never attached to the agent itself: outside of flows
  the agent is unchanged.
- Inside the function of a step (a tool that runs another agent) the calls are no steps: the outer step is durable.
- Events are passed to the handler while their step runs. A replay does not pass them again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import anyio
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    CapabilityOperationId,
    DurabilityEngineSpec,
    EventStreamHandlerId,
    JournalCallableOperationBackend,
    ModelCancelSuspendedResponseId,
    ModelCompactMessagesId,
    ModelRequestId,
    ToolsetCallToolId,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
)
from pydantic_ai.tools import AgentDepsT, DeferredToolResults, RunContext, ToolDenied

from ..engines.steps import inside
from .policies import Policies, ToolPolicy

if TYPE_CHECKING:
    from pydantic_ai.agent import EventStreamHandler
    from pydantic_ai.capabilities.abstract import WrapRunHandler
    from pydantic_ai.durable_exec import (
        BoundDurableOperation,
        DurableOperation,
        DurableOperationBackend,
        DurableOperationId,
        OperationConfigRole,
    )
    from pydantic_ai.models import Model
    from pydantic_ai.run import AgentRunResult
    from pydantic_ai.tools import DeferredToolRequests

    from .run_steps import RunSteps


class Durability(BaseDurabilityCapability[AgentDepsT]):
    """Makes one run of an agent durable. models: the models that it may use besides the agent's own."""

    engine_spec: ClassVar[DurabilityEngineSpec] = DurabilityEngineSpec(
        engine_name="Callboard",
        durable_unit_noun="step",
        durable_container_noun="flow",
        codec=JSON_CODEC,
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
    )

    def __init__(
        self,
        steps: RunSteps,
        name: str,
        models: dict[str, Model[Any]],
        event_stream_handler: EventStreamHandler[AgentDepsT] | None,
    ) -> None:
        super().__init__(name=name, models=models, event_stream_handler=event_stream_handler)
        self.steps = steps

    @property
    def in_durable_context(self) -> bool:
        """Whether calls are steps here: not inside the function of a step."""
        return inside.get() is None

    def get_durable_operation_backend(self) -> DurableOperationBackend[Any]:
        """The backend that runs the calls of the agent as steps."""
        return _Backend(self.name, self.steps)

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """The id of the conversation, which is the id of its first run: the same in each replay."""
        return run_id

    async def get_run_start_time(self, run_id: str) -> datetime | None:  # noqa: ARG002 - pydantic-ai's name
        """When the run first began: its `timeout=` is measured from this time."""
        return self.steps.began

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Run the agent, and date the messages that came after its last model request."""
        result = await super().wrap_run(ctx, handler=handler)
        self.steps.date(result.all_messages())
        return result

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Ask people for all calls that need an approval, at once. Calls that others execute are left to the caller."""
        if not self.in_durable_context or not requests.approvals:
            return None
        answers: dict[str, Any] = {}

        async def ask(call: Any) -> None:
            answer = await self.steps.approve(call, len(ctx.messages))
            answers[call.tool_call_id] = True if answer is True else ToolDenied(str(answer))

        async with anyio.create_task_group() as group:
            for call in requests.approvals:
                group.start_soon(ask, call)
        return DeferredToolResults(approvals=answers)


_params: ContextVar[Any] = ContextVar("parameters of the operation that is called here")


class _Config:
    """Gives each operation its policy."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies

    def base(self, role: OperationConfigRole, *, operation_id: DurableOperationId) -> ToolPolicy:  # noqa: ARG002
        return self._policies.model if role == "model" else self._policies.tool

    def for_tool(
        self,
        role: OperationConfigRole,  # noqa: ARG002
        *,
        operation_id: DurableOperationId,  # noqa: ARG002
        tool: object | None,  # noqa: ARG002
        tool_name: str,
    ) -> ToolPolicy | Literal[False]:
        policy = self._policies.of_tool(tool_name)
        return policy if policy.durable else False


class _Backend(JournalCallableOperationBackend[ToolPolicy]):
    """Runs operations of an agent as steps of its flow."""

    def __init__(self, agent: str, steps: RunSteps) -> None:
        super().__init__(agent_name=agent, config=_Config(steps.policies))
        self._steps = steps

    def bind(self, operation: DurableOperation[Any, Any, Any]) -> BoundDurableOperation[Any, Any, Any]:
        """Keep the parameters of each call: the names of steps are made from them."""
        return _Bound(super().bind(operation))

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],  # noqa: ARG002
        config: ToolPolicy,
    ) -> object:
        """Run one operation: as a step, unless it only emits an event."""
        params = _params.get()
        context: RunContext[Any] | None = getattr(params, "run_context", None) or getattr(params, "ctx", None)
        if isinstance(operation_id, EventStreamHandlerId):
            return await body() if self._steps.live else None
        if isinstance(operation_id, ModelRequestId) and context is not None:
            self._steps.date(context.messages)
            self._steps.date(params.messages)
        call_id = None if context is None else context.tool_call_id
        return await self._steps.call(_name_of(operation_id, params) or name, call_id, body, config)

    def registrations(self) -> Sequence[Callable[..., object]]:
        """Nothing is registered before a run."""
        return ()


class _Bound:
    """An operation that passes its parameters to `execute`."""

    def __init__(self, bound: BoundDurableOperation[Any, Any, Any]) -> None:
        self.operation = bound.operation
        self._bound = bound

    async def __call__(self, params: Any, *, config: object | None = None) -> Any:
        token = _params.set(params)
        try:
            return await self._bound(params, config=config)
        finally:
            _params.reset(token)


def _name_of(operation_id: DurableOperationId, params: Any) -> str | None:
    """The name of an operation's step; None for kinds that a later pydantic-ai has added."""
    match operation_id:
        case ModelRequestId():
            return "model"
        case ModelCompactMessagesId():
            return "model.compact"
        case ModelCancelSuspendedResponseId():
            return "model.cancel"
        case ToolsetCallToolId(toolset_kind="mcp", toolset_id=server):
            return f"mcp:{server}.{params.name}"
        case ToolsetCallToolId():
            return f"tool:{params.name}"
        case ToolsetValidateToolArgumentsId():
            return f"validate:{params.name}"
        case ToolsetGetToolsId(toolset_kind=kind, toolset_id=server):
            return f"{kind}:{server}.tools"
        case ToolsetGetInstructionsId(toolset_id=server):
            return f"mcp:{server}.instructions"
        case CapabilityOperationId(capability_id=capability, operation=operation):
            return f"{capability}.{operation}"
        case _:
            return None
