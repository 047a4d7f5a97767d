"""The functions that the simulation's tasks name. None is ever called: a simulated engine takes its place."""

from __future__ import annotations


async def work() -> None:
    """The body of a task on the loop."""
    raise AssertionError("a simulated engine calls no function")


def plain() -> None:
    """The body of a task in a worker process."""
    raise AssertionError("a simulated engine calls no function")
