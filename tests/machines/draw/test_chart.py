"""A machine drawn as SVG: complete, well-formed, inside its page, and always the same."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from callboard.machines import Machine, State, Transition
from callboard.machines.builtin.table import MACHINES
from callboard.machines.draw.chart import COLOURS, svg
from callboard.machines.draw.diagram import label
from callboard.machines.lifecycles import PUBLISHED

SVG = "{http://www.w3.org/2000/svg}"
DRAWN = {**MACHINES, **PUBLISHED}


def page(machine: Machine) -> ElementTree.Element:
    return ElementTree.fromstring(svg(machine))


@pytest.mark.parametrize("name", DRAWN)
def test_every_state_and_every_row_is_there_inside_the_page(name: str) -> None:
    machine = DRAWN[name]
    root = page(machine)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    texts = [text.text for text in root.iter(f"{SVG}text")]
    for row in machine.transitions:
        assert label(machine, row) in texts
    for state in machine.states:
        assert texts.count(str(state)) >= 2  # above its line, and below it
    for text in root.iter(f"{SVG}text"):
        half = len(text.text or "") * 7 / 2
        assert half <= float(text.attrib["x"]) <= width - half
        assert 0 < float(text.attrib["y"]) < height
    arrows = [path for path in root.iter(f"{SVG}path") if path.attrib.get("fill") == "none"]
    assert len(arrows) == len(machine.transitions)
    assert [path.attrib["stroke"] for path in arrows] == [COLOURS[row.severity] for row in machine.transitions]
    assert [row.forced for row in machine.transitions] == ["stroke-dasharray" in path.attrib for path in arrows]


@pytest.mark.parametrize("name", DRAWN)
def test_no_two_labels_share_a_line(name: str) -> None:
    labels = [label(DRAWN[name], row) for row in DRAWN[name].transitions]
    lines = [text.attrib["y"] for text in page(DRAWN[name]).iter(f"{SVG}text") if text.text in labels]
    assert len(set(lines)) == len(labels)


def test_the_same_machine_gives_the_same_text() -> None:
    assert svg(DRAWN["task"]) == svg(DRAWN["task"]) == DRAWN["task"].svg()


def test_a_terminal_state_has_a_double_frame() -> None:
    door = Machine("door", "open", (State("open"), State("shut", terminal=True)), (Transition("open", "shut", "shut"),))
    frames = [frame for frame in page(door).iter(f"{SVG}rect") if "rx" in frame.attrib]
    assert len(frames) == 2 * (1 + 2)


def test_names_that_are_markup_are_written_as_text() -> None:
    odd = Machine("<a> & 'b'", "<s>", (State("<s>", bounded_by="-"),), (Transition("<s>", '&"e"', "<s>"),))
    root = page(odd)
    assert root.findtext(f"{SVG}title") == "<a> & 'b'"
    assert {text.text for text in root.iter(f"{SVG}text")} == {"<s>", '&"e"'}


def test_a_machine_without_rows_is_drawn_too() -> None:
    assert page(Machine("still", "here", (State("here", terminal=True),), ())).tag == f"{SVG}svg"
