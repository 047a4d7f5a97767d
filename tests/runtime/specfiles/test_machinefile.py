"""Machine files: their content, and all findings about them, each with its line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from callboard import Fire, MachineActor, Runtime, load_machine
from callboard.errors import SpecificationError

GOOD = """\
name = "door"
initial = "shut"

[facts]
limit = "90s"
opened = 0
locked_until = 2030-01-31T09:00:00Z

[states]
shut = { bounded_by = "who comes" }
open = {}
gone = { terminal = true }

[[transitions]]
source = "shut"
event = "push"
target = "open"

[[transitions]]
source = ["shut", "open"]
event = "remove"
target = "gone"
severity = "warning"

[[transitions]]
source = "open"
event = "close"
target = "shut"

[[timed]]
state = "open"
event = "close"
after = "limit"
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    monkeypatch.setattr(sys, "path", list(sys.path))

    def written(text: str) -> Path:
        path = tmp_path / "door.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return written


def test_a_file_declares_a_machine_and_its_facts(write: Callable[[str], Path]) -> None:
    door = load_machine(write(GOOD))
    assert isinstance(door, MachineActor)
    assert (door.machine.name, door.machine.initial, len(door.machine.transitions)) == ("door", "shut", 4)
    assert door.machine.check() == []
    assert (door.facts.limit, door.facts.opened, door.facts.locked_until) == ("90s", 0, "2030-01-31T09:00:00+00:00")
    assert door.with_facts(limit=5).facts.limit == 5


WRONG = {
    'target = "open"': ('target = "opne"', "line 17: transitions[0].target: there is no state 'opne' (did you mean"),
    'source = "open"': ('source = "opn"', "there is no state 'opn' (did you mean 'open'?)"),
    'event = "close"\nafter': ('event = "clsoe"\nafter', "line 32: timed[0].event: state 'open' knows no event"),
    'after = "limit"': ('after = "limits"', "line 33: timed[0].after: there is no fact 'limits'"),
    'limit = "90s"': ('limit = "soon"', "line 5: facts.limit: 'soon' is not a duration"),
    "terminal": ("terminl", "line 12: states.gone.terminl: unknown key 'terminl' (did you mean 'terminal'?)"),
    'initial = "shut"': ('initial = "shot"', "line 2: initial: there is no state 'shot' (did you mean 'shut'?)"),
    '{ bounded_by = "who comes" }': ("{}", "line 10: states.shut: `bounded_by` names nothing that ends"),
    'severity = "warning"': ('severity = "warn"', "line 23: transitions[1].severity: must be one of"),
    'target = "gone"': ("", "transitions[1].target: 'target' is missing"),
    'name = "door"': ('name = "door"\non_event = "doors:count"', "on_event: 'doors:count': there is no module 'doors'"),
    'event = "push"': ('event = "push"\nguard = "enough"', "'enough' is no function (write it as \"module:function\")"),
}  # fmt: skip


@pytest.mark.parametrize("right", WRONG)
def test_what_is_wrong_is_told_with_its_line_and_a_suggestion(write: Callable[[str], Path], right: str) -> None:
    wrong, told = WRONG[right]
    assert right in GOOD
    with pytest.raises(SpecificationError) as error:
        load_machine(write(GOOD.replace(right, wrong, 1)))
    assert told in str(error.value), str(error.value)


def test_an_empty_name_is_told_where_it_stands(write: Callable[[str], Path]) -> None:
    path = write(
        'name = "x"\ninitial = "new"\n[states]\nnew = { bounded_by = "it" }\n"" = { terminal = true }\n'
        '[[transitions]]\nsource = "new"\nevent = " "\ntarget = ""\n'
    )
    with pytest.raises(SpecificationError) as refusal:
        load_machine(path)
    assert [(one.line, one.message.partition(":")[0]) for one in refusal.value.findings] == [
        (5, "'' is no name"),
        (8, "' ' is no name"),
    ]


def test_all_that_is_wrong_is_told_at_once(write: Callable[[str], Path]) -> None:
    text = GOOD
    for right in ('target = "open"', 'after = "limit"', "terminal", '{ bounded_by = "who comes" }'):
        text = text.replace(right, WRONG[right][0], 1)
    with pytest.raises(SpecificationError) as error:
        load_machine(write(text))
    assert len(error.value.findings) >= 4


@pytest.mark.parametrize(
    "text", ["", "= 3", "name = 3", "states = []\ninitial = 'a'\ntransitions = []", "[facts]\nx = [1"]
)
def test_a_file_that_is_none_is_refused(write: Callable[[str], Path], text: str) -> None:
    with pytest.raises(SpecificationError):
        load_machine(write(text))


def test_what_check_finds_of_a_whole_table_is_told_where_it_stands(write: Callable[[str], Path]) -> None:
    lost = GOOD.replace("[states]\n", '[states]\nattic = { bounded_by = "nobody" }\n')
    leaving = GOOD.replace('source = ["shut", "open"]', 'source = ["shut", "open", "gone"]')
    for text, told in (
        (lost, "line 10: states.attic: no path from shut reaches attic"),
        (leaving, "leaves a terminal"),
    ):
        with pytest.raises(SpecificationError) as error:
            load_machine(write(text))
        assert told in str(error.value), str(error.value)


@pytest.mark.anyio
async def test_a_declared_machine_runs(write: Callable[[str], Path]) -> None:
    async with Runtime(workers=(), drain_deadline=0) as runtime:
        door = runtime.spawn(load_machine(write(GOOD)).with_facts(limit=5), name="front")
        await door.ask(Fire("push", facts={"opened": 1}))
        assert (door.state, door.facts.opened, [*door.record.due]) == ("open", 1, ["close"])
