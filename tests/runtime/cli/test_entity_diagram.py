"""`callboard diagram --entity`: the path of an entity through its machine, from a journal that a real run wrote."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from callboard.machines import TASK, Transition
from callboard.machines.draw.chart import svg
from callboard.machines.draw.diagram import ASIDE, PASSED, PRESENT, dot, mermaid
from callboard.machines.draw.diagram import Path as Way

from .conftest import CommandResult

FILE = """\
name = "a"
[[tasks]]
name = "one"
command = "test -e ok || { touch ok; exit 1; }"
shell = true
retry = { max_attempts = 3, base_delay = 0, max_delay = 0 }
tool = "sh"
"""


@pytest.fixture
def ran(folder: Path, cli: Callable[..., CommandResult]) -> Callable[..., CommandResult]:
    """The command line, after a job J1 with a task that was tried twice."""
    (folder / "a.toml").write_text(FILE, encoding="utf-8")
    assert cli("run", "a.toml", "--id", "J1", "--plain").code == 0
    return cli


def test_the_rows_that_a_task_took_are_told_with_their_times(ran: Callable[..., CommandResult]) -> None:
    result = ran("diagram", "--entity", "J1/one")
    lines = result.out.splitlines()
    assert lines[0] == "stateDiagram-v2"
    time = r"\d\d\.\d\d\.\d\d"
    assert any(re.fullmatch(rf"    queued --> running: start at {time}, {time}", line) for line in lines)
    assert any(re.fullmatch(rf"    running --> retrying: fail \[may retry\] at {time}", line) for line in lines)
    assert "    queued --> cancelled: cancel" in lines
    assert "    class completed present" in lines
    assert {"    class retrying passed", "    class queued passed"} <= set(lines)
    assert not any(line.startswith("    class held") for line in lines)


def test_every_kind_of_entity_has_a_path(ran: Callable[..., CommandResult]) -> None:
    assert "class completed present" in ran("diagram", "--entity", "J1").out
    assert "class completed present" in ran("diagram", "--entity", "J1@1").out
    assert "class completed present" in ran("diagram", "--entity", "J1@1/one").out
    assert "class closed present" in ran("diagram", "--entity", "sh").out
    workers = re.findall(r'"name":"([\w-]+)"', ran("workers", "list", "--json").out)
    assert all("present" in ran("diagram", "--entity", name).out for name in workers)


def test_it_is_drawn_for_graphviz_and_as_svg_too(ran: Callable[..., CommandResult]) -> None:
    output = ran("diagram", "--entity", "J1/one", "--format", "dot").out
    assert f'"completed" [peripheries=2, style="rounded,filled", fillcolor="{PRESENT}"];' in output
    assert f'"retrying" [style="rounded,filled", fillcolor="{PASSED}"];' in output
    assert f'[label="hold", color="{ASIDE}", fontcolor="{ASIDE}"];' in output
    output = ran("diagram", "--entity", "J1/one", "--format", "svg").out
    ElementTree.fromstring(output)
    assert (output.count(f'fill="{PRESENT}"'), output.count(f'fill="{PASSED}"')) == (4, 10)
    assert re.search(r"start at \d\d:\d\d:\d\d", output)


def test_what_is_not_there_and_what_is_asked_wrongly_is_told(ran: Callable[..., CommandResult]) -> None:
    assert "There is no job 'nope'" in ran("diagram", "--entity", "nope").err
    assert "did you mean 'one'?" in ran("diagram", "--entity", "J1/on").err
    assert "There is no worker 'J1'" in ran("diagram", "--entity", "worker:J1").err
    for wrong in ((), ("task", "--entity", "J1")):
        result = ran("diagram", *wrong)
        assert result.code == 2
        assert "Name either a machine" in result.err


def test_a_job_and_a_breaker_of_one_name_are_told_apart(folder: Path, cli: Callable[..., CommandResult]) -> None:
    (folder / "a.toml").write_text(FILE, encoding="utf-8")
    cli("run", "a.toml", "--id", "sh", "--plain")
    result = cli("diagram", "--entity", "sh")
    assert result.code == 2
    assert "Use one of: job:sh, breaker:sh." in result.err
    assert "class closed present" in cli("diagram", "--entity", "breaker:sh").out
    assert "class completed present" in cli("diagram", "--entity", "job:sh").out


def test_a_row_that_was_taken_often_tells_the_first_and_the_last_time() -> None:
    way = Way([("queued", "start", "running", f"10:00:0{second}") for second in range(5)], "running")
    row = Transition("queued", "start", "running")
    assert way.times(row) == "10:00:00 ... 10:00:04 (5 times)"
    assert "start at 10.00.00 ... 10.00.04 (5 times)" in mermaid(TASK, way)


def test_without_a_path_a_machine_is_drawn_as_ever() -> None:
    assert (mermaid(TASK), dot(TASK), svg(TASK)) == (TASK.mermaid(), TASK.dot(), TASK.svg())
    assert "classDef" not in mermaid(TASK)


def test_an_entity_whose_machine_is_not_known_here_is_drawn_from_its_path(
    ran: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callboard.runtime.cli.entity.MACHINES", {})
    output = ran("diagram", "--entity", "J1/one").out
    assert "pending --> queued: enqueue at" in output
    assert "held" not in output
    assert "class completed present" in output
