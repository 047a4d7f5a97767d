"""Progress and emitted text of running bodies, in memory, for readers and listeners."""

from __future__ import annotations

import math
import stat
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from tests.waiting import until

from callboard import Dropped, JobHandle, Notice, Progress, Retry, Runtime, Task, TaskContext, VirtualClock, Workstream
from callboard.errors import JournalError, TaskCancelled
from callboard.runtime.calling import Shown
from callboard.runtime.engines.heartbeats import MOST, ShownBuffer
from callboard.runtime.journal.sqlite.journal import SqliteJournal
from callboard.runtime.observation.live import KEPT, KeptText, TextStream, in_words
from callboard.runtime.observation.progress_file import ProgressFile, progress_file_of, read_progress, write_progress

pytestmark = pytest.mark.anyio
AT_ONCE = Retry(max_attempts=2, base_delay=0.0, jitter=0.0)


async def submit(runtime: Runtime, body: Any, **options: Any) -> JobHandle:
    return await runtime.submit(Workstream("live", tasks=[Task("t", run=body, **options)]), id="j")


async def read(stream: TextStream) -> list[str | Dropped]:
    return [part async for part in stream]


def text(parts: list[str | Dropped]) -> str:
    assert all(isinstance(part, str) for part in parts), parts
    return "".join(map(str, parts))


# -- progress ----------------------------------------------------------------------------------------------------------


async def test_progress_is_shown_while_the_attempt_runs_and_not_after_it() -> None:
    on = anyio.Event()

    async def body(task: TaskContext) -> None:
        task.progress(3, 10, "reading")
        await on.wait()

    async with Runtime() as runtime:
        job = await submit(runtime, body)
        await until(lambda: job.task("t").progress is not None)
        assert job.task("t").progress == Progress(3, 10, "reading")
        on.set()
        await job.wait()
        assert job.task("t").progress is None


async def test_a_new_attempt_begins_without_the_progress_of_the_former() -> None:
    on = anyio.Event()
    seen: list[Any] = []

    async def body(task: TaskContext) -> None:
        seen.append(job.task("t").progress)
        task.progress(task.attempt)
        if task.attempt == 1:
            raise OSError
        await on.wait()

    async with Runtime() as runtime:
        job = await submit(runtime, body, retry=AT_ONCE)
        await until(lambda: job.task("t").progress == Progress(2))
        on.set()
        await job.wait()
    assert seen == [None, None]


async def test_events_tell_few_of_many_and_always_the_last() -> None:
    clock = VirtualClock()
    on = anyio.Event()

    async def body(task: TaskContext) -> None:
        for number in range(1_000):
            task.progress(number, 1_000, f"file {number}")
        await on.wait()

    async with Runtime(clock=clock) as runtime:
        events = runtime.events(event="progress", task="t")
        job = await submit(runtime, body)
        first = await anext(events)
        await until(lambda: job.task("t").progress == Progress(999, 1_000, "file 999"))
        clock.advance(1.0)
        second = await anext(events)
        on.set()
        await job.wait()
        events.close()
        assert [event async for event in events] == []
    assert isinstance(first, Notice)
    assert isinstance(second, Notice)
    assert (first.facts["done"], second.facts["done"]) == (0, 999)
    assert second.entity_id == "j@1/t"
    assert second.text == "j@1/t: 999 of 1,000 (100 %), file 999"
    assert second.facts == {"done": 999, "of": 1_000, "text": "file 999"}


async def test_the_last_progress_is_told_before_the_end_of_an_attempt_that_was_shorter_than_the_pause() -> None:
    async def body(task: TaskContext) -> None:
        task.progress(1, 2)
        task.progress(2, 2)

    async with Runtime(clock=VirtualClock()) as runtime:
        events = runtime.events(task="t")
        job = await submit(runtime, body)
        await job.wait()
        events.close()
        rows = [event.facts["done"] if isinstance(event, Notice) else event.to_state async for event in events]
    assert rows[rows.index("running") + 1 :] == [1, 2, "validating", "completed"]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ((math.nan,), ValueError), ((math.inf,), ValueError), ((-1,), ValueError), ((10**16,), ValueError),
        ((1, -1), ValueError), ((1, math.nan), ValueError), (("1",), TypeError), ((True,), TypeError),
        ((1, "2"), TypeError), ((1, 2, b"x"), TypeError), ((1, 2, None), TypeError),
    ],
)  # fmt: skip
def test_progress_that_is_no_number_or_no_text_is_refused(given: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"the progress's `(done|of|text)`"):
        TaskContext(task="t", token=1).progress(*given)


