"""Where lines go: to structlog or to `logging`, as the application has configured them, or to standard error.

Rules
-----
- It is looked up for each line, since a program may configure its logs at any time: structlog, where it is configured;
  else `logging`, by the loggers `callboard` and `callboard.task`, where they or the root have a handler.
- A library does not print into a program that did not ask. Where neither is configured only what went wrong is written,
  by Python's handler of last resort: warnings and worse, to standard error, since standard output is the program's.
  Only so much of it at a time, since one failure may come a thousand times a second. What a body says by `task.log` is
  written there whatever its level: it asked.
- A line of a transition or a notice says when that was (`timestamp`), as the journal has it, since it is told later. A
  processor that sets `timestamp` itself, as structlog's `TimeStamper`, is the application's own choice, and wins.
- What `logging` and standard error are given holds no control character: it may get to a terminal.
- A processor, a logger or a handler that raises disturbs nobody: not the runtime, and not the body whose line it was.
  The line is lost, and that is told on standard error, with what was to be told of trouble.
- structlog is imported on first use.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial, partialmethod
from inspect import currentframe, iscoroutine
from types import FrameType
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from ...actors.messages.notices import Notice
from ...actors.records.transition import Transitioned, iso
from ...actors.user_code import called, holds_more, is_a, kind_name, said, shown
from ..loaded_modules import imported
from .printable import printable, printable_value
from .secrets import Mask
from .tracebacks import traceback_of

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
PERIOD = 60.0
"""Seconds for which lines are counted where nothing is configured."""
ALIKE, ALL = 5, 50
"""So many of one kind about one entity are written in that time, and so many in all."""

_LIBRARY = logging.getLogger("callboard")
_TASKS = logging.getLogger("callboard.task")
_HERE = (__name__, called.__module__)  # whose frames are not the application's


class Line(msgspec.Struct, frozen=True):
    """What is to be logged. event names its kind; text says it to people, fields to programs; about: whom it is about.

    trace: how an error came about. error: that error, for handlers that look at it.
    """

    severity: str
    event: str
    text: str
    fields: Mapping[str, Any]
    about: str | None = None
    trace: str | None = None
    error: BaseException | None = None


def line_of(event: Transitioned) -> Line:
    """The line of a transition. How an attempt failed is its trace, as that of a notice."""
    metadata, trace = event.metadata, None
    if event.kind == "task" and metadata is not None and "traceback" in metadata:
        metadata = dict(metadata)
        trace = metadata.pop("traceback")
    told = {
        "job_id": event.job_id,
        "from_state": event.from_state,
        "reason": event.reason,
        "attempt": event.attempt,
        "worker_id": event.worker_id,
        "metadata": metadata,  # whole: its keys may be an application's, and be called as those here
    }
    fields = {
        "timestamp": event.timestamp, "entity_id": event.entity_id, "to_state": str(event.to_state),
        "trigger": str(event.event), "workstream_id": event.workstream_id,
        **{name: value for name, value in told.items() if value is not None},
    }  # fmt: skip
    way = event.to_state if event.from_state is None else f"{event.from_state} -> {event.to_state}"
    text = f"{event.entity_id} {way}" + (f": {event.reason}" if event.reason else "")
    return Line(event.severity, f"{event.kind}_state_transition", text, fields, event.entity_id, trace)


def line_about(notice: Notice, *, secret: bool = False) -> Line:
    """The line of a notice. secret: whether there are secrets, which the error may hold."""
    about = {"entity_id": notice.entity_id, "job_id": notice.job_id}
    told = {name: value for name, value in about.items() if value is not None}
    facts = dict(notice.facts)
    trace = facts.pop("traceback", None)
    fields = {**facts, "timestamp": iso(notice.at), **told, "text": notice.text}
    error = None if trace is None or secret else notice.error
    return Line(notice.severity, notice.event, notice.text, fields, notice.entity_id, trace, error)


def masked_notice(notice: Notice, mask: Mask) -> Notice:
    """The notice without secrets. The error stays, for who is told of trouble in this program."""
    return replace(notice, text=mask.text(notice.text), facts=mask.value(notice.facts))


# -- the application's logs --------------------------------------------------------------------------------------------

Write = Callable[[Line], None]
"""Writes a line. Raises what the application's processors and handlers raise."""


def configured() -> Write | None:
    """How lines are written to what the application has configured; None where it has configured nothing."""
    if "structlog" in sys.modules and _configured_structlog() is not None:
        return _to_structlog
    # `_LIBRARY.hasHandlers()` without its loop, since this is asked for every turn: above that logger is but the root.
    root = _LIBRARY.parent if _LIBRARY.propagate else None
    return _to_logging if _LIBRARY.handlers or (root is not None and root.handlers) else None


def takes(severity: str) -> bool:
    """Whether what is configured takes lines of that severity: if not, they need not be made."""
    return _configured_structlog() is not None or _LIBRARY.isEnabledFor(LEVELS[severity])


