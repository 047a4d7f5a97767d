"""Text of other programs, made safe for a terminal."""

from __future__ import annotations

import json

import msgspec
import pytest

from callboard import Notice
from callboard.runtime.observation.events import EventBus
from callboard.runtime.text.logs import task_logger
from callboard.runtime.text.printable import printable, printable_json


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("two\nlines\tand ü 漢 🎭", "two\nlines\tand ü 漢 🎭"),
        ("\x1b[2J\x07\r\x7f", "\\x1b[2J\\x07\\x0d\\x7f"),
        ("\x9b31m\u202e\u2028\ud800", "\\x9b31m\\u202e\\u2028\\ud800"),
    ],
)
def test_what_a_terminal_would_obey_is_shown_as_its_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_json_means_the_same_without_control_characters() -> None:
    value = {"reason": "\x00\x1b[2J\x7f\x9b31m\u202eü\u2029"}
    line = printable_json(msgspec.json.encode(value))
    assert line.isprintable()
    assert json.loads(line) == value


def test_lines_on_standard_error_hold_nothing_that_a_terminal_would_obey(
    no_logs: object, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = {"error": "\x9b1A", "traceback": "Traceback\n  \x1b[2J"}
    EventBus().say_notice(Notice(event="hook_failed", severity="error", text="\x1b[2Jno", at=1.0, facts=facts))
    task_logger(None, {}).info("\x1b]0;title\x07", told="\x1b[2J")
    output = capsys.readouterr().err
    assert "\\x1b[2Jno" in output
    assert all(sign.isprintable() or sign == "\n" for sign in output)
