"""Texts and numbers of a subclass of str, int or float: each is taken as its plain value, or refused.

No medium knows such a class. A journal that held its repr could not be opened again, and a value that raises would end
the writer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from tests.reliability.hostile import guests

from callboard import Approval, MachineActor, Runtime, Task, TaskContext, Worker, Workstream
from callboard.actors.records.entities import WorkerRecord
from callboard.actors.user_code import plain, written
from callboard.machines.lifecycles.execution import EXECUTION
from callboard.runtime.journal.batch import encode_readable, lines_of
from callboard.runtime.journal.contract import Entry
from callboard.runtime.journal.writer import Writer

pytestmark = [pytest.mark.anyio, pytest.mark.laboratory]


class Nice(str):
    """A text like those of frameworks: safe for HTML, translated, or of a database."""

    __slots__ = ()


class Mute(str):
    """A text whose repr and str raise."""

    __slots__ = ()

    def __repr__(self) -> str:
        raise guests.Bare("in __repr__")

    __str__ = __repr__

    def __iter__(self) -> Iterator[str]:
        raise guests.Bare("in __iter__")


class Whole(int):
    """An integer like those of number libraries."""


class Odd(int):
    """Cannot be compared, or shown."""

    def _raise(self, *_: object) -> Any:
        raise guests.Bare("odd")

    __eq__ = __lt__ = __gt__ = __le__ = __ge__ = __hash__ = __repr__ = __add__ = __radd__ = __index__ = _raise


class Real(float):
    """A float like numpy's."""


def work() -> int:
    return 1


async def endless() -> None:
    await anyio.sleep_forever()


def held(**more: Any) -> Workstream:
    return Workstream("w", tasks=[Task("a", run=endless), Task("b", run=work, hold=Approval(people=2))], **more)


Say = Callable[[Runtime, Any], Awaitable[object]]


async def as_an_id(runtime: Runtime, text: Any) -> None:
    job = await runtime.submit(held(), id=text)
    assert type(job.id) is str
    assert (await runtime.submit(held(), id=text)).id == job.id == (await runtime.job(text)).id


async def as_who_submits(runtime: Runtime, text: Any) -> None:
    assert type((await runtime.submit(held(), by=text)).record.by) is str


async def as_who_decides(runtime: Runtime, text: Any) -> None:
    job = await runtime.submit(held())
    await job.task("b").approve(by=text, reason=text)
    assert [(type(one.by), type(one.reason)) for one in job.task("b").record.decisions] == [(str, str)]


async def as_a_reason(runtime: Runtime, text: Any) -> None:
    job = await runtime.submit(held())
    await job.pause(text, by=text)
    await job.resume(text)
    await job.task("b").cancel(text)


async def as_a_key(runtime: Runtime, text: Any) -> None:
    job = await runtime.submit(held())
    await job.pause(request_id=text)
    await job.pause(request_id=text)


async def as_a_machine(runtime: Runtime, text: Any) -> None:
    ref = runtime.spawn(MachineActor(EXECUTION), name=text)
    await ref.fire("ENQUEUE", request_id="k")
    assert type(runtime.machine(text).name) is type((await runtime.machine_of(text)).name) is str


async def as_a_worker(runtime: Runtime, text: Any) -> None:
    await runtime.start_worker(Worker(text, engine="thread", capacity=1))
    assert runtime.worker(text).capacity == 1


async def says(task: TaskContext) -> int:
    kind: type[str] = KINDS[task.args["kind"]]
    text = kind("a")
    await task.publish(text, 1)
    task.emit(text)
    task.progress(1, 2, text)
    await task.send(task.job_id, text, 2)
    return await task.receive(text)


async def as_what_a_body_says(runtime: Runtime, text: Any) -> None:
    job = await runtime.submit(Workstream("w", tasks=[Task("a", run=says, args={"kind": type(text).__name__})]))
    listening = job.task("a").stream()
    assert (await job.wait()).results == {"a": 2}
    assert [chunk async for chunk in listening] == ["a"]
    assert await job.published() == {"a": 1}


SAID: tuple[Say, ...] = (
    as_an_id, as_who_submits, as_who_decides, as_a_reason, as_a_key, as_a_machine, as_a_worker, as_what_a_body_says,
)  # fmt: skip


async def goes_on(journal: Path) -> None:
    """Open the journal again, and run a job in it."""
    async with Runtime(journal, drain_deadline=0) as runtime:
        job = await runtime.submit(Workstream("last", tasks=[Task("a", run=work)]))
        assert (await job.wait()).ok


