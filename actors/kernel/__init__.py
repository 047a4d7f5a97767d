"""The kernel: runs an input with all its consequences as one transaction.

What all entities have in common lives here: how they fire events and publish transitions, numbers, answers to repeated
commands. The behaviour of one kind of entity is in the folder of that kind. `actors/restore.py` restores them all.
"""
