"""Whether the runtime is well, for people and for what restarts it."""

from __future__ import annotations

from importlib.metadata import version

import msgspec
from litestar import get

from .context import TheBoard


class HealthView(msgspec.Struct, frozen=True):
    """status: ok | degraded. reason, since: of the trouble. accepting: whether it takes anything new."""

    status: str
    reason: str | None
    since: float | None
    accepting: bool
    version: str


@get("/api/health", operation_id="get_health")
async def get_health(board: TheBoard) -> HealthView:
    """How the runtime is."""
    health = board.runtime.health
    return HealthView(
        status="ok" if health.ok else "degraded", reason=health.reason, since=health.since,
        accepting=board.runtime.is_open and health.ok, version=version("callboard"),
    )  # fmt: skip


HANDLERS = [get_health]
