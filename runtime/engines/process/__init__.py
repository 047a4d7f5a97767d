"""The engine for worker processes: the pool, the process itself, and what both say to each other.

What a body in such a process asks of its runtime goes by `runtime_proxy.py`. What it shares with the other engines is
in `runtime/engines/`.
"""
