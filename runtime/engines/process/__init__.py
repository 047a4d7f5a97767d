"""The engine for worker processes: the pool, the process itself, and the messages between them.

A body's requests to its runtime are in `runtime_proxy.py`. Code shared with other engines is in `runtime/engines/`.
"""
