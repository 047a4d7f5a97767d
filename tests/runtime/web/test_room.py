"""A board with many connections, slow or all at once: it keeps capacity for other clients, and for its page."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream

import callboard
from callboard import Runtime
from callboard.runtime.web.http import connection_limits as room
from callboard.runtime.web.http.serve import listening, serving
from callboard.runtime.web.stream import uvicorn_protocol
from callboard.web import board

pytestmark = pytest.mark.anyio
ASKED = b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n"
POSTED = b"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
FEW = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from callboard.runtime.web.http import connection_limits as room
room.raised()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], room.connections(), room.streams(), room.backlog())
"""


@asynccontextmanager
async def served(runtime: Runtime) -> AsyncIterator[int]:
    listener = listening("127.0.0.1", 0)
    port: int = listener.getsockname()[1]
    async with serving(board(runtime), listener):
        yield port


async def received(stream: SocketStream) -> bytes:
    """All until it is closed."""
    got = b""
    with anyio.fail_after(300):
        while True:
            try:
                got += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return got


@pytest.mark.parametrize("sent", [b"", ASKED, POSTED])
async def test_a_request_that_does_not_arrive_is_given_up(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(uvicorn_protocol, "ARRIVAL", 0.05)
    async with served(runtime) as port, await anyio.connect_tcp("127.0.0.1", port) as stream:
        if sent:
            await stream.send(sent)
        assert b"408 Request Timeout" in await received(stream)


async def test_what_has_arrived_may_take_its_time(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[uvicorn_protocol.ConnectionProtocol] = []
    watch = uvicorn_protocol.ConnectionProtocol._watch

    def noting(self: uvicorn_protocol.ConnectionProtocol) -> None:
        made.append(self)
        watch(self)

    monkeypatch.setattr(uvicorn_protocol.ConnectionProtocol, "_watch", noting)
    async with served(runtime) as port, await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(b"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        with anyio.fail_after(300):
            assert b"200 OK" in await stream.receive()
        assert made
        assert made[0]._late is None


async def test_more_connections_than_there_is_room_for_are_told_so(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "connections", lambda: 10)
    async with served(runtime) as port:
        streams = [await anyio.connect_tcp("127.0.0.1", port) for _ in range(12)]
        assert b"503 Service Unavailable" in await received(streams[-1])  # before anything was read of it
        await streams[-2].send(ASKED + b"\r\n")
        assert b"503 Service Unavailable" in await received(streams[-2])
        for stream in streams[2:]:
            await stream.aclose()
        await streams[0].send(ASKED + b"Connection: close\r\n\r\n")
        assert b"200 OK" in await received(streams[0])
        for stream in streams[:2]:
            await stream.aclose()


async def test_that_no_connection_can_be_taken_is_told_once(runtime: Runtime) -> None:
    said: list[str] = []
    async with serving(board(runtime), listening("127.0.0.1", 0), said.append):
        for _ in range(3):
            asyncio.get_running_loop().call_exception_handler(
                {"message": "socket.accept() out of system resource", "exception": OSError(24, "Too many open files")}
            )
    assert len(said) == 1
    assert "Too many open files" in said[0]


@pytest.mark.parametrize(
    ("soft", "hard", "found"), [(100, 200, "200 100 80 25"), (100, 20_000, "10240 5000 2000 1280")]
)
def test_the_program_takes_the_descriptors_that_it_may_have(soft: int, hard: int, found: str) -> None:
    source = str(Path(callboard.__file__).parents[1])
    code = FEW.format(soft=soft, hard=hard)
    ended = subprocess.run(
        [sys.executable, "-c", code], text=True, capture_output=True, check=True,
        env={**os.environ, "PYTHONPATH": source},
    )  # fmt: skip
    assert ended.stdout.strip() == found