KINDS: dict[str, type[str]] = {"Nice": Nice, "Mute": Mute, "Text": guests.Text}


@pytest.mark.parametrize("kind", KINDS.values())
@pytest.mark.parametrize("say", SAID, ids=lambda say: say.__name__)
async def test_a_text_of_a_class_of_its_own_is_the_text(say: Say, kind: type[str], tmp_path: Path) -> None:
    with anyio.fail_after(300):
        async with Runtime(tmp_path / "state.db", drain_deadline=0) as runtime:
            await say(runtime, kind("a"))
            assert runtime.health.ok
        await goes_on(tmp_path / "state.db")


@pytest.mark.parametrize("kind", [Whole, Odd])
async def test_a_number_of_a_class_of_its_own_leaves_the_journal_one_that_can_be_opened(
    kind: type[int], tmp_path: Path
) -> None:
    workers = [Worker("loop", engine="loop"), Worker("threads", engine="thread", capacity=kind(3))]
    with anyio.fail_after(300):
        async with Runtime(tmp_path / "state.db", drain_deadline=0, workers=workers) as runtime:
            await runtime.start_worker(Worker("more", engine="thread", capacity=kind(2)))
            assert [(one.name, one.capacity) for one in runtime.workers()] == [("loop", 1), ("threads", 3), ("more", 2)]
        await goes_on(tmp_path / "state.db")


@pytest.mark.parametrize("value", [Real(5), Whole(5)], ids=["float", "int"])
async def test_a_specification_with_one_says_which_class_and_what_to_do(value: Any) -> None:
    async with Runtime() as runtime:
        with pytest.raises(TypeError, match=rf"cannot hold a .*{type(value).__name__}: give (int|float)\(...\) of it"):
            await runtime.submit(Workstream("w", tasks=[Task("a", run=work, timeout=value)]))


async def test_the_name_of_a_function_is_a_text() -> None:
    async with Runtime() as runtime:
        for name in (1, Whole(1), guests.NoTruth(), b"a"):
            with pytest.raises(TypeError, match="the name of a function is a str"):
                runtime.task(work, name=name)  # type: ignore[call-overload]


AT_HEART: dict[str, tuple[Callable[[], Any], object]] = {
    "nice": (lambda: Nice("a"), "a"),
    "mute": (lambda: Mute("a"), "a"),
    "text": (lambda: guests.Text("a"), "a"),
    "whole": (lambda: Whole(2), 2),
    "odd": (lambda: Odd(2), 2),
    "real": (lambda: Real(2), 2.0),
}


@pytest.mark.parametrize("which", AT_HEART)
def test_at_heart_it_is_plain_and_so_it_is_written(which: str) -> None:
    make, base = AT_HEART[which]
    found = plain(make())
    assert (type(found), found) == (type(base), base)
    assert written(make()) == base
    assert msgspec.json.decode(encode_readable({"it": make()})) == {"it": base}


def test_what_is_plain_or_no_text_stays() -> None:
    for value in ("a", 1, 1.5, True, None, [1], guests.NoRepr):
        assert plain(value) is value
    assert written(guests.NoRepr()) == "a NoRepr"


def test_a_record_that_holds_one_is_read_back() -> None:
    record = WorkerRecord(
        key=1, id="q#1", name=Nice("q"), state="idle", engine="thread", capacity=Whole(3), created_at=0.0
    )
    (line,) = lines_of([record])
    assert msgspec.json.decode(line, type=WorkerRecord).capacity == 3


class Medium:
    """Raises an error that is no Exception, once."""

    name, answers = "the medium", "it"

    def __init__(self) -> None:
        self.commits = 0

    def open(self) -> None: ...
    def close(self) -> None: ...

    def has(self, batch: object) -> bool:
        return False

    def commit(self, batch: object, away: Callable[[], None]) -> None:
        self.commits += 1
        if self.commits == 1:
            raise SystemExit("by a value of somebody's")

    def failed(self, error: Exception) -> str:
        return str(error)


def test_no_error_of_any_kind_ends_the_writer() -> None:
    told: list[str | None] = []
    medium = Medium()
    tell = lambda: told.append(writer.health.reason)  # noqa: E731 - of a name that is made in the next line
    writer = Writer(medium, "test", changed=tell, after_commit=None, pause=lambda _: None)
    writer.start()
    writer.hand(1, [Entry([], [])])
    assert writer.stop(20)
    assert (medium.commits, writer.durable) == (2, 1)
    assert told == ["cannot write the medium: SystemExit: by a value of somebody's", None]
