"""The board's HTTP server, in the event loop of its runtime.

Rules
-----
- It listens before its address is announced, and stops when the block is left: running requests may end within
  `PATIENCE` seconds.
- It handles no signals: the command line does. It logs nothing, and sends no name of its own.
- Any address but this machine's own is refused unless there are tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from typing import Any

import anyio
import uvicorn

from ..stream.uvicorn_protocol import ConnectionProtocol
from . import connection_limits as room
from .access import Token
from .gate import Application, RequestGate, is_local

PATIENCE = 2
"""Seconds in which running requests may end when the server stops."""
_NOT_TAKEN = "socket.accept() out of system resource"
"""A message of asyncio, once for each waiting connection, when no descriptor is left."""


class CannotServe(ValueError):  # noqa: N818 - the name says what happened
    """The board cannot be served there. The text says why, and what to do."""


def listening(host: str, port: int, tokens: Sequence[Token] = ()) -> socket.socket:
    """Open a socket that listens there (port 0: any free one). Raises CannotServe."""
    if not tokens and not is_local([host]):
        raise CannotServe(
            f"without tokens the board can be served only to this machine (on 127.0.0.1), not on {host}: everybody who "
            "reaches it there could do everything. Give it tokens (see docs/http.md)."
        )
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise CannotServe(f"{host!r} is not an address of this machine: {error.strerror}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(room.backlog())
    except OSError as error:
        listener.close()
        raise CannotServe(f"the board cannot listen on {host} port {port}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the address of a listening socket, for a browser."""
    host, port, *_ = listener.getsockname()
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


class _Server(uvicorn.Server):
    """A server without signal handlers of its own."""

    ready: anyio.Event

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Handle no signals."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Set `ready` when the server listens."""
        await super().startup(sockets)
        self.ready.set()


@contextlib.asynccontextmanager
async def serving(
    app: Application, listener: socket.socket, say: Callable[[str], object] | None = None
) -> AsyncGenerator[None]:
    """Serve an application on a socket while the block runs. say: called once if connections cannot be accepted."""
    server = _Server(
        uvicorn.Config(
            app, http=ConnectionProtocol, lifespan="off", log_config=None, log_level="critical", access_log=False,
            server_header=False, proxy_headers=False, ws="none", limit_concurrency=room.connections(),
            backlog=room.backlog(), timeout_graceful_shutdown=PATIENCE, h11_max_incomplete_event_size=64 * 1024,
        )
    )  # fmt: skip
    server.ready = anyio.Event()
    with _once(say):
        async with anyio.create_task_group() as group:
            group.start_soon(_serve, server, listener)
            try:
                await server.ready.wait()  # a cancelled wait must stop the server, too
                yield
            finally:
                server.should_exit = True
                if isinstance(app, RequestGate):
                    app.stop()


@contextlib.contextmanager
def _once(say: Callable[[str], object] | None) -> Generator[None]:
    """Report only once that connections cannot be accepted."""
    loop = asyncio.get_running_loop()
    before, said = loop.get_exception_handler(), False

    def heard(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal said
        if context.get("message") != _NOT_TAKEN:
            if before is None:
                loop.default_exception_handler(context)
            else:
                before(loop, context)
        elif say is not None and not said:
            said = True
            say(f"connections to the board wait, since the process has too few descriptors: {context.get('exception')}")

    loop.set_exception_handler(heard)
    try:
        yield
    finally:
        loop.set_exception_handler(before)


async def _serve(server: _Server, listener: socket.socket) -> None:
    """Run the server to its end, even if cancelled: it stops by `should_exit`."""
    with anyio.CancelScope(shield=True):
        await server.serve([listener])