def _configured_structlog() -> Any:  # a module has no one type
    structlog = imported("structlog")
    return structlog if structlog is not None and structlog.is_configured() else None


def _to_structlog(line: Line) -> None:
    import structlog  # noqa: PLC0415 - it is there already

    fields = dict(line.fields)
    if line.trace is not None:
        fields["exception"] = line.trace  # as its own processors call it
    getattr(structlog.get_logger("callboard"), line.severity)(line.event, **fields)


def _to_logging(line: Line) -> None:
    level = LEVELS[line.severity]
    if _LIBRARY.isEnabledFor(level):
        _hand_over(_LIBRARY, level, f"{line.event}: {line.text}", line)


def _hand_over(log: logging.Logger, level: int, text: str, line: Line, caller: FrameType | None = None) -> None:
    """Hand a line to `logging`. Its fields are the attribute `callboard` of the record."""
    error = line.error
    raised: Any = None if error is None else (type(error), error, error.__traceback__)
    path, number, function = ("(callboard)", 0, None)
    if caller is not None:
        path, number, function = caller.f_code.co_filename, caller.f_lineno, caller.f_code.co_name
    record = log.makeRecord(log.name, level, path, number, printable(text), (), raised, function)
    record.callboard = {"event": line.event, **line.fields}
    record.exc_text = None if line.trace is None else printable(line.trace.rstrip("\n"))
    log.handle(record)


# -- where nothing is configured ---------------------------------------------------------------------------------------


class LastResort:
    """What went wrong, told on standard error: not more than somebody can read."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._begun = float("-inf")
        self._written: dict[tuple[str, str | None], int] = {}
        self._all = 0
        self._trace: str | None = None  # the last one that was written: what comes of a failure has the same

    def write(self, line: Line, *, past_logs: bool = False) -> None:
        """Write a line of a warning or worse. Raises nothing. past_logs: not by `logging`, which has raised."""
        if (more := self._admitted(line)) is None:
            return
        trace, self._trace = None if line.trace == self._trace else line.trace, line.trace or self._trace
        line = replace(line, text=f"{line.text}{more}", trace=trace, error=None)
        with suppress(Exception):
            if past_logs:
                told = "\n".join((f"callboard: {line.event}: {line.text}", line.trace or "")).rstrip("\n")
                print(printable(told), file=sys.stderr, flush=True)
            else:
                text = f"callboard: {line.event}: {line.text}"
                called(_hand_over, _LIBRARY, LEVELS[line.severity], text, line)

    def _admitted(self, line: Line) -> str | None:
        """What is to be added to the line's text; None where it is not written."""
        now = self._monotonic()
        if now - self._begun >= PERIOD:
            self._begun, self._all = now, 0
            self._written.clear()
        if self._all >= ALL:
            return None
        key = line.event, line.about
        alike = self._written[key] = self._written.get(key, 0) + 1
        if alike > ALIKE:
            return None
        self._all += 1
        if self._all == ALL:
            return f" (for up to {PERIOD:.0f} s nothing more is told: configure `logging` or structlog to have it all)"
        if alike == ALIKE:
            return f" (for up to {PERIOD:.0f} s more like this is not told: configure `logging` to have it all)"
        return ""


_LAST_RESORT = LastResort()  # of what belongs to no runtime


def write(line: Line) -> None:
    """Write a line that belongs to no runtime, as of trouble. Raises nothing."""
    way = configured()
    if way is None:
        _LAST_RESORT.write(line)
        return
    try:
        called(way, line)
    except Exception as error:
        tell_lost(error)
        _LAST_RESORT.write(line, past_logs=True)


def write_error(event: str, text: str, error: Exception, **fields: Any) -> None:
    """Write that something has failed by an error, with its traceback. Raises nothing."""
    write(Line("error", event, f"{text}: {said(error)}", fields, None, traceback_of(error), error))


def tell_lost(error: Exception) -> None:
    """Tell on standard error that the application's log has raised, and a line was lost. Raises nothing."""
    text = f"the log that this program has configured raised, and a line was lost: {said(error)}"
    _LAST_RESORT.write(Line("error", "log_broken", text, {}, kind_name(error), traceback_of(error)), past_logs=True)


# -- what bodies say ---------------------------------------------------------------------------------------------------


MOST_LOGGED = 10_000_000
"""Values and characters of what a body logs."""


class TaskLog:
    """A structlog logger as a body is given it: what the application's processors and handlers raise stays here."""

    __slots__ = ("_log",)

    def __init__(self, log: Any) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._log, name)
        return partial(_guarded, found) if callable(found) else found

    def __repr__(self) -> str:
        return f"<TaskLog {self._log!r}>"


