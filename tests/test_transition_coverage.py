"""The plugin that records which rows of the machines the tests take."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests import transition_coverage as plugin
from tests.transition_coverage import Coverage, read_pending

from callboard.machines import JOB, TASK, Machine, State, Transition

pytest_plugins = ["pytester"]

DOOR = Machine(
    "door",
    "open",
    (State("open", bounded_by="someone"), State("shut", terminal=True)),
    (Transition("open", "shut", "shut"), Transition("open", "knock", "open")),
)
SHUT, KNOCK = DOOR.transitions


def test_what_is_taken_is_counted_and_what_is_not_is_found() -> None:
    coverage = Coverage(machines=[DOOR])
    assert list(coverage.findings()) == [
        "not taken by any test: door: open shut shut",
        "not taken by any test: door: open knock open",
    ]
    coverage.observe(DOOR, SHUT)
    coverage.observe(JOB, JOB.transitions[0])  # is not asked about here
    assert list(coverage.findings()) == ["not taken by any test: door: open knock open"]
    assert list(coverage.table())[1].split() == ["door", "1", "2", "0", "1"]


def test_the_list_of_pending_rows_only_shrinks() -> None:
    coverage = Coverage(["door: open shut shut", "door: open kick shut"], [DOOR])
    coverage.observe(DOOR, KNOCK)
    assert list(coverage.findings()) == ["listed as pending, but there is no such row: door: open kick shut"]
    coverage.observe(DOOR, SHUT)
    assert "taken, but still listed as pending: door: open shut shut" in set(coverage.findings())


def test_rows_that_differ_in_their_guard_are_told_apart() -> None:
    names = Coverage().rows(TASK)
    assert len(names) == len(set(names))
    assert "task: running fail [was probe may retry] circuit_open" in names
    assert "task: running fail [parks when exhausted] circuit_open" in names


def test_the_committed_list_names_rows_and_says_why() -> None:
    text = plugin.PENDING.read_text(encoding="utf-8")
    coverage = Coverage(read_pending(text))
    assert not [finding for finding in coverage.findings() if "no such row" in finding]
    assert all(line.partition("#")[2].strip() for line in text.splitlines() if line.strip())


def test_what_processes_of_xdist_took_is_added() -> None:
    config = SimpleNamespace(stash=pytest.Stash())
    taken = [plugin.name(JOB, row) for row in JOB.transitions[:3]]
    for some in (taken[:2], taken[1:]):
        plugin.pytest_testnodedown(SimpleNamespace(config=config, workeroutput={"transitions": some}))
    plugin.pytest_testnodedown(SimpleNamespace(config=config))  # one that has died
    assert config.stash[plugin.COVERAGE].taken == set(taken)


SUITE = """
from callboard.machines import JOB
from callboard.actors.kernel import observing

def test_one():
    observing.observe_transition(JOB, JOB.transitions[0])
"""


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a suite of one test under the plugin, with a hook that nothing else calls."""
    observing = ModuleType("callboard.actors.kernel.observing")
    observing.observe_transition = None  # type: ignore[attr-defined]
    kernel = ModuleType("callboard.actors.kernel")
    kernel.observing = observing  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "callboard.actors.kernel", kernel)
    monkeypatch.setitem(sys.modules, "callboard.actors.kernel.observing", observing)

    def run(pending: list[str], *options: str) -> pytest.RunResult:
        listed = pytester.path / "pending.txt"
        listed.write_text("\n".join(pending))
        monkeypatch.setattr(plugin, "PENDING", Path(listed))
        pytester.makepyfile(test_suite=SUITE)
        result = pytester.runpytest_inprocess("-q", *options, plugins=[plugin])
        assert observing.observe_transition is None
        return result

    return run


def every_row_but(row: Transition) -> list[str]:
    coverage = Coverage()
    taken = plugin.name(JOB, row)
    return [name for machine in plugin.MACHINES for name in coverage.rows(machine) if name != taken]


def test_a_run_reports_and_does_not_fail_unless_asked(inner: Any) -> None:
    result = inner([])
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*transitions taken through an actor*", "job * 1 * 12 * 0 * 11"])
    result.stdout.no_fnmatch_line("*not taken by any test*")


def test_a_missing_row_fails_the_run(inner: Any) -> None:
    result = inner([], "--transition-coverage-fail")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["not taken by any test: job: submitted reject failed"])


def test_a_whole_run_passes(inner: Any) -> None:
    result = inner(every_row_but(JOB.transitions[0]), "--transition-coverage-fail")
    assert result.ret == pytest.ExitCode.OK


def test_a_pending_row_that_is_taken_fails_the_run(inner: Any) -> None:
    result = inner([*every_row_but(JOB.transitions[1]), "job: submitted reject failed"], "--transition-coverage-fail")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["taken, but still listed as pending: job: submitted validate pending"])
