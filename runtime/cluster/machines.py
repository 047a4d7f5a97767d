"""`MachineActor`s of other nodes, and which node a new one is of.

Rules
-----
- A machine is the node's that spawned its name first, and lives there; events from other nodes go by the inbox. Whoever
  spawns the name again, anywhere, has that one.
- One that has ended is nobody's: it is taken in hand by the node that fires at it, if no other does.
- The database is asked in a thread, and never while somebody spawns: what it has of a name is seen later, and where
  that runs by another machine, whoever fires at the reference gets the conflict.
- What a reference shows of one elsewhere is what was last read; looking at it has it read again, in the background.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import anyio
from msgspec.structs import replace

from ...actors.machines.kind import MachineConflict, unfit
from ...actors.records.entities import MachineRecord
from ..handles.outcomes import RuntimeClosed
from ..journal.contract import JournalError
from .ids import Held, adopt

if TYPE_CHECKING:
    from ...actors.messages.commands import Fire, SpawnMachine
    from ...actors.records.transition import Transitioned
    from ..handles.machines import MachineRef, Machines
    from .node_context import NodeContext

STALE = 0.05
"""Seconds after which what is shown of a machine is read again."""


class MachinesAbroad:
    """Those of other nodes."""

    def __init__(self, seat: NodeContext, machines: Machines) -> None:
        self._seat = seat
        self._machines = machines
        self._settling: set[MachineRef] = set()  # those whose names are being reserved
        self._looked_at: WeakKeyDictionary[MachineRef, float] = WeakKeyDictionary()  # when each was read last

    # -- whose a machine is --------------------------------------------------------------------------------------------

    def spawn(self, ref: MachineRef, message: SpawnMachine) -> None:
        """Have a machine of that name here, or where it is."""
        if ref.settled is None or ref.settled.is_set():
            ref.settled = anyio.Event()
            self._settling.add(ref)
            self._seat.start(partial(self._spawn, ref, message))

    async def settled(self) -> None:
        """Wait until it is known of all that were spawned whether their names were free."""
        for ref in [*self._settling]:
            if ref.settled is not None:
                await ref.settled.wait()

    async def _spawn(self, ref: MachineRef, message: SpawnMachine) -> None:
        settled = ref.settled
        try:
            found = await Held(self._seat, "machine", ref.name).reserve(partial(self._read, ref.name))
            if found is not None:
                ref.show(found)
                if message.kind is not None and (why := unfit(found, message.kind)):
                    text = f"machine {ref.name} was spawned with another machine: {why}"
                    self._seat.host.notice("spawn_refused", "warning", text, kind="machine", entity_id=ref.name)
                    ref.refused = f"{why}. Use another name, or spawn it with the machine that it runs by."
                    self._machines.forget(ref)
                    return
                if found.finished_at is None:
                    return
                kept = await self._seat.patiently(self._seat.host.journal.reader.spec, found.definitions[-1])
                message = replace(message, known=found, kept=kept)
            self._seat.host.tell(message)
            self._machines.on_spawn(ref.name)
        except RuntimeClosed:
            return  # nothing was spawned
        finally:
            self._settling.discard(ref)
            if settled is not None:
                settled.set()

    def is_here(self, ref: MachineRef) -> bool:
        """Whether this node has it, so far as is known without asking."""
        here = self._seat.host.kernel.machines.get(ref.name)
        return ref.settled is None and here is not None and not here.ended

    async def known(self, ref: MachineRef) -> None:
        """Wait until it is known where it is, and is durable. Raises MachineConflict, RuntimeClosed."""
        if ref.settled is not None:
            await ref.settled.wait()
            await self._seat.host.barrier()
            ref.settled = None
        if ref.refused is not None:
            raise MachineConflict(ref.refused)

    async def comes_home(self, ref: MachineRef) -> bool:
        """Whether this node has it, now. One that has ended is taken in hand. Raises MachineConflict, RuntimeClosed."""
        await self.known(ref)
        if self.is_here(ref):
            return True
        here = self._seat.host.kernel.machines.get(ref.name)
        found = await self._read(ref.name)
        if found is None:  # it was told to be spawned here, and is not durable yet
            return here is not None
        ref.show(found)
        return found.finished_at is not None and await adopt(self._seat, "machine", ref.name)

    async def _read(self, name: str) -> MachineRecord | None:
        return await self._seat.patiently(self._seat.host.journal.reader.machine, name)

    # -- those elsewhere -----------------------------------------------------------------------------------------------

    async def fire(self, ref: MachineRef, message: Fire) -> Transitioned:
        """Fire an event at one that another node has. Raises what it is refused with there, and RuntimeClosed."""
        said = {"event": message.event, "reason": message.reason, "metadata": message.metadata, "facts": message.facts}
        answered = await self._seat.command("machine", ref.name, "fire", said, message.request_id)
        self.glance(ref, at_once=True)
        assert answered.transition is not None  # noqa: S101 - it is kept with every event that was taken under a key
        return answered.transition

    def glance(self, ref: MachineRef, *, at_once: bool = False) -> None:
        """Have it read again, for who looks next, if that was some time ago."""
        now = self._seat.host.monotonic()
        if not self._machines.services.is_open:
            return
        if not at_once and now - self._looked_at.get(ref, -STALE) < STALE:
            return
        if not self._seat.is_here(partial(self.glance, ref, at_once=at_once)):
            return
        self._looked_at[ref] = now
        self._seat.start(partial(self._look, ref))

    async def _look(self, ref: MachineRef) -> None:
        try:
            found: MachineRecord | None = await self._seat.ask(self._seat.host.journal.reader.machine, ref.name)
        except (JournalError, RuntimeClosed):
            return  # whoever fires at it is told
        finally:
            self._looked_at[ref] = self._seat.host.monotonic()
        if found is not None:
            ref.show(found)
