"""`MachineActor`s of other nodes, and the decision which node a new one belongs to.

Rules
-----
- A machine belongs to the node that first spawned its name, and lives there; events from other nodes go through the
  inbox. A later spawn of the name, on any node, gets that machine.
- A machine that has ended belongs to no node: the first node that fires at it adopts it.
- The database is asked in a thread, and `spawn` does not wait for it: its record of a name is read later. If the record
  shows another kind of machine, the next `fire` at the reference raises the conflict.
- A reference to a machine on another node shows the record that was read last; a look at it starts a new read in the
  background.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import anyio
from msgspec.structs import replace

from ...actors.machines.kind import unfit
from ...actors.messages.errors import MachineConflict
from ...actors.records.entities import MachineRecord
from ..cluster.ids import IdReservation, adopt
from ..commands.other_nodes import send
from ..errors import JournalError, RuntimeClosed

if TYPE_CHECKING:
    from ...actors.messages.commands import Fire, SpawnMachine
    from ...actors.records.transition import Transitioned
    from ..cluster.node_context import NodeContext
    from .machine_refs import MachineCore
    from .machines import Machines

STALE = 0.05
"""Seconds after which a shown record is read again."""


class RemoteMachines:
    """The machines of other nodes."""

    def __init__(self, node: NodeContext, machines: Machines) -> None:
        self._node = node
        self._machines = machines
        self._settling: set[MachineCore] = set()  # references whose names are being reserved
        self._looked_at: WeakKeyDictionary[MachineCore, float] = WeakKeyDictionary()  # when each record was read last

    # -- which node a machine belongs to -------------------------------------------------------------------------------

    def spawn(self, core: MachineCore, message: SpawnMachine) -> None:
        """Spawn a machine of that name here, or find the node that has it."""
        if core.settled is None or core.settled.is_set():
            core.settled = anyio.Event()
            self._settling.add(core)
            self._node.start(partial(self._spawn, core, message))

    async def settled(self) -> None:
        """Wait until it is known whether the names of all spawned machines were free."""
        for core in [*self._settling]:
            if core.settled is not None:
                await core.settled.wait()

    async def _spawn(self, core: MachineCore, message: SpawnMachine) -> None:
        settled = core.settled
        try:
            found = await IdReservation(self._node, "machine", core.name).reserve(partial(self._read, core.name))
            if found is not None:
                core.show(found)
                if message.kind is not None and (why := unfit(found, message.kind)):
                    text = f"machine {core.name} was spawned here with another kind of machine: {why}"
                    self._node.host.notice("spawn_refused", "warning", text, kind="machine", entity_id=core.name)
                    core.refused = f"{why}. Use another name, or spawn it with the machine that it already runs."
                    self._machines.forget(core)
                    return
                if found.finished_at is None:
                    return
                kept = await self._node.patiently(self._node.host.journal.reader.spec, found.definitions[-1])
                message = replace(message, known=found, kept=kept)
            self._node.host.tell(message)
            self._machines.on_spawn(core.name)
        except RuntimeClosed:
            return  # nothing was spawned
        finally:
            self._settling.discard(core)
            if settled is not None:
                settled.set()

    def is_here(self, core: MachineCore) -> bool:
        """Whether this node has the machine, as far as can be known without the database."""
        here = self._node.host.kernel.machines.get(core.name)
        return core.settled is None and here is not None and not here.ended

    async def known(self, core: MachineCore) -> None:
        """Wait until the machine's node is known, and the machine is durable. Raises MachineConflict, RuntimeClosed."""
        if core.settled is not None:
            await core.settled.wait()
            await self._node.host.barrier()
            core.settled = None
        if core.refused is not None:
            raise MachineConflict(core.refused)

    async def comes_home(self, core: MachineCore) -> bool:
        """Whether this node has the machine now. Adopts an ended one. Raises MachineConflict, RuntimeClosed."""
        await self.known(core)
        if self.is_here(core):
            return True
        here = self._node.host.kernel.machines.get(core.name)
        found = await self._read(core.name)
        if found is None:  # the machine is being spawned here, and is not durable yet
            return here is not None
        core.show(found)
        return found.finished_at is not None and await adopt(self._node, "machine", core.name)

    async def _read(self, name: str) -> MachineRecord | None:
        return await self._node.patiently(self._node.host.journal.reader.machine, name)

    # -- machines of other nodes ---------------------------------------------------------------------------------------

    async def fire(self, core: MachineCore, message: Fire) -> Transitioned:
        """Fire an event at another node's machine. Raises that node's refusal, and RuntimeClosed."""
        said = {"event": message.event, "reason": message.reason, "metadata": message.metadata, "facts": message.facts}
        answered = await send(self._node, "machine", core.name, "fire", said, request_id=message.request_id)
        self.glance(core, at_once=True)
        assert answered.transition is not None  # noqa: S101 - the answer to an event with a key always has it
        return answered.transition

    def glance(self, core: MachineCore, *, at_once: bool = False) -> None:
        """Start to read the record again, if the last read is old."""
        now = self._node.host.monotonic()
        if not self._machines.services.is_open:
            return
        if not at_once and now - self._looked_at.get(core, -STALE) < STALE:
            return
        if not self._node.is_here(partial(self.glance, core, at_once=at_once)):
            return
        self._looked_at[core] = now
        self._node.start(partial(self._look, core))

    async def _look(self, core: MachineCore) -> None:
        try:
            found: MachineRecord | None = await self._node.ask(self._node.host.journal.reader.machine, core.name)
        except (JournalError, RuntimeClosed):
            return  # the next `fire` raises it
        finally:
            self._looked_at[core] = self._node.host.monotonic()
        if found is not None:
            core.show(found)
