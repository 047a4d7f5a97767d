"""Fixtures for pytest, which finds them when Callboard is installed.

| fixture | meaning |
| --- | --- |
| `simulation` | a `Simulation`, closed after the test |
| `virtual_runtime` | makes `VirtualRuntime`s: `async with virtual_runtime(...) as runtime` |

Rules
-----
- Both take their seed from `--callboard-seed N` (0 unless given), and their settings from
  `@pytest.mark.callboard(...)`; those of `virtual_runtime` also from its call.
- A test that fails shows the seed and the end of the trace.
- `--callboard-coverage` reports which rows of the application's machines the tests took (`coverage.py`).
- pytest imports this file at each start, so it imports no other module of Callboard before a fixture or the report is
  used.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .simulation import Simulation
    from .virtual import VirtualRuntime

_TOLD = pytest.StashKey[list[Any]]()
_NONE: list[Any] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for the seed and the coverage report."""
    group = parser.getgroup("callboard")
    group.addoption(
        "--callboard-seed", type=int, default=0, metavar="N", help="the seed of the simulations that fixtures make"
    )
    group.addoption(
        "--callboard-coverage", action="store_true", help="report which rows of your machines the tests took"
    )
    group.addoption(
        "--callboard-coverage-fail",
        action="store_true",
        help="the same, and fail if a row was taken by no test: for runs of all tests",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and begin the coverage report if requested."""
    config.addinivalue_line("markers", "callboard(**settings): the settings of the simulation that the test is given")
    if config.getoption("--callboard-coverage") or config.getoption("--callboard-coverage-fail"):
        from .coverage import CoveragePlugin  # noqa: PLC0415 - most runs of pytest do not need it

        config.pluginmanager.register(CoveragePlugin(config), "callboard-coverage")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the traces of a failed test's simulations."""
    report = yield
    if report.failed:
        report.sections += [("callboard", simulated.told()) for simulated in item.stash.get(_TOLD, _NONE)]
    return report


def _settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    marker = request.node.get_closest_marker("callboard")
    return {"seed": request.config.getoption("--callboard-seed"), **({} if marker is None else marker.kwargs)}


def _watch(request: pytest.FixtureRequest, simulated: Any) -> None:
    request.node.stash.setdefault(_TOLD, []).append(simulated)


@pytest.fixture
def simulation(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    """A runtime in virtual time, without an event loop: `callboard.testing.Simulation`."""
    from .simulation import Simulation  # noqa: PLC0415 - most runs of pytest do not need it

    with Simulation(**_settings(request)) as made:
        _watch(request, made)
        yield made


@pytest.fixture
def virtual_runtime(request: pytest.FixtureRequest) -> Callable[..., VirtualRuntime]:
    """Makes a runtime in virtual time on the test's own event loop: `callboard.testing.VirtualRuntime`."""
    from .virtual import VirtualRuntime  # noqa: PLC0415 - most runs of pytest do not need it

    def make(*args: Any, **settings: Any) -> VirtualRuntime:
        made = VirtualRuntime(*args, **{**_settings(request), **settings})
        _watch(request, made)
        return made

    return make
