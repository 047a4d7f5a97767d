"""Machines of applications as durable actors.

Storing such a machine, and restoring it at a start, is implemented here. The tables themselves are in `machines/`.
"""
