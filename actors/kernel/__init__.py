"""The kernel: runs an input and all that it causes as one transaction, and restores entities from a journal.

What all entities have in common lives here: how they fire events, numbers, answers to repeated commands. What one kind
of entity does is in the folder of that kind.
"""
