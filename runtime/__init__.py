"""What makes it happen: dispatcher, timers, journal, engines, observation, command line, board.

`runtime.py` is what applications open, `services.py` what its parts, the board and the command line use of it,
`host.py` the kernel's door to the world; `loaded_modules.py` says what the program has imported. Nothing here decides
what an entity does next: that is the actors' part.
"""
