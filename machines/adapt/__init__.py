"""Running by a lifecycle that is not the runtime's own: its phases, its rows, and what people may fire at it.

Whether the actors can run by a lifecycle at all is decided here, when it is given. Everything here is pure. What
actors make of it is in `actors/machines/`.
"""
