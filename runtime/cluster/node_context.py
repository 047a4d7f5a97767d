"""A runtime's seat among the nodes of its journal: how everything on the event loop asks the database.

Rules
-----
- A question blocks, so it is asked in a thread. One that cannot be asked now, since the database is not reached, is
  asked again with growing delay where its asker is patient: that is how a journal behaves that cannot write.
- A caller of the application's who is cancelled waits no longer, also where the database answers nothing: what he asked
  goes on in its thread. What the runtime's own tasks ask is waited for: what it writes has to come in their order.
- Whoever hears that this node was fenced tells `lost`, once, and the runtime breaks.
- Waits are by the runtime's clock, and end when it closes.
- A command for another node goes by the inbox, under a key: so it may be sent again when it is not known whether it
  arrived. Its answer comes from whoever owns its target when it is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakSet

import anyio
import msgspec

from ...actors.messages.inputs import NewEpoch
from ..commands.idempotency import made_key
from ..commands.wire_errors import Answered, error_of
from ..dispatch.waker import Home
from ..handles.outcomes import CutShort, closed, goes_on
from ..journal.cluster import EPOCH, LeaseLost
from ..journal.contract import InboxRow, JournalError

if TYPE_CHECKING:
    from ..host import Host
    from ..journal.cluster import Cluster
    from .remote import RemoteJob

FIRST_LOOK = 0.02
LAST_LOOK = 1.0
"""Seconds between two looks for what another node does: half as many again each time, up to the last."""
FIRST_ANSWER = 0.005
"""Seconds until the first look for an answer."""

T = TypeVar("T")


class Delays:
    """Growing delays between looks, in seconds."""

    def __init__(self, first: float = FIRST_LOOK, last: float = LAST_LOOK) -> None:
        self._next = first
        self._last = last

    def __call__(self) -> float:
        """The next one."""
        delay, self._next = self._next, min(self._next * 1.5, self._last)
        return delay


class Ask(NamedTuple):
    """How blocking questions are asked. None to the journal holds up one to the cluster, and nothing the lease.

    own: to the cluster as well, by the runtime's own tasks.
    """

    journal: Callable[..., Awaitable[Any]]
    cluster: Callable[..., Awaitable[Any]]
    own: Callable[..., Awaitable[Any]]
    lease: Callable[..., Awaitable[Any]]


class NodeContext:
    """See the module. ask: runs blocking questions. start: runs a coroutine function among the runtime's own tasks."""

    def __init__(
        self,
        cluster: Cluster,
        host: Host,
        ask: Ask,
        start: Callable[[Callable[[], Any]], object],
    ) -> None:
        self.cluster = cluster
        self.host = host
        self.read = ask.journal
        self.read_own = ask.own
        self._ask_cluster = ask.cluster
        self.read_lease = ask.lease
        self.start = start
        self.remote: WeakSet[RemoteJob] = WeakSet()  # handles of jobs that other nodes run
        self.lost: Callable[[LeaseLost], None] = lambda _: None
        self._waiting: set[anyio.Event] = set()
        self._closed = False
        self._cause: BaseException | None = None  # what the runtime broke by
        self._home = Home()

    def is_here(self, look: Callable[[], object]) -> bool:
        """Whether this is the runtime's event loop, where its tasks are started. If not, `look` is called there."""
        if self._home.here:
            return True
        self.host.dispatcher.call_threadsafe(look)
        return False

    @property
    def name(self) -> str:
        """This node's name."""
        return self.cluster.name

    def handles_of(self, job_id: str) -> list[RemoteJob]:
        """The handles of a job that another node runs."""
        return [handle for handle in self.remote if handle.id == job_id]

    def close(self, cause: BaseException | None) -> None:
        """End every wait; `cause` is what the runtime broke by."""
        if not self._closed:
            self._closed, self._cause = True, cause
        for over in self._waiting:
            over.set()

    @property
    def closed(self) -> bool:
        """Whether nothing is asked any more: this node leaves."""
        return self._closed

    def check(self) -> None:
        """Raises RuntimeClosed once it is closed."""
        if self._closed:
            text = "the runtime closed before this was known"
            if self._cause is None or isinstance(self._cause, CutShort):
                text = f"{text}; {goes_on(shared=True)}"
            raise closed(text, self._cause)

    # -- asking --------------------------------------------------------------------------------------------------------

    async def ask(self, question: Callable[..., T], *args: Any) -> T:
        """Ask the database once. Raises JournalError, and RuntimeClosed where this node was fenced."""
        about_cluster = getattr(question, "__self__", None) is self.cluster
        return await self._once(self._ask_cluster if about_cluster else self.read, question, *args)

    async def ask_cluster(self, question: Callable[..., T], *args: Any) -> T:
        """The same where a function asks the cluster."""
        return await self._once(self._ask_cluster, question, *args)

    async def ask_own(self, question: Callable[..., T], *args: Any) -> T:
        """The same for the runtime's own tasks, which end with the answer. It is about the cluster."""
        return await self._once(self.read_own, question, *args)

    async def _once(self, read: Callable[..., Awaitable[Any]], question: Callable[..., T], *args: Any) -> T:
        try:
            answer: T = await read(question, *args)
        except LeaseLost as lost:
            self.lost(lost)
            raise closed("the runtime has closed", lost) from lost
        return answer

    async def patiently(self, question: Callable[..., T], *args: Any) -> T:
        """The same, again until the database is reached. Raises RuntimeClosed."""
        return await self.again(lambda: self.ask(question, *args))

    async def again(self, look: Callable[[], Awaitable[T]]) -> T:
        """Do what asks the database, again until that is reached. Raises RuntimeClosed, and what else `look` raises."""
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
        """Do it in a task of the runtime's own, and wait for that: it goes on where who waits is cancelled. Raises what
        it raises.
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

    async def pause(self, seconds: float) -> None:
        """Wait for so many seconds. Raises RuntimeClosed if the runtime closes meanwhile."""
        self.check()
        over, host = anyio.Event(), self.host
        timer = host.dispatcher.timers.arm(host.monotonic() + seconds, over.set)
        self._waiting.add(over)
        try:
            await over.wait()
        finally:
            self._waiting.discard(over)
            host.dispatcher.timers.cancel(timer)
        self.check()

    def count_on(self) -> None:
        """Have all numbers that are given from now on be those of the node's present epoch."""
        kernel, first = self.host.kernel, self.cluster.epoch * EPOCH
        if first > min(kernel.key, kernel.seq):
            self.host.tell(NewEpoch(first, first))

    # -- commands for other nodes --------------------------------------------------------------------------------------

    async def command(
        self, kind: str, target: str, verb: str, arguments: dict[str, Any], request_id: str | None
    ) -> Answered:
        """Give what lives on another node a command; returns what came of it, which is durable.

        Raises what the verb is refused with there, and RuntimeClosed.
        """
        await self.host.gate()
        given = {name: value for name, value in arguments.items() if value is not None}
        row = InboxRow(verb, kind, target, request_id or made_key(), given, self.host.now())
        number = await self.patiently(self.cluster.send, row)
        delays = Delays(FIRST_ANSWER)
        while (text := await self.patiently(self.cluster.answer, number)) is None:
            await self.pause(delays())
        answered = msgspec.json.decode(text, type=Answered)
        if (error := error_of(answered)) is not None:
            raise error
        return answered
