"""A pytest plugin that chooses the tests to run, and their event loops.

| command | tests | event loops |
| --- | --- | --- |
| `pytest` | all except those with a mark of `SLOW` | one for each test |
| `pytest` with files, `-k` or `-m` | the named tests | all loops of each test |
| `pytest --all` | all | all loops of each test |
| `pytest --one-loop` with files, `-k` or `-m` | the named tests | one for each test |

With one loop for each test, the test's name decides which one: about a third of the tests run on each loop, and the
loop of a test is the same in every run.

`--shard 1/2` runs half of the named tests, and `--shard 2/2` the other half; a test with a mark of `SLOW` is in both.
The test's name decides, too, without its loop: a test is in the same shard on each loop. On trio all tests of a shard
run; of the tests without a loop half, and on asyncio and on uvloop a quarter, the same quarter on both.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from typing import Any
from zlib import crc32

import pytest

SLOW = ("laboratory", "postgres", "cluster", "board", "programs", "slow")
LOOP = "anyio_backend"
_LOOPS = re.compile(r"\b(asyncio|uvloop|trio)\b")
_ONE_OF = {"trio": 1, "": 2, "asyncio": 4, "uvloop": 4}  # of so many tests of a shard, one runs: by its loop


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--all", action="store_true", help="each test on each event loop, and what is slow, too")
    parser.addoption("--one-loop", action="store_true", help="each of the named tests on one event loop")
    parser.addoption("--shard", metavar="N/M", help="of the tests that are not slow, run only the Nth of M parts")


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
    """Deselect slow tests, and all loops of a test except one; or other shards."""
    if config.option.shard:
        _keep(config, items, _in_shard(config.option.shard, items))
    if config.option.all and not config.option.one_loop:
        return
    loops: defaultdict[tuple[Any, ...], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if config.option.all or not _is_slow(item):
            loops[_but_for_its_loop(item)].append(item)
    taken = {same[crc32(same[0].nodeid.encode()) % len(same)] for same in loops.values()}
    _keep(config, items, taken)


def _keep(config: pytest.Config, items: list[pytest.Item], taken: set[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if item not in taken])
    items[:] = [item for item in items if item in taken]


def _in_shard(shard: str, items: list[pytest.Item]) -> set[pytest.Item]:
    number, _, parts = shard.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise pytest.UsageError(f"--shard {shard}: it is like 1/2, the first of two")
    taken = set[pytest.Item]()
    for item in items:
        sample, part = divmod(crc32(_LOOPS.sub("", item.nodeid).encode()), int(parts))
        loop = _LOOPS.search(item.nodeid)
        one_of = _ONE_OF[loop[0] if loop else ""]
        if _is_slow(item) or (part == int(number) - 1 and sample % one_of == 0):
            taken.add(item)
    return taken


def _is_slow(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(mark) for mark in SLOW)


def _but_for_its_loop(item: pytest.Item) -> tuple[Any, ...]:
    """The key of a test without its loop: equal for tests that differ only in their loop."""
    given: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    if LOOP not in given:
        return (item.nodeid,)
    others = (f"{name}={id(value)}" for name, value in given.items() if name != LOOP)  # the same objects on each
    return (item.nodeid.partition("[")[0], *others)
