"""What applications hold: handles of jobs, workers, breakers, machines and approvals, and outcomes.

A handle has verbs and looks; it keeps no state of what it stands for. How a command travels is in `runtime/commands/`.
"""
