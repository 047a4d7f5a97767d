"""The progress of running bodies, and the text that they emit. Both are kept only in memory.

`progress_writer.py` shows the progress to other processes; `runtime/cluster/` shows both to other nodes.

Rules
-----
- A task has an entry here once its body has reported progress or emitted text, or has a listener. The entry ends with
  the attempt.
- Progress is emitted as a notice of the event `progress`, to readers of events only: at most one in `EVERY` seconds for
  a task, and always the last one.
- Of the text the last `KEPT` characters are kept. A reader has a place in it and no buffer of its own: a slow reader
  delays no other, and gets the number of characters that it has missed (`Dropped`).
- A stream covers one attempt: the running one, or else the next. It ends with the attempt, with the task, and when the
  runtime closes.
- Secrets are masked. A text that may be the beginning of a secret is held back until it is certain that it is none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast
from weakref import WeakSet

import anyio
from msgspec.structs import replace

from ...actors.messages.notices import Notice
from ...actors.records.transition import Transitioned
from ..dispatch.timers import Timer, Timers
from ..journal.live import LiveProgress
from ..text.printable import printable
from .events import Dropped, EventBus
from .filters import Event

if TYPE_CHECKING:
    from ...actors.kernel.kernel import Kernel
    from ...actors.records.task import TaskRecord
    from ...actors.tasks.task import TaskActor
    from ..calling import Progress, Shown
    from ..text.secrets import Mask, MaskedStream

EVERY = 0.2
"""Seconds between two notices of one task's progress."""
KEPT = 1024 * 1024
"""Characters of a running attempt's text that are kept."""
PIECE = 4096
"""Characters of a piece, below which the next text is added to it."""
PROGRESS = "progress"
"""The event of the notices."""
TASK_ENDED = frozenset({"completed", "failed", "cancelled", "skipped"})
"""The phases of a task that runs no more in this run of its job."""


class TextStream:
    """One reader of a task's text: an async iterator of parts, and of `Dropped` where characters are missing."""

    def __init__(self, live: LiveTask | None, token: int = 0, place: int = 0) -> None:
        self._live = live
        self._token = token
        self._place = place  # characters before the next one
        self._arrived = anyio.Event()
        if live is not None:
            live.readers.add(self)

    @property
    def place(self) -> tuple[int, int]:
        """Where this reader is: the token of the attempt, and the characters before the next one."""
        return self._token, self._place

    def wake(self) -> None:
        """Wake the reader: there is more to read, or the stream has ended."""
        self._arrived.set()

    def close(self) -> None:
        """Read no more: the iterator ends."""
        if self._live is not None:
            self._live.readers.discard(self)
            self._live = None
        self._arrived.set()

    def __aiter__(self) -> TextStream:
        return self

    async def __anext__(self) -> str | Dropped:
        while (live := self._live) is not None:
            if (part := self._next(live)) is not None:
                return part
            if live.over:
                break
            self._arrived = anyio.Event()
            await self._arrived.wait()
        raise StopAsyncIteration

    def _next(self, live: LiveTask) -> str | Dropped | None:
        """The text that can be read; None if there is none."""
        if self._token != live.token:  # of an earlier attempt, or from before the first text
            self._token, self._place = live.token, 0
        missing, text = live.text.after(self._place)
        if missing:
            self._place += missing
            return Dropped(missing)
        self._place += len(text)
        return text or None


class KeptText:
    """The end of a text that grows. Places are characters from its beginning."""

    def __init__(self) -> None:
        self.size = 0  # of the whole text
        self._kept = 0
        self._pieces: deque[str] = deque()

    def add(self, text: str, skipped: int = 0) -> None:
        """Add text. skipped: characters before it that are missing."""
        if skipped:
            self._pieces.clear()  # the kept text has no gaps
            self._kept = 0
            self.size += skipped
        if not text:
            return
        self.size += len(text)
        self._kept += len(text)
        if self._pieces and len(self._pieces[-1]) < PIECE:
            self._pieces[-1] += text
        else:
            self._pieces.append(text)
        while self._kept > KEPT:
            oldest = self._pieces.popleft()
            cut = min(len(oldest), self._kept - KEPT)
            self._kept -= cut
            if cut < len(oldest):
                self._pieces.appendleft(oldest[cut:])

    def after(self, place: int) -> tuple[int, str]:
        """How many characters after a place are missing, and the text after these."""
        first = self.size - self._kept
        missing, wanted = max(first - place, 0), min(self.size - place, self._kept)
        found: list[str] = []
        for piece in reversed(self._pieces):
            if wanted <= 0:
                break
            found.append(piece[-wanted:])
            wanted -= len(piece)
        return missing, "".join(reversed(found))


