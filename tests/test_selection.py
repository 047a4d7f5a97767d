"""The plugin that selects tests."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

SUITE = """
import pytest

@pytest.fixture(params=["asyncio", "uvloop", "trio"])
def anyio_backend(request): return request.param

@pytest.mark.parametrize("number", range(20))
def test_on_loops(anyio_backend, number): pass

def test_on_none(): pass

@pytest.mark.parametrize("number", range(8))
def test_without(number): pass

@pytest.mark.laboratory
def test_slow(anyio_backend): pass
"""


@pytest.fixture
def inner(pytester: pytest.Pytester) -> pytest.Pytester:
    """A suite under the plugin."""
    unused = "-p no:schemathesis -p no:faker"  # importing them takes seconds
    pytester.makeini(f"[pytest]\nmarkers =\n laboratory\n slow\ntestpaths = .\naddopts = --strict-markers {unused}")
    pytester.makepyfile(test_suite=SUITE)
    pytester.makeconftest(Path(__file__).with_name("selection.py").read_text(encoding="utf-8"))
    return pytester


def names(inner: pytest.Pytester, *options: str) -> list[str]:
    told = inner.runpytest_inprocess("--collect-only", "-q", "-p", "no:cacheprovider", *options).outlines
    return [line.partition("::")[2] for line in told if "::" in line]


def test_alone_each_test_has_one_loop_and_what_is_slow_is_left_out(inner: pytest.Pytester) -> None:
    found = names(inner)
    assert len(found) == 20 + 1 + 8
    assert "test_on_none" in found
    assert {name.partition("[")[2].partition("-")[0] for name in found if "-" in name} == {"asyncio", "uvloop", "trio"}
    assert len({name.partition("-")[2] for name in found if "-" in name}) == 20
    assert names(inner) == found


@pytest.mark.parametrize(
    "option", [["--all"], ["test_suite.py"], ["-k", "test"], ["-m", "laboratory or not laboratory"]]
)
def test_who_names_tests_or_wants_all_has_all_of_them(inner: pytest.Pytester, option: list[str]) -> None:
    assert len(names(inner, *option)) == 3 * 20 + 1 + 8 + 3


def test_one_loop_runs_each_of_the_named_tests_once(inner: pytest.Pytester) -> None:
    assert len(names(inner, "--one-loop", "-m", "laboratory or not laboratory")) == 20 + 1 + 8 + 1
    assert len(names(inner, "--one-loop", "-m", "laboratory")) == 1


def test_shards_share_the_tests_and_each_has_what_is_slow(inner: pytest.Pytester) -> None:
    first, second = (names(inner, "--all", "--shard", shard) for shard in ("1/2", "2/2"))
    slow = {name for name in first if name.startswith("test_slow")}
    assert len(slow) == 3
    assert set(first) & set(second) == slow
    assert min(len(first), len(second)) > 3 + 4
    every = {*first, *second}
    assert 0 < len([name for name in every if name.startswith("test_without")]) < 8
    assert len([name for name in every if "[trio-" in name]) == 20
    for found in (first, second):  # a test with trio alone, or with all its loops
        numbers = [name.partition("-")[2] for name in found if "-" in name]
        assert {numbers.count(number) for number in numbers} == {1, 3}


@pytest.mark.parametrize("shard", ["3/2", "0/2", "x", "1/", "-1/2"])
def test_a_shard_that_does_not_exist_is_refused(inner: pytest.Pytester, shard: str) -> None:
    told = inner.runpytest_inprocess("--collect-only", f"--shard={shard}")
    assert told.ret == pytest.ExitCode.USAGE_ERROR
    told.stderr.fnmatch_lines([f"*--shard {shard}: it is like 1/2*"])
