"""Where the library's own lines go: structlog, once and as the application has configured it.

Rules
-----
- A library does not print into a program that did not ask: where structlog is not configured, only what is wrong, and
  what bodies say, is written, and to standard error: standard output is the program's. It may be a terminal, so that
  no control character gets there.
- structlog is imported on first use.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from ..actors.notices import Notice
from ..actors.theirs import called
from .imported import imported
from .printable import printable_value
from .secrets import Mask


def configured() -> Any:
    """structlog, if the application has configured it; else None. (A module has no one type.)"""
    structlog = imported("structlog")
    return structlog if structlog is not None and structlog.is_configured() else None


def logger(*names: str) -> Any:
    """A structlog logger. (structlog gives it no one type.)"""
    import structlog  # noqa: PLC0415 - rare, and dear to import

    if structlog.is_configured():
        return structlog.get_logger(*names)
    return structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr), processors=[_printable, *structlog.get_config()["processors"]]
    )


def _printable(_: Any, __: str, event: Any) -> Any:
    return {key: printable_value(value) for key, value in event.items()}


def masked_logger(mask: Mask) -> Any:
    """A structlog logger whose lines hold no secrets, neither before nor after they are rendered."""
    import structlog  # noqa: PLC0415 - as above

    settings = structlog.get_config()
    plain = settings["logger_factory"]() if structlog.is_configured() else structlog.PrintLogger(sys.stderr)
    *first, last = settings["processors"]
    if not structlog.is_configured():
        first = [*first, _printable]

    def before(_: Any, __: str, event: Any) -> Any:
        return {key: mask.value(value) for key, value in event.items()}

    def rendered(log: Any, method: str, event: Any) -> Any:
        """What goes to the logger: a text, bytes, or the arguments of its method."""
        return _masked(mask, last(log, method, event))

    # Exceptions become text first: whoever renders them later would do it behind our back.
    return structlog.wrap_logger(plain, processors=[structlog.processors.format_exc_info, before, *first, rendered])


def _masked(mask: Mask, told: Any) -> Any:
    if isinstance(told, bytes | bytearray):
        return mask.text(told.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    return mask.value(told)


def masked_notice(notice: Notice, mask: Mask) -> Notice:
    """The notice without secrets."""
    return replace(notice, text=mask.text(notice.text), facts=mask.value(notice.facts))


def write_notice(notice: Notice, log: Any) -> None:
    """Write a notice's line."""
    about = {"entity_id": notice.entity_id, "job_id": notice.job_id}
    told = {name: value for name, value in about.items() if value is not None}
    getattr(log, notice.severity)(notice.event, **{**notice.facts, **told, "text": notice.text})


def say_notice(notice: Notice) -> None:
    """Write a notice's line where nobody else was told of it. Raises nothing."""
    with suppress(Exception):
        called(write_notice, notice, logger("callboard"))
