"""Jobs and workstreams: how they begin, coordinate their tasks, pause, stop, and run again.

A job holds slots and children, a workstream the graph of its tasks. The behaviour of one task is in `actors/tasks/`.
"""
