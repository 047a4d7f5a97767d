"""Workers that are processes of their own, wherever these are: one engine, and what it needs of a transport.

The transports are `engines/process` (a process beside this one) and `engines/ray` (an actor on a cluster). What only
one of them knows is in its folder, and nothing here names either.
"""
