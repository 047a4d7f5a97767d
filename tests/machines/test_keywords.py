"""Words of texts for people."""

from __future__ import annotations

from callboard.machines.keywords import number_of


def test_a_number_of_things_is_said_as_people_say_it() -> None:
    assert [number_of(count, "task") for count in (0, 1, 2_000)] == ["0 tasks", "1 task", "2,000 tasks"]
    assert [number_of(count, "notice was", "notices were") for count in (1, 2)] == ["1 notice was", "2 notices were"]
