"""Log lines: to the structlog or `logging` that the application configured, or to standard error.

Rules
-----
- The configuration is looked up for each line, since a program may change it at any time: structlog, if it is
  configured; else `logging`, by the loggers `callboard` and `callboard.task`, if they or the root have a handler.
- A library does not print without being asked. Where neither is configured, only warnings and errors are written, by
  Python's handler of last resort, to standard error, since standard output belongs to the program. Their number is
  limited, since one failure may come a thousand times a second. A body's `task.log` lines are written there at every
  level: the body asked for them.
- A line of a transition or a notice has the time of the event (`timestamp`) from the journal, since it is written
  later. A processor that sets `timestamp` itself, as structlog's `TimeStamper`, is the application's own choice, and
  wins.
- Text for `logging` and standard error holds no control characters: it may reach a terminal.
- An exception of a processor, logger or handler disturbs neither the runtime nor the body that logged. The line is
  lost; standard error says so, and gets the lines about failures as well.
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
from ...actors.user_code import called, holds_more, is_a, kind_name, message_of, shown
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
"""Seconds for which lines are counted where no log is configured."""
ALIKE, ALL = 5, 50
"""In that time at most `ALIKE` lines of one event about one entity are written, and `ALL` in all."""

_LIBRARY = logging.getLogger("callboard")
_TASKS = logging.getLogger("callboard.task")
_HERE = (__name__, called.__module__)  # modules of frames that are not the application's


class LogLine(msgspec.Struct, frozen=True):
    """One line for the log. event: names its kind; text: for people; fields: for programs; about: the entity's id.

    trace: the traceback of an error. error: that error, for handlers that look at it.
    """

    severity: str
    event: str
    text: str
    fields: Mapping[str, Any]
    about: str | None = None
    trace: str | None = None
    error: BaseException | None = None


def line_of(event: Transitioned) -> LogLine:
    """Make the line of a transition. The traceback of a failed attempt is its `trace`, as with a notice."""
    metadata, trace = event.metadata, None
    if event.kind == "task" and metadata is not None and "traceback" in metadata:
        metadata = dict(metadata)
        trace = metadata.pop("traceback")
    facts = {
        "job_id": event.job_id,
        "from_state": event.from_state,
        "reason": event.reason,
        "attempt": event.attempt,
        "worker_id": event.worker_id,
        "metadata": metadata,  # as one field: an application's keys may equal ours
    }
    fields = {
        "timestamp": event.timestamp, "entity_id": event.entity_id, "to_state": str(event.to_state),
        "trigger": str(event.event), "workstream_id": event.workstream_id,
        **{name: value for name, value in facts.items() if value is not None},
    }  # fmt: skip
    way = event.to_state if event.from_state is None else f"{event.from_state} -> {event.to_state}"
    text = f"{event.entity_id} {way}" + (f": {event.reason}" if event.reason else "")
    return LogLine(event.severity, f"{event.kind}_state_transition", text, fields, event.entity_id, trace)


def line_about(notice: Notice, *, secret: bool = False) -> LogLine:
    """Make the line of a notice. secret: whether there are secrets, which the error may contain."""
    about = {"entity_id": notice.entity_id, "job_id": notice.job_id}
    about_present = {name: value for name, value in about.items() if value is not None}
    facts = dict(notice.facts)
    trace = facts.pop("traceback", None)
    fields = {**facts, "timestamp": iso(notice.at), **about_present, "text": notice.text}
    error = None if trace is None or secret else notice.error
    return LogLine(notice.severity, notice.event, notice.text, fields, notice.entity_id, trace, error)


def masked_notice(notice: Notice, mask: Mask) -> Notice:
    """Mask the secrets in a notice. Its error object stays, for handlers in this program."""
    return replace(notice, text=mask.text(notice.text), facts=mask.value(notice.facts))


# -- the application's logs --------------------------------------------------------------------------------------------

Write = Callable[[LogLine], None]
"""Writes a line. Raises whatever the application's processors and handlers raise."""


