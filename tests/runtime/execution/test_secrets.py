"""Secrets: given to the tasks that name them, and masked in everything that is kept or shown."""

from __future__ import annotations

import base64
import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import hypothesis
import hypothesis.strategies as st
import pytest
import structlog

from callboard import Check, Condition, Hook, Notice, Retry, Runtime, Task, TaskContext, TaskRecord, Worker, Workstream
from callboard.errors import SpecificationError
from callboard.runtime.cli import main
from callboard.runtime.text.secrets import MASK, Mask

pytestmark = pytest.mark.anyio

VALUE = 'p/ss "wört"+7'
HIDDEN = "p/ss"  # no part of it may be anywhere


async def plain(task: TaskContext) -> str:
    return f"it is {task.secrets['KEY']}"


def raises(task: TaskContext) -> None:
    raise ValueError(f"not with {task.secrets['KEY']} " + "x" * 1_950 + task.secrets["KEY"])


async def beats(task: TaskContext) -> dict[str, Any]:
    task.heartbeat({"at": task.secrets["KEY"]})
    task.checkpoint({task.secrets["KEY"]: [task.secrets["KEY"], task.saved]})
    raise ConnectionError(base64.b64encode(("user:" + task.secrets["KEY"]).encode()).decode())


def knows() -> None:
    raise RuntimeError(os.environ.get("KEY", ""))


PROGRAM = """
import json, os, sys, time
value = os.environ['KEY'].encode()
print('whole', os.environ['KEY'], flush=True)
print(json.dumps(os.environ['KEY']), flush=True)
for part in (value[:5], value[5:]):
    os.write(1, part)
    time.sleep(0.05)
os.write(1, b' end ' + value)
sys.exit(int(sys.argv[1]))
"""


def command(code: int) -> list[str]:
    return [sys.executable, "-c", PROGRAM, str(code)]


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as captured:
        yield captured
    structlog.reset_defaults()


def saved(record: TaskRecord) -> Any:
    return record.checkpoint


