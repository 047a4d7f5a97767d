"""The engine for commands: starting, watching and ending them, and what they print.

What it shares with the other engines is in `runtime/engines/`. Nothing here knows a task.
"""