def test_progress_in_words() -> None:
    assert in_words(Progress(3)) == "3"
    assert in_words(Progress(2.5, 10)) == "2.5 of 10 (25 %)"
    assert in_words(Progress(12, 10, "more than expected")) == "12 of 10 (100 %), more than expected"
    assert in_words(Progress(0, 0)) == "0 of 0"
    assert in_words(Progress(1, None, "\x1b[2J\u202e")) == "1, \\x1b[2J\\u202e"


async def test_a_long_text_is_cut_and_a_lone_surrogate_replaced() -> None:
    on = anyio.Event()

    async def body(task: TaskContext) -> None:
        task.progress(1, text="\ud800" + "x" * 500)
        await on.wait()

    async with Runtime() as runtime:
        job = await submit(runtime, body)
        await until(lambda: job.task("t").progress is not None)
        progress = job.task("t").progress
        assert progress is not None
        assert progress.text == "?" + "x" * 198 + "…"
        on.set()
        await job.wait()


async def test_progress_counts_as_a_heartbeat_and_raises_in_a_cancelled_thread() -> None:
    clock = VirtualClock()
    on, stopped = threading.Event(), threading.Event()

    def body(task: TaskContext) -> None:
        task.progress(1)
        on.wait()
        try:
            while True:
                task.progress(2)
        except TaskCancelled:
            stopped.set()
            raise

    async with Runtime(clock=clock) as runtime:
        job = await submit(runtime, body, heartbeat_timeout="10s", kill_grace="1h")
        await until(lambda: job.task("t").progress == Progress(1))
        clock.advance(6.0)
        on.set()
        await until(lambda: job.task("t").progress == Progress(2))
        clock.advance(6.0)
        await anyio.lowlevel.checkpoint()
        assert job.task("t").record.state == "running"
        await job.cancel()
        assert (await job.wait()).state == "cancelled"
    assert stopped.is_set()


async def test_commands_that_read_the_journal_find_it_beside_the_file_and_nothing_is_left(tmp_path: Path) -> None:
    journal, clock, on = tmp_path / "callboard.db", VirtualClock(), anyio.Event()
    begun = list[TaskContext]()

    async def body(task: TaskContext) -> None:
        begun.append(task)
        task.progress(1, 4)
        await on.wait()

    async with Runtime(SqliteJournal(journal), clock=clock) as runtime:
        runtime.task(body, name="body")
        job = await runtime.submit(Workstream("live", tasks=[Task("t", run="body"), Task("u", run="body")]), id="j")
        await until(lambda: read_progress(journal))
        assert stat.S_IMODE(progress_file_of(journal).stat().st_mode) == stat.S_IMODE(journal.stat().st_mode) & 0o666
        begun[0].progress(2, 4)
        assert all(told.done == 1 for _, told in read_progress(journal).values())  # it is written once in a second
        clock.advance(1.0)
        await until(lambda: clock.advance(1.0) or (begun[0].token, Progress(2, 4)) in read_progress(journal).values())
        assert len(read_progress(journal)) == 2
        on.set()
        await job.wait()
        await until(lambda: clock.advance(1.0) or not read_progress(journal))  # what has ended is removed
    assert not [*tmp_path.glob("*.progress*")]


async def test_progress_that_cannot_be_written_for_long_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, on, notices = VirtualClock(), anyio.Event(), list[Notice]()

    def refuses(_: ProgressFile, progress: object) -> None:
        raise JournalError(f"no rights to write {progress}")

    async def body(task: TaskContext) -> None:
        task.progress(1, 4)
        await on.wait()

    monkeypatch.setattr(ProgressFile, "write", refuses)
    monkeypatch.setattr("callboard.runtime.observation.lasting_failure.TRIES", 2)
    async with Runtime(SqliteJournal(tmp_path / "j.db"), clock=clock) as runtime:
        runtime.on_trouble = notices.append
        runtime.task(body, name="body")
        job = await runtime.submit(Workstream("live", tasks=[Task("t", run="body")]), id="j")
        await until(lambda: clock.advance(1.0) or "not_shared" in [one.event for one in notices])
        on.set()
        assert (await job.wait()).ok


async def test_what_a_killed_runtime_has_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    journal = tmp_path / "callboard.db"
    progress_file_of(journal).write_bytes(b'{"j@1/t": [7, {"done": 1}]}')
    assert read_progress(journal)
    async with Runtime(SqliteJournal(journal)):
        assert not [*tmp_path.glob("*.progress*")]


