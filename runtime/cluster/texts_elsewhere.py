"""The text that bodies of other nodes emit, for the readers of this node.

Rules
-----
- All readers of a task share one copy of its text (`text_copy.py`), as on the node that runs it: no reader delays
  another.
- While there are readers, this node notifies the others of it again and again, and one statement reads the new text of
  all tasks: every `EVERY` seconds while text comes, up to every `IDLE` seconds else. Without readers nothing is done.
- If reading fails, because the database does not answer or for another reason, readers wait; a notice reports failures
  that last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio

from ..errors import JournalError, RuntimeClosed
from ..journal.live import LiveText
from ..observation.lasting_failure import LastingFailure
from ..observation.live import TASK_ENDED, TextStream
from .delays import Delays
from .text_copy import CHECKS, EVERY, IDLE, RENEWS, TextCopy

if TYPE_CHECKING:
    from ...actors.records.task import TaskRecord
    from ..journal.contract import Reader
    from .node_context import NodeContext


class TextsElsewhere:
    """The text of other nodes' bodies that readers of this node read. All of it is used on the loop."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._copies: dict[int, TextCopy] = {}  # by the keys of the tasks
        self._running = False
        self._asked = anyio.Event()  # for a text that is not read yet
        self._renews_at = self._checks_at = float("-inf")
        self._failure = LastingFailure(node.host.notice, "the text of other nodes' bodies cannot be read")

    def stream(self, record: TaskRecord, token: int = 0, place: int = 0) -> TextStream:
        """A new reader of the text of a task, as `LiveTasks.stream` makes one of a task that runs here."""
        if record.state in TASK_ENDED:
            return TextStream(None)
        copy = self._copies.get(record.key)
        if copy is None or copy.live.over:
            copy = self._copies[record.key] = TextCopy(record)
            self._renews_at = self._checks_at = float("-inf")
            self._asked.set()
        reader = TextStream(copy.live, token, place)
        if not self._running:
            self._running = True
            self._node.start(self._run)
        return reader

    async def _run(self) -> None:
        delays = Delays(EVERY, IDLE)
        try:
            while self._drop_unread():
                with self._failure.contained():
                    await self._check()  # first: the record of a new reader may be old
                    if await self._look():
                        delays = Delays(EVERY, IDLE)
                await self._node.pause(delays(), self._asked)
        except RuntimeClosed:
            pass
        finally:
            self._running = False
            for copy in self._copies.values():
                copy.end()
            self._copies.clear()

    def _drop_unread(self) -> bool:
        """Drop the texts without readers, and those that are over. Returns whether there are others."""
        self._copies = {key: one for key, one in self._copies.items() if one.live.readers and not one.live.over}
        return bool(self._copies)

    async def _look(self) -> bool:
        """Read once. Returns whether there was any text."""
        node, now = self._node, self._node.host.monotonic()
        self._asked = anyio.Event()
        if now >= self._renews_at:
            self._renews_at = now + RENEWS
            try:
                await node.ask_live(node.cluster.listen, [*self._copies])
            except JournalError:
                self._renews_at = now
                raise
        after = [one.place for one in self._copies.values()]
        parts: list[LiveText] = await node.ask_live(node.cluster.read_text, after)
        for part in parts:
            if (copy := self._copies.get(part.task)) is not None:
                copy.take(part)
        return bool(parts)

    async def _check(self) -> None:
        """Read the records of the tasks, if it is time: an attempt may be over although its node has written no end."""
        node, now = self._node, self._node.host.monotonic()
        if now < self._checks_at:
            return
        self._checks_at = now + CHECKS
        ids = [one.live.task_id for one in self._copies.values()]
        records = await node.ask(_records, node.host.journal.reader, ids)
        for copy in self._copies.values():
            if copy.live.task_id in records:
                copy.compare(records[copy.live.task_id])


def _records(journal: Reader, ids: Sequence[str]) -> dict[str, TaskRecord | None]:
    """Read the records of these tasks. Blocks."""
    return {task_id: journal.task(task_id) for task_id in ids}
