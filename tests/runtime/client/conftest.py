"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .serving import Served, serve

pytest.register_assert_rewrite("tests.runtime.client.scenarios")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A runtime that is served, for all tests of a module."""
    with serve() as opened:
        yield opened


@pytest.fixture(
    params=[pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"), pytest.param(("trio", {}), id="trio")]
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """The event loops of the client. uvloop differs in sockets only, which are httpx's matter."""
    return request.param