def files(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path, path.read_bytes()


async def test_a_secret_is_nowhere_but_with_who_was_handed_it(
    tmp_path: Path, lines: list[Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KEY", VALUE)
    spec = Workstream(
        "w",
        secrets=["KEY"],
        tasks=[
            Task("plain", run=plain),
            Task("raises", run=raises, optional=True),
            Task("beats", run=beats, optional=True, retry=Retry(max_attempts=2, base_delay=0.0)),
            Task("knows", run=knows, optional=True, on_failed=[Hook(run=raises), Hook(command=command(1))]),
            Task("good", command=command(0)),
            Task("bad", command=command(3), optional=True),
            Task("checked", run=plain, checks=[Check(command=command(1))], optional=True),
            Task("asked", run=plain, condition=Condition(command=[*command(0)[:-1], "-9"]), optional=True),
            Task("reads", run=says, after=["plain", "good"]),
        ],
    )
    notices: list[Notice] = []
    runtime = Runtime(tmp_path / "state.db", jsonl=tmp_path / "log.jsonl")
    runtime.on_trouble = notices.append
    events = runtime.events()
    with anyio.fail_after(300):
        async with runtime:
            job = await runtime.submit(spec, id="j")
            outcome = await job.wait()
            await runtime.drain(10)
    assert outcome.results["plain"] == f"it is {MASK}"
    assert outcome.results["good"]["output"].startswith(f'whole {MASK}\n"{MASK}"\n{MASK} end {MASK}')
    assert f"not with {MASK}" in str(outcome.tasks["raises"].last_error)
    assert str(outcome.tasks["beats"].error_category) == "transient"
    assert saved(outcome.tasks["beats"]) == {MASK: [MASK, {MASK: [MASK, None]}]}
    assert {notice.event for notice in notices} == {"secret_in_result", "hook_failed"}
    rows = [repr(event) for event in [*notices, *[event async for event in events], outcome, *lines]]
    assert not [text for text in rows if HIDDEN in text or "cC9zcyAi" in text]
    kept = dict(files(tmp_path))
    assert len(kept) == 5
    for part in (HIDDEN.encode(), b'rt\\"+7', base64.b64encode(VALUE.encode())[4:12]):
        assert not [path for path, data in kept.items() if part in data]
    for words in (["status", "j"], ["history", "j"]):
        monkeypatch.setattr(sys, "argv", ["callboard", *words, "--journal", str(tmp_path / "state.db")])
        with pytest.raises(SystemExit, match="0"):
            main()
    shown = capfd.readouterr()
    assert MASK in shown.out
    assert HIDDEN not in shown.out + shown.err


MODULE = """
import os

def told(task):
    task.checkpoint({"at": task.secrets["KEY"]})
    print("before", task.secrets["KEY"][:5], end="", flush=True)
    print(task.secrets["KEY"][5:], "after", flush=True)
    os.write(1, task.secrets["KEY"][:3].encode() + task.secrets["KEY"].encode() + b"x")
    return task.secrets["KEY"]

def failed():
    raise ValueError(VALUE * 400)
"""


async def test_a_worker_process_is_handed_secrets_and_tells_none(tmp_path: Path) -> None:
    (tmp_path / "in_a_process.py").write_text(f"VALUE = {VALUE!r}\n{MODULE}")
    tasks = [
        Task(name, run=f"in_a_process:{name}", engine="process", secrets=["KEY"], optional=True)
        for name in ("told", "failed")
    ]
    spec = Workstream("w", folder=str(tmp_path), tasks=tasks)
    workers = [Worker("w", engine="process", capacity=1)]
    outputs = tmp_path / "outputs"
    with anyio.fail_after(300):
        async with Runtime(workers=workers, secrets={"KEY": VALUE}, outputs=outputs) as runtime:
            runtime.on_trouble = lambda _: None
            outcome = await (await runtime.submit(spec)).wait()
    assert outcome.results == {"told": MASK}
    told = outcome.tasks["told"]
    assert saved(told) == {"at": MASK}
    written = {path.name: data.decode() for path, data in files(outputs)}
    assert written["told.1.log"] == f"before {MASK} after\n{HIDDEN[:3]}{MASK}x"
    error = str(outcome.tasks["failed"].last_error)
    assert error.startswith(f"ValueError: {MASK}")
    kept = [told, error, *written.values()]
    assert not [text for text in map(str, kept) if HIDDEN in text]


async def says(task: TaskContext) -> list[Any]:
    task.log.info("with it", key=task.secrets["KEY"], deep=[{"in": task.secrets["KEY"]}])
    try:
        int(task.secrets["KEY"])
    except ValueError:
        task.log.exception("raised")
    return [task.results["plain"], sorted(task.secrets)]


@pytest.mark.parametrize("renderer", [structlog.processors.JSONRenderer(), structlog.dev.ConsoleRenderer(colors=False)])
async def test_task_log_masks_whatever_renders_it(renderer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, renderer])
    try:
        async with Runtime(secrets={"KEY": VALUE}) as runtime:
            tasks = [
                Task("plain", run=plain, secrets=["KEY"]),
                Task("says", run=says, secrets=["KEY"], after=["plain"]),
            ]
            outcome = await (await runtime.submit(Workstream("w", tasks=tasks))).wait()
    finally:
        structlog.reset_defaults()
    assert outcome.results["says"] == [f"it is {MASK}", ["KEY"]]
    shown = capsys.readouterr().out
    assert f"base 10: '{MASK}'" in shown or f"base 10: {MASK}" in shown
    assert HIDDEN not in shown


def test_a_source_that_answers_later_is_refused_at_once() -> None:
    async def source(name: str) -> str:
        return VALUE

    with pytest.raises(TypeError, match="secrets must be a mapping or a plain function of a name, not async"):
        Runtime(secrets=source)  # type: ignore[arg-type]


async def test_a_source_of_the_application_s_own_is_asked_at_each_start() -> None:
    asked: list[str] = []

    def source(name: str) -> str | None:
        asked.append(name)
        if name == "BROKEN":
            raise RuntimeError("the vault says " + VALUE)
        return {"KEY": VALUE, "SHORT": "abc"}.get(name)

    async with Runtime(secrets=source) as runtime:
        runtime.on_trouble = lambda _: None
        tasks = [Task(name, run=plain, secrets=[name], optional=True) for name in ("KEY", "BROKEN", "SHORT", "NONE")]
        outcome = await (await runtime.submit(Workstream("w", tasks=tasks))).wait()
    assert asked == ["KEY", "BROKEN", "SHORT", "NONE"]
    assert outcome.results == {"KEY": f"it is {MASK}"}
    errors = {name: outcome.tasks[name].last_error for name in ("BROKEN", "SHORT", "NONE")}
    assert errors == {
        "BROKEN": "the secret 'BROKEN' could not be read: RuntimeError",
        "SHORT": "the secret 'SHORT' must be a text of 4 characters or more, to be masked",
        "NONE": "there is no secret 'NONE': set that variable of the environment, or provide it",
    }


async def test_who_names_no_secret_is_handed_none_and_masked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def free(task: TaskContext) -> Any:
        return [VALUE, dict(task.secrets)]

    monkeypatch.setattr(Mask, "__init__", lambda *_: pytest.fail("nothing is masked"))
    async with Runtime(secrets={"KEY": VALUE}) as runtime:
        runtime.task(free)
        outcome = await (await runtime.submit(Workstream("w", tasks=[Task("free", run=free)]))).wait()
    assert outcome.results["free"] == [VALUE, {}]


async def hands_on(task: TaskContext) -> None:
    key = task.secrets["KEY"]
    words = {"name": key} if task.args["in"] == "name" else {"name": "a"}
    args = {"x": [key]} if task.args["in"] == "args" else {}
    env = {"X": f"x{key}"} if task.args["in"] == "env" else {}
    tasks = [Task("c", run=plain, args=args), Task("d", command=["true"], env=env)]
    if task.args["in"] == "approval":
        await task.approval(key)
    await task.submit(Workstream("w", tasks=tasks), **words)


def hands_on_plainly(task: TaskContext) -> None:
    if task.args["in"] == "approval":
        task.wait_for_approval(task.secrets["KEY"])
    task.submit_blocking(Workstream(task.secrets["KEY"], tasks=[Task("c", run=plain)]), name="a")


@pytest.mark.parametrize(
    ("body", "place"),
    [
        *((hands_on, place) for place in ("name", "args", "env", "approval")),
        *((hands_on_plainly, place) for place in ("workstream", "approval")),
    ],
)
async def test_what_a_body_has_journaled_under_a_name_holds_no_secret(tmp_path: Path, body: Any, place: str) -> None:
    task = Task("t", run=body, secrets=["KEY"], args={"in": place})
    with anyio.fail_after(300):
        async with Runtime(tmp_path / "j.db", secrets={"KEY": "tall-TREES-7"}) as runtime:
            outcome = await (await runtime.submit(Workstream("w", tasks=[task]), id="j")).wait()
            assert "holds the value of a secret" in (outcome.tasks["t"].last_error or "")
    assert b"TREES" not in b"".join(file.read_bytes() for file in tmp_path.glob("j.db*") if file.is_file())


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (Task("a", command=["x"], secrets=["KEY"], env={"KEY": "v"}), "is in this specification"),
        (Task("a", run="m:f", secrets=["KEY"], args={"KEY": "v"}), "is in this specification"),
        (Task("a", run="m:f", secrets=["A=B"]), "cannot be the name"),
        (Task("a", run="m:f", secrets=["KEY", "KEY"]), "is listed twice"),
    ],
)
async def test_a_specification_holds_names_only(task: Task, says: str) -> None:
    async with Runtime() as runtime:
        with pytest.raises(SpecificationError, match=says):
            await runtime.submit(Workstream("w", tasks=[task]))


