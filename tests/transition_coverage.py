"""A pytest plugin that reports the rows of machines that tests have taken through an actor.

Rules
-----
- It counts rows of the runtime's own machines and of the published ones, taken by an actor that runs by the lifecycle
  or by a `MachineActor`.
- Only transitions that actors fire count, observed by the hook `observe_transition`. Asking a table directly does not.
- A row that no test takes is a finding. Rows for later work are pending: they are listed in
  `tests/pending_transitions.txt`, one name in a line, with the reason after a `#`.
- A pending row that is taken, and a pending name that is no row, are findings, too: so the list only becomes shorter.

The report is printed if any row was taken. `--transition-coverage-fail` is for runs of the whole suite: it prints the
findings, and the run fails if there are any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from callboard.machines import APPROVAL, BREAKER, JOB, TASK, WORKER, WORKSTREAM, Machine, Transition
from callboard.machines.lifecycles import PUBLISHED
from callboard.machines.rows import title

MACHINES = (JOB, WORKSTREAM, TASK, APPROVAL, WORKER, BREAKER, *PUBLISHED.values())
PENDING = Path(__file__).with_name("pending_transitions.txt")


def name(machine: Machine, row: Transition) -> str:
    """The name of a row in the report and in the list of pending rows."""
    return f"{machine.name}: {title(row)}"


def read_pending(text: str) -> list[str]:
    """The names in a list of pending rows."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


class Coverage:
    """The rows that were taken, compared with all rows and the pending ones."""

    def __init__(self, pending: Iterable[str] = (), machines: Iterable[Machine] = MACHINES) -> None:
        self.machines = tuple(machines)
        self.pending = set(pending)
        self.taken: set[str] = set()

    def observe(self, machine: Machine, row: Transition) -> None:
        """Count a row taken by an actor. Machines of applications are not counted."""
        if machine in self.machines:
            self.taken.add(name(machine, row))

    def rows(self, machine: Machine) -> list[str]:
        """The names of a machine's rows."""
        return [name(machine, row) for row in machine.transitions]

    def table(self) -> Iterator[str]:
        """One line per machine: how many rows were taken, are pending, are missing."""
        width = max(len(machine.name) for machine in self.machines) + 1
        yield f"{'machine':{width}}{'taken':>7}{'rows':>7}{'pending':>9}{'missing':>9}"
        for machine in self.machines:
            rows = set(self.rows(machine))
            taken, pending = rows & self.taken, rows & self.pending
            missing = rows - taken - pending
            yield f"{machine.name:{width}}{len(taken):7}{len(rows):7}{len(pending):9}{len(missing):9}"

    def findings(self) -> Iterator[str]:
        """The findings, row by row."""
        every = [row for machine in self.machines for row in self.rows(machine)]
        yield from (f"not taken by any test: {row}" for row in every if row not in self.taken | self.pending)
        yield from (f"taken, but still listed as pending: {row}" for row in every if row in self.taken & self.pending)
        yield from (f"listed as pending, but there is no such row: {row}" for row in sorted(self.pending - set(every)))


def observing_module() -> ModuleType | None:
    """The module that has the hook, if it can be imported: a run of the machines' tests alone does not need it."""
    try:
        return import_module("callboard.actors.kernel.observing")
    except ImportError:
        return None


COVERAGE = pytest.StashKey[Coverage]()


def _all_rows() -> Coverage:
    return Coverage(read_pending(PENDING.read_text(encoding="utf-8")))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--transition-coverage-fail",
        action="store_true",
        help="fail if a row of a machine is neither taken through an actor nor pending, or both",
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start to observe, once the tests have imported the modules under test."""
    coverage = session.config.stash.setdefault(COVERAGE, _all_rows())
    if session.items and (module := observing_module()) is not None:
        module.observe_transition = coverage.observe  # type: ignore[attr-defined]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop to observe, and set the exit code of the run."""
    coverage = session.config.stash.get(COVERAGE, None)
    if coverage is None:
        return
    if (module := observing_module()) is not None:
        module.observe_transition = None  # type: ignore[attr-defined]
    if (told := getattr(session.config, "workeroutput", None)) is not None:  # a process of xdist: its parent decides
        told["transitions"] = sorted(coverage.taken)
        return
    failed = session.config.getoption("transition_coverage_fail") and any(coverage.findings())
    if failed and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the rows that the tests of a process of xdist have taken."""
    coverage: Coverage = node.config.stash.setdefault(COVERAGE, _all_rows())
    coverage.taken.update(getattr(node, "workeroutput", {}).get("transitions", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table, and the findings if these fail the run."""
    coverage = config.stash.get(COVERAGE, None)
    failing = config.getoption("transition_coverage_fail")
    if coverage is None or not (coverage.taken or failing):
        return
    terminalreporter.section("transitions taken through an actor")
    for line in coverage.table():
        terminalreporter.write_line(line)
    if failing:
        for line in coverage.findings():
            terminalreporter.write_line(line)
