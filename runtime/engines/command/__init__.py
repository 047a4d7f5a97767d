"""The engine for commands: it starts, watches and ends them, and keeps their output.

Code shared with other engines is in `runtime/engines/`. Nothing here knows a task.
"""
