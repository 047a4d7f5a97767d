"""What each actor does about what happens: messages in, effects out.

The actors of the library read no clock, wait for nothing and do no I/O, so the same inputs give the same transitions.
They use `machines/`, and nothing of `runtime/`. How the code of applications is called is in `user_code.py`.
"""
