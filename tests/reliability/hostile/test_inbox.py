"""Hostile rows that are written into the inbox directly, with hostile names and secrets."""

from __future__ import annotations

import json
import sqlite3
from base64 import b64encode
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from callboard import Runtime, Task, Workstream
from callboard.runtime.journal.notify import notify
from callboard.runtime.text.secrets import Mask

pytestmark = [pytest.mark.anyio, pytest.mark.laboratory]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


GOOD = {"verb": "pause", "kind": "job", "target": "job", "request_id": "r", "arguments": {}, "sent_at": 0.0}
NASTY: list[Any] = [
    None, True, 0, -1, 2**63, 10**300, 1e308, "", " ", "../x", "\x1b[2J", "\u202e", "a" * 100_000, "-rf", [], {}, [[]],
    {"a": [1]}, "job", "pause", "approve", "fire", "cancel", "skip", "t", "machine", "breaker", "worker", "null",
]  # fmt: skip
RAW: list[bytes | str | int | float] = [
    b"\xff\xfe", b"\x00", "", "{", "null", "[]", "1", 1, 1.5, "\ud800".encode("utf-8", "surrogatepass"),
    '{"arguments":{"a":' + "[" * 100_000, '{"verb":"pause","kind":"job","target":"\\ud800","request_id":"x"}',
    json.dumps({**GOOD, "arguments": {"reason": "x" * 2_000_000}}),
]  # fmt: skip


def rows(seed: int, number: int) -> list[str]:
    """Commands of which a field or an argument is nasty."""
    random = Random(seed)
    found: list[str] = []
    for count in range(number):
        row: dict[str, Any] = {**GOOD, "request_id": f"r{count}"}
        row["verb"] = random.choice(
            ["pause", "resume", "cancel", "approve", "reject", "skip", "retry", "reset", "fire"]
        )
        row["kind"] = random.choice(["job", "task", "machine", "breaker", "worker"])
        row["target"] = random.choice(["job", "job/t", "other", "x@1/t"])
        for _ in range(random.randint(1, 3)):
            if random.random() < 0.5:
                row[random.choice([*row, "more"])] = random.choice(NASTY)
            elif isinstance(row["arguments"], dict):
                named = random.choice(
                    ["by", "reason", "name", "force", "graceful", "event", "payload", "cooldown", "x"]
                )
                row["arguments"] = {**row["arguments"], named: random.choice(NASTY)}
        found.append(json.dumps(row))
    return found


async def wait(task: Any) -> None:
    await anyio.sleep_forever()


async def test_no_row_of_the_inbox_disturbs_the_runtime_or_the_rows_after_it(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    async with Runtime(path, drain_deadline=0.1) as runtime:
        await runtime.submit(Workstream("w", tasks=[Task("t", run=wait)]), id="job")
        last = json.dumps({**GOOD, "request_id": "last", "kind": "job", "target": "not there", "verb": "pause"})
        with closing(sqlite3.connect(path, isolation_level=None)) as raw:
            raw.execute("BEGIN IMMEDIATE")
            for command in [*RAW, *rows(1, 150)]:
                raw.execute("INSERT INTO inbox_rows (command) VALUES (?)", (command,))
            number = raw.execute("INSERT INTO inbox_rows (command) VALUES (?)", (last,)).lastrowid
            raw.execute("COMMIT")
            notify(path)
            with anyio.fail_after(300):
                while (answer := raw.execute("SELECT answer FROM inbox_rows WHERE key = ?", (number,)).fetchone()) == (
                    None,
                ):
                    await anyio.sleep(0.01)
            assert "missing" in answer[0]
            answers: list[str] = []
            with anyio.fail_after(300):
                while len(answers) <= 80:  # the last command was a person's, and may have overtaken those to machines
                    await anyio.sleep(0.01)
                    found = raw.execute("SELECT answer FROM inbox_rows WHERE answer IS NOT NULL")
                    answers = [row[0] for row in found]
            assert not [text for text in answers if '"broken"' in text]  # each is refused for its own fault
        assert runtime.health.ok
    async with Runtime(path, drain_deadline=0.1):  # rows that cannot be read prevent no start
        pass


# -- secrets -----------------------------------------------------------------------------------------------------------

SECRET = 'pa$$"w\\ö/rd+of=the%house'
DRESSES: dict[str, Callable[[str], str]] = {
    "as it is": lambda value: value,
    "in JSON": json.dumps,
    "in base64": lambda value: b64encode(value.encode()).decode(),
    "in base64, of more": lambda value: b64encode(f"user:{value}".encode()).decode(),
}


@pytest.mark.parametrize("dress", DRESSES)
@pytest.mark.parametrize("piece", [1, 7, 4096])
def test_a_secret_is_found_however_the_output_is_cut(dress: str, piece: int) -> None:
    dressed = DRESSES[dress](SECRET)
    text = f"before {dressed} after {dressed}{dressed}\n".encode() * 3
    stream = Mask([SECRET]).stream()
    shown = b"".join(stream.feed(text[at : at + piece]) for at in range(0, len(text), piece)) + stream.end()
    assert b"***" in shown
    core = dressed.strip('"')[4:-4] if dress != "in base64, of more" else dressed[8:-4]
    assert core.encode() not in shown
    assert shown.startswith(b"before ")


async def test_a_secret_that_a_command_prints_in_pieces_and_over_lines_is_nowhere(tmp_path: Path) -> None:
    value = "first line of it\nsecond line of it"
    talk = (
        'printf "%s" "$KEY" | while IFS= read -r -n1 c; do printf "%s" "$c"; done; echo; printf "%s\\n" "$KEY"; '
        'printf "%s" "$KEY" | base64 -w0; echo'
    )
    task = Task("talks", command=["bash", "-c", talk], secrets=["KEY"])
    async with Runtime(tmp_path / "state.db", secrets={"KEY": value}) as runtime:
        outcome = await (await runtime.submit(Workstream("w", tasks=[task]), id="job")).wait()
    assert outcome.state == "completed"
    kept = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    for line in (*value.splitlines(), b64encode(value.encode()).decode()[:-4]):
        assert line.encode() not in kept
        assert line not in str(outcome)


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "../x", "a/b",
        "..", ".", "CON", "nul.txt", "a\x00b", "a" * 300, "é" * 150, "\u202etxt", "\x1b[2J", "a\nb", "x ",
        "x.", "",
    ],
)  # fmt: skip
async def test_a_name_that_is_none_is_refused_wherever_it_is_given(tmp_path: Path, name: str) -> None:
    async with Runtime(tmp_path / "state.db") as runtime:
        for workstream, job_id in (
            (Workstream(name, tasks=[Task("t", command=["true"])]), None),
            (Workstream("w", tasks=[Task(name, command=["true"])]), None),
            (Workstream("w", tasks=[Task("t", command=["true"])]), name),
        ):
            with pytest.raises(ValueError) as told:  # noqa: PT011 - the kind differs, the text is looked at
                await runtime.submit(workstream, id=job_id)
            assert str(told.value).isprintable() or "\n" in str(told.value)
            assert "\x1b" not in str(told.value)
            assert "\u202e" not in str(told.value)
            assert len(str(told.value)) < 1_000
    assert all(file.name.startswith("state.db") for file in tmp_path.iterdir())
