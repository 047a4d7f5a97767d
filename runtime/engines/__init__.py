"""Engines: how a body or a command is executed, on the event loop, in threads, processes, or on Ray.

`contract.py` says what every engine promises; a new engine goes into a file or folder here. Code that engines share is
here, too. No engine knows a task, and none decides what follows from a result.
"""
