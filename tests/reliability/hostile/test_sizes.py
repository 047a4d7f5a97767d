"""Values that expand to more than any memory holds: they are refused, or reported as too large."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.reliability.hostile import guests
from tests.reliability.hostile.vast import CASES, Endless, Facts, vast

from callboard import Runtime, Worker
from callboard.actors.spec.schema import MOST_VALUES, plain_problem
from callboard.actors.user_code import MOST_SHOWN, holds_more, message_of, shown
from callboard.runtime import values
from callboard.runtime.values import NotSerialisable, checked

pytestmark = pytest.mark.laboratory

TELLS = r"too large|more than [\d,]+ (bytes|values|aliases)|at most 1,000 aliases|nested deeper|takes a str or several"
SILENT = {"a line of a log"}  # the line is written, with that in the place of the value


def test_what_no_memory_has_room_for_is_told_by_whoever_is_given_it(tmp_path: Path) -> None:
    """The program has 3 GB of address space. None of the values ends the program, or uses up this space."""
    command = [sys.executable, "-m", "tests.reliability.hostile.vast", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    told = dict(line.split(": ", 1) for line in done.stdout.splitlines() if line.partition(": ")[0] in CASES)
    assert told.keys() == CASES.keys()
    assert "MemoryError" not in done.stdout + done.stderr
    assert [name for name, text in told.items() if name not in SILENT and not re.search(TELLS, text)] == []
    assert "rows='a list that is too large to be shown'" in re.sub(r"\x1b\[\d*m", "", done.stdout + done.stderr)


def test_what_is_held_often_counts_each_time_and_what_contains_itself_once() -> None:
    row = ["x"] * 10
    assert not holds_more(20, row)
    assert holds_more(19, row)
    assert holds_more(200, [row] * 10)
    assert not holds_more(210, [row] * 10)
    row.append(row)  # type: ignore[arg-type]
    assert not holds_more(30, row)
    assert holds_more(10**11, vast())
    assert not holds_more(10**13, vast())
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert not holds_more(200_000, deep)
    assert not holds_more(10, Endless(), 5, None, object(), "ten chars"[:5])


def test_what_shows_itself_is_shown_as_before_and_what_is_too_large_by_its_type() -> None:
    assert shown(vast()) == "a list that is too large to be shown"
    assert shown(["x"] * 10, 20) == "[... (50 characters)"
    assert shown(ValueError(vast())) == "a ValueError that is too large to be shown"
    assert message_of(ValueError(vast())) == "ValueError: (its text is too large to be made)"
    assert message_of(ValueError("x" * 5 * MOST_SHOWN)).endswith("... (5000000 characters)")


@dataclass
class Row:
    """As an application's messages are."""

    cells: Any
    more: int = 0


@dataclass(slots=True)
class Slotted:
    cells: Any


class Odd(Row):
    """A field of it is code."""

    @property
    def cells(self) -> Any:
        raise guests.Bare("in cells")

    @cells.setter
    def cells(self, _: Any) -> None:
        """Keep nothing."""


@pytest.mark.parametrize("make", [Row, Slotted, lambda held: deque([held]), lambda held: {"a": Row(held)}, Facts])
def test_what_python_shows_by_what_it_holds_is_counted_so(make: Callable[[Any], Any]) -> None:
    assert holds_more(MOST_SHOWN, make(vast()))
    assert shown(make(vast())) == f"a {type(make(1)).__name__} that is too large to be shown"
    assert shown(make([1])) == repr(make([1]))


def test_what_raises_where_it_is_counted_holds_nothing() -> None:
    assert not holds_more(10, Odd(vast()), guests.Masked(), guests.NoTruth(), guests.NoRepr)
    assert shown(Odd(1)) == "a Odd"


def test_what_never_ends_is_not_taken_for_a_runtimes_settings() -> None:
    with pytest.raises(ValueError, match="a runtime takes at most 10,000 workers"):
        Runtime(workers=repeat(Worker("w", engine="thread")))  # type: ignore[arg-type]


def test_a_result_is_bounded_while_it_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "LARGEST", 1_000)
    rows = [[n] for n in range(40)]
    assert checked(rows) == rows
    assert checked("x" * 999) == "x" * 999
    for much in ([[n] for n in range(60)], "x" * 1_001, ["x" * 300] * 4, {"a": {"b": "x" * 1_000}}, [[[]] * 60]):
        with pytest.raises(NotSerialisable, match=r"^result cannot be kept: more than [\d,]+ bytes; write a file, and"):
            checked(much)


def test_what_is_large_and_holds_the_same_over_and_over_is_not_copied_first(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    plain_list = values._Copy._plain_list

    def counted(self: Any, items: Any, depth: int) -> Any:
        copied.append(depth)
        return plain_list(self, items, depth)

    monkeypatch.setattr(values._Copy, "_plain_list", counted)
    with pytest.raises(NotSerialisable, match="more than 268,435,456 bytes"):
        checked(vast())
    assert len(copied) < 1_000_000  # of 10**11 lists


@pytest.mark.parametrize("levels", [101, 50_000])
def test_the_reason_of_a_result_that_is_too_deep_is_short_and_names_type_and_depth(levels: int) -> None:
    value: Any = 1
    for _ in range(levels):
        value = {"key of a length that would fill the reason": [value]}
    with pytest.raises(NotSerialisable) as refused:
        checked(value)
    assert str(refused.value) == (
        "result is nested deeper than 100 levels, or contains itself: there is a dict at level 101"
    )


def test_what_a_specification_or_an_event_holds_is_bounded_before_it_is_encoded() -> None:
    assert plain_problem({"a": [1, {"b": "x"}]}) is None
    assert plain_problem({"rows": vast()}) == f"it holds more than {MOST_VALUES:,} values and characters"
    assert plain_problem(Endless([1])) is None  # it is a list of one number
    assert msgspec.json.encode(Endless([1])) == b"[1]"
