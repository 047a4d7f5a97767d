"""Jobs and workstreams: how they begin, coordinate their tasks, pause, stop, and run again.

A job holds slots and children, a workstream the graph of its tasks. What one task does is in `actors/tasks/`.
"""
