"""`callboard stream` over outages of the database."""

from __future__ import annotations

import time
from typing import Any

import pytest

from callboard.actors.records.task import TaskRecord
from callboard.runtime.cli.stream import parts_of
from callboard.runtime.errors import JournalError, JournalTooNew
from callboard.runtime.journal.live import LiveText, TextPlace

TASK = TaskRecord(
    key=1, id="w@1/a", name="a", state="running", created_at=0.0, workstream=2, workstream_id="w@1", job_id="w",
    index=0, unmet=0, optional=False, token=7,
)  # fmt: skip


class Reader:
    """A reader of a database that answers each question about the text with the next of these answers."""

    def __init__(self, *answers: list[LiveText] | JournalError) -> None:
        self.answers = list(answers)
        self.listened = 0

    def listen(self, task: int) -> None:
        assert task == TASK.key
        self.listened += 1

    def task(self, task_id: str) -> TaskRecord:
        assert task_id == TASK.id
        return TASK

    def text(self, after: TextPlace) -> list[LiveText]:
        assert after.token == TASK.token
        answer = self.answers.pop(0)
        if isinstance(answer, JournalError):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)


def printed(reader: Any) -> list[Any]:
    """What the command prints of the task's text."""
    return list(parts_of(reader, TASK))


def test_a_stream_goes_on_after_a_restart_of_the_server_which_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    first, grown = LiveText(1, 7, 0, "Hel"), LiveText(1, 7, 0, "Hello")
    down = JournalError("it is starting up.")
    reader = Reader([first], down, down, [grown], down, [LiveText(1, 7, 5, "", over=True)])
    assert printed(reader) == ["Hel", "lo"]
    text = "it is starting up. The stream goes on once it answers again.\n"
    assert capsys.readouterr().err == 2 * text  # once for each outage
    assert reader.listened >= 3  # the server has lost its listeners


def test_a_stream_that_cannot_begin_or_go_on_is_refused() -> None:
    with pytest.raises(JournalError, match="no rights"):
        printed(Reader(JournalError("no rights")))
    with pytest.raises(JournalTooNew):
        printed(Reader([], JournalTooNew("of a newer version")))
