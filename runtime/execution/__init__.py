"""From what an actor asks for to what an engine runs, and back: calls, results, outputs, child jobs, approvals.

What an earlier runtime left running is found and ended here. How a call is executed is in `runtime/engines/`.
"""
