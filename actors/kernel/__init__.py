"""The kernel: runs an input with all its consequences as one transaction, and restores entities from a journal.

What all entities have in common lives here: how they fire events, numbers, answers to repeated commands. The behaviour
of one kind of entity is in the folder of that kind.
"""
