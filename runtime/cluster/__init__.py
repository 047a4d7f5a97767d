"""A runtime as one node of several that share a journal: its lease, taking over, and what other nodes run.

What the database does for it is the contract in `runtime/journal/cluster.py`. A runtime with a journal of its own uses
nothing of this.
"""