@pytest.mark.parametrize("left", [b"", b"[]", b"\xff", b'{"j@1/t": [1, {"done": "1"}]}', b"[" * 100_000, None])
def test_a_file_that_cannot_be_read_or_written_is_no_progress_and_no_error(tmp_path: Path, left: bytes | None) -> None:
    journal = tmp_path / "callboard.db"
    journal.touch()
    if left is None:
        progress_file_of(journal).mkdir()
    else:
        progress_file_of(journal).write_bytes(left)
    assert read_progress(journal) == {}
    write_progress(journal, {"j@1/t": (7, Progress(1, 2, "\udcff" if left is None else "x"))})
    assert read_progress(journal) == ({} if left is None else {"j@1/t": (7, Progress(1, 2, "x"))})


# -- emitted text ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True])
async def test_a_listener_gets_what_is_kept_and_then_what_comes_and_the_end(*, plain: bool) -> None:
    on, on_in_thread = anyio.Event(), threading.Event()

    async def on_loop(task: TaskContext) -> None:
        task.emit("Hel")
        task.emit("lo")
        await on.wait()
        task.emit(", world")

    def in_thread(task: TaskContext) -> None:
        task.emit("Hel")
        task.emit("lo")
        on_in_thread.wait()
        task.emit(", world")

    async with Runtime() as runtime:
        job = await submit(runtime, in_thread if plain else on_loop)
        early = job.task("t").stream()
        assert await anext(early) in {"Hel", "Hello"}
        late = job.task("t").stream()
        assert str(await anext(late)).startswith("Hel")
        on.set()
        on_in_thread.set()
        await job.wait()
        assert text(await read(early)).endswith(", world")
        assert text(await read(late)).endswith(", world")
        assert await read(job.task("t").stream()) == []


async def test_a_listener_of_a_task_that_has_not_begun_waits_for_its_attempt() -> None:
    on = anyio.Event()

    async def first() -> None:
        await on.wait()

    async def second(task: TaskContext) -> None:
        task.emit("after the first")

    async with Runtime() as runtime:
        tasks = [Task("first", run=first), Task("second", run=second, depends_on=["first"])]
        job = await runtime.submit(Workstream("two", tasks=tasks))
        stream = job.task("second").stream()
        on.set()
        assert text(await read(stream)) == "after the first"


async def test_the_stream_of_a_task_that_never_runs_or_emits_nothing_ends() -> None:
    on = anyio.Event()

    async def first() -> None:
        await on.wait()
        raise OSError

    async def second() -> None:
        """Never run."""

    async with Runtime() as runtime:
        tasks = [Task("first", run=first), Task("second", run=second, depends_on=["first"])]
        job = await runtime.submit(Workstream("two", tasks=tasks))
        silent, unrun = job.task("first").stream(), job.task("second").stream()
        on.set()
        assert await read(silent) == []
        assert await read(unrun) == []
        await job.wait()


async def test_a_stream_ends_with_the_attempt_and_the_next_attempt_has_its_own() -> None:
    on = anyio.Event()

    async def body(task: TaskContext) -> None:
        task.emit(f"attempt {task.attempt}")
        if task.attempt == 1:
            await on.wait()
            raise OSError
        await again.wait()

    again = anyio.Event()
    async with Runtime() as runtime:
        job = await submit(runtime, body, retry=AT_ONCE)
        stream = job.task("t").stream()
        assert await anext(stream) == "attempt 1"
        on.set()
        assert await read(stream) == []
        assert await anext(job.task("t").stream()) == "attempt 2"
        again.set()
        await job.wait()


async def test_threads_of_an_async_body_may_emit_and_nothing_is_lost_or_late() -> None:
    def work(task: TaskContext) -> None:
        for number in range(200):
            task.emit(f"{number} ")
            task.progress(number)

    async def body(task: TaskContext) -> None:
        await anyio.to_thread.run_sync(work, task)  # the body ends at once: its last texts are on their way

    async with Runtime() as runtime:
        job = await submit(runtime, body)
        assert text(await read(job.task("t").stream())).split() == [str(number) for number in range(200)]
        await job.wait()


