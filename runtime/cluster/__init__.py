"""A runtime as one of several nodes that share a journal.

This folder holds its lease, its take-overs, and its access to jobs of other nodes.

The database's part is the contract in `runtime/journal/cluster.py`. A runtime that owns its journal alone uses nothing
here.
"""
