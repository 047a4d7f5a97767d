"""Notices that are kept in the journal. People can look up problems later, also from another process.

Rules
-----
- A row stands for one event about one entity with one type of error, and with one hook, team or setting (`APART`).
  Equal notices within `PERIOD` only raise its count, and the row is written again at most once a second: an actor that
  fails 10,000 times a second costs one row a minute, and one write a second.
- In a period there are at most `MOST` new rows. Further notices are gathered by their event, for all entities together.
- The journal keeps the last `contract.NOTICES_KEPT` rows.
- A new row is appended to the journal at once. Due counts are written after a slice of the dispatcher, the last ones
  when the runtime closes. Where nothing fails, no work is done.
- Notices that say that the journal cannot be reached are not written into it (`NOT_KEPT`).
- Notices that come before the journal is open wait until it is; those that come after its close are not kept.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from ...actors.messages.notices import Notice, NoticeRecord
from ...actors.user_code import kind_name
from ..text.tracebacks import clean

PERIOD = 60.0
"""Seconds after the first notice of a row in which equal notices count for that row."""
MOST = 500
"""The most new rows in that time, without those that gather further notices by event."""
WRITE_EVERY = 1.0
"""Seconds between two writes of one row."""
NOT_KEPT = frozenset({"lease_not_renewed", "lease_lost", "inbox_unreadable"})
"""Notices that the journal cannot be reached, or belongs to another owner: a write of them would only wait as well."""
LONGEST = 10_000
"""Characters of a traceback that are kept: it was shortened where it was made."""
LONGEST_NAME = 500
"""Characters of an id, and of a type's name."""

APART = ("hook", "team", "setting")
"""Facts that tell apart what happened to one entity."""

_Key = tuple[str, str, str | None, str | None, str | None]  # event, kind, entity, type of error, fact of `APART`


class _Row(Struct):
    """A row whose notices are being counted. written_at: monotonic seconds; waits: whether its count must be written.

    It holds no error object: that would keep the error's frames alive, and all their variables.
    """

    record: NoticeRecord
    written_at: float
    waits: bool = False


class KeptNotices:
    """Decides which notices are written. monotonic: a clock in seconds that is never set back."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._begun = float("-inf")  # when the present period began
        self._rows: dict[_Key, _Row] = {}
        self._waiting: list[_Row] = []  # rows whose count is not written yet
        self._due = 0.0  # when the first of them may be written
        self._before: list[Notice] = []  # notices from before the journal was open
        self._number: Callable[[], int] | None = None
        self._write: Callable[[list[NoticeRecord]], object] | None = None
        self._node: str | None = None
        self._closed = False

    def open(
        self, write: Callable[[list[NoticeRecord]], object], number: Callable[[], int], node: str | None = None
    ) -> None:
        """Begin to write.

        Write: appends rows to the journal; number: gives a key; node: its name, if there are several.
        """
        self._write, self._number, self._node = write, number, node
        before, self._before = self._before, []
        for notice in before:
            self.take(notice)

    def take(self, notice: Notice) -> bool:
        """Keep a notice. Returns whether a row was given to `write`."""
        if self._closed or notice.event in NOT_KEPT:
            return False
        if self._number is None or self._write is None:
            if len(self._before) < MOST:
                self._before.append(notice)
            return False
        now = self._monotonic()
        if now - self._begun >= PERIOD:
            self._flush()
            self._begun = now
            self._rows.clear()
        error = _text(notice.facts.get("error_type")) if notice.error is None else kind_name(notice.error)
        apart = next((_text(notice.facts[name]) for name in APART if name in notice.facts), None)
        key: _Key = (notice.event, notice.kind, notice.entity_id, error, apart)
        row, others = self._rows.get(key), False
        if row is None and len(self._rows) >= MOST:
            key, others = (notice.event, "", None, None, None), True
            row = self._rows.get(key)
        if row is not None:
            row.record = replace(_record(notice, error, row.record), count=row.record.count + 1)
            self._wait(row)
            return False
        record = replace(_record(notice, error), key=self._number(), others=others, node=self._node)
        self._rows[key] = _Row(record, now)
        self._write([record])
        return True

    def look(self) -> float | None:
        """Write the counts that are due. Returns the seconds until the next are due, None if all are written."""
        if not self._waiting:
            return None
        left = self._due - self._monotonic()
        if left > 0:
            return left
        self._flush()
        return None

    def close(self) -> None:
        """Write all counts, and take no more notices."""
        self._flush()
        self._rows.clear()
        self._closed, self._write, self._number = True, None, None

    def _wait(self, row: _Row) -> None:
        if row.waits:
            return
        row.waits = True
        due = row.written_at + WRITE_EVERY
        self._due = due if not self._waiting else min(self._due, due)
        self._waiting.append(row)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting or self._write is None:
            return
        now = self._monotonic()
        for row in waiting:
            row.waits, row.written_at = False, now
        self._write([row.record for row in waiting])


def _record(notice: Notice, error: str | None, first: NoticeRecord | None = None) -> NoticeRecord:
    """Make the row of a notice; first: the row that exists already."""
    trace, message = notice.facts.get("traceback"), notice.facts.get("message")
    record = NoticeRecord(
        key=0, event=notice.event, severity=notice.severity, kind=notice.kind, entity_id=_text(notice.entity_id),
        job_id=_text(notice.job_id), text=clean(str(notice.text)), error=_text(error), message=_text(message),
        traceback=None if trace is None else clean(str(trace), LONGEST), first_at=notice.at, at=notice.at,
    )  # fmt: skip
    if first is not None:
        record = replace(record, key=first.key, first_at=first.first_at, others=first.others, node=first.node)
    return record


def _text(value: object) -> str | None:
    return None if value is None else clean(str(value), LONGEST_NAME)
