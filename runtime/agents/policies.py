"""How often and how long the steps of an agent are tried, and who approves its tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...actors.spec.model import Approval, Retry
from ...actors.spec.validate import SpecificationError, approval_problems
from ...actors.times import Duration, seconds
from ...actors.user_code import shown
from ..engines.steps import checked_retry, checked_tool


@dataclass(frozen=True, kw_only=True)
class ToolPolicy:
    """How one tool of a durable agent is called. Unset fields have the values of the other tools.

    retry: the tries of its step (one unless set). timeout: of one try (a duration). approval: who must approve a call
    that needs an approval. tool: the name of the Callboard tool whose limit, rests and breaker its calls share.
    durable: False if the tool runs in the body and not as a step: so it may take steps, sleep, and run other durable
    agents, and it runs again in each replay.
    """

    retry: Retry | None = None
    timeout: Duration | None = None
    approval: Approval | None = None
    tool: str | None = None
    durable: bool = True


@dataclass(frozen=True, kw_only=True)
class Policies:
    """The policies of one agent: of its model requests, of its tools, and of single tools by their names."""

    model: ToolPolicy = ToolPolicy()
    tool: ToolPolicy = ToolPolicy()
    tools: Mapping[str, ToolPolicy] = field(default_factory=dict[str, ToolPolicy])

    def of_tool(self, name: str) -> ToolPolicy:
        """The policy of the tool of that name."""
        own = self.tools.get(name)
        if own is None:
            return self.tool
        return ToolPolicy(
            retry=own.retry or self.tool.retry,
            timeout=self.tool.timeout if own.timeout is None else own.timeout,
            approval=own.approval or self.tool.approval,
            tool=own.tool,
            durable=own.durable,
        )


def check_policies(policies: Policies) -> None:
    """Check the policies. Raises TypeError and ValueError, which name the policy."""
    of = {"its model": policies.model, "its tools": policies.tool}
    of |= {f"its tool {name!r:.80}": policy for name, policy in policies.tools.items()}
    for whose, policy in of.items():
        _check(f"the agent's policy for {whose}", policy)


def _check(about: str, policy: object) -> None:
    if not isinstance(policy, ToolPolicy):
        raise TypeError(f"{about} is a ToolPolicy, not {shown(policy, 60)}")
    if policy.retry is not None:
        checked_retry(policy.retry, about)
    if policy.timeout is not None:
        seconds(policy.timeout)
    if policy.tool is not None:
        checked_tool(policy.tool, f"the tool of {about}")
    if policy.approval is not None:
        _check_approval(policy.approval, f"the approval of {about}")


def _check_approval(rule: object, about: str) -> None:
    if not isinstance(rule, Approval):
        raise TypeError(f"{about} is an Approval, not {shown(rule, 60)}")
    if found := approval_problems(rule):
        raise SpecificationError(found, about)
