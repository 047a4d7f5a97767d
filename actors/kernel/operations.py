"""Operations of actors in the present turn: send messages, emit effects, start and stop calls. All are staged.

Rules
-----
- Nothing is released before the turn is durable, and all of it is undone with the turn. So each change of the tables of
  calls and slots saves the earlier entry in `Transaction.booked`.
- A call is in `calls` under its token until the engine reports its end. The slot that it occupies on a worker is in
  `slots`, or in `lent` while the attempt waits: for a child job, a time, a message, a decision, a step.
- The units of tools that steps of a body hold or wait for are in `uses`. They end with the body at the latest.
- The steps of a body that run on workers, or wait for them, are in `step_calls`. When the body has ended they are
  stopped; the call of each is in `calls`, and its slot in `slots`, until the engine reports its end.
- Numbers are never reused: after an undone turn, the numbers that it took are missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ..messages.inputs import BodyOver, Message, Release
from ..messages.notices import Notice, Severity
from ..records.base import Record
from ..records.entities import OutboxRow
from ..spec.model import Hook, Task, Workstream
from .entity import Entity, EntityOperations
from .transaction import (
    CallOrder,
    Effect,
    LentSlot,
    Port,
    Receiver,
    RunHook,
    StartCall,
    StepCall,
    StopCall,
    Tell,
    ToolUse,
    Transaction,
    folder_of,
)

if TYPE_CHECKING:
    from ..records.entities import WorkerRecord
    from .contract import Scheduler

OfStep = TypeVar("OfStep", ToolUse, StepCall)


class TurnOperations:
    """The interface of the kernel that actors use in a turn."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self.turn = Transaction()
        self.at = port.now()  # of the present turn
        self.key = 0  # the last key or token that was assigned
        self.seq = 0  # number of the last transition
        self.entities: dict[int, Entity[Any]] = {}
        self.workers: Mapping[int, Entity[WorkerRecord]]  # the living ones
        self.scheduler: Scheduler
        self.calls: dict[int, CallOrder] = {}  # by token: the calls that engines run
        self.slots: dict[int, CallOrder] = {}  # by token: the slots of workers that attempts and steps occupy
        self.lent: dict[int, LentSlot] = {}  # by token: slots that attempts lend to others while they wait
        self.uses: dict[int, dict[int, ToolUse]] = {}  # by token and number: uses of tools by the steps of bodies
        self.step_calls: dict[int, dict[int, StepCall]] = {}  # by token and number: steps of bodies on workers

    # -- sending and emitting ------------------------------------------------------------------------------------------

    def send(self, actor: Receiver, message: Message) -> None:
        """Send a message to another actor; the actor receives it later in this turn."""
        self.turn.queue.append((actor, message))

    def effect(self, effect: Effect) -> None:
        """Have the runtime do something once the turn is durable."""
        self.turn.effects.append(effect)

    def notice(
        self, event: str, severity: Severity, text: str, entity: EntityOperations | None = None, **facts: Any
    ) -> None:
        """Emit a notice of something that is no transition, once this turn is durable. facts: for programs."""
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
        """Emit at once a notice that a function of the application raised. An effect would keep the error, and all
        objects of its frames, in memory until the turn is durable.
        """
        record: Record = entity.record
        self.port.tell_notice(
            Notice(
                event=event, severity=severity, text=text, at=self.at, kind=record.kind, entity_id=record.id,
                job_id=entity.context()[0], facts=facts, error=raised,
            )
        )  # fmt: skip

    def number(self) -> int:
        """A new key or fencing token, greater than all before it."""
        self.key += 1
        return self.key

    def numbers(self, count: int) -> int:
        """Reserve `count` keys in a row. Returns the first."""
        first = self.key + 1
        self.key += count
        return first

    # -- calls and slots -----------------------------------------------------------------------------------------------

    def begin_call(self, kind: str, key: int, *, index: int = 0, slot: CallOrder | None = None) -> int:
        """Have an engine run a call for the entity `key`. Returns its token. slot: assigned by the scheduler; a step's
        has the same index.
        """
        token = self.number()
        turn = self.turn
        call = self.calls[token] = slot or CallOrder(key, kind, index)
        call.asked = self.port.monotonic()
        turn.booked.append((self.calls, token, None))
        if slot is not None:
            self.slots[token] = slot
            turn.booked.append((self.slots, token, None))
        turn.effects.append(StartCall(token, key, kind, index))
        return token

    def begin_again(self, token: int) -> int:
        """Have the engine run the body of an attempt that has ended under `token` again, in the same slot. Returns the
        new token.
        """
        slot = self.slots.pop(token)
        self.turn.booked.append((self.slots, token, slot))
        new = msgspec.structs.replace(slot, heard=None, excused=0.0, told=None)
        return self.begin_call("body", slot.key, slot=new)

    def heard(self, token: int) -> None:
        """Note that the call under `token` is durable, and that its engine gets it now."""
        if (call := self.calls.get(token)) is not None:
            call.heard = self.port.monotonic()

    def unheard(self, token: int) -> None:
        """Note that the engine cannot begin the call yet: the call counts as not delivered."""
        if (call := self.calls.get(token)) is not None:
            call.heard = None

    def told(self, token: int) -> None:
        """Note that the stop order for `token` is durable, and that its engine gets it now."""
        if (call := self.calls.get(token)) is not None:
            call.told = self.port.monotonic()

    def late(self, token: int, now: float) -> float:
        """Seconds between the request for a call and its delivery to the engine, so far (now: monotonic)."""
        call = self.calls.get(token)
        return 0.0 if call is None else (now if call.heard is None else call.heard) - call.asked

    def end_call(self, token: int) -> CallOrder | None:
        """Remove a call that is over from `calls`. Returns it, or None if it was not there."""
        call = self.calls.pop(token, None)
        if call is not None:
            self.turn.booked.append((self.calls, token, call))
            if token in self.uses or token in self.step_calls:
                self.send(self.scheduler, BodyOver(token))
        return call

    def stop_call(self, token: int, *, force: bool = False) -> None:
        """Have the engine stop a call, if it runs. force: at once."""
        if token in self.calls:
            self.effect(StopCall(token, force))

    def free_slot(self, token: int) -> None:
        """Release the slot that the attempt under `token` occupies or has lent, if there is one."""
        slot = self.slots.pop(token, None)
        if slot is not None:
            self.turn.booked.append((self.slots, token, slot))
            self.send(self.workers.get(slot.worker) or self.scheduler, Release(slot.key, slot))
        elif (lent := self.lent.pop(token, None)) is not None:
            self.turn.booked.append((self.lent, token, lent))

    def leave_off(self) -> None:
        """Drop all calls, slots and the turn when the kernel stops, even if something still ran."""
        books: tuple[dict[int, Any], ...] = (self.calls, self.slots, self.lent, self.uses, self.step_calls)
        for book in books:
            book.clear()
        self.turn = Transaction()

    def lend_slot(self, token: int) -> bool:
        """Lend the slot of the attempt under `token` to others until the attempt needs it. False if it has none."""
        slot = self.slots.get(token)
        if slot is None:
            return False
        self.free_slot(token)
        self.note_lent(token, LentSlot(slot))
        return True

    def note_lent(self, token: int, lent: LentSlot) -> None:
        """Note that a slot is lent, and whether the attempt has requested it back."""
        self.turn.booked.append((self.lent, token, self.lent.get(token)))
        self.lent[token] = lent

    def take_back(self, token: int, slot: CallOrder) -> None:
        """Note that an attempt occupies its slot again."""
        self.turn.booked += [(self.lent, token, self.lent.pop(token)), (self.slots, token, None)]
        self.slots[token] = slot

    def leave_slot(self, slot: CallOrder) -> bool:
        """Have an attempt that occupies its slot again go on without it. False if it has left the slot already."""
        token = next((token for token, one in self.slots.items() if one is slot), None)
        if token is None:
            return False
        self.turn.booked.append((self.slots, token, self.slots.pop(token)))
        self.note_lent(token, LentSlot(slot, goes_on=True))
        return True

    def note_use(self, use: ToolUse) -> None:
        """Note that a step uses a tool, or how its use has changed."""
        self._note_of_body(self.uses, use)

    def end_use(self, token: int, number: int) -> ToolUse | None:
        """Note that a step does not use its tool any more. Returns the use, or None if there is none."""
        return self._end_of_body(self.uses, token, number)

    def note_step_call(self, call: StepCall) -> None:
        """Note that a step waits for a worker, or how that has changed."""
        self._note_of_body(self.step_calls, call)

    def end_step_call(self, token: int, number: int) -> StepCall | None:
        """Note that a step does not run on a worker any more, or wait for one. Returns it, or None if there is none."""
        return self._end_of_body(self.step_calls, token, number)

    def is_step(self, token: int) -> bool:
        """Whether that is the token of a call of a step whose body still waits for it."""
        order = self.calls.get(token)
        if order is None or order.kind != "step":
            return False
        call = self.step_calls.get(order.body, {}).get(order.index)
        return call is not None and call.call == token

    def _note_of_body(self, book: dict[int, dict[int, OfStep]], one: OfStep) -> None:
        token, number, booked = one.token, one.number, self.turn.booked
        if token not in book:
            booked.append((book, token, None))
            book[token] = {}
        booked.append((book[token], number, book[token].get(number)))
        book[token][number] = one

    def _end_of_body(self, book: dict[int, dict[int, OfStep]], token: int, number: int) -> OfStep | None:
        of_body = book.get(token, {})
        one = of_body.pop(number, None)
        if one is not None:
            self.turn.booked.append((of_body, number, one))
            if not of_body:
                self.turn.booked.append((book, token, book.pop(token)))
        return one

    def keep_hook(
        self, entity: Entity[Any], hook: Hook, event: str, stream: Workstream, task: Task | None = None
    ) -> None:
        """Have a hook of an ended entity run at least once, even after a crash.

        Its row commits with the transition. The row keeps the workstream's folder, environment and secrets, since the
        workstream may be released before the hook runs.
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
        """Write a row to the outbox, and have its hook run."""
        self.calls[row.key] = CallOrder(0, "hook")
        self.turn.booked.append((self.calls, row.key, None))
        self.turn.extra.append(row)
        self.effect(RunHook(row.key, row))
