"""Durable agents of pydantic-ai: each model request, tool call and MCP call is a step of the flow in which it is made.

pydantic-ai decides what an agent does, and `engines/flow.py` what a step is; this folder binds the agent's calls to
steps. Only `callboard.agents` imports this folder, since the folder needs the extra `pydantic-ai`.
"""
