"""Serving the board: an HTTP server in the event loop of its runtime.

Rules
-----
- It listens before anything is told of it, and whoever leaves the block has it stopped: what is being answered may end
  within `PATIENCE` seconds.
- It takes no signals: that is the command line's business. It logs nothing and says nothing of itself.
- Another address than this machine's own is refused unless there are tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from typing import Any

import anyio
import uvicorn

from ..stream.uvicorn_protocol import LineProtocol
from . import connection_limits as room
from .access import Token
from .gate import Application, Gate, is_local

PATIENCE = 2
"""Seconds that what is being answered has to end when the server stops."""
_NOT_TAKEN = "socket.accept() out of system resource"
"""What asyncio says, once for each that waits, where there is no descriptor left."""


class Refused(ValueError):  # noqa: N818 - it says what happened
    """The board cannot be served there; the text says why, and what to do."""


def listening(host: str, port: int, tokens: Sequence[Token] = ()) -> socket.socket:
    """A socket that listens there (port 0: any free one). Raises Refused."""
    if not tokens and not is_local([host]):
        raise Refused(
            f"without tokens the board is served to this machine only (on 127.0.0.1), and not on {host}: whoever "
            "reached it there could do everything. Give it tokens (docs/http.md tells how)."
        )
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise Refused(f"{host!r} is no address of this machine: {error.strerror}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(room.backlog())
    except OSError as error:
        listener.close()
        raise Refused(f"the board cannot listen on {host} port {port}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket) -> str:
    """Where a socket listens, as an address for a browser."""
    host, port, *_ = listener.getsockname()
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


class _Server(uvicorn.Server):
    """Without signal handlers of its own."""

    ready: anyio.Event

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Take none."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say when it listens."""
        await super().startup(sockets)
        self.ready.set()


@contextlib.asynccontextmanager
async def serving(
    app: Application, listener: socket.socket, say: Callable[[str], object] | None = None
) -> AsyncGenerator[None]:
    """Serve an application on a socket while the block runs. say: is told once if connections cannot be taken."""
    server = _Server(
        uvicorn.Config(
            app, http=LineProtocol, lifespan="off", log_config=None, log_level="critical", access_log=False,
            server_header=False, proxy_headers=False, ws="none", limit_concurrency=room.connections(),
            backlog=room.backlog(), timeout_graceful_shutdown=PATIENCE, h11_max_incomplete_event_size=64 * 1024,
        )
    )  # fmt: skip
    server.ready = anyio.Event()
    with _once(say):
        async with anyio.create_task_group() as group:
            group.start_soon(_serve, server, listener)
            try:
                await server.ready.wait()  # who is cancelled here has it stopped as well: it stops by nothing else
                yield
            finally:
                server.should_exit = True
                if isinstance(app, Gate):
                    app.stop()


@contextlib.contextmanager
def _once(say: Callable[[str], object] | None) -> Generator[None]:
    """Have it said once, and not once for each, that no connection can be taken."""
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
            say(f"connections to the board wait, since there are too few descriptors: {context.get('exception')}")

    loop.set_exception_handler(heard)
    try:
        yield
    finally:
        loop.set_exception_handler(before)


async def _serve(server: _Server, listener: socket.socket) -> None:
    """Run it to its end, whatever is cancelled meanwhile: it stops when it is told to."""
    with anyio.CancelScope(shield=True):
        await server.serve([listener])
