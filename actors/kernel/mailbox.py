"""The messages to a job and its tasks that no body has received yet, and the bodies that wait for some (DESIGN, 10).

Rules
- Messages of one name are received in the order in which they were sent. A message to the job goes to the first task
  that asks for it, a message to a task only to that task.
- A receive and the step that keeps its value are one turn, so they commit together: no message is lost or received
  twice.
- A message wakes the one body that has waited longest, once the message is durable. That body then takes it by another
  input: a body that has stopped waiting meanwhile takes nothing, and the next one is woken.
- Unread messages belong to the job, not to a run: a further run of the job receives them.
- The changes of a turn can be undone with the turn (`Transaction.booked`).
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from ..messages.errors import TooManyMessages
from ..messages.inputs import WaitOver
from ..records.message import MessageRecord
from .transaction import Answer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..messages.commands import Reply, Send
    from ..records.entities import JobRecord
    from ..records.task import TaskRecord
    from .entity import Entity
    from .kernel import Kernel

MOST_UNREAD = 10_000
"""The most unread messages of one job; a further message is refused."""


class _Waiting(msgspec.Struct, frozen=True):
    """A body that waits for a message to its task, or to its job. came: its place in the order of all waits, which its
    number does not show. resting: the key of its task, if its attempt waits without a body: then there is no reply, and
    its number is the negative token.
    """

    task: str
    reply: Reply | None
    came: int
    resting: int = 0


class Mailbox:
    """The unread messages of one job."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._unread: dict[str, dict[int, MessageRecord]] = {}  # by name and key, oldest first
        self._waiting: dict[str, dict[int, _Waiting]] = {}  # by name and number, in the order in which they came
        self._arrivals = count(1)

    def load(self, records: Iterable[MessageRecord]) -> None:
        """Add unread messages of the journal, oldest first."""
        for record in records:
            self._unread.setdefault(record.name, {})[record.key] = record

    def sort(self) -> None:
        """Put the messages and the waits in their order, after an undone turn."""
        for name, unread in self._unread.items():
            self._unread[name] = dict(sorted(unread.items()))
        for name, waiting in self._waiting.items():
            self._waiting[name] = dict(sorted(waiting.items(), key=lambda item: item[1].came))

    # -- sending -------------------------------------------------------------------------------------------------------

    def put(self, job: JobRecord, task: str | None, message: Send) -> None:
        """Add a message, and wake a body that waits for it. Raises TooManyMessages."""
        kernel = self._kernel
        if sum(map(len, self._unread.values())) >= MOST_UNREAD:
            raise TooManyMessages(
                f"{MOST_UNREAD:,} messages to job {job.id!r} are unread, and it takes no more: none was sent. Send it "
                "again when the job has received some"
            )
        record = MessageRecord(
            key=kernel.number(), job=job.key, job_id=job.id, first=job.first, name=message.name, task=task,
            raw_value=msgspec.Raw(msgspec.json.encode(message.value)), sent_at=kernel.at, by=message.by,
        )  # fmt: skip
        kernel.turn.extra.append(record)
        self._note(self._unread.setdefault(record.name, {}), record.key, record)
        self._wake(record.name)

    def _wake(self, name: str) -> None:
        """Wake the first body that may receive an unread message of that name."""
        unread, waiting = self._unread.get(name, {}), self._waiting.get(name, {})
        for message in unread.values():
            for number, one in list(waiting.items()):
                if message.task in {None, one.task}:
                    self._note(waiting, number, None)
                    if self._told(number, one):
                        return

    def _told(self, number: int, one: _Waiting) -> bool:
        """Notify a waiting body that there may be a message. False if that body does not wait any more."""
        if one.reply is not None:
            self._kernel.effect(Answer(one.reply))
            return True
        task = self._kernel.entities.get(one.resting)
        if task is None or task.record.token != -number or -number in self._kernel.calls:
            return False
        self._kernel.send(task, WaitOver())
        return True

    def wake_others(self) -> None:
        """Wake other bodies that wait for unread messages: the body that was woken may have ended without a receive."""
        for name in list(self._unread) if self._waiting else ():
            self._wake(name)

    # -- receiving -----------------------------------------------------------------------------------------------------

    def take(self, name: str, task: TaskRecord, step: int) -> MessageRecord | None:
        """Receive the oldest message of that name for a task, if there is one. step: the key of the step."""
        unread = self._unread.get(name, {})
        found = next((one for one in unread.values() if one.task in {None, task.name}), None)
        if found is None:
            return None
        received = replace(found, received_at=self._kernel.at, received_by=task.id, step=step)
        self._kernel.turn.extra.append(received)
        self._note(unread, found.key, None)
        if not unread:
            self._note(self._unread, name, None)
        return received

    def wait(self, name: str, task: str, number: int, reply: Reply) -> None:
        """Answer when there may be a message of that name for a task."""
        self._note(self._waiting.setdefault(name, {}), number, _Waiting(task, reply, next(self._arrivals)))
        self._wake(name)

    def rest(self, name: str, task: Entity[TaskRecord]) -> None:
        """Wake an attempt that waits without a body when there may be a message of that name for its task."""
        record = task.record
        waits = _Waiting(record.name, None, next(self._arrivals), record.key)
        self._note(self._waiting.setdefault(name, {}), -record.token, waits)
        self._wake(name)

    def leave(self, name: str, number: int) -> None:
        """Remove a body that has stopped waiting; if it was woken before, wake the next body."""
        waiting = self._waiting.get(name, {})
        if number in waiting:
            self._note(waiting, number, None)
            if not waiting:
                self._note(self._waiting, name, None)
        else:
            self._wake(name)

    def _note(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        """Change a table, so that the change is undone with the turn."""
        self._kernel.turn.booked.append((table, key, table.get(key)))
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
