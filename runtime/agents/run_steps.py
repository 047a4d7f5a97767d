"""The durable steps of one run of an agent: their names, their policies, and the times that they give to its messages.

Rules
- A run is a step, `agent:NAME`, found by its prompt and its history. This step keeps the run's id: every other step of
  the run is found by that id, and the step of a tool call by the id of the call, too. So runs in parallel branches are
  never mixed.
- Messages are made anew in each replay, and pydantic-ai dates them by the clock. They get durable times here: a tool's
  return gets the time of the tool's step, any other message the time of the last step before it. Responses come from
  kept results.
- Message histories are dated where no step of the run is running: before a model request, and at the end of the run.
- An approval is named by its tool and a digest of the call and its arguments: an answer to one call never counts for
  another call, even if a model gives two calls one id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, cast

import msgspec
from pydantic_ai.messages import ModelMessage, ModelRequest
from pydantic_core import to_jsonable_python

from ...actors.messages.errors import ApprovalExpired, ApprovalRejected
from ..engines.steps import LONGEST_NAME, ONCE, Step
from .policies import Policies, ToolPolicy

if TYPE_CHECKING:
    from pydantic_ai.messages import ToolCallPart

    from ..engines.context import TaskContext
    from ..engines.steps import Flow


class RunSteps:
    """The steps of one run of an agent. context: of the body; None if the body takes no context as an argument."""

    def __init__(self, flow: Flow, context: TaskContext | None, policies: Policies, run_id: str, began: float) -> None:
        self.run_id = run_id
        self.policies = policies
        self.live = False  # whether the last step ran, and was not replayed
        self._flow = flow
        self._context = context
        self._last = began
        self._ended: dict[str, float] = {}  # by the id of a tool call: when its step ended
        self._given: set[datetime] = set()
        self.began = _utc(began)

    @classmethod
    async def begin(
        cls, flow: Flow, context: TaskContext | None, policies: Policies, agent: str, asked: Sequence[object]
    ) -> RunSteps:
        """Begin a run, or the replay of one. asked: the prompt and the history, by which its step is found."""
        random = flow.random

        async def begin(digest: str) -> str:  # noqa: ARG001 - the digest finds the step
            return f"{random.getrandbits(128):032x}"

        step = Step(begin, _name(f"agent:{agent}"))
        run_id, began = await flow.call_dated(step, (_digest(asked),), {})
        return cls(flow, context, policies, run_id, began)

    async def call(
        self, name: str, call_id: str | None, body: Callable[[], Awaitable[object]], policy: ToolPolicy
    ) -> Any:
        """Run `body` as a step, or return the result of its earlier run. call_id: of the tool call, if it is one."""
        ran = False

        async def called(run_id: str, call_id: str | None) -> object:  # noqa: ARG001 - they find the step
            nonlocal ran
            ran = True
            return await body()

        step = Step(called, _name(name), policy.retry or ONCE, policy.timeout, policy.tool)
        result, ended = await self._flow.call_dated(step, (self.run_id, call_id), {})
        self.live = ran
        self._last = max(self._last, ended)
        if call_id is not None:
            self._ended[call_id] = ended
        return result

    def date(self, messages: Sequence[ModelMessage]) -> None:
        """Give the messages of this run that have none their durable times."""
        last = _utc(self._last)
        for message in messages:
            if not isinstance(message, ModelRequest) or message.run_id not in {None, self.run_id}:
                continue
            if message.timestamp in self._given:
                continue
            for part in message.parts:
                if getattr(part, "timestamp", None) is not None:
                    ended = self._ended.get(getattr(part, "tool_call_id", None) or "")
                    part.timestamp = last if ended is None else _utc(ended)  # type: ignore[union-attr]
            message.timestamp = last
        self._given.add(last)

    async def approve(self, call: ToolCallPart, place: int) -> bool | str:
        """Ask people for a tool call. Returns True, or the reason why it is refused. place: of the call in the run."""
        if self._context is None:
            raise RuntimeError(
                f"tool {call.tool_name!r} needs an approval, which its task asks for: let the body that runs this "
                "agent take the task as its argument, `async def body(task: TaskContext)`"
            )
        digest = _digest((self.run_id, place, call.tool_call_id, call.args))[:8]
        name = f"{_fitting(call.tool_name, _FORBIDDEN)[:100].strip(' .')} {digest}"
        rule = self.policies.of_tool(call.tool_name).approval
        try:
            await self._context.approval(name, rule)
        except (ApprovalRejected, ApprovalExpired) as refused:
            return str(refused)
        return True


_FORBIDDEN = frozenset('/\\:*?"<>|')
"""Characters that names of approvals may not hold, since the names become file names."""


def _name(name: str) -> str:
    """A valid name of a step, made from the name of a tool or a server, which may be any text."""
    return _fitting(name, frozenset("#"))[:LONGEST_NAME]


def _fitting(name: str, forbidden: frozenset[str]) -> str:
    return "".join(sign if sign.isprintable() and sign not in forbidden else "_" for sign in name)


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _digest(value: object) -> str:
    """A digest of a prompt, of a history or of arguments, without the times of messages."""
    plain = to_jsonable_python(value, fallback=lambda unknown: type(unknown).__qualname__)
    return blake2b(msgspec.json.encode(_untimed(plain), order="deterministic"), digest_size=12).hexdigest()


def _untimed(value: Any) -> Any:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {key: _untimed(item) for key, item in fields.items() if key != "timestamp"}
    if isinstance(value, list):
        items: list[Any] = value  # pyright: ignore[reportUnknownVariableType] - mypy refuses a cast as redundant
        return [_untimed(item) for item in items]
    return value
