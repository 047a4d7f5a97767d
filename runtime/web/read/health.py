"""The runtime's health: for people, for supervisors that restart it, and for metric collectors.

Rules
-----
- `live` and `ready` need no token: they say nothing else.
- The runtime is degraded while its journal cannot be written: it recovers by itself, and must not be restarted. It is
  not ready then, nor while it drains: it accepts nothing new.
"""

from __future__ import annotations

from importlib.metadata import version

import msgspec
from litestar import Response, get

from ...extras import missing
from ...observation.metric_definitions import SERIES
from ..http.access import PUBLIC
from ..http.context import Board, TheBoard
from ..http.problems import Problem

VERSION = version("callboard")


class HealthView(msgspec.Struct, frozen=True, kw_only=True):
    """The health of the runtime. status: ok, degraded or draining. reason, since (UTC epoch seconds): of the trouble.

    accepting: whether it accepts anything new. backlog: transitions that are not committed yet.
    """

    status: str
    reason: str | None
    since: float | None
    accepting: bool
    backlog: int
    now: float
    version: str


class Word(msgspec.Struct, frozen=True):
    """The answer of `live` and `ready`."""

    status: str


class Sample(msgspec.Struct, frozen=True):
    """One number of a metric, with its labels."""

    labels: dict[str, str]
    value: float


class MetricView(msgspec.Struct, frozen=True):
    """One metric. kind: counter (it only grows while the runtime is open) or gauge; unit: in UCUM's notation."""

    name: str
    text: str
    kind: str
    unit: str
    samples: list[Sample]


class MetricsView(msgspec.Struct, frozen=True):
    """All metrics of the runtime; docs/observation.md explains their names."""

    items: list[MetricView]


@get("/api/health", operation_id="get_health")
async def get_health(board: TheBoard) -> HealthView:
    """The health of the runtime."""
    services = board.services
    health = services.health
    status = "degraded" if not health.ok or health.reason else "draining" if services.draining else "ok"
    return HealthView(
        status=status, reason=health.reason, since=health.since, accepting=_accepts(board),
        backlog=services.journal.backlog, now=services.now(), version=VERSION,
    )  # fmt: skip


@get("/health/live", operation_id="get_live", opt={"scope": PUBLIC})
async def get_live(board: TheBoard) -> Word:
    """Whether the runtime is alive, so that it need not be restarted."""
    del board  # it is given while the runtime is open
    return Word("ok")


@get("/health/ready", operation_id="get_ready", opt={"scope": PUBLIC})
async def get_ready(board: TheBoard) -> Word:
    """Whether the runtime accepts something new."""
    if not _accepts(board):
        raise Problem(503, "not-ready", "the runtime accepts nothing new now", headers={"Retry-After": "5"})
    return Word("ok")


def _accepts(board: Board) -> bool:
    services = board.services
    return services.is_open and services.health.ok and not services.draining


@get("/api/metrics", operation_id="get_metrics")
async def get_metrics(board: TheBoard) -> MetricsView:
    """All metrics of the runtime."""
    metrics = board.runtime.metrics()
    return MetricsView(
        [
            MetricView(
                series.name, series.text, "counter" if series.counts else "gauge", series.unit,
                [
                    Sample(dict(zip(series.labels, labels, strict=True)), number)
                    for labels, number in series.values(metrics).items()
                ],
            )
            for series in SERIES
        ]
    )  # fmt: skip


@get("/metrics", operation_id="get_prometheus", media_type="text/plain")
async def get_prometheus(board: TheBoard) -> Response[bytes]:
    """All metrics for Prometheus, if its client library is installed."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415 - an extra
        from prometheus_client.exposition import CONTENT_TYPE_LATEST  # noqa: PLC0415

        from ...collectors.prometheus import RuntimeCollector  # noqa: PLC0415
    except ModuleNotFoundError:
        raise Problem(404, "not-found", missing("/metrics", "prometheus")) from None
    registry = CollectorRegistry()
    registry.register(RuntimeCollector(board.runtime))
    return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}, media_type="text/plain")


HANDLERS = [get_health, get_live, get_ready, get_metrics, get_prometheus]
