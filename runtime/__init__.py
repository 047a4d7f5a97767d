"""The runtime around the actors: dispatcher, timers, journal, engines, observation, command line, board.

Applications open `runtime.py`; its parts, the board and the command line use `services.py`. `host.py` executes the
effects of the kernel; `loaded_modules.py` finds imported modules. Nothing here decides what an entity does next: the
actors do.
"""
