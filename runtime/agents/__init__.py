"""Durable agents of pydantic-ai: each model request, tool call and MCP call is a step of the flow in which it is made.

What an agent does is pydantic-ai's, what a step is belongs to `engines/flow.py`; here the one is bound to the other.
Nothing in Callboard imports this folder but `callboard.agents`: it needs the extra `pydantic-ai`.
"""
