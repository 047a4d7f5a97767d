"""What is sound in a specification is found fast, and by no word of an object's own."""

from typing import Any

import pytest

from callboard.actors.spec.model import Check, Task
from callboard.actors.spec.schema import sound


class Liar(list[Any]):
    """Says that it is equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class Raises:
    """Cannot be compared."""

    def __eq__(self, other: object) -> bool:
        raise SystemExit("in __eq__")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("field", ["cwd", "retry", "timeout", "tool"])
@pytest.mark.parametrize("value", [Liar([[]]), Raises(), [Liar([[]])], [Raises()]])
def test_what_says_that_it_is_a_default_is_not_taken_for_one(field: str, value: Any) -> None:
    assert not sound(Task("t", run="m:f", **{field: value}))


def test_what_is_given_is_sound_where_it_has_its_type() -> None:
    assert sound(Task("t", run="m:f"))
    assert sound(Task("t", run=test_what_is_given_is_sound_where_it_has_its_type, depends_on=["a"], args={"n": 1}))
    assert sound(Task("t", run="m:f", args={"deep": [{"er": [1, 2]}]}, checks=[Check(run="m:g")]))
    assert not sound(Task("t", run="m:f", depends_on=[1]))  # type: ignore[list-item]
