"""The engine for workers on a Ray cluster: the pool of actors, the actor, and the connection.

Only `cluster.py` uses Ray's own interface. Nothing here is imported before a worker on Ray is requested.
"""
