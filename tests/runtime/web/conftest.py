"""The board in tests: a runtime and a client that calls its application in the same event loop, without a server.

Tests of the board run on asyncio: its framework is made for that (docs/http.md).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from callboard import Runtime
from callboard.web import board

URL = "http://127.0.0.1:8470"


@pytest.fixture(scope="module")
def anyio_backend() -> Any:
    """The event loop of the board."""
    return "asyncio", {"use_uvloop": False}


@asynccontextmanager
async def client_of(runtime: Runtime, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a runtime's board."""
    transport = httpx.ASGITransport(app=board(runtime, **options), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
        yield client


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    """A runtime with its journal in memory."""
    async with Runtime(drain_deadline=0.0) as opened:
        yield opened


@pytest.fixture
async def client(runtime: Runtime) -> AsyncIterator[httpx.AsyncClient]:
    """A client of its board."""
    async with client_of(runtime) as opened:
        yield opened