class LiveTask:
    """The progress and text of the running attempt of one task. key: of the task. token: 0 while none is known."""

    def __init__(self, task_id: str, key: int) -> None:
        self.task_id = task_id
        self.key = key
        self.token = 0
        self.over = False
        self.progress: Progress | None = None
        self.text = KeptText()
        self.readers: WeakSet[TextStream] = WeakSet()
        self.masked: MaskedStream | None = None
        self.told_at = float("-inf")  # monotonic, of the last notice
        self.heard_at = float("-inf")  # monotonic, of the last heartbeat
        self.timer: Timer | None = None  # for the next notice

    def show(self, text: str) -> None:
        """Add text, and wake the readers."""
        self.text.add(text)
        self.wake()

    def wake(self) -> None:
        """Wake the readers."""
        for reader in list(self.readers):
            reader.wake()


class LiveTasks:
    """The progress and text of the bodies of one runtime. All of it is used on the loop."""

    def __init__(self, kernel: Kernel, hub: EventBus, timers: Timers) -> None:
        self._kernel = kernel
        self._hub = hub
        self._timers = timers
        self._tasks: dict[str, LiveTask] = {}  # by the id of the task
        self._listens = False
        self.on_change: Callable[[], None] | None = None
        """Called when the progress of a task has changed, as often as readers of events are told, and when it ends."""

    def all_progress(self, most: int) -> list[LiveProgress]:
        """The last progress of at most so many running bodies."""
        progress: list[LiveProgress] = []
        for task_id, live in self._tasks.items():
            if live.progress is not None:
                progress.append(LiveProgress(task_id, live.key, live.token, live.progress))
                if len(progress) == most:
                    break
        return progress

    def progress_in(self, workstream: str) -> dict[str, Progress]:
        """The last progress of the running bodies of a workstream, by the names of their tasks."""
        begins = f"{workstream}/"
        found = {task_id: live.progress for task_id, live in self._tasks.items() if task_id.startswith(begins)}
        return {task_id.removeprefix(begins): progress for task_id, progress in found.items() if progress is not None}

    def progress(self, task_id: str) -> Progress | None:
        """The last progress that the running body of a task has reported."""
        live = self._tasks.get(task_id)
        return None if live is None else live.progress

    def stream(self, record: TaskRecord, *, over: bool = False, token: int = 0, place: int = 0) -> TextStream:
        """A new reader of a task's text. over: whether no further attempt comes. token, place: where to begin, if the
        attempt is that one still (`TextStream.place`).
        """
        live = self._tasks.get(record.id)
        if live is None and not over:
            live = self._begin(record.id, record.key)
            self._note_attempt(live)
        return TextStream(live, token, place)

    def of(self, key: int) -> LiveTask | None:
        """The running attempt of a task (by key) of this runtime, or the next one; None if there will be none here."""
        entity = self._kernel.entities.get(key)
        if entity is None or entity.record.kind != "task" or str(entity.record.state) in TASK_ENDED:
            return None
        record = entity.record
        live = self._tasks.get(record.id)
        if live is None:
            live = self._begin(record.id, key)
            self._note_attempt(live)
        return live

    def show(self, token: int, shown: Shown, mask: Mask | None = None) -> bool:
        """Show what a body has sent. Returns whether a heartbeat of it is due. Late ones, and those of hooks, are
        dropped.
        """
        call = self._kernel.calls.get(token)
        if call is None or call.kind != "body" or (entity := self._kernel.entities.get(call.key)) is None:
            return False
        task_id = str(entity.record.id)
        live = self._tasks.get(task_id)
        if live is None or live.token not in {0, token}:
            if live is not None:
                self._end(live)
            live = self._begin(task_id, call.key)
        live.token = token
        if shown.text or shown.skipped:
            self._add(live, shown, mask)
        if shown.progress is not None:
            text = shown.progress.text
            live.progress = shown.progress if mask is None else replace(shown.progress, text=mask.text(text))
            self._tell_soon(live)
        now = self._kernel.port.monotonic()
        due = now - live.heard_at >= EVERY
        if due:
            live.heard_at = now
        return due

    def _begin(self, task_id: str, key: int) -> LiveTask:
        if not self._listens:
            self._listens = True
            self._hub.listen(self)
        live = self._tasks[task_id] = LiveTask(task_id, key)
        return live

    def _add(self, live: LiveTask, shown: Shown, mask: Mask | None) -> None:
        text = shown.text
        if mask is not None:
            if shown.skipped or live.masked is None:
                live.masked = mask.stream()
            text = live.masked.feed(text.encode()).decode("utf-8", "replace")
        if shown.skipped:
            live.text.add("", shown.skipped)
        live.show(text)

    def _tell_soon(self, live: LiveTask) -> None:
        if live.timer is not None:
            return
        left = live.told_at + EVERY - self._kernel.port.monotonic()
        if left <= 0:
            self._tell(live)
        else:
            live.timer = self._timers.arm(self._kernel.port.monotonic() + left, self._tell, live)

    def _tell(self, live: LiveTask) -> None:
        """Tell the readers of events the latest progress."""
        live.timer = None
        if (progress := live.progress) is None:
            return
        live.told_at = self._kernel.port.monotonic()
        if self.on_change is not None:
            self.on_change()
        self._hub.tell_readers(
            Notice(
                event=PROGRESS, severity="info", text=f"{live.task_id}: {in_words(progress)}",
                at=self._kernel.port.now(), kind="task", entity_id=live.task_id,
                job_id=live.task_id.partition("@")[0],
                facts={"done": progress.done, "of": progress.of, "text": progress.text},
            )
        )  # fmt: skip

    def _end(self, live: LiveTask) -> None:
        """The attempt is over: emit the progress that was not emitted yet, and end the streams."""
        if self._tasks.get(live.task_id) is live:
            del self._tasks[live.task_id]
        if live.timer is not None:
            self._timers.cancel(live.timer)
            self._tell(live)
        if live.progress is not None and self.on_change is not None:
            self.on_change()
        live.over = True
        if live.masked is not None:
            live.text.add(live.masked.end().decode("utf-8", "replace"))
        live.wake()

    # -- for the event bus ---------------------------------------------------------------------------------------------

    def heard(self, events: Sequence[Event]) -> None:
        """End the entries of attempts that are over."""
        if not self._tasks:
            return
        for event in events:
            if not isinstance(event, Transitioned) or event.kind != "task":
                continue
            live = self._tasks.get(event.entity_id)
            if live is None:
                continue
            ended = event.phase in TASK_ENDED
            if not ended and not live.token:
                self._note_attempt(live)
            elif ended or live.token not in self._kernel.calls:
                self._end(live)

    def _note_attempt(self, live: LiveTask) -> None:
        """Note the attempt that a waiting reader will listen to, once there is one."""
        entity = self._kernel.entities.get(live.key)
        if entity is None:  # the job has been released here, or was handed over
            self._end(live)
        elif (token := cast("TaskActor", entity).record.token) in self._kernel.calls:
            live.token = token

    def hub_closed(self) -> None:
        """End all entries: the runtime closes."""
        for live in list(self._tasks.values()):
            self._end(live)


def in_words(progress: Progress) -> str:
    """A progress for people, such as "3 of 10 (30 %), reading". Harmless on a terminal."""
    said = f"{progress.done:,.10g}"
    if progress.of is not None:
        said += f" of {progress.of:,.10g}"
        if progress.of:
            said += f" ({min(progress.done / progress.of, 1.0):.0%})".replace("%", " %")
    return f"{said}, {printable(progress.text)}" if progress.text else said
