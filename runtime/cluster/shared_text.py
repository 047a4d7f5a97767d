"""The text that bodies of this node emit, for listeners of other nodes: it is written while there are listeners.

Rules
-----
- Without listeners on other nodes, nothing is written and nothing is kept. Listeners repeat their notification; a
  listener that has not done so for `LISTENED` seconds counts as ended.
- New text is written in one statement, at most once in `EVERY` seconds, and about `ROWS` rows at most; the rest follows
  with the next writes, in turn. Of each text the last `SHARED` characters are in the database. A slower reader gets the
  number of characters that it has missed.
- No body waits for a write: the text comes from `LiveTasks`, masked and bounded. A failed write is repeated with
  growing delays, with the newest text; a notice reports failures that last.
- The end of an attempt is written, too, and its text removed `LINGERS` seconds later, when listeners have read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import RuntimeClosed
from ..journal.live import EVERYTHING, LiveText, TextPlace
from ..observation.lasting_failure import LastingFailure
from ..observation.live import PIECE
from .delays import Delays

if TYPE_CHECKING:
    from ..observation.live import LiveTask, LiveTasks
    from .node_context import NodeContext

EVERY = 0.2
LATEST = 15.0
"""Seconds between two writes; and at most, while writing fails."""
LISTENED = 15.0
"""Seconds for which a listener counts after its notification."""
LINGERS = 10.0
"""Seconds after the end of an attempt in which its text can be read."""
SHARED = 256 * 1024
"""Characters of an attempt's text that are in the database."""
MOST = 1_000
"""Tasks of this node whose text is written at the same time."""
ROWS = 1_000
"""Rows of one write, about: so many, and the further ones of the last task among them."""


class SharedText:
    """Writes the text of one node's bodies while other processes listen. All of it is used on the loop."""

    def __init__(self, node: NodeContext, live: LiveTasks) -> None:
        self._node = node
        self._live = live
        self._shared: dict[int, _Shared] = {}  # by the keys of the tasks
        self._over: list[tuple[float, TextPlace]] = []  # texts to remove, and when
        self._connection = 0
        self._running = False
        self._failure = LastingFailure(node.host.notice, "the text of bodies cannot be written for other nodes")
        node.cluster.on_listened = self.listened

    def listened(self, tasks: Sequence[int]) -> None:
        """Note that there are listeners to these tasks; most of the tasks run on other nodes."""
        until = self._node.host.monotonic() + LISTENED
        for key in tasks:
            shared = self._shared.get(key)
            if shared is None:
                live = self._live.of(key) if len(self._shared) < MOST else None
                if live is None:
                    continue
                shared = self._shared[key] = _Shared(live)
                mine = key, live.token  # its text that was due for removal has a reader again
                self._over = [(due, place) for due, place in self._over if place[:2] != mine]
            shared.until = until
        if self._shared and not self._running:
            self._running = True
            self._node.start(self._run)

    async def _run(self) -> None:
        delays = Delays(EVERY, LATEST)
        try:
            while self._shared or self._over:
                with self._failure.contained():
                    await self._write()
                    delays = Delays(EVERY, LATEST)
                await self._node.pause(delays())
        except RuntimeClosed:
            pass  # all text of this node is removed at the close
        finally:
            self._running = False

    async def _write(self) -> None:
        """Write the new text, and remove the text that is not read any more."""
        now = self._node.host.monotonic()
        new = self._unwritten()
        cuts = {place for due, place in self._over if due <= now}
        cuts |= {self._shared[key].cut(parts) for key, parts in new.items()}
        if new or cuts:
            written = [part for parts in new.values() for part in parts]
            connection = await self._node.ask_live(self._node.cluster.write_text, written, [*cuts])
            self._over = [(due, place) for due, place in self._over if place not in cuts]
            for key, parts in new.items():
                shared = self._shared[key] = self._shared.pop(key)  # the others come first next time
                shared.written(parts)
            if connection != self._connection and self._connection:
                for shared in self._shared.values():
                    shared.again()  # the database may have lost what was written before
            self._connection = connection
        for key, shared in list(self._shared.items()):
            if shared.done or shared.until < now:
                del self._shared[key]
                due = now + LINGERS if shared.done else now
                self._over.append((due, TextPlace(key, shared.live.token, EVERYTHING)))

    def _unwritten(self) -> dict[int, list[LiveText]]:
        """The rows of the next write, by the keys of the tasks."""
        new: dict[int, list[LiveText]] = {}
        rows = 0
        for key, shared in self._shared.items():
            if rows >= ROWS:
                break
            if parts := shared.unwritten():
                new[key] = parts
                rows += len(parts)
        return new


class _Shared:
    """The text of one attempt, as far as it was written."""

    def __init__(self, live: LiveTask) -> None:
        self.live = live
        self.until = 0.0  # monotonic: when the listeners count as ended, unless a notification comes
        self.row = 0  # the place where the last row begins
        self.done = False  # the end of the attempt was written
        self._end = 0  # the characters that were written

    def unwritten(self) -> list[LiveText]:
        """The rows to write: the last one anew, if it has grown, and further ones."""
        live = self.live
        if not live.token or (live.text.size == self._end and not live.over):
            return []
        missing, text = live.text.after(self.row)
        missing, text = missing + max(len(text) - SHARED, 0), text[-SHARED:]
        first = self.row + missing
        rows = [LiveText(live.key, live.token, first + at, text[at : at + PIECE]) for at in range(0, len(text), PIECE)]
        return [*rows, LiveText(live.key, live.token, live.text.size, "", over=True)] if live.over else rows

    def cut(self, parts: Sequence[LiveText]) -> TextPlace:
        """The place before which rows are removed."""
        last = parts[-1]
        return TextPlace(last.task, last.token, max(last.place + len(last.text) - SHARED, 0))

    def written(self, parts: Sequence[LiveText]) -> None:
        """Note that these rows were written."""
        last = parts[-1]
        self._end = last.place + len(last.text)
        self.row = last.place if len(last.text) < PIECE else self._end
        self.done = last.over

    def again(self) -> None:
        """Have all of it written again that is kept."""
        self.row = self._end = 0
