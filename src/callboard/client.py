"""The client of a runtime in another process, over its board: the same verbs as `Runtime`.

Rules
-----
- The names are `__all__`, and a test pins them. The client needs httpx: install "callboard[client]".
"""

from .runtime.extras import needs

with needs("callboard.client", "client"):
    from .runtime.client.client import Client
    from .runtime.client.handles import RemoteJob, RemoteTask
    from .runtime.client.named import RemoteBreaker, RemoteMachine, RemoteWorker
    from .runtime.client.references import RemoteRef
    from .runtime.client.stream import RemoteEvents
    from .runtime.client.trouble import AccessRefused, ServerError, ServerUnreachable

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
