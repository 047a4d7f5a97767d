"""The runtime's own machines: task, workstream, job, worker, breaker, approval.

Each file has the table of one kind of entity, and the guards of its rows. Which kind runs by which machine is in
`table.py`. What an entity does in a state does not belong here: that is the actors' part.
"""
