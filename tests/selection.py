"""A pytest plugin that chooses the tests to run, and their event loops.

| command | tests | event loops |
| --- | --- | --- |
| `pytest` | all except those with a mark of `SLOW` | one for each test |
| `pytest` with files, `-k` or `-m` | the named tests | all loops of each test |
| `pytest --all` | all | all loops of each test |

With one loop for each test, the test's name decides which one: about a third of the tests run on each loop, and the
loop of a test is the same in every run.
"""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any
from zlib import crc32

import pytest

SLOW = ("laboratory", "postgres", "cluster", "board", "programs", "slow")
LOOP = "anyio_backend"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--all", action="store_true", help="each test on each event loop, and what is slow, too")


def pytest_configure(config: pytest.Config) -> None:
    """Run all named tests, if the command names any. (The processes of xdist get the result from here.)"""
    named = config.args_source is pytest.Config.ArgsSource.ARGS or config.option.keyword or config.option.markexpr
    if named:
        config.option.all = True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """The number of processes for `-n auto`: two for each processor, since tests wait for half of their time."""
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else 2 * (os.cpu_count() or 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give tests of one module to one process, which shares their fixtures; an idle process takes tests from others."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.option.dist == "load" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect slow tests, and all loops of a test except one."""
    if config.option.all:
        return
    loops: defaultdict[tuple[Any, ...], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not any(item.get_closest_marker(mark) for mark in SLOW):
            loops[_but_for_its_loop(item)].append(item)
    taken = {same[crc32(same[0].nodeid.encode()) % len(same)] for same in loops.values()}
    config.hook.pytest_deselected(items=[item for item in items if item not in taken])
    items[:] = [item for item in items if item in taken]


def _but_for_its_loop(item: pytest.Item) -> tuple[Any, ...]:
    """The key of a test without its loop: equal for tests that differ only in their loop."""
    given: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    if LOOP not in given:
        return (item.nodeid,)
    others = (f"{name}={id(value)}" for name, value in given.items() if name != LOOP)  # the same objects on each
    return (item.nodeid.partition("[")[0], *others)
