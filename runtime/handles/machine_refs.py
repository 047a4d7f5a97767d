"""References to `MachineActor`s.

Rules
-----
- A reference names an entity, and shows its present or last state.
- `ask` returns when the transition is durable. `tell` returns at once; a refused event becomes a dead letter.
- Events sent by one reference are applied in this order, also if an event with a `request_id` must be looked up, or if
  the journal is searched for the machine meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from weakref import ReferenceType

import anyio
import msgspec

from ...actors.messages.commands import Command, Fire, Reply
from ...actors.messages.errors import MachineConflict
from ...actors.records.entities import Acknowledged, MachineRecord, RequestRecord
from ...actors.records.transition import Transitioned
from ...actors.users.dead_letters import Reason
from ..errors import RuntimeClosed
from .base import MachineVerbs
from .references import check_fire
from .workers import named

if TYPE_CHECKING:
    from ...actors.machines.entity import MachineEntity
    from ...actors.machines.kind import MachineKind
    from .machines import Machines

_NO_MAIL: deque[Fire] = deque(maxlen=0)
"""The mail of a machine that never had to wait: an empty deque of its own takes 600 bytes."""


class MachineCore:
    """A `MachineActor` as its runtime knows it by its name: the part of a reference that is not for users."""

    __slots__ = (
        "__weakref__", "_entity", "_given", "_looked", "_mail", "_owner", "_record", "_ref", "_sent", "coming", "kind",
        "looks", "name", "refused", "settled", "waiting",
    )  # fmt: skip

    def __init__(self, owner: Machines, name: str, record: MachineRecord, facts: Any) -> None:
        self._owner = owner
        self._entity: MachineEntity | None = None
        self._record = record  # shown while the entity is not in memory
        self._given = facts
        self._mail: deque[Fire] = _NO_MAIL  # events of `tell` that wait for a look into the journal
        self._sent: anyio.Event | None = None  # set when `_mail` is empty
        self.kind: MachineKind | None = None  # for a machine of another node: its kind, if this node knows it
        self.waiting = 0  # the number of events of `tell` without an answer
        self.settled: anyio.Event | None = None  # with several nodes: set when it is known whether the name was free
        self.looks = 0  # with one node: the number of queries of the journal for this name that have not ended
        self._looked: anyio.Event | None = None  # set when they have ended, if a caller waits for them
        self.coming = False  # the spawn was sent to the kernel, and the machine has not ended since
        self.refused: str | None = None  # why the reference is invalid: another machine runs under its name
        self.name = name
        self._ref: ReferenceType[MachineRef] | None = None

    @property
    def ref(self) -> MachineRef:
        """The reference of users: the same one as long as anybody holds it."""
        ref = None if self._ref is None else self._ref()
        if ref is None:
            ref = MachineRef(self)
            self._ref = ReferenceType(ref)
        return ref

    async def known(self) -> None:
        """Wait until the machine is durable, or was found in the journal. Raises MachineConflict, RuntimeClosed."""
        self._owner.services.check_here("a machine")
        self._owner.host.go_ahead()
        if self._owner.abroad is not None:
            await self._owner.abroad.known(self)
        else:
            await self._look()
            await self._owner.host.barrier()

    @property
    def record(self) -> MachineRecord:
        """`MachineRef.record`."""
        entity = self._found()
        if entity is not None:
            return entity.record
        if (abroad := self._owner.abroad) is not None:
            abroad.glance(self)
            return self._record
        return self._record

    @property
    def ended(self) -> bool:
        """`MachineRef.ended`."""
        return self.record.finished_at is not None

    @property
    def elsewhere(self) -> bool:
        """`MachineRef.elsewhere`."""
        return self._owner.abroad is not None and self._found() is None

    @property
    def facts(self) -> Any:
        """`MachineRef.facts`."""
        entity = self._found()
        kind = self.kind if entity is None else entity.kind
        if kind is None:
            return self._given
        return kind.read(self.record.facts)  # a new copy each time, since the Struct may be mutable

    def show(self, record: MachineRecord) -> None:
        """Set the shown record, of a machine that is not in memory here."""
        self._record = record

    @property
    def events(self) -> frozenset[str]:
        """`MachineRef.events`."""
        entity = self._found()
        kind = self.kind if entity is None else entity.kind
        return frozenset() if kind is None else kind.machine.valid_events(self.record.state)

    def checked(self, message: Fire) -> Fire:
        """Check and normalize an event before it is sent. Raises TypeError, ValueError, RuntimeError."""
        message = as_kept(message)
        self._owner.services.check_here("a machine")
        return message

    async def answer(self, message: Fire) -> Transitioned:
        """Fire an event, and wait for the transition."""
        self._owner.host.go_ahead()
        with named(self.name):
            await self._look()
            while self._sent is not None and not self._sent.is_set():
                await self._sent.wait()
            return await self._fire(message)

    def tell(self, message: Fire) -> bool:
        """`MachineRef.tell`."""
        message = self.checked(message)
        owner, dispatcher = self._owner, self._owner.host.dispatcher
        if (reason := owner.refuses(self)) is not None:
            dispatcher.dead_letters.add(self.name, message, reason)
            return False
        owner.enter(self)
        dispatcher.effects.stage(self._put, message)  # a receive that raises sends nothing
        dispatcher.effects.on_undo(owner.leave, self)
        return True

    def _put(self, message: Fire) -> None:
        abroad = self._owner.abroad
        here = self._is_at_hand if abroad is None else abroad.is_here(self)
        if here and message.request_id is None and not self._mail:
            self._owner.host.tell(Command(self.name, message, Reply(self._told(message))))
            return
        if self._mail is _NO_MAIL:
            self._mail = deque()
        self._mail.append(message)
        if not self.looks:
            self._begin_to_send()

    def _begin_to_send(self) -> None:
        if self._sent is None or self._sent.is_set():
            self._sent = anyio.Event()
            self._owner.start(self._send)

    async def seen(self) -> None:
        """Wait for the queries of the journal for this name, if any."""
        while self.looks:
            if self._looked is None:
                self._looked = anyio.Event()
            await self._looked.wait()

    async def _look(self) -> None:
        """Wait like `seen`, before an ask. Raises MachineConflict, RuntimeClosed."""
        if self.looks:
            await self.seen()
            if self.refused is None and not self._is_at_hand:
                await self._owner.host.barrier()  # the runtime closes: this raises RuntimeClosed
        if self.refused is not None:
            raise MachineConflict(self.refused)

    def looked(self, error: MachineConflict | None = None) -> None:
        """Send the waiting events: a query of the journal for this name has ended.

        error: why the name was refused. The events become dead letters then.
        """
        self.looks -= 1
        if error is not None:
            self.refused = str(error)
        if self.looks:
            return
        if self._looked is not None:
            self._looked.set()
            self._looked = None
        mail, host = self._mail, self._owner.host
        if self.refused is not None or not self._is_at_hand:
            self._give_up(error)
        while mail and mail[0].request_id is None:
            message = mail.popleft()
            host.tell(Command(self.name, message, Reply(self._told(message))))
        if mail:
            self._begin_to_send()

    def _give_up(self, error: MachineConflict | None) -> None:
        """Turn the waiting events into dead letters: the name was refused, or the runtime has closed."""
        letters, reason = self._owner.host.dispatcher.dead_letters, Reason.REFUSED if error else Reason.STOPPED
        for message in self._mail:
            letters.add(self.name, message, reason, error)
            self._owner.leave(self)
        self._mail.clear()

    async def _fire(self, message: Fire) -> Transitioned:
        abroad = self._owner.abroad
        if abroad is not None and not await abroad.comes_home(self):
            return await abroad.fire(self, message)
        if not self._is_at_hand:  # the machine may have ended long ago, so that only the journal has it
            await self._owner.take_up(self.name)
        said = {name: getattr(message, name) for name in ("event", "reason", "metadata", "facts")}
        answer: Transitioned = await self._owner.services.commands.give(
            partial(Command, self.name, message),
            "fire",
            (self.name, {**said, "request_id": None}),  # the form to which keys of all versions are bound
            request_id=message.request_id,
            kept=_kept,
        )
        return answer

    async def _send(self) -> None:
        """Send the waiting events, one after the other."""
        mail, sent = self._mail, self._sent
        letters = self._owner.host.dispatcher.dead_letters
        try:
            while mail:
                try:
                    await self._fire(mail[0])
                except RuntimeClosed:
                    break
                except Exception as error:  # `tell` has returned, so no caller can catch it
                    letters.add(self.name, mail[0], Reason.REFUSED, error)
                mail.popleft()
                self._owner.leave(self)
        finally:
            self._give_up(None)
            if sent is not None:
                sent.set()

    def _told(self, message: Fire) -> Callable[[Any, Exception | None], None]:
        letters = self._owner.host.dispatcher.dead_letters

        def answered(_: Any, error: Exception | None) -> None:
            self._owner.leave(self)
            if error is not None:
                letters.add(self.name, message, Reason.REFUSED, error)

        return answered

    def _found(self) -> MachineEntity | None:
        self._entity = cast("MachineEntity | None", self._owner.host.kernel.machines.get(self.name)) or self._entity
        return self._entity

    @property
    def _is_at_hand(self) -> bool:
        return self.coming or self.name in self._owner.host.kernel.machines


class MachineRef(MachineVerbs):
    """A reference to a `MachineActor` of a runtime, by its name."""

    __slots__ = ("__weakref__", "_core", "name")

    def __init__(self, core: MachineCore) -> None:
        self._core = core
        self.name = core.name

    def __repr__(self) -> str:
        return f"<MachineRef {self.name} {self.state}>"

    def __await__(self) -> Generator[Any, None, MachineRef]:
        """Wait until the machine is durable, or was found in the journal: `run = await runtime.spawn(...)`.

        Until then the reference shows the state of a new machine, unless a machine of that name is already known.
        Raises MachineConflict if another machine runs under this name; RuntimeClosed.
        """
        return self._known().__await__()

    async def _known(self) -> MachineRef:
        await self._core.known()
        return self

    @property
    def state(self) -> str:
        """The present state."""
        return self.record.state

    @property
    def record(self) -> MachineRecord:
        """The present record; before the machine is spawned, the record that it will begin with."""
        return self._core.record

    @property
    def elsewhere(self) -> bool:
        """Whether the machine belongs to another node of the journal."""
        return self._core.elsewhere

    @property
    def facts(self) -> Any:
        """The present facts, as an instance of their Struct; None if the machine has none."""
        return self._core.facts

    @property
    def events(self) -> frozenset[str]:
        """The events that the present state accepts; none if its machine cannot be found."""
        return self._core.events

    def tell(self, message: Fire) -> bool:
        """Fire an event without waiting for the answer. A refused event becomes a dead letter, and is counted.

        Returns False, and the event becomes a dead letter, if the runtime has closed, if its journal cannot write, or
        if `EVENTS` events wait for this machine or `EVENTS_OF_ALL` events for all machines.
        """
        return self._core.tell(message)

    def _checked(self, message: Fire) -> Fire:
        return self._core.checked(message)

    async def _answer(self, message: Fire) -> Transitioned:
        return await self._core.answer(message)


def core_of(machine: MachineRef) -> MachineCore:
    """The part of a machine's reference that is not for users, for the runtime's own modules."""
    return machine._core  # pyright: ignore[reportPrivateUsage]


def _kept(record: RequestRecord) -> Transitioned | None:
    """The answer of an event that was already applied under this idempotency key."""
    return msgspec.json.decode(record.answer, type=Acknowledged).transition


def as_kept(message: object) -> Fire:
    """Return the event as it is stored: its author is kept in the metadata. Raises TypeError, ValueError."""
    fire = check_fire(message, "a MachineActor")
    if fire.by is None:
        return fire
    return msgspec.structs.replace(fire, metadata={"by": fire.by, **(fire.metadata or {})}, by=None)
