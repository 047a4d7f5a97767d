"""References to `MachineActor`s, and how these are checked and spawned.

Rules
-----
- A reference names an entity, and shows its present or last state. Spawning a name again returns the existing entity
  with its present facts; spawning it with another machine is refused.
- `ask` returns when the transition is durable. `tell` returns at once; a refused event becomes a dead letter.
- Events sent by one reference are applied in this order, also if an event with a `request_id` must be looked up.
- A journal that may block is read in a thread. Without a read these names are known: machines in memory, and the
  `RECALLED` newest machines at the opening of the journal. For any other name, `spawn` first looks in the journal, for
  many names with one query. Events for such a machine wait for the result, up to a limit.
- The functions of a machine are checked when it is spawned: a journal that outlives the process accepts only
  functions and machines that can be found again after a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, cast
from weakref import ReferenceType, WeakValueDictionary, finalize

import anyio
import msgspec

from ...actors.machines.entity import first_record
from ...actors.machines.kind import (
    ANY,
    Definition,
    MachineActor,
    MachineKind,
    due_of,
    extended,
    number_problem,
    revived,
    rows_of,
    unfit,
)
from ...actors.messages.commands import Command, Fire, Reply, SpawnMachine
from ...actors.messages.errors import MachineConflict, MachineNotFound
from ...actors.records.entities import Acknowledged, MachineRecord, RequestRecord
from ...actors.records.transition import Transitioned
from ...actors.spec.schema import Finding, plain_problem
from ...actors.spec.validate import SpecificationError
from ...actors.user_code import plain_text
from ...actors.users.actor import DEFAULT_MAILBOX
from ...actors.users.dead_letters import Reason
from ...machines.audit.guard_fields import readers
from ...machines.keywords import did_you_mean
from ..errors import JournalError, RuntimeClosed
from ..functions.import_paths import path_of_value
from ..functions.registry import BodyNotFound, NoPath
from .base import MachineVerbs
from .references import check_fire
from .workers import named

if TYPE_CHECKING:
    from ...actors.machines.entity import MachineEntity
    from ..host import KernelHost
    from .remote_machines import RemoteMachines
    from .services import Services

LONGEST_NAME = 200
EVENTS = DEFAULT_MAILBOX
"""The most events of `tell` that may wait for one machine."""
EVENTS_OF_ALL = 100_000
"""The most events of `tell` that may wait for all machines together."""
RECALLED = 1_000
"""The number of newest machines, ended or not, whose names are loaded when a journal is opened."""
_LOOKED_FOR = 500  # names in one query of the journal
_AGAIN = 1.0  # seconds until a journal that could not be read is read again
_CACHED = 256  # the most checked kinds that are kept, so that the same actor is checked once


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


class Machines:
    """The `MachineActor`s of one runtime."""

    def __init__(self, services: Services, host: KernelHost, start: Callable[[Callable[[], Any]], object]) -> None:
        self.services = services
        self.host = host
        self.start = start  # runs a coroutine function among the runtime's own tasks
        self.on_spawn: Callable[[str], None] = lambda _: None  # called with each spawned name
        self.abroad: RemoteMachines | None = None  # the machines of other nodes
        self._cores: WeakValueDictionary[str, MachineCore] = WeakValueDictionary()
        self._waiting = 0  # the number of events of `tell` without an answer
        self._full = False  # the notice about refused events was emitted
        self._kinds: dict[tuple[object, ...], tuple[MachineActor, MachineKind]] = {}
        self._lately: dict[str, MachineRecord] = {}  # the newest machines that are not in memory
        self._definitions: dict[int, bytes | None] = {}  # the stored definitions of these, by their keys
        self._wanted: deque[tuple[MachineCore, SpawnMachine]] = deque()  # spawned names, before the look for them
        self._looking = False
        host.on_machine_over = self._over
        host.on_close.append(self._give_up)

    def spawn(self, actor: MachineActor, name: str) -> MachineRef:
        """Return the entity of that name, or spawn a new one.

        A journal that may block is read in a thread. For a name that is not known without a read, the entity is shown
        later, and a conflict is raised to callers that fire at the reference or await it.
        Raises SpecificationError, MachineConflict, ValueError, TypeError.
        """
        check_name(name)
        kind, facts = self._kind(actor)
        core, entity = self._cores.get(name), self.host.kernel.machines.get(name)
        earlier = None if entity is not None else self._known_of(name, core)
        record = earlier if entity is None else entity.record
        if record is None and core is not None:  # the machine is being spawned
            record = core.record
        if record is not None and (why := unfit(record, kind)):
            raise MachineConflict(_conflict(why))
        if core is None:
            first = record or first_record(kind, name, facts, self.host.now())
            core = self._cores[name] = MachineCore(self, name, first, kind.read(first.facts))
        message = SpawnMachine(name, kind, facts, earlier, ref=core, kept=self._definition_of(earlier))
        if self.abroad is not None and entity is None:
            core.kind = kind
            self.abroad.spawn(core, message)
        elif entity is None and earlier is None and not core.coming and self.host.journal.durable_medium:
            core.kind = kind
            self._look_for(core, message)
        else:
            self._take(core, message)
        return core.ref

    def _known_of(self, name: str, core: MachineCore | None) -> MachineRecord | None:
        """The record of a machine that is not in memory, if it is known or can be read without blocking."""
        if not self.host.journal.durable_medium:
            return self.host.journal.reader.machine(name) if core is None or core.ended else None
        if self.abroad is not None:
            return None  # the node that has the machine is looked up in any case
        if core is not None:
            return core.record if core.record.key and core.ended else None
        return self._lately.get(name)

    def _definition_of(self, known: MachineRecord | None) -> bytes | None:
        """The stored definition of a machine that is not in memory, if it can be had without blocking."""
        if known is None:
            return None
        key, journal = known.definitions[-1], self.host.journal
        return self._definitions.get(key) if journal.durable_medium else journal.reader.spec(key)

    def _take(self, core: MachineCore, message: SpawnMachine) -> None:
        self._lately.pop(core.name, None)
        self.host.tell(message)
        core.coming = True
        self.on_spawn(core.name)

    def of(self, name: str) -> MachineRef:
        """Return the entity of that name, ended or not.

        Raises LookupError if there is none, or if only a read of a journal that may block could find it.
        """
        core = self._cores.get(name)
        if core is not None:
            return core.ref
        entity, journal = self.host.kernel.machines.get(name), self.host.journal
        if entity is not None:
            return self._core(entity.record).ref
        if not journal.durable_medium:
            record = _there(name, journal.reader.machine(name))
            return self._made(record, journal.reader.spec(record.definitions[-1]))
        record = _there(name, self._lately.get(name), " at hand", _OLDER)
        return self._made(record, self._definitions.get(record.definitions[-1]))

    # -- machines that only the journal has ----------------------------------------------------------------------------

    async def recall(self) -> None:
        """Load the names of the newest machines. Called when the journal was opened."""
        if self.host.journal.durable_medium:
            self._lately, self._definitions = await self.services.read_own(self._read_lately)

    def _read_lately(self) -> tuple[dict[str, MachineRecord], dict[int, bytes | None]]:
        """Read the newest machines; if the journal has one owner, only the ended ones: the others are in memory."""
        reader, alone = self.host.journal.reader, self.abroad is None
        last = [one for one in reader.machines(limit=RECALLED) if not (alone and one.finished_at is None)]
        return {one.name: one for one in last}, {key: reader.spec(key) for key in {one.definitions[-1] for one in last}}

    def _look_for(self, core: MachineCore, message: SpawnMachine) -> None:
        core.looks += 1
        self._wanted.append((core, message))
        if not self._looking:
            self._looking = True
            self.start(self._look)

    async def _look(self) -> None:
        """Look for the spawned names in the journal, and spawn them. A failed read is repeated."""
        wanted = self._wanted
        try:
            while wanted:
                names = [core.name for core, _ in islice(wanted, _LOOKED_FOR)]
                try:
                    found = await self.services.read_own(self._read_all, names)
                except JournalError:
                    await anyio.sleep(_AGAIN)
                    continue
                for record, kept in found[: len(wanted)]:  # fewer, if the runtime has closed meanwhile
                    self._found(*wanted.popleft(), record, kept)
        finally:
            self._looking = False
            self._give_up(None)

    def _read_all(self, names: list[str]) -> list[tuple[MachineRecord | None, bytes | None]]:
        """The records of these names, each with its stored definition."""
        reader = self.host.journal.reader
        found = [reader.machine(name) for name in names]
        return [(one, None if one is None else reader.spec(one.definitions[-1])) for one in found]

    def _found(
        self, core: MachineCore, message: SpawnMachine, record: MachineRecord | None, kept: bytes | None
    ) -> None:
        why = "" if record is None else unfit(record, message.kind)
        if record is not None and why:
            self.forget(core)
            core.show(record)
            core.looked(MachineConflict(_conflict(why)))
            return
        if record is not None:
            core.show(record)
        self._take(core, msgspec.structs.replace(message, known=record, kept=kept))
        core.looked()

    async def looked(self) -> None:
        """Wait until all spawned names have been looked for, in the journal or on all nodes."""
        while self._wanted:
            await self._wanted[-1][0].seen()
        if self.abroad is not None:
            await self.abroad.settled()

    def _give_up(self, _: BaseException | None) -> None:
        """End all waits for a look into the journal, since the runtime closes."""
        while self._wanted:
            self._wanted.popleft()[0].looked()

    async def find(self, name: str) -> MachineRef:
        """Return the entity of that name like `of`, but read the journal in a thread if it may block."""
        if name in self._cores or name in self.host.kernel.machines:
            return self.of(name)
        reader, read = self.host.journal.reader, self.services.read
        record = _there(name, await read(reader.machine, name))
        encoded: bytes | None = await read(reader.spec, record.definitions[-1])
        if name in self._cores or name in self.host.kernel.machines:  # the machine was spawned meanwhile
            return self.of(name)
        return self._made(record, encoded)

    def _over(self, name: str) -> None:
        """Keep the record of a machine that has ended in its reference, since it leaves the memory soon."""
        core, entity = self._cores.get(name), self.host.kernel.machines.get(name)
        if core is not None and entity is not None:
            core.coming = False
            core.show(entity.record)

    def forget(self, core: MachineCore) -> None:
        """Drop a reference that does not stand for the machine of its name."""
        if self._cores.get(core.name) is core:
            del self._cores[core.name]

    def _core(self, record: MachineRecord) -> MachineCore:
        core = self._cores[record.name] = MachineCore(self, record.name, record, None)
        return core

    def _made(self, record: MachineRecord, encoded: bytes | None) -> MachineRef:
        """Make the reference to a machine that only the journal has, and load the machine.

        A machine that runs on another node is not loaded.
        """
        core = self._core(record)
        kind, missing = self._revived(record, encoded)
        if self.abroad is not None and record.finished_at is None:
            core.kind = kind
        else:
            self.host.tell(SpawnMachine(record.name, kind, None, record, missing, kept=encoded))
        return core.ref

    def all(self) -> list[MachineRef]:
        """The machines in memory, oldest first, and those that are being spawned."""
        existing = self.host.kernel.machines
        coming = [core.ref for name, core in self._cores.items() if name not in existing and not core.ended]
        return [*map(self.of, existing), *coming]

    async def take_up(self, name: str) -> None:
        """Load an ended machine into memory again."""
        reader, read = self.host.journal.reader, self.services.read
        record: MachineRecord | None = await read(reader.machine, name)
        if record is None:
            return  # the machine is being spawned
        encoded: bytes | None = await read(reader.spec, record.definitions[-1])
        if name not in self.host.kernel.machines:
            kind, missing = self._revived(record, encoded)
            self.host.tell(SpawnMachine(name, kind, None, record, missing, kept=encoded))

    def _revived(self, record: MachineRecord, encoded: bytes | None) -> tuple[MachineKind | None, str]:
        """Return the kind of a stored machine; or None, and why its kind cannot be restored."""
        try:
            kind = revived(msgspec.json.decode(encoded or b"", type=Definition), self.host)
        except (MachineNotFound, msgspec.DecodeError) as error:
            return None, str(error)
        missing = unfit(record, kind)
        return (None, missing) if missing else (kind, "")

    def refuses(self, core: MachineCore) -> Reason | None:
        """Why `tell` must refuse an event for this machine now; None if it may be sent."""
        if not self.services.is_open:
            return Reason.STOPPED
        if core.waiting >= EVENTS or self._waiting >= EVENTS_OF_ALL:
            self._tell_full(core)
            return Reason.MAILBOX_FULL
        return None if self.host.takes else Reason.MAILBOX_FULL

    def enter(self, core: MachineCore) -> None:
        """Count an event of `tell` that begins to wait."""
        core.waiting += 1
        self._waiting += 1

    def leave(self, core: MachineCore) -> None:
        """Count an event of `tell` that no longer waits."""
        core.waiting -= 1
        self._waiting -= 1
        if self._full and self._waiting <= EVENTS // 2:
            self._full = False

    def _tell_full(self, core: MachineCore) -> None:
        """Emit a notice that events are refused: once, until few enough events wait."""
        if not self._full:
            self._full = True
            text = (
                f"{core.waiting} events wait for machine {core.name}, and {self._waiting} for all: what is told beyond "
                f"{EVENTS} and {EVENTS_OF_ALL} is refused, and a dead letter. `tell` returns False then; `ask` waits"
            )
            self.host.notice("events_refused", "warning", text, kind="machine", entity_id=core.name)

    def _kind(self, actor: MachineActor) -> tuple[MachineKind, msgspec.Raw | None]:
        key = (
            id(actor.machine), id(_type(actor.facts)), tuple(actor.timed), actor.on_event,
            tuple(actor.on_enter.items()), tuple(actor.on_exit.items()), actor.folder,
        )  # fmt: skip
        found = self._kinds.get(key)
        if found is None:
            if len(self._kinds) >= _CACHED:
                self._kinds.clear()
            found = self._kinds[key] = actor, prepare(actor, self.services)
        return found[1], first_facts(actor, found[1])


_OLDER = "; `await runtime.machine_of(name)` looks for it in the journal"


def _there(name: str, record: MachineRecord | None, where: str = " in this journal", more: str = "") -> MachineRecord:
    if record is None:
        raise LookupError(f"there is no machine {name!r:.80}{where}{more}; spawn one with a MachineActor")
    return record


def _conflict(why: str) -> str:
    return f"{why}. Use another name, or spawn it with the machine that it runs by."


def check_name(name: object) -> None:
    """Check the name of an entity. Raises TypeError, ValueError."""
    name = plain_text(name, "the name of a machine")
    if not (0 < len(name) <= LONGEST_NAME and name.isprintable() and name.strip() == name and name[0] != "-"):
        raise ValueError(
            f"{name!r:.80} cannot be the name of a machine: use 1 to {LONGEST_NAME} printable characters, "
            "none of them a space at its ends or a '-' at its beginning"
        )
    if "/" in name:
        raise ValueError(f"{name!r:.80} cannot be the name of a machine: '/' parts a job from its task")


def prepare(actor: MachineActor, services: Services) -> MachineKind:
    """Check an actor, and make the kind of its entities. Raises SpecificationError with all findings."""
    machine = actor.machine
    found = [*_findings(actor)]
    names: list[str] = []
    bodies, durable = services.bodies, services.journal.durable_medium
    path = path_of_value(machine)

    def named(place: str, function: Any) -> str:
        try:
            names.append(bodies.name_of(function, durable=durable))
            return names[-1]
        except NoPath as error:
            found.append(Finding(place, str(error)))
        except (TypeError, BodyNotFound) as error:
            found.append(Finding(place, f"is no function: {error}"))
        return ""

    rows = rows_of(machine, lambda guard: None if path is not None else named("guard", guard))
    facts = None if actor.facts is None or actor.fields is not None else named("facts", _type(actor.facts))
    on_event = None if actor.on_event is None else named("on_event", actor.on_event)
    callbacks = [
        {str(state): named(f"{place}.{state}", function) for state, function in functions.items()}
        for place, functions in (("on_enter", actor.on_enter), ("on_exit", actor.on_exit))
    ]
    if found:
        bodies.drop_uses(names)
        raise SpecificationError(found, f"machine {machine.name!r}")
    machine = extended(machine, actor.timed)
    definition = Definition(
        machine=machine.name, path=path, initial=str(machine.initial), endless=machine.endless,
        states=[*machine.states.values()], transitions=rows, timed=[*machine.timed], more=[*actor.timed], facts=facts,
        fields=actor.fields, on_event=on_event, on_enter=callbacks[0], on_exit=callbacks[1], folder=actor.folder,
    )  # fmt: skip
    kind = MachineKind(definition, machine, _type(actor.facts), actor.on_event)
    # Decode it, as a restart does: then states and events are plain names, and not members of an enumeration.
    kind = MachineKind(msgspec.json.decode(kind.encoded, type=Definition), machine, kind.facts, kind.on_event)
    if not all(":" in name for name in names):
        finalize(kind, bodies.drop_uses_later, names).atexit = False
    return kind


def _findings(actor: MachineActor) -> Iterator[Finding]:
    machine, facts = actor.machine, actor.facts
    asked_for = readers(machine)
    for fact, guards in asked_for.items():
        if not hasattr(facts, fact):
            asked = " and ".join(repr(guard) for guard in guards)
            yield Finding("facts", f"there is no fact {fact!r}, which its guards read: {asked}")
    for index, entry in enumerate(actor.timed):
        place = f"timed[{index}]"
        if entry.state not in machine.states:
            yield Finding(f"{place}.state", f"there is no state {entry.state!r}", _near(entry.state, machine.states))
        elif entry.event not in machine.valid_events(entry.state):
            names = sorted(machine.valid_events(entry.state))
            yield Finding(
                f"{place}.event", f"{entry.state!r} knows no event {entry.event!r}", _near(entry.event, names)
            )
    used = {*asked_for, *(entry.after for entry in (*machine.timed, *actor.timed))}
    names = [] if facts is None else [field.name for field in msgspec.structs.fields(facts)]
    for entry in (*machine.timed, *actor.timed):
        if hasattr(facts, entry.after):
            try:
                due_of(entry.after, getattr(facts, entry.after), 0.0)
            except ValueError as error:
                yield Finding(f"facts.{entry.after}", str(error))
            continue
        own = entry in actor.timed
        meant = did_you_mean(entry.after, [name for name in names if own or name not in used])
        if meant or own:  # a shared machine may have timed events for which these facts have no field
            text = f"the timed event {entry.event!s} of {entry.state!s} is after {entry.after!r}, which is no fact"
            yield Finding("timed", text, meant or f"its facts: {', '.join(names) or 'none'}")
    for place, functions in (("on_enter", actor.on_enter), ("on_exit", actor.on_exit)):
        for state in functions:
            if state not in machine.states and state != ANY:
                yield Finding(f"{place}.{state}", f"there is no state {state!r}", _near(state, machine.states))


def _type(facts: msgspec.Struct | None) -> type[msgspec.Struct] | None:
    return None if facts is None else type(facts)


def _near(name: str, known: Any) -> str | None:
    names = [str(one) for one in known]
    return did_you_mean(str(name), names) or (f"there are: {', '.join(names)}" if names else None)


def first_facts(actor: MachineActor, kind: MachineKind) -> msgspec.Raw | None:
    """Encode the facts of a new entity as they are stored. Raises SpecificationError if they cannot be."""
    if actor.facts is None:
        return None
    source = f"the facts of machine {kind.machine.name!r}"
    if problem := number_problem(actor.facts):
        raise SpecificationError([Finding("facts", problem)], source)
    try:
        raw = msgspec.Raw(msgspec.json.encode(actor.facts))
        plain = msgspec.json.decode(raw)
        kind.read(raw)
        for entry in kind.machine.timed:
            due_of(entry.after, getattr(actor.facts, entry.after, None), 0.0)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise SpecificationError([Finding("facts", str(error))], source) from None
    if problem := plain_problem(plain):
        raise SpecificationError([Finding("facts", problem)], source)
    return raw


def _kept(record: RequestRecord) -> Transitioned | None:
    """The answer of an event that was already applied under this idempotency key."""
    return msgspec.json.decode(record.answer, type=Acknowledged).transition


def as_kept(message: object) -> Fire:
    """Return the event as it is stored: its author is kept in the metadata. Raises TypeError, ValueError."""
    fire = check_fire(message, "a MachineActor")
    if fire.by is None:
        return fire
    return msgspec.structs.replace(fire, metadata={"by": fire.by, **(fire.metadata or {})}, by=None)
