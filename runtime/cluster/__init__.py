"""A runtime as one of several nodes that share a journal.

This folder holds its lease, its take-overs, its ids and its tools. The handles of jobs and machines of other nodes are
in `runtime/handles/`.

The database's part is the contract in `runtime/journal/cluster.py`. A runtime that owns its journal alone uses nothing
here.
"""