def configured() -> Write | None:
    """Return how to write lines to the log that the application has configured; None if there is none."""
    if "structlog" in sys.modules and _configured_structlog() is not None:
        return _to_structlog
    # `_LIBRARY.hasHandlers()` without its loop, since every turn asks this: only the root is above that logger.
    root = _LIBRARY.parent if _LIBRARY.propagate else None
    return _to_logging if _LIBRARY.handlers or (root is not None and root.handlers) else None


def takes(severity: str) -> bool:
    """Whether the configured log takes lines of that severity. If not, they need not be made."""
    return _configured_structlog() is not None or _LIBRARY.isEnabledFor(LEVELS[severity])


def _configured_structlog() -> Any:  # a module has no static type
    structlog = imported("structlog")
    return structlog if structlog is not None and structlog.is_configured() else None


def _to_structlog(line: LogLine) -> None:
    import structlog  # noqa: PLC0415 - it is imported already

    fields = dict(line.fields)
    if line.trace is not None:
        fields["exception"] = line.trace  # the name that its own processors use
    getattr(structlog.get_logger("callboard"), line.severity)(line.event, **fields)


def _to_logging(line: LogLine) -> None:
    level = LEVELS[line.severity]
    if _LIBRARY.isEnabledFor(level):
        _hand_over(_LIBRARY, level, f"{line.event}: {line.text}", line)


def _hand_over(log: logging.Logger, level: int, text: str, line: LogLine, caller: FrameType | None = None) -> None:
    """Give a line to `logging`. Its fields become the record's attribute `callboard`."""
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
    """Writes warnings and errors to standard error, in a limited number."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._begun = float("-inf")
        self._written: dict[tuple[str, str | None], int] = {}
        self._all = 0
        self._trace: str | None = None  # the last one written: lines of one failure share it

    def write(self, line: LogLine, *, past_logs: bool = False) -> None:
        """Write a line of a warning or worse. Raises nothing. past_logs: bypass `logging`, which has raised."""
        if (more := self._admitted(line)) is None:
            return
        trace, self._trace = None if line.trace == self._trace else line.trace, line.trace or self._trace
        line = replace(line, text=f"{line.text}{more}", trace=trace, error=None)
        with suppress(Exception):
            if past_logs:
                printed = "\n".join((f"callboard: {line.event}: {line.text}", line.trace or "")).rstrip("\n")
                print(printable(printed), file=sys.stderr, flush=True)
            else:
                text = f"callboard: {line.event}: {line.text}"
                called(_hand_over, _LIBRARY, LEVELS[line.severity], text, line)

    def _admitted(self, line: LogLine) -> str | None:
        """Return what is added to the line's text; None if the line is not written."""
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
            return (
                f" (for up to {PERIOD:.0f} s no further lines are written: configure `logging` or structlog to get all)"
            )
        if alike == ALIKE:
            return f" (for up to {PERIOD:.0f} s no further lines like this are written: configure `logging` to get all)"
        return ""


_LAST_RESORT = LastResort()  # for lines that belong to no runtime


def write(line: LogLine) -> None:
    """Write a line that belongs to no runtime. Raises nothing."""
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
    """Write that an operation failed with an error, with its traceback. Raises nothing."""
    write(LogLine("error", event, f"{text}: {message_of(error)}", fields, None, traceback_of(error), error))


def tell_lost(error: Exception) -> None:
    """Write to standard error that the application's log raised, and a line was lost. Raises nothing."""
    text = f"the log that this program configured raised an exception, and a line was lost: {message_of(error)}"
    _LAST_RESORT.write(LogLine("error", "log_broken", text, {}, kind_name(error), traceback_of(error)), past_logs=True)


# -- lines of bodies -------------------------------------------------------------------------------------------------


MOST_LOGGED = 10_000_000
"""The most values and characters in one line of a body."""


