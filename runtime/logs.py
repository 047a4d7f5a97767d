"""Where the library's own lines go: structlog, once and as the application has configured it.

Rules
-----
- A library does not print into a program that did not ask: where structlog is not configured, only what is wrong, and
  what bodies say, is written, and to standard error: standard output is the program's.
- structlog is imported on first use.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from ..actors.notices import Notice
from .imported import imported


def configured() -> Any:
    """structlog, if the application has configured it; else None. (A module has no one type.)"""
    structlog = imported("structlog")
    return structlog if structlog is not None and structlog.is_configured() else None


def logger(*names: str) -> Any:
    """A structlog logger. (structlog gives it no one type.)"""
    import structlog  # noqa: PLC0415 - rare, and dear to import

    if structlog.is_configured():
        return structlog.get_logger(*names)
    return structlog.wrap_logger(structlog.PrintLogger(sys.stderr))


def write_notice(notice: Notice, log: Any) -> None:
    """Write a notice's line."""
    about = {"entity_id": notice.entity_id, "job_id": notice.job_id}
    told = {name: value for name, value in about.items() if value is not None}
    getattr(log, notice.severity)(notice.event, **{**notice.facts, **told, "text": notice.text})


def say_notice(notice: Notice) -> None:
    """Write a notice's line where nobody else was told of it. Raises nothing."""
    with suppress(Exception):
        write_notice(notice, logger("callboard"))
