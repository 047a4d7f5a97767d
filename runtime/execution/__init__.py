"""Calls between actors and engines: start, results, outputs, approvals.

What an earlier runtime left running is found and killed here. How an engine executes a call is in `runtime/engines/`.
"""
