"""The graph: workstreams share the numbers of their first tasks, and keep none for a larger one that has ended."""

from __future__ import annotations

import sys

from callboard.actors.jobs.graph import Graph
from callboard.actors.spec.model import Task


def test_the_numbers_of_a_large_workstream_are_released_with_it() -> None:
    tasks = [Task(f"t{number}", run="m:f") for number in range(2_000)]
    large, small = Graph(tasks), Graph(tasks[:500])
    assert list(large.names.values()) == list(range(2_000))
    assert small.names["t499"] is large.names["t499"]
    number, new = large.names["t1999"], int("123456")
    del large
    assert sys.getrefcount(number) == sys.getrefcount(new)  # only the variable holds it
