"""Flows: the durable steps of the bodies that run here, and the time for which bodies lend their slots.

What a body calls is in `runtime/engines/steps.py`, and the replay in `runtime/engines/flow.py`: both are used in the
processes of workers, too.
"""
