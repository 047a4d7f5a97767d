"""Running an entity by a lifecycle that is not the runtime's own: phases, rows, and the events for people.

A lifecycle that the actors cannot run by is rejected here, when it is given. Everything here is pure. The actors use it
from `actors/machines/`.
"""
