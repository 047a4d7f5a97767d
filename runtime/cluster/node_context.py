"""A runtime's context as a node: how code on the event loop asks the database.

Rules
-----
- A question blocks, so it runs in a thread. If the database cannot be reached, a patient caller's question is repeated
  with growing delays: that is how a journal behaves that cannot write.
- If a caller of the application is cancelled, it stops waiting even if the database does not answer; its question goes
  on in its thread. Questions of the runtime's own tasks are always awaited: their writes must come in order.
- The first code that finds out that this node was fenced calls `lost`, and the runtime breaks.
- Waits use the runtime's clock, and end when it closes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import anyio

from ...actors.messages.inputs import NewEpoch
from ..dispatch.waker import OwnLoop
from ..errors import EventLoopEnded, JournalError, LeaseLost, closed, goes_on
from ..journal.cluster import EPOCH
from .delays import Delays
from .texts_elsewhere import TextsElsewhere

if TYPE_CHECKING:
    from ..host import KernelHost
    from ..journal.cluster import Cluster

T = TypeVar("T")


class Ask(NamedTuple):
    """Ways to run blocking questions.

    Questions to the journal never delay those to the cluster, and none delays the lease.

    own: questions of the runtime's own tasks to the cluster. live: about what running bodies show.
    """

    journal: Callable[..., Awaitable[Any]]
    cluster: Callable[..., Awaitable[Any]]
    own: Callable[..., Awaitable[Any]]
    live: Callable[..., Awaitable[Any]]
    lease: Callable[..., Awaitable[Any]]


class NodeContext:
    """A node's context.

    See the module. ask: runs questions. start: runs a coroutine function in the runtime's tasks.
    """

    def __init__(
        self,
        cluster: Cluster,
        host: KernelHost,
        ask: Ask,
        start: Callable[[Callable[[], Any]], object],
    ) -> None:
        self.cluster = cluster
        self.host = host
        self.read = ask.journal
        self.read_own = ask.own
        self._ask_live = ask.live
        self._ask_cluster = ask.cluster
        self.read_lease = ask.lease
        self.start = start
        self.lost: Callable[[LeaseLost], None] = lambda _: None
        self._waiting: set[anyio.Event] = set()
        self._closed = False
        self._cause: BaseException | None = None  # the error that broke the runtime
        self._home = OwnLoop()
        self.texts = TextsElsewhere(self)
        """The text of other nodes' bodies, for readers of this node."""

    def is_here(self, look: Callable[[], object]) -> bool:
        """Whether this is the runtime's event loop. If not, `look` is called there."""
        if self._home.here:
            return True
        self.host.dispatcher.call_threadsafe(look)
        return False

    @property
    def name(self) -> str:
        """This node's name."""
        return self.cluster.name

    def close(self, cause: BaseException | None) -> None:
        """End every wait; `cause` is the error that broke the runtime."""
        if not self._closed:
            self._closed, self._cause = True, cause
        for over in self._waiting:
            over.set()

    @property
    def closed(self) -> bool:
        """Whether the runtime closes, and asks no more questions."""
        return self._closed

    def check(self) -> None:
        """Raise RuntimeClosed if the context is closed."""
        if self._closed:
            text = "the runtime closed before the answer came"
            if self._cause is None or isinstance(self._cause, EventLoopEnded):
                text = f"{text}; {goes_on(shared=True)}"
            raise closed(text, self._cause)

    # -- asking --------------------------------------------------------------------------------------------------------

    async def ask(self, question: Callable[..., T], *args: Any) -> T:
        """Ask the database once. Raises JournalError, and RuntimeClosed if this node was fenced."""
        about_cluster = getattr(question, "__self__", None) is self.cluster
        return await self._once(self._ask_cluster if about_cluster else self.read, question, *args)

    async def ask_cluster(self, question: Callable[..., T], *args: Any) -> T:
        """Ask the cluster once, as `ask` does."""
        return await self._once(self._ask_cluster, question, *args)

    async def ask_own(self, question: Callable[..., T], *args: Any) -> T:
        """Ask the cluster once for a task of the runtime itself, which always awaits the answer."""
        return await self._once(self.read_own, question, *args)

    async def ask_live(self, question: Callable[..., T], *args: Any) -> T:
        """Ask the cluster once about what running bodies show, as `ask_own` does: it delays no other question."""
        return await self._once(self._ask_live, question, *args)

    async def _once(self, read: Callable[..., Awaitable[Any]], question: Callable[..., T], *args: Any) -> T:
        try:
            answer: T = await read(question, *args)
        except LeaseLost as lost:
            self.lost(lost)
            raise closed("the runtime has closed", lost) from lost
        return answer

    async def patiently(self, question: Callable[..., T], *args: Any) -> T:
        """Ask until the database answers. Raises RuntimeClosed."""
        return await self.again(lambda: self.ask(question, *args))

    async def again(self, look: Callable[[], Awaitable[T]]) -> T:
        """Call `look` until it reaches the database. Raises RuntimeClosed, and what else `look` raises."""
        delays = Delays()
        while True:
            self.check()
            try:
                return await look()
            except LeaseLost as lost:
                self.lost(lost)
                raise closed("the runtime has closed", lost) from lost
            except JournalError:
                await self.pause(delays())

    async def in_own_task(self, do: Callable[[], Awaitable[object]]) -> None:
        """Run `do` in one of the runtime's own tasks, and wait. It goes on if the caller is cancelled.

        Raises whatever `do` raises.
        """
        over, raised = anyio.Event(), list[Exception]()

        async def doing() -> None:
            try:
                await do()
            except Exception as error:
                raised.append(error)
            finally:
                over.set()

        self.start(doing)
        await over.wait()
        if raised:
            raise raised.pop()

    async def pause(self, seconds: float, over: anyio.Event | None = None) -> None:
        """Wait for so many seconds, or until `over` is set. Raises RuntimeClosed if the runtime closes meanwhile."""
        self.check()
        over, host = over or anyio.Event(), self.host
        timer = host.dispatcher.timers.arm(host.monotonic() + seconds, over.set)
        self._waiting.add(over)
        try:
            await over.wait()
        finally:
            self._waiting.discard(over)
            host.dispatcher.timers.cancel(timer)
        self.check()

    def count_on(self) -> None:
        """Give new numbers from the node's present epoch on."""
        kernel, first = self.host.kernel, self.cluster.epoch * EPOCH
        if first > min(kernel.key, kernel.seq):
            self.host.tell(NewEpoch(first, first))
