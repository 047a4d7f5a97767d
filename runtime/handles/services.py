"""The part of a runtime's services (`runtime/services.py`) that handles and submissions use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ...actors.messages.commands import Approve
    from ...actors.spec.lifecycles import Lifecycles
    from ..cluster.node_context import NodeContext
    from ..commands.idempotency import Requests
    from ..functions.registry import Bodies
    from ..host import KernelHost
    from ..journal.contract import Journal
    from ..observation.events import EventBus
    from ..observation.live import LiveTasks
    from ..status import RuntimeStatus
    from .breakers import BreakerHandle
    from .directory import JobDirectory
    from .jobs import JobHandle
    from .machine_refs import MachineRef
    from .references import EntityRef
    from .workers import WorkerHandle


class Services(Protocol):
    """`RuntimeServices`, which says what each of these is."""

    status: RuntimeStatus
    journal: Journal
    host: KernelHost
    bodies: Bodies
    lifecycles: Lifecycles
    hub: EventBus
    live: LiveTasks
    jobs: JobDirectory
    node: NodeContext | None
    read: Callable[..., Awaitable[Any]]
    read_own: Callable[..., Awaitable[Any]]

    @property
    def is_open(self) -> bool:
        """Whether the runtime accepts commands."""
        ...

    @property
    def draining(self) -> bool:
        """Whether a drain of the runtime has begun."""
        ...

    @property
    def commands(self) -> Requests:
        """The part that passes commands to the kernel. Raises RuntimeClosed."""
        ...

    def check_here(self, what: str) -> None:
        """Refuse a call from another thread or event loop. Raises RuntimeError."""
        ...

    def tail(self, token: int) -> str:
        """The last line of output of the command with a fencing token."""
        ...

    def in_flight(self, request_id: str) -> bool:
        """Whether the command with this key is in flight."""
        ...

    async def kept_of(self, request_id: str) -> bytes | None:
        """The kept answer of a command that took effect under this key."""
        ...

    async def with_teams(self, key: int, message: Approve) -> Approve:
        """The approval, with those teams of the entity that the approver is a member of."""
        ...

    def former_worker(self, name: str) -> WorkerHandle:
        """The handle of a worker that may no longer exist."""
        ...

    async def breaker_of(self, tool: str) -> BreakerHandle:
        """The circuit breaker of a tool. Raises LookupError."""
        ...

    async def machine_ref(self, name: str) -> MachineRef:
        """The `MachineActor` of that name."""
        ...

    def reference(self, kind: str, name: str, handle: Any, job: JobHandle | None = None) -> EntityRef:
        """The reference to an entity, for sending events."""
        ...
