"""The runtime of a simulation: the real one, opened without a program around it.

Rules
-----
- Dispatcher, host, caller, kernel, hub and verbs are those of every runtime. Only its outside differs:
  the journal, the engines, the clock, the loop that runs coroutines.
- After its opening it lives until a crash: a crash leaves it as it is, and nothing of it runs again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ..commands.inbox import InboxReader
from .loop import SimulatedLoop, SimulatedRunners
from .scripted import ScriptedRuntime

if TYPE_CHECKING:
    from ..dispatch.runners import RunnerPool
    from .world import World


class SimulatedRuntime(ScriptedRuntime):
    """A runtime in a simulation."""

    def __init__(self, world: World, loop: SimulatedLoop, **settings: Any) -> None:
        super().__init__(world, world.journal, ids=world.ids, **settings)
        self.opened = False  # the runtime has recovered, and takes inputs
        self.loop = loop
        self.runners = cast("RunnerPool", SimulatedRunners(loop))
        self._services.bodies = world.bodies
        self.inbox: InboxReader
        self._world = world

    async def start(self) -> None:
        """Open the runtime. The first part, up to the first input, happens at once."""
        self._services.status.entered = True
        inbox = self.inbox = await self._life.wiring.load(self.runners, self._start_soon)
        await self._life.wiring.catch_up(inbox)
        self.opened = True
        self._world.note("open")
        await inbox.take()

    def crash(self) -> None:
        """Stop at once: nothing of this runtime runs again."""
        self.gone = True
        self._services.status.open = self._services.status.running = False
        self._services.dispatcher.close()  # else cells and effects, which the collector does not track, would keep all
        self._services.host.drop_pending()

    @property
    def has_work(self) -> bool:
        """Whether actors have work now."""
        return self._services.dispatcher.has_work

    def step(self) -> None:
        """Let the actors do one step."""
        self._services.dispatcher.step()

    def next_due(self) -> float | None:
        """When its next timer is due; None if none is armed."""
        return self._services.dispatcher.timers.next_due()

    def look_into_inbox(self) -> None:
        """Another process has put a command into the inbox."""
        if self.opened and not self.gone:
            self._start_soon(self.inbox.take)

    def _start_soon(self, func: Any) -> None:
        self.runners.submit(func, _over)


def _over(_: Any, error: BaseException | None) -> None:
    if error is not None:
        raise error
