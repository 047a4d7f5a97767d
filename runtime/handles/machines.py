"""The `MachineActor`s of one runtime, and how these are spawned and found.

Rules
-----
- Spawning a name again returns the existing entity with its present facts; spawning it with another machine is refused.
- A journal that may block is read in a thread. Without a read these names are known: machines in memory, and the
  `RECALLED` newest machines at the opening of the journal. For any other name, `spawn` first looks in the journal, for
  many names with one query. Events for such a machine wait for the result, up to a limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import anyio
import msgspec

from ...actors.machines.entity import first_record
from ...actors.machines.kind import (
    Definition,
    MachineActor,
    MachineKind,
    revived,
    unfit,
)
from ...actors.messages.commands import SpawnMachine
from ...actors.messages.errors import MachineConflict, MachineNotFound
from ...actors.records.entities import MachineRecord
from ...actors.users.actor import DEFAULT_MAILBOX
from ...actors.users.dead_letters import Reason
from ..errors import JournalError
from .machine_kinds import check_name, first_facts, prepare
from .machine_refs import MachineCore, MachineRef

if TYPE_CHECKING:
    from ..host import KernelHost
    from .remote_machines import RemoteMachines
    from .services import Services

EVENTS = DEFAULT_MAILBOX
"""The most events of `tell` that may wait for one machine."""
EVENTS_OF_ALL = 100_000
"""The most events of `tell` that may wait for all machines together."""
RECALLED = 1_000
"""The number of newest machines, ended or not, whose names are loaded when a journal is opened."""
_LOOKED_FOR = 500  # names in one query of the journal
_AGAIN = 1.0  # seconds until a journal that could not be read is read again
_CACHED = 256  # the most checked kinds that are kept, so that the same actor is checked once


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
                f"{core.waiting} events wait for machine {core.name}, and {self._waiting} for all machines. Above "
                f"{EVENTS} for one and {EVENTS_OF_ALL} for all, `tell` returns False, and the event becomes a dead "
                "letter; `ask` waits"
            )
            self.host.notice("events_refused", "warning", text, kind="machine", entity_id=core.name)

    def _kind(self, actor: MachineActor) -> tuple[MachineKind, msgspec.Raw | None]:
        facts: object = actor.facts
        key = (
            id(actor.machine), id(type(facts)), tuple(actor.timed), actor.on_event,
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
