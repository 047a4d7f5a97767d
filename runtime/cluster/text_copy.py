"""A copy of the text of an attempt that another process runs, as it is read from the database.

Rules
-----
- A copy covers one attempt. It ends when the other node has written the end. If that node has failed and wrote no end,
  the copy ends soon after the task's record says that the attempt is over.
- The first record may be out of date, since a handle may have read it earlier. So until the record is read again, and
  while no text was read, a newer attempt replaces the covered one.
- Text that is read twice is added once. Missing text in between is counted (`KeptText`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..journal.live import TextPlace
from ..observation.live import TASK_ENDED, LiveTask
from .live_progress import IN_AN_ATTEMPT

if TYPE_CHECKING:
    from ...actors.records.task import TaskRecord
    from ..journal.live import LiveText

EVERY = 0.2
IDLE = 1.0
"""Seconds between two reads: while text comes, and at most."""
RENEWS = 5.0
"""Seconds between two notifications that this node listens."""
CHECKS = 2.0
"""Seconds between two looks at the records of the tasks."""


class TextCopy:
    """The text of an attempt that another node runs: that of the record, or else the next one."""

    def __init__(self, record: TaskRecord) -> None:
        self.live = LiveTask(record.id, record.key)
        self._compared = False  # the record was read again
        self._gone = False  # the last look at the record found that the attempt is over
        self._cover(record)

    def _cover(self, record: TaskRecord) -> None:
        """Cover the attempt of a record, or else the next one."""
        runs = record.state in IN_AN_ATTEMPT
        self.live.token = record.token if runs else 0
        self._least = record.token if runs else record.token + 1  # no earlier attempt counts

    @property
    def place(self) -> TextPlace:
        """The place up to which it is read."""
        return TextPlace(self.live.key, self.live.token or self._least, self.live.text.size)

    def take(self, part: LiveText) -> None:
        """Add text that was read, perhaps repeatedly."""
        live = self.live
        if part.token < self._least or live.over:
            return
        if live.token and part.token != live.token and (self._compared or live.text.size):  # another attempt runs
            self.end()
            return
        live.token = self._least = part.token
        size = live.text.size
        if part.place > size:
            live.text.add("", part.place - size)
        live.show(part.text[max(size - part.place, 0) :])
        if part.over:
            self.end()

    def compare(self, record: TaskRecord | None) -> None:
        """End if the record says, twice, that the attempt is over: then its node has written no end.

        A task that waits for its next attempt keeps the token of the last one.
        """
        if not (record is None or record.state in TASK_ENDED or self._compared or self.live.text.size):
            self._cover(record)  # the last text of an ended task may still be in the database
        self._compared = True
        gone = record is None or record.state in TASK_ENDED or self._over_in(record)
        if gone and self._gone:
            self.end()
        self._gone = gone

    def _over_in(self, record: TaskRecord) -> bool:
        """Whether the attempt is over, according to the record of a task that has not ended."""
        token = self.live.token
        if not token:
            return False  # it waits for the next one
        return record.token > token or (record.token == token and record.state not in IN_AN_ATTEMPT)

    def end(self) -> None:
        """End: no text follows."""
        self.live.over = True
        self.live.wake()
