"""Machines of applications as durable actors, and lifecycles that entities run by.

How such a machine is kept, and found again at a start, is here. The tables themselves are in `machines/`.
"""
