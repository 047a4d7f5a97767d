"""Durable agents of pydantic-ai: in a flow, each model request, tool call and MCP call is a step. Needs the extra
`pydantic-ai`.

Rules
-----
- The names are `__all__`, and a test pins them. Nothing in Callboard imports it.
"""

from .runtime.extras import needs

with needs("callboard.agents", "pydantic-ai"):
    from .runtime.agents.durable import DurableAgent, durable
    from .runtime.agents.policies import ToolPolicy

__all__ = ["DurableAgent", "ToolPolicy", "durable"]
