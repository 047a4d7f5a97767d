"""What makes it happen: dispatcher, timers, journal, engines, observation, command line, board.

`runtime.py` is what applications open, `host.py` the kernel's door to the world, `journal_location.py` what the address
of a journal says. Nothing here decides what an entity does next: that is the actors' part.
"""
