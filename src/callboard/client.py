"""The client of a runtime in another process, over its board: the same verbs as `Runtime`.

Rules
-----
- The names are `__all__`, and a test pins them. The client needs httpx: install "callboard[client]".
"""

from .runtime.extras import needs

with needs("callboard.client", "client"):
    from .runtime.client.client import Client
    from .runtime.client.entities import RemoteBreaker, RemoteMachine, RemoteWorker
    from .runtime.client.handles import RemoteJob, RemoteTask
    from .runtime.client.references import RemoteRef
    from .runtime.client.server_errors import AccessRefused, ServerError, ServerUnreachable
    from .runtime.client.stream import RemoteEvents

__all__ = [
    "AccessRefused",
    "Client",
    "RemoteBreaker",
    "RemoteEvents",
    "RemoteJob",
    "RemoteMachine",
    "RemoteRef",
    "RemoteTask",
    "RemoteWorker",
    "ServerError",
    "ServerUnreachable",
]
