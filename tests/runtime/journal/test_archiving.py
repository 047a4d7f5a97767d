"""Jobs with the setting `archive` are moved out of the journal when the runtime is left."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from callboard import Hook, Notice, Runtime, Task, TaskContext, Worker, Workstream
from callboard.actors.records.step import StepRecord
from callboard.errors import JobExists
from callboard.machines.audit.audit import audit_lines
from callboard.runtime.cli.archive import archive
from callboard.runtime.journal.archive import Archive
from callboard.runtime.journal.sqlite.reader import SqliteReader
from callboard.runtime.specfiles.workstream_file import load

from .samples import entry, step

pytestmark = pytest.mark.anyio


async def one() -> int:
    return 1


async def raises() -> None:
    raise ValueError("not today")


async def endless() -> None:
    await anyio.sleep_forever()


async def submits(task: TaskContext) -> None:
    await (await task.submit(Workstream("inner", tasks=[Task("b", run=one)]), name="child")).wait()


def flow(body: Any = one, **more: Any) -> Workstream:
    return Workstream("w", tasks=[Task("a", run=body, **more)], archive=True)


class Folder:
    """The paths of a journal and of its archive, and the notices of its runtimes."""

    def __init__(self, folder: Path) -> None:
        self.journal = folder / "state.db"
        self.archive = folder / "state.db.archive"
        self.troubles: list[Notice] = []

    def runtime(self, **options: Any) -> Runtime:
        runtime = Runtime(self.journal, **options)
        runtime.on_trouble = self.troubles.append
        return runtime

    def kept(self) -> list[str]:
        with closing(SqliteReader(self.journal)) as reader:
            return [job.id for job in reversed(reader.jobs())]

    def moved(self) -> dict[str, str]:
        """The state of each moved job by its file's name, once the file is known to be whole."""
        found: dict[str, str] = {}
        for file in sorted(self.archive.iterdir()) if self.archive.exists() else ():
            lines = file.read_bytes().splitlines(keepends=True)
            assert audit_lines(lines) == []
            found[file.name] = json.loads(lines[0])["archive"]["job"]["state"]
        return found


