"""The internal services of a runtime, for its parts, the board, the command line and collectors; not for users.

Rules
-----
- Users have a `Runtime`; `services_of(runtime)` (`runtime.py`) returns its services.
- `lifespan/wiring.py` makes the parts. Before the runtime is entered, only the parts exist that need no journal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ..actors.messages.commands import Approve
from ..actors.messages.notices import Notice
from ..actors.records.entities import RequestRecord
from ..actors.spec.model import Workstream
from ..actors.tasks.task import TaskActor
from ..actors.user_code import is_a, plain_text, shown
from ..actors.users.dead_letters import DeadLetters
from .commands.idempotency import Requests
from .dispatch.abandoned_threads import AbandonedThreads
from .dispatch.dispatcher import Dispatcher
from .errors import LeaseLost, closed
from .execution.outputs import OutputLocation
from .functions.lifecycles import ImportPathFinder
from .functions.registry import Bodies
from .handles.approvals import with_teams
from .handles.directory import JobDirectory
from .handles.jobs import JobHandle
from .handles.machine_refs import MachineRef
from .handles.machines import Machines
from .handles.references import EntityRef, Owner
from .handles.workers import WorkerHandle, not_there
from .jobs.child_jobs import Children
from .jobs.submissions import Existing, Submissions, Submitted, asked_of
from .journal.contract import Health, Journal
from .journal.query_threads import QueryThreads
from .observation.events import EventBus
from .status import RuntimeStatus

if TYPE_CHECKING:
    from ..actors.spec.lifecycles import Lifecycles
    from .cluster.membership import Membership
    from .cluster.node_context import NodeContext
    from .cluster.tools import ToolsService
    from .commands.inbox import InboxReader
    from .dispatch.clock import Ids
    from .execution.calls import CallRunner
    from .handles.breakers import BreakerHandle
    from .host import KernelHost
    from .observation.live import LiveTasks

Ask = Callable[..., Awaitable[Any]]


class RuntimeServices:
    """The services of one runtime."""

    journal: Journal
    host: KernelHost
    caller: CallRunner
    live: LiveTasks
    """The progress and text of running bodies."""
    dispatcher: Dispatcher
    queries: QueryThreads
    requests: Requests
    machines: Machines
    submissions: Submissions
    children: Children
    inbox: InboxReader
    read: Ask
    """Run a query of the journal: `QueryThreads.read`."""
    read_own: Ask

    def __init__(self, ids: Ids, lifecycles: Callable[[ImportPathFinder], Lifecycles]) -> None:
        self.status = RuntimeStatus()
        self.ids = ids
        self.bodies = Bodies()
        self.finder = ImportPathFinder()
        self.lifecycles = lifecycles(self.finder)
        self.abandoned_threads = AbandonedThreads()
        """The threads that stopped attempts have left behind."""
        self.hub = EventBus()
        """The event bus that emits transitions and notices."""
        self.dead_letters = DeadLetters()
        self.jobs = JobDirectory(self)
        self.on_trouble: Callable[[Notice], object] | None = None
        self.cluster_away: str | None = None
        """Why the connection to the Ray cluster is lost; None if it is not lost."""
        self.node: NodeContext | None = None
        """The runtime's node of the journal, if several nodes can share the journal."""
        self.membership: Membership | None = None
        self.shared_tools: ToolsService | None = None

    def ask_by(self, queries: QueryThreads) -> None:
        """Use these functions for queries of the journal."""
        self.queries, self.read, self.read_own = queries, queries.read, queries.read_own

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the runtime accepts commands."""
        return self.status.is_open

    @property
    def health(self) -> Health:
        """`Runtime.health`."""
        self.status.check_entered()
        if self.status.broken is not None:
            broken = self.status.broken
            why = broken if isinstance(broken, LeaseLost) else closed("the runtime has closed", broken)
            return Health(ok=False, reason=str(why))
        health, shortages = self.journal.health, self.caller.shortages
        if health.ok and self.membership is not None:
            health = self.membership.health
        if health.ok and shortages.reason is not None:
            return Health(reason=shortages.reason, since=shortages.since)
        if health.ok and self.cluster_away is not None:
            return Health(reason=self.cluster_away)
        return health

    @property
    def draining(self) -> bool:
        """Whether a drain of the runtime has begun."""
        return self.host.kernel.drain_began is not None

    def check_here(self, what: str) -> None:
        """Refuse a call from another thread or another event loop. Raises RuntimeError."""
        self.status.check_here(what)

    def now(self) -> float:
        """The UTC epoch seconds of the runtime's clock."""
        return self.host.now()

    def after(self, delay: float, action: Callable[[], object]) -> None:
        """Call a function after so many seconds by the runtime's clock. The function must not raise."""
        self.dispatcher.timers.arm(self.dispatcher.clock.monotonic() + delay, action)

    def tail(self, token: int) -> str:
        """The last line of output of the command with a fencing token."""
        return self.caller.tail(token)

    def output_of(self, task: TaskActor) -> OutputLocation:
        """The output file of a task's present attempt, which may not exist yet."""
        outputs = self.caller.outputs
        return OutputLocation(outputs.place(task), outputs.root)

    def output_at(self, kept: str) -> OutputLocation:
        """The output file for a path in a record."""
        return self.caller.outputs.found(kept)

    async def settled(self, limit: float) -> bool:
        """Wait until the present state in memory is durable. Raises RuntimeClosed.

        Returns False if the journal cannot be written, or after `limit` seconds.
        """
        self.status.check_open_here()
        return await self.host.settled(limit)

    async def hooks_over(self) -> None:
        """Wait until no hook, alert or callback runs; each has a limit. Raises RuntimeClosed."""
        self.status.check_open_here()
        await self.host.hooks_over()

    # -- commands ------------------------------------------------------------------------------------------------------

    async def submitted(
        self, workstream: Workstream, job_id: str | None, by: str | None, existing: Existing, request_id: str | None
    ) -> Submitted:
        """`Runtime.submit`, and whether it created the job."""
        self.status.check_open_here()
        check_type(workstream, Workstream, "submit takes a Workstream")
        return await self.submissions.submit(workstream, asked_of(job_id, by, existing, request_id))

    async def submit_child(
        self, parent: str, task: str, workstream: Workstream, name: str, request_id: str | None = None
    ) -> JobHandle:
        """Submit a job as the child of a running task. Raises LookupError, and the errors of a body's submit."""
        actor = self.jobs.living(parent)
        stream = None if actor is None else actor.stream
        if stream is None or task not in stream.graph.names:
            raise LookupError(f"job {parent!r:.80} has no task {task!r:.80} that runs")
        running = stream.tasks[stream.graph.names[task]]
        context = self.caller.context_of(running, running.record.token)
        return (await self.children.submit(context, workstream, name, request_id)).job

    @property
    def commands(self) -> Requests:
        """The part that passes commands to the kernel. Raises RuntimeClosed."""
        self.status.check_open_here()
        return self.requests

    async def with_teams(self, key: int, message: Approve) -> Approve:
        """The approval of an entity (by its key), with those teams of the entity that the approver is a member of."""
        return await with_teams(message, self.host.kernel.entities.get(key), self.bodies, self.host)

    def in_flight(self, request_id: str) -> bool:
        """Whether the command with this key is in flight."""
        return self.requests.in_flight(request_id)

    async def kept_of(self, request_id: str) -> bytes | None:
        """The kept answer of a command that took effect under this key, an encoded `Acknowledged`."""
        if (kept := self.requests.answers.get(request_id)) is not None:
            return kept
        record: RequestRecord | None = await self.read(self.journal.reader.request, request_id)
        return None if record is None else bytes(record.answer)

    def new_id(self) -> str:
        """A new key, for a command without one."""
        return self.ids.new()

    # -- by name -------------------------------------------------------------------------------------------------------

    def called(self, name: str) -> str:
        """The name of a worker or breaker of this node, from its name or from `NAME@NODE`."""
        node, name = self.host.kernel.node, plain_text(name, "the name of a worker or a tool")
        return name.removesuffix(f"@{node}") if node else name

    def worker(self, name: str) -> WorkerHandle:
        """The worker of this node with the given name. Raises LookupError if there is none.

        A specified worker of capacity n on processes becomes n workers. If nodes share the journal, `NAME@NODE` is also
        the name of a worker.
        """
        self.status.check_open()
        name = self.called(name)
        if name not in self.host.workforce.named:
            raise not_there(name, self.host)
        return WorkerHandle(self, self.host, name)

    def former_worker(self, name: str) -> WorkerHandle:
        """The handle of a worker that may no longer exist: a repeated command still needs its handle."""
        self.status.check_open()
        return WorkerHandle(self, self.host, self.called(name))

    def breakers(self) -> list[BreakerHandle]:
        """The circuit breakers of all tools that a workstream has used or that `Runtime(tools=...)` names."""
        self.status.check_open()
        from .handles.breakers import BreakerHandle  # noqa: PLC0415 - most programs look at no breaker

        return [BreakerHandle(self, self.host, actor) for actor in self.host.workforce.breakers.values()]

    def breaker(self, tool: str) -> BreakerHandle:
        """The circuit breaker of a tool. Raises LookupError if there is none (yet)."""
        handles, tool = {handle.tool: handle for handle in self.breakers()}, self.called(tool)
        if tool not in handles:
            names = ", ".join(sorted(handles)) or "none"
            raise LookupError(f"no workstream has used a tool {tool!r} yet; there are breakers of: {names}")
        return handles[tool]

    async def breaker_of(self, tool: str) -> BreakerHandle:
        """The circuit breaker of a tool, also if only another node has used the tool. Raises LookupError."""
        self.status.check_open_here()
        if self.shared_tools is None or self.called(tool) in self.host.workforce.breakers:
            return self.breaker(tool)
        breakers = await self.read(self.journal.reader.breakers)
        name = next((one.name for one in breakers if tool in {one.name, one.id}), None)
        if name is not None:
            await self.shared_tools.provide(name)
        return self.breaker(name or tool)

    async def machine_ref(self, name: str) -> MachineRef:
        """The `MachineActor` of that name; other entities of that name do not count."""
        self.status.check_open_here()
        return await self.machines.find(plain_text(name, "the name of a machine"))

    def reference(self, kind: str, name: str, handle: Any, job: JobHandle | None = None) -> EntityRef:
        """The reference to an entity, for sending events. job: the job that the entity belongs to, if any."""
        owner = Owner(self, self.dispatcher, self.machines.start, self.host.kernel.count_refusal)
        return EntityRef(owner, kind, name, handle, job)


def check_type(value: object, kind: type, expected: str) -> None:
    """Refuse a value of another type. Raises TypeError."""
    if not is_a(value, kind):
        raise TypeError(f"{expected}, not {shown(value, 60)}")
