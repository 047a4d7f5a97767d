"""Persisted data: one immutable record for each entity, and the transition as it is journaled.

A field that a restart needs belongs here. A value that can be computed again does not, and no behaviour does.
"""
