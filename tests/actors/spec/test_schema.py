"""Sound specifications are recognised fast, and without a call of an object's own methods."""

from typing import Any

import pytest

from callboard.actors.spec.model import Alert, Check, Condition, Hook, Task, Workstream
from callboard.actors.spec.schema import sound
from callboard.actors.spec.validate import findings


class Liar(list[Any]):
    """An object that claims to equal everything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class Raises:
    """Cannot be compared."""

    def __eq__(self, other: object) -> bool:
        raise SystemExit("in __eq__")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("field", ["cwd", "command", "depends_on", "args", "retry", "timeout"])
@pytest.mark.parametrize("value", [Liar([[]]), Raises(), [Liar([[]])], [Raises()]])
def test_what_says_that_it_equals_everything_is_not_taken_for_a_default(field: str, value: Any) -> None:
    assert not sound(Task("t", run="m:f", **{field: value}))


class LyingDict(dict[str, Any]):
    """A dict that claims to be equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("field", "value"), [("depends_on", Liar(["a"])), ("args", LyingDict(n=1)), ("expected_exit_codes", Liar([1]))]
)
def test_a_container_of_a_class_of_its_own_is_read_and_not_kept_though_it_holds_the_right_things(
    field: str, value: Any
) -> None:
    assert not sound(Task("t", run="m:f", **{field: value}))


def test_what_is_given_is_sound_where_it_has_its_type() -> None:
    assert sound(Task("t", run="m:f"))
    assert sound(Task("t", run=test_what_is_given_is_sound_where_it_has_its_type, depends_on=["a"], args={"n": 1}))
    assert sound(Task("t", run="m:f", args={"deep": [{"er": [1, 2]}]}, checks=[Check(run="m:g")]))
    assert not sound(Task("t", run="m:f", depends_on=[1]))  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("settings", "where", "told"),
    [
        (
            {"on_failed": [Hook(run="m:g"), Check(command=["x"])]},
            "tasks[0].on_failed[1]",
            "must be a Hook, not a Check",
        ),
        ({"cancel_hooks": [Alert(run="m:g")]}, "tasks[0].cancel_hooks[0]", "must be a Hook, not an Alert"),
        ({"checks": [Hook(run="m:g")]}, "tasks[0].checks[0]", "must be a Check, not a Hook"),
        ({"condition": Check(run="m:g")}, "tasks[0].condition", "must be a Condition, not a Check"),
        ({"condition": Hook(run="m:g")}, "tasks[0].condition", "must be a Condition, not a Hook"),
    ],
)
def test_a_part_of_another_class_is_refused_though_its_fields_would_fit(settings: Any, where: str, told: str) -> None:
    assert sound(Task("t", run="m:f", on_failed=[Hook(run="m:g")], condition=Condition(run="m:g")))
    (found,) = findings(Workstream("w", tasks=[Task("t", run="m:f", **settings)]))
    assert (found.where, found.message[: len(told)]) == (where, told)
    (found,) = findings(Workstream("w", tasks=[Task("t", run="m:f")], on_failed=[Check(command=["x"])]))  # type: ignore[list-item]
    assert found.where == "on_failed[0]"
