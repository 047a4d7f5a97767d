"""Actors: the state and behaviour of each entity. Messages in, effects out.

The actors of the library read no clock, never block and do no I/O, so the same inputs give the same transitions.
They use `machines/`, and nothing of `runtime/`. `user_code.py` calls the code of applications.
"""