async def test_a_listener_that_is_slow_holds_up_nobody_and_learns_what_it_missed() -> None:
    async def body(task: TaskContext) -> None:
        task.emit("begin")
        await on.wait()
        for _ in range(3):
            task.emit("x" * KEPT)
        task.emit("end")

    on = anyio.Event()
    async with Runtime() as runtime:
        job = await submit(runtime, body)
        slow = job.task("t").stream()
        assert await anext(slow) == "begin"
        on.set()
        await job.wait()
        dropped, rest = await read(slow)
    assert isinstance(dropped, Dropped)
    assert isinstance(rest, str)
    assert len(rest) == KEPT
    assert rest.endswith("xend")
    assert len("begin") + dropped.count + len(rest) == len("begin") + 3 * KEPT + len("end")


async def test_secrets_are_masked_also_over_the_bounds_of_chunks() -> None:
    async def body(task: TaskContext) -> None:
        secret = task.secrets["KEY"]
        task.progress(1, text=f"with {secret}")
        task.emit("the key is " + secret[:5])
        task.emit(secret[5:] + "!")
        await on.wait()
        task.emit(secret[:4])

    on = anyio.Event()
    async with Runtime(secrets={"KEY": "hunter-2-hunter-2"}.__getitem__) as runtime:
        job = await submit(runtime, body, secrets=["KEY"])
        stream = job.task("t").stream()
        await until(lambda: job.task("t").progress is not None)
        progress = job.task("t").progress
        assert progress is not None
        assert "hunter" not in progress.text
        on.set()
        found = text(await read(stream))
        await job.wait()
    assert found.startswith("the key is ")
    assert found.endswith("!hunt")  # the beginning of a secret is no secret
    assert "hunter" not in found


async def test_streams_end_when_the_runtime_closes() -> None:
    async def body(task: TaskContext) -> None:
        task.emit("on")
        await anyio.sleep_forever()

    async with Runtime(drain_deadline=0) as runtime:
        job = await submit(runtime, body)
        stream = job.task("t").stream()
        assert await anext(stream) == "on"
        await runtime.close()
    assert await read(stream) == []


async def test_a_closed_stream_ends_and_only_text_is_emitted() -> None:
    async def body(task: TaskContext) -> None:
        with pytest.raises(TypeError, match="what a body emits is a str"):
            task.emit(b"x")  # type: ignore[arg-type]
        task.emit("")
        await on.wait()

    on = anyio.Event()
    async with Runtime() as runtime:
        job = await submit(runtime, body)
        stream = job.task("t").stream()
        stream.close()
        assert await read(stream) == []
        on.set()
        assert (await job.wait()).state == "completed"


# -- the parts ---------------------------------------------------------------------------------------------------------


def test_kept_text_is_bounded_and_every_place_finds_its_rest() -> None:
    kept, whole = KeptText(), ""
    for number in range(3_000):
        piece = f"{number} " * (1 + number % 400)
        kept.add(piece)
        whole += piece
    assert len(whole) > 2 * KEPT
    for place in (0, 1, len(whole) - KEPT - 1, len(whole) - KEPT, len(whole) - KEPT + 1, len(whole) - 1, len(whole)):
        missing, found = kept.after(place)
        assert len(found) <= KEPT
        assert missing == max(len(whole) - KEPT - place, 0)
        assert found == whole[place + missing :]


def test_kept_text_after_a_gap_begins_behind_it() -> None:
    kept = KeptText()
    kept.add("before")
    kept.add("after", skipped=10)
    assert kept.after(6) == (10, "after")
    assert kept.after(0) == (16, "after")
    kept.add("", skipped=5)
    assert kept.after(21) == (5, "")


@pytest.mark.parametrize("sizes", [[MOST + 5], [MOST, 5], [5, MOST], [1] * 10])
def test_text_on_its_way_is_bounded_and_what_was_dropped_is_counted(sizes: list[int]) -> None:
    buffer, whole = ShownBuffer(), ""
    for number, size in enumerate(sizes):
        piece = str(number % 10) * size
        whole += piece
        assert buffer.add(Shown(Progress(number), piece)) is (number == 0)
    shown = buffer.take()
    assert shown is not None
    assert shown.progress == Progress(len(sizes) - 1)
    assert len(shown.text) <= MOST
    assert whole[shown.skipped :] == shown.text
    assert buffer.take() is None
    assert buffer.add(Shown(text="on")) is True


def test_a_gap_on_the_way_is_passed_on_with_what_stood_before_it() -> None:
    buffer = ShownBuffer()
    buffer.add(Shown(text="abc"))
    buffer.add(Shown(text="def", skipped=2))
    assert buffer.take() == Shown(None, "def", 5)