# -- the mask ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        VALUE,
        json.dumps(VALUE),
        json.dumps(VALUE, ensure_ascii=False),
        repr(VALUE),
        quote(VALUE),
        quote(VALUE, safe=""),
        *(base64.b64encode(b"u" * n + VALUE.encode() + b"more").decode() for n in range(4)),
        base64.urlsafe_b64encode(VALUE.encode()).decode(),
    ],
)
def test_a_value_is_found_in_every_dress(form: str) -> None:
    masked = Mask([VALUE]).text(f"<{form}>")
    assert MASK in masked
    bare = base64.b64encode(VALUE.encode()).decode()
    for part in (HIDDEN, "ss%20", bare[4:12]):
        assert part not in masked


def test_lines_numbers_keys_and_overlaps_are_masked() -> None:
    mask = Mask(["first line\nsecond line", "12345678", "abcd", "cdef"])
    assert mask.text("x second line y") == f"x {MASK} y"
    assert mask.text("xabcdefx abcdabcd") == f"x{MASK}x {MASK}"
    assert mask.value({"12345678": [12345678, 1, True, None, ("abcd",)]}) == {MASK: [MASK, 1, True, None, (MASK,)]}


@hypothesis.given(
    st.lists(st.text("ab", min_size=4, max_size=7), min_size=1, max_size=3, unique=True),
    st.text("abc", max_size=40),
    st.lists(st.integers(0, 40), max_size=6),
)
def test_a_stream_is_masked_as_the_whole_is_however_it_is_cut(values: list[str], text: str, cuts: list[int]) -> None:
    mask = Mask(values)
    stream = mask.stream()
    data, places = text.encode(), sorted({0, *(min(cut, len(text)) for cut in cuts), len(text)})
    shown = b"".join(stream.feed(data[a:b]) for a, b in itertools.pairwise(places)) + stream.end()
    assert shown.decode() == mask.text(text)


def test_a_stream_keeps_back_no_more_than_may_be_a_secret() -> None:
    stream = Mask(["secret"]).stream()
    assert stream.feed(b"progress 10%\nsec") == b"progress 10%\n"
    assert stream.feed(b"ond\n") == b"second\n"
    assert stream.end() == b""
