"""What is told beside the transitions: mishaps of the application's own, and trouble with the runtime itself.

| event | level | what happened | facts |
| --- | --- | --- | --- |
| hook_failed | error | a hook raised, did not exit with 0, took too long, or is not there | entity_id, hook, error |
| processes_left_behind | warning | a descendant of a command left its process group, and holds its output | entity_id |
| runtime_trouble | error | a mistake of ours, or something stale: the runtime goes on | text, traceback |

Rules
-----
- Telling never raises: what a logger raises is its own affair.
- Where structlog is not configured a line goes to standard error: standard output is the program's.
"""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress
from typing import Any, Literal


class Mishap(Exception):  # noqa: N818 - it says what happened
    """Something that no transition tells, and not the runtime's doing. `event` and `facts` are as in the log."""

    def __init__(self, text: str, event: str, level: Literal["warning", "error"], **facts: str | None) -> None:
        super().__init__(text)
        self.event = event
        self.level = level
        self.facts = facts


def logger(*names: str) -> Any:
    """A structlog logger. (structlog gives it no one type.)"""
    import structlog  # noqa: PLC0415 - rare, and dear to import

    if structlog.is_configured():
        return structlog.get_logger(*names)
    return structlog.wrap_logger(structlog.PrintLogger(sys.stderr))


def log(text: str, error: Exception | None) -> None:
    """Write a line about a mishap, or about trouble with the runtime."""
    with suppress(Exception):
        if isinstance(error, Mishap):
            getattr(logger("callboard"), error.level)(error.event, **error.facts)
        else:
            # As text, since what renders exceptions for people may print every local variable, secrets too.
            trace = "" if error is None else "".join(traceback.format_exception(error))
            logger("callboard").error("runtime_trouble", text=text, traceback=trace)