@pytest.fixture
def place(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


async def test_finished_failed_and_cancelled_jobs_are_moved_when_the_runtime_is_left(place: Folder) -> None:
    async with place.runtime() as runtime:
        for job_id, body in (("good", one), ("bad", raises), ("stopped", endless)):
            job = await runtime.submit(flow(body), id=job_id)
            if job_id == "stopped":
                await job.cancel()
            await job.wait()
        other = await runtime.submit(Workstream("w", tasks=[Task("a", run=one)]), id="stays")
        await other.wait()
        assert (await runtime.job("good")).record.state == "completed"  # until it is left, it is as any other
        assert place.moved() == {}
    assert place.moved() == {"bad.jsonl": "failed", "good.jsonl": "completed", "stopped.jsonl": "cancelled"}
    assert (place.kept(), place.troubles) == (["stays"], [])
    async with place.runtime() as runtime:
        with pytest.raises(JobExists, match="archived in"):
            await runtime.submit(flow(), id="good")
        with pytest.raises(JobExists, match="archived in"):  # its history is not here, so it cannot continue
            await runtime.submit(flow(), id="good", existing="replace_ended")


async def test_a_job_that_has_not_ended_is_moved_when_it_has(place: Folder) -> None:
    async with place.runtime(workers=[], drain_deadline=0) as runtime:
        await runtime.submit(flow(), id="later")
    assert (place.kept(), place.moved()) == (["later"], {})
    async with place.runtime() as runtime:
        await runtime.recovered[0].wait()
    assert (place.kept(), place.moved()) == ([], {"later.jsonl": "completed"})


async def test_what_a_killed_runtime_did_not_move_the_next_one_does(place: Folder, tmp_path: Path) -> None:
    killed = tmp_path / "killed.db"
    async with place.runtime() as runtime:
        await (await runtime.submit(flow(), id="done")).wait()
        with (
            closing(sqlite3.connect(place.journal)) as now,
            closing(sqlite3.connect(killed)) as to,
        ):
            now.backup(to)  # as it is when the process is killed here
    async with Runtime(killed):
        pass
    assert [file.name for file in (tmp_path / "killed.db.archive").iterdir()] == ["done.jsonl"]


async def test_a_hook_that_is_still_to_run_holds_a_job_back(place: Folder) -> None:
    hook = Hook(run=endless, timeout=3600)
    async with place.runtime(drain_deadline=0) as runtime:
        await (await runtime.submit(flow(on_completed=[hook]), id="a")).wait()
    assert (place.kept(), place.moved(), place.troubles) == (["a"], {}, [])
    with closing(sqlite3.connect(place.journal, isolation_level=None)) as connection:
        assert connection.execute("DELETE FROM outbox_rows").rowcount == 1  # it is done with
    async with place.runtime():
        pass
    assert (place.kept(), place.moved()) == ([], {"a.jsonl": "completed"})


async def test_a_hook_that_ran_meanwhile_is_waited_for(place: Folder) -> None:
    async with place.runtime() as runtime:
        await (await runtime.submit(flow(on_completed=[Hook(run=one)]), id="a")).wait()
    assert (place.kept(), place.moved()) == ([], {"a.jsonl": "completed"})


async def test_children_go_with_their_parent(place: Folder) -> None:
    async with place.runtime() as runtime:
        await (await runtime.submit(flow(submits), id="parent")).wait()
    assert (place.kept(), place.moved()) == (
        [],
        {"parent+a+child.jsonl": "completed", "parent.jsonl": "completed"},
    )


async def test_what_cannot_be_moved_stays_and_is_told(place: Folder) -> None:
    place.archive.touch()  # where the folder should be
    async with place.runtime() as runtime:
        await (await runtime.submit(flow(), id="a")).wait()
        await (await runtime.submit(flow(), id="b")).wait()
    (told,) = place.troubles
    assert (told.event, told.severity, told.facts["jobs"]) == ("not_archived", "warning", ["a", "b"])
    assert told.text.startswith("2 ended jobs could not be archived, and will be the next time: Cannot make the folder")
    assert place.kept() == ["a", "b"]
    place.archive.unlink()
    async with place.runtime():
        pass
    assert (place.kept(), list(place.moved())) == ([], ["a.jsonl", "b.jsonl"])


async def test_a_file_that_cannot_be_written_keeps_its_job_only(place: Folder) -> None:
    (place.archive / ".a.jsonl.new").mkdir(parents=True)
    async with place.runtime() as runtime:
        await (await runtime.submit(flow(), id="a")).wait()
        await (await runtime.submit(flow(), id="b")).wait()
    assert (place.kept(), [told.facts["jobs"] for told in place.troubles]) == (["a"], [["a"]])
    assert (place.archive / "b.jsonl").exists()


async def test_what_a_log_has_not_got_yet_is_not_moved_until_it_has(place: Folder, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    async with place.runtime(jsonl=log) as runtime:
        await (await runtime.submit(flow(), id="a")).wait()
        log.rename(tmp_path / "aside")  # it goes on there, as on a disk that keeps no more of it
        log.write_bytes(b"".join((tmp_path / "aside").read_bytes().splitlines(keepends=True)[:3]))
        runtime._life.wiring.log = None
    (told,) = place.troubles
    assert told.event == "not_archived"
    assert told.facts["jobs"] == ["a"]
    assert f"the log {log} has only the transitions up to number 3" in told.text
    assert (place.kept(), place.moved()) == (["a"], {})
    async with place.runtime():  # one that keeps no log: that is no reason for a gap in it
        pass
    assert (place.kept(), len(place.troubles)) == (["a"], 2)
    async with place.runtime(jsonl=log):
        pass
    assert (place.kept(), place.moved()) == ([], {"a.jsonl": "completed"})
    with log.open("rb") as lines:
        assert audit_lines(lines) == []


async def test_a_log_that_is_written_late_is_waited_for(place: Folder, tmp_path: Path) -> None:
    async with place.runtime(jsonl=tmp_path / "log.jsonl") as runtime:
        assert runtime._life.wiring.log is not None
        runtime._services.host.journal._writer._after_commit = lambda rows: None  # type: ignore[attr-defined]
        await (await runtime.submit(flow(), id="a")).wait()
    assert (place.kept(), place.troubles) == ([], [])
    with (tmp_path / "log.jsonl").open("rb") as lines:
        assert audit_lines(lines) == []


@pytest.mark.parametrize("kind", ["gone", "no log"])
async def test_a_log_that_is_gone_holds_nothing_back_and_one_that_is_none_does(
    place: Folder, tmp_path: Path, kind: str
) -> None:
    async with place.runtime(jsonl=tmp_path / "log.jsonl") as runtime:
        await (await runtime.submit(Workstream("w", tasks=[Task("b", run=one)]), id="b")).wait()
    (tmp_path / "log.jsonl").unlink()
    if kind == "no log":
        (tmp_path / "log.jsonl").write_text("something else\n")
    async with place.runtime() as runtime:
        await (await runtime.submit(flow(), id="a")).wait()
    assert place.kept() == (["b"] if kind == "gone" else ["b", "a"])
    assert [told.facts["jobs"] for told in place.troubles] == ([] if kind == "gone" else [["a"]])


async def test_a_journal_that_is_moved_with_its_log_finds_it(place: Folder, tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    async with Folder(tmp_path / "before").runtime(jsonl=tmp_path / "before" / "log.jsonl"):
        pass
    (tmp_path / "before").rename(tmp_path / "after")
    with closing(SqliteReader(tmp_path / "after" / "state.db")) as reader:
        assert reader.log() == tmp_path / "after" / "log.jsonl"
    async with place.runtime(jsonl=tmp_path / "after" / "another.jsonl"):
        pass
    with closing(SqliteReader(place.journal)) as reader:
        assert reader.log() == tmp_path / "after" / "another.jsonl"


async def test_a_further_run_is_archived_too(place: Folder) -> None:
    async with place.runtime() as runtime:
        job = await runtime.submit(flow(raises), id="a")
        await job.wait()
        await (await job.retry()).wait()
    assert (place.kept(), place.moved()) == ([], {"a.jsonl": "failed"})


async def test_the_steps_of_its_flows_go_with_a_job_also_dropped_ones(place: Folder) -> None:
    kept: dict[str, list[StepRecord]] = {}
    async with place.runtime() as runtime:
        for job_id, workstream in (("goes", flow()), ("stays", Workstream("w", tasks=[Task("a", run=one)]))):
            await (await runtime.submit(workstream, id=job_id)).wait()
            (task,) = runtime.journal.reader.tasks(runtime.journal.reader.workstreams(job_id)[0].key)
            first = 1_000 * task.key
            kept[job_id] = [step(first, task), step(first + 1, task, dropped=True), step(first + 2, task)]
            runtime.journal.append(entry(*kept[job_id]))
    assert (place.kept(), place.moved()) == (["stays"], {"goes.jsonl": "completed"})
    top = msgspec.json.decode((place.archive / "goes.jsonl").read_bytes().splitlines()[0], type=dict[str, Archive])
    assert top["archive"].steps == kept["goes"]
    with closing(SqliteReader(place.journal)) as reader:
        assert reader.steps(kept["goes"][0].flow) == []
        assert reader.steps(kept["stays"][0].flow) == [kept["stays"][0], kept["stays"][2]]
    with closing(sqlite3.connect(place.journal)) as connection:
        assert connection.execute("SELECT count(*) FROM step_records").fetchone() == (3,)


async def test_the_messages_to_it_go_with_a_job(place: Folder) -> None:
    async with place.runtime() as runtime:
        for job_id, workstream in (("goes", flow()), ("stays", Workstream("w", tasks=[Task("a", run=one)]))):
            job = await runtime.submit(workstream, id=job_id)
            await job.send("never received", 1)
            await job.wait()
    top = msgspec.json.decode((place.archive / "goes.jsonl").read_bytes().splitlines()[0], type=dict[str, Archive])
    assert [(message.name, message.value) for message in top["archive"].messages] == [("never received", 1)]
    with closing(sqlite3.connect(place.journal)) as connection:
        assert connection.execute("SELECT job_id, state FROM task_messages").fetchall() == [("stays", "unread")]


def test_a_file_of_an_older_version_is_archived_and_an_older_archive_is_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with Runtime(tmp_path / "state.db") as runtime:
            await (await runtime.submit(Workstream("w", tasks=[Task("a", run=one)]), id="j")).wait()

    anyio.run(main)
    with closing(sqlite3.connect(tmp_path / "state.db")) as connection:
        connection.executescript("DROP VIEW task_steps; DROP TABLE step_records; PRAGMA user_version = 9;")
        connection.executescript("DROP VIEW task_messages; DROP TABLE message_records;")
    archive(older_than="0s", journal=str(tmp_path / "state.db"))
    top = (tmp_path / "state.db.archive" / "j.jsonl").read_bytes().splitlines()[0]
    older = top.replace(b',"steps":[]', b"")
    assert older != top
    for line in (top, older):
        read = msgspec.json.decode(line, type=dict[str, Archive])["archive"]
        assert (read.job.id, read.steps) == ("j", [])


async def test_a_volatile_journal_ignores_it() -> None:
    async with Runtime(workers=[Worker("loop", engine="loop")]) as runtime:
        assert (await (await runtime.submit(flow())).wait()).state == "completed"


def test_a_file_says_it_at_its_top(tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    file.write_text('archive = true\n[[tasks]]\nname = "a"\ncommand = ["true"]\n')
    assert load(file).workstream.archive


def test_what_is_to_be_archived_is_found_without_looking_at_other_jobs(tmp_path: Path) -> None:
    async def main() -> None:
        async with Runtime(tmp_path / "state.db"):
            pass

    anyio.run(main)
    with closing(sqlite3.connect(tmp_path / "state.db")) as connection:
        where = "WHERE NOT living AND json_extract(record, '$.archive')"
        plan = connection.execute(f"EXPLAIN QUERY PLAN SELECT record FROM job_records {where} ORDER BY key").fetchall()
    assert "jobs_to_archive" in plan[0][3]
