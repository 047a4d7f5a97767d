"""Moved modules are found: in the table for people, and by the names in older journals and programs."""

from __future__ import annotations

import gzip
import re
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import anyio
import pytest

from callboard import Fire, Machine, Runtime
from callboard.machines import APPROVAL, BREAKER, JOB, TASK, WORKER, WORKSTREAM
from callboard.machines.builtin.table import MACHINES
from callboard.runtime.functions.import_paths import BodyNotFound, find, path_of
from callboard.runtime.functions.moved import MOVED

OLDER_JOURNALS = Path(__file__).parent / "older"
PAGE = Path(__file__).parents[1] / "docs" / "moved.md"
ROWS = re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
STILL_THERE = {"runtime.otel", "runtime.prometheus"}
"""Modules that the documents have named. Their old names work for one release."""
OLDER = [
    ("callboard.actors.approval:APPROVAL", APPROVAL),
    ("callboard.actors.attempts:TASK", TASK),
    ("callboard.actors.breaker:BREAKER", BREAKER),
    ("callboard.actors.job:JOB", JOB),
    ("callboard.actors.stopping:WORKSTREAM", WORKSTREAM),
    ("callboard.actors.submissions:JOB", JOB),
    ("callboard.actors.worker:WORKER", WORKER),
    ("callboard.machines.approval:APPROVAL", APPROVAL),
    ("callboard.machines.breaker:BREAKER", BREAKER),
    ("callboard.machines.job:JOB", JOB),
    ("callboard.machines.own:TASK", TASK),
    ("callboard.machines.task:TASK", TASK),
    ("callboard.machines.worker:WORKER", WORKER),
    ("callboard.machines.workstream:WORKSTREAM", WORKSTREAM),
    ("callboard.machines:TASK", TASK),
    ("callboard.runtime.handles:WORKSTREAM", WORKSTREAM),
    ("callboard.runtime.web.allowed:TASK", TASK),
    ("callboard.runtime.web.jobs:JOB", JOB),
]
"""The paths that 5c07c26 wrote, by the modules that were loaded: the first of those that held the machine."""


def test_the_table_says_what_is_where() -> None:
    assert len(ROWS) > 200
    for was, now in ROWS:
        assert find_spec(f"callboard.{now}") is not None, now
        package = any(other.startswith(f"{was}.") for _, other in ROWS)  # a folder of that name may be there
        assert was in STILL_THERE or package or _found(was) is None, was


def _found(module: str) -> object:
    try:
        return find_spec(f"callboard.{module}")
    except ModuleNotFoundError:  # not even its folder
        return None


@pytest.mark.parametrize(("path", "machine"), OLDER, ids=[path for path, _ in OLDER])
def test_a_machine_of_an_older_journal_is_found(path: str, machine: Machine) -> None:
    if path.startswith("callboard.runtime.web."):
        pytest.importorskip("litestar", reason="the extra `web` is not installed")
    assert find(path) is machine


def test_each_guard_that_a_journal_may_name_is_found_by_its_older_module() -> None:
    was = {now: was for was, now in MOVED.items()}
    named = [path_of(row.guard) for machine in MACHINES.values() for row in machine.transitions if row.guard]
    assert named
    for path in named:
        module, _, name = path.partition(":")
        assert path_of(find(f"{was[module]}:{name}")) == path  # type: ignore[arg-type]


def test_the_places_for_journals_are_those_of_the_table() -> None:
    table = {f"callboard.{was}": f"callboard.{now}" for was, now in ROWS}
    assert {was: table[was] for was in MOVED} == dict(MOVED)


def test_what_is_nowhere_is_told_by_its_own_name() -> None:
    with pytest.raises(BodyNotFound, match=r"there is no 'NOTHING' in module 'callboard\.machines\.builtin\.task'"):
        find("callboard.machines.task:NOTHING")
    with pytest.raises(BodyNotFound, match=r"there is no module 'callboard\.machines\.nothing'"):
        find("callboard.machines.nothing:TASK")


@pytest.mark.anyio
async def test_machines_and_guards_of_the_library_that_an_older_version_kept_go_on(tmp_path: Path) -> None:
    journal = tmp_path / "callboard.db"
    journal.write_bytes(gzip.decompress((OLDER_JOURNALS / "library.sqlite.gz").read_bytes()))
    with anyio.fail_after(300):
        async with Runtime(journal) as runtime:
            held, shelf = await runtime.machine_of("held"), await runtime.machine_of("shelf")
            assert (await held.ask(Fire("allocate"))).to_state == "running"
            assert (await shelf.ask(Fire("put"))).to_state == "free"
            assert (await shelf.ask(Fire("fill"))).to_state == "full"


@pytest.mark.parametrize(
    ("older", "name", "extra"),
    [("otel", "Tracing", "opentelemetry"), ("otel", "observe", "opentelemetry"),
     ("prometheus", "RuntimeCollector", "prometheus_client")],
)  # fmt: skip
def test_what_users_were_told_to_import_is_there_and_warns(
    older: str, name: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(extra)
    monkeypatch.delitem(sys.modules, f"callboard.runtime.{older}", raising=False)  # it warns at its first import
    with pytest.warns(DeprecationWarning, match=f"is callboard.{older} now"):
        was = import_module(f"callboard.runtime.{older}")
    assert getattr(was, name) is getattr(import_module(f"callboard.{older}"), name)


def test_a_log_is_held_against_machines_by_the_name_that_users_were_told() -> None:
    from callboard.machines.audit import audit_lines

    assert audit_lines([]) == []
    assert find("callboard.machines.audit:audit_lines") is audit_lines
