"""Notices are kept in the journal: problems can be looked up later, at a low cost however often they come."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard import Actor, Hook, Notice, Runtime, Supervision, Task, VirtualClock, Workstream
from callboard.actors.messages.notices import NoticeRecord
from callboard.runtime.journal.sqlite.reader import SqliteReader
from callboard.runtime.observation import kept_notices
from callboard.runtime.observation.kept_notices import MOST, PERIOD, WRITE_EVERY, KeptNotices


class Book:
    """The written notices, by a clock that does not advance."""

    def __init__(self, *, opened: bool = True) -> None:
        self.clock = VirtualClock()
        self.written: list[NoticeRecord] = []
        self.writes = 0
        self.kept = KeptNotices(self.clock.monotonic)
        self._key = 0
        if opened:
            self.open()

    def open(self) -> None:
        self.kept.open(self._write, self._number, "n")

    def _number(self) -> int:
        self._key += 1
        return self._key

    def _write(self, records: list[NoticeRecord]) -> None:
        self.writes += 1
        self.written += records

    def take(
        self, entity: str = "echo", event: str = "actor_failed", error: Exception | None = None, **facts: Any
    ) -> bool:
        return self.kept.take(
            Notice(
                event=event, severity="error", text=f"{entity} failed", at=self.clock.time(), kind="actor",
                entity_id=entity, error=error, facts={"message": "str", "traceback": "Traceback", **facts},
            )
        )  # fmt: skip

    @property
    def rows(self) -> dict[int, NoticeRecord]:
        return {record.key: record for record in self.written}


def test_what_fails_many_times_a_second_is_one_row_with_a_count() -> None:
    book = Book()
    assert book.take(error=ValueError())
    assert book.kept.look() is None  # all is written
    for _ in range(10_000):
        assert not book.take(error=ValueError())
    assert book.writes == 1
    assert book.kept.look() == WRITE_EVERY
    book.clock.advance(WRITE_EVERY)
    assert book.kept.look() is None
    assert book.writes == 2
    (row,) = book.rows.values()
    assert (row.count, row.error, row.node) == (10_001, "ValueError", "n")
    assert (row.message, row.traceback) == ("str", "Traceback")
    book.take(error=ValueError())
    assert book.kept.look() == WRITE_EVERY
    book.kept.close()
    assert [row.count for row in book.rows.values()] == [10_002]
    assert not book.take()
    assert len(book.rows) == 1


def test_other_events_entities_and_errors_have_rows_of_their_own_and_so_has_what_comes_later() -> None:
    book = Book()
    for error in (ValueError(), KeyError(), None):
        book.take(error=error)
    book.take("other")
    book.take(event="actor_stopped")
    assert len(book.rows) == 5
    for setting in ("breaker", "max_parallel", "breaker"):  # of one tool: the later one does not replace the other
        book.take("model", "tool_settings_differ", setting=setting)
    assert len(book.rows) == 7
    book.take()
    book.clock.advance(PERIOD)
    book.take()
    assert len(book.rows) == 8
    assert sum(row.count for row in book.rows.values()) == 10  # with the counts of the period before


def test_of_very_many_different_ones_the_rest_is_gathered_by_its_event() -> None:
    book = Book()
    for number in range(2 * MOST):
        book.take(f"actor-{number}")
    book.take("actor-0")
    book.take("last", "actor_stopped")
    book.clock.advance(WRITE_EVERY)
    book.kept.look()
    gathered = [row for row in book.rows.values() if row.others]
    assert [(row.event, row.count) for row in gathered] == [("actor_failed", MOST), ("actor_stopped", 1)]
    assert len(book.rows) == MOST + 2
    assert book.rows[1].count == 2


def test_what_came_before_the_journal_was_open_is_written_then() -> None:
    book = Book(opened=False)
    book.take()
    book.take("other")
    assert (book.written, book.kept.look()) == ([], None)
    book.open()
    assert [row.entity_id for row in book.written] == ["echo", "other"]


def test_a_row_holds_no_error() -> None:
    book = Book()
    book.take(error=ValueError())
    assert not any(isinstance(one, Notice) for one in _held(book.kept))


def _held(kept: KeptNotices) -> list[Any]:
    return [getattr(row, name) for row in kept._rows.values() for name in row.__struct_fields__]


# -- in a runtime


async def one() -> int:
    return 1


async def falls() -> None:
    raise ValueError(f"no such {'channel'}")


async def tells_a_secret() -> None:
    raise ValueError("the key is opensesame")


class Echo(Actor):
    def receive(self, message: Any, ctx: Any) -> Any:
        raise KeyError(message)


def rows_of(path: Path) -> list[NoticeRecord]:
    with closing(SqliteReader(path)) as reader:
        return reader.notices(limit=1_000)


@pytest.mark.anyio
async def test_what_failed_is_in_the_file_after_the_runtime_was_left_and_for_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    hooked = Workstream("w", tasks=[Task("a", run=one, on_completed=[Hook(run=falls)])])
    with anyio.fail_after(300):
        async with Runtime(path, supervision=Supervision(backoff_min=0)) as runtime:
            runtime.spawn(Echo, name="echo").tell("x")
            assert (await (await runtime.submit(hooked, id="j")).wait()).ok
        failed, restarted, hook = sorted(rows_of(path), key=lambda row: (row.kind, row.event))
        assert (failed.event, failed.entity_id) == ("actor_failed", "echo")
        assert (failed.error, failed.message) == ("KeyError", "str")
        assert "raise KeyError(message)" in str(failed.traceback)
        assert restarted.event == "actor_restarted"
        assert (hook.event, hook.entity_id, hook.job_id, hook.error) == ("hook_failed", "j@1/a", "j", "ValueError")
        assert "in falls" in str(hook.traceback)
        assert "no such channel" in hook.text
        async with Runtime(path) as runtime:
            assert {row.event for row in await runtime.kept_notices()} == {
                "actor_failed",
                "actor_restarted",
                "hook_failed",
            }
            assert [row.event for row in await runtime.kept_notices(about="j")] == ["hook_failed"]
            runtime._services.host.notice("only_said", "info", "nothing is wrong")
            runtime._services.host.notice("odd", "warning", "something is", number=7)
            assert [row.event for row in await runtime.kept_notices(limit=1)] == ["odd"]
            assert "only_said" not in {row.event for row in await runtime.kept_notices()}


@pytest.mark.anyio
async def test_an_actor_that_fails_again_and_again_costs_a_few_commits(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    clock = VirtualClock()
    with anyio.fail_after(300):
        async with Runtime(path, clock=clock, supervision=None, workers=[]) as runtime:
            runtime._services.host.notices.on_trouble = lambda _: None
            before = runtime.journal.committed.commits
            for _ in range(2_000):
                runtime._services.host.notice("actor_failed", "error", "echo failed", kind="actor", entity_id="echo")
            assert len(await runtime.kept_notices()) == 1
            assert runtime.journal.committed.commits - before <= 2
    (row,) = rows_of(path)
    assert row.count == 2_000


@pytest.mark.anyio
async def test_secrets_are_masked_in_what_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    task = Task("a", run=one, secrets=["KEY"], on_completed=[Hook(run=tells_a_secret)])
    with anyio.fail_after(300):
        async with Runtime(path, secrets={"KEY": "opensesame"}) as runtime:
            assert (await (await runtime.submit(Workstream("w", tasks=[task]))).wait()).ok
            await runtime._services.hooks_over()
    (row,) = rows_of(path)
    assert row.event == "hook_failed"
    assert "opensesame" not in repr(row)
    assert b"opensesame" not in b"".join(file.read_bytes() for file in tmp_path.glob("state.db*"))


@pytest.mark.anyio
@pytest.mark.parametrize("event", sorted(kept_notices.NOT_KEPT))
async def test_what_says_that_the_journal_is_out_of_reach_is_not_written_to_it(event: str, tmp_path: Path) -> None:
    with anyio.fail_after(300):
        async with Runtime(tmp_path / "state.db") as runtime:
            tail = runtime.journal.tail
            runtime._services.host.notice(event, "error", "the database does not answer")
            assert runtime.journal.tail == tail
            assert runtime._services.host.notices.counts[event] == 1


@pytest.mark.anyio
async def test_a_runtime_that_breaks_has_told_its_journal_by_what(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with anyio.fail_after(300):
        runtime = Runtime(path)
        runtime.on_trouble = lambda _: None
        with pytest.raises(Exception, match="broken on purpose"):
            async with runtime:
                runtime._life.broke(ValueError("broken on purpose"))
                await anyio.sleep_forever()
    assert ["broken on purpose" in row.text for row in rows_of(path) if row.event == "runtime_broken"] == [True]


KILLED = """
import anyio, os, signal, sys
from callboard import Actor, Runtime

class Echo(Actor):
    def receive(self, message, ctx):
        raise KeyError(message)

async def main():
    async with Runtime(sys.argv[1], workers=[]) as runtime:
        runtime.spawn(Echo, name="echo").tell("x")
        while not await runtime.kept_notices(about="echo"):
            await anyio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

anyio.run(main)
"""


def test_what_failed_is_there_after_the_program_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    program = subprocess.run([sys.executable, "-c", KILLED, str(path)], capture_output=True, timeout=600, check=False)
    assert program.returncode == -signal.SIGKILL, program.stderr
    assert {"actor_failed"} <= {row.event for row in rows_of(path)}
