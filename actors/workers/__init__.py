"""Workers and who gives them work: the supervisor, the scheduler, health, limits of tools and breakers.

Which task starts next, and where, is decided here. How a body is executed is in `runtime/engines/`.
"""
