"""Workers: the workforce, the scheduler, health, limits of tools and breakers.

This folder decides which task starts next, and on which worker. How a body is executed is in `runtime/engines/`. The
supervisor, which starts workers and jobs, is in `actors/supervisor.py`.
"""
