"""How a runtime is put together, opened, drained and closed.

`opening.py` opens, keeps and closes it, `wiring.py` makes its parts, `platform.py` is its access to this computer. The
signals that stop a runtime are handled here, too. The work of an open runtime is in the other folders.
"""
