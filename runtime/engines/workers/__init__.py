"""Workers in processes of their own, on any machine: one engine, and the transport interface it needs.

The transports are `engines/process` (a process on this machine) and `engines/ray` (an actor on a cluster). Code for one
transport is in its folder, and nothing here names either.
"""