def _guarded(method: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Call a method of a logger. Raises nothing; a logger that it returns is a body's, too.

    A value that no line has room for is said to be one: whoever renders it would write it out whole.
    """
    args = tuple(shown(one) if holds_more(MOST_LOGGED, one) else one for one in args)
    named = {name: shown(one) if holds_more(MOST_LOGGED, one) else one for name, one in named.items()}
    # structlog shall name the body's line as the one that it was said in, and not this one.
    said_in: Any = getattr(imported("structlog.contextvars"), "_ASYNC_CALLING_STACK", None)
    token: Any = None if said_in is None else said_in.set(_outside())
    try:
        told = called(method, *args, **named)
    except Exception as error:
        tell_lost(error)
        return None
    finally:
        if said_in is not None:
            said_in.reset(token)
    if iscoroutine(told):
        return _guarded_later(told)
    return TaskLog(told) if hasattr(told, "bind") else told


async def _guarded_later(line: Coroutine[Any, Any, Any]) -> None:
    try:
        await line
    except Exception as error:
        tell_lost(error)


def task_logger(mask: Mask | None, bound: Mapping[str, Any]) -> TaskLog:
    """A logger for a body. mask: hides secrets in its lines, before and after they are rendered."""
    import structlog  # noqa: PLC0415 - rare, and dear to import

    try:
        return TaskLog(called(_task_logger, structlog, mask, bound))
    except Exception as error:  # of the application's own factories
        tell_lost(error)
        return TaskLog(_to_stderr(structlog, mask).bind(**bound))


def _task_logger(structlog: Any, mask: Mask | None, bound: Mapping[str, Any]) -> Any:
    settings = structlog.get_config()
    if structlog.is_configured():
        log = structlog.get_logger() if mask is None else _masked_logger(structlog, settings["logger_factory"](), mask)
    elif _TASKS.hasHandlers():
        log = structlog.wrap_logger(_ToLogging(mask), processors=[structlog.contextvars.merge_contextvars])
    else:
        log = _to_stderr(structlog, mask)
    return log.bind(**bound)


def _to_stderr(structlog: Any, mask: Mask | None) -> Any:
    plain = structlog.PrintLogger(sys.stderr)
    processors = [_printable, *structlog.get_config()["processors"]]
    ways = {
        "wrapper_class": structlog.make_filtering_bound_logger(0), "context_class": dict, "processors": processors,
    }  # fmt: skip
    if mask is not None:
        ways["processors"] = _masking(structlog, processors, mask)
    return structlog.wrap_logger(plain, **ways)


class _ToLogging:
    """What structlog hands a body's lines to where the application has configured `logging`."""

    def __init__(self, mask: Mask | None) -> None:
        self._mask = mask

    def _write(self, severity: str, *, event: Any, exc_info: Any = None, **fields: Any) -> None:
        level = LEVELS[severity]
        if not _TASKS.isEnabledFor(level):
            return
        error = _error_of(exc_info)
        trace = None if error is None else traceback_of(error, self._mask)
        if self._mask is not None:
            event, fields, error = self._mask.value(event), self._mask.value(fields), None
        text = " ".join((str(event), *(f"{name}={shown(value)}" for name, value in fields.items())))
        line = Line(severity, str(event), text, fields, None, trace, error)
        _hand_over(_TASKS, level, text, line, _outside())

    debug = partialmethod(_write, "debug")
    info = partialmethod(_write, "info")
    warning = partialmethod(_write, "warning")
    error = partialmethod(_write, "error")
    critical = partialmethod(_write, "critical")


def _error_of(exc_info: Any) -> BaseException | None:
    """The error that a line is about, by whichever of Python's ways it was given."""
    if is_a(exc_info, BaseException):
        return cast("BaseException", exc_info)
    if is_a(exc_info, tuple):
        return cast("BaseException | None", exc_info[1])
    return sys.exc_info()[1] if exc_info else None


def _outside() -> FrameType | None:
    """Where the application has said the present line."""
    frame = currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith((*_HERE, "structlog")):
        frame = frame.f_back
    return frame


def _masked_logger(structlog: Any, plain: Any, mask: Mask) -> Any:
    return structlog.wrap_logger(plain, processors=_masking(structlog, structlog.get_config()["processors"], mask))


def _masking(structlog: Any, processors: Sequence[Any], mask: Mask) -> list[Any]:
    """These processors, with none of the secrets in what they are given, nor in what the last one gives."""
    *first, last = processors

    def before(_: Any, __: str, event: Any) -> Any:
        return {key: mask.value(value) for key, value in event.items()}

    def rendered(log: Any, method: str, event: Any) -> Any:
        """What goes to the logger: a text, bytes, or the arguments of its method."""
        return _masked(mask, last(log, method, event))

    # Exceptions become text first: whoever renders them later would do it behind our back.
    return [structlog.processors.format_exc_info, before, *first, rendered]


def _masked(mask: Mask, told: Any) -> Any:
    if isinstance(told, bytes | bytearray):
        return mask.text(told.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    return mask.value(told)


def _printable(_: Any, __: str, event: Any) -> Any:
    return {key: printable_value(value) for key, value in event.items()}
