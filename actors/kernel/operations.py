"""What actors do in the present turn: send, tell, start and stop calls, take numbers. All of it is staged.

Rules
-----
- Nothing here leaves before the turn is durable, and all of it is undone with the turn. So the books of calls and slots
  note in `Transaction.booked` what stood there before.
- What runs under a token is in `calls` until the engine says that it is over; what it occupies of a worker is in
  `slots`, or, while it waits for a child, in `lent`.
- Numbers are not given back: those of an undone turn are missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec

from ..messages.inputs import Message, Release
from ..messages.notices import Notice, Severity
from ..records.base import Record
from ..records.entities import OutboxRow
from ..spec.model import Hook, Task, Workstream
from ..workers.reservations import Lent
from .entity import Acting, Entity
from .transaction import Call, Effect, Port, Receiver, RunHook, StartCall, StopCall, Tell, Transaction, folder_of

if TYPE_CHECKING:
    from ..jobs.job import JobActor
    from ..tasks.task import TaskActor
    from ..workers.scheduler import SchedulerActor
    from ..workers.worker import WorkerActor


class Staging:
    """The kernel as its actors use it in a turn."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self.turn = Transaction()
        self.at = port.now()  # of the present turn
        self.key = 0  # the last that was given
        self.seq = 0  # of the last transition
        self.entities: dict[int, Entity[Any]] = {}
        self.workers: dict[int, WorkerActor] = {}  # the living ones
        self.scheduler: SchedulerActor
        self.calls: dict[int, Call] = {}  # by token: what engines run
        self.slots: dict[int, Call] = {}  # by token: what attempts occupy of workers
        self.lent: dict[int, Lent] = {}  # by token: what they do not occupy, while they wait for a child

    # -- sending and telling -------------------------------------------------------------------------------------------

    def send(self, actor: Receiver, message: Message) -> None:
        """Send a message to another actor; it is received later in this turn."""
        self.turn.queue.append((actor, message))

    def effect(self, effect: Effect) -> None:
        """Have the runtime do something once the turn is durable."""
        self.turn.effects.append(effect)

    def notice(self, event: str, severity: Severity, text: str, entity: Acting | None = None, **facts: Any) -> None:
        """Tell of what no transition tells, once this turn is durable. `facts` are what a program may read of it."""
        kind, entity_id, job_id = "runtime", None, None
        if entity is not None:
            record: Record = entity.record
            kind, entity_id = record.kind, record.id
            job_id = entity.context()[0]
        self.effect(
            Tell(
                Notice(
                    event=event, severity=severity, text=text, at=self.at, kind=kind, entity_id=entity_id,
                    job_id=job_id, facts=facts,
                )
            )
        )  # fmt: skip

    def notice_at_once(
        self, event: str, severity: Severity, text: str, entity: Entity[Any], raised: Exception, **facts: Any
    ) -> None:
        """Tell of what a function of the application's raised, at once: an effect must not hold that error, with all
        that its frames hold, until the turn is durable.
        """
        record: Record = entity.record
        self.port.tell_notice(
            Notice(
                event=event, severity=severity, text=text, at=self.at, kind=record.kind, entity_id=record.id,
                job_id=entity.context()[0], facts=facts, error=raised,
            )
        )  # fmt: skip

    def number(self) -> int:
        """A new key or fencing token: greater than every one before."""
        self.key += 1
        return self.key

    def numbers(self, count: int) -> int:
        """Reserve `count` keys in a row. Returns the first."""
        first = self.key + 1
        self.key += count
        return first

    # -- calls and slots -----------------------------------------------------------------------------------------------

    def begin_call(self, kind: str, key: int, *, index: int = 0, slot: Call | None = None) -> int:
        """Have an engine run something for the entity `key`. Returns its token; `slot` is what the scheduler lent."""
        token = self.number()
        turn = self.turn
        call = self.calls[token] = slot or Call(key, kind, index)
        call.asked = self.port.monotonic()
        turn.booked.append((self.calls, token, None))
        if slot is not None:
            self.slots[token] = slot
            turn.booked.append((self.slots, token, None))
        turn.effects.append(StartCall(token, key, kind, index))
        return token

    def heard(self, token: int) -> None:
        """What was asked for under `token` is durable, and its engine hears of it now."""
        if (call := self.calls.get(token)) is not None:
            call.heard = self.port.monotonic()

    def unheard(self, token: int) -> None:
        """Its engine cannot begin it for now: it is as if that had not heard of it."""
        if (call := self.calls.get(token)) is not None:
            call.heard = None

    def told(self, token: int) -> None:
        """That what runs under `token` is to stop is durable, and its engine hears of it now."""
        if (call := self.calls.get(token)) is not None:
            call.told = True

    def late(self, token: int, now: float) -> float:
        """Seconds by which an engine heard of a call after it was asked for, so far (now: monotonic)."""
        call = self.calls.get(token)
        return 0.0 if call is None else (now if call.heard is None else call.heard) - call.asked

    def end_call(self, token: int) -> Call | None:
        """Take a call that is over out of the books."""
        call = self.calls.pop(token, None)
        if call is not None:
            self.turn.booked.append((self.calls, token, call))
        return call

    def stop_call(self, token: int, *, force: bool = False) -> None:
        """Have a call stopped, if it runs."""
        if token in self.calls:
            self.effect(StopCall(token, force))

    def free_slot(self, token: int) -> None:
        """Give back what the attempt under `token` occupies, if it still does."""
        slot = self.slots.pop(token, None)
        if slot is not None:
            self.turn.booked.append((self.slots, token, slot))
            self.send(self.workers.get(slot.worker) or self.scheduler, Release(slot.key, slot))
        elif (lent := self.lent.pop(token, None)) is not None:
            self.turn.booked.append((self.lent, token, lent))

    def leave_off(self) -> None:
        """All is over, whatever still ran: hold no calls, and no turn."""
        for book in (self.calls, self.slots, self.lent):
            book.clear()
        self.turn = Transaction()

    def lend_slot(self, token: int) -> bool:
        """Let others have what the attempt under `token` occupies, until it wants it back. False if it has nothing."""
        slot = self.slots.get(token)
        if slot is None:
            return False
        self.free_slot(token)
        self.note_lent(token, Lent(slot))
        return True

    def note_lent(self, token: int, lent: Lent) -> None:
        """Note that a slot is lent, and whether it is wanted back."""
        self.turn.booked.append((self.lent, token, self.lent.get(token)))
        self.lent[token] = lent

    def take_back(self, token: int, slot: Call) -> None:
        """Note that an attempt occupies its slot again."""
        self.turn.booked += [(self.lent, token, self.lent.pop(token)), (self.slots, token, None)]
        self.slots[token] = slot

    def job_of(self, task: int) -> JobActor:
        """The job of a task, by its key."""
        return cast("TaskActor", self.entities[task]).stream.job

    def keep_hook(
        self, entity: Entity[Any], hook: Hook, event: str, stream: Workstream, task: Task | None = None
    ) -> None:
        """Have a hook of an ended entity run at least once, whatever happens: its row commits with the transition.

        It keeps what its workstream says about where to run, since that may be gone when it runs.
        """
        record = entity.record
        job_id, workstream_id, attempt, _ = entity.context()
        context = {
            "event": event, "entity_id": record.id, "name": record.name, "state": str(record.state),
            "reason": record.reason, "job_id": job_id, "workstream_id": workstream_id, "attempt": attempt,
        }  # fmt: skip
        row = OutboxRow(
            key=self.number(), at=self.at, owner=record.id, event=event, body=msgspec.Raw(msgspec.json.encode(hook)),
            context=msgspec.Raw(msgspec.json.encode(context)), folder=stream.folder, cwd=folder_of(stream, task),
            env={**stream.env, **task.env} if task is not None else stream.env,
            secrets=[*stream.secrets, *task.secrets] if task is not None else stream.secrets,
        )  # fmt: skip
        self.run_hook(row)

    def run_hook(self, row: OutboxRow) -> None:
        """Write a row of the outbox, and have its hook run."""
        self.calls[row.key] = Call(0, "hook")
        self.turn.booked.append((self.calls, row.key, None))
        self.turn.extra.append(row)
        self.effect(RunHook(row.key, row))
