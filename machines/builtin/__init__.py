"""The runtime's own machines: task, workstream, job, worker, breaker, approval.

Each file has the table of one kind of entity, and the guards of its rows. `table.py` maps each kind to its machine.
Actors, and not these files, decide what an entity does in a state.
"""
