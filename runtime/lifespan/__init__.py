"""How a runtime is put together, opened, drained and left.

`opening.py` is its life, `wiring.py` makes its parts, `platform.py` is what it touches of its machine. Signals that
tell it to stop are taken here, too. What a runtime does while it is open is in the other folders.
"""
