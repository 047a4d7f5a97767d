"""The objects that applications use: handles of jobs, workers, breakers, machines and approvals, and outcomes.

A handle has verbs, and shows records; it has no state of its own. The path of a command is in `runtime/commands/`.
"""