class TaskLog:
    """A structlog logger for a body. Exceptions of processors and handlers never reach the body."""

    __slots__ = ("_log",)

    def __init__(self, log: Any) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._log, name)
        return partial(_guarded, found) if callable(found) else found

    def __repr__(self) -> str:
        return f"<TaskLog {self._log!r}>"


def _guarded(method: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Call a method of a logger. Raises nothing; a logger that it returns is wrapped, too.

    A value that is too large for a line is replaced by a short text: a renderer would write it whole.
    """
    args = tuple(shown(one) if holds_more(MOST_LOGGED, one) else one for one in args)
    named = {name: shown(one) if holds_more(MOST_LOGGED, one) else one for name, one in named.items()}
    # structlog shall name the body's line as the caller, and not this one.
    said_in: Any = getattr(imported("structlog.contextvars"), "_ASYNC_CALLING_STACK", None)
    token: Any = None if said_in is None else said_in.set(_outside())
    try:
        returned = called(method, *args, **named)
    except Exception as error:
        tell_lost(error)
        return None
    finally:
        if said_in is not None:
            said_in.reset(token)
    if iscoroutine(returned):
        return _guarded_later(returned)
    return TaskLog(returned) if hasattr(returned, "bind") else returned


async def _guarded_later(line: Coroutine[Any, Any, Any]) -> None:
    try:
        await line
    except Exception as error:
        tell_lost(error)


def task_logger(mask: Mask | None, bound: Mapping[str, Any]) -> TaskLog:
    """Make a logger for a body. mask: hides secrets in its lines, before and after they are rendered."""
    import structlog  # noqa: PLC0415 - rarely needed, and slow to import

    try:
        return TaskLog(called(_task_logger, structlog, mask, bound))
    except Exception as error:  # the application's own factories may raise anything
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
    """The logger behind structlog that writes a body's lines to `logging`."""

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
        line = LogLine(severity, str(event), text, fields, None, trace, error)
        _hand_over(_TASKS, level, text, line, _outside())

    debug = partialmethod(_write, "debug")
    info = partialmethod(_write, "info")
    warning = partialmethod(_write, "warning")
    error = partialmethod(_write, "error")
    critical = partialmethod(_write, "critical")


def _error_of(exc_info: Any) -> BaseException | None:
    """Return the error of a line, in whichever of Python's forms it was given."""
    if is_a(exc_info, BaseException):
        return cast("BaseException", exc_info)
    if is_a(exc_info, tuple):
        return cast("BaseException | None", exc_info[1])
    return sys.exc_info()[1] if exc_info else None


def _outside() -> FrameType | None:
    """Find the application's frame that wrote the present line."""
    frame = currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith((*_HERE, "structlog")):
        frame = frame.f_back
    return frame


def _masked_logger(structlog: Any, plain: Any, mask: Mask) -> Any:
    return structlog.wrap_logger(plain, processors=_masking(structlog, structlog.get_config()["processors"], mask))


def _masking(structlog: Any, processors: Sequence[Any], mask: Mask) -> list[Any]:
    """Wrap processors: secrets are masked in their input, and in the last one's output."""
    *first, last = processors

    def before(_: Any, __: str, event: Any) -> Any:
        return {key: mask.value(value) for key, value in event.items()}

    def rendered(log: Any, method: str, event: Any) -> Any:
        """Mask the last processor's output: a text, bytes, or the arguments of the logger's method."""
        return _masked(mask, last(log, method, event))

    # Exceptions become text first: a later renderer would add their text unmasked.
    return [structlog.processors.format_exc_info, before, *first, rendered]


def _masked(mask: Mask, told: Any) -> Any:
    if isinstance(told, bytes | bytearray):
        return mask.text(told.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    return mask.value(told)


def _printable(_: Any, __: str, event: Any) -> Any:
    return {key: printable_value(value) for key, value in event.items()}
