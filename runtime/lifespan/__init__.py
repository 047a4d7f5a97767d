"""How a runtime is put together, opened, drained and left.

Signals that tell it to stop are taken here, too. What a runtime does while it is open is in the other folders.
"""
