"""`MachineActor`s, as an application sees them: how they are checked and spawned, and their references.

Rules
-----
- A reference is a name: it says what the entity is now, or was last. Spawning the same name again gives the one that
  there is, with the facts that it has; with another machine it is refused.
- `ask` answers when the transition is durable. `tell` returns at once; an event that is refused is a dead letter then.
- What is sent by one reference is taken in that order, also where an event with a `request_id` has to be looked up.
- The journal is asked in a thread, where it could keep the event loop waiting. Known without asking are the names of
  those that are at hand, and of the `RECALLED` that were made last when it was opened. To spawn any other name is to
  look for it first, many names at once; what is told meanwhile waits for that, within its bounds.
- What a machine needs after a restart is looked at when it is spawned: nothing that could not be found again is taken
  by a journal that outlives the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary, finalize

import anyio
import msgspec

from ...actors.machines.entity import first_record
from ...actors.machines.kind import (
    ANY,
    Definition,
    MachineActor,
    MachineConflict,
    MachineKind,
    MachineNotFound,
    due_of,
    extended,
    number_problem,
    revived,
    rows_of,
    unfit,
)
from ...actors.messages.commands import Command, Fire, Reply, SpawnMachine
from ...actors.records.entities import Acknowledged, MachineRecord, RequestRecord
from ...actors.records.transition import Transitioned
from ...actors.spec.schema import Finding, did_you_mean, plain_problem
from ...actors.spec.validate import SpecificationError
from ...actors.user_code import plain_text
from ...actors.users.actor import DEFAULT_MAILBOX
from ...actors.users.dead_letters import Reason
from ...machines.audit.guard_fields import readers
from ..functions.import_paths import path_of_value
from ..functions.registry import BodyNotFound, NoPath
from ..journal.contract import JournalError
from .base import MachineVerbs
from .outcomes import RuntimeClosed
from .references import check_fire
from .workers import named

if TYPE_CHECKING:
    from ...actors.machines.entity import MachineEntity
    from ..cluster.machines import MachinesAbroad
    from ..host import Host
    from ..services import RuntimeServices

LONGEST_NAME = 200
EVENTS = DEFAULT_MAILBOX
"""Events that may wait for one machine that was told them."""
EVENTS_OF_ALL = 100_000
"""The same for all machines together."""
RECALLED = 1_000
"""So many machines that were made last are known by their names once a journal is opened, whether they live or not."""
_LOOKED_FOR = 500  # names in one question to the journal
_AGAIN = 1.0  # seconds until a journal is asked again that could not be read
_CACHED = 256  # kinds that are looked up and not checked again


class MachineRef(MachineVerbs):
    """A `MachineActor` of a runtime, by its name."""

    def __init__(self, owner: Machines, name: str, record: MachineRecord, facts: Any) -> None:
        self._owner = owner
        self._entity: MachineEntity | None = None
        self._record = record  # what holds until it is there
        self._given = facts
        self._mail: deque[Fire] = deque()  # told, and waiting for one that has to be looked up
        self._sent: anyio.Event | None = None  # set once that is empty
        self.kind: MachineKind | None = None  # of one that another node has: what it runs by, if that is known here
        self.waiting = 0  # events told and not answered yet
        self.settled: anyio.Event | None = None  # of several nodes: set once it is known whether its name was free
        self.looks = 0  # of one node: how often its name is just being looked for in the journal
        self._looked: anyio.Event | None = None  # set once it has been, for who waits for that
        self.coming = False  # it was told to be spawned here, and has not ended since
        self.refused: str | None = None  # why it is no reference of anything: its name runs by another machine
        self.name = name

    def __repr__(self) -> str:
        return f"<MachineRef {self.name} {self.state}>"

    def __await__(self) -> Generator[Any, None, MachineRef]:
        """`run = await runtime.spawn(...)`: returns when it is durable, or was found in the journal.

        Until then it shows what a new one has, unless one of that name is known already. Raises MachineConflict where
        that runs by another machine; RuntimeClosed.
        """
        return self._known().__await__()

    async def _known(self) -> MachineRef:
        self._owner.services.check_here("a machine")
        self._owner.host.go_ahead()
        if self._owner.abroad is not None:
            await self._owner.abroad.known(self)
        else:
            await self._look()
            await self._owner.host.barrier()
        return self

    @property
    def state(self) -> str:
        """Its present state."""
        return self.record.state

    @property
    def record(self) -> MachineRecord:
        """Its present record; of one that is just being spawned, the one that it will have."""
        entity = self._found()
        if entity is not None:
            return entity.record
        if (abroad := self._owner.abroad) is not None:
            abroad.glance(self)
            return self._record
        return self._record

    @property
    def elsewhere(self) -> bool:
        """Whether another node of the journal has it."""
        return self._owner.abroad is not None and self._found() is None

    @property
    def facts(self) -> Any:
        """Its present facts, as an instance of their Struct; None where it has none."""
        entity = self._found()
        kind = self.kind if entity is None else entity.kind
        if kind is None:
            return self._given
        return kind.read(self.record.facts)  # a copy of its own: their Struct may be mutable

    def show(self, record: MachineRecord) -> None:
        """For the runtime: what was read of one that another node has."""
        self._record = record

    @property
    def events(self) -> frozenset[str]:
        """The events that its present state knows; none while its machine is not there."""
        entity = self._found()
        kind = self.kind if entity is None else entity.kind
        return frozenset() if kind is None else kind.machine.valid_events(self.state)

    def _checked(self, message: Fire) -> Fire:
        message = as_kept(message)
        self._owner.services.check_here("a machine")
        return message

    async def _answer(self, message: Fire) -> Transitioned:
        self._owner.host.go_ahead()
        with named(self.name):
            await self._look()
            while self._sent is not None and not self._sent.is_set():
                await self._sent.wait()
            return await self._fire(message)

    def tell(self, message: Fire) -> bool:
        """Fire an event, and wait for nothing: one that is refused is a dead letter, and counted.

        False if it will not be taken: the runtime has closed, its journal cannot write, or so many wait already, of
        this machine (`EVENTS`) or of all (`EVENTS_OF_ALL`). It is a dead letter then.
        """
        message = as_kept(message)
        owner, dispatcher = self._owner, self._owner.host.dispatcher
        owner.services.check_here("a machine")
        if (reason := owner.refuses(self)) is not None:
            dispatcher.dead_letters.add(self.name, message, reason)
            return False
        owner.enter(self)
        dispatcher.stage(self._put, message)  # a receive that raises has told nothing
        dispatcher.on_undo(owner.leave, self)
        return True

    def _put(self, message: Fire) -> None:
        abroad = self._owner.abroad
        here = self._is_at_hand if abroad is None else abroad.is_here(self)
        if here and message.request_id is None and not self._mail:
            self._owner.host.tell(Command(self.name, message, Reply(self._told(message))))
            return
        self._mail.append(message)
        if not self.looks:
            self._begin_to_send()

    def _begin_to_send(self) -> None:
        if self._sent is None or self._sent.is_set():
            self._sent = anyio.Event()
            self._owner.start(self._send)

    async def seen(self) -> None:
        """For the runtime: wait until its name was looked for, where it is being."""
        while self.looks:
            if self._looked is None:
                self._looked = anyio.Event()
            await self._looked.wait()

    async def _look(self) -> None:
        """The same for who asks it. Raises MachineConflict, RuntimeClosed."""
        if self.looks:
            await self.seen()
            if self.refused is None and not self._is_at_hand:
                await self._owner.host.barrier()  # it closes
        if self.refused is not None:
            raise MachineConflict(self.refused)

    def looked(self, error: MachineConflict | None = None) -> None:
        """For the runtime: its name was looked for. What was told it meanwhile goes on; error: to the dead letters."""
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
        """What waits is for nobody: it was refused, or the runtime has closed."""
        letters, reason = self._owner.host.dispatcher.dead_letters, Reason.REFUSED if error else Reason.STOPPED
        for message in self._mail:
            letters.add(self.name, message, reason, error)
            self._owner.leave(self)
        self._mail.clear()

    async def _fire(self, message: Fire) -> Transitioned:
        abroad = self._owner.abroad
        if abroad is not None and not await abroad.comes_home(self):
            return await abroad.fire(self, message)
        if not self._is_at_hand:  # it may have ended so long ago that only the journal has it
            await self._owner.take_up(self.name)
        said = {name: getattr(message, name) for name in ("event", "reason", "metadata", "facts")}
        answer: Transitioned = await self._owner.services.commands.give(
            partial(Command, self.name, message),
            "fire",
            (self.name, {**said, "request_id": None}),  # as keys of all versions are bound to it
            request_id=message.request_id,
            kept=_kept,
        )
        return answer

    async def _send(self) -> None:
        """Send what was told, one after another."""
        mail, sent = self._mail, self._sent
        letters = self._owner.host.dispatcher.dead_letters
        try:
            while mail:
                try:
                    await self._fire(mail[0])
                except RuntimeClosed:
                    break
                except Exception as error:  # it is nobody's who could catch it
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
        self._entity = self._owner.host.kernel.machines.get(self.name) or self._entity
        return self._entity

    @property
    def _is_at_hand(self) -> bool:
        return self.coming or self.name in self._owner.host.kernel.machines


class Machines:
    """The `MachineActor`s of one runtime."""

    def __init__(self, services: RuntimeServices, host: Host, start: Callable[[Callable[[], Any]], object]) -> None:
        self.services = services
        self.host = host
        self.start = start  # runs a coroutine function among the runtime's own tasks
        self.on_spawn: Callable[[str], None] = lambda _: None  # told of each name
        self.abroad: MachinesAbroad | None = None  # those of other nodes
        self._refs: WeakValueDictionary[str, MachineRef] = WeakValueDictionary()
        self._waiting = 0  # events told and not answered yet
        self._full = False  # it was told that some are refused
        self._kinds: dict[tuple[object, ...], tuple[MachineActor, MachineKind]] = {}
        self._lately: dict[str, MachineRecord] = {}  # those that were made last, and are not at hand
        self._definitions: dict[int, bytes | None] = {}  # what those run by
        self._wanted: deque[tuple[MachineRef, SpawnMachine]] = deque()  # spawned, and still to be looked for
        self._looking = False
        host.on_machine_over = self._over
        host.on_close = self._give_up

    def spawn(self, actor: MachineActor, name: str) -> MachineRef:
        """The entity of that name, or a new one. Raises SpecificationError, MachineConflict, ValueError, TypeError.

        A journal that may keep the event loop waiting is asked in a thread: what it has of a name that is not known
        without that is seen later, and a conflict raised by whoever fires at it, or awaits the reference.
        """
        check_name(name)
        kind, facts = self._kind(actor)
        ref, entity = self._refs.get(name), self.host.kernel.machines.get(name)
        known = None if entity is not None else self._known_of(name, ref)
        record = known if entity is None else entity.record
        if record is None and ref is not None:  # it is being spawned
            record = ref.record
        if record is not None and (why := unfit(record, kind)):
            raise MachineConflict(_conflict(why))
        if ref is None:
            first = record or first_record(kind, name, facts, self.host.now())
            ref = self._refs[name] = MachineRef(self, name, first, kind.read(first.facts))
        message = SpawnMachine(name, kind, facts, known, ref=ref, kept=self._definition_of(known))
        if self.abroad is not None and entity is None:
            ref.kind = kind
            self.abroad.spawn(ref, message)
        elif entity is None and known is None and not ref.coming and self.host.journal.durable_medium:
            ref.kind = kind
            self._look_for(ref, message)
        else:
            self._take(ref, message)
        return ref

    def _known_of(self, name: str, ref: MachineRef | None) -> MachineRecord | None:
        """The record of one that is not at hand, where that is known, or can be asked for at once."""
        if not self.host.journal.durable_medium:
            return self.host.journal.reader.machine(name) if ref is None or ref.ended else None
        if self.abroad is not None:
            return None  # who has it is looked for in any case
        if ref is not None:
            return ref.record if ref.record.key and ref.ended else None
        return self._lately.get(name)

    def _definition_of(self, known: MachineRecord | None) -> bytes | None:
        """What one that is not at hand ran by, where that is known, or can be asked for at once."""
        if known is None:
            return None
        key, journal = known.definitions[-1], self.host.journal
        return self._definitions.get(key) if journal.durable_medium else journal.reader.spec(key)

    def _take(self, ref: MachineRef, message: SpawnMachine) -> None:
        self._lately.pop(ref.name, None)
        self.host.tell(message)
        ref.coming = True
        self.on_spawn(ref.name)

    def of(self, name: str) -> MachineRef:
        """The entity of that name, ended or not. Raises LookupError if there is none, or none that is known without
        asking a journal that may keep the event loop waiting.
        """
        ref = self._refs.get(name)
        if ref is not None:
            return ref
        entity, journal = self.host.kernel.machines.get(name), self.host.journal
        if entity is not None:
            return self._ref(entity.record)
        if not journal.durable_medium:
            record = _there(name, journal.reader.machine(name))
            return self._made(record, journal.reader.spec(record.definitions[-1]))
        record = _there(name, self._lately.get(name), " at hand", _OLDER)
        return self._made(record, self._definitions.get(record.definitions[-1]))

    # -- what only the journal has -------------------------------------------------------------------------------------

    async def recall(self) -> None:
        """When the journal was opened: know those that were made last by their names."""
        if self.host.journal.durable_medium:
            self._lately, self._definitions = await self.services.read_own(self._read_lately)

    def _read_lately(self) -> tuple[dict[str, MachineRecord], dict[int, bytes | None]]:
        """Of what has one owner only the ended: those that live are at hand."""
        reader, alone = self.host.journal.reader, self.abroad is None
        last = [one for one in reader.machines(limit=RECALLED) if not (alone and one.finished_at is None)]
        return {one.name: one for one in last}, {key: reader.spec(key) for key in {one.definitions[-1] for one in last}}

    def _look_for(self, ref: MachineRef, message: SpawnMachine) -> None:
        ref.looks += 1
        self._wanted.append((ref, message))
        if not self._looking:
            self._looking = True
            self.start(self._look)

    async def _look(self) -> None:
        """Look for the names that were spawned, and spawn them. A journal that cannot be read is asked again."""
        wanted = self._wanted
        try:
            while wanted:
                names = [ref.name for ref, _ in islice(wanted, _LOOKED_FOR)]
                try:
                    found = await self.services.read_own(self._read_all, names)
                except JournalError:
                    await anyio.sleep(_AGAIN)
                    continue
                for record, kept in found[: len(wanted)]:  # fewer, if it has closed meanwhile
                    self._found(*wanted.popleft(), record, kept)
        finally:
            self._looking = False
            self._give_up()

    def _read_all(self, names: list[str]) -> list[tuple[MachineRecord | None, bytes | None]]:
        """Those of these names, each with what it ran by."""
        reader = self.host.journal.reader
        found = [reader.machine(name) for name in names]
        return [(one, None if one is None else reader.spec(one.definitions[-1])) for one in found]

    def _found(self, ref: MachineRef, message: SpawnMachine, record: MachineRecord | None, kept: bytes | None) -> None:
        why = "" if record is None else unfit(record, message.kind)
        if record is not None and why:
            self.forget(ref)
            ref.show(record)
            ref.looked(MachineConflict(_conflict(why)))
            return
        if record is not None:
            ref.show(record)
        self._take(ref, msgspec.structs.replace(message, known=record, kept=kept))
        ref.looked()

    async def looked(self) -> None:
        """Wait until all names that were spawned have been looked for, here or over all nodes."""
        while self._wanted:
            await self._wanted[-1][0].seen()
        if self.abroad is not None:
            await self.abroad.settled()

    def _give_up(self) -> None:
        """The runtime closes: nobody may wait for what is looked for no longer."""
        while self._wanted:
            self._wanted.popleft()[0].looked()

    async def find(self, name: str) -> MachineRef:
        """The same, and the event loop turns meanwhile."""
        if name in self._refs or name in self.host.kernel.machines:
            return self.of(name)
        reader, read = self.host.journal.reader, self.services.read
        record = _there(name, await read(reader.machine, name))
        encoded: bytes | None = await read(reader.spec, record.definitions[-1])
        if name in self._refs or name in self.host.kernel.machines:  # it came meanwhile
            return self.of(name)
        return self._made(record, encoded)

    def _over(self, name: str) -> None:
        """One has ended, and may soon be only in the journal: its reference keeps what is shown of it."""
        ref, entity = self._refs.get(name), self.host.kernel.machines.get(name)
        if ref is not None and entity is not None:
            ref.coming = False
            ref.show(entity.record)

    def forget(self, ref: MachineRef) -> None:
        """It is no reference of what has its name."""
        if self._refs.get(ref.name) is ref:
            del self._refs[ref.name]

    def _ref(self, record: MachineRecord) -> MachineRef:
        ref = self._refs[record.name] = MachineRef(self, record.name, record, None)
        return ref

    def _made(self, record: MachineRecord, encoded: bytes | None) -> MachineRef:
        """The reference of one that only the journal has. Here, or where it has ended, it is had at hand again."""
        ref = self._ref(record)
        kind, missing = self._revived(record, encoded)
        if self.abroad is not None and record.finished_at is None:
            ref.kind = kind
        else:
            self.host.tell(SpawnMachine(record.name, kind, None, record, missing, kept=encoded))
        return ref

    def all(self) -> list[MachineRef]:
        """Those that are at hand, in the order of their making; also those that are just being spawned."""
        known = self.host.kernel.machines
        coming = [ref for name, ref in self._refs.items() if name not in known and not ref.ended]
        return [*map(self.of, known), *coming]

    async def take_up(self, name: str) -> None:
        """Have an ended one at hand again."""
        reader, read = self.host.journal.reader, self.services.read
        record: MachineRecord | None = await read(reader.machine, name)
        if record is None:
            return  # it is being spawned
        encoded: bytes | None = await read(reader.spec, record.definitions[-1])
        if name not in self.host.kernel.machines:
            kind, missing = self._revived(record, encoded)
            self.host.tell(SpawnMachine(name, kind, None, record, missing, kept=encoded))

    def _revived(self, record: MachineRecord, encoded: bytes | None) -> tuple[MachineKind | None, str]:
        """What it runs by, or why that is not to be had."""
        try:
            kind = revived(msgspec.json.decode(encoded or b"", type=Definition), self.host)
        except (MachineNotFound, msgspec.DecodeError) as error:
            return None, str(error)
        missing = unfit(record, kind)
        return (None, missing) if missing else (kind, "")

    def refuses(self, ref: MachineRef) -> Reason | None:
        """Why nothing can be told to one now."""
        if not self.services.is_open:
            return Reason.STOPPED
        if ref.waiting >= EVENTS or self._waiting >= EVENTS_OF_ALL:
            self._tell_full(ref)
            return Reason.MAILBOX_FULL
        return None if self.host.takes else Reason.MAILBOX_FULL

    def enter(self, ref: MachineRef) -> None:
        """An event for one begins to wait."""
        ref.waiting += 1
        self._waiting += 1

    def leave(self, ref: MachineRef) -> None:
        """It waits no longer."""
        ref.waiting -= 1
        self._waiting -= 1
        if self._full and self._waiting <= EVENTS // 2:
            self._full = False

    def _tell_full(self, ref: MachineRef) -> None:
        """Tell that events are refused: once, until most of what waits has been taken."""
        if not self._full:
            self._full = True
            text = (
                f"{ref.waiting} events wait for machine {ref.name}, and {self._waiting} for all: what is told beyond "
                f"{EVENTS} and {EVENTS_OF_ALL} is refused, and a dead letter. `tell` returns False then; `ask` waits"
            )
            self.host.notice("events_refused", "warning", text, kind="machine", entity_id=ref.name)

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
    """Refuse what cannot be the name of an entity. Raises TypeError, ValueError."""
    name = plain_text(name, "the name of a machine")
    if not (0 < len(name) <= LONGEST_NAME and name.isprintable() and name.strip() == name and name[0] != "-"):
        raise ValueError(
            f"{name!r:.80} cannot be the name of a machine: use 1 to {LONGEST_NAME} printable characters, "
            "none of them a space at its ends or a '-' at its beginning"
        )
    if "/" in name:
        raise ValueError(f"{name!r:.80} cannot be the name of a machine: '/' parts a job from its task")


def prepare(actor: MachineActor, services: RuntimeServices) -> MachineKind:
    """What entities of an actor run by. Raises SpecificationError with all that is wrong with it."""
    machine = actor.machine
    found = [*_findings(actor)]
    held: list[str] = []
    bodies, durable = services.bodies, services.journal.durable_medium
    path = path_of_value(machine)

    def named(place: str, function: Any) -> str:
        try:
            held.append(bodies.name_of(function, durable=durable))
            return held[-1]
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
        bodies.let_go(held)
        raise SpecificationError(found, f"machine {machine.name!r}")
    machine = extended(machine, actor.timed)
    definition = Definition(
        machine=machine.name, path=path, initial=str(machine.initial), endless=machine.endless,
        states=[*machine.states.values()], transitions=rows, timed=[*machine.timed], more=[*actor.timed], facts=facts,
        fields=actor.fields, on_event=on_event, on_enter=callbacks[0], on_exit=callbacks[1], folder=actor.folder,
    )  # fmt: skip
    kind = MachineKind(definition, machine, _type(actor.facts), actor.on_event)
    # As a restart reads it: what states and events are called, not which enumeration they are members of.
    kind = MachineKind(msgspec.json.decode(kind.encoded, type=Definition), machine, kind.facts, kind.on_event)
    if not all(":" in name for name in held):
        finalize(kind, bodies.let_go_later, held).atexit = False
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
            known = sorted(machine.valid_events(entry.state))
            yield Finding(
                f"{place}.event", f"{entry.state!r} knows no event {entry.event!r}", _near(entry.event, known)
            )
    used = {*asked_for, *(entry.after for entry in (*machine.timed, *actor.timed))}
    known = [] if facts is None else [field.name for field in msgspec.structs.fields(facts)]
    for entry in (*machine.timed, *actor.timed):
        if hasattr(facts, entry.after):
            try:
                due_of(entry.after, getattr(facts, entry.after), 0.0)
            except ValueError as error:
                yield Finding(f"facts.{entry.after}", str(error))
            continue
        own = entry in actor.timed
        meant = did_you_mean(entry.after, [name for name in known if own or name not in used])
        if meant or own:  # a machine that many use may know of times which these facts have not
            text = f"the timed event {entry.event!s} of {entry.state!s} is after {entry.after!r}, which is no fact"
            yield Finding("timed", text, meant or f"its facts: {', '.join(known) or 'none'}")
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
    """The facts of a new entity, as they are kept. Raises SpecificationError for those that cannot be."""
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
    """The answer that an event got which had been taken before under its key."""
    return msgspec.json.decode(record.answer, type=Acknowledged).transition


def as_kept(message: object) -> Fire:
    """What a machine is sent: who says it is kept in the metadata. Raises TypeError, ValueError for what cannot be."""
    fire = check_fire(message, "a MachineActor")
    if fire.by is None:
        return fire
    return msgspec.structs.replace(fire, metadata={"by": fire.by, **(fire.metadata or {})}, by=None)
